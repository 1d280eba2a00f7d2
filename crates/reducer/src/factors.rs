//! What gradients are multiplied by, and where.

use crate::error::ReducerError;
use crate::options::{Divide, Scale};
use crate::shared::Shared;
use bucketeer_comm::{Buffer, CommError, Reduction, Work};
use bucketeer_types::{DType, ReduceOp, num};
use std::sync::OnceLock;

/// Factors of a step. None is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Of each gradient when it comes, in its own dtype.
    pub copy: Option<f64>,
    /// Of the collective.
    pub reduction: Reduction,
    /// Of the result, in the gradient's dtype.
    pub out: Option<f64>,
    /// Of sparse values when they come.
    pub sparse: Option<f64>,
    /// What a hook's sum is to be divided by.
    pub divisor: f64,
}

impl Factors {
    /// For a rank whose gradients count `weight` of `total`.
    fn new(shared: &Shared, weight: f64, total: f64) -> Self {
        let some = |factor: f64| (factor != 1.0).then_some(factor);
        let total = if shared.options.scale == Scale::Sum { 1.0 } else { total };
        let sum = Reduction::Op(ReduceOp::Sum);
        let (hooked, divide) = (shared.hook.is_some(), shared.options.wire.map(|wire| wire.divide));
        let plain = Self { copy: None, reduction: sum, out: None, sparse: some(weight / total), divisor: total };
        match (shared.options.scale, divide) {
            (Scale::Sum, _) => plain,
            (scale, _) if hooked => Self { copy: some(weight).filter(|_| scale == Scale::Weighted), ..plain },
            (_, Some(Divide::AfterSum)) => Self { copy: some(weight), out: some(1.0 / total), ..plain },
            (Scale::Weighted, _) | (_, Some(Divide::BeforeCast)) => Self { copy: some(weight / total), ..plain },
            (Scale::Mean, _) => {
                let reduction = some(weight / total).map_or(sum, |factor| Reduction::PreMulSum { factor });
                Self { reduction, ..plain }
            }
        }
    }
}

/// Factors that are known at the start of a step, or when ranks have told one another something.
pub struct FactorCell {
    known: OnceLock<Result<Factors, ReducerError>>,
    weight: f64,
    /// The sum over ranks, on its way.
    total: Option<(Buffer, Work, DType)>,
}

impl FactorCell {
    /// For the mean over `ranks`, or the sum.
    pub fn of_ranks(shared: &Shared, ranks: usize) -> Self {
        Self { known: OnceLock::from(Ok(Factors::new(shared, 1.0, ranks as f64))), weight: 1.0, total: None }
    }

    /// For a total that is on its way.
    pub const fn pending(weight: f64, buffer: Buffer, work: Work, dtype: DType) -> Self {
        Self { known: OnceLock::new(), weight, total: Some((buffer, work, dtype)) }
    }

    /// Begins to sum the weights of the ranks.
    pub fn of_weights(shared: &Shared, weight: f64) -> Result<Self, CommError> {
        let (buffer, work) = shared.reduce_one(&weight.to_le_bytes(), DType::F64, ReduceOp::Sum)?;
        Ok(Self::pending(weight, buffer, work, DType::F64))
    }

    /// The factors; waits for what is on its way.
    pub fn get(&self, shared: &Shared, step: u64) -> Result<Factors, ReducerError> {
        let wait = || {
            let Some((buffer, work, dtype)) = &self.total else { return Err(shared.invalid("no weights were summed")) };
            work.wait(None).map_err(|error| shared.comm(step, "the sum of weights", error))?;
            let total = num::load_float(*dtype, &buffer.read().map_err(|error| shared.buffer(error))?);
            if !(total.is_finite() && total > 0.0) {
                return Err(shared.invalid(format!("the weights of all ranks add up to {total}; give more than 0")));
            }
            Ok(Factors::new(shared, self.weight, total))
        };
        self.known.get_or_init(wait).clone()
    }
}
