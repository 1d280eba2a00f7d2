//! What is trained: tensors with names, as every rank has them.

use bucketeer_types::DType;
use std::fmt;

/// A parameter whose gradient is reduced. Its place in the list that a reducer is made of is its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    name: String,
    shape: Vec<u64>,
    /// In elements, one for each dimension; none for row-major.
    strides: Option<Vec<u64>>,
    dtype: DType,
    sparse: bool,
}

impl Param {
    /// A parameter in row-major order. `shape` counts elements by dimension; a scalar has none.
    #[must_use]
    pub fn new(name: impl Into<String>, shape: &[u64], dtype: DType) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), strides: None, dtype, sparse: false }
    }

    /// The same in another order of memory, strides in elements.
    #[must_use]
    pub fn with_strides(mut self, strides: &[u64]) -> Self {
        self.strides = Some(strides.to_vec());
        self
    }

    /// The same with a gradient of rows and values: few of the rows of its first dimension.
    #[must_use]
    pub const fn sparse(mut self) -> Self {
        self.sparse = true;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Elements by dimension.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Of the parameter and its gradient.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether its gradient is rows and values.
    #[must_use]
    pub const fn is_sparse(&self) -> bool {
        self.sparse
    }

    /// Strides in elements, as given or row-major.
    #[must_use]
    pub fn strides(&self) -> Vec<u64> {
        self.strides.clone().unwrap_or_else(|| row_major(&self.shape))
    }

    /// Elements; at most `u64::MAX`.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, size| product.saturating_mul(*size))
    }

    /// Bytes of the gradient, if it is dense; at most `u64::MAX`.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.bytes())
    }

    /// Strides of the gradient's place in its bucket: the parameter's, if these leave no holes and share nothing, else
    /// row-major. Dimensions of one element count for nothing.
    #[must_use]
    pub fn place_strides(&self) -> Vec<u64> {
        match &self.strides {
            Some(strides) if is_dense(&self.shape, strides) => strides.clone(),
            _ => row_major(&self.shape),
        }
    }

    /// Checks the bytes of a dense gradient.
    ///
    /// # Errors
    /// A text: how many there are, and how many there should be.
    pub(crate) fn check_size(&self, found: usize) -> Result<(), String> {
        let wanted = self.bytes();
        if found as u64 == wanted { Ok(()) } else { Err(format!("{found} bytes; {self} has {wanted}")) }
    }

    /// Checks what every use takes for granted.
    ///
    /// # Errors
    /// A text: strides that are not one for each dimension, a gradient that is no float or complex number, one that is
    /// too large, or a sparse one without rows.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(strides) = &self.strides
            && strides.len() != self.shape.len()
        {
            return Err(format!("it has {} dimensions and {} strides", self.shape.len(), strides.len()));
        }
        if real(self.dtype).is_none() {
            let name = self.dtype.torch_name();
            return Err(format!("gradients of {name} are not reduced: give f64, f32, f16, bf16 or a complex dtype"));
        }
        if self.bytes() > isize::MAX as u64 {
            return Err("it has more than 2^63 bytes".to_owned());
        }
        if self.sparse && self.shape.is_empty() {
            return Err("a scalar has no rows, so its gradient cannot be sparse".to_owned());
        }
        Ok(())
    }
}

impl fmt::Display for Param {
    /// `f32 [3, 4]`, with strides if it is not row-major.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype.short_name(), self.shape)?;
        if let Some(strides) = &self.strides {
            write!(f, " strides {strides:?}")?;
        }
        f.write_str(if self.sparse { " sparse" } else { "" })
    }
}

/// The dtype of the reals that an element is made of, and how many; none for what is no float.
pub(crate) const fn real(dtype: DType) -> Option<(DType, u64)> {
    match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => Some((dtype, 1)),
        DType::C128 => Some((DType::F64, 2)),
        DType::C64 => Some((DType::F32, 2)),
        DType::C32 => Some((DType::F16, 2)),
        _ => None,
    }
}

/// Strides of a row-major tensor.
pub(crate) fn row_major(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1u64; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at].saturating_mul(shape[at].max(1));
    }
    strides
}

/// Whether each byte between first and last belongs to one element.
fn is_dense(shape: &[u64], strides: &[u64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut loops: Vec<(u64, u64)> =
        strides.iter().copied().zip(shape.iter().copied()).filter(|(_, size)| *size > 1).collect();
    loops.sort_unstable();
    let mut next = 1u64;
    for (stride, size) in loops {
        if stride != next {
            return false;
        }
        next = next.saturating_mul(size);
    }
    true
}

/// Whether two lists of strides put the elements of a shape in the same order: dimensions of one element say nothing.
pub(crate) fn same_order(shape: &[u64], one: &[u64], other: &[u64]) -> bool {
    shape.contains(&0) || shape.iter().zip(one.iter().zip(other)).all(|(size, (a, b))| *size == 1 || a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dense_strides_are_kept_in_the_bucket() {
        let place =
            |shape: &[u64], strides: &[u64]| Param::new("p", shape, DType::F32).with_strides(strides).place_strides();
        assert_eq!(place(&[2, 3], &[1, 2]), [1, 2]);
        assert_eq!(place(&[2, 2], &[4, 2]), [2, 1]);
        assert_eq!(place(&[2, 2], &[0, 1]), [2, 1]);
        assert_eq!(place(&[3, 1, 2], &[2, 77, 1]), [2, 77, 1]);
        assert_eq!(place(&[3, 2, 2, 2], &[8, 1, 4, 2]), [8, 1, 4, 2]);
    }

    #[test]
    fn strides_of_single_elements_say_nothing() {
        assert!(same_order(&[8, 4, 1, 1], &[4, 1, 1, 1], &[4, 1, 4, 4]));
        assert!(!same_order(&[8, 4], &[4, 1], &[1, 8]));
        assert!(same_order(&[0, 4], &[4, 1], &[1, 8]));
    }
}
