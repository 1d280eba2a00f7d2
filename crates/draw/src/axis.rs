//! An axis of time: round places, with their unit.

/// Most parts of an axis.
const MOST_PARTS: u64 = 8;

/// Round times from the start up to an end, in nanoseconds, each in words. All have one unit.
pub(super) fn ticks(end_ns: u64) -> Vec<(u64, String)> {
    let (unit_ns, unit) = unit(end_ns);
    let step_ns = step(end_ns);
    (0..=end_ns / step_ns).map(|nth| (nth * step_ns, format!("{} {unit}", exactly(nth * step_ns, unit_ns)))).collect()
}

/// The largest unit that fits in a time, in nanoseconds.
fn unit(ns: u64) -> (u64, &'static str) {
    match ns {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    }
}

/// The least of 1, 2, 5, 10, 20, 50.. that parts a time into few.
fn step(ns: u64) -> u64 {
    let mut power = 1u64;
    loop {
        for times in [1, 2, 5] {
            let step = power.saturating_mul(times);
            if ns / step <= MOST_PARTS {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// A time in a unit, without zeros at its end.
fn exactly(ns: u64, unit_ns: u64) -> String {
    let whole = ns / unit_ns;
    let digits = unit_ns.ilog10() as usize;
    let rest = format!("{:0digits$}", ns % unit_ns);
    match rest.trim_end_matches('0') {
        "" => whole.to_string(),
        rest => format!("{whole}.{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(end_ns: u64) -> Vec<String> {
        ticks(end_ns).into_iter().map(|(_, words)| words).collect()
    }

    #[test]
    fn places_are_round_and_have_one_unit() {
        assert_eq!(words(18_512), ["0 us", "5 us", "10 us", "15 us"]);
        assert_eq!(words(1_500), ["0 us", "0.2 us", "0.4 us", "0.6 us", "0.8 us", "1 us", "1.2 us", "1.4 us"]);
        assert_eq!(words(2_000_000_000), ["0 s", "0.5 s", "1 s", "1.5 s", "2 s"]);
    }

    #[test]
    fn times_of_any_size_have_few_places() {
        for end_ns in [0, 1, 8, 9, 999, 1_000, u64::MAX / 2, u64::MAX] {
            let found = ticks(end_ns);
            assert!((1..=9).contains(&found.len()), "{found:?}");
            assert!(found.iter().all(|(ns, _)| *ns <= end_ns), "{found:?}");
        }
    }
}
