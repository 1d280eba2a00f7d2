//! The collection of cases from public reports, `docs/cases.md`: a test for each, named by its id.
//!
//! Every test goes through [`kit::rewrite`], which checks what holds for every case: the result is well-formed, all
//! ranks compute the same bits, nothing is launched or dropped that was not asked for, each start has one wait, and a
//! second run changes nothing. What a test asserts itself is the case's own check.

mod config;
mod execute;
mod grouping;
mod lowering;
mod ordering;
mod program;
mod reading;
mod scheduling;
