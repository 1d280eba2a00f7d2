//! Which collectives travel together: the selection, on any graph.
//!
//! A toolchain implements [`PlanGraph`] for its own representation, calls [`select`], and gets a plain value back.
//! Nothing here knows what a tensor is.
//!
//! # Greedy
//!
//! One sweep in issue order. Each collective joins the first bucket of its key that has room and that it may join, or
//! opens a new one: a dependent or oversized candidate is passed over, not a reason to stop.
//!
//! Two merges that are each legal can close a loop together, so legality is decided in the *quotient graph*, where
//! each bucket is one node. The sweep carries with each node `n` the set `reach(n)` of buckets it depends on, and keeps
//! for each bucket `A` the set `after(A)` of buckets that depend on it, transitively, through whatever has joined so
//! far. A collective `x` may join `A` exactly if no bucket in `{A} + after(A)` is in `reach(x)`. When `x` joins, every
//! bucket that it depends on, and every bucket that those follow, gains `{A} + after(A)`.
//!
//! *Cost.* The sets are bit sets over 256 places, so a node costs a few words per edge and a collective a few
//! hundred operations, whatever the graph: near-linear. When all places are taken, the bucket with the least room
//! retires into place 0, which stands for all retired buckets as if they were one. That only adds dependencies, so it
//! may lose a merge (only when more than 255 buckets are open at once) and never allows a wrong one. Stored sets are
//! brought up to date when they are read.
//!
//! # Adjacent
//!
//! The rule of PyTorch Inductor's `greedy_bucket_collective_by_mb`: waits in program order; a run of waits whose
//! collectives have equal keys is cut at the cap; a member that depends on the bucket being filled is dropped. Buckets
//! are filled one at a time, so it is enough to carry with each node the last bucket that it depends on.
//!
//! While collectives are read only through their waits, buckets of this rule depend on one another only in the order in
//! which they were filled. Where something depends on a collective that was not waited for (a control edge, a reader of
//! a shape) they might close a loop, so that the greedy sweep looks over them and splits those that would.

//!
//! # Xla
//!
//! The rule of XLA's combiners: one bucket at a time, in post order, which ends at the first candidate that does not fit
//! or depends on a member.

mod adjacent;
mod greedy;
mod xla;

use super::order::{Adjusted, Cycle, Place, Reordering, Slots, reorder};
use adjacent::Adjacent;
use greedy::Greedy;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::fmt;
use std::hash::Hash;
use xla::Xla;

/// A graph as the selection sees it: nodes numbered in a topological order, which is also the issue order.
pub trait PlanGraph {
    /// Collectives with equal keys may travel together.
    type Key: Copy + Eq + Hash;

    /// How many nodes there are.
    fn node_count(&self) -> usize;

    /// Nodes that must run before `node`; all have smaller numbers. All order counts, not only data: memory, control.
    fn dependencies(&self, node: usize) -> impl Iterator<Item = usize> + '_;

    /// What `node` is, if it is a collective that may be merged.
    fn candidate(&self, node: usize) -> Option<Candidate<Self::Key>>;

    /// The body that `node` stands in: of nodes in other bodies, policy `xla` sees no order. Keys differ between bodies.
    fn body(&self, node: usize) -> usize {
        let _ = node;
        0
    }
}

/// A collective that may be merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate<K> {
    /// Everything that members of one bucket must agree on.
    pub key: K,
    /// The larger of what goes in and what comes out, in bytes; `None` if it is not known.
    pub bytes: Option<u64>,
    /// The node that waits for it; after it in the order, or the collective itself if it blocks. One node may wait for
    /// several.
    pub wait: usize,
}

/// Which collectives are tried with which.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// First fit over all legal candidates.
    #[default]
    Greedy,
    /// PyTorch Inductor's rule: neighbours in wait order.
    Adjacent,
    /// The rule of XLA's combiners: in post order, up to the first that does not fit or depends on a member.
    Xla,
}

/// How large a bucket may grow. No bucket exceeds its cap unless it has exactly one member.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Caps {
    /// Cap by bucket index, counted within one key; the last goes for all further buckets. Empty is no limit.
    pub cap_bytes: Vec<u64>,
    /// Most members of a bucket; `None` is no limit.
    pub max_members: Option<usize>,
}

impl Caps {
    /// One cap for all buckets.
    #[must_use]
    pub fn bytes(cap_bytes: u64) -> Self {
        Self { cap_bytes: vec![cap_bytes], max_members: None }
    }

    /// The cap of the bucket with this index within its key.
    #[must_use]
    pub fn limit(&self, index: usize) -> Option<u64> {
        self.cap_bytes.get(index).or(self.cap_bytes.last()).copied()
    }
}

/// Why a candidate is in no bucket with others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// Larger than the cap by itself.
    Oversize {
        /// The cap it passed.
        cap_bytes: u64,
    },
    /// Its size is not known, and there is a cap.
    SizeUnknown,
    /// Each bucket it could have joined was full.
    CapReached {
        /// A member of the first such bucket.
        other: usize,
    },
    /// It depends on a bucket it could have joined, or the bucket on it.
    Dependent {
        /// A member of the bucket.
        other: usize,
    },
    /// No neighbour in wait order has its key, though others do.
    NotAdjacent,
    /// With its bucket, more bytes would have been alive at once than may be. [`select`] does not look at that.
    MemoryCap,
    /// A rule of the user's own did not choose it.
    NotChosen,
    /// No other candidate has its key.
    NoPartner,
}

impl Refusal {
    /// One word or two for tables.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Oversize { .. } => "oversize",
            Self::SizeUnknown => "size unknown",
            Self::CapReached { .. } => "cap reached",
            Self::Dependent { .. } => "dependent",
            Self::NotAdjacent => "not adjacent",
            Self::MemoryCap => "memory cap",
            Self::NotChosen => "not chosen",
            Self::NoPartner => "no partner",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Oversize { cap_bytes } => write!(f, "larger than the cap of {cap_bytes} bytes"),
            Self::SizeUnknown => f.write_str("size unknown, and there is a cap"),
            Self::CapReached { other } => write!(f, "cap reached: does not fit with node {other}"),
            Self::Dependent { other } => write!(f, "dependent: cannot travel with node {other}"),
            Self::NotAdjacent => f.write_str("no neighbour in wait order has its key"),
            Self::MemoryCap => f.write_str("declined: more bytes would be alive at once than may be"),
            Self::NotChosen => f.write_str("the policy did not choose it"),
            Self::NoPartner => f.write_str("no other candidate has its key"),
        }
    }
}

impl fmt::Display for Selection {
    /// A line for each bucket, then one for each candidate that is in none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = "";
        for (number, members) in (1..).zip(&self.buckets) {
            let members: Vec<String> = members.iter().map(ToString::to_string).collect();
            write!(f, "{line}bucket {number}: nodes {}", members.join(", "))?;
            line = "\n";
        }
        for Outcome { node, bucket } in &self.outcomes {
            if let Err(refusal) = bucket {
                write!(f, "{line}node {node}: {refusal}")?;
                line = "\n";
            }
        }
        Ok(())
    }
}

/// What became of one candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The candidate.
    pub node: usize,
    /// Index into [`Selection::buckets`], or why there is none.
    pub bucket: Result<usize, Refusal>,
}

/// What to merge. Buckets have two members or more, in the order in which they are packed; buckets stand in the order
/// in which they were opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// Members of each bucket.
    pub buckets: Vec<Vec<usize>>,
    /// One for each candidate, in issue order.
    pub outcomes: Vec<Outcome>,
}

/// A graph that breaks the rules of [`PlanGraph`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenPlanGraph {
    /// Nodes are not numbered in the order in which they run.
    #[error(
        "node {node} depends on node {on}, which does not stand before it; number the nodes in an order in which they may run"
    )]
    Order {
        /// The node.
        node: usize,
        /// What it depends on.
        on: usize,
    },
    /// What waits for a collective stands before it, or is not a node.
    #[error("node {node} is waited for by node {wait}; expected itself, or a node behind it, of {count}")]
    Wait {
        /// The collective.
        node: usize,
        /// What waits for it.
        wait: usize,
        /// How many nodes there are.
        count: usize,
    },
}

/// Decides which collectives travel together. A pure function of its arguments.
///
/// # Errors
/// [`BrokenPlanGraph`], naming the first node that breaks a rule.
pub fn select<G: PlanGraph>(graph: &G, policy: Policy, caps: &Caps) -> Result<Selection, BrokenPlanGraph> {
    let count = graph.node_count();
    for node in 0..count {
        if let Some(on) = graph.dependencies(node).find(|&on| on >= node) {
            return Err(BrokenPlanGraph::Order { node, on });
        }
        if let Some(wait) = graph.candidate(node).map(|candidate| candidate.wait)
            && !(node..count).contains(&wait)
        {
            return Err(BrokenPlanGraph::Wait { node, wait, count });
        }
    }
    Ok(selected(graph, policy, caps))
}

/// The order in which a graph runs with each bucket of a selection as one launch: which of its members' places a launch
/// takes, and what moves for it. Waits follow as far as their launches make them, each in its own place.
///
/// Linear in nodes and edges, but for a heap for the nodes that move. The graph keeps the rules that [`select`] checks.
///
/// ```
/// use bucketeer::passes::order::Place;
/// use bucketeer::passes::select::{Candidate, Caps, PlanGraph, Policy, launch_order, select};
///
/// /// Two reductions of what two calls make: nodes 0 to 5 are call, reduce, wait, call, reduce, wait.
/// struct TwoReductions;
///
/// impl PlanGraph for TwoReductions {
///     type Key = ();
///     fn node_count(&self) -> usize {
///         6
///     }
///     fn dependencies(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
///         (node % 3 > 0).then(|| node - 1).into_iter()
///     }
///     fn candidate(&self, node: usize) -> Option<Candidate<()>> {
///         (node % 3 == 1).then_some(Candidate { key: (), bytes: Some(8), wait: node + 1 })
///     }
/// }
///
/// let selection = select(&TwoReductions, Policy::Greedy, &Caps::default())?;
/// assert_eq!(selection.buckets, [[1, 4]]);
/// let order = launch_order(&TwoReductions, &selection, Place::Last)?;
/// // Both calls, then one launch, which stands for nodes 1 and 4, then both waits.
/// assert_eq!(order.slots, [0, 3, 1, 2, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Cycle`], for a selection that [`select`] did not make for this graph and whose buckets depend on one another in a
/// circle.
pub fn launch_order<G: PlanGraph>(graph: &G, selection: &Selection, place: Place) -> Result<Reordering, Cycle> {
    let mut edges = Edges { first: vec![0], to: Vec::new() };
    for node in 0..graph.node_count() {
        edges.to.extend(graph.dependencies(node).map(|on| on as u32));
        edges.first.push(edges.to.len());
    }
    reorder(&edges, &selection.buckets, &Adjusted::default(), place)
}

/// What each node depends on, in one list.
struct Edges {
    /// By node, and one more: where its part begins.
    first: Vec<usize>,
    to: Vec<u32>,
}

impl Slots for Edges {
    fn count(&self) -> usize {
        self.first.len() - 1
    }

    fn before(&self, slot: usize) -> &[u32] {
        &self.to[self.first[slot]..self.first[slot + 1]]
    }
}

/// As [`select`], of a graph that is known to keep the rules.
pub(crate) fn selected<G: PlanGraph>(graph: &G, policy: Policy, caps: &Caps) -> Selection {
    match policy {
        Policy::Greedy => Greedy::new(graph, caps).run(),
        Policy::Adjacent => Adjacent::new(graph, caps).run(),
        Policy::Xla => Xla::new(graph, caps).run(),
    }
}

/// A bucket being filled.
#[derive(Default)]
struct Open {
    members: Vec<usize>,
    bytes: u64,
    limit: Option<u64>,
    /// What kept others out, for remarks: set while it has one member.
    refused: Option<Refusal>,
    /// Its place among the sets of the greedy sweep, and the number of its key.
    place: usize,
    key: usize,
}

impl Open {
    fn has_room(&self, bytes: u64, caps: &Caps) -> bool {
        // Without a cap a bucket is still an object of less than 2^63 bytes.
        let limit = self.limit.unwrap_or(i64::MAX as u64);
        let fits = self.bytes.checked_add(bytes).is_some_and(|sum| sum <= limit);
        fits && caps.max_members.is_none_or(|most| self.members.len() < most)
    }
}

/// Turns filled buckets into the result: those with one member are dropped, with a reason.
fn finish(open: Vec<Open>, mut refusals: HashMap<usize, Refusal, FxBuildHasher>, candidates: &[usize]) -> Selection {
    let mut selection = Selection::default();
    let mut bucket_of = HashMap::<usize, usize, FxBuildHasher>::default();
    for bucket in open {
        if let [only] = bucket.members[..] {
            refusals.entry(only).or_insert(bucket.refused.unwrap_or(Refusal::NoPartner));
            continue;
        }
        for &member in &bucket.members {
            bucket_of.insert(member, selection.buckets.len());
        }
        selection.buckets.push(bucket.members);
    }
    selection.outcomes = candidates
        .iter()
        .map(|&node| {
            let refusal = refusals.get(&node).copied().unwrap_or(Refusal::NoPartner);
            Outcome { node, bucket: bucket_of.get(&node).copied().ok_or(refusal) }
        })
        .collect();
    selection
}
