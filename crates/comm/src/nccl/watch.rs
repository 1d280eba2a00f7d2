//! The watchdog: ends what is over, sees what is wrong, finds out whose fault it is, and gives the group up.

use super::World;
use super::channel::{Cause, Channel, is_elsewhere, text};
use super::verdict::{GroupFailure, LaunchSite, Report, View, decide};
use crate::error::Fate;
use crate::lock;
use crate::nccl::NcclError;
use crate::store::{MAX_REPLY_BYTES, MAX_VALUE_BYTES};
use bucketeer_types::GlobalRank;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// What is asked of the watchdog.
#[derive(Default)]
pub struct Bell {
    pub stop: bool,
    pub stopped: bool,
}

/// Keeps looking until it is stopped.
pub fn watch(world: &World) {
    let mut asked = Instant::now();
    loop {
        {
            let bell = lock(&world.bell.0);
            let waited = world.bell.1.wait_timeout_while(bell, world.options.poll, |bell| !bell.stop);
            let (mut bell, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if bell.stop {
                bell.stopped = true;
                drop(bell);
                world.bell.1.notify_all();
                return;
            }
        }
        let channels: Vec<Arc<Channel>> = lock(&world.channels).iter().filter(|it| it.is_open()).cloned().collect();
        channels.iter().for_each(|channel| channel.look());
        if asked.elapsed() >= world.options.store_poll || channels.iter().any(|channel| channel.is_in_trouble()) {
            world.ask_store(&channels);
            asked = Instant::now();
        }
        channels.iter().for_each(|channel| world.progress(channel));
    }
}

impl Channel {
    fn is_open(&self) -> bool {
        lock(&self.state).broken.is_none()
    }

    fn is_in_trouble(&self) -> bool {
        lock(&self.state).trouble.is_some()
    }

    /// Whether work on the device has ended, failed, or takes too long.
    fn look(&self) {
        self.reap();
        let comm = {
            let state = lock(&self.state);
            if state.flying.is_empty() && state.entered.is_none() {
                return;
            }
            state.comm.clone()
        };
        match comm.map(|comm| comm.check()) {
            Some(Err(NcclError::Closed { .. }) | Ok(())) | None => {}
            Some(Err(error)) => {
                return self.raise(Cause::Failed { reason: text(&error), elsewhere: is_elsewhere(&error) });
            }
        }
        let late = lock(&self.state).late(Instant::now());
        if let Some((place, waited)) = late {
            self.raise(Cause::Late { place, waited });
        }
    }
}

impl World {
    /// Whether others gave a verdict, ask, or are gone.
    fn ask_store(&self, channels: &[Arc<Channel>]) {
        if channels.is_empty() {
            return;
        }
        let keys: Vec<String> =
            channels.iter().flat_map(|channel| [channel.key_of_list("verdict"), channel.key_of_list("ask")]).collect();
        let values = match self.store.get(&keys) {
            Ok(values) => values,
            Err(error) => {
                for channel in channels.iter().filter(|channel| lock(&channel.state).waits_for_gone(None)) {
                    let verdict = self.store_failure(channel, &error);
                    self.settle(channel, &verdict);
                }
                return;
            }
        };
        let gone = self.store.gone();
        for (channel, found) in channels.iter().zip(values.chunks_exact(2)) {
            let verdict = found[0].as_ref().and_then(|text| serde_json::from_slice(text).ok());
            if let Some(verdict) = verdict {
                self.settle(channel, &verdict);
            } else if found[1].is_some() {
                channel.raise(Cause::Asked);
            } else if let Some(&(rank, fate)) = gone.iter().find(|(rank, _)| channel.group.members().contains(rank)) {
                let mut state = lock(&channel.state);
                state.departed.get_or_insert((rank, fate));
                let waits = state.waits_for_gone(Some(fate));
                drop(state);
                if waits {
                    channel.raise(Cause::Gone);
                }
            }
        }
    }

    /// Tells others of a trouble, hears them, and decides when enough is known.
    fn progress(&self, channel: &Channel) {
        let (told, since, own_cause) = match &mut lock(&channel.state).trouble {
            Some(trouble) => (
                std::mem::replace(&mut trouble.told, true),
                trouble.since.elapsed(),
                !matches!(trouble.cause, Cause::Asked | Cause::Gone),
            ),
            None => return,
        };
        if !told {
            let report = serde_json::to_vec(&channel.report()).unwrap_or_default();
            // What cannot be told is not heard, and others decide without it.
            let _ = self.store.set(&channel.key_of_rank("report", channel.own()), &report);
            if own_cause {
                let _ = self.store.set_once(&channel.key_of_list("ask"), channel.own().0.to_string().as_bytes());
            }
        }
        self.hear(channel);
        let gone = self.store.gone();
        let Some(verdict) = self.decided(channel, since, &gone) else { return };
        let agreed = self.agree(channel, verdict);
        self.settle(channel, &agreed);
    }

    /// Takes in what others report.
    fn hear(&self, channel: &Channel) {
        let open: Vec<usize> = match &lock(&channel.state).trouble {
            Some(trouble) => (0..trouble.reports.len()).filter(|at| trouble.reports[*at].is_none()).collect(),
            None => return,
        };
        let mut values = Vec::with_capacity(open.len());
        for some in open.chunks(MAX_REPLY_BYTES / MAX_VALUE_BYTES) {
            let members = channel.group.members();
            let keys: Vec<String> = some.iter().map(|at| channel.key_of_rank("report", members[*at])).collect();
            let Ok(found) = self.store.get(&keys) else { break };
            values.extend(found);
        }
        if let Some(trouble) = &mut lock(&channel.state).trouble {
            for (at, value) in open.into_iter().zip(values) {
                trouble.reports[at] = value.and_then(|text| serde_json::from_slice(&text).ok());
            }
        }
    }

    /// The verdict, when all have answered or had time to.
    fn decided(&self, channel: &Channel, since: Duration, gone: &[(GlobalRank, Fate)]) -> Option<GroupFailure> {
        let mut state = lock(&channel.state);
        let idle = !state.waits_for_gone(state.departed.map(|(_, fate)| fate));
        let trouble = state.trouble.as_mut()?;
        let grace = self.options.grace;
        let is_gone = |rank: &GlobalRank| gone.iter().any(|(other, _)| other == rank);
        let members = channel.group.members();
        let heard = members.iter().zip(&trouble.reports).all(|(rank, report)| report.is_some() || is_gone(rank));
        let late = match &trouble.cause {
            Cause::Late { place, waited } => Some((place.clone(), *waited)),
            _ => None,
        };
        match trouble.cause {
            // What was there already still arrives.
            Cause::Gone if since < grace => return None,
            Cause::Gone if idle => {
                state.trouble = None;
                return None;
            }
            // Whoever asked decides, unless it goes, too.
            Cause::Asked if since < grace.saturating_mul(4) => return None,
            Cause::Late { .. } | Cause::Failed { .. } if !heard && since < grace => return None,
            // What the library says may be the end of a rank whom the store does not miss yet.
            Cause::Failed { elsewhere: true, .. } if since < grace && !members.iter().any(is_gone) => {
                let view = View { members, own: channel.group.place(), reports: &trouble.reports, gone, late };
                let verdict = decide(&view);
                return (!matches!(verdict, GroupFailure::Failed { elsewhere: true, .. })).then_some(verdict);
            }
            _ => {}
        }
        Some(decide(&View { members, own: channel.group.place(), reports: &trouble.reports, gone, late }))
    }

    /// The first verdict in the store, which may be another rank's; this one when the store is gone.
    pub(super) fn agree(&self, channel: &Channel, own: GroupFailure) -> GroupFailure {
        let text = serde_json::to_vec(&own).unwrap_or_default();
        let first = self.store.set_once(&channel.key_of_list("verdict"), &text);
        first.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or(own)
    }

    /// Gives the group up for a verdict that a caller is told, so that it is in the flight record. Returns what all agree on.
    pub(super) fn fail(&self, channel: &Channel, verdict: GroupFailure) -> GroupFailure {
        let agreed = self.agree(channel, verdict);
        self.break_off(channel, &agreed);
        self.dump(channel, &agreed, Vec::new());
        agreed
    }

    /// Gives the group up for a verdict, but for what a rank that left in order had done with, as long as that arrives.
    pub(super) fn settle(&self, channel: &Channel, verdict: &GroupFailure) {
        if let GroupFailure::Remote { rank, fate, after: Some(after) } = verdict
            && *rank != channel.own()
        {
            let mut state = lock(&channel.state);
            state.departed = Some((*rank, *fate));
            // This is asked again while something arrives.
            let since = *state.departing.get_or_insert_with(Instant::now);
            let arrives = |place: &LaunchSite| place.pair.is_none() && place.seq < *after;
            let first = state.flying.front().map(|ticket| ticket.places());
            if first.is_none_or(|places| places.iter().all(arrives)) && since.elapsed() < self.options.grace {
                return;
            }
        }
        self.break_off(channel, verdict);
    }

    /// Gives the group up for a verdict: all that is on its way fails.
    pub(super) fn break_off(&self, channel: &Channel, verdict: &GroupFailure) {
        let (failing, fails, reports) = {
            let state = lock(&channel.state);
            if state.broken.is_some() {
                return;
            }
            let fails = !state.flying.is_empty() || state.entered.is_some();
            let reports = state.trouble.as_ref().map(|trouble| trouble.reports.clone());
            (state.flying.clone(), fails, reports)
        };
        // Before anyone hears of it: whoever does may end the process. Nothing fails when a rank leaves that nobody waits for.
        if fails || !matches!(verdict, GroupFailure::Remote { fate: Fate::Left, .. }) {
            failing.iter().for_each(|ticket| ticket.note_failure());
            self.dump(channel, verdict, reports.unwrap_or_default());
        }
        let (failing, comm) = {
            let mut state = lock(&channel.state);
            if state.broken.is_some() {
                return;
            }
            state.broken = Some(verdict.clone());
            state.trouble = None;
            (std::mem::take(&mut state.flying), state.comm.take())
        };
        // Released before anything that may take time.
        failing.iter().for_each(|ticket| ticket.fail(verdict));
        if let Some(comm) = comm {
            // Gone whether or not NCCL is content.
            let _ = comm.abort();
        }
    }

    /// Writes the flight record for a failure of a group, once.
    pub(super) fn dump(&self, channel: &Channel, verdict: &GroupFailure, reports: Vec<Option<Report>>) {
        let Some(folder) = &self.options.flight_records else { return };
        if matches!(verdict, GroupFailure::Remote { rank, fate: Fate::Left, .. } if *rank == channel.own()) {
            return;
        }
        let named: serde_json::Map<String, serde_json::Value> = channel
            .group
            .members()
            .iter()
            .zip(reports)
            .filter_map(|(rank, report)| Some((rank.0.to_string(), serde_json::to_value(report?).ok()?)))
            .collect();
        // The error itself reaches the caller either way.
        let mut record = lock(&self.record);
        if record.fail(channel.name(), verdict, &named.into()) {
            let _ = record.write(folder);
        }
    }
}
