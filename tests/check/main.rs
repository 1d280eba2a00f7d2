//! The checker: what it proves, what it refuses, and the readings of operators that it holds against the passes'.

mod adversary;
mod check;
mod check_found;
mod check_random;
mod effects;
mod filetests;
mod found_communication;
mod found_memory;
mod found_values;
mod fuzz_prove;
mod fuzz_smoke;
mod linear;
mod observed;
mod planted_faults;
mod ranks;
mod wrong_merges;
