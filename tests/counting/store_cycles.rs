//! Stores that are opened and closed again leave nothing behind.

use crate::{alone, entries, resident_kib};
use bucketeer_comm::store::{ServerOptions, Store};
use kit::stores::{join_all, open};
use std::time::Instant;

const CYCLES: u32 = 1000;
const WORLD_SIZE: u32 = 2;

/// Memory may settle in the first cycles.
const SETTLED: u32 = 200;

/// What 800 cycles may take more: noise of the allocator, and not 4 KiB for each.
const MOST_MORE_KIB: u64 = 3200;

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
    alone(module_path!(), "a_thousand_stores_leave_no_descriptors_threads_or_memory", cycles);
}

fn cycles() {
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
