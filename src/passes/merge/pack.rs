//! Pack and launch: what goes into a bucket's buffer, and the collective that sends it.

use super::{Made, Part, Rewrite, sum};
use crate::ir::{
    Arg, Args, Collective, CollectiveKind, DType, Dim, Dims, Graph, NodeId, Op, TensorType, Type, Variant,
};
use crate::passes::bucketing::{Bucket, Member, MixedDtype};
use crate::passes::emit::{Emitter, Scale, Shape, stems};
use indexmap::IndexSet;

/// Whether a member has a part of the buffer: not if it has no elements.
pub(super) fn travels(graph: &Graph, member: &Member) -> bool {
    let input = graph.collective_inputs(member.collective)[0];
    // Where another size is only known at run time, the empty result has to be made from the buffer.
    let known = graph.tensor(member.wait).is_some_and(|ty| ty.shape.iter().all(|dim| dim.as_const().is_some()));
    !known || graph.tensor(input).and_then(TensorType::elements) != Some(Dim::Const(0))
}

/// Most ranks of an exchange whose parts are listed.
const MAX_LISTED_RANKS: u64 = 1 << 16;

impl Rewrite<'_> {
    /// The members' inputs that have elements, with the index each gets among the parts.
    pub(super) fn inputs(&self, bucket: &Bucket) -> (Vec<(NodeId, NodeId)>, Vec<Option<usize>>) {
        let graph = &self.emit.graph;
        let (mut inputs, mut index) = (Vec::new(), Vec::new());
        for member in &bucket.members {
            let travels = travels(graph, member);
            index.push(travels.then_some(inputs.len()));
            if travels {
                inputs.push((graph.collective_inputs(member.collective)[0], member.collective));
            }
        }
        (inputs, index)
    }

    /// The collective of the first member, on another tensor.
    fn relaunch(&mut self, bucket: &Bucket, packed: NodeId, ty: TensorType) -> NodeId {
        let first = bucket.members[0].collective;
        let graph = &self.emit.graph;
        let args = graph.args_of(first).clone();
        let mut operands = graph.operands(first).to_vec();
        operands[0] = packed;
        let group = bucket.key.group;
        let op = Collective { kind: bucket.key.kind, group, variant: Variant::Functional, coalesced: false };
        self.emit.node(Op::Collective(op), stems(bucket.key.kind).0, Type::Tensor(ty), args, &operands)
    }

    fn flat(&mut self, tensor: NodeId) -> NodeId {
        let ty = self.emit.tensor(tensor);
        let elements = elements_of(&ty);
        // One dimension, so its size follows from the others and needs no tensor to read it from.
        self.emit
            .reshape(tensor, &Shape { dims: [elements].into_iter().collect(), from: (tensor, vec![(0, Scale::Same)]) })
    }

    pub(super) fn pack_flat(&mut self, bucket: &Bucket) -> Made {
        let (inputs, index) = self.inputs(bucket);
        self.pack_end_to_end(bucket, &inputs, index, 1)
    }

    pub(super) fn pack_gather(&mut self, bucket: &Bucket, ranks: u64) -> Made {
        let (inputs, index) = self.inputs(bucket);
        let dtypes: IndexSet<DType> = inputs.iter().map(|&(input, _)| self.emit.tensor(input).dtype).collect();
        if self.plan.options.mixed_dtype == MixedDtype::Bytes && dtypes.len() > 1 {
            return self.pack_bytes(bucket, &inputs, index, ranks);
        }
        self.pack_end_to_end(bucket, &inputs, index, ranks)
    }

    /// Packs members flat, one after the other; the collective's result is `ranks` times as long.
    fn pack_end_to_end(
        &mut self,
        bucket: &Bucket,
        inputs: &[(NodeId, NodeId)],
        index: Vec<Option<usize>>,
        ranks: u64,
    ) -> Made {
        let (mut parts, mut sizes) = (Vec::with_capacity(inputs.len()), Vec::with_capacity(inputs.len()));
        for &(input, _) in inputs {
            parts.push(self.flat(input));
            sizes.push(Part { elements: elements_of(&self.emit.tensor(input)), source: Some(input) });
        }
        let total = sum(&sizes);
        let ty = self.vector(inputs[0].0, total.clone());
        let packed = self.emit.cat(&parts, 0, ty);
        let ty = self.vector(inputs[0].0, times(&total, ranks));
        let launch = self.relaunch(bucket, packed, ty);
        Made { launch: Some(launch), parts: None, index, sizes, ranks, row_bytes: None, turned: Vec::new() }
    }

    /// Packs members of several dtypes as bytes, each at a multiple of its element size.
    fn pack_bytes(
        &mut self,
        bucket: &Bucket,
        inputs: &[(NodeId, NodeId)],
        mut index: Vec<Option<usize>>,
        ranks: u64,
    ) -> Made {
        let (mut parts, mut sizes, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let (mut offset, mut widest) = (0u64, 1u64);
        let model = TensorType { dtype: DType::U8, ..self.emit.tensor(inputs[0].0) };
        let pad = |emit: &mut Emitter<'_>, parts: &mut Vec<NodeId>, sizes: &mut Vec<Part>, bytes: u64| {
            if bytes > 0 {
                parts.push(emit.zeros(model.with_shape([Dim::Const(bytes)].into_iter().collect())));
                sizes.push(Part { elements: Dim::Const(bytes), source: None });
            }
        };
        for &(input, _) in inputs {
            let ty = self.emit.tensor(input);
            let width = ty.dtype.bytes();
            let bytes = ty.bytes().and_then(|b| b.as_const()).expect("only members of known size travel as bytes");
            pad(&mut self.emit, &mut parts, &mut sizes, offset.next_multiple_of(width) - offset);
            offset = offset.next_multiple_of(width) + bytes;
            widest = widest.max(width);
            places.push(parts.len());
            let flat = self.flat(input);
            parts.push(self.emit.bit_cast(flat, DType::U8));
            sizes.push(Part { elements: Dim::Const(bytes), source: None });
        }
        let row = offset.next_multiple_of(widest);
        pad(&mut self.emit, &mut parts, &mut sizes, row - offset);
        for place in index.iter_mut().flatten() {
            *place = places[*place];
        }
        let vector = |elements: u64| model.with_shape([Dim::Const(elements)].into_iter().collect());
        let packed = self.emit.cat(&parts, 0, vector(row));
        let launch = self.relaunch(bucket, packed, vector(row.saturating_mul(ranks)));
        Made { launch: Some(launch), parts: None, index, sizes, ranks, row_bytes: Some(row), turned: Vec::new() }
    }

    pub(super) fn pack_scatter(&mut self, bucket: &Bucket, ranks: u64) -> Made {
        let (inputs, index) = self.inputs(bucket);
        let share = |emit: &Emitter<'_>, collective: NodeId| elements_of(&emit.tensor(collective));
        let (flat, sizes) = self.pack_by_rank(&inputs, ranks, share);
        let ty = self.vector(inputs[0].0, sum(&sizes));
        let launch = self.relaunch(bucket, flat, ty);
        Made { launch: Some(launch), parts: None, index, sizes, ranks, row_bytes: None, turned: Vec::new() }
    }

    /// Packs what goes to each rank side by side; what comes back lies the same way, by sender.
    pub(super) fn pack_exchange(&mut self, bucket: &Bucket, ranks: u64) -> Made {
        let (inputs, index) = self.inputs(bucket);
        let share = |emit: &Emitter<'_>, collective: NodeId| {
            let all = elements_of(&emit.tensor(collective));
            all.divide_exactly(ranks).expect("candidates exchange equally much with each rank")
        };
        let (flat, sizes) = self.pack_by_rank(&inputs, ranks, share);
        let each = sum(&sizes).as_const().and_then(|each| i64::try_from(each).ok());
        let each = Arg::Int(each.expect("candidates exchange amounts that are known and fit"));
        let ty = self.emit.tensor(flat);
        let launch = self.relaunch(bucket, flat, ty);
        let mut args = self.emit.graph.args_of(launch).clone();
        for splits in &mut args.positional[1..] {
            // An empty list means equal parts, too, and stays short however many ranks there are.
            let listed = if ranks <= MAX_LISTED_RANKS { ranks as usize } else { 0 };
            *splits = Arg::List(vec![each.clone(); listed]);
        }
        let args = self.emit.graph.intern_args(args);
        self.emit.graph.node_mut(launch).args = args;
        Made { launch: Some(launch), parts: None, index, sizes, ranks, row_bytes: None, turned: Vec::new() }
    }

    /// Packs members so that what goes to each rank lies together: rows by rank, `share` of each member in a row.
    fn pack_by_rank(
        &mut self,
        inputs: &[(NodeId, NodeId)],
        ranks: u64,
        share: impl Fn(&Emitter<'_>, NodeId) -> Dim,
    ) -> (NodeId, Vec<Part>) {
        let (mut parts, mut sizes) = (Vec::new(), Vec::new());
        for &(input, collective) in inputs {
            let share = share(&self.emit, collective);
            let rows = self.rank_rows(input, collective, ranks, share.clone());
            parts.push(rows);
            sizes.push(Part { elements: share, source: Some(input) });
        }
        let table = self.table(inputs[0].0, ranks, sum(&sizes));
        let packed = self.emit.cat(&parts, 1, table);
        (self.flat(packed), sizes)
    }

    /// A scatter's input as `[ranks, share]`: row r is what rank r gets.
    fn rank_rows(&mut self, input: NodeId, collective: NodeId, ranks: u64, share: Dim) -> NodeId {
        let dim = match self.emit.graph.collective(collective).map(|c| c.kind) {
            Some(CollectiveKind::ReduceScatter { dim, .. }) => dim as usize,
            _ => 0,
        };
        let table = |tensor: NodeId| Shape {
            dims: [Dim::Const(ranks), share.clone()].into_iter().collect(),
            from: (tensor, vec![(0, Scale::Same); 2]),
        };
        if dim == 0 {
            return self.emit.reshape(input, &table(input));
        }
        // [.., ranks * n, ..] as [.., ranks, n, ..], with the ranks moved to the front.
        let ty = self.emit.tensor(input);
        let mut dims = ty.shape.clone();
        let mut from: Vec<_> = (0..dims.len()).map(|at| (at, Scale::Same)).collect();
        dims[dim] = dims[dim].divide_exactly(ranks).unwrap_or_else(|| dims[dim].clone());
        from[dim].1 = Scale::Over(ranks);
        dims.insert(dim, Dim::Const(ranks));
        from.insert(dim, (dim, Scale::Same));
        let split = self.emit.reshape(input, &Shape { dims, from: (input, from) });
        let mut order: Vec<usize> = (0..=ty.shape.len()).filter(|&at| at != dim).collect();
        order.insert(0, dim);
        let moved = self.emit.permute(split, &order);
        self.emit.reshape(moved, &table(moved))
    }

    /// One launch of the members as they are. Where they are gathered or scattered along different dimensions, as policy
    /// `xla` allows, what a scatter sends is put in another order before, and what a gather makes, after.
    pub(super) fn coalesce(&mut self, bucket: &Bucket) -> Made {
        let dims: Vec<Option<u32>> = bucket.members.iter().map(|m| dim_of(self.emit.graph, m.collective)).collect();
        let dim = common_dim(self.emit.graph, bucket, &dims);
        let ranks = ranks_of(self.emit.graph, bucket.members[0].collective);
        let (mut inputs, mut types, mut turned) = (Vec::new(), Vec::new(), Vec::new());
        for (member, &own) in bucket.members.iter().zip(&dims) {
            let mut input = self.emit.graph.collective_inputs(member.collective)[0];
            let mut ty = self.emit.graph.type_of(member.collective).clone();
            let turn = own.zip(dim).filter(|(own, dim)| own != dim).map(|(own, dim)| (own as usize, dim as usize));
            let gathers = matches!(bucket.key.kind, CollectiveKind::AllGather { .. });
            if let Some((own, dim)) = turn {
                let smaller = self.emit.tensor(if gathers { input } else { member.collective });
                let mut larger = smaller.shape.clone();
                larger[dim] = times(&larger[dim], ranks);
                if gathers {
                    ty = Type::Tensor(smaller.with_shape(larger));
                } else {
                    let moved = self.move_ranks(input, &smaller.shape, ranks, (own, dim));
                    input = self.emit.reshape(moved, &fixed(moved, larger));
                }
            }
            inputs.push(input);
            types.push(ty);
            turned.push(turn.filter(|_| gathers));
        }
        let graph = &self.emit.graph;
        let first = bucket.members[0].collective;
        let args = with_list(graph.args_of(first), inputs.len() as u32);
        let operands: Vec<NodeId> = inputs.iter().chain(&graph.operands(first)[1..]).copied().collect();
        let kind = match (bucket.key.kind, dim) {
            (CollectiveKind::AllGather { .. }, Some(dim)) => CollectiveKind::AllGather { dim },
            (CollectiveKind::ReduceScatter { op, .. }, Some(dim)) => CollectiveKind::ReduceScatter { op, dim },
            (kind, _) => kind,
        };
        let op = Collective { kind, group: bucket.key.group, variant: bucket.key.variant, coalesced: true };
        let stem = stems(bucket.key.kind).0;
        let launch = self.emit.node(Op::Collective(op), stem, Type::Tuple(types.clone()), args, &operands);
        let mut made = Made { launch: Some(launch), ranks, ..Made::default() };
        for (index, ((member, turn), ty)) in bucket.members.iter().zip(turned).zip(types).enumerate() {
            made.turned.push(match (turn, ty) {
                (Some((own, dim)), Type::Tensor(ty)) => Some((self.emit.get_item(launch, index, ty), dim, own)),
                _ => {
                    self.emit.become_item(member.collective, launch, index);
                    None
                }
            });
        }
        made
    }

    /// A tensor of this shape but for one dimension, which is `ranks` times as large: taken apart there, with the ranks as a
    /// dimension of their own that is moved before another. From and to are dimensions of `shape`.
    pub(super) fn move_ranks(
        &mut self,
        tensor: NodeId,
        shape: &Dims,
        ranks: u64,
        (from, to): (usize, usize),
    ) -> NodeId {
        let mut split = shape.clone();
        split.insert(from, Dim::Const(ranks));
        let split = self.emit.reshape(tensor, &fixed(tensor, split));
        let order: Vec<usize> = (0..shape.len())
            .flat_map(|dim| (dim == to).then_some(from).into_iter().chain([dim + usize::from(dim >= from)]))
            .collect();
        let moved = self.emit.permute(split, &order);
        self.emit.clone(moved)
    }

    /// A flat tensor like `model`.
    fn vector(&self, model: NodeId, elements: Dim) -> TensorType {
        self.emit.tensor(model).with_shape([elements].into_iter().collect())
    }

    /// A tensor like `model` with one row per rank.
    fn table(&self, model: NodeId, ranks: u64, columns: Dim) -> TensorType {
        self.emit.tensor(model).with_shape([Dim::Const(ranks), columns].into_iter().collect())
    }
}

/// A shape whose sizes are numbers; symbolic ones among them would be read from `tensor` as they stand there.
fn fixed(tensor: NodeId, dims: Dims) -> Shape {
    let from = (0..dims.len()).map(|at| (at, Scale::Same)).collect();
    Shape { dims, from: (tensor, from) }
}

/// The dimension that a collective gathers or scatters along.
fn dim_of(graph: &Graph, collective: NodeId) -> Option<u32> {
    match graph.collective(collective)?.kind {
        CollectiveKind::AllGather { dim } | CollectiveKind::ReduceScatter { dim, .. } => Some(dim),
        _ => None,
    }
}

/// By how much a gather's result, or what a scatter sends, is larger than the other; 1 for other kinds.
fn ranks_of(graph: &Graph, collective: NodeId) -> u64 {
    let size = |id: NodeId, dim: u32| graph.tensor(id).and_then(|tensor| tensor.shape.get(dim as usize)?.as_const());
    let ratio = dim_of(graph, collective).and_then(|dim| {
        let (a, b) = (size(collective, dim)?, size(*graph.collective_inputs(collective).first()?, dim)?);
        a.max(b).checked_div(a.min(b))
    });
    ratio.unwrap_or(1)
}

/// The dimension of a launch of several: that of most members, the lowest of several such; the first, if a member does
/// not have so many (XLA's `FindMostFrequentGatherDim`).
fn common_dim(graph: &Graph, bucket: &Bucket, dims: &[Option<u32>]) -> Option<u32> {
    let mut counts = std::collections::BTreeMap::<u32, usize>::new();
    dims.iter().flatten().for_each(|&dim| *counts.entry(dim).or_default() += 1);
    let (most, _) = counts.into_iter().max_by_key(|&(dim, count)| (count, std::cmp::Reverse(dim)))?;
    let ranks = bucket.members.iter().filter_map(|m| graph.tensor(m.collective)).map(|tensor| tensor.shape.len());
    Some(if ranks.min().is_some_and(|least| (most as usize) < least) { most } else { 0 })
}

fn elements_of(ty: &TensorType) -> Dim {
    ty.elements().expect("types are checked to fit when they are read")
}

fn times(dim: &Dim, factor: u64) -> Dim {
    dim.checked_mul(&Dim::Const(factor)).expect("the result of a merged collective is checked to fit beforehand")
}

/// A collective's arguments with its one tensor replaced by a list of `count`; other operands move up.
fn with_list(args: &Args, count: u32) -> Args {
    fn shift(arg: &Arg, by: u32) -> Arg {
        match arg {
            Arg::Operand(index) => Arg::Operand(index + by),
            Arg::List(items) => Arg::List(items.iter().map(|item| shift(item, by)).collect()),
            other => other.clone(),
        }
    }
    let list = Arg::List((0..count).map(Arg::Operand).collect());
    let moved = |arg: &Arg| shift(arg, count - 1);
    let mut args = Args {
        positional: args.positional.iter().map(moved).collect(),
        keyword: args.keyword.iter().map(|(key, arg)| (key.clone(), moved(arg))).collect(),
    };
    match args.positional.first_mut().or_else(|| args.keyword.first_mut().map(|(_, arg)| arg)) {
        Some(first) => *first = list,
        None => args.positional.push(list),
    }
    args
}
