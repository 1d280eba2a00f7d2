//! Launches.

use super::{Play, Player, different, undecided};
use crate::check::exchange;
use crate::check::int::{Int, product};
use crate::check::layout;
use crate::check::terms::{GroupKey, Tensor, Val, Value};
use crate::ir::operators::split_target;
use crate::ir::{Arg, CollectiveKind, DType, NodeId, Op, ReduceOp};
use crate::program::{self, CommOp, Part, Path};

impl Player<'_, '_, '_> {
    pub(super) fn collective(&mut self, index: usize, collective: &program::Collective) -> Play {
        let id = self.node(index)?;
        if collective.members != self.graph.meta_of(id).members {
            return different("it says that it has other members than its node");
        }
        let node = self.graph.node(id).op;
        if let Op::Call(target) = node {
            let (_, operator, _) = split_target(self.graph.text(target));
            return self.call_launch(id, operator, collective);
        }
        let Op::Collective(wanted) = node else { return different("its node is not a collective") };
        if wanted.group.index() != collective.group as usize {
            return different("its node is a collective of another group");
        }
        if collective.path == Path::OneShot
            && !collective
                .parts
                .iter()
                .all(|part| self.program.buffer(part.send.buffer).kind == program::BufferKind::Comm)
        {
            return different("it goes in one shot, but not from a comm buffer");
        }
        self.launched.push(id);
        let kind = self.kind(wanted.kind, collective)?;
        for part in &collective.parts {
            in_place_rules(&collective.op, part)?;
        }
        // That the parts of an exchange are equal may be known of the program alone, which has the sizes as numbers.
        let even = is_even(&collective.op) && self.even.contains(&id);
        let mut results = Vec::with_capacity(collective.parts.len());
        for part in &collective.parts {
            let sent = self.contents.get_range(self.context, self.program, part.send, collective.dtype)?;
            results.push(match kind {
                CollectiveKind::AllToAll if !even => self.exchanged(id, collective, &sent)?,
                CollectiveKind::Permute => self.exchanged(id, collective, &sent)?,
                _ => {
                    let group = self.requested_group(id, collective.group);
                    match exchange::result(self.context, kind, group, &sent, even) {
                        Some(result) => result,
                        None => return undecided("what it makes"),
                    }
                }
            });
        }
        for (part, result) in collective.parts.iter().zip(results) {
            self.contents.put_range(self.context, self.program, part.recv, &result)?;
        }
        Ok(())
    }

    /// A group with what a node asks of its collective beside its kind.
    fn requested_group(&mut self, id: NodeId, group: u32) -> GroupKey {
        let vals = self.walked.reads.as_ref().and_then(|reads| reads.of(self.graph, id)).unwrap_or(&[]);
        self.context.groups.with_request(self.groups[group as usize], self.graph.args_of(id), vals)
    }

    /// What the program's operation means in the graph, where it has to be the node's.
    fn kind(&self, wanted: CollectiveKind, collective: &program::Collective) -> Play<CollectiveKind> {
        let reduce = |op: ReduceOp, wanted: Option<ReduceOp>| match (collective.dtype, op, wanted) {
            (DType::Bool, ReduceOp::Max, Some(ReduceOp::Sum)) => ReduceOp::Sum,
            (DType::Bool, ReduceOp::Min, Some(ReduceOp::Product)) => ReduceOp::Product,
            _ => op,
        };
        let kind = match collective.op {
            CommOp::AllGather => CollectiveKind::AllGather { dim: 0 },
            CommOp::ReduceScatter(op) => CollectiveKind::ReduceScatter { op: reduce(op, wanted.reduce_op()), dim: 0 },
            CommOp::AllReduce(op) => CollectiveKind::AllReduce { op: reduce(op, wanted.reduce_op()) },
            CommOp::Broadcast { root } => CollectiveKind::Broadcast { root },
            CommOp::Reduce { op, root } => CollectiveKind::Reduce { op: reduce(op, wanted.reduce_op()), root },
            CommOp::AllToAll { .. } => CollectiveKind::AllToAll,
            CommOp::Permute { .. } => CollectiveKind::Permute,
            CommOp::Send { .. } | CommOp::Recv { .. } | CommOp::Barrier => {
                return different("its node is another collective");
            }
        };
        let flat = match wanted {
            CollectiveKind::AllGather { .. } => CollectiveKind::AllGather { dim: 0 },
            CollectiveKind::ReduceScatter { op, .. } => CollectiveKind::ReduceScatter { op, dim: 0 },
            other => other,
        };
        if kind == flat { Ok(kind) } else { different(format!("its node is a {wanted:?}, and it does {kind:?}")) }
    }

    /// All-to-all and permute: the node's, with the node's counts.
    fn exchanged(&mut self, id: NodeId, collective: &program::Collective, sent: &Tensor) -> Play<Tensor> {
        let graph = self.graph;
        let [part] = collective.parts.as_slice() else { return undecided("an exchange of several tensors") };
        let args = graph.args_of(id);
        let inputs = self.walked.reads.as_ref().and_then(|reads| reads.of(graph, id)).map(<[Val]>::to_vec);
        let val = self.walked.vals[id.index()];
        let wanted = inputs.and_then(|vals| self.context.tensor(*vals.first()?).cloned());
        let (Some(wanted), Some(result)) = (wanted, self.context.tensor(val).cloned()) else {
            return undecided("what it exchanges");
        };
        if !same_bytes(&wanted, sent) {
            return different("it sends something else than its node");
        }
        let row = product(wanted.shape.get(1..).unwrap_or(&[])).and_then(|row| row.known()).unwrap_or(1);
        match &collective.op {
            CommOp::AllToAll { send_counts, recv_counts } => {
                let total = |tensor: &Tensor| product(&tensor.shape).and_then(|count| count.known());
                let send = self.counts(id, args.positional.get(2), send_counts.len(), row, total(&wanted));
                let recv = self.counts(id, args.positional.get(1), recv_counts.len(), row, total(&result));
                if send.as_ref() != Some(send_counts) || recv.as_ref() != Some(recv_counts) {
                    return different("it exchanges other amounts than its node");
                }
            }
            _ => {
                let CommOp::Permute { pairs } = &collective.op else { return undecided("what it exchanges") };
                if self.pairs(id).as_ref() != Some(pairs) {
                    return different("it sends along other pairs than its node");
                }
            }
        }
        let bytes =
            product(&result.shape).and_then(|count| count.known()).map(|count| count as u64 * result.dtype.bytes());
        if bytes != Some(part.recv.bytes) {
            return different("it receives another amount than its node");
        }
        Ok(result)
    }

    fn number(&self, id: NodeId, arg: &Arg) -> Option<i64> {
        match arg {
            Arg::Int(value) => Some(*value),
            Arg::Operand(index) => {
                let &node = self.graph.operands(id).get(*index as usize)?;
                match (self.context.value(self.walked.vals[node.index()]), self.graph.type_of(node)) {
                    (Value::Int(expr), _) | (_, crate::ir::Type::SymInt(expr)) => expr.as_constant(),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Elements for each rank.
    fn counts(&self, id: NodeId, list: Option<&Arg>, ranks: usize, row: i64, total: Option<i64>) -> Option<Vec<u64>> {
        if let Some(Arg::List(items) | Arg::Tuple(items)) = list
            && !items.is_empty()
        {
            return items.iter().map(|item| u64::try_from(self.number(id, item)?.checked_mul(row)?).ok()).collect();
        }
        let ranks_int = i64::try_from(ranks).ok()?;
        let total = total.filter(|total| total % ranks_int == 0)?;
        Some(vec![u64::try_from(total / ranks_int).ok()?; ranks])
    }

    fn pairs(&self, id: NodeId) -> Option<Vec<(u32, u32)>> {
        let Some(Arg::List(items) | Arg::Tuple(items)) = self.graph.args_of(id).positional.get(1) else { return None };
        let rank = |arg: &Arg| u32::try_from(self.number(id, arg)?).ok();
        (0u32..)
            .zip(items)
            .map(|(from, item)| match item {
                Arg::List(pair) | Arg::Tuple(pair) => Some((rank(pair.first()?)?, rank(pair.get(1)?)?)),
                to => Some((from, rank(to)?)),
            })
            .collect()
    }

    /// Launches for calls: sends, receives, barriers, and exchanges of sharded dimensions.
    fn call_launch(&mut self, id: NodeId, operator: &str, collective: &program::Collective) -> Play {
        if super::calls::keeps_its_place(self.walked, id) {
            self.fenced.push(id);
        }
        match (&collective.op, operator) {
            (CommOp::Barrier, "barrier") => Ok(()),
            (CommOp::Send { peer }, "send" | "isend") | (CommOp::Recv { peer }, "recv" | "irecv") => {
                let wanted = self.graph.args_of(id).positional.get(1).and_then(|arg| self.number(id, arg));
                if wanted != Some(i64::from(*peer)) {
                    return different("it talks to another rank than its node");
                }
                undecided("what one rank sends to another is not followed")
            }
            (CommOp::AllToAll { send_counts, recv_counts }, "shard_dim_alltoall") => {
                let even = |counts: &[u64]| counts.windows(2).all(|pair| pair[0] == pair[1]);
                if !even(send_counts) || !even(recv_counts) {
                    return different("it exchanges other amounts than its node");
                }
                self.sharded(id, collective)
            }
            _ => different("its node is another call"),
        }
    }

    /// Part r of one dimension goes to rank r; what comes back is part of another dimension.
    fn sharded(&mut self, id: NodeId, collective: &program::Collective) -> Play {
        let graph = self.graph;
        let [part] = collective.parts.as_slice() else { return different("it sends several tensors") };
        let ranks = i64::from(self.program.groups[collective.group as usize].size);
        let args = graph.args_of(id);
        let named = args.positional.last().is_some_and(|arg| {
            let group = &self.program.groups[collective.group as usize].name;
            matches!(arg, Arg::Str(name) | Arg::Word(name) if name == group)
        });
        if !named {
            return different("its node names another group");
        }
        let read =
            self.walked.reads.as_ref().and_then(|reads| reads.of(graph, id)).and_then(|vals| vals.first().copied());
        let input = read.and_then(|val| self.context.tensor(val).cloned());
        let result = self.context.tensor(self.walked.vals[id.index()]).cloned();
        let (Some(input), Some(result)) = (input, result) else { return undecided("what it exchanges") };
        let dim = |at: usize, rank: usize| {
            args.positional.get(at).and_then(Arg::as_int).and_then(|dim| layout::dimension(dim, rank))
        };
        let (gather, shard) = (dim(1, result.shape.len()), dim(2, input.shape.len()));
        let rows = shard.and_then(|dim| by_rank(self.context, &input, dim, ranks));
        let made = gather.and_then(|dim| by_rank(self.context, &result, dim, ranks));
        let (Some(rows), Some(made)) = (rows, made) else { return undecided("how it exchanges") };
        let sent = self.contents.get_range(self.context, self.program, part.send, collective.dtype)?;
        if !same_bytes(&rows, &sent) {
            return different("it sends something else than its node");
        }
        self.contents.put_range(self.context, self.program, part.recv, &made)
    }
}

/// A tensor with its parts along a dimension as rows, one for each rank.
fn by_rank(context: &mut crate::check::Context<'_>, tensor: &Tensor, dim: usize, ranks: i64) -> Option<Tensor> {
    let mut shape = tensor.shape.clone();
    shape[dim] = shape[dim].div(&Int::Known(ranks))?;
    shape.insert(dim, Int::Known(ranks));
    let split = layout::reshape(tensor, &shape)?;
    let mut order: Vec<usize> = (0..shape.len()).filter(|&at| at != dim).collect();
    order.insert(0, dim);
    layout::permute(context, &split, &order)
}

fn same_bytes(a: &Tensor, b: &Tensor) -> bool {
    a.dtype == b.dtype && a.flat == b.flat
}

/// Where send and receive ranges may overlap: the same range for what works in place, this rank's part for gathers and
/// scatters, else not at all.
fn in_place_rules(op: &CommOp, part: &Part) -> Play {
    let Part { send, recv, .. } = part;
    if send.buffer != recv.buffer {
        let apart = !matches!(op, CommOp::AllReduce(_) | CommOp::Broadcast { .. } | CommOp::Reduce { .. });
        return if apart { Ok(()) } else { different("it works in place, but sends and receives different ranges") };
    }
    let fits = match op {
        CommOp::AllGather => send.rank_bytes == send.bytes && recv.rank_bytes == 0 && send.offset == recv.offset,
        CommOp::ReduceScatter(_) => recv.rank_bytes == recv.bytes && send.rank_bytes == 0 && send.offset == recv.offset,
        CommOp::AllReduce(_) | CommOp::Broadcast { .. } | CommOp::Reduce { .. } => send == recv,
        CommOp::Send { .. } | CommOp::Recv { .. } | CommOp::Barrier => true,
        CommOp::AllToAll { .. } | CommOp::Permute { .. } => false,
    };
    let end = |range: &program::Range| range.offset + range.bytes;
    let static_ranges = send.rank_bytes == 0 && recv.rank_bytes == 0;
    let disjoint = static_ranges && (end(send) <= recv.offset || end(recv) <= send.offset);
    let exclusive = matches!(op, CommOp::AllReduce(_) | CommOp::Broadcast { .. } | CommOp::Reduce { .. });
    if fits || (disjoint && !exclusive) {
        Ok(())
    } else {
        different("its ranges overlap, and not at this rank's place")
    }
}

/// Whether every pair of ranks exchanges equally much.
fn is_even(op: &CommOp) -> bool {
    match op {
        CommOp::AllToAll { send_counts, recv_counts } => {
            send_counts.iter().chain(recv_counts).all(|count| Some(count) == send_counts.first())
        }
        _ => false,
    }
}
