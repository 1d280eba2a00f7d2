//! Conversion between floats. Rounded to nearest, ties to even, to two bytes by way of `f32`; every NaN becomes the
//! canonical one. All as the evaluator does.

use super::element::{Bf16, F16, Real};
use super::half::{round_bf16, to_bf16};
use super::strided::{ElementMap, Plane, map};
use bucketeer_types::DType;
use multiversion::multiversion;
use std::marker::PhantomData;

/// Converts the elements of a plane; whether there is a loop for that. Slices begin at the first element.
///
/// # Panics
/// When an element is outside of a slice.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2"))]
pub fn convert(from: DType, to: DType, source: &[u8], target: &mut [u8], plane: Plane) -> bool {
    match (from, to) {
        (DType::F32, DType::Bf16) => map(source, target, plane, Narrow),
        (DType::F64, _) => return convert_from::<8, f64>(to, source, target, plane),
        (DType::F32, _) => return convert_from::<4, f32>(to, source, target, plane),
        (DType::F16, _) => return convert_from::<2, F16>(to, source, target, plane),
        (DType::Bf16, _) => return convert_from::<2, Bf16>(to, source, target, plane),
        _ => return false,
    }
    true
}

#[inline(always)]
fn convert_from<const A: usize, T: Real<Bytes = [u8; A]>>(
    to: DType,
    source: &[u8],
    target: &mut [u8],
    plane: Plane,
) -> bool {
    match to {
        DType::F64 => map(source, target, plane, Convert::<T, f64>::STEP),
        DType::F32 => map(source, target, plane, Convert::<T, f32>::STEP),
        DType::F16 => map(source, target, plane, Convert::<T, F16>::STEP),
        DType::Bf16 => map(source, target, plane, Convert::<T, Bf16>::STEP),
        _ => return false,
    }
    true
}

#[derive(Clone, Copy)]
struct Convert<T, U>(PhantomData<(T, U)>);

impl<T, U> Convert<T, U> {
    const STEP: Self = Self(PhantomData);
}

impl<const A: usize, const B: usize, T, U> ElementMap<A, B> for Convert<T, U>
where
    T: Real<Bytes = [u8; A]>,
    U: Real<Bytes = [u8; B]>,
{
    /// By way of `f64`, which holds every value; the compiler leaves that out where it changes nothing.
    #[inline(always)]
    fn one(self, element: [u8; A]) -> [u8; B] {
        U::unrounded(T::load(element).wide()).store()
    }
}

/// From `f32` to `bf16`, the conversion of most packs.
#[derive(Clone, Copy)]
struct Narrow;

/// Elements that are rounded, all of them, before they are cut to half their width: two registers of AVX-512. Done one
/// by one the compiler chooses between number and NaN behind the cut, which takes a tenth longer.
const BLOCK: usize = 32;

impl ElementMap<4, 2> for Narrow {
    #[inline(always)]
    fn one(self, element: [u8; 4]) -> [u8; 2] {
        to_bf16(f32::from_le_bytes(element)).to_le_bytes()
    }

    #[inline(always)]
    fn line(self, source: &[[u8; 4]], target: &mut [[u8; 2]]) {
        let (blocks, rest) = source.as_chunks::<BLOCK>();
        let (target_blocks, target_rest) = target.as_chunks_mut::<BLOCK>();
        for (target, source) in target_blocks.iter_mut().zip(blocks) {
            let mut rounded = [0; BLOCK];
            for (rounded, source) in rounded.iter_mut().zip(source) {
                *rounded = round_bf16(f32::from_le_bytes(*source));
            }
            for (target, rounded) in target.iter_mut().zip(rounded) {
                *target = ((rounded >> 16) as u16).to_le_bytes();
            }
        }
        for (target, source) in target_rest.iter_mut().zip(rest) {
            *target = self.one(*source);
        }
    }
}
