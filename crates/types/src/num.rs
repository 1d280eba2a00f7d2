//! Elements as numbers: every dtype's bytes to `f64` or `i128` and back.
//!
//! Results are rounded to nearest, ties to even; floats of one or two bytes by way of `f32`, as PyTorch computes them.
//! A NaN is stored as one canonical NaN, so that results do not depend on which operand's payload won.

use crate::class::{Class, class};
use crate::{DType, ReduceOp};
use half::{bf16, f16};

/// How a float of one byte is laid out.
struct Fp8 {
    mantissa: u32,
    bias: i32,
    /// Bits of the largest finite value.
    largest: u8,
    /// Bits for what is above it.
    overflow: u8,
    nan: u8,
    /// Whether minus zero's bits are the NaN.
    one_zero: bool,
}

const fn fp8(dtype: DType) -> Option<Fp8> {
    Some(match dtype {
        // PyTorch saturates here, infinities included.
        DType::F8E4m3fn => Fp8 { mantissa: 3, bias: 7, largest: 0x7e, overflow: 0x7e, nan: 0x7f, one_zero: false },
        DType::F8E5m2 => Fp8 { mantissa: 2, bias: 15, largest: 0x7b, overflow: 0x7c, nan: 0x7f, one_zero: false },
        DType::F8E4m3fnuz => Fp8 { mantissa: 3, bias: 8, largest: 0x7f, overflow: 0x80, nan: 0x80, one_zero: true },
        DType::F8E5m2fnuz => Fp8 { mantissa: 2, bias: 16, largest: 0x7f, overflow: 0x80, nan: 0x80, one_zero: true },
        _ => return None,
    })
}

impl Fp8 {
    fn magnitude(&self, bits: u8) -> f64 {
        let (power, fraction) = (i32::from(bits >> self.mantissa), f64::from(bits & ((1 << self.mantissa) - 1)));
        let unit = 2f64.powi(-(self.mantissa as i32));
        match power {
            0 => fraction * unit * 2f64.powi(1 - self.bias),
            _ => (1.0 + fraction * unit) * 2f64.powi(power - self.bias),
        }
    }

    fn load(&self, bits: u8) -> f64 {
        let magnitude = bits & 0x7f;
        if bits == self.nan || (!self.one_zero && magnitude == self.nan) {
            return f64::NAN;
        }
        let value = match magnitude > self.largest {
            // Beyond the largest: infinity, or (e5m2) one of several NaNs.
            true if magnitude == self.overflow => f64::INFINITY,
            true => f64::NAN,
            false => self.magnitude(magnitude),
        };
        if bits & 0x80 != 0 { -value } else { value }
    }

    fn store(&self, value: f32) -> u8 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let value = f64::from(value.abs());
        // Positive bits are in the order of their values: find the largest that is not above.
        let (mut low, mut high) = (0u8, self.largest);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.magnitude(middle) <= value { low = middle } else { high = middle - 1 }
        }
        let below = self.magnitude(low);
        let step = 2f64.powi((i32::from(low >> self.mantissa)).max(1) - self.bias - self.mantissa as i32);
        let rest = value - below;
        let up = rest > step / 2.0 || (rest == step / 2.0 && low & 1 == 1);
        if up && low == self.largest {
            return if self.overflow == self.nan { self.nan } else { sign | self.overflow };
        }
        let bits = if up { low + 1 } else { low };
        if bits == 0 && self.one_zero { 0 } else { sign | bits }
    }
}

fn raw(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)),
    }
}

/// An element as a float; integers are rounded to the nearest.
#[must_use]
pub fn load_float(dtype: DType, bytes: &[u8]) -> f64 {
    let bits = raw(bytes);
    match dtype {
        DType::F64 => f64::from_bits(bits),
        DType::F32 => f64::from(f32::from_bits(bits as u32)),
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::Bf16 => bf16::from_bits(bits as u16).to_f64(),
        _ => match fp8(dtype) {
            Some(layout) => layout.load(bits as u8),
            None => load_int(dtype, bytes) as f64,
        },
    }
}

/// An element as an integer; floats lose their fraction, and NaN is zero.
#[must_use]
pub fn load_int(dtype: DType, bytes: &[u8]) -> i128 {
    let bits = raw(bytes);
    match dtype {
        DType::I64 => i128::from(bits as i64),
        DType::I32 => i128::from(bits as i32),
        DType::I16 => i128::from(bits as i16),
        DType::I8 => i128::from(bits as i8),
        DType::Bool => i128::from(bits != 0),
        DType::U64 | DType::U32 | DType::U16 | DType::U8 => i128::from(bits),
        _ if class(dtype) == Class::Float => load_float(dtype, bytes) as i128,
        _ => i128::from(bits),
    }
}

/// Appends a float, rounded to the dtype.
pub fn store_float(dtype: DType, value: f64, out: &mut Vec<u8>) {
    let value = if value.is_nan() { f64::NAN } else { value };
    match dtype {
        DType::F64 => out.extend(value.to_le_bytes()),
        DType::F32 => out.extend((value as f32).to_le_bytes()),
        DType::F16 => out.extend(f16::from_f32(value as f32).to_le_bytes()),
        DType::Bf16 => out.extend(bf16::from_f32(value as f32).to_le_bytes()),
        DType::Bool => out.push(u8::from(value != 0.0)),
        _ => match fp8(dtype) {
            Some(layout) => out.push(layout.store(value as f32)),
            None => store_int(dtype, value as i128, out),
        },
    }
}

/// Appends an integer; its high bits are cut off.
pub fn store_int(dtype: DType, value: i128, out: &mut Vec<u8>) {
    match class(dtype) {
        Class::Bool => out.push(u8::from(value != 0)),
        Class::Float => store_float(dtype, value as f64, out),
        Class::Int | Class::Opaque => out.extend(&value.to_le_bytes()[..dtype.bytes() as usize]),
    }
}

/// The elements, each converted to another dtype. Between opaque dtypes and others there is no conversion.
#[must_use]
pub fn convert(from: DType, to: DType, bytes: &[u8]) -> Option<Vec<u8>> {
    if from == to {
        return Some(bytes.to_vec());
    }
    if class(from) == Class::Opaque || class(to) == Class::Opaque {
        return None;
    }
    let width = from.bytes() as usize;
    let mut out = Vec::with_capacity(bytes.len() / width * to.bytes() as usize);
    for element in bytes.chunks_exact(width) {
        match class(from) {
            Class::Float => store_float(to, load_float(from, element), &mut out),
            _ => store_int(to, load_int(from, element), &mut out),
        }
    }
    Some(out)
}

/// One step of a reduction over ranks, rounded to the dtype. A sum of bools is their or.
pub fn combine(op: ReduceOp, dtype: DType, left: &[u8], right: &[u8], out: &mut Vec<u8>) {
    if class(dtype) == Class::Float {
        let (x, y) = (load_float(dtype, left), load_float(dtype, right));
        let value = match op {
            ReduceOp::Product => x * y,
            ReduceOp::Min if x.is_nan() || y.is_nan() => f64::NAN,
            ReduceOp::Max if x.is_nan() || y.is_nan() => f64::NAN,
            ReduceOp::Min => x.min(y),
            ReduceOp::Max => x.max(y),
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => x + y,
        };
        return store_float(dtype, value, out);
    }
    let (x, y) = (load_int(dtype, left), load_int(dtype, right));
    let value = match op {
        ReduceOp::Sum | ReduceOp::Avg => x.wrapping_add(y),
        ReduceOp::Product => x.wrapping_mul(y),
        ReduceOp::Min => x.min(y),
        ReduceOp::Max => x.max(y),
        ReduceOp::BitAnd => x & y,
        ReduceOp::BitOr => x | y,
        ReduceOp::BitXor => x ^ y,
    };
    store_int(dtype, value, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(dtype: DType, value: f64) -> u8 {
        let mut out = Vec::new();
        store_float(dtype, value, &mut out);
        out[0]
    }

    #[test]
    fn floats_of_one_byte_round_as_pytorch_does() {
        // Made with PyTorch 2.15: `x.to(dtype).view(torch.uint8)`.
        let values = [
            0.0,
            -0.0,
            1.0,
            1.0625,
            1.1875,
            0.3,
            447.0,
            449.0,
            464.0,
            465.0,
            500.0,
            -1e9,
            2f64.powi(-9),
            2f64.powi(-10),
            2f64.powi(-10) * 1.01,
            2f64.powi(-17),
            61439.0,
            61440.0,
            f64::INFINITY,
            f64::NAN,
            -3.3,
            240.0,
            248.0,
            250.0,
        ];
        let expected: [(DType, [u8; 24]); 4] = [
            (
                DType::F8E4m3fn,
                [
                    0, 128, 56, 56, 58, 42, 126, 126, 126, 126, 126, 254, 1, 0, 1, 0, 126, 126, 126, 127, 197, 119,
                    120, 120,
                ],
            ),
            (
                DType::F8E5m2,
                [0, 128, 60, 60, 61, 53, 95, 95, 95, 95, 96, 252, 24, 20, 20, 0, 123, 124, 124, 127, 195, 92, 92, 92],
            ),
            (
                DType::F8E4m3fnuz,
                [
                    0, 0, 64, 64, 66, 50, 128, 128, 128, 128, 128, 128, 2, 1, 1, 0, 128, 128, 128, 128, 205, 127, 128,
                    128,
                ],
            ),
            (
                DType::F8E5m2fnuz,
                [0, 0, 64, 64, 65, 57, 99, 99, 99, 99, 100, 128, 28, 24, 24, 1, 127, 128, 128, 128, 199, 96, 96, 96],
            ),
        ];
        for (dtype, row) in expected {
            for (value, found) in values.iter().zip(row) {
                assert_eq!(bits(dtype, *value), found, "{value} as {dtype:?}");
            }
        }
    }

    /// The value of a float of two bytes, by the definition of its format.
    fn defined(bits: u16, mantissa_bits: i32) -> f64 {
        let (exponent_bits, fields) = (15 - mantissa_bits, i32::from(bits & 0x7fff));
        let (exponent, mantissa) = (fields >> mantissa_bits, f64::from(fields & ((1 << mantissa_bits) - 1)));
        let bias = (1 << (exponent_bits - 1)) - 1;
        let one = 2f64.powi(mantissa_bits);
        let magnitude = match exponent {
            0 => mantissa / one * 2f64.powi(1 - bias),
            special if special == (1 << exponent_bits) - 1 => {
                if mantissa == 0.0 {
                    f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            _ => (1.0 + mantissa / one) * 2f64.powi(exponent - bias),
        };
        if bits >> 15 == 1 { -magnitude } else { magnitude }
    }

    fn stored(dtype: DType, value: f64) -> u16 {
        let mut out = Vec::new();
        store_float(dtype, value, &mut out);
        u16::from_le_bytes([out[0], out[1]])
    }

    #[test]
    fn all_floats_of_two_bytes_are_what_their_formats_define_both_ways() {
        for (dtype, mantissa_bits) in [(DType::F16, 10), (DType::Bf16, 7)] {
            for bits in 0..=u16::MAX {
                let (loaded, value) = (load_float(dtype, &bits.to_le_bytes()), defined(bits, mantissa_bits));
                if value.is_nan() {
                    assert!(loaded.is_nan() && load_float(dtype, &stored(dtype, loaded).to_le_bytes()).is_nan());
                    continue;
                }
                assert_eq!(loaded.to_bits(), value.to_bits(), "{dtype:?} {bits:#06x}");
                assert_eq!(stored(dtype, value), bits, "{dtype:?} {bits:#06x}");
                // Between it and the next one further from zero, what is nearer counts, and the even one in the middle.
                let next = match defined(bits.wrapping_add(1), mantissa_bits) {
                    next if value.is_infinite() || next.is_nan() => continue,
                    // As if the exponents went on.
                    next if next.is_infinite() => value + (value - defined(bits - 1, mantissa_bits)),
                    next => next,
                };
                let middle = value + (next - value) / 2.0;
                assert_eq!(stored(dtype, middle), bits + (bits & 1), "{dtype:?} {bits:#06x} and a half");
                let step = (next - value) / 16.0;
                assert_eq!(stored(dtype, middle - step), bits, "{dtype:?} {bits:#06x} and less than a half");
                assert_eq!(stored(dtype, middle + step), bits + 1, "{dtype:?} {bits:#06x} and more than a half");
            }
        }
    }

    #[test]
    fn every_byte_of_a_small_float_is_itself_after_a_round_trip() {
        for dtype in [DType::F8E4m3fn, DType::F8E5m2, DType::F8E4m3fnuz, DType::F8E5m2fnuz] {
            for byte in 0..=255u8 {
                let value = load_float(dtype, &[byte]);
                assert!(value.is_nan() || bits(dtype, value) == byte, "{byte} of {dtype:?} is {value}");
            }
        }
    }
}
