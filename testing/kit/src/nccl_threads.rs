//! Ranks of the backend `nccl` as threads, on the fake GPU library.

use crate::collective::ranks;
use crate::fakegpu::Session;
use bucketeer::ir::{DType, ReduceOp};
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::store::{MemoryStore, Store};
use bucketeer_comm::{Backend, CallOptions, CommError, Group, Operands};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// No world below may take longer; it ends sooner by far.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The grace is only waited out where a rank says nothing, and long enough for a machine that is busy.
pub fn options(timeout_ms: u64) -> NcclOptions {
    NcclOptions {
        timeout: Duration::from_millis(timeout_ms),
        grace: Duration::from_secs(2),
        poll: Duration::from_millis(2),
        store_poll: Duration::from_millis(5),
        ..NcclOptions::default()
    }
}

/// A barrier of threads that fails when one of them does not come, as one that panics does not.
pub struct Meet {
    size: u32,
    came: Mutex<u32>,
    changed: Condvar,
}

impl Meet {
    /// For so many threads.
    pub fn new(size: u32) -> Self {
        Self { size, came: Mutex::new(0), changed: Condvar::new() }
    }

    /// Comes, and waits for the others.
    pub fn wait(&self) {
        let mut came = self.came.lock().unwrap();
        *came += 1;
        self.changed.notify_all();
        let (came, _) = self.changed.wait_timeout_while(came, LIMIT, |came| *came < self.size).unwrap();
        let (found, size) = (*came, self.size);
        drop(came);
        assert!(found >= size, "{found} of {size} threads came");
    }
}

/// Runs `body` as each of `size` ranks, with the group of all.
pub fn run<T: Send>(
    session: &Session,
    size: u32,
    options: &NcclOptions,
    body: impl Fn(NcclRank, &Group, &Arc<MemoryStore>) -> T + Sync,
) -> Vec<T> {
    let (nccl, driver, body) = (session.nccl(), session.driver(), &body);
    let start = Instant::now();
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = MemoryStore::world(size)
            .into_iter()
            .map(|store| {
                let (nccl, driver) = (&nccl, &driver);
                scope.spawn(move || {
                    let store = Arc::new(store);
                    let context = driver.device(store.rank().0).unwrap().context().unwrap();
                    let rank = NcclRank::new(nccl, &context, store.clone(), options.clone()).unwrap();
                    let group = rank.new_group("world", &ranks(size as usize)).unwrap();
                    body(rank, &group, &store)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(start.elapsed() < LIMIT);
    results
}

/// Sums zeros, and waits.
pub fn reduce(rank: &NcclRank, group: &Group, elements: u64) -> Result<(), CommError> {
    let buffer = rank.arena(4 * elements).unwrap().buffer(0, 4 * elements).unwrap();
    let data = Operands::in_place(buffer, DType::F32);
    rank.all_reduce(group, data, ReduceOp::Sum.into(), &CallOptions::default())?.wait(None)
}

/// An error without how long was waited, which differs from run to run.
pub fn words(error: &CommError) -> String {
    let error = error.to_string();
    match (error.find("not done after "), error.find("; ")) {
        (Some(from), Some(to)) => format!("{}late{}", &error[..from], &error[to..]),
        _ => error,
    }
}

/// A folder for flight records, which is not there yet.
pub fn folder(name: &str) -> PathBuf {
    let folder = crate::scratch().join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// The flight record of a rank, if it wrote one.
pub fn flight_record(folder: &Path, rank: u32) -> Option<Value> {
    let text = std::fs::read_to_string(folder.join(format!("flight-rank{rank}.json"))).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}
