//! Bytes of floats as numbers and back, in blocks. Numbers are `f64`, which holds every value of the dtypes here, so
//! that a value that is divided and stored is rounded as division in its own dtype would round it.

use crate::HookError;
use bucketeer_comm::kernels::{Loop, Plane, convert};
use bucketeer_types::DType;
use std::ops::Range;

/// Elements that are worked on at once.
const BLOCK: usize = 256;

/// Checks that a bucket's dtype is a float.
///
/// # Errors
/// Says which dtype it is, and for which hook it will not do.
pub fn check_float(hook: &str, dtype: DType) -> Result<(), HookError> {
    match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => Ok(()),
        _ => Err(format!("{hook} works on f64, f32, f16 and bf16, but the bucket holds {}", dtype.short_name()).into()),
    }
}

/// Bytes of an element.
pub const fn width(dtype: DType) -> usize {
    dtype.bytes() as usize
}

/// A range of elements in bytes.
pub const fn bytes_of(range: &Range<usize>, dtype: DType) -> Range<usize> {
    range.start * width(dtype)..range.end * width(dtype)
}

/// Converts all elements. Both slices hold equally many.
///
/// # Errors
/// One of the dtypes is not a float.
pub fn cast(from: DType, to: DType, source: &[u8], target: &mut [u8]) -> Result<(), HookError> {
    let elements = Loop { size: source.len() / width(from), from: width(from), to: width(to) };
    if target.len() != elements.size * width(to) {
        return Err(format!("{} elements do not fit {} bytes", elements.size, target.len()).into());
    }
    let plane = Plane { lines: Loop::ONCE, elements, in_turns: false };
    // The loops want an element.
    if elements.size == 0 || convert(from, to, source, target, plane) {
        return Ok(());
    }
    Err(format!("{} is not converted to {}", from.short_name(), to.short_name()).into())
}

/// The numbers of a slice.
///
/// # Errors
/// The dtype is not a float.
pub fn load(dtype: DType, source: &[u8], target: &mut [f64]) -> Result<(), HookError> {
    let mut bytes = [0; BLOCK * 8];
    for (target, source) in target.chunks_mut(BLOCK).zip(source.chunks(BLOCK * width(dtype))) {
        let bytes = &mut bytes[..target.len() * 8];
        cast(dtype, DType::F64, source, bytes)?;
        for (target, bytes) in target.iter_mut().zip(bytes.as_chunks().0) {
            *target = f64::from_le_bytes(*bytes);
        }
    }
    Ok(())
}

/// Numbers rounded to a dtype.
///
/// # Errors
/// The dtype is not a float.
pub fn store(dtype: DType, source: &[f64], target: &mut [u8]) -> Result<(), HookError> {
    let mut bytes = [0; BLOCK * 8];
    for (source, target) in source.chunks(BLOCK).zip(target.chunks_mut(BLOCK * width(dtype))) {
        let bytes = &mut bytes[..source.len() * 8];
        for (bytes, source) in bytes.as_chunks_mut().0.iter_mut().zip(source) {
            *bytes = source.to_le_bytes();
        }
        cast(DType::F64, dtype, bytes, target)?;
    }
    Ok(())
}

/// Divides, and rounds to another dtype. Both slices hold equally many elements.
///
/// # Errors
/// One of the dtypes is not a float.
pub fn divide_into(from: DType, to: DType, source: &[u8], target: &mut [u8], divisor: f64) -> Result<(), HookError> {
    if divisor == 1.0 {
        return cast(from, to, source, target);
    }
    let mut block = [0.0; BLOCK];
    for (source, target) in source.chunks(BLOCK * width(from)).zip(target.chunks_mut(BLOCK * width(to))) {
        let block = &mut block[..source.len() / width(from)];
        load(from, source, block)?;
        block.iter_mut().for_each(|value| *value /= divisor);
        store(to, block, target)?;
    }
    Ok(())
}

/// Divides in place.
///
/// # Errors
/// The dtype is not a float.
pub fn divide(dtype: DType, bytes: &mut [u8], divisor: f64) -> Result<(), HookError> {
    if divisor == 1.0 {
        return Ok(());
    }
    // The dtype of most buckets, in one loop without a detour by a block.
    if dtype == DType::F32 {
        for bytes in bytes.as_chunks_mut().0 {
            *bytes = ((f64::from(f32::from_le_bytes(*bytes)) / divisor) as f32).to_le_bytes();
        }
        return Ok(());
    }
    let mut block = [0.0; BLOCK];
    for bytes in bytes.chunks_mut(BLOCK * width(dtype)) {
        let block = &mut block[..bytes.len() / width(dtype)];
        load(dtype, bytes, block)?;
        block.iter_mut().for_each(|value| *value /= divisor);
        store(dtype, block, bytes)?;
    }
    Ok(())
}

/// Adds elements of one dtype to equally many of another.
///
/// # Errors
/// One of the dtypes is not a float.
pub fn add(from: DType, source: &[u8], to: DType, target: &mut [u8]) -> Result<(), HookError> {
    let (mut terms, mut sums) = ([0.0; BLOCK], [0.0; BLOCK]);
    for (source, target) in source.chunks(BLOCK * width(from)).zip(target.chunks_mut(BLOCK * width(to))) {
        let count = source.len() / width(from);
        let (terms, sums) = (&mut terms[..count], &mut sums[..count]);
        load(from, source, terms)?;
        load(to, target, sums)?;
        sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += *term);
        store(to, sums, target)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_rounds_as_the_dtype_itself_does() {
        let values: Vec<f32> = (1..2000).map(|n| n as f32 * 0.37 - 300.0).collect();
        let mut bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut other = vec![0; bytes.len()];
        divide_into(DType::F32, DType::F32, &bytes, &mut other, 3.0).unwrap();
        divide(DType::F32, &mut bytes, 3.0).unwrap();
        assert_eq!(bytes, other);
        for (bytes, value) in bytes.as_chunks().0.iter().zip(values) {
            assert_eq!(f32::from_le_bytes(*bytes), value / 3.0);
        }
    }

    #[test]
    fn what_is_not_a_float_is_refused() {
        assert!(cast(DType::I32, DType::F32, &[0; 8], &mut [0; 8]).is_err());
        assert!(cast(DType::F32, DType::F32, &[0; 8], &mut [0; 4]).is_err());
        assert!(check_float("it", DType::C64).unwrap_err().0.contains("c64"));
    }
}
