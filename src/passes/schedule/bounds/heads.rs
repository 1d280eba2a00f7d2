//! The least time before each item, or after it.

use super::super::problem::{Lists, Problem};
use super::{Clock, MOST_ITEMS, slope};

/// Whether an item is in a set of bits.
pub(super) const fn is_in(set: &[u64], item: usize) -> bool {
    set[item / 64] & (1 << (item % 64)) != 0
}

/// For each item, the least time before it, and all that has to be over by then.
pub(super) struct Heads {
    /// By item: nanoseconds.
    pub ns: Vec<u64>,
    /// Words of each set; none where there are too many items.
    words: usize,
    sets: Vec<u64>,
}

impl Heads {
    /// Of items in an order in which what leads to one comes first; `is_over` says whether the second has to be over before the
    /// first begins: a message may only have to be launched.
    pub fn of(
        problem: &Problem,
        least_ns: &[u64],
        items: &[usize],
        before: &Lists,
        is_over: impl Fn(usize, usize) -> bool,
    ) -> Self {
        let count = items.len();
        let words = if count <= MOST_ITEMS { count.div_ceil(64) } else { 0 };
        let mut heads = Self { ns: vec![0; count], words, sets: vec![0u64; words * count] };
        let mut clocks = vec![Clock::default(); problem.groups];
        // Items so far, by their heads.
        let mut by_head: Vec<usize> = Vec::with_capacity(count);
        for &item in items {
            let mut head = 0u64;
            for &other in before.get(item) {
                let other = other as usize;
                // What only has to be launched before takes no time here.
                if !is_over(item, other) {
                    continue;
                }
                head = head.max(heads.ns[other].saturating_add(least_ns[other]));
                for word in 0..words {
                    let from = heads.sets[other * words + word];
                    heads.sets[item * words + word] |= from;
                }
                if words > 0 {
                    heads.sets[item * words + other / 64] |= 1 << (other % 64);
                }
            }
            if words > 0 {
                head = head.max(heads.all_of(problem, least_ns, item, &by_head, &mut clocks));
                let at = by_head.partition_point(|&other| heads.ns[other] <= head);
                by_head.insert(at, item);
            }
            heads.ns[item] = head;
        }
        heads
    }

    /// Whether sets are kept.
    pub const fn has_sets(&self) -> bool {
        self.words > 0
    }

    /// What has to be over before an item, as bits; nothing where there are too many items.
    pub fn set(&self, item: usize) -> &[u64] {
        &self.sets[item * self.words..(item + 1) * self.words]
    }

    /// Whether one item has to be over before another begins.
    pub fn holds(&self, item: usize, other: usize) -> bool {
        self.words > 0 && is_in(self.set(item), other)
    }

    /// The least time until all that leads to an item is done, each begun no sooner than its head: all computation on one
    /// machine, or all messages of a group on one stream.
    fn all_of(&self, problem: &Problem, least_ns: &[u64], item: usize, by_head: &[usize], clocks: &mut [Clock]) -> u64 {
        let computes = problem.compute.len();
        clocks.fill(Clock::default());
        let mut compute = 0u64;
        let set = self.set(item);
        for &item in by_head {
            if !is_in(set, item) {
                continue;
            }
            match item.checked_sub(computes) {
                None => compute = compute.max(self.ns[item]).saturating_add(least_ns[item]),
                Some(message) if problem.messages[message].vanishes => {}
                Some(message) => {
                    let clock = &mut clocks[problem.messages[message].group as usize];
                    clock.add(self.ns[item], slope(problem, message));
                }
            }
        }
        clocks.iter().map(Clock::ns).fold(compute, u64::max)
    }
}
