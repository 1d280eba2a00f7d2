//! Comm buffers in flight: nobody may fill, read or lose what a collective uses.

use bucketeer::ir::GlobalRank;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_comm::{Arena, Backend, BufferError, CommError};
use kit::stress::{MEMBERS, fill, refill, reuse, sum};
use std::sync::Barrier;
use std::time::Duration;

#[test]
fn a_pack_buffer_is_refilled_only_after_its_own_collective() {
    // Case LIFE-1. Packs overlap the collective before, so nothing else is waited for.
    let overlapped = refill(1, 40, Duration::from_millis(2));
    assert!(overlapped > 0);
}

#[test]
fn storage_that_the_host_lets_go_of_lives_until_the_collective_ends() {
    // Case LIFE-2.
    reuse(1, 20, Duration::from_millis(3));
}

#[test]
fn a_failed_call_gives_its_buffers_back() {
    let options = LocalOptions { timeout: Duration::from_millis(20), pin: false, ..LocalOptions::default() };
    let done = Barrier::new(2);
    let results = run(2, options, |rank| {
        let group = rank.new_group("G0", &MEMBERS).unwrap();
        let buffer = rank.arena(64).unwrap().buffer(0, 64).unwrap();
        if rank.rank() == GlobalRank(1) {
            done.wait();
            return;
        }
        let work = sum(&rank, &group, &buffer).unwrap();
        assert!(buffer.read().is_err());
        assert!(matches!(sum(&rank, &group, &buffer), Err(CommError::Buffer { .. })));
        assert!(work.wait(None).is_err());
        fill(&buffer, 3).unwrap();
        done.wait();
    });
    assert!(results.unwrap().iter().all(Result::is_ok));
}

#[test]
fn an_arena_checks_its_size_and_ranges() {
    let refused = |bytes: u64| Arena::new(bytes).unwrap_err().to_string();
    let above = "cannot be allocated; no arena has more than 2^63 bytes";
    assert_eq!(refused(1 << 63), format!("an arena of {} bytes {above}", 1u64 << 63));
    assert!(refused(u64::MAX).ends_with(above));
    // Below 2^63, but more than there is.
    assert!(refused((1 << 63) - 4096).ends_with("there is not enough memory"));
    let arena = Arena::new(100).unwrap();
    assert_eq!(arena.buffer(100, 0).unwrap().bytes(), 0);
    assert_eq!(arena.buffer(0, 100).unwrap().part(60, 40).unwrap().offset(), 60);
    for (offset, bytes) in [(0, 101), (101, 0), (1, u64::MAX), (u64::MAX, 1)] {
        let error = arena.buffer(offset, bytes).unwrap_err();
        assert_eq!(error, BufferError::Outside { offset, bytes, size: 100 });
    }
    assert!(arena.buffer(40, 20).unwrap().part(10, 11).is_err());
    let empty = Arena::new(0).unwrap().buffer(0, 0).unwrap();
    assert!(empty.write().unwrap().is_empty());
}
