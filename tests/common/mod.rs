//! Random graphs that are valid by construction, for properties.
//!
//! A graph is grown from a list of small steps, so that a failure shrinks to few of them. It runs on 4 ranks whose
//! groups have known members. Every started collective is waited for in its own region before anything reads it, no
//! input of a collective is written while it is in flight, and every value without a reader is an output.

#![allow(dead_code, reason = "each test file uses a part")]

mod calls;
pub mod interp;
pub mod rewrite;
pub mod tensor;

use bucketeer::ir::infer::infer_type;
use bucketeer::ir::{
    Arg, Args, Collective, CollectiveKind, ControlEdge, DType, Dim, GlobalRank, Graph, GroupId, Meta, NodeId, Op,
    ReduceOp, Region, RegionId, RegionKind, Strength, SymExpr, TensorType, Type, Variant,
};
use proptest::prelude::*;

/// Ranks in the program.
pub const RANKS: u32 = 4;

/// How large graphs grow, and what may be in them.
#[derive(Clone, Copy, Debug)]
pub struct GraphOptions {
    /// Most steps; each makes a node or a few.
    pub steps: usize,
    /// Loops and branches.
    pub regions: bool,
    /// In-place operators and collectives.
    pub writes: bool,
    /// Random operators, barriers and order edges.
    pub effects: bool,
    /// Broadcasts, reductions to a root, all-to-alls and permutes beside the three common kinds.
    pub all_kinds: bool,
    /// Sizes known only at run time: multiples of the symbol `s`.
    pub symbols: bool,
}

impl Default for GraphOptions {
    fn default() -> Self {
        Self { steps: 40, regions: true, writes: true, effects: true, all_kinds: true, symbols: true }
    }
}

/// Valid graphs with everything in them.
pub fn graph_strategy() -> impl Strategy<Value = Graph> {
    graph_strategy_with(GraphOptions::default())
}

/// Valid graphs with some things left out.
pub fn graph_strategy_with(options: GraphOptions) -> impl Strategy<Value = Graph> {
    let step = (0..116u8, any::<u16>(), any::<u16>(), any::<u16>());
    prop::collection::vec(step, 0..=options.steps).prop_map(move |steps| grow(&steps, options))
}

type Step = (u8, u16, u16, u16);

/// The graph of a list of steps.
pub fn grow(steps: &[Step], options: GraphOptions) -> Graph {
    let mut grower = Grower::new(options);
    for &step in steps {
        grower.step(step);
    }
    grower.finish()
}

/// Whether `inner` is `outer` or inside it.
pub fn encloses(graph: &Graph, outer: RegionId, mut inner: RegionId) -> bool {
    while inner != outer && inner != RegionId::ROOT {
        inner = graph.region(inner).parent;
    }
    inner == outer
}

#[derive(Clone)]
struct Value {
    id: NodeId,
    storage: usize,
    region: RegionId,
    read: bool,
}

#[derive(Clone, Default)]
struct Storage {
    pending: bool,
    region: Option<RegionId>,
    /// Storages that the collective in flight reads.
    sends: Vec<usize>,
}

struct Grower {
    graph: Graph,
    options: GraphOptions,
    groups: Vec<GroupId>,
    values: Vec<Value>,
    /// Sizes that were read.
    sizes: Vec<Value>,
    storages: Vec<Storage>,
    path: Vec<RegionId>,
    next: u32,
}

const SHAPES: &[&[u64]] =
    &[&[4], &[8], &[4, 2], &[8, 3], &[0], &[12], &[4, 2, 2], &[16], &[1], &[], &[1, 4], &[3, 4], &[1, 1, 8]];
const DTYPES: &[DType] =
    &[DType::F32, DType::F32, DType::Bf16, DType::I64, DType::U8, DType::F64, DType::F16, DType::Bool];

fn pick<T: Clone>(items: &[T], by: u16) -> Option<T> {
    (!items.is_empty()).then(|| items[usize::from(by) % items.len()].clone())
}

impl Grower {
    fn new(options: GraphOptions) -> Self {
        let mut graph = Graph::new("random");
        let lists: [(&str, u32, &[&[u32]]); 4] = [
            ("G0", 2, &[&[0, 1], &[2, 3]]),
            ("G1", 4, &[&[0, 1, 2, 3]]),
            ("G2", 2, &[&[0, 2], &[1, 3]]),
            ("G3", 1, &[&[0], &[1], &[2], &[3]]),
        ];
        let groups = lists.map(|(name, size, members)| {
            let id = graph.intern_group(name, Some(size));
            graph.group_mut(id).members =
                members.iter().map(|list| list.iter().copied().map(GlobalRank).collect()).collect();
            id
        });
        let mut grower = Self {
            graph,
            options,
            groups: groups.to_vec(),
            values: Vec::new(),
            sizes: Vec::new(),
            storages: Vec::new(),
            path: vec![RegionId::ROOT],
            next: 0,
        };
        grower.input(DType::F32, SHAPES[0], 0);
        grower
    }

    fn region(&self) -> RegionId {
        self.path.last().copied().unwrap_or(RegionId::ROOT)
    }

    // Building.

    fn node(&mut self, op: Op, stem: &str, args: Args, operands: &[NodeId], ty: Option<Type>) -> NodeId {
        let ty = ty.unwrap_or_else(|| infer_type(&self.graph, op, &args, operands));
        let name = self.graph.intern(&format!("{stem}{}", self.next));
        self.next += 1;
        let (ty, args) = (self.graph.intern_type(ty), self.graph.intern_args(args));
        let id = self.graph.push(op, name, ty, args, operands);
        self.graph.node_mut(id).region = self.region();
        for value in &mut self.values {
            value.read |= operands.contains(&value.id);
        }
        id
    }

    fn call(&mut self, target: &str, mut rest: Vec<Arg>, operands: &[NodeId], ty: Option<Type>) -> NodeId {
        let mut positional: Vec<_> = (0..operands.len() as u32).map(Arg::Operand).collect();
        positional.append(&mut rest);
        let op = Op::Call(self.graph.intern(target));
        self.node(
            op,
            target.trim_end_matches('_').rsplit('.').next_back().unwrap_or("v"),
            Args::positional(positional),
            operands,
            ty,
        )
    }

    fn storage(&mut self, pending: bool, sends: Vec<usize>) -> usize {
        self.storages.push(Storage { pending, region: Some(self.region()), sends });
        self.storages.len() - 1
    }

    fn keep(&mut self, id: NodeId, storage: usize) {
        self.values.push(Value { id, storage, region: self.region(), read: false });
    }

    fn fresh(&mut self, id: NodeId) {
        let storage = self.storage(false, Vec::new());
        self.keep(id, storage);
    }

    fn input(&mut self, dtype: DType, shape: &[u64], flavour: u16) {
        let mut tensor = TensorType::dense(dtype, shape);
        if flavour % 4 == 1 {
            tensor.strides = tensor.dense_strides();
            tensor.device = Some("cuda:0".into());
        }
        if flavour % 8 == 2 {
            tensor.device = Some("cpu".into());
        }
        let id = self.node(Op::Input, "x", Args::default(), &[], Some(Type::Tensor(tensor)));
        self.fresh(id);
    }

    fn symbolic_input(&mut self, a: u16, b: u16) {
        let s = |times: i64| {
            let expr = SymExpr::atom("s").checked_mul(&SymExpr::constant(times)).expect("small");
            Dim::from_expr(expr).expect("not negative")
        };
        let shape = match a % 4 {
            0 => vec![s(4)],
            1 => vec![s(4), Dim::Const(3)],
            2 => vec![Dim::Const(2), s(1)],
            _ => vec![s(1), s(2)],
        };
        let mut tensor = TensorType::dense(DTYPES[usize::from(b) % DTYPES.len()], &[]);
        tensor.shape = shape.into_iter().collect();
        self.graph.hints.insert("s".into(), 2);
        let id = self.node(Op::Input, "x", Args::default(), &[], Some(Type::Tensor(tensor)));
        self.fresh(id);
    }

    /// Reads a size, of a value in flight, too.
    fn shape_reader(&mut self, a: u16, b: u16) {
        let here: Vec<_> = self.values.iter().filter(|value| self.path.contains(&value.region)).cloned().collect();
        let pending = self.pending();
        let from = if pending.is_empty() || a.is_multiple_of(4) { here } else { pending };
        let Some(x) = pick(&from, a) else { return };
        let Some(tensor) = self.graph.tensor(x.id).cloned() else { return };
        let (target, rest, size) = match pick(&tensor.shape, b) {
            Some(size) if !b.is_multiple_of(5) => {
                let dim = usize::from(b) % tensor.shape.len();
                ("aten.sym_size.int", vec![Arg::Int(dim as i64)], Some(size))
            }
            _ => ("aten.sym_numel.default", vec![], tensor.elements()),
        };
        let Some(size) = size.and_then(|size| size.to_expr()) else { return };
        let id = self.call(target, rest, &[x.id], Some(Type::SymInt(size)));
        let storage = self.storage(false, Vec::new());
        self.sizes.push(Value { id, storage, region: self.region(), read: false });
    }

    fn transpose(&mut self, a: u16) {
        let Some(x) = self.any(a) else { return };
        if self.tensor(&x).shape.len() == 2 {
            let id = self.call("transpose", vec![], &[x.id], None);
            self.keep(id, x.storage);
        }
    }

    /// A second wait for what was waited for.
    fn wait_again(&mut self, a: u16) {
        let started = |value: &Value| matches!(self.graph.node(value.id).op, Op::Collective(c) if !c.coalesced);
        let values: Vec<_> = self.readable().into_iter().filter(started).collect();
        if let Some(value) = pick(&values, a) {
            self.wait(&value);
        }
    }

    /// The same collective on the same tensor.
    fn gather_again(&mut self, a: u16) {
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

    fn wait_all_here(&mut self) {
        let mut left = 3;
        while let Some(value) = self.pending().first().cloned().filter(|_| left > 0) {
            self.wait(&value);
            left -= 1;
        }
    }

    // Choosing.

    fn tensor(&self, value: &Value) -> TensorType {
        self.graph.tensor(value.id).cloned().unwrap_or_else(|| TensorType::dense(DType::F32, &[1]))
    }

    /// Values that may be read here.
    fn readable(&self) -> Vec<Value> {
        let here = |value: &&Value| self.path.contains(&value.region) && !self.storages[value.storage].pending;
        self.values.iter().filter(here).cloned().collect()
    }

    fn any(&self, by: u16) -> Option<Value> {
        // Late values make deep graphs; take those rather than early ones.
        let readable = self.readable();
        let from = readable.len().saturating_sub(1 + usize::from(by % 7) * 3);
        pick(&readable[from..], by / 7)
    }

    /// A value whose storage this region owns and no collective in flight sends.
    fn writable(&self, by: u16) -> Option<Value> {
        let free = |value: &Value| {
            let storage = &self.storages[value.storage];
            let sent = self.storages.iter().any(|s| s.pending && s.sends.contains(&value.storage));
            storage.region == Some(self.region()) && !sent
        };
        let values: Vec<_> = self.readable().into_iter().filter(free).collect();
        pick(&values, by)
    }

    /// Values of this region whose collective was started here and is in flight.
    fn pending(&self) -> Vec<Value> {
        let here = Some(self.region());
        let waits = |value: &&Value| {
            let storage = &self.storages[value.storage];
            storage.pending && storage.region == here && Some(value.region) == here
        };
        self.values.iter().filter(waits).cloned().collect()
    }

    fn group(&self, by: u16) -> GroupId {
        // Groups of one are rare.
        let groups = if by.is_multiple_of(16) { &self.groups[..] } else { &self.groups[..3] };
        groups[usize::from(by / 16) % groups.len()]
    }

    // Steps.

    fn step(&mut self, (kind, a, b, c): Step) {
        let o = self.options;
        match kind {
            0..=11 if self.path.len() == 1 => {
                self.input(DTYPES[usize::from(a) % DTYPES.len()], SHAPES[usize::from(b) % SHAPES.len()], c)
            }
            12..=21 => self.pointwise(a, b, c),
            22..=24 => self.cast(a, b),
            25..=29 => self.view(a, b),
            30..=63 => self.collective(a, b, c),
            64..=67 => self.coalesced(a, b, c),
            68..=82 => self.wait_some(a),
            83..=86 if o.writes => self.write(a),
            87..=89 if o.writes => self.collective_in_place(a, b),
            90..=91 if o.effects => self.effect(a),
            92..=93 if o.effects => self.edge(a, b, c),
            94..=96 if o.regions => self.open_region(a),
            97..=99 if o.regions => self.close_region(),
            100..=103 if o.symbols => self.symbolic_input(a, b),
            104..=106 => self.shape_reader(a, b),
            107..=109 => self.transpose(a),
            110 => self.wait_again(a),
            111..=112 => self.gather_again(a),
            113..=115 => self.wait_all_here(),
            _ => self.pointwise(a, b, c),
        }
    }

    fn pointwise(&mut self, a: u16, b: u16, c: u16) {
        let Some(x) = self.any(a) else { return };
        let ty = self.tensor(&x);
        let same: Vec<_> = self.readable().into_iter().filter(|y| self.tensor(y) == ty).collect();
        let id = match (c % 4, pick(&same, b)) {
            (0, _) | (_, None) => self.call(["neg", "relu", "sin"][usize::from(b) % 3], vec![], &[x.id], None),
            (1, _) => self.call("mul", vec![Arg::Float("2.0".into())], &[x.id], None),
            (2, Some(y)) => self.call("layer", vec![Arg::Int(i64::from(b % 3))], &[x.id, y.id], Some(Type::Tensor(ty))),
            (_, Some(y)) => self.call("add", vec![], &[x.id, y.id], None),
        };
        self.fresh(id);
    }

    fn cast(&mut self, a: u16, b: u16) {
        let Some(x) = self.any(a) else { return };
        let id = self.call("cast", vec![Arg::DType(DTYPES[usize::from(b) % DTYPES.len()])], &[x.id], None);
        self.fresh(id);
    }

    fn view(&mut self, a: u16, b: u16) {
        // Views of pending values, too.
        let here: Vec<_> = self.values.iter().filter(|value| self.path.contains(&value.region)).cloned().collect();
        let Some(x) = pick(&here, a) else { return };
        let first = self.tensor(&x).shape.first().and_then(Dim::as_const);
        let id = match (b % 2, first) {
            (0, Some(rows)) => self.call("slice", vec![Arg::Int(0), Arg::Int((rows / 2) as i64)], &[x.id], None),
            _ => self.call("reshape", vec![Arg::List(vec![Arg::Int(-1)])], &[x.id], None),
        };
        self.keep(id, x.storage);
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

    fn collective(&mut self, a: u16, b: u16, c: u16) {
        let Some(x) = self.any(a) else { return };
        let group = self.group(b);
        let kind = self.kind(&self.tensor(&x), group, c, b / 16);
        let op = Op::Collective(Collective { kind, group, variant: Variant::Functional, coalesced: false });
        let mut positional = vec![Arg::Operand(0)];
        if kind == CollectiveKind::Permute {
            // A ring: rank r of the group sends to r + 1.
            let size = i64::from(self.graph.group(group).size.unwrap_or(1));
            let pair = |r| Arg::List(vec![Arg::Int(r), Arg::Int((r + 1) % size)]);
            positional.push(Arg::List((0..size).map(pair).collect()));
        }
        let id = self.node(op, "c", Args::positional(positional), &[x.id], None);
        if c.is_multiple_of(11) {
            let meta = Meta { key: Some("L1".into()), sources: vec!["a.py:10".into()], ..Meta::default() };
            self.graph.set_meta(id, meta);
        }
        let storage = self.storage(true, vec![x.storage]);
        self.keep(id, storage);
    }

    fn coalesced(&mut self, a: u16, b: u16, c: u16) {
        let Some(x) = self.any(a) else { return };
        let dtype = self.tensor(&x).dtype;
        let same: Vec<_> = self.readable().into_iter().filter(|y| self.tensor(y).dtype == dtype).collect();
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

    fn collective_in_place(&mut self, a: u16, b: u16) {
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

    fn wait(&mut self, value: &Value) {
        let id = self.node(Op::Wait, "w", Args::positional(vec![Arg::Operand(0)]), &[value.id], None);
        self.storages[value.storage].pending = false;
        self.keep(id, value.storage);
    }

    fn wait_some(&mut self, a: u16) {
        if let Some(value) = pick(&self.pending(), a) {
            self.wait(&value);
        }
    }

    fn wait_all(&mut self) {
        while let Some(value) = self.pending().first().cloned() {
            self.wait(&value);
        }
    }

    fn write(&mut self, a: u16) {
        let Some(x) = self.writable(a) else { return };
        let id = self.call("mul_", vec![Arg::Int(3)], &[x.id], None);
        self.keep(id, x.storage);
    }

    fn effect(&mut self, a: u16) {
        if a.is_multiple_of(2) {
            self.call("opaque_comm.barrier", vec![], &[], Some(Type::Unknown));
        } else {
            let Some(x) = self.any(a / 2) else { return };
            let ty = Type::Tensor(self.tensor(&x));
            let id = self.call("rand_like", vec![], &[x.id], Some(ty));
            self.fresh(id);
        }
    }

    fn edge(&mut self, a: u16, b: u16, c: u16) {
        let order = self.graph.order();
        let (Some(one), Some(two)) = (pick(order, a), pick(order, b)) else { return };
        let positions = self.graph.positions();
        let strength = if c.is_multiple_of(3) { Strength::Hard } else { Strength::Soft };
        let (before, after) = if positions[one.index()] < positions[two.index()] { (one, two) } else { (two, one) };
        if before != after {
            self.graph.control.push(ControlEdge { before, after, strength });
        }
    }

    fn open_region(&mut self, a: u16) {
        if self.path.len() > 3 {
            return;
        }
        let (kind, label) = match a % 3 {
            0 => (RegionKind::Loop, "loop(n=2)"),
            1 => (RegionKind::Branch, "if(flag)"),
            _ => (RegionKind::Called, "call"),
        };
        let region = self.graph.add_region(Region { parent: self.region(), kind, label: label.into() });
        self.path.push(region);
    }

    fn close_region(&mut self) {
        if self.path.len() > 1 {
            self.wait_all();
            self.path.pop();
        }
    }

    fn finish(mut self) -> Graph {
        while self.path.len() > 1 {
            self.close_region();
        }
        self.wait_all();
        let sinks = self.values.iter().filter(|value| !value.read && value.region == RegionId::ROOT);
        let sizes = self.sizes.iter().filter(|value| value.region == RegionId::ROOT);
        let sinks: Vec<_> = sinks.chain(sizes).map(|value| value.id).collect();
        let args = Args::positional((0..sinks.len() as u32).map(Arg::Operand).collect());
        let name = self.graph.intern("output");
        let (ty, args) = (self.graph.intern_type(Type::Unknown), self.graph.intern_args(args));
        self.graph.push(Op::Output, name, ty, args, &sinks);
        self.graph
    }
}
