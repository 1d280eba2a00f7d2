//! One suite of collective cases on every backend, over 1, 2, 3, 4 and 8 ranks, against a plain reference.

use bucketeer::ir::{DType, GlobalRank, GroupRank, ReduceOp};
use bucketeer_comm::fake::FakeRank;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_comm::{Backend, CallOptions, CommError, Operands, Reduction};
use kit::collective::{Case, Kind, Random, cases, ranks, run_cases};
use std::time::Duration;

const SIZES: [usize; 5] = [1, 2, 3, 4, 8];

fn options() -> LocalOptions {
    LocalOptions { timeout: Duration::from_secs(60), pin: false, ..LocalOptions::default() }
}

fn on_local_ranks(size: usize, cases: &[Case], coalesced: bool) {
    let input = |index: usize, case: &Case, place| case.input(index as u64, place, size, false);
    let results = run(size as u32, options(), |rank| {
        let group = rank.new_group("world", &ranks(size))?;
        let place = group.rank().0 as usize;
        run_cases(&rank, &group, cases, |index, case| input(index, case, place), coalesced)
    })
    .unwrap();
    for (place, result) in results.into_iter().enumerate() {
        let outputs = result.expect("no rank panics").unwrap_or_else(|error| panic!("{error}"));
        for (index, (case, output)) in cases.iter().zip(outputs).enumerate() {
            let inputs: Vec<Vec<u8>> = (0..size).map(|place| input(index, case, place)).collect();
            assert_eq!(output, case.expected(&inputs, place), "{case:?} on rank {place} of {size}");
        }
    }
}

#[test]
fn local_ranks_compute_what_the_reference_does_for_all_kinds_ops_and_dtypes() {
    for size in SIZES {
        for dtype in DType::ALL {
            on_local_ranks(size, &cases(*dtype, size), false);
        }
    }
}

#[test]
fn a_block_of_calls_gives_what_the_calls_give() {
    for size in SIZES {
        // Mixed dtypes and kinds, uneven and empty members, in one launch.
        let mixed: Vec<Case> = [DType::Bf16, DType::I64, DType::Bool, DType::F8E5m2]
            .into_iter()
            .flat_map(|dtype| cases(dtype, size).into_iter().step_by(3))
            .collect();
        on_local_ranks(size, &mixed, true);
    }
}

#[test]
fn large_calls_are_cut_into_tiles_and_give_the_same() {
    // Longer than a tile of 256 KiB, and not a multiple of anything.
    for size in [2, 3] {
        let sum = Reduction::Op(ReduceOp::Sum);
        let case = |kind, dtype, count, in_place| Case { kind, dtype, count, in_place };
        on_local_ranks(
            size,
            &[
                case(Kind::AllReduce(sum), DType::F32, 140_003, true),
                case(Kind::AllReduce(Reduction::Op(ReduceOp::Avg)), DType::Bf16, 150_001, false),
                case(Kind::AllGather, DType::I16, 140_001, true),
                case(Kind::ReduceScatter(sum), DType::F64, 40_001, true),
                case(Kind::Reduce { op: sum, root: 1 }, DType::U8, 290_001, false),
                case(Kind::UnevenAllToAll, DType::C128, 20_001, false),
                case(Kind::Broadcast { root: 0 }, DType::F8E4m3fn, 600_003, false),
            ],
            false,
        );
    }
}

#[test]
fn the_fake_gives_what_ranks_with_equal_data_would() {
    // No arithmetic: so only reductions that leave equal data alone, and equal parts.
    let kept = |reduction| {
        let ops = [ReduceOp::Min, ReduceOp::Max, ReduceOp::BitAnd, ReduceOp::BitOr];
        ops.map(Reduction::Op).contains(&reduction)
    };
    for size in SIZES {
        for dtype in DType::ALL {
            let mut cases = cases(*dtype, size);
            cases.retain(|case| match case.kind {
                Kind::AllReduce(op) | Kind::ReduceScatter(op) | Kind::Reduce { op, .. } => kept(op),
                Kind::UnevenAllToAll => false,
                _ => true,
            });
            for place in 0..size {
                let rank = FakeRank::new(GlobalRank(place as u32), size as u32).unwrap();
                let group = rank.new_group("world", &ranks(size)).unwrap();
                let input = |index: usize, case: &Case| case.input(index as u64, 0, size, true);
                for coalesced in [false, true] {
                    let outputs = run_cases(&rank, &group, &cases, input, coalesced).unwrap();
                    for (index, (case, output)) in cases.iter().zip(outputs).enumerate() {
                        let inputs = vec![input(index, case); size];
                        assert_eq!(output, case.expected(&inputs, place), "{case:?} on rank {place} of {size}");
                    }
                }
            }
        }
    }
}

#[test]
fn overlapping_groups_run_at_once_in_any_order() {
    for size in [3usize, 4, 8] {
        // All ranks; each rank with its neighbour; all in reverse; the even ones.
        let mut groups = vec![("all".to_owned(), ranks(size))];
        for first in 0..size {
            let pair = [first, (first + 1) % size].map(|rank| GlobalRank(rank as u32));
            groups.push((format!("pair{first}"), pair.to_vec()));
        }
        groups.push(("reverse".to_owned(), ranks(size).into_iter().rev().collect()));
        groups.push(("even".to_owned(), ranks(size).into_iter().step_by(2).collect()));
        let case =
            Case { kind: Kind::AllReduce(ReduceOp::Sum.into()), dtype: DType::Bf16, count: 1000, in_place: true };
        let results = run(size as u32, options(), |rank| {
            let mine = groups.iter().enumerate().filter(|(_, (_, members))| members.contains(&rank.rank()));
            let mut mine: Vec<_> =
                mine.map(|(index, (name, members))| (index, rank.new_group(name, members).unwrap())).collect();
            // Each rank goes through its groups in an order of its own, twice, and waits in yet another.
            let mut random = Random::new(u64::from(rank.rank().0));
            let mut launched = Vec::new();
            for round in 0..2u64 {
                mine.sort_by_cached_key(|_| random.below(1000));
                for (index, group) in &mine {
                    let arena = rank.arena(4096).unwrap();
                    let input = case.input(*index as u64 + 100 * round, group.rank().0 as usize, group.size(), false);
                    let (buffer, _) = case.buffers(&arena, 0, &input, group.rank().0 as usize, group.size());
                    let data = Operands::in_place(buffer.clone(), DType::Bf16);
                    let work = rank.all_reduce(group, data, ReduceOp::Sum.into(), &CallOptions::default())?;
                    assert_eq!(work.sequence_number(), Some(round));
                    launched.push((*index, round, group.clone(), work, buffer));
                }
            }
            launched.sort_by_cached_key(|_| random.below(1000));
            for (index, round, group, work, buffer) in launched {
                work.wait(None)?;
                let input = |place| case.input(index as u64 + 100 * round, place, group.size(), false);
                let inputs: Vec<Vec<u8>> = (0..group.size()).map(input).collect();
                assert_eq!(*buffer.read().unwrap(), case.expected(&inputs, group.rank().0 as usize)[..]);
            }
            // So that nobody leaves while others are in a group with it.
            rank.barrier(&mine.iter().find(|(index, _)| *index == 0).unwrap().1, &CallOptions::blocking())?;
            Ok::<_, CommError>(())
        })
        .unwrap();
        for result in results {
            result.expect("no rank panics").unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

#[test]
fn sends_meet_receives_in_order_and_blocks_exchange_without_deadlock() {
    let results = run(3, options(), |rank| {
        let group = rank.new_group("ring", &ranks(3))?;
        let (own, size) = (group.rank().0, 3);
        let arena = rank.arena(1024).unwrap();
        let to = GroupRank((own + 1) % size);
        let from = GroupRank((own + size - 1) % size);
        let buffer = |at: u64| arena.buffer(at * 8, 8).unwrap();
        for at in 0..4 {
            buffer(at).write().unwrap().fill((own * 10 + at as u32) as u8);
        }
        let asynchronous = CallOptions::default();
        // Two in a block each, then two on their own.
        rank.start_coalescing(&group)?;
        for at in 0..2 {
            let work = rank.send(&group, buffer(at), DType::U8, to, &asynchronous)?;
            assert!(work.sequence_number().is_none() && !work.is_done());
            assert!(matches!(work.wait(None), Err(CommError::Invalid { .. })));
            rank.recv(&group, buffer(10 + at), DType::U8, from, &asynchronous)?;
        }
        rank.end_coalescing(&group, &CallOptions::blocking())?;
        let mut works = Vec::new();
        for at in 2..4 {
            works.push(rank.send(&group, buffer(at), DType::U8, to, &asynchronous)?);
            works.push(rank.recv(&group, buffer(10 + at), DType::U8, from, &asynchronous)?);
        }
        assert_eq!(works[3].sequence_number(), Some(3));
        for work in works {
            work.wait(None)?;
        }
        let received: Vec<u8> = (0..4).map(|at| buffer(10 + at).read().unwrap()[7]).collect();
        rank.barrier(&group, &CallOptions::blocking())?;
        Ok::<_, CommError>((from.0, received))
    })
    .unwrap();
    for result in results {
        let (from, received) = result.unwrap().unwrap();
        assert_eq!(received, (0..4).map(|at| (from * 10 + at) as u8).collect::<Vec<_>>());
    }
}

#[test]
fn sixty_four_ranks_work_on_two_processors() {
    let case = Case { kind: Kind::AllReduce(ReduceOp::Sum.into()), dtype: DType::F32, count: 300, in_place: true };
    on_local_ranks(64, &[case; 3], false);
    let case = Case { kind: Kind::AllToAll, dtype: DType::U8, count: 77, in_place: false };
    on_local_ranks(64, &[case; 2], false);
}

#[test]
fn groups_of_equal_names_start_side_by_side() {
    // Case PG-2: both halves have a group `mine`; roots count within the group.
    for _ in 0..100 {
        let results = run(4, options(), |rank| {
            let half = rank.rank().0 / 2 * 2;
            let group = rank.new_group("mine", &[GlobalRank(half), GlobalRank(half + 1)])?;
            let buffer = rank.arena(4).unwrap().buffer(0, 4).unwrap();
            buffer.write().unwrap().fill(rank.rank().0 as u8);
            let data = Operands::in_place(buffer.clone(), DType::U8);
            rank.broadcast(&group, data, GroupRank(1), &CallOptions::blocking())?;
            let byte = buffer.read().unwrap()[3];
            rank.barrier(&group, &CallOptions::blocking())?;
            Ok::<_, CommError>(byte)
        })
        .unwrap();
        let bytes: Vec<u8> = results.into_iter().map(|result| result.unwrap().unwrap()).collect();
        assert_eq!(bytes, [1, 1, 3, 3]);
    }
}
