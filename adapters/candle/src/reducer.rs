//! A reducer of the variables of a map, and its steps.

use crate::error::Error;
use crate::mark::{How, Marks, Variable};
use crate::params::Params;
use crate::times::{StepTimes, Timed, Watch};
use crate::values;
use bucketeer_comm::{Backend, Group};
use bucketeer_reducer::{BucketInfo, Param, ReducerError, ReducerOptions};
use bucketeer_types::{DType, GlobalRank};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor};
use candle_nn::VarMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// One rank's side of data-parallel training of the variables of a [`VarMap`].
///
/// Every rank makes one of the same names, shapes and dtypes, and takes the same steps. It is the rank's own affair that
/// all ranks begin with the same values.
pub struct Reducer {
    inner: bucketeer_reducer::Reducer,
    rank: GlobalRank,
    map: VarMap,
    vars: Arc<[Variable]>,
    timed: Option<Arc<Timed>>,
    times: Vec<StepTimes>,
    wire: Option<DType>,
    counts: bool,
}

impl Reducer {
    /// Makes a reducer of all variables of a map, in the order of their names, and compares it with the other ranks'. Waits
    /// for them.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for variables on other devices than the CPU, or of dtypes whose gradients are not reduced;
    /// else as [`bucketeer_reducer::Reducer::new`].
    pub fn new(backend: Arc<dyn Backend>, group: &Group, map: &VarMap, options: ReducerOptions) -> Result<Self, Error> {
        Self::make(backend, group, map, options, None)
    }

    /// The same, and notes when marks and launches of each step are; see [`take_times`](Self::take_times). A thread asks for
    /// ends of launches while a step runs.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn timed(
        backend: Arc<dyn Backend>,
        group: &Group,
        map: &VarMap,
        options: ReducerOptions,
    ) -> Result<Self, Error> {
        let timed = Arc::new(Timed::new(backend));
        Self::make(timed.clone(), group, map, options, Some(timed))
    }

    fn make(
        backend: Arc<dyn Backend>,
        group: &Group,
        map: &VarMap,
        options: ReducerOptions,
        timed: Option<Arc<Timed>>,
    ) -> Result<Self, Error> {
        let rank = backend.rank();
        let vars: Arc<[Variable]> = by_name(map).into();
        let invalid = |reason: String| ReducerError::Invalid { rank, reason };
        let mut params = Vec::with_capacity(vars.len());
        for Variable { name, var } in vars.iter() {
            if !matches!(var.device(), Device::Cpu) {
                let place = var.device().location();
                let reason = format!("variable `{name}` is on {place:?}; only variables of the CPU are reduced");
                return Err(invalid(reason).into());
            }
            let Some(dtype) = values::dtype(var.dtype()) else {
                let dtype = var.dtype().as_str();
                let reason = format!("variable `{name}` is of {dtype}; only f64, f32, f16 and bf16 are reduced");
                return Err(invalid(reason).into());
            };
            params.push(Param::new(name, &values::dims(var), dtype));
        }
        let (wire, counts) = (options.wire.map(|wire| wire.dtype), options.static_graph);
        let inner = bucketeer_reducer::Reducer::new(backend, group, params, options)?;
        Ok(Self { inner, rank, map: map.clone(), vars, timed, times: Vec::new(), wire, counts })
    }

    /// Begins a step whose gradients are reduced.
    ///
    /// # Errors
    /// As [`bucketeer_reducer::Reducer::step`]; [`ReducerError::Invalid`] where the map has got variables since.
    pub fn step(&mut self) -> Result<Step<'_>, Error> {
        self.begin(None)
    }

    /// The same for a mean over samples: this rank had so many of them in this step.
    ///
    /// # Errors
    /// As [`step`](Self::step), and [`bucketeer_reducer::Reducer::weighted_step`].
    pub fn weighted_step(&mut self, samples: f64) -> Result<Step<'_>, Error> {
        self.begin(Some(samples))
    }

    fn begin(&mut self, samples: Option<f64>) -> Result<Step<'_>, Error> {
        self.check_map()?;
        let Self { inner, rank, vars, timed, times, wire, counts, .. } = self;
        let core = match samples {
            None => inner.step()?,
            Some(samples) => inner.weighted_step(samples)?,
        };
        let marks =
            Arc::new(Marks::new(core.marker(), *rank, vars.clone(), How { timed: timed.is_some(), counts: *counts }));
        let watch = timed.as_ref().map(|timed| timed.watch());
        let clock = watch.map(|watch| Clock { watch, times, backward: None, wire: *wire });
        Ok(Step { core, params: Params::new(marks.clone()), marks, clock, begin: Instant::now() })
    }

    /// Reduces gradients that are there after a backward of the variables themselves, in place: a step of its own, whose
    /// messages run beside one another but not beside backward. A variable without an entry is unused.
    ///
    /// # Errors
    /// As [`step`](Self::step) and [`Step::finish`].
    pub fn reduce(&mut self, gradients: &mut GradStore) -> Result<(), Error> {
        self.reduce_begun(gradients, None)
    }

    /// The same for a mean over samples; see [`weighted_step`](Self::weighted_step).
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn reduce_weighted(&mut self, gradients: &mut GradStore, samples: f64) -> Result<(), Error> {
        self.reduce_begun(gradients, Some(samples))
    }

    fn reduce_begun(&mut self, gradients: &mut GradStore, samples: Option<f64>) -> Result<(), Error> {
        // The order of launches, so that the first bucket is on its way while the second one is filled.
        let order: Vec<usize> = self.inner.buckets().into_iter().flat_map(|bucket| bucket.params).collect();
        self.begin(samples)?.finish_in(&order, gradients)
    }

    /// Keeps the gradients of a backward of the variables themselves here, and adds them to those of the next step: c10d's
    /// `no_sync`. Nothing is sent.
    ///
    /// # Errors
    /// As [`bucketeer_reducer::Reducer::local_step`].
    pub fn accumulate(&mut self, gradients: &GradStore) -> Result<(), Error> {
        self.check_map()?;
        let (rank, vars) = (self.rank, self.vars.clone());
        for Variable { name, var } in vars.iter() {
            let wrong = gradients.get(var).and_then(|gradient| values::differs(gradient, var));
            if let Some(reason) = wrong {
                return Err(ReducerError::Invalid { rank, reason: format!("variable `{name}`: {reason}") }.into());
            }
        }
        let step = self.inner.local_step()?;
        for (param, Variable { name, var }) in vars.iter().enumerate() {
            let Some(gradient) = gradients.get(var) else { continue };
            // Row-major, as what is kept is.
            let gradient = gradient.contiguous()?;
            let kept = values::with_bytes(&gradient, |bytes, _| step.ready(param, bytes));
            let invalid =
                |reason: String| ReducerError::Invalid { rank, reason: format!("variable `{name}`: {reason}") };
            kept.map_err(invalid)??;
        }
        Ok(())
    }

    /// Variables that were made later, or put into the place of others, would not be trained together.
    fn check_map(&self) -> Result<(), ReducerError> {
        let now = by_name(&self.map);
        let is_ours = |variable: &Variable| {
            let ours = self.vars.binary_search_by(|var| var.name.cmp(&variable.name)).ok();
            ours.is_some_and(|at| self.vars[at].var.id() == variable.var.id())
        };
        let (count, had) = (now.len(), self.vars.len());
        let new: Vec<String> = now.iter().filter(|now| !is_ours(now)).map(|var| format!("`{}`", var.name)).collect();
        if count == had && new.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "the map has {count} variables, and had {had} when the reducer was made; new or replaced: {}. Make the reducer \
             when all are there",
            new.join(", ")
        );
        Err(ReducerError::Invalid { rank: self.rank, reason })
    }

    /// Goes on with another group; see [`bucketeer_reducer::Reducer::change_group`].
    ///
    /// # Errors
    /// As there.
    pub fn change_group(&mut self, group: &Group) -> Result<(), Error> {
        Ok(self.inner.change_group(group)?)
    }

    /// Names of the variables, in the order of their indices, which is that of the names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.vars.iter().map(|var| var.name.as_str())
    }

    /// The buckets, in the order of launches.
    #[must_use]
    pub fn buckets(&self) -> Vec<BucketInfo> {
        self.inner.buckets()
    }

    /// The times of all steps since they were last taken; empty for a reducer that is not [timed](Self::timed).
    pub fn take_times(&mut self) -> Vec<StepTimes> {
        std::mem::take(&mut self.times)
    }
}

/// The variables of a map in the order of their names.
fn by_name(map: &VarMap) -> Vec<Variable> {
    let map = map.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let sorted: BTreeMap<&String, _> = map.iter().collect();
    sorted.into_iter().map(|(name, var)| Variable { name: name.clone(), var: var.clone() }).collect()
}

/// What a timed step notes.
struct Clock<'r> {
    watch: Watch,
    times: &'r mut Vec<StepTimes>,
    backward: Option<(Instant, Instant)>,
    /// What gradients are sent as, if that is not their own dtype.
    wire: Option<DType>,
}

/// A step: forward uses its parameters, its end has the gradients of all ranks. One that is dropped after marks fails the step
/// on all ranks.
#[must_use = "a step that is not finished is given up"]
pub struct Step<'r> {
    core: bucketeer_reducer::Step<'r>,
    params: Params,
    marks: Arc<Marks>,
    clock: Option<Clock<'r>>,
    begin: Instant,
}

impl Step<'_> {
    /// The parameters, for forward. They may be kept beyond the step, but their backward then is an error.
    #[must_use]
    pub fn params(&self) -> Params {
        self.params.clone()
    }

    /// Number of the step, from 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.core.number()
    }

    /// Runs backward, during which buckets are launched as they become complete, and waits for what all ranks together have.
    /// The result holds a gradient under each variable, for an optimizer; none under those that no rank used.
    ///
    /// # Errors
    /// What a mark fails with, with rank, step and parameter; candle's own errors; as [`finish`](Self::finish).
    pub fn backward(mut self, loss: &Tensor) -> Result<GradStore, Error> {
        let begin = Instant::now();
        let run = loss.backward();
        let mut gradients =
            run.map_err(|error| self.marks.take_failure().map_or(Error::Candle(error), Error::Reducer))?;
        if let Some(clock) = &mut self.clock {
            clock.backward = Some((begin, Instant::now()));
        }
        self.finish(&mut gradients)?;
        Ok(gradients)
    }

    /// The same where backward has run: waits, and puts what all ranks have into `gradients`. A variable that forward used in
    /// the place of the step's parameter is marked here.
    ///
    /// # Errors
    /// [`ReducerError::Missing`] names variables that were not used, where options do not allow it;
    /// [`ReducerError::Mark`] one that was used beside its parameter; else as [`bucketeer_reducer::Step::finish`].
    pub fn finish(self, gradients: &mut GradStore) -> Result<(), Error> {
        let order: Vec<usize> = (0..self.marks.vars.len()).collect();
        self.finish_in(&order, gradients)
    }

    /// The same, with the order in which variables are marked that forward used themselves.
    fn finish_in(self, order: &[usize], gradients: &mut GradStore) -> Result<(), Error> {
        let Self { core, marks, clock, begin, .. } = self;
        let (finish, number) = (Instant::now(), core.number());
        for &param in order {
            if let Some(gradient) = gradients.get(&marks.vars[param].var) {
                marks.mark(param, gradient)?;
            }
        }
        let mut buckets = Vec::new();
        let mut copied: Vec<Option<Tensor>> = vec![None; marks.vars.len()];
        let mut failed = None;
        let reduced = core.finish_each(|bucket| {
            buckets.resize(bucket.index() + 1, Vec::new());
            buckets[bucket.index()] = bucket.params().collect();
            for param in bucket.params() {
                let copy = |bytes: &mut [u8]| bucket.copy_to(param, bytes).map_err(Error::from);
                match values::filled(&marks.vars[param].var, copy) {
                    Ok(gradient) => copied[param] = Some(gradient),
                    Err(error) => drop(failed.get_or_insert(error)),
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        for (param, gradient) in copied.into_iter().enumerate() {
            if let Some(gradient) = gradient
                && !reduced.is_kept(param)
            {
                gradients.insert(&marks.vars[param].var, gradient);
            }
        }
        if let Some(Clock { watch, times, backward, wire }) = clock {
            let width =
                |param: &usize| wire.map_or(marks.vars[*param].var.dtype().size_in_bytes() as u64, DType::bytes);
            let bytes = |param: &usize| marks.vars[*param].var.elem_count() as u64 * width(param);
            let bytes: Vec<u64> = buckets.iter().map(|bucket| bucket.iter().map(bytes).sum()).collect();
            let (marks, launches) = (marks.take_times(), watch.launches(&bytes));
            let finish = (finish, Instant::now());
            times.push(StepTimes { step: number, begin, backward, finish, marks, launches, buckets });
        }
        Ok(())
    }
}
