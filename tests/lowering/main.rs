//! Programs: lowered, proven, and emitted as CUDA.

mod called_graphs;
mod cuda_emit;
mod cuda_kernels;
mod filetests;
mod host;
mod lower;
mod lower_faults;
mod lower_fixtures;
mod lower_found;
mod lower_random;
mod memory_table;
