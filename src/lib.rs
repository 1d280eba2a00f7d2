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
//! # What a toolchain needs
//!
//! | to | take |
//! |---|---|
//! | build a graph, or read our text | [`ir::GraphBuilder`], [`ir::text::parse`] |
//! | say what your operators do | [`Operators`] |
//! | run passes | [`Pipeline`], [`BucketOptions`]; the plan alone: [`passes::bucketing::plan`] |
//! | learn why | [`BucketPlan`](passes::bucketing::BucketPlan) and its remarks |
//! | make a step shorter, by what things cost | [`passes::schedule::plan`] |
//! | prove a rewrite | [`prove`], [`check::ranks::check_ranks`] |
//! | lower it, and prove that | [`lower`], [`check::program::prove`] |
//! | keep a graph of your own | implement [`PlanGraph`](passes::select::PlanGraph); see `examples/petgraph_plan.rs` |
//! | bring a rule or a pass of your own | [`BucketPolicy`](passes::own::BucketPolicy), [`GraphPass`](passes::own::GraphPass) |
//! | read FX text, torch.export, HLO | the crate `bucketeer-formats` |
//! | evaluate, run | the crates `bucketeer-eval`, `bucketeer-comm`, `bucketeer-exec` |
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | [`ir`] | the graph, its verifier, its text and JSON forms |
//! | [`passes`] | what to merge ([`passes::bucketing`]), how ([`passes::merge`]), pipelines, [`passes::lowering`] |
//! | [`program`] | the lowered form: buffers, steps, memory plan |
//! | [`check`] | proofs that a rewrite or a program computes the same, and the check across ranks; never names a pass |
//! | [`codegen`] | kernels for packs, unpacks and copies as CUDA C++ |
//!
//! # Features
//!
//! Both are on by default; without them the crate takes 15 crates, itself included.
//!
//! | feature | brings |
//! |---|---|
//! | `serde` | JSON of graphs, programs and launch plans |
//! | `petgraph` | a graph as petgraph's traits see it: `ir::visit` |

#![forbid(unsafe_code)]

pub mod check;
pub mod codegen;
pub mod ir;
pub mod passes;
pub mod program;

pub use check::{Verdict, prove};
pub use ir::{DType, Graph, NodeId, Op, Operators, ReduceOp, TensorType, Type, verify};
pub use passes::Pipeline;
pub use passes::bucketing::{BucketKind, BucketOptions};
pub use passes::lowering::{LowerOptions, lower};
pub use program::Program;

#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
struct ForToolchains;
