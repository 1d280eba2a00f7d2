//! Ranks as processes, each with its GPU, that meet by way of a store.

use super::report::Outcome;
use super::told::Told;
use super::{Job, NAMES, Runs, explained, told};
use crate::{talk, world};
use anyhow::{Context, Result, bail};
use bucketeer::ir::GlobalRank;
use bucketeer::program::Program;
use bucketeer_comm::nccl::NcclRank;
use bucketeer_cuda::nvrtc::Nvrtc;
use bucketeer_eval::Output;
use bucketeer_exec::{DeviceExecutor, Reference, Run, RunError, Times};

/// This process among the ranks of a world.
pub struct Process(world::Process);

impl Process {
    /// The world that the environment names, with as many ranks as the graph asks for. Waits for all of them.
    pub fn join(job: &Job, ranks: u32) -> Result<Self> {
        let check = |found: u32, says: &str| {
            if found == ranks {
                return Ok(());
            }
            bail!(
                "the graph runs on {ranks} ranks, and {says}; start as many: bucketeer launch --nproc {ranks} -- run ..., or \
                 torchrun, mpirun or srun"
            )
        };
        world::Process::join(job.local.timeout, job.flight_records.clone(), check).map(Self)
    }

    pub fn rank(&self) -> u32 {
        self.0.rank()
    }

    /// Runs both programs, compares what this rank made of them, and puts together what all ranks tell.
    pub fn run(
        &self,
        job: &Job,
        programs: &[Program],
        inputs: &[Output],
        progress: &talk::Progress,
    ) -> Result<(Runs, Outcome)> {
        let [came, bucketed] = self.0.recorded(|| self.both(job, programs, inputs, progress))?;
        let told = Told::of([&came, &bucketed], self.rank(), self.0.ranks());
        let all = told::read(&self.0.meet("run/told", &told.bytes()?)?)?;
        self.0.leave()?;
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
        let (nccl, context) = self.0.gpu()?;
        let nvrtc = Nvrtc::load(None);
        let run = |which: usize| {
            let rank = NcclRank::new(&nccl, &context, self.0.store(), self.0.options(format!("run/{which}")))?;
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
            self.0.meet(&format!("run/{which}/{nth}"), b"")?;
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
}
