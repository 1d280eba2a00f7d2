//! What no plan can be shorter than: a certificate of how good a plan is.
//!
//! Each bound holds for every way to put messages into buckets, and for every order of the computation, or for the order that
//! it came in (`Planned::bounds_as_written`). A message takes at least the time of its own bytes, whatever travels with it, as
//! a larger one never takes less; together, the messages of one group take at least the time of all their bytes at the
//! smallest slope, and one start. One without bytes that may be merged takes no time and no start, as merging drops it.
//!
//! | bound | why |
//! |---|---|
//! | computation | it runs one at a time |
//! | path | what comes before, the item, what comes after |
//! | compute machine | one machine, items with heads and tails, preemption allowed (Jackson's rule) |
//! | stream | the same for the messages of one group, and one start |
//! | families | all bytes of a group, and a start for each launch: sets of messages can never travel together, and what travels together has to fit in memory |
//! | cut | the least time until an item is done, and the least after it, each exact over all ways to put messages into buckets |
//!
//! The *head* of an item is the least time until it can begin: after each of its predecessors, after all the computation
//! that leads to it, on one machine, and after all bytes of each group that have to arrive before it, on one stream. Its *tail* is the same for what follows.
//! In graphs of more than 8,192 items heads and tails count paths alone, and nothing is cut, so that the cost stays near-linear;
//! up to there it is quadratic.

mod cut;
mod heads;
mod launches;

use super::costs::Piece;
use super::problem::{Lists, NONE, Problem};
use crate::ir::NodeId;
use heads::Heads;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Items up to which all that leads to one is added up.
const MOST_ITEMS: usize = 8_192;

/// Which bound it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bound {
    /// All computation.
    Computation,
    /// A path through this node.
    Path {
        /// The node.
        through: NodeId,
    },
    /// The computation from this node on, in order of what has to follow.
    ComputeMachine {
        /// The last node of the part that is dense.
        last: NodeId,
    },
    /// The messages of a group, likewise.
    Stream {
        /// Index of the group.
        group: usize,
        /// The last collective of the part that is dense.
        last: NodeId,
    },
    /// All messages of a group.
    Families {
        /// Index of the group.
        group: usize,
        /// How many sets of messages never travel together.
        families: usize,
        /// How many launches that and memory make necessary.
        launches: u64,
    },
    /// What comes before a node, and what after it.
    Cut {
        /// The node.
        at: NodeId,
    },
}

impl Bound {
    /// What it is called.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Computation => "computation",
            Self::Path { .. } => "path",
            Self::ComputeMachine { .. } => "compute machine",
            Self::Stream { .. } => "stream",
            Self::Families { .. } => "families",
            Self::Cut { .. } => "cut",
        }
    }
}

/// A time that no plan ends before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LowerBound {
    /// In nanoseconds.
    pub ns: u64,
    /// Why.
    pub bound: Bound,
}

/// In which orders of the computation a bound holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Order {
    /// In all.
    Any,
    /// In the one that it came in; messages may be launched anywhere.
    AsWritten,
}

/// All bounds of a problem, the strongest first, for plans that keep a cap: in any order of the computation, and in the one
/// that it came in.
pub(super) fn of_both_orders(problem: &Problem, cap_bytes: Option<u64>) -> (Vec<LowerBound>, Vec<LowerBound>) {
    (bounds(problem, Order::Any, cap_bytes), bounds(problem, Order::AsWritten, cap_bytes))
}

fn bounds(problem: &Problem, order: Order, cap_bytes: Option<u64>) -> Vec<LowerBound> {
    let all = Bounds::of(problem, order);
    let mut found = vec![LowerBound { ns: problem.compute_ns.iter().sum(), bound: Bound::Computation }];
    found.extend(all.path());
    found.extend(all.compute_machine());
    found.extend(cut::cut(&all));
    let launches = launches::least(&all, cap_bytes);
    for group in 0..problem.groups {
        found.extend(all.stream(group));
        found.extend(all.families(group, &launches));
    }
    found.sort_by_key(|bound| Reverse(bound.ns));
    found
}

struct Bounds<'a> {
    problem: &'a Problem,
    /// By item: its least time.
    least_ns: Vec<u64>,
    /// What leads to each item, and what follows it.
    heads: Heads,
    tails: Heads,
}

/// A job of one machine.
#[derive(Clone, Copy)]
struct Job {
    head_ns: u64,
    ns: u64,
    tail_ns: u64,
    item: usize,
}

impl<'a> Bounds<'a> {
    fn of(problem: &'a Problem, order: Order) -> Self {
        let own = problem.messages.iter();
        let own = own.map(|message| if message.vanishes { 0 } else { problem.alone_ns(message) });
        let least_ns: Vec<u64> = problem.compute_ns.iter().copied().chain(own).collect();
        let mut items: Vec<usize> = (0..problem.item_count()).collect();
        items.sort_unstable_by_key(|&item| problem.as_written[item]);
        let in_order;
        let (before, after): (&Lists, &Lists) = match order {
            Order::Any => (&problem.before, &problem.after),
            Order::AsWritten => {
                in_order = one_after_another(problem, &items);
                (&in_order.0, &in_order.1)
            }
        };
        let heads = Heads::of(problem, &least_ns, &items, before, |one, other| problem.is_over(other, one));
        items.reverse();
        let tails = Heads::of(problem, &least_ns, &items, after, |one, other| problem.is_over(one, other));
        Self { problem, least_ns, heads, tails }
    }

    fn path(&self) -> Option<LowerBound> {
        let through =
            |&item: &usize| self.heads.ns[item].saturating_add(self.least_ns[item]).saturating_add(self.tails.ns[item]);
        let best = (0..self.least_ns.len()).max_by_key(|item| (through(item), Reverse(*item)))?;
        Some(LowerBound { ns: through(&best), bound: Bound::Path { through: self.node(best) } })
    }

    fn node(&self, item: usize) -> NodeId {
        match item.checked_sub(self.problem.compute.len()) {
            None => self.problem.compute[item],
            Some(message) => self.problem.messages[message].node,
        }
    }

    fn compute_machine(&self) -> Option<LowerBound> {
        let jobs = (0..self.problem.compute.len()).map(|item| self.job(item, self.least_ns[item])).collect();
        let (ns, last) = one_machine(jobs)?;
        Some(LowerBound { ns, bound: Bound::ComputeMachine { last: self.node(last) } })
    }

    fn job(&self, item: usize, ns: u64) -> Job {
        Job { head_ns: self.heads.ns[item], ns, tail_ns: self.tails.ns[item], item }
    }

    /// Messages of a group that have to be sent.
    fn group(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        let messages = &self.problem.messages;
        (0..messages.len()).filter(move |&m| messages[m].group as usize == group && !messages[m].vanishes)
    }

    fn stream(&self, group: usize) -> Option<LowerBound> {
        let computes = self.problem.compute.len();
        let whole =
            |message: usize| u64::try_from(slope(self.problem, message).1 / u128::from(PARTS)).unwrap_or(u64::MAX);
        let jobs = self.group(group).map(|message| self.job(computes + message, whole(message))).collect();
        let alpha = self.group(group).map(|message| slope(self.problem, message).0).min()?;
        let (ns, last) = one_machine(jobs)?;
        Some(LowerBound { ns: ns.saturating_add(alpha), bound: Bound::Stream { group, last: self.node(last) } })
    }

    fn families(&self, group: usize, launches: &[u64]) -> Option<LowerBound> {
        let computes = self.problem.compute.len();
        let (mut classes, mut any): (Vec<u32>, bool) = (Vec::new(), false);
        let mut sum = Clock::default();
        let (mut head, mut tail, mut least_alpha) = (u64::MAX, u64::MAX, u64::MAX);
        for message in self.group(group) {
            let class = self.problem.messages[message].class;
            let (alpha, bytes) = slope(self.problem, message);
            if class != NONE {
                classes.push(class);
                least_alpha = least_alpha.min(alpha);
            }
            any = true;
            sum.add(0, (0, bytes));
            head = head.min(self.heads.ns[computes + message]);
            tail = tail.min(self.tails.ns[computes + message]);
        }
        classes.sort_unstable();
        classes.dedup();
        let families = classes.len();
        if !any {
            return None;
        }
        let launches: u64 = classes.iter().map(|&class| launches[class as usize]).sum();
        let starts = if families > 0 { launches.saturating_mul(least_alpha) } else { 0 };
        let ns = sum.ns().saturating_add(starts).saturating_add(head).saturating_add(tail);
        Some(LowerBound { ns, bound: Bound::Families { group, families, launches } })
    }
}

/// Parts of a nanosecond: a message of a bucket takes a share of a rounded time, which is rounded down here, finely.
const PARTS: u64 = 1 << 16;

/// The least start of a message, which it may share with others, and the least time of its bytes in [`PARTS`].
fn slope(problem: &Problem, message: usize) -> (u64, u128) {
    let message = &problem.messages[message];
    let cost = &problem.costs[message.cost as usize];
    if message.class == NONE {
        // It travels alone.
        return (0, u128::from(cost.ns(message.bytes)) * u128::from(PARTS));
    }
    let parts = |piece: &Piece| {
        // Below 2^64 bytes, times 2^64 and 2^16: in two steps.
        let ns = u128::from(message.bytes) * u128::from(piece.ns_per_byte_num);
        let den = u128::from(piece.ns_per_byte_den);
        (ns / den).saturating_mul(u128::from(PARTS)).saturating_add(ns % den * u128::from(PARTS) / den)
    };
    (cost.alpha_ns(), cost.pieces().iter().map(parts).min().unwrap_or(0))
}

/// What comes before and after each item where all that takes time follows on what takes time before it. `items` are in
/// program order.
fn one_after_another(problem: &Problem, items: &[usize]) -> (Lists, Lists) {
    let mut previous = vec![NONE; problem.item_count()];
    let mut last = NONE;
    for &item in items {
        if problem.compute_ns.get(item).is_some_and(|&ns| ns > 0) {
            previous[item] = last;
            last = item as u32;
        }
    }
    let mut before = Lists::with_capacity(previous.len());
    for (item, &previous) in previous.iter().enumerate() {
        let more = (previous != NONE).then_some(previous);
        before.push(problem.before.get(item).iter().copied().chain(more));
    }
    let after = before.inverted(problem.item_count());
    (before, after)
}

/// Messages on one stream, each begun no sooner than its head: the least start, and the time of all bytes.
#[derive(Clone, Copy, Default)]
struct Clock {
    any: bool,
    alpha_ns: u64,
    end_parts: u128,
}

impl Clock {
    fn add(&mut self, head_ns: u64, (alpha_ns, parts): (u64, u128)) {
        self.alpha_ns = if self.any { self.alpha_ns.min(alpha_ns) } else { alpha_ns };
        self.end_parts = self.end_parts.max(u128::from(head_ns) * u128::from(PARTS)).saturating_add(parts);
        self.any = true;
    }

    fn ns(&self) -> u64 {
        let end = u64::try_from(self.end_parts.div_ceil(u128::from(PARTS))).unwrap_or(u64::MAX);
        self.alpha_ns.saturating_add(end)
    }
}

/// The least end of one machine's jobs, where a job may be put aside for another: always run the one with the longest tail.
/// Returns the job after whose tail that is.
fn one_machine(mut jobs: Vec<Job>) -> Option<(u64, usize)> {
    jobs.sort_by_key(|job| (job.head_ns, job.item));
    let mut waiting = BinaryHeap::new();
    let (mut now, mut best) = (0u64, None);
    let mut next = jobs.iter().peekable();
    loop {
        if waiting.is_empty() {
            now = now.max(next.peek()?.head_ns);
        }
        while let Some(job) = next.next_if(|job| job.head_ns <= now) {
            waiting.push((job.tail_ns, Reverse(job.item), job.ns));
        }
        let Some((tail, item, left)) = waiting.pop() else { continue };
        let until = next.peek().map_or(u64::MAX, |job| job.head_ns);
        let run = left.min(until.saturating_sub(now));
        now = now.saturating_add(run);
        if run < left {
            waiting.push((tail, item, left - run));
            continue;
        }
        let end = (now.saturating_add(tail), item.0);
        if best.is_none_or(|(ns, _)| end.0 > ns) {
            best = Some(end);
        }
        if waiting.is_empty() && next.peek().is_none() {
            return best;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(head_ns: u64, ns: u64, tail_ns: u64, item: usize) -> Job {
        Job { head_ns, ns, tail_ns, item }
    }

    #[test]
    fn the_longest_tail_runs_first_and_others_are_put_aside() {
        assert_eq!(one_machine(Vec::new()), None);
        assert_eq!(one_machine(vec![job(3, 5, 7, 0)]), Some((15, 0)));
        // The first is put aside for the second, whose tail is long.
        assert_eq!(one_machine(vec![job(0, 10, 0, 0), job(4, 2, 20, 1)]), Some((26, 1)));
        assert_eq!(one_machine(vec![job(0, 10, 15, 0), job(4, 2, 20, 1)]), Some((27, 0)));
    }
}
