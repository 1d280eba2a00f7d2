//! How ranks of the backend `nccl` end, and that nobody waits longer than needed for one that is gone: while a group
//! connects, while NCCL is in a call, and for groups that were never used. The flight record has what was said.

use bucketeer::ir::{DType, GlobalRank, ReduceOp};
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::store::{MemoryStore, Store, StoreError};
use bucketeer_comm::{Announced, Backend, BufferError, Call, CallOptions, CallSignature, CommError, Fate, Operands};
use kit::collective::ranks;
use kit::fakegpu::session;
use kit::nccl_threads::{LIMIT, Meet, flight_record, folder, options, reduce, run, words};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Far longer than any test may take.
const NEVER_MS: u64 = 600_000;

#[test]
fn a_rank_that_is_lost_while_nccl_connects_is_named_at_once() {
    let session = session();
    session.inject("ncclCommInitRankConfig:*=hang");
    let end = Meet::new(3);
    let errors = run(&session, 3, &options(NEVER_MS), |rank, group, store| {
        let own = rank.rank();
        std::thread::scope(|scope| {
            let found = scope.spawn(|| reduce(&rank, group, 1).unwrap_err());
            if own == GlobalRank(1) {
                std::thread::sleep(Duration::from_millis(100));
                store.lose();
            }
            let found = found.join().unwrap();
            end.wait();
            found
        })
    });
    for at in [0, 2] {
        assert!(
            matches!(errors[at], CommError::Remote { rank: GlobalRank(1), fate: Fate::Lost, .. }),
            "{}",
            errors[at]
        );
    }
}

#[test]
fn ranks_that_nccl_does_not_connect_in_time_are_all_said_to_be_there() {
    let session = session();
    session.inject("ncclCommInitRankConfig:*=hang");
    let errors = run(&session, 2, &options(1000), |rank, group, _| words(&reduce(&rank, group, 1).unwrap_err()));
    let expected = "group world, connect: late; all ranks arrived, but the transfer did not end";
    assert_eq!(errors, [expected, expected]);
}

#[test]
fn a_launch_that_nccl_keeps_pending_ends_with_its_own_timeout_and_names_who_did_not_launch() {
    let session = session();
    let end = Meet::new(2);
    let errors = run(&session, 2, &options(NEVER_MS), |rank, group, _| {
        reduce(&rank, group, 1).unwrap();
        let found = (rank.rank() == GlobalRank(0)).then(|| {
            session.inject("ncclAllReduce:1=pending");
            let buffer = rank.arena(4).unwrap().buffer(0, 4).unwrap();
            let data = Operands::in_place(buffer, DType::F32);
            let options = CallOptions::default().timeout(Duration::from_millis(300));
            words(&rank.all_reduce(group, data, ReduceOp::Sum.into(), &options).unwrap_err())
        });
        end.wait();
        found
    });
    let expected = "group world, all_reduce #1: late; rank 1 did not arrive, rank 0 did";
    assert_eq!(errors[0].as_deref(), Some(expected));
}

#[test]
fn a_launch_that_nccl_keeps_pending_ends_when_a_rank_is_lost() {
    let session = session();
    let end = Meet::new(2);
    let errors = run(&session, 2, &options(NEVER_MS), |rank, group, store| {
        reduce(&rank, group, 1).unwrap();
        let found = (rank.rank() == GlobalRank(0)).then(|| {
            session.inject("ncclAllReduce:1=pending");
            reduce(&rank, group, 1).unwrap_err()
        });
        if rank.rank() == GlobalRank(1) {
            std::thread::sleep(Duration::from_millis(100));
            store.lose();
        }
        end.wait();
        found
    });
    let error = errors[0].as_ref().unwrap();
    assert!(matches!(error, CommError::Remote { rank: GlobalRank(1), fate: Fate::Lost, .. }), "{error}");
}

#[test]
fn a_launch_on_what_another_rank_broke_names_that_rank() {
    for _ in 0..10 {
        let session = session();
        // The watchdogs look so rarely that the launch finds it first.
        let options = NcclOptions { poll: Duration::from_millis(100), ..options(NEVER_MS) };
        let broken = Meet::new(2);
        let errors = run(&session, 2, &options, |rank, group, _| {
            reduce(&rank, group, 1).unwrap();
            let buffer = rank.arena(4).unwrap().buffer(0, 4).unwrap();
            let data = Operands::in_place(buffer, DType::F32);
            let call = || rank.all_reduce(group, data.clone(), ReduceOp::Sum.into(), &CallOptions::default());
            if rank.rank() == GlobalRank(1) {
                session.inject("ncclAllReduce:1=late:3");
                let work = call();
                broken.wait();
                return work.and_then(|work| work.wait(None)).unwrap_err();
            }
            broken.wait();
            let first = reduce(&rank, group, 1);
            first.and_then(|()| reduce(&rank, group, 1)).unwrap_err()
        });
        for error in errors {
            assert_eq!(error.culprits(), [GlobalRank(1)], "{error}");
        }
    }
}

#[test]
fn a_rank_that_goes_before_it_connects_is_named_at_once_while_its_store_stays() {
    let session = session();
    let end = Meet::new(2);
    let errors = run(&session, 2, &options(NEVER_MS), |rank, group, _| {
        let found = match rank.rank().0 {
            0 => Some(reduce(&rank, group, 1).unwrap_err()),
            _ => None,
        };
        drop(rank);
        end.wait();
        found
    });
    let error = errors[0].as_ref().unwrap();
    assert!(matches!(error, CommError::Remote { rank: GlobalRank(1), fate: Fate::Left, .. }), "{error}");
}

#[test]
fn a_block_that_is_open_when_its_rank_goes_frees_its_buffers() {
    let session = session();
    let left = run(&session, 1, &options(NEVER_MS), |rank, group, _| {
        let buffer = rank.arena(4).unwrap().buffer(0, 4).unwrap();
        rank.start_coalescing(group).unwrap();
        let data = Operands::in_place(buffer.clone(), DType::F32);
        let work = rank.all_reduce(group, data, ReduceOp::Sum.into(), &CallOptions::default()).unwrap();
        assert!(matches!(buffer.read(), Err(BufferError::InUse { .. })), "the block holds it");
        drop(rank);
        let error = work.wait(None).unwrap_err();
        assert!(matches!(error, CommError::Remote { rank: GlobalRank(0), fate: Fate::Left, .. }), "{error}");
        buffer.read().map(|bytes| bytes.len()).map_err(|error| error.to_string())
    });
    assert_eq!((left, session.live()), (vec![Ok(4)], [0; 4]));
}

/// A store that counts the values that it holds of one rank.
struct Counting(MemoryStore, AtomicI64);

impl Store for Counting {
    fn rank(&self) -> GlobalRank {
        self.0.rank()
    }

    fn world_size(&self) -> u32 {
        self.0.world_size()
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.set(key, value)
    }

    fn set_once(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.0.set_once(key, value)
    }

    fn get(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.0.get(keys)
    }

    fn wait(&self, keys: &[String], timeout: Duration) -> Result<Vec<Vec<u8>>, StoreError> {
        self.0.wait(keys, timeout)
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.0.add(key, delta)
    }

    fn remove(&self, key: &str) -> Result<bool, StoreError> {
        let removed = self.0.remove(key)?;
        self.1.fetch_sub(i64::from(removed), Ordering::Relaxed);
        Ok(removed)
    }

    fn gone(&self) -> Vec<(GlobalRank, Fate)> {
        self.0.gone()
    }

    fn refused(&self) -> Vec<String> {
        self.0.refused()
    }
}

#[test]
fn what_is_announced_again_and_again_does_not_fill_the_store() {
    let session = session();
    let (nccl, driver) = (session.nccl(), session.driver());
    std::thread::scope(|scope| {
        for store in MemoryStore::world(2) {
            let (nccl, driver) = (&nccl, &driver);
            scope.spawn(move || {
                let store = Arc::new(Counting(store, AtomicI64::new(0)));
                let context = driver.device(store.rank().0).unwrap().context().unwrap();
                let rank = NcclRank::new(nccl, &context, store.clone(), options(NEVER_MS)).unwrap();
                let group = rank.new_group("world", &ranks(2)).unwrap();
                let calls = vec![CallSignature::of(&Call::barrier())];
                for _ in 0..100 {
                    rank.announce(&[Announced { group: group.clone(), calls: calls.clone() }]).unwrap();
                }
                let held = store.1.load(Ordering::Relaxed);
                assert!(held < 5, "{held} values");
                rank.close().unwrap();
            });
        }
    });
}

#[test]
fn who_goes_after_another_gives_up_what_would_still_arrive() {
    let session = session();
    let left = Meet::new(2);
    run(&session, 2, &NcclOptions { grace: LIMIT, ..options(NEVER_MS) }, |rank, group, _| {
        reduce(&rank, group, 1).unwrap();
        if rank.rank() == GlobalRank(1) {
            reduce(&rank, group, 1).unwrap();
            drop(rank);
            return left.wait();
        }
        // The sum is made, and the copy to the host is late.
        session.delay_stream_us(&rank.stream(group).unwrap(), 500_000);
        let buffer = rank.arena(4).unwrap().buffer(0, 4).unwrap();
        let data = Operands::in_place(buffer, DType::F32);
        let work = rank.all_reduce(group, data, ReduceOp::Sum.into(), &CallOptions::default()).unwrap();
        left.wait();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!work.is_done());
        drop(rank);
        let error = work.wait(None).unwrap_err();
        assert!(matches!(error, CommError::Remote { rank: GlobalRank(1), fate: Fate::Left, .. }), "{error}");
    });
    assert_eq!((session.live_comms(), session.violations()), (0, Vec::new()));
}

#[test]
fn any_grace_is_taken() {
    let session = session();
    let options = NcclOptions { grace: Duration::MAX, ..options(1000) };
    let end = Meet::new(2);
    let errors = run(&session, 2, &options, |rank, group, _| {
        reduce(&rank, group, 1).unwrap();
        if rank.rank() == GlobalRank(0) {
            let found = words(&reduce(&rank, group, 1).unwrap_err());
            end.wait();
            return found;
        }
        end.wait();
        String::new()
    });
    assert_eq!(errors[0], "group world, all_reduce #1: late; rank 1 did not arrive, rank 0 did");
}

#[test]
fn what_many_large_blocks_report_is_heard() {
    let session = session();
    let end = Meet::new(2);
    let errors = run(&session, 2, &options(1500), |rank, group, _| {
        // NCCL has nothing to do for calls of no elements, but they are reported.
        for _ in 0..200 {
            rank.start_coalescing(group).unwrap();
            for _ in 0..64 {
                let data = Operands::in_place(rank.arena(1).unwrap().buffer(0, 0).unwrap(), DType::F32);
                rank.all_reduce(group, data, ReduceOp::Sum.into(), &CallOptions::default()).unwrap();
            }
            let block = CallOptions::blocking().timeout(LIMIT);
            rank.end_coalescing(group, &block).unwrap();
        }
        let found = (rank.rank() == GlobalRank(0)).then(|| words(&reduce(&rank, group, 1).unwrap_err()));
        end.wait();
        found
    });
    let expected = "group world, all_reduce #200: late; rank 1 did not arrive, rank 0 did";
    assert_eq!(errors[0].as_deref(), Some(expected));
}

#[test]
fn a_call_that_is_refused_for_a_lost_rank_is_in_the_flight_record() {
    let session = session();
    let folder = folder("refused");
    let options = NcclOptions { flight_records: Some(folder.clone()), ..options(NEVER_MS) };
    let end = Meet::new(2);
    run(&session, 2, &options, |rank, group, store| {
        reduce(&rank, group, 1).unwrap();
        if rank.rank() == GlobalRank(1) {
            store.lose();
        } else {
            // Nothing is on its way when the rank is lost.
            std::thread::sleep(Duration::from_millis(200));
            let error = reduce(&rank, group, 1).unwrap_err();
            assert!(matches!(error, CommError::Remote { rank: GlobalRank(1), fate: Fate::Lost, .. }), "{error}");
            assert_eq!(flight_record(&folder, 0).unwrap()["culprits"], json!([1]));
        }
        end.wait();
    });
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn ranks_that_end_one_after_the_other_write_no_flight_record() {
    let session = session();
    let folder = folder("peace");
    let options =
        NcclOptions { flight_records: Some(folder.clone()), grace: Duration::from_millis(50), ..options(NEVER_MS) };
    run(&session, 2, &options, |rank, group, _| {
        reduce(&rank, group, 1).unwrap();
        if rank.rank() == GlobalRank(0) {
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    assert!(!folder.exists());
}

#[test]
fn later_failures_do_not_hide_the_first() {
    let session = session();
    let folder = folder("first");
    let options = NcclOptions { flight_records: Some(folder.clone()), ..options(1000) };
    let end = Meet::new(2);
    run(&session, 2, &options, |rank, group, _| {
        let other = rank.new_group("other", &ranks(2)).unwrap();
        reduce(&rank, group, 1).unwrap();
        if rank.rank() == GlobalRank(0) {
            reduce(&rank, group, 1).unwrap_err();
            rank.abort(&other);
        }
        end.wait();
    });
    let record = flight_record(&folder, 0).unwrap();
    assert_eq!((&record["failed_group"], &record["culprits"]), (&json!("world"), &json!([1])), "{record}");
    let later = &record["later_failures"][0];
    assert_eq!((&later["failed_group"], &later["culprits"]), (&json!("other"), &json!([0])), "{record}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_thread_that_panics_before_its_group_connects_is_said_to_have_panicked() {
    let session = session();
    let end = Meet::new(2);
    let outcomes = run(&session, 2, &options(NEVER_MS), |rank, group, _| {
        if rank.rank() == GlobalRank(0) {
            let error = reduce(&rank, group, 1).unwrap_err();
            end.wait();
            return Some(error);
        }
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _rank = rank;
            std::panic::resume_unwind(Box::new("as planned"));
        }));
        assert!(panicked.is_err());
        end.wait();
        None
    });
    let error = outcomes[0].as_ref().unwrap();
    assert!(matches!(error, CommError::Remote { rank: GlobalRank(1), fate: Fate::Panicked, .. }), "{error}");
}
