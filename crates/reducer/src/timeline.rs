//! When what happened in a step: marks, launches, and ends of waits.

use std::time::{Duration, Instant};

/// The times of a step, on this rank, since the step began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Number of the step, from 0.
    pub step: u64,
    /// When it began.
    pub started: Instant,
    /// When each parameter was marked; none for what was not.
    pub ready: Vec<Option<Duration>>,
    /// By bucket, in the order of launches.
    pub buckets: Vec<BucketTimes>,
    /// When all had come.
    pub finished: Duration,
}

/// The times of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTimes {
    /// Bytes that are sent.
    pub bytes: u64,
    /// None for one that was skipped.
    pub launched: Option<Duration>,
    /// When the wait for it ended: it may have come before.
    pub done: Option<Duration>,
}

impl Timeline {
    /// When the first gradient came.
    #[must_use]
    pub fn first_mark(&self) -> Option<Duration> {
        self.ready.iter().flatten().min().copied()
    }

    /// When the last gradient came.
    #[must_use]
    pub fn last_mark(&self) -> Option<Duration> {
        self.ready.iter().flatten().max().copied()
    }

    /// When the first bucket was launched.
    #[must_use]
    pub fn first_launch(&self) -> Option<Duration> {
        self.buckets.iter().filter_map(|bucket| bucket.launched).min()
    }

    /// How long messages were on their way while gradients still came: from the first launch to the last mark.
    #[must_use]
    pub fn overlap(&self) -> Duration {
        match (self.first_launch(), self.last_mark()) {
            (Some(launch), Some(mark)) => mark.saturating_sub(launch),
            _ => Duration::ZERO,
        }
    }

    /// How long the step went on after its last gradient: what messages cost beside backward.
    #[must_use]
    pub fn exposed(&self) -> Duration {
        self.last_mark().map_or(Duration::ZERO, |mark| self.finished.saturating_sub(mark))
    }
}
