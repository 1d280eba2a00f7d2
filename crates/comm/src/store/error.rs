//! What can go wrong with a store.

use crate::error::{Fate, ranks};
use bucketeer_types::GlobalRank;
use std::time::Duration;

/// Why a request to a store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be reached, or not any more.
    #[error("the store at {address} cannot be reached: {reason}")]
    Lost {
        /// Where it is.
        address: String,
        /// Why.
        reason: String,
    },
    /// The address cannot be listened on.
    #[error("no store can be opened at {address}: {reason}")]
    Open {
        /// Where it was to be.
        address: String,
        /// Why.
        reason: String,
    },
    /// Not all keys had a value in time.
    #[error("after {waited:?} the store has no {}", keys.join(", "))]
    Timeout {
        /// The keys that are missing; of many, the first.
        keys: Vec<String>,
        /// How long was waited.
        waited: Duration,
    },
    /// Not all ranks joined in time; or one went, so that they never will.
    #[error("{}", absence(missing, *missing_count, *world_size, *timeout, gone, refused))]
    Absent {
        /// The ranks that did not come; of many, the first.
        missing: Vec<GlobalRank>,
        /// How many did not come.
        missing_count: u32,
        /// Number of ranks.
        world_size: u32,
        /// The time that was given.
        timeout: Duration,
        /// Ranks that went before all had come; of many, the first.
        gone: Vec<(GlobalRank, Fate)>,
        /// Who was not let in, in words.
        refused: Vec<String>,
    },
    /// The store did not take the request, or the rank.
    #[error("the store at {address} refuses: {reason}")]
    Refused {
        /// Where it is.
        address: String,
        /// Why.
        reason: String,
    },
    /// A key, value or request is too long.
    #[error("a store takes {most} {what} at most, not {found}")]
    TooLarge {
        /// Of what: `bytes for a key`.
        what: String,
        /// How many bytes or keys.
        found: usize,
        /// How many are allowed.
        most: usize,
    },
    /// The environment does not say who this process is, or says so wrongly.
    #[error("{variable}: {reason}")]
    Environment {
        /// The variable.
        variable: String,
        /// What was found, and what was expected.
        reason: String,
    },
}

fn absence(
    missing: &[GlobalRank],
    missing_count: u32,
    world_size: u32,
    timeout: Duration,
    gone: &[(GlobalRank, Fate)],
    refused: &[String],
) -> String {
    let mut text = match gone {
        [] => format!("after {timeout:?} not all of {world_size} ranks are there"),
        _ => format!("not all of {world_size} ranks can be there"),
    };
    for (rank, fate) in gone {
        text.push_str(&format!("; rank {} {fate}", rank.0));
    }
    if missing_count > 0 {
        text.push_str(&format!("; missing: {}", ranks(missing)));
        let more = missing_count.saturating_sub(missing.len() as u32);
        if more > 0 {
            text.push_str(&format!(" (and {more} after these)"));
        }
    }
    if !refused.is_empty() {
        text.push_str(&format!("; refused: {}", refused.join("; ")));
    }
    text
}
