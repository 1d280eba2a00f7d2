//! The faults a graph can have.

use crate::ir::entities::NodeId;
use crate::ir::graph::Graph;
use std::fmt;

/// A node of a graph, and its name there. Prints as the name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeName {
    /// The node.
    pub id: NodeId,
    /// Its name.
    pub name: String,
}

impl NodeName {
    /// The node with the name that it has in the graph.
    #[must_use]
    pub fn of(graph: &Graph, id: NodeId) -> Self {
        Self { id, name: graph.name_of(id).to_owned() }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// One fault: what was found, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field holds")]
#[non_exhaustive]
pub enum VerifyError {
    #[error("the {what} names node {index}, which does not exist")]
    Dangling { what: &'static str, index: usize },
    #[error("`{node}` stands in the program order twice; expected once")]
    TwiceInOrder { node: NodeName },
    #[error("two nodes are named `{name}`; expected a name for each")]
    NameTwice { name: NodeName },
    #[error("`{node}` is a second output; expected one at most")]
    SecondOutput { node: NodeName },
    #[error("output `{node}` is not the last node; expected nothing after it")]
    OutputNotLast { node: NodeName },
    #[error("`{node}` uses `{operand}`, which is not in the program order")]
    OperandGone { node: NodeName, operand: NodeName },
    #[error("`{node}` uses `{operand}`, which stands after it; expected it before")]
    UseBeforeDefinition { node: NodeName, operand: NodeName },
    #[error("the arguments of `{node}` have {holes} holes, but it has {operands} operands; expected as many")]
    Holes { node: NodeName, holes: usize, operands: usize },
    #[error("the holes in the arguments of `{node}` are not numbered in order of appearance")]
    HoleOrder { node: NodeName },
    #[error("wait `{node}` has no operand; expected the result of a collective")]
    WaitForNothing { node: NodeName },
    #[error("wait `{node}` makes {found} of `{waited}`, which is {expected}; expected the same")]
    WaitType { node: NodeName, waited: NodeName, found: String, expected: String },
    #[error("`{node}` waits for a list and is {found}; expected a list of {expected}")]
    WaitList { node: NodeName, found: String, expected: usize },
    #[error("region {index} `{label}` has a parent that does not stand before it")]
    RegionParent { label: String, index: usize },
    #[error("region `{label}` lies inside more than {} others", super::MAX_DEPTH)]
    RegionDepth { label: String },
    #[error("`{node}` is in a region that does not exist")]
    NoRegion { node: NodeName },
    #[error("`{node}` stands in region `{label}`, which was left before; expected its nodes together")]
    RegionSplit { node: NodeName, label: String },
    #[error("`{node}` uses a group that does not exist")]
    NoGroup { node: NodeName },
    #[error("group `{group}` has no ranks; expected one or more")]
    EmptyGroup { group: String },
    #[error("group `{group}` lists members but no size")]
    GroupWithoutSize { group: String },
    #[error("group `{group}` lists {found} ranks; expected {expected}, its size")]
    GroupSize { group: String, found: usize, expected: u32 },
    #[error("group `{group}` holds rank {rank} twice; expected once")]
    RankTwice { group: String, rank: u32 },
    #[error("collective `{node}` has no input; expected a tensor, or a list for a coalesced form")]
    NoInput { node: NodeName },
    #[error("collective `{node}` has no `out`; expected the tensor it writes")]
    NoOut { node: NodeName },
    #[error("collective `{node}` has an `out`, but is not the form that writes one")]
    OutNotUsed { node: NodeName },
    #[error("`{node}` makes {found} of `{input}`, which is {given}; expected {expected}")]
    CollectiveType { node: NodeName, input: NodeName, given: String, found: String, expected: String },
    #[error("`{node}` makes {found} results of {expected} inputs; expected as many")]
    CollectiveCount { node: NodeName, found: usize, expected: usize },
    #[error("`{node}` works along dimension {dim} of `{input}`, which is {given}; expected a smaller dimension")]
    CollectiveDim { node: NodeName, input: NodeName, given: String, dim: u32 },
    #[error(
        "`{node}` scatters `{input}`, which is {given}, to {size} ranks; expected a multiple of {size} along dimension {dim}"
    )]
    Indivisible { node: NodeName, input: NodeName, given: String, dim: u32, size: u32 },
    #[error("`{reader}` reads `{pending}`, whose result is pending; expected a wait on `{pending}` before")]
    ReadPending { pending: NodeName, reader: NodeName },
    #[error("order edge `{before}` to `{after}`: `{gone}` is not in the program order")]
    EdgeEndGone { before: NodeName, after: NodeName, gone: NodeName },
    #[error("`{after}` has to run after `{before}` but stands before it")]
    EdgeBroken { before: NodeName, after: NodeName },
}

impl VerifyError {
    /// The node at fault: of two, the one that has to change. `None` where no node of the graph is.
    #[must_use]
    pub const fn node(&self) -> Option<&NodeName> {
        match self {
            Self::TwiceInOrder { node }
            | Self::SecondOutput { node }
            | Self::OutputNotLast { node }
            | Self::OperandGone { node, .. }
            | Self::UseBeforeDefinition { node, .. }
            | Self::Holes { node, .. }
            | Self::HoleOrder { node }
            | Self::WaitForNothing { node }
            | Self::WaitType { node, .. }
            | Self::WaitList { node, .. }
            | Self::NoRegion { node }
            | Self::RegionSplit { node, .. }
            | Self::NoGroup { node }
            | Self::NoInput { node }
            | Self::NoOut { node }
            | Self::OutNotUsed { node }
            | Self::CollectiveType { node, .. }
            | Self::CollectiveCount { node, .. }
            | Self::CollectiveDim { node, .. }
            | Self::Indivisible { node, .. }
            | Self::NameTwice { name: node }
            | Self::ReadPending { reader: node, .. }
            | Self::EdgeEndGone { before: node, .. }
            | Self::EdgeBroken { after: node, .. } => Some(node),
            Self::Dangling { .. }
            | Self::RegionParent { .. }
            | Self::RegionDepth { .. }
            | Self::EmptyGroup { .. }
            | Self::GroupWithoutSize { .. }
            | Self::GroupSize { .. }
            | Self::RankTwice { .. } => None,
        }
    }
}

/// All faults of a graph; at least one. Prints one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyErrors(pub Vec<VerifyError>);

impl fmt::Display for VerifyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let newline = if index > 0 { "\n" } else { "" };
            write!(f, "{newline}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for VerifyErrors {}
