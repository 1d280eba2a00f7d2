//! Gradients that are all there after backward.

use crate::error::ReducerError;
use crate::options::Scale;
use crate::reducer::Reducer;
use crate::step::Reduced;

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

    fn check_all(&self, gradients: &[Option<&mut [u8]>]) -> Result<(), ReducerError> {
        let (found, wanted) = (gradients.len(), self.params().len());
        if found == wanted {
            return Ok(());
        }
        Err(self
            .shared
            .invalid(format!("there are {found} gradients for {wanted} parameters; give none for unused ones")))
    }

    fn reduce_begun(
        &mut self,
        gradients: &mut [Option<&mut [u8]>],
        samples: Option<f64>,
    ) -> Result<Reduced<'_>, ReducerError> {
        let order: Vec<usize> = self.layout.indices().concat();
        let dense: Vec<bool> = self.params().iter().map(|param| !param.is_sparse()).collect();
        let step = match samples {
            None => self.step()?,
            Some(samples) => self.weighted_step(samples)?,
        };
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
