//! A rank's hold on what it launched.

use super::hook::{Action, Phase, Point};
use super::meeting::Meeting;
use super::round::Round;
use super::world::World;
use crate::error::{CommError, Fate, Site};
use crate::work::Completion;
use bucketeer_types::GlobalRank;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

struct Launched {
    rounds: Vec<(&'static str, Arc<Round>)>,
    at: Instant,
    timeout: Duration,
}

/// One launch: a call, or a coalescing block.
pub struct Ticket {
    world: Arc<World>,
    meeting: Arc<Meeting>,
    rank: GlobalRank,
    /// Empty while a coalescing block is open.
    launched: OnceLock<Result<Launched, CommError>>,
    /// Whether the hook was asked after the call.
    probed: AtomicBool,
}

impl Ticket {
    pub fn new(world: Arc<World>, meeting: Arc<Meeting>, rank: GlobalRank) -> Self {
        Self { world, meeting, rank, launched: OnceLock::new(), probed: AtomicBool::new(false) }
    }

    /// Says which rounds were launched, each with the name of this rank's part in it, or why none could be; passes the
    /// error on. A ticket is launched once, by whoever made it.
    pub fn launch(
        &self,
        rounds: Result<Vec<(&'static str, Arc<Round>)>, CommError>,
        timeout: Duration,
    ) -> Result<(), CommError> {
        let result = rounds.as_ref().map(drop).map_err(Clone::clone);
        let _ = self.launched.set(rounds.map(|rounds| Launched { rounds, at: Instant::now(), timeout }));
        result
    }

    fn probe_after(&self, launched: &Launched) -> Result<(), CommError> {
        let Some(hook) = &self.world.options.hook else { return Ok(()) };
        if self.probed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        for (op, round) in &launched.rounds {
            let (rank, group) = (self.rank, &*self.meeting.name);
            match hook(&Point { rank, group, op, seq: round.seq(), phase: Phase::After }) {
                Action::Go => {}
                Action::Stall(time) => std::thread::sleep(time),
                Action::Kill => {
                    self.world.leave(rank, Fate::Killed);
                    return Err(CommError::Remote { site: round.site(), rank, fate: Fate::Killed }.of(op));
                }
            }
        }
        Ok(())
    }
}

impl Completion for Ticket {
    fn wait(&self, timeout: Option<Duration>) -> Result<(), CommError> {
        let Some(launched) = self.launched.get() else {
            let site = Site { group: self.meeting.name.clone(), op: "wait", seq: None };
            let reason = crate::OPEN_BLOCK.to_owned();
            return Err(CommError::Invalid { site, reason });
        };
        let launched = launched.as_ref().map_err(Clone::clone)?;
        let (start, timeout) = match timeout {
            Some(timeout) => (Instant::now(), timeout),
            None => (launched.at, launched.timeout),
        };
        let deadline = start.checked_add(timeout);
        for (op, round) in &launched.rounds {
            self.world.help(round, deadline);
            self.meeting.wait(round, deadline, start).map_err(|error| error.of(op))?;
        }
        self.probe_after(launched)
    }

    fn is_done(&self) -> bool {
        match self.launched.get() {
            None => false,
            Some(Err(_)) => true,
            Some(Ok(launched)) => launched.rounds.iter().all(|(_, round)| round.has_ended()),
        }
    }

    fn sequence_number(&self) -> Option<u64> {
        self.launched.get()?.as_ref().ok()?.rounds.first().map(|(_, round)| round.seq())
    }
}
