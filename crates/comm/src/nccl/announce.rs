//! Do all ranks launch the same, in the same order? Asked before anything is launched.
//!
//! Two ranks have to agree on what they launch on the groups that both are in, in one order across these groups: each
//! group has a stream, but kernels that wait for one another share the device. So for each set of groups that this rank shares
//! with another there is one digest. Ranks that agree compare a few bytes; only where digests differ are lists compared.

#![expect(clippy::result_large_err, reason = "once for each group; a verdict is what it is all about")]

use super::World;
use super::channel::{Channel, fnv};
use super::verdict::{GroupFailure, LaunchSite};
use crate::backend::Announced;
use crate::call::Op;
use crate::compare::{Side, difference};
use crate::error::CommError;
use crate::lock;
use crate::signature::{CallSignature, Described};
use crate::store::MAX_VALUE_BYTES;
use bucketeer_types::GlobalRank;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One launch, as two ranks see it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SharedLaunch {
    group: String,
    /// Sends and receives between the two are told by their sender.
    calls: Vec<CallSignature>,
    pairs: Vec<(u32, u32, u64)>,
}

/// What this rank launches on groups that it shares with some others.
struct Shared {
    /// The key of their digests and lists, without the rank.
    key: String,
    channels: Vec<Arc<Channel>>,
    others: Vec<GlobalRank>,
    /// The other rank, where sends and receives between the two count.
    pair: Option<GlobalRank>,
}

impl Shared {
    fn digest_of(&self, rank: GlobalRank) -> String {
        format!("{}/digest/{}", self.key, rank.0)
    }
}

impl World {
    /// See [`Backend::announce`](crate::Backend::announce).
    pub(super) fn announce(&self, launches: &[Announced]) -> Result<(), CommError> {
        let nth = self.announced.fetch_add(1, Ordering::Relaxed);
        let channels = lock(&self.channels).clone();
        let mut used: Vec<Arc<Channel>> = channels
            .into_iter()
            .filter(|channel| launches.iter().any(|launch| launch.group.is(&channel.group)))
            .collect();
        used.sort_by(|a, b| (a.group.name(), a.group.members()).cmp(&(b.group.name(), b.group.members())));
        let all = self.shared(nth, &used, launches);
        for shared in &all {
            let digest = fnv(&serde_json::to_vec(&steps(shared, launches)).unwrap_or_default());
            let set = self.store.set(&shared.digest_of(self.store.rank()), format!("{digest:016x}").as_bytes());
            set.map_err(|error| {
                let channel = &shared.channels[0];
                self.fail(channel, self.store_failure(channel, &error)).describe(channel.group.name())
            })?;
        }
        for shared in &all {
            let channel = &shared.channels[0];
            self.compare_shared(shared, launches)
                .map_err(|verdict| self.fail(channel, verdict).describe(channel.group.name()))?;
        }
        self.forget_digests(&all);
        // In one order on all ranks, so that no two wait for each other.
        used.iter().try_for_each(|channel| self.connected(channel).map(drop))
    }

    /// The sets of groups that this rank shares with others. Linear in members of groups.
    fn shared(&self, nth: u64, used: &[Arc<Channel>], launches: &[Announced]) -> Vec<Shared> {
        let own = self.store.rank();
        let mut of_rank: BTreeMap<GlobalRank, Vec<usize>> = BTreeMap::new();
        for (at, channel) in used.iter().enumerate() {
            for rank in channel.group.members().iter().filter(|rank| **rank != own) {
                of_rank.entry(*rank).or_default().push(at);
            }
        }
        let mut peers: BTreeSet<GlobalRank> = BTreeSet::new();
        for launch in launches {
            let ranks = launch.calls.iter().filter_map(|call| launch.group.global(call.op().peer()?));
            peers.extend(ranks);
        }
        let mut sets: BTreeMap<(Option<GlobalRank>, Vec<usize>), Vec<GlobalRank>> = BTreeMap::new();
        for (rank, groups) in of_rank {
            sets.entry((peers.contains(&rank).then_some(rank), groups)).or_default().push(rank);
        }
        let shared = |((pair, groups), others): ((Option<GlobalRank>, Vec<usize>), Vec<GlobalRank>)| {
            let channels: Vec<Arc<Channel>> = groups.iter().map(|at| used[*at].clone()).collect();
            let names: Vec<(&str, Vec<u32>)> = channels
                .iter()
                .map(|it| (it.group.name(), it.group.members().iter().map(|rank| rank.0).collect()))
                .collect();
            let mut which = format!("{:016x}", fnv(format!("{names:?}").as_bytes()));
            if let Some(other) = pair {
                which += &format!("-{}-{}", own.0.min(other.0), own.0.max(other.0));
            }
            Shared { key: format!("{}/announce/{nth}/{which}", self.options.name), channels, others, pair }
        };
        sets.into_iter().map(shared).collect()
    }

    /// Whoever has come this far has read what this rank announced before; else a world that announces often fills the store.
    fn forget_digests(&self, all: &[Shared]) {
        let met: BTreeSet<GlobalRank> = all.iter().flat_map(|shared| shared.others.iter().copied()).collect();
        let mut digests = lock(&self.digests);
        let (read, unread) = digests.drain(..).partition(|(_, others)| others.iter().all(|rank| met.contains(rank)));
        *digests = unread;
        digests.extend(all.iter().map(|shared| (shared.digest_of(self.store.rank()), shared.others.clone())));
        drop(digests);
        let read: Vec<(String, Vec<GlobalRank>)> = read;
        // One that stays does no harm.
        read.iter().for_each(|(key, _)| drop(self.store.remove(key)));
    }

    fn compare_shared(&self, shared: &Shared, launches: &[Announced]) -> Result<(), GroupFailure> {
        let channel = &shared.channels[0];
        let list_of = |rank: GlobalRank| format!("{}/list/{}", shared.key, rank.0);
        let own_steps = steps(shared, launches);
        let own = format!("{:016x}", fnv(&serde_json::to_vec(&own_steps).unwrap_or_default()));
        let keys: Vec<String> = shared.others.iter().map(|rank| shared.digest_of(*rank)).collect();
        let digests = self.meet(channel, &keys, |at| shared.others[at])?;
        let differs = digests.iter().position(|digest| digest != own.as_bytes());
        let Some(other) = differs.map(|at| shared.others[at]) else { return Ok(()) };
        let lost = |error| self.store_failure(channel, &error);
        self.store.set(&list_of(self.store.rank()), &list(&own_steps)).map_err(lost)?;
        let theirs = self.meet(channel, &[list_of(other)], |_| other)?;
        let theirs: Vec<SharedLaunch> =
            theirs.first().and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
        let ours: Vec<SharedLaunch> = serde_json::from_slice(&list(&own_steps)).unwrap_or_default();
        Err(first_difference(channel, self.store.rank(), other, (&ours, &theirs)))
    }
}

/// The launches of this rank that another of the set sees, in order.
fn steps(shared: &Shared, launches: &[Announced]) -> Vec<SharedLaunch> {
    let mut steps = Vec::new();
    for launch in launches {
        if !shared.channels.iter().any(|channel| channel.group.is(&launch.group)) {
            continue;
        }
        let (own, group) = (launch.group.rank().0, &launch.group);
        let mut step = SharedLaunch { group: group.name().to_owned(), calls: Vec::new(), pairs: Vec::new() };
        for call in &launch.calls {
            match (call.op(), call.op().peer()) {
                (_, None) => step.calls.push(CallSignature::of(call)),
                (op, Some(peer)) if shared.pair.is_some() && group.global(peer) == shared.pair => {
                    let (from, to) = if matches!(op, Op::Send { .. }) { (own, peer.0) } else { (peer.0, own) };
                    step.pairs.push((from, to, call.input_bytes().max(call.output_bytes())));
                }
                (_, Some(_)) => {}
            }
        }
        // They are in flight together, in whatever order they were called; those of one direction stay in theirs.
        step.pairs.sort_by_key(|(from, to, _)| (*from, *to));
        if !step.calls.is_empty() || !step.pairs.is_empty() {
            steps.push(digestible(step));
        }
    }
    steps
}

/// Without what may differ between ranks of one and the same collective: how an all-to-all is split.
fn digestible(mut step: SharedLaunch) -> SharedLaunch {
    step.calls = step.calls.into_iter().map(CallSignature::without_splits).collect();
    step
}

/// As much of a list as a store takes, from its start.
fn list(steps: &[SharedLaunch]) -> Vec<u8> {
    let mut text = vec![b'['];
    for step in steps {
        let one = serde_json::to_vec(step).unwrap_or_default();
        if text.len() + one.len() + 2 > MAX_VALUE_BYTES {
            break;
        }
        if text.len() > 1 {
            text.push(b',');
        }
        text.extend(one);
    }
    text.push(b']');
    text
}

fn first_difference(
    channel: &Channel,
    own: GlobalRank,
    other: GlobalRank,
    lists: (&[SharedLaunch], &[SharedLaunch]),
) -> GroupFailure {
    let (ours, theirs) = lists;
    let swap = own > other;
    let between = if swap { vec![other, own] } else { vec![own, other] };
    let verdict = |seq: usize, what: &str, values: (String, String)| GroupFailure::Mismatch {
        place: LaunchSite { op: "announce".to_owned(), seq: seq as u64, pair: None },
        what: what.to_owned(),
        between: between.clone(),
        values: if swap { (values.1, values.0) } else { values },
    };
    let at = ours.iter().zip(theirs).position(|(a, b)| a != b);
    let Some(at) = at else {
        let last = ours.len().min(theirs.len());
        return verdict(last, "number of launches", (ours.len().to_string(), theirs.len().to_string()));
    };
    let (a, b) = (&ours[at], &theirs[at]);
    let size = channel.group.size();
    if a.group == b.group && a.pairs == b.pairs && a.calls.len() == b.calls.len() {
        let sides = (Side { place: 0, calls: &a.calls[..] }, Side { place: 0, calls: &b.calls[..] });
        if let Some(found) = difference(sides.0, sides.1, size, true) {
            return verdict(at, found.what, (found.first, found.second));
        }
    }
    verdict(at, "order of launches", (told(a), told(b)))
}

/// A launch in words: `all_reduce sum f32 x 4 on G`.
fn told(step: &SharedLaunch) -> String {
    let mut parts: Vec<String> = step.calls.iter().map(ToString::to_string).collect();
    parts.extend(step.pairs.iter().map(|(from, to, bytes)| format!("{bytes} bytes from group rank {from} to {to}")));
    let more = parts.len().saturating_sub(MOST_PARTS);
    parts.truncate(MOST_PARTS);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest} on {}", parts.join(" + "), step.group)
}

const MOST_PARTS: usize = 4;
