//! Copies between strided tensors, with conversion.
//!
//! Elements move in row-major order of the shape. Trailing dimensions that are dense on both sides move as one run.

use crate::check::eval::num::convert;
use crate::program::Layout;

/// Copies all elements of `from` to those of `to`, which has the same shape. Each slice begins at its first element.
pub(super) fn copy(source: &[u8], from: &Layout, target: &mut [u8], to: &Layout) -> Result<(), String> {
    if from.shape.contains(&0) {
        return Ok(());
    }
    if from.dtype != to.dtype {
        let converted = convert(from.dtype, to.dtype, &gathered(source, from));
        let (old, new) = (from.dtype.torch_name(), to.dtype.torch_name());
        let converted = converted.ok_or_else(|| format!("there is no conversion of {old} to {new}"))?;
        scattered(&converted, target, to);
    } else {
        move_elements(source, from, target, to);
    }
    Ok(())
}

/// Elements in row-major order.
pub(super) fn gathered(source: &[u8], from: &Layout) -> Vec<u8> {
    let Some(dense) = dense(from) else { return Vec::new() };
    let mut out = vec![0; dense.span_bytes().unwrap_or_default() as usize];
    move_elements(source, from, &mut out, &dense);
    out
}

/// Puts elements in row-major order where they lie.
pub(super) fn scattered(source: &[u8], target: &mut [u8], to: &Layout) {
    if let Some(dense) = dense(to) {
        move_elements(source, &dense, target, to);
    }
}

/// The same elements end to end; none if there are none. What is in memory does not pass 64 bits.
fn dense(layout: &Layout) -> Option<Layout> {
    if layout.shape.contains(&0) { None } else { Layout::dense(layout.dtype, &layout.shape) }
}

/// Copies elements of one dtype, of which there are some.
fn move_elements(source: &[u8], from: &Layout, target: &mut [u8], to: &Layout) {
    let outer = from.shape.len() - dense_dims(from).min(dense_dims(to));
    let width = from.dtype.bytes() as usize;
    let run = from.shape[outer..].iter().product::<u64>() as usize * width;
    runs(&from.shape[..outer], &from.strides[..outer], &to.strides[..outer], (0, 0), &mut |from, to| {
        let (from, to) = (from as usize * width, to as usize * width);
        target[to..to + run].copy_from_slice(&source[from..from + run]);
    });
}

/// How many trailing dimensions lie dense.
fn dense_dims(layout: &Layout) -> usize {
    let mut step = 1;
    let mut dense = |(&size, &stride): (&u64, &u64)| {
        let dense = size == 1 || stride == step;
        step *= size;
        dense
    };
    layout.shape.iter().zip(&layout.strides).rev().take_while(|&dim| dense(dim)).count()
}

/// Calls `visit` with both places of each run, in elements.
fn runs(shape: &[u64], from: &[u64], to: &[u64], at: (u64, u64), visit: &mut impl FnMut(u64, u64)) {
    match (shape, from, to) {
        ([size, shape @ ..], [a, from @ ..], [b, to @ ..]) => {
            (0..*size).for_each(|index| runs(shape, from, to, (at.0 + index * a, at.1 + index * b), visit));
        }
        _ => visit(at.0, at.1),
    }
}
