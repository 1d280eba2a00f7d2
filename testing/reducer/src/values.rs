//! Numbers of the recordings as bytes, and back.

use bucketeer_types::{DType, num};
use serde_json::Value;

/// A value that may differ by rank.
#[must_use]
pub fn pick(value: &Value, rank: usize) -> &Value {
    match value.get("by_rank") {
        Some(list) => &list[rank],
        None => value,
    }
}

/// The dtype of the reals of an element, and how many it has.
#[must_use]
pub fn real(dtype: DType) -> (DType, usize) {
    match dtype {
        DType::C64 => (DType::F32, 2),
        DType::C128 => (DType::F64, 2),
        DType::C32 => (DType::F16, 2),
        other => (other, 1),
    }
}

/// A list of numbers as elements.
#[must_use]
pub fn bytes(list: &Value, dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in list.as_array().expect("a list of numbers") {
        let number = match value.as_str() {
            Some("nan") => f64::NAN,
            Some("inf") => f64::INFINITY,
            Some("-inf") => f64::NEG_INFINITY,
            Some(other) => panic!("{other} is not a number"),
            None => value.as_f64().expect("a number"),
        };
        let number = if real(dtype).0 == DType::F64 { number } else { f64::from(number as f32) };
        num::store_float(real(dtype).0, number, &mut bytes);
    }
    bytes
}

/// Elements as numbers.
#[must_use]
pub fn numbers(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let real = real(dtype).0;
    bytes.chunks(real.bytes() as usize).map(|one| num::load_float(real, one)).collect()
}

/// Elements of numbers.
#[must_use]
pub fn from_numbers(numbers: &[f64], dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::new();
    numbers.iter().for_each(|number| num::store_float(real(dtype).0, *number, &mut bytes));
    bytes
}

/// Row-major elements in the order of dense strides, or back.
#[must_use]
pub fn reorder(bytes: &[u8], width: usize, shape: &[u64], strides: &[u64], to_memory: bool) -> Vec<u8> {
    let mut result = vec![0; bytes.len()];
    for at in 0..bytes.len() / width {
        let (mut rest, mut place) = (at as u64, 0);
        for dim in (0..shape.len()).rev() {
            place += rest % shape[dim] * strides[dim];
            rest /= shape[dim];
        }
        let (from, to) = if to_memory { (at, place as usize) } else { (place as usize, at) };
        result[to * width..][..width].copy_from_slice(&bytes[from * width..][..width]);
    }
    result
}

/// Whether numbers are the same, a NaN included, or as close as sums in another order are: `scale` is the sum of the sizes of
/// what was added, by element; none for exact.
pub fn assert_close(found: &[u8], wanted: &[u8], dtype: DType, scale: Option<&[f64]>, what: &str) {
    let (found, wanted) = (numbers(found, dtype), numbers(wanted, dtype));
    assert_eq!(found.len(), wanted.len(), "{what}: lengths");
    let ulp = match real(dtype).0 {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 2f64.powi(-10),
        _ => 2f64.powi(-7),
    };
    for (at, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        let bound = scale.map_or(0.0, |scale| scale[at] * ulp);
        let same = found == wanted || (found.is_nan() && wanted.is_nan()) || (found - wanted).abs() <= bound;
        assert!(same, "{what}: element {at} is {found}, not {wanted} (within {bound:e})");
    }
}
