//! Arithmetic of NCCL's dtypes, rounded to the dtype at each step, so that sums in rank order equal those of our own
//! backends. By way of `f64`, whose 53 bits make the second rounding, to 24 bits or fewer, as if it were the only one.

/// `ncclDataType_t`: the width, and how elements are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Int {
        bytes: usize,
        signed: bool,
    },
    F16,
    F32,
    F64,
    Bf16,
    /// Bits of the mantissa, the bias, bits of the largest finite value.
    F8 {
        mantissa: u32,
        bias: i32,
        largest: u8,
    },
}

const F8_NAN: u8 = 0x7f;

pub const fn form(dtype: i32) -> Option<Form> {
    Some(match dtype {
        0 => Form::Int { bytes: 1, signed: true },
        1 => Form::Int { bytes: 1, signed: false },
        2 => Form::Int { bytes: 4, signed: true },
        3 => Form::Int { bytes: 4, signed: false },
        4 => Form::Int { bytes: 8, signed: true },
        5 => Form::Int { bytes: 8, signed: false },
        6 => Form::F16,
        7 => Form::F32,
        8 => Form::F64,
        9 => Form::Bf16,
        10 => Form::F8 { mantissa: 3, bias: 7, largest: 0x7e },
        11 => Form::F8 { mantissa: 2, bias: 15, largest: 0x7b },
        _ => return None,
    })
}

impl Form {
    pub const fn bytes(self) -> usize {
        match self {
            Self::Int { bytes, .. } => bytes,
            Self::F8 { .. } => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    const fn is_int(self) -> bool {
        matches!(self, Self::Int { .. })
    }

    fn load_int(self, bytes: &[u8]) -> i128 {
        let mut wide = [0; 16];
        wide[..bytes.len()].copy_from_slice(bytes);
        let value = i128::from_le_bytes(wide);
        let above = 128 - 8 * bytes.len();
        if matches!(self, Self::Int { signed: true, .. }) { value << above >> above } else { value }
    }

    fn load(self, bytes: &[u8]) -> f64 {
        let half = || u16::from_le_bytes([bytes[0], bytes[1]]);
        match self {
            Self::F64 => f64::from_le_bytes(bytes.try_into().expect("8 bytes")),
            Self::F32 => f32::from_le_bytes(bytes.try_into().expect("4 bytes")).into(),
            Self::Bf16 => f32::from_bits(u32::from(half()) << 16).into(),
            Self::F16 => small(u32::from(half()), 15, 10, 15),
            Self::F8 { mantissa, bias, .. } => small(u32::from(bytes[0]), 7, mantissa, bias),
            Self::Int { .. } => self.load_int(bytes) as f64,
        }
    }

    fn store(self, value: f64, to: &mut [u8]) {
        let (nan, negative) = (value.is_nan(), value.is_sign_negative());
        match self {
            Self::F64 => to.copy_from_slice(&if nan { f64::NAN } else { value }.to_le_bytes()),
            Self::F32 => to.copy_from_slice(&if nan { f32::NAN } else { value as f32 }.to_le_bytes()),
            Self::Bf16 => {
                let bits = (value as f32).to_bits();
                let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
                to.copy_from_slice(&if nan { 0x7fc0 } else { rounded as u16 }.to_le_bytes());
            }
            Self::F16 => {
                let magnitude = round(f64::from(value as f32).abs(), 10, 15).min(0x7c00) as u16;
                let sign = if negative { 0x8000 } else { 0 };
                to.copy_from_slice(&if nan { 0x7e00 } else { magnitude | sign }.to_le_bytes());
            }
            Self::F8 { mantissa, bias, largest } => {
                let magnitude = round(value.abs(), mantissa, bias).min(u32::from(largest)) as u8;
                let sign = if negative { 0x80 } else { 0 };
                to[0] = if nan { F8_NAN } else { magnitude | sign };
            }
            Self::Int { .. } => unreachable!("integers have arithmetic of their own"),
        }
    }

    /// `acc` becomes `acc` and `other`. `op` is one of `ncclRedOp_t`'s built in.
    pub fn combine(self, op: i32, acc: &mut [u8], other: &[u8]) {
        let width = self.bytes();
        for (acc, other) in acc.chunks_exact_mut(width).zip(other.chunks_exact(width)) {
            if self.is_int() {
                let (a, b) = (self.load_int(acc), self.load_int(other));
                let value = match op {
                    1 => a.wrapping_mul(b),
                    2 => a.max(b),
                    3 => a.min(b),
                    _ => a.wrapping_add(b),
                };
                acc.copy_from_slice(&value.to_le_bytes()[..width]);
                continue;
            }
            let (a, b) = (self.load(acc), self.load(other));
            let value = match op {
                1 => a * b,
                2 | 3 if a.is_nan() || b.is_nan() => f64::NAN,
                2 => [a, b][usize::from(b > a)],
                3 => [a, b][usize::from(b < a)],
                _ => a + b,
            };
            self.store(value, acc);
        }
    }

    /// Each value times a factor, one element.
    pub fn scale(self, values: &mut [u8], factor: &[u8]) {
        let factor = &factor[..self.bytes()];
        for value in values.chunks_exact_mut(self.bytes()) {
            if self.is_int() {
                let product = self.load_int(value).wrapping_mul(self.load_int(factor));
                value.copy_from_slice(&product.to_le_bytes()[..self.bytes()]);
            } else {
                self.store(self.load(value) * self.load(factor), value);
            }
        }
    }

    /// Each value over a number of ranks.
    pub fn divide(self, values: &mut [u8], ranks: u32) {
        for value in values.chunks_exact_mut(self.bytes()) {
            if self.is_int() {
                let quotient = self.load_int(value) / i128::from(ranks);
                value.copy_from_slice(&quotient.to_le_bytes()[..self.bytes()]);
            } else {
                self.store(self.load(value) / f64::from(ranks), value);
            }
        }
    }
}

/// The value of a float of few bits. The largest exponent is of infinities and NaNs; in `e4m3` only the last value is
/// a NaN.
fn small(bits: u32, sign_bit: u32, mantissa: u32, bias: i32) -> f64 {
    let magnitude = bits & ((1 << sign_bit) - 1);
    let (power, fraction) = ((magnitude >> mantissa) as i32, magnitude & ((1 << mantissa) - 1));
    let is_e4m3 = mantissa == 3;
    let is_top = power == (1 << (sign_bit - mantissa)) - 1;
    let value = match fraction {
        7 if is_e4m3 && is_top => f64::NAN,
        0 if is_top && !is_e4m3 => f64::INFINITY,
        _ if is_top && !is_e4m3 => f64::NAN,
        _ if power == 0 => f64::from(fraction) * 2f64.powi(1 - bias - mantissa as i32),
        _ => f64::from(fraction + (1 << mantissa)) * 2f64.powi(power - bias - mantissa as i32),
    };
    if bits >> sign_bit == 1 { -value } else { value }
}

/// The bits of the nearest value, ties to even, of a float without an upper end; for what is not negative, nor NaN.
fn round(value: f64, mantissa: u32, bias: i32) -> u32 {
    if value > 1e6 {
        return u32::MAX; // above all floats that are asked for
    }
    let exponent = ((value.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    let steps = (value * 2f64.powi(mantissa as i32 - exponent)).round_ties_even();
    // From the smallest normal on, the steps have the hidden bit, and a carry goes into the exponent by itself.
    steps as u32 + ((exponent + bias - 1) as u32) * (1 << mantissa)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_float_is_read_and_written_as_itself() {
        for dtype in [6, 10, 11] {
            let form = form(dtype).unwrap();
            for bits in 0..1_u32 << (8 * form.bytes()) {
                let bytes = bits.to_le_bytes();
                let value = form.load(&bytes[..form.bytes()]);
                let mut back = vec![0; form.bytes()];
                form.store(value, &mut back);
                let is_saturated = value.is_infinite() && dtype == 11;
                assert!(value.is_nan() || is_saturated || back == bytes[..form.bytes()], "{dtype}: {bits:#x}");
            }
        }
    }

    #[test]
    fn what_lies_between_goes_to_the_nearest_and_ties_to_even() {
        let form = form(10).unwrap();
        let stored = |value: f64| {
            let mut bits = [0];
            form.store(value, &mut bits);
            bits[0]
        };
        for bits in 0..0x7e_u8 {
            let (low, high) = (form.load(&[bits]), form.load(&[bits + 1]));
            let middle = f64::midpoint(low, high);
            assert_eq!(stored(middle), bits + (bits & 1), "{bits:#x}");
            assert_eq!(stored(middle - (high - low) / 64.0), bits);
            assert_eq!(stored(middle + (high - low) / 64.0), bits + 1);
        }
        assert_eq!((stored(1e9), stored(-1e9)), (0x7e, 0xfe), "saturated");
    }
}
