//! Ranks as threads of this process, or one rank that needs no others.

use super::report::{Equality, Outcome};
use super::{BackendWord, Job, NAMES, Runs, explained, planned};
use crate::{talk, world};
use anyhow::{Result, anyhow};
use bucketeer::ir::{GlobalRank, Graph};
use bucketeer::program::Program;
use bucketeer_comm::fake::FakeRank;
use bucketeer_comm::local;
use bucketeer_comm::{Backend, CommError};
use bucketeer_eval::Output;
use bucketeer_exec::{Executor, Reference, Run, RunError, world_size};
use std::time::Duration;

impl Job {
    /// Runs the programs on all ranks, and compares their outputs. The planned program follows from what the others took.
    pub(super) fn on_threads(
        &self,
        graph: &Graph,
        programs: &mut Vec<Program>,
        inputs: &[Vec<Output>],
        progress: &talk::Progress,
    ) -> Result<(Runs, Outcome)> {
        let mut best = Vec::new();
        for (program, name) in programs.iter().zip(NAMES) {
            best.push(self.fastest(program, inputs, name, progress)?);
        }
        if let Some(link) = self.local.link.filter(|_| self.planned) {
            progress.set("planning".to_owned());
            let program = self.lower(&planned::graph(graph, &link, &best)?)?;
            self.check_memory(&program, world_size(&program).map_err(explained)?)?;
            best.push(self.fastest(&program, inputs, NAMES[2], progress)?);
            programs.push(program);
        }
        let equality = match difference(&best) {
            _ if self.backend == BackendWord::Fake => Equality::NotCompared,
            None => Equality::Bits,
            Some((run, rank, place)) => Equality::Differs { run, rank, place },
        };
        let times = best.iter().map(|runs| runs.iter().map(|run| run.times).collect()).collect();
        let outputs = best[0].first().map_or(0, |run| run.outputs.len());
        Ok((best, Outcome { times, equality, outputs }))
    }

    /// Runs a program as often as asked for, on all ranks; returns the run whose slowest rank was fastest.
    fn fastest(
        &self,
        program: &Program,
        inputs: &[Vec<Output>],
        name: &str,
        progress: &talk::Progress,
    ) -> Result<Vec<Run>> {
        let run = |nth: u32| {
            progress.set(format!("running {name}, {nth} of {}", self.repeat));
            self.ranks(program, inputs)
        };
        // Once before: what runs first pays for memory and code that nobody has touched yet.
        progress.set(format!("warming up {name}"));
        self.ranks(program, inputs)?;
        let mut best = run(1)?;
        for nth in 2..=self.repeat {
            let next = run(nth)?;
            if slowest(&next) < slowest(&best) {
                best = next;
            }
        }
        Ok(best)
    }

    /// Runs a program once, on all ranks, each with its inputs.
    fn ranks(&self, program: &Program, inputs: &[Vec<Output>]) -> Result<Vec<Run>> {
        let ranks = world_size(program)?;
        let one = |rank: &dyn Backend| self.one(program, &inputs[rank.rank().0 as usize], rank);
        if self.backend == BackendWord::Fake {
            let rank = FakeRank::new(GlobalRank(0), ranks).map_err(|error: CommError| anyhow!(error))?;
            return one(&rank).map(|run| vec![run]).map_err(explained);
        }
        let results = local::run(ranks, self.local.clone(), |rank| one(&rank))?;
        let follows = |error: &RunError| matches!(error, RunError::Comm { error, .. } if matches!(**error, CommError::Remote { .. }));
        world::made_by_all(results, follows, explained)
    }

    fn one(&self, program: &Program, inputs: &[Output], rank: &dyn Backend) -> Result<Run, RunError> {
        let mut executor = Executor::new(program, rank)?;
        executor.run(inputs, &mut Reference::new(rank.rank(), self.seed))
    }
}

/// How long the slowest rank took.
fn slowest(runs: &[Run]) -> Duration {
    runs.iter().map(|run| run.times.total).max().unwrap_or_default()
}

/// The first output that differs from the run as it came: which run, rank and place.
fn difference(best: &Runs) -> Option<(usize, usize, usize)> {
    let (before, others) = best.split_first()?;
    (1..).zip(others).find_map(|(which, after)| {
        before.iter().zip(after).enumerate().find_map(|(rank, (before, after))| {
            let differs = |(a, b): (&Output, &Output)| !a.same_elements(b);
            let place = before.outputs.iter().zip(&after.outputs).position(differs)?;
            Some((which, rank, place))
        })
    })
}
