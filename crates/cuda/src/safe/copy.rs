//! Copies and fills. Lengths are checked first; copies of no bytes do nothing.

#![expect(unsafe_code, reason = "ranges are checked here, and buffers remember their streams")]

use super::{DeviceBuffer, PinnedBuffer, Stream};
use crate::CudaError;
use std::ops::Range;

/// What a blocking copy moves at a time.
const STAGING_BYTES: usize = 4 << 20;

impl Stream {
    /// Enqueues a copy of `from[range]` to `to`, from byte `at` on.
    ///
    /// # Errors
    /// When a range is not inside of its buffer, a buffer is of another context, or the driver refuses.
    pub fn copy_to_device(
        &self,
        from: &PinnedBuffer,
        range: Range<usize>,
        to: &DeviceBuffer,
        at: usize,
    ) -> Result<(), CudaError> {
        const CALL: &str = "Stream::copy_to_device";
        from.expect_inside(&range, CALL)?;
        let to = self.target(to, at, range.len(), CALL)?;
        self.context().expect_same(from.context(), CALL, "page-locked buffer")?;
        if range.is_empty() {
            return Ok(());
        }
        to.used_on(self);
        // SAFETY: both ranges are inside, as checked. Both buffers know the stream, so are freed after the copy, and
        // the host reaches the bytes of `from` after waiting for it. A copy of another stream to the same bytes may
        // race with it, but within the device's engines: the host looks after both.
        from.copy_on(self, || unsafe {
            self.raw().copy_to_device(to.pointer(), from.pointer(&range).as_ptr(), range.len())
        })
    }

    /// Enqueues a copy of `from[range]` to `to`, from byte `at` on.
    ///
    /// # Errors
    /// When a range is not inside of its buffer, a buffer is of another context, or the driver refuses.
    pub fn copy_to_host(
        &self,
        from: &DeviceBuffer,
        range: Range<usize>,
        to: &mut PinnedBuffer,
        at: usize,
    ) -> Result<(), CudaError> {
        const CALL: &str = "Stream::copy_to_host";
        let from = self.source(from, range, CALL)?;
        let target = at..at.saturating_add(from.len());
        to.expect_inside(&target, CALL)?;
        self.context().expect_same(to.context(), CALL, "page-locked buffer")?;
        if from.is_empty() {
            return Ok(());
        }
        from.used_on(self);
        // SAFETY: as in `copy_to_device`.
        to.copy_on(self, || unsafe {
            self.raw().copy_to_host(to.pointer(&target).as_ptr(), from.pointer(), from.len())
        })
    }

    /// Enqueues a copy of `from[range]` to `to`, from byte `at` on, within the device.
    ///
    /// # Errors
    /// When a range is not inside of its buffer, the two overlap, a buffer is of another context, or the driver
    /// refuses.
    pub fn copy(
        &self,
        from: &DeviceBuffer,
        range: Range<usize>,
        to: &DeviceBuffer,
        at: usize,
    ) -> Result<(), CudaError> {
        const CALL: &str = "Stream::copy";
        let from = self.source(from, range, CALL)?;
        let to = self.target(to, at, from.len(), CALL)?;
        if from.overlaps(&to) {
            return Err(CudaError::invalid(CALL, "the bytes to copy overlap those to write"));
        }
        if from.is_empty() {
            return Ok(());
        }
        from.used_on(self);
        to.used_on(self);
        // SAFETY: both ranges are inside of buffers of this device that know the stream, and do not overlap.
        Ok(unsafe { self.raw().copy(to.pointer(), from.pointer(), from.len()) }?)
    }

    /// Enqueues a fill of `to[range]` with one byte.
    ///
    /// # Errors
    /// When the range is not inside, the buffer is of another context, or the driver refuses.
    pub fn fill(&self, to: &DeviceBuffer, range: Range<usize>, value: u8) -> Result<(), CudaError> {
        let to = self.source(to, range, "Stream::fill")?;
        if to.is_empty() {
            return Ok(());
        }
        to.used_on(self);
        // SAFETY: the range is inside of a buffer of this device that knows the stream.
        Ok(unsafe { self.raw().fill(to.pointer(), value, to.len()) }?)
    }

    /// Copies from any memory of the host to `to`, from byte `at` on, in the stream's order, and waits for it. Goes
    /// through page-locked memory of at most 4 MiB; for speed use [`copy_to_device`](Self::copy_to_device).
    ///
    /// # Errors
    /// As [`copy_to_device`](Self::copy_to_device), and the first error of the stream's work.
    pub fn upload(&self, from: &[u8], to: &DeviceBuffer, at: usize) -> Result<(), CudaError> {
        let to = self.target(to, at, from.len(), "Stream::upload")?;
        let mut staging = self.context().alloc_pinned(from.len().min(STAGING_BYTES))?;
        let mut done = 0;
        for part in from.chunks(STAGING_BYTES) {
            staging.bytes()?[..part.len()].copy_from_slice(part);
            self.copy_to_device(&staging, 0..part.len(), &to, done)?;
            done += part.len();
        }
        staging.bytes().map(drop)
    }

    /// Copies `from`, from byte `at` on, to any memory of the host, in the stream's order, and waits for it. Goes
    /// through page-locked memory of at most 4 MiB; for speed use [`copy_to_host`](Self::copy_to_host).
    ///
    /// # Errors
    /// As [`copy_to_host`](Self::copy_to_host), and the first error of the stream's work.
    pub fn download(&self, from: &DeviceBuffer, at: usize, to: &mut [u8]) -> Result<(), CudaError> {
        let from = self.source(from, at..at.saturating_add(to.len()), "Stream::download")?;
        let mut staging = self.context().alloc_pinned(to.len().min(STAGING_BYTES))?;
        let mut done = 0;
        for part in to.chunks_mut(STAGING_BYTES) {
            self.copy_to_host(&from, done..done + part.len(), &mut staging, 0)?;
            done += part.len();
            part.copy_from_slice(&staging.bytes()?[..part.len()]);
        }
        Ok(())
    }

    fn source(
        &self,
        buffer: &DeviceBuffer,
        range: Range<usize>,
        call: &'static str,
    ) -> Result<DeviceBuffer, CudaError> {
        self.context().expect_same(buffer.context(), call, "buffer")?;
        buffer.expect_inside(&range, call)?;
        buffer.slice(range)
    }

    fn target(
        &self,
        buffer: &DeviceBuffer,
        at: usize,
        len: usize,
        call: &'static str,
    ) -> Result<DeviceBuffer, CudaError> {
        self.source(buffer, at..at.saturating_add(len), call)
    }
}
