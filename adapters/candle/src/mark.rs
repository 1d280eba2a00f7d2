//! The operator that marks: the identity, whose backward hands the gradient to the reducer.
//!
//! candle runs an operator's backward once, when the gradients of all uses of its result are added up. So an identity
//! between a `Var` and all that uses it sees the gradient exactly when it is final.

use crate::times::MarkTimes;
use crate::values;
use bucketeer_reducer::{Marker, ReducerError};
use bucketeer_types::GlobalRank;
use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape, Tensor, Var};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Locks, whether or not a holder panicked: what these locks guard is whole wherever a holder may panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a second mark is refused.
const AGAIN: &str = "it is marked a second time in this step. Either backward ran twice: add the losses up, or give all gradients \
                     but the last to `accumulate`. Or forward used the variable itself beside the step's parameter: use only \
                     what the step gives";

/// A variable by its name.
pub struct Variable {
    pub name: String,
    pub var: Var,
}

/// How a reducer takes marks.
#[derive(Clone, Copy)]
pub struct How {
    /// Whether it is noted when they are.
    pub timed: bool,
    /// Whether a parameter may have several in a step, as in a static graph.
    pub counts: bool,
}

/// What the marks of a step share.
pub struct Marks {
    pub marker: Marker,
    pub rank: GlobalRank,
    pub vars: Arc<[Variable]>,
    marked: Vec<AtomicBool>,
    /// The first mark that failed, as candle's errors cannot carry it.
    failed: Mutex<Option<ReducerError>>,
    /// When marks were, if that is to be known.
    times: Option<Mutex<Vec<MarkTimes>>>,
    /// Whether the reducer takes several marks of a parameter in a step; of candle's backwards each gives a part only.
    counts: bool,
}

impl Marks {
    pub fn new(marker: Marker, rank: GlobalRank, vars: Arc<[Variable]>, how: How) -> Self {
        let marked = vars.iter().map(|_| AtomicBool::new(false)).collect();
        let How { timed, counts } = how;
        let times = timed.then(Mutex::default);
        Self { marker, rank, vars, marked, failed: Mutex::default(), times, counts }
    }

    /// Hands a gradient over.
    pub fn mark(&self, param: usize, gradient: &Tensor) -> std::result::Result<(), ReducerError> {
        let begin = Instant::now();
        let result = self.try_mark(param, gradient);
        if let Err(error) = &result {
            lock(&self.failed).get_or_insert_with(|| error.clone());
        }
        if let Some(times) = &self.times {
            lock(times).push(MarkTimes { param, begin, end: Instant::now() });
        }
        result
    }

    fn try_mark(&self, param: usize, gradient: &Tensor) -> std::result::Result<(), ReducerError> {
        let var = &self.vars[param].var;
        if let Some(reason) = values::differs(gradient, var) {
            return Err(self.refuse(param, reason));
        }
        let again = self.marked[param].swap(true, Ordering::AcqRel);
        if again && self.counts {
            return Err(self.refuse(param, AGAIN));
        }
        let marked = values::with_bytes(gradient, |bytes, strides| match strides {
            None => self.marker.ready(param, bytes),
            Some(strides) => self.marker.ready_strided(param, bytes, strides),
        });
        match marked.map_err(|reason| self.refuse(param, reason))? {
            // The reducer refused it, and tells the other ranks so; what to do about it is candle's.
            Err(ReducerError::Mark { .. }) if again => Err(self.refuse(param, AGAIN)),
            marked => marked,
        }
    }

    /// Refuses in the name of the reducer, so that the other ranks are told why if the step is given up.
    fn refuse(&self, param: usize, reason: impl Into<String>) -> ReducerError {
        self.marker.refuse(param, &reason.into())
    }

    /// The reducer's reason for an error of candle's, if a mark made it.
    pub fn take_failure(&self) -> Option<ReducerError> {
        lock(&self.failed).take()
    }

    pub fn take_times(&self) -> Vec<MarkTimes> {
        self.times.as_ref().map_or_else(Vec::new, |times| std::mem::take(&mut lock(times)))
    }
}

/// The operator for one parameter.
pub struct Mark {
    pub marks: Arc<Marks>,
    pub param: usize,
}

impl CustomOp1 for Mark {
    fn name(&self) -> &'static str {
        "bucketeer-mark"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((values::copy(storage, layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        // None is kept here: what all ranks have comes in its place.
        self.marks.mark(self.param, gradient).map(|()| None).map_err(Error::wrap)
    }
}
