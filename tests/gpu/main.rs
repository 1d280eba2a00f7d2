//! The driver, NVRTC and NCCL, on the fake GPU with ranks as threads; and, ignored as a rule, the real NVRTC and NCCL.
//!
//! All share one process: whatever uses the fake GPU waits for its turn (`kit::fakegpu::session`), and no library is
//! chosen by a variable of this process.

mod cuda_driver;
mod cuda_faults;
mod cuda_nvrtc;
mod device_executor;
mod gpu_check;
mod nccl;
mod nccl_backend;
mod nccl_backend_ends;
mod nccl_backend_faults;
mod nccl_events;
mod nccl_executor;
mod nccl_faults;
mod nccl_real;
mod nvrtc;
