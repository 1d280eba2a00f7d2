//! What a machine costs: messages by kind and class of group, copies, and how fast it computes.
//!
//! A profile knows nothing of graphs. [`Profile::costs`] puts it to one: each group of the graph falls into a [`Class`], and
//! each call takes a time by its shapes (see [`super::times`]).
//!
//! # Groups that have no row
//!
//! Rows are compared within one node, or across nodes with as many ranks on each. Among those, in this order:
//!
//! 1. A row of the same class is taken.
//! 2. Between two rows the time of each size is the mean of theirs, weighted by ranks: start-up grows with the ranks of a
//!    ring, and is overstated a little for trees.
//! 3. Below the smallest row that row is taken: fewer ranks take no longer.
//! 4. Above the largest one, or where there are none, NCCL's formulas (see [`super::nccl`]) are taken if the profile names an
//!    architecture. If not, the group is refused: what a larger machine does does not follow from a smaller one.
//!
//! A kind without rows of its own takes those of another that moves the same bytes over each link: a broadcast those of a
//! gather, a reduce those of a scatter, a permute those of an all-to-all. A group of one rank takes a copy.

use super::costs::{CopyCost, CostError, Costs, GroupCosts, Map, MessageCost, check_names};
use super::nccl::{self, Architecture};
use super::times;
use crate::ir::{CollectiveKind, Graph, ProcessGroup, ReduceOp};
use std::fmt;

/// Every kind, with parameters that play no part here.
pub(super) const KINDS: [CollectiveKind; 7] = [
    CollectiveKind::AllGather { dim: 0 },
    CollectiveKind::ReduceScatter { op: ReduceOp::Sum, dim: 0 },
    CollectiveKind::AllReduce { op: ReduceOp::Sum },
    CollectiveKind::Broadcast { root: 0 },
    CollectiveKind::Reduce { op: ReduceOp::Sum, root: 0 },
    CollectiveKind::AllToAll,
    CollectiveKind::Permute,
];

/// The kind that moves the same bytes over each link.
const fn stand_in(kind: CollectiveKind) -> &'static str {
    match kind {
        CollectiveKind::Broadcast { .. } => "all_gather",
        CollectiveKind::Reduce { .. } => "reduce_scatter",
        CollectiveKind::Permute => "all_to_all",
        _ => kind.name(),
    }
}

/// How a group lies on the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Class {
    /// How many ranks it has.
    pub ranks: u32,
    /// On how many nodes they are.
    pub nodes: u32,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u32| if count == 1 { "" } else { "s" };
        write!(f, "{} rank{} on {} node{}", self.ranks, plural(self.ranks), self.nodes, plural(self.nodes))
    }
}

impl Class {
    /// Whether two classes may be compared: both within a node, or both across nodes with as many ranks on each.
    fn is_like(self, other: Self) -> bool {
        let across = u64::from(self.ranks) * u64::from(other.nodes) == u64::from(other.ranks) * u64::from(self.nodes);
        (self.nodes == 1) == (other.nodes == 1) && (self.nodes == 1 || across)
    }
}

/// A row of a profile: the messages of one class of groups.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct ClassCosts {
    /// Which groups.
    pub class: Class,
    /// By kind, as [`CollectiveKind::name`] has it.
    pub costs: Map<MessageCost>,
}

/// How fast one GPU computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Rates {
    /// Peak of the data sheet for products of `f64` and `c128`, in FLOP/s. No peak counts sparsity; none is 0.
    pub f64_flops_per_s: u64,
    /// The same for `f32` and `c64`.
    pub f32_flops_per_s: u64,
    /// The same for `f16`, `bf16` and `c32`.
    pub f16_flops_per_s: u64,
    /// The same for types of 8 bits or fewer with a point.
    pub f8_flops_per_s: u64,
    /// The same for integers.
    pub int_flops_per_s: u64,
    /// What of a peak is reached, in thousandths.
    pub achieved_permille: u32,
    /// Bytes that memory reads or writes in a second.
    pub memory_bytes_per_s: u64,
}

/// Of no machine.
const NOMINAL: Rates = Rates {
    f64_flops_per_s: 1,
    f32_flops_per_s: 1,
    f16_flops_per_s: 1,
    f8_flops_per_s: 1,
    int_flops_per_s: 1,
    achieved_permille: 1000,
    memory_bytes_per_s: 1,
};

/// What of a peak is reached if nobody measured: 75 %, as Inductor has it.
pub const ACHIEVED_PERMILLE: u32 = 750;

/// What a machine costs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// What it is called: `h100-ib`.
    pub name: Box<str>,
    /// What it is, for people.
    pub label: Box<str>,
    /// Where its numbers come from.
    pub source: Box<str>,
    /// So many ranks in a row are one node: those that the fast links join.
    pub gpus_per_node: u32,
    /// Packing and unpacking.
    pub copy: CopyCost,
    /// How fast it computes; where nobody says, calls need measured times.
    pub rates: Option<Rates>,
    /// Whose formulas stand in for rows that are not there; `None` refuses them.
    pub nccl: Option<Architecture>,
    /// Its rows.
    pub classes: Vec<ClassCosts>,
}

impl Profile {
    /// The class of a group; `None` where neither its members nor its size are known.
    ///
    /// Members are global ranks, and `gpus_per_node` of them in a row are a node. Of several groups under one name the one on
    /// most nodes counts, so that all ranks take the same. Where nobody lists the members, a group that fits into a node is
    /// taken to be in one, and a larger one to fill its nodes.
    #[must_use]
    pub fn class_of(&self, group: &ProcessGroup) -> Option<Class> {
        let per_node = self.gpus_per_node.max(1);
        let listed = group.members.iter().map(|members| {
            let mut nodes: Vec<u32> = members.iter().map(|rank| rank.0 / per_node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            Class { ranks: members.len() as u32, nodes: nodes.len() as u32 }
        });
        let unlisted = || group.size.map(|ranks| Class { ranks, nodes: ranks.div_ceil(per_node) });
        listed.max_by_key(|class| (class.nodes, class.ranks)).or_else(unlisted).filter(|class| class.ranks > 0)
    }

    /// The cost of messages of a kind in a class of groups, by the rules above; `None` where they refuse.
    #[must_use]
    pub fn message(&self, class: Class, kind: CollectiveKind) -> Option<MessageCost> {
        if class.ranks == 1 {
            return MessageCost::new(vec![self.copy.piece()]).ok();
        }
        let found = self.row(class, kind.name()).or_else(|| self.row(class, stand_in(kind)));
        found.or_else(|| nccl::cost(kind, class.ranks, class.nodes, self.nccl?))
    }

    fn row(&self, class: Class, kind: &str) -> Option<MessageCost> {
        let rows = || self.classes.iter().filter_map(|row| Some((row.class, row.costs.get(kind)?)));
        let like = || rows().filter(|(other, _)| other.is_like(class));
        let above = like().filter(|(other, _)| other.ranks >= class.ranks).min_by_key(|(other, _)| other.ranks)?;
        let below = like().filter(|(other, _)| other.ranks <= class.ranks).max_by_key(|(other, _)| other.ranks);
        Some(match below {
            Some(below) if below.0 != above.0 => {
                let (from_below, from_above) = (class.ranks - below.0.ranks, above.0.ranks - class.ranks);
                MessageCost::mean([(below.1, from_above), (above.1, from_below)])
            }
            _ => above.1.clone(),
        })
    }

    /// The costs of a group for every kind that the profile has, by name.
    fn group(&self, class: Class) -> GroupCosts {
        let known = KINDS.iter().filter_map(|&kind| Some((kind.name().into(), self.message(class, kind)?)));
        GroupCosts { label: format!("{class}, {}", self.name).into(), size: class.ranks, costs: known.collect() }
    }

    /// The costs of a graph: its groups, copies, and the times of its calls by their shapes.
    ///
    /// # Errors
    /// [`CostError`], naming a group whose size is not known or that the profile has no costs for, a node whose sizes are
    /// not known, or one that computes where the profile does not say how fast.
    pub fn costs(&self, graph: &Graph) -> Result<Costs, CostError> {
        self.costs_with(graph, &Map::default())
    }

    /// The same, with measured times by node in the place of those by shapes. A profile without rates needs one for each call
    /// that takes any.
    ///
    /// # Errors
    /// As [`costs`](Self::costs), and [`CostError::NoNode`], naming a measured node that is not in the graph.
    pub fn costs_with(&self, graph: &Graph, measured: &Map<u64>) -> Result<Costs, CostError> {
        let mut groups: Map<GroupCosts> = Map::default();
        for &id in graph.order() {
            let Some(collective) = graph.collective(id) else { continue };
            let group = graph.group(collective.group);
            let class = self.class_of(group).ok_or_else(|| CostError::NoSize { group: group.name.to_string() })?;
            let known = groups.entry(group.name.clone()).or_insert_with(|| self.group(class));
            if !known.costs.contains_key(collective.kind.name()) {
                return Err(self.refused(&group.name, class, collective.kind));
            }
        }
        Ok(Costs { compute_ns: self.compute(graph, measured)?, groups, copy: self.copy })
    }

    fn compute(&self, graph: &Graph, measured: &Map<u64>) -> Result<Map<u64>, CostError> {
        check_names(graph, measured)?;
        // Without rates this says which calls take time at all.
        let mut compute_ns = times::beside(graph, self.rates.as_ref().unwrap_or(&NOMINAL), measured)?;
        let unknown = compute_ns.keys().find(|&node| self.rates.is_none() && !measured.contains_key(node));
        if let Some(node) = unknown {
            return Err(CostError::NoRates { node: node.to_string(), profile: self.name.to_string() });
        }
        compute_ns.extend(measured.iter().map(|(node, &ns)| (node.clone(), ns)));
        Ok(compute_ns)
    }

    fn refused(&self, group: &str, class: Class, kind: CollectiveKind) -> CostError {
        let has = |row: &&ClassCosts| [kind.name(), stand_in(kind)].iter().any(|&kind| row.costs.contains_key(kind));
        let rows = self.classes.iter().filter(has);
        CostError::NoClass {
            group: group.to_owned(),
            class,
            kind: kind.name(),
            profile: self.name.to_string(),
            known: rows.map(|row| row.class.to_string()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::costs::Piece;
    use super::*;
    use crate::ir::{GlobalRank, text};

    fn group(size: Option<u32>, members: &[&[u32]]) -> ProcessGroup {
        let members = members.iter().map(|ranks| ranks.iter().copied().map(GlobalRank).collect()).collect();
        ProcessGroup { name: "g".into(), size, members }
    }

    fn profile(rows: &[(u32, u32, u64)]) -> Profile {
        let classes = rows.iter().map(|&(ranks, nodes, alpha_ns)| {
            let piece = Piece { alpha_ns, ns_per_byte_num: 1, ns_per_byte_den: 100 };
            let costs = [("all_gather".into(), MessageCost::new(vec![piece]).unwrap())].into_iter().collect();
            ClassCosts { class: Class { ranks, nodes }, costs }
        });
        Profile { classes: classes.collect(), nccl: None, ..Profile::named("h100").unwrap() }
    }

    const GATHER: CollectiveKind = CollectiveKind::AllGather { dim: 0 };

    fn alpha(profile: &Profile, ranks: u32, nodes: u32) -> Option<u64> {
        profile.message(Class { ranks, nodes }, GATHER).map(|cost| cost.alpha_ns())
    }

    #[test]
    fn a_class_follows_from_members_or_else_from_size() {
        let profile = profile(&[]);
        let class = |group: &ProcessGroup| profile.class_of(group).map(|class| (class.ranks, class.nodes));
        assert_eq!(class(&group(Some(4), &[&[0, 1, 2, 3], &[4, 5, 6, 7]])), Some((4, 1)));
        assert_eq!(class(&group(Some(4), &[&[0, 8, 16, 24]])), Some((4, 4)));
        // One of the groups lies across a boundary.
        assert_eq!(class(&group(Some(4), &[&[0, 1, 2, 3], &[6, 7, 8, 9]])), Some((4, 2)));
        assert_eq!(class(&group(None, &[&[0, 1]])), Some((2, 1)));
        for (size, nodes) in [(1, 1), (8, 1), (9, 2), (64, 8)] {
            assert_eq!(class(&group(Some(size), &[])), Some((size, nodes)));
        }
        assert_eq!(class(&group(None, &[])), None);
    }

    #[test]
    fn between_two_rows_is_their_mean_and_below_the_smallest_that_one() {
        let profile = profile(&[(4, 1, 1000), (8, 1, 3000), (32, 4, 10_000), (64, 8, 20_000)]);
        assert_eq!([2, 4, 5, 6, 8].map(|ranks| alpha(&profile, ranks, 1)), [1000, 1000, 1500, 2000, 3000].map(Some));
        assert_eq!(
            [2, 4, 6, 8].map(|nodes| alpha(&profile, 8 * nodes, nodes)),
            [10_000, 10_000, 15_000, 20_000].map(Some)
        );
        // A larger node, more nodes, and fewer ranks on each.
        for (ranks, nodes) in [(9, 1), (72, 9), (8, 8), (12, 2)] {
            assert_eq!(alpha(&profile, ranks, nodes), None, "{ranks} on {nodes}");
        }
        // A copy.
        assert_eq!(alpha(&profile, 1, 1), Some(profile.copy.fixed_ns));
    }

    #[test]
    fn formulas_stand_in_for_rows_where_the_profile_names_an_architecture() {
        let profile = Profile { nccl: Some(Architecture::Hopper), ..profile(&[(8, 1, 3000)]) };
        assert_eq!(alpha(&profile, 8, 1), Some(3000));
        assert_eq!(alpha(&profile, 8, 8), nccl::cost(GATHER, 8, 8, Architecture::Hopper).map(|cost| cost.alpha_ns()));
        assert!(alpha(&profile, 8, 8).is_some());
        assert_eq!(profile.message(Class { ranks: 8, nodes: 8 }, CollectiveKind::AllToAll), None);
    }

    #[test]
    fn a_kind_without_rows_takes_those_of_one_that_moves_as_much() {
        let profile = profile(&[(8, 1, 3000)]);
        let class = Class { ranks: 8, nodes: 1 };
        assert_eq!(profile.message(class, CollectiveKind::Broadcast { root: 0 }), profile.message(class, GATHER));
        assert_eq!(profile.message(class, CollectiveKind::Permute), None);
    }

    #[test]
    fn without_rates_each_call_that_takes_time_needs_a_measured_one() {
        let text = "a = input f32[8]; v = aten.view.default(a, [8]) : f32[8]; r = aten.relu.default(v) : f32[8]\n\
                    s = aten.relu.default(r) : f32[8]; g = all_gather(s, G0:4); w = wait(g)\noutput(w)";
        let graph = text::parse(text).unwrap();
        let profile = Profile { rates: None, ..profile(&[(4, 1, 1000)]) };
        let times = |nodes: &[&str]| -> Map<u64> { nodes.iter().map(|&node| (node.into(), 7)).collect() };
        for measured in [times(&[]), times(&["r"])] {
            let error = profile.costs_with(&graph, &measured).unwrap_err().to_string();
            let node = if measured.is_empty() { "r" } else { "s" };
            let expected = format!(
                "`{node}` takes time, found neither a measured one nor rates in profile `h100`; expected one of them"
            );
            assert_eq!(error, expected);
        }
        assert_eq!(profile.costs_with(&graph, &times(&["r", "s"])).unwrap().compute_ns, times(&["r", "s"]));
        assert!(matches!(profile.costs_with(&graph, &times(&["r", "s", "t"])), Err(CostError::NoNode { .. })));
        // With rates a measured time beats that by shapes.
        let with = Profile::named("h100").unwrap().costs_with(&graph, &times(&["s"])).unwrap();
        assert!(with.compute_ns["s"] == 7 && with.compute_ns["r"] > 0, "{:?}", with.compute_ns);
    }

    #[test]
    fn a_group_that_no_row_fits_is_refused_and_told_what_there_is() {
        let read = |size: u32| {
            let text = format!("a = input f32[8]; g = all_gather(a, G0:{size}); w = wait(g)\noutput(w)");
            text::parse(&text).unwrap()
        };
        let profile = profile(&[(4, 1, 1000), (8, 1, 3000)]);
        let costs = profile.costs(&read(6)).unwrap();
        assert_eq!(
            costs.groups.get("G0").map(|known| (known.size, known.costs["all_gather"].alpha_ns())),
            Some((6, 2000))
        );
        costs.check(&read(6)).unwrap();
        let error = profile.costs(&read(16)).unwrap_err().to_string();
        let expected = "group `G0`: found `all_gather` among 16 ranks on 2 nodes, expected one that profile `h100` has costs \
                        for: 4 ranks on 1 node, 8 ranks on 1 node";
        assert_eq!(error, expected);
    }
}
