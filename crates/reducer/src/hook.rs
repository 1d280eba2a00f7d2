//! What may be done with a bucket's gradients between ranks, instead of the plain sum.
//!
//! A hook works in **stages**. A stage returns the calls that are to be launched; when they are done the hook is asked for the
//! next one, until it is done. It never waits itself. So ranks launch one sequence whatever their speed: first stages in the
//! order of buckets, as these become complete, and later stages when all first ones are launched, stage by stage in the
//! order of buckets. Calls of several buckets are in flight together.

use bucketeer_comm::{Backend, Buffer, BufferError, Call, Group};
use bucketeer_types::DType;
use std::ops::Range;
use std::sync::Arc;

/// A parameter's place in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the parameter.
    pub param: usize,
    /// Of the parameter.
    pub shape: Vec<u64>,
    /// Where its gradient lies, in elements of the bucket's dtype. A complex element is two of them.
    pub range: Range<usize>,
}

/// What is in a bucket. The same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLayout {
    /// Its place in the order of launches.
    pub index: usize,
    /// How many buckets there are.
    pub count: usize,
    /// Of its elements: a float.
    pub dtype: DType,
    /// Its parameters.
    pub parts: Vec<Part>,
}

impl BucketLayout {
    /// Whether it is launched last.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.index + 1 == self.count
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.parts.last().map_or(0, |part| part.range.end)
    }
}

/// A bucket, as a hook sees it in one step.
pub struct HookBucket<'a> {
    pub(crate) layout: &'a BucketLayout,
    pub(crate) step: u64,
    pub(crate) divisor: f64,
    pub(crate) buffer: &'a Buffer,
    pub(crate) group: &'a Group,
    pub(crate) backend: &'a dyn Backend,
}

impl HookBucket<'_> {
    /// What is in it.
    #[must_use]
    pub const fn layout(&self) -> &BucketLayout {
        self.layout
    }

    /// How many steps the group has reduced before, the same on all ranks: local steps and forwards alone do not count, and a
    /// change of group begins again.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// By what the sum over ranks is to be divided: the number of ranks, of those that still have input, the sum of all
    /// weights (gradients are then multiplied by this rank's), or 1.
    #[must_use]
    pub const fn divisor(&self) -> f64 {
        self.divisor
    }

    /// This rank's gradients, not divided; later, the result. The hook may read and write it.
    #[must_use]
    pub const fn buffer(&self) -> &Buffer {
        self.buffer
    }

    /// The ranks.
    #[must_use]
    pub const fn group(&self) -> &Group {
        self.group
    }

    /// Memory for a hook's own calls, zeroed, in bytes.
    ///
    /// # Errors
    /// Where there is not so much.
    pub fn scratch(&self, bytes: u64) -> Result<Buffer, HookError> {
        Ok(self.backend.arena(bytes)?.buffer(0, bytes)?)
    }
}

/// A call that a hook wants.
#[derive(Clone, Debug)]
pub struct StageCall {
    /// What.
    pub call: Call,
    /// Where; none is the reducer's own group.
    pub group: Option<Group>,
}

impl From<Call> for StageCall {
    fn from(call: Call) -> Self {
        Self { call, group: None }
    }
}

/// What a hook does next with a bucket.
#[derive(Debug)]
pub enum Stage {
    /// Launches these, in order; when all are done the hook is asked again. None are done at once.
    Calls(Vec<StageCall>),
    /// The bucket's buffer holds the result.
    Done,
    /// This buffer holds the result, which has the bucket's length.
    DoneIn(Buffer),
}

/// Why a hook cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HookError(pub Arc<str>);

impl From<BufferError> for HookError {
    fn from(error: BufferError) -> Self {
        Self(error.to_string().into())
    }
}

impl From<&str> for HookError {
    fn from(reason: &str) -> Self {
        Self(reason.into())
    }
}

impl From<String> for HookError {
    fn from(reason: String) -> Self {
        Self(reason.into())
    }
}

/// What is done with the gradients of a bucket between ranks; see the module docs. One for a reducer.
pub trait Hook: Send {
    /// Its name and options, which are the same on all ranks: `powersgd rank 1`. Compared when a reducer is made.
    fn describe(&self) -> String;

    /// The first stage: the bucket holds this rank's gradients.
    ///
    /// # Errors
    /// The step fails on all ranks with this text and the bucket's name.
    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError>;

    /// The stage after the calls of an earlier one, which was number `stage`; [`begin`](Self::begin) is 0.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    fn next(&mut self, bucket: &HookBucket<'_>, stage: usize) -> Result<Stage, HookError>;

    /// From the next step on these are the buckets, and `group` has them: told once before the first step, and after each
    /// rebuild and change of group. What a hook keeps for each bucket is mapped by parameter, or begun again.
    fn rebuilt(&mut self, _buckets: &[BucketLayout], _group: &Group) {}
}
