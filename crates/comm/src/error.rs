//! What can go wrong between ranks, said so that one knows which rank to look at.

use super::buffer::BufferError;
use bucketeer_types::GlobalRank;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Which call an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Name of the group.
    pub group: Arc<str>,
    /// What was called: `all_reduce`.
    pub op: &'static str,
    /// How many calls this rank launched on the group before; for sends and receives, between the same two ranks.
    /// `None` when nothing was launched.
    pub seq: Option<u64>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}, {}", self.group, self.op)?;
        match self.seq {
            Some(seq) => write!(f, " #{seq}"),
            None => Ok(()),
        }
    }
}

/// How a rank went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Its handle was dropped.
    Left,
    /// Its handle was dropped while its thread panicked.
    Panicked,
    /// A fault hook killed it.
    Killed,
    /// Its process or machine went without a word.
    Lost,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Left => "dropped its handle",
            Self::Panicked => "panicked",
            Self::Killed => "was killed",
            Self::Lost => "went without a word",
        })
    }
}

/// Why a call, a wait or a group failed.
///
/// After any of these but [`Invalid`](Self::Invalid) and [`Buffer`](Self::Buffer) the group is broken: all its calls in
/// flight have failed, all later ones fail with [`Comm`](Self::Comm), and [`shrink`](super::Backend::shrink) makes one
/// that goes on without the ranks that [`culprits`](Self::culprits) names. What outputs hold is then not defined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommError {
    /// The arguments are wrong; nothing was launched.
    #[error("{site}: {reason}")]
    Invalid {
        /// Which call.
        site: Site,
        /// What was found, and what was expected.
        reason: String,
    },
    /// A buffer cannot be used; nothing was launched.
    #[error("{site}: {error}")]
    Buffer {
        /// Which call.
        site: Site,
        /// Why.
        error: BufferError,
    },
    /// Ranks call different things; nothing was moved.
    #[error(
        "{site}: ranks disagree on the {what}: rank {} has {}, rank {} has {}",
        ranks.0.0, values.0, ranks.1.0, values.1
    )]
    Mismatch {
        /// Which call.
        site: Site,
        /// What differs: `op`, `dtype`, `count`, `root`.
        what: &'static str,
        /// Two that disagree, in the group's order.
        ranks: (GlobalRank, GlobalRank),
        /// The value of each.
        values: Box<(String, String)>,
    },
    /// Not done in time.
    #[error("{site}: not done after {waited:?}; {}", arrivals(arrived, missing))]
    Timeout {
        /// Which call.
        site: Site,
        /// How long the rank waited that gave up first, from its launch or from its wait.
        waited: Duration,
        /// Ranks that had launched it.
        arrived: Vec<GlobalRank>,
        /// Ranks that had not.
        missing: Vec<GlobalRank>,
    },
    /// Another rank went away before the call was done.
    #[error("{site}: rank {} {fate}", rank.0)]
    Remote {
        /// Which call.
        site: Site,
        /// Who.
        rank: GlobalRank,
        /// How.
        fate: Fate,
    },
    /// A rank gave the group up.
    #[error("{site}: rank {} aborted the group", by.0)]
    Aborted {
        /// Which call.
        site: Site,
        /// Who.
        by: GlobalRank,
    },
    /// The library or the device under a rank failed.
    #[error("{site}: rank {} failed: {reason}", rank.0)]
    Failed {
        /// Which call.
        site: Site,
        /// Whose.
        rank: GlobalRank,
        /// What it says.
        reason: Arc<str>,
        /// Whether it says that the fault is another rank's, and not whose.
        elsewhere: bool,
    },
    /// The group is broken by an earlier error.
    #[error("{site}: the group is broken: {cause}")]
    Comm {
        /// Which call.
        site: Site,
        /// The first error of the group.
        cause: Arc<CommError>,
    },
}

fn arrivals(arrived: &[GlobalRank], missing: &[GlobalRank]) -> String {
    match missing {
        [] => "all ranks arrived, but the transfer did not end".to_owned(),
        _ => format!("{} did not arrive, {} did", ranks(missing), ranks(arrived)),
    }
}

/// `rank 3`, `ranks 0, 2 and 3`, or `none`; above 16 ranks, the first of them and how many there are.
pub(super) fn ranks(list: &[GlobalRank]) -> String {
    let name = |ranks: &[GlobalRank]| ranks.iter().map(|rank| rank.0.to_string()).collect::<Vec<_>>().join(", ");
    match list {
        [] => "none".to_owned(),
        [rank] => format!("rank {}", rank.0),
        [most @ .., last] if list.len() <= 16 => format!("ranks {} and {}", name(most), last.0),
        _ => format!("ranks {} and {} more", name(&list[..15]), list.len() - 15),
    }
}

impl CommError {
    /// Which call it is about.
    #[must_use]
    pub const fn site(&self) -> &Site {
        match self {
            Self::Invalid { site, .. }
            | Self::Buffer { site, .. }
            | Self::Mismatch { site, .. }
            | Self::Timeout { site, .. }
            | Self::Remote { site, .. }
            | Self::Aborted { site, .. }
            | Self::Failed { site, .. }
            | Self::Comm { site, .. } => site,
        }
    }

    /// The same for a rank that takes part under another name: the receiver of a send.
    pub(super) fn of(mut self, op: &'static str) -> Self {
        let (Self::Invalid { site, .. }
        | Self::Buffer { site, .. }
        | Self::Mismatch { site, .. }
        | Self::Timeout { site, .. }
        | Self::Remote { site, .. }
        | Self::Aborted { site, .. }
        | Self::Failed { site, .. }
        | Self::Comm { site, .. }) = &mut self;
        site.op = op;
        self
    }

    /// What another call of the group fails with, for this error.
    pub(super) fn at(self: &Arc<Self>, site: Site) -> Self {
        match **self {
            Self::Remote { rank, fate, .. } => Self::Remote { site, rank, fate },
            Self::Aborted { by, .. } => Self::Aborted { site, by },
            _ if *self.site() == site => (**self).clone(),
            _ => Self::Comm { site, cause: self.clone() },
        }
    }

    /// The ranks to go on without: those that did not arrive, or went away. Empty when no rank alone is at fault.
    #[must_use]
    pub fn culprits(&self) -> Vec<GlobalRank> {
        match self {
            Self::Timeout { missing, .. } => missing.clone(),
            Self::Remote { rank, .. } | Self::Failed { rank, elsewhere: false, .. } => vec![*rank],
            Self::Comm { cause, .. } => cause.culprits(),
            Self::Invalid { .. }
            | Self::Buffer { .. }
            | Self::Mismatch { .. }
            | Self::Failed { .. }
            | Self::Aborted { .. } => Vec::new(),
        }
    }
}
