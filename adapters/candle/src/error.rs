//! What can go wrong.

use bucketeer_reducer::ReducerError;

/// Why a reducer, a step or a backward failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The reducer says why, with rank, step and parameter. A mark that failed inside of backward comes as this, too.
    #[error(transparent)]
    Reducer(#[from] ReducerError),
    /// candle says why.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}
