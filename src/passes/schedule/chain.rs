//! Exact plans for a chain of messages on one stream.
//!
//! Messages `1..=n` can start from `release[j]` on, which does not fall, and share one cost. Buckets are runs of neighbours,
//! launched in order: for a cost that is a straight line no other plan is better, as a message that is ready earlier can only
//! gain by leaving earlier. With `C[j]` the least time at which the first `j` have arrived, and `P[j]` their bytes,
//!
//! ```text
//! C[j] = min over i < j of  max(C[i], release[j]) + cost(P[j] - P[i])
//! ```
//!
//! `C` does not fall. Of all `i` with `C[i] <= release[j]` the last is best, as it leaves the fewest bytes; of all others the
//! one with the least `C[i] + cost(P[j] - P[i])`, and for one piece of the cost that is the least `C[i] * den - P[i] * num`, whatever
//! `j` is: a window that only moves forward, kept in a queue in which keys rise. Rounding up once is no obstacle, as the
//! least of rounded numbers is the rounded least. Cost: linear in messages for each piece.
//!
//! The rule is that of serial batching with release dates and a fixed sequence on one machine; the queue is the one of sliding
//! minima. Gathers that only have to be there in time are the same chain backwards: see [`deadlines`].

use super::costs::MessageCost;
use std::collections::VecDeque;

/// Splits a chain into buckets so that the last arrives as early as can be. Returns when that is, and where each bucket
/// begins.
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
    let mut queues: Vec<VecDeque<(i128, usize)>> = vec![VecDeque::new(); cost.pieces().len()];
    // The last bucket's end that is not above the release.
    let mut ready = 0;
    for j in 1..=count {
        let release = release_ns[j - 1];
        while ready + 1 < j && done[ready + 1] <= release {
            ready += 1;
        }
        let mut best = (release.max(done[ready]).saturating_add(cost.ns(sums[j] - sums[ready])), ready);
        for (queue, piece) in queues.iter_mut().zip(cost.pieces()) {
            let (num, den) = (i128::from(piece.ns_per_byte_num), i128::from(piece.ns_per_byte_den));
            if j > 1 {
                let i = j - 1;
                let key = i128::from(done[i]) * den - i128::from(sums[i]) * num;
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

/// Splits a chain of messages that must have arrived by `deadline_ns`, which does not fall, where all are there from the
/// beginning, into buckets so that computation is held up least. Returns by how much, and where each bucket begins.
///
/// A message that is needed at time `d` of a step that computes for `end_ns` in all is one that is ready at `end_ns - d` of the
/// step backwards.
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
    use super::super::costs::Piece;
    use super::*;

    fn cost(pieces: &[(u64, u64, u64)]) -> MessageCost {
        let piece =
            |&(alpha_ns, ns_per_byte_num, ns_per_byte_den)| Piece { alpha_ns, ns_per_byte_num, ns_per_byte_den };
        MessageCost::new(pieces.iter().map(piece).collect()).unwrap()
    }

    /// The recurrence as it is written, over all pairs.
    fn plain(release: &[u64], bytes: &[u64], cost: &MessageCost) -> u64 {
        let mut done = vec![0u64];
        for j in 1..=release.len() {
            let end = |i: usize| done[i].max(release[j - 1]) + cost.ns(bytes[i..j].iter().sum());
            done.push((0..j).map(end).min().unwrap());
        }
        done[release.len()]
    }

    #[test]
    fn queues_find_what_all_pairs_find() {
        let mut state = 1u64;
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % (most + 1)
        };
        for round in 0..3000 {
            let count = draw(40) as usize;
            let mut release: Vec<u64> = (0..count).map(|_| draw(if round % 2 == 0 { 200 } else { 5000 })).collect();
            release.sort_unstable();
            let bytes: Vec<u64> = (0..count).map(|_| draw(300)).collect();
            let mut pieces = Vec::new();
            for _ in 0..=draw(3) {
                pieces.push((draw(500), draw(7), 1 + draw(9)));
            }
            let cost = cost(&pieces);
            let (end, starts) = releases(&release, &bytes, &cost);
            assert_eq!(end, plain(&release, &bytes, &cost), "{release:?} {bytes:?} {pieces:?}");
            // The buckets it returns take as long as it says.
            let mut now = 0;
            for (at, &start) in starts.iter().enumerate() {
                let stop = starts.get(at + 1).copied().unwrap_or(count);
                now = release[stop - 1].max(now) + cost.ns(bytes[start..stop].iter().sum());
            }
            assert_eq!(now, end);
        }
    }

    #[test]
    fn a_chain_without_messages_is_no_bucket() {
        assert_eq!(releases(&[], &[], &cost(&[(1, 1, 1)])), (0, Vec::new()));
        assert_eq!(deadlines(&[], &[], 7, &cost(&[(1, 1, 1)])), (0, Vec::new()));
    }

    #[test]
    fn gathers_are_the_chain_backwards() {
        // Two are needed at once, the third after 100 ns of computing: it hides behind that.
        let cost = cost(&[(10, 1, 1)]);
        assert_eq!(deadlines(&[0, 0, 100], &[5, 5, 60], 200, &cost), (20, vec![0, 2]));
    }
}
