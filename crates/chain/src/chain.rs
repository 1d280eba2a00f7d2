//! The exact planner. Its rule stands in the documentation of the crate; here is how it is followed in linear time.
//!
//! `C` does not fall. Of all `i` with `C[i] <= release[j]` the last is best, as it leaves the fewest bytes; of all others the
//! one with the least `C[i] + cost(P[j] - P[i])`, and for one piece of the cost that is the least `C[i] * den - P[i] * num`, whatever
//! `j` is: a window that only moves forward, kept in a queue in which keys rise. Rounding up once is no obstacle, as the
//! least of rounded numbers is the rounded least. Cost: linear in messages for each piece.

use crate::cost::{MessageCost, Piece};
use std::collections::VecDeque;

/// Splits a chain of messages into buckets so that the last arrives as early as can be. Returns when that is, in nanoseconds,
/// and the message at which each bucket begins.
///
/// `release_ns` says from when on each message can leave, in the order in which they are launched: a bucket leaves when all
/// of it can, and the one before has arrived. No order of launches is better than that of releases that do not fall, if the
/// cost is a straight line. `bytes` has an entry for each; what one of the two has more of is left out. Time is linear in
/// messages times pieces of the cost. Times and sums of bytes end at [`u64::MAX`].
///
/// ```
/// use bucketeer_chain::{MessageCost, Piece, releases};
///
/// let line = Piece { alpha_ns: 10, ns_per_byte_num: 1, ns_per_byte_den: 1 };
/// let cost = MessageCost::new(vec![line])?;
/// // The first is on its way from 0 to 15; the others leave together once both can.
/// assert_eq!(releases(&[0, 5, 20], &[5, 5, 5], &cost), (40, vec![0, 1]));
/// # Ok::<(), bucketeer_chain::PiecesError>(())
/// ```
#[must_use]
pub fn releases(release_ns: &[u64], bytes: &[u64], cost: &MessageCost) -> (u64, Vec<usize>) {
    let count = release_ns.len().min(bytes.len());
    let mut sums = Vec::with_capacity(count + 1);
    let mut sum = 0u64;
    sums.push(0);
    for &bytes in &bytes[..count] {
        sum = sum.saturating_add(bytes);
        sums.push(sum);
    }
    let mut done = vec![0u64; count + 1];
    let mut from = vec![0usize; count + 1];
    let mut queues: Vec<VecDeque<(Key, usize)>> = vec![VecDeque::new(); cost.pieces().len()];
    // The last bucket's end that is not above the release.
    let mut ready = 0;
    // Nothing overtakes: what can leave only after one before it does so with that one's release.
    let mut release = 0u64;
    for j in 1..=count {
        release = release.max(release_ns[j - 1]);
        while ready + 1 < j && done[ready + 1] <= release {
            ready += 1;
        }
        let mut best = (release.max(done[ready]).saturating_add(cost.ns(sums[j] - sums[ready])), ready);
        for (queue, piece) in queues.iter_mut().zip(cost.pieces()) {
            if j > 1 {
                let i = j - 1;
                let key = key(piece, done[i], sums[i]);
                while queue.back().is_some_and(|&(last, _)| last > key) {
                    queue.pop_back();
                }
                queue.push_back((key, i));
            }
            while queue.front().is_some_and(|&(_, i)| i <= ready) {
                queue.pop_front();
            }
            if let Some(&(_, i)) = queue.front() {
                let end = done[i].max(release).saturating_add(piece.ns(sums[j] - sums[i]));
                best = best.min((end, i));
            }
        }
        (done[j], from[j]) = best;
    }
    let mut starts = Vec::new();
    let mut at = count;
    while at > 0 {
        at = from[at];
        starts.push(at);
    }
    starts.reverse();
    (done[count], starts)
}

/// In the order of a number below 2^128 either side of 0: whether it is not below, and what it is modulo 2^128.
type Key = (bool, u128);

/// `done * den - sum * num`, whatever the four are.
fn key(piece: &Piece, done: u64, sum: u64) -> Key {
    let done = u128::from(done) * u128::from(piece.ns_per_byte_den);
    let (difference, is_below) = done.overflowing_sub(u128::from(sum) * u128::from(piece.ns_per_byte_num));
    (!is_below, difference)
}

/// Splits a chain of messages that must have arrived by `deadline_ns`, where all are there from the beginning, into buckets so
/// that computation is held up least. Returns by how many nanoseconds, and the message at which each bucket begins.
///
/// A message that is needed at time `d` of a step that computes for `end_ns` in all is one that is ready at `end_ns - d` of the
/// step backwards: all else is as [`releases`] has it.
///
/// ```
/// use bucketeer_chain::{MessageCost, Piece, deadlines};
///
/// let line = Piece { alpha_ns: 10, ns_per_byte_num: 1, ns_per_byte_den: 1 };
/// let cost = MessageCost::new(vec![line])?;
/// // Two are needed at once, and take 20; the third hides behind 100 of computing.
/// assert_eq!(deadlines(&[0, 0, 100], &[5, 5, 60], 200, &cost), (20, vec![0, 2]));
/// # Ok::<(), bucketeer_chain::PiecesError>(())
/// ```
#[must_use]
pub fn deadlines(deadline_ns: &[u64], bytes: &[u64], end_ns: u64, cost: &MessageCost) -> (u64, Vec<usize>) {
    let count = deadline_ns.len().min(bytes.len());
    let release: Vec<u64> = deadline_ns[..count].iter().rev().map(|&at| end_ns.saturating_sub(at)).collect();
    let backwards: Vec<u64> = bytes[..count].iter().rev().copied().collect();
    let (end, starts) = releases(&release, &backwards, cost);
    // A bucket that begins at `s` backwards ends there forwards.
    let mut forwards: Vec<usize> = starts.iter().skip(1).map(|&start| count - start).collect();
    forwards.reverse();
    if count > 0 {
        forwards.insert(0, 0);
    }
    (end.saturating_sub(end_ns), forwards)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(pieces: &[(u64, u64, u64)]) -> MessageCost {
        let piece =
            |&(alpha_ns, ns_per_byte_num, ns_per_byte_den)| Piece { alpha_ns, ns_per_byte_num, ns_per_byte_den };
        MessageCost::new(pieces.iter().map(piece).collect()).unwrap()
    }

    /// When a bucket arrives that leaves after one that has arrived at `before`.
    fn arrival(before: u64, release: &[u64], bytes: &[u64], cost: &MessageCost) -> u64 {
        let start = release.iter().fold(before, |start, &release| start.max(release));
        start.saturating_add(cost.ns(bytes.iter().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes))))
    }

    /// The recurrence as it is written, over all pairs.
    fn plain(release: &[u64], bytes: &[u64], cost: &MessageCost) -> u64 {
        let mut done = vec![0u64];
        for j in 1..=release.len() {
            let end = |i: usize| arrival(done[i], &release[i..j], &bytes[i..j], cost);
            done.push((0..j).map(end).min().unwrap());
        }
        done[release.len()]
    }

    /// When the last of these buckets arrives.
    fn end(starts: &[usize], release: &[u64], bytes: &[u64], cost: &MessageCost) -> u64 {
        let stops = starts.iter().skip(1).copied().chain([release.len()]);
        starts.iter().zip(stops).fold(0, |now, (&start, stop)| {
            assert!(start < stop, "{starts:?}");
            arrival(now, &release[start..stop], &bytes[start..stop], cost)
        })
    }

    struct Draw(u64);

    impl Draw {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % end
        }

        /// Of any size in 64 bits.
        fn any(&mut self) -> u64 {
            let shift = self.below(64);
            (self.below(1 << 31) << 33 | self.below(1 << 31)) >> shift
        }
    }

    #[test]
    fn queues_find_what_all_pairs_find() {
        let mut draw = Draw(1);
        for round in 0..4000 {
            let count = draw.below(41) as usize;
            let mut release: Vec<u64> = (0..count).map(|_| draw.below([201, 5001][round % 2])).collect();
            // In every fourth round they do fall.
            if round % 4 > 0 {
                release.sort_unstable();
            }
            let bytes: Vec<u64> = (0..count).map(|_| draw.below(301)).collect();
            let pieces: Vec<_> =
                (0..=draw.below(4)).map(|_| (draw.below(501), draw.below(8), 1 + draw.below(10))).collect();
            let cost = cost(&pieces);
            let (found, starts) = releases(&release, &bytes, &cost);
            assert_eq!(found, plain(&release, &bytes, &cost), "{release:?} {bytes:?} {pieces:?}");
            // The buckets it returns take as long as it says.
            assert_eq!(end(&starts, &release, &bytes, &cost), found);
        }
    }

    #[test]
    fn numbers_of_64_bits_are_planned_as_small_ones_are() {
        let mut draw = Draw(2);
        let mut ends = Vec::new();
        for round in 0..4000 {
            let count = 1 + draw.below(20) as usize;
            let mut release: Vec<u64> = (0..count).map(|_| draw.any() >> 8).collect();
            release.sort_unstable();
            // Sums of bytes stay in 64 bits; times need not.
            let bytes: Vec<u64> = (0..count).map(|_| draw.any() >> 8).collect();
            let pieces: Vec<_> =
                (0..=draw.below(3)).map(|_| (draw.any() >> 8, draw.any() >> (round % 20), draw.any().max(1))).collect();
            let cost = cost(&pieces);
            let (found, starts) = releases(&release, &bytes, &cost);
            assert_eq!(found, plain(&release, &bytes, &cost), "{release:?} {bytes:?} {pieces:?}");
            assert_eq!(end(&starts, &release, &bytes, &cost), found);
            ends.push(found);
        }
        let whole = ends.iter().filter(|&&end| end < u64::MAX).count();
        assert!(whole > 1000 && whole < ends.len(), "{whole} of {}", ends.len());
        assert_eq!(releases(&[0, u64::MAX], &[u64::MAX; 2], &cost(&[(u64::MAX, u64::MAX, 1)])).0, u64::MAX);
    }

    #[test]
    fn a_chain_without_messages_is_no_bucket() {
        assert_eq!(releases(&[], &[], &cost(&[(1, 1, 1)])), (0, Vec::new()));
        assert_eq!(deadlines(&[], &[], 7, &cost(&[(1, 1, 1)])), (0, Vec::new()));
    }
}
