//! The numbers that stand for dtypes, layouts and memory formats: `torch/_export/serde/schema.py`.

use bucketeer::ir::DType;

const DTYPES: [(u32, DType); 21] = [
    (1, DType::U8),
    (2, DType::I8),
    (3, DType::I16),
    (4, DType::I32),
    (5, DType::I64),
    (6, DType::F16),
    (7, DType::F32),
    (8, DType::F64),
    (9, DType::C32),
    (10, DType::C64),
    (11, DType::C128),
    (12, DType::Bool),
    (13, DType::Bf16),
    (28, DType::U16),
    (29, DType::F8E4m3fn),
    (30, DType::F8E5m2),
    (31, DType::F8E4m3fnuz),
    (32, DType::F8E5m2fnuz),
    (33, DType::F8E8m0fnu),
    (34, DType::U32),
    (35, DType::U64),
];

/// Indexed by code.
const LAYOUTS: [&str; 8] = [
    "unknown",
    "torch.sparse_coo",
    "torch.sparse_csr",
    "torch.sparse_csc",
    "torch.sparse_bsr",
    "torch.sparse_bsc",
    "torch._mkldnn",
    "torch.strided",
];

/// Indexed by code.
const MEMORY_FORMATS: [&str; 5] =
    ["unknown", "torch.contiguous_format", "torch.channels_last", "torch.channels_last_3d", "torch.preserve_format"];

/// The layout of tensors with sizes and strides.
pub(super) const STRIDED: u32 = 7;

pub(super) fn dtype(code: u32) -> Option<DType> {
    DTYPES.iter().find(|(known, _)| *known == code).map(|(_, dtype)| *dtype)
}

/// The code of a dtype; 0, which is unknown, for those that the schema lacks.
pub(super) fn dtype_code(dtype: DType) -> u32 {
    DTYPES.iter().find(|(_, known)| *known == dtype).map_or(0, |(code, _)| *code)
}

pub(super) fn layout(code: u32) -> Option<&'static str> {
    LAYOUTS.get(code as usize).copied().filter(|_| code > 0)
}

pub(super) fn layout_code(word: &str) -> Option<usize> {
    LAYOUTS.iter().position(|known| *known == word)
}

pub(super) fn memory_format(code: u32) -> Option<&'static str> {
    MEMORY_FORMATS.get(code as usize).copied().filter(|_| code > 0)
}

pub(super) fn memory_format_code(word: &str) -> Option<usize> {
    MEMORY_FORMATS.iter().position(|known| *known == word)
}
