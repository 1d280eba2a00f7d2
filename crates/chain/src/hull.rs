//! Concave curves of straight lines: the form in which times of messages are kept.
//!
//! A line states its slope in whole nanoseconds for a GiB. All is integer arithmetic, so that every rank and machine computes
//! the same.

mod fit;

pub use fit::{fit, fit_line};

use crate::cost::{MOST_PIECES, MessageCost, Piece};

/// Bytes that a slope is stated for.
pub const GIB: u64 = 1 << 30;

/// A straight line: `alpha_ns + bytes * ns_per_gib / GIB`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Line {
    /// Nanoseconds without bytes.
    pub alpha_ns: u64,
    /// Nanoseconds for each GiB.
    pub ns_per_gib: u64,
}

impl Line {
    /// A piece, its slope rounded up.
    pub fn of(piece: &Piece) -> Self {
        let scaled = u128::from(piece.ns_per_byte_num) * u128::from(GIB);
        let slope = scaled.div_ceil(u128::from(piece.ns_per_byte_den.max(1)));
        Self { alpha_ns: piece.alpha_ns, ns_per_gib: u64::try_from(slope).unwrap_or(u64::MAX) }
    }

    /// As a piece.
    pub const fn piece(self) -> Piece {
        Piece { alpha_ns: self.alpha_ns, ns_per_byte_num: self.ns_per_gib, ns_per_byte_den: GIB }
    }

    /// The mean of two lines, weighted and rounded up. The weights are not both 0.
    fn mean([low, high]: [Self; 2], [low_weight, high_weight]: [u32; 2]) -> Self {
        let mix = |a: u64, b: u64| {
            let sum = u128::from(a) * u128::from(low_weight) + u128::from(b) * u128::from(high_weight);
            u64::try_from(sum.div_ceil(u128::from(low_weight) + u128::from(high_weight))).unwrap_or(u64::MAX)
        };
        Self { alpha_ns: mix(low.alpha_ns, high.alpha_ns), ns_per_gib: mix(low.ns_per_gib, high.ns_per_gib) }
    }

    /// The line through two points, its slope rounded up; the second lies further right.
    fn through(from: (u64, u64), to: (u64, u64)) -> Self {
        let rise = u128::from(to.1.saturating_sub(from.1)) * u128::from(GIB);
        let slope = rise.div_ceil(u128::from((to.0 - from.0).max(1)));
        let ns_per_gib = u64::try_from(slope).unwrap_or(u64::MAX);
        let before = (u128::from(from.0) * u128::from(ns_per_gib)).div_ceil(u128::from(GIB));
        let alpha_ns = u64::try_from(u128::from(from.1).saturating_sub(before)).unwrap_or(u64::MAX);
        Self { alpha_ns, ns_per_gib }
    }

    /// Where a line that begins lower and rises faster meets another: a fraction.
    fn meets(self, other: Self) -> (u128, u128) {
        let (up, steeper) = (other.alpha_ns - self.alpha_ns, self.ns_per_gib - other.ns_per_gib);
        (u128::from(up) * u128::from(GIB), u128::from(steeper))
    }
}

/// Of lines, those that are somewhere the lowest, from the one that begins lowest to the one that rises slowest.
pub fn envelope(mut lines: Vec<Line>) -> Vec<Line> {
    lines.sort_unstable();
    let mut kept: Vec<Line> = Vec::with_capacity(lines.len());
    for line in lines {
        if kept.last().is_some_and(|last| last.ns_per_gib <= line.ns_per_gib) {
            continue;
        }
        // The last one is nowhere the lowest if this one meets the one before it no later.
        while let [.., before, last] = kept[..] {
            let ((at, of), (last_at, last_of)) = (before.meets(line), before.meets(last));
            // Both are below 2^94 over 2^64: compared whole first, then by what is left.
            let order = (at / of).cmp(&(last_at / last_of));
            if order.then_with(|| ((at % of) * last_of).cmp(&((last_at % last_of) * of))).is_gt() {
                break;
            }
            kept.pop();
        }
        kept.push(line);
    }
    kept
}

/// A cost of lines: of those that count, at most [`MOST_PIECES`]. Where there are more, those go that raise the curve least,
/// as a share of it.
pub fn cost(lines: Vec<Line>) -> MessageCost {
    let mut lines = envelope(lines);
    while lines.len() > MOST_PIECES {
        let raise = |at: usize| {
            let (from, to) = (lines[at - 1], lines[at + 1]);
            let (bytes, of) = from.meets(to);
            let ns = |line: Line| {
                let slope = u128::from(line.ns_per_gib);
                u128::from(line.alpha_ns) + (bytes / of.max(1)).saturating_mul(slope) / u128::from(GIB)
            };
            (ns(from).saturating_sub(ns(lines[at]))).saturating_mul(1_000_000_000) / ns(lines[at]).max(1)
        };
        let Some(least) = (1..lines.len() - 1).min_by_key(|&at| raise(at)) else { break };
        lines.remove(least);
    }
    if lines.is_empty() {
        lines.push(Line { alpha_ns: 0, ns_per_gib: 0 });
    }
    MessageCost::of_pieces(lines.into_iter().map(Line::piece).collect())
}

/// The weighted mean of two costs at every size. Weights that are both 0 count as equal.
pub fn mean([(low, low_weight), (high, high_weight)]: [(&MessageCost, u32); 2]) -> MessageCost {
    let weights = if (low_weight, high_weight) == (0, 0) { [1, 1] } else { [low_weight, high_weight] };
    // The mean of two minima is the least of all means.
    let pairs = low.pieces().iter().flat_map(|a| high.pieces().iter().map(move |b| [a, b].map(Line::of)));
    cost(pairs.map(|lines| Line::mean(lines, weights)).collect())
}

/// Points of bytes and nanoseconds sorted by bytes, each no further out than that products of two differences fit in 128 bits
/// with a sign.
fn sorted(points: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let far = i64::MAX as u64;
    let mut points: Vec<(u64, u64)> = points.iter().map(|&(bytes, ns)| (bytes.min(far), ns.min(far))).collect();
    points.sort_unstable();
    points
}

/// The least concave cost that is not below any of these points of bytes and nanoseconds. Beyond the last one it goes on as
/// between the last two.
pub fn over(points: &[(u64, u64)]) -> MessageCost {
    let mut corners: Vec<(u64, u64)> = Vec::with_capacity(points.len());
    for point in sorted(points) {
        // Of one size the longest.
        corners.pop_if(|last| last.0 == point.0);
        while let [.., before, last] = corners[..] {
            let rise =
                |from: (u64, u64), to: (u64, u64)| (i128::from(to.1) - i128::from(from.1), i128::from(to.0 - from.0));
            let ((up, along), (last_up, last_along)) = (rise(before, point), rise(before, last));
            if up * last_along < last_up * along {
                break;
            }
            corners.pop();
        }
        corners.push(point);
    }
    match corners[..] {
        [] => cost(Vec::new()),
        [(_, ns)] => cost(vec![Line { alpha_ns: ns, ns_per_gib: 0 }]),
        _ => cost(corners.windows(2).map(|pair| Line::through(pair[0], pair[1])).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(alpha_ns: u64, ns_per_gib: u64) -> Line {
        Line { alpha_ns, ns_per_gib }
    }

    #[test]
    fn lines_that_are_nowhere_the_lowest_go() {
        let (first, second, third) = (line(0, 100), line(10, 50), line(100, 10));
        assert_eq!(envelope(vec![third, first, second]), [first, second, third]);
        // Meets the first where the third does, or later.
        assert_eq!(envelope(vec![first, line(70, 40), third]), [first, third]);
        assert_eq!(envelope(vec![first, line(5, 100), line(0, 101)]), [first]);
        assert_eq!(envelope(Vec::new()), []);
    }

    #[test]
    fn of_more_lines_than_fit_those_go_that_matter_least() {
        let lines: Vec<Line> = (0..20).map(|at| line(1000 * at * at, 20_000_000 / (1 << at))).collect();
        let (all, few) = (envelope(lines.clone()), cost(lines));
        assert_eq!(few.pieces().len(), MOST_PIECES);
        for bytes in (0..40).map(|at| 1u64 << at) {
            let least = all.iter().map(|line| line.piece().ns(bytes)).min().unwrap();
            let found = few.ns(bytes);
            assert!(found >= least && found * 10 <= least * 13, "{bytes}: {found} for {least}");
        }
    }

    #[test]
    fn a_mean_of_costs_is_the_mean_of_their_times() {
        let low = cost(vec![line(10_000, 5_000_000), line(40_000, 1_000_000)]);
        let high = cost(vec![line(30_000, 9_000_000), line(200_000, 2_000_000)]);
        let mixed = mean([(&low, 3), (&high, 1)]);
        for bytes in [0, 1, 1 << 20, 1 << 24, 1 << 30, 1 << 34] {
            let expected = (3 * low.ns(bytes) + high.ns(bytes)) / 4;
            let found = mixed.ns(bytes);
            assert!(found.abs_diff(expected) <= 16, "{bytes}: {found}, expected {expected}");
        }
    }

    #[test]
    fn a_hull_is_concave_and_not_below_its_points() {
        let points = [(0, 10), (100, 200), (200, 210), (300, 300), (400, 350), (800, 400)];
        let hull = over(&points);
        for (bytes, ns) in points {
            assert!(hull.ns(bytes) >= ns && hull.ns(bytes) <= ns + 60, "{bytes}: {}", hull.ns(bytes));
        }
        assert_eq!((hull.ns(100), hull.ns(800)), (200, 400));
        // In whatever order, and of one size the longest counts.
        let any_order: Vec<(u64, u64)> = points.into_iter().rev().chain([(100, 150), (800, 10)]).collect();
        assert_eq!(over(&any_order), hull);
        assert_eq!(over(&[(5, 7)]).ns(1 << 40), 7);
    }
}
