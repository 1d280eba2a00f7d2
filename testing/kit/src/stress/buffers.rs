//! Comm buffers whose collectives take longer than expected.

use bucketeer::ir::{DType, GlobalRank, ReduceOp};
use bucketeer_comm::local::{Action, Hook, LocalOptions, LocalRank, Phase, Point, run};
use bucketeer_comm::{Backend, Buffer, BufferError, CallOptions, CommError, Group, Holder, Operands, Work};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The world of the runs here.
pub const MEMBERS: [GlobalRank; 2] = [GlobalRank(0), GlobalRank(1)];

/// Launches the sum of a buffer, in place.
pub fn sum(rank: &LocalRank, group: &Group, buffer: &Buffer) -> Result<Work, CommError> {
    let data = Operands::in_place(buffer.clone(), DType::I32);
    rank.all_reduce(group, data, ReduceOp::Sum.into(), &CallOptions::default())
}

/// Writes one number all over a buffer.
pub fn fill(buffer: &Buffer, value: i32) -> Result<(), BufferError> {
    buffer.write()?.as_chunks_mut::<4>().0.iter_mut().for_each(|chunk| *chunk = value.to_le_bytes());
    Ok(())
}

fn all(buffer: &Buffer, value: i32) -> bool {
    buffer.read().unwrap().as_chunks::<4>().0.iter().all(|chunk| *chunk == value.to_le_bytes())
}

/// Delays transfers by up to `most`, by a sequence that follows from the seed.
fn delays(seed: u64, most: Duration) -> Hook {
    let state = AtomicU64::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(1));
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

/// Case LIFE-1 on 2 ranks, with delays of up to `most`: a pack buffer is refilled after its own collective and no other.
/// How often a pack ran while a collective was in flight, on both ranks together.
pub fn refill(seed: u64, steps: i32, most: Duration) -> usize {
    let options = LocalOptions { hook: Some(delays(seed, most)), pin: false, ..LocalOptions::default() };
    let results = run(2, options, |rank| alternate(&rank, steps)).unwrap();
    results.into_iter().map(|result| result.unwrap().unwrap_or_else(|error| panic!("{error}"))).sum()
}

/// Case LIFE-2 on 2 ranks: `rounds` times, the host lets go of storage that a collective uses, and asks for it again.
pub fn reuse(seed: u64, rounds: i32, most: Duration) {
    let options = LocalOptions { hook: Some(delays(seed, most)), pin: false, ..LocalOptions::default() };
    let results = run(2, options, |rank| {
        let group = rank.new_group("G0", &MEMBERS)?;
        (0..rounds).try_for_each(|round| reuse_once(&rank, &group, round))
    });
    for result in results.unwrap() {
        result.unwrap().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

fn reuse_once(rank: &LocalRank, group: &Group, round: i32) -> Result<(), CommError> {
    let arena = rank.arena(16 << 10).unwrap();
    let result = rank.arena(4 << 10).unwrap().buffer(0, 4 << 10).unwrap();
    let sent = arena.buffer(4 << 10, 4 << 10).unwrap();
    fill(&sent, round + rank.rank().0 as i32).unwrap();
    let data = Operands::new(sent, result.clone(), DType::I32);
    let work = rank.all_reduce(group, data, ReduceOp::Sum.into(), &CallOptions::default())?;
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
    assert!(all(&result, 2 * round + 1), "round {round}");
    Ok(())
}
