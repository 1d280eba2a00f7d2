//! Random graphs that are valid by construction.
//!
//! A graph is grown from a list of small steps, so that a failure shrinks to few of them. It runs on 4 ranks whose
//! groups have known members. Every started collective is waited for in its own region before anything reads it, no
//! input of a collective is written while it is in flight, and every value without a reader is an output.

mod calls;
mod collectives;

use bucketeer::ir::operators::infer_type;
use bucketeer::ir::{
    Arg, Args, ControlEdge, DType, GlobalRank, Graph, GroupId, NodeId, Op, Region, RegionId, RegionKind, Strength,
    TensorType, Type,
};

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

/// What a step does, and three numbers that choose how.
pub type GrowthStep = (u8, u16, u16, u16);

/// Kinds of steps are below this.
pub const STEP_KINDS: u8 = 118;

/// The graph of a list of steps.
#[must_use]
pub fn grow(steps: &[GrowthStep], options: GraphOptions) -> Graph {
    let mut grower = Grower::new(options);
    for &step in steps {
        grower.step(step);
    }
    grower.finish()
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

    fn step(&mut self, (kind, a, b, c): GrowthStep) {
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
            116..=117 => self.wait_list(a),
            _ => self.pointwise(a, b, c),
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
