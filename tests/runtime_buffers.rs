//! Comm buffers in flight: nobody may fill, read or lose what a collective uses.

use bucketeer::ir::{DType, GlobalRank, ReduceOp};
use bucketeer::runtime::local::{Action, Hook, LocalOptions, LocalRank, Phase, Point, run};
use bucketeer::runtime::{Arena, Backend, Buffer, BufferError, CallOptions, CommError, Group, Holder, Operands, Work};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const MEMBERS: [GlobalRank; 2] = [GlobalRank(0), GlobalRank(1)];

fn sum(rank: &LocalRank, group: &Group, buffer: &Buffer) -> Result<Work, CommError> {
    let data = Operands::in_place(buffer.clone(), DType::I32);
    rank.all_reduce(group, data, ReduceOp::Sum.into(), &CallOptions::default())
}

fn fill(buffer: &Buffer, value: i32) -> Result<(), BufferError> {
    buffer.write()?.as_chunks_mut::<4>().0.iter_mut().for_each(|chunk| *chunk = value.to_le_bytes());
    Ok(())
}

fn all(buffer: &Buffer, value: i32) -> bool {
    buffer.read().unwrap().as_chunks::<4>().0.iter().all(|chunk| *chunk == value.to_le_bytes())
}

/// Delays transfers by up to `most`, by a fixed sequence.
fn delays(most: Duration) -> Hook {
    let state = AtomicU64::new(1);
    Arc::new(move |point: &Point<'_>| {
        if point.phase != Phase::During {
            return Action::Go;
        }
        let next = state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        Action::Stall(most.mul_f64((next >> 40) as f64 / f64::from(1 << 24)))
    })
}

/// Packs `steps` buckets into two buffers in turn; how often a pack ran while the collective before was in flight.
fn alternate(rank: &LocalRank, steps: i32) -> Result<usize, CommError> {
    let group = rank.new_group("G0", &MEMBERS)?;
    let arena = rank.arena(8 << 10).unwrap();
    let buffers = [0, 4 << 10].map(|offset| arena.buffer(offset, 4 << 10).unwrap());
    let mut in_flight: [Option<(i32, Work)>; 2] = [None, None];
    let mut overlapped = 0;
    let value = |step: i32, rank: i32| step * 10 + rank;
    for step in 0..steps {
        let (buffer, slot) = (&buffers[step as usize % 2], step as usize % 2);
        if let Some((step, work)) = in_flight[slot].take() {
            if !work.is_done() {
                // Packed again too early: refused, by name.
                let refused = fill(buffer, -1);
                let holder = Holder::Call { op: "all_reduce", group: "G0".into() };
                assert!(
                    matches!(refused, Err(BufferError::InUse { holder: found, .. }) if found == holder)
                        || work.is_done()
                );
            }
            work.wait(None)?;
            assert!(all(buffer, value(step, 0) + value(step, 1)), "step {step}");
        }
        fill(buffer, value(step, rank.rank().0 as i32)).unwrap();
        overlapped += usize::from(in_flight[1 - slot].as_ref().is_some_and(|(_, work)| !work.is_done()));
        in_flight[slot] = Some((step, sum(rank, &group, buffer)?));
    }
    for (slot, last) in in_flight.into_iter().enumerate() {
        let Some((step, work)) = last else { continue };
        work.wait(None)?;
        assert!(all(&buffers[slot], value(step, 0) + value(step, 1)), "step {step}");
    }
    Ok(overlapped)
}

fn alternate_on_two(steps: i32, most: Duration) -> usize {
    let options = LocalOptions { hook: Some(delays(most)), pin: false, ..LocalOptions::default() };
    let results = run(2, options, |rank| alternate(&rank, steps)).unwrap();
    results.into_iter().map(|result| result.unwrap().unwrap_or_else(|error| panic!("{error}"))).sum()
}

#[test]
fn a_pack_buffer_is_refilled_only_after_its_own_collective() {
    // Case LIFE-1. Packs overlap the collective before, so nothing else is waited for.
    let overlapped = alternate_on_two(40, Duration::from_millis(2));
    assert!(overlapped > 0);
}

#[test]
#[ignore = "thousands of steps; run with --release"]
fn pack_buffers_alternate_thousands_of_times_under_random_delays() {
    let overlapped = alternate_on_two(20_000, Duration::from_micros(100));
    println!("{overlapped} packs overlapped a collective");
    assert!(overlapped > 1000);
}

#[test]
fn storage_that_the_host_lets_go_of_lives_until_the_collective_ends() {
    // Case LIFE-2.
    for round in 0..20 {
        let options =
            LocalOptions { hook: Some(delays(Duration::from_millis(3))), pin: false, ..LocalOptions::default() };
        let results = run(2, options, |rank| {
            let group = rank.new_group("G0", &MEMBERS)?;
            let arena = rank.arena(16 << 10).unwrap();
            let result = rank.arena(4 << 10).unwrap().buffer(0, 4 << 10).unwrap();
            let sent = arena.buffer(4 << 10, 4 << 10).unwrap();
            fill(&sent, round + rank.rank().0 as i32).unwrap();
            let data = Operands::new(sent, result.clone(), DType::I32);
            let work = rank.all_reduce(&group, data, ReduceOp::Sum.into(), &CallOptions::default())?;
            // An allocator would like the storage for something else.
            let reused = arena.buffer(6 << 10, 8 << 10).unwrap();
            let early = reused.write().map(drop);
            assert!(early.is_err() || work.is_done());
            assert!(result.read().is_err() || work.is_done());
            // What was sent may be read, and other storage is free.
            let beside = arena.buffer(0, 4 << 10).unwrap();
            fill(&beside, -1).unwrap();
            drop((arena, reused, beside));
            work.wait(None)?;
            assert!(all(&result, 2 * round + 1));
            Ok::<_, CommError>(())
        });
        for result in results.unwrap() {
            result.unwrap().unwrap();
        }
    }
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
