//! How many launches there have to be, for a cap on memory.
//!
//! The buffer of a bucket of gathers is alive at least until each member is first read, beside what was made before that and is
//! needed there or later; a bucket of anything else is packed where all its operands are alive. What is left below the cap is
//! the most that may travel with a member. As shares of that, the members of a bucket add up to at most 1, so there are at least
//! as many launches as shares add up to, and as other sums of shares say that count large ones whole (dual feasible functions:
//! Fekete and Schepers, New classes of fast lower bounds for bin packing problems, 2001).

use super::super::problem::{Maker, NONE};
use super::Bounds;

/// What shares are counted in.
const WHOLE: u64 = 1 << 32;

/// How large members are told apart: those above 1/2, 1/3, and so on.
const PARTS: u64 = 12;

/// By class: the least number of launches.
pub(super) fn least(all: &Bounds<'_>, cap_bytes: Option<u64>) -> Vec<u64> {
    let problem = all.problem;
    let classes = problem.messages.iter().filter(|message| message.class != NONE);
    let classes = classes.map(|message| message.class as usize + 1).max().unwrap_or(0);
    let mut shares: Vec<Vec<u64>> = vec![Vec::new(); classes];
    // Where nothing is known of memory a launch takes any number.
    let of_all = match cap_bytes.filter(|_| all.heads.has_sets()) {
        Some(cap_bytes) => Room::of(all, cap_bytes).shares(),
        None => vec![0; problem.messages.len()],
    };
    for (message, share) in problem.messages.iter().zip(of_all).filter(|(message, _)| message.class != NONE) {
        shares[message.class as usize].push(share);
    }
    shares.iter().map(|shares| launches(shares)).collect()
}

/// The least number of sets of shares that add up to at most a whole.
fn launches(shares: &[u64]) -> u64 {
    if shares.is_empty() {
        return 0;
    }
    let sum: u128 = shares.iter().map(|&share| u128::from(share)).sum();
    let mut most = u64::try_from(sum.div_ceil(u128::from(WHOLE))).unwrap_or(u64::MAX);
    for parts in 1..PARTS {
        // A share that is a whole number of parts and a bit counts as so many of one part less.
        let counted = |&share: &u64| {
            let scaled = u128::from(share) * u128::from(parts + 1);
            match scaled % u128::from(WHOLE) {
                0 => u128::from(share) * u128::from(parts),
                _ => scaled / u128::from(WHOLE) * u128::from(WHOLE),
            }
        };
        let sum: u128 = shares.iter().map(counted).sum();
        let found = sum.div_ceil(u128::from(WHOLE) * u128::from(parts));
        most = most.max(u64::try_from(found).unwrap_or(u64::MAX));
    }
    most.max(1)
}

struct Room<'a> {
    all: &'a Bounds<'a>,
    cap_bytes: u64,
    /// By item: storages of computation that it reads.
    reads: Vec<Vec<u32>>,
}

impl<'a> Room<'a> {
    fn of(all: &'a Bounds<'a>, cap_bytes: u64) -> Self {
        let problem = all.problem;
        let mut reads: Vec<Vec<u32>> = vec![Vec::new(); problem.item_count()];
        for (at, storage) in problem.storages.iter().enumerate() {
            if matches!(storage.maker, Maker::Compute(_)) {
                problem.item_uses.get(at).iter().for_each(|&item| reads[item as usize].push(at as u32));
            }
        }
        Self { all, cap_bytes, reads }
    }

    /// Bytes that computation made before an item, and that it or what follows it needs, whatever the plan.
    fn alive_at(&self, item: usize) -> u64 {
        let problem = self.all.problem;
        let is_alive = |at: usize| {
            let Maker::Compute(maker) = problem.storages[at].maker else { return false };
            self.all.heads.holds(item, maker as usize)
                && (problem.storages[at].is_returned
                    || self.reads[item].contains(&(at as u32))
                    || problem.item_uses.get(at).iter().any(|&user| self.all.tails.holds(item, user as usize)))
        };
        let alive = (0..problem.storages.len()).filter(|&at| is_alive(at));
        alive.map(|at| problem.storages[at].bytes).fold(0, u64::saturating_add)
    }

    /// The least share of a bucket that each message takes, of [`WHOLE`].
    fn shares(&self) -> Vec<u64> {
        let problem = self.all.problem;
        let computes = problem.compute.len();
        let mut alive = vec![None; computes];
        let mut share = |message: usize| {
            let sent = &problem.messages[message];
            let storage = problem.result_of[message];
            let readers = if storage == NONE { &[][..] } else { problem.item_uses.get(storage as usize) };
            let (own, room) = if sent.gathers {
                // One of its readers is the first. One that is a message says nothing.
                let least = readers.iter().map(|&reader| match reader as usize {
                    reader if reader < computes => *alive[reader].get_or_insert_with(|| self.alive_at(reader)),
                    _ => 0,
                });
                (sent.result_bytes, self.cap_bytes.saturating_sub(least.min().unwrap_or(0)))
            } else {
                let given = self.reads[computes + message].iter().map(|&at| at as usize);
                let alone = given.filter(|&at| problem.item_uses.get(at).len() == 1);
                let given = alone.map(|at| problem.storages[at].bytes).fold(0, u64::saturating_add);
                (given.saturating_add(if sent.is_packed_apart { sent.operand_bytes } else { 0 }), self.cap_bytes)
            };
            let share = u128::from(own) * u128::from(WHOLE) / u128::from(room.max(1));
            u64::try_from(share).unwrap_or(u64::MAX).min(WHOLE)
        };
        (0..problem.messages.len()).map(&mut share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_shares_need_launches_of_their_own() {
        let of = |shares: &[(u64, u64)]| launches(&shares.iter().map(|&(a, b)| WHOLE * a / b).collect::<Vec<_>>());
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[(0, 1), (0, 1)]), 1);
        // Two halves are one launch, two of a little more are two.
        assert_eq!(of(&[(1, 2), (1, 2)]), 1);
        assert_eq!(of(&[(51, 100), (51, 100)]), 2);
        assert_eq!(of(&[(51, 100), (51, 100), (51, 100)]), 3);
        // Of what is above a third, two fit.
        assert_eq!(of(&[(34, 100); 4]), 2);
        assert_eq!(of(&[(34, 100); 5]), 3);
        assert_eq!(of(&[(1, 4); 9]), 3);
        assert_eq!(of(&[(1, 1); 7]), 7);
    }
}
