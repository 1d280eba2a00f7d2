//! The reducer of [`bucketeer_reducer`] for C: `include/bucketeer_reducer.h`, which is written from this crate.
//!
//! # What pointers have to be
//!
//! Each function of C trusts its caller in one thing: a pointer that is not null leads to what the function's docs say, as many as
//! they say, and nobody else writes to that memory during the call (or uses it at all, where the function writes to it). All else is
//! checked: null, alignment, lengths, numbers, handles that are freed or of another kind, and calls that do not fit what a
//! reducer is doing. Those are errors, which change nothing.
//!
//! | part | is |
//! |---|---|
//! | `status` | how a call ended; a thread's last failure; no panic leaves |
//! | `raw` | the one place where pointers of C are followed |
//! | `table` | what handles stand for: numbers that are never given twice |
//! | `rank`, `nccl` | ranks and groups |
//! | `options` | numbers that stand for choices |
//! | `state` | a reducer as one object: between steps, in one, or with results |
//! | `reducer`, `gradients` | the functions on it |

mod gradients;
#[cfg(feature = "nccl")]
mod nccl;
mod options;
mod rank;
mod raw;
mod reducer;
mod state;
mod status;
mod table;

pub use gradients::*;
pub use options::*;
pub use rank::*;
pub use reducer::*;
pub use status::*;
