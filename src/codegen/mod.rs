//! Kernels for what a program moves: packs, unpacks and copies, as CUDA C++, and the plan by which a host launches them.
//!
//! - [`transfer`] cuts the segments of a step into [`Transfer`]s: loops of equal units, as wide as alignment allows.
//! - [`average`] says where averages are divided.
//! - [`cuda`] writes them as tables, and kernels that walk over the tables: one launch for each step.
//! - [`plan`] is the host's side as JSON, for toolchains that launch the kernels themselves.
//!
//! ```
//! use bucketeer::codegen::cuda::{CudaModule, CudaOptions};
//! use bucketeer::ir::text::parse;
//! use bucketeer::passes::lowering::{LowerOptions, lower};
//!
//! let graph = parse(
//!     "x = input f32[4]; y = input f32[6]\n\
//!      p = all_reduce_coalesced([x, y], sum, G:2) : (f32[4], f32[6]); q = getitem(p, 0); r = getitem(p, 1)\n\
//!      output(wait(q), wait(r))",
//! )?;
//! let (program, _) = lower(&graph, &LowerOptions::default())?;
//! let module = CudaModule::of(&program, &CudaOptions::default())?;
//! assert!(module.launches().iter().all(|launch| module.source().contains(&launch.name)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod average;
pub mod cuda;
pub mod plan;
pub mod transfer;

pub use transfer::{Transfer, TransferError};
