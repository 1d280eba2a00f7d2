//! A step's parameters: what forward uses in the place of `Var`s.

use crate::mark::{Mark, Marks, lock};
use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use std::sync::{Arc, Mutex};

/// The parameters of one step, by name. Copies are the same parameters; they may go to other threads.
#[derive(Clone)]
pub struct Params {
    marks: Arc<Marks>,
    /// Made when first asked for, so that all uses of a parameter are of one tensor.
    made: Arc<Mutex<Vec<Option<Tensor>>>>,
}

impl Params {
    pub(crate) fn new(marks: Arc<Marks>) -> Self {
        let made = Arc::new(Mutex::new(vec![None; marks.vars.len()]));
        Self { marks, made }
    }

    /// The parameter of that name: a copy of the variable's values, whose gradient is marked by backward.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&self, name: &str) -> Result<Tensor> {
        let Some(param) = self.index(name) else {
            candle_core::bail!("rank {}: no parameter of this reducer has the name `{name}`", self.marks.rank.0);
        };
        self.at(param)
    }

    /// The parameter of that index, in the order of names.
    fn at(&self, param: usize) -> Result<Tensor> {
        let mut made = lock(&self.made);
        if let Some(tensor) = &made[param] {
            return Ok(tensor.clone());
        }
        let mark = Mark { marks: self.marks.clone(), param };
        let tensor = self.marks.vars[param].var.contiguous()?.apply_op1(mark)?;
        Ok(made[param].insert(tensor).clone())
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.marks.vars.binary_search_by(|var| var.name.as_str().cmp(name)).ok()
    }

    /// Names, in order. A parameter's place is its index in the reducer.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.marks.vars.iter().map(|var| var.name.as_str())
    }

    /// The parameters as a builder of models, for the code that made the variables: the model of this step is
    /// `Model::new(step.params().var_builder(DType::F32))`. Nothing is initialised. Parameters of another dtype are converted,
    /// and their gradients back.
    #[must_use]
    pub fn var_builder(&self, dtype: DType) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), dtype, Device::Cpu)
    }
}

impl SimpleBackend for Params {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if *tensor.shape() != shape {
            candle_core::bail!("parameter `{name}` is {:?}, and asked for as {shape:?}", tensor.shape());
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.get(name)?.to_dtype(dtype)?.to_device(device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.index(name).is_some()
    }
}
