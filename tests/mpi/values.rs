//! What calls and programs make.

use bucketeer::ir::text::parse;
use bucketeer::ir::{DType, GlobalRank, GroupRank, ReduceOp};
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::Program;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_comm::mpi::MpiRank;
use bucketeer_comm::{Backend, Call, CallOptions, CommError, Group, Operands, Reduction};
use bucketeer_exec::{Executor, Reference, Run, seeded_inputs};
use kit::collective::{Case, Kind, Random, cases, ranks, run_cases};

fn check(rank: &MpiRank, group: &Group, cases: &[Case], coalesced: bool) {
    let (place, size) = (group.rank().0 as usize, group.size());
    let input = |index: usize, case: &Case, place| case.input(index as u64, place, size, false);
    let outputs = run_cases(rank, group, cases, |index, case| input(index, case, place), coalesced);
    for (index, (case, output)) in cases.iter().zip(outputs.unwrap_or_else(|error| panic!("{error}"))).enumerate() {
        let inputs: Vec<Vec<u8>> = (0..size).map(|place| input(index, case, place)).collect();
        assert!(output == case.expected(&inputs, place), "{case:?} on rank {place} of {size}");
    }
}

/// All cases of the suite, on as many ranks as there are and on smaller groups of more than half of them.
pub fn all(rank: &MpiRank) {
    let most = rank.world_size() as usize;
    for size in most / 2 + 1..=most {
        if rank.rank().0 as usize >= size {
            continue;
        }
        let group = rank.new_group(&format!("first{size}"), &ranks(size)).unwrap();
        for dtype in DType::ALL {
            check(rank, &group, &cases(*dtype, size), false);
        }
        // Mixed dtypes and kinds, uneven and empty members, in one launch.
        let mixed: Vec<Case> = [DType::Bf16, DType::I64, DType::Bool, DType::F8E5m2]
            .into_iter()
            .flat_map(|dtype| cases(dtype, size).into_iter().step_by(3))
            .collect();
        check(rank, &group, &mixed, true);
        let sum = Reduction::Op(ReduceOp::Sum);
        let case = |kind, dtype, count, in_place| Case { kind, dtype, count, in_place };
        let large = [
            case(Kind::AllReduce(sum), DType::F32, 140_003, true),
            case(Kind::AllReduce(Reduction::Op(ReduceOp::Avg)), DType::Bf16, 150_001, false),
            case(Kind::AllGather, DType::I16, 140_001, true),
            case(Kind::ReduceScatter(sum), DType::F64, 40_001, true),
            case(Kind::Reduce { op: sum, root: size - 1 }, DType::U8, 290_001, false),
            case(Kind::UnevenAllToAll, DType::C128, 20_001, false),
            case(Kind::Broadcast { root: 0 }, DType::F8E4m3fn, 600_003, false),
        ];
        check(rank, &group, &large, false);
    }
}

/// A broadcast and a sum of more than 2^31 bytes.
pub fn large(rank: &MpiRank) {
    let bytes = (1u64 << 31) + 12_345;
    let world = rank.new_group("world", &ranks(rank.world_size() as usize)).unwrap();
    let buffer = rank.arena(bytes).unwrap().buffer(0, bytes).unwrap();
    let marks = [0, 1 << 30, (1 << 30) - 1, (1 << 31) - 1, 1 << 31, bytes as usize - 1];
    if rank.rank().0 == 0 {
        let mut bytes = buffer.write().unwrap();
        marks.into_iter().zip(1..).for_each(|(at, mark)| bytes[at] = mark);
    }
    let data = Operands::in_place(buffer.clone(), DType::U8);
    rank.broadcast(&world, data.clone(), GroupRank(0), &CallOptions::blocking()).unwrap();
    rank.all_reduce(&world, data, ReduceOp::Sum.into(), &CallOptions::blocking()).unwrap();
    let bytes = buffer.read().unwrap();
    let found = marks.map(|at| u32::from(bytes[at]));
    assert_eq!(found, [1, 2, 3, 4, 5, 6].map(|mark| mark * rank.world_size()));
    assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), marks.len());
}

/// Overlapping groups in orders of their own, groups of equal names, sends and receives.
pub fn groups(rank: &MpiRank) {
    let size = rank.world_size() as usize;
    let world = rank.new_group("all", &ranks(size)).unwrap();
    overlapping(rank, &world).unwrap_or_else(|error| panic!("{error}"));
    ring(rank, &world).unwrap_or_else(|error| panic!("{error}"));
    // Both halves have a group `mine`; roots count within the group.
    let half = rank.rank().0 / 2 * 2;
    if (half as usize) + 1 < size {
        let mine = rank.new_group("mine", &[GlobalRank(half + 1), GlobalRank(half)]).unwrap();
        let buffer = rank.arena(4).unwrap().buffer(0, 4).unwrap();
        buffer.write().unwrap().fill(rank.rank().0 as u8);
        let data = Operands::in_place(buffer.clone(), DType::U8);
        rank.broadcast(&mine, data, GroupRank(0), &CallOptions::blocking()).unwrap();
        assert_eq!(*buffer.read().unwrap(), [half as u8 + 1; 4]);
    }
    let error = rank.new_group("all", &ranks(size)).unwrap_err();
    assert!(error.to_string().contains("has joined before"), "{error}");
}

fn overlapping(rank: &MpiRank, world: &Group) -> Result<(), CommError> {
    let size = world.size();
    let mut lists = vec![("reverse".to_owned(), ranks(size).into_iter().rev().collect::<Vec<_>>())];
    for first in 0..size {
        let pair = [first, (first + 1) % size].map(|rank| GlobalRank(rank as u32));
        lists.push((format!("pair{first}"), pair.to_vec()));
    }
    lists.push(("even".to_owned(), ranks(size).into_iter().step_by(2).collect()));
    let case = Case { kind: Kind::AllReduce(ReduceOp::Sum.into()), dtype: DType::Bf16, count: 1000, in_place: true };
    let mine = lists.iter().enumerate().filter(|(_, (_, members))| members.contains(&rank.rank()));
    let mut mine: Vec<_> = mine.map(|(at, (name, members))| (at, rank.new_group(name, members).unwrap())).collect();
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
        let inputs = (0..group.size()).map(|place| case.input(index as u64 + 100 * round, place, group.size(), false));
        let inputs: Vec<Vec<u8>> = inputs.collect();
        assert_eq!(*buffer.read().unwrap(), case.expected(&inputs, group.rank().0 as usize)[..]);
    }
    Ok(())
}

fn ring(rank: &MpiRank, world: &Group) -> Result<(), CommError> {
    let (own, size) = (world.rank().0, world.size() as u32);
    // More than MPI sends before the receiver is ready, too.
    let bytes = 300_000;
    let arena = rank.arena(20 * bytes).unwrap();
    let (to, from) = (GroupRank((own + 1) % size), GroupRank((own + size - 1) % size));
    let buffer = |at: u64| arena.buffer(at * bytes, if at.is_multiple_of(2) { 8 } else { bytes }).unwrap();
    for at in 0..4 {
        buffer(at).write().unwrap().fill((own * 10 + at as u32) as u8);
    }
    let asynchronous = CallOptions::default();
    // Two in a block each, then two on their own.
    rank.start_coalescing(world)?;
    for at in 0..2 {
        let work = rank.send(world, buffer(at), DType::U8, to, &asynchronous)?;
        assert!(work.sequence_number().is_none() && !work.is_done());
        assert!(matches!(work.wait(None), Err(CommError::Invalid { .. })));
        rank.recv(world, buffer(10 + at), DType::U8, from, &asynchronous)?;
    }
    rank.end_coalescing(world, &CallOptions::blocking())?;
    let mut works = Vec::new();
    for at in 2..4 {
        works.push(rank.send(world, buffer(at), DType::U8, to, &asynchronous)?);
        works.push(rank.recv(world, buffer(10 + at), DType::U8, from, &asynchronous)?);
    }
    assert_eq!(works[3].sequence_number(), Some(3));
    for work in works {
        work.wait(None)?;
    }
    for at in 0..4 {
        let expected = (from.0 * 10 + at) as u8;
        assert!(buffer(10 + u64::from(at)).read().unwrap().iter().all(|byte| *byte == expected));
    }
    // An empty block is done at once.
    rank.start_coalescing(world)?;
    let work = rank.end_coalescing(world, &asynchronous)?;
    assert!(work.is_done() && work.sequence_number().is_none());
    // A barrier that nobody waits for ends, as a thread looks after it.
    let work = rank.launch(world, Call::barrier(), &asynchronous)?;
    std::thread::sleep(std::time::Duration::from_millis(50));
    work.wait(Some(std::time::Duration::from_secs(30)))
}

/// Small programs with every kind of collective, as they came and bucketed.
pub fn programs(rank: &MpiRank) {
    let size = rank.world_size();
    let all: Vec<String> = (0..size).map(|rank| rank.to_string()).collect();
    let text = format!(
        "group W:{size} = [[{}]]\n\
         a = input f32[8, 2]; b = input bf16[4]; c = input i64[4]; d = input bf16[4]\n\
         g = all_gather(b, W:{size}) : bf16[{n4}]; w0 = wait(g) : bf16[{n4}]\n\
         h = all_gather(d, W:{size}) : bf16[{n4}]; wh = wait(h) : bf16[{n4}]\n\
         s = reduce_scatter(a, avg, W:{size}) : f32[{part}, 2]; w1 = wait(s) : f32[{part}, 2]\n\
         r = all_reduce(c, max, W:{size}) : i64[4]; w2 = wait(r) : i64[4]\n\
         e = all_reduce(b, sum, W:{size}) : bf16[4]; w3 = wait(e) : bf16[4]\n\
         f = all_reduce(d, sum, W:{size}) : bf16[4]; w4 = wait(f) : bf16[4]\n\
         t = broadcast(b, 1, W:{size}) : bf16[4]; w5 = wait(t) : bf16[4]\n\
         u = reduce(a, sum, 1, W:{size}) : f32[8, 2]; w6 = wait(u) : f32[8, 2]\n\
         i = all_reduce_(a, sum, W:{size}) : f32[8, 2]; w7 = wait(i) : f32[8, 2]\n\
         output(w0, wh, w1, w2, w3, w4, w5, w6, w7)",
        all.join(", "),
        n4 = 4 * size,
        part = 8 / size,
    );
    let pipelines = [
        "dedupe-waits",
        "bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}",
        "bucket-all-reduce{cap=none,mode=coalesced},bucket-all-gather{cap=none,mode=coalesced}",
    ];
    for (index, pipeline) in pipelines.into_iter().enumerate() {
        // Each program makes its groups, and a rank joins a name once.
        let text = text.replace("W:", &format!("W{index}:"));
        let mut graph = parse(&text).unwrap_or_else(|error| panic!("{error}"));
        pipeline.parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
        let (program, _) = lower(&graph, &LowerOptions::default()).unwrap();
        let local = run(size, LocalOptions::default(), |local| twice(&program, &local)).unwrap();
        let local = local.into_iter().nth(rank.rank().0 as usize).unwrap().expect("no rank panics");
        let ran = twice(&program, rank);
        assert!(ran.outputs == local.outputs && ran.inputs == local.inputs, "rank {}, {pipeline}", rank.rank().0);
    }
}

fn twice(program: &Program, backend: &dyn Backend) -> Run {
    let mut executor = Executor::new(program, backend).unwrap_or_else(|error| panic!("{error}"));
    let inputs = seeded_inputs(program, backend.rank(), 0).unwrap_or_else(|error| panic!("{error}"));
    let mut once = || executor.run(&inputs, &mut Reference::new(backend.rank(), 0));
    let first = once().unwrap_or_else(|error| panic!("{error}"));
    let second = once().unwrap_or_else(|error| panic!("{error}"));
    assert!(first.outputs == second.outputs);
    second
}
