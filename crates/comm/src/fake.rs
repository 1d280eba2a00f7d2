//! One rank that has no others: every call is done at once. For plans, tests and dry runs of any size.
//!
//! Results are as if all ranks had sent what this one sends, without arithmetic, as in PyTorch's fake process group:
//! reductions give the input as it is (their own part of it, for a scatter), a gather gives it once for each rank, an
//! all-to-all gives the own part, cut or filled with zeros to the size of each slot, a broadcast gives the input, and a
//! receive leaves its buffer alone.
//!
//! Lengths, dtypes, roots, splits and leases are checked as by any backend, and calls are numbered. What others call
//! cannot be compared.

use super::backend::Backend;
use super::buffer::{Buffer, BufferError};
use super::call::{Call, Op};
use super::error::{CommError, Site};
use super::group::Group;
use super::lock;
use super::signature::Described;
use super::work::{CallOptions, Completion, Work};
use bucketeer_types::GlobalRank;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// See the module docs.
pub struct FakeRank {
    rank: GlobalRank,
    world_size: u32,
    groups: Mutex<Vec<Joined>>,
}

struct Joined {
    group: Group,
    /// Calls launched, by the other end for sends (`true`) and receives.
    launched: HashMap<Option<(bool, u32)>, u64>,
    block: Option<Block>,
    /// Whether this rank has aborted it.
    aborted: bool,
}

struct Block {
    calls: Vec<Call>,
    done: Arc<Done>,
}

/// A call that is done; or will be, when its block ends.
struct Done {
    group: Arc<str>,
    /// The sequence number, if it has one, or why the block failed.
    result: OnceLock<Result<Option<u64>, CommError>>,
}

impl Done {
    fn new(group: &Group) -> Arc<Self> {
        Arc::new(Self { group: group.shared_name(), result: OnceLock::new() })
    }
}

impl Completion for Done {
    fn wait(&self, _: Option<Duration>) -> Result<(), CommError> {
        match self.result.get() {
            Some(result) => result.clone().map(drop),
            None => {
                let site = Site { group: self.group.clone(), op: "wait", seq: None };
                Err(CommError::Invalid { site, reason: super::OPEN_BLOCK.to_owned() })
            }
        }
    }

    fn is_done(&self) -> bool {
        self.result.get().is_some()
    }

    fn sequence_number(&self) -> Option<u64> {
        self.result.get().and_then(|result| result.clone().ok().flatten())
    }
}

impl FakeRank {
    /// Rank `rank` of a world of `world_size`.
    ///
    /// # Errors
    /// [`CommError::Invalid`] when there is no such rank.
    pub fn new(rank: GlobalRank, world_size: u32) -> Result<Self, CommError> {
        if rank.0 >= world_size {
            let site = Site { group: "world".into(), op: "world", seq: None };
            let reason = format!("there is no rank {} among {world_size} ranks", rank.0);
            return Err(CommError::Invalid { site, reason });
        }
        Ok(Self { rank, world_size, groups: Mutex::default() })
    }

    fn with<T>(
        &self,
        group: &Group,
        op: &'static str,
        apply: impl FnOnce(&mut Joined) -> Result<T, CommError>,
    ) -> Result<T, CommError> {
        let mut groups = lock(&self.groups);
        match groups.get_mut(group.index()).filter(|joined| joined.group.is(group)) {
            Some(joined) => apply(joined),
            None => Err(group.not_made_by(self.rank, op)),
        }
    }
}

impl Joined {
    /// The number of a call; those between two ranks, and those of all, are counted apart.
    fn number(&mut self, call: &Call) -> u64 {
        let lane = call.op().peer().map(|peer| (matches!(call.op(), Op::Send { .. }), peer.0));
        let next = self.launched.entry(lane).or_default();
        *next += 1;
        *next - 1
    }

    fn check_whole(&self, op: &'static str) -> Result<(), CommError> {
        let site = || self.group.site(op);
        match self.aborted {
            true => Err(CommError::Aborted { site: site(), by: self.group.members()[self.group.rank().0 as usize] }),
            false => Ok(()),
        }
    }
}

impl Backend for FakeRank {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn rank(&self) -> GlobalRank {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world_size
    }

    fn new_group(&self, name: &str, members: &[GlobalRank]) -> Result<Group, CommError> {
        let mut groups = lock(&self.groups);
        let invalid = |reason| {
            let site = Site { group: name.into(), op: "new_group", seq: None };
            CommError::Invalid { site, reason }
        };
        if groups.iter().any(|joined| joined.group.name() == name) {
            return Err(invalid(format!("rank {} has joined before", self.rank.0)));
        }
        let group = Group::new(name, members, self.rank, self.world_size, groups.len()).map_err(invalid)?;
        groups.push(Joined { group: group.clone(), launched: HashMap::new(), block: None, aborted: false });
        Ok(group)
    }

    fn joined(&self, name: &str, members: &[GlobalRank]) -> Option<Group> {
        lock(&self.groups).iter().map(|joined| &joined.group).find(|group| group.is_of(name, members)).cloned()
    }

    fn launch(&self, group: &Group, call: Call, options: &CallOptions) -> Result<Work, CommError> {
        let op = call.op().name();
        self.with(group, op, |joined| {
            joined.check_whole(op)?;
            call.check(group).map_err(|reason| group.invalid(op, reason))?;
            if let Some(block) = &mut joined.block {
                if !options.async_op {
                    return Err(group.invalid(op, super::WAIT_IN_BLOCK));
                }
                block.calls.push(call);
                return Ok(Work::new(block.done.clone()));
            }
            perform(&call, group)?;
            let done = Done::new(group);
            let _ = done.result.set(Ok(Some(joined.number(&call))));
            Ok(Work::new(done))
        })
    }

    fn start_coalescing(&self, group: &Group) -> Result<(), CommError> {
        self.with(group, "start_coalescing", |joined| {
            if joined.block.is_some() {
                return Err(group.invalid("start_coalescing", super::BLOCK_OPEN));
            }
            joined.block = Some(Block { calls: Vec::new(), done: Done::new(group) });
            Ok(())
        })
    }

    fn end_coalescing(&self, group: &Group, _: &CallOptions) -> Result<Work, CommError> {
        self.with(group, "end_coalescing", |joined| {
            let block = joined.block.take();
            let Block { calls, done } = block.ok_or_else(|| group.invalid("end_coalescing", super::NO_BLOCK))?;
            let whole = joined.check_whole("end_coalescing");
            let performed = whole.and_then(|()| calls.iter().try_for_each(|call| perform(call, group)));
            let result = performed.map(|()| {
                let mut numbers = Vec::new();
                if let Some(call) = calls.iter().find(|call| call.op().peer().is_none()) {
                    numbers.push(joined.number(call));
                }
                for call in calls.iter().filter(|call| call.op().peer().is_some()) {
                    numbers.push(joined.number(call));
                }
                numbers.first().copied()
            });
            let _ = done.result.set(result.clone());
            result.map(|_| Work::new(done))
        })
    }

    fn abort(&self, group: &Group) {
        let _ = self.with(group, "abort", |joined| {
            joined.aborted = true;
            Ok(())
        });
    }

    fn shrink(&self, group: &Group, failed: &[GlobalRank]) -> Result<Group, CommError> {
        let (name, members) = group.without(failed).map_err(|reason| group.invalid("shrink", reason))?;
        self.abort(group);
        self.new_group(&name, &members)
    }
}

/// Does what the module docs say. Leases are taken as for a call in flight, and given back before this returns.
fn perform(call: &Call, group: &Group) -> Result<(), CommError> {
    let op = call.op().name();
    let site = || group.site(op);
    let failed = |error: BufferError| CommError::Buffer { site: site(), error };
    drop(call.lease(group).map_err(failed)?);
    let (Some(input), Some(output)) = (call.input(), call.output()) else { return Ok(()) };
    let place = u64::from(group.rank().0);
    let part = |buffer: &Buffer, offset: u64, bytes: u64| buffer.part(offset, bytes).map_err(failed);
    let give = |from: &Buffer, to: &Buffer| copy(from, to).map_err(failed);
    match call.op() {
        Op::AllGather => {
            for slot in 0..group.size() as u64 {
                give(input, &part(output, slot * input.bytes(), input.bytes())?)?;
            }
            Ok(())
        }
        Op::ReduceScatter(_) => give(&part(input, place * output.bytes(), output.bytes())?, output),
        Op::AllToAll { .. } => {
            let (send, receive) = call.split_bytes(group.size());
            let own_start = send[..group.rank().0 as usize].iter().sum();
            let own = part(input, own_start, send[group.rank().0 as usize])?;
            let mut start = 0;
            for bytes in receive {
                let slot = part(output, start, bytes)?;
                let shared = bytes.min(own.bytes());
                give(&part(&own, 0, shared)?, &part(&slot, 0, shared)?)?;
                part(&slot, shared, bytes - shared)?.write().map_err(failed)?.fill(0);
                start += bytes;
            }
            Ok(())
        }
        _ => give(input, output),
    }
}

/// Copies unless both are the same range.
fn copy(from: &Buffer, to: &Buffer) -> Result<(), BufferError> {
    if from != to {
        to.write()?.copy_from_slice(&from.read()?);
    }
    Ok(())
}
