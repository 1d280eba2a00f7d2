//! What is merged, and what a rewritten graph looks like.

mod cases;
mod draw;
mod faults;
mod found;
mod fresh;
mod hlo_jax;
mod hlo_rewrite;
mod hlo_schedule;
mod liveness;
mod merging;
mod options;
mod oracle;
mod order_kept;
mod own;
mod parity;
mod plan;
mod properties;
mod regressions;
mod serial;
mod snapshots;
mod table;
mod together;
mod wait_lists;
mod xla_facts;
mod xla_golden;
mod xla_oracle;
