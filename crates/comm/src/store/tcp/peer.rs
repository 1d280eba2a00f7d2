//! One connection, as the store sees it.

use super::secret::Claim;
use super::wire::Frames;
use crate::store::kv_table::WaitId;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Counts up: who came earlier has the smaller number.
pub(super) type PeerId = usize;

/// Bytes that a peer may leave unread before nothing more is taken from it.
const PAUSE_UNREAD_BYTES: usize = 16 << 20;

/// What a request waits for.
pub(super) enum Want {
    Keys(WaitId),
    Ranks,
}

pub(super) enum Standing {
    /// It has not said who it is.
    Stranger { since: Instant },
    /// It has said so, and is to show that it has the secret.
    Claimed { claim: Claim, since: Instant },
    Rank {
        rank: u32,
        /// By the number of the request.
        waits: BTreeMap<u64, Want>,
    },
    /// It said goodbye, or was refused.
    Leaving { until: Instant },
}

pub(super) struct Peer {
    pub ip: String,
    pub standing: Standing,
    pub frames: Frames,
    /// What is to be sent.
    pub out: VecDeque<u8>,
    /// Requests may be left in `frames` until less waits to be sent.
    pub paused: bool,
    /// When there was a sign of life last.
    pub heard: Instant,
}

impl Peer {
    pub fn new(ip: String, now: Instant) -> Self {
        Self {
            ip,
            standing: Standing::Stranger { since: now },
            frames: Frames::default(),
            out: VecDeque::new(),
            paused: false,
            heard: now,
        }
    }

    /// Too much waits to be sent for anything more to be taken.
    pub fn is_paused(&self) -> bool {
        self.out.len() > PAUSE_UNREAD_BYTES
    }

    pub fn is_leaving(&self) -> bool {
        matches!(self.standing, Standing::Leaving { .. })
    }

    pub fn waits(&self) -> Option<&BTreeMap<u64, Want>> {
        match &self.standing {
            Standing::Rank { waits, .. } => Some(waits),
            _ => None,
        }
    }

    pub fn waits_mut(&mut self) -> Option<&mut BTreeMap<u64, Want>> {
        match &mut self.standing {
            Standing::Rank { waits, .. } => Some(waits),
            _ => None,
        }
    }
}
