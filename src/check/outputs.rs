//! Which outputs and inputs share memory.

use super::walk::{Root, Walked};
use crate::ir::NodeId;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Two outputs, or an output and an input, that share memory in the result and not in the source.
pub(super) struct Shared {
    /// Output of the result.
    pub output: NodeId,
    /// The output or input it shares memory with.
    pub with: NodeId,
}

/// All of them, one for each output that shares more than it did.
pub(super) fn shared(before: &Walked<'_>, after: &Walked<'_>) -> Vec<Shared> {
    let Some(result) = after.output else { return Vec::new() };
    let mut first: HashMap<Root, (NodeId, Root), FxBuildHasher> = HashMap::default();
    for (&(old, _), &(new, _)) in before.inputs.iter().zip(&after.inputs) {
        first.insert((new, None), (new, (old, None)));
    }
    let mut found = Vec::new();
    let outputs = after.graph.operands(result).iter().zip(before.roots.iter().zip(&after.roots));
    for (&output, (&old_root, &new_root)) in outputs {
        match first.get(&new_root) {
            Some(&(with, root)) if root != old_root => found.push(Shared { output, with }),
            Some(_) => {}
            None => {
                first.insert(new_root, (output, old_root));
            }
        }
    }
    found
}
