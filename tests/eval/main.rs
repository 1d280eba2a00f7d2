//! The reference evaluator, and graphs scaled down for it.

mod eval;
mod eval_faults;
mod eval_fixtures;
mod eval_found;
mod eval_random;
mod options;
mod shrink;
