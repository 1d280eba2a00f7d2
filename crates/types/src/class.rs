//! What arithmetic element types take part in.

use crate::DType;

/// What arithmetic an element takes part in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// `false` and `true`.
    Bool,
    /// Integers.
    Int,
    /// Floats, those of one byte included.
    Float,
    /// Bytes that are only moved: complex numbers and packed floats.
    Opaque,
}

/// The class of a dtype.
#[must_use]
pub const fn class(dtype: DType) -> Class {
    match dtype {
        DType::Bool => Class::Bool,
        DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::U64 | DType::U32 | DType::U16 | DType::U8 => {
            Class::Int
        }
        DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => Class::Float,
        DType::F8E4m3fn | DType::F8E5m2 | DType::F8E4m3fnuz | DType::F8E5m2fnuz => Class::Float,
        DType::F8E8m0fnu | DType::F4E2m1fnX2 | DType::C32 | DType::C64 | DType::C128 => Class::Opaque,
    }
}

/// Whether a dtype is a float of one byte; nothing is summed in those.
#[must_use]
pub const fn is_fp8(dtype: DType) -> bool {
    matches!(dtype, DType::F8E4m3fn | DType::F8E5m2 | DType::F8E4m3fnuz | DType::F8E5m2fnuz | DType::F8E8m0fnu)
}

/// The dtype of an operation on two, by PyTorch's rule for tensors of the same standing.
#[must_use]
pub fn promote(a: DType, b: DType) -> Option<DType> {
    if a == b {
        return Some(a);
    }
    match (class(a), class(b)) {
        (Class::Opaque, _) | (_, Class::Opaque) => None,
        _ if is_fp8(a) || is_fp8(b) => None,
        (x, y) if x != y => Some(if x > y { a } else { b }),
        (Class::Float, _) if a.bytes() == b.bytes() => Some(DType::F32),
        (Class::Float, _) => Some(if a.bytes() > b.bytes() { a } else { b }),
        _ => integers(a, b),
    }
}

fn integers(a: DType, b: DType) -> Option<DType> {
    let signed = |dtype| matches!(dtype, DType::I64 | DType::I32 | DType::I16 | DType::I8);
    let (large, small) = if a.bytes() >= b.bytes() { (a, b) } else { (b, a) };
    if signed(large) == signed(small) || (signed(large) && large.bytes() > small.bytes()) {
        return Some(large);
    }
    // Only bytes mix with signed integers that cannot hold them.
    match (large.bytes(), signed(large)) {
        (1, _) => Some(DType::I16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_promote_as_in_pytorch() {
        for (a, b, expected) in [
            (DType::F16, DType::Bf16, Some(DType::F32)),
            (DType::I64, DType::F32, Some(DType::F32)),
            (DType::I64, DType::F16, Some(DType::F16)),
            (DType::U8, DType::I8, Some(DType::I16)),
            (DType::I32, DType::U8, Some(DType::I32)),
            (DType::Bool, DType::I8, Some(DType::I8)),
            (DType::F8E5m2, DType::F32, None),
        ] {
            assert_eq!((promote(a, b), promote(b, a)), (expected, expected), "{a:?} and {b:?}");
        }
    }
}
