//! Where the parts of a program stand in its JSON. What its nodes were is in the edit logs of its graphs.

use bucketeer::ir::Dim;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::ops::Range;

/// A node that is not a node of the JSON.
pub(super) const NONE: u32 = u32::MAX;

/// A program as it was read.
#[derive(Clone, Debug)]
pub(super) struct ProgramText {
    /// Its own graph first, then those inside of it.
    pub graphs: Vec<GraphText>,
    /// What its outputs are, in their order.
    pub output_specs: Vec<Range<usize>>,
    pub call_graph: Option<Range<usize>>,
}

/// What is said of values, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub object: Range<usize>,
    /// Names, and where what is said of them stands.
    pub entries: Vec<(Box<str>, Range<usize>)>,
}

/// A graph as it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct GraphText {
    pub nodes_array: Range<usize>,
    pub nodes: Vec<Range<usize>>,
    pub outputs: Vec<Range<usize>>,
    pub tensors: Table,
    pub integers: Table,
    /// How many nodes are inputs.
    pub inputs: usize,
    /// By node of the graph: the node of the JSON that it is, or [`NONE`] for inputs, the output, and values of nodes
    /// that make several.
    pub origin: Vec<u32>,
    /// The JSON of symbolic sizes, and SymPy's texts of symbols.
    pub dims: HashMap<Dim, Box<str>, FxBuildHasher>,
    pub symbols: HashMap<Box<str>, Box<str>, FxBuildHasher>,
}
