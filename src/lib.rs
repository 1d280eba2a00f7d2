//! Merges the collectives of distributed training graphs into buckets, and says why.
//!
//! A step of distributed training is a dataflow graph with hundreds of small collectives. Small messages waste the
//! network. This library reads such a graph, merges its all-gathers, reduce-scatters and all-reduces by size without
//! changing a value or making a cycle, and writes it back in the form it came in.
//!
//! ```
#![doc = include_str!("../examples/simple.rs")]
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`ir`] | the graph, its verifier, its text and JSON forms |
//! | [`formats`] | readers and writers of other forms: PyTorch FX text |
//! | [`check`] | proofs that a rewrite computes the same, an evaluator of all ranks, and the check across ranks |
//! | [`passes`] | what to merge ([`passes::bucketing`]), how ([`passes::merge`]), and pipelines; [`passes::lowering`] |
//! | [`program`] | the lowered form: buffers, steps, memory plan |
//! | [`draw`] | pictures of a graph's collectives, with buckets coloured: Graphviz text and SVG |
//! | [`codegen`] | kernels for packs, unpacks and copies as CUDA C++ |
//! | [`runtime`] | collectives on buffers: the backend trait, ranks as threads, a fake; GPUs ([`runtime::cuda`]) |
//!
//! A toolchain with a graph of its own implements [`passes::select::PlanGraph`] and gets the selection alone; see
//! `examples/petgraph_plan.rs`.

#![deny(unsafe_code)]

pub mod check;
pub mod codegen;
pub mod ir;
pub mod passes;
pub mod program;
