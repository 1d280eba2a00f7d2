//! Which values a statement deletes, by the rule of FX's code generator.
//!
//! A value is deleted after the statement that uses it last, in order of first occurrence there; a value that is never
//! used deletes itself, behind the others. Inputs are deleted like any value. What `return` uses is not deleted.

use bucketeer::ir::{Graph, NodeId, Op};

/// Last uses in one version of a graph.
pub(super) struct LastUses {
    /// By node: the node that uses it last, or `u32::MAX`.
    last: Vec<u32>,
}

const NEVER: u32 = u32::MAX;

impl LastUses {
    /// From nodes in order, each with its operands.
    pub(super) fn new<'a>(arena: usize, nodes: impl Iterator<Item = (NodeId, &'a [NodeId])>) -> Self {
        let mut last = vec![NEVER; arena];
        for (id, operands) in nodes {
            for operand in operands {
                last[operand.index()] = id.index() as u32;
            }
        }
        Self { last }
    }

    /// Of a graph as it is.
    pub(super) fn of(graph: &Graph) -> Self {
        Self::new(graph.arena_len(), graph.order().iter().map(|&id| (id, graph.operands(id))))
    }

    /// Puts the values that `id` deletes in `deleted`. `seen` holds, by node, the last statement that listed it.
    pub(super) fn deleted_by(&self, id: NodeId, operands: &[NodeId], seen: &mut Seen, deleted: &mut Vec<NodeId>) {
        deleted.clear();
        let stamp = id.index() as u32;
        for &operand in operands {
            if self.last[operand.index()] == stamp && seen.0[operand.index()] != stamp {
                seen.0[operand.index()] = stamp;
                deleted.push(operand);
            }
        }
        if self.last[id.index()] == NEVER {
            deleted.push(id);
        }
    }
}

/// Scratch of [`LastUses::deleted_by`].
pub(super) struct Seen(Vec<u32>);

impl Seen {
    /// For graphs of that many nodes.
    pub(super) fn new(arena: usize) -> Self {
        Self(vec![NEVER; arena])
    }
}

/// Appends `;  a = b = None`, or nothing.
pub(super) fn write_tail(out: &mut String, graph: &Graph, deleted: &[NodeId]) {
    for (index, &id) in deleted.iter().enumerate() {
        out.push_str(if index == 0 { ";  " } else { " = " });
        out.push_str(graph.name_of(id));
    }
    if !deleted.is_empty() {
        out.push_str(" = None");
    }
}

/// Whether a node can have deletions behind it.
pub(super) fn can_delete(op: Op) -> bool {
    !matches!(op, Op::Input | Op::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_deleted_after_their_last_use_in_order_of_occurrence() {
        let id = NodeId::from_index;
        // 0 and 1 are inputs; 2 uses 0; 3 uses 1, 2, 2, 0 and is not used; 4 returns 1.
        let operands = [vec![], vec![], vec![id(0)], vec![id(1), id(2), id(2), id(0)], vec![id(1)]];
        let last_uses = LastUses::new(5, operands.iter().enumerate().map(|(at, of)| (id(at), &of[..])));
        let (mut seen, mut deleted) = (Seen::new(5), Vec::new());
        last_uses.deleted_by(id(2), &operands[2], &mut seen, &mut deleted);
        assert_eq!(deleted, []);
        last_uses.deleted_by(id(3), &operands[3], &mut seen, &mut deleted);
        assert_eq!(deleted, [id(2), id(0), id(3)]);
    }
}
