//! What a call may be given.

use super::{Comm, Nccl};
use crate::nccl::NcclError;
use crate::nccl::sys::{NcclDataType, NcclRedOp};
use crate::{DeviceBuffer, Stream};
use bucketeer_types::Reduction;
use bucketeer_types::{DType, ReduceOp};

/// The first version with floats of one byte.
const FP8_SINCE: i32 = 22_400;

/// NCCL's name for a dtype, where its version has one.
pub fn dtype_of(dtype: DType, version: i32) -> Option<NcclDataType> {
    Some(match dtype {
        DType::I8 => NcclDataType::INT8,
        DType::U8 => NcclDataType::UINT8,
        DType::I32 => NcclDataType::INT32,
        DType::U32 => NcclDataType::UINT32,
        DType::I64 => NcclDataType::INT64,
        DType::U64 => NcclDataType::UINT64,
        DType::F16 => NcclDataType::FLOAT16,
        DType::F32 => NcclDataType::FLOAT32,
        DType::F64 => NcclDataType::FLOAT64,
        DType::Bf16 => NcclDataType::BFLOAT16,
        DType::F8E4m3fn if version >= FP8_SINCE => NcclDataType::FLOAT8_E4M3,
        DType::F8E5m2 if version >= FP8_SINCE => NcclDataType::FLOAT8_E5M2,
        _ => return None,
    })
}

/// A reduction in NCCL's terms.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reducing {
    BuiltIn(NcclRedOp),
    /// A sum of values times this, the bytes of one element.
    PreMulSum([u8; 8]),
}

/// The names of a reduction and its dtype, or why there are none.
pub fn reduction(op: Reduction, dtype: DType, version: i32) -> Result<(NcclDataType, Reducing), String> {
    let name = dtype.torch_name();
    let found = dtype_of(dtype, version).ok_or_else(|| match dtype {
        DType::Bool => {
            format!("NCCL has no {name}; for bools of 0 and 1 a sum is the maximum of uint8, a product the minimum")
        }
        DType::F8E4m3fn | DType::F8E5m2 => format!("NCCL reduces {name} since 2.24"),
        _ => format!("NCCL does not reduce {name}; convert it first"),
    })?;
    let built_in = match op {
        Reduction::PreMulSum { factor } => return Ok((found, Reducing::PreMulSum(scalar(factor, dtype)?))),
        Reduction::Op(ReduceOp::Sum) => NcclRedOp::SUM,
        Reduction::Op(ReduceOp::Product) => NcclRedOp::PROD,
        Reduction::Op(ReduceOp::Min) => NcclRedOp::MIN,
        Reduction::Op(ReduceOp::Max) => NcclRedOp::MAX,
        Reduction::Op(ReduceOp::Avg) => NcclRedOp::AVG,
        Reduction::Op(ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor) => {
            return Err(format!("NCCL has no {op}"));
        }
    };
    Ok((found, Reducing::BuiltIn(built_in)))
}

/// That the loaded version can reduce so; a text if not.
pub fn expect_reducible(nccl: &Nccl, op: Reduction, dtype: DType) -> Result<(), String> {
    reduction(op, dtype, nccl.0.version()).map(drop)
}

/// The bytes of a factor, rounded to a dtype.
fn scalar(factor: f64, dtype: DType) -> Result<[u8; 8], String> {
    let mut bytes = [0; 8];
    let mut put = |value: &[u8]| bytes[..value.len()].copy_from_slice(value);
    match dtype {
        DType::F64 => put(&factor.to_ne_bytes()),
        DType::F32 => put(&(factor as f32).to_ne_bytes()),
        DType::F16 => put(&half::f16::from_f32(factor as f32).to_ne_bytes()),
        DType::Bf16 => put(&half::bf16::from_f32(factor as f32).to_ne_bytes()),
        _ => {
            return Err(format!(
                "a sum of {factor} times each is for floats of two bytes or more, not {}",
                dtype.torch_name()
            ));
        }
    }
    Ok(bytes)
}

/// How two buffers of a call may lie.
#[derive(Clone, Copy)]
pub enum Overlap {
    /// Both the same, or apart.
    Same,
    /// The input is the part of the output that is this rank's, or apart.
    InputInOutput,
    /// The output is the part of the input that is this rank's, or apart.
    OutputInInput,
    /// Apart.
    Apart,
}

impl Comm {
    /// That a buffer and the stream are of the communicator's device, and the buffer holds whole, aligned elements;
    /// how many.
    pub(super) fn elements(
        &self,
        call: &'static str,
        what: &str,
        stream: &Stream,
        buffer: &DeviceBuffer,
        dtype: DType,
    ) -> Result<usize, NcclError> {
        let invalid = |reason| Err(NcclError::invalid(call, reason));
        for (what, context) in [("stream", stream.context()), (what, buffer.context())] {
            if context.as_raw() != self.context().as_raw() {
                let (there, here) = (context.device().ordinal(), self.context().device().ordinal());
                return invalid(format!("the {what} is of a context of GPU {there}, the communicator of GPU {here}"));
            }
        }
        let width = dtype.bytes() as usize;
        let name = dtype.torch_name();
        if !buffer.len().is_multiple_of(width) {
            return invalid(format!(
                "the {what} has {} bytes, which are not whole {name} of {width} bytes",
                buffer.len()
            ));
        }
        let reads_elements = dtype_of(dtype, self.nccl().0.version()).is_some();
        if reads_elements && !buffer.pointer().is_multiple_of(width as u64) {
            return invalid(format!("the {what} begins at {:#x}, which is not aligned for {name}", buffer.pointer()));
        }
        Ok(buffer.len() / width)
    }

    pub(super) fn expect_len(call: &'static str, what: &str, found: usize, expected: usize) -> Result<(), NcclError> {
        if found == expected {
            return Ok(());
        }
        Err(NcclError::invalid(call, format!("the {what} has {found} elements; {expected} are expected")))
    }

    pub(super) fn expect_member(&self, call: &'static str, what: &str, rank: u32) -> Result<(), NcclError> {
        if rank < self.size() {
            return Ok(());
        }
        Err(NcclError::invalid(
            call,
            format!("the {what} is rank {rank}, which is not below the size, {}", self.size()),
        ))
    }

    pub(super) fn check_overlap(
        &self,
        call: &'static str,
        input: &DeviceBuffer,
        output: &DeviceBuffer,
        lie: Overlap,
    ) -> Result<(), NcclError> {
        let (from, to) = (input.pointer(), output.pointer());
        let apart = from >= to + output.len() as u64 || to >= from + input.len() as u64;
        let rank = u64::from(self.rank());
        let (in_place, rule) = match lie {
            Overlap::Same => (from == to, "the same"),
            Overlap::InputInOutput => {
                (from == to + rank * input.len() as u64, "the input this rank's part of the output")
            }
            Overlap::OutputInInput => {
                (to == from + rank * output.len() as u64, "the output this rank's part of the input")
            }
            Overlap::Apart => (false, "one of them empty"),
        };
        if apart || in_place || input.is_empty() || output.is_empty() {
            return Ok(());
        }
        Err(NcclError::invalid(call, format!("input and output overlap; they must be apart, or {rule}")))
    }
}
