//! NCCL's calls on the fake one: every call over one to four ranks against the plain reference of `collective`.

use bucketeer::ir::{DType, ReduceOp};
use bucketeer_comm::Reduction;
use bucketeer_cuda::nccl::{Comm, InitOptions, NcclError};
use bucketeer_cuda::{Context, DeviceBuffer, Stream};
use kit::collective::{Case, Kind, reductions};
use kit::fakegpu::{Session, session};
use std::time::Duration;

const OPTIONS: InitOptions = InitOptions { timeout: Duration::from_secs(20), blocking: false };

/// Runs `body` as each of `size` ranks, in threads, on devices of their own.
fn ranks<T: Send>(session: &Session, size: u32, body: impl Fn(Comm, Stream) -> T + Sync) -> Vec<T> {
    let (nccl, driver) = (session.nccl(), session.driver());
    let id = nccl.unique_id().unwrap();
    std::thread::scope(|scope| {
        let start = |rank| {
            let (nccl, driver, body) = (&nccl, &driver, &body);
            scope.spawn(move || {
                let context = driver.device(rank).unwrap().context().unwrap();
                let comm = nccl.comm(&context, rank, size, &id, &OPTIONS).unwrap();
                assert_eq!((comm.rank(), comm.size()), (rank, size));
                body(comm, context.stream().unwrap())
            })
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn filled(stream: &Stream, context: &Context, content: &[u8]) -> DeviceBuffer {
    let buffer = context.alloc(content.len()).unwrap();
    stream.upload(content, &buffer, 0).unwrap();
    buffer
}

fn content(stream: &Stream, buffer: &DeviceBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    stream.download(buffer, 0, &mut bytes).unwrap();
    bytes
}

/// Calls a case as the rank of `comm`; what it has afterwards.
fn call(comm: &Comm, stream: &Stream, case: &Case, input: &[u8]) -> Result<Vec<u8>, NcclError> {
    let (rank, size) = (comm.rank() as usize, comm.size() as usize);
    let given = filled(stream, comm.context(), input);
    let (from, to) = match (case.kind, case.in_place) {
        (Kind::AllGather, true) => {
            let to = comm.context().alloc(input.len() * size)?;
            let from = to.slice(rank * input.len()..(rank + 1) * input.len())?;
            stream.copy(&given, 0..input.len(), &from, 0)?;
            (from, to)
        }
        (Kind::ReduceScatter(_), true) => {
            let part = input.len() / size;
            let to = given.slice(rank * part..(rank + 1) * part)?;
            (given, to)
        }
        (_, true) => (given.clone(), given),
        (Kind::AllGather, false) => (given, comm.context().alloc(input.len() * size)?),
        (Kind::ReduceScatter(_), false) => (given, comm.context().alloc(input.len() / size)?),
        // What a reduction leaves to those that are not its root: nothing is written.
        (Kind::Reduce { .. }, false) => (given, filled(stream, comm.context(), input)),
        (_, false) => (given, comm.context().alloc(input.len())?),
    };
    match case.kind {
        Kind::AllReduce(op) => comm.all_reduce(stream, &from, &to, case.dtype, op)?,
        Kind::AllGather => comm.all_gather(stream, &from, &to, case.dtype)?,
        Kind::ReduceScatter(op) => comm.reduce_scatter(stream, &from, &to, case.dtype, op)?,
        Kind::Broadcast { root } => comm.broadcast(stream, &from, &to, case.dtype, root as u32)?,
        Kind::Reduce { op, root } => comm.reduce(stream, &from, &to, (case.dtype, op), root as u32)?,
        Kind::AllToAll => comm.all_to_all(stream, &from, &to, case.dtype)?,
        Kind::UnevenAllToAll => unreachable!("by sends and receives"),
    }
    // Freed while in flight: the buffers outlive their work.
    drop(from);
    Ok(content(stream, &to))
}

/// NCCL has no bitwise reductions, and neither bools nor integers of two bytes.
fn has(dtype: DType) -> bool {
    !matches!(dtype, DType::Bool | DType::I16 | DType::U16)
}

fn cases(size: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for &dtype in DType::ALL {
        let root = dtype as usize % size;
        let moves = [Kind::AllGather, Kind::Broadcast { root }, Kind::AllToAll];
        let bits = |op: &Reduction| matches!(op, Reduction::Op(ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor));
        let ops = reductions(dtype).into_iter().filter(|op| has(dtype) && !bits(op));
        let reduces = ops.flat_map(|op| [Kind::AllReduce(op), Kind::ReduceScatter(op), Kind::Reduce { op, root }]);
        for kind in moves.into_iter().chain(reduces) {
            for in_place in [false, true] {
                if !in_place || Case::can_be_in_place(kind) {
                    cases.push(Case { kind, dtype, count: [1, 3, 64][cases.len() % 3], in_place });
                }
            }
        }
    }
    cases
}

fn expect_cases(size: u32, version: i32) {
    let session = session();
    session.set_nccl_version(version);
    let cases = cases(size as usize);
    let input = |case: &Case, rank| case.input(7, rank, size as usize, false);
    let outputs = ranks(&session, size, |comm, stream| {
        let rank = comm.rank() as usize;
        let outputs =
            cases.iter().map(|case| call(&comm, &stream, case, &input(case, rank)).unwrap()).collect::<Vec<_>>();
        comm.close().unwrap();
        outputs
    });
    for (nth, case) in cases.iter().enumerate() {
        let inputs: Vec<_> = (0..size as usize).map(|rank| input(case, rank)).collect();
        for (rank, outputs) in outputs.iter().enumerate() {
            assert_eq!(outputs[nth], case.expected(&inputs, rank), "rank {rank} of {size}: {case:?}");
        }
    }
    assert_eq!((session.live_comms(), session.violations()), (0, Vec::new()));
}

#[test]
fn every_call_of_a_world_of_one_gives_what_the_reference_gives() {
    expect_cases(1, 23_007);
}

#[test]
fn every_call_of_two_ranks_gives_what_the_reference_gives() {
    expect_cases(2, 23_007);
}

#[test]
fn every_call_of_three_ranks_gives_what_the_reference_gives_with_an_old_library() {
    // Blocking, without ncclAlltoAll and floats of one byte; but with factors.
    expect_cases(3, 21_100);
}

#[test]
fn every_call_of_four_ranks_gives_what_the_reference_gives() {
    expect_cases(4, 23_007);
}

#[test]
fn floats_of_one_byte_are_summed_and_saturate() {
    let session = session();
    let e4m3 = |content: &[u8], comm: &Comm, stream: &Stream| {
        let buffer = filled(stream, comm.context(), content);
        comm.all_reduce(stream, &buffer, &buffer, DType::F8E4m3fn, ReduceOp::Sum.into())?;
        Ok::<_, NcclError>(self::content(stream, &buffer))
    };
    // 1 + 1, 448 + 448, 1.125 + 0.0625 (a tie, to even), 2^-9 + 2^-9.
    let inputs = [[0x38, 0x7e, 0x39, 0x01], [0x38, 0x7e, 0x18, 0x01]];
    let outputs = ranks(&session, 2, |comm, stream| e4m3(&inputs[comm.rank() as usize], &comm, &stream).unwrap());
    assert_eq!(outputs, [[0x40, 0x7e, 0x3a, 0x02], [0x40, 0x7e, 0x3a, 0x02]]);
    session.set_nccl_version(22_300);
    let errors = ranks(&session, 1, |comm, stream| e4m3(&[0; 4], &comm, &stream).unwrap_err().to_string());
    assert_eq!(errors, ["ncclAllReduce: NCCL reduces float8_e4m3fn since 2.24"]);
}

#[test]
fn sends_and_receives_of_a_group_run_at_once() {
    let session = session();
    let outputs = ranks(&session, 3, |comm, stream| {
        let (rank, size) = (comm.rank(), comm.size());
        let parts = |from: u32, to: u32| (from + 2 * to) as usize % 4 * 5;
        let sent = |from: u32, to: u32| vec![(10 * from + to) as u8; parts(from, to)];
        let group = comm.nccl().group().unwrap();
        let mut received = Vec::new();
        for peer in 0..size {
            let (from, to) =
                (filled(&stream, comm.context(), &sent(rank, peer)), comm.context().alloc(parts(peer, rank)));
            comm.send(&stream, &from, DType::U8, peer).unwrap();
            received.push(to.unwrap());
            comm.recv(&stream, &received[peer as usize], DType::U8, peer).unwrap();
            // Dropped before the launch: the group holds it.
            drop(from);
        }
        group.end().unwrap();
        let found: Vec<_> = received.iter().map(|buffer| content(&stream, buffer)).collect();
        comm.close().unwrap();
        (found, (0..size).map(|peer| sent(peer, rank)).collect::<Vec<_>>())
    });
    outputs.iter().for_each(|(found, expected)| assert_eq!(found, expected));
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn one_thread_makes_and_drives_several_ranks() {
    let session = session();
    let (nccl, driver) = (session.nccl(), session.driver());
    for options in [OPTIONS, InitOptions { blocking: true, ..OPTIONS }] {
        let members: Vec<_> = (0..3).map(|rank| (driver.device(rank).unwrap().context().unwrap(), rank)).collect();
        let comms = nccl.comms(&members, 3, &nccl.unique_id().unwrap(), &options).unwrap();
        let mut held = Vec::new();
        let group = nccl.group().unwrap();
        for comm in &comms {
            let stream = comm.context().stream().unwrap();
            let buffer = filled(&stream, comm.context(), &[comm.rank() as u8 + 1; 9]);
            comm.all_reduce(&stream, &buffer, &buffer, DType::U8, ReduceOp::Product.into()).unwrap();
            held.push((stream, buffer));
        }
        assert!(nccl.group().is_err(), "one is open");
        group.end().unwrap();
        held.iter().for_each(|(stream, buffer)| assert_eq!(content(stream, buffer), [6; 9]));
        assert_eq!(comms[2].shape().unwrap(), (3, 2, 2));
        comms.iter().for_each(|comm| comm.close().unwrap());
    }
    assert_eq!(session.live_comms(), 0);
}

#[test]
fn a_split_orders_by_key_and_leaves_out_those_without_a_color() {
    let session = session();
    let outputs = ranks(&session, 4, |comm, stream| {
        let color = [Some(1), None, Some(1), Some(0)][comm.rank() as usize];
        let child = comm.split(color, -(comm.rank() as i32)).unwrap();
        let place = child.as_ref().map(|child| (child.rank(), child.size()));
        let gathered = child.as_ref().map(|child| {
            let (from, to) =
                (filled(&stream, child.context(), &[comm.rank() as u8]), child.context().alloc(child.size() as usize));
            let to = to.unwrap();
            child.all_gather(&stream, &from, &to, DType::U8).unwrap();
            content(&stream, &to)
        });
        child.iter().for_each(|child| child.close().unwrap());
        comm.close().unwrap();
        (place, gathered)
    });
    let expected = [
        (Some((1, 2)), Some(vec![2, 0])),
        (None, None),
        (Some((0, 2)), Some(vec![2, 0])),
        (Some((0, 1)), Some(vec![3])),
    ];
    assert_eq!(outputs, expected);
}

#[test]
fn several_communicators_on_streams_of_their_own_do_not_mix() {
    let session = session();
    session.delay_us(300);
    let outputs = ranks(&session, 2, |world, _| {
        let pairs: Vec<_> = (0..3_u8)
            .map(|nth| {
                let comm = world.split(Some(0), world.rank() as i32).unwrap().unwrap();
                let stream = world.context().stream().unwrap();
                let buffer = filled(&stream, world.context(), &[10 * nth + world.rank() as u8; 4]);
                (comm, stream, buffer)
            })
            .collect();
        // Ranks issue in other orders: no order is needed between communicators with streams of their own.
        let order = if world.rank() == 0 { [0, 1, 2] } else { [2, 0, 1] };
        for nth in order {
            let (comm, stream, buffer) = &pairs[nth];
            comm.all_reduce(stream, buffer, buffer, DType::U8, ReduceOp::Max.into()).unwrap();
        }
        pairs.iter().map(|(_, stream, buffer)| content(stream, buffer)).collect::<Vec<_>>()
    });
    outputs.iter().for_each(|output| assert_eq!(*output, [[1; 4], [11; 4], [21; 4]]));
}

#[test]
fn a_missing_wait_before_a_collective_is_seen() {
    let session = session();
    for waits in [true, false] {
        let outputs = ranks(&session, 2, |comm, stream| {
            let context = comm.context();
            let (producer, event) = (context.stream().unwrap(), context.event().unwrap());
            let buffer = filled(&stream, context, &[0; 8]);
            stream.synchronize().unwrap();
            session.delay_stream_us(&producer, if comm.rank() == 1 { 600_000 } else { 0 });
            producer.fill(&buffer, 0..8, 1).unwrap();
            producer.record(&event).unwrap();
            if waits {
                stream.wait(&event).unwrap();
            }
            comm.all_reduce(&stream, &buffer, &buffer, DType::U8, ReduceOp::Sum.into()).unwrap();
            stream.synchronize().unwrap();
            producer.synchronize().unwrap();
            content(&stream, &buffer)
        });
        assert_eq!(outputs.iter().all(|output| *output == [2; 8]), waits, "{outputs:?}");
    }
}

#[test]
fn memory_is_registered_until_its_communicator_is_closed() {
    let session = session();
    ranks(&session, 2, |comm, stream| {
        let buffer = comm.nccl().alloc(comm.context(), 5000).unwrap();
        let (plain, window) = (comm.register(&buffer).unwrap(), comm.register_window(&buffer).unwrap());
        assert_eq!(comm.registered(), 2);
        stream.fill(&buffer, 0..5000, 1).unwrap();
        comm.all_reduce(&stream, &buffer, &buffer, DType::I8, ReduceOp::Sum.into()).unwrap();
        comm.deregister(plain).unwrap();
        assert_eq!((comm.registered(), content(&stream, &buffer)), (1, vec![2; 5000]));
        let other = comm.split(Some(0), 0).unwrap().unwrap();
        let error = other.deregister(window).unwrap_err().to_string();
        assert_eq!(error, "ncclCommDeregister: it is of another communicator");
        let error = comm.register_window(&buffer.slice(8..100).unwrap()).unwrap_err().to_string();
        assert!(error.contains("a page of 4096 bytes"), "{error}");
        other.close().unwrap();
        comm.close().unwrap();
    });
    assert_eq!((session.live_comms(), session.live()[0]), (0, 0));
}

#[test]
fn a_missing_library_names_every_place() {
    let nowhere = std::env::temp_dir().join("no-such-folder/libnccl.so.2");
    let error = bucketeer_cuda::nccl::Nccl::load(Some(&nowhere)).unwrap_err();
    assert!(matches!(error, NcclError::Load(_)));
    let text = error.to_string();
    assert!(text.contains("BUCKETEER_NCCL_LIB") && text.contains(&format!("{}: ", nowhere.display())), "{text}");
}

#[test]
fn calls_that_do_not_fit_are_refused_before_nccl_sees_them() {
    let session = session();
    let driver = session.driver();
    ranks(&session, 2, |comm, stream| {
        let context = comm.context().clone();
        let (eight, four) = (context.alloc(8).unwrap(), context.alloc(4).unwrap());
        let other = driver.device(5).unwrap().context().unwrap();
        let elsewhere = other.alloc(8).unwrap();
        let sum: Reduction = ReduceOp::Sum.into();
        let refused = |result: Result<(), NcclError>, expected: &str| {
            let error = result.unwrap_err();
            assert!(matches!(error, NcclError::Invalid { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error} lacks: {expected}");
        };
        session.log();
        refused(comm.all_reduce(&stream, &eight, &four, DType::F32, sum), "the output has 1 elements; 2 are expected");
        refused(comm.all_gather(&stream, &eight, &eight, DType::F32), "the output has 2 elements; 4 are expected");
        refused(comm.reduce_scatter(&stream, &four, &four, DType::F32, sum), "the input has 1 elements; 2 are");
        refused(comm.all_reduce(&stream, &four, &four, DType::F64, sum), "4 bytes, which are not whole float64");
        refused(
            comm.broadcast(&stream, &four, &four, DType::F32, 2),
            "the root is rank 2, which is not below the size, 2",
        );
        refused(comm.send(&stream, &four, DType::F32, 9), "the receiver is rank 9");
        refused(comm.recv(&stream, &four, DType::F32, 2), "the sender is rank 2");
        let odd = eight.slice(2..6).unwrap();
        refused(comm.broadcast(&stream, &odd, &odd, DType::F32, 0), "which is not aligned for float32");
        let (low, high) = (eight.slice(0..6).unwrap(), eight.slice(2..8).unwrap());
        refused(comm.all_reduce(&stream, &low, &high, DType::U8, sum), "input and output overlap");
        refused(comm.all_to_all(&stream, &eight, &eight, DType::U8), "input and output overlap");
        refused(comm.all_reduce(&stream, &elsewhere, &eight, DType::F32, sum), "is of a context of GPU 5");
        refused(
            comm.all_reduce(&other.stream().unwrap(), &eight, &eight, DType::F32, sum),
            "the stream is of a context",
        );
        refused(comm.all_reduce(&stream, &four, &four, DType::I16, sum), "NCCL does not reduce int16");
        refused(comm.all_reduce(&stream, &four, &four, DType::Bool, sum), "the maximum of uint8");
        refused(comm.all_reduce(&stream, &four, &four, DType::I32, ReduceOp::BitAnd.into()), "NCCL has no");
        let factor = Reduction::PreMulSum { factor: 0.5 };
        refused(comm.all_reduce(&stream, &four, &four, DType::I32, factor), "is for floats of two bytes or more");
        refused(comm.shrink(&[comm.rank()], false).map(drop), "not this one");
        refused(comm.shrink(&[7], false).map(drop), "below 2");
        let group = comm.nccl().group().unwrap();
        refused(comm.close(), "a group open");
        refused(comm.split(None, 0).map(drop), "a group open");
        group.end().unwrap();
        comm.close().unwrap();
        let closed = comm.all_reduce(&stream, &four, &four, DType::F32, sum).unwrap_err();
        assert!(closed.to_string().ends_with("is closed or aborted"), "{closed}");
        comm.abort().unwrap();
    });
    let calls: Vec<_> = session.log().iter().filter_map(|line| line["call"].as_str().map(str::to_owned)).collect();
    assert!(!calls.iter().any(|call| call == "ncclAllReduce" || call == "ncclSend"), "{calls:?}");
}

#[test]
fn calls_are_logged_in_order() {
    let session = session();
    ranks(&session, 1, |comm, stream| {
        let (from, to) = (comm.context().alloc(8).unwrap(), comm.context().alloc(8).unwrap());
        session.log();
        comm.all_reduce(&stream, &from, &to, DType::F32, ReduceOp::Avg.into()).unwrap();
        comm.broadcast(&stream, &from, &to, DType::F64, 0).unwrap();
        stream.synchronize().unwrap();
        let log = session.log();
        let shown = log.iter().map(|line| {
            let args = &line["args"];
            format!("{} {} {} {} {}", line["call"], args["count"], args["dtype"], args["op"], args["root"])
        });
        let calls: Vec<_> = shown.filter(|line| line.contains("nccl")).collect();
        assert_eq!(calls, ["\"ncclAllReduce\" 2 7 4 null", "\"ncclBroadcast\" 1 8 null 0"]);
    });
}
