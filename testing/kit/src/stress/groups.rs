//! Overlapping groups, each rank in an order of its own.

use crate::collective::{Case, Kind, Random, ranks};
use bucketeer::ir::{DType, GlobalRank, ReduceOp};
use bucketeer_comm::local::{Action, LocalOptions, LocalRank, Phase, Point, run};
use bucketeer_comm::{Backend, Buffer, CallOptions, CommError, Group};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Random groups: the first holds all ranks, the others some, in any order.
fn groups(random: &mut Random, size: usize) -> Vec<Vec<GlobalRank>> {
    let mut groups = vec![ranks(size)];
    for _ in 0..random.below(5) {
        let mut some = ranks(size);
        some.sort_by_cached_key(|_| random.below(1 << 30));
        some.truncate(1 + random.below(size as u64) as usize);
        groups.push(some);
    }
    groups
}

/// The `index`-th call on a group: the same on all of its ranks.
fn case(random: &mut Random, size: usize) -> Case {
    let op = ReduceOp::Sum.into();
    let root = random.below(size as u64) as usize;
    let kinds = [
        Kind::AllReduce(op),
        Kind::AllGather,
        Kind::ReduceScatter(op),
        Kind::Broadcast { root },
        Kind::Reduce { op, root },
        Kind::AllToAll,
        Kind::UnevenAllToAll,
    ];
    let kind = kinds[random.below(kinds.len() as u64) as usize];
    let dtype = [DType::F32, DType::Bf16, DType::I8][random.below(3) as usize];
    // Now and then longer than what is moved at once, or than a tile.
    let count = [0, 1, 17, 300, 300, 300, 300, 300, 300, 300, 300, 70_000][random.below(12) as usize];
    Case { kind, dtype, count, in_place: Case::can_be_in_place(kind) && random.below(2) == 0 }
}

fn body(rank: &LocalRank, seed: u64, members: &[Vec<GlobalRank>], calls: u64) -> Result<(), CommError> {
    let mut own = Random::new(seed ^ u64::from(rank.rank().0) << 40);
    let mut queues: Vec<(Group, Vec<(u64, Case)>)> = Vec::new();
    for (index, list) in members.iter().enumerate() {
        if list.contains(&rank.rank()) {
            let mut random = Random::new(seed ^ (index as u64) << 20);
            let group = rank.new_group(&format!("G{index}"), list)?;
            // Last first, as they are popped.
            let cases = (0..calls).map(|call| (seed ^ call << 8 ^ index as u64, case(&mut random, list.len())));
            let mut cases: Vec<_> = cases.collect();
            cases.reverse();
            queues.push((group, cases));
        }
    }
    let mut flying = Vec::new();
    while queues.iter().any(|(_, cases)| !cases.is_empty()) {
        let pick = own.below(queues.len() as u64) as usize;
        let (group, cases) = &mut queues[pick];
        let Some((seed, case)) = cases.pop() else { continue };
        let (place, size) = (group.rank().0 as usize, group.size());
        let arena = rank.arena(case.memory(size)).expect("a small arena");
        let (input, output) = case.buffers(&arena, 0, &case.input(seed, place, size, false), place, size);
        let work = rank.launch(group, case.call(input, output.clone(), place, size), &CallOptions::default())?;
        flying.push((seed, case, place, size, work, output));
        // Waiting in any order for what is in flight cannot block for good, as all ranks launch everything first; with
        // at most a few in flight it could. So: wait only for what is done, until all are launched.
        if own.below(3) == 0 {
            flying.retain(|(seed, case, place, size, work, output)| {
                work.is_done().then(|| check(*seed, case, *place, *size, output)).is_none()
            });
        }
    }
    flying.sort_by_cached_key(|_| own.below(1 << 30));
    for (seed, case, place, size, work, output) in flying {
        work.wait(None)?;
        check(seed, &case, place, size, &output);
    }
    rank.barrier(&queues[0].0, &CallOptions::blocking())?;
    Ok(())
}

fn check(seed: u64, case: &Case, place: usize, size: usize, output: &Buffer) {
    let inputs: Vec<Vec<u8>> = (0..size).map(|place| case.input(seed, place, size, false)).collect();
    let found = output.read().expect("the call is done");
    assert!(*found == case.expected(&inputs, place)[..], "{case:?} on rank {place} of {size}, seed {seed}");
}

/// A world of random ranks and groups under random delays: calls of each group are launched in an order of each rank's
/// own. Every result is exact. How many calls there were on all groups.
pub fn cross_group_order(seed: u64, calls: u64) -> u64 {
    let mut random = Random::new(seed);
    let size = [2, 3, 4, 8][random.below(4) as usize];
    let members = groups(&mut random, size);
    let launched = calls * members.len() as u64;
    let delays = Mutex::new(Random::new(seed ^ 0xdead));
    let hook = move |point: &Point<'_>| {
        let mut delays = delays.lock().expect("no panic under the lock");
        if point.phase == Phase::After || delays.below(6) != 0 {
            return Action::Go;
        }
        Action::Stall(Duration::from_micros(delays.below(200)))
    };
    let hook = if random.below(3) == 0 { None } else { Some(Arc::new(hook) as _) };
    let options = LocalOptions { timeout: Duration::from_secs(120), hook, pin: false, ..LocalOptions::default() };
    let results = run(size as u32, options, |rank| body(&rank, seed, &members, calls)).unwrap();
    for result in results {
        result
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    launched
}
