//! The runtime on the host: collectives on ranks as threads, stores, and programs that are run.

mod rendezvous;
mod run_programs;
mod runtime_blocks;
mod runtime_buffers;
mod runtime_collectives;
mod runtime_copy;
mod runtime_faults;
mod runtime_link;
mod runtime_mismatch;
mod runtime_stress;
mod store;
mod store_faults;
mod store_strangers;
mod tensor_files;
