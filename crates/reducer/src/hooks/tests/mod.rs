//! Hooks on ranks as threads, in the order of stages that a reducer has.

mod behaviour;
mod cases;
mod fixture;
mod given;
mod local;
mod low_rank;
mod numeric;
mod sixteen;
mod state;

use crate::{BucketLayout, Hook, HookBucket, HookError, Part, Stage, StageCall};
use bucketeer_comm::local::{LocalOptions, LocalRank, run};
use bucketeer_comm::{Backend, Buffer, CallOptions, Described, Group, Work};
use bucketeer_types::{DType, GlobalRank};
use std::time::Duration;

use super::values;

/// A rank, in a group of all.
struct Rank {
    backend: LocalRank,
    group: Group,
}

/// Runs a function on each rank; what they return, in rank order.
fn on_ranks<T: Send>(world: u32, body: impl Fn(&Rank) -> T + Sync) -> Vec<T> {
    let members: Vec<GlobalRank> = (0..world).map(GlobalRank).collect();
    let options = LocalOptions { timeout: Duration::from_secs(20), pin: false, ..LocalOptions::default() };
    let results = run(world, options, |backend| {
        let group = backend.new_group("world", &members).expect("all ranks join");
        body(&Rank { backend, group })
    });
    let results = results.expect("there are threads").into_iter();
    results.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

/// Buckets of parameters by their indices, with shapes by parameter.
fn layouts(dtype: DType, shapes: &[Vec<u64>], buckets: &[Vec<usize>]) -> Vec<BucketLayout> {
    let layout = |(index, params): (usize, &Vec<usize>)| {
        let mut at = 0;
        let part = |param: &usize| {
            let shape = shapes[*param].clone();
            let start = at;
            at += shape.iter().product::<u64>() as usize;
            Part { param: *param, shape, range: start..at }
        };
        BucketLayout { index, count: buckets.len(), dtype, parts: params.iter().map(part).collect() }
    };
    buckets.iter().enumerate().map(layout).collect()
}

/// What a rank gives a step: gradients of each bucket, end to end.
struct Step<'a> {
    number: u64,
    divisor: f64,
    layouts: &'a [BucketLayout],
    gradients: &'a [Vec<f64>],
}

/// Results of each bucket, and its calls.
type Outcome = (Vec<Vec<f64>>, Vec<Vec<String>>);

impl Rank {
    /// A step: first stages in the order of buckets, then stage by stage.
    fn step(&self, hook: &mut dyn Hook, step: &Step<'_>) -> Result<Outcome, HookError> {
        let mut buffers: Vec<Buffer> = step.layouts.iter().zip(step.gradients).map(|(l, g)| self.fill(l, g)).collect();
        let mut calls = vec![Vec::new(); buffers.len()];
        let mut open: Vec<(usize, Vec<Work>)> = (0..buffers.len()).map(|at| (at, Vec::new())).collect();
        for stage in 0.. {
            let mut left = Vec::new();
            for (at, works) in open {
                for work in works {
                    work.wait(None).map_err(|error| error.to_string())?;
                }
                let bucket = self.bucket(step, at, &buffers[at]);
                let answer = match stage {
                    0 => hook.begin(&bucket),
                    _ => hook.next(&bucket, stage - 1),
                };
                match answer? {
                    Stage::Calls(list) => left.push((at, self.launch(list, &mut calls[at])?)),
                    Stage::Done => {}
                    Stage::DoneIn(buffer) => buffers[at] = buffer,
                }
            }
            if left.is_empty() {
                break;
            }
            open = left;
        }
        let results = step.layouts.iter().zip(&buffers).map(|(layout, buffer)| numbers(layout.dtype, buffer));
        Ok((results.collect(), calls))
    }

    fn bucket<'a>(&'a self, step: &Step<'a>, at: usize, buffer: &'a Buffer) -> HookBucket<'a> {
        let (backend, group) = (&self.backend, &self.group);
        HookBucket { layout: &step.layouts[at], step: step.number, divisor: step.divisor, buffer, group, backend }
    }

    fn fill(&self, layout: &BucketLayout, gradients: &[f64]) -> Buffer {
        assert_eq!(layout.elements(), gradients.len());
        let bytes = gradients.len() as u64 * layout.dtype.bytes();
        let buffer = self.backend.arena(bytes).and_then(|arena| arena.buffer(0, bytes)).expect("there is memory");
        values::store(layout.dtype, gradients, &mut buffer.write().expect("it is not in use")).expect("floats");
        buffer
    }

    fn launch(&self, calls: Vec<StageCall>, words: &mut Vec<String>) -> Result<Vec<Work>, HookError> {
        let launch = |StageCall { call, group }| {
            let elements = call.input_bytes() / call.dtype().bytes();
            let op = call.op().name().trim_end_matches("_into");
            words.push(format!("{op}:{}:{elements}", call.dtype().short_name()));
            let launched = self.backend.launch(group.as_ref().unwrap_or(&self.group), call, &CallOptions::default());
            launched.map_err(|error| HookError::from(error.to_string()))
        };
        calls.into_iter().map(launch).collect()
    }
}

fn numbers(dtype: DType, buffer: &Buffer) -> Vec<f64> {
    let bytes = buffer.read().expect("all calls are done");
    let mut values = vec![0.0; bytes.len() / values::width(dtype)];
    values::load(dtype, &bytes, &mut values).expect("floats");
    values
}
