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
//! * `statement`: statements that change a value where it stands;
//! * `emit`: a statement from the graph;
//! * `nodes`: the same graphs as lists of nodes;
//! * `tails`, `write`: which values to delete where, and the file.

mod clean;
mod collective;
mod emit;
mod error;
mod expr;
mod header;
mod lex;
pub mod nodes;
mod read;
mod statement;
mod tails;
mod write;

pub(super) use collective::{Meaning, Parameter, legacy_group, meaning, namespace, parameters};
pub use emit::print_fresh;
pub use error::{FxError, FxPrintError};

use bucketeer::ir::{Graph, NodeId};
use clean::Source;

/// One file of FX text: its bytes, and a graph for each class in it.
#[derive(Clone, Debug)]
pub struct FxText {
    source: Source,
    classes: Vec<ClassText>,
    graphs: Vec<Graph>,
    unread: Vec<FxError>,
}

/// Where a statement stands in the cleaned text. Statements follow each other without gaps.
#[derive(Clone, Copy, Debug)]
struct Statement {
    /// First byte of the blank lines and comments above it.
    lead: u32,
    /// First byte of its name, or of `return`.
    start: u32,
    /// First byte of its right side; of a statement that changes a value, its first byte.
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
    /// First byte of the header's first line.
    start: u32,
    /// Blanks before `def forward`.
    indent: u32,
    /// End of the header's last line.
    body: u32,
    /// The return statement is the last one.
    statements: Vec<Statement>,
    /// How many of the nodes are inputs: they come first, then one for each statement.
    inputs: usize,
    /// What a node was defined as, by name; `u32::MAX` for names of other things.
    definitions: Vec<u32>,
    /// Results of augmented assignments, in order: below them, the name of what they change stands for them.
    rebound: Vec<NodeId>,
    /// Whether it deletes values.
    has_tails: bool,
    /// Whether annotations have strides and device.
    has_strides: bool,
}

impl Statement {
    /// Whether it changes a value where it stands: `x += y` or `x[i] = v`.
    const fn is_change(&self) -> bool {
        self.start == self.right
    }
}

impl ClassText {
    fn end(&self) -> u32 {
        self.statements.last().map_or(self.body, |statement| statement.end)
    }
}

impl FxText {
    /// Reads a file. A graph with a fault does not keep others from being read; [`FxText::unread`] tells.
    ///
    /// # Errors
    /// [`FxError`], with the place of the first fault, if no graph can be read.
    pub fn parse(text: Vec<u8>) -> Result<Self, FxError> {
        let source = Source::new(text)?;
        let read::Read { classes, graphs, faults } = read::read(&source).map_err(|fault| source.error(&fault))?;
        let unread = faults.iter().map(|fault| source.error(fault)).collect();
        Ok(Self { source, classes, graphs, unread })
    }

    /// The file as it was read.
    #[must_use]
    pub fn source(&self) -> &str {
        self.source.file()
    }

    /// The faults of the graphs that could not be read, in the order of the file. They are printed as they are.
    #[must_use]
    pub fn unread(&self) -> &[FxError] {
        &self.unread
    }

    /// The rank that logged a graph, if the line of its header says so: `[rank1]:`.
    #[must_use]
    pub fn rank_of(&self, graph: usize) -> Option<u32> {
        let class = self.classes.get(graph)?;
        self.source.rank((class.body as usize).saturating_sub(1))
    }

    /// The lines of each rank, if the file holds graphs of several.
    pub(super) fn by_rank(&self) -> Option<Vec<(u32, String)>> {
        let ranks: Vec<u32> = (0..self.graphs.len()).filter_map(|graph| self.rank_of(graph)).collect();
        ranks.iter().any(|rank| *rank != ranks[0]).then(|| self.source.logs())
    }

    /// The text of the graphs as they were read, or of one and those inside of it: without what logs and terminals add, and
    /// without what stands between graphs.
    pub(super) fn cleaned(&self, only: Option<usize>) -> String {
        let text = self.source.text();
        let mut clean = String::new();
        let indent = only.and_then(|graph| self.classes.get(graph)).map(|class| class.indent);
        for (index, class) in self.classes.iter().enumerate().skip(only.unwrap_or(0)) {
            if only.is_some_and(|graph| index > graph) && indent.is_some_and(|indent| class.indent <= indent) {
                break;
            }
            let part = &text[class.start as usize..class.end() as usize];
            // A log has a blank or the path of the generated code before the class.
            let (line, rest) = part.split_once('\n').unwrap_or((part, ""));
            match line.split_once(" class ").filter(|_| class.indent <= header::OUTERMOST_INDENT) {
                Some((_, line)) => clean.extend(["class ", line, "\n", rest]),
                None => clean.push_str(part),
            }
            if !clean.ends_with('\n') {
                clean.push('\n');
            }
        }
        clean
    }

    /// Where the header of a graph begins, in bytes of [`FxText::source`].
    pub(super) fn start_of(&self, graph: usize) -> usize {
        self.classes.get(graph).map_or(0, |class| self.source.file_offset(class.start as usize))
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

    /// The file with the graphs as they are now. Where nothing changed, its bytes are those that were read. Of a log into
    /// which several ranks wrote at once, the lines of each rank stand together if a graph changed.
    ///
    /// A node that FX text cannot say (see [`FxPrintError`]) is printed as well as can be, under a comment that says
    /// so; passes make none.
    #[must_use]
    pub fn print(&self) -> Vec<u8> {
        write::print(&self.source, &self.classes, &self.graphs)
    }
}
