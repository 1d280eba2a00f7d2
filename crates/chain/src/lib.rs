//! Exact plans for a chain of messages on one stream, and what messages cost.
//!
//! # What a message costs
//!
//! All times are whole nanoseconds. The time of a message of `S` bytes ([`MessageCost`]) is the least over its pieces of
//! `alpha_ns + ceil(S * ns_per_byte_num / ns_per_byte_den)`: rounded up once for each [`Piece`], never in floating point, so
//! that every rank and machine computes the same. As the least of straight lines it is concave: two messages together never
//! take longer than both apart.
//!
//! # Which messages travel together
//!
//! Messages `1..=n` can start from `release[j]` on, which does not fall, and share one cost. Buckets are runs of neighbours,
//! launched in order: for a cost that is a straight line no other plan is better, as a message that is ready earlier can only
//! gain by leaving earlier. With `C[j]` the least time at which the first `j` have arrived, and `P[j]` their bytes,
//!
//! ```text
//! C[j] = min over i < j of  max(C[i], release[j]) + cost(P[j] - P[i])
//! ```
//!
//! [`releases`] finds that, in linear time. The rule is that of serial batching with release dates and a fixed sequence on one
//! machine; what makes it linear is the queue of sliding minima. Messages that only have to be there in time, such as gathers,
//! are the same chain backwards: [`deadlines`].
//!
//! # Features
//!
//! | feature | brings |
//! |---|---|
//! | `serde` | `Serialize` and `Deserialize` of [`MessageCost`] and [`Piece`] |

#![forbid(unsafe_code)]

mod chain;
mod cost;
mod hull;

pub use chain::{deadlines, releases};
pub use cost::{MOST_PIECES, MessageCost, Piece, PiecesError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
