//! Faults: each ends in a named error on all ranks, and MPI ends well afterwards unless a rank is stuck.

use bucketeer::ir::{DType, GlobalRank, GroupRank, ReduceOp};
use bucketeer_comm::mpi::{MpiOptions, MpiRank};
use bucketeer_comm::{Backend, Buffer, BufferError, CallOptions, CommError, Fate, Group, Operands};
use kit::collective::ranks;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

fn buffer(rank: &MpiRank, bytes: u64) -> Buffer {
    rank.arena(bytes).unwrap().buffer(0, bytes).unwrap()
}

fn data(buffer: &Buffer, dtype: DType) -> Operands {
    Operands::in_place(buffer.clone(), dtype)
}

/// Until a buffer is given back. MPI may have it a little longer than the call.
fn assert_given_back(buffer: &Buffer) {
    let start = Instant::now();
    while let Err(error) = buffer.write() {
        assert!(start.elapsed() < LONG, "{error}");
        sleep(Duration::from_millis(1));
    }
}

/// Groups that break, one after another; then all ranks end well.
pub fn broken_groups(rank: &MpiRank) {
    let all = ranks(rank.world_size() as usize);
    let safe = rank.new_group("safe", &all).unwrap();
    let fence = || rank.barrier(&safe, &CallOptions::blocking()).unwrap();
    mismatches(rank, &all);
    fence();
    late_rank(rank, &all);
    fence();
    unmet_send(rank, &all);
    fence();
    late_after_data(rank, &all);
    fence();
    given_up_at_once(rank, &all);
    fence();
    aborted(rank, &all);
    fence();
    other_members(rank, &all);
    fence();
    refused(rank, &safe);
    fence();
}

fn mismatches(rank: &MpiRank, all: &[GlobalRank]) {
    let last = *all.last().unwrap();
    let (own, is_last) = (buffer(rank, 64), rank.rank() == last);
    let options = CallOptions::blocking().timeout(LONG);
    let (sum, max) = (ReduceOp::Sum.into(), ReduceOp::Max.into());
    let call = |what: &str, group: &Group| match (what, is_last) {
        ("op", true) => rank.broadcast(group, data(&own, DType::F32), GroupRank(0), &options),
        ("reduction", true) => rank.all_reduce(group, data(&own, DType::F32), max, &options),
        ("dtype", true) => rank.all_reduce(group, data(&own, DType::I32), sum, &options),
        ("count", true) => rank.all_reduce(group, data(&own.part(0, 32).unwrap(), DType::F32), sum, &options),
        ("root", _) => rank.broadcast(group, data(&own, DType::F32), GroupRank(u32::from(is_last)), &options),
        ("number of calls", _) => {
            rank.start_coalescing(group).unwrap();
            for _ in 0..1 + u32::from(is_last) {
                let each = rank.arena(64).unwrap().buffer(0, 64).unwrap();
                rank.all_reduce(group, data(&each, DType::F32), sum, &CallOptions::default()).unwrap();
            }
            rank.end_coalescing(group, &options)
        }
        ("split", _) => {
            let size = group.size() as u64;
            let (to, from) = (buffer(rank, size * 3), buffer(rank, size * 2));
            let give = if is_last { 3 } else { 2 };
            let to = to.part(0, size * give).unwrap();
            let operands = Operands::new(to, from, DType::U8);
            rank.all_to_all_single(group, operands, &vec![give; size as usize], &vec![2; size as usize], &options)
        }
        _ => rank.all_reduce(group, data(&own, DType::F32), sum, &options),
    };
    for what in ["op", "reduction", "dtype", "count", "root", "number of calls", "split"] {
        let group = rank.new_group(what, all).unwrap();
        let error = call(what, &group).map(drop).unwrap_err();
        let CommError::Mismatch { site, what: found, ranks, .. } = &error else { panic!("{what}: {error}") };
        assert_eq!((*found, ranks.1, site.seq), (what, last, Some(0)), "{error}");
        // Nothing is launched any more, and the cause is kept.
        let later = rank.barrier(&group, &options).unwrap_err();
        assert!(matches!(later, CommError::Comm { .. }) && later.to_string().contains(what), "{later}");
        assert_given_back(&own);
    }
}

/// Rank 1 does not come; the others go on without it.
fn late_rank(rank: &MpiRank, all: &[GlobalRank]) {
    // Together until then, however busy the machine is.
    let before = rank.new_group("before late", all).unwrap();
    rank.barrier(&before, &CallOptions::blocking()).unwrap();
    let group = rank.new_group("late", all).unwrap();
    let own = buffer(rank, 1 << 20);
    if rank.rank() == GlobalRank(1) {
        // It is told by the others.
        sleep(Duration::from_millis(2000));
        let error = rank.barrier(&group, &CallOptions::blocking()).unwrap_err();
        assert!(error.to_string().contains("rank 1 did not arrive"), "{error}");
        return;
    }
    let options = CallOptions::default().timeout(Duration::from_millis(1000));
    let work = rank.all_reduce(&group, data(&own, DType::F32), ReduceOp::Sum.into(), &options).unwrap();
    assert!(matches!(own.write(), Err(BufferError::InUse { .. })));
    let error = work.wait(None).unwrap_err();
    let CommError::Timeout { site, waited, arrived, missing } = &error else { panic!("{error}") };
    assert_eq!((&*site.group, site.op, site.seq), ("late", "all_reduce", Some(0)));
    assert!(*waited >= Duration::from_millis(1000) && *missing == [GlobalRank(1)], "{error}");
    assert!(!arrived.is_empty() && !arrived.contains(&GlobalRank(1)));
    assert_eq!(work.wait(None).unwrap_err(), error);
    assert_given_back(&own);
    let smaller = rank.shrink(&group, &error.culprits()).unwrap();
    assert_eq!((smaller.name(), smaller.size()), ("late~1", all.len() - 1));
    let sum = rank.all_reduce(&smaller, data(&own, DType::F32), ReduceOp::Sum.into(), &CallOptions::blocking());
    sum.unwrap_or_else(|error| panic!("{error}"));
}

fn unmet_send(rank: &MpiRank, all: &[GlobalRank]) {
    let before = rank.new_group("before unmet", all).unwrap();
    rank.barrier(&before, &CallOptions::blocking()).unwrap();
    let group = rank.new_group("unmet", all).unwrap();
    let own = buffer(rank, 1 << 20);
    if rank.rank() == GlobalRank(0) {
        let options = CallOptions::blocking().timeout(Duration::from_millis(1000));
        let error = rank.send(&group, own.clone(), DType::U8, GroupRank(1), &options).unwrap_err();
        assert_eq!(error.culprits(), [GlobalRank(1)]);
        assert!(error.to_string().contains("send #0"), "{error}");
        assert_given_back(&own);
    } else if rank.rank() == GlobalRank(1) {
        sleep(Duration::from_millis(2000));
        let error = rank.recv(&group, own, DType::U8, GroupRank(0), &CallOptions::blocking()).unwrap_err();
        assert!(error.to_string().contains("recv #0") && error.to_string().contains("did not arrive"), "{error}");
    }
}

/// A rank gives up what another has begun to send: what is on its way finds an end.
fn late_after_data(rank: &MpiRank, all: &[GlobalRank]) {
    for round in 0..20 {
        let group = rank.new_group(&format!("given-up{round}"), all).unwrap();
        let own = buffer(rank, 4 << 20);
        let work = rank.all_reduce(&group, data(&own, DType::F32), ReduceOp::Sum.into(), &CallOptions::default());
        if rank.rank() == GlobalRank(1) {
            sleep(Duration::from_micros(200 * round));
            rank.abort(&group);
        }
        // Done or given up, maybe before it was launched here; but it ends.
        if let Err(error) = work.and_then(|work| work.wait(Some(LONG))) {
            assert!(matches!(error, CommError::Aborted { by: GlobalRank(1), .. }), "{error}");
        }
        assert_given_back(&own);
    }
}

/// A rank gives up what it has just launched and waits for the next call at once: while it waits, it takes in what
/// others had begun to send, as they arrive at the next call only when they have their memory back.
fn given_up_at_once(rank: &MpiRank, all: &[GlobalRank]) {
    for round in 0..10 {
        let group = rank.new_group(&format!("at-once{round}"), all).unwrap();
        let next = rank.new_group(&format!("next{round}"), all).unwrap();
        let own = buffer(rank, 4 << 20);
        if rank.rank() == GlobalRank(0) {
            // The others are there, and this rank has nothing to do.
            sleep(Duration::from_millis(20));
        }
        let work = rank.all_reduce(&group, data(&own, DType::F32), ReduceOp::Sum.into(), &CallOptions::default());
        if rank.rank() == GlobalRank(0) {
            rank.abort(&group);
        } else {
            // Done, if what the others have was enough.
            if let Err(error) = work.and_then(|work| work.wait(Some(LONG))) {
                assert!(matches!(error, CommError::Aborted { by: GlobalRank(0), .. }), "{error}");
            }
            assert_given_back(&own);
        }
        let all_came = rank.barrier(&next, &CallOptions::blocking().timeout(LONG));
        all_came.unwrap_or_else(|error| panic!("{error}"));
    }
}

fn aborted(rank: &MpiRank, all: &[GlobalRank]) {
    let group = rank.new_group("aborted", all).unwrap();
    if rank.rank() == GlobalRank(0) {
        sleep(Duration::from_millis(50));
        rank.abort(&group);
    } else {
        let error = rank.barrier(&group, &CallOptions::blocking()).unwrap_err();
        assert!(matches!(error, CommError::Aborted { by: GlobalRank(0), .. }), "{error}");
    }
    let error = rank.barrier(&group, &CallOptions::blocking()).unwrap_err();
    assert!(error.to_string().contains("rank 0 aborted the group"), "{error}");
}

fn other_members(rank: &MpiRank, all: &[GlobalRank]) {
    let mut members = all.to_vec();
    if rank.rank() == GlobalRank(0) {
        members.reverse();
    }
    let seen = rank
        .new_group("members", &members)
        .and_then(|group| rank.barrier(&group, &CallOptions::blocking().timeout(Duration::from_secs(2))).map(drop));
    // Who comes second is told at once; who came first is told by the second, or misses it.
    let error = seen.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("members") || matches!(error, CommError::Timeout { .. }), "{text}");
}

/// Arguments that are wrong: nothing is launched, and the group stays whole.
fn refused(rank: &MpiRank, group: &Group) {
    let own = buffer(rank, 64);
    let options = CallOptions::blocking();
    let error = rank.broadcast(group, data(&own, DType::F32), GroupRank(99), &options).unwrap_err();
    assert!(matches!(&error, CommError::Invalid { .. }) && error.to_string().contains("group rank 99"), "{error}");
    let held = own.write().unwrap();
    let error = rank.all_reduce(group, data(&own, DType::F32), ReduceOp::Sum.into(), &options).unwrap_err();
    assert!(matches!(&error, CommError::Buffer { error: BufferError::InUse { .. }, .. }), "{error}");
    drop(held);
    let error = rank.new_group("strangers", &[GlobalRank(99)]).unwrap_err();
    assert!(matches!(error, CommError::Invalid { .. }), "{error}");
    rank.start_coalescing(group).unwrap();
    assert!(rank.start_coalescing(group).is_err());
    assert!(rank.barrier(group, &options).unwrap_err().to_string().contains("before the block's end"));
    rank.end_coalescing(group, &options).unwrap();
    assert!(rank.end_coalescing(group, &options).is_err());
}

/// Rank 1 leaves before a barrier.
pub fn leaves(rank: MpiRank) {
    let all = ranks(rank.world_size() as usize);
    let group = rank.new_group("world", &all).unwrap();
    let own = buffer(&rank, 1 << 16);
    let sum = rank.all_reduce(&group, data(&own, DType::F32), ReduceOp::Sum.into(), &CallOptions::blocking());
    sum.unwrap_or_else(|error| panic!("{error}"));
    if rank.rank() == GlobalRank(1) {
        return drop(rank);
    }
    let error = rank.barrier(&group, &CallOptions::blocking().timeout(LONG)).unwrap_err();
    assert!(matches!(error, CommError::Remote { rank: GlobalRank(1), fate: Fate::Left, .. }), "{error}");
    let smaller = rank.shrink(&group, &error.culprits()).unwrap();
    rank.barrier(&smaller, &CallOptions::blocking()).unwrap();
    let error = rank.new_group("again", &all).unwrap_err();
    assert!(matches!(error, CommError::Remote { rank: GlobalRank(1), .. }), "{error}");
    rank.barrier(&smaller, &CallOptions::blocking()).unwrap();
    rank.finish().unwrap_or_else(|error| panic!("{error}"));
}

/// Rank 1 does nothing at all for long; rank 0 says so and ends.
pub fn stuck(rank: MpiRank) {
    let all = ranks(2);
    let group = rank.new_group("world", &all).unwrap();
    if rank.rank() == GlobalRank(1) {
        sleep(Duration::from_secs(100));
        return;
    }
    let options = CallOptions::blocking().timeout(Duration::from_millis(100));
    assert_eq!(rank.barrier(&group, &options).unwrap_err().culprits(), [GlobalRank(1)]);
    let start = Instant::now();
    let error = rank.finish().unwrap_err();
    assert!(start.elapsed() < LONG);
    println!("{error}");
}

pub fn panics(rank: &MpiRank) {
    let group = rank.new_group("world", &ranks(2)).unwrap();
    assert_ne!(rank.rank(), GlobalRank(1), "as it is told to");
    let error = rank.barrier(&group, &CallOptions::blocking().timeout(LONG)).unwrap_err();
    eprintln!("seen: {error}");
}

pub fn starts_once(rank: &MpiRank) {
    let error = MpiRank::init(MpiOptions::default()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("it can be started once"), "{error}");
    let group = rank.new_group("world", &ranks(rank.world_size() as usize)).unwrap();
    rank.barrier(&group, &CallOptions::blocking()).unwrap();
}
