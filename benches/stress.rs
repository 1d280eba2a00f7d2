//! Thousands of collectives under random delays, every value of every one checked. Not about speed: it stops at the first
//! wrong value, with the seed that gave it.
//!
//! `cargo bench --bench stress` runs with 20 seeds; `cargo bench --bench stress -- 200 7` with 200 from 7 on.

use kit::stress;
use std::time::{Duration, Instant};

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (seeds, first) = (numbers.first().copied().unwrap_or(20), numbers.get(1).copied().unwrap_or(0));
    let seeds = first..first.saturating_add(seeds);
    let most = Duration::from_micros(100);

    let start = Instant::now();
    let overlapped: usize = seeds.clone().map(|seed| stress::refill(seed, 1000, most)).sum();
    let refills = 1000 * (seeds.end - seeds.start);
    assert!(seeds.is_empty() || overlapped > 0, "no pack ever overlapped a collective: nothing was tested");
    println!(
        "LIFE-1: {refills} refills of a pack buffer, {overlapped} packs beside a collective, {:.1?}",
        start.elapsed()
    );

    let start = Instant::now();
    seeds.clone().for_each(|seed| stress::reuse(seed, 500, most));
    println!("LIFE-2: {} buffers let go of in flight, {:.1?}", 500 * (seeds.end - seeds.start), start.elapsed());

    let start = Instant::now();
    let calls: u64 = seeds
        .flat_map(|seed| (0..15).map(move |part| seed << 8 | part))
        .map(|seed| stress::cross_group_order(seed, 12))
        .sum();
    println!("cross-group order: {calls} calls of overlapping groups, {:.1?}", start.elapsed());
}
