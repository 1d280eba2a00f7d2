//! What this rank launched: calls in the hands of the engine.

use super::flight::Outcome;
use super::thread::{Shared, pause};
use crate::error::CommError;
use crate::lock;
use crate::ticket::Pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A call of a launch.
pub struct Part {
    pub id: u64,
    pub seq: u64,
    pub outcome: Outcome,
}

/// The calls of one launch.
pub struct Launched {
    shared: Arc<Shared>,
    parts: Vec<Part>,
}

impl Launched {
    pub const fn new(shared: Arc<Shared>, parts: Vec<Part>) -> Self {
        Self { shared, parts }
    }

    /// Moves what there is until the call ends, or for too long.
    fn wait_for(&self, part: &Part, start: Instant, deadline: Option<Instant>) -> Result<(), CommError> {
        let mut idle = 0;
        loop {
            if let Some(result) = part.outcome.get() {
                return result.clone();
            }
            let mut engine = lock(&self.shared.engine);
            let moved = engine.progress();
            if part.outcome.get().is_none() && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                engine.time_out(part.id, start.elapsed());
            }
            drop(engine);
            self.shared.looks.fetch_add(1, Ordering::Relaxed);
            idle = if moved { 0 } else { idle + 1 };
            if part.outcome.get().is_none() {
                pause(idle);
            }
        }
    }
}

impl Pending for Launched {
    fn wait(&self, start: Instant, timeout: Duration) -> Result<(), CommError> {
        let deadline = start.checked_add(timeout);
        self.parts.iter().try_for_each(|part| self.wait_for(part, start, deadline))
    }

    fn is_done(&self) -> bool {
        let ended = || self.parts.iter().all(|part| part.outcome.get().is_some());
        ended() || {
            lock(&self.shared.engine).progress();
            ended()
        }
    }

    fn sequence_number(&self) -> Option<u64> {
        self.parts.first().map(|part| part.seq)
    }
}
