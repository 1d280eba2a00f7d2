//! The graph and its language. Nothing here knows of passes or of other formats.

pub mod args;
pub mod bodies;
mod build;
pub mod communication;
pub mod concrete;
mod edit_log;
mod effects;
mod entities;
mod graph;
mod hlo_facts;
#[cfg(feature = "serde")]
pub mod json;
mod names;
pub mod operators;
pub mod ops;
mod short;
pub mod symexpr;
pub mod symvalue;
pub mod text;
pub mod types;
pub mod verify;
#[cfg(feature = "petgraph")]
pub mod visit;
mod world;

pub use args::{Arg, Args, Spacing};
pub use bodies::Bodies;
pub use build::{BuildArg, GraphBuilder};
pub use edit_log::{EditLog, Original};
pub use effects::{Dependencies, Order, Slot};
pub(crate) use effects::{EffectTable, Memory};
pub use entities::{ArgsId, GroupId, MetaId, Name, NodeId, RegionId, TypeId};
pub use graph::{ControlEdge, Graph, Meta, Node, ProcessGroup, Region, RegionKind, Strength};
pub use hlo_facts::{HloFacts, Work};
pub use names::Names;
pub use operators::Operators;
pub use ops::{Collective, CollectiveKind, GlobalRank, GroupRank, Op, ReduceOp, Variant};
pub use short::Short;
pub use symexpr::SymExpr;
pub use types::{DType, Dim, Dims, TensorType, Type};
pub use verify::{VerifyError, VerifyErrors, verify};
pub use world::Membership;
