//! PowerSGD: gradients as matrices of low rank. [`factor`] is what becomes of a matrix, [`linear`] the arithmetic, and
//! here is what is sent when.

mod factor;
mod linear;
mod normals;

use super::{divide_bucket, no_stage, sum, values};
use crate::{BucketLayout, Hook, HookBucket, HookError, Stage};
use bucketeer_comm::{Buffer, Group};
use bucketeer_types::{DType, GlobalRank};
use factor::{Bucket, Factor, State, split};
use normals::{Normals, seeded};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// What [`PowerSgd`] does. The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerSgdOptions {
    /// Columns of P and Q, at least 1.
    pub rank: usize,
    /// The first step that compresses; before it the mean is taken. Counted as [`HookBucket::step`] is: from 0.
    pub start_step: u64,
    /// A parameter is compressed if its gradient has more than so many times the elements of P and Q.
    pub min_rate: f64,
    /// Begin with the last step's Q, not with a random one.
    pub warm_start: bool,
    /// Keep what a step leaves of a gradient for the next.
    pub error_feedback: bool,
    /// Added to lengths of columns before they are divided by. Zeros need none.
    pub epsilon: f64,
    /// Of random Qs.
    pub seed: u64,
}

impl Default for PowerSgdOptions {
    /// Rank 1 from step 1000 on, for what becomes less than half, with warm start and error feedback.
    fn default() -> Self {
        Self { rank: 1, start_step: 1000, min_rate: 2.0, warm_start: true, error_feedback: true, epsilon: 0.0, seed: 0 }
    }
}

/// Gradients as products of two thin matrices, after Vogels, Karimireddy and Jaggi: *PowerSGD: Practical Low-Rank
/// Gradient Compression for Distributed Optimization* (<https://arxiv.org/abs/1905.13727>).
///
/// A parameter's gradient is a matrix of its first dimension by all others, in the order of memory. M is that and what
/// earlier steps left of it. Q is the last step's or random, its columns made orthonormal. P = M Q is averaged over
/// ranks and made orthonormal; then Q = Mᵀ P is averaged. P Qᵀ is the result, and what M has beyond it is left for the
/// next step.
///
/// | stage | calls |
/// |---|---|
/// | 0 | the sum of parameters that are not compressed, the sum of all P |
/// | 1 | the sum of all Q |
///
/// Calls that would be empty are left out. P and Q are sent in the bucket's dtype and calculated in f64. Before the
/// first step that compresses, and for a parameter that is not compressed, the mean is taken, without an error.
///
/// **State** is kept by parameter: an error of the gradient's size in f32 (f64 for f64), and Q. So it lasts when
/// buckets are rebuilt. Where a step fails, errors of what was on its way begin again at zero; where the ranks change, Qs
/// do, and errors with the plain steps before `start_step`. Should Qs differ between ranks for a step, results are less good, but the same on all ranks still.
///
/// **Zeros** give zeros. A Q that lost its direction by them is drawn again.
///
/// **NaN and infinity** in any rank's gradient make all of a compressed parameter's result NaN, on all ranks; its error
/// and Q begin again, so that later steps are free of it. So does an overflow of P or Q in 16 bits.
///
/// **Divisors** other than the number of ranks hold: weights, sums, ranks without input.
pub struct PowerSgd {
    options: PowerSgdOptions,
    normals: Normals,
    /// By parameter.
    states: BTreeMap<usize, State>,
    /// By bucket.
    flights: BTreeMap<usize, Flight>,
    members: Vec<GlobalRank>,
}

/// A bucket between two stages.
enum Flight {
    /// Its mean is taken.
    Mean,
    /// Some of it is compressed.
    Compressed(Compressed),
}

struct Compressed {
    factors: Vec<Factor>,
    /// What is not compressed, and where it is summed.
    others: Vec<Range<usize>>,
    sums: Buffer,
    /// Where P, then Q, is summed.
    wire: Buffer,
}

impl PowerSgd {
    /// Begins with no errors and random Qs.
    ///
    /// # Errors
    /// A rank of 0, or a rate or epsilon that is negative or not finite.
    pub fn new(options: PowerSgdOptions) -> Result<Self, HookError> {
        if options.rank == 0 {
            return Err("the rank of PowerSGD is 0, but a product needs at least one column".into());
        }
        for (what, value) in [("minimum rate", options.min_rate), ("epsilon", options.epsilon)] {
            if !value.is_finite() || value < 0.0 {
                return Err(format!("the {what} of PowerSGD is {value}; it has to be a number from 0").into());
            }
        }
        let (states, flights) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { options, normals: seeded(options.seed), states, flights, members: Vec::new() })
    }

    /// The same with other random numbers: `normals` fills the columns of a Q for a step and a parameter.
    #[cfg(test)]
    pub(super) fn with_normals(self, normals: impl Fn(u64, usize, &mut [f64]) + Send + Sync + 'static) -> Self {
        Self { normals: std::sync::Arc::new(normals), ..self }
    }

    #[cfg(test)]
    pub(super) fn state(&mut self, param: usize) -> Option<&mut State> {
        self.states.get_mut(&param)
    }

    /// Stage 0 of a bucket with something to compress.
    fn compress(
        &mut self,
        bucket: &HookBucket<'_>,
        mut factors: Vec<Factor>,
        others: Vec<Range<usize>>,
    ) -> Result<Stage, HookError> {
        let dtype = bucket.layout().dtype;
        // First of all what may fail: errors are touched afterwards.
        let sums = scratch(bucket, others.iter().map(ExactSizeIterator::len))?;
        let wire = scratch(bucket, factors.iter().map(Factor::p_elements))?;
        let gradients = bucket.buffer().read()?;
        let terms = terms(&self.options, bucket);
        for factor in &mut factors {
            factor.begin(&terms, &gradients, self.states.entry(factor.param).or_default(), &self.normals)?;
        }
        put(dtype, factors.iter().map(Factor::p), &wire)?;
        let mut target = sums.write()?;
        each_part(&others, dtype, |range, place| {
            values::divide_into(dtype, dtype, &gradients[range], &mut target[place], bucket.divisor())
        })?;
        drop(target);
        let calls = if others.is_empty() { vec![] } else { vec![sum(&sums, dtype)] };
        let calls = calls.into_iter().chain([sum(&wire, dtype)]).collect();
        let flight = Flight::Compressed(Compressed { factors, others, sums, wire });
        self.flights.insert(bucket.layout().index, flight);
        Ok(Stage::Calls(calls))
    }

    /// Between P and Q.
    fn project(&mut self, bucket: &HookBucket<'_>, flight: &mut Compressed) -> Result<Stage, HookError> {
        let dtype = bucket.layout().dtype;
        let mut gradients = bucket.buffer().write()?;
        let sums = flight.sums.read()?;
        each_part(&flight.others, dtype, |range, place| {
            gradients[range].copy_from_slice(&sums[place]);
            Ok(())
        })?;
        drop(sums);
        let wire = flight.wire.read()?;
        let mut at = 0;
        let none = State::default();
        for factor in &mut flight.factors {
            let bytes = at..at + factor.p_elements() * values::width(dtype);
            at = bytes.end;
            let state = self.states.get(&factor.param).unwrap_or(&none);
            factor.project(&terms(&self.options, bucket), &gradients, state, &wire[bytes])?;
        }
        drop(wire);
        flight.wire = scratch(bucket, flight.factors.iter().map(Factor::q_elements))?;
        put(dtype, flight.factors.iter().map(Factor::q), &flight.wire)?;
        Ok(Stage::Calls(vec![sum(&flight.wire, dtype)]))
    }

    /// After Q.
    fn end(&mut self, bucket: &HookBucket<'_>, flight: &mut Compressed) -> Result<Stage, HookError> {
        let dtype = bucket.layout().dtype;
        let mut gradients = bucket.buffer().write()?;
        let wire = flight.wire.read()?;
        let mut at = 0;
        for factor in &mut flight.factors {
            let bytes = at..at + factor.q_elements() * values::width(dtype);
            at = bytes.end;
            let state = self.states.entry(factor.param).or_default();
            factor.end(&terms(&self.options, bucket), &mut gradients, state, &wire[bytes])?;
        }
        Ok(Stage::Done)
    }

    /// Forgets what a step that failed had begun with the errors of a bucket.
    fn abandon(&mut self, flight: &Flight) {
        let Flight::Compressed(flight) = flight else { return };
        for factor in &flight.factors {
            if let Some(state) = self.states.get_mut(&factor.param) {
                state.error.clear();
            }
        }
    }
}

impl fmt::Debug for PowerSgd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PowerSgd({:?}, {} parameters)", self.options, self.states.len())
    }
}

impl Hook for PowerSgd {
    fn describe(&self) -> String {
        let PowerSgdOptions { rank, start_step, min_rate, warm_start, error_feedback, epsilon, seed } = self.options;
        let with = |what, is| if is { what } else { "no " };
        format!(
            "powersgd rank {rank}, from step {start_step}, rate {min_rate}, {}warm start, {}error feedback, \
             epsilon {epsilon}, seed {seed}",
            with("", warm_start),
            with("", error_feedback)
        )
    }

    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        let layout = bucket.layout();
        values::check_float("PowerSGD", layout.dtype)?;
        if let Some(flight) = self.flights.remove(&layout.index) {
            self.abandon(&flight);
        }
        if layout.elements() == 0 {
            return Ok(Stage::Done);
        }
        if bucket.step() >= self.options.start_step {
            let (factors, others) = split(layout, &self.options);
            if !factors.is_empty() {
                return self.compress(bucket, factors, others);
            }
        }
        if bucket.step() < self.options.start_step {
            // What an earlier group left is of gradients long ago.
            layout.parts.iter().for_each(|part| drop(self.states.remove(&part.param)));
        }
        divide_bucket(bucket, bucket.divisor())?;
        self.flights.insert(layout.index, Flight::Mean);
        Ok(Stage::Calls(vec![sum(bucket.buffer(), layout.dtype)]))
    }

    fn next(&mut self, bucket: &HookBucket<'_>, stage: usize) -> Result<Stage, HookError> {
        let index = bucket.layout().index;
        let Some(mut flight) = self.flights.remove(&index) else { return Err(no_stage(index)) };
        let answer = match (&mut flight, stage) {
            (Flight::Mean, _) => Ok(Stage::Done),
            (Flight::Compressed(flight), 0) => self.project(bucket, flight),
            (Flight::Compressed(flight), _) => self.end(bucket, flight),
        };
        match &answer {
            Ok(Stage::Calls(_)) => _ = self.flights.insert(index, flight),
            Ok(_) => {}
            Err(_) => self.abandon(&flight),
        }
        answer
    }

    fn rebuilt(&mut self, _: &[BucketLayout], group: &Group) {
        for flight in std::mem::take(&mut self.flights).values() {
            self.abandon(flight);
        }
        if self.members != group.members() {
            self.members = group.members().to_vec();
            self.states.values_mut().for_each(|state| state.q.clear());
        }
    }
}

/// What all factors of a bucket share.
fn terms<'a>(options: &'a PowerSgdOptions, bucket: &HookBucket<'_>) -> Bucket<'a> {
    let (divisor, step) = (bucket.divisor(), bucket.step());
    let share = divisor / bucket.group().size() as f64;
    Bucket { options, dtype: bucket.layout().dtype, step, divisor, share }
}

/// Memory for numbers in the bucket's dtype.
fn scratch(bucket: &HookBucket<'_>, elements: impl Iterator<Item = usize>) -> Result<Buffer, HookError> {
    let elements = elements.fold(0, usize::saturating_add) as u64;
    bucket.scratch(elements.saturating_mul(bucket.layout().dtype.bytes()))
}

/// Writes lists of numbers end to end.
fn put<'a>(dtype: DType, lists: impl Iterator<Item = &'a [f64]>, target: &Buffer) -> Result<(), HookError> {
    let mut target = target.write()?;
    let mut at = 0;
    for list in lists {
        let end = at + list.len() * values::width(dtype);
        values::store(dtype, list, &mut target[at..end])?;
        at = end;
    }
    Ok(())
}

/// Each range in bytes of the bucket, and where it lies when they are put end to end.
fn each_part(
    ranges: &[Range<usize>],
    dtype: DType,
    mut step: impl FnMut(Range<usize>, Range<usize>) -> Result<(), HookError>,
) -> Result<(), HookError> {
    let mut at = 0;
    for range in ranges {
        let bytes = values::bytes_of(range, dtype);
        let place = at..at + bytes.len();
        at = place.end;
        step(bytes, place)?;
    }
    Ok(())
}
