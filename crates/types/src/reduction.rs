//! Reductions of a runtime.

use crate::{DType, ReduceOp};
use std::fmt;

/// How the values of the ranks become one, in the order of the group's ranks, rounded to the dtype at each step.
#[derive(Clone, Copy, Debug)]
pub enum Reduction {
    /// An average is the sum divided once, at the end; of integers, towards zero. A sum of bools is their or. `Min` and
    /// `Max` of a NaN are NaN. Bitwise ops are for integers and bools.
    Op(ReduceOp),
    /// Each value is multiplied by a factor, both of the dtype, then summed. For floats of two bytes or more.
    PreMulSum {
        /// The factor; rounded to the dtype.
        factor: f64,
    },
}

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        Self::Op(op)
    }
}

impl PartialEq for Reduction {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Op(a), Self::Op(b)) => a == b,
            (Self::PreMulSum { factor: a }, Self::PreMulSum { factor: b }) => a.to_bits() == b.to_bits(),
            _ => false,
        }
    }
}

impl Eq for Reduction {}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Op(op) => write!(f, "{op}"),
            Self::PreMulSum { factor } => write!(f, "sum of {factor} times each"),
        }
    }
}

impl Reduction {
    /// Whether it is defined for a dtype.
    ///
    /// # Errors
    /// The text says what is not defined, and what to do instead.
    pub fn check(self, dtype: DType) -> Result<(), String> {
        let name = dtype.torch_name();
        let bits = matches!(self, Self::Op(ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor));
        match dtype {
            DType::F64 | DType::F32 | DType::F16 | DType::Bf16 if bits => {
                Err(format!("{self} of {name} is not defined; it is for integers and bools"))
            }
            DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => Ok(()),
            DType::F8E4m3fn
            | DType::F8E5m2
            | DType::F8E4m3fnuz
            | DType::F8E5m2fnuz
            | DType::F8E8m0fnu
            | DType::F4E2m1fnX2 => Err(format!("{name} is not reduced by any backend; convert it first")),
            DType::C32 | DType::C64 | DType::C128 => {
                Err(format!("{self} of {name} is not defined here; reduce real and imaginary parts as floats"))
            }
            _ if matches!(self, Self::PreMulSum { .. }) => {
                Err(format!("{self} of {name} is not defined; it is for floats of two bytes or more"))
            }
            _ => Ok(()),
        }
    }
}
