//! Wait and unpack: what each member gets out of a bucket's buffer.

use super::{Made, Part, Rewrite, sum};
use crate::ir::{Arg, Args, CollectiveKind, Dim, Dims, NodeId, Op, TensorType, Type, Variant};
use crate::passes::bucketing::{Member, Mode};
use crate::passes::emit::{Scale, Shape, stems};

impl Rewrite<'_> {
    pub(super) fn unpack(&mut self, index: usize, nth: usize) {
        let plan = self.plan;
        let bucket = &plan.buckets[index];
        let Member { wait, collective, .. } = bucket.members[nth];
        if plan.options.mode == Mode::Coalesced {
            let Some((element, from, to)) = self.made[index].turned.get(nth).copied().flatten() else {
                self.emit.order.push(wait);
                return;
            };
            let ty = Type::Tensor(self.emit.tensor(element));
            let args = Args::positional(vec![Arg::Operand(0)]);
            let waited = self.emit.node(Op::Wait, stems(bucket.key.kind).1, ty, args, &[element]);
            let part = self.emit.tensor(self.emit.graph.collective_inputs(collective)[0]).shape;
            let moved = self.move_ranks(waited, &part, self.made[index].ranks, (from, to));
            let dims = self.emit.tensor(wait).shape;
            let from = (0..dims.len()).map(|at| (at, Scale::Same)).collect();
            self.emit.become_reshape(wait, moved, &Shape { dims, from: (moved, from) });
            return;
        }
        let Some(part) = self.made[index].index[nth] else {
            self.emit.become_empty(wait);
            return;
        };
        let parts = match self.made[index].parts {
            Some(parts) => parts,
            None => {
                let parts = self.split(index);
                self.made[index].parts = Some(parts);
                parts
            }
        };
        let made = One { ranks: self.made[index].ranks, bytes: self.made[index].row_bytes.is_some() };
        let copy = self.copies[index][nth];
        match bucket.key.kind {
            CollectiveKind::AllGather { .. } | CollectiveKind::AllToAll => {
                self.unpack_gather(wait, collective, parts, part, &made, copy);
            }
            _ => self.unpack_slice(wait, collective, parts, part, copy),
        }
    }

    /// Waits for the buffer and cuts it into parts.
    fn split(&mut self, index: usize) -> NodeId {
        let bucket = &self.plan.buckets[index];
        let Made { launch, ranks, row_bytes, .. } = self.made[index];
        let sizes = std::mem::take(&mut self.made[index].sizes);
        let launch = launch.expect("a launch stands before its waits");
        let ty = self.emit.tensor(launch);
        let args = Args::positional(vec![Arg::Operand(0)]);
        let wait = self.emit.node(Op::Wait, stems(bucket.key.kind).1, Type::Tensor(ty), args, &[launch]);
        let gather = matches!(bucket.key.kind, CollectiveKind::AllGather { .. } | CollectiveKind::AllToAll);
        let total = row_bytes.map_or_else(|| sum(&sizes), Dim::Const);
        let buffer = if gather {
            let dims: Dims = [Dim::Const(ranks), total].into_iter().collect();
            self.emit.reshape(wait, &Shape { dims, from: (wait, vec![(0, Scale::Same); 2]) })
        } else {
            wait
        };
        let divisor = if matches!(bucket.key.kind, CollectiveKind::ReduceScatter { .. }) { ranks } else { 1 };
        let mut operands = vec![buffer];
        let mut counts = Vec::with_capacity(sizes.len());
        let mut types = Vec::with_capacity(sizes.len());
        for part in &sizes {
            let source = part.source.unwrap_or(buffer);
            counts.push(self.emit.count(source, &part.elements, divisor, &mut operands));
            types.push(Type::Tensor(self.part_type(buffer, part, gather)));
        }
        let mut positional = vec![Arg::Operand(0), Arg::List(counts)];
        if gather {
            positional.push(Arg::Int(1));
        }
        let args = Args::positional(positional);
        self.emit.call("aten.split_with_sizes.default", "split_with_sizes", Type::Tuple(types), args, &operands)
    }

    /// The type of a part: a column of rows, or a slice.
    fn part_type(&self, buffer: NodeId, part: &Part, gather: bool) -> TensorType {
        let mut ty = self.emit.tensor(buffer);
        let last = ty.shape.len() - 1;
        debug_assert!(gather == (last == 1));
        // The part keeps the strides of the whole.
        if gather {
            ty.strides = ty.strides.clone().or_else(|| ty.dense_strides());
        }
        ty.shape[last] = part.elements.clone();
        ty
    }

    /// The type of one part of a tuple that `split` made.
    fn part_of(&self, parts: NodeId, part: usize) -> TensorType {
        let ty = match self.emit.graph.type_of(parts) {
            Type::Tuple(types) => types.get(part).and_then(Type::as_tensor),
            _ => None,
        };
        ty.cloned().expect("a bucket's buffer is split into tensors, one for each member")
    }

    fn unpack_gather(&mut self, wait: NodeId, collective: NodeId, parts: NodeId, part: usize, made: &One, copy: bool) {
        let out = self.emit.tensor(wait);
        let input = self.emit.graph.collective_inputs(collective)[0];
        let dim = match self.emit.graph.collective(collective).map(|c| c.kind) {
            Some(CollectiveKind::AllGather { dim }) => dim as usize,
            _ => 0,
        };
        let ty = self.part_of(parts, part);
        let mut value = self.emit.get_item(parts, part, ty);
        // Columns of the table lie apart, so a copy has to put them together. It is said as a clone: a reshape would look
        // like a view that shares the buffer, and where each rank gives a single row it would be one.
        if dim == 0 && (made.ranks > 1 || copy) || made.bytes {
            value = self.emit.clone(value);
            self.copied += usize::from(made.ranks == 1);
        }
        if made.bytes {
            value = self.emit.bit_cast(value, out.dtype);
        }
        if dim == 0 {
            let from = (0..out.shape.len())
                .map(|at| (at, if at == 0 { Scale::Times(made.ranks) } else { Scale::Same }))
                .collect();
            self.emit.become_reshape(wait, value, &Shape { dims: out.shape, from: (input, from) });
            return;
        }
        let mut dims = self.emit.tensor(input).shape;
        dims.insert(0, Dim::Const(made.ranks));
        let from = (0..dims.len()).map(|at: usize| (at.saturating_sub(1), Scale::Same)).collect();
        let stacked = self.emit.stack(value, &Shape { dims, from: (input, from) });
        let mut order: Vec<usize> = (1..=out.shape.len()).collect();
        order.insert(dim, 0);
        let moved = self.emit.permute(stacked, &order);
        let dense = self.emit.clone(moved);
        let from = (0..out.shape.len())
            .map(|at| (at, if at == dim { Scale::Times(made.ranks) } else { Scale::Same }))
            .collect();
        self.emit.become_reshape(wait, dense, &Shape { dims: out.shape, from: (input, from) });
    }

    fn unpack_slice(&mut self, wait: NodeId, collective: NodeId, parts: NodeId, part: usize, copy: bool) {
        let graph = &self.emit.graph;
        let out = self.emit.tensor(wait);
        let input = graph.collective_inputs(collective)[0];
        let in_place = graph.collective(collective).is_some_and(|c| c.variant == Variant::InPlace);
        let ty = self.part_of(parts, part);
        let divided = match graph.collective(collective).map(|c| c.kind) {
            Some(CollectiveKind::ReduceScatter { dim, .. }) => Some(dim as usize),
            _ => None,
        };
        let ranks = self.ranks(collective);
        let from = (0..out.shape.len())
            .map(|at| (at, if divided == Some(at) { Scale::Over(ranks) } else { Scale::Same }))
            .collect();
        let shape = Shape { dims: out.shape.clone(), from: (input, from) };
        let flat = out.shape.len() == 1;
        if flat && !copy && !in_place {
            self.emit.become_item(wait, parts, part);
            return;
        }
        let mut value = self.emit.get_item(parts, part, ty);
        if in_place {
            let view = self.emit.reshape(value, &shape);
            let args = Args::positional(vec![Arg::Operand(0), Arg::Operand(1)]);
            self.emit.become_call(wait, "aten.copy_.default", args, &[input, view]);
            return;
        }
        if copy {
            self.copied += 1;
            if flat {
                self.emit.become_clone(wait, value);
                return;
            }
            value = self.emit.clone(value);
        }
        self.emit.become_reshape(wait, value, &shape);
    }
}

/// What unpacking one part needs to know of its bucket.
struct One {
    ranks: u64,
    bytes: bool,
}
