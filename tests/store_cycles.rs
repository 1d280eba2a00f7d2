//! Stores that are opened and closed again leave nothing behind. The only test of its process: it counts what that has.
#![cfg(target_os = "linux")]

mod stores;

use bucketeer_comm::store::{ServerOptions, Store};
use std::fs;
use std::time::Instant;
use stores::{join_all, open};

const CYCLES: u32 = 1000;
const WORLD_SIZE: u32 = 2;

/// Memory may settle in the first cycles.
const SETTLED: u32 = 200;

/// What 800 cycles may take more: noise of the allocator, and not 4 KiB for each.
const MOST_MORE_KIB: u64 = 3200;

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).unwrap().count()
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn cycle() {
    let server = open(ServerOptions::new(WORLD_SIZE));
    let ranks = join_all(&server, WORLD_SIZE);
    ranks[0].set("k", &[7; 4096]).unwrap();
    assert_eq!(ranks[1].get(&["k".to_owned()]).unwrap()[0].as_ref().unwrap().len(), 4096);
    // In turns.
    match server.address().port() % 2 {
        0 => drop((ranks, server)),
        _ => drop((server, ranks)),
    }
}

#[test]
fn a_thousand_stores_leave_no_descriptors_threads_or_memory() {
    cycle();
    let (descriptors, threads) = (entries("/proc/self/fd"), entries("/proc/self/task"));
    let start = Instant::now();
    let mut settled = 0;
    for done in 1..=CYCLES {
        cycle();
        if done == SETTLED {
            settled = resident_kib();
        }
    }
    let more = resident_kib().saturating_sub(settled);
    println!("{CYCLES} cycles in {:?}; {more} KiB more after the last {}", start.elapsed(), CYCLES - SETTLED);
    assert_eq!(entries("/proc/self/fd"), descriptors);
    assert_eq!(entries("/proc/self/task"), threads);
    assert!(more <= MOST_MORE_KIB, "{more} KiB more");
}
