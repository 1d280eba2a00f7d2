//! Data-parallel training: gradients reduced in buckets while backward runs.
//!
//! Each rank has the whole model and some of the samples. A [`Reducer`] takes the gradients of a step as they become ready,
//! packs them into buckets, reduces each as soon as it is complete, in one order on all ranks, and gives back what all ranks
//! together have. Three ways in, one core:
//!
//! | way | for | call |
//! |---|---|---|
//! | marks | frameworks that say when a gradient is final, from any thread | [`Marker::ready`] |
//! | slots | frameworks that write gradients where they are told | [`Reducer::slot`], [`Marker::ready_in_place`] |
//! | bulk | gradients that are there after backward | [`Reducer::reduce_all`] |
//!
//! Buckets are memory of the host, or, with the feature `nccl`, of a device: then gradients are marked and results read where
//! they lie, in the order of streams (`Reducer::on_device`, `Marker::ready_device`).
//!
//! ```
//! use bucketeer_comm::Backend;
//! use bucketeer_comm::local::{LocalOptions, run};
//! use bucketeer_reducer::{Param, Reducer, ReducerOptions};
//! use bucketeer_types::{DType, GlobalRank};
//! use std::sync::Arc;
//!
//! let params = || vec![Param::new("w", &[2], DType::F32), Param::new("b", &[1], DType::F32)];
//! let results = run(2, LocalOptions::default(), |rank| {
//!     let mine = rank.rank().0 as f32;
//!     let group = rank.new_group("gradients", &[GlobalRank(0), GlobalRank(1)])?;
//!     let mut reducer = Reducer::new(Arc::new(rank), &group, params(), ReducerOptions::default())?;
//!     let step = reducer.step()?;
//!     // Backward runs from the end.
//!     step.ready(1, &mine.to_le_bytes())?;
//!     step.ready(0, &[mine, 4.0].map(f32::to_le_bytes).concat())?;
//!     let reduced = step.finish()?;
//!     let mut w = [0; 8];
//!     reduced.copy_to(0, &mut w)?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(w)
//! })?;
//! for w in results {
//!     assert_eq!(w.expect("no panic").unwrap(), [0.5f32, 4.0].map(f32::to_le_bytes).concat()[..]);
//! }
//! # Ok::<(), bucketeer_comm::CommError>(())
//! ```
//!
//! What types can stop does not compile: a second step while one runs,
//!
//! ```compile_fail,E0499
//! # fn two(reducer: &mut bucketeer_reducer::Reducer) -> Result<(), bucketeer_reducer::ReducerError> {
//! let first = reducer.step()?;
//! let second = reducer.step()?;
//! first.finish()?;
//! # second.finish().map(drop)
//! # }
//! ```
//!
//! a mark on a finished step, or its second end (a [`Marker`] that outlives it refuses),
//!
//! ```compile_fail,E0382
//! # fn late(reducer: &mut bucketeer_reducer::Reducer) -> Result<(), bucketeer_reducer::ReducerError> {
//! let step = reducer.step()?;
//! step.finish()?;
//! step.ready(0, &[0; 4])
//! # }
//! ```
//!
//! gradients read while the next step runs.
//!
//! ```compile_fail,E0499
//! # fn read(reducer: &mut bucketeer_reducer::Reducer) -> Result<(), bucketeer_reducer::ReducerError> {
//! let reduced = reducer.step()?.finish()?;
//! let next = reducer.step()?;
//! reduced.read(0)?;
//! # next.finish().map(drop)
//! # }
//! ```
//!
//! What they cannot stop is an error that names rank, step and parameter, in this step; see [`ReducerError`].

#![forbid(unsafe_code)]

mod agree;
mod assign;
mod bulk;
mod copy;
#[cfg(feature = "nccl")]
mod device;
#[cfg(not(feature = "nccl"))]
#[path = "no_device.rs"]
mod device;
mod error;
mod factors;
mod fit;
mod hook;
pub mod hooks;
mod in_step;
mod join;
mod layout;
#[cfg(feature = "nccl")]
mod on_device;
mod options;
mod param;
mod rebuild;
mod reducer;
mod shared;
mod sparse;
mod stats;
mod step;
mod tensors;
mod timeline;

pub use assign::{AssignError, Assignment, Caps, Item, assign};
#[cfg(feature = "nccl")]
pub use device::DeviceGradient;
pub use error::{Named, ReducerError};
pub use fit::{Fit, FitReport, Plan, plan};
pub use hook::{BucketLayout, Hook, HookBucket, HookError, Part, Stage, StageCall};
pub use join::{Join, JoinDivide, JoinOptions, Joined, RunOut};
pub use options::{Divide, FirstStep, Rebuild, ReducerOptions, Scale, SmallBucket, Unused, Wire};
pub use param::Param;
pub use reducer::{BucketInfo, Reducer};
pub use sparse::SparseGradient;
pub use stats::{Averages, Stats};
pub use step::{DoneBucket, LocalStep, Marker, Reduced, Step};
pub use tensors::Tensor;
pub use timeline::{BucketTimes, Timeline};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
