//! A module's parameters in the order of definition, with their names and gradients.

use bucketeer_types::DType;
use burn_core::module::{Module, ModuleVisitor, Param, ParamId};
use burn_core::tensor::{Bytes, Tensor, TensorData};
use burn_optim::GradientsParams;
use std::collections::BTreeSet;

/// A dtype whose gradients are reduced.
pub fn dtype(of: burn_core::tensor::DType) -> Option<DType> {
    match of {
        burn_core::tensor::DType::F64 => Some(DType::F64),
        burn_core::tensor::DType::F32 => Some(DType::F32),
        burn_core::tensor::DType::F16 => Some(DType::F16),
        burn_core::tensor::DType::BF16 => Some(DType::Bf16),
        _ => None,
    }
}

/// A parameter that is trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trained {
    /// Fields and indices from the module down: `layers.0.weight`.
    pub name: String,
    pub shape: Vec<u64>,
    pub dtype: burn_core::tensor::DType,
}

/// What is done with each parameter; its index comes with it.
pub trait Each {
    fn each<const D: usize>(&mut self, index: usize, name: &[String], param: &Param<Tensor<D>>);
}

/// Visits the parameters that are trained, each once.
pub fn visit(module: &impl Module, each: &mut impl Each) {
    module.visit(&mut Walk { path: Vec::new(), seen: BTreeSet::new(), each });
}

struct Walk<'a, E> {
    path: Vec<String>,
    seen: BTreeSet<u64>,
    each: &'a mut E,
}

impl<E: Each> ModuleVisitor for Walk<'_, E> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // One that is in two places is one parameter.
        if param.is_require_grad() && self.seen.insert(param.id.val()) {
            self.each.each(self.seen.len() - 1, &self.path, param);
        }
    }

    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
}

/// Lists parameters.
#[derive(Default)]
pub struct List(pub Vec<Trained>);

impl Each for List {
    fn each<const D: usize>(&mut self, _: usize, name: &[String], param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let shape = tensor.dims().iter().map(|size| *size as u64).collect();
        self.0.push(Trained { name: name.join("."), shape, dtype: tensor.dtype() });
    }
}

/// Takes gradients out, by index.
pub struct Take<'a> {
    pub from: &'a mut GradientsParams,
    pub taken: Vec<Option<TensorData>>,
    /// The first that could not be read, and why.
    pub failed: Option<(usize, String)>,
}

impl Each for Take<'_> {
    fn each<const D: usize>(&mut self, index: usize, _: &[String], param: &Param<Tensor<D>>) {
        let read = self.from.remove::<D>(param.id).map(Tensor::try_into_data).transpose();
        match read {
            Ok(data) => self.taken.push(data),
            Err(error) => {
                self.taken.push(None);
                self.failed.get_or_insert((index, error.to_string()));
            }
        }
    }
}

/// Puts gradients back, by index.
pub struct Put<'a> {
    pub to: &'a mut GradientsParams,
    pub gradients: Vec<Option<Bytes>>,
    /// The first that could not be made, and why.
    pub failed: Option<(usize, String)>,
}

impl Each for Put<'_> {
    fn each<const D: usize>(&mut self, index: usize, _: &[String], param: &Param<Tensor<D>>) {
        let Some(bytes) = self.gradients.get_mut(index).and_then(Option::take) else { return };
        let tensor = param.val().inner();
        let (device, dtype): (_, burn_core::tensor::DType) = (tensor.device(), tensor.dtype());
        match TensorData::try_from_bytes(bytes, tensor.shape(), dtype) {
            Ok(data) => {
                let id: ParamId = param.id;
                self.to.register(id, Tensor::<D>::from_data(data, (&device, dtype)));
            }
            Err(error) => drop(self.failed.get_or_insert((index, error.to_string()))),
        }
    }
}

/// Zeros for a parameter's gradient, in memory as burn wants it.
pub fn zeros(of: &Trained) -> Bytes {
    let shape: Vec<usize> = of.shape.iter().map(|size| *size as usize).collect();
    TensorData::full_dtype(shape, 0.0f32, of.dtype).into_bytes()
}
