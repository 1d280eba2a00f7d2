//! The graph: nodes in program order, and the tables they point into.

use super::args::{Arg, Args, ArgsTable, starts_with_list};
use super::bodies::Bodies;
use super::edit_log::{EditLog, Original};
use super::entities::{ArgsId, GroupId, MetaId, Name, NodeId, RegionId, TypeId};
use super::hlo_facts::HloFacts;
use super::names::Names;
use super::operators::{Operator, Operators};
use super::ops::{Collective, GlobalRank, Op};
use super::types::{Dim, TensorType, Type, Types};
use indexmap::IndexMap;

/// A node. It makes exactly one value, which may be a tuple, a token or nothing of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// Name of its value; unique in the graph.
    pub name: Name,
    /// Type of its value.
    pub ty: TypeId,
    /// Its arguments, with holes for the operands.
    pub args: ArgsId,
    /// Where it stands in the tree of regions.
    pub region: RegionId,
    /// What else is known of it.
    pub meta: MetaId,
    first_operand: u32,
    operand_count: u32,
}

impl Node {
    /// Its operands' place among those of all nodes.
    const fn operands(&self) -> std::ops::Range<usize> {
        let start = self.first_operand as usize;
        start..start + self.operand_count as usize
    }
}

/// Ranks that communicate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessGroup {
    /// Its name in the source.
    pub name: Box<str>,
    /// Number of ranks, if any operator or the groups file states it.
    pub size: Option<u32>,
    /// The groups of this name, each the global ranks it holds in order; empty when not known. In an SPMD program
    /// one name stands for several disjoint groups, and each rank is in one.
    pub members: Vec<Vec<GlobalRank>>,
}

impl ProcessGroup {
    /// Whether a group's name only lists who is in it, as HLO text does: `{{0,1},{2,3}}`, `[2,2]<=[4]`.
    #[must_use]
    pub fn is_list(name: &str) -> bool {
        name == "all" || name.starts_with(['{', '[']) || name.starts_with("mesh[")
    }

    /// Whether the group is its members, whatever it is called.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        Self::is_list(&self.name) && !self.members.is_empty()
    }
}

/// What kind of body a region is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegionKind {
    /// The graph itself.
    Root,
    /// Runs a number of times.
    Loop,
    /// Runs or does not.
    Branch,
    /// Called by name.
    Called,
}

/// A loop, branch or called body. Its nodes stand together in program order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The region around it; itself for the root.
    pub parent: RegionId,
    /// Loop, branch or call.
    pub kind: RegionKind,
    /// What stands after the word `region`, as written: `loop(n=3)`.
    pub label: Box<str>,
}

/// Facts about a node that do not change its meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Meta {
    /// User boundary: only collectives with the same key may travel together.
    pub key: Option<Box<str>>,
    /// Source lines it came from.
    pub sources: Vec<Box<str>>,
    /// Names of the collectives that were merged into it.
    pub members: Vec<Box<str>>,
    /// Whether an input holds the result of a collective that was started outside and not waited for.
    pub pending: bool,
    /// Whether XLA marked a collective as one that nothing will run beside: `sync_collective`.
    pub sync: bool,
}

/// How binding an order wish is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Strength {
    /// Part of the meaning.
    Hard,
    /// A preference, given up when it stands in the way.
    Soft,
}

/// `after` runs after `before`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ControlEdge {
    /// Runs first.
    pub before: NodeId,
    /// Runs second.
    pub after: NodeId,
    /// Rule or wish.
    pub strength: Strength,
}

/// A dataflow graph; see `docs/ir.md` for the language.
///
/// Nodes live in an arena and are never freed; the program order is a list of the ones in use. Editing makes new
/// nodes and a new order, so a [`NodeId`] stays valid for as long as the graph lives.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The graph's name.
    pub name: String,
    names: Names,
    types: Types,
    args: ArgsTable,
    nodes: Vec<Node>,
    operands: Vec<NodeId>,
    order: Vec<NodeId>,
    groups: Vec<ProcessGroup>,
    regions: Vec<Region>,
    metas: Vec<Meta>,
    edit_log: Option<EditLog>,
    /// Order edges beside those of data and memory.
    pub control: Vec<ControlEdge>,
    /// Likely values of symbols; they guide sizes, never meaning.
    pub hints: IndexMap<Box<str>, u64>,
    /// Whether the program order is a schedule that was chosen, as HLO text says with `is_scheduled=true`. Passes then
    /// merge only what nothing between depends on, so that no node but the merged collectives changes its place.
    pub scheduled: bool,
    /// What an HLO module says beside; `None` for graphs of other forms.
    pub hlo: Option<HloFacts>,
    /// What is declared of operators that no table knows. It is not a part of the graph's text.
    pub operators: Operators,
    /// The graphs that this one calls, where the file holds them. They are not part of its text.
    pub bodies: Bodies,
}

impl Default for Graph {
    fn default() -> Self {
        Self::new("graph")
    }
}

impl Graph {
    /// An empty graph.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            names: Names::default(),
            types: Types::default(),
            args: ArgsTable::default(),
            nodes: Vec::new(),
            operands: Vec::new(),
            order: Vec::new(),
            groups: Vec::new(),
            regions: vec![Region { parent: RegionId::ROOT, kind: RegionKind::Root, label: "".into() }],
            metas: vec![Meta::default()],
            edit_log: None,
            control: Vec::new(),
            hints: IndexMap::new(),
            scheduled: false,
            hlo: None,
            operators: Operators::default(),
            bodies: Bodies::default(),
        }
    }

    /// An empty graph in which these strings are interned already, with room for so many nodes and operands.
    #[must_use]
    pub fn with_names(name: &str, names: Names, nodes: usize, operands: usize) -> Self {
        let (nodes, operands) = (Vec::with_capacity(nodes), Vec::with_capacity(operands));
        Self { names, nodes, operands, ..Self::new(name) }
    }

    /// From now on, keeps what the graph is now: [`Graph::edit_log`] and [`Graph::original`] tell.
    pub fn start_edit_log(&mut self) {
        self.edit_log = Some(EditLog::of(&self.order, &self.control, self.nodes.len()));
    }

    /// Forgets what the graph was.
    pub fn stop_edit_log(&mut self) {
        self.edit_log = None;
    }

    /// The log, if one was started.
    #[must_use]
    pub const fn edit_log(&self) -> Option<&EditLog> {
        self.edit_log.as_ref()
    }

    /// What a node was when the log was started; `None` for one that was made since, and without a log.
    #[must_use]
    pub fn original(&self, id: NodeId) -> Option<Original<'_>> {
        let log = self.edit_log.as_ref().filter(|log| log.contains(id))?;
        let as_it_is = || Original { node: self.node(id), operands: self.operands(id) };
        Some(log.edited(id).unwrap_or_else(as_it_is))
    }

    fn before_edit(&mut self, id: NodeId) {
        if let Some(log) = &mut self.edit_log {
            let node = &self.nodes[id.index()];
            log.before_edit(id, node, &self.operands[node.operands()]);
        }
    }

    /// Nodes in program order.
    #[must_use]
    pub fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// Replaces the program order; nodes left out are no longer part of the graph.
    pub fn set_order(&mut self, order: Vec<NodeId>) {
        self.order = order;
    }

    /// Size of the node arena: ids are below it. Some may be out of use.
    #[must_use]
    pub fn arena_len(&self) -> usize {
        self.nodes.len()
    }

    /// The node of an id.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The node of an id, to edit. Operands are edited with [`Graph::set_operands`].
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.before_edit(id);
        &mut self.nodes[id.index()]
    }

    /// A node's operands, in order of appearance in its arguments.
    #[must_use]
    pub fn operands(&self, id: NodeId) -> &[NodeId] {
        &self.operands[self.nodes[id.index()].operands()]
    }

    /// A node's operands, to replace one by one.
    pub fn operands_mut(&mut self, id: NodeId) -> &mut [NodeId] {
        self.before_edit(id);
        &mut self.operands[self.nodes[id.index()].operands()]
    }

    /// Gives a node other operands; their number may differ.
    pub fn set_operands(&mut self, id: NodeId, operands: &[NodeId]) {
        self.before_edit(id);
        let (first_operand, operand_count) = self.store_operands(operands);
        let node = &mut self.nodes[id.index()];
        node.first_operand = first_operand;
        node.operand_count = operand_count;
    }

    fn store_operands(&mut self, operands: &[NodeId]) -> (u32, u32) {
        let first = NodeId::from_index(self.operands.len()).index() as u32;
        self.operands.extend_from_slice(operands);
        (first, operands.len() as u32)
    }

    /// Makes a node and puts it last in program order.
    pub fn push(&mut self, op: Op, name: Name, ty: TypeId, args: ArgsId, operands: &[NodeId]) -> NodeId {
        let id = self.create(op, name, ty, args, operands);
        self.order.push(id);
        id
    }

    /// Makes a node outside the program order; [`Graph::set_order`] gives it a place.
    pub fn create(&mut self, op: Op, name: Name, ty: TypeId, args: ArgsId, operands: &[NodeId]) -> NodeId {
        let id = NodeId::from_index(self.nodes.len());
        let (first_operand, operand_count) = self.store_operands(operands);
        self.nodes.push(Node {
            op,
            name,
            ty,
            args,
            region: RegionId::ROOT,
            meta: MetaId::NONE,
            first_operand,
            operand_count,
        });
        id
    }

    /// Interned strings.
    #[must_use]
    pub const fn names(&self) -> &Names {
        &self.names
    }

    /// The name of a text, new if needed.
    pub fn intern(&mut self, text: &str) -> Name {
        self.names.intern(text)
    }

    /// The text of a name.
    #[must_use]
    pub fn text(&self, name: Name) -> &str {
        self.names.get(name)
    }

    /// The name of a node's value.
    #[must_use]
    pub fn name_of(&self, id: NodeId) -> &str {
        self.names.get(self.node(id).name)
    }

    /// The target of a call, or the word for any other op.
    #[must_use]
    pub fn target_of(&self, id: NodeId) -> &str {
        match self.node(id).op {
            Op::Input => "input",
            Op::Output => "output",
            Op::Wait => "wait",
            Op::Collective(collective) => super::ops::torch_name(collective),
            Op::Call(target) => self.names.get(target),
        }
    }

    /// What a target calls. Its text is looked up once, however often it is asked for.
    #[must_use]
    pub fn operator(&self, target: Name) -> Operator<'_> {
        self.names.operator(target)
    }

    /// What a node calls; an operator without a meaning if it is not a call.
    #[must_use]
    pub fn operator_of(&self, id: NodeId) -> Operator<'_> {
        match self.node(id).op {
            Op::Call(target) => self.names.operator(target),
            Op::Input | Op::Output | Op::Wait | Op::Collective(_) => Operator::none(self.target_of(id)),
        }
    }

    /// The id of a type, new if needed.
    pub fn intern_type(&mut self, ty: Type) -> TypeId {
        self.types.intern(ty)
    }

    /// The type of an id.
    #[must_use]
    pub fn ty(&self, id: TypeId) -> &Type {
        self.types.get(id)
    }

    /// The type of a node's value.
    #[must_use]
    pub fn type_of(&self, id: NodeId) -> &Type {
        self.types.get(self.node(id).ty)
    }

    /// The tensor type of a node's value, if it is a tensor.
    #[must_use]
    pub fn tensor(&self, id: NodeId) -> Option<&TensorType> {
        self.type_of(id).as_tensor()
    }

    /// The id of an argument list, new if needed.
    pub fn intern_args(&mut self, args: Args) -> ArgsId {
        self.args.intern(args)
    }

    /// A node's arguments.
    #[must_use]
    pub fn args_of(&self, id: NodeId) -> &Args {
        self.args.get(self.node(id).args)
    }

    /// The argument list of an id.
    #[must_use]
    pub fn args(&self, id: ArgsId) -> &Args {
        self.args.get(id)
    }

    /// Process groups; [`GroupId`] indexes them.
    #[must_use]
    pub fn groups(&self) -> &[ProcessGroup] {
        &self.groups
    }

    /// A process group.
    #[must_use]
    pub fn group(&self, id: GroupId) -> &ProcessGroup {
        &self.groups[id.index()]
    }

    /// A process group, to edit.
    pub fn group_mut(&mut self, id: GroupId) -> &mut ProcessGroup {
        &mut self.groups[id.index()]
    }

    /// The group of that name and size. A size that is not stated agrees with any; two stated sizes under one name
    /// are two groups, for they cannot be one.
    pub fn intern_group(&mut self, name: &str, size: Option<u32>) -> GroupId {
        let agrees = |group: &ProcessGroup| {
            &*group.name == name && (group.size.is_none() || size.is_none() || group.size == size)
        };
        let index = self.groups.iter().position(agrees).unwrap_or_else(|| {
            self.groups.push(ProcessGroup { name: name.into(), size: None, members: Vec::new() });
            self.groups.len() - 1
        });
        let group = &mut self.groups[index];
        group.size = group.size.or(size);
        GroupId::from_index(index)
    }

    /// Regions; [`RegionId`] indexes them.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// A region.
    #[must_use]
    pub fn region(&self, id: RegionId) -> &Region {
        &self.regions[id.index()]
    }

    /// Makes a region.
    pub fn add_region(&mut self, region: Region) -> RegionId {
        self.regions.push(region);
        RegionId::from_index(self.regions.len() - 1)
    }

    /// Replaces all regions; the first is the root. Nodes keep the ids they hold.
    pub fn set_regions(&mut self, regions: Vec<Region>) {
        self.regions = regions;
    }

    /// Whether `inner` is `outer` or lies inside it.
    #[must_use]
    pub fn encloses(&self, outer: RegionId, inner: RegionId) -> bool {
        outer == RegionId::ROOT || self.regions_around(inner).any(|region| region == outer)
    }

    /// A region and those around it, innermost first, without the root.
    pub fn regions_around(&self, region: RegionId) -> impl Iterator<Item = RegionId> + '_ {
        let inner = |region: RegionId| (region != RegionId::ROOT).then_some(region);
        std::iter::successors(inner(region), move |&region| inner(self.region(region).parent))
    }

    /// The value of a size: known, or by the hints for its symbols. `None` if neither says.
    #[must_use]
    pub fn likely_value(&self, dim: &Dim) -> Option<u64> {
        match dim {
            Dim::Const(value) => Some(*value),
            Dim::Sym(expr) => {
                let hint = |symbol: &str| self.hints.get(symbol).and_then(|&value| i64::try_from(value).ok());
                expr.evaluate(&hint).and_then(|value| u64::try_from(value).ok())
            }
        }
    }

    /// A node's metadata.
    #[must_use]
    pub fn meta_of(&self, id: NodeId) -> &Meta {
        &self.metas[self.node(id).meta.index()]
    }

    /// Gives a node metadata.
    pub fn set_meta(&mut self, id: NodeId, meta: Meta) {
        self.before_edit(id);
        let meta_id = if meta == Meta::default() {
            MetaId::NONE
        } else {
            self.metas.push(meta);
            MetaId::from_index(self.metas.len() - 1)
        };
        self.nodes[id.index()].meta = meta_id;
    }

    /// The collective a node starts, if it does.
    #[must_use]
    pub fn collective(&self, id: NodeId) -> Option<Collective> {
        match self.node(id).op {
            Op::Collective(collective) => Some(collective),
            _ => None,
        }
    }

    /// The tensors a collective sends: its first argument, one or a list.
    #[must_use]
    pub fn collective_inputs(&self, id: NodeId) -> &[NodeId] {
        let args = self.args_of(id);
        let first = args.positional.first().or_else(|| args.keyword.first().map(|(_, arg)| arg));
        let count = match first {
            Some(Arg::List(items) | Arg::Tuple(items)) => items.len(),
            _ => 1,
        };
        let operands = self.operands(id);
        &operands[..count.min(operands.len())]
    }

    /// Whether a node waits for a list of values, and so hands on a list: `wait([a, b])`.
    #[must_use]
    pub fn waits_for_list(&self, id: NodeId) -> bool {
        self.node(id).op == Op::Wait && starts_with_list(self.args_of(id))
    }

    /// Place of every node in program order, by arena index; `u32::MAX` for nodes out of use.
    #[must_use]
    pub fn positions(&self) -> Vec<u32> {
        let mut positions = vec![u32::MAX; self.nodes.len()];
        for (position, id) in self.order.iter().enumerate() {
            positions[id.index()] = position as u32;
        }
        positions
    }

    /// A name that no value or target of the graph has: `stem`, or `stem_1`, `stem_2` and on. `next` remembers the
    /// number to go on from, so that many fresh names of one stem take linear time.
    pub fn fresh_name(&mut self, stem: &str, next: &mut u32) -> Name {
        let mut candidate = String::with_capacity(stem.len() + 11);
        loop {
            candidate.clear();
            candidate.push_str(stem);
            if *next > 0 {
                candidate.push('_');
                candidate.push_str(itoa::Buffer::new().format(*next));
            }
            *next += 1;
            if let Some(name) = self.names.intern_new(&candidate) {
                return name;
            }
        }
    }
}

/// Graphs are equal when they mean and print the same, whatever their arenas hold.
impl PartialEq for Graph {
    fn eq(&self, other: &Self) -> bool {
        let same_node = |&(a, b): &(NodeId, NodeId)| {
            let (x, y) = (self.node(a), other.node(b));
            let same_op = match (x.op, y.op) {
                (Op::Call(_), Op::Call(_)) => self.target_of(a) == other.target_of(b),
                (op_a, op_b) => op_a == op_b,
            };
            let (left, right) = (self.operands(a), other.operands(b));
            same_op
                && self.name_of(a) == other.name_of(b)
                && self.type_of(a) == other.type_of(b)
                && self.args_of(a) == other.args_of(b)
                && x.region == y.region
                && self.meta_of(a) == other.meta_of(b)
                && left.len() == right.len()
                && left.iter().zip(right).all(|(&l, &r)| self.name_of(l) == other.name_of(r))
        };
        let edges = |graph: &Self| -> Vec<(String, String, Strength)> {
            let name = |id| graph.name_of(id).to_owned();
            graph.control.iter().map(|e| (name(e.before), name(e.after), e.strength)).collect()
        };
        self.name == other.name
            && self.order.len() == other.order.len()
            && self.groups == other.groups
            && self.regions == other.regions
            && self.hints == other.hints
            && edges(self) == edges(other)
            && self.order.iter().copied().zip(other.order.iter().copied()).all(|pair| same_node(&pair))
    }
}

impl Eq for Graph {}
