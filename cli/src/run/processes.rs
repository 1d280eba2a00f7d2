//! Ranks as processes, each with its GPU, that meet by way of a store.

use super::report::Outcome;
use super::told::Told;
use super::{Job, NAMES, Runs, explained, told};
use crate::talk;
use anyhow::{Context, Result, anyhow, bail};
use bucketeer::ir::GlobalRank;
use bucketeer::program::Program;
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::rendezvous::Rendezvous;
use bucketeer_comm::store::{MemoryStore, Store, StoreError};
use bucketeer_cuda::Driver;
use bucketeer_cuda::nccl::Nccl;
use bucketeer_cuda::nvrtc::Nvrtc;
use bucketeer_eval::Output;
use bucketeer_exec::{DeviceExecutor, Reference, Run, RunError, Times};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// This process among the ranks of a world.
pub struct Process {
    store: Arc<dyn Store>,
    local_rank: u32,
    flight_records: PathBuf,
}

/// How often a rank looks whether another is gone while it waits for its word.
const LOOK: Duration = Duration::from_millis(20);

impl Process {
    /// The world that the environment names, with as many ranks as the graph asks for. Waits for all of them.
    pub fn join(job: &Job, ranks: u32) -> Result<Self> {
        let meeting = Rendezvous::from_env()?;
        let found = meeting.as_ref().map_or(1, |meeting| meeting.world_size);
        if found != ranks {
            let says = meeting.as_ref().map_or_else(
                || "no launcher says which rank this is, so it is a world of one".to_owned(),
                |meeting| format!("{} says that there are {found}", meeting.launcher),
            );
            bail!(
                "the graph runs on {ranks} ranks, and {says}; start as many: bucketeer launch --nproc {ranks} -- run ..., or \
                 torchrun, mpirun or srun"
            );
        }
        let folder = |port: u16| std::env::temp_dir().join(format!("bucketeer-flight-{port}"));
        let (store, local_rank, named): (Arc<dyn Store>, _, _) = match meeting {
            None => {
                let store = MemoryStore::world(1).pop().ok_or_else(|| anyhow!("no store for a world of one"))?;
                (Arc::new(store), 0, std::env::temp_dir().join(format!("bucketeer-flight-{}", std::process::id())))
            }
            Some(meeting) => {
                let store = meeting.join(job.local.timeout)?;
                (Arc::new(store), meeting.local_rank.unwrap_or(0), folder(meeting.port))
            }
        };
        let flight_records = job.flight_records.clone().unwrap_or(named);
        Ok(Self { store, local_rank, flight_records })
    }

    pub fn rank(&self) -> u32 {
        self.store.rank().0
    }

    /// Runs both programs, compares what this rank made of them, and puts together what all ranks tell.
    pub fn run(
        &self,
        job: &Job,
        programs: &[Program],
        inputs: &[Output],
        progress: &talk::Progress,
    ) -> Result<(Runs, Outcome)> {
        let record = self.flight_records.join(format!("flight-rank{}.json", self.rank()));
        // Of an earlier run, and not to be taken for this one's.
        let _ = std::fs::remove_file(&record);
        let ran = self.both(job, programs, inputs, progress);
        if ran.is_err() && record.exists() {
            talk::insist(&format!("note: the last calls of rank {} are in {}", self.rank(), record.display()));
        }
        let [came, bucketed] = ran?;
        let told = Told::of([&came, &bucketed], self.rank(), self.store.world_size());
        let all = told::read(&self.meet(job, "run/told", &told.bytes()?)?)?;
        self.leave()?;
        let outputs = came.0.outputs.len();
        Ok((vec![vec![came.0], vec![bucketed.0]], told::outcome(&all, outputs)))
    }

    /// The fastest run of each program on this rank, and the times of all.
    fn both(
        &self,
        job: &Job,
        programs: &[Program],
        inputs: &[Output],
        progress: &talk::Progress,
    ) -> Result<[(Run, Vec<Times>); 2]> {
        let nccl = Nccl::load(None).context("--backend nccl")?;
        let driver = Driver::load(None).context("--backend nccl")?;
        let context = driver.device(self.ordinal(&driver)?)?.context()?;
        let nvrtc = Nvrtc::load(None);
        let run = |which: usize| {
            let options = NcclOptions {
                timeout: job.local.timeout,
                flight_records: Some(self.flight_records.clone()),
                name: format!("run/{which}"),
                ..NcclOptions::default()
            };
            let rank = NcclRank::new(&nccl, &context, self.store.clone(), options)?;
            let made = self.one(job, &programs[which], inputs, (which, &rank, &context, &nvrtc), progress);
            let made = made.map_err(|error| error.downcast::<RunError>().map_or_else(|error| error, explained))?;
            rank.close()?;
            Ok::<_, anyhow::Error>(made)
        };
        Ok([run(0)?, run(1)?])
    }

    fn one(
        &self,
        job: &Job,
        program: &Program,
        inputs: &[Output],
        (which, rank, context, nvrtc): (
            usize,
            &NcclRank,
            &bucketeer_cuda::Context,
            &Result<Nvrtc, bucketeer_cuda::nvrtc::NvrtcError>,
        ),
        progress: &talk::Progress,
    ) -> Result<(Run, Vec<Times>)> {
        let mut executor = DeviceExecutor::new(program, rank, context, nvrtc.as_ref())?;
        let (mut best, mut times): (Option<Run>, Vec<Times>) = (None, Vec::new());
        // The first is not counted: it pays for what nobody has touched yet.
        for nth in 0..=job.repeat {
            progress.set(format!("running {}, {nth} of {}", NAMES[which], job.repeat));
            self.meet(job, &format!("run/{which}/{nth}"), b"")?;
            let run = executor.run(inputs, &mut Reference::new(GlobalRank(self.rank()), job.seed))?;
            if nth == 0 {
                continue;
            }
            times.push(run.times);
            if best.as_ref().is_none_or(|best| run.times.total < best.times.total) {
                best = Some(run);
            }
        }
        Ok((best.context("nothing was run")?, times))
    }

    /// The GPU of this rank.
    fn ordinal(&self, driver: &Driver) -> Result<u32> {
        let (count, local) = (driver.device_count()?, self.local_rank);
        match count {
            // Where a launcher shows each rank one GPU, it is the first.
            1 => Ok(0),
            _ if local < count => Ok(local),
            _ => bail!("this is rank {local} of this machine, counted from 0, and the machine has {count} GPUs"),
        }
    }

    /// Rank 0 may hold the store: it stays until the others have read what they need.
    fn leave(&self) -> Result<()> {
        let key = |rank: u32| format!("run/end/{rank}");
        self.store.set(&key(self.rank()), b"")?;
        let keys: Vec<String> = (0..self.store.world_size()).map(key).collect();
        let start = Instant::now();
        while self.rank() == 0 && start.elapsed() < END_LIMIT && self.store.wait(&keys, LOOK).is_err() {}
        Ok(())
    }

    /// Tells all ranks something, and waits for what they tell, in rank order.
    fn meet(&self, job: &Job, what: &str, value: &[u8]) -> Result<Vec<Vec<u8>>> {
        let key = |rank: u32| format!("{what}/{rank}");
        self.store.set(&key(self.rank()), value)?;
        let keys: Vec<String> = (0..self.store.world_size()).map(key).collect();
        let start = Instant::now();
        loop {
            match self.store.wait(&keys, LOOK) {
                Ok(values) => return Ok(values),
                Err(StoreError::Timeout { .. }) if start.elapsed() < job.local.timeout => {}
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

/// Longest wait for other ranks at the very end.
const END_LIMIT: Duration = Duration::from_secs(5);
