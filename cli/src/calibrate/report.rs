//! What `calibrate` says: how close the curves are to what was measured.

use super::bench::{self, Measured};
use super::{BackendWord, Job};
use crate::table::{Align, Table};
use crate::units::{count, human, time};
use bucketeer::passes::schedule::Profile;

/// The median error from which on a curve says little.
const SCATTERED: f64 = 0.2;

/// How far a curve is from what was measured, in shares of the smaller of both: half and twice the time are equally far off.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Fit {
    worst: f64,
    worst_bytes: u64,
    median: f64,
}

impl Fit {
    fn of(points: &[(u64, u64)], ns: impl Fn(u64) -> u64) -> Self {
        let error = |&(bytes, measured): &(u64, u64)| {
            let found = ns(bytes);
            found.abs_diff(measured) as f64 / found.min(measured).max(1) as f64
        };
        let mut errors: Vec<(f64, u64)> = points.iter().map(|point| (error(point), point.0)).collect();
        // Of equal errors the one of the smallest size.
        errors.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (worst, worst_bytes) = errors.first().copied().unwrap_or((0.0, 0));
        Self { worst, worst_bytes, median: errors.get(errors.len() / 2).map_or(0.0, |error| error.0) }
    }
}

/// Bytes a nanosecond at a slope, as GB/s.
fn rate(num: u64, den: u64) -> String {
    if num == 0 { "-".to_owned() } else { format!("{:.2}", den as f64 / num as f64) }
}

/// What was measured, and how well it fits.
pub fn lines(job: &Job, measured: &Measured, profile: &Profile) -> Vec<String> {
    let ranks = match job.backend {
        BackendWord::Local => "threads",
        BackendWord::Nccl => "processes with a GPU each",
        BackendWord::Mpi => "processes of MPI",
    };
    let first = format!(
        "profile `{}`: {} as {ranks}, {} on a node; f32, {} to {}",
        profile.name,
        count(measured.ranks as usize, "rank"),
        measured.per_node,
        human(bench::FIRST_BYTES),
        human(measured.most_bytes)
    );
    let mut table = Table::new(&[
        ("among", Align::Left),
        ("kind", Align::Left),
        ("sizes", Align::Right),
        ("lines", Align::Right),
        ("alpha", Align::Right),
        ("GB/s", Align::Right),
        ("worst error", Align::Right),
        ("at", Align::Right),
        ("median error", Align::Right),
    ]);
    let mut row =
        |among: String, kind: &str, points: &[(u64, u64)], (lines, alpha, rate): (usize, u64, String), fit: Fit| {
            let percent = |share: f64| format!("{:.1} %", share * 100.0);
            let numbers = [points.len().to_string(), lines.to_string(), time(alpha), rate];
            let errors = [percent(fit.worst), human(fit.worst_bytes), percent(fit.median)];
            table.row([among, kind.to_owned()].into_iter().chain(numbers).chain(errors));
        };
    for one in &measured.tables {
        let known = profile.classes.iter().find(|known| known.class == one.class);
        let Some(cost) = known.and_then(|known| known.costs.get(one.kind.name())) else { continue };
        let by_slope = |a: &(u64, u64), b: &(u64, u64)| {
            (u128::from(a.0) * u128::from(b.1)).cmp(&(u128::from(b.0) * u128::from(a.1)))
        };
        let slopes = cost.pieces().iter().map(|piece| (piece.ns_per_byte_num, piece.ns_per_byte_den));
        let (num, den) = slopes.min_by(by_slope).unwrap_or((0, 1));
        let about = (cost.pieces().len(), cost.alpha_ns(), rate(num, den));
        row(one.class.to_string(), one.kind.name(), &one.points, about, Fit::of(&one.points, |bytes| cost.ns(bytes)));
    }
    let copy = profile.copy;
    let about = (1, copy.fixed_ns, rate(copy.ns_per_byte_num, copy.ns_per_byte_den));
    row("each rank".to_owned(), "copy", &measured.copies, about, Fit::of(&measured.copies, |bytes| copy.ns(bytes)));
    std::iter::once(first).chain(table.lines(usize::MAX)).collect()
}

/// Each name once: a kind is measured in several classes.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut known = Vec::new();
    for name in names {
        if !known.contains(&name) {
            known.push(name);
        }
    }
    known
}

/// What to know of the profile.
pub fn notes(job: &Job, measured: &Measured, profile: &Profile) -> Vec<String> {
    let mut notes = Vec::new();
    if measured.most_bytes < bench::sizes(job.most_bytes).last().copied().unwrap_or(0) {
        notes.push(format!(
            "note: messages end at {}, as the free memory holds no buffers for more",
            human(measured.most_bytes)
        ));
    }
    if !measured.nodes_known {
        notes.push(format!(
            "warning: the launcher does not say how many ranks a node has; all {} are taken to be on one (set LOCAL_WORLD_SIZE)",
            measured.ranks
        ));
    }
    let is_flat = |points: &[(u64, u64)]| {
        points.first().zip(points.last()).is_some_and(|(first, last)| last.1 < first.1.saturating_mul(2))
    };
    let flat = measured.tables.iter().filter(|table| is_flat(&table.points)).map(|table| table.kind.name());
    let flat = distinct(flat);
    if !flat.is_empty() {
        notes.push(format!(
            "warning: the GB/s of {} say little: {} take less than twice as long as {}; raise --max-bytes",
            flat.join(", "),
            human(measured.most_bytes),
            human(bench::FIRST_BYTES)
        ));
    }
    let scatters = |one: &bench::Table| {
        let cost =
            profile.classes.iter().find(|row| row.class == one.class).and_then(|row| row.costs.get(one.kind.name()));
        cost.is_some_and(|cost| Fit::of(&one.points, |bytes| cost.ns(bytes)).median > SCATTERED)
    };
    let scattered = measured.tables.iter().filter(|one| scatters(one)).map(|one| one.kind.name());
    let scattered = distinct(scattered);
    if !scattered.is_empty() {
        notes.push(format!(
            "warning: {}: at half of the sizes the curve is more than {:.0} % off. Where others use the machine, raise --repeat; \
             times that rise faster than bytes, as beyond caches, no curve of a profile can follow",
            scattered.join(", "),
            SCATTERED * 100.0
        ));
    }
    if job.rates.is_none() {
        notes.push(
            "note: how fast calls compute is not measured; `plan` needs --times for graphs that compute, or --rates here"
                .to_owned(),
        );
    }
    if job.out.is_none() {
        notes.push("note: nothing is written; -o FILE writes the profile".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use bucketeer::passes::schedule::MessageCost;

    fn table(ns: impl Fn(u64) -> u64) -> Vec<(u64, u64)> {
        bench::sizes(64 << 20).into_iter().map(|bytes| (bytes, ns(bytes))).collect()
    }

    fn fit(points: &[(u64, u64)]) -> Fit {
        let cost = MessageCost::fit(points);
        Fit::of(points, |bytes| cost.ns(bytes))
    }

    #[test]
    fn straight_lines_fit_without_error() {
        for points in [
            table(|bytes| 20_000 + bytes / 8),
            table(|bytes| (40_000 + bytes).min(100_000 + bytes / 4)),
            table(|bytes| (40_960 + bytes).min(81_920 + bytes / 2).min(606_208 + bytes / 8)),
        ] {
            let found = fit(&points);
            assert!(found.worst < 1e-4 && found.median < 1e-4, "{found:?}");
        }
    }

    #[test]
    fn the_worst_error_is_where_the_table_has_a_dip() {
        let mut points = table(|bytes| 20_000 + bytes / 8);
        let dip = points.iter().position(|point| point.0 == 512 << 10).unwrap();
        points[dip].1 /= 2;
        let found = fit(&points);
        assert!((found.worst - 1.0).abs() < 0.01 && found.worst_bytes == 512 << 10, "{found:?}");
        assert!(found.median < 0.001, "{found:?}");
    }

    #[test]
    fn rates_are_gigabytes_a_second() {
        assert_eq!((rate(1 << 30, 1 << 30), rate(1, 12), rate(0, 1)), ("1.00".into(), "12.00".into(), "-".into()));
    }
}
