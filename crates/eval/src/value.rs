//! What a node makes on one rank.

use super::memory::RankMemory;
use super::tensor::Tensor;

/// A value of one rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// Several values.
    Tuple(Vec<Value>),
    /// A number without a tensor around it.
    Scalar(Scalar),
    /// Something of unknown type, by its fingerprint.
    Opaque(u64),
}

/// A number without a tensor around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// `True` or `False`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
}

impl Scalar {
    /// As a float.
    #[must_use]
    pub const fn float(self) -> f64 {
        match self {
            Self::Bool(value) => value as u8 as f64,
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// As an integer; a float loses its fraction.
    #[must_use]
    pub const fn int(self) -> i64 {
        match self {
            Self::Bool(value) => value as i64,
            Self::Int(value) => value,
            Self::Float(value) => value as i64,
        }
    }
}

impl Value {
    /// Calls `visit` with every tensor inside.
    pub fn for_each_tensor(&self, visit: &mut impl FnMut(&Tensor)) {
        match self {
            Self::Tensor(tensor) => visit(tensor),
            Self::Tuple(values) => values.iter().for_each(|value| value.for_each_tensor(visit)),
            Self::Scalar(_) | Self::Opaque(_) => {}
        }
    }

    /// Counts an owner of each tensor's storage.
    pub fn hold(&self, memory: &mut RankMemory) {
        self.for_each_tensor(&mut |tensor| memory.hold(tensor));
    }

    /// Uncounts an owner of each tensor's storage.
    pub fn release(&self, memory: &mut RankMemory) {
        self.for_each_tensor(&mut |tensor| memory.drop(tensor));
    }
}
