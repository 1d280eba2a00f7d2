//! Sizes and times for people. Machines get exact bytes and nanoseconds.

pub use bucketeer_types::sizes::human;
pub use bucketeer_types::times::human as time;

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
