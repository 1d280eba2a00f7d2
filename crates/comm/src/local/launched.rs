//! What this rank launched: rounds of its meetings with others.

use super::hook::{Action, Phase, Point};
use super::meeting::Meeting;
use super::round::Round;
use super::world::World;
use crate::error::{CommError, Fate};
use crate::ticket::Pending;
use bucketeer_types::GlobalRank;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The rounds of one launch.
pub struct Launched {
    world: Arc<World>,
    meeting: Arc<Meeting>,
    rank: GlobalRank,
    /// With the name of this rank's part in each.
    rounds: Vec<(&'static str, Arc<Round>)>,
    /// Whether the hook was asked after the call.
    probed: AtomicBool,
}

impl Launched {
    pub fn new(
        world: Arc<World>,
        meeting: Arc<Meeting>,
        rank: GlobalRank,
        rounds: Vec<(&'static str, Arc<Round>)>,
    ) -> Self {
        Self { world, meeting, rank, rounds, probed: AtomicBool::new(false) }
    }

    fn probe_after(&self) -> Result<(), CommError> {
        let Some(hook) = &self.world.options.hook else { return Ok(()) };
        if self.probed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        for (op, round) in &self.rounds {
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

impl Pending for Launched {
    fn wait(&self, start: Instant, timeout: Duration) -> Result<(), CommError> {
        let deadline = start.checked_add(timeout);
        for (op, round) in &self.rounds {
            self.world.help(round, deadline);
            self.meeting.wait(round, deadline, start).map_err(|error| error.of(op))?;
        }
        self.probe_after()
    }

    fn is_done(&self) -> bool {
        self.rounds.iter().all(|(_, round)| round.has_ended())
    }

    fn sequence_number(&self) -> Option<u64> {
        self.rounds.first().map(|(_, round)| round.seq())
    }
}
