//! Faults on request: what tests use to delay and kill ranks.

use bucketeer_types::GlobalRank;
use std::sync::Arc;
use std::time::Duration;

/// When a hook is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The rank is about to launch.
    Before,
    /// All have arrived and half of the tiles are being moved, or have been.
    During,
    /// The call is done, and the rank's wait is about to return.
    After,
}

/// Who is about to do what.
#[derive(Clone, Copy, Debug)]
pub struct Point<'a> {
    /// The rank.
    pub rank: GlobalRank,
    /// Name of the group.
    pub group: &'a str,
    /// What is called; `coalesced` for a block of several.
    pub op: &'static str,
    /// Its sequence number.
    pub seq: u64,
    /// When.
    pub phase: Phase,
}

/// What shall happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Go,
    /// A delay; during a transfer it ends early when the call fails.
    Stall(Duration),
    /// The rank is gone from then on, as if its process had died.
    Kill,
}

/// Decides what happens at each point. Called on the rank's own thread before and after, on any thread during.
pub type Hook = Arc<dyn Fn(&Point<'_>) -> Action + Send + Sync>;
