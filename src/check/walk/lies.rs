//! How operands lie in memory, for operators that see it: strides, offsets, storages.

use super::{Result, Walk};
use crate::check::effects::{Effects, Placement};
use crate::check::terms::{Term, Val, Value, bytes_of, shape_of};
use crate::ir::operators::split_target;
use crate::ir::{Arg, DType, NodeId, Op, Type};

impl Walk<'_, '_> {
    /// Adds to a call's operands how its first one lies, if it sees that.
    pub(super) fn add_placement(&mut self, id: NodeId, effects: &Effects) -> Result {
        if effects.placement == Placement::Unseen {
            return Ok(());
        }
        let graph = self.found.graph;
        let tensors: Vec<NodeId> =
            graph.operands(id).iter().copied().filter(|&node| graph.tensor(node).is_some()).collect();
        for node in tensors {
            let root = self.roots(&[node])[0].0;
            let places = self.by_strides(node, 0);
            let lies = places.map(|mut tensor| {
                if effects.placement == Placement::Strides
                    && let Some(piece) = tensor.flat.single()
                {
                    let piece = crate::check::flat::Piece { offset: crate::check::int::ZERO, ..piece.clone() };
                    tensor.flat.pieces = [piece].into();
                }
                self.context.intern(Value::Tensor(tensor))
            });
            let lies = lies.unwrap_or_else(|| self.as_made(node));
            let root_lies = self.root_lies(root);
            self.operands.push(lies);
            // Of a dense tensor, or one whose strides are stated, they say all that strides do.
            let stated = graph.tensor(root).is_some_and(|ty| ty.strides.is_some());
            if effects.placement == Placement::Place || root_lies != self.dense(root) && !stated {
                self.operands.push(root_lies);
            }
            // More of its memory may be seen than it shows.
            if effects.placement == Placement::Place {
                let (whole, shown) = (self.read(root, id)?, self.read(node, id)?);
                // The same bytes in the same order may be seen with other sizes.
                let bytes = |val: Val| self.context.tensor(val).map(|tensor| &tensor.flat);
                if whole != shown && (bytes(whole).is_none() || bytes(whole) != bytes(shown)) {
                    self.operands.push(whole);
                }
            }
        }
        Ok(())
    }

    /// How what a node allocates lies, as far as its type and operator say.
    fn root_lies(&mut self, root: NodeId) -> Val {
        let graph = self.found.graph;
        let Some(ty) = graph.tensor(root) else { return self.as_made(root) };
        match graph.node(root).op {
            // As the caller made it.
            Op::Input => self.as_made(root),
            // Collectives make dense tensors.
            Op::Collective(_) | Op::Wait => self.dense(root),
            _ if ty.strides.is_some() && ty.is_dense() => self.dense(root),
            Op::Call(target) => {
                let (namespace, name, _) = split_target(graph.text(target));
                let aten = matches!(namespace, "" | "aten");
                let dense = match (name, graph.args_of(root).keyword.as_slice()) {
                    _ if !aten => false,
                    ("empty" | "zeros" | "ones" | "full" | "cat" | "arange", _) => true,
                    // As its operand lies, if that has no gaps.
                    ("clone", []) => self.is_dense(graph.operands(root)),
                    ("clone", [(key, Arg::Word(format))]) => {
                        &**key == "memory_format" && &**format == "torch.contiguous_format"
                    }
                    _ => false,
                };
                if dense { self.dense(root) } else { self.as_made(root) }
            }
            Op::Output => self.as_made(root),
        }
    }

    fn is_dense(&mut self, operands: &[NodeId]) -> bool {
        let places = operands.first().and_then(|&node| self.by_strides(node, 0));
        places.is_some_and(|tensor| {
            tensor.flat.pieces.is_empty() || tensor.flat.single().is_some_and(|piece| piece.is_dense())
        })
    }

    fn dense(&mut self, node: NodeId) -> Val {
        let leaf = self.context.intern_leaf(Term::Storage(u32::MAX), None, None);
        // So many bytes without gaps, whatever the sizes are that they are seen with.
        let size = self.found.graph.tensor(node).and_then(|ty| {
            let bytes = bytes_of(&shape_of(ty)?, ty.dtype)?;
            self.context.leaf_tensor(leaf, DType::U8, [bytes].into_iter().collect())
        });
        size.unwrap_or_else(|| self.as_made(node))
    }

    /// By the value that the node had when it was made: equal calls lie alike.
    fn as_made(&mut self, node: NodeId) -> Val {
        let graph = self.found.graph;
        let val = self.found.vals[node.index()];
        let target = self.context.text(graph.target_of(node));
        let args = self.context.args_id(graph.args_of(node));
        let ty = self.context.stated_id(graph.type_of(node));
        let call = self.context.intern_call(target, args, ty, &[val]);
        self.context.whole(Term::Lies(call), &Type::Unknown)
    }
}
