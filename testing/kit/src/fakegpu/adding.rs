//! A kernel for tests, and what goes with it.

#![expect(unsafe_code, reason = "launches; says why it may")]

use super::Session;
use bucketeer_cuda::nvrtc::Request;
use bucketeer_cuda::{Arg, Context, CudaError, DeviceBuffer, Function, ImageKind, Launch, Stream};

/// Keeps to what `testing/fakegpu/src/kernel.rs` asks for.
pub const SOURCE: &str = r#"
typedef unsigned long long u64;
typedef unsigned int u32;
#ifdef __cplusplus
extern "C" {
#endif
__constant__ u32 offset[2] = {0, 100};

__global__ void __launch_bounds__(256) add(u32 *to, const u32 *__restrict__ from, u64 len, u64 which) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < len; at += step)
        to[at] = from[at] + offset[which];
}
#ifdef __cplusplus
}
#endif
"#;

/// The kernel `add` of [`SOURCE`], loaded.
pub fn kernel(session: &Session, context: &Context) -> Function {
    let arch = context.device().arch().unwrap();
    let request = Request { source: SOURCE, name: "add.cu", arch, kind: ImageKind::Cubin, options: &[] };
    let compiled = session.nvrtc().compile(&request).unwrap();
    context.load_module(&compiled.image).unwrap().function("add").unwrap()
}

/// Launches `add` of `len` numbers with an offset of 100.
pub fn add(
    stream: &Stream,
    kernel: &Function,
    to: &DeviceBuffer,
    from: &DeviceBuffer,
    len: usize,
) -> Result<(), CudaError> {
    let args = [Arg::Buffer(to), Arg::Buffer(from), Arg::U64(len as u64), Arg::U64(1)];
    // SAFETY: the kernel has these four parameters. Where `len` is beyond the buffers, which tests do on purpose, the
    // fake has guards behind them.
    unsafe { stream.launch(kernel, Launch::linear(4, 64), &args) }
}

/// Numbers as bytes.
pub fn bytes(numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
    numbers.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// All of a buffer.
pub fn download(stream: &Stream, buffer: &DeviceBuffer) -> Vec<u8> {
    let mut content = vec![0; buffer.len()];
    stream.download(buffer, 0, &mut content).unwrap();
    content
}

/// The text of an error.
pub fn error_of<T>(result: Result<T, CudaError>) -> String {
    result.err().expect("it fails").to_string()
}
