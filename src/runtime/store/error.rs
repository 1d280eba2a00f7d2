//! What can go wrong with a store.

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
