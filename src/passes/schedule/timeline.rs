//! When everything runs, if a program runs as it stands: one clock for computation, one for each group.
//!
//! | node | clocks |
//! |---|---|
//! | one that takes time | `compute += time` |
//! | launch of a message | `end = max(compute, group) + time`, `group = end`; computation goes on |
//! | wait for it | `compute = max(compute, end)` |
//!
//! Messages of one group run one at a time, in program order; groups run side by side. A launch that packs two or more
//! members pays for the copies on the compute clock: before it by the bytes that are packed, and, for a gather, after its
//! first wait by the bytes that are unpacked. The step ends when all clocks have; what it takes beyond its computation is
//! *exposed*.
//!
//! # Memory
//!
//! Counted by place in the program. Inputs are the caller's. A node that makes a tensor has it from its own place to that of
//! the last use; outputs live to the end. Views share the memory of their base. What is taken out of a result of several
//! parts is there from where all of it was made. What a collective is given, and what it makes, live until its first wait at
//! least.
//!
//! Cost: linear in nodes and operands.

use super::costs::{CostError, Costs, message_bytes, operand_bytes};
use crate::ir::operators::{Alias, OperatorId, element_index};
use crate::ir::{CollectiveKind, EffectTable, Graph, GroupId, Memory, NodeId, Op, Variant};
use crate::passes::liveness::value_bytes;

/// One message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Launch {
    /// The collective.
    pub node: NodeId,
    /// Between whom.
    pub group: GroupId,
    /// Bytes that its time is reckoned with.
    pub bytes: u64,
    /// How many tensors are packed into it.
    pub members: usize,
    /// When its group begins with it.
    pub start_ns: u64,
    /// When it has arrived.
    pub end_ns: u64,
    /// The first wait for it.
    pub wait: Option<NodeId>,
    /// How long computation stands still for it, over all its waits.
    pub stalled_ns: u64,
}

/// One run of a program as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Timeline {
    /// When the step ends.
    pub makespan_ns: u64,
    /// Sum of the times of all nodes that compute.
    pub compute_ns: u64,
    /// Sum of the times of all messages.
    pub message_ns: u64,
    /// Largest number of bytes alive at once.
    pub peak_bytes: u64,
    /// Where that is first so.
    pub peak_at: Option<NodeId>,
    /// Messages in program order.
    pub launches: Vec<Launch>,
    /// By place in the program: when the compute clock comes to the node.
    pub at_ns: Vec<u64>,
}

impl Timeline {
    /// Runs a graph as it stands. The graph must pass [`verify`](crate::ir::verify()).
    ///
    /// # Errors
    /// [`CostError`] where a collective has no cost or no size, naming it.
    pub fn of(graph: &Graph, costs: &Costs) -> Result<Self, CostError> {
        let effects = EffectTable::of(graph);
        let mut clocks = Clocks::new(graph, costs, &effects);
        for &id in graph.order() {
            clocks.node(id)?;
        }
        let Clocks { launches, at_ns, compute_ns, message_ns, now, groups, .. } = clocks;
        let end = groups.into_iter().max().unwrap_or(0).max(now);
        let makespan_ns = u64::try_from(end).map_err(|_| CostError::TooLong)?;
        let (peak_bytes, peak_at) = peak(graph, &effects, &launches);
        Ok(Self { makespan_ns, compute_ns, message_ns, peak_bytes, peak_at, launches, at_ns })
    }

    /// What the step takes beyond its computation.
    #[must_use]
    pub const fn exposed_ns(&self) -> u64 {
        self.makespan_ns.saturating_sub(self.compute_ns)
    }

    /// How many launches carry two members or more.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.launches.iter().filter(|launch| launch.members > 1).count()
    }
}

struct Clocks<'a> {
    graph: &'a Graph,
    costs: &'a Costs,
    effects: &'a EffectTable,
    now: u128,
    groups: Vec<u128>,
    compute_ns: u64,
    message_ns: u64,
    launches: Vec<Launch>,
    /// By arena index: one more than the launch whose result the value is, or a part of it.
    launch_of: Vec<u32>,
    memory: Memory,
    /// By alias class: one more than the last launch that writes it in place.
    in_place: Vec<u32>,
    at_ns: Vec<u64>,
}

impl<'a> Clocks<'a> {
    fn new(graph: &'a Graph, costs: &'a Costs, effects: &'a EffectTable) -> Self {
        Self {
            graph,
            costs,
            effects,
            now: 0,
            groups: vec![0; graph.groups().len()],
            compute_ns: 0,
            message_ns: 0,
            launches: Vec::new(),
            launch_of: vec![0; graph.arena_len()],
            memory: Memory::of(graph, effects),
            in_place: vec![0; graph.arena_len()],
            at_ns: Vec::with_capacity(graph.order().len()),
        }
    }

    fn node(&mut self, id: NodeId) -> Result<(), CostError> {
        self.at_ns.push(u64::try_from(self.now).map_err(|_| CostError::TooLong)?);
        let graph = self.graph;
        match graph.node(id).op {
            Op::Input | Op::Output => {}
            Op::Collective(collective) => self.launch(id, collective.group)?,
            Op::Wait => {
                for operand in graph.operands(id) {
                    let named = self.launch_of[operand.index()];
                    let written = self.in_place[self.memory.class[operand.index()] as usize];
                    for launch in [named, written].into_iter().filter_map(|launch| launch.checked_sub(1)) {
                        self.wait(id, launch as usize);
                    }
                }
            }
            Op::Call(_) => {
                // A part of what a launch makes, or a view of it, is waited for as the launch is.
                if let Some(first) = graph.operands(id).first() {
                    self.launch_of[id.index()] = self.launch_of[first.index()];
                }
                if let Some(&ns) = self.costs.compute_ns.get(graph.name_of(id)) {
                    self.now += u128::from(ns);
                    self.compute_ns = self.compute_ns.checked_add(ns).ok_or(CostError::TooLong)?;
                }
            }
        }
        Ok(())
    }

    fn launch(&mut self, id: NodeId, group: GroupId) -> Result<(), CostError> {
        let graph = self.graph;
        let bytes = message_bytes(graph, id)?;
        let ns = self.costs.of_collective(graph, id)?.ns(bytes);
        let members = members(graph, id);
        if members > 1 {
            let packed = operand_bytes(graph, id).ok_or_else(|| CostError::Size { node: graph.name_of(id).into() })?;
            self.now += u128::from(self.costs.copy.ns(packed));
        }
        let clock = &mut self.groups[group.index()];
        let start = self.now.max(*clock);
        *clock = start + u128::from(ns);
        let fit = |time: u128| u64::try_from(time).map_err(|_| CostError::TooLong);
        let (start_ns, end_ns) = (fit(start)?, fit(*clock)?);
        self.message_ns = self.message_ns.checked_add(ns).ok_or(CostError::TooLong)?;
        self.launches.push(Launch { node: id, group, bytes, members, start_ns, end_ns, wait: None, stalled_ns: 0 });
        self.launch_of[id.index()] = self.launches.len() as u32;
        // What it writes in place may be waited for under any name of that memory.
        for written in self.effects.get(id).writes.iter().filter_map(|&at| graph.operands(id).get(at as usize)) {
            self.in_place[self.memory.class[written.index()] as usize] = self.launches.len() as u32;
        }
        Ok(())
    }

    fn wait(&mut self, id: NodeId, index: usize) {
        let launch = &mut self.launches[index];
        let end = u128::from(launch.end_ns);
        launch.stalled_ns += u64::try_from(end.saturating_sub(self.now)).unwrap_or(u64::MAX);
        self.now = self.now.max(end);
        if launch.wait.replace(launch.wait.unwrap_or(id)).is_none() && launch.members > 1 {
            let kind = self.graph.collective(launch.node).map(|collective| collective.kind.name());
            if kind == Some("all_gather") {
                self.now += u128::from(self.costs.copy.ns(launch.bytes));
            }
        }
    }
}

/// How many tensors travel in a launch: those of its list, or those that are packed into what it is given.
pub(super) fn members(graph: &Graph, id: NodeId) -> usize {
    let inputs = graph.collective_inputs(id);
    let [one] = *inputs else { return inputs.len() };
    packing(graph, one).last().map_or(1, |&pack| graph.operands(pack).len().max(1))
}

/// The calls that pack a buffer, from the buffer back to what puts its members together; none if nothing does.
fn packing(graph: &Graph, buffer: NodeId) -> Vec<NodeId> {
    let mut calls = Vec::new();
    let mut from = buffer;
    // From the buffer to the pack there are views alone, of one operand each.
    while let Op::Call(target) = graph.node(from).op {
        calls.push(from);
        let operands = graph.operands(from);
        if graph.operator(target).id() == OperatorId::Cat {
            return calls;
        }
        match operands {
            [next] if value_bytes(graph, *next) == value_bytes(graph, from) => from = *next,
            _ => break,
        }
    }
    Vec::new()
}

/// By arena index: whether a call packs what a bucket carries, or copies out what a bucket of a gather made. Their time is that
/// of copies, which launches and waits take.
pub(super) fn copies_of_buckets(graph: &Graph) -> Vec<bool> {
    let mut copies = vec![false; graph.arena_len()];
    // By arena index: whether the value is, or shows, what a bucket of a gather made.
    let mut shows = vec![false; graph.arena_len()];
    for &id in graph.order() {
        match graph.node(id).op {
            Op::Collective(collective) if members(graph, id) > 1 => {
                if let Some(&buffer) = graph.collective_inputs(id).first().filter(|_| !collective.coalesced) {
                    packing(graph, buffer).into_iter().for_each(|call| copies[call.index()] = true);
                }
                shows[id.index()] = matches!(collective.kind, CollectiveKind::AllGather { .. });
            }
            Op::Wait => shows[id.index()] = graph.operands(id).first().is_some_and(|of| shows[of.index()]),
            Op::Call(target) if graph.operands(id).first().is_some_and(|of| shows[of.index()]) => {
                match graph.operator(target).id() {
                    OperatorId::View(_) => shows[id.index()] = true,
                    OperatorId::Clone | OperatorId::ViewCopy(_) => copies[id.index()] = true,
                    _ => shows[id.index()] = element_index(graph, id).is_some(),
                }
            }
            Op::Input | Op::Output | Op::Collective(_) | Op::Call(_) => {}
        }
    }
    copies
}

/// By arena index: the node that makes a value's memory; `None` for the caller's.
pub(super) fn storages(graph: &Graph, effects: &EffectTable) -> Vec<Option<NodeId>> {
    let mut storage: Vec<Option<NodeId>> = vec![None; graph.arena_len()];
    // By arena index: whether the value is a result of several parts that have memory of their own.
    let mut parted = vec![false; graph.arena_len()];
    for &id in graph.order() {
        let operands = graph.operands(id);
        let of = |operand: Option<&NodeId>| operand.and_then(|operand: &NodeId| storage[operand.index()]);
        let (found, apart) = match graph.node(id).op {
            Op::Input | Op::Output => (None, false),
            Op::Wait => (of(operands.first()), operands.first().is_some_and(|list| parted[list.index()])),
            Op::Collective(collective) => match (collective.variant, effects.get(id).alias) {
                (Variant::Functional, _) => (Some(id), collective.coalesced),
                (_, Alias::Of(index)) => (of(operands.get(index as usize)), false),
                _ => (Some(id), true),
            },
            Op::Call(_) => match effects.get(id).alias {
                _ if element_index(graph, id).is_some()
                    && operands.first().is_some_and(|from| parted[from.index()]) =>
                {
                    (Some(id), false)
                }
                Alias::Of(index) => (of(operands.get(index as usize)), false),
                Alias::Fresh | Alias::Any | Alias::Written => {
                    (Some(id), !matches!(graph.type_of(id), crate::ir::Type::Tensor(_)))
                }
            },
        };
        storage[id.index()] = found;
        parted[id.index()] = apart;
    }
    storage
}

/// The most bytes alive at once, and where.
fn peak(graph: &Graph, effects: &EffectTable, launches: &[Launch]) -> (u64, Option<NodeId>) {
    let order = graph.order();
    let storage = storages(graph, effects);
    let positions = graph.positions();
    let mut last = vec![0u32; graph.arena_len()];
    let mut touch = |id: NodeId, at: u32| {
        if let Some(owner) = storage[id.index()] {
            let last = &mut last[owner.index()];
            *last = at.max(*last);
        }
    };
    for (at, &id) in order.iter().enumerate() {
        touch(id, at as u32);
        // Outputs live to the end.
        let until = if graph.node(id).op == Op::Output { order.len() } else { at };
        graph.operands(id).iter().for_each(|&operand| touch(operand, until as u32));
    }
    for launch in launches {
        let until = launch.wait.map_or(order.len() as u32, |wait| positions[wait.index()]);
        touch(launch.node, until);
        graph.operands(launch.node).iter().for_each(|&operand| touch(operand, until));
    }
    let mut change = vec![0i128; order.len() + 2];
    for (at, &id) in order.iter().enumerate() {
        if storage[id.index()] != Some(id) {
            continue;
        }
        let bytes = match graph.type_of(id) {
            // What is taken out of it has memory of its own.
            crate::ir::Type::Tuple(_) => 0,
            _ => i128::from(value_bytes(graph, id).unwrap_or(0)),
        };
        let from = match element_index(graph, id) {
            Some(_) => graph.operands(id).first().map_or(at, |whole| positions[whole.index()] as usize),
            None => at,
        };
        change[from] += bytes;
        change[last[id.index()] as usize + 1] -= bytes;
    }
    let (mut alive, mut best, mut where_) = (0i128, 0i128, None);
    for (at, change) in change.into_iter().enumerate() {
        alive += change;
        if alive > best {
            (best, where_) = (alive, order.get(at).copied());
        }
    }
    (u64::try_from(best).unwrap_or(u64::MAX), where_)
}
