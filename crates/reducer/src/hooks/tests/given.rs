//! What tests give to hooks.

use super::{Outcome, Rank, Step, layouts, on_ranks};
use crate::hooks::{PowerSgd, PowerSgdOptions};
use crate::{BucketLayout, Hook, HookError};
use bucketeer_types::DType;

pub type Make = fn() -> Box<dyn Hook>;

pub const fn low_rank() -> PowerSgdOptions {
    PowerSgdOptions {
        rank: 2,
        start_step: 0,
        min_rate: 1.0,
        warm_start: true,
        error_feedback: true,
        epsilon: 0.0,
        seed: 5,
    }
}

pub fn power_sgd(options: PowerSgdOptions) -> PowerSgd {
    PowerSgd::new(options).expect("the options are good")
}

/// Gradients of a rank that differ from those of any other, by bucket.
pub fn gradients(layouts: &[BucketLayout], rank: usize) -> Vec<Vec<f64>> {
    let value = |at: usize| (((at * 7919 + rank * 104_729) % 1009) as f64 / 504.5 - 1.0) as f32;
    layouts
        .iter()
        .map(|layout| (0..layout.elements()).map(|at| f64::from(value(at + layout.index * 50))).collect())
        .collect()
}

pub fn mean(layouts: &[BucketLayout], world: usize) -> Vec<f64> {
    let all: Vec<Vec<f64>> = (0..world).map(|rank| gradients(layouts, rank).concat()).collect();
    (0..all[0].len()).map(|at| all.iter().map(|rank| rank[at]).sum::<f64>() / world as f64).collect()
}

pub fn place(rank: &Rank) -> usize {
    rank.group.rank().0 as usize
}

pub fn step<'a>(number: u64, layouts: &'a [BucketLayout], gradients: &'a [Vec<f64>], divisor: f64) -> Step<'a> {
    Step { number, divisor, layouts, gradients }
}

/// One step of one bucket of f32 on two ranks, with gradients by rank; the result, which is checked to be the same on
/// both.
pub fn on_two(
    make: impl Fn() -> Box<dyn Hook> + Sync,
    shape: &[u64],
    given: [&[f64]; 2],
) -> Result<Vec<f64>, HookError> {
    let layouts = layouts(DType::F32, &[shape.to_vec()], &[vec![0]]);
    let outcomes = on_ranks(2, |rank| rank.step(&mut *make(), &step(0, &layouts, &[given[place(rank)].to_vec()], 2.0)));
    let results: Result<Vec<Outcome>, HookError> = outcomes.into_iter().collect();
    let results = results?;
    let bits = |at: usize| results[at].0[0].iter().map(|value| value.to_bits()).collect::<Vec<u64>>();
    assert_eq!(bits(0), bits(1), "ranks agree bit for bit");
    Ok(results[0].0[0].clone())
}
