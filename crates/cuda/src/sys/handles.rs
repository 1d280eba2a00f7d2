//! Opaque handles.

use std::ffi::c_void;

/// `CUdevice`: an ordinal.
pub type CuDevice = i32;
/// `CUdeviceptr`: an address on a device.
pub type CuDevicePtr = u64;

macro_rules! handle {
    ($($(#[$meta:meta])* $Handle:ident;)*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(transparent)]
        pub struct $Handle(pub *mut c_void);

        impl $Handle {
            /// No object.
            pub const NULL: Self = Self(std::ptr::null_mut());
        }

        // SAFETY: the handle is never read through here, and the driver lets any thread use it: "all driver functions
        // are thread-safe", with the object's context current, which `result` sees to before each call.
        unsafe impl Send for $Handle {}
        // SAFETY: as above.
        unsafe impl Sync for $Handle {}
    )* };
}

handle! {
    /// `CUcontext`.
    CuContext;
    /// `CUstream`.
    CuStream;
    /// `CUevent`.
    CuEvent;
    /// `CUmodule`.
    CuModule;
    /// `CUfunction`.
    CuFunction;
}

/// `nvrtcProgram`. Not to be used by two threads at once, so it stays on the thread that made it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct NvrtcProgram(pub *mut c_void);
