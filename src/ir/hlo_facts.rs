//! What the text of an HLO module says and its graph has no nodes or arguments for.

use super::entities::NodeId;
use super::types::DType;
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

/// How much an instruction computes beside moving its operands and results through memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// So many floating-point operations, by the type that they are done in.
    Flops(Vec<(u64, DType)>),
    /// Nobody here knows; in words, what it is that does it.
    Unknown(Box<str>),
}

impl Work {
    /// The work of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown(what), _) | (_, Self::Unknown(what)) => Self::Unknown(what),
            (Self::Flops(mut list), Self::Flops(more)) => {
                for (flops, dtype) in more {
                    match list.iter_mut().find(|(_, known)| *known == dtype) {
                        Some((sum, _)) => *sum = sum.saturating_add(flops),
                        None => list.push((flops, dtype)),
                    }
                }
                Self::Flops(list)
            }
        }
    }
}

/// Facts of a module, by the nodes of its graph. They are not a part of the graph's text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HloFacts {
    /// Of each call that does more than move bytes, or may. What is not here moves the bytes of its operands and results.
    pub work: HashMap<NodeId, Work, FxBuildHasher>,
    /// Collectives that are split into a start and a done, both of which XLA runs as one: `is_sync` in their config.
    pub synchronous: HashSet<NodeId, FxBuildHasher>,
}
