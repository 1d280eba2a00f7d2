//! What the functions answer.

/// `CUresult`: 0, or why a driver call failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct CuResult(pub i32);

impl CuResult {
    /// Done, or enqueued.
    pub const SUCCESS: Self = Self(0);
    /// An argument is out of its range.
    pub const INVALID_VALUE: Self = Self(1);
    /// No memory is left on the device.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// There is a driver, but no device.
    pub const NO_DEVICE: Self = Self(100);
    /// No device has this ordinal.
    pub const INVALID_DEVICE: Self = Self(101);
    /// No context is current.
    pub const INVALID_CONTEXT: Self = Self(201);
    /// A CUBIN is for another architecture.
    pub const NO_BINARY_FOR_GPU: Self = Self(209);
    /// PTX that does not assemble.
    pub const INVALID_PTX: Self = Self(218);
    /// PTX of a version that is newer than the driver.
    pub const UNSUPPORTED_PTX_VERSION: Self = Self(222);
    /// A handle is not, or no longer, valid.
    pub const INVALID_HANDLE: Self = Self(400);
    /// No function of this name.
    pub const NOT_FOUND: Self = Self(500);
    /// The work has not ended yet.
    pub const NOT_READY: Self = Self(600);
    /// A kernel or copy touched memory outside of an allocation.
    pub const ILLEGAL_ADDRESS: Self = Self(700);

    /// After one of these the context is dead: its work has ended, and every further call fails.
    #[must_use]
    pub const fn is_sticky(self) -> bool {
        // Illegal address, launch timeout, assert and hardware faults up to launch failure; ECC error.
        matches!(self.0, 700 | 702 | 710 | 714..=719 | 214 | 220)
    }
}

/// `nvrtcResult`: 0, or why a call of the compiler failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct NvrtcResult(pub i32);

impl NvrtcResult {
    /// Done.
    pub const SUCCESS: Self = Self(0);
    /// An option, or the architecture, is not known.
    pub const INVALID_OPTION: Self = Self(5);
    /// The source is at fault; the log says where.
    pub const COMPILATION: Self = Self(6);
}
