//! What is known of a graph before it is lowered: who reads what, until when, and which values share memory.

use crate::ir::operators::{Alias, Effects, Fence, OperatorId, ViewKind};
use crate::ir::{Args, Collective, DType, EffectTable, Graph, Memory, NodeId, Op};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

pub(super) struct Facts<'g> {
    pub graph: &'g Graph,
    pub effects: EffectTable,
    pub memory: Memory,
    pub positions: Vec<u32>,
    /// Readers of node n are `readers[starts[n]..starts[n + 1]]`, in order; one that reads twice is there twice.
    starts: Vec<u32>,
    readers: Vec<NodeId>,
    /// By class: place of the last node that reads its elements; what is sent counts at its launch.
    pub last_read: Vec<u32>,
    /// By class: launches that send from it.
    pub sends: Vec<u32>,
    /// By class: whether an input or a constant is in it.
    pub foreign: Vec<bool>,
    /// By class: places of the nodes that write it, in order.
    writes: HashMap<usize, Vec<u32>, FxBuildHasher>,
    /// By class: places of the waits for it, in order.
    waits: HashMap<usize, Vec<u32>, FxBuildHasher>,
}

impl<'g> Facts<'g> {
    pub fn of(graph: &'g Graph) -> Self {
        let effects = EffectTable::of(graph);
        let memory = Memory::with_whole_lists(graph, &effects);
        let positions = graph.positions();
        let (starts, readers) = readers(graph);
        let classes = memory.class.len();
        let mut facts = Self {
            graph,
            effects,
            memory,
            positions,
            starts,
            readers,
            last_read: vec![0; classes],
            sends: vec![0; classes],
            foreign: vec![false; classes],
            writes: HashMap::default(),
            waits: HashMap::default(),
        };
        facts.reads();
        facts.writes_and_waits();
        facts
    }

    fn reads(&mut self) {
        let graph = self.graph;
        for (position, &id) in graph.order().iter().enumerate() {
            let op = graph.node(id).op;
            let class = self.memory.class[id.index()] as usize;
            self.foreign[class] |= op == Op::Input || self.is_constant(id);
            let shape_only = self.effects.get(id).shape_only;
            for &operand in graph.operands(id).iter().filter(|_| !shape_only) {
                let class = self.memory.class[operand.index()] as usize;
                self.last_read[class] = position as u32;
                self.sends[class] += u32::from(matches!(op, Op::Collective(_)));
            }
        }
    }

    fn writes_and_waits(&mut self) {
        let graph = self.graph;
        for (position, &id) in graph.order().iter().enumerate() {
            let operands = graph.operands(id);
            let class = |id: &NodeId| self.memory.class[id.index()] as usize;
            for operand in self.effects.get(id).writes.iter().filter_map(|&index| operands.get(index as usize)) {
                self.writes.entry(class(operand)).or_default().push(position as u32);
            }
            for operand in operands.iter().filter(|_| graph.node(id).op == Op::Wait) {
                self.waits.entry(class(operand)).or_default().push(position as u32);
            }
        }
    }

    /// Whether memory that `sent` may share is written after the launch and before it is waited for.
    pub fn is_written_in_flight(&self, launch: NodeId, sent: NodeId) -> bool {
        let start = self.position(launch);
        let after = |list: Option<&Vec<u32>>| {
            let list = list.map_or(&[][..], Vec::as_slice);
            list.get(list.partition_point(|&at| at <= start)).copied()
        };
        let Some(write) = after(self.writes.get(&self.class(sent))) else { return false };
        after(self.waits.get(&self.class(launch))).is_none_or(|wait| write < wait)
    }

    /// Whether memory that a node's value may share is written by a later one.
    pub fn is_written_after(&self, id: NodeId) -> bool {
        let writes = self.writes.get(&self.class(id)).map_or(&[][..], Vec::as_slice);
        writes.last().is_some_and(|&last| last > self.position(id))
    }

    /// What the operator that a node calls means.
    pub fn operator(&self, id: NodeId) -> OperatorId {
        self.graph.operator_of(id).id()
    }

    /// What a call shows of its operand, if its operator is a view.
    pub fn view_kind(&self, id: NodeId) -> Option<ViewKind> {
        self.graph.operator_of(id).view()
    }

    /// Whether a node is a constant of the module: `self.attr`.
    pub fn is_constant(&self, id: NodeId) -> bool {
        let Op::Call(target) = self.graph.node(id).op else { return false };
        let no_args = self.graph.node(id).args == crate::ir::ArgsId::EMPTY && self.graph.operands(id).is_empty();
        no_args && self.graph.text(target).starts_with("self.")
    }

    pub fn readers(&self, id: NodeId) -> &[NodeId] {
        &self.readers[self.starts[id.index()] as usize..self.starts[id.index() + 1] as usize]
    }

    pub fn class(&self, id: NodeId) -> usize {
        self.memory.class[id.index()] as usize
    }

    pub fn is_written(&self, id: NodeId) -> bool {
        self.memory.written[self.class(id)]
    }

    pub fn escapes(&self, id: NodeId) -> bool {
        self.memory.escapes[self.class(id)]
    }

    pub fn position(&self, id: NodeId) -> u32 {
        self.positions[id.index()]
    }

    pub fn is_view(&self, id: NodeId) -> bool {
        matches!(self.graph.node(id).op, Op::Call(_)) && self.effects.get(id).is_view()
    }

    /// Whether a node hands on a dense tensor in order, in another shape.
    pub fn is_flat_view(&self, id: NodeId) -> bool {
        let dense = |id: NodeId| self.graph.tensor(id).is_some_and(crate::ir::TensorType::is_dense);
        let dtype = |id: NodeId| self.graph.tensor(id).map(|ty| ty.dtype);
        let names = self.view_kind(id).is_some_and(ViewKind::keeps_order);
        let operands = self.graph.operands(id);
        names
            && self.is_view(id)
            && operands.first().is_some_and(|&from| dense(from) && dtype(from) == dtype(id))
            && dense(id)
    }

    /// A call that makes a tensor of its own and does nothing else.
    pub fn makes_tensor(&self, id: NodeId) -> bool {
        let Effects { alias, writes, fence, .. } = self.effects.get(id);
        let call = matches!(self.graph.node(id).op, Op::Call(_)) && !self.is_constant(id);
        call && *alias == Alias::Fresh && writes.is_empty() && *fence != Fence::Full && self.graph.tensor(id).is_some()
    }

    /// The tensors that a node puts end to end, and along which dimension, if that is all it does.
    pub fn cat(&self, id: NodeId) -> Option<(&'g [NodeId], usize)> {
        if self.operator(id) != OperatorId::Cat {
            return None;
        }
        let graph = self.graph;
        let (args, operands) = (graph.args_of(id), graph.operands(id));
        let listed =
            matches!(args.positional.first(), Some(crate::ir::Arg::List(items)) if items.len() == operands.len());
        let whole = graph.tensor(id)?;
        let same = |operand: &NodeId| {
            graph.tensor(*operand).is_some_and(|ty| ty.dtype == whole.dtype && ty.shape.len() == whole.shape.len())
        };
        let dim = args.at(1, "dim").map_or(Some(0), crate::ir::Arg::as_int)?;
        let dim = if dim < 0 { dim + whole.shape.len() as i64 } else { dim };
        let dim = usize::try_from(dim).ok().filter(|&dim| dim < whole.shape.len())?;
        let plain = plain_args(args) && listed && !operands.is_empty() && operands.iter().all(same);
        let sum = operands
            .iter()
            .try_fold(0u64, |sum, &operand| sum.checked_add(graph.tensor(operand)?.shape[dim].as_const()?));
        (plain && sum == whole.shape[dim].as_const()).then_some((operands, dim))
    }

    pub fn collective(&self, id: NodeId) -> Option<Collective> {
        self.graph.collective(id)
    }

    /// Whether elements of one dtype become elements of another in a pack.
    pub fn converts(from: DType, to: DType) -> bool {
        let float = |dtype| matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::Bf16);
        float(from) && float(to)
    }
}

fn plain_args(args: &Args) -> bool {
    args.keyword.iter().all(|(key, _)| matches!(&**key, "dim" | "tensors"))
}

fn readers(graph: &Graph) -> (Vec<u32>, Vec<NodeId>) {
    let mut starts = vec![0u32; graph.arena_len() + 1];
    for &id in graph.order() {
        for operand in graph.operands(id) {
            starts[operand.index() + 1] += 1;
        }
    }
    for index in 1..starts.len() {
        starts[index] += starts[index - 1];
    }
    let mut next = starts.clone();
    let mut readers = vec![NodeId::from_index(0); starts.last().map_or(0, |&end| end as usize)];
    for &id in graph.order() {
        for operand in graph.operands(id) {
            readers[next[operand.index()] as usize] = id;
            next[operand.index()] += 1;
        }
    }
    (starts, readers)
}
