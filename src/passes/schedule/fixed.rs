//! What stays where it is in a module whose order is a schedule.
//!
//! Launches that are split from their waits move, and their waits do. All that computes keeps its order, and so do collectives
//! that block, whose wait is right behind them.
//!
//! In such a module memory may have been given out: an instruction may write its result over an operand that nothing reads any
//! more, and an output over a parameter that was given away. The text does not say so of each instruction. So a launch and its
//! wait keep their side of all others that read the same memory:
//!
//! * a launch stays behind all that reads its operands above it, for it may write over them;
//! * its wait stays above all that reads its operands below it, for that may write over them, too;
//! * a wait for a launch of a parameter comes no later than it did, and a launch whose result leaves the program no sooner, for an
//!   output may be written over a parameter.
//!
//! Cost: linear in nodes and operands, but for launches of one operand that are in flight together, and for chains of calls that
//! may hand out any of what they are given, of which HLO has none.

use super::on_the_spot::is_synchronous;
use super::problem::is_quiet;
use super::times::{ends_another, is_free};
use crate::ir::operators::{Alias, element_index};
use crate::ir::{EffectTable, Graph, NodeId, Op};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Whether a collective of a scheduled module blocks: it is not split, or XLA runs both halves as one.
pub(super) fn blocks(graph: &Graph, id: NodeId) -> bool {
    let marked = || graph.hlo.as_ref().is_some_and(|facts| facts.synchronous.contains(&id)) || graph.meta_of(id).sync;
    graph.scheduled && graph.collective(id).is_some() && (is_synchronous(graph, id) || marked())
}

/// What a node comes behind for the sake of the schedule.
#[derive(Clone, Default)]
pub(super) struct Behind {
    pub nodes: Vec<NodeId>,
    /// Launches that must have been waited for.
    pub arrived: Vec<NodeId>,
}

/// Who reads a piece of memory.
#[derive(Default)]
struct Readers {
    /// The last that stays.
    last: Option<NodeId>,
    /// Launches that were not waited for, and those that were since the last that stays.
    flying: Vec<NodeId>,
    landed: Vec<NodeId>,
}

/// The order that a scheduled graph keeps, filled as its nodes go by.
pub(super) struct Fixed<'a> {
    graph: &'a Graph,
    effects: &'a EffectTable,
    /// By arena index: whose memory a value is, or shows.
    roots: Vec<Vec<NodeId>>,
    readers: HashMap<NodeId, Readers, FxBuildHasher>,
    last: Option<NodeId>,
    /// By arena index: whether the value leaves the program.
    leaves: Vec<bool>,
    /// Launches of parameters that were waited for since the last that stays.
    landed: Vec<NodeId>,
}

impl<'a> Fixed<'a> {
    pub(super) fn new(graph: &'a Graph, effects: &'a EffectTable) -> Self {
        let roots = vec![Vec::new(); graph.arena_len()];
        let leaves = vec![false; graph.arena_len()];
        let mut fixed =
            Self { graph, effects, roots, readers: HashMap::default(), last: None, leaves, landed: Vec::new() };
        for &id in graph.order().iter().rev() {
            let hands_on = match graph.node(id).op {
                Op::Output => true,
                Op::Wait => fixed.leaves[id.index()],
                Op::Call(_) => fixed.leaves[id.index()] && fixed.names(id),
                Op::Input | Op::Collective(_) => false,
            };
            if hands_on {
                graph.operands(id).iter().for_each(|operand| fixed.leaves[operand.index()] = true);
            }
        }
        fixed
    }

    /// Whether a call only names what is there.
    pub(super) fn names(&self, id: NodeId) -> bool {
        let graph = self.graph;
        is_quiet(self.effects, id) && is_free(graph, id, self.effects.get(id)) && !ends_another(graph.target_of(id))
    }

    /// Goes by a node, and says what it comes behind.
    pub(super) fn node(&mut self, id: NodeId) -> Behind {
        let graph = self.graph;
        let read: Vec<NodeId> = {
            let mut read: Vec<NodeId> =
                graph.operands(id).iter().flat_map(|&operand| self.roots[operand.index()].iter().copied()).collect();
            read.sort_unstable();
            read.dedup();
            read
        };
        let mut behind = Behind::default();
        match graph.node(id).op {
            Op::Input | Op::Output => self.roots[id.index()] = vec![id],
            Op::Wait => {
                self.roots[id.index()].clone_from(&read);
                for launch in read.into_iter().filter(|&root| graph.collective(root).is_some() && !blocks(graph, root))
                {
                    self.wait(launch);
                }
            }
            Op::Collective(_) if !blocks(graph, id) => {
                if self.leaves[id.index()] {
                    behind.nodes.extend(self.last);
                }
                for root in read {
                    let readers = self.readers.entry(root).or_default();
                    behind.nodes.extend(readers.last);
                    behind.nodes.extend(readers.flying.last().copied());
                    behind.arrived.extend(readers.landed.iter().copied());
                    readers.flying.push(id);
                }
                self.roots[id.index()] = vec![id];
            }
            Op::Call(_) if self.names(id) => {
                let tuple = |of: NodeId| graph.target_of(of) == "hlo-tuple";
                self.roots[id.index()] = match (element_index(graph, id), graph.operands(id)) {
                    (Some(index), &[of]) if tuple(of) => {
                        let part = graph.operands(of).get(index as usize);
                        part.map_or(Vec::new(), |part| self.roots[part.index()].clone())
                    }
                    _ if read.is_empty() => vec![id],
                    _ => read,
                };
            }
            Op::Call(_) | Op::Collective(_) => {
                behind.nodes.extend(self.last.replace(id));
                behind.arrived.append(&mut self.landed);
                for root in read {
                    let readers = self.readers.entry(root).or_default();
                    readers.last = Some(id);
                    behind.arrived.append(&mut readers.landed);
                }
                let mut roots = vec![id];
                // What writes in place, or hands out what it was given, is also that.
                if !matches!(self.effects.get(id).alias, Alias::Fresh) {
                    roots.extend(graph.operands(id).iter().flat_map(|of| self.roots[of.index()].iter().copied()));
                }
                self.roots[id.index()] = roots;
            }
        }
        behind
    }

    fn wait(&mut self, launch: NodeId) {
        for &operand in self.graph.operands(launch) {
            for root in &self.roots[operand.index()] {
                let Some(readers) = self.readers.get_mut(root) else { continue };
                let before = readers.flying.len();
                readers.flying.retain(|&flying| flying != launch);
                if readers.flying.len() < before {
                    readers.landed.push(launch);
                    if self.graph.node(*root).op == Op::Input {
                        self.landed.push(launch);
                    }
                }
            }
        }
    }
}
