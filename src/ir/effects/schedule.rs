//! What keeps the program order where it is a schedule.
//!
//! Every node stays behind the one before it, but for two: a collective that reads no other collective's result, and its
//! wait. Such a collective may start later, and what comes behind it in the text need not be behind it; it is behind
//! whatever stands above it. So a later collective is independent of an earlier one just if nothing between them depends
//! on the earlier one, and a merge that stands where its last member stood moves nothing.
//!
//! Other collectives that stand side by side, each with its wait right behind it, are a *run*: none of them is behind
//! another, all are behind what stands above the run, and what stands below is behind them all. One that reads the result
//! of another begins a run of its own.
//!
//! Bodies of loops, branches and calls have a sequence each.

use super::{Edges, Graph, NodeId, Op, Order};

/// Longest run that is followed by a run; after a longer one, each collective is behind the one before.
const LONGEST_RUN: usize = 64;

/// What the next node of a body is behind.
#[derive(Clone, Default)]
struct Sequence {
    /// What stands above the run: one node, or another run.
    above: Vec<NodeId>,
    /// Collectives and waits side by side.
    run: Vec<NodeId>,
}

impl Sequence {
    /// Puts a node behind all that stands above it.
    fn then(&mut self, id: NodeId, edges: &mut Edges<'_>) {
        let above = if self.run.is_empty() { &self.above } else { &self.run };
        above.iter().for_each(|&before| edges.add(before, id, Order::Schedule));
        self.run.clear();
        self.above.clear();
        self.above.push(id);
    }

    /// Puts a collective into the run, or begins another.
    fn launch(&mut self, graph: &Graph, id: NodeId, edges: &mut Edges<'_>) {
        let reads_run = graph.operands(id).iter().any(|operand| self.run.contains(operand));
        if reads_run {
            self.above = std::mem::take(&mut self.run);
        }
        if self.above.len() > LONGEST_RUN || self.run.len() >= LONGEST_RUN {
            return self.then(id, edges);
        }
        self.above.iter().for_each(|&before| edges.add(before, id, Order::Schedule));
        self.run.push(id);
    }
}

pub(super) fn schedule_edges(graph: &Graph, edges: &mut Edges<'_>) {
    // By arena index: whether it is out of the sequence.
    let mut free = vec![false; graph.arena_len()];
    let mut sequences: Vec<Sequence> = vec![Sequence::default(); graph.regions().len()];
    for &id in graph.order().iter().filter(|&&id| graph.node(id).op != Op::Input) {
        let operands = graph.operands(id);
        free[id.index()] = match graph.node(id).op {
            Op::Collective(_) => operands.iter().all(|operand| !free[operand.index()]),
            Op::Wait => operands.iter().all(|operand| free[operand.index()] && graph.collective(*operand).is_some()),
            _ => false,
        };
        let is_free = free[id.index()];
        let sequence = &mut sequences[graph.node(id).region.index()];
        match graph.node(id).op {
            Op::Wait if is_free => {}
            Op::Collective(_) if is_free => {
                // It may read what the run makes, so that the run ends here.
                if !sequence.run.is_empty() {
                    sequence.above = std::mem::take(&mut sequence.run);
                }
                sequence.above.iter().for_each(|&before| edges.add(before, id, Order::Schedule));
            }
            Op::Collective(_) => sequence.launch(graph, id, edges),
            Op::Wait if sequence.run.last().is_some() && sequence.run.last() == operands.first() => {
                sequence.run.push(id);
            }
            _ => sequence.then(id, edges),
        }
    }
}
