//! Hooks: what is done with a bucket's gradients between ranks.
//!
//! | hook | sends, for each f32 | result |
//! |---|---|---|
//! | [`AllReduce`] | 4 bytes | the mean |
//! | [`Cast16`] | 2 bytes | the mean, rounded to f16 or bf16; around another hook, that hook in 16 bits |
//! | [`Quantise`] | 1 byte to each rank | the mean of values rounded to 255 steps of each rank's range |
//! | [`PowerSgd`] | (rows + columns) · rank for each matrix | the mean's part of low rank; the rest comes later |
//! | [`PostLocal`] | 4 bytes, within a subgroup | the mean of a subgroup; parameters are averaged now and then |
//!
//! "Mean" is the sum over ranks divided by [`HookBucket::divisor`]. Results are bit-equal on all ranks of the group
//! that a bucket is reduced on.
//!
//! **NaN and infinity** are never hidden: a gradient that holds one gives a result that is not finite. How far it
//! spreads is said by each hook.
//!
//! **Memory.** Hooks calculate on the host: a bucket in the memory of a GPU is refused. What they send is allocated in
//! each step and freed at its end; [`PowerSgd`] also keeps an error as large as the gradients that it compresses.

mod all_reduce;
mod compress;
mod post_local;
mod powersgd;
mod quantise;
#[cfg(test)]
mod tests;
mod values;

pub use all_reduce::AllReduce;
pub use compress::Cast16;
pub use post_local::{AverageError, PeriodicAverage, PostLocal, average_parameters};
pub use powersgd::{PowerSgd, PowerSgdOptions};
pub use quantise::Quantise;

use crate::{HookBucket, HookError, StageCall};
use bucketeer_comm::{Buffer, Call, Op, Operands};
use bucketeer_types::{DType, ReduceOp};
use std::collections::BTreeMap;

/// Sums a buffer over ranks, in place.
fn sum(buffer: &Buffer, dtype: DType) -> StageCall {
    Call::collective(Op::AllReduce(ReduceOp::Sum.into()), Operands::in_place(buffer.clone(), dtype)).into()
}

/// Gathers a buffer of each rank.
fn gather(input: &Buffer, output: &Buffer, dtype: DType) -> StageCall {
    Call::collective(Op::AllGather, Operands::new(input.clone(), output.clone(), dtype)).into()
}

/// Divides a bucket in place by `divisor`.
///
/// # Errors
/// Its memory is in use or not the host's, or its dtype is not a float.
fn divide_bucket(bucket: &HookBucket<'_>, divisor: f64) -> Result<(), HookError> {
    if divisor == 1.0 {
        return Ok(());
    }
    values::divide(bucket.layout().dtype, &mut bucket.buffer().write()?, divisor)
}

/// What a hook keeps of a bucket between two stages.
///
/// # Errors
/// Nothing is kept: the stages were not asked for in their order.
fn in_flight<'a, T>(flights: &'a mut BTreeMap<usize, T>, bucket: &HookBucket<'_>) -> Result<&'a mut T, HookError> {
    let index = bucket.layout().index;
    flights.get_mut(&index).ok_or_else(|| no_stage(index))
}

fn no_stage(bucket: usize) -> HookError {
    format!("bucket {bucket} is asked for a next stage, but has not begun").into()
}
