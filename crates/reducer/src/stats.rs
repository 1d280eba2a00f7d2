//! What a reducer can say of itself: the fields of c10d's logger, and what messages cost.

use crate::timeline::Timeline;
use std::time::Duration;

/// Steps that times are averaged over: the first ten, then each hundredth, as c10d does.
const fn is_sampled(step: u64) -> bool {
    step <= 10 || step.is_multiple_of(100)
}

/// Times of sampled steps, on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Averages {
    /// How many steps were sampled.
    pub sampled_steps: u64,
    /// From the start of the step to the first gradient: the forward, and what of backward comes before.
    pub forward: Duration,
    /// From the first gradient to the last.
    pub backward: Duration,
    /// From the first launch to the end of the step.
    pub communication: Duration,
    /// From the first launch to the last gradient: what backward hides of it.
    pub overlap: Duration,
}

/// What is known of a reducer's steps so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Steps that were finished and reduced.
    pub reduced_steps: u64,
    /// Bytes of the buckets of the first step, in the order of launches.
    pub initial_bucket_bytes: Vec<u64>,
    /// Bytes of the buckets that were made again, if they were.
    pub rebuilt_bucket_bytes: Option<Vec<u64>>,
    /// Parameters in the order in which their gradients became ready in the last step.
    pub ready_order: Vec<usize>,
    /// Bytes of the parameters that were not used here in the last step.
    pub unused_bytes: u64,
    /// Whether every step so far used the same parameters here, so that a static graph would do.
    pub can_be_static: bool,
    /// Gradients that came with other strides than their parameter has, which costs a second copy.
    pub reordered_gradients: u64,
    /// Times.
    pub averages: Averages,
    /// The failure that broke the reducer; or one of a step that was not waited for, found when the group changed.
    pub error: Option<String>,
}

/// What is summed up for [`Stats`].
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    pub steps: u64,
    pub initial_bucket_bytes: Vec<u64>,
    pub rebuilt_bucket_bytes: Option<Vec<u64>>,
    pub ready_order: Vec<usize>,
    pub unused: Vec<usize>,
    changed: bool,
    pub reordered: u64,
    sampled: u64,
    forward: Duration,
    backward: Duration,
    communication: Duration,
    overlap: Duration,
}

impl Gathered {
    /// Adds a step, with the parameters that this rank did not use in it.
    pub fn add(&mut self, timeline: &Timeline, unused: Vec<usize>, order: &[usize], reordered: u64) {
        self.steps += 1;
        self.changed |= self.steps > 1 && unused != self.unused;
        self.unused = unused;
        self.ready_order = order.to_vec();
        self.reordered += reordered;
        if !is_sampled(self.steps) {
            return;
        }
        let first = timeline.first_mark().unwrap_or_default();
        self.sampled += 1;
        self.forward += first;
        self.backward += timeline.last_mark().unwrap_or_default().saturating_sub(first);
        self.communication += timeline.first_launch().map_or(Duration::ZERO, |at| timeline.finished.saturating_sub(at));
        self.overlap += timeline.overlap();
    }

    /// The averages, and whether the graph may be static.
    pub fn averages(&self) -> Averages {
        let mean = |sum: Duration| sum.checked_div(self.sampled.try_into().unwrap_or(u32::MAX)).unwrap_or_default();
        Averages {
            sampled_steps: self.sampled,
            forward: mean(self.forward),
            backward: mean(self.backward),
            communication: mean(self.communication),
            overlap: mean(self.overlap),
        }
    }

    pub const fn can_be_static(&self) -> bool {
        self.steps > 0 && !self.changed
    }
}
