//! Passes over the graph, and the pipeline that runs them.
//!
//! A pass is a function from a graph and options to statistics; nothing is kept between runs. [`Pipeline`] has a text
//! form that round-trips, so that a bug report is one line:
//! `dedupe-waits,fold-trivial,bucket-all-gather{cap=500MB}`.

pub mod bucketing;
mod control;
pub mod duplicates;
mod emit;
mod filter;
pub mod liveness;
pub mod lowering;
pub mod memory;
pub mod merge;
pub mod options;
pub mod order;
pub mod own;
mod pipeline;
pub mod plan;
mod remarks;
mod rounds;
pub mod schedule;
pub mod select;
#[cfg(feature = "serde")]
mod serial;
pub mod survey;
mod together;
pub mod trivial;
pub mod waits;

pub use bucketing::{BucketKind, BucketOptions};
pub use pipeline::{Pass, PassReport, Pipeline, PipelineError, PipelineParseError};
pub use together::{LaunchAt, TogetherError};
