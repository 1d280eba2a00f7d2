//! What a reducer has to do, on ranks of any backend: each case is what one rank does, and asserts on its own results, so that
//! ranks may be threads or processes.

pub mod recorded;
pub mod recorder;
pub mod values;

use bucketeer_comm::{Backend, Group};
use std::sync::Arc;

/// One rank of a case.
#[derive(Clone)]
pub struct Rank {
    /// Its backend.
    pub backend: Arc<dyn Backend>,
    /// All ranks of the case.
    pub group: Group,
}

/// What ranks do.
pub struct Case {
    /// Says what is shown.
    pub name: String,
    /// How many ranks.
    pub ranks: usize,
    /// One rank's part. Panics where something is not as it should be.
    pub run: Box<dyn Fn(&Rank) + Send + Sync>,
}

/// The folder of the recordings: `fixtures/reducer`, or what `BUCKETEER_REDUCER_FIXTURES` names.
#[must_use]
pub fn folder() -> std::path::PathBuf {
    let own = || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/reducer");
    std::env::var_os("BUCKETEER_REDUCER_FIXTURES").map_or_else(own, Into::into)
}
