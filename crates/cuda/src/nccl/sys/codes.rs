//! Integers of `nccl.h`.

use std::ffi::c_int;

/// `ncclResult_t`: 0, or why a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct NcclResult(pub i32);

impl NcclResult {
    /// Done, or enqueued.
    pub const SUCCESS: Self = Self(0);
    /// A call of CUDA failed.
    pub const UNHANDLED_CUDA_ERROR: Self = Self(1);
    /// A call of the system failed.
    pub const SYSTEM_ERROR: Self = Self(2);
    /// A fault of NCCL, or memory that was overwritten.
    pub const INTERNAL_ERROR: Self = Self(3);
    /// An argument is out of its range.
    pub const INVALID_ARGUMENT: Self = Self(4);
    /// The calls of the ranks do not fit together.
    pub const INVALID_USAGE: Self = Self(5);
    /// Another rank failed or is gone.
    pub const REMOTE_ERROR: Self = Self(6);
    /// A communicator that does not block is still at its last call.
    pub const IN_PROGRESS: Self = Self(7);
    /// A wait of NCCL's own took too long; since 2.30.
    pub const TIMEOUT: Self = Self(8);

    /// The name in C.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            0 => "ncclSuccess",
            1 => "ncclUnhandledCudaError",
            2 => "ncclSystemError",
            3 => "ncclInternalError",
            4 => "ncclInvalidArgument",
            5 => "ncclInvalidUsage",
            6 => "ncclRemoteError",
            7 => "ncclInProgress",
            8 => "ncclTimeout",
            _ => "unknown code",
        }
    }
}

/// `ncclDataType_t`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct NcclDataType(pub c_int);

#[allow(missing_docs, reason = "C's header says it")]
impl NcclDataType {
    pub const INT8: Self = Self(0);
    pub const UINT8: Self = Self(1);
    pub const INT32: Self = Self(2);
    pub const UINT32: Self = Self(3);
    pub const INT64: Self = Self(4);
    pub const UINT64: Self = Self(5);
    pub const FLOAT16: Self = Self(6);
    pub const FLOAT32: Self = Self(7);
    pub const FLOAT64: Self = Self(8);
    pub const BFLOAT16: Self = Self(9);
    pub const FLOAT8_E4M3: Self = Self(10);
    pub const FLOAT8_E5M2: Self = Self(11);
}

/// `ncclRedOp_t`: one of these, or what `ncclRedOpCreatePreMulSum` made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct NcclRedOp(pub c_int);

#[allow(missing_docs, reason = "C's header says it")]
impl NcclRedOp {
    pub const SUM: Self = Self(0);
    pub const PROD: Self = Self(1);
    pub const MAX: Self = Self(2);
    pub const MIN: Self = Self(3);
    pub const AVG: Self = Self(4);
}

/// `ncclScalarResidence_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct ScalarResidence(pub c_int);

impl ScalarResidence {
    /// The scalar is read from the host's memory during the call.
    pub const HOST_IMMEDIATE: Self = Self(1);
}

/// Flags of `ncclCommWindowRegister`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct WindowFlags(pub c_int);

impl WindowFlags {
    /// `NCCL_WIN_COLL_SYMMETRIC`: every rank registers its buffer at the same offset.
    pub const SYMMETRIC: Self = Self(1);
}
