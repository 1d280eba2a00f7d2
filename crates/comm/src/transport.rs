//! What all backends have in common: groups, coalescing blocks, and the way of a call from its launch to its [`Work`].

use super::backend::{Announced, Backend};
use super::buffer::Lease;
use super::call::{Call, Op};
use super::error::{CommError, Fate};
use super::group::Group;
use super::groups::GroupTable;
use super::lock;
use super::signature::Described;
use super::ticket::{Pending, Ticket};
use super::work::{CallOptions, Work};
#[cfg(feature = "nccl")]
use bucketeer_cuda::Stream;
use bucketeer_types::GlobalRank;
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const BLOCK_OPEN: &str = "a coalescing block is open already; end it first";
const NO_BLOCK: &str = "no coalescing block is open; start one first";
const WAIT_IN_BLOCK: &str = "a call of a coalescing block cannot be waited for before the block's end";

/// What is a backend's own: how it joins groups, and how it moves what is launched. Each is a [`Backend`].
pub trait Transport: Send + Sync + Sized {
    /// See [`Backend::name`].
    const NAME: &'static str;

    /// What it keeps of a group.
    type State: Send + Sync;

    /// What a call has of its buffers from its launch to its end.
    type Held: Send;

    /// What it keeps of a launch.
    type Pending: Pending + 'static;

    /// The rank's groups.
    fn groups(&self) -> &GroupTable<Joined<Self>>;

    /// How long a call may take that does not say so itself.
    fn timeout(&self) -> Duration;

    /// Joins a group that this rank has not joined before; `op` is for errors.
    ///
    /// # Errors
    /// Those of [`Backend::new_group`].
    fn join(&self, group: &Group, op: &'static str) -> Result<Self::State, CommError>;

    /// Takes hold of the buffers of a checked call.
    ///
    /// # Errors
    /// [`CommError::Buffer`]; [`CommError::Invalid`] for what this backend cannot do.
    fn hold(&self, group: &Group, state: &Self::State, call: &Call) -> Result<Self::Held, CommError>;

    /// Launches one or more calls; the collectives among them are one.
    ///
    /// # Errors
    /// Those of [`Backend::launch`].
    fn post(
        &self,
        group: &Group,
        state: &Self::State,
        calls: Vec<(Call, Self::Held)>,
        timeout: Duration,
    ) -> Result<Self::Pending, CommError>;

    /// See [`Backend::abort`].
    fn give_up(&self, group: &Group, state: &Self::State);

    /// See [`Backend::announce`].
    ///
    /// # Errors
    /// Those of [`Backend::announce`].
    fn compare_plans(&self, _launches: &[Announced]) -> Result<(), CommError> {
        Ok(())
    }

    /// See [`Backend::stream`].
    #[cfg(feature = "nccl")]
    fn stream_of(&self, _state: &Self::State) -> Option<Stream> {
        None
    }
}

/// A group that a rank has joined.
pub struct Joined<T: Transport> {
    state: T::State,
    /// Held while calls are launched, so that they are numbered in the order of their launches. The open block.
    launching: Mutex<Option<Block<T>>>,
}

/// A coalescing block that is open. It ends with its rank at the latest.
struct Block<T: Transport> {
    group: Group,
    calls: Vec<(Call, T::Held)>,
    ticket: Arc<Ticket<T::Pending>>,
}

impl<T: Transport> Drop for Block<T> {
    fn drop(&mut self) {
        let rank = self.group.members()[self.group.place()];
        let fate = if thread::panicking() { Fate::Panicked } else { Fate::Left };
        let error = CommError::Remote { site: self.group.site("end_coalescing"), rank, fate };
        // Nothing is noted of a block that was ended.
        let _ = self.ticket.launched(Err(error), Duration::ZERO);
    }
}

fn join<T: Transport>(backend: &T, name: &str, members: &[GlobalRank], op: &'static str) -> Result<Group, CommError> {
    let make = |group: &Group| Ok(Joined { state: backend.join(group, op)?, launching: Mutex::default() });
    backend.groups().join(name, members, op, make)
}

/// Launches the calls of a ticket. The group's launch lock is held.
fn post<T: Transport>(
    backend: &T,
    (group, joined): (&Group, &Joined<T>),
    ticket: &Ticket<T::Pending>,
    calls: Vec<(Call, T::Held)>,
    options: &CallOptions,
) -> Result<(), CommError> {
    let timeout = options.timeout.unwrap_or_else(|| backend.timeout());
    let pending = match calls.is_empty() {
        true => Ok(None),
        false => backend.post(group, &joined.state, calls, timeout).map(Some),
    };
    ticket.launched(pending, timeout)
}

fn work_of<P: Pending + 'static>(ticket: Arc<Ticket<P>>, options: &CallOptions) -> Result<Work, CommError> {
    let work = Work::new(ticket);
    if !options.async_op {
        work.wait(None)?;
    }
    Ok(work)
}

impl<T: Transport> Backend for T {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn rank(&self) -> GlobalRank {
        self.groups().rank()
    }

    fn world_size(&self) -> u32 {
        self.groups().world_size()
    }

    fn new_group(&self, name: &str, members: &[GlobalRank]) -> Result<Group, CommError> {
        join(self, name, members, "new_group")
    }

    fn joined(&self, name: &str, members: &[GlobalRank]) -> Option<Group> {
        self.groups().joined(name, members)
    }

    #[cfg(feature = "nccl")]
    fn stream(&self, group: &Group) -> Option<Stream> {
        self.stream_of(&self.groups().find(group, "stream").ok()?.state)
    }

    fn announce(&self, launches: &[Announced]) -> Result<(), CommError> {
        self.compare_plans(launches)
    }

    fn launch(&self, group: &Group, call: Call, options: &CallOptions) -> Result<Work, CommError> {
        let op = call.op().name();
        let joined = self.groups().find(group, op)?;
        let mut launching = lock(&joined.launching);
        call.check(group).map_err(|reason| group.invalid(op, reason))?;
        let held = self.hold(group, &joined.state, &call)?;
        if let Some(block) = &mut *launching {
            if !options.async_op {
                return Err(group.invalid(op, WAIT_IN_BLOCK));
            }
            block.calls.push((call, held));
            return Ok(Work::new(block.ticket.clone()));
        }
        let ticket = Ticket::new(group);
        post(self, (group, &joined), &ticket, vec![(call, held)], options)?;
        drop(launching);
        work_of(ticket, options)
    }

    fn start_coalescing(&self, group: &Group) -> Result<(), CommError> {
        let joined = self.groups().find(group, "start_coalescing")?;
        let mut launching = lock(&joined.launching);
        if launching.is_some() {
            return Err(group.invalid("start_coalescing", BLOCK_OPEN));
        }
        *launching = Some(Block { group: group.clone(), calls: Vec::new(), ticket: Ticket::new(group) });
        Ok(())
    }

    fn end_coalescing(&self, group: &Group, options: &CallOptions) -> Result<Work, CommError> {
        let joined = self.groups().find(group, "end_coalescing")?;
        let mut launching = lock(&joined.launching);
        let mut block = launching.take().ok_or_else(|| group.invalid("end_coalescing", NO_BLOCK))?;
        post(self, (group, &joined), &block.ticket, std::mem::take(&mut block.calls), options)?;
        drop(launching);
        work_of(block.ticket.clone(), options)
    }

    fn abort(&self, group: &Group) {
        if let Ok(joined) = self.groups().find(group, "abort") {
            self.give_up(group, &joined.state);
        }
    }

    fn shrink(&self, group: &Group, failed: &[GlobalRank]) -> Result<Group, CommError> {
        let joined = self.groups().find(group, "shrink")?;
        let (name, members) = group.without(failed).map_err(|reason| group.invalid("shrink", reason))?;
        self.give_up(group, &joined.state);
        join(self, &name, &members, "shrink")
    }
}

/// The leases of a checked call.
pub fn lease(group: &Group, call: &Call) -> Result<Vec<Lease>, CommError> {
    call.lease(group).map_err(|error| CommError::Buffer { site: group.site(call.op().name()), error })
}

/// Which calls of a rank on a group are numbered together. Peers are ranks of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Lane {
    /// Collectives.
    All,
    /// Sends to a rank.
    To(u32),
    /// Receives from a rank.
    From(u32),
}

/// What has a number of its own in a launch: its collectives together, or one send or receive.
pub struct Part<C, H> {
    pub lane: Lane,
    pub op: &'static str,
    pub calls: Vec<C>,
    pub held: Vec<H>,
}

/// The parts of a launch, the collectives first.
pub fn parts<C: Borrow<Call>, H>(calls: impl IntoIterator<Item = (C, H)>) -> Vec<Part<C, H>> {
    let mut together = Part { lane: Lane::All, op: "coalesced", calls: Vec::new(), held: Vec::new() };
    let mut parts = Vec::new();
    for (call, held) in calls {
        let op = call.borrow().op();
        let (lane, name) = match op {
            Op::Send { to } => (Lane::To(to.0), op.name()),
            Op::Recv { from } => (Lane::From(from.0), op.name()),
            _ => {
                together.op = if together.calls.is_empty() { op.name() } else { "coalesced" };
                together.calls.push(call);
                together.held.push(held);
                continue;
            }
        };
        parts.push(Part { lane, op: name, calls: vec![call], held: vec![held] });
    }
    if !together.calls.is_empty() {
        parts.insert(0, together);
    }
    parts
}
