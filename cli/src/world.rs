//! The world that a launcher started this process in: what commands whose ranks are processes have in common.

use crate::talk;
use anyhow::{Context as _, Result, anyhow, bail};
use bucketeer::ir::{DType, GlobalRank};
use bucketeer_comm::local::Link;
use bucketeer_comm::nccl::NcclOptions;
use bucketeer_comm::rendezvous::Rendezvous;
use bucketeer_comm::store::{MemoryStore, Store, StoreError};
use bucketeer_comm::{Backend, CallOptions, Group, Operands};
use bucketeer_cuda::nccl::Nccl;
use bucketeer_cuda::{Context, Driver};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a rank looks whether another is gone while it waits for its word.
const LOOK: Duration = Duration::from_millis(20);

/// Longest wait for other ranks at the very end.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What ranks that are threads made, in rank order; or what went wrong, of several the error that others did not only follow.
pub fn made_by_all<T, E>(
    results: Vec<std::thread::Result<Result<T, E>>>,
    follows: impl Fn(&E) -> bool,
    explained: impl FnOnce(E) -> anyhow::Error,
) -> Result<Vec<T>> {
    let (mut made, mut errors) = (Vec::new(), Vec::new());
    for (rank, result) in results.into_iter().enumerate() {
        match result.map_err(|_| anyhow!("rank {rank} panicked; please report this"))? {
            Ok(one) => made.push(one),
            Err(error) => errors.push(error),
        }
    }
    match errors.iter().position(|error| !follows(error)).or((!errors.is_empty()).then_some(0)) {
        None => Ok(made),
        Some(first) => Err(explained(errors.swap_remove(first))),
    }
}

/// The network that `--link` says to play.
pub fn link(text: Option<&str>) -> Result<Option<Link>> {
    text.map(|text| text.parse().map_err(|error| anyhow!("--link `{text}`: {error}"))).transpose()
}

/// The group of all ranks.
pub fn all_ranks(backend: &dyn Backend, name: &str) -> Result<Group> {
    let all: Vec<GlobalRank> = (0..backend.world_size()).map(GlobalRank).collect();
    Ok(backend.new_group(name, &all)?)
}

/// As many bytes of each rank of a group, in rank order.
pub fn gather(backend: &dyn Backend, group: &Group, value: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (bytes, ranks) = (value.len() as u64, group.size() as u64);
    let arena = backend.arena(bytes * (ranks + 1))?;
    let (own, all) = (arena.buffer(0, bytes)?, arena.buffer(bytes, bytes * ranks)?);
    own.write()?.copy_from_slice(value);
    let operands = Operands::new(own, all.clone(), DType::U8);
    backend.all_gather_into(group, operands, &CallOptions::default())?.wait(None)?;
    let all = all.read()?;
    Ok(all.chunks(value.len().max(1)).map(<[u8]>::to_vec).collect())
}

/// A process with a GPU that meets the others by way of a store.
pub struct Process {
    store: Arc<dyn Store>,
    meeting: Option<Rendezvous>,
    timeout: Duration,
    flight_records: PathBuf,
}

impl Process {
    /// The world that the environment names. Waits for all of its ranks, unless `check` refuses their number, which it is told
    /// together with who says it.
    pub fn join(
        timeout: Duration,
        flight_records: Option<PathBuf>,
        check: impl FnOnce(u32, &str) -> Result<()>,
    ) -> Result<Self> {
        let meeting = Rendezvous::from_env()?;
        let found = meeting.as_ref().map_or(1, |meeting| meeting.world_size);
        let says = meeting.as_ref().map_or_else(
            || "no launcher says which rank this is, so it is a world of one".to_owned(),
            |meeting| format!("{} says that there are {found}", meeting.launcher),
        );
        check(found, &says)?;
        let store: Arc<dyn Store> = match &meeting {
            None => Arc::new(MemoryStore::world(1).pop().ok_or_else(|| anyhow!("no store for a world of one"))?),
            Some(meeting) => Arc::new(meeting.join(timeout)?),
        };
        let of = meeting.as_ref().map_or_else(std::process::id, |meeting| meeting.port.into());
        let folder = || std::env::temp_dir().join(format!("bucketeer-flight-{of}"));
        Ok(Self { store, meeting, timeout, flight_records: flight_records.unwrap_or_else(folder) })
    }

    pub fn rank(&self) -> u32 {
        self.store.rank().0
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.store.world_size()
    }

    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// What the launcher says of this process.
    pub fn meeting(&self) -> Option<&Rendezvous> {
        self.meeting.as_ref()
    }

    /// How a rank of this world behaves, under a name that no other has on this store.
    pub fn options(&self, name: String) -> NcclOptions {
        let flight_records = Some(self.flight_records.clone());
        NcclOptions { timeout: self.timeout, flight_records, name, ..NcclOptions::default() }
    }

    /// NCCL, and the GPU of this rank.
    pub fn gpu(&self) -> Result<(Nccl, Context)> {
        let nccl = Nccl::load(None).context("--backend nccl")?;
        let driver = Driver::load(None).context("--backend nccl")?;
        let context = driver.device(self.ordinal(&driver)?)?.context()?;
        Ok((nccl, context))
    }

    fn ordinal(&self, driver: &Driver) -> Result<u32> {
        let local = self.meeting.as_ref().and_then(|meeting| meeting.local_rank).unwrap_or(0);
        match driver.device_count()? {
            // Where a launcher shows each rank one GPU, it is the first.
            1 => Ok(0),
            count if local < count => Ok(local),
            count => bail!("this is rank {local} of this machine, counted from 0, and the machine has {count} GPUs"),
        }
    }

    /// Does this rank's work. If it fails and the rank wrote a flight record, says where that is.
    pub fn recorded<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let record = self.flight_records.join(format!("flight-rank{}.json", self.rank()));
        // Of an earlier run, and not to be taken for this one's.
        let _ = std::fs::remove_file(&record);
        let done = work();
        if done.is_err() && record.exists() {
            talk::insist(&format!("note: the last calls of rank {} are in {}", self.rank(), record.display()));
        }
        done
    }

    /// Rank 0 may hold the store: it stays until the others have read what they need.
    pub fn leave(&self) -> Result<()> {
        let key = |rank: u32| format!("run/end/{rank}");
        self.store.set(&key(self.rank()), b"")?;
        let keys: Vec<String> = (0..self.ranks()).map(key).collect();
        let start = Instant::now();
        while self.rank() == 0 && start.elapsed() < END_LIMIT && self.store.wait(&keys, LOOK).is_err() {}
        Ok(())
    }

    /// Tells all ranks something, and waits for what they tell, in rank order.
    pub fn meet(&self, what: &str, value: &[u8]) -> Result<Vec<Vec<u8>>> {
        let key = |rank: u32| format!("{what}/{rank}");
        self.store.set(&key(self.rank()), value)?;
        let keys: Vec<String> = (0..self.ranks()).map(key).collect();
        let start = Instant::now();
        loop {
            match self.store.wait(&keys, LOOK) {
                Ok(values) => return Ok(values),
                Err(StoreError::Timeout { .. }) if start.elapsed() < self.timeout => {}
                Err(error) => return Err(error.into()),
            }
            let values = self.store.get(&keys)?;
            let missing = |rank: &GlobalRank| values.get(rank.0 as usize).is_some_and(Option::is_none);
            if let Some((rank, fate)) = self.store.gone().into_iter().find(|(rank, _)| missing(rank)) {
                bail!("rank {} {fate} before all were done", rank.0);
            }
        }
    }
}
