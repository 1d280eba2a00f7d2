//! Memory of a device: what the feature `nccl` brings, and what stands for it without.

#[cfg(feature = "nccl")]
pub use bucketeer_cuda::DeviceBuffer;

/// Memory of a device, of which there is none without the feature `nccl`.
#[cfg(not(feature = "nccl"))]
#[derive(Clone)]
pub enum DeviceBuffer {}

#[cfg(not(feature = "nccl"))]
impl DeviceBuffer {
    /// Size in bytes.
    pub const fn len(&self) -> usize {
        match *self {}
    }
}

/// The number of the device that memory is of.
pub fn ordinal(memory: &DeviceBuffer) -> u32 {
    #[cfg(feature = "nccl")]
    return memory.context().device().ordinal();
    #[cfg(not(feature = "nccl"))]
    match *memory {}
}
