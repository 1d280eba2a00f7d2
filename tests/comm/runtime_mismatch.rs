//! Ranks that call different things, and calls that are wrong by themselves.

use bucketeer::ir::{DType, GlobalRank, GroupRank, ReduceOp};
use bucketeer_comm::fake::FakeRank;
use bucketeer_comm::local::{DebugLevel, LocalOptions, run, world};
use bucketeer_comm::{Arena, Backend, Call, CallOptions, CommError, Described, Op, Operands, Reduction};
use std::time::Duration;

const SUM: Reduction = Reduction::Op(ReduceOp::Sum);

/// The first ranks of the world.
fn ranks(size: usize) -> Vec<GlobalRank> {
    (0..size as u32).map(GlobalRank).collect()
}

fn options(debug: DebugLevel) -> LocalOptions {
    LocalOptions { timeout: Duration::from_secs(600), debug, pin: false, ..LocalOptions::default() }
}

fn operands(input: u64, output: u64, dtype: DType) -> Operands {
    let arena = Arena::new(input + output).unwrap();
    Operands::new(arena.buffer(0, input).unwrap(), arena.buffer(input, output).unwrap(), dtype)
}

fn reduce(count: u64, dtype: DType, op: Reduction) -> Vec<Call> {
    let bytes = count * dtype.bytes();
    vec![Call::collective(Op::AllReduce(op), operands(bytes, bytes, dtype))]
}

fn rooted(root: u32) -> Vec<Call> {
    vec![Call::collective(Op::Broadcast { root: GroupRank(root) }, operands(8, 8, DType::F32))]
}

fn all_to_all(send: [u64; 2], receive: [u64; 2]) -> Vec<Call> {
    let op = Op::AllToAll { send: send.to_vec(), receive: receive.to_vec() };
    vec![Call::collective(op, operands(send.iter().sum(), receive.iter().sum(), DType::U8))]
}

/// Both ranks launch their list, as a block when it is longer than one; what each is told.
fn meet(debug: DebugLevel, lists: [fn() -> Vec<Call>; 2]) -> Vec<Result<(), CommError>> {
    let results = run(2, options(debug), |rank| {
        let group = rank.new_group("G0", &ranks(2))?;
        let calls = lists[group.rank().0 as usize]();
        if calls.len() > 1 {
            rank.start_coalescing(&group)?;
            for call in calls {
                rank.launch(&group, call, &CallOptions::default())?;
            }
            rank.end_coalescing(&group, &CallOptions::blocking())?;
        } else {
            for call in calls {
                rank.launch(&group, call, &CallOptions::blocking())?;
            }
        }
        // Stay until the other is done.
        let _ = rank.barrier(&group, &CallOptions::blocking());
        Ok(())
    });
    results.unwrap().into_iter().map(Result::unwrap).collect()
}

#[test]
fn ranks_that_disagree_are_told_who_has_what() {
    // (what rank 0 calls, what rank 1 calls, the error, whether it is found without details)
    type Row = ([fn() -> Vec<Call>; 2], &'static str, bool);
    let rows: [Row; 10] = [
        // Case XRANK-1.
        (
            [|| reduce(8, DType::F32, SUM), || reduce(12, DType::F32, SUM)],
            "group G0, all_reduce #0: ranks disagree on the count: rank 0 has f32 x 8, rank 1 has f32 x 12",
            true,
        ),
        (
            [|| reduce(8, DType::F32, SUM), || reduce(8, DType::F64, SUM)],
            "group G0, all_reduce #0: ranks disagree on the dtype: rank 0 has f32 x 8, rank 1 has f64 x 8",
            true,
        ),
        (
            [|| reduce(8, DType::F32, SUM), || reduce(8, DType::I32, SUM)],
            "group G0, all_reduce #0: ranks disagree on the dtype: rank 0 has f32 x 8, rank 1 has i32 x 8",
            false,
        ),
        (
            [|| reduce(8, DType::F32, SUM), || reduce(8, DType::F32, ReduceOp::Max.into())],
            "group G0, all_reduce #0: ranks disagree on the reduction: rank 0 has sum, rank 1 has max",
            false,
        ),
        (
            [|| rooted(0), || rooted(1)],
            "group G0, broadcast #0: ranks disagree on the root: rank 0 has group rank 0, rank 1 has group rank 1",
            true,
        ),
        (
            [|| rooted(0), || reduce(2, DType::F32, SUM)],
            "#0: ranks disagree on the op: rank 0 has broadcast, rank 1 has all_reduce",
            true,
        ),
        (
            [|| all_to_all([1, 2], [1, 3]), || all_to_all([4, 0], [2, 0])],
            "group G0, all_to_all_single #0: ranks disagree on the split: rank 0 has room for 3 bytes from group rank 1, \
             rank 1 has 4 bytes for group rank 0",
            true,
        ),
        (
            [|| [rooted(0), reduce(2, DType::U8, SUM)].concat(), || [rooted(0), reduce(3, DType::U8, SUM)].concat()],
            "group G0, coalesced #0: ranks disagree on the count: rank 0 has u8 x 2 (call 2 of 2), rank 1 has u8 x 3 \
             (call 2 of 2)",
            true,
        ),
        (
            [|| rooted(0), || [rooted(0), rooted(0)].concat()],
            "#0: ranks disagree on the number of calls: rank 0 has 1, rank 1 has 2",
            true,
        ),
        (
            [
                || vec![Call::send(operands(8, 0, DType::U8).input, DType::U8, GroupRank(1))],
                || vec![Call::recv(operands(9, 0, DType::U8).input, DType::U8, GroupRank(0))],
            ],
            "#0: ranks disagree on the count: rank 0 has u8 x 8, rank 1 has u8 x 9",
            true,
        ),
    ];
    for (lists, expected, without_details) in rows {
        for result in meet(DebugLevel::Detail, lists) {
            let text = result.unwrap_err().to_string();
            assert!(text.ends_with(expected), "{text}\nshould be\n{expected}");
        }
        for result in meet(DebugLevel::Off, lists) {
            assert_eq!(result.is_err(), without_details, "{expected}");
        }
    }
}

#[test]
fn what_is_wrong_by_itself_is_refused_by_every_backend_before_the_launch() {
    let local = world(2, options(DebugLevel::Off)).unwrap();
    let fake = FakeRank::new(GlobalRank(0), 2).unwrap();
    let arena = Arena::new(64).unwrap();
    let buffer = |offset, bytes| arena.buffer(offset, bytes).unwrap();
    let data = |input, output| Operands::new(buffer(0, input), buffer(32, output), DType::F32);
    let to_all = |send: &[u64], receive: &[u64]| Op::AllToAll { send: send.to_vec(), receive: receive.to_vec() };
    let small_float = Operands::in_place(buffer(0, 8), DType::F8E5m2);
    let complex = Operands::in_place(buffer(0, 8), DType::C64);
    let overlapping = Operands::new(buffer(0, 8), buffer(4, 8), DType::F32);
    let wrong_slot = Operands::new(buffer(8, 8), buffer(0, 16), DType::F32);
    let rows = [
        (Call::collective(Op::AllReduce(SUM), data(8, 12)), "the output has 12 bytes, but 8 are expected"),
        (
            Call::collective(Op::AllReduce(SUM), data(7, 7)),
            "the input has 7 bytes, which are not whole elements of f32",
        ),
        (Call::collective(Op::AllGather, data(8, 20)), "the output has 20 bytes, but 16 are expected"),
        (Call::collective(Op::ReduceScatter(SUM), data(8, 8)), "the input has 8 bytes, but 16 are expected"),
        (
            Call::collective(Op::Broadcast { root: GroupRank(2) }, data(8, 8)),
            "the root is group rank 2, but the group has 2",
        ),
        (
            Call::collective(Op::AllReduce(SUM), small_float),
            "float8_e5m2 is not reduced by any backend; convert it first",
        ),
        (
            Call::collective(Op::AllReduce(SUM), complex),
            "sum of complex64 is not defined here; reduce real and imaginary parts as floats",
        ),
        (
            Call::collective(Op::AllReduce(ReduceOp::BitOr.into()), data(8, 8)),
            "bor of float32 is not defined; it is for integers and bools",
        ),
        (
            Call::collective(
                Op::AllReduce(Reduction::PreMulSum { factor: 2.0 }),
                Operands::in_place(buffer(0, 8), DType::I32),
            ),
            "sum of 2 times each of int32 is not defined; it is for floats of two bytes or more",
        ),
        (Call::collective(to_all(&[], &[]), data(12, 8)), "the input has 3 elements, which 2 ranks cannot share"),
        (Call::collective(to_all(&[1], &[]), data(8, 8)), "the input has 1 splits, but the group has 2 ranks"),
        (Call::collective(to_all(&[1, 2], &[]), data(8, 8)), "the input has 8 bytes, but 12 are expected"),
        (Call::collective(to_all(&[u64::MAX, 2], &[]), data(8, 8)), "the input would have more than 2^63 bytes"),
        (Call::collective(to_all(&[u64::MAX / 4, 2], &[]), data(8, 8)), "the input would have more than 2^63 bytes"),
        (
            Call::collective(to_all(&[], &[]), Operands::in_place(buffer(0, 8), DType::F32)),
            "input and output overlap; all_to_all_single never runs in place",
        ),
        (
            Call::collective(Op::AllReduce(SUM), overlapping),
            "input and output overlap; all_reduce runs in place with one range for both",
        ),
        (
            Call::collective(Op::AllGather, wrong_slot),
            "input and output overlap; all_gather_into runs in place with the input at this rank's slot of the output",
        ),
        (Call::send(buffer(0, 8), DType::F32, GroupRank(0)), "group rank 0 is at both ends"),
        (Call::recv(buffer(0, 8), DType::F32, GroupRank(2)), "the peer is group rank 2, but the group has 2"),
    ];
    for backend in [&local[0] as &dyn Backend, &fake] {
        let group = backend.new_group("G", &ranks(2)).unwrap();
        for (call, expected) in &rows {
            let error = backend.launch(&group, call.clone(), &CallOptions::blocking()).unwrap_err();
            let expected = format!("group G, {}: {expected}", call.op().name());
            assert_eq!(error.to_string(), expected, "{}", backend.name());
        }
        // Nothing was launched, and nothing is held.
        buffer(0, 64).write().unwrap();
    }
}

#[test]
fn groups_with_unknown_members_are_refused_by_name() {
    let local = world(3, options(DebugLevel::Off)).unwrap();
    let fake = FakeRank::new(GlobalRank(0), 3).unwrap();
    for backend in [&local[0] as &dyn Backend, &fake] {
        let refused = |members: &[u32]| {
            let members: Vec<GlobalRank> = members.iter().copied().map(GlobalRank).collect();
            backend.new_group("G", &members).unwrap_err().to_string()
        };
        assert_eq!(refused(&[0, 3]), "group G, new_group: rank 3 is a member, but there are only 3 ranks, from 0");
        assert_eq!(refused(&[0, 1, 0]), "group G, new_group: rank 0 is a member twice");
        assert_eq!(refused(&[1, 2]), "group G, new_group: rank 0 is not a member: the members are [1, 2]");
        assert_eq!(refused(&[]), "group G, new_group: rank 0 is not a member: the members are []");
        backend.new_group("G", &ranks(2)).unwrap();
        assert_eq!(refused(&[0, 1]), "group G, new_group: rank 0 has joined before");
    }
    let members = [GlobalRank(0), GlobalRank(1), GlobalRank(2)];
    let error = local[1].new_group("G", &members).unwrap_err().to_string();
    assert!(error.contains("[0, 1, 2], but a group of that name with rank 0 has the members [0, 1]"), "{error}");
    // The other world's group is not known here.
    let elsewhere = world(2, options(DebugLevel::Off)).unwrap();
    let group = elsewhere[0].new_group("G", &ranks(2)).unwrap();
    let error = local[0].barrier(&group, &CallOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "group G, barrier: rank 0 has not made this group");
    for count in [0, 4097] {
        assert!(world(count, options(DebugLevel::Off)).is_err());
    }
    assert!(FakeRank::new(GlobalRank(2), 2).is_err());
}

#[test]
fn coalescing_blocks_open_and_close_once() {
    let local = world(1, options(DebugLevel::Off)).unwrap();
    let fake = FakeRank::new(GlobalRank(0), 1).unwrap();
    for backend in [&local[0] as &dyn Backend, &fake] {
        let group = backend.new_group("G", &ranks(1)).unwrap();
        let options = CallOptions::default();
        assert!(matches!(backend.end_coalescing(&group, &options), Err(CommError::Invalid { .. })));
        backend.start_coalescing(&group).unwrap();
        assert!(matches!(backend.start_coalescing(&group), Err(CommError::Invalid { .. })));
        assert!(matches!(backend.barrier(&group, &CallOptions::blocking()), Err(CommError::Invalid { .. })));
        let empty = backend.end_coalescing(&group, &options).unwrap();
        assert_eq!((empty.wait(None), empty.sequence_number()), (Ok(()), None));
        let after = backend.barrier(&group, &options).unwrap();
        assert_eq!((after.wait(None), after.sequence_number()), (Ok(()), Some(0)));
    }
}
