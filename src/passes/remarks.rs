//! What was decided for each collective, and why.

use super::bucketing::{View, collective_bytes};
use super::select::{Refusal, Selection};
use crate::ir::{NodeId, Order};
use std::collections::VecDeque;

/// Why a collective was left alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// An option keeps it out.
    Filtered {
        /// Which.
        by: &'static str,
    },
    /// It is a merged collective already.
    AlreadyMerged,
    /// It takes a list: it travels as one already.
    Coalesced,
    /// It is split into start and done already, as HLO text has it: what runs between the two was chosen for it.
    StartAndDone,
    /// It writes a tensor given as `out`, which others may read.
    WritesOut,
    /// Its group has one rank: nothing is sent, so a bucket would only copy and move what reads it.
    OneRank,
    /// It exchanges other amounts with some ranks than with others, or amounts known only at run time.
    UnevenSplits,
    /// Nothing waits for it in this graph.
    NoWait,
    /// More than one node waits for it.
    WaitedTwice {
        /// How many.
        waits: usize,
    },
    /// Its wait is for a list, with others.
    WaitedInList {
        /// The wait.
        wait: String,
    },
    /// Something reads or views it before its wait.
    ReadBeforeWait {
        /// The reader.
        by: String,
    },
    /// The sizes or strides of what it sends or makes are changed in place, so that their types do not hold throughout.
    Restated,
    /// Its wait is in another region.
    RegionBorder,
    /// It is in a loop body, and those were not to be touched.
    InLoop,
    /// Its size is not known, so it cannot be held against the cap.
    SizeUnknown,
    /// Larger than the cap by itself.
    Oversize {
        /// Its own bytes.
        bytes: u64,
        /// The cap.
        cap_bytes: u64,
    },
    /// Larger than what is worth copying.
    LargeMember {
        /// Its own bytes.
        bytes: u64,
        /// The largest that is.
        max_member_bytes: u64,
    },
    /// Every bucket it might have joined was full.
    CapReached {
        /// A collective it did not fit with.
        other: String,
    },
    /// It depends on the bucket it might have joined, or the bucket on it.
    Dependent {
        /// A collective of that bucket.
        other: String,
        /// The nodes from one to the other; `...` where the path is long or leads through another bucket.
        path: Vec<String>,
        /// The strongest reason for order on the path, beside data.
        because: Order,
        /// Targets on the path of which nothing is known, so that they were taken to do whatever they can.
        unknown: Vec<String>,
    },
    /// No neighbour in wait order has its key (policy `adjacent`).
    NotAdjacent,
    /// The graph has merged collectives of the kind already, and the options look at a graph once: policy `adjacent`,
    /// or a list of caps.
    LookedAt,
    /// The nearest collective of its kind differs in these parts of the key.
    KeyDiffers {
        /// The nearest one.
        from: String,
        /// The parts.
        fields: Vec<&'static str>,
    },
    /// Another rank that launches it cannot merge it; of graphs that are rewritten together.
    AtAnotherRank {
        /// The rank, counted from 0.
        rank: usize,
        /// Why that rank cannot, if its graph says.
        because: Box<Reason>,
    },
    /// It is the only one of its kind.
    NoPartner,
}

impl Reason {
    /// One word or two for tables.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Filtered { .. } => "filtered",
            Self::AlreadyMerged => "already merged",
            Self::Coalesced => "coalesced",
            Self::StartAndDone => "start and done",
            Self::WritesOut => "writes out",
            Self::OneRank => "one rank",
            Self::UnevenSplits => "uneven splits",
            Self::NoWait => "no wait in sight",
            Self::WaitedTwice { .. } => "waited twice",
            Self::WaitedInList { .. } => "waited in a list",
            Self::ReadBeforeWait { .. } => "read before wait",
            Self::Restated => "restated",
            Self::RegionBorder => "region border",
            Self::InLoop => "in loop",
            Self::SizeUnknown => "size unknown",
            Self::Oversize { .. } => "oversize",
            Self::LargeMember { .. } => "large",
            Self::CapReached { .. } => "cap reached",
            Self::Dependent { because, .. } => match because {
                Order::Data => "dependent",
                Order::Memory => "written between",
                Order::Fence => "fence",
                Order::Control => "control edge",
                Order::Region => "region border",
                Order::Schedule => "schedule",
            },
            Self::NotAdjacent => "not adjacent",
            Self::LookedAt => "looked at before",
            Self::KeyDiffers { .. } => "key differs",
            Self::AtAnotherRank { .. } => "at another rank",
            Self::NoPartner => "no partner",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Filtered { by } => write!(f, "left out by {by}"),
            Self::AlreadyMerged => f.write_str("is a bucket already; rewrite the original graph for other caps"),
            Self::Coalesced => f.write_str("takes a list, so it travels in one launch already"),
            Self::StartAndDone => f.write_str("is split into start and done; merge before XLA splits collectives"),
            Self::WritesOut => f.write_str("writes into a tensor given as `out`, which others may read"),
            Self::OneRank => f.write_str("its group has one rank, so it sends nothing; `fold-trivial` takes it away"),
            Self::UnevenSplits => f.write_str("does not exchange equally much, known beforehand, with every rank"),
            Self::NoWait => f.write_str("no wait in sight: its result leaves the graph before it is valid"),
            Self::WaitedTwice { waits } => write!(f, "{waits} nodes wait for it; `dedupe-waits` makes them one"),
            Self::WaitedInList { wait } => write!(f, "`{wait}` waits for it in a list, with others"),
            Self::ReadBeforeWait { by } => write!(f, "`{by}` takes it before its wait"),
            Self::Restated => f.write_str("the sizes or strides of what it sends or makes are changed in place"),
            Self::RegionBorder => f.write_str("its wait is in another region"),
            Self::InLoop => f.write_str("is in a loop body, and `in_loops` is off"),
            Self::SizeUnknown => f.write_str("size unknown; give its symbols likely values, or lift the cap"),
            Self::Oversize { bytes, cap_bytes } => write!(f, "{bytes} bytes are more than the cap of {cap_bytes}"),
            Self::LargeMember { bytes, max_member_bytes } => {
                write!(f, "{bytes} bytes are more than the {max_member_bytes} that are worth copying")
            }
            Self::CapReached { other } => write!(f, "cap reached: does not fit with `{other}`"),
            Self::Dependent { other, path, unknown, .. } => {
                write!(f, "{}: cannot travel with `{other}`", self.label())?;
                if !path.is_empty() {
                    write!(f, " ({})", path.join(" > "))?;
                }
                match &unknown[..] {
                    [] => Ok(()),
                    [one] => write!(f, "; `{one}` is not known; declare it"),
                    several => write!(f, "; `{}` are not known; declare them", several.join("`, `")),
                }
            }
            Self::NotAdjacent => f.write_str("no neighbour in wait order has its key"),
            Self::LookedAt => {
                f.write_str("the graph has merged collectives already, and these options look at it once")
            }
            Self::KeyDiffers { from, fields } => {
                write!(f, "key differs from that of `{from}`, the nearest: {}", fields.join(", "))
            }
            Self::AtAnotherRank { rank, because } => write!(f, "cannot be merged on rank {rank}: {because}"),
            Self::NoPartner => f.write_str("the only one of its kind"),
        }
    }
}

/// What was decided for a collective.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It joins a bucket.
    Merged {
        /// Index into [`BucketPlan::buckets`](super::bucketing::BucketPlan::buckets).
        bucket: usize,
    },
    /// It stays as it is.
    Alone(Reason),
}

/// One collective of the planned kind, and what was decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// The collective.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Name of its group.
    pub group: String,
    /// The larger of what goes in and what comes out; `None` if not known.
    pub bytes: Option<u64>,
    /// What was decided.
    pub decision: Decision,
}

/// Steps all searches for paths of one plan may take together, and the longest path that is written out.
const PATH_BUDGET: usize = 2_000_000;
const LONGEST_PATH: usize = 12;

/// What the selection looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    /// This graph alone.
    OneGraph,
    /// The graphs of all ranks, so that paths and keys may differ elsewhere.
    AllRanks,
}

/// What stands in a path for the part of it that leads through other ranks, and for what differs in a key there.
const ELSEWHERE: &str = "another rank";

/// Turns outcomes into remarks.
pub(super) struct Remarks<'a> {
    view: &'a View<'a>,
    selection: &'a Selection,
    scope: Scope,
    budget: usize,
    /// By slot: bucket + 1, or 0; made when a path is first asked for.
    group_of: Option<Vec<u32>>,
}

impl<'a> Remarks<'a> {
    pub(super) const fn new(view: &'a View<'a>, selection: &'a Selection, scope: Scope) -> Self {
        Self { view, selection, scope, budget: PATH_BUDGET, group_of: None }
    }

    pub(super) fn all(mut self) -> Vec<Remark> {
        let (view, graph) = (self.view, self.view.graph);
        // Outcomes stand in issue order, as the candidates do among all that were seen.
        let mut outcomes = self.selection.outcomes.iter();
        let mut remarks = Vec::with_capacity(view.seen.len());
        for (nth, (id, excluded)) in view.seen.iter().enumerate() {
            let outcome = if excluded.is_none() { outcomes.next() } else { None };
            let bytes = match outcome {
                Some(outcome) => view.entry(outcome.node).bytes,
                None => collective_bytes(graph, *id),
            };
            let decision = match (excluded, outcome.map(|outcome| outcome.bucket)) {
                (Some(reason), _) => Decision::Alone(reason.clone()),
                (None, Some(Ok(bucket))) => Decision::Merged { bucket },
                (None, Some(Err(refusal))) => Decision::Alone(self.reason(nth, *id, refusal)),
                (None, None) => Decision::Alone(Reason::NoPartner),
            };
            let group = graph.collective(*id).map_or("", |c| &graph.group(c.group).name);
            remarks.push(Remark {
                node: *id,
                name: graph.name_of(*id).to_owned(),
                group: group.to_owned(),
                bytes,
                decision,
            });
        }
        remarks
    }

    fn reason(&mut self, nth: usize, id: NodeId, refusal: Refusal) -> Reason {
        let slot = self.view.dependencies.slot_of(id);
        let name = |slot: usize| self.view.graph.name_of(self.view.node(slot)).to_owned();
        match refusal {
            Refusal::Oversize { cap_bytes } => {
                Reason::Oversize { bytes: self.view.entry(slot).bytes.unwrap_or(0), cap_bytes }
            }
            Refusal::SizeUnknown => Reason::SizeUnknown,
            Refusal::CapReached { other } => Reason::CapReached { other: name(other) },
            Refusal::NotAdjacent => Reason::NotAdjacent,
            Refusal::Dependent { other } => {
                let (first, last) = (other.min(slot), other.max(slot));
                let Path { mut path, because, unknown } = self.path(first, last);
                if path.is_empty() && self.scope == Scope::AllRanks && self.budget > 0 {
                    path = vec![name(first), ELSEWHERE.to_owned(), name(last)];
                }
                Reason::Dependent { other: name(other), path, because, unknown }
            }
            Refusal::NoPartner => self.nearest(nth, slot),
        }
    }

    /// The nearest other candidate, and in what its key differs.
    fn nearest(&self, nth: usize, slot: usize) -> Reason {
        let candidate = |at: usize| {
            let (id, excluded) = &self.view.seen[at];
            excluded.is_none().then_some(*id)
        };
        // A few steps each way: a remark is not worth a walk over the whole graph.
        let near = (1..=64).flat_map(|step| [nth.checked_sub(step), Some(nth + step)]).flatten();
        let found = near.filter(|&at| at < self.view.seen.len()).filter_map(candidate);
        for other in found {
            let other_slot = self.view.dependencies.slot_of(other);
            let mut fields = self.view.entry(slot).key.differences(&self.view.entry(other_slot).key);
            if fields.is_empty() && self.scope == Scope::AllRanks {
                fields.push(ELSEWHERE);
            }
            let other = self.view.graph.name_of(other).to_owned();
            match self.refusal_of(other_slot) {
                _ if !fields.is_empty() => return Reason::KeyDiffers { from: other, fields },
                Some(Refusal::Oversize { .. }) => return Reason::CapReached { other },
                // It has the same key, and stays alone for a reason of its own.
                _ => {}
            }
        }
        Reason::NoPartner
    }

    /// Why a candidate is in no bucket.
    fn refusal_of(&self, slot: usize) -> Option<Refusal> {
        let outcomes = &self.selection.outcomes;
        let nth = outcomes.binary_search_by_key(&slot, |outcome| outcome.node).ok()?;
        outcomes[nth].bucket.err()
    }

    /// A shortest path from `first` or its bucket to `last`, going through buckets as through one node.
    fn path(&mut self, first: usize, last: usize) -> Path {
        let dependencies = self.view.dependencies;
        let group_of = self.group_of.get_or_insert_with(|| {
            let mut group_of = vec![0; dependencies.slots().len()];
            for (number, members) in self.selection.buckets.iter().enumerate() {
                members.iter().for_each(|&slot| group_of[slot] = number as u32 + 1);
            }
            group_of
        });
        let goal = group_of[first];
        let arrived = |slot: usize| slot == first || (goal != 0 && group_of[slot] == goal);
        // From each slot found, the slot nearer to `last` and why that one comes after it.
        let mut next = hashbrown::HashMap::<usize, (usize, Order), rustc_hash::FxBuildHasher>::default();
        let mut queue = VecDeque::from([last]);
        next.insert(last, (last, Order::Data));
        while let Some(slot) = queue.pop_front() {
            let bucket = match group_of[slot] {
                0 => &[][..],
                number if slot != last => &self.selection.buckets[number as usize - 1][..],
                _ => &[],
            };
            let around = dependencies.before_with_reason(slot).chain(bucket.iter().map(|&other| (other, Order::Data)));
            for (before, why) in around {
                self.budget = self.budget.saturating_sub(1);
                if next.contains_key(&before) {
                    continue;
                }
                next.insert(before, (slot, why));
                if arrived(before) {
                    return spell(self.view, before, last, &next);
                }
                queue.push_back(before);
            }
            if self.budget == 0 {
                break;
            }
        }
        Path { path: Vec::new(), because: Order::Data, unknown: Vec::new() }
    }
}

/// What leads from one slot to another.
struct Path {
    path: Vec<String>,
    because: Order,
    unknown: Vec<String>,
}

/// Writes a path out.
fn spell(
    view: &View<'_>,
    from: usize,
    to: usize,
    next: &hashbrown::HashMap<usize, (usize, Order), rustc_hash::FxBuildHasher>,
) -> Path {
    let (mut path, mut because, mut at) = (Vec::new(), Order::Data, from);
    let mut unknown = Vec::new();
    let mut note = |slot: usize| {
        let id = view.dependencies.node(slot).filter(|&id| view.dependencies.is_assumed(id));
        let target = id.map(|id| view.graph.target_of(id).to_owned());
        unknown.extend(target.filter(|target| !unknown.contains(target)));
    };
    loop {
        if let Some(id) = view.dependencies.node(at) {
            path.push(view.graph.name_of(id).to_owned());
        }
        if at == to {
            break;
        }
        let (after, why) = next[&at];
        because = because.max(why);
        if matches!(why, Order::Memory | Order::Fence) {
            note(at);
            note(after);
        }
        at = after;
    }
    if path.len() > LONGEST_PATH {
        let tail = path.split_off(path.len() - LONGEST_PATH / 2);
        path.truncate(LONGEST_PATH / 2);
        path.push("...".to_owned());
        path.extend(tail);
    }
    Path { path, because, unknown }
}
