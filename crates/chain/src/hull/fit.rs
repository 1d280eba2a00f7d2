//! The concave curve that is closest to measured times.
//!
//! Closest by the sum of relative errors, as the rows that are built in were fit: a time that is far off its neighbours, up or
//! down, stays beside the curve instead of bending it. An error is relative to the smaller of both, so that half and twice the
//! time are equally far off: relative to the time, a curve far below all would never be off by more than 100 %. The curve is a chain of lines from one measured point to a later one,
//! each no steeper than the one before; outer lines go on beyond the first and last point, and span three points at least, so
//! that no single time decides where the curve begins and leads. Of all such chains the closest is found by going through the
//! pairs of points in order: time grows with the cube of their number, which is some forty.
//!
//! Then lines go that only follow noise. Nanoseconds are whole, and so are errors: they count in millionths.

use super::{Line, cost, envelope, sorted};
use crate::cost::MessageCost;
use std::ops::Range;

/// What of the shortest time a curve begins at, at least, in hundredths. What is measured begins at some KiB, and the first two
/// times may differ by noise alone, which has to leave something to start with.
const START_PERCENT: u64 = 85;

/// A line goes if without it no size is further off than this, in millionths, or than it was with it.
const NOISE_PPM: u64 = 20_000;

/// Points that an outer line spans.
const SPAN: usize = 3;

/// Bytes and nanoseconds, sorted by bytes.
type Points = Vec<(u64, u64)>;

/// The cost that is closest to points of bytes and nanoseconds.
pub fn fit(points: &[(u64, u64)]) -> MessageCost {
    let chain = Chain::new(points);
    let lines = envelope(chain.closest());
    cost(thinned(lines, &chain.points()))
}

/// The one line that is closest to points of bytes and nanoseconds.
pub fn fit_line(points: &[(u64, u64)]) -> Line {
    Chain::new(points).closest_line()
}

/// How far off a time is at a point, in millionths of the smaller of both.
fn error_ppm(found: u64, (_, ns): (u64, u64)) -> u64 {
    let error = u128::from(found.abs_diff(ns)) * 1_000_000 / u128::from(ns.min(found).max(1));
    u64::try_from(error).unwrap_or(u64::MAX)
}

/// The points, and in front of them the least that a curve may begin at.
struct Chain {
    corners: Points,
}

/// The best chain that ends with the line from one corner to another.
#[derive(Clone, Copy)]
struct Best {
    error_ppm: u64,
    /// Where the line before begins.
    before: Option<usize>,
}

impl Chain {
    fn new(points: &[(u64, u64)]) -> Self {
        let mut points = sorted(points);
        points.dedup_by_key(|point| point.0);
        let shortest = points.iter().map(|point| point.1).min().unwrap_or(0);
        let start = (u128::from(shortest) * u128::from(START_PERCENT) / 100) as u64;
        Self { corners: std::iter::once((0, start)).chain(points).collect() }
    }

    fn points(&self) -> Points {
        self.corners[1..].to_vec()
    }

    /// Pairs of corners that a line may go through: the time does not fall.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let count = self.corners.len();
        (1..count).flat_map(move |to| (0..to).map(move |from| (from, to))).filter(|&(from, to)| {
            let ((x, low), (y, high)) = (self.corners[from], self.corners[to]);
            x < y && low <= high
        })
    }

    fn line(&self, (from, to): (usize, usize)) -> Line {
        Line::through(self.corners[from], self.corners[to])
    }

    /// Errors of a line at the points among some corners.
    fn error_ppm(&self, line: Line, range: Range<usize>) -> u64 {
        let points = self.corners[range.start.max(1)..range.end.max(1)].iter();
        points.fold(0, |sum: u64, &point| sum.saturating_add(error_ppm(line.piece().ns(point.0), point)))
    }

    /// Whether a chain may begin with a line: it does not begin below the first corner.
    fn may_begin(&self, line: Line) -> bool {
        line.alpha_ns >= self.corners[0].1
    }

    /// Whether the line that ends where another begins is at least as steep.
    fn bends_down(&self, first: (usize, usize), then: (usize, usize)) -> bool {
        let slope = |(from, to): (usize, usize)| {
            let (from, to) = (self.corners[from], self.corners[to]);
            (i128::from(to.1) - i128::from(from.1), i128::from(to.0 - from.0))
        };
        let ((up, along), (next_up, next_along)) = (slope(first), slope(then));
        up * next_along >= next_up * along
    }

    fn closest_line(&self) -> Line {
        let lines = self.pairs().map(|pair| self.line(pair)).filter(|&line| self.may_begin(line));
        let least = lines.min_by_key(|&line| self.error_ppm(line, 0..self.corners.len()));
        least.unwrap_or(Line { alpha_ns: self.corners[0].1, ns_per_gib: 0 })
    }

    /// The lines of the closest chain.
    fn closest(&self) -> Vec<Line> {
        let count = self.corners.len();
        let span = SPAN.min(count - 1);
        let mut best: Vec<Vec<Option<Best>>> = vec![vec![None; count]; count];
        let mut least: Option<(u64, (usize, usize))> = None;
        // By where they end: what a pair follows on was looked at before it.
        for pair in self.pairs() {
            let (from, to) = pair;
            let line = self.line(pair);
            let first = (self.may_begin(line) && to >= span)
                .then(|| Best { error_ppm: self.error_ppm(line, 0..from), before: None });
            let after = (0..from)
                .filter(|&before| self.bends_down((before, from), pair))
                .filter_map(|before| Some(Best { before: Some(before), ..best[before][from]? }));
            let Some(mut chain) = first.into_iter().chain(after).min_by_key(|chain| chain.error_ppm) else { continue };
            chain.error_ppm = chain.error_ppm.saturating_add(self.error_ppm(line, from + 1..to));
            best[from][to] = Some(chain);
            if count - from.max(1) < span {
                continue;
            }
            let whole = chain.error_ppm.saturating_add(self.error_ppm(line, to + 1..count));
            if least.is_none_or(|(known, _)| whole < known) {
                least = Some((whole, pair));
            }
        }
        let mut lines = Vec::new();
        let mut at = least.map(|(_, pair)| pair);
        while let Some((from, to)) = at {
            lines.push(self.line((from, to)));
            at = best[from][to].and_then(|chain| Some((chain.before?, from)));
        }
        lines
    }
}

/// Without lines that only follow noise.
fn thinned(mut lines: Vec<Line>, points: &Points) -> Vec<Line> {
    let errors = |lines: &[Line]| -> Vec<u64> {
        let least = |bytes| lines.iter().map(|line| line.piece().ns(bytes)).min().unwrap_or(0);
        points.iter().map(|&point| error_ppm(least(point.0), point)).collect()
    };
    let allowed: Vec<u64> = errors(&lines).into_iter().map(|error| error.max(NOISE_PPM)).collect();
    while lines.len() > 1 {
        let without = |at: usize| {
            let mut rest = lines.clone();
            rest.remove(at);
            let errors = errors(&rest);
            let harms = errors.iter().zip(&allowed).any(|(error, allowed)| error > allowed);
            (harms, errors.into_iter().fold(0, u64::saturating_add), at)
        };
        let Some((harms, _, at)) = (0..lines.len()).map(without).min() else { break };
        if harms {
            break;
        }
        lines.remove(at);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::MOST_PIECES;

    /// Two sizes in each octave.
    fn sizes(octaves: u32) -> Vec<u64> {
        (0..octaves).flat_map(|octave| [4096 << octave, 6144 << octave]).collect()
    }

    fn lines(lines: &[(u64, u64)]) -> MessageCost {
        cost(lines.iter().map(|&(alpha_ns, ns_per_gib)| Line { alpha_ns, ns_per_gib }).collect())
    }

    fn table(cost: &MessageCost, octaves: u32) -> Points {
        sizes(octaves).into_iter().map(|bytes| (bytes, cost.ns(bytes))).collect()
    }

    fn worst_ppm(cost: &MessageCost, points: &Points) -> u64 {
        points.iter().map(|&point| error_ppm(cost.ns(point.0), point)).max().unwrap_or(0)
    }

    #[test]
    fn times_of_a_concave_cost_are_met_with_as_few_lines() {
        for known in [
            lines(&[(10_000, 100_000_000)]),
            lines(&[(20_000, 9_000_000), (60_000, 2_500_000)]),
            lines(&[(12_896, 80_000_000), (20_757, 2_534_063), (93_036, 1_032_745)]),
        ] {
            let points = table(&known, 18);
            let found = fit(&points);
            assert_eq!(found.pieces().len(), known.pieces().len(), "{found:?}");
            assert!(worst_ppm(&found, &points) < 100, "{found:?}, expected {known:?}");
            assert!(found.alpha_ns().abs_diff(known.alpha_ns()) < 10, "{found:?}, expected {known:?}");
        }
    }

    #[test]
    fn a_time_off_its_neighbours_bends_nothing() {
        let known = lines(&[(20_000, 9_000_000), (60_000, 2_500_000)]);
        for (at, times, divided) in [(10, 3, 1), (10, 1, 2), (0, 2, 1), (35, 2, 1)] {
            let mut points = table(&known, 18);
            points[at].1 = points[at].1 * times / divided;
            let off = points.remove(at);
            let mut all = points.clone();
            all.insert(at, off);
            let found = fit(&all);
            assert!(worst_ppm(&found, &points) <= NOISE_PPM, "{at}: {found:?}");
            assert!(error_ppm(found.ns(off.0), off) > 100_000, "{at}: {found:?}");
        }
    }

    #[test]
    fn what_differs_by_noise_alone_is_one_line() {
        let known = lines(&[(20_000, 9_000_000)]);
        let noisy = |(at, (bytes, ns)): (u64, (u64, u64))| (bytes, ns + ns * (at * 7 % 5) / 400);
        let points: Points = (0..).zip(table(&known, 18)).map(noisy).collect();
        assert_eq!(fit(&points).pieces().len(), 1, "{points:?}");
    }

    #[test]
    fn a_curve_is_concave_and_starts_near_the_shortest_time() {
        // All in the bytes; falling; equal; one size; none.
        let bytes_alone = sizes(18).into_iter().map(|bytes| (bytes, bytes / 4)).collect();
        let falling = sizes(4).into_iter().zip((1..=8).map(|at| 9_000 - at * 1000)).collect();
        let equal = sizes(4).into_iter().map(|bytes| (bytes, 5000)).collect();
        for points in [bytes_alone, falling, equal, vec![(4096, 1000)]] {
            let (found, line) = (fit(&points), fit_line(&points));
            let shortest = points.iter().map(|point| point.1).min().unwrap();
            assert!(found.alpha_ns() >= shortest * START_PERCENT / 100, "{found:?}");
            assert!(line.alpha_ns >= shortest * START_PERCENT / 100, "{line:?}");
            let sizes: Vec<u64> = points.iter().map(|point| point.0).collect();
            for three in sizes.windows(3) {
                let [low, middle, high] = [three[0], three[1], three[2]].map(|bytes| i128::from(found.ns(bytes)));
                let [x, y, z] = [three[0], three[1], three[2]].map(i128::from);
                assert!((middle - low + 1) * (z - y) >= (high - middle - 1) * (y - x), "{found:?}");
            }
        }
        assert_eq!(fit(&[]).ns(1 << 30), 0);
    }

    #[test]
    fn more_bends_than_a_cost_may_have_are_fit_with_as_many_as_it_may() {
        let bends: Vec<Line> =
            (0..12).map(|at| Line { alpha_ns: 10_000 << at, ns_per_gib: 4_000_000_000 >> at }).collect();
        for (count, worst) in [(8, 100), (12, 300_000)] {
            let least = |bytes| bends[..count].iter().map(|line| line.piece().ns(bytes)).min().unwrap();
            let points: Points =
                (0..52).map(|at| (256 + 128 * (at % 2)) << (at / 2)).map(|bytes| (bytes, least(bytes))).collect();
            let found = fit(&points);
            assert_eq!(found.pieces().len(), MOST_PIECES, "{found:?}");
            assert!(worst_ppm(&found, &points) < worst, "{count}: {found:?}");
        }
    }
}
