//! What goes wrong between ranks, on the fake NCCL: each ends in an error that says what, and none in a hang.

use bucketeer::ir::{DType, ReduceOp};
use bucketeer_comm::Reduction;
use bucketeer_cuda::nccl::{Comm, InitOptions, Nccl, NcclError, NcclResult};
use bucketeer_cuda::{DeviceBuffer, Stream};
use kit::fakegpu::{self, Session, session};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const OPTIONS: InitOptions = InitOptions { timeout: Duration::from_secs(20), blocking: false };
const SUM: Reduction = Reduction::Op(ReduceOp::Sum);

/// Runs `body` as each of two ranks, with a stream and a buffer of eight bytes.
fn pair<T: Send>(session: &Session, body: impl Fn(&Comm, &Stream, &DeviceBuffer) -> T + Sync) -> [T; 2] {
    let (nccl, driver) = (session.nccl(), session.driver());
    let id = nccl.unique_id().unwrap();
    let rank = |rank| {
        let context = driver.device(rank).unwrap().context().unwrap();
        let comm = nccl.comm(&context, rank, 2, &id, &OPTIONS).unwrap();
        let (stream, buffer) = (context.stream().unwrap(), context.alloc(8).unwrap());
        body(&comm, &stream, &buffer)
    };
    std::thread::scope(|scope| {
        let (first, second) = (scope.spawn(|| rank(0)), scope.spawn(|| rank(1)));
        [first.join().unwrap(), second.join().unwrap()]
    })
}

/// Waits for the error of work that was enqueued.
fn failure(comm: &Comm) -> NcclError {
    let start = Instant::now();
    loop {
        if let Err(error) = comm.check() {
            return error;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no error comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn calls_that_do_not_fit_together_fail_on_all_ranks() {
    type Call = fn(&Comm, &Stream, &DeviceBuffer) -> Result<(), NcclError>;
    let calls: [(Call, &str); 7] = [
        (|comm, stream, all| comm.all_reduce(stream, all, all, DType::F32, SUM), "ncclAllReduce of 2 of dtype 7, op 0"),
        (|comm, stream, all| comm.all_reduce(stream, all, all, DType::F64, SUM), "ncclAllReduce of 1 of dtype 8, op 0"),
        (|comm, stream, all| comm.all_reduce(stream, all, all, DType::F32, ReduceOp::Max.into()), "op 2"),
        (
            |comm, stream, all| {
                let half = all.slice(0..4)?;
                comm.all_reduce(stream, &half, &half, DType::F32, SUM)
            },
            "ncclAllReduce of 1 of dtype 7, op 0",
        ),
        (|comm, stream, all| comm.broadcast(stream, all, all, DType::F32, 0), "ncclBroadcast of 2 of dtype 7, root 0"),
        (|comm, stream, all| comm.broadcast(stream, all, all, DType::F32, 1), "ncclBroadcast of 2 of dtype 7, root 1"),
        (
            |comm, stream, all| comm.all_reduce(stream, all, all, DType::F32, Reduction::PreMulSum { factor: 2.0 }),
            "ncclAllReduce of 2 of dtype 7, op 0",
        ),
    ];
    let session = session();
    for other in 1..calls.len() {
        let errors = pair(&session, |comm, stream, buffer| {
            let (call, _) = calls[if comm.rank() == 0 { 0 } else { other }];
            call(comm, stream, buffer).unwrap();
            let error = failure(comm);
            stream.synchronize().unwrap();
            comm.abort().unwrap();
            error
        });
        for error in errors {
            assert_eq!(error.code(), Some(NcclResult::INVALID_USAGE), "{error}");
            let text = error.to_string();
            assert!(text.contains("rank 0 calls ncclAllReduce of 2 of dtype 7, op 0"), "{text}");
            assert!(text.contains("rank 1 calls ") && text.contains(calls[other].1), "{other}: {text}");
        }
    }
    assert_eq!(session.live_comms(), 0);
}

#[test]
fn a_message_of_another_length_than_expected_fails_on_both_ranks() {
    let session = session();
    let errors = pair(&session, |comm, stream, buffer| {
        match comm.rank() {
            0 => comm.send(stream, buffer, DType::F32, 1).unwrap(),
            _ => comm.recv(stream, &buffer.slice(0..4).unwrap(), DType::F32, 0).unwrap(),
        }
        failure(comm).to_string()
    });
    for error in errors {
        assert!(error.contains("rank 1 calls ncclRecv of 1 of dtype 7, rank 0 calls ncclSend of 2"), "{error}");
    }
}

#[test]
fn an_abort_releases_every_rank() {
    let session = session();
    let start = Barrier::new(2);
    let errors = pair(&session, |comm, stream, buffer| {
        if comm.rank() == 1 {
            start.wait();
            std::thread::sleep(Duration::from_millis(20));
            comm.abort().unwrap();
            return None;
        }
        comm.all_reduce(stream, buffer, buffer, DType::F32, SUM).unwrap();
        assert!(!comm.is_idle().unwrap(), "it waits for rank 1");
        start.wait();
        let error = failure(comm);
        stream.synchronize().unwrap();
        let refused = comm.all_reduce(stream, buffer, buffer, DType::F32, SUM).unwrap_err();
        assert_eq!(refused.code(), error.code(), "{refused}");
        Some(error)
    });
    let error = errors[0].as_ref().unwrap();
    assert_eq!(error.code(), Some(NcclResult::REMOTE_ERROR));
    let expected = "an earlier call failed on rank 0 of 2 with ncclRemoteError (6): remote process exited or there was a \
                    network error; NCCL says: rank 1: it aborted";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_watchdog_ends_what_its_own_rank_waits_for() {
    let session = session();
    let end = Barrier::new(2);
    pair(&session, |comm, stream, buffer| {
        if comm.rank() == 1 {
            end.wait(); // makes no call
            return;
        }
        session.inject("ncclAllReduce:1=hang");
        comm.all_reduce(stream, buffer, buffer, DType::F32, SUM).unwrap();
        let watched = comm.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            watched.abort().unwrap();
        });
        stream.synchronize().unwrap();
        assert!(matches!(comm.check(), Err(NcclError::Closed { .. })));
        end.wait();
    });
    assert_eq!((session.live_comms(), session.violations()), (0, Vec::new()));
}

#[test]
fn a_close_that_waits_for_a_rank_aborts_after_the_timeout() {
    let session = session();
    let (nccl, driver) = (session.nccl(), session.driver());
    let members: Vec<_> = (0..2).map(|rank| (driver.device(rank).unwrap().context().unwrap(), rank)).collect();
    let options = InitOptions { timeout: Duration::from_millis(50), ..OPTIONS };
    let comms = nccl.comms(&members, 2, &nccl.unique_id().unwrap(), &options).unwrap();
    let (stream, buffer) = (members[0].0.stream().unwrap(), members[0].0.alloc(8).unwrap());
    comms[0].all_reduce(&stream, &buffer, &buffer, DType::F32, SUM).unwrap();
    let error = comms[0].close().unwrap_err().to_string();
    assert_eq!(error, "Comm::close on rank 0 of 2 is not over after 50ms: another rank did not come, or is gone");
    stream.synchronize().unwrap();
    assert!(matches!(comms[0].close(), Err(NcclError::Closed { .. })));
}

#[test]
fn a_rank_that_never_joins_is_a_timeout() {
    let session = session();
    let (nccl, context) = (session.nccl(), session.driver().device(0).unwrap().context().unwrap());
    let options = InitOptions { timeout: Duration::from_millis(50), ..OPTIONS };
    let start = Instant::now();
    let error = nccl.comm(&context, 1, 3, &nccl.unique_id().unwrap(), &options).unwrap_err();
    assert!(matches!(error, NcclError::Timeout { rank: 1, size: 3, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(session.live_comms(), 0);
}

#[test]
fn a_wrong_size_a_rank_twice_and_an_id_of_nobody_are_errors() {
    let session = session();
    let (nccl, driver) = (session.nccl(), session.driver());
    let both = |ranks: [(u32, u32); 2]| {
        let id = nccl.unique_id().unwrap();
        let start = |nth: usize| {
            let context = driver.device(nth as u32).unwrap().context().unwrap();
            let (rank, size) = ranks[nth];
            nccl.comm(&context, rank, size, &id, &OPTIONS).map(drop).err().map(|error| error.to_string())
        };
        std::thread::scope(|scope| {
            let (first, second) = (scope.spawn(|| start(0)), scope.spawn(|| start(1)));
            [first.join().unwrap(), second.join().unwrap()]
        })
    };
    let wrong = both([(0, 2), (1, 3)]).into_iter().flatten().collect::<String>();
    assert!(wrong.contains("one of 3 ranks") || wrong.contains("one of 2 ranks"), "{wrong}");
    let twice = both([(0, 2), (0, 2)]).into_iter().flatten().collect::<String>();
    assert!(twice.contains("rank 0 is there twice"), "{twice}");

    let context = driver.device(0).unwrap().context().unwrap();
    let nobody = bucketeer_cuda::nccl::UniqueId::from_bytes([1; 128]);
    let error = nccl.comm(&context, 0, 1, &nobody, &OPTIONS).unwrap_err();
    assert_eq!(error.code(), Some(NcclResult::INVALID_ARGUMENT));
    assert!(error.to_string().contains("NCCL says: the unique id is none"), "{error}");
    for (ranks, size) in [(vec![], 1), (vec![1], 1), (vec![0, 0], 2), (vec![0], u32::MAX)] {
        let members: Vec<_> = ranks.iter().map(|rank| (context.clone(), *rank)).collect();
        let id = nccl.unique_id().unwrap();
        assert!(matches!(nccl.comms(&members, size, &id, &OPTIONS), Err(NcclError::Invalid { .. })), "{ranks:?}");
    }
    assert_eq!(session.live_comms(), 0);
}

#[test]
fn the_ranks_that_are_left_go_on_without_one_that_failed() {
    let session = session();
    let (nccl, driver) = (session.nccl(), session.driver());
    let id = nccl.unique_id().unwrap();
    session.inject("ncclBroadcast:1=late:3");
    let rank = |rank: u32| {
        let context = driver.device(rank).unwrap().context().unwrap();
        let comm = nccl.comm(&context, rank, 3, &id, &OPTIONS).unwrap();
        let (stream, buffer) = (context.stream().unwrap(), context.alloc(1).unwrap());
        if rank == 1 {
            // The only broadcast, which fails as a fault of NCCL would.
            comm.broadcast(&stream, &buffer, &buffer, DType::U8, 0).unwrap();
            let error = failure(&comm);
            assert_eq!(error.code(), Some(NcclResult::INTERNAL_ERROR), "{error}");
            return 0;
        }
        comm.all_reduce(&stream, &buffer, &buffer, DType::U8, SUM).unwrap();
        let error = failure(&comm).to_string();
        assert!(error.contains("ncclRemoteError") && error.contains("rank 1: "), "{error}");
        let rest = comm.shrink(&[1], true).unwrap();
        stream.upload(&[3], &buffer, 0).unwrap();
        rest.all_reduce(&stream, &buffer, &buffer, DType::U8, SUM).unwrap();
        let mut sum = [0];
        stream.download(&buffer, 0, &mut sum).unwrap();
        rest.close().unwrap();
        assert_eq!((rest.rank(), rest.size()), (rank / 2, 2));
        sum[0]
    };
    let sums = std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = (0..3).map(|nth| scope.spawn(move || rank(nth))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(sums, [6, 0, 6]);
}

#[test]
fn an_abort_in_a_group_comes_at_its_end() {
    let session = session();
    let (nccl, context) = (session.nccl(), session.driver().device(0).unwrap().context().unwrap());
    let comm = nccl.comm(&context, 0, 1, &nccl.unique_id().unwrap(), &OPTIONS).unwrap();
    let (stream, buffer) = (context.stream().unwrap(), context.alloc(8).unwrap());
    let group = nccl.group().unwrap();
    comm.all_reduce(&stream, &buffer, &buffer, DType::F32, SUM).unwrap();
    let elsewhere = comm.clone();
    std::thread::spawn(move || {
        let error = elsewhere.shape().unwrap_err().to_string();
        assert!(error.contains("a group of another thread"), "{error}");
        elsewhere.abort().unwrap();
    })
    .join()
    .unwrap();
    let refused = comm.all_reduce(&stream, &buffer, &buffer, DType::F32, SUM).unwrap_err();
    assert!(matches!(refused, NcclError::Closed { .. }), "{refused}");
    assert_eq!(session.live_comms(), 1, "until then");
    assert!(matches!(group.end(), Err(NcclError::Closed { .. })));
    assert_eq!(session.live_comms(), 0);
}

/// All calls once, in worlds of one, and of two for what needs another rank.
fn everything(session: &Session, options: &InitOptions) -> Result<(), Box<dyn Error>> {
    let nccl = Nccl::load(Some(fakegpu::path()))?;
    let driver = session.driver();
    let contexts = [driver.device(0)?.context()?, driver.device(1)?.context()?];
    let comm = nccl.comm(&contexts[0], 0, 1, &nccl.unique_id()?, options)?;
    let stream = contexts[0].stream()?;
    let has_memory = nccl.version().minor >= 19;
    let buffer = if has_memory { nccl.alloc(&contexts[0], 64)? } else { contexts[0].alloc(64)? };
    let other = contexts[0].alloc(64)?;
    stream.fill(&buffer, 0..64, 1)?;
    comm.all_reduce(&stream, &buffer, &other, DType::F32, Reduction::PreMulSum { factor: 1.0 })?;
    comm.reduce(&stream, &buffer, &other, (DType::F32, SUM), 0)?;
    comm.broadcast(&stream, &buffer, &other, DType::F32, 0)?;
    comm.all_gather(&stream, &buffer, &other, DType::F32)?;
    comm.reduce_scatter(&stream, &buffer, &other, DType::F32, SUM)?;
    comm.all_to_all(&stream, &buffer, &other, DType::F32)?;
    let group = nccl.group()?;
    comm.send(&stream, &buffer, DType::F32, 0)?;
    comm.recv(&stream, &other, DType::F32, 0)?;
    group.end()?;
    stream.synchronize()?;
    comm.check()?;
    if has_memory {
        let (plain, window) = (comm.register(&buffer)?, comm.register_window(&buffer)?);
        comm.deregister(plain)?;
        comm.deregister(window)?;
        comm.split(Some(0), 0)?.ok_or("there is a color")?.close()?;
        let members = [(contexts[0].clone(), 0), (contexts[1].clone(), 1)];
        let pair = nccl.comms(&members, 2, &nccl.unique_id()?, options)?;
        pair[0].shrink(&[1], false)?.close()?;
        pair[1].abort()?;
    }
    let mut found = [0; 64];
    stream.download(&other, 0, &mut found)?;
    assert_eq!(found, [1; 64], "no error, so the values are right");
    comm.close()?;
    Ok(())
}

const TABLE: &str = include_str!("../../crates/cuda/src/nccl/sys/nccl.rs");

/// The functions of the table in `sys`, in its order, with the version that brought those that may be missing.
fn symbols() -> Vec<(&'static str, Option<i32>)> {
    let lines = TABLE.lines().filter_map(|line| line.trim().split_once('(').map(|(name, _)| name));
    let symbols = lines.filter_map(|name| match name.split_once(' ') {
        Some((version, name)) => Some((name, Some(version.parse().ok()?))),
        None => Some((name, None)),
    });
    symbols.filter(|(name, _)| name.starts_with("nccl")).collect()
}

#[test]
fn a_fault_of_any_call_is_an_error_that_names_it_and_leaks_nothing() {
    let session = session();
    everything(&session, &OPTIONS).unwrap();
    let unlogged = ["ncclGetErrorString", "ncclGetLastError"];
    // Frees nothing then, and has nobody to tell.
    let in_drops = ["ncclMemFree"];
    let ends = ["ncclCommDestroy", "ncclCommAbort"];
    let old = ["ncclCommInitRank"];
    let mut struck = 0;
    for (symbol, _) in symbols().into_iter().filter(|(symbol, _)| !unlogged.contains(symbol)) {
        if old.contains(&symbol) {
            session.set_nccl_version(21_300);
        }
        let before = (session.live(), session.live_comms());
        session.inject(&format!("{symbol}:1=2"));
        match everything(&session, &OPTIONS) {
            Ok(()) => assert!(in_drops.contains(&symbol), "{symbol} failed and nobody said so"),
            Err(error) => {
                let text = error.to_string();
                let is_named = text.starts_with(&format!("{symbol} failed")) && text.contains("ncclSystemError (2): ");
                assert!(is_named, "{symbol}: {text}");
                struck += 1;
            }
        }
        if !in_drops.contains(&symbol) && !ends.contains(&symbol) {
            assert_eq!((session.live(), session.live_comms()), before, "{symbol} leaves something behind");
        }
        session.reset();
        everything(&session, &OPTIONS).unwrap_or_else(|error| panic!("after {symbol}: {error}"));
    }
    assert_eq!(struck, symbols().len() - unlogged.len() - in_drops.len());
}

#[test]
fn libraries_of_every_age_do_what_they_can() {
    let session = session();
    for version in [21_000, 21_100, 21_400, 21_800] {
        session.set_nccl_version(version);
        let result = everything(&session, &OPTIONS).map_err(|error| error.to_string());
        match version {
            21_000 => {
                let expected =
                    "ncclRedOpCreatePreMulSum: this NCCL is 2.10.0, which does not have it; it came with 2.11.0";
                assert_eq!(result, Err(expected.to_owned()));
            }
            _ => assert_eq!(result, Ok(()), "{version}"),
        }
    }
    session.set_nccl_version(20_904);
    let error = Nccl::load(Some(fakegpu::path())).unwrap_err();
    assert!(matches!(error, NcclError::TooOld { .. }));
    assert!(error.to_string().contains(" is 2.9.4, and 2.10.0 is needed at least"), "{error}");
}

#[test]
fn blocking_communicators_work_too() {
    let session = session();
    everything(&session, &InitOptions { blocking: true, ..OPTIONS }).unwrap();
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn a_code_that_nobody_knows_is_an_error_too() {
    let session = session();
    let nccl = session.nccl();
    session.inject("ncclGetUniqueId:1=77");
    let error = nccl.unique_id().unwrap_err().to_string();
    assert!(error.starts_with("ncclGetUniqueId failed with unknown code (77): unknown result code"), "{error}");
}

/// A library that has functions of these names; `ncclGetVersion` answers 2.30.7.
fn stub(folder: &Path, name: &str, symbols: impl Iterator<Item = &'static str>) -> PathBuf {
    let source = folder.join(format!("{name}.c"));
    let function = |symbol: &str| match symbol {
        "ncclGetVersion" => format!("int {symbol}(int *version) {{ *version = 23007; return 0; }}\n"),
        _ => format!("int {symbol}(void) {{ return 0; }}\n"),
    };
    std::fs::write(&source, symbols.map(function).collect::<String>()).unwrap();
    let library = folder.join(format!("{name}.so"));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let done = Command::new(compiler).args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(done.unwrap().success());
    library
}

#[test]
fn a_missing_function_is_an_error_when_every_version_has_it() {
    let folder = std::env::temp_dir().join(format!("bucketeer-nccl-stubs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (missing, since) in symbols() {
        let names = symbols().into_iter().map(|(name, _)| name).filter(|name| *name != missing);
        let library = stub(&folder, missing, names);
        match (Nccl::load(Some(&library)), since) {
            (Ok(nccl), Some(_)) => assert_eq!(nccl.missing(), [missing]),
            (Err(error), None) => {
                let expected =
                    format!("the collectives library (NCCL) at {} has no function {missing}: ", library.display());
                assert!(error.to_string().starts_with(&expected), "{error}");
            }
            (result, _) => panic!("{missing}: {result:?}"),
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn starts_and_stops_leave_nothing_behind() {
    fn held() -> [usize; 2] {
        ["fd", "task"].map(|what| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count())
    }
    let session = session();
    everything(&session, &OPTIONS).unwrap();
    let before = held();
    (0..50).for_each(|_| everything(&session, &OPTIONS).unwrap());
    assert_eq!((session.live(), session.live_comms()), ([0; 4], 0));
    let start = Instant::now();
    while held().iter().zip(before).any(|(now, before)| *now > before + 8) {
        assert!(start.elapsed() < Duration::from_secs(20), "{before:?} before, {:?} after", held());
        std::thread::sleep(Duration::from_millis(20));
    }
}
