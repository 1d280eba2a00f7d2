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
//! first wait by the bytes that are unpacked; one of HLO that takes its members as they are pays for none. The step ends when all clocks have; what it takes beyond its computation is
//! *exposed*.
//!
//! # Memory
//!
//! Counted by place in the program, as [`passes::memory`](crate::passes::memory) says.
//!
//! Cost: linear in nodes and operands.

use super::costs::{CostError, Costs, message_bytes, operand_bytes};
use crate::ir::operators::{OperatorId, element_index};
use crate::ir::{CollectiveKind, EffectTable, Graph, GroupId, NodeId, Op};
use crate::passes::liveness::value_bytes;
use crate::passes::memory::Alive;
use crate::passes::memory::alive::{Arrivals, Lives};

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
        let waits = launches.iter().map(|launch| (launch.node, launch.wait));
        let Alive { peak_bytes, peak_at, .. } = Lives::with(graph, &effects, waits).peak(graph);
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
    arrivals: Arrivals,
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
            arrivals: Arrivals::new(graph, effects),
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
                for &operand in graph.operands(id) {
                    self.arrivals.waited_by(operand).for_each(|launch| self.wait(id, launch));
                }
            }
            Op::Call(_) => {
                self.arrivals.call(graph, id);
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
        if members > 1 && is_copied(graph, id) {
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
        self.arrivals.launch(graph, self.effects, id);
        Ok(())
    }

    fn wait(&mut self, id: NodeId, index: usize) {
        let launch = &mut self.launches[index];
        let end = u128::from(launch.end_ns);
        launch.stalled_ns += u64::try_from(end.saturating_sub(self.now)).unwrap_or(u64::MAX);
        self.now = self.now.max(end);
        if launch.wait.replace(launch.wait.unwrap_or(id)).is_none()
            && launch.members > 1
            && is_copied(self.graph, launch.node)
        {
            let kind = self.graph.collective(launch.node).map(|collective| collective.kind.name());
            if kind == Some("all_gather") {
                self.now += u128::from(self.costs.copy.ns(launch.bytes));
            }
        }
    }
}

/// Whether the members of a launch are copied into a buffer and out of it. XLA hands several operands to one launch.
fn is_copied(graph: &Graph, id: NodeId) -> bool {
    graph.hlo.is_none() || !graph.collective(id).is_some_and(|collective| collective.coalesced)
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
