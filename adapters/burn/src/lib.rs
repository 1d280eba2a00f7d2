//! Data-parallel training with burn: gradients reduced in buckets after backward.
//!
//! A [`Reducer`] is made of a module, and takes the place of nothing: between `backward` and the optimizer's step,
//! [`Reducer::reduce`] turns a rank's gradients into those of all ranks.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod params;
mod reducer;

pub use reducer::Reducer;
