//! Runs under random delays, with values that are known: short in the tests, for as long as one likes in
//! `benches/stress.rs`.

mod buffers;
mod groups;

pub use buffers::{MEMBERS, fill, refill, reuse, sum};
pub use groups::cross_group_order;
