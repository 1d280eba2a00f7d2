//! The values of tensors, as bytes and back.

use bucketeer_types::DType;
use candle_core::{CpuStorage, Layout, Storage, Tensor};
use half::{bf16, f16};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A dtype whose gradients are reduced.
pub fn dtype(of: candle_core::DType) -> Option<DType> {
    match of {
        candle_core::DType::F64 => Some(DType::F64),
        candle_core::DType::F32 => Some(DType::F32),
        candle_core::DType::F16 => Some(DType::F16),
        candle_core::DType::BF16 => Some(DType::Bf16),
        _ => None,
    }
}

/// A shape as the reducer counts.
pub fn dims(tensor: &Tensor) -> Vec<u64> {
    tensor.dims().iter().map(|size| *size as u64).collect()
}

/// A copy of what a row-major layout shows.
///
/// # Errors
/// Another layout, or a dtype whose gradients are not reduced.
pub fn copy(storage: &CpuStorage, layout: &Layout) -> candle_core::Result<CpuStorage> {
    let Some((from, to)) = layout.contiguous_offsets() else {
        candle_core::bail!("parameters are marked in row-major order, not with strides {:?}", layout.stride());
    };
    Ok(match storage {
        CpuStorage::F64(values) => CpuStorage::F64(values[from..to].to_vec()),
        CpuStorage::F32(values) => CpuStorage::F32(values[from..to].to_vec()),
        CpuStorage::F16(values) => CpuStorage::F16(values[from..to].to_vec()),
        CpuStorage::BF16(values) => CpuStorage::BF16(values[from..to].to_vec()),
        _ => candle_core::bail!("gradients are f64, f32, f16 or bf16"),
    })
}

/// Calls `body` with the bytes of a tensor from its first element on, and with its strides unless it is row-major.
///
/// # Errors
/// A text: it is on another device, or of another dtype.
pub fn with_bytes<R>(tensor: &Tensor, body: impl FnOnce(&[u8], Option<&[u64]>) -> R) -> Result<R, String> {
    fn shown<'a, T: IntoBytes + Immutable>(values: &'a [T], layout: &Layout) -> &'a [u8] {
        let values = match layout.contiguous_offsets() {
            Some((from, to)) => values.get(from..to),
            None => values.get(layout.start_offset()..),
        };
        values.unwrap_or_default().as_bytes()
    }
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(format!("it is on {:?}; only tensors of the CPU are reduced", tensor.device().location()));
    };
    let bytes = match storage {
        CpuStorage::F64(values) => shown(values, layout),
        CpuStorage::F32(values) => shown(values, layout),
        CpuStorage::F16(values) => shown(values, layout),
        CpuStorage::BF16(values) => shown(values, layout),
        _ => return Err(format!("it is of {}; only f64, f32, f16 and bf16 are reduced", tensor.dtype().as_str())),
    };
    if layout.is_contiguous() {
        return Ok(body(bytes, None));
    }
    let strides: Vec<u64> = layout.stride().iter().map(|stride| *stride as u64).collect();
    Ok(body(bytes, Some(&strides)))
}

/// A tensor of the shape and dtype of another one, whose bytes `fill` writes.
///
/// # Errors
/// What `fill` says, or candle.
pub fn filled<E: From<candle_core::Error>>(
    like: &Tensor,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<Tensor, E> {
    fn of<T, E>(like: &Tensor, zero: T, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Tensor, E>
    where
        T: candle_core::WithDType + IntoBytes + FromBytes,
        E: From<candle_core::Error>,
    {
        let mut values = vec![zero; like.elem_count()];
        fill(values.as_mut_bytes())?;
        Ok(Tensor::from_vec(values, like.shape(), like.device())?)
    }
    match like.dtype() {
        candle_core::DType::F64 => of(like, 0f64, fill),
        candle_core::DType::F32 => of(like, 0f32, fill),
        candle_core::DType::F16 => of(like, f16::ZERO, fill),
        candle_core::DType::BF16 => of(like, bf16::ZERO, fill),
        other => Err(candle_core::Error::msg(format!("gradients of {} are not reduced", other.as_str())).into()),
    }
}

/// How a gradient is not one of a variable, if it is not.
pub fn differs(gradient: &Tensor, var: &Tensor) -> Option<String> {
    let of = |tensor: &Tensor| format!("{} {:?}", tensor.dtype().as_str(), tensor.dims());
    let same = (gradient.shape(), gradient.dtype()) == (var.shape(), var.dtype());
    (!same).then(|| format!("its gradient is {}; it is {}", of(gradient), of(var)))
}
