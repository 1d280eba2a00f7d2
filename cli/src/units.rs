//! Sizes for people. Machines get exact bytes.

pub use bucketeer_types::sizes::human;

/// A size that may not be known.
pub fn human_or_unknown(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "?".to_owned(), human)
}

/// `1 node`, `2 nodes`.
pub fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

/// A time for people: three places that count.
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}
