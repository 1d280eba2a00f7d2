//! Tensors for the reference interpreter: bytes in a storage, seen through shape, strides and an offset.

use bucketeer::ir::{DType, ReduceOp};

/// A window on a storage of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub storage: usize,
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// In elements.
    pub strides: Vec<usize>,
    /// In bytes.
    pub offset: usize,
}

pub fn dense_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at].max(1);
    }
    strides
}

impl Tensor {
    pub fn width(&self) -> usize {
        self.dtype.bytes() as usize
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Places of the elements in the storage, in bytes, in logical order.
    pub fn places(&self) -> Vec<usize> {
        let mut places = Vec::with_capacity(self.elements());
        let mut index = vec![0; self.shape.len()];
        for _ in 0..self.elements() {
            let element: usize = index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum();
            places.push(self.offset + element * self.width());
            for at in (0..index.len()).rev() {
                index[at] += 1;
                if index[at] < self.shape[at] {
                    break;
                }
                index[at] = 0;
            }
        }
        places
    }

    pub fn is_dense(&self) -> bool {
        let dense = dense_strides(&self.shape);
        self.elements() == 0 || (0..self.shape.len()).all(|at| self.shape[at] == 1 || self.strides[at] == dense[at])
    }

    /// The same memory in another shape, if its strides allow; ATen's `computeStride`.
    pub fn view(&self, shape: &[usize]) -> Option<Self> {
        if self.is_dense() {
            return Some(Self { shape: shape.to_vec(), strides: dense_strides(shape), ..self.clone() });
        }
        let mut strides = vec![1; shape.len()];
        let mut new = shape.len();
        let (mut chunk, mut chunk_new) = (1, 1);
        let mut base = *self.strides.last()?;
        for old in (0..self.shape.len()).rev() {
            chunk *= self.shape[old];
            if old == 0 || (self.shape[old - 1] != 1 && self.strides[old - 1] != chunk * base) {
                while new > 0 && (chunk_new < chunk || shape[new - 1] == 1) {
                    strides[new - 1] = chunk_new * base;
                    chunk_new *= shape[new - 1];
                    new -= 1;
                }
                if chunk_new != chunk {
                    return None;
                }
                if old > 0 {
                    base = self.strides[old - 1];
                    (chunk, chunk_new) = (1, 1);
                }
            }
        }
        (new == 0).then(|| Self { shape: shape.to_vec(), strides, ..self.clone() })
    }

    /// The same bytes as elements of another width, under PyTorch's conditions.
    pub fn bit_cast(&self, dtype: DType) -> Result<Self, String> {
        let (from, to) = (self.width(), dtype.bytes() as usize);
        let mut new = Self { dtype, ..self.clone() };
        if from == to {
            return Ok(new);
        }
        let last = new.shape.len().checked_sub(1).ok_or("a single element cannot change its width")?;
        if self.strides[last] != 1 && self.elements() > 0 {
            return Err("the last dimension must be dense to change the width".to_owned());
        }
        new.shape[last] = self.shape[last] * from / to;
        let aligned = self.offset.is_multiple_of(to) && (self.shape[last] * from).is_multiple_of(to);
        let rest = self.strides[..last].iter().all(|stride| (stride * from).is_multiple_of(to));
        if !aligned || !rest {
            return Err(format!("storage_offset and strides must be divisible to view as {}", dtype.torch_name()));
        }
        new.strides[..last].iter_mut().for_each(|stride| *stride = *stride * from / to);
        Ok(new)
    }
}

/// A number on its way through an operator.
#[derive(Clone, Copy, Debug)]
pub enum Num {
    Float(f64),
    Int(i128),
}

impl Num {
    pub fn float(self) -> f64 {
        match self {
            Self::Float(value) => value,
            Self::Int(value) => value as f64,
        }
    }

    fn int(self) -> i128 {
        match self {
            Self::Float(value) => value as i128,
            Self::Int(value) => value,
        }
    }
}

pub fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::Bf16)
}

/// A float with `mantissa` stored bits and the exponent range of `exponent` bits, rounded to nearest even.
fn narrow(value: f64, mantissa: i32, exponent: i32) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let bias = (1 << (exponent - 1)) - 1;
    let power = (value.abs().log2().floor() as i32).max(1 - bias);
    let unit = 2f64.powi(power - mantissa);
    let rounded = (value / unit).round_ties_even() * unit;
    let largest = (2.0 - 2f64.powi(-mantissa)) * 2f64.powi(bias);
    if rounded.abs() > largest { f64::INFINITY.copysign(value) } else { rounded }
}

fn half_bits(value: f64) -> u16 {
    let value = narrow(value, 10, 5);
    let sign = u16::from(value.is_sign_negative()) << 15;
    if value.is_nan() {
        return sign | 0x7e00;
    }
    if value.is_infinite() {
        return sign | 0x7c00;
    }
    let magnitude = value.abs();
    if magnitude < 2f64.powi(-14) {
        return sign | (magnitude * 2f64.powi(24)) as u16;
    }
    let power = magnitude.log2().floor() as i32;
    sign | (((power + 15) as u16) << 10) | ((magnitude / 2f64.powi(power) - 1.0) * 1024.0) as u16
}

fn half_value(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (power, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match power {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(power - 15),
    }
}

pub fn load(dtype: DType, bytes: &[u8]) -> Num {
    let mut wide = [0; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    let raw = u128::from_le_bytes(wide);
    match dtype {
        DType::F64 => Num::Float(f64::from_bits(raw as u64)),
        DType::F32 => Num::Float(f64::from(f32::from_bits(raw as u32))),
        DType::F16 => Num::Float(half_value(raw as u16)),
        DType::Bf16 => Num::Float(f64::from(f32::from_bits((raw as u32) << 16))),
        DType::I64 => Num::Int(i128::from(raw as i64)),
        DType::I32 => Num::Int(i128::from(raw as i32)),
        DType::I16 => Num::Int(i128::from(raw as i16)),
        DType::I8 => Num::Int(i128::from(raw as i8)),
        // Narrow floats and complex numbers are bytes here: enough to see which element went where.
        _ => Num::Int((raw & (u128::MAX >> 1)) as i128),
    }
}

pub fn store(dtype: DType, value: Num) -> Vec<u8> {
    let wide = match dtype {
        DType::F64 => return value.float().to_le_bytes().to_vec(),
        DType::F32 => return (value.float() as f32).to_le_bytes().to_vec(),
        DType::F16 => return half_bits(value.float()).to_le_bytes().to_vec(),
        DType::Bf16 => {
            let exact = value.float();
            let single = if exact.is_nan() { f32::NAN } else { narrow(exact, 7, 8) as f32 };
            return ((single.to_bits() >> 16) as u16).to_le_bytes().to_vec();
        }
        DType::Bool => i128::from(value.float() != 0.0),
        _ => value.int(),
    };
    wide.to_le_bytes()[..dtype.bytes() as usize].to_vec()
}

/// One step of a reduction, rounded to the dtype as a rank-by-rank sum is.
pub fn combine(op: ReduceOp, dtype: DType, a: &[u8], b: &[u8]) -> Vec<u8> {
    let (x, y) = (load(dtype, a), load(dtype, b));
    if let (Num::Float(x), Num::Float(y)) = (x, y) {
        return store(
            dtype,
            Num::Float(match op {
                ReduceOp::Product => x * y,
                ReduceOp::Min => x.min(y),
                ReduceOp::Max => x.max(y),
                _ => x + y,
            }),
        );
    }
    let (x, y) = (x.int(), y.int());
    store(
        dtype,
        Num::Int(match op {
            ReduceOp::Sum | ReduceOp::Avg => x.wrapping_add(y),
            ReduceOp::Product => x.wrapping_mul(y),
            ReduceOp::Min => x.min(y),
            ReduceOp::Max => x.max(y),
            ReduceOp::BitAnd => x & y,
            ReduceOp::BitOr => x | y,
            ReduceOp::BitXor => x ^ y,
        }),
    )
}

/// FNV-1a with a final mix: the same on every machine and in every run.
#[derive(Clone, Copy)]
pub struct Mixer(pub u64);

impl Mixer {
    pub fn new(text: &str) -> Self {
        let mut mixer = Self(0xcbf2_9ce4_8422_2325);
        mixer.bytes(text.as_bytes());
        mixer
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// A value that depends on all that was mixed in, and on `index`.
    pub fn at(self, index: u64) -> u64 {
        let mut z = self.0.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An element of the dtype: for floats a small number, so that sums stay finite and differ.
    pub fn element(self, dtype: DType, index: u64) -> Vec<u8> {
        let bits = self.at(index);
        match dtype {
            DType::F64 | DType::F32 => store(dtype, Num::Float((bits % 100_003) as f64 / 64.0 - 700.0)),
            DType::F16 | DType::Bf16 => store(dtype, Num::Float((bits % 255) as f64 / 4.0 - 31.0)),
            DType::I64 | DType::I32 => store(dtype, Num::Int(i128::from(bits % 200_003) - 100_000)),
            DType::Bool => vec![(bits & 1) as u8],
            _ => bits.to_le_bytes().repeat(2)[..dtype.bytes() as usize].to_vec(),
        }
    }
}
