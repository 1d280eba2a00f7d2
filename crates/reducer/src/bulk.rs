//! Gradients that are all there after backward.

use crate::assign::assign;
use crate::error::ReducerError;
use crate::factors::FactorCell;
use crate::layout::items;
use crate::options::Scale;
use crate::param::Param;
use crate::reducer::Reducer;
use crate::step::Reduced;
use bucketeer_comm::{Buffer, Operands, Work};
use bucketeer_types::DType;
use std::collections::VecDeque;

impl Reducer {
    /// Reduces gradients that are there, in place: one for each parameter, of its own dtype and order, none for those that this step
    /// did not use. Buckets are packed, sent and read one behind the other, so that copies and messages run side by side. What is
    /// [kept](Reduced::is_kept) is left alone. A step of its own; a parameter that others used and this rank did not is read from
    /// what comes back.
    ///
    /// # Errors
    /// As [`step`](Self::step), [`Marker::ready`](crate::Marker::ready) and [`Step::finish`](crate::Step::finish).
    pub fn reduce_all(&mut self, gradients: &mut [Option<&mut [u8]>]) -> Result<Reduced<'_>, ReducerError> {
        self.check_all(gradients)?;
        if self.shared.options.scale == Scale::Weighted {
            return Err(self.shared.invalid("the mean is over samples: use `reduce_all_weighted`"));
        }
        self.reduce_begun(gradients, None)
    }

    /// The same for a mean over samples; see [`weighted_step`](Self::weighted_step).
    ///
    /// # Errors
    /// As [`reduce_all`](Self::reduce_all).
    pub fn reduce_all_weighted(
        &mut self,
        gradients: &mut [Option<&mut [u8]>],
        samples: f64,
    ) -> Result<Reduced<'_>, ReducerError> {
        self.check_all(gradients)?;
        self.reduce_begun(gradients, Some(samples))
    }

    /// The same in little memory: gradients are packed, sent and read in at most `cap_bytes` of buffers, or those of the largest
    /// gradient, and the memory of the reducer's own buckets is given back before. All ranks give the same cap. For gradients that are there after backward and
    /// a mean or sum of dense ones, without hooks, other dtypes on the wire, or unused parameters.
    ///
    /// # Errors
    /// As [`reduce_all`](Self::reduce_all); [`ReducerError::Invalid`] for what it is not for.
    pub fn reduce_all_within(&mut self, gradients: &mut [&mut [u8]], cap_bytes: u64) -> Result<(), ReducerError> {
        self.check_within(gradients)?;
        self.shared.check()?;
        // Others wait for what is not launched here.
        let reduced = self.reduce_within(gradients, cap_bytes);
        reduced.map_err(|error| self.shared.fail(error, self.steps))
    }

    fn reduce_within(&mut self, gradients: &mut [&mut [u8]], cap_bytes: u64) -> Result<(), ReducerError> {
        self.release_memory()?;
        let shared = self.shared.clone();
        // Four buckets fit, so that copies and messages run side by side.
        let assignment = assign(&items(&shared.params, None), &[cap_bytes / 4], None);
        let assignment = assignment.map_err(|error| ReducerError::Assign { rank: shared.rank(), error })?;
        let factors = FactorCell::of_ranks(&shared, shared.group.size()).get(&shared, self.steps)?;
        let failed = |bucket: usize, error| {
            shared.comm(self.steps, format!("bucket {bucket} of a bulk in little memory"), error)
        };
        let mut flights: VecDeque<(usize, Buffer, Work)> = VecDeque::new();
        let mut held_bytes = 0;
        let arrive = |(bucket, buffer, work): (usize, Buffer, Work), gradients: &mut [&mut [u8]]| {
            work.wait(None).map_err(|error| failed(bucket, error))?;
            let bytes = buffer.read().map_err(|error| shared.buffer(error))?;
            let mut at = 0;
            for &param in &assignment.buckets[bucket] {
                let len = gradients[param].len();
                gradients[param].copy_from_slice(&bytes[at..at + len]);
                at += len;
            }
            Ok::<_, ReducerError>(buffer.bytes())
        };
        for (bucket, params) in assignment.buckets.iter().enumerate() {
            let bytes = params.iter().map(|param| gradients[*param].len() as u64).sum::<u64>();
            while held_bytes + bytes > cap_bytes {
                let Some(flight) = flights.pop_front() else { break };
                held_bytes -= arrive(flight, gradients)?;
            }
            let arena = shared.backend.arena(bytes).map_err(|error| shared.buffer(error))?;
            let buffer = arena.buffer(0, bytes).map_err(|error| shared.buffer(error))?;
            let mut target = buffer.write().map_err(|error| shared.buffer(error))?;
            let mut at = 0;
            for &param in params {
                target[at..at + gradients[param].len()].copy_from_slice(gradients[param]);
                at += gradients[param].len();
            }
            drop(target);
            let dtype = params.first().map_or(DType::F32, |param| shared.sent[*param].dtype);
            let operands = Operands::in_place(buffer.clone(), dtype);
            let work = shared.backend.all_reduce(&shared.group, operands, factors.reduction, &shared.call_options());
            flights.push_back((bucket, buffer, work.map_err(|error| failed(bucket, error))?));
            held_bytes += bytes;
        }
        for flight in flights {
            arrive(flight, gradients)?;
        }
        self.steps += 1;
        Ok(())
    }

    fn expect_host(&self) -> Result<(), ReducerError> {
        let Some(device) = &self.shared.device else { return Ok(()) };
        let gpu = device.gpu();
        Err(self
            .shared
            .invalid(format!("gradients are memory of the host, and buckets that of GPU {gpu}: mark them there")))
    }

    fn check_within(&self, gradients: &[&mut [u8]]) -> Result<(), ReducerError> {
        self.expect_host()?;
        let (found, wanted) = (gradients.len(), self.params().len());
        if found != wanted {
            return Err(self.shared.invalid(format!("there are {found} gradients for {wanted} parameters")));
        }
        let options = &self.shared.options;
        let plain = options.wire.is_none() && options.scale != Scale::Weighted && !options.static_graph;
        if !plain || self.shared.hook.is_some() || self.params().iter().any(Param::is_sparse) {
            let reason = "a bulk in little memory is for the mean or sum of dense gradients in their own dtype, without a hook or a \
                          static graph: use `reduce_all`";
            return Err(self.shared.invalid(reason));
        }
        gradients.iter().enumerate().try_for_each(|(index, gradient)| self.check_size(index, gradient))?;
        Ok(())
    }

    /// Whether gradients are those of the parameters: told before the step begins, so that nothing is given up.
    fn check_all(&self, gradients: &[Option<&mut [u8]>]) -> Result<(), ReducerError> {
        self.expect_host()?;
        let (found, wanted) = (gradients.len(), self.params().len());
        if found != wanted {
            let reason = format!("there are {found} gradients for {wanted} parameters; give none for unused ones");
            return Err(self.shared.invalid(reason));
        }
        for (index, (param, gradient)) in self.params().iter().zip(gradients).enumerate() {
            let Some(gradient) = gradient else { continue };
            if param.is_sparse() {
                let reason = format!("parameter {index} ({}) is sparse: mark rows and values in a step", param.name());
                return Err(self.shared.invalid(reason));
            }
            self.check_size(index, gradient)?;
        }
        Ok(())
    }

    fn check_size(&self, index: usize, gradient: &[u8]) -> Result<(), ReducerError> {
        let param = &self.params()[index];
        let told = |found| format!("the gradient of parameter {index} ({}) has {found}", param.name());
        param.check_size(gradient.len()).map_err(|found| self.shared.invalid(told(found)))
    }

    fn reduce_begun(
        &mut self,
        gradients: &mut [Option<&mut [u8]>],
        samples: Option<f64>,
    ) -> Result<Reduced<'_>, ReducerError> {
        let dense: Vec<bool> = self.params().iter().map(|param| !param.is_sparse()).collect();
        let step = match samples {
            None => self.step()?,
            Some(samples) => self.weighted_step(samples)?,
        };
        let order: Vec<usize> = step.buckets().into_iter().flat_map(|bucket| bucket.params).collect();
        for &param in order.iter().filter(|param| dense[**param]) {
            if let Some(gradient) = &gradients[param] {
                step.ready(param, gradient)?;
            }
        }
        let mut copied = Ok(());
        let reduced = step.finish_each(|bucket| {
            for param in bucket.params().filter(|param| dense[*param]) {
                if let (Some(gradient), Ok(())) = (&mut gradients[param], &copied) {
                    copied = bucket.copy_to(param, gradient);
                }
            }
        })?;
        copied.map(|()| reduced)
    }
}
