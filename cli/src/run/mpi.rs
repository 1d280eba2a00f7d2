//! Ranks as processes of MPI, on processors.

use super::report::Outcome;
use super::told::{Ran, Told};
use super::{Job, NAMES, Runs, explained, told};
use crate::talk;
use crate::world::{all_ranks, gather};
use anyhow::{Context, Result, bail};
use bucketeer::ir::GlobalRank;
use bucketeer::program::Program;
use bucketeer_comm::mpi::{MpiOptions, MpiRank};
use bucketeer_comm::{Backend, CallOptions, Group};
use bucketeer_eval::Output;
use bucketeer_exec::{Executor, Reference, Run};

/// This process among the ranks of a world.
pub struct Process {
    rank: MpiRank,
    world: Group,
}

impl Process {
    /// The world that `mpirun` made, with as many ranks as the graph asks for.
    pub fn join(job: &Job, ranks: u32) -> Result<Self> {
        let rank = MpiRank::init(MpiOptions { timeout: job.local.timeout, ..MpiOptions::default() })?;
        let found = rank.world_size();
        if found != ranks {
            bail!("the graph runs on {ranks} ranks, and MPI has {found}: mpirun -n {ranks} bucketeer run ...");
        }
        let world = all_ranks(&rank, "all ranks of the run")?;
        Ok(Self { rank, world })
    }

    pub fn rank(&self) -> u32 {
        self.rank.rank().0
    }

    /// Runs both programs, compares what this rank made of them, and puts together what all ranks tell.
    pub fn run(
        self,
        job: &Job,
        programs: &[Program],
        inputs: &[Output],
        progress: &talk::Progress,
    ) -> Result<(Runs, Outcome)> {
        let came = self.fastest(job, &programs[0], inputs, NAMES[0], progress)?;
        let bucketed = self.fastest(job, &programs[1], inputs, NAMES[1], progress)?;
        let told = Told::of([&came, &bucketed], self.rank(), self.rank.world_size());
        let all = told::read(&self.exchange(&told.bytes()?)?)?;
        self.rank.finish()?;
        let outputs = came.0.outputs.len();
        Ok((vec![vec![came.0], vec![bucketed.0]], told::outcome(&all, outputs)))
    }

    fn fastest(
        &self,
        job: &Job,
        program: &Program,
        inputs: &[Output],
        name: &str,
        progress: &talk::Progress,
    ) -> Result<Ran> {
        let mut executor = Executor::new(program, &self.rank).map_err(explained)?;
        let (mut best, mut times): (Option<Run>, Vec<_>) = (None, Vec::new());
        // The first is not counted: it pays for what nobody has touched yet.
        for nth in 0..=job.repeat {
            progress.set(format!("running {name}, {nth} of {}", job.repeat));
            self.rank.barrier(&self.world, &CallOptions::blocking())?;
            let run =
                executor.run(inputs, &mut Reference::new(GlobalRank(self.rank()), job.seed)).map_err(explained)?;
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

    /// Tells all ranks something, and hears what they tell, in rank order.
    fn exchange(&self, value: &[u8]) -> Result<Vec<Vec<u8>>> {
        let length = (value.len() as u64).to_le_bytes();
        let lengths = gather(&self.rank, &self.world, &length)?;
        let lengths: Vec<u64> =
            lengths.iter().map(|bytes| bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))).collect();
        let most = lengths.iter().copied().max().unwrap_or(0) as usize;
        let mut padded = value.to_vec();
        padded.resize(most, 0);
        let mut values = gather(&self.rank, &self.world, &padded)?;
        values.iter_mut().zip(lengths).for_each(|(value, length)| value.truncate(length as usize));
        Ok(values)
    }
}
