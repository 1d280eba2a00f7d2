//! Waits where a form has them that says a collective and its wait in one: right behind the launch.

use crate::ir::{Graph, NodeId, Op};

/// Whether a collective of HLO is valid at once, and is not split into a start and a done.
pub(super) fn is_synchronous(graph: &Graph, id: NodeId) -> bool {
    graph.hlo.is_some() && graph.collective(id).is_some() && graph.args_of(id).get("split").is_none()
}

/// The graph with the waits for each collective that is valid at once right behind it. That is always legal, for such a wait
/// needs its launch and nothing else.
#[must_use]
pub fn waited_on_the_spot(graph: &Graph) -> Graph {
    let mut waits: Vec<Vec<NodeId>> = vec![Vec::new(); graph.arena_len()];
    let launch_of = |id: NodeId| match (graph.node(id).op, graph.operands(id)) {
        (Op::Wait, &[launch]) if is_synchronous(graph, launch) => Some(launch),
        _ => None,
    };
    for &id in graph.order() {
        if let Some(launch) = launch_of(id) {
            waits[launch.index()].push(id);
        }
    }
    let mut order = Vec::with_capacity(graph.order().len());
    for &id in graph.order().iter().filter(|&&id| launch_of(id).is_none()) {
        order.push(id);
        order.append(&mut waits[id.index()]);
    }
    let mut spot = graph.clone();
    spot.set_order(order);
    spot
}
