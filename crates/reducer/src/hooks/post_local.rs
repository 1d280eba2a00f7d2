//! Post-local SGD: gradients averaged within a subgroup only, parameters between all ranks now and then.
//!
//! See Lin et al., *Don't Use Large Mini-Batches, Use Local SGD* (<https://arxiv.org/abs/1808.07217>). Once the
//! learning rate has settled, ranks of one machine stay together by their gradients, and machines by their parameters:
//!
//! ```
//! use bucketeer_comm::local::{LocalOptions, run};
//! use bucketeer_comm::Backend;
//! use bucketeer_reducer::hooks::PeriodicAverage;
//! use bucketeer_types::{DType, GlobalRank};
//! use std::num::NonZeroU64;
//!
//! let every = PeriodicAverage::new(100, NonZeroU64::new(4).expect("4 is not 0"));
//! let ranks = run(2, LocalOptions::default(), |rank| {
//!     let world = rank.new_group("world", &[GlobalRank(0), GlobalRank(1)]).expect("both ranks join");
//!     let mut weight = (rank.rank().0 as f32).to_le_bytes();
//!     let averaged = every.average(&rank, &world, 104, &mut [(DType::F32, &mut weight)]);
//!     (averaged, f32::from_le_bytes(weight))
//! })?;
//! for rank in ranks {
//!     assert_eq!(rank.expect("no rank panics"), (Ok(true), 0.5));
//! }
//! # Ok::<(), bucketeer_comm::CommError>(())
//! ```

use super::{AllReduce, divide_bucket, sum, values};
use crate::param::real;
use crate::{BucketLayout, Hook, HookBucket, HookError, Stage, StageCall};
use bucketeer_comm::{Backend, Buffer, BufferError, CallOptions, CommError, Group, Operands, Work};
use bucketeer_types::{DType, GlobalRank, ReduceOp};
use std::num::NonZeroU64;

/// The mean of all ranks until a step, then the mean of a subgroup.
///
/// The subgroup's mean is that of its ranks, so the divisor has to be the number of all ranks: with weights, sums or
/// ranks that have run out of input nobody knows what to divide the subgroup's sum by, and the step fails with words.
/// A rank that fails releases its subgroup; ranks of other subgroups learn of it when they next meet, as in
/// [`average_parameters`]. After a failure, and after a change of group, make a hook of a new subgroup, and average the
/// parameters first: until `start` the mean is that of all ranks again.
///
/// Inside of [`Cast16`](super::Cast16) it needs [`Divide::OnWire`](crate::Divide::OnWire), as elsewhere that has divided
/// already.
#[derive(Clone, Debug)]
pub struct PostLocal {
    subgroup: Group,
    start: u64,
    /// A member of the subgroup that is not in the reducer's group.
    stranger: Option<GlobalRank>,
}

impl PostLocal {
    /// From step `start` on only within `subgroup`: this rank's, as each rank is in one.
    #[must_use]
    pub const fn new(subgroup: Group, start: u64) -> Self {
        Self { subgroup, start, stranger: None }
    }

    fn local(&self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        let (group, dtype) = (bucket.group(), bucket.layout().dtype);
        if let Some(stranger) = self.stranger {
            let name = self.subgroup.name();
            return Err(format!("rank {} of subgroup {name} is not in group {}", stranger.0, group.name()).into());
        }
        if bucket.divisor() != group.size() as f64 {
            let (divisor, ranks) = (bucket.divisor(), group.size());
            return Err(format!(
                "gradients are averaged within subgroup {}, but the divisor is {divisor} for {ranks} ranks: \
                 weights, sums and ranks without input are not supported",
                self.subgroup.name()
            )
            .into());
        }
        values::check_float("post-local SGD", dtype)?;
        if bucket.layout().elements() == 0 {
            return Ok(Stage::Done);
        }
        divide_bucket(bucket, self.subgroup.size() as f64)?;
        Ok(Stage::Calls(vec![StageCall { group: Some(self.subgroup.clone()), ..sum(bucket.buffer(), dtype) }]))
    }
}

impl Hook for PostLocal {
    /// Leaves out the subgroup, which is not the same on all ranks.
    fn describe(&self) -> String {
        format!("post-local SGD from step {}", self.start)
    }

    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        if bucket.step() < self.start { AllReduce.begin(bucket) } else { self.local(bucket) }
    }

    fn next(&mut self, _: &HookBucket<'_>, _: usize) -> Result<Stage, HookError> {
        Ok(Stage::Done)
    }

    fn rebuilt(&mut self, _: &[BucketLayout], group: &Group) {
        self.stranger = self.subgroup.members().iter().copied().find(|rank| !group.members().contains(rank));
    }
}

/// Why parameters cannot be averaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AverageError {
    /// Not a float or complex dtype.
    #[error("tensor {index} holds {}; floats and complex numbers are averaged", dtype.short_name())]
    DType {
        /// Its place in the list.
        index: usize,
        /// What it holds.
        dtype: DType,
    },
    /// Its bytes are not whole elements.
    #[error("tensor {index} has {bytes} bytes, which are not whole elements of {}", dtype.short_name())]
    Length {
        /// Its place in the list.
        index: usize,
        /// How long it is.
        bytes: usize,
        /// What it holds.
        dtype: DType,
    },
    /// There is not so much memory, or the backend's is not the host's.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// A conversion failed.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// A call failed.
    #[error(transparent)]
    Comm(#[from] CommError),
}

/// When parameters are averaged: at a step and each period after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodicAverage {
    start: u64,
    period: NonZeroU64,
}

impl PeriodicAverage {
    /// At step `start`, `start + period` and so on. For [`PostLocal`] take the same start.
    #[must_use]
    pub const fn new(start: u64, period: NonZeroU64) -> Self {
        Self { start, period }
    }

    /// Whether parameters are averaged after the optimizer's step number `step`.
    #[must_use]
    pub fn is_due(&self, step: u64) -> bool {
        step.checked_sub(self.start).is_some_and(|since| since % self.period == 0)
    }

    /// [`average_parameters`], if they are [due](Self::is_due); whether they were.
    ///
    /// # Errors
    /// As [`average_parameters`].
    pub fn average(
        &self,
        backend: &dyn Backend,
        group: &Group,
        step: u64,
        tensors: &mut [(DType, &mut [u8])],
    ) -> Result<bool, AverageError> {
        let due = self.is_due(step);
        if due {
            average_parameters(backend, group, tensors)?;
        }
        Ok(due)
    }
}

/// Tensors of one dtype in one buffer.
struct Pack {
    /// What is sent: at least f32, so that equal 16-bit parameters stay equal.
    wire: DType,
    /// Places in the list, each with the dtype of its reals.
    members: Vec<(usize, DType)>,
}

/// Averages tensors over a group, in place: `dtype` and bytes of each, the same list on all ranks. All tensors of a
/// dtype are one all-reduce, and all of these are in flight together. 16-bit tensors are summed in f32. Divided after
/// the sum. Waits for the result.
///
/// # Errors
/// [`AverageError::DType`] and [`AverageError::Length`] before anything is launched; [`AverageError::Buffer`] and
/// [`AverageError::Comm`], and then tensors may be averaged in part.
pub fn average_parameters(
    backend: &dyn Backend,
    group: &Group,
    tensors: &mut [(DType, &mut [u8])],
) -> Result<(), AverageError> {
    let packs = packs(tensors)?;
    let mut launched: Vec<(&Pack, Buffer, Work)> = Vec::new();
    for pack in &packs {
        let buffer = fill(backend, pack, tensors)?;
        let data = Operands::in_place(buffer.clone(), pack.wire);
        let work = backend.all_reduce(group, data, ReduceOp::Sum.into(), &CallOptions::default())?;
        launched.push((pack, buffer, work));
    }
    for (pack, buffer, work) in launched {
        work.wait(None)?;
        let sums = buffer.read()?;
        let mut at = 0;
        for &(index, dtype) in &pack.members {
            let tensor = &mut *tensors[index].1;
            let bytes = wire_bytes(tensor.len(), dtype, pack.wire);
            values::divide_into(pack.wire, dtype, &sums[at..at + bytes], tensor, group.size() as f64)?;
            at += bytes;
        }
    }
    Ok(())
}

/// Tensors by dtype, in order of first use. Empty ones are left out.
fn packs(tensors: &[(DType, &mut [u8])]) -> Result<Vec<Pack>, AverageError> {
    let mut packs: Vec<(DType, Pack)> = Vec::new();
    for (index, &(dtype, ref tensor)) in tensors.iter().enumerate() {
        let Some((real, _)) = real(dtype) else { return Err(AverageError::DType { index, dtype }) };
        let bytes = tensor.len();
        if !bytes.is_multiple_of(values::width(dtype)) {
            return Err(AverageError::Length { index, bytes, dtype });
        }
        let wire = if real == DType::F64 { DType::F64 } else { DType::F32 };
        match packs.iter_mut().find(|(of, _)| *of == dtype) {
            _ if bytes == 0 => {}
            Some((_, pack)) => pack.members.push((index, real)),
            None => packs.push((dtype, Pack { wire, members: vec![(index, real)] })),
        }
    }
    Ok(packs.into_iter().map(|(_, pack)| pack).collect())
}

/// The tensors of a pack, end to end.
fn fill(backend: &dyn Backend, pack: &Pack, tensors: &[(DType, &mut [u8])]) -> Result<Buffer, AverageError> {
    let lengths = pack.members.iter().map(|&(index, dtype)| wire_bytes(tensors[index].1.len(), dtype, pack.wire));
    let bytes = lengths.fold(0, usize::saturating_add) as u64;
    let buffer = backend.arena(bytes)?.buffer(0, bytes)?;
    let mut target = buffer.write()?;
    let mut at = 0;
    for &(index, dtype) in &pack.members {
        let tensor = &*tensors[index].1;
        let bytes = wire_bytes(tensor.len(), dtype, pack.wire);
        values::cast(dtype, pack.wire, tensor, &mut target[at..at + bytes])?;
        at += bytes;
    }
    drop(target);
    Ok(buffer)
}

/// Bytes of a tensor when it is sent.
const fn wire_bytes(bytes: usize, dtype: DType, wire: DType) -> usize {
    bytes / values::width(dtype) * values::width(wire)
}
