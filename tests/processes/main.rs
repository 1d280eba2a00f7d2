//! Tests that start this program again, as a process that is told by variables what it is.

mod fakegpu_env;
mod nccl_backend_processes;
mod nccl_fault_runs;
mod nccl_processes;
