//! Tensors that one rank has for all: parameters at the start, buffers of the model before a forward.

use crate::error::ReducerError;
use crate::shared::Shared;
use bucketeer_types::DType;

/// Most bytes that are packed together for one broadcast, unless a single tensor has more.
const PACKED_BYTES: usize = 25 << 20;

/// A tensor that is to hold what another rank has.
#[derive(Debug)]
pub struct Tensor<'a> {
    /// Of its elements.
    pub dtype: DType,
    /// Its elements, end to end.
    pub bytes: &'a mut [u8],
}

impl<'a> Tensor<'a> {
    /// A tensor of these bytes.
    pub const fn new(dtype: DType, bytes: &'a mut [u8]) -> Self {
        Self { dtype, bytes }
    }
}

/// Gives all ranks what `root` has, a place in the group: tensors of one dtype travel together, dtypes in the order of their
/// first tensors. So many bytes are packed at a time that memory stays small. All ranks have the same tensors.
pub fn broadcast(
    shared: &Shared,
    tensors: &mut [Tensor<'_>],
    root: usize,
    what: &str,
    step: u64,
) -> Result<(), ReducerError> {
    if root >= shared.group.size() {
        return Err(shared.invalid(format!("there is no rank {root} in a group of {}", shared.group.size())));
    }
    let mut dtypes: Vec<DType> = Vec::new();
    for tensor in tensors.iter() {
        if !dtypes.contains(&tensor.dtype) {
            dtypes.push(tensor.dtype);
        }
        if !(tensor.bytes.len() as u64).is_multiple_of(tensor.dtype.bytes()) {
            let (bytes, name) = (tensor.bytes.len(), tensor.dtype.short_name());
            let reason = format!("a tensor has {bytes} bytes, which are not whole elements of {name}");
            // Others wait for it.
            return Err(shared.fail(shared.invalid(reason), step));
        }
    }
    for dtype in dtypes {
        let mut own: Vec<&mut Tensor<'_>> = tensors.iter_mut().filter(|tensor| tensor.dtype == dtype).collect();
        let mut rest = &mut own[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let mut fits = |tensor: &&mut Tensor<'_>| {
                bytes += tensor.bytes.len();
                bytes <= PACKED_BYTES
            };
            let count = rest.iter().take_while(|tensor| fits(tensor)).count().max(1);
            let (chunk, others) = rest.split_at_mut(count);
            let packed: Vec<u8> = chunk.iter().flat_map(|tensor| tensor.bytes.iter().copied()).collect();
            let whole = shared.broadcast(&packed, dtype, root, what, step).map_err(|error| shared.fail(error, step))?;
            let mut at = 0;
            for tensor in chunk {
                let len = tensor.bytes.len();
                tensor.bytes.copy_from_slice(&whole[at..at + len]);
                at += len;
            }
            rest = others;
        }
    }
    Ok(())
}
