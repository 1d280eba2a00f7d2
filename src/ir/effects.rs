//! Everything that keeps two nodes in order: data, memory, fences, control edges and region borders.
//!
//! A [`Dependencies`] is a snapshot of one graph. It numbers *slots*: the nodes in program order, with one extra slot
//! where a region begins and one where it ends. Every edge goes from an earlier slot to a later one, so a sweep over
//! the slots is a sweep in topological order.
//!
//! - **Data**: from a value to its reader.
//! - **Memory**: values are sorted into alias classes, one per storage that may be shared (a view joins its base's
//!   class, a wait its collective's; tensors of a coalesced result are apart where nothing takes them together). In a
//!   class that something writes, each access is ordered with the write before it, and each write with all accesses
//!   since the write before. Two inputs never share memory, which is what PyTorch's functionalisation guarantees.
//! - **Waits**: a reader that names a collective, or a view of it that was made without waiting, below its wait reads
//!   what the wait made valid, so it stays below the wait. The wait of an in-place collective counts as a write, and what a
//!   collective sends counts as read until its wait.
//! - **Fences**: an operator that may communicate keeps its order with every collective and every other fence; random
//!   operators keep their order among themselves. What changes how the rest computes (autocast) keeps its order with all.
//! - **Inputs** keep their order among themselves: it is how a caller passes them.
//! - **Control**: hard edges only. Soft ones are wishes and do not appear.
//! - **Regions**: what enters a region is needed by all of it, what leaves it needs all of it. An edge across the border
//!   is lifted to the slots where the region begins or ends.
//!
//! Cost: linear in nodes, operands and edges.

mod memory;
mod schedule;

pub(crate) use memory::{EffectTable, Memory};

use super::entities::{NodeId, RegionId};
use super::graph::{Graph, Strength};
use super::operators::{Alias, Fence};
use super::ops::Op;

/// Why one slot comes before another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Order {
    /// The later one reads the earlier one's value.
    Data,
    /// They touch the same memory and one of them writes it.
    Memory,
    /// One of them may communicate, both draw random numbers, or both are inputs.
    Fence,
    /// A hard control edge.
    Control,
    /// A region border stands between them.
    Region,
    /// The program order is a schedule that was chosen.
    Schedule,
}

/// A place in the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// A node.
    Node(NodeId),
    /// Where a region begins.
    Enter(RegionId),
    /// Where a region ends.
    Exit(RegionId),
}

/// The order of one graph's nodes; see the module docs.
#[derive(Debug)]
pub struct Dependencies {
    slots: Vec<Slot>,
    slot_of: Vec<u32>,
    /// Edges into slot `s` are `from[starts[s]..starts[s + 1]]`.
    starts: Vec<u32>,
    from: Vec<u32>,
    why: Vec<Order>,
    memory: Memory,
    keeps_schedule: bool,
    /// By arena index: whether nothing is known of the operator, so that its effects are assumed; empty if all are known.
    assumed: Vec<bool>,
}

impl Dependencies {
    /// Finds the order of a graph that [`verify`](super::verify()) accepts.
    #[must_use]
    pub fn of(graph: &Graph) -> Self {
        Self::with(graph, false)
    }

    /// As [`Dependencies::of`]; of a graph that is [`scheduled`](Graph::scheduled) also what keeps its order: collectives
    /// may start later, in others that stand below and that nothing between keeps apart, and no other node moves.
    #[must_use]
    pub fn keeping_schedule(graph: &Graph) -> Self {
        Self::with(graph, graph.scheduled)
    }

    fn with(graph: &Graph, keeps_schedule: bool) -> Self {
        let effects: EffectTable = EffectTable::of(graph);
        let memory = Memory::of(graph, &effects);
        let (slots, slot_of) = lay_out(graph);
        let mut edges = Edges { graph, slot_of: &slot_of, enter_exit: region_slots(graph, &slots), list: Vec::new() };
        for &id in graph.order() {
            for &operand in graph.operands(id) {
                edges.add(operand, id, Order::Data);
            }
        }
        let mut last_input = None;
        for &id in graph.order().iter().filter(|&&id| graph.node(id).op == Op::Input) {
            if let Some(before) = last_input.replace(id) {
                edges.add(before, id, Order::Fence);
            }
        }
        let sources = sources(graph, &effects);
        memory_edges(graph, &effects, &memory, &sources, &mut edges);
        wait_edges(graph, &effects, &sources, &mut edges);
        fence_edges(graph, &effects, &mut edges);
        mode_edges(graph, &effects, &mut edges);
        for edge in graph.control.iter().filter(|edge| edge.strength == Strength::Hard) {
            edges.add(edge.before, edge.after, Order::Control);
        }
        if keeps_schedule {
            schedule::schedule_edges(graph, &mut edges);
        }
        edges.borders(&slots);
        let list = edges.list;
        let (starts, from, why) = compact(slots.len(), &list);
        let assumed = effects.assumed(graph);
        Self { slots, slot_of, starts, from, why, memory, keeps_schedule, assumed }
    }

    /// Whether no node but a merged collective may change its place.
    #[must_use]
    pub(crate) const fn keeps_schedule(&self) -> bool {
        self.keeps_schedule
    }

    /// All slots, in order.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The slot of a node that is in program order.
    #[must_use]
    pub fn slot_of(&self, id: NodeId) -> usize {
        self.slot_of[id.index()] as usize
    }

    /// The node of a slot, if it has one.
    #[must_use]
    pub fn node(&self, slot: usize) -> Option<NodeId> {
        match self.slots[slot] {
            Slot::Node(id) => Some(id),
            Slot::Enter(_) | Slot::Exit(_) => None,
        }
    }

    /// Slots that must come before `slot`; a slot may be named more than once.
    #[must_use]
    pub fn before(&self, slot: usize) -> &[u32] {
        &self.from[self.starts[slot] as usize..self.starts[slot + 1] as usize]
    }

    /// Slots that must come before `slot`, and why.
    pub fn before_with_reason(&self, slot: usize) -> impl Iterator<Item = (usize, Order)> {
        let range = self.starts[slot] as usize..self.starts[slot + 1] as usize;
        self.from[range.clone()].iter().map(|&from| from as usize).zip(self.why[range].iter().copied())
    }

    /// Number of edges.
    #[must_use]
    pub fn edge_count(&self) -> usize {
        self.from.len()
    }

    /// Whether nothing is known of what a node calls, so that it is taken to do whatever it can.
    #[must_use]
    pub fn is_assumed(&self, id: NodeId) -> bool {
        self.assumed.get(id.index()) == Some(&true)
    }

    /// A number that is equal for values that may share storage.
    #[must_use]
    pub fn alias_class(&self, id: NodeId) -> u32 {
        self.memory.class[id.index()]
    }

    /// Whether anything in the graph writes storage that the value may share.
    #[must_use]
    pub fn is_written(&self, id: NodeId) -> bool {
        self.memory.written[self.memory.class[id.index()] as usize]
    }

    /// Whether the sizes or strides of something that shares the value's storage are changed in place.
    #[must_use]
    pub fn is_restated(&self, id: NodeId) -> bool {
        self.memory.restated[self.memory.class[id.index()] as usize]
    }

    /// Whether storage that the value may share leaves the graph, as an output or through an operator whose doings
    /// are unknown.
    #[must_use]
    pub fn escapes(&self, id: NodeId) -> bool {
        self.memory.escapes[self.memory.class[id.index()] as usize]
    }

    /// Whether an operator sees where in memory the value begins, or more of its memory than it shows, so that it has to lie
    /// alone: `as_strided`, `storage_offset`.
    #[must_use]
    pub fn is_seen(&self, id: NodeId) -> bool {
        self.memory.seen[self.memory.class[id.index()] as usize]
    }
}

fn lay_out(graph: &Graph) -> (Vec<Slot>, Vec<u32>) {
    let mut slots = Vec::with_capacity(graph.order().len());
    let mut slot_of = vec![u32::MAX; graph.arena_len()];
    let mut open = vec![RegionId::ROOT];
    for &id in graph.order() {
        let region = graph.node(id).region;
        if open.last() != Some(&region) {
            enter_and_exit(graph, &mut open, region, &mut slots);
        }
        slot_of[id.index()] = slots.len() as u32;
        slots.push(Slot::Node(id));
    }
    enter_and_exit(graph, &mut open, RegionId::ROOT, &mut slots);
    (slots, slot_of)
}

/// Closes and opens regions until the innermost open one is `region`.
fn enter_and_exit(graph: &Graph, open: &mut Vec<RegionId>, region: RegionId, slots: &mut Vec<Slot>) {
    let mut path = vec![region];
    while let Some(&last) = path.last()
        && last != RegionId::ROOT
        && !open.contains(&last)
    {
        path.push(graph.region(last).parent);
    }
    let common = path.pop().unwrap_or(RegionId::ROOT);
    while let Some(&last) = open.last()
        && last != common
    {
        slots.push(Slot::Exit(last));
        open.pop();
    }
    for &inner in path.iter().rev() {
        slots.push(Slot::Enter(inner));
        open.push(inner);
    }
}

fn region_slots(graph: &Graph, slots: &[Slot]) -> Vec<(u32, u32)> {
    let mut places = vec![(0, 0); graph.regions().len()];
    if graph.regions().len() > 1 {
        for (at, slot) in slots.iter().enumerate() {
            match slot {
                Slot::Enter(region) => places[region.index()].0 = at as u32,
                Slot::Exit(region) => places[region.index()].1 = at as u32,
                Slot::Node(_) => {}
            }
        }
    }
    places
}

struct Edges<'a> {
    graph: &'a Graph,
    slot_of: &'a [u32],
    enter_exit: Vec<(u32, u32)>,
    /// (before, after, why)
    list: Vec<(u32, u32, Order)>,
}

impl Edges<'_> {
    /// Orders two nodes, lifting the edge to the borders of the regions that only one of them is in.
    fn add(&mut self, before: NodeId, after: NodeId, why: Order) {
        let (mut from, mut to) = (self.slot_of[before.index()], self.slot_of[after.index()]);
        let (mut outer, mut inner) = (self.graph.node(before).region, self.graph.node(after).region);
        while outer != inner && !self.graph.encloses(outer, inner) {
            from = self.enter_exit[outer.index()].1;
            outer = self.graph.region(outer).parent;
        }
        while inner != outer && !self.graph.encloses(inner, outer) {
            to = self.enter_exit[inner.index()].0;
            inner = self.graph.region(inner).parent;
        }
        if from < to {
            self.list.push((from, to, why));
        }
    }

    /// Ties each node and inner region to the borders of the region around it.
    fn borders(&mut self, slots: &[Slot]) {
        if self.graph.regions().len() == 1 {
            return;
        }
        for (at, slot) in slots.iter().enumerate() {
            let around = match *slot {
                Slot::Node(id) => self.graph.node(id).region,
                Slot::Enter(region) | Slot::Exit(region) => self.graph.region(region).parent,
            };
            if around != RegionId::ROOT {
                let (enter, exit) = self.enter_exit[around.index()];
                self.list.push((enter, at as u32, Order::Region));
                self.list.push((at as u32, exit, Order::Region));
            }
            if let Slot::Exit(region) = *slot {
                self.list.push((self.enter_exit[region.index()].0, at as u32, Order::Region));
            }
        }
    }
}

/// Orders the accesses of every class that something writes.
fn memory_edges(
    graph: &Graph,
    effects: &EffectTable,
    memory: &Memory,
    sources: &[Option<NodeId>],
    edges: &mut Edges<'_>,
) {
    if !memory.written.contains(&true) {
        return;
    }
    #[derive(Default, Clone)]
    struct Accesses {
        last_write: Option<NodeId>,
        reads: Vec<NodeId>,
    }
    let mut accesses = vec![Accesses::default(); memory.class.len()];
    for &id in graph.order() {
        let effect = effects.get(id);
        if graph.node(id).op == Op::Output {
            continue;
        }
        let completes = graph.node(id).op == Op::Wait;
        for (index, &operand) in graph.operands(id).iter().enumerate() {
            let class = memory.class[operand.index()];
            // What a collective sends is read until its wait.
            let started = sources[operand.index()].filter(|&source| completes && graph.collective(source).is_some());
            for &sent in started.map_or(&[][..], |source| graph.collective_inputs(source)) {
                let sent_class = memory.class[sent.index()];
                if memory.written[sent_class as usize] && sent_class != class {
                    accesses[sent_class as usize].reads.push(id);
                }
            }
            if !memory.written[class as usize] || (effect.shape_only && effect.writes.is_empty()) {
                continue;
            }
            let writes = completes || effect.writes.contains(&(index as u32));
            let state = &mut accesses[class as usize];
            if let Some(write) = state.last_write
                && write != id
            {
                edges.add(write, id, Order::Memory);
            }
            if writes {
                for read in std::mem::take(&mut state.reads) {
                    if read != id {
                        edges.add(read, id, Order::Memory);
                    }
                }
                state.last_write = Some(id);
            } else if state.reads.last() != Some(&id) {
                state.reads.push(id);
            }
        }
    }
}

/// By arena index of a value that was not waited for: the collective or pending input behind it.
fn sources(graph: &Graph, effects: &EffectTable) -> Vec<Option<NodeId>> {
    let mut behind: Vec<Option<NodeId>> = vec![None; graph.arena_len()];
    for &id in graph.order() {
        let op = graph.node(id).op;
        behind[id.index()] = match (op, effects.get(id).alias) {
            (Op::Collective(_), _) => Some(id),
            (Op::Input, _) if graph.meta_of(id).pending => Some(id),
            (Op::Call(_), Alias::Of(index)) => {
                graph.operands(id).get(index as usize).and_then(|operand| behind[operand.index()])
            }
            _ => None,
        };
    }
    behind
}

/// Keeps readers of what a collective makes, named directly or through a view made without waiting, below the wait
/// that made it valid, and views made above the first wait above it. Waits for one collective keep their order, so that
/// the last one stands for all.
fn wait_edges(graph: &Graph, effects: &EffectTable, sources: &[Option<NodeId>], edges: &mut Edges<'_>) {
    let mut last_wait: Vec<Option<NodeId>> = vec![None; graph.arena_len()];
    let mut early = hashbrown::HashMap::<NodeId, Vec<NodeId>, rustc_hash::FxBuildHasher>::default();
    for &id in graph.order() {
        let effect = effects.get(id);
        let looks_at_shape = effect.shape_only && effect.writes.is_empty();
        for &operand in graph.operands(id) {
            let Some(source) = sources[operand.index()] else { continue };
            let wait = &mut last_wait[source.index()];
            match *wait {
                _ if looks_at_shape => {}
                Some(wait) => edges.add(wait, id, Order::Memory),
                None if graph.node(id).op != Op::Wait => early.entry(source).or_default().push(id),
                None => early.remove(&source).unwrap_or_default().into_iter().for_each(|view| {
                    edges.add(view, id, Order::Memory);
                }),
            }
            if graph.node(id).op == Op::Wait {
                *wait = Some(id);
            }
        }
    }
}

fn fence_edges(graph: &Graph, effects: &EffectTable, edges: &mut Edges<'_>) {
    let (mut last_fence, mut last_random, mut last_call) = (None, None, None);
    let mut since_fence: Vec<NodeId> = Vec::new();
    for &id in graph.order() {
        let launches = effects.get(id).launches;
        let communicates = launches || matches!(graph.node(id).op, Op::Collective(_));
        // What such calls launch keeps its order among them: a merge moves one launch, not those of a whole graph.
        if launches {
            if let Some(before) = last_call {
                edges.add(before, id, Order::Fence);
            }
            last_call = Some(id);
        }
        match effects.get(id).fence {
            Fence::Full => {
                for before in since_fence.drain(..).chain(last_fence) {
                    edges.add(before, id, Order::Fence);
                }
                last_fence = Some(id);
            }
            Fence::Random => {
                if let Some(before) = last_random {
                    edges.add(before, id, Order::Fence);
                }
                last_random = Some(id);
            }
            Fence::Free => {}
        }
        if communicates {
            if let Some(fence) = last_fence {
                edges.add(fence, id, Order::Fence);
            }
            since_fence.push(id);
        }
    }
}

/// Keeps everything on its side of what changes how the rest computes: an edge or two for each node.
fn mode_edges(graph: &Graph, effects: &EffectTable, edges: &mut Edges<'_>) {
    if !effects.any(|effects| effects.sets_mode) {
        return;
    }
    let mut last_mode = None;
    let mut since_mode: Vec<NodeId> = Vec::new();
    for &id in graph.order() {
        if let Some(mode) = last_mode {
            edges.add(mode, id, Order::Fence);
        }
        if effects.get(id).sets_mode {
            for before in since_mode.drain(..) {
                edges.add(before, id, Order::Fence);
            }
            last_mode = Some(id);
        } else {
            since_mode.push(id);
        }
    }
}

/// Sorts edges by their later end, by counting.
fn compact(slots: usize, list: &[(u32, u32, Order)]) -> (Vec<u32>, Vec<u32>, Vec<Order>) {
    let mut starts = vec![0u32; slots + 1];
    for &(_, to, _) in list {
        starts[to as usize + 1] += 1;
    }
    for at in 0..slots {
        starts[at + 1] += starts[at];
    }
    let mut next = starts.clone();
    let mut from = vec![0; list.len()];
    let mut why = vec![Order::Data; list.len()];
    for &(before, to, reason) in list {
        let place = &mut next[to as usize];
        from[*place as usize] = before;
        why[*place as usize] = reason;
        *place += 1;
    }
    (starts, from, why)
}
