//! Ranks of NCCL that start and end leave nothing behind.

use crate::{alone, entries, resident_kib};
use bucketeer::ir::GlobalRank;
use bucketeer_comm::Backend;
use kit::fakegpu::{Session, session};
use kit::nccl_threads::{self, options, reduce};
use std::time::Instant;

/// Memory may settle in the first cycles: the fake keeps what was freed for a while.
const SETTLED: u32 = 200;

/// What a cycle may take more on average: noise of the allocator. The two flight records of a cycle are three times that.
const MOST_MORE_BYTES: u64 = 16 << 10;

/// Two ranks with two groups; they close, leave, or fail.
fn cycle(session: &Session, nth: u32) {
    nccl_threads::run(session, 2, &options(60_000), |rank, world, store| {
        let pair = rank.new_group("pair", &[GlobalRank(0), GlobalRank(1)]).unwrap();
        reduce(&rank, world, 100).unwrap();
        reduce(&rank, &pair, 100).unwrap();
        match (nth % 4, rank.rank().0) {
            (0 | 1, _) => rank.close().unwrap(),
            (2, 1) => store.lose(),
            (3, 0) => rank.abort(world),
            _ => {}
        }
    });
    // The fake's log is not what is counted.
    assert_eq!((session.violations(), session.live_comms()), (Vec::new(), 0));
}

fn cycles(count: u32) {
    let session = session();
    cycle(&session, 0);
    let (descriptors, threads) = (entries("/proc/self/fd"), entries("/proc/self/task"));
    let start = Instant::now();
    let mut settled = 0;
    for done in 1..=count {
        cycle(&session, done);
        if done == SETTLED.min(count) {
            settled = resident_kib();
        }
    }
    let (took, more) = (start.elapsed(), resident_kib().saturating_sub(settled));
    println!("{count} cycles in {took:?}; {more} KiB more after the last {}", count.saturating_sub(SETTLED));
    assert_eq!((entries("/proc/self/fd"), session.live()), (descriptors, [0; 4]));
    // A thread that has ended is gone a moment later.
    let waits = Instant::now();
    while entries("/proc/self/task") > threads && waits.elapsed() < nccl_threads::LIMIT {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(entries("/proc/self/task"), threads);
    assert!(more * 1024 <= u64::from(count) * MOST_MORE_BYTES, "{more} KiB more");
}

#[test]
fn ranks_that_start_and_end_leave_no_descriptors_threads_or_memory() {
    let test = "ranks_that_start_and_end_leave_no_descriptors_threads_or_memory";
    alone(module_path!(), test, || cycles(250));
}

#[test]
#[ignore = "a minute; in release"]
fn a_thousand_starts_and_ends_leave_no_descriptors_threads_or_memory() {
    let test = "a_thousand_starts_and_ends_leave_no_descriptors_threads_or_memory";
    let count = std::env::var("BUCKETEER_CYCLES").map_or(1000, |text| text.parse().unwrap());
    alone(module_path!(), test, || cycles(count));
}
