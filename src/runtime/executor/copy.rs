//! Copies between strided tensors, with conversion.
//!
//! Elements move in row-major order of the shape. Trailing dimensions that are dense on both sides move as one run.

use crate::check::eval::num::convert;
use crate::ir::DType;

/// How elements lie, from the first byte of a range on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strided<'a> {
    pub dtype: DType,
    pub shape: &'a [u64],
    /// In elements.
    pub strides: &'a [u64],
}

impl Strided<'_> {
    fn elements(self) -> usize {
        self.shape.iter().product::<u64>() as usize
    }

    /// How many trailing dimensions lie dense.
    fn dense_dims(self) -> usize {
        let mut step = 1;
        let mut dense = |(&size, &stride): (&u64, &u64)| {
            let dense = size == 1 || stride == step;
            step *= size;
            dense
        };
        self.shape.iter().zip(self.strides).rev().take_while(|&dim| dense(dim)).count()
    }
}

/// Copies all elements of `from` to those of `to`, which has the same shape.
pub(super) fn copy(source: &[u8], from: Strided<'_>, target: &mut [u8], to: Strided<'_>) -> Result<(), String> {
    if from.shape.contains(&0) {
        return Ok(());
    }
    if from.dtype != to.dtype {
        let gathered = gathered(source, from);
        let converted = convert(from.dtype, to.dtype, &gathered);
        let (old, new) = (from.dtype.torch_name(), to.dtype.torch_name());
        let converted = converted.ok_or_else(|| format!("there is no conversion of {old} to {new}"))?;
        scattered(&converted, target, to);
        return Ok(());
    }
    let dense = from.dense_dims().min(to.dense_dims());
    let outer = from.shape.len() - dense;
    let width = from.dtype.bytes() as usize;
    let run = from.shape[outer..].iter().product::<u64>() as usize * width;
    runs(&from.shape[..outer], &from.strides[..outer], &to.strides[..outer], &mut |from, to| {
        let (from, to) = (from * width, to * width);
        target[to..to + run].copy_from_slice(&source[from..from + run]);
    });
    Ok(())
}

/// Elements in row-major order.
pub(super) fn gathered(source: &[u8], from: Strided<'_>) -> Vec<u8> {
    let mut out = vec![0; from.elements() * from.dtype.bytes() as usize];
    let strides = dense_strides(from.shape);
    let to = Strided { strides: &strides, ..from };
    // Of one dtype, which is always defined.
    let _ = copy(source, from, &mut out, to);
    out
}

/// Puts elements in row-major order where they lie.
pub(super) fn scattered(source: &[u8], target: &mut [u8], to: Strided<'_>) {
    let strides = dense_strides(to.shape);
    let from = Strided { strides: &strides, ..to };
    let _ = copy(source, from, target, to);
}

fn dense_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at].max(1);
    }
    strides
}

/// Calls `visit` with both places of each run.
fn runs(shape: &[u64], from: &[u64], to: &[u64], visit: &mut impl FnMut(usize, usize)) {
    fn walk(shape: &[u64], from: &[u64], to: &[u64], at: (u64, u64), visit: &mut impl FnMut(usize, usize)) {
        match (shape, from, to) {
            ([size, shape @ ..], [a, from @ ..], [b, to @ ..]) => {
                (0..*size).for_each(|index| walk(shape, from, to, (at.0 + index * a, at.1 + index * b), visit));
            }
            _ => visit(at.0 as usize, at.1 as usize),
        }
    }
    walk(shape, from, to, (0, 0), visit);
}
