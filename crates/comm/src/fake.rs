//! One rank that has no others: every call is done at once. For plans, tests and dry runs of any size.
//!
//! Results are as if all ranks had sent what this one sends, without arithmetic, as in PyTorch's fake process group:
//! reductions give the input as it is (their own part of it, for a scatter), a gather gives it once for each rank, an
//! all-to-all gives the own part, cut or filled with zeros to the size of each slot, a broadcast gives the input, and a
//! receive leaves its buffer alone.
//!
//! Lengths, dtypes, roots, splits and leases are checked as by any backend, and calls are numbered. What others call
//! cannot be compared.

use super::buffer::{Buffer, BufferError, Lease};
use super::call::{Call, Op};
use super::error::{CommError, Site};
use super::group::Group;
use super::groups::GroupTable;
use super::lock;
use super::signature::Described;
use super::ticket::Pending;
use super::transport::{Joined, Lane, Transport, lease, parts};
use bucketeer_types::GlobalRank;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// See the module docs.
pub struct FakeRank {
    groups: GroupTable<Joined<Self>>,
}

/// What it keeps of a group.
#[derive(Default)]
pub struct State {
    /// How many calls were launched.
    launched: HashMap<Lane, u64>,
    /// Whether this rank has aborted it.
    aborted: bool,
}

/// A launch that is done, with the number of its first call.
pub struct Done(u64);

impl Pending for Done {
    fn wait(&self, _: Instant, _: Duration) -> Result<(), CommError> {
        Ok(())
    }

    fn is_done(&self) -> bool {
        true
    }

    fn sequence_number(&self) -> Option<u64> {
        Some(self.0)
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
        Ok(Self { groups: GroupTable::new(rank, world_size) })
    }
}

impl Transport for FakeRank {
    const NAME: &'static str = "fake";
    type State = Mutex<State>;
    type Held = Vec<Lease>;
    type Pending = Done;

    fn groups(&self) -> &GroupTable<Joined<Self>> {
        &self.groups
    }

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn join(&self, _: &Group, _: &'static str) -> Result<Self::State, CommError> {
        Ok(Mutex::default())
    }

    fn hold(&self, group: &Group, _: &Self::State, call: &Call) -> Result<Self::Held, CommError> {
        lease(group, call)
    }

    fn post(
        &self,
        group: &Group,
        state: &Self::State,
        calls: Vec<(Call, Self::Held)>,
        _: Duration,
    ) -> Result<Done, CommError> {
        let mut state = lock(state);
        let parts = parts(calls);
        if state.aborted {
            return Err(CommError::Aborted { site: group.site(parts[0].op), by: self.groups.rank() });
        }
        let mut first = None;
        for part in parts {
            // The leases were taken as for a call in flight; the copies take their own.
            drop(part.held);
            part.calls.iter().try_for_each(|call| perform(call, group))?;
            let next = state.launched.entry(part.lane).or_default();
            first.get_or_insert(*next);
            *next += 1;
        }
        Ok(Done(first.unwrap_or_default()))
    }

    fn give_up(&self, _: &Group, state: &Self::State) {
        lock(state).aborted = true;
    }
}

/// Does what the module docs say.
fn perform(call: &Call, group: &Group) -> Result<(), CommError> {
    let op = call.op().name();
    let site = || group.site(op);
    let failed = |error: BufferError| CommError::Buffer { site: site(), error };
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
