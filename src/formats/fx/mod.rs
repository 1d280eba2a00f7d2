//! PyTorch FX text, as `GraphModule.print_readable`, `TORCH_LOGS` and `gm.code` print it.
//!
//! Reading keeps the file's bytes, and for each statement where it stands and what it was. Printing gives back the
//! same bytes, but for what changed: a statement whose operands have other names gets those names, one that does
//! something else is printed from the graph, and deletions (`;  x = None`) move with the last use of a value.
//!
//! * `clean`: what logs and terminals add to a line;
//! * `lex`, `expr`: words, and the right sides of statements;
//! * `collective`: the arguments of PyTorch's functional collectives;
//! * `header`, `read`: classes and their statements;
//! * `emit`: a statement from the graph;
//! * `tails`, `write`: which values to delete where, and the file.

mod clean;
mod collective;
mod emit;
mod error;
mod expr;
mod header;
mod lex;
mod read;
mod tails;
mod write;

pub(super) use collective::{Meaning, Parameter, legacy_group, meaning, namespace, parameters};
pub use emit::print_fresh;
pub use error::{FxError, FxPrintError};

use crate::ir::{Graph, NodeId};
use clean::Source;

/// One file of FX text: its bytes, and a graph for each class in it.
#[derive(Clone, Debug)]
pub struct FxText {
    source: Source,
    classes: Vec<ClassText>,
    graphs: Vec<Graph>,
}

/// Where a statement stands in the cleaned text. Statements follow each other without gaps.
#[derive(Clone, Copy, Debug)]
struct Statement {
    /// First byte of the blank lines and comments above it.
    lead: u32,
    /// First byte of its name, or of `return`.
    start: u32,
    /// First byte of its right side.
    right: u32,
    /// End of the right side.
    right_end: u32,
    /// End of the deletions behind it.
    tail_end: u32,
    /// End of its line.
    end: u32,
}

/// A class as it was read.
#[derive(Clone, Debug)]
struct ClassText {
    /// End of the header's last line.
    body: u32,
    /// The return statement is the last one.
    statements: Vec<Statement>,
    /// The nodes as they were read: inputs, then one for each statement.
    nodes: Vec<crate::ir::Node>,
    /// Operands of all nodes as they were read, and where each node's end.
    operands: Vec<NodeId>,
    operand_ends: Vec<u32>,
    /// How many of the nodes are inputs.
    inputs: usize,
    /// What a node was defined as, by name; `u32::MAX` for names of other things.
    definitions: Vec<u32>,
    /// Whether it deletes values.
    has_tails: bool,
    /// Whether annotations have strides and device.
    has_strides: bool,
}

impl ClassText {
    fn end(&self) -> u32 {
        self.statements.last().map_or(self.body, |statement| statement.end)
    }

    /// The operands a node had when it was read.
    fn operands_of(&self, index: usize) -> &[NodeId] {
        let start = if index == 0 { 0 } else { self.operand_ends[index - 1] as usize };
        &self.operands[start..self.operand_ends[index] as usize]
    }
}

impl FxText {
    /// Reads a file.
    ///
    /// # Errors
    /// [`FxError`], with the place of the first fault.
    pub fn parse(text: Vec<u8>) -> Result<Self, FxError> {
        let source = Source::new(text)?;
        let (classes, graphs) = read::read(&source).map_err(|fault| source.error(&fault))?;
        Ok(Self { source, classes, graphs })
    }

    /// The file as it was read.
    #[must_use]
    pub fn source(&self) -> &str {
        self.source.raw()
    }

    /// The graphs, one for each class, in the order of the file.
    #[must_use]
    pub fn graphs(&self) -> &[Graph] {
        &self.graphs
    }

    /// The graphs, to edit. Inputs stay as they are: the header is always printed as it was read.
    pub fn graphs_mut(&mut self) -> &mut [Graph] {
        &mut self.graphs
    }

    /// The file with the graphs as they are now. Where nothing changed, its bytes are those that were read.
    ///
    /// A node that FX text cannot say (see [`FxPrintError`]) is printed as well as can be, under a comment that says
    /// so; passes make none.
    #[must_use]
    pub fn print(&self) -> Vec<u8> {
        write::print(&self.source, &self.classes, &self.graphs)
    }
}
