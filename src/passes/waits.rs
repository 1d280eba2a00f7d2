//! One wait for each started collective.
//!
//! A parametrisation may wait twice for one start, or wait for what another wait returned. The earliest wait in program
//! order stands before all readers of all of them, so it serves; the others go, and their readers read it instead. A
//! wait inside a region serves only nodes of that region. A wait is for all that was started on its storage, so one that
//! stands below a later start on the same storage, in place or with `out`, is not the same wait. Nor does one go that a
//! hard order edge puts below the earliest. Waits for lists stay, and stand for no other. Cost: linear.

use super::control::{Tied, move_control_to};
use crate::ir::{Dependencies, Graph, NodeId, Op, Variant};

/// Folds waits of one value into the earliest; returns how many went.
pub fn dedupe_waits(graph: &mut Graph) -> usize {
    // By arena index of a waited value: the wait that serves. By arena index of a wait: the one that replaces it.
    let mut serving: Vec<Option<NodeId>> = vec![None; graph.arena_len()];
    let mut replaced_by: Vec<Option<NodeId>> = vec![None; graph.arena_len()];
    let mut gone = 0;
    let order = graph.order().to_vec();
    let mut kept = Vec::with_capacity(order.len());
    let mut starts = Starts::of(graph);
    let tied = Tied::of(graph);
    for id in order {
        starts.pass(graph, id);
        for operand in graph.operands_mut(id) {
            *operand = replaced_by[operand.index()].unwrap_or(*operand);
        }
        let waited = match (graph.node(id).op, graph.operands(id)) {
            (Op::Wait, &[waited]) if !graph.waits_for_list(id) => waited,
            _ => {
                kept.push(id);
                continue;
            }
        };
        let is_wait = graph.node(waited).op == Op::Wait;
        let server = if is_wait { Some(waited) } else { serving[waited.index()] };
        match server {
            Some(server)
                if graph.encloses(graph.node(server).region, graph.node(id).region)
                    && !starts.any_since(server)
                    && tied.may_give_way(id, server) =>
            {
                replaced_by[id.index()] = Some(server);
                gone += 1;
            }
            server => {
                if server.is_none_or(|server| starts.any_since(server)) {
                    serving[waited.index()] = Some(id);
                }
                kept.push(id);
            }
        }
    }
    if gone > 0 {
        graph.set_order(kept);
        move_control_to(graph, &replaced_by);
    }
    gone
}

/// Collectives that write storage that others know, as a walk in program order passes them.
struct Starts {
    /// By arena index: alias class. Empty if there are no such collectives.
    class: Vec<u32>,
    /// By alias class: how many were passed.
    passed: Vec<u32>,
    /// By arena index: how many of its class had been passed when a wait was.
    at_wait: Vec<u32>,
}

impl Starts {
    fn of(graph: &Graph) -> Self {
        let writes = |&id: &NodeId| graph.collective(id).is_some_and(|c| c.variant != Variant::Functional);
        let mut starts = Self { class: Vec::new(), passed: Vec::new(), at_wait: Vec::new() };
        if graph.order().iter().any(writes) {
            let dependencies = Dependencies::of(graph);
            starts.class = vec![0; graph.arena_len()];
            graph.order().iter().for_each(|&id| starts.class[id.index()] = dependencies.alias_class(id));
            starts.passed = vec![0; graph.arena_len()];
            starts.at_wait = vec![0; graph.arena_len()];
        }
        starts
    }

    fn pass(&mut self, graph: &Graph, id: NodeId) {
        let Some(&class) = self.class.get(id.index()) else { return };
        match graph.collective(id) {
            // The list form may write any of its operands.
            Some(collective) if collective.variant != Variant::Functional => {
                for operand in graph.operands(id) {
                    self.passed[self.class[operand.index()] as usize] += 1;
                }
            }
            _ => self.at_wait[id.index()] = self.passed[class as usize],
        }
    }

    /// Whether anything was started on a wait's storage since.
    fn any_since(&self, wait: NodeId) -> bool {
        self.class.get(wait.index()).is_some_and(|&class| self.passed[class as usize] > self.at_wait[wait.index()])
    }
}
