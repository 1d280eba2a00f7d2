//! Codes of NCCL, with their texts.

use std::ffi::CStr;

pub const UNHANDLED_CUDA_ERROR: i32 = 1;
pub const SYSTEM_ERROR: i32 = 2;
pub const INVALID_ARGUMENT: i32 = 4;
pub const INVALID_USAGE: i32 = 5;
pub const REMOTE_ERROR: i32 = 6;
pub const IN_PROGRESS: i32 = 7;

pub fn text(code: i32) -> &'static CStr {
    match code {
        0 => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        SYSTEM_ERROR => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        INVALID_USAGE => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        8 => c"timeout",
        _ => c"unknown result code",
    }
}
