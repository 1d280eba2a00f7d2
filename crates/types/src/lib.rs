//! What every crate of bucketeer names: element types, reductions, ranks, and sizes in bytes and times as text.
//!
//! ```
//! use bucketeer_types::{DType, ReduceOp, sizes};
//!
//! assert_eq!(DType::from_name("bfloat16").map(DType::bytes), Some(2));
//! assert_eq!(ReduceOp::from_name("avg"), Some(ReduceOp::Avg));
//! assert_eq!(sizes::parse_bytes("25MiB"), Ok(25 << 20));
//! ```
//!
//! With the feature `arithmetic`, [`num`] reads, writes, converts and combines elements of every type.

#![forbid(unsafe_code)]

pub mod class;
mod dtype;
#[cfg(feature = "arithmetic")]
pub mod num;
mod rank;
mod reduce_op;
mod reduction;
pub mod sizes;
pub mod times;

pub use dtype::DType;
pub use rank::{GlobalRank, GroupRank};
pub use reduce_op::ReduceOp;
pub use reduction::Reduction;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
