//! Ranks that run out of data at different times: those that have none take part with zeros until the last one ends.
//!
//! As in c10d's `Join`: before each forward the ranks count who is there, and say whether they will reduce. A rank that ran
//! out says the same and gives zeros, and an empty map of what it used. At the end all get what the last one has.

use crate::error::ReducerError;
use crate::factors::FactorCell;
use crate::options::{Scale, Unused};
use crate::reducer::Reducer;
use crate::step::{LocalStep, Step};
use crate::tensors::{Tensor, broadcast};
use bucketeer_comm::{Buffer, Work};
use bucketeer_types::{DType, GlobalRank, ReduceOp, num};

/// What a mean is divided by while some ranks are out of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JoinDivide {
    /// The number of ranks of the group.
    #[default]
    ByWorld,
    /// The number of ranks that still have data, in hooks, too.
    ByLive,
}

/// What becomes of ranks that run out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunOut {
    /// They take part with zeros until all have run out.
    #[default]
    Shadow,
    /// All ranks end with an error, which names those that ran out.
    Fail,
}

/// How ranks join.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JoinOptions {
    /// What a mean is divided by.
    pub divide: JoinDivide,
    /// What becomes of ranks that run out.
    pub run_out: RunOut,
}

/// A part of a training in which ranks may run out of data. All ranks open one at the same time, and [`end`](Self::end) it.
#[must_use = "ranks that still have data wait for the others' `end`"]
pub struct Join<'r> {
    reducer: &'r mut Reducer,
    options: JoinOptions,
}

/// How a [`Join`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The rank whose parameters all have now: of those that had data to the end, the last in the group.
    pub authority: GlobalRank,
    /// How many reduced steps this rank took part in without data.
    pub shadowed_steps: u64,
    /// Whether what this rank keeps beside its parameters, the state of its optimizer, missed those steps: it is not sent,
    /// as the reducer does not know it. Copy it from [`authority`](Self::authority), or begin it again.
    pub optimizer_is_stale: bool,
}

impl Reducer {
    /// Opens a part of a training in which ranks may run out of data.
    ///
    /// # Errors
    /// [`ReducerError::Broken`].
    pub fn join(&mut self, options: JoinOptions) -> Result<Join<'_>, ReducerError> {
        self.shared.check()?;
        if self.shared.options.unused == Unused::Skip {
            let reason = "a rank without data uses nothing, so ranks cannot agree on what to skip: give another way for unused \
                          parameters";
            return Err(self.shared.invalid(reason));
        }
        Ok(Join { reducer: self, options })
    }
}

impl Join<'_> {
    /// A step whose gradients are reduced, which has to be finished. `buffers` are tensors of the model that all ranks are to have from the last rank with
    /// data; none if each keeps its own.
    ///
    /// # Errors
    /// As [`Reducer::step`]; [`ReducerError::RanOut`] where that is an error.
    pub fn step(&mut self, buffers: &mut [Tensor<'_>]) -> Result<Step<'_>, ReducerError> {
        if self.reducer.shared.options.scale == Scale::Weighted {
            return Err(self.reducer.shared.invalid("the mean is over samples: begin steps with `weighted_step`"));
        }
        let live = self.arrive(buffers, true)?;
        self.begin(live, None)
    }

    /// The same for a mean over samples; see [`Reducer::weighted_step`].
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn weighted_step(&mut self, samples: f64, buffers: &mut [Tensor<'_>]) -> Result<Step<'_>, ReducerError> {
        self.reducer.check_weight(samples)?;
        let live = self.arrive(buffers, true)?;
        self.begin(live, Some(samples))
    }

    /// A step whose gradients are kept here; see [`Reducer::local_step`]. Ranks without data learn that nothing is reduced, so in a
    /// join all ranks with data keep a step local, or none.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn local_step(&mut self, buffers: &mut [Tensor<'_>]) -> Result<LocalStep<'_>, ReducerError> {
        self.arrive(buffers, false)?;
        self.reducer.local_step()
    }

    /// Says that this rank has no more data. Takes part without until no rank has any; `tensors`, parameters and then buffers, are
    /// afterwards those of the rank that had data last. `buffers` of the steps of others are taken from them meanwhile.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn end(self, buffers: &mut [Tensor<'_>], tensors: &mut [Tensor<'_>]) -> Result<Joined, ReducerError> {
        let Self { reducer, options } = self;
        if reducer.shared.options.scale == Scale::Weighted && reducer.accumulated.holds_local() {
            let reason = "this rank has gradients of local steps and no samples for a step that reduces them: end with a reduced \
                          step, or clear them";
            return Err(reducer.shared.fail(reducer.shared.invalid(reason), reducer.steps));
        }
        let mut shadowed_steps = 0;
        let mut rounds = 0u64;
        loop {
            let (count, work) = reducer.count(0.0)?;
            if reducer.number(&count, &work)? == 0.0 {
                break;
            }
            if options.run_out == RunOut::Fail {
                return Err(reducer.ran_out(true)?);
            }
            rounds += 1;
            reducer.rebuild_if_due()?;
            if !buffers.is_empty() {
                reducer.buffers_from_last(buffers, false)?;
            }
            let (flag, said) = reducer.count(0.0)?;
            if reducer.number(&flag, &said)? == 0.0 {
                continue;
            }
            let factors = match (reducer.shared.options.scale, options.divide) {
                (Scale::Weighted, _) => reducer.weights(0.0)?,
                (_, JoinDivide::ByLive) => FactorCell::pending(1.0, count, work, DType::F32),
                (_, JoinDivide::ByWorld) => FactorCell::of_ranks(&reducer.shared, reducer.shared.group.size()),
            };
            reducer.shadow(factors)?;
            shadowed_steps += 1;
        }
        let authority = reducer.last_place(rounds == 0)?;
        broadcast(&reducer.shared, tensors, authority, "the last rank's parameters", reducer.steps)?;
        let authority = reducer.shared.group.members().get(authority).copied().unwrap_or(GlobalRank(0));
        Ok(Joined { authority, shadowed_steps, optimizer_is_stale: shadowed_steps > 0 })
    }

    /// What comes before each forward. Returns the number of ranks with data, on its way.
    fn arrive(&mut self, buffers: &mut [Tensor<'_>], reduces: bool) -> Result<(Buffer, Work), ReducerError> {
        self.reducer.shared.check()?;
        let live = self.reducer.count(1.0)?;
        if self.options.run_out == RunOut::Fail && self.reducer.someone_ran_out(false)? {
            return Err(self.reducer.ran_out(false)?);
        }
        self.reducer.rebuild_if_due()?;
        if !buffers.is_empty() {
            self.reducer.buffers_from_last(buffers, true)?;
        }
        let (flag, said) = self.reducer.count(if reduces { 1.0 } else { 0.0 })?;
        let (some, all) = (self.reducer.number(&flag, &said)?, self.reducer.number(&live.0, &live.1)?);
        if some != 0.0 && some != all {
            let reason = format!("{some} of the {all} ranks with data reduce this step, the others keep it local");
            return Err(self.reducer.shared.fail(self.reducer.shared.invalid(reason), self.reducer.steps));
        }
        Ok(live)
    }

    fn begin(&mut self, live: (Buffer, Work), samples: Option<f64>) -> Result<Step<'_>, ReducerError> {
        let factors = match (samples, self.options.divide) {
            (Some(samples), _) => self.reducer.weights(samples)?,
            (None, JoinDivide::ByLive) => FactorCell::pending(1.0, live.0, live.1, DType::F32),
            (None, JoinDivide::ByWorld) => FactorCell::of_ranks(&self.reducer.shared, self.reducer.shared.group.size()),
        };
        Ok(self.reducer.begin(factors).announced())
    }
}

impl Reducer {
    /// Begins to sum a number over ranks.
    fn count(&self, number: f32) -> Result<(Buffer, Work), ReducerError> {
        let begun = self.shared.reduce_one(&number.to_le_bytes(), DType::F32, ReduceOp::Sum);
        begun.map_err(|error| self.failed("the count of ranks with data", error))
    }

    fn number(&self, buffer: &Buffer, work: &Work) -> Result<f64, ReducerError> {
        work.wait(None).map_err(|error| self.failed("the count of ranks with data", error))?;
        let bytes = buffer.read().map_err(|error| self.shared.buffer(error))?;
        Ok(num::load_float(DType::F32, &bytes))
    }

    fn failed(&self, what: &str, error: bucketeer_comm::CommError) -> ReducerError {
        self.shared.fail(self.shared.comm(self.steps, what, error), self.steps)
    }

    /// The place of the last rank in the group of those that say so.
    fn last_place(&self, so: bool) -> Result<usize, ReducerError> {
        let what = "the last rank with data";
        let own = if so { i64::from(self.shared.group.rank().0) } else { -1 };
        let begun = self.shared.reduce_one(&own.to_le_bytes(), DType::I64, ReduceOp::Max);
        let (buffer, work) = begun.map_err(|error| self.failed(what, error))?;
        work.wait(None).map_err(|error| self.failed(what, error))?;
        let bytes = buffer.read().map_err(|error| self.shared.buffer(error))?;
        let last = bytes.first_chunk().map_or(-1, |bytes| i64::from_le_bytes(*bytes));
        usize::try_from(last).map_err(|_| self.shared.invalid("no rank says that it had data last"))
    }

    fn buffers_from_last(&self, buffers: &mut [Tensor<'_>], has_data: bool) -> Result<(), ReducerError> {
        let root = self.last_place(has_data)?;
        broadcast(&self.shared, buffers, root, "the model's buffers", self.steps)
    }

    fn someone_ran_out(&self, own: bool) -> Result<bool, ReducerError> {
        let (flag, work) = self.count(if own { 1.0 } else { 0.0 })?;
        Ok(self.number(&flag, &work)? != 0.0)
    }

    /// The error of all ranks when one has run out and that is one.
    fn ran_out(&self, own: bool) -> Result<ReducerError, ReducerError> {
        if own {
            self.someone_ran_out(true)?;
        }
        let flags = self.shared.gather(&[u8::from(own)], "who ran out of data", self.steps)?;
        let flagged = flags.iter().zip(self.shared.group.members()).filter(|(flag, _)| flag.first() == Some(&1));
        let ranks = flagged.map(|(_, rank)| *rank).collect();
        Ok(ReducerError::RanOut { rank: self.shared.rank(), step: self.steps, ranks })
    }
}
