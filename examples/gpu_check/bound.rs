//! A program's kernel, and its buffers on the device.

use bucketeer::codegen::cuda::{CudaModule, CudaOptions};
use bucketeer::program::Program;
use bucketeer_cuda::nvrtc::{Nvrtc, NvrtcError};
use bucketeer_cuda::{Context, DeviceBuffer, Stream};
use bucketeer_exec::MoveKernel;
use std::error::Error;

/// A program of packs and unpacks that can be run, as the first rank of its groups.
pub struct Bound {
    pub stream: Stream,
    /// By index of the buffer.
    pub buffers: Vec<DeviceBuffer>,
    pub kernel: MoveKernel,
    pub launches: usize,
    /// Bytes that each launch reads and writes.
    pub moved_bytes: Vec<u64>,
}

impl Bound {
    pub fn new(context: &Context, text: &str, nvrtc: Result<&Nvrtc, &NvrtcError>) -> Result<Self, Box<dyn Error>> {
        let program = Program::parse(text).map_err(|error| format!("{error}\n{text}"))?;
        let module = CudaModule::of(&program, &CudaOptions::default())?;
        let stream = context.stream()?;
        let alloc = |bytes: u64| context.alloc(usize::try_from(bytes)?).map_err(Box::<dyn Error>::from);
        let buffers = program.buffers.iter().map(|buffer| alloc(buffer.bytes)).collect::<Result<Vec<_>, _>>()?;
        let anchors = module.anchors().iter().map(|anchor| buffers[anchor.buffer.0 as usize].clone()).collect();
        let kernel = MoveKernel::new(&module, anchors, &stream, nvrtc)?.ok_or("there is nothing to launch")?;
        let moved_bytes = module.launches().iter().map(|launch| launch.moved_bytes).collect();
        Ok(Self { stream, buffers, kernel, launches: module.launches().len(), moved_bytes })
    }

    pub fn launch(&self, number: usize) -> Result<(), Box<dyn Error>> {
        Ok(self.kernel.launch(&self.stream, number)?)
    }
}

/// Numbers that look random, the same each time.
pub struct Numbers(u64);

impl Numbers {
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2) + 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}
