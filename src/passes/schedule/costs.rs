//! What a step costs: the time of computation by node, of a message by group and kind, of a copy.
//!
//! All times are whole nanoseconds, never in floating point, so that every rank and machine computes the same. What a message
//! takes by its bytes is a [`MessageCost`], of the crate `bucketeer-chain`.

use super::profile::Class;
use crate::ir::{CollectiveKind, Graph, NodeId};
use crate::passes::liveness::value_bytes;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

pub use bucketeer_chain::{MOST_PIECES, MessageCost, Piece, PiecesError};

/// A map that keeps the order in which it was filled.
pub type Map<V> = IndexMap<Box<str>, V, FxBuildHasher>;

/// What is known of one process group.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct GroupCosts {
    /// What the group is, for people.
    #[cfg_attr(feature = "serde", serde(default))]
    pub label: Box<str>,
    /// How many ranks it has.
    pub size: u32,
    /// By kind, as [`CollectiveKind::name`] has it.
    pub costs: Map<MessageCost>,
}

/// The time on the compute stream to pack or unpack a bucket of two or more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct CopyCost {
    /// Nanoseconds of one pack or unpack without bytes.
    pub fixed_ns: u64,
    /// Nanoseconds for `ns_per_byte_den` bytes.
    pub ns_per_byte_num: u64,
    /// Bytes that take `ns_per_byte_num` nanoseconds; not 0.
    pub ns_per_byte_den: u64,
}

impl Default for CopyCost {
    fn default() -> Self {
        Self { fixed_ns: 0, ns_per_byte_num: 0, ns_per_byte_den: 1 }
    }
}

impl CopyCost {
    /// The cost that is closest to measured times, as [`MessageCost::fit`] has it, of one line.
    #[must_use]
    pub fn fit(measured: &[(u64, u64)]) -> Self {
        let Piece { alpha_ns, ns_per_byte_num, ns_per_byte_den } = Piece::fit(measured);
        Self { fixed_ns: alpha_ns, ns_per_byte_num, ns_per_byte_den }
    }

    /// As the line that it is.
    pub(super) const fn piece(self) -> Piece {
        let Self { fixed_ns, ns_per_byte_num, ns_per_byte_den } = self;
        Piece { alpha_ns: fixed_ns, ns_per_byte_num, ns_per_byte_den }
    }

    /// Nanoseconds to copy so many bytes.
    #[must_use]
    pub fn ns(&self, bytes: u64) -> u64 {
        self.piece().ns(bytes)
    }
}

/// All costs of one graph.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Costs {
    /// Nanoseconds by node name; a node that is not here takes none.
    pub compute_ns: Map<u64>,
    /// By the name of the group.
    pub groups: Map<GroupCosts>,
    /// Packing and unpacking.
    pub copy: CopyCost,
}

/// Why costs do not fit a graph, or are no costs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field holds")]
#[non_exhaustive]
pub enum CostError {
    #[error(transparent)]
    Pieces(#[from] PiecesError),
    #[error("`{node}`: found group `{group}`, expected one that has costs: {}", known.join(", "))]
    NoGroup { node: String, group: String, known: Vec<String> },
    #[error("`{node}`: found `{kind}` in group `{group}`, which has costs for {} alone", known.join(", "))]
    NoKind { node: String, group: String, kind: &'static str, known: Vec<String> },
    #[error("group `{group}` has {found} ranks in the graph and {stated} in the costs")]
    GroupSize { group: String, found: u32, stated: u32 },
    #[error("`{node}` has a size that is not known; state a hint for its symbols")]
    Size { node: String },
    #[error("group `{group}` has no known size; state its size or its members")]
    NoSize { group: String },
    #[error(
        "group `{group}`: found `{kind}` among {class}, expected one that profile `{profile}` has costs for: {}",
        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
    )]
    NoClass { group: String, class: Class, kind: &'static str, profile: String, known: Vec<String> },
    #[error("`{node}` takes time, found neither a measured one nor rates in profile `{profile}`; expected one of them")]
    NoRates { node: String, profile: String },
    #[error(
        "how much these compute is not known, so shapes do not say how long they take: {}{}; state their times",
        nodes.join("; "),
        if *more > 0 { format!("; and {more} more") } else { String::new() }
    )]
    NoWork { nodes: Vec<String>, more: usize },
    #[error("`{node}`: found {found}, expected {expected}")]
    Shapes { node: String, found: String, expected: &'static str },
    #[error("the costs give a time to `{node}`, which is not a node of the graph")]
    NoNode { node: String },
    #[error("the times of all nodes and messages do not fit in 64 bits of nanoseconds")]
    TooLong,
}

impl Costs {
    /// The cost of a collective.
    ///
    /// # Errors
    /// [`CostError::NoGroup`] or [`CostError::NoKind`] where there is none, naming the node.
    pub fn of_collective(&self, graph: &Graph, node: NodeId) -> Result<&MessageCost, CostError> {
        let named = || graph.name_of(node).to_owned();
        let Some(collective) = graph.collective(node) else {
            return Err(CostError::NoKind { node: named(), group: String::new(), kind: "call", known: Vec::new() });
        };
        let group = &*graph.group(collective.group).name;
        let list = |known: Vec<&Box<str>>| known.into_iter().map(|name| format!("`{name}`")).collect();
        let found = self.groups.get(group).ok_or_else(|| CostError::NoGroup {
            node: named(),
            group: group.to_owned(),
            known: list(self.groups.keys().collect()),
        })?;
        let kind = collective.kind.name();
        found.costs.get(kind).ok_or_else(|| CostError::NoKind {
            node: named(),
            group: group.to_owned(),
            kind,
            known: list(found.costs.keys().collect()),
        })
    }

    /// The same with the links of a group so many hundredths as fast: its bytes take less time, its starts the same.
    #[must_use]
    pub fn with_faster_links(&self, group: &str, hundredths: u32) -> Self {
        let mut costs = self.clone();
        for cost in costs.groups.get_mut(group).into_iter().flat_map(|group| group.costs.values_mut()) {
            *cost = cost.with_faster_links(hundredths);
        }
        costs
    }

    /// The costs of a graph that was made from another: without the times of nodes that are not in it any more.
    #[must_use]
    pub fn of_what_is_left(&self, graph: &Graph) -> Self {
        let names: hashbrown::HashSet<&str, FxBuildHasher> =
            graph.order().iter().map(|&id| graph.name_of(id)).collect();
        let mut left = self.clone();
        left.compute_ns.retain(|node, _| names.contains(&**node));
        left
    }

    /// Holds the costs against a graph: that each node with a time is there, and that groups are as large as stated.
    ///
    /// # Errors
    /// [`CostError`], naming what does not fit.
    pub fn check(&self, graph: &Graph) -> Result<(), CostError> {
        check_names(graph, &self.compute_ns)?;
        for &id in graph.order() {
            let Some(collective) = graph.collective(id) else { continue };
            self.of_collective(graph, id)?;
            let group = graph.group(collective.group);
            let stated = self.groups.get(&group.name).map(|known| known.size);
            if let Some((found, stated)) = group.size.zip(stated).filter(|(found, stated)| found != stated) {
                return Err(CostError::GroupSize { group: group.name.to_string(), found, stated });
            }
        }
        Ok(())
    }
}

/// Whether each node with a time is in a graph.
///
/// # Errors
/// [`CostError::NoNode`], naming one that is not.
pub(super) fn check_names(graph: &Graph, compute_ns: &Map<u64>) -> Result<(), CostError> {
    let names: hashbrown::HashSet<&str, FxBuildHasher> = graph.order().iter().map(|&id| graph.name_of(id)).collect();
    match compute_ns.keys().find(|node| !names.contains(&***node)) {
        Some(node) => Err(CostError::NoNode { node: node.to_string() }),
        None => Ok(()),
    }
}

/// Bytes of what a collective is given.
pub(super) fn operand_bytes(graph: &Graph, node: NodeId) -> Option<u64> {
    graph.collective_inputs(node).iter().try_fold(0u64, |sum, &input| sum.checked_add(value_bytes(graph, input)?))
}

/// Bytes that a collective's time is reckoned with: of a scatter or reduce what is given, of all others what comes out.
///
/// # Errors
/// [`CostError::Size`] where they are not known.
pub fn message_bytes(graph: &Graph, node: NodeId) -> Result<u64, CostError> {
    let kind = graph.collective(node).map(|collective| collective.kind);
    let bytes = match kind {
        Some(CollectiveKind::ReduceScatter { .. } | CollectiveKind::Reduce { .. }) => operand_bytes(graph, node),
        _ => value_bytes(graph, node),
    };
    bytes.ok_or_else(|| CostError::Size { node: graph.name_of(node).to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_one_group_are_faster_and_those_of_others_as_they_were() {
        let line = Piece { alpha_ns: 50, ns_per_byte_num: 3, ns_per_byte_den: 7 };
        let cost = MessageCost::new(vec![line]).unwrap();
        let costs = [("all_reduce".into(), cost.clone())].into_iter().collect();
        let group = GroupCosts { label: "".into(), size: 2, costs };
        let groups = ["A", "B"].map(|name| (name.into(), group.clone())).into_iter().collect();
        let costs = Costs { groups, ..Costs::default() };
        let faster = costs.with_faster_links("A", 200);
        assert_eq!(faster.groups["A"].costs["all_reduce"], cost.with_faster_links(200));
        assert_eq!(faster.groups["A"].costs["all_reduce"].ns(7 << 40), 50 + (3 << 39));
        assert_eq!(faster.groups["B"], costs.groups["B"]);
        assert_eq!(costs.with_faster_links("C", 200), costs);
    }
}
