//! Calls of graphs: what they do is what their graphs do, where all of these are known.

use super::{Alias, Effects, Fence, Reader, has_memory};
use crate::ir::bodies::called_graphs;
use crate::ir::operators::split_target;
use crate::ir::{Graph, NodeId, Op};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// What a graph does to what is outside of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Summary {
    fence: Fence,
    /// Whether it launches, and leaves nothing in flight.
    launches: bool,
    /// Whether it writes what it is given, and whether its results may be that.
    writes: bool,
    hands_on: bool,
    may: bool,
}

/// The effects of a call of graphs; `None` if it is no such call, or one of them is not known.
pub(super) fn effects(reader: &Reader<'_>, graph: &Graph, id: NodeId) -> Option<Effects> {
    let mut effects = Effects::pure();
    for target in called_graphs(graph, id)? {
        let known = reader.bodies.borrow().get(target).copied();
        let summary = match known {
            Some(summary) => summary,
            None => {
                let summary = summarize(reader, graph.bodies.get(target)?);
                reader.bodies.borrow_mut().insert(target.into(), summary);
                summary
            }
        };
        effects.fence = effects.fence.max(summary.fence);
        effects.launches |= summary.launches;
        effects.may |= summary.may;
        if summary.hands_on {
            effects.alias = Alias::Any;
        }
        if summary.writes {
            effects.writes = (0..graph.operands(id).len() as u32).collect();
        }
    }
    // A graph that may not run at all, or several times, launches what nobody can count.
    let (_, operator, _) = split_target(graph.target_of(id));
    if effects.launches && operator != "invoke_subgraph" {
        effects = Effects { fence: Fence::Full, launches: false, ..effects };
    }
    Some(effects)
}

fn summarize(reader: &Reader<'_>, graph: &Graph) -> Summary {
    let mut all = Summary { fence: Fence::Free, launches: false, writes: false, hands_on: false, may: false };
    let mut flying = InFlight::default();
    // By arena index: whether a value may be memory of the caller, or of the module.
    let (mut given, mut held) = (vec![false; graph.arena_len()], vec![false; graph.arena_len()]);
    for &id in graph.order() {
        let operands = graph.operands(id);
        let effects = super::of(reader, graph, id, true);
        match graph.node(id).op {
            Op::Input => given[id.index()] = has_memory(graph, id),
            Op::Output => all.hands_on |= operands.iter().any(|of| given[of.index()] || held[of.index()]),
            Op::Wait => flying.wait(graph, id),
            Op::Collective(_) => flying.launch(graph, id),
            Op::Call(_) => held[id.index()] = crate::check::memory::attribute(graph, id).is_some(),
        }
        let shared = operands.iter().enumerate().filter(|(index, _)| match effects.alias {
            Alias::Fresh => false,
            Alias::Of(of) => of as usize == *index,
            Alias::Written | Alias::Any => true,
        });
        for (_, of) in shared {
            given[id.index()] |= given[of.index()];
            held[id.index()] |= held[of.index()];
        }
        for &index in &effects.writes {
            let Some(of) = operands.get(index as usize) else { continue };
            all.writes |= given[of.index()];
            // What the module holds is not an operand of the call.
            if held[of.index()] {
                all.fence = Fence::Full;
            }
        }
        all.fence = all.fence.max(effects.fence);
        all.launches |= effects.launches;
        all.may |= effects.may;
    }
    all.launches |= flying.seen;
    if flying.stray || flying.results.values().any(|waited| !waited) {
        all.fence = Fence::Full;
    }
    all
}

/// What a graph has in flight, by the names that nodes have for it.
#[derive(Default)]
struct InFlight {
    /// Whether there is any launch or wait.
    seen: bool,
    /// Whether a wait was for what the graph did not launch.
    stray: bool,
    /// Results, each with whether it was waited for: the node that launched, and the element of its list.
    results: HashMap<(NodeId, usize), bool, FxBuildHasher>,
}

impl InFlight {
    fn launch(&mut self, graph: &Graph, id: NodeId) {
        self.seen = true;
        for index in 0..graph.collective_inputs(id).len() {
            self.results.insert((id, index), false);
        }
    }

    /// A wait lands what its operand is: a result, an element of a list of them, or what was waited for before.
    fn wait(&mut self, graph: &Graph, id: NodeId) {
        self.seen = true;
        for &operand in graph.operands(id) {
            let mut at = operand;
            while graph.node(at).op == Op::Wait && !graph.waits_for_list(at) {
                at = graph.operands(at)[0];
            }
            let (launch, index) = match graph.node(at).op {
                Op::Call(_) if split_target(graph.target_of(at)).1 == "getitem" => {
                    let index = graph.args_of(at).at(1, "index").and_then(|arg| usize::try_from(arg.as_int()?).ok());
                    (graph.operands(at)[0], index.unwrap_or(usize::MAX))
                }
                _ => (at, 0),
            };
            match self.results.get_mut(&(launch, index)) {
                Some(waited) => *waited = true,
                None => self.stray = true,
            }
        }
    }
}
