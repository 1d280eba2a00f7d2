//! Proofs about graphs: what they compute, and whether ranks agree. Shares no code with the passes.

pub mod eval;
pub mod ranks;
