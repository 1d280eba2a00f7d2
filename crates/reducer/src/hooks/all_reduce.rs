//! The mean.

use super::{divide_bucket, sum, values};
use crate::{Hook, HookBucket, HookError, Stage};

/// Gradients divided on each rank, then summed, in the bucket's own dtype: what is done without a hook. Other hooks run
/// around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllReduce;

impl Hook for AllReduce {
    fn describe(&self) -> String {
        "all_reduce".to_owned()
    }

    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        let dtype = bucket.layout().dtype;
        values::check_float("all_reduce", dtype)?;
        if bucket.layout().elements() == 0 {
            return Ok(Stage::Done);
        }
        divide_bucket(bucket, bucket.divisor())?;
        Ok(Stage::Calls(vec![sum(bucket.buffer(), dtype)]))
    }

    fn next(&mut self, _: &HookBucket<'_>, _: usize) -> Result<Stage, HookError> {
        Ok(Stage::Done)
    }
}
