//! What keeps the program order where it is a schedule.
//!
//! Every node stays behind the one before it, but for two: a collective that reads no other collective's result, and its
//! wait. Such a collective may start later, and what comes behind it in the text need not be behind it; it is behind
//! whatever stands above it. So a later collective is independent of an earlier one just if nothing between them depends
//! on the earlier one, and a merge that stands where its last member stood moves nothing.
//!
//! Bodies of loops, branches and calls have a sequence each.

use super::{Edges, Graph, NodeId, Op, Order};

pub(super) fn schedule_edges(graph: &Graph, edges: &mut Edges<'_>) {
    // By arena index: whether it is out of the sequence.
    let mut free = vec![false; graph.arena_len()];
    // By region: the last node of its sequence.
    let mut last: Vec<Option<NodeId>> = vec![None; graph.regions().len()];
    for &id in graph.order().iter().filter(|&&id| graph.node(id).op != Op::Input) {
        let mut operands = graph.operands(id).iter();
        free[id.index()] = match graph.node(id).op {
            Op::Collective(_) => operands.all(|operand| !free[operand.index()]),
            Op::Wait => operands.all(|operand| free[operand.index()] && graph.collective(*operand).is_some()),
            _ => false,
        };
        let is_free = free[id.index()];
        let last = &mut last[graph.node(id).region.index()];
        if let Some(before) = *last
            && !(is_free && graph.node(id).op == Op::Wait)
        {
            edges.add(before, id, Order::Schedule);
        }
        if !is_free {
            *last = Some(id);
        }
    }
}
