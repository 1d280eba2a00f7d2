//! Steps that start collectives and wait for them.

use super::{Grower, Value, pick};
use bucketeer::ir::{
    Arg, Args, Collective, CollectiveKind, DType, Dim, GroupId, Meta, NodeId, Op, ReduceOp, TensorType, Type, Variant,
};

impl Grower {
    pub(super) fn collective(&mut self, a: u16, b: u16, c: u16) {
        let Some(x) = self.any(a) else { return };
        let group = self.group(b);
        let kind = self.kind(&self.tensor(&x), group, c, b / 16);
        let op = Op::Collective(Collective { kind, group, variant: Variant::Functional, coalesced: false });
        let mut positional = vec![Arg::Operand(0)];
        if kind == CollectiveKind::AllToAll && !c.is_multiple_of(4) {
            // Rows from each rank and for each rank; empty lists are equal parts.
            let size = u64::from(self.graph.group(group).size.unwrap_or(1));
            let rows = self.tensor(&x).shape.first().and_then(Dim::as_const).unwrap_or(0);
            let even = vec![Arg::Int((rows / size) as i64); size as usize];
            let splits = |equal: bool| Arg::List(if equal { even.clone() } else { Vec::new() });
            positional.extend([splits(c.is_multiple_of(3)), splits(c.is_multiple_of(5))]);
        }
        if kind == CollectiveKind::Permute {
            // A ring: rank r of the group sends to r + 1.
            let size = i64::from(self.graph.group(group).size.unwrap_or(1));
            let pair = |r| Arg::List(vec![Arg::Int(r), Arg::Int((r + 1) % size)]);
            positional.push(Arg::List((0..size).map(pair).collect()));
        }
        // The native text does not find the type of an exchange with lists by itself.
        let stated =
            (kind == CollectiveKind::AllToAll).then(|| Type::Tensor(self.tensor(&x).with_shape(self.tensor(&x).shape)));
        let id = self.node(op, "c", Args::positional(positional), &[x.id], stated);
        if c.is_multiple_of(11) {
            let meta = Meta { key: Some("L1".into()), sources: vec!["a.py:10".into()], ..Meta::default() };
            self.graph.set_meta(id, meta);
        }
        let storage = self.storage(true, vec![x.storage]);
        self.keep(id, storage);
    }

    pub(super) fn coalesced(&mut self, a: u16, b: u16, c: u16) {
        let Some(x) = self.any(a) else { return };
        // One launch takes tensors of one device.
        let kind = |value: &Value| (self.tensor(value).dtype, self.tensor(value).device.clone());
        let same: Vec<_> = self.readable().into_iter().filter(|y| kind(y) == kind(&x)).collect();
        let Some(y) = pick(&same, b) else { return };
        let single = [&x, &y].iter().any(|value| self.tensor(value).shape.is_empty());
        let kind = if c.is_multiple_of(2) || single {
            CollectiveKind::AllReduce { op: ReduceOp::Sum }
        } else {
            CollectiveKind::AllGather { dim: 0 }
        };
        let collective = Collective { kind, group: self.group(c), variant: Variant::Functional, coalesced: true };
        let list = Args::positional(vec![Arg::List(vec![Arg::Operand(0), Arg::Operand(1)])]);
        let id = self.node(Op::Collective(collective), "c", list, &[x.id, y.id], None);
        for (index, sent) in [(0, x.storage), (1, y.storage)] {
            let element = self.call("getitem", vec![Arg::Int(index)], &[id], None);
            let storage = self.storage(true, vec![sent]);
            self.keep(element, storage);
        }
    }

    pub(super) fn collective_in_place(&mut self, a: u16, b: u16) {
        let Some(x) = self.writable(a) else { return };
        let kind = match b % 5 {
            0 if self.options.all_kinds => CollectiveKind::Broadcast { root: 1 },
            _ => CollectiveKind::AllReduce { op: ReduceOp::Sum },
        };
        let group = if b.is_multiple_of(5) { self.groups[1] } else { self.group(b) };
        let collective = Collective { kind, group, variant: Variant::InPlace, coalesced: false };
        let args = Args::positional(vec![Arg::Operand(0)]);
        let id = self.node(Op::Collective(collective), "c", args, &[x.id], None);
        self.storages[x.storage].pending = true;
        self.keep(id, x.storage);
    }

    /// The same collective on the same tensor.
    pub(super) fn gather_again(&mut self, a: u16) {
        let order = self.graph.order().to_vec();
        let again: Vec<NodeId> = order
            .into_iter()
            .filter(|&id| matches!(self.graph.node(id).op, Op::Collective(c) if !c.coalesced && c.variant == Variant::Functional))
            .collect();
        let Some(id) = pick(&again, a) else { return };
        let (op, args, ty) = (self.graph.node(id).op, self.graph.args_of(id).clone(), self.graph.type_of(id).clone());
        let operands = self.graph.operands(id).to_vec();
        let Some(input) = self.readable().into_iter().find(|value| value.id == operands[0]) else { return };
        let id = self.node(op, "c", args, &operands, Some(ty));
        let storage = self.storage(true, vec![input.storage]);
        self.keep(id, storage);
    }

    pub(super) fn wait(&mut self, value: &Value) {
        let id = self.node(Op::Wait, "w", Args::positional(vec![Arg::Operand(0)]), &[value.id], None);
        self.storages[value.storage].pending = false;
        self.keep(id, value.storage);
    }

    pub(super) fn wait_some(&mut self, a: u16) {
        if let Some(value) = pick(&self.pending(), a) {
            self.wait(&value);
        }
    }

    /// A second wait for what was waited for.
    pub(super) fn wait_again(&mut self, a: u16) {
        let started = |value: &Value| matches!(self.graph.node(value.id).op, Op::Collective(c) if !c.coalesced);
        let values: Vec<_> = self.readable().into_iter().filter(started).collect();
        if let Some(value) = pick(&values, a) {
            self.wait(&value);
        }
    }

    pub(super) fn wait_all_here(&mut self) {
        let mut left = 3;
        while let Some(value) = self.pending().first().cloned().filter(|_| left > 0) {
            self.wait(&value);
            left -= 1;
        }
    }

    /// One wait for up to three, as a list.
    pub(super) fn wait_list(&mut self, a: u16) {
        let mut values = self.pending();
        values.truncate(1 + usize::from(a % 3));
        if values.is_empty() {
            return;
        }
        let ids: Vec<NodeId> = values.iter().map(|value| value.id).collect();
        let list = Arg::List((0..ids.len() as u32).map(Arg::Operand).collect());
        let id = self.node(Op::Wait, "w", Args::positional(vec![list]), &ids, None);
        for (index, value) in values.iter().enumerate() {
            let element = self.call("getitem", vec![Arg::Int(index as i64)], &[id], None);
            self.storages[value.storage].pending = false;
            self.keep(element, value.storage);
        }
    }

    pub(super) fn wait_all(&mut self) {
        while let Some(value) = self.pending().first().cloned() {
            self.wait(&value);
        }
    }

    fn kind(&self, tensor: &TensorType, group: GroupId, by: u16, choice: u16) -> CollectiveKind {
        let float = matches!(tensor.dtype, DType::F32 | DType::Bf16 | DType::F64);
        let op = match by % 6 {
            0 => ReduceOp::Max,
            1 if float => ReduceOp::Avg,
            _ => ReduceOp::Sum,
        };
        let size = u64::from(self.graph.group(group).size.unwrap_or(1));
        let rows = tensor.shape.first().and_then(Dim::as_const);
        let inner_divides = tensor.shape.get(1).is_some_and(|columns| columns.divide_exactly(size).is_some());
        let root = u32::from(by % 2) % size as u32;
        match choice % 16 {
            0..=5 if !tensor.shape.is_empty() => {
                CollectiveKind::AllGather { dim: u32::from(by.is_multiple_of(5) && tensor.shape.len() > 1) }
            }
            6..=9 if rows.is_some_and(|rows| rows % size == 0) => CollectiveKind::ReduceScatter { op, dim: 0 },
            6..=9 if inner_divides => CollectiveKind::ReduceScatter { op, dim: 1 },
            12 if self.options.all_kinds => CollectiveKind::Broadcast { root },
            13 if self.options.all_kinds => CollectiveKind::Reduce { op, root },
            14 if self.options.all_kinds && rows.is_some_and(|rows| rows % size == 0) => CollectiveKind::AllToAll,
            15 if self.options.all_kinds => CollectiveKind::Permute,
            _ => CollectiveKind::AllReduce { op },
        }
    }
}
