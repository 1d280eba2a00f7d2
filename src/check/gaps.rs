//! What was not followed, and so may be what the other graph has: a difference that rests on it is none that is proven.
//!
//! A call of an operator that is followed, of arguments that are not (a start of unknown sign, sizes that are not known
//! well enough), is a value of its own. So is a tensor whose elements cannot be told apart. Where both graphs have it,
//! nothing is lost; where only one has, what it makes may be equal to what the other makes in another way.

use super::flat::Leaf;
use super::terms::{Context, Term, Val, Value};
use super::verdict::Side;
use crate::ir::NodeId;
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

/// Calls that could not be followed, and tensors taken as one leaf.
#[derive(Default)]
pub(super) struct Gaps {
    /// By call: its first node in each graph.
    calls: HashMap<u32, [Option<NodeId>; 2], FxBuildHasher>,
    tensors: HashSet<Leaf, FxBuildHasher>,
}

impl Gaps {
    /// A call that is not followed.
    pub fn add(&mut self, call: u32, side: Side, node: NodeId) {
        self.calls.entry(call).or_default()[side as usize].get_or_insert(node);
    }

    /// A call that was seen before, which may be one that is not followed.
    pub fn see_again(&mut self, call: u32, side: Side, node: NodeId) {
        if let Some(nodes) = self.calls.get_mut(&call) {
            nodes[side as usize].get_or_insert(node);
        }
    }

    pub fn add_tensor(&mut self, leaf: Leaf) {
        self.tensors.insert(leaf);
    }

    /// The node, if only one graph makes the call.
    fn one_sided(&self, call: u32) -> Option<(Side, NodeId)> {
        match *self.calls.get(&call)? {
            [Some(node), None] => Some((Side::Before, node)),
            [None, Some(node)] => Some((Side::After, node)),
            _ => None,
        }
    }
}

/// What was not followed of some values.
#[derive(Default)]
pub(super) struct Found {
    /// The first call that one graph alone makes.
    pub call: Option<(Side, NodeId)>,
    tensors: HashSet<Leaf, FxBuildHasher>,
}

impl Found {
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Whether one of two has a tensor taken as one leaf that the other has not.
    pub fn differs(&self, other: &Self) -> bool {
        self.tensors != other.tensors
    }
}

/// What was not followed of these values and of all that they are made of.
pub(super) fn of(context: &Context<'_>, vals: impl IntoIterator<Item = Val>) -> Found {
    let mut found = Found::default();
    if context.gaps.calls.is_empty() && context.gaps.tensors.is_empty() {
        return found;
    }
    let mut vals: Vec<Val> = vals.into_iter().collect();
    let mut leaves: Vec<Leaf> = Vec::new();
    let mut seen_vals: HashSet<Val, FxBuildHasher> = vals.iter().copied().collect();
    let mut seen_leaves: HashSet<Leaf, FxBuildHasher> = HashSet::default();
    loop {
        if let Some(leaf) = leaves.pop() {
            if !seen_leaves.insert(leaf) {
                continue;
            }
            if context.gaps.tensors.contains(&leaf) {
                found.tensors.insert(leaf);
            }
            match &context.leaf(leaf).term {
                Term::Call(call) | Term::Part(call, _) => {
                    found.call = found.call.or_else(|| context.gaps.one_sided(*call));
                    vals.extend(context.call_operands(*call).iter().filter(|&&val| seen_vals.insert(val)));
                }
                Term::Bits(_, inner)
                | Term::Cast(_, inner)
                | Term::Moved(_, inner)
                | Term::Ranks(_, inner)
                | Term::Merged(_, _, inner)
                | Term::Shard(_, _, inner, _)
                | Term::Turned(_, inner, _) => leaves.push(*inner),
                Term::Later(val, log) => vals.extend([*val, *log].into_iter().filter(|&val| seen_vals.insert(val))),
                Term::Event(_, what) => vals.extend(what.iter().copied().filter(|&val| seen_vals.insert(val))),
                Term::Lies(call) => {
                    vals.extend(context.call_operands(*call).iter().filter(|&&val| seen_vals.insert(val)));
                }
                Term::Whole(val) | Term::Exchange(_, _, _, val) => {
                    vals.extend(Some(*val).filter(|&val| seen_vals.insert(val)))
                }
                Term::Input(_)
                | Term::Storage(_)
                | Term::Const(..)
                | Term::Unset(_)
                | Term::Region(_)
                | Term::State(_) => {}
            }
            continue;
        }
        let Some(val) = vals.pop() else { return found };
        match context.value(val) {
            Value::Tensor(tensor) => leaves.extend(tensor.flat.pieces.iter().map(|piece| piece.leaf)),
            Value::Tuple(parts) => vals.extend(parts.iter().copied().filter(|&part| seen_vals.insert(part))),
            Value::Opaque(leaf) => leaves.push(*leaf),
            Value::Int(_) => {}
        }
    }
}
