//! Merges the collectives of distributed training graphs into buckets, and says why.

pub mod check;
pub mod formats;
pub mod ir;
pub mod passes;
