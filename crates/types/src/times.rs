//! Times as text.

/// A time for people: three places that count.
#[must_use]
pub fn human(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_the_unit_that_it_is_at_least_one_of() {
        let shown = [0, 999, 1_000, 18_512, 1_000_000, 20_383_000, 1_500_000_000].map(human);
        assert_eq!(shown, ["0 ns", "999 ns", "1.0 us", "18.5 us", "1.00 ms", "20.38 ms", "1.500 s"]);
    }
}
