//! The library.

use crate::nccl::NcclError;
use crate::nccl::result::Api;
use crate::nccl::sys::NcclUniqueId;
use crate::{Context, DeviceBuffer};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A version of NCCL: `2.30.7`. The suffix of a release (`+cuda13.3`, `rc1`) is not among what a library tells.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NcclVersion {
    /// Before the first point.
    pub major: u32,
    /// Between the points.
    pub minor: u32,
    /// After the second.
    pub patch: u32,
}

impl NcclVersion {
    /// The oldest that can be used: averages and `bf16` came with it.
    pub const OLDEST: Self = Self { major: 2, minor: 10, patch: 0 };

    /// From NCCL's number: 23007 is 2.30.7, and before 2.9, 2804 is 2.8.4.
    pub(super) const fn from_code(code: i32) -> Self {
        let code = if code < 0 { 0 } else { code as u32 };
        let (major, rest) = if code < 10_000 { (code / 1000, code % 1000) } else { (code / 10_000, code % 10_000) };
        Self { major, minor: rest / 100, patch: rest % 100 }
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The name of a communicator, made by one rank and given to all: 128 bytes, among which is the address that the ranks
/// meet at. Whoever has it can join.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub(super) NcclUniqueId);

impl UniqueId {
    /// From the bytes that another rank sent.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 128]) -> Self {
        Self(NcclUniqueId(bytes))
    }

    /// The bytes to send to the other ranks.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; 128] {
        self.0.0
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(..)") // it is as good as a password
    }
}

/// NCCL, loaded. Clones are the same one.
#[derive(Clone)]
pub struct Nccl(pub(super) Arc<Api>);

impl Nccl {
    /// Loads it from a path, a file or a folder; without one from the path in `BUCKETEER_NCCL_LIB`, else from where the
    /// system has it, or Python's packages.
    ///
    /// # Errors
    /// When there is none, when it lacks a function, or is older than [`NcclVersion::OLDEST`].
    pub fn load(path: Option<&Path>) -> Result<Self, NcclError> {
        let nccl = Self(Arc::new(Api::load(path)??));
        let (found, needed) = (nccl.version(), NcclVersion::OLDEST);
        if found < needed {
            return Err(NcclError::TooOld { path: nccl.path().to_owned(), found, needed });
        }
        Ok(nccl)
    }

    /// Where it was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> NcclVersion {
        NcclVersion::from_code(self.0.version())
    }

    /// Functions that its version should have and the library does not: none, or it is not what it says.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        self.0.sys().missing(self.0.version())
    }

    /// A new name for a communicator. One rank makes it and sends it to the others.
    ///
    /// # Errors
    /// When NCCL finds no network interface.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        Ok(UniqueId(self.0.unique_id()?))
    }

    /// Memory of a device that NCCL can [register](super::Comm::register) for the fastest paths, with unknown content.
    ///
    /// # Errors
    /// When the device has not as much left, or NCCL is older than 2.19.
    pub fn alloc(&self, context: &Context, bytes: usize) -> Result<DeviceBuffer, NcclError> {
        if bytes == 0 {
            return Ok(context.alloc(0)?);
        }
        context.make_current()?;
        let pointer = self.0.alloc(bytes).ok_or_else(|| self.unsupported("Nccl::alloc", 21_900))??;
        let owner = NcclAllocation { api: self.0.clone(), make_current: Box::new(context.current_maker()), pointer };
        // SAFETY: just allocated with `bytes` bytes, and freed by the owner.
        Ok(unsafe { DeviceBuffer::from_raw(context, pointer, bytes, Box::new(owner)) })
    }

    pub(super) fn unsupported(&self, call: &'static str, since: i32) -> NcclError {
        NcclError::Unsupported { call, found: self.version(), since: NcclVersion::from_code(since) }
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} at {}", self.version(), self.path().display())
    }
}

/// Memory of `ncclMemAlloc`. It holds no [`Context`], which may come to hold it until its work has ended.
struct NcclAllocation {
    api: Arc<Api>,
    make_current: Box<dyn Fn() -> bool + Send + Sync>,
    pointer: u64,
}

impl Drop for NcclAllocation {
    fn drop(&mut self) {
        if (self.make_current)() {
            // SAFETY: made by `alloc`; the buffer drops this once, when its work has ended.
            unsafe { self.api.free(self.pointer) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_numberings_of_versions_are_known() {
        let text = |code| NcclVersion::from_code(code).to_string();
        assert_eq!([2804, 20_901, 21_003, 23_007].map(text), ["2.8.4", "2.9.1", "2.10.3", "2.30.7"]);
        assert_eq!(text(-1), "0.0.0");
        assert!(NcclVersion::from_code(21_000) >= NcclVersion::OLDEST);
        assert!(NcclVersion::from_code(20_999) < NcclVersion::OLDEST);
    }
}
