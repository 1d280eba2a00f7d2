//! Gradients come.

use super::{Claim, Graph, InStep};
use crate::copy::{self, Change};
use crate::error::ReducerError;
use crate::param::same_order;
use crate::shared::lock;
use crate::sparse::SparseGradient;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl InStep {
    /// A mark that an adapter refuses.
    pub fn refuse_noted(&self, param: usize, reason: &str) -> ReducerError {
        let refused = self.noted(Err::<(), _>(self.refuse(param, reason)));
        refused.err().unwrap_or_else(|| self.refuse(param, reason))
    }

    /// Runs a mark while the step is open.
    pub(super) fn mark(
        &self,
        param: usize,
        body: impl FnOnce() -> Result<(), ReducerError>,
    ) -> Result<(), ReducerError> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(self.refuse(param, "the step is over; begin another one before backward runs"));
        }
        if param >= self.shared.params.len() {
            let count = self.shared.params.len();
            return self.noted(Err(self.refuse(param, format!("there are {count} parameters, from 0"))));
        }
        self.primed()?;
        self.noted(body())
    }

    /// Prepares the first mark. Where that fails the step does, on all ranks.
    pub(super) fn primed(&self) -> Result<(), ReducerError> {
        let prime = || self.prime().map_err(|error| self.shared.fail(error, self.number));
        self.primed.get_or_init(prime).clone()
    }

    /// What is to be done before the first mark: parameters that a static graph does not use here are ready.
    pub(super) fn prime(&self) -> Result<(), ReducerError> {
        let Graph::Learned(learned) = &self.graph else { return Ok(()) };
        for (param, _) in learned.marks.iter().enumerate().filter(|(_, marks)| **marks == 0) {
            self.leave_out(param)?;
            self.completes(param);
        }
        Ok(())
    }

    /// Takes a parameter, or says why it cannot be.
    pub(super) fn claim(&self, param: usize) -> Result<Claim, ReducerError> {
        let marks = &self.marks[param];
        match &self.graph {
            Graph::Dynamic => match marks.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => Ok(Claim::Take),
                Err(_) => Err(self.refuse(
                    param,
                    "it is marked a second time in this step. It is used outside of the model's forward, or by two \
                     checkpoints that run backward on their own, or was declared unused and is used. Where every step \
                     marks it equally often, make the reducer with a static graph",
                )),
            },
            Graph::Learning { used_somewhere: Some(used) } if !used[param] => Err(self.refuse(
                param,
                "no rank used it in the first step, in which this one had no data. The graph has changed, so it is not \
                 static: make the reducer without",
            )),
            Graph::Learning { .. } => {
                marks.fetch_add(1, Ordering::AcqRel);
                Ok(Claim::Take)
            }
            Graph::Learned(learned) => {
                let (before, wanted) = (marks.fetch_add(1, Ordering::AcqRel), learned.marks[param]);
                if before < wanted {
                    return Ok(if before + 1 == wanted { Claim::Take } else { Claim::Count });
                }
                marks.fetch_sub(1, Ordering::AcqRel);
                let found = before + 1;
                Err(self.refuse(
                    param,
                    format!(
                        "it is marked {found} times in this step, and was {wanted} times in the first one. The graph has \
                         changed, so it is not static: make the reducer without"
                    ),
                ))
            }
        }
    }

    pub(super) fn give_back(&self, param: usize) {
        self.marks[param].fetch_sub(1, Ordering::AcqRel);
    }

    /// A gradient of `bytes`, in the order of the parameter's own strides unless others are given.
    pub fn ready(&self, param: usize, bytes: &[u8], strides: Option<&[u64]>) -> Result<(), ReducerError> {
        self.mark(param, || {
            self.expect_host(param)?;
            let what = &self.shared.params[param];
            if what.is_sparse() {
                return Err(self.refuse(param, "it was declared sparse: give rows and values"));
            }
            let ordered = match strides {
                Some(strides) => self.in_order(param, bytes, strides)?,
                None => None,
            };
            let bytes = ordered.as_deref().unwrap_or(bytes);
            what.check_size(bytes.len()).map_err(|found| self.refuse(param, format!("its gradient has {found}")))?;
            let claim = self.claim(param)?;
            if claim == Claim::Take {
                self.take(param, bytes).inspect_err(|_| self.give_back(param))?;
            }
            self.is_ready(param, claim, true)
        })
    }

    /// A gradient of other strides than its place has, in the order of that.
    fn in_order(&self, param: usize, bytes: &[u8], strides: &[u64]) -> Result<Option<Vec<u8>>, ReducerError> {
        let what = &self.shared.params[param];
        let place = what.place_strides();
        if strides.len() == place.len() && same_order(what.shape(), strides, &place) {
            return Ok(None);
        }
        self.reordered.fetch_add(1, Ordering::Relaxed);
        let width = what.dtype().bytes() as usize;
        let ordered = copy::in_order(bytes, width, what.shape(), strides, &place);
        ordered.map(Some).map_err(|reason| self.refuse(param, reason))
    }

    /// Copies a gradient into its slot, on top of what local steps left there.
    pub(super) fn take(&self, param: usize, bytes: &[u8]) -> Result<(), ReducerError> {
        let factors = self.factors()?;
        let from = self.shared.sent[param].own;
        let change = Change { from, to: self.shared.sent[param].dtype, factor: factors.copy };
        let slot = &self.layout.places[param].slot;
        let mut target = slot.write().map_err(|error| self.refuse_buffer(param, &error))?;
        if self.is_learning() {
            // The last of several marks counts, whichever way it comes.
            lock(&self.progress).scale_later.remove(&param);
        }
        if !self.accumulated.has(param) {
            change.put(bytes, &mut target);
            return Ok(());
        }
        let mut aside = lock(&self.accumulated.aside);
        if self.is_learning() && !aside.contains_key(&param) {
            // More marks of it may come, each with the gradient so far.
            aside.insert(param, target.to_vec());
        }
        if let Some(left) = aside.get(&param) {
            let mut sum = left.clone();
            copy::add(from, bytes, &mut sum);
            change.put(&sum, &mut target);
        } else {
            copy::add(from, bytes, &mut target);
            copy::scale(from, factors.copy, &mut target);
        }
        Ok(())
    }

    /// A gradient that is in the slot.
    pub fn ready_in_place(&self, param: usize) -> Result<(), ReducerError> {
        self.mark(param, || {
            self.check_in_place(param)?;
            let claim = self.claim(param)?;
            if claim == Claim::Take {
                self.accumulated.in_place.store(true, Ordering::Relaxed);
                let scaled = self.factors().and_then(|factors| {
                    if factors.copy.is_none() {
                        return Ok(());
                    }
                    if self.is_learning() {
                        // More marks of it may come, each with the gradient so far.
                        lock(&self.progress).scale_later.insert(param);
                        return Ok(());
                    }
                    let slot = &self.layout.places[param].slot;
                    let mut target = slot.write().map_err(|error| self.refuse_buffer(param, &error))?;
                    copy::scale(self.shared.sent[param].dtype, factors.copy, &mut target);
                    Ok(())
                });
                scaled.inspect_err(|_| self.give_back(param))?;
            }
            self.is_ready(param, claim, true)
        })
    }

    /// Whether a parameter's slot holds its gradient as it is.
    pub fn check_in_place(&self, param: usize) -> Result<(), ReducerError> {
        let what = &self.shared.params[param];
        if what.is_sparse() {
            return Err(
                self.refuse(param, "it was declared sparse, so it has no place in a bucket: give rows and values")
            );
        }
        if !self.shared.sent[param].is_own() {
            let wire = self.shared.sent[param].dtype.short_name();
            return Err(self.refuse(param, format!("its bucket holds {wire}: give the gradient itself")));
        }
        Ok(())
    }

    /// A sparse gradient.
    pub fn ready_sparse(&self, param: usize, rows: &[u64], values: &[u8]) -> Result<(), ReducerError> {
        self.mark(param, || {
            let what = &self.shared.params[param];
            if !what.is_sparse() {
                return Err(self.refuse(param, "it was not declared sparse: give a dense gradient, or declare it"));
            }
            let factor = self.factors()?.sparse;
            let gradient = SparseGradient::new(what, rows, values, factor);
            let mut gradient = gradient.map_err(|reason| self.refuse(param, reason))?;
            let claim = self.claim(param)?;
            if claim == Claim::Take {
                let left = lock(&self.accumulated.sparse).get(&param).cloned();
                if let Some(mut sum) = left {
                    copy::scale(self.shared.sent[param].dtype, factor, &mut sum.values);
                    sum.add(what, &gradient);
                    gradient = sum;
                }
                lock(&self.progress).sparse_in.insert(param, gradient);
            }
            self.is_ready(param, claim, true)
        })
    }

    /// No gradient comes in this step.
    pub fn unused(&self, param: usize) -> Result<(), ReducerError> {
        self.mark(param, || {
            if !self.shared.options.allows_unused() || !matches!(self.graph, Graph::Dynamic) {
                let reason = "it was declared unused, which this reducer learns by itself or does not allow; say in its \
                              options what becomes of unused parameters";
                return Err(self.refuse(param, reason));
            }
            let claim = self.claim(param)?;
            self.leave_out(param).inspect_err(|_| self.give_back(param))?;
            self.is_ready(param, claim, false)
        })
    }

    /// Gives zeros, or what local steps left.
    pub(super) fn leave_out(&self, param: usize) -> Result<(), ReducerError> {
        let what = &self.shared.params[param];
        if what.is_sparse() {
            let mut left = lock(&self.accumulated.sparse).remove(&param);
            if let Some(left) = &mut left {
                self.used[param].store(true, Ordering::Relaxed);
                copy::scale(self.shared.sent[param].dtype, self.factors()?.sparse, &mut left.values);
            }
            lock(&self.progress).sparse_in.insert(param, left.unwrap_or_default());
            return Ok(());
        }
        if let Some(device) = &self.shared.device {
            return self.leave_out_on(device, param);
        }
        let factors = self.factors()?;
        let slot = &self.layout.places[param].slot;
        let mut target = slot.write().map_err(|error| self.refuse_buffer(param, &error))?;
        if !self.accumulated.has(param) {
            if self.accumulated.in_place.load(Ordering::Relaxed) {
                lock(&self.progress).saved.push((param, target.to_vec()));
            }
            target.fill(0);
            return Ok(());
        }
        self.used[param].store(true, Ordering::Relaxed);
        let from = self.shared.sent[param].own;
        match lock(&self.accumulated.aside).get(&param) {
            Some(sum) => {
                Change { from, to: self.shared.sent[param].dtype, factor: factors.copy }.put(sum, &mut target);
            }
            None => copy::scale(from, factors.copy, &mut target),
        }
        Ok(())
    }

    /// Notes that a parameter was marked, and launches what that completes.
    pub(super) fn is_ready(&self, param: usize, claim: Claim, used: bool) -> Result<(), ReducerError> {
        let now = self.start.elapsed();
        // 584 years fit.
        self.ready_ns[param].store(now.as_nanos() as u64, Ordering::Relaxed);
        if used {
            self.used[param].store(true, Ordering::Relaxed);
        }
        let learning = self.is_learning();
        if !learning && claim == Claim::Take && self.completes(param) {
            let mut progress = lock(&self.progress);
            self.advance(&mut progress, now)?;
        }
        Ok(())
    }
}
