//! Data-parallel training: gradients reduced in buckets while backward runs.

#![forbid(unsafe_code)]

mod hook;
pub mod hooks;
mod param;

pub use hook::{BucketLayout, Hook, HookBucket, HookError, Part, Stage, StageCall};
pub use param::Param;
