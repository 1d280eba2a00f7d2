//! Control edges, when nodes give way to others.

use crate::ir::{ControlEdge, Graph, NodeId, Strength};
use indexmap::IndexSet;

/// Moves control edges from nodes that are gone to those that took their place, as `moved` says. An edge that no longer
/// runs forward, or ties a node to itself, says nothing any more and goes; soft ones among them are returned, by the names
/// of both ends.
pub(super) fn move_control(graph: &mut Graph, moved: impl Fn(NodeId) -> NodeId) -> Vec<(String, String)> {
    if graph.control.is_empty() {
        return Vec::new();
    }
    let position = graph.positions();
    let mut dropped = Vec::new();
    let mut kept: IndexSet<ControlEdge> = IndexSet::new();
    for edge in std::mem::take(&mut graph.control) {
        let now = ControlEdge { before: moved(edge.before), after: moved(edge.after), ..edge };
        let (before, after) = (position[now.before.index()], position[now.after.index()]);
        if before < after && after != u32::MAX {
            kept.insert(now);
        } else if edge.strength == Strength::Soft {
            dropped.push((graph.name_of(edge.before).to_owned(), graph.name_of(edge.after).to_owned()));
        }
    }
    graph.control = kept.into_iter().collect();
    dropped
}

/// As [`move_control`], for nodes replaced one by one: by arena index, what took a node's place.
pub(super) fn move_control_to(graph: &mut Graph, replaced_by: &[Option<NodeId>]) {
    move_control(graph, |id| replaced_by.get(id.index()).copied().flatten().unwrap_or(id));
}

/// Which nodes hard edges tie to a place below another.
pub(super) struct Tied {
    /// By arena index.
    position: Vec<u32>,
    /// By arena index: the place of the last node that has to run before; empty if there are no hard edges.
    after: Vec<Option<u32>>,
}

impl Tied {
    pub fn of(graph: &Graph) -> Self {
        let mut tied = Self { position: Vec::new(), after: Vec::new() };
        for edge in graph.control.iter().filter(|edge| edge.strength == Strength::Hard) {
            if tied.after.is_empty() {
                tied.position = graph.positions();
                tied.after = vec![None; graph.arena_len()];
            }
            let last = &mut tied.after[edge.after.index()];
            *last = (*last).max(Some(tied.position[edge.before.index()]));
        }
        tied
    }

    /// Whether `node` may give way to `earlier`: nothing that has to run before it stands below that one.
    pub fn may_give_way(&self, node: NodeId, earlier: NodeId) -> bool {
        self.after.get(node.index()).copied().flatten().is_none_or(|after| after < self.position[earlier.index()])
    }
}
