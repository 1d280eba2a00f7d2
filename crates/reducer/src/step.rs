//! A step, as its user has it: marks, the end, and what came of it.

use crate::copy::{self, Change};
use crate::error::ReducerError;
use crate::in_step::InStep;
use crate::reducer::{BucketInfo, Reducer};
use crate::shared::lock;
use crate::sparse::SparseGradient;
use crate::tensors::{Tensor, broadcast};
use bucketeer_comm::{Buffer, ReadGuard};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Marks gradients of one step, from any thread. Copies mark the same step. Once the step is over it refuses.
#[derive(Clone)]
pub struct Marker(Arc<InStep>);

impl Marker {
    #[cfg(feature = "nccl")]
    pub(crate) fn step(&self) -> &InStep {
        &self.0
    }

    /// A parameter's gradient is final: takes a copy, and launches what that completes. Bytes are those of the
    /// gradient's elements in the parameter's own order of memory (row-major, if that has holes).
    ///
    /// # Errors
    /// [`ReducerError::Mark`], and nothing is changed: a second mark in this step, a wrong size, a step that is over. Else what a
    /// launch fails with, which ends the step.
    pub fn ready(&self, param: usize, gradient: &[u8]) -> Result<(), ReducerError> {
        self.0.ready(param, gradient, None)
    }

    /// The same for a gradient of other strides, in elements. Strides of dimensions of one element are not looked at.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub fn ready_strided(&self, param: usize, gradient: &[u8], strides: &[u64]) -> Result<(), ReducerError> {
        self.0.ready(param, gradient, Some(strides))
    }

    /// The same for a gradient that was written to the parameter's [`slot`](Self::slot). Guards on it are gone before.
    ///
    /// # Errors
    /// As [`ready`](Self::ready); for a parameter that is sent in another dtype.
    pub fn ready_in_place(&self, param: usize) -> Result<(), ReducerError> {
        self.0.ready_in_place(param)
    }

    /// The same for a gradient in memory that may be the parameter's slot or not: a framework that has put another tensor in its
    /// place. What lies elsewhere is copied in. Whether it was in its place.
    ///
    /// # Errors
    /// As [`ready`](Self::ready); for memory that is in use, or not the host's.
    pub fn ready_from(&self, param: usize, gradient: &Buffer) -> Result<bool, ReducerError> {
        if self.slot(param)? == *gradient {
            return self.ready_in_place(param).map(|()| true);
        }
        #[cfg(feature = "nccl")]
        if let Some(memory) = gradient.device() {
            return self.ready_device(param, &crate::DeviceGradient::new(&memory));
        }
        let bytes = gradient.read().map_err(|error| self.0.shared.buffer(error))?;
        self.ready(param, &bytes).map(|()| false)
    }

    /// The same for a sparse parameter: rows of the first dimension, in any order, also more than once, and the values of each,
    /// end to end.
    ///
    /// # Errors
    /// As [`ready`](Self::ready); a row that there is not.
    pub fn ready_sparse(&self, param: usize, rows: &[u64], values: &[u8]) -> Result<(), ReducerError> {
        self.0.ready_sparse(param, rows, values)
    }

    /// No gradient comes for a parameter in this step, where options allow it. Not needed: what is not marked at the end is
    /// unused. But who says so earlier has buckets launched earlier.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub fn unused(&self, param: usize) -> Result<(), ReducerError> {
        self.0.unused(param)
    }

    /// Where a parameter's gradient lies in its bucket; see [`Reducer::slot`].
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for an index that no parameter has.
    pub fn slot(&self, param: usize) -> Result<Buffer, ReducerError> {
        let place = self.0.layout.places.get(param);
        place.map(|place| place.slot.clone()).ok_or_else(|| self.0.shared.no_param(param))
    }

    /// Refuses a mark in the name of its parameter, for what only an adapter can see: a tensor of another shape, or of another
    /// device. Comes back as an error; if the step is then given up, the other ranks are told this reason.
    #[must_use]
    pub fn refuse(&self, param: usize, reason: &str) -> ReducerError {
        self.0.refuse_noted(param, reason)
    }

    /// Number of the step, from 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// The buckets of this step, in the order of launches.
    #[must_use]
    pub fn buckets(&self) -> Vec<BucketInfo> {
        self.0.layout.infos()
    }

    /// See [`Reducer::generation`].
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.layout.generation
    }
}

/// A step whose gradients are reduced. Ends by [`finish`](Self::finish), or by the drop of it: harmless if no mark came, taken or
/// refused, else a failure of the step on all ranks. A weighted step, and one of a [`Join`](crate::Join), is known to the other ranks
/// from its begin: it has to be finished.
#[must_use = "a step that is not finished is given up"]
pub struct Step<'r> {
    reducer: Option<&'r mut Reducer>,
    marker: Marker,
}

impl Deref for Step<'_> {
    type Target = Marker;

    fn deref(&self) -> &Marker {
        &self.marker
    }
}

impl<'r> Step<'r> {
    /// The same for a step that other ranks know of.
    pub(crate) fn announced(self) -> Self {
        self.marker.0.announce();
        self
    }

    pub(crate) fn new(reducer: &'r mut Reducer, step: Arc<InStep>) -> Self {
        Self { reducer: Some(reducer), marker: Marker(step) }
    }

    /// A handle that marks this step from elsewhere: an operator of a framework, another thread.
    #[must_use]
    pub fn marker(&self) -> Marker {
        self.marker.clone()
    }

    /// Gives all ranks the model's buffers of one of them, a place in the group, before the forward.
    ///
    /// # Errors
    /// As [`Reducer::broadcast`].
    pub fn broadcast(&self, root: usize, buffers: &mut [Tensor<'_>]) -> Result<(), ReducerError> {
        let step = &self.marker.0;
        broadcast(&step.shared, buffers, root, "the model's buffers", step.number)
    }

    /// Waits for all buckets, in order.
    ///
    /// # Errors
    /// [`ReducerError::Missing`] for parameters without a gradient, where options do not allow it;
    /// [`ReducerError::Hook`], [`ReducerError::Comm`], [`ReducerError::Elsewhere`].
    pub fn finish(self) -> Result<Reduced<'r>, ReducerError> {
        self.finish_each(|_| {})
    }

    /// The same, with a call for each bucket as soon as it has come, in order, while later ones are on their way: for optimizers that
    /// step by bucket. Which parameters keep their gradients may be known only at the end; it is told there.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_each(mut self, mut done: impl FnMut(&DoneBucket<'_>)) -> Result<Reduced<'r>, ReducerError> {
        let step = self.marker.0.clone();
        let ended = step.finish(|bucket, progress| {
            done(&DoneBucket { step: &step, bucket, sparse: &progress.sparse_out });
        });
        let Some(reducer) = self.reducer.take() else { return Err(step.shared.invalid("the step is over")) };
        reducer.ended(&step, ended?);
        Ok(Reduced { reducer })
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.reducer.is_some() {
            self.marker.0.give_up();
        }
    }
}

/// A bucket that has come, while others may be on their way.
pub struct DoneBucket<'a> {
    pub(crate) step: &'a InStep,
    bucket: usize,
    sparse: &'a std::collections::BTreeMap<usize, SparseGradient>,
}

impl DoneBucket<'_> {
    /// Its place in the order of launches.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.bucket
    }

    /// Indices of its parameters.
    pub fn params(&self) -> impl Iterator<Item = usize> {
        self.step.layout.buckets[self.bucket].layout.parts.iter().map(|part| part.param)
    }

    /// Whether a parameter is in it.
    pub(crate) fn holds(&self, param: usize) -> bool {
        self.step.layout.places.get(param).is_some_and(|place| place.bucket == self.bucket)
    }

    /// Copies a parameter's reduced gradient out, in its own dtype and order.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for another bucket's, a sparse one, or a target of another length.
    pub fn copy_to(&self, param: usize, target: &mut [u8]) -> Result<(), ReducerError> {
        if !self.holds(param) {
            return Err(self.step.shared.invalid(format!("parameter {param} is not in bucket {}", self.bucket)));
        }
        let out = self.step.out()?;
        copy_out(&self.step.shared, &self.step.layout, param, out, target)
    }

    /// A sparse parameter's reduced gradient.
    #[must_use]
    pub fn sparse(&self, param: usize) -> Option<&SparseGradient> {
        self.sparse.get(&param)
    }
}

fn copy_out(
    shared: &crate::shared::Shared,
    layout: &crate::layout::Layout,
    param: usize,
    out: Option<f64>,
    target: &mut [u8],
) -> Result<(), ReducerError> {
    let what = &shared.params[param];
    if what.is_sparse() {
        return Err(shared.invalid(format!("parameter {param} ({}) is sparse: read rows and values", what.name())));
    }
    if target.len() as u64 != what.bytes() {
        let (found, wanted) = (target.len(), what.bytes());
        return Err(shared.invalid(format!(
            "the gradient of parameter {param} ({}) has {wanted} bytes, its target {found}",
            what.name()
        )));
    }
    if let Some(device) = &shared.device {
        shared.arrive(true)?;
        let read = device.download(&layout.places[param].slot, target);
        return read.map_err(|reason| shared.device_failed(reason));
    }
    let source = layout.places[param].slot.read().map_err(|error| shared.buffer(error))?;
    let to = shared.sent[param].own;
    Change { from: shared.sent[param].dtype, to, factor: None }.put(&source, target);
    copy::scale(to, out, target);
    Ok(())
}

/// What a step came to. Gradients lie in the buckets until the next step begins.
pub struct Reduced<'r> {
    pub(crate) reducer: &'r mut Reducer,
}

impl Reduced<'_> {
    /// The reducer, for what it tells of buckets and times.
    #[must_use]
    pub const fn reducer(&self) -> &Reducer {
        self.reducer
    }

    /// Number of the step, from 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.reducer.last.number
    }

    /// Whether a parameter's gradient was left as it was: no rank used it, or this one did not and keeps its own.
    #[must_use]
    pub fn is_kept(&self, param: usize) -> bool {
        self.reducer.last.kept.get(param).copied().unwrap_or(false)
    }

    /// Copies a parameter's reduced gradient out, in its own dtype and order. Whether there is one: the target of a
    /// [kept](Self::is_kept) one is left alone.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for an index that no parameter has, a sparse one, or a target of another length.
    pub fn copy_to(&self, param: usize, target: &mut [u8]) -> Result<bool, ReducerError> {
        self.check(param)?;
        if self.is_kept(param) {
            return Ok(false);
        }
        let Reducer { shared, layout, last, .. } = &*self.reducer;
        copy_out(shared, layout, param, last.out, target)?;
        Ok(true)
    }

    /// Whether memory that a framework takes for a parameter's gradient is the slot that holds it.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`], naming the parameter: it is other memory, as after a rebuild, or the framework has put another
    /// tensor in its place, and holds no reduced gradient.
    pub fn expect_slot(&self, param: usize, gradient: &Buffer) -> Result<(), ReducerError> {
        self.check(param)?;
        let Reducer { shared, layout, last, .. } = &*self.reducer;
        if layout.places[param].slot == *gradient && last.out.is_none() {
            return Ok(());
        }
        let (name, step) = (shared.params[param].name(), last.number);
        Err(shared.invalid(format!(
            "after step {step} what is taken for the gradient of parameter {param} ({name}) is not its slot: ask for the \
             slot again, or copy the gradient"
        )))
    }

    /// A parameter's reduced gradient where it lies, if it is not [kept](Self::is_kept). The guard holds up the next step.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for an index that no parameter has, or a gradient that lies there in another dtype or is to
    /// be divided yet: copy it then.
    pub fn read(&self, param: usize) -> Result<Option<ReadGuard>, ReducerError> {
        self.check(param)?;
        let Reducer { shared, layout, last, .. } = &*self.reducer;
        let what = &shared.params[param];
        if what.is_sparse() || last.out.is_some() || !shared.sent[param].is_own() {
            let reason =
                format!("the gradient of parameter {param} ({}) does not lie in its bucket as it is", what.name());
            return Err(shared.invalid(reason));
        }
        if self.is_kept(param) {
            return Ok(None);
        }
        layout.places[param].slot.read().map(Some).map_err(|error| shared.buffer(error))
    }

    /// A sparse parameter's reduced gradient, if it is not [kept](Self::is_kept): rows that any rank gave.
    #[must_use]
    pub fn sparse(&self, param: usize) -> Option<&SparseGradient> {
        if self.is_kept(param) { None } else { self.reducer.last.sparse.get(&param) }
    }

    pub(crate) fn check(&self, param: usize) -> Result<(), ReducerError> {
        match self.reducer.params().get(param) {
            Some(_) => Ok(()),
            None => Err(self.reducer.shared.invalid(format!("there is no parameter {param}"))),
        }
    }
}

/// A step whose gradients are kept for the next reduced one. Ends when it is dropped.
pub struct LocalStep<'r> {
    reducer: &'r mut Reducer,
}

impl<'r> LocalStep<'r> {
    pub(crate) const fn new(reducer: &'r mut Reducer) -> Self {
        Self { reducer }
    }

    /// Adds a gradient to what is kept of a parameter. May come several times.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for an index that no parameter has, a wrong size, or a sparse parameter.
    pub fn ready(&self, param: usize, gradient: &[u8]) -> Result<(), ReducerError> {
        let Reducer { shared, layout, accumulated, .. } = &*self.reducer;
        let what = self.check(param, false)?;
        if let Some(device) = &shared.device {
            let gpu = device.gpu();
            let reason = format!(
                "its bucket is memory of GPU {gpu}, where nothing adds gradients up: add to its slot, and mark it in place"
            );
            return Err(self.refuse(param, reason));
        }
        what.check_size(gradient.len()).map_err(|found| self.refuse(param, format!("its gradient has {found}")))?;
        let dtype = shared.sent[param].own;
        if !shared.sent[param].is_own() {
            let mut aside = lock(&accumulated.aside);
            match aside.get_mut(&param) {
                Some(sum) => copy::add(dtype, gradient, sum),
                None => drop(aside.insert(param, gradient.to_vec())),
            }
            accumulated.slots[param].store(true, Ordering::Relaxed);
            return Ok(());
        }
        let mut slot = layout.places[param].slot.write().map_err(|error| self.refuse(param, error.to_string()))?;
        // Swapped while the slot is held, so that the first of two threads copies and the second adds.
        match accumulated.slots[param].swap(true, Ordering::Relaxed) {
            true => copy::add(dtype, gradient, &mut slot),
            false => slot.copy_from_slice(gradient),
        }
        Ok(())
    }

    /// The gradient in the parameter's slot is the one to keep: the framework adds up there.
    ///
    /// # Errors
    /// As [`ready`](Self::ready); for a parameter that is sent in another dtype.
    pub fn ready_in_place(&self, param: usize) -> Result<(), ReducerError> {
        let Reducer { shared, accumulated, .. } = &*self.reducer;
        self.check(param, false)?;
        if !shared.sent[param].is_own() {
            let wire = shared.sent[param].dtype.short_name();
            return Err(self.refuse(param, format!("its bucket holds {wire}: give the gradient itself")));
        }
        accumulated.slots[param].store(true, Ordering::Relaxed);
        accumulated.in_place.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Adds rows and values to what is kept of a sparse parameter.
    ///
    /// # Errors
    /// As [`Marker::ready_sparse`].
    pub fn ready_sparse(&self, param: usize, rows: &[u64], values: &[u8]) -> Result<(), ReducerError> {
        let what = self.check(param, true)?;
        let gradient = SparseGradient::new(what, rows, values, None);
        let gradient = gradient.map_err(|reason| self.refuse(param, reason))?;
        let accumulated = &self.reducer.accumulated;
        lock(&accumulated.sparse).entry(param).or_default().add(what, &gradient);
        Ok(())
    }

    fn refuse(&self, param: usize, reason: String) -> ReducerError {
        let (rank, param) = (self.reducer.shared.rank(), self.reducer.shared.named(param));
        ReducerError::Mark { rank, step: self.reducer.steps - 1, param, reason }
    }

    fn check(&self, param: usize, sparse: bool) -> Result<&crate::param::Param, ReducerError> {
        let params = self.reducer.params();
        let Some(what) = params.get(param) else {
            return Err(self.refuse(param, format!("there are {} parameters, from 0", params.len())));
        };
        match (what.is_sparse(), sparse) {
            (true, false) => Err(self.refuse(param, "it was declared sparse: give rows and values".to_owned())),
            (false, true) => Err(self.refuse(param, "it was not declared sparse: give a dense gradient".to_owned())),
            _ => Ok(what),
        }
    }
}
