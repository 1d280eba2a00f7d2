//! What ranks that are processes tell one another of their runs.

use super::report::{Equality, Outcome};
use anyhow::{Context, Result};
use bucketeer::ir::DType;
use bucketeer_eval::{Output, OutputTensor};
use bucketeer_exec::{Run, StepKindTimes, Times};
use bucketeer_types::class::{Class, class};
use bucketeer_types::num::load_float;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A rank's fastest run of a program, and the times of all.
pub type Ran = (Run, Vec<Times>);

/// What a rank tells of its runs.
#[derive(Serialize, Deserialize)]
pub struct Told {
    /// Of each program, by run, in nanoseconds: see [`numbers`].
    times: [Vec<[u64; 13]>; 2],
    equality: Equality,
}

impl Told {
    /// Of the runs of both programs on a rank.
    pub fn of([came, bucketed]: [&Ran; 2], rank: u32, ranks: u32) -> Self {
        let equality = equality(&came.0, &bucketed.0, rank as usize, ranks);
        Self { times: [&came.1, &bucketed.1].map(|times| times.iter().map(numbers).collect()), equality }
    }

    pub fn bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).context("cannot write JSON")
    }
}

/// What all ranks tell, in rank order.
pub fn read(values: &[Vec<u8>]) -> Result<Vec<Told>> {
    let read = |(rank, value): (usize, &Vec<u8>)| {
        serde_json::from_slice(value).with_context(|| format!("rank {rank} tells its times in other words"))
    };
    values.iter().enumerate().map(read).collect()
}

/// Times as numbers.
fn numbers(times: &Times) -> [u64; 13] {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let steps = |steps: usize| steps as u64;
    let Times { total, compute, pack, unpack, copy, comm, sent_bytes, exposed } = times;
    let kinds = [compute, pack, unpack, copy, comm];
    let mut numbers = [0; 13];
    for (at, kind) in kinds.into_iter().enumerate() {
        (numbers[2 * at], numbers[2 * at + 1]) = (steps(kind.steps), nanos(kind.time));
    }
    [numbers[10], numbers[11], numbers[12]] = [nanos(*total), *sent_bytes, nanos(*exposed)];
    numbers
}

/// What [`numbers`] were.
fn times(numbers: &[u64; 13]) -> Times {
    let kind =
        |at: usize| StepKindTimes { steps: numbers[2 * at] as usize, time: Duration::from_nanos(numbers[2 * at + 1]) };
    Times {
        compute: kind(0),
        pack: kind(1),
        unpack: kind(2),
        copy: kind(3),
        comm: kind(4),
        total: Duration::from_nanos(numbers[10]),
        sent_bytes: numbers[11],
        exposed: Duration::from_nanos(numbers[12]),
    }
}

/// Of each program, the run whose slowest rank was fastest; and how all ranks' outputs compare.
pub fn outcome(all: &[Told], outputs: usize) -> Outcome {
    let fastest = |which: usize| {
        let runs = all.iter().map(|told| told.times[which].len()).min().unwrap_or(0);
        let of = |run: usize| all.iter().map(|told| times(&told.times[which][run])).collect::<Vec<_>>();
        let slowest = |times: &[Times]| times.iter().map(|times| times.total).max().unwrap_or_default();
        (0..runs).map(of).min_by_key(|times| slowest(times)).unwrap_or_default()
    };
    let mut equality = Equality::Bits;
    for told in all {
        equality = match (equality, told.equality) {
            (found @ Equality::Differs { .. }, _) | (Equality::Bits, found) | (found, Equality::Bits) => found,
            (Equality::Rounded(a), Equality::Rounded(b)) => Equality::Rounded(a.max(b)),
            (_, found) => found,
        };
    }
    Outcome { times: vec![fastest(0), fastest(1)], equality, outputs }
}

/// How the outputs of one rank compare.
fn equality(before: &Run, after: &Run, rank: usize, ranks: u32) -> Equality {
    let mut most = 0.0f64;
    for (place, (a, b)) in before.outputs.iter().zip(&after.outputs).enumerate() {
        match rounding(a, b, ranks) {
            Some(rounded) => most = most.max(rounded),
            None => return Equality::Differs { run: 1, rank, place },
        }
    }
    if most > 0.0 { Equality::Rounded(most) } else { Equality::Bits }
}

/// By how much two values differ, over the largest value of each tensor: 0 for the same bits, `None` when that is more than
/// sums in another order explain.
fn rounding(a: &Output, b: &Output, ranks: u32) -> Option<f64> {
    if a.same_elements(b) {
        return Some(0.0);
    }
    match (a, b) {
        (Output::Tensor(a), Output::Tensor(b)) => tensor_rounding(a, b, ranks),
        (Output::Tuple(a), Output::Tuple(b)) if a.len() == b.len() => {
            a.iter().zip(b).try_fold(0.0f64, |most, (a, b)| Some(most.max(rounding(a, b, ranks)?)))
        }
        _ => None,
    }
}

/// How many roundings of one sum each rank may stand for: the sum itself, and what is computed from it.
const ROUNDINGS_PER_RANK: f64 = 8.0;

fn tensor_rounding(a: &OutputTensor, b: &OutputTensor, ranks: u32) -> Option<f64> {
    let unit = match a.dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 2f64.powi(-10),
        DType::Bf16 => 2f64.powi(-7),
        _ => return None,
    };
    if class(a.dtype) != Class::Float || a.dtype != b.dtype || a.sizes != b.sizes {
        return None;
    }
    let width = a.dtype.bytes() as usize;
    let values = |tensor: &OutputTensor| -> Vec<f64> {
        tensor.bytes.chunks_exact(width).map(|element| load_float(tensor.dtype, element)).collect()
    };
    let (a, b) = (values(a), values(b));
    let largest = a.iter().chain(&b).map(|value| value.abs()).fold(0.0, f64::max);
    let limit = ROUNDINGS_PER_RANK * f64::from(ranks) * unit;
    a.iter().zip(&b).try_fold(0.0f64, |most, (a, b)| {
        if a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan() {
            return Some(most);
        }
        // Of what is not a number on one side, or infinite, the quotient is none, and within no limit.
        let off = (a - b).abs() / largest;
        (off <= limit).then(|| most.max(off))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> Output {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (sizes, strides) = (vec![values.len()], vec![1]);
        Output::Tensor(OutputTensor { dtype: DType::F32, sizes, strides, bytes, device: None, pending: false })
    }

    #[test]
    fn what_sums_in_another_order_explain_is_rounding_and_more_is_not() {
        let [one, near, far] = [&[1.0, 1e-9], &[1.0 + 1e-6, 0.0], &[1.0 + 1e-5, 0.0]].map(|values| tensor(values));
        assert_eq!(rounding(&one, &one, 2), Some(0.0));
        assert!(rounding(&one, &near, 2).is_some_and(|most| most > 9e-7 && most < 1.1e-6));
        assert_eq!(rounding(&one, &far, 2), None);
        assert_eq!(rounding(&one, &tensor(&[1.0]), 2), None);
        assert_eq!(rounding(&one, &tensor(&[1.0, f32::NAN]), 2), None);
        assert_eq!(rounding(&one, &tensor(&[1.0, f32::INFINITY]), 2), None);
    }

    #[test]
    fn the_fastest_run_is_the_one_whose_slowest_rank_was_fastest() {
        let told = |totals: [u64; 2], equality| {
            let one = |total| numbers(&Times { total: Duration::from_nanos(total), sent_bytes: 7, ..Times::default() });
            Told { times: [totals.map(one).to_vec(), totals.map(one).to_vec()], equality }
        };
        let all = [told([1, 3], Equality::Bits), told([9, 4], Equality::Rounded(0.5))];
        let found = outcome(&all, 2);
        assert_eq!(found.times[1].iter().map(|times| times.total.as_nanos()).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((found.equality, found.times[0][0].sent_bytes), (Equality::Rounded(0.5), 7));
        let all = [
            told([1, 1], Equality::Differs { run: 1, rank: 0, place: 3 }),
            told([1, 1], Equality::Differs { run: 1, rank: 1, place: 0 }),
        ];
        assert_eq!(outcome(&all, 2).equality, Equality::Differs { run: 1, rank: 0, place: 3 });
    }
}
