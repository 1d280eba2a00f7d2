//! The backend `nccl` on the fake GPU library, with ranks as threads: it computes what the local one does.

use bucketeer::ir::{DType, GlobalRank, GroupRank, ReduceOp};
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::store::{MemoryStore, Store};
use bucketeer_comm::{Arena, Backend, BufferError, Call, CallOptions, CommError, Operands};
use kit::collective::{Case, cases_of, nccl_kinds, ranks, run_cases};
use kit::fakegpu::{Session, session};
use std::sync::Arc;
use std::time::Duration;

fn options() -> NcclOptions {
    NcclOptions {
        timeout: Duration::from_secs(60),
        grace: Duration::from_secs(2),
        poll: Duration::from_millis(2),
        store_poll: Duration::from_millis(5),
        ..NcclOptions::default()
    }
}

/// Runs `body` as each of `size` ranks, on threads of their own and a GPU each.
fn run<T: Send>(session: &Session, size: u32, body: impl Fn(NcclRank) -> T + Sync) -> Vec<T> {
    let (nccl, driver, body) = (session.nccl(), session.driver(), &body);
    std::thread::scope(|scope| {
        let threads: Vec<_> = MemoryStore::world(size)
            .into_iter()
            .map(|store| {
                let context = driver.device(store.rank().0 % 8).unwrap().context().unwrap();
                let rank = NcclRank::new(&nccl, &context, Arc::new(store), options()).unwrap();
                scope.spawn(move || body(rank))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// All kinds and reductions of a dtype, in and out of place. Values are tame: what NCCL does with a NaN is its own.
fn cases(dtype: DType, size: usize) -> Vec<Case> {
    cases_of(dtype, nccl_kinds(dtype, size), &[0, 5, 67])
}

fn on_ranks(size: usize, cases: &[Case], coalesced: bool) {
    let input = |index: usize, case: &Case, place| case.input(index as u64, place, size, true);
    let session = session();
    let results = run(&session, size as u32, |rank| {
        let group = rank.new_group("world", &ranks(size))?;
        let place = group.rank().0 as usize;
        let outputs = run_cases(&rank, &group, cases, |index, case| input(index, case, place), coalesced)?;
        rank.close()?;
        Ok::<_, CommError>(outputs)
    });
    for (place, result) in results.into_iter().enumerate() {
        let outputs = result.unwrap_or_else(|error| panic!("{error}"));
        for (index, (case, output)) in cases.iter().zip(outputs).enumerate() {
            let inputs: Vec<Vec<u8>> = (0..size).map(|place| input(index, case, place)).collect();
            assert_eq!(output, case.expected(&inputs, place), "{case:?} on rank {place} of {size}");
        }
    }
    assert_eq!((session.live_comms(), session.violations()), (0, Vec::new()));
}

#[test]
fn nccl_ranks_compute_what_the_reference_does_for_all_kinds_ops_and_dtypes() {
    // Sizes decide who sends what, dtypes how: not all of one with all of the other.
    let few = [DType::F32, DType::Bf16, DType::I64, DType::Bool];
    for (size, dtypes) in [(1, &few[..]), (2, &few), (3, DType::ALL), (4, &few)] {
        let all: Vec<Case> = dtypes.iter().flat_map(|dtype| cases(*dtype, size)).collect();
        on_ranks(size, &all, false);
    }
}

#[test]
fn a_block_of_calls_gives_what_the_calls_give() {
    for size in 1..=4 {
        let mixed: Vec<Case> = [DType::Bf16, DType::I64, DType::Bool, DType::F8E5m2]
            .into_iter()
            .flat_map(|dtype| cases(dtype, size).into_iter().step_by(3))
            .collect();
        on_ranks(size, &mixed, true);
    }
}

#[test]
fn what_nccl_has_no_word_for_is_refused_before_anything_is_launched() {
    let session = session();
    let errors = run(&session, 1, |rank| {
        let group = rank.new_group("g", &ranks(1)).unwrap();
        let buffer = rank.arena(8).unwrap().buffer(0, 8).unwrap();
        let reduce = |dtype, op: ReduceOp| {
            let data = Operands::in_place(buffer.clone(), dtype);
            rank.all_reduce(&group, data, op.into(), &CallOptions::default()).unwrap_err().to_string()
        };
        [reduce(DType::I16, ReduceOp::Sum), reduce(DType::I32, ReduceOp::BitXor), reduce(DType::Bool, ReduceOp::BitXor)]
    });
    let expected = [
        "group g, all_reduce: NCCL does not reduce int16; convert it first",
        "group g, all_reduce: NCCL has no bxor",
        "group g, all_reduce: NCCL has no bool; for bools of 0 and 1 a sum is the maximum of uint8, a product the minimum",
    ];
    assert_eq!(errors[0], expected);
}

#[test]
fn buffers_of_the_device_are_used_where_they_are() {
    let session = session();
    let sums = run(&session, 3, |rank| {
        let group = rank.new_group("world", &ranks(3)).unwrap();
        let stream = rank.stream(&group).unwrap();
        let memory = rank.context().alloc(32).unwrap();
        let arena = Arena::on_device(memory.clone()).unwrap();
        let own = vec![rank.rank().0 as u8 + 1; 16];
        stream.upload(&own, &memory, 0).unwrap();
        let (from, to) = (arena.buffer(0, 16).unwrap(), arena.buffer(16, 16).unwrap());
        assert!(matches!(from.read(), Err(BufferError::OnDevice { bytes: 16, .. })));
        let call = Operands::new(from, to, DType::U8);
        let work = rank.all_reduce(&group, call, ReduceOp::Sum.into(), &CallOptions::default()).unwrap();
        // In the stream's order, whether or not the host has waited.
        let mut sum = vec![0; 32];
        stream.download(&memory, 0, &mut sum).unwrap();
        work.wait(None).unwrap();
        rank.close().unwrap();
        sum
    });
    for (rank, sum) in sums.into_iter().enumerate() {
        assert_eq!(sum, [vec![rank as u8 + 1; 16], vec![6; 16]].concat());
    }
    assert!(session.violations().is_empty());
}

#[test]
fn memory_of_another_gpu_or_out_of_line_is_refused() {
    let session = session();
    let context = session.driver().device(1).unwrap().context().unwrap();
    let elsewhere = Arena::on_device(context.alloc(8).unwrap()).unwrap();
    let errors = run(&session, 1, |rank| {
        let group = rank.new_group("g", &ranks(1)).unwrap();
        let here = Arena::on_device(rank.context().alloc(16).unwrap()).unwrap();
        let reduce = |buffer| {
            let data = Operands::in_place(buffer, DType::F32);
            rank.all_reduce(&group, data, ReduceOp::Sum.into(), &CallOptions::default()).unwrap_err().to_string()
        };
        let odd = reduce(here.buffer(2, 8).unwrap());
        [reduce(elsewhere.buffer(0, 8).unwrap()), odd.split(" begins").next().unwrap().to_owned()]
    });
    let expected = [
        "group g, all_reduce: the input is memory of a context of GPU 1, and this rank is on GPU 0",
        "group g, all_reduce: the input",
    ];
    assert_eq!(errors[0], expected);
}

#[test]
fn other_backends_refuse_memory_of_a_device() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let arena = Arena::on_device(context.alloc(8).unwrap()).unwrap();
    let results = bucketeer_comm::local::run(1, bucketeer_comm::local::LocalOptions::default(), |rank| {
        let group = rank.new_group("g", &ranks(1)).unwrap();
        let data = Operands::in_place(arena.buffer(0, 8).unwrap(), DType::U8);
        rank.all_reduce(&group, data, ReduceOp::Sum.into(), &CallOptions::default()).unwrap_err().to_string()
    });
    let expected = "group g, all_reduce: 8 bytes of GPU 0 are not the host's to touch; give this backend memory of the \
                    host, or copy them first";
    assert_eq!(results.unwrap()[0].as_ref().unwrap(), expected);
}

#[test]
fn messages_between_two_ranks_meet_in_order_and_beside_collectives() {
    let session = session();
    let got = run(&session, 3, |rank| {
        let group = rank.new_group("world", &ranks(3)).unwrap();
        let arena = rank.arena(64).unwrap();
        let part = |at: u64| arena.buffer(at, 8).unwrap();
        let own = rank.rank().0;
        part(0).write().unwrap().fill(own as u8 + 1);
        part(8).write().unwrap().fill(own as u8 + 11);
        let (next, before) = (GroupRank((own + 1) % 3), GroupRank((own + 2) % 3));
        let options = CallOptions::default();
        rank.start_coalescing(&group).unwrap();
        for at in [0, 8] {
            rank.send(&group, part(at), DType::U8, next, &options).unwrap();
            rank.recv(&group, part(16 + at), DType::U8, before, &options).unwrap();
        }
        let work = rank.end_coalescing(&group, &options).unwrap();
        let barrier = rank.barrier(&group, &options).unwrap();
        assert_eq!((work.sequence_number(), barrier.sequence_number()), (Some(0), Some(0)));
        barrier.wait(None).unwrap();
        assert!(work.is_done());
        let got = [part(16).read().unwrap()[0], part(24).read().unwrap()[0]];
        rank.close().unwrap();
        got
    });
    assert_eq!(got, [[3, 13], [1, 11], [2, 12]]);
}

#[test]
fn the_buffers_of_a_call_are_lent_until_it_ends() {
    let session = session();
    run(&session, 2, |rank| {
        let group = rank.new_group("world", &ranks(2)).unwrap();
        let buffer = rank.arena(8).unwrap().buffer(0, 8).unwrap();
        let options = CallOptions::default();
        if rank.rank() == GlobalRank(1) {
            std::thread::sleep(Duration::from_millis(30));
        }
        let data = Operands::in_place(buffer.clone(), DType::F32);
        let work = rank.all_reduce(&group, data, ReduceOp::Sum.into(), &options).unwrap();
        if rank.rank() == GlobalRank(0) {
            let error = buffer.read().err().map(|error| error.to_string());
            let expected = "bytes 0 to 8 of the arena are in use by all_reduce of group world; wait for it first";
            assert!(work.is_done() || error.as_deref() == Some(expected), "{error:?}");
        }
        // Nobody waits: the watchdog ends it.
        while buffer.read().is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(work.is_done());
        rank.close().unwrap();
    });
}

#[test]
fn calls_in_a_block_behave_as_on_other_backends() {
    let session = session();
    run(&session, 1, |rank| {
        let group = rank.new_group("g", &ranks(1)).unwrap();
        let invalid = |result: Result<bucketeer_comm::Work, CommError>| result.unwrap_err().to_string();
        let none = "group g, end_coalescing: no coalescing block is open; start one first";
        assert_eq!(invalid(rank.end_coalescing(&group, &CallOptions::default())), none);
        rank.start_coalescing(&group).unwrap();
        let open = "group g, start_coalescing: a coalescing block is open already; end it first";
        assert_eq!(rank.start_coalescing(&group).unwrap_err().to_string(), open);
        let blocking = "group g, barrier: a call of a coalescing block cannot be waited for before the block's end";
        assert_eq!(invalid(rank.barrier(&group, &CallOptions::blocking())), blocking);
        let work = rank.launch(&group, Call::barrier(), &CallOptions::default()).unwrap();
        let early = "group g, wait: the call is part of a coalescing block that has not been ended";
        assert_eq!(work.wait(None).unwrap_err().to_string(), early);
        rank.end_coalescing(&group, &CallOptions::default()).unwrap().wait(None).unwrap();
        assert!(work.is_done());
        rank.start_coalescing(&group).unwrap();
        let empty = rank.end_coalescing(&group, &CallOptions::default()).unwrap();
        assert_eq!((empty.is_done(), empty.sequence_number()), (true, None));
        let again = "group g, new_group: rank 0 has joined before";
        assert_eq!(rank.new_group("g", &ranks(1)).unwrap_err().to_string(), again);
        rank.close().unwrap();
    });
}
