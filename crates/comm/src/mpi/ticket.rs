//! A rank's hold on what it launched.

use super::flight::Outcome;
use super::thread::{Shared, pause};
use crate::error::{CommError, Site};
use crate::lock;
use crate::work::Completion;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A call of a launch.
pub struct Part {
    pub id: u64,
    pub seq: u64,
    pub outcome: Outcome,
}

struct Launched {
    parts: Vec<Part>,
    at: Instant,
    timeout: Duration,
}

/// One launch: a call, or a coalescing block.
pub struct Ticket {
    shared: Arc<Shared>,
    group: Arc<str>,
    /// Empty while a coalescing block is open.
    launched: OnceLock<Result<Launched, CommError>>,
}

impl Ticket {
    pub fn new(shared: Arc<Shared>, group: Arc<str>) -> Arc<Self> {
        Arc::new(Self { shared, group, launched: OnceLock::new() })
    }

    /// Says what was launched, or why nothing could be; passes the error on. A ticket is launched once, by whoever made
    /// it.
    pub fn launch(&self, parts: Result<Vec<Part>, CommError>, timeout: Duration) -> Result<(), CommError> {
        let result = parts.as_ref().map(drop).map_err(Clone::clone);
        let _ = self.launched.set(parts.map(|parts| Launched { parts, at: Instant::now(), timeout }));
        result
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

impl Completion for Ticket {
    fn wait(&self, timeout: Option<Duration>) -> Result<(), CommError> {
        let Some(launched) = self.launched.get() else {
            let site = Site { group: self.group.clone(), op: "wait", seq: None };
            let reason = crate::OPEN_BLOCK.to_owned();
            return Err(CommError::Invalid { site, reason });
        };
        let launched = launched.as_ref().map_err(Clone::clone)?;
        let (start, timeout) = match timeout {
            Some(timeout) => (Instant::now(), timeout),
            None => (launched.at, launched.timeout),
        };
        let deadline = start.checked_add(timeout);
        launched.parts.iter().try_for_each(|part| self.wait_for(part, start, deadline))
    }

    fn is_done(&self) -> bool {
        match self.launched.get() {
            None => false,
            Some(Err(_)) => true,
            Some(Ok(launched)) => {
                let ended = || launched.parts.iter().all(|part| part.outcome.get().is_some());
                ended() || {
                    lock(&self.shared.engine).progress();
                    ended()
                }
            }
        }
    }

    fn sequence_number(&self) -> Option<u64> {
        self.launched.get()?.as_ref().ok()?.parts.first().map(|part| part.seq)
    }
}
