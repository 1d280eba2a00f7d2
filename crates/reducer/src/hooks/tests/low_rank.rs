//! Recorded cases of PowerSGD, whose steps follow on one another.

use super::cases::{Recorded, compare, recorded, ulp};
use super::fixture::{floats, items, name, whole, world};
use super::{Rank, Step, layouts, on_ranks};
use crate::Divide;
use crate::hooks::{Cast16, PowerSgd, PowerSgdOptions};
use crate::{BucketLayout, Hook, Part};
use bucketeer_types::DType;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Absolute, as the recording says, for a step that begins with what was recorded before it.
const TOLERANCE: f64 = 2e-6;

/// The same for steps that begin with what our last one left: PyTorch calculates in f32, ours is summed in f64.
const CHAINED: f64 = 5.0;

/// Distances of 16-bit floats, at 1 or above, that a number may be off by where PyTorch calculates in them: ours are
/// rounded when they are sent only.
const ULPS: f64 = 4.0;

/// A parameter's matrix.
#[derive(Clone, Copy)]
struct Shape {
    param: usize,
    rows: usize,
    cols: usize,
    rank: usize,
}

/// The parameters of a bucket that PyTorch compresses, in the order of its P and Q: all of one shape where the first
/// is.
fn compressed(layout: &BucketLayout, options: &PowerSgdOptions) -> Vec<Shape> {
    let mut groups: Vec<Vec<Shape>> = Vec::new();
    for part in &layout.parts {
        let (rows, cols) = match &part.shape[..] {
            [] | [0, ..] => continue,
            [rows, rest @ ..] => (*rows as usize, rest.iter().product::<u64>() as usize),
        };
        let rank = options.rank.min(rows).min(cols);
        if ((rows + cols) * rank) as f64 * options.min_rate >= (rows * cols) as f64 {
            continue;
        }
        let shape = Shape { param: part.param, rows, cols, rank };
        match groups.iter_mut().find(|group| (group[0].rows, group[0].cols) == (rows, cols)) {
            Some(group) => group.push(shape),
            None => groups.push(vec![shape]),
        }
    }
    groups.concat()
}

/// Rows of `rank` elements, as recorded, from columns; and the other way round with the sizes exchanged.
fn transpose(columns: &[f64], rank: usize) -> Vec<f64> {
    let rows = columns.len() / rank;
    (0..columns.len()).map(|at| columns[at % rank * rows + at / rank]).collect()
}

/// Recorded normals by step and parameter, column by column.
type Draws = BTreeMap<(u64, usize), Vec<f64>>;

fn draws(case: &Value, steps: &[Recorded], options: &PowerSgdOptions) -> Draws {
    let mut draws = Draws::new();
    for (number, (step, value)) in steps.iter().zip(items(&case["steps"])).enumerate() {
        for (layout, bucket) in step.layouts.iter().zip(items(&value["buckets"])) {
            let Some(lists) = bucket.get("q_random") else { continue };
            let mut rows = items(lists).iter().flat_map(floats);
            for shape in compressed(layout, options) {
                let q: Vec<f64> = rows.by_ref().take(shape.cols * shape.rank).collect();
                draws.insert((number as u64, shape.param), transpose(&q, shape.cols));
            }
            assert_eq!(rows.count(), 0, "all that was drawn is used");
        }
    }
    draws
}

/// PowerSGD, maybe in 16 bits.
enum Tested {
    Plain(PowerSgd),
    Within(Cast16<PowerSgd>),
}

impl Tested {
    fn new(options: PowerSgdOptions, within: Option<DType>, draws: Arc<Mutex<Draws>>) -> Result<Self, String> {
        let hook = PowerSgd::new(options).map_err(|error| error.to_string())?;
        let hook = hook.with_normals(move |step, param, target| {
            let drawn = draws.lock().expect("nobody panics").remove(&(step, param));
            // A Q without direction is drawn again, which PyTorch does not do: nothing is recorded for that.
            let drawn = drawn.unwrap_or_else(|| (0..target.len()).map(|at| at as f64 * 0.7 - 1.3).collect());
            target.copy_from_slice(&drawn);
        });
        Ok(match within {
            None => Self::Plain(hook),
            Some(DType::F16) => Self::Within(Cast16::f16_around(hook).divide(Divide::OnWire)),
            Some(_) => Self::Within(Cast16::bf16_around(hook).divide(Divide::OnWire)),
        })
    }

    fn hook(&mut self) -> &mut dyn Hook {
        match self {
            Self::Plain(hook) => hook,
            Self::Within(hook) => hook,
        }
    }

    fn inner(&mut self) -> &mut PowerSgd {
        match self {
            Self::Plain(hook) => hook,
            Self::Within(hook) => hook.inner_mut(),
        }
    }
}

/// Runs all steps of a case; the first difference.
pub fn check(case: &Value, options: PowerSgdOptions, within: Option<DType>) -> Result<(), String> {
    let steps = recorded(case);
    for chained in [false, true] {
        let results = on_ranks(world(case), |rank| check_rank(rank, case, &steps, (options, within, chained)));
        results.into_iter().collect::<Result<(), String>>()?;
    }
    Ok(())
}

/// A rank goes on after a difference, as the others do.
fn check_rank(
    rank: &Rank,
    case: &Value,
    steps: &[Recorded],
    (options, within, chained): (PowerSgdOptions, Option<DType>, bool),
) -> Result<(), String> {
    let draws = Arc::new(Mutex::new(draws(case, steps, &options)));
    let mut tested = Tested::new(options, within, draws.clone())?;
    let mut differences = Vec::new();
    let mut known: &[BucketLayout] = &[];
    for (number, (step, value)) in steps.iter().zip(items(&case["steps"])).enumerate() {
        if known != step.layouts {
            known = &step.layouts;
            tested.hook().rebuilt(known, &rank.group);
        }
        let place = rank.group.rank().0 as usize;
        let buckets = items(&value["buckets"]);
        let checked = |at: usize| {
            let (bucket, layout) = (&buckets[at], &step.layouts[at]);
            Checked { case, bucket, layout, options, within, place, chained }
        };
        if !chained {
            (0..buckets.len()).for_each(|at| checked(at).take_up(tested.inner()));
        }
        let (gradients, divisor) = (&step.gradients[place], rank.group.size() as f64);
        let given = Step { number: number as u64, divisor, layouts: &step.layouts, gradients };
        let (results, calls) = rank.step(tested.hook(), &given).map_err(|error| error.to_string())?;
        if step.collectives.as_deref() != Some(&calls.concat()) {
            differences.push(format!("step {number} launched {calls:?}"));
        }
        for (at, found) in results.iter().enumerate() {
            let result = checked(at).result(found, &step.result[at], &step.gradients, at);
            let state = checked(at).state(tested.inner());
            differences.extend(result.err().map(|error| format!("step {number}: {error}")));
            differences.extend(state.err().map(|error| format!("step {number}: {error}")));
        }
    }
    if !draws.lock().expect("nobody panics").is_empty() {
        differences.push("some of what PyTorch drew was not drawn".to_owned());
    }
    differences.into_iter().next().map_or(Ok(()), Err)
}

/// A bucket after a step.
struct Checked<'a> {
    case: &'a Value,
    bucket: &'a Value,
    layout: &'a BucketLayout,
    options: PowerSgdOptions,
    within: Option<DType>,
    place: usize,
    chained: bool,
}

impl Checked<'_> {
    fn tolerance(&self, expected: f64) -> f64 {
        let factor = if self.chained { CHAINED } else { 1.0 };
        factor * self.within.map_or(TOLERANCE, |dtype| ULPS * ulp(dtype, expected.abs().max(1.0)))
    }

    /// Has the hook begin a step with the Q and the errors that were recorded before it.
    fn take_up(&self, hook: &mut PowerSgd) {
        let mut q_at = 0;
        for Shape { param, cols, rank, .. } in compressed(self.layout, &self.options) {
            let Some(state) = hook.state(param) else { continue };
            if let Some(all) = self.bucket.get("q_before") {
                let q = &floats(all)[q_at..q_at + cols * rank];
                q_at += q.len();
                if !self.is_zero_without_epsilon(q) {
                    state.q = transpose(q, cols);
                }
            }
            if let Some(all) = self.bucket.get("e_before") {
                let error = &floats(&all[self.place])[self.part(param).range.clone()];
                if !self.is_zero_without_epsilon(error) {
                    state.error = error.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect();
                }
            }
        }
    }

    fn part(&self, param: usize) -> &Part {
        self.layout.parts.iter().find(|part| part.param == param).expect("the bucket has it")
    }

    /// Gradients. PyTorch carries an error for tensors that are not compressed (RED-25). It is zero in sum over ranks,
    /// so results agree but for the rounding of what it has grown to.
    fn result(&self, found: &[f64], expected: &[f64], all: &[Vec<Vec<f64>>], at: usize) -> Result<(), String> {
        let drift = self.bucket.get("e_before").map_or(0.0, |errors| {
            items(errors).iter().flat_map(floats).filter(|error| error.is_finite()).fold(1.0, |a, b| b.abs().max(a))
        });
        let shapes = compressed(self.layout, &self.options);
        for part in &self.layout.parts {
            let (found, expected) = (&found[part.range.clone()], &expected[part.range.clone()]);
            let is_compressed = shapes.iter().any(|shape| shape.param == part.param);
            let factor = if is_compressed { 1.0 } else { f64::max(drift, 1.0) };
            let what = format!("gradient {}", part.param);
            if self.is_zero_without_epsilon(expected) {
                let zeros = all.iter().all(|rank| rank[at][part.range.clone()].iter().all(|value| *value == 0.0));
                assert!(zeros, "{what} is NaN in PyTorch, so all ranks gave zeros");
                compare(&what, found, &vec![0.0; found.len()], |_| 0.0)?;
                continue;
            }
            compare(&what, found, expected, |expected| factor * self.tolerance(expected))?;
        }
        Ok(())
    }

    /// RED-24: where PyTorch divides zeros by their length all is NaN, where ours are zeros.
    fn is_zero_without_epsilon(&self, expected: &[f64]) -> bool {
        name(self.case) == "powersgd_zero_no_eps" && expected.iter().all(|value| value.is_nan())
    }

    /// P, Q and the error of what is compressed. An error that PyTorch has for others is not looked at: ours have none
    /// (RED-25).
    fn state(&self, hook: &mut PowerSgd) -> Result<(), String> {
        let (mut p_at, mut q_at) = (0, 0);
        for shape in compressed(self.layout, &self.options) {
            let Shape { param, rows, cols, rank } = shape;
            let Some(state) = hook.state(param) else {
                if self.bucket.get("compressed").is_none() {
                    continue;
                }
                return Err(format!("parameter {param} has no state"));
            };
            for (key, found, at, size) in
                [("p_after", &state.p, &mut p_at, rows * rank), ("q_after", &state.q, &mut q_at, cols * rank)]
            {
                let Some(all) = self.bucket.get(key) else { continue };
                let expected = &floats(all)[*at..*at + size];
                *at += size;
                let zeros = vec![0.0; size];
                let expected = if self.is_zero_without_epsilon(expected) { &zeros } else { expected };
                compare(&format!("{key} of {param}"), &transpose(found, rank), expected, |e| self.tolerance(e))?;
            }
            self.error(param, &state.error)?;
        }
        for (key, size) in [("p_after", p_at), ("q_after", q_at)] {
            let recorded = self.bucket.get(key).map_or(0, |all| items(all).len());
            assert_eq!(recorded, size, "{key} is as long as all compressed parameters'");
        }
        Ok(())
    }

    fn error(&self, param: usize, error: &[u8]) -> Result<(), String> {
        let Some(all) = self.bucket.get("e_after") else { return Ok(()) };
        let expected = &floats(&all[self.place])[self.part(param).range.clone()];
        let zeros = vec![0.0; expected.len()];
        let expected = if self.is_zero_without_epsilon(expected) { &zeros } else { expected };
        let found: Vec<f64> = error.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
        compare(&format!("e_after of {param}"), &found, expected, |expected| self.tolerance(expected))
    }
}

/// What PyTorch does not run in batches runs here, as each matrix of a bucket is batched with the others: one sum of
/// all P, one of all Q, whatever their number.
pub fn check_batched() -> Result<(), String> {
    let shapes = vec![vec![6, 6], vec![5, 7], vec![6, 6]];
    let layouts = layouts(DType::F32, &shapes, &[whole(&Value::from(vec![0, 1, 2]))]);
    let options = PowerSgdOptions { start_step: 0, min_rate: 1.0, ..PowerSgdOptions::default() };
    let results = on_ranks(2, |rank| {
        let mut hook = PowerSgd::new(options)?;
        let gradients = [(0..layouts[0].elements()).map(|at| (at % 13) as f64 - 6.0).collect::<Vec<f64>>()];
        let step = Step { number: 0, divisor: 2.0, layouts: &layouts, gradients: &gradients };
        rank.step(&mut hook, &step)
    });
    for result in results {
        let (_, calls) = result.map_err(|error| error.to_string())?;
        assert_eq!(calls.concat(), ["all_reduce:f32:17", "all_reduce:f32:19"]);
    }
    Ok(())
}
