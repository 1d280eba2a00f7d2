//! What no plan can be shorter than: a certificate of how good a plan is.
//!
//! Each bound holds for every order of the computation and every way to put messages into buckets. A message takes at least the
//! time of its own bytes, whatever travels with it, as a larger one never takes less; together, the messages of one group take
//! at least the time of all their bytes at the smallest slope, and one start.
//!
//! | bound | why |
//! |---|---|
//! | computation | it runs one at a time |
//! | path | what comes before, the item, what comes after |
//! | compute machine | one machine, items with heads and tails, preemption allowed (Jackson's rule) |
//! | stream | the same for the messages of one group, and one start |
//! | families | all bytes of a group, and a start for each set of messages that can never travel together |
//!
//! The *head* of an item is the least time until it can begin: after each of its predecessors, after all the computation
//! that leads to it, on one machine, and after all bytes of each group that have to arrive before it, on one stream. Its *tail* is the same for what follows.
//! In graphs of more than 4,096 items heads and tails count paths alone, so that the cost stays near-linear; up to there it
//! is quadratic: 0.1 s.

use super::problem::{NONE, Problem};
use crate::ir::NodeId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Items up to which all that leads to one is added up.
const MOST_ITEMS: usize = 4_096;

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

/// All bounds of a problem, the strongest first.
pub(super) fn bounds(problem: &Problem) -> Vec<LowerBound> {
    let all = Bounds::of(problem);
    let mut found = vec![LowerBound { ns: problem.compute_ns.iter().sum(), bound: Bound::Computation }];
    found.extend(all.path());
    found.extend(all.compute_machine());
    for group in 0..problem.groups {
        found.extend(all.stream(group));
        found.extend(all.families(group));
    }
    found.sort_by_key(|bound| Reverse(bound.ns));
    found
}

struct Bounds<'a> {
    problem: &'a Problem,
    /// By item: its least time.
    least_ns: Vec<u64>,
    head_ns: Vec<u64>,
    tail_ns: Vec<u64>,
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
    fn of(problem: &'a Problem) -> Self {
        let own = problem.messages.iter().map(|message| problem.costs[message.cost as usize].ns(message.bytes));
        let least_ns: Vec<u64> = problem.compute_ns.iter().copied().chain(own).collect();
        let count = problem.item_count();
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_unstable_by_key(|&item| problem.as_written[item]);
        let mut bounds = Self { problem, least_ns, head_ns: vec![0; count], tail_ns: vec![0; count] };
        let with_sets = count <= MOST_ITEMS;
        bounds.head_ns =
            bounds.heads(&order, with_sets, |item| problem.before.get(item), |one, other| problem.is_over(other, one));
        order.reverse();
        bounds.tail_ns =
            bounds.heads(&order, with_sets, |item| problem.after.get(item), |one, other| problem.is_over(one, other));
        bounds
    }

    /// The least time before each item, in an order in which what leads to it comes first.
    fn heads<'b>(
        &self,
        order: &[usize],
        with_sets: bool,
        before: impl Fn(usize) -> &'b [u32],
        is_over: impl Fn(usize, usize) -> bool,
    ) -> Vec<u64> {
        let count = order.len();
        let words = if with_sets { count.div_ceil(64) } else { 0 };
        let mut sets = vec![0u64; words * count];
        let mut heads = vec![0u64; count];
        let mut clocks = vec![Clock::default(); self.problem.groups];
        // Items so far, by their heads.
        let mut by_head: Vec<usize> = Vec::with_capacity(count);
        for &item in order {
            let mut head = 0u64;
            for &other in before(item) {
                let other = other as usize;
                // What only has to be launched before takes no time here.
                if !is_over(item, other) {
                    continue;
                }
                head = head.max(heads[other].saturating_add(self.least_ns[other]));
                for word in 0..words {
                    let from = sets[other * words + word];
                    sets[item * words + word] |= from;
                }
                if words > 0 {
                    sets[item * words + other / 64] |= 1 << (other % 64);
                }
            }
            if words > 0 {
                head = head.max(self.all_of(&sets[item * words..(item + 1) * words], &by_head, &heads, &mut clocks));
                let at = by_head.partition_point(|&other| heads[other] <= head);
                by_head.insert(at, item);
            }
            heads[item] = head;
        }
        heads
    }

    /// The least time until a set of items is done, each begun no sooner than its head: all computation on one machine, or all
    /// messages of a group on one stream.
    fn all_of(&self, set: &[u64], by_head: &[usize], heads: &[u64], clocks: &mut [Clock]) -> u64 {
        let computes = self.problem.compute.len();
        clocks.fill(Clock::default());
        let mut compute = 0u64;
        for &item in by_head {
            if set[item / 64] & (1 << (item % 64)) == 0 {
                continue;
            }
            match item.checked_sub(computes) {
                None => compute = compute.max(heads[item]).saturating_add(self.least_ns[item]),
                Some(message) => {
                    let clock = &mut clocks[self.problem.messages[message].group as usize];
                    clock.add(heads[item], self.slope(message));
                }
            }
        }
        clocks.iter().map(Clock::ns).fold(compute, u64::max)
    }

    /// The least start, which a message may share with others, and the least time of its bytes.
    fn slope(&self, message: usize) -> (u64, u64) {
        let message = &self.problem.messages[message];
        let cost = &self.problem.costs[message.cost as usize];
        if message.class == NONE {
            // It travels alone.
            return (0, cost.ns(message.bytes));
        }
        // Rounded up once for a bucket, never for a part of it.
        (cost.alpha_ns(), cost.bytes_ns(message.bytes).saturating_sub(1))
    }

    fn path(&self) -> Option<LowerBound> {
        let through =
            |&item: &usize| self.head_ns[item].saturating_add(self.least_ns[item]).saturating_add(self.tail_ns[item]);
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
        Job { head_ns: self.head_ns[item], ns, tail_ns: self.tail_ns[item], item }
    }

    /// Messages of a group.
    fn group(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.problem.messages.len()).filter(move |&m| self.problem.messages[m].group as usize == group)
    }

    fn stream(&self, group: usize) -> Option<LowerBound> {
        let computes = self.problem.compute.len();
        let jobs = self.group(group).map(|message| self.job(computes + message, self.slope(message).1)).collect();
        let alpha = self.group(group).map(|message| self.slope(message).0).min()?;
        let (ns, last) = one_machine(jobs)?;
        Some(LowerBound { ns: ns.saturating_add(alpha), bound: Bound::Stream { group, last: self.node(last) } })
    }

    fn families(&self, group: usize) -> Option<LowerBound> {
        let computes = self.problem.compute.len();
        let (mut classes, mut any): (Vec<u32>, bool) = (Vec::new(), false);
        let mut sum = Clock::default();
        let (mut head, mut tail, mut least_alpha) = (u64::MAX, u64::MAX, u64::MAX);
        for message in self.group(group) {
            let class = self.problem.messages[message].class;
            if class != NONE {
                classes.push(class);
            }
            any = true;
            let (alpha, bytes) = self.slope(message);
            if class != NONE {
                least_alpha = least_alpha.min(alpha);
            }
            sum.add(0, (0, bytes));
            head = head.min(self.head_ns[computes + message]);
            tail = tail.min(self.tail_ns[computes + message]);
        }
        classes.sort_unstable();
        classes.dedup();
        let families = classes.len();
        if !any {
            return None;
        }
        let starts = if families > 0 { (families as u64).saturating_mul(least_alpha) } else { 0 };
        let ns = sum.ns().saturating_add(starts).saturating_add(head).saturating_add(tail);
        Some(LowerBound { ns, bound: Bound::Families { group, families } })
    }
}

/// Messages on one stream, each begun no sooner than its head: the least start, and the time of all bytes.
#[derive(Clone, Copy, Default)]
struct Clock {
    any: bool,
    alpha_ns: u64,
    end_ns: u64,
}

impl Clock {
    fn add(&mut self, head_ns: u64, (alpha_ns, ns): (u64, u64)) {
        self.alpha_ns = if self.any { self.alpha_ns.min(alpha_ns) } else { alpha_ns };
        self.end_ns = self.end_ns.max(head_ns).saturating_add(ns);
        self.any = true;
    }

    const fn ns(&self) -> u64 {
        self.alpha_ns.saturating_add(self.end_ns)
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
