//! The functions of libnvrtc that are used.

use super::{NvrtcProgram, NvrtcResult, library};
use std::ffi::{c_char, c_int};

library! {
    /// libnvrtc.
    Nvrtc {
        nvrtcGetErrorString(error: NvrtcResult) -> *const c_char;
        nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> NvrtcResult;
        nvrtcGetNumSupportedArchs(count: *mut c_int) -> NvrtcResult;
        nvrtcGetSupportedArchs(archs: *mut c_int) -> NvrtcResult;

        nvrtcCreateProgram(
            program: *mut NvrtcProgram,
            source: *const c_char,
            name: *const c_char,
            headers: c_int,
            header_texts: *const *const c_char,
            header_names: *const *const c_char,
        ) -> NvrtcResult;
        nvrtcDestroyProgram(program: *mut NvrtcProgram) -> NvrtcResult;
        nvrtcCompileProgram(program: NvrtcProgram, count: c_int, options: *const *const c_char) -> NvrtcResult;
        nvrtcGetProgramLogSize(program: NvrtcProgram, bytes: *mut usize) -> NvrtcResult;
        nvrtcGetProgramLog(program: NvrtcProgram, log: *mut c_char) -> NvrtcResult;
        nvrtcGetPTXSize(program: NvrtcProgram, bytes: *mut usize) -> NvrtcResult;
        nvrtcGetPTX(program: NvrtcProgram, ptx: *mut c_char) -> NvrtcResult;
        nvrtcGetCUBINSize(program: NvrtcProgram, bytes: *mut usize) -> NvrtcResult;
        nvrtcGetCUBIN(program: NvrtcProgram, cubin: *mut c_char) -> NvrtcResult;
    }
}
