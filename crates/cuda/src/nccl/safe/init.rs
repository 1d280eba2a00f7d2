//! How communicators come to be.

use super::comm::{self, Inner};
use super::{Comm, Group, Nccl, UniqueId};
use crate::Context;
use crate::nccl::NcclError;
use crate::nccl::result::{self, CallError, Progress, Slot};
use crate::nccl::sys::NcclComm;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// How a communicator is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitOptions {
    /// How long a call waits for other ranks, where NCCL does not block; 30 minutes, as PyTorch's. Work on the device
    /// is not limited by it.
    pub timeout: Duration,
    /// Lets NCCL block, as it does before 2.14: a call may then wait for a rank without end.
    pub blocking: bool,
}

impl Default for InitOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30 * 60), blocking: false }
    }
}

impl Nccl {
    /// Makes the communicator of one rank. Waits until all ranks of the name have called.
    ///
    /// # Errors
    /// When the rank is not below the size, another rank does not come in time, or NCCL fails.
    pub fn comm(
        &self,
        context: &Context,
        rank: u32,
        size: u32,
        id: &UniqueId,
        options: &InitOptions,
    ) -> Result<Comm, NcclError> {
        self.comm_while(context, (rank, size), id, options, &|| true)
    }

    /// As [`comm`](Self::comm), for as long as `goes_on` says so; then it is [`NcclError::Closed`].
    pub fn comm_while(
        &self,
        context: &Context,
        (rank, size): (u32, u32),
        id: &UniqueId,
        options: &InitOptions,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Comm, NcclError> {
        let mut comms = self.comms_while(&[(context.clone(), rank)], size, id, options, goes_on)?;
        comms.pop().ok_or_else(|| NcclError::invalid("Nccl::comm", "no communicator was made"))
    }

    /// Makes the communicators of several ranks of one name from one thread, each on its own device, in this order.
    ///
    /// # Errors
    /// As [`comm`](Self::comm); when a rank comes twice. Then none of them is left.
    pub fn comms(
        &self,
        ranks: &[(Context, u32)],
        size: u32,
        id: &UniqueId,
        options: &InitOptions,
    ) -> Result<Vec<Comm>, NcclError> {
        self.comms_while(ranks, size, id, options, &|| true)
    }

    fn comms_while(
        &self,
        ranks: &[(Context, u32)],
        size: u32,
        id: &UniqueId,
        options: &InitOptions,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<Comm>, NcclError> {
        const CALL: &str = "ncclCommInitRank";
        check_ranks(ranks, size)?;
        Group::expect_none(CALL)?;
        let mut starts = Vec::with_capacity(ranks.len());
        let started = self.start(ranks, size, id, options, &mut starts);
        let blocking = options.blocking || self.0.sys().ncclCommInitRankConfig.is_none();
        let ready = started.and_then(|()| {
            starts.iter().try_for_each(|start| match blocking {
                true => Ok(()),
                false => start.wait(&self.0, options.timeout, CALL, goes_on),
            })
        });
        let comms = starts.into_iter().map(|start| start.finish(self, options.timeout, CALL, ready.is_ok()));
        let comms: Vec<Result<Comm, NcclError>> = comms.collect();
        ready?;
        comms.into_iter().collect()
    }

    fn start(
        &self,
        ranks: &[(Context, u32)],
        size: u32,
        id: &UniqueId,
        options: &InitOptions,
        starts: &mut Vec<Start>,
    ) -> Result<(), NcclError> {
        let grouped = ranks.len() > 1;
        if grouped {
            self.0.group_start()?;
        }
        let each = ranks.iter().try_for_each(|(context, rank)| {
            context.make_current()?;
            starts.push(Start { context: context.clone(), rank: *rank, size, slot: Slot::default() });
            let Some(start) = starts.last() else { return Ok(()) };
            // SAFETY: the slot is kept in `starts`, and leaked by `Start::finish` when NCCL may still write.
            unsafe { self.0.init_rank(&start.slot, (*rank, size), id.0, options.blocking) }?;
            Ok(())
        });
        // Ended whether or not a call failed.
        let ended = if grouped { self.0.group_end().map(drop) } else { Ok(()) };
        each.and(ended.map_err(Into::into))
    }
}

fn check_ranks(ranks: &[(Context, u32)], size: u32) -> Result<(), NcclError> {
    let invalid = |reason: String| Err(NcclError::invalid("Nccl::comms", reason));
    if ranks.is_empty() || i32::try_from(size).is_err() {
        return invalid(format!("{} ranks of {size}; there must be one at least, and no more than 2^31", ranks.len()));
    }
    let mut seen = HashSet::new();
    for (_, rank) in ranks {
        if *rank >= size {
            return invalid(format!("rank {rank} is not below the size, {size}"));
        }
        if !seen.insert(rank) {
            return invalid(format!("rank {rank} comes twice"));
        }
    }
    Ok(())
}

/// A communicator that NCCL is at making.
struct Start {
    context: Context,
    /// The rank and size to name in errors: those of the parent, for a child.
    rank: u32,
    size: u32,
    slot: Slot,
}

impl Start {
    /// Waits until it is made.
    fn wait(
        &self,
        api: &result::Api,
        timeout: Duration,
        call: &'static str,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), NcclError> {
        self.context.make_current()?;
        let rank = (self.rank, self.size);
        comm::wait_for(rank, timeout, call, &mut || {
            if !goes_on() {
                return Err(NcclError::Closed { call, rank: self.rank, size: self.size });
            }
            let Some(raw) = self.slot.written() else { return Ok(None) };
            // SAFETY: the handle is of a communicator that nobody has destroyed.
            let progress = unsafe { api.progress(NcclComm(raw), rank, call) }?;
            Ok((progress == Progress::Done).then_some(()))
        })
    }

    /// The communicator, when it is well; else its end.
    fn finish(self, nccl: &Nccl, timeout: Duration, call: &'static str, well: bool) -> Result<Comm, NcclError> {
        self.context.make_current()?;
        let Some(raw) = self.slot.written() else {
            self.slot.leak();
            return Err(NcclError::invalid(call, "NCCL made no communicator"));
        };
        // SAFETY: NCCL made it for this slot, and nobody else has the handle.
        let comm = unsafe { result::Comm::own(&nccl.0, raw, (self.rank, self.size)) };
        if !well {
            comm.abort()?;
            self.slot.leak();
            return Err(NcclError::invalid(call, "the communicator was aborted"));
        }
        let (size, rank, _) = comm.shape()?;
        let comm = comm.with_rank((rank, size));
        Ok(Comm(Arc::new(Inner::new(nccl, &self.context, (rank, size), timeout, comm))))
    }
}

impl Comm {
    /// Makes communicators of the ranks that give the same color, in the order of their keys, then ranks. All ranks
    /// call; one without a color gets none.
    ///
    /// # Errors
    /// When another rank does not come in time, NCCL fails, or is older than 2.18.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>, NcclError> {
        const CALL: &str = "ncclCommSplit";
        if color.is_some_and(|color| i32::try_from(color).is_err()) {
            return Err(NcclError::invalid(CALL, "a color is below 2^31"));
        }
        // SAFETY: `child` keeps the slot.
        let child = self.child(CALL, 21_800, color.is_some(), |comm, slot| unsafe { comm.split(slot, color, key) })?;
        Ok(child)
    }

    /// Makes a communicator of the ranks that are not excluded, who call; the excluded do not. `abort` ends the work
    /// in flight of this one first, for when an excluded rank is why it hangs.
    ///
    /// # Errors
    /// When a rank is excluded that there is not, or this one, or all; when another rank does not come in time; when
    /// NCCL fails, or is older than 2.27.
    pub fn shrink(&self, excluded: &[u32], abort: bool) -> Result<Self, NcclError> {
        const CALL: &str = "ncclCommShrink";
        let known: HashSet<u32> = excluded.iter().copied().collect();
        if known.len() < excluded.len() || excluded.iter().any(|rank| *rank >= self.size() || *rank == self.rank()) {
            let reason = format!("ranks {excluded:?} are to be distinct, below {}, and not this one", self.size());
            return Err(NcclError::invalid(CALL, reason));
        }
        // SAFETY: `child` keeps the slot.
        let child = self.child(CALL, 22_700, true, |comm, slot| unsafe { comm.shrink(slot, excluded, abort) })?;
        child.ok_or_else(|| NcclError::invalid(CALL, "NCCL made no communicator"))
    }

    fn child(
        &self,
        call: &'static str,
        since: i32,
        expected: bool,
        make: impl FnOnce(&result::Comm, &Slot) -> Option<Result<Progress, CallError>>,
    ) -> Result<Option<Self>, NcclError> {
        let inner = &self.0;
        Group::expect_none(call)?;
        let nccl = &inner.nccl;
        let slot = Slot::default();
        let started = inner.with(call, |comm, _| {
            make(comm, &slot).ok_or_else(|| nccl.unsupported(call, since)).and_then(|made| Ok(made?))
        });
        let start = Start { context: inner.context.clone(), rank: inner.rank, size: inner.size, slot };
        // The parent is at it, too, unless what it does was aborted, and the child tells alone.
        let ready = started.and_then(|progress| match progress {
            Progress::Done => Ok(()),
            Progress::Pending if expected => start.wait(&nccl.0, inner.timeout, call, &|| true),
            Progress::Pending => inner.settle(call),
        });
        if ready.is_ok() && !expected {
            return Ok(None);
        }
        let child = start.finish(nccl, inner.timeout, call, ready.is_ok());
        if ready.is_ok() {
            // So that the parent is ready for the next call. What else fails on it, that call says.
            let _ = inner.settle(call);
        }
        ready.and(child).map(Some)
    }
}
