//! One wait for each started collective.
//!
//! A parametrisation may wait twice for one start, or wait for what another wait returned. The earliest wait in program
//! order stands before all readers of all of them, so it serves; the others go, and their readers read it instead. A
//! wait inside a region serves only nodes of that region. Cost: linear.

use crate::ir::{Graph, NodeId, Op, RegionId};

/// Folds waits of one value into the earliest; returns how many went.
pub fn dedupe_waits(graph: &mut Graph) -> usize {
    // By arena index of a waited value: the wait that serves. By arena index of a wait: the one that replaces it.
    let mut serving: Vec<Option<NodeId>> = vec![None; graph.arena_len()];
    let mut replaced_by: Vec<Option<NodeId>> = vec![None; graph.arena_len()];
    let mut gone = 0;
    let order = graph.order().to_vec();
    let mut kept = Vec::with_capacity(order.len());
    for id in order {
        for operand in graph.operands_mut(id) {
            *operand = replaced_by[operand.index()].unwrap_or(*operand);
        }
        let waited = match (graph.node(id).op, graph.operands(id)) {
            (Op::Wait, &[waited]) => waited,
            _ => {
                kept.push(id);
                continue;
            }
        };
        let is_wait = graph.node(waited).op == Op::Wait;
        let server = if is_wait { Some(waited) } else { serving[waited.index()] };
        match server {
            Some(server) if encloses(graph, graph.node(server).region, graph.node(id).region) => {
                replaced_by[id.index()] = Some(server);
                gone += 1;
            }
            _ => {
                serving[waited.index()] = serving[waited.index()].or(Some(id));
                kept.push(id);
            }
        }
    }
    if gone > 0 {
        graph.set_order(kept);
        redirect_control(graph, &replaced_by);
    }
    gone
}

/// Whether `inner` is `outer` or inside it.
pub(super) fn encloses(graph: &Graph, outer: RegionId, mut inner: RegionId) -> bool {
    while inner != outer && inner != RegionId::ROOT {
        inner = graph.region(inner).parent;
    }
    inner == outer
}

/// Moves control edges from nodes that are gone to those that took their place; an edge that would run backwards or
/// from a node to itself says nothing any more.
pub(super) fn redirect_control(graph: &mut Graph, replaced_by: &[Option<NodeId>]) {
    if graph.control.is_empty() {
        return;
    }
    let position = graph.positions();
    let moved = |id: NodeId| replaced_by.get(id.index()).copied().flatten().unwrap_or(id);
    let mut edges = std::mem::take(&mut graph.control);
    for edge in &mut edges {
        (edge.before, edge.after) = (moved(edge.before), moved(edge.after));
    }
    let place = |id: NodeId| position[id.index()];
    edges.retain(|edge| place(edge.before) < place(edge.after) && place(edge.after) != u32::MAX);
    graph.control = edges;
}
