//! What runs collectives, in c10d's terms.

use super::buffer::{Arena, BufferError};
use super::call::{Call, Op, Operands, Reduction};
use super::error::CommError;
use super::group::Group;
use super::signature::CallSignature;
use super::work::{CallOptions, Work};
#[cfg(feature = "nccl")]
use bucketeer_cuda::Stream;
use bucketeer_types::{DType, GlobalRank, GroupRank};

/// A launch that is to come: a call, or those of a coalescing block.
#[derive(Clone, Debug)]
pub struct Announced {
    /// Where.
    pub group: Group,
    /// What.
    pub calls: Vec<CallSignature>,
}

/// One rank's handle on its groups.
///
/// **Order.** All members of a group launch the same calls on it in the same order. Calls on different groups need no
/// order with one another, and groups may share members.
///
/// **Buffers.** A call takes leases on its buffers when it is made, and gives them back when it ends; see
/// [`Arena`]. Lengths, dtypes, roots and splits are checked before anything is launched.
///
/// **Faults.** A call that cannot be done ends in a [`CommError`] that names the ranks at fault, on all ranks that take
/// part, at the latest when its timeout is over. The group is then broken; [`shrink`](Self::shrink) makes one that goes
/// on without some ranks.
pub trait Backend: Send + Sync {
    /// The backend's name: `local`.
    fn name(&self) -> &'static str;

    /// This rank.
    fn rank(&self) -> GlobalRank;

    /// Number of ranks.
    fn world_size(&self) -> u32;

    /// Allocates memory that this backend can use, in bytes.
    ///
    /// # Errors
    /// [`BufferError::Memory`].
    fn arena(&self, bytes: u64) -> Result<Arena, BufferError> {
        Arena::new(bytes)
    }

    /// Joins a group. Each member calls it with the same name and members; it does not wait for the others. Groups of
    /// one name may exist side by side if they share no rank, as in graphs that are the same on all ranks.
    ///
    /// # Errors
    /// [`CommError::Invalid`]: the members are no such list, do not hold this rank, or are not what another rank gave;
    /// or this rank has joined before.
    fn new_group(&self, name: &str, members: &[GlobalRank]) -> Result<Group, CommError>;

    /// The group of that name and these members, in that order, if this rank has joined it: what a second program on one
    /// backend runs on. All its members launch the same on it still, in the same order.
    fn joined(&self, name: &str, members: &[GlobalRank]) -> Option<Group>;

    /// The stream of the device that a group's calls run on, in the order of their launch: work that is enqueued on it before a
    /// launch comes before the call, and what is enqueued afterwards comes after it. `None` where calls do not run on a
    /// device; buffers are then the host's alone.
    #[cfg(feature = "nccl")]
    fn stream(&self, _group: &Group) -> Option<Stream> {
        None
    }

    /// Says what this rank is going to launch, on all its groups, in order, before it does. All ranks do so, equally often. A
    /// backend whose ranks cannot see one another compares it, and connects the groups.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] when another rank is going to launch something else, or in another order; the errors of
    /// [`Work::wait`].
    fn announce(&self, _launches: &[Announced]) -> Result<(), CommError> {
        Ok(())
    }

    /// Launches a call; the named methods below are shorthands. Inside of a coalescing block it is kept for the block's
    /// end, and its `Work` is the block's.
    ///
    /// # Errors
    /// [`CommError::Invalid`] and [`CommError::Buffer`], and nothing is launched; the errors of
    /// [`Work::wait`], as far as known.
    fn launch(&self, group: &Group, call: Call, options: &CallOptions) -> Result<Work, CommError>;

    /// Opens a coalescing block on a group: its calls are launched as one, by
    /// [`end_coalescing`](Self::end_coalescing).
    ///
    /// # Errors
    /// [`CommError::Invalid`] when one is open.
    fn start_coalescing(&self, group: &Group) -> Result<(), CommError>;

    /// Launches the calls of the block. Its collectives are one call, with one sequence number; its sends and receives
    /// are in flight together. An empty block is done at once and takes no number.
    ///
    /// # Errors
    /// [`CommError::Invalid`] when none is open; else as [`launch`](Self::launch).
    fn end_coalescing(&self, group: &Group, options: &CallOptions) -> Result<Work, CommError>;

    /// Gives a group up: all its calls in flight fail on all ranks, and so do all later ones.
    fn abort(&self, group: &Group);

    /// Makes a group of the members but `failed`, in the same order; each of them calls it with the same list. The old
    /// group is aborted if it is not broken yet.
    ///
    /// # Errors
    /// [`CommError::Invalid`] when `failed` holds this rank or one that is not a member, or is not what another rank gave.
    fn shrink(&self, group: &Group, failed: &[GlobalRank]) -> Result<Group, CommError>;

    /// See [`Op::AllReduce`].
    ///
    /// # Errors
    /// As [`launch`](Self::launch); so have all below.
    fn all_reduce(
        &self,
        group: &Group,
        data: Operands,
        op: Reduction,
        options: &CallOptions,
    ) -> Result<Work, CommError> {
        self.launch(group, Call::collective(Op::AllReduce(op), data), options)
    }

    /// See [`Op::AllGather`].
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn all_gather_into(&self, group: &Group, data: Operands, options: &CallOptions) -> Result<Work, CommError> {
        self.launch(group, Call::collective(Op::AllGather, data), options)
    }

    /// See [`Op::ReduceScatter`].
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn reduce_scatter(
        &self,
        group: &Group,
        data: Operands,
        op: Reduction,
        options: &CallOptions,
    ) -> Result<Work, CommError> {
        self.launch(group, Call::collective(Op::ReduceScatter(op), data), options)
    }

    /// See [`Op::Broadcast`].
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn broadcast(
        &self,
        group: &Group,
        data: Operands,
        root: GroupRank,
        options: &CallOptions,
    ) -> Result<Work, CommError> {
        self.launch(group, Call::collective(Op::Broadcast { root }, data), options)
    }

    /// See [`Op::Reduce`].
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn reduce(
        &self,
        group: &Group,
        data: Operands,
        op: Reduction,
        root: GroupRank,
        options: &CallOptions,
    ) -> Result<Work, CommError> {
        self.launch(group, Call::collective(Op::Reduce { op, root }, data), options)
    }

    /// See [`Op::AllToAll`]: `send` and `receive` count elements by rank; both empty for equal parts.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn all_to_all_single(
        &self,
        group: &Group,
        data: Operands,
        send: &[u64],
        receive: &[u64],
        options: &CallOptions,
    ) -> Result<Work, CommError> {
        let op = Op::AllToAll { send: send.to_vec(), receive: receive.to_vec() };
        self.launch(group, Call::collective(op, data), options)
    }

    /// See [`Op::Send`].
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn send(
        &self,
        group: &Group,
        buffer: super::Buffer,
        dtype: DType,
        to: GroupRank,
        options: &CallOptions,
    ) -> Result<Work, CommError> {
        self.launch(group, Call::send(buffer, dtype, to), options)
    }

    /// See [`Op::Recv`].
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn recv(
        &self,
        group: &Group,
        buffer: super::Buffer,
        dtype: DType,
        from: GroupRank,
        options: &CallOptions,
    ) -> Result<Work, CommError> {
        self.launch(group, Call::recv(buffer, dtype, from), options)
    }

    /// See [`Op::Barrier`]. The error of one that times out names the missing ranks.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn barrier(&self, group: &Group, options: &CallOptions) -> Result<Work, CommError> {
        self.launch(group, Call::barrier(), options)
    }
}
