//! What was decided for each collective, and why.

use super::bucketing::{View, collective_bytes};
use super::plan::{Decision, Reason, Remark};
use super::select::{Refusal, Selection};
use crate::ir::{NodeId, Order};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

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
    /// Why members were declined that would have passed a cap on memory.
    declined: &'a HashMap<NodeId, Reason, FxBuildHasher>,
    budget: usize,
    /// By slot: bucket + 1, or 0; made when a path is first asked for.
    group_of: Option<Vec<u32>>,
}

impl<'a> Remarks<'a> {
    pub(super) const fn new(
        view: &'a View<'a>,
        selection: &'a Selection,
        scope: Scope,
        declined: &'a HashMap<NodeId, Reason, FxBuildHasher>,
    ) -> Self {
        Self { view, selection, scope, declined, budget: PATH_BUDGET, group_of: None }
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
            Refusal::MemoryCap => self.declined.get(&id).cloned().unwrap_or(Reason::NotChosen),
            Refusal::NotChosen => Reason::NotChosen,
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
