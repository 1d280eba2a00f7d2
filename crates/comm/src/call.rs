//! What a rank asks for: one collective, send, receive or barrier, with its buffers.
//!
//! Sizes count elements of the call's dtype unless they say bytes. A call is checked against its group alone, before
//! anything is launched; what other ranks call is compared later.

use super::buffer::{Access, Buffer, BufferError, Holder, Lease};
use super::group::Group;
use super::signature::Described;
pub use bucketeer_types::Reduction;
use bucketeer_types::{DType, GroupRank};
use smallvec::SmallVec;

/// Input and output of a call, and what they hold. In place when both are the same range.
#[derive(Clone, Debug)]
pub struct Operands {
    /// Read.
    pub input: Buffer,
    /// Written.
    pub output: Buffer,
    /// What both hold.
    pub dtype: DType,
}

impl Operands {
    /// From one buffer to another.
    #[must_use]
    pub const fn new(input: Buffer, output: Buffer, dtype: DType) -> Self {
        Self { input, output, dtype }
    }

    /// From a buffer to itself.
    #[must_use]
    pub fn in_place(buffer: Buffer, dtype: DType) -> Self {
        Self { input: buffer.clone(), output: buffer, dtype }
    }
}

/// What a call does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Every rank gets the reduced input.
    AllReduce(Reduction),
    /// Every rank gets all inputs, end to end in rank order. In place when the input is slot `rank` of the output.
    AllGather,
    /// The rank of the group at place r gets part r of the reduced input. In place when the output is that part of the
    /// input.
    ReduceScatter(Reduction),
    /// Every rank gets the root's input. The inputs of others are not read.
    Broadcast {
        /// Rank in the group.
        root: GroupRank,
    },
    /// The root gets the reduced input, the others their own.
    Reduce {
        /// How.
        op: Reduction,
        /// Rank in the group.
        root: GroupRank,
    },
    /// The rank at place r gets part r of every input, in rank order. Never in place.
    AllToAll {
        /// Elements to each rank; empty for equal parts.
        send: Vec<u64>,
        /// Elements from each rank; empty for equal parts.
        receive: Vec<u64>,
    },
    /// The input goes to another rank, which calls `Recv`. Calls between two ranks meet in the order of their launch.
    Send {
        /// Rank in the group.
        to: GroupRank,
    },
    /// The output comes from another rank, which calls `Send`.
    Recv {
        /// Rank in the group.
        from: GroupRank,
    },
    /// Nobody is done before all have arrived.
    Barrier,
}

impl Op {
    /// The word for it, as c10d has it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all_reduce",
            Self::AllGather => "all_gather_into",
            Self::ReduceScatter(_) => "reduce_scatter",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::AllToAll { .. } => "all_to_all_single",
            Self::Send { .. } => "send",
            Self::Recv { .. } => "recv",
            Self::Barrier => "barrier",
        }
    }

    /// How values become one, for the ops that reduce.
    #[must_use]
    pub const fn reduction(&self) -> Option<Reduction> {
        match self {
            Self::AllReduce(op) | Self::ReduceScatter(op) | Self::Reduce { op, .. } => Some(*op),
            _ => None,
        }
    }

    /// The one rank that differs from the others, for the ops that have one.
    #[must_use]
    pub const fn root(&self) -> Option<GroupRank> {
        match self {
            Self::Broadcast { root } | Self::Reduce { root, .. } => Some(*root),
            _ => None,
        }
    }

    /// The other end of a send or receive.
    #[must_use]
    pub const fn peer(&self) -> Option<GroupRank> {
        match self {
            Self::Send { to } => Some(*to),
            Self::Recv { from } => Some(*from),
            _ => None,
        }
    }
}

/// An op with its buffers. What it does is told by [`Described`].
#[derive(Clone, Debug)]
pub struct Call {
    op: Op,
    dtype: DType,
    input: Option<Buffer>,
    output: Option<Buffer>,
}

impl Described for Call {
    fn op(&self) -> &Op {
        &self.op
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn input_bytes(&self) -> u64 {
        self.input.as_ref().map_or(0, Buffer::bytes)
    }

    fn output_bytes(&self) -> u64 {
        self.output.as_ref().map_or(0, Buffer::bytes)
    }
}

impl Call {
    /// A collective that reads an input and writes an output.
    ///
    /// # Panics
    /// For sends, receives and barriers, which have makers of their own.
    #[must_use]
    pub fn collective(op: Op, operands: Operands) -> Self {
        assert!(op.peer().is_none() && op != Op::Barrier, "{} is not made of an input and an output", op.name());
        Self { op, dtype: operands.dtype, input: Some(operands.input), output: Some(operands.output) }
    }

    /// A send of a buffer.
    #[must_use]
    pub const fn send(buffer: Buffer, dtype: DType, to: GroupRank) -> Self {
        Self { op: Op::Send { to }, dtype, input: Some(buffer), output: None }
    }

    /// A receive into a buffer.
    #[must_use]
    pub const fn recv(buffer: Buffer, dtype: DType, from: GroupRank) -> Self {
        Self { op: Op::Recv { from }, dtype, input: None, output: Some(buffer) }
    }

    /// A barrier.
    #[must_use]
    pub const fn barrier() -> Self {
        Self { op: Op::Barrier, dtype: DType::U8, input: None, output: None }
    }

    /// What it reads, if anything.
    #[must_use]
    pub const fn input(&self) -> Option<&Buffer> {
        self.input.as_ref()
    }

    /// What it writes, if anything.
    #[must_use]
    pub const fn output(&self) -> Option<&Buffer> {
        self.output.as_ref()
    }

    /// Checks lengths, dtype, root and overlaps for a member of a group.
    ///
    /// # Errors
    /// A text that says what was found and what was expected.
    pub fn check(&self, group: &Group) -> Result<(), String> {
        let width = self.dtype.bytes();
        for (what, buffer) in [("input", &self.input), ("output", &self.output)] {
            if let Some(buffer) = buffer
                && buffer.bytes() % width != 0
            {
                let (bytes, dtype) = (buffer.bytes(), self.dtype.short_name());
                return Err(format!("the {what} has {bytes} bytes, which are not whole elements of {dtype}"));
            }
        }
        if let Some(reduction) = self.op.reduction() {
            reduction.check(self.dtype)?;
        }
        for (what, rank) in [("root", self.op.root()), ("peer", self.op.peer())] {
            if let Some(rank) = rank
                && rank.0 as usize >= group.size()
            {
                return Err(format!("the {what} is group rank {}, but the group has {}", rank.0, group.size()));
            }
        }
        if self.op.peer() == Some(group.rank()) {
            return Err(format!("group rank {} is at both ends", group.rank().0));
        }
        self.check_lengths(group)?;
        self.check_overlap(group)
    }

    fn check_lengths(&self, group: &Group) -> Result<(), String> {
        let (input, output, size) = (self.input_bytes(), self.output_bytes(), group.size() as u64);
        let expect = |what: &str, found: u64, expected: Option<u64>| match expected {
            Some(expected) if expected == found => Ok(()),
            Some(expected) => Err(format!("the {what} has {found} bytes, but {expected} are expected")),
            None => Err(format!("the {what} would have more than 2^63 bytes")),
        };
        match &self.op {
            Op::AllGather => expect("output", output, input.checked_mul(size)),
            Op::ReduceScatter(_) => expect("input", input, output.checked_mul(size)),
            Op::AllToAll { send, receive } => {
                for (what, list, bytes) in [("input", send, input), ("output", receive, output)] {
                    if list.is_empty() {
                        let elements = bytes / self.dtype.bytes();
                        if !elements.is_multiple_of(size) {
                            return Err(format!("the {what} has {elements} elements, which {size} ranks cannot share"));
                        }
                        continue;
                    }
                    if list.len() as u64 != size {
                        return Err(format!("the {what} has {} splits, but the group has {size} ranks", list.len()));
                    }
                    let total = list.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
                    expect(what, bytes, total.and_then(|total| total.checked_mul(self.dtype.bytes())))?;
                }
                Ok(())
            }
            Op::AllReduce(_) | Op::Broadcast { .. } | Op::Reduce { .. } => expect("output", output, Some(input)),
            Op::Send { .. } | Op::Recv { .. } | Op::Barrier => Ok(()),
        }
    }

    /// The part that both buffers may share: the whole, a gather's slot of the output, a scatter's of the input.
    fn check_overlap(&self, group: &Group) -> Result<(), String> {
        let (Some(input), Some(output)) = (&self.input, &self.output) else { return Ok(()) };
        if !input.overlaps(output) || self.in_place(group) {
            return Ok(());
        }
        let form = match self.op {
            Op::AllToAll { .. } => "never runs in place",
            Op::AllGather => "runs in place with the input at this rank's slot of the output",
            Op::ReduceScatter(_) => "runs in place with the output at this rank's part of the input",
            _ => "runs in place with one range for both",
        };
        Err(format!("input and output overlap; {} {form}", self.op.name()))
    }

    /// Whether both buffers share the bytes that this rank gives or gets.
    pub(super) fn in_place(&self, group: &Group) -> bool {
        let (Some(input), Some(output)) = (&self.input, &self.output) else { return false };
        let at = |whole: &Buffer, part: &Buffer| {
            whole.part(part.bytes().saturating_mul(group.place() as u64), part.bytes()).as_ref() == Ok(part)
        };
        match self.op {
            Op::AllToAll { .. } => false,
            Op::AllGather => at(output, input),
            Op::ReduceScatter(_) => at(input, output),
            _ => input == output,
        }
    }

    /// Whether a member reads its input.
    pub(super) fn reads_input(&self, group: &Group) -> bool {
        !matches!(self.op, Op::Broadcast { root } if root != group.rank())
    }

    /// Takes the leases a checked call needs: to write its output, to read its input; in place, one to write both.
    pub(super) fn lease(&self, group: &Group) -> Result<Vec<Lease>, BufferError> {
        let holder = || Holder::Call { op: self.op.name(), group: group.shared_name() };
        let needed = self.needed(group);
        needed.into_iter().map(|(buffer, access)| buffer.lease(access, holder())).collect()
    }

    /// What is written, then what is read; in place, what holds both.
    pub(super) fn needed(&self, group: &Group) -> SmallVec<[(&Buffer, Access); 2]> {
        let mut needed = SmallVec::new();
        match (&self.input, &self.output) {
            (Some(input), Some(output)) if self.in_place(group) => {
                needed.push((if input.bytes() > output.bytes() { input } else { output }, Access::Write));
            }
            (input, output) => {
                needed.extend(output.as_ref().map(|output| (output, Access::Write)));
                needed.extend(input.as_ref().filter(|_| self.reads_input(group)).map(|input| (input, Access::Read)));
            }
        }
        needed
    }
}
