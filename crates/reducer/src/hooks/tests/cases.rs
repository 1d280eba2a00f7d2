//! Recorded cases of hooks without state.

use super::fixture::{collectives, floats, items, whole, world};
use super::{Step, layouts, on_ranks};
use crate::Divide;
use crate::hooks::{Cast16, Quantise};
use crate::{BucketLayout, Hook};
use bucketeer_types::DType;
use serde_json::Value;
use std::num::NonZeroUsize;

/// One step of a case.
pub struct Recorded {
    pub layouts: Vec<BucketLayout>,
    /// By rank, by bucket.
    pub gradients: Vec<Vec<Vec<f64>>>,
    /// By bucket.
    pub result: Vec<Vec<f64>>,
    /// None where it was not recorded.
    pub collectives: Option<Vec<String>>,
}

/// All steps of a case, which may be one without buckets.
pub fn recorded(case: &Value) -> Vec<Recorded> {
    let Some(steps) = case.get("steps") else {
        let gradients: Vec<Vec<Vec<f64>>> = items(&case["in"]).iter().map(|rank| vec![floats(rank)]).collect();
        let result = vec![floats(&case["grad"])];
        let layouts = layouts(DType::F32, &[vec![result[0].len() as u64]], &[vec![0]]);
        return vec![Recorded { layouts, gradients, result, collectives: None }];
    };
    let shapes: Vec<Vec<u64>> = items(&case["params"]).iter().map(whole).collect();
    items(steps).iter().map(|step| recorded_step(step, &shapes, world(case) as usize)).collect()
}

fn recorded_step(step: &Value, shapes: &[Vec<u64>], world: usize) -> Recorded {
    let buckets = items(&step["buckets"]);
    let params: Vec<Vec<usize>> = buckets.iter().map(|bucket| whole(&bucket["params"])).collect();
    let gradients = |rank: usize| buckets.iter().map(|bucket| floats(&bucket["in"][rank])).collect();
    let result = |params: &Vec<usize>| params.iter().flat_map(|param| floats(&step["grad"][*param])).collect();
    Recorded {
        layouts: layouts(DType::F32, shapes, &params),
        gradients: (0..world).map(gradients).collect(),
        result: params.iter().map(result).collect(),
        collectives: Some(collectives(step).into_iter().map(str::to_owned).collect()),
    }
}

/// What a hook that keeps nothing between steps makes of a step, on the first rank, as all are equal; and its calls.
fn run(make: impl Fn() -> Box<dyn Hook> + Sync, world: u32, step: &Recorded) -> Result<super::Outcome, String> {
    let outcomes = on_ranks(world, |rank| {
        let gradients = &step.gradients[rank.group.rank().0 as usize];
        let step = Step { number: 0, divisor: f64::from(world), layouts: &step.layouts, gradients };
        rank.step(&mut *make(), &step)
    });
    let mut outcomes = outcomes.into_iter();
    let first = outcomes.next().ok_or("there are no ranks")?.map_err(|error| error.to_string())?;
    for other in outcomes {
        let other = other.map_err(|error| error.to_string())?;
        if !other.0.concat().iter().zip(first.0.concat()).all(|(a, b)| a.to_bits() == b.to_bits()) {
            return Err("ranks differ".to_owned());
        }
    }
    Ok(first)
}

/// Says which values are further apart than `tolerance` of the expected one.
pub fn compare(what: &str, found: &[f64], expected: &[f64], tolerance: impl Fn(f64) -> f64) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{what} has {} elements for {}", found.len(), expected.len()));
    }
    let is_off = |(found, expected): &(f64, f64)| {
        let same = found == expected || found.is_nan() && expected.is_nan();
        let off = (found - expected).abs();
        !same && (off.is_nan() || off > tolerance(*expected))
    };
    let pairs = || found.iter().copied().zip(expected.iter().copied());
    match pairs().position(|pair| is_off(&pair)) {
        Some(at) => {
            let count = pairs().filter(is_off).count();
            let most = pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            Err(format!(
                "{what}: {count} of {} are off by up to {most:e}; element {at} is {} for {}",
                found.len(),
                found[at],
                expected[at]
            ))
        }
        None => Ok(()),
    }
}

fn compare_calls(found: &[Vec<String>], expected: Option<&[String]>) -> Result<(), String> {
    match expected {
        Some(expected) if found.concat() != expected => Err(format!("launched {found:?} for {expected:?}")),
        _ => Ok(()),
    }
}

/// The distance of 16-bit floats at a value.
pub fn ulp(dtype: DType, value: f64) -> f64 {
    let (digits, least) = if dtype == DType::F16 { (10, -14) } else { (7, -126) };
    let exponent = if value == 0.0 { least } else { value.abs().log2().floor().max(f64::from(least)) as i32 };
    2f64.powi(exponent - digits)
}

/// PyTorch divides in 16 bits. Of two values there is one sum; of three the order is the transport's, and what is
/// rounded on the way may be as large as all of them together.
pub fn check_cast(case: &Value, dtype: DType) -> Result<(), String> {
    let world = world(case);
    for (number, step) in recorded(case).iter().enumerate() {
        let make = || -> Box<dyn Hook> {
            let hook = if dtype == DType::F16 { Cast16::f16() } else { Cast16::bf16() };
            Box::new(hook.divide(Divide::OnWire))
        };
        let (results, calls) = run(make, world, step)?;
        compare_calls(&calls, step.collectives.as_deref())?;
        let ranks: Vec<Vec<f64>> = step.gradients.iter().map(|buckets| buckets.concat()).collect();
        for (at, (found, expected)) in results.concat().iter().zip(step.result.concat()).enumerate() {
            let most: f64 = ranks.iter().map(|rank| rank[at].abs()).sum();
            let tolerance = if world == 2 { 0.0 } else { ulp(dtype, most / f64::from(world)) };
            compare(&format!("step {number}, element {at}"), &[*found], &[expected], |_| tolerance)?;
        }
    }
    Ok(())
}

/// PyTorch fills up the last block, and where that is full adds one; ours is shorter.
pub fn check_quantise(case: &Value, block: Option<NonZeroUsize>) -> Result<(), String> {
    for (number, step) in recorded(case).iter().enumerate() {
        let make = || -> Box<dyn Hook> { Box::new(block.map_or_else(Quantise::per_tensor, Quantise::per_channel)) };
        let (results, mut calls) = run(make, world(case), step)?;
        compare(&format!("step {number}"), &results.concat(), &step.result.concat(), |_| 2e-6)?;
        if let Some(block) = block {
            for (calls, layout) in calls.iter_mut().zip(&step.layouts) {
                let elements = layout.elements();
                let gathers =
                    |blocks, bytes| [format!("all_gather:f32:{}", blocks * 2), format!("all_gather:u8:{bytes}")];
                assert_eq!(*calls, gathers(elements.div_ceil(block.get()), elements));
                let blocks = elements / block + 1;
                *calls = gathers(blocks, blocks * block.get()).to_vec();
            }
        }
        compare_calls(&calls, step.collectives.as_deref())?;
    }
    Ok(())
}
