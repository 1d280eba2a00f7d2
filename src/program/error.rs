//! What can be wrong with a program that comes from outside.

/// Why a text or JSON is not a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The text breaks the grammar.
    #[error("line {line}, column {column}: found {found}, expected {expected}")]
    Text {
        /// From one.
        line: usize,
        /// From one, in characters.
        column: usize,
        /// What stands there.
        found: String,
        /// What would have been right.
        expected: String,
    },
    /// The JSON has another shape.
    #[cfg(feature = "serde")]
    #[error("not a program in JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Something in it is out of place.
    #[error("{place}: {reason}")]
    Form {
        /// Which part: `step 3 (relu)`.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
}
