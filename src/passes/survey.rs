//! What a graph communicates: its collectives in issue order, with what is known of each. Changes nothing.
//!
//! Cost: linear in nodes and edges.

use super::bucketing::collective_bytes;
use crate::ir::{Collective, Dependencies, Graph, NodeId, Op, RegionId, RegionKind, Type};

/// One collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Surveyed {
    /// The node that starts it.
    pub node: NodeId,
    /// What it is.
    pub collective: Collective,
    /// The larger of what goes in and what comes out; `None` if not known.
    pub bytes: Option<u64>,
    /// The first wait on it, or on a part of it.
    pub wait: Option<NodeId>,
    /// The last node that waits for it, likewise.
    pub last_wait: Option<NodeId>,
    /// Most collectives on a path that leads to it, over all order, not only data: 0 for one that depends on none.
    pub depth: u32,
}

/// Lists the collectives of a graph that [`verify`](crate::ir::verify()) accepts, in issue order.
#[must_use]
pub fn survey(graph: &Graph, dependencies: &Dependencies) -> Vec<Surveyed> {
    let depths = depths(graph, dependencies);
    let waits = waits(graph);
    let one = |&node: &NodeId| {
        let collective = graph.collective(node)?;
        let depth = depths[dependencies.slot_of(node)];
        let (wait, last_wait) = waits[node.index()].unzip();
        Some(Surveyed { node, collective, bytes: collective_bytes(graph, node), wait, last_wait, depth })
    };
    graph.order().iter().filter_map(one).collect()
}

/// By slot: most collectives on a path that leads there.
fn depths(graph: &Graph, dependencies: &Dependencies) -> Vec<u32> {
    let mut depths = vec![0u32; dependencies.slots().len()];
    let mut through = depths.clone();
    for slot in 0..depths.len() {
        let depth = dependencies.before(slot).iter().map(|&before| through[before as usize]).max().unwrap_or(0);
        let is_collective = dependencies.node(slot).is_some_and(|id| graph.collective(id).is_some());
        (depths[slot], through[slot]) = (depth, depth + u32::from(is_collective));
    }
    depths
}

/// By arena index of a collective: the first and the last node that wait for it, or for an element of its tuple.
fn waits(graph: &Graph) -> Vec<Option<(NodeId, NodeId)>> {
    let mut waits = vec![None; graph.arena_len()];
    // The coalesced collective that a node takes an element of.
    let mut element_of = vec![None; graph.arena_len()];
    for &id in graph.order() {
        for &operand in graph.operands(id) {
            let source = element_of[operand.index()].unwrap_or(operand);
            if graph.node(id).op == Op::Wait {
                let known = &mut waits[source.index()];
                *known = Some((known.map_or(id, |(first, _)| first), id));
            } else if matches!(graph.node(id).op, Op::Call(_)) && matches!(graph.type_of(operand), Type::Tuple(_)) {
                element_of[id.index()] = Some(source);
            }
        }
    }
    waits
}

/// The innermost branch that a region is, or lies in.
#[must_use]
pub fn branch_around(graph: &Graph, region: RegionId) -> Option<RegionId> {
    graph.regions_around(region).find(|&region| graph.region(region).kind == RegionKind::Branch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_the_collectives_on_the_longest_path() {
        let text = "a = input f32[4]; b = input f32[4]
g = all_gather(a, G:2); w = wait(g)
s = reduce_scatter(relu(w), sum, G:2); v = wait(s)
c = all_gather_coalesced([b, v], G:2)
e = wait(getitem(c, 0))
output(v, e)";
        let graph = crate::ir::text::parse(text).unwrap();
        let found = survey(&graph, &Dependencies::of(&graph));
        let depths: Vec<u32> = found.iter().map(|one| one.depth).collect();
        let waits: Vec<&str> = found.iter().filter_map(|one| one.wait.map(|id| graph.name_of(id))).collect();
        assert_eq!(depths, [0, 1, 2]);
        assert_eq!(waits, ["w", "v", "e"]);
        assert_eq!(found[2].bytes, Some(64));
    }
}
