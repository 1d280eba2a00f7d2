//! A rank's hold on what it launched.

use super::error::{CommError, Site};
use super::group::Group;
use super::work::Completion;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const OPEN_BLOCK: &str = "the call is part of a coalescing block that has not been ended";

/// What a backend keeps of a launch.
pub trait Pending: Send + Sync {
    /// Blocks until it has ended, or fails it when the time since `start` is over.
    ///
    /// # Errors
    /// Those of [`Work::wait`](super::Work::wait).
    fn wait(&self, start: Instant, timeout: Duration) -> Result<(), CommError>;

    /// See [`Work::is_done`](super::Work::is_done).
    fn is_done(&self) -> bool;

    /// The number of its first call.
    fn sequence_number(&self) -> Option<u64>;
}

/// One launch: a call, or a coalescing block.
pub struct Ticket<P> {
    group: Arc<str>,
    /// Empty while a coalescing block is open.
    outcome: OnceLock<Result<Option<Launch<P>>, CommError>>,
}

struct Launch<P> {
    pending: P,
    at: Instant,
    timeout: Duration,
}

impl<P> Ticket<P> {
    /// Of what is to be launched on a group.
    pub fn new(group: &Group) -> Arc<Self> {
        Arc::new(Self { group: group.shared_name(), outcome: OnceLock::new() })
    }

    /// Notes what was launched, which is nothing for an empty block, or why nothing could be. Passes the error on. Only
    /// the first note counts.
    ///
    /// # Errors
    /// Why nothing could be launched.
    pub fn launched(&self, pending: Result<Option<P>, CommError>, timeout: Duration) -> Result<(), CommError> {
        let result = pending.as_ref().map(drop).map_err(Clone::clone);
        let launch = |pending| Launch { pending, at: Instant::now(), timeout };
        let _ = self.outcome.set(pending.map(|pending| pending.map(launch)));
        result
    }
}

impl<P: Pending> Completion for Ticket<P> {
    fn wait(&self, timeout: Option<Duration>) -> Result<(), CommError> {
        let Some(outcome) = self.outcome.get() else {
            let site = Site { group: self.group.clone(), op: "wait", seq: None };
            return Err(CommError::Invalid { site, reason: OPEN_BLOCK.to_owned() });
        };
        match (outcome.as_ref().map_err(Clone::clone)?, timeout) {
            (None, _) => Ok(()),
            (Some(launch), Some(timeout)) => launch.pending.wait(Instant::now(), timeout),
            (Some(launch), None) => launch.pending.wait(launch.at, launch.timeout),
        }
    }

    fn is_done(&self) -> bool {
        match self.outcome.get() {
            None => false,
            Some(Ok(Some(launch))) => launch.pending.is_done(),
            Some(Ok(None) | Err(_)) => true,
        }
    }

    fn sequence_number(&self) -> Option<u64> {
        self.outcome.get()?.as_ref().ok()?.as_ref()?.pending.sequence_number()
    }
}
