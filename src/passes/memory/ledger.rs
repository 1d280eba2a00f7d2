//! Bytes alive at each place of a program, while what lives there changes: pieces of memory are put in and taken out, and
//! the most bytes are known at once. A tree of maxima; each change costs the logarithm of the places.

/// Bytes by place.
pub(super) struct Ledger {
    /// How many leaves there are: a power of two, so that the root is node 1 and the leaf of place `n` is node `leaves + n`.
    leaves: usize,
    /// By node of the tree: the most bytes at any place below, without what its ancestors add.
    most: Vec<i64>,
    /// By node: what it adds to all places below.
    added: Vec<i64>,
}

impl Ledger {
    /// The bytes that are alive at each place.
    pub(super) fn of(alive: &[i64]) -> Self {
        let leaves = alive.len().next_power_of_two();
        let mut most = vec![0; 2 * leaves];
        most[leaves..leaves + alive.len()].copy_from_slice(alive);
        for node in (1..leaves).rev() {
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
        Self { leaves, most, added: vec![0; leaves] }
    }

    /// Adds bytes to all places from one to another, both included; nothing where the other stands before the one.
    pub(super) fn hold(&mut self, from: u32, to: u32, bytes: i64) {
        if from > to || bytes == 0 {
            return;
        }
        let (first, last) = (self.leaves + from as usize, (self.leaves + to as usize).min(2 * self.leaves - 1));
        let (mut left, mut right) = (first, last + 1);
        while left < right {
            if left % 2 == 1 {
                self.add(left, bytes);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                self.add(right, bytes);
            }
            (left, right) = (left / 2, right / 2);
        }
        self.climb(first);
        self.climb(last);
    }

    fn add(&mut self, node: usize, bytes: i64) {
        self.most[node] += bytes;
        if let Some(added) = self.added.get_mut(node) {
            *added += bytes;
        }
    }

    /// Brings the maxima above a leaf up to date.
    fn climb(&mut self, leaf: usize) {
        let mut node = leaf / 2;
        while node > 0 {
            self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.added[node];
            node /= 2;
        }
    }

    /// The most bytes at any place.
    pub(super) fn most(&self) -> i64 {
        self.most[1]
    }

    /// The first place that has the most.
    pub(super) fn place_of_most(&self) -> usize {
        let mut node = 1;
        while node < self.leaves {
            node *= 2;
            node += usize::from(self.most[node + 1] > self.most[node]);
        }
        node - self.leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_ledger_knows_what_a_list_of_bytes_does(
            alive in prop::collection::vec(0i64..100, 1..40),
            changes in prop::collection::vec((0u32..40, 0u32..40, -50i64..50), 0..30),
        ) {
            let (mut list, mut ledger) = (alive.clone(), Ledger::of(&alive));
            // Leaves behind the last place hold nothing; the list is never below that.
            list.iter_mut().for_each(|bytes| *bytes += 2000);
            ledger.hold(0, alive.len() as u32 - 1, 2000);
            for (from, to, bytes) in changes {
                let to = to.min(alive.len() as u32 - 1);
                ledger.hold(from, to, bytes);
                (from..=to).for_each(|at| list[at as usize] += bytes);
                let most = *list.iter().max().unwrap();
                prop_assert_eq!(ledger.most(), most);
                prop_assert_eq!(ledger.place_of_most(), list.iter().position(|&bytes| bytes == most).unwrap());
            }
        }
    }
}
