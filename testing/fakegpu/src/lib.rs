//! A GPU for tests on machines without one: `libfakegpu.so` exports the functions of libcuda, libnvrtc and libnccl
//! that `bucketeer_comm` uses, over memory of the host.
//!
//! Streams are threads with queues, so work runs when a real device could run it, and a missing event wait gives wrong
//! values. Memory is poisoned when allocated (`cd`) and freed (`dd`), has guards (`fd`) on both sides, and stays in
//! quarantine for a while after its free. A copy or kernel that touches what is not allocated ends with code 700, which
//! stays for all later calls of the context, and a `violation` in the log. Kernels really run: see `kernel`.
//!
//! What it is told by environment variables, read once, and by functions (see `control`):
//!
//! | variable | means |
//! |---|---|
//! | `FAKEGPU_DELAY_US` | every copy, fill and launch starts this much late |
//! | `FAKEGPU_DELAY_STREAM` | only those on the n-th stream made, counted from 0 |
//! | `FAKEGPU_FAULT` | faults, see `fault` |
//! | `FAKEGPU_LOG` | a file for the log, one JSON object a line |
//! | `FAKEGPU_DEVICES`, `FAKEGPU_ARCH` | number of devices (8), their architecture (90) |
//! | `FAKEGPU_DRIVER_VERSION` | the driver's version (13000) |
//! | `FAKEGPU_MEMORY_BYTES` | memory of each device (4 GiB) |
//! | `FAKEGPU_PTX_SOURCE` | a file with C source to run in place of PTX |
//! | `FAKEGPU_NCCL_VERSION` | NCCL's version (23007) |
//! | `FAKEGPU_NCCL_DIR` | where the ranks of NCCL meet (`/dev/shm`) |
//! | `CC` | the C compiler (`cc`) |
//!
//! It is a model, not CUDA: no default stream, no managed memory, no graphs, no warps.
//!
//! Where things are: `driver`, `nvrtc` and `nccl` are the exported functions; `stream`, `memory`, `module` what they
//! work on; `state` holds all of it. NCCL's work goes onto the same streams as the driver's: only so do missing waits
//! around a collective show.

#![allow(unsafe_code, reason = "it is called by C's rules and works on raw memory; for tests only")]
#![allow(unsafe_op_in_unsafe_fn, reason = "every exported function is one unsafe operation: what C's callers promise")]
#![allow(non_snake_case, reason = "C's names")]

mod codes;
mod control;
mod driver;
mod fault;
mod kernel;
mod log;
mod memory;
mod module;
mod nccl;
mod nvrtc;
mod state;
mod stream;
