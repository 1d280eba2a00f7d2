//! A process's rank on NCCL, as its launcher says it.

use crate::status::{BucketeerStatus, Failure};
use bucketeer_comm::Backend;
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::rendezvous::Rendezvous;
use bucketeer_comm::store::{MemoryStore, Store};
use bucketeer_cuda::Driver;
use bucketeer_cuda::nccl::Nccl;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the rank that holds the store waits for the others at the end, and how long it waits at a time.
const END_LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(200);

/// A rank and the store that it may hold for the others.
pub struct Process {
    rank: Arc<NcclRank>,
    store: Arc<dyn Store>,
}

fn comm(error: impl Display) -> Failure {
    Failure::new(BucketeerStatus::Comm, error.to_string())
}

impl Process {
    pub fn open(timeout: Option<Duration>, flight_records: Option<&str>) -> Result<Self, Failure> {
        let defaults = NcclOptions::default();
        let timeout = timeout.unwrap_or(defaults.timeout);
        let nccl = Nccl::load(None).map_err(comm)?;
        let driver = Driver::load(None).map_err(comm)?;
        let meeting = Rendezvous::from_env().map_err(comm)?;
        let local = meeting.as_ref().and_then(|meeting| meeting.local_rank).unwrap_or(0);
        let device = match driver.device_count().map_err(comm)? {
            // Where a launcher shows each rank one GPU, it is the first.
            1 => 0,
            count if local < count => local,
            count => {
                let text = format!("this is rank {local} of this machine, from 0, and the machine has {count} GPUs");
                return Err(comm(text));
            }
        };
        let context = driver.device(device).and_then(|device| device.context()).map_err(comm)?;
        let store: Arc<dyn Store> = match &meeting {
            None => Arc::new(MemoryStore::world(1).pop().ok_or_else(|| comm("there is no store for a world of one"))?),
            Some(meeting) => Arc::new(meeting.join(timeout).map_err(comm)?),
        };
        let options = NcclOptions { timeout, flight_records: flight_records.map(Into::into), ..defaults };
        let rank = NcclRank::new(&nccl, &context, store.clone(), options)?;
        Ok(Self { rank: Arc::new(rank), store })
    }

    pub fn rank(&self) -> Arc<dyn Backend> {
        self.rank.clone()
    }

    /// Ends it together with the others, or gives it back if a reducer uses it.
    pub fn close(self) -> Result<Result<(), Failure>, Self> {
        let Self { rank, store } = self;
        match Arc::try_unwrap(rank) {
            Ok(rank) => {
                let closed = rank.close().map_err(Failure::from);
                Ok(closed.and(leave(store.as_ref())))
            }
            Err(rank) => Err(Self { rank, store }),
        }
    }
}

/// Rank 0 may hold the store: it stays until the others have read what they need.
fn leave(store: &dyn Store) -> Result<(), Failure> {
    let key = |rank: u32| format!("reducer/end/{rank}");
    store.set(&key(store.rank().0), b"").map_err(comm)?;
    let keys: Vec<String> = (0..store.world_size()).map(key).collect();
    let start = Instant::now();
    while store.rank().0 == 0 && start.elapsed() < END_LIMIT && store.wait(&keys, LOOK).is_err() {}
    Ok(())
}
