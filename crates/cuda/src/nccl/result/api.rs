//! A loaded NCCL.

use super::CallError;
use crate::load::{self, LoadError};
use crate::nccl::sys::{Library, NcclComm, NcclResult, NcclUniqueId};
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};

/// Whether a call is over, or NCCL is still at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    Done,
    Pending,
}

/// libnccl, loaded.
pub struct Api {
    /// Its functions; those newer than the version are none.
    pub(super) sys: Library,
    path: PathBuf,
    version: i32,
}

impl Api {
    /// Loads it from `path`, or from the first place of [`load`] that has it, and asks for its version.
    pub fn load(path: Option<&Path>) -> Result<Result<Self, CallError>, LoadError> {
        let (library, path) = load::load(&load::NCCL, path)?;
        // SAFETY: the table's types are those of NCCL's header, which has not changed any since 2.10, and libnccl is
        // what was asked for; `load` never unloads.
        let sys = match unsafe { Library::bind(library) } {
            Ok(sys) => sys,
            Err((symbol, source)) => return Err(LoadError::Symbol { what: load::NCCL.what, path, symbol, source }),
        };
        let mut api = Self { sys, path, version: 0 };
        let mut version = 0;
        // SAFETY: writes one integer.
        let code = unsafe { (api.sys.ncclGetVersion)(&raw mut version) };
        Ok(api.check("ncclGetVersion", None, code).map(|_| {
            api.version = version;
            api.sys.forget_newer(version);
            api
        }))
    }

    /// Where it was loaded from: a path, or the name that the system's loader found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version as `ncclGetVersion` has it: 23007 is 2.30.7.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The optional functions.
    pub fn sys(&self) -> &Library {
        &self.sys
    }

    /// The code of the call `call`, as a result.
    pub(super) fn check(
        &self,
        call: &'static str,
        comm: Option<(NcclComm, (u32, u32))>,
        code: NcclResult,
    ) -> Result<Progress, CallError> {
        match code {
            NcclResult::SUCCESS => Ok(Progress::Done),
            NcclResult::IN_PROGRESS => Ok(Progress::Pending),
            _ => Err(self.error(call, comm, code)),
        }
    }

    /// A code in NCCL's words.
    #[cold]
    pub(super) fn error(
        &self,
        call: &'static str,
        comm: Option<(NcclComm, (u32, u32))>,
        code: NcclResult,
    ) -> CallError {
        let owned = |text: *const c_char| {
            // SAFETY: not null, so a string that lives as long as the library, or until the next error. One that is
            // overwritten meanwhile keeps a zero at its end.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned())
        };
        // SAFETY: takes any integer.
        let text = owned(unsafe { (self.sys.ncclGetErrorString)(code) });
        let handle = comm.map_or(NcclComm::NULL, |(handle, _)| handle);
        // SAFETY: the communicator is live, or none, which the function allows.
        let last = self.sys.ncclGetLastError.and_then(|get| owned(unsafe { get(handle) }));
        CallError {
            call,
            code,
            text: text.unwrap_or_else(|| "NCCL has no words for it".to_owned()),
            last: last.unwrap_or_default(),
            rank: comm.map(|(_, rank)| rank),
        }
    }

    /// A new name for a communicator. Opens a socket that the ranks meet at.
    pub fn unique_id(&self) -> Result<NcclUniqueId, CallError> {
        let mut id = NcclUniqueId([0; 128]);
        // SAFETY: writes 128 bytes.
        self.check("ncclGetUniqueId", None, unsafe { (self.sys.ncclGetUniqueId)(&raw mut id) })?;
        Ok(id)
    }

    /// From here on this thread's calls are collected.
    pub fn group_start(&self) -> Result<(), CallError> {
        // SAFETY: takes nothing.
        self.check("ncclGroupStart", None, unsafe { (self.sys.ncclGroupStart)() }).map(drop)
    }

    /// Launches what this thread collected.
    pub fn group_end(&self) -> Result<Progress, CallError> {
        // SAFETY: takes nothing. What the collected calls were given is promised where they were made.
        self.check("ncclGroupEnd", None, unsafe { (self.sys.ncclGroupEnd)() })
    }

    /// Memory of the current context's device that NCCL can register; none when NCCL is too old.
    pub fn alloc(&self, bytes: usize) -> Option<Result<u64, CallError>> {
        let alloc = self.sys.ncclMemAlloc?;
        let mut pointer: *mut c_void = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { alloc(&raw mut pointer, bytes) };
        Some(self.check("ncclMemAlloc", None, code).map(|_| pointer as u64))
    }

    /// Frees what [`alloc`](Self::alloc) made.
    ///
    /// # Safety
    /// The pointer is of `alloc`, is not used any more, and is freed once.
    pub unsafe fn free(&self, pointer: u64) {
        if let Some(free) = self.sys.ncclMemFree {
            // SAFETY: promised by the caller. An error leaves the memory to the context's end.
            let _ = unsafe { free(pointer as *mut c_void) };
        }
    }
}
