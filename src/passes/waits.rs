//! One wait for each started collective.
//!
//! A parametrisation may wait twice for one start, or wait for what another wait returned. The earliest wait in program
//! order stands before all readers of all of them, so it serves; the others go, and their readers read it instead. A
//! wait inside a region serves only nodes of that region. A collective that writes a given tensor, in place or as `out`,
//! starts anew: what waits for that memory afterwards waits for it. Cost: linear.

use crate::ir::{Dependencies, Graph, NodeId, Op, RegionId, Variant};

/// Folds waits of one value into the earliest; returns how many went.
pub fn dedupe_waits(graph: &mut Graph) -> usize {
    // By arena index of a waited value: the wait that serves. By arena index of a wait: the one that replaces it.
    let mut serving: Vec<Option<NodeId>> = vec![None; graph.arena_len()];
    let mut replaced_by: Vec<Option<NodeId>> = vec![None; graph.arena_len()];
    let mut gone = 0;
    let order = graph.order().to_vec();
    let writes = |id: &NodeId| graph.collective(*id).is_some_and(|c| c.variant != Variant::Functional);
    let memory = order.iter().any(writes).then(|| Dependencies::of(graph));
    // By alias class: how many collectives have written it so far. By arena index of a wait: how many had by then.
    let mut written = vec![0u32; if memory.is_some() { graph.arena_len() } else { 0 }];
    let mut seen = written.clone();
    let mut kept = Vec::with_capacity(order.len());
    for id in order {
        for operand in graph.operands_mut(id) {
            *operand = replaced_by[operand.index()].unwrap_or(*operand);
        }
        let waited = match (graph.node(id).op, graph.operands(id)) {
            (Op::Wait, &[waited]) => waited,
            (Op::Collective(collective), operands) if collective.variant != Variant::Functional => {
                if let Some(memory) = &memory {
                    operands.iter().for_each(|&operand| written[memory.alias_class(operand) as usize] += 1);
                }
                kept.push(id);
                continue;
            }
            _ => {
                kept.push(id);
                continue;
            }
        };
        if let Some(memory) = &memory {
            seen[id.index()] = written[memory.alias_class(id) as usize];
        }
        let is_wait = graph.node(waited).op == Op::Wait;
        let server = if is_wait { Some(waited) } else { serving[waited.index()] };
        let still = |server: &NodeId| memory.is_none() || seen[server.index()] == seen[id.index()];
        match server.filter(still) {
            Some(server) if encloses(graph, graph.node(server).region, graph.node(id).region) => {
                replaced_by[id.index()] = Some(server);
                gone += 1;
            }
            _ => {
                let last = serving[waited.index()].filter(still);
                serving[waited.index()] = last.or(Some(id));
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
