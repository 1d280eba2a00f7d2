//! Data-parallel training with [candle](candle_core): gradients reduced in buckets while backward runs.
//!
//! A [`Reducer`] is made of a [`VarMap`](candle_nn::VarMap). In each step forward uses [`Step::params`] in the place of the
//! variables; [`Step::backward`] marks each gradient when it is final, so that full buckets are on their way while backward goes on,
//! and returns gradients of all ranks. Or, without that overlap, [`Reducer::reduce`] takes the gradients after backward.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod mark;
mod params;
mod reducer;
mod times;
mod values;

pub use error::Error;
pub use params::Params;
pub use reducer::{Reducer, Step};
pub use times::{LaunchTimes, MarkTimes, StepTimes, chrome_trace};
