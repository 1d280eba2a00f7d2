//! What a step costs: the time of computation by node, of a message by group and kind, of a copy.
//!
//! All times are whole nanoseconds. The time of a message of `S` bytes is the least over its pieces of
//! `alpha_ns + ceil(S * ns_per_byte_num / ns_per_byte_den)`: rounded up once for each piece, never in floating point, so that
//! every rank and machine computes the same. As the least of straight lines it is concave: two messages together never take
//! longer than both apart.

use super::hull;
use super::profile::Class;
use crate::ir::{CollectiveKind, Graph, NodeId};
use crate::passes::liveness::value_bytes;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// A map that keeps the order in which it was filled.
pub type Map<V> = IndexMap<Box<str>, V, FxBuildHasher>;

/// Most pieces of one message cost.
pub const MOST_PIECES: usize = 8;

/// A straight line: a time to start, and a time for each byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Piece {
    /// Nanoseconds of a message without bytes.
    pub alpha_ns: u64,
    /// Nanoseconds for `ns_per_byte_den` bytes.
    pub ns_per_byte_num: u64,
    /// Bytes that take `ns_per_byte_num` nanoseconds; not 0.
    pub ns_per_byte_den: u64,
}

impl Piece {
    /// Nanoseconds of a message, at most [`u64::MAX`].
    #[must_use]
    pub fn ns(&self, bytes: u64) -> u64 {
        self.alpha_ns.saturating_add(scaled(bytes, self.ns_per_byte_num, self.ns_per_byte_den))
    }
}

/// `ceil(bytes * num / den)`, at most [`u64::MAX`].
fn scaled(bytes: u64, num: u64, den: u64) -> u64 {
    match bytes.checked_mul(num) {
        Some(product) => product.div_ceil(den.max(1)),
        None => {
            let exact = (u128::from(bytes) * u128::from(num)).div_ceil(u128::from(den.max(1)));
            u64::try_from(exact).unwrap_or(u64::MAX)
        }
    }
}

/// The time of messages of one kind in one group: one to eight pieces.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct MessageCost(Vec<Piece>);

impl MessageCost {
    /// A cost of these pieces.
    ///
    /// # Errors
    /// [`CostError::Pieces`], unless there are one to eight and none divides by 0.
    pub fn new(pieces: Vec<Piece>) -> Result<Self, CostError> {
        let fits = (1..=MOST_PIECES).contains(&pieces.len()) && pieces.iter().all(|piece| piece.ns_per_byte_den > 0);
        if fits { Ok(Self(pieces)) } else { Err(CostError::Pieces { found: pieces.len() }) }
    }

    /// Of one to eight pieces that all divide by something.
    pub(super) const fn of_lines(pieces: Vec<Piece>) -> Self {
        debug_assert!(!pieces.is_empty() && pieces.len() <= MOST_PIECES);
        Self(pieces)
    }

    /// The cost that is closest to measured times, given as bytes and nanoseconds: the sum of its relative errors is the least, so
    /// that single times that are off their neighbours bend nothing. Lines that move no size by more than 2 % are left out. It
    /// starts at 85 % of the shortest time at least.
    ///
    /// ```
    /// use bucketeer::passes::schedule::MessageCost;
    ///
    /// let measured: Vec<(u64, u64)> = (12..30).map(|at| 1 << at).map(|bytes| (bytes, 20_000 + bytes / 128)).collect();
    /// let cost = MessageCost::fit(&measured);
    /// assert_eq!(cost.pieces().len(), 1);
    /// assert_eq!(cost.ns(1 << 26), 20_000 + (1 << 26) / 128);
    /// ```
    #[must_use]
    pub fn fit(measured: &[(u64, u64)]) -> Self {
        hull::fit(measured)
    }

    /// Its pieces.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// Nanoseconds of a message.
    #[must_use]
    pub fn ns(&self, bytes: u64) -> u64 {
        self.0.iter().map(|piece| piece.ns(bytes)).min().unwrap_or(0)
    }

    /// The least time to start a message, in nanoseconds.
    #[must_use]
    pub fn alpha_ns(&self) -> u64 {
        self.0.iter().map(|piece| piece.alpha_ns).min().unwrap_or(0)
    }

    /// The least time that bytes take beside starting, in nanoseconds: at the smallest slope, rounded up.
    #[must_use]
    pub fn bytes_ns(&self, bytes: u64) -> u64 {
        self.0.iter().map(|piece| scaled(bytes, piece.ns_per_byte_num, piece.ns_per_byte_den)).min().unwrap_or(0)
    }
}

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
        let Piece { alpha_ns, ns_per_byte_num, ns_per_byte_den } = hull::fit_line(measured).piece();
        Self { fixed_ns: alpha_ns, ns_per_byte_num, ns_per_byte_den }
    }

    /// Nanoseconds to copy so many bytes.
    #[must_use]
    pub fn ns(&self, bytes: u64) -> u64 {
        self.fixed_ns.saturating_add(scaled(bytes, self.ns_per_byte_num, self.ns_per_byte_den))
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
    #[error(
        "a message cost has {found} pieces, or one that divides by 0; expected 1 to {MOST_PIECES} with `ns_per_byte_den` above 0"
    )]
    Pieces { found: usize },
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
            for piece in &mut cost.0 {
                let (num, den) = (u128::from(piece.ns_per_byte_num) * 100, u128::from(piece.ns_per_byte_den));
                let den = den * u128::from(hundredths.max(1));
                // Both below 2^64 again; what is cut off is below a 2^40th.
                let shift = 64u32.saturating_sub(num.max(den).leading_zeros());
                let fit = |number: u128| u64::try_from(number >> shift).unwrap_or(u64::MAX);
                (piece.ns_per_byte_num, piece.ns_per_byte_den) = (fit(num), fit(den).max(1));
            }
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

    fn piece(alpha_ns: u64, ns_per_byte_num: u64, ns_per_byte_den: u64) -> Piece {
        Piece { alpha_ns, ns_per_byte_num, ns_per_byte_den }
    }

    #[test]
    fn a_message_takes_its_cheapest_piece_rounded_up() {
        let cost = MessageCost::new(vec![piece(18_000, 1, 100), piece(25_000, 1, 368)]).unwrap();
        assert_eq!(cost.ns(0), 18_000);
        assert_eq!(cost.ns(1), 18_001);
        assert_eq!(cost.ns(100), 18_001);
        assert_eq!(cost.ns(1 << 20), 25_000 + (1u64 << 20).div_ceil(368));
        assert_eq!((cost.alpha_ns(), cost.bytes_ns(369)), (18_000, 2));
        // Far above what any machine sends, and no overflow.
        assert_eq!(MessageCost::new(vec![piece(1, 7, 1)]).unwrap().ns(u64::MAX), u64::MAX);
    }

    #[test]
    fn links_twice_as_fast_halve_what_bytes_take_and_no_start() {
        let group = |pieces| GroupCosts {
            label: "".into(),
            size: 2,
            costs: [("all_reduce".into(), MessageCost::new(pieces).unwrap())].into_iter().collect(),
        };
        let groups = [("A", vec![piece(50, 3, 7)]), ("B", vec![piece(50, u64::MAX / 3, u64::MAX)])];
        let groups = groups.map(|(name, pieces)| (name.into(), group(pieces)));
        let costs = Costs { groups: groups.into_iter().collect(), ..Costs::default() };
        let ns = |costs: &Costs, name: &str| costs.groups[name].costs["all_reduce"].ns(7 << 40);
        let faster = costs.with_faster_links("A", 200).with_faster_links("B", 300);
        assert_eq!((ns(&costs, "A"), ns(&faster, "A")), (50 + (3 << 40), 50 + (3 << 39)));
        let (before, after) = (ns(&costs, "B") - 50, ns(&faster, "B") - 50);
        assert!(after.abs_diff(before / 3) < 4, "{before} {after}");
        assert_eq!(costs.with_faster_links("C", 200), costs);
    }

    #[test]
    fn costs_without_pieces_or_with_a_zero_below_the_line_are_refused() {
        assert_eq!(MessageCost::new(Vec::new()), Err(CostError::Pieces { found: 0 }));
        assert_eq!(MessageCost::new(vec![piece(1, 1, 0)]), Err(CostError::Pieces { found: 1 }));
        assert_eq!(MessageCost::new(vec![piece(1, 1, 1); 9]), Err(CostError::Pieces { found: 9 }));
    }
}
