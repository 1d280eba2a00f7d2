//! Opaque handles, and the structs that are passed.

use std::ffi::{c_int, c_uint, c_void};

/// `ncclComm_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct NcclComm(pub *mut c_void);

impl NcclComm {
    /// No communicator.
    pub const NULL: Self = Self(std::ptr::null_mut());
}

// SAFETY: the handle is never read through here. NCCL lets any thread use a communicator, one at a time, which the safe
// layer's lock sees to.
unsafe impl Send for NcclComm {}

/// `ncclWindow_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct NcclWindow(pub *mut c_void);

// SAFETY: as for a communicator, to which it belongs.
unsafe impl Send for NcclWindow {}
// SAFETY: as above: it is given to calls that hold the communicator's lock.
unsafe impl Sync for NcclWindow {}

/// `ncclUniqueId`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct NcclUniqueId(pub [u8; 128]);

/// `ncclConfig_t` as of version 2.14. A newer library reads `size` bytes of it, and takes its defaults for what a
/// header of `version` did not have.
#[derive(Debug)]
#[repr(C)]
pub struct NcclConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
}

impl NcclConfig {
    /// Whether calls wait, or answer [`IN_PROGRESS`](super::NcclResult::IN_PROGRESS).
    pub const fn new(blocking: bool) -> Self {
        Self { size: size_of::<Self>(), magic: 0xcafe_beef, version: 21_400, blocking: blocking as c_int }
    }
}
