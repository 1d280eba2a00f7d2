//! How a group's communicator comes to be: the members meet in the store, compare what they have, and share a name.

#![expect(clippy::result_large_err, reason = "once for each group; a verdict is what it is all about")]

use super::World;
use super::channel::{Cause, Channel, is_elsewhere, text, told_members};
use super::launched::backstop;
use super::verdict::{CONNECT, GroupFailure, LaunchSite};
use crate::error::{CommError, Fate};
use crate::lock;
use crate::store::StoreError;
use bucketeer_cuda::nccl::{Comm, InitOptions, NcclError, UniqueId};
use bucketeer_types::GlobalRank;
use serde::{Deserialize, Serialize};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// What a member says when it comes.
#[derive(Serialize, Deserialize)]
struct Here {
    nccl: String,
    members: String,
}

/// Of what comes before all launches.
fn place() -> LaunchSite {
    LaunchSite { op: CONNECT.to_owned(), seq: 0, pair: None }
}

/// Longest pause between two looks at the store.
const MOST_PAUSE: Duration = Duration::from_millis(20);

impl World {
    /// The group's communicator; the first call makes it, which waits for all members.
    pub(super) fn connected(&self, channel: &Channel) -> Result<Comm, CommError> {
        if let Some(comm) = &lock(&channel.state).comm {
            return Ok(comm.clone());
        }
        // One thread of this rank at a time.
        let _turn = self.connecting.lock().unwrap_or_else(PoisonError::into_inner);
        self.whole(channel, CONNECT)?;
        if let Some(comm) = &lock(&channel.state).comm {
            return Ok(comm.clone());
        }
        match self.connect(channel) {
            Ok(comm) => {
                let mut state = lock(&channel.state);
                if state.broken.is_none() {
                    state.comm = Some(comm.clone());
                    return Ok(comm);
                }
                drop(state);
                // Given up in the meantime.
                let _ = comm.abort();
                self.whole(channel, CONNECT).map(|()| comm)
            }
            Err(verdict) => Err(self.fail(channel, verdict).describe(&channel.name())),
        }
    }

    fn connect(&self, channel: &Channel) -> Result<Comm, GroupFailure> {
        let group = &channel.group;
        let (nccl, store) = (&self.nccl, &self.store);
        let lost = |error: StoreError| self.store_failure(channel, &error);
        let id_key = channel.key_of_list("id");
        if group.place() == 0 {
            let id = nccl.unique_id().map_err(|error| channel.own_failure(&text(&error)))?;
            store.set(&id_key, &id.to_bytes()).map_err(lost)?;
        }
        let here = Here { nccl: nccl.version().to_string(), members: told_members(group.members()) };
        let line = serde_json::to_vec(&here).unwrap_or_default();
        store.set(&channel.key_of_rank("here", channel.own()), &line).map_err(lost)?;

        let keys: Vec<String> = group.members().iter().map(|rank| channel.key_of_rank("here", *rank)).collect();
        let theirs = self.meet(channel, &keys, |at| group.members()[at])?;
        self.compare(channel, &here, &theirs)?;
        let id = self.meet(channel, &[id_key], |_| group.members()[0])?;
        let id = id.first().and_then(|id| <[u8; 128]>::try_from(&id[..]).ok());
        let id = id.ok_or_else(|| channel.own_failure(&"the name of the communicator in the store is none"))?;
        let options = InitOptions { timeout: self.options.timeout, blocking: false };
        let rank = (group.rank().0, group.size() as u32);
        // The watchdog sees who is gone, and how long it takes; it gives the group up, and that ends the wait in NCCL.
        channel.enter(Some(place()), self.options.timeout);
        let whole = || lock(&channel.state).broken.is_none();
        let made = nccl.comm_while(&self.context, rank, &UniqueId::from_bytes(id), &options, &whole);
        let made = made.map_err(|error| self.cause_of(channel, &error, place()));
        channel.leave();
        made
    }

    /// The verdict on an error of NCCL's. Where that may be another rank's fault, the watchdog finds out whose.
    pub(super) fn cause_of(&self, channel: &Channel, error: &NcclError, place: LaunchSite) -> GroupFailure {
        let reason = text(error);
        match error {
            NcclError::Closed { .. } => {}
            NcclError::Timeout { timeout, .. } => channel.raise(Cause::Late { place, waited: *timeout }),
            _ if is_elsewhere(error) => channel.raise(Cause::Failed { reason: reason.clone(), elsewhere: true }),
            _ => return channel.own_failure(&reason),
        }
        let (start, limit) = (Instant::now(), backstop(self.options.grace));
        while start.elapsed() < limit {
            if let Some(verdict) = lock(&channel.state).broken.clone() {
                return verdict;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        GroupFailure::Failed { rank: channel.own(), reason, elsewhere: true }
    }

    /// That nothing is wrong with a group so far. What is, is in the flight record then.
    pub(super) fn whole(&self, channel: &Channel, op: &'static str) -> Result<(), CommError> {
        channel.check_whole(op).inspect_err(|_| {
            let state = lock(&channel.state);
            let departed = state.departed.map(|(rank, fate)| GroupFailure::Remote { rank, fate, after: None });
            let verdict = state.broken.clone().or(departed);
            drop(state);
            if let Some(verdict) = verdict {
                self.dump(channel, &verdict, Vec::new());
            }
        })
    }

    /// Waits for keys that members set; `of` says which.
    pub(super) fn meet(
        &self,
        channel: &Channel,
        keys: &[String],
        of: impl Fn(usize) -> GlobalRank,
    ) -> Result<Vec<Vec<u8>>, GroupFailure> {
        let start = Instant::now();
        let mut found: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
        let mut pause = Duration::from_millis(1);
        loop {
            let open: Vec<usize> = (0..keys.len()).filter(|at| found[*at].is_none()).collect();
            if open.is_empty() {
                return Ok(found.into_iter().flatten().collect());
            }
            let mut asked: Vec<String> = open.iter().map(|at| keys[*at].clone()).collect();
            asked.push(channel.key_of_list("verdict"));
            let mut values = self.store.get(&asked).map_err(|error| self.store_failure(channel, &error))?;
            if let Some(verdict) = values.pop().flatten().and_then(|text| serde_json::from_slice(&text).ok()) {
                return Err(verdict);
            }
            let mut came = false;
            for (at, value) in open.into_iter().zip(values) {
                came |= value.is_some();
                found[at] = value;
            }
            if came {
                continue;
            }
            let missing: Vec<GlobalRank> = (0..keys.len()).filter(|at| found[*at].is_none()).map(&of).collect();
            if let Some((rank, fate)) = self.store.gone().into_iter().find(|(rank, _)| missing.contains(rank)) {
                return Err(GroupFailure::Remote { rank, fate, after: None });
            }
            let waited = start.elapsed();
            if waited >= self.options.timeout {
                let arrived = channel.members().into_iter().filter(|rank| !missing.contains(rank)).collect();
                let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                return Err(GroupFailure::Timeout { place: place(), waited_ms, arrived, missing });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }

    /// That all members mean the same.
    fn compare(&self, channel: &Channel, own: &Here, theirs: &[Vec<u8>]) -> Result<(), GroupFailure> {
        for (at, (rank, text)) in channel.group.members().iter().zip(theirs).enumerate() {
            let found: Option<Here> = serde_json::from_slice(text).ok();
            let found = found.ok_or_else(|| channel.own_failure(&"what a member says in the store is not known"))?;
            let differs = if found.members != own.members {
                Some(("members", (own.members.clone(), found.members)))
            } else if found.nccl != own.nccl {
                Some(("NCCL version", (own.nccl.clone(), found.nccl)))
            } else {
                None
            };
            if let Some((what, values)) = differs {
                let (between, values) = match at < channel.group.place() {
                    true => (vec![*rank, channel.own()], (values.1, values.0)),
                    false => (vec![channel.own(), *rank], values),
                };
                return Err(GroupFailure::Mismatch { place: place(), what: what.to_owned(), between, values });
            }
        }
        Ok(())
    }

    /// What it means when the store fails.
    pub(super) fn store_failure(&self, channel: &Channel, error: &StoreError) -> GroupFailure {
        match self.store.gone().into_iter().find(|(rank, fate)| *rank != channel.own() && *fate != Fate::Left) {
            Some((rank, fate)) => GroupFailure::Remote { rank, fate, after: None },
            None => GroupFailure::Failed { rank: channel.own(), reason: text(error), elsewhere: true },
        }
    }
}
