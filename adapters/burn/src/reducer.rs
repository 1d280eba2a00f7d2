//! A reducer of the parameters of a module.

use crate::params::{List, Put, Take, Trained, dtype, visit, zeros};
use bucketeer_comm::{Backend, Group};
use bucketeer_reducer::{BucketInfo, Param, ReducerError, ReducerOptions};
use bucketeer_types::GlobalRank;
use burn_core::module::Module;
use burn_core::tensor::Bytes;
use burn_optim::GradientsParams;
use std::sync::Arc;

/// One rank's side of data-parallel training of a module.
///
/// Every rank makes one of the same module, and takes the same steps. It is the rank's own affair that all ranks begin with
/// the same values.
pub struct Reducer {
    inner: bucketeer_reducer::Reducer,
    rank: GlobalRank,
    params: Vec<Trained>,
}

impl Reducer {
    /// Makes a reducer of all parameters of a module that require a gradient, in the order of definition, and compares it with
    /// the other ranks'. Waits for them. Parameters that are not initialised yet are now.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`] for dtypes whose gradients are not reduced; else as [`bucketeer_reducer::Reducer::new`].
    pub fn new(
        backend: Arc<dyn Backend>,
        group: &Group,
        module: &impl Module,
        options: ReducerOptions,
    ) -> Result<Self, ReducerError> {
        let rank = backend.rank();
        let params = list(module);
        let param = |param: &Trained| match dtype(param.dtype) {
            Some(dtype) => Ok(Param::new(&param.name, &param.shape, dtype)),
            None => {
                let (name, dtype) = (&param.name, param.dtype);
                let reason = format!("parameter `{name}` is of {dtype:?}; only F64, F32, F16 and BF16 are reduced");
                Err(ReducerError::Invalid { rank, reason })
            }
        };
        let list = params.iter().map(param).collect::<Result<_, _>>()?;
        let inner = bucketeer_reducer::Reducer::new(backend, group, list, options)?;
        Ok(Self { inner, rank, params })
    }

    /// Turns this rank's gradients into those of all ranks. A parameter without one is unused. Its buckets travel beside one
    /// another, but not beside backward, into which burn lets nobody look.
    ///
    /// # Errors
    /// [`ReducerError::Invalid`], before anything is sent: the module has other parameters than the one that the reducer was
    /// made of, or a gradient another shape or dtype than its parameter. Else as [`bucketeer_reducer::Reducer::reduce_all`].
    pub fn reduce(
        &mut self,
        module: &impl Module,
        gradients: GradientsParams,
    ) -> Result<GradientsParams, ReducerError> {
        self.reduce_with(module, gradients, None)
    }

    /// The same for a mean over samples: this rank had so many of them in this step.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce), and [`bucketeer_reducer::Reducer::weighted_step`].
    pub fn reduce_weighted(
        &mut self,
        module: &impl Module,
        gradients: GradientsParams,
        samples: f64,
    ) -> Result<GradientsParams, ReducerError> {
        self.reduce_with(module, gradients, Some(samples))
    }

    fn reduce_with(
        &mut self,
        module: &impl Module,
        mut gradients: GradientsParams,
        samples: Option<f64>,
    ) -> Result<GradientsParams, ReducerError> {
        let mut taken = self.take(module, &mut gradients)?;
        let mut slices: Vec<Option<&mut [u8]>> =
            taken.iter_mut().map(|bytes| bytes.as_mut().map(|bytes| &mut **bytes)).collect();
        let reduced = match samples {
            None => self.inner.reduce_all(&mut slices)?,
            Some(samples) => self.inner.reduce_all_weighted(&mut slices, samples)?,
        };
        for (index, bytes) in taken.iter_mut().enumerate().filter(|(_, bytes)| bytes.is_none()) {
            // Other ranks used it.
            if !reduced.is_kept(index) {
                let mut gradient = zeros(&self.params[index]);
                reduced.copy_to(index, &mut gradient)?;
                *bytes = Some(gradient);
            }
        }
        let mut put = Put { to: &mut gradients, gradients: taken, failed: None };
        visit(module, &mut put);
        match put.failed {
            None => Ok(gradients),
            Some((index, reason)) => Err(self.invalid(index, &reason)),
        }
    }

    /// Keeps gradients here, and adds them to those of the next step: c10d's `no_sync`. Nothing is sent.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce), and [`bucketeer_reducer::Reducer::local_step`].
    pub fn accumulate(&mut self, module: &impl Module, mut gradients: GradientsParams) -> Result<(), ReducerError> {
        let taken = self.take(module, &mut gradients)?;
        let step = self.inner.local_step()?;
        for (index, bytes) in taken.iter().enumerate() {
            if let Some(bytes) = bytes {
                step.ready(index, bytes)?;
            }
        }
        Ok(())
    }

    /// The bytes of gradients, by parameter.
    fn take(&self, module: &impl Module, gradients: &mut GradientsParams) -> Result<Vec<Option<Bytes>>, ReducerError> {
        let now = list(module);
        if now != self.params {
            let differs = now.iter().zip(&self.params).position(|(now, then)| now != then);
            let at = differs.unwrap_or(now.len().min(self.params.len()));
            let of = |list: &[Trained]| match list.get(at) {
                Some(param) => format!("`{}`, {:?} {:?}", param.name, param.dtype, param.shape),
                None => "nothing".to_owned(),
            };
            let (now, then) = (of(&now), of(&self.params));
            let reason = format!(
                "the module's parameter {at} is {now}, and was {then} when the reducer was made: make another one when what is \
                 trained changes"
            );
            return Err(ReducerError::Invalid { rank: self.rank, reason });
        }
        let mut take = Take { from: gradients, taken: Vec::with_capacity(now.len()), failed: None };
        visit(module, &mut take);
        if let Some((index, reason)) = take.failed {
            return Err(self.invalid(index, &reason));
        }
        let mut taken = Vec::with_capacity(now.len());
        for (index, (data, param)) in take.taken.into_iter().zip(&self.params).enumerate() {
            if let Some(data) = &data {
                let shape: Vec<u64> = data.shape().iter().map(|size| *size as u64).collect();
                if (&shape, data.dtype()) != (&param.shape, param.dtype) {
                    let (dtype, wanted) = (data.dtype(), param.dtype);
                    let reason = format!("it is {dtype:?} {shape:?}; the parameter is {wanted:?} {:?}", param.shape);
                    return Err(self.invalid(index, &reason));
                }
            }
            taken.push(data.map(burn_core::tensor::TensorData::into_bytes));
        }
        Ok(taken)
    }

    fn invalid(&self, index: usize, reason: &str) -> ReducerError {
        let name = &self.params[index].name;
        ReducerError::Invalid {
            rank: self.rank,
            reason: format!("the gradient of parameter {index} ({name}): {reason}"),
        }
    }

    /// Goes on with another group; see [`bucketeer_reducer::Reducer::change_group`].
    ///
    /// # Errors
    /// As there.
    pub fn change_group(&mut self, group: &Group) -> Result<(), ReducerError> {
        self.inner.change_group(group)
    }

    /// Names of the parameters, in the order of definition.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.params.iter().map(|param| param.name.as_str())
    }

    /// The buckets, in the order of launches.
    #[must_use]
    pub fn buckets(&self) -> Vec<BucketInfo> {
        self.inner.buckets()
    }
}

fn list(module: &impl Module) -> Vec<Trained> {
    let mut list = List::default();
    visit(module, &mut list);
    list.0
}
