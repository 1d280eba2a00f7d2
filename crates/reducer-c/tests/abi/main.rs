//! The interface for C: its header, a program in C, calls that types would stop in Rust, and ranks as processes.

mod c;
mod header;
mod misuse;
#[cfg(feature = "nccl")]
mod processes;
