//! Loops over elements: the steps of a reduction, conversions and moves. Plain loops, those that calculate compiled for
//! several instruction sets of which the processor's best is taken at run time: worth 2 to 4 times for floats of two
//! bytes.

mod convert;
mod element;
mod half;
mod strided;

pub use convert::convert;
pub use strided::{Loop, Plane, move_elements};

use super::call::Reduction;
use bucketeer_types::{DType, ReduceOp};
use element::{Bf16, Bits, Bool, Element, F16, Real};
use multiversion::multiversion;

/// One step: `acc` becomes `acc` and `other`, element by element, rounded to the dtype. Both have the same length, a
/// multiple of the element size.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2"))]
pub fn combine(reduction: Reduction, dtype: DType, acc: &mut [u8], other: &[u8]) {
    match dtype {
        DType::F64 => real::<f64>(reduction, acc, other),
        DType::F32 => real::<f32>(reduction, acc, other),
        DType::F16 => real::<F16>(reduction, acc, other),
        DType::Bf16 => real::<Bf16>(reduction, acc, other),
        DType::I64 => integer::<i64>(reduction, acc, other),
        DType::I32 => integer::<i32>(reduction, acc, other),
        DType::I16 => integer::<i16>(reduction, acc, other),
        DType::I8 => integer::<i8>(reduction, acc, other),
        DType::U64 => integer::<u64>(reduction, acc, other),
        DType::U32 => integer::<u32>(reduction, acc, other),
        DType::U16 => integer::<u16>(reduction, acc, other),
        DType::U8 => integer::<u8>(reduction, acc, other),
        DType::Bool => integer::<Bool>(reduction, acc, other),
        _ => undefined(reduction, dtype),
    }
}

/// What happens to the first rank's elements before the first step: a factor.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2"))]
pub fn begin(reduction: Reduction, dtype: DType, acc: &mut [u8]) {
    let Reduction::PreMulSum { factor } = reduction else { return };
    match dtype {
        DType::F64 => scale::<f64>(factor, acc),
        DType::F32 => scale::<f32>(factor, acc),
        DType::F16 => scale::<F16>(factor, acc),
        DType::Bf16 => scale::<Bf16>(factor, acc),
        _ => undefined(reduction, dtype),
    }
}

/// What happens after the last step: an average is divided by the number of ranks.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2"))]
pub fn finish(reduction: Reduction, dtype: DType, ranks: u32, acc: &mut [u8]) {
    if reduction != Reduction::Op(ReduceOp::Avg) {
        return;
    }
    match dtype {
        DType::F64 => divide::<f64>(ranks, acc),
        DType::F32 => divide::<f32>(ranks, acc),
        DType::F16 => divide::<F16>(ranks, acc),
        DType::Bf16 => divide::<Bf16>(ranks, acc),
        DType::I64 => divide::<i64>(ranks, acc),
        DType::I32 => divide::<i32>(ranks, acc),
        DType::I16 => divide::<i16>(ranks, acc),
        DType::I8 => divide::<i8>(ranks, acc),
        DType::U64 => divide::<u64>(ranks, acc),
        DType::U32 => divide::<u32>(ranks, acc),
        DType::U16 => divide::<u16>(ranks, acc),
        DType::U8 => divide::<u8>(ranks, acc),
        // A sum of bools is their or already.
        DType::Bool => {}
        _ => undefined(reduction, dtype),
    }
}

/// # Panics
/// Always: `Reduction::check` lets no such call pass.
fn undefined(reduction: Reduction, dtype: DType) -> ! {
    panic!("{reduction} of {dtype:?} was not refused before its launch")
}

#[inline(always)]
fn real<T: Chunks + Real>(reduction: Reduction, acc: &mut [u8], other: &[u8]) {
    match reduction {
        Reduction::Op(op) => number::<T>(op, acc, other),
        Reduction::PreMulSum { factor } => {
            let factor = T::nearest(factor);
            T::zip(acc, other, |acc, other| acc.add(other.mul(factor)));
        }
    }
}

#[inline(always)]
fn integer<T: Chunks + Bits>(reduction: Reduction, acc: &mut [u8], other: &[u8]) {
    match reduction {
        Reduction::Op(ReduceOp::BitAnd) => T::zip(acc, other, T::and),
        Reduction::Op(ReduceOp::BitOr) => T::zip(acc, other, T::or),
        Reduction::Op(ReduceOp::BitXor) => T::zip(acc, other, T::xor),
        Reduction::Op(op) => number::<T>(op, acc, other),
        Reduction::PreMulSum { .. } => undefined(reduction, DType::I64),
    }
}

#[inline(always)]
fn number<T: Chunks>(op: ReduceOp, acc: &mut [u8], other: &[u8]) {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => T::zip(acc, other, T::add),
        ReduceOp::Product => T::zip(acc, other, T::mul),
        ReduceOp::Min => T::zip(acc, other, T::min),
        ReduceOp::Max => T::zip(acc, other, T::max),
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => undefined(op.into(), DType::F32),
    }
}

#[inline(always)]
fn scale<T: Chunks + Real>(factor: f64, acc: &mut [u8]) {
    let factor = T::nearest(factor);
    T::map(acc, |value| value.mul(factor));
}

#[inline(always)]
fn divide<T: Chunks>(ranks: u32, acc: &mut [u8]) {
    T::map(acc, |value| value.over(ranks));
}

/// Slices of bytes as elements; a rest that is not a whole element is left alone.
trait Chunks: Element {
    fn zip(acc: &mut [u8], other: &[u8], step: impl Fn(Self, Self) -> Self);
    fn map(acc: &mut [u8], step: impl Fn(Self) -> Self);
}

impl<const N: usize, T: Element<Bytes = [u8; N]>> Chunks for T {
    #[inline(always)]
    fn zip(acc: &mut [u8], other: &[u8], step: impl Fn(Self, Self) -> Self) {
        let (acc, other) = (acc.as_chunks_mut::<N>().0, other.as_chunks::<N>().0);
        for (acc, other) in acc.iter_mut().zip(other) {
            *acc = step(T::load(*acc), T::load(*other)).store();
        }
    }

    #[inline(always)]
    fn map(acc: &mut [u8], step: impl Fn(Self) -> Self) {
        for acc in acc.as_chunks_mut::<N>().0 {
            *acc = step(T::load(*acc)).store();
        }
    }
}
