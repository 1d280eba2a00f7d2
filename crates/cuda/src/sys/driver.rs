//! The functions of libcuda that are used, under the names that the library exports: a header's `cuMemAlloc` is
//! `cuMemAlloc_v2` there.

use super::{CuContext, CuDevice, CuDevicePtr, CuEvent, CuFunction, CuModule, CuResult, CuStream, library};
use std::ffi::{c_char, c_int, c_uint, c_void};

library! {
    /// libcuda.
    Driver {
        cuInit(flags: c_uint) -> CuResult;
        cuDriverGetVersion(version: *mut c_int) -> CuResult;
        cuGetErrorName(error: CuResult, name: *mut *const c_char) -> CuResult;
        cuGetErrorString(error: CuResult, text: *mut *const c_char) -> CuResult;

        cuDeviceGetCount(count: *mut c_int) -> CuResult;
        cuDeviceGet(device: *mut CuDevice, ordinal: c_int) -> CuResult;
        cuDeviceGetName(name: *mut c_char, len: c_int, device: CuDevice) -> CuResult;
        cuDeviceGetAttribute(value: *mut c_int, attribute: DeviceAttribute, device: CuDevice) -> CuResult;
        cuDeviceTotalMem_v2(bytes: *mut usize, device: CuDevice) -> CuResult;

        cuDevicePrimaryCtxRetain(context: *mut CuContext, device: CuDevice) -> CuResult;
        cuDevicePrimaryCtxRelease_v2(device: CuDevice) -> CuResult;
        cuCtxSetCurrent(context: CuContext) -> CuResult;
        cuCtxSynchronize() -> CuResult;

        cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CuResult;
        cuMemAlloc_v2(pointer: *mut CuDevicePtr, bytes: usize) -> CuResult;
        cuMemFree_v2(pointer: CuDevicePtr) -> CuResult;
        cuMemAllocHost_v2(pointer: *mut *mut c_void, bytes: usize) -> CuResult;
        cuMemFreeHost(pointer: *mut c_void) -> CuResult;
        cuMemcpyHtoDAsync_v2(to: CuDevicePtr, from: *const c_void, bytes: usize, stream: CuStream) -> CuResult;
        cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CuDevicePtr, bytes: usize, stream: CuStream) -> CuResult;
        cuMemcpyDtoDAsync_v2(to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream) -> CuResult;
        cuMemsetD8Async(to: CuDevicePtr, value: u8, bytes: usize, stream: CuStream) -> CuResult;

        cuStreamCreate(stream: *mut CuStream, flags: StreamFlags) -> CuResult;
        cuStreamDestroy_v2(stream: CuStream) -> CuResult;
        cuStreamSynchronize(stream: CuStream) -> CuResult;
        cuStreamQuery(stream: CuStream) -> CuResult;
        cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: c_uint) -> CuResult;

        cuEventCreate(event: *mut CuEvent, flags: EventFlags) -> CuResult;
        cuEventDestroy_v2(event: CuEvent) -> CuResult;
        cuEventRecord(event: CuEvent, stream: CuStream) -> CuResult;
        cuEventSynchronize(event: CuEvent) -> CuResult;
        cuEventQuery(event: CuEvent) -> CuResult;
        cuEventElapsedTime(milliseconds: *mut f32, start: CuEvent, end: CuEvent) -> CuResult;

        cuModuleLoadDataEx(
            module: *mut CuModule,
            image: *const c_void,
            options: c_uint,
            names: *mut JitOption,
            values: *mut *mut c_void,
        ) -> CuResult;
        cuModuleUnload(module: CuModule) -> CuResult;
        cuModuleGetFunction(function: *mut CuFunction, module: CuModule, name: *const c_char) -> CuResult;
        cuFuncGetAttribute(value: *mut c_int, attribute: FunctionAttribute, function: CuFunction) -> CuResult;
        cuLaunchKernel(
            function: CuFunction,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared_bytes: c_uint,
            stream: CuStream,
            params: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> CuResult;
    }
}

/// Integers of C's headers, with names for those that are used.
macro_rules! integers {
    ($($(#[$meta:meta])* $Name:ident($ty:ty) { $($item:ident = $value:literal,)* })*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(transparent)]
        pub struct $Name(pub $ty);

        #[allow(missing_docs, reason = "C's headers say it")]
        impl $Name {
            $(pub const $item: Self = Self($value);)*
        }
    )* };
}

integers! {
    /// `CUdevice_attribute`.
    DeviceAttribute(c_int) {
        MAX_THREADS_PER_BLOCK = 1,
        MAX_BLOCK_DIM_X = 2,
        MAX_BLOCK_DIM_Y = 3,
        MAX_BLOCK_DIM_Z = 4,
        MAX_GRID_DIM_X = 5,
        MAX_GRID_DIM_Y = 6,
        MAX_GRID_DIM_Z = 7,
        MAX_SHARED_MEMORY_PER_BLOCK = 8,
        MULTIPROCESSOR_COUNT = 16,
        COMPUTE_CAPABILITY_MAJOR = 75,
        COMPUTE_CAPABILITY_MINOR = 76,
    }
    /// `CUfunction_attribute`.
    FunctionAttribute(c_int) {
        MAX_THREADS_PER_BLOCK = 0,
        LOCAL_SIZE_BYTES = 3,
        NUM_REGS = 4,
    }
    /// `CUstream_flags`. A non-blocking stream does not wait for the legacy default stream.
    StreamFlags(c_uint) {
        NON_BLOCKING = 1,
    }
    /// `CUevent_flags`.
    EventFlags(c_uint) {
        DEFAULT = 0,
        DISABLE_TIMING = 2,
    }
    /// `CUjit_option`.
    JitOption(c_int) {
        ERROR_LOG_BUFFER = 5,
        ERROR_LOG_BUFFER_SIZE_BYTES = 6,
    }
}
