//! Launches.

#![expect(unsafe_code, reason = "what a kernel does with its arguments only its caller knows")]

use super::context::Limits;
use super::{DeviceBuffer, Function, Stream};
use crate::CudaError;

/// How many threads run a kernel, as a grid of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Shared memory of a block in bytes, beside what the kernel declares.
    pub shared_bytes: u32,
}

impl Launch {
    /// A row of blocks, each a row of threads.
    #[must_use]
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// What of it is beyond the device's or the kernel's limits.
    fn excess(&self, limits: &Limits, function: &Function) -> Option<String> {
        for (what, found, limit) in [("grid", self.grid, limits.grid), ("block", self.block, limits.block)] {
            for (at, axis) in ["x", "y", "z"].into_iter().enumerate() {
                if found[at] == 0 || found[at] > limit[at] {
                    return Some(format!(
                        "the {what} is {} in {axis}, the device allows 1 to {}",
                        found[at], limit[at]
                    ));
                }
            }
        }
        let threads: u64 = self.block.iter().map(|count| u64::from(*count)).product();
        let most = u64::from(limits.threads.min(function.max_threads_per_block()));
        if threads > most {
            return Some(format!("a block has {threads} threads, the kernel can have {most}"));
        }
        let (bytes, most) = (self.shared_bytes, limits.shared_bytes);
        (bytes > most).then(|| format!("a block asks for {bytes} bytes of shared memory, the device has {most}"))
    }
}

/// An argument of a kernel, of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// For a pointer: the buffer's first byte.
    Buffer(&'a DeviceBuffer),
    /// For a `u64`, or a pointer got elsewhere.
    U64(u64),
}

impl Stream {
    /// Enqueues a launch.
    ///
    /// # Errors
    /// When the grid or block is beyond the device's or the kernel's limits, when the kernel or a buffer is of another
    /// context, or the driver refuses. Nothing is launched then.
    ///
    /// # Safety
    /// The kernel has as many parameters as there are arguments, each of 8 bytes. With these arguments it touches only
    /// memory of the device: of the buffers among them, within their lengths, and of others that were told by
    /// [`DeviceBuffer::used_on`].
    pub unsafe fn launch(&self, function: &Function, launch: Launch, args: &[Arg<'_>]) -> Result<(), CudaError> {
        const CALL: &str = "Stream::launch";
        let invalid = |reason| CudaError::invalid(CALL, format!("kernel {}: {reason}", function.name()));
        self.context().expect_same(function.context(), CALL, "kernel")?;
        launch.excess(&self.context().inner().limits, function).map_or(Ok(()), |reason| Err(invalid(reason)))?;
        let mut values = Vec::with_capacity(args.len());
        for arg in args {
            values.push(match arg {
                Arg::U64(value) => *value,
                Arg::Buffer(buffer) => {
                    self.context().expect_same(buffer.context(), CALL, "buffer")?;
                    buffer.used_on(self);
                    buffer.pointer()
                }
            });
        }
        function.used_on(self);
        // SAFETY: the module and the buffers now know the stream, so live until the launch has ended; the rest is
        // promised by the caller.
        Ok(unsafe { self.raw().launch(function.raw, launch.grid, launch.block, launch.shared_bytes, &mut values) }?)
    }
}
