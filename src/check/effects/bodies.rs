//! Calls of graphs: what they do is what their graphs do, where all of these are known.

use super::{Alias, Effects, Fence, Reader, has_memory};
use crate::ir::bodies::called_graphs;
use crate::ir::{Graph, NodeId, Op};

/// What a graph does to what is outside of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Summary {
    fence: Fence,
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
        effects.may |= summary.may;
        if summary.hands_on {
            effects.alias = Alias::Any;
        }
        if summary.writes {
            effects.writes = (0..graph.operands(id).len() as u32).collect();
        }
    }
    Some(effects)
}

fn summarize(reader: &Reader<'_>, graph: &Graph) -> Summary {
    let mut all = Summary { fence: Fence::Free, writes: false, hands_on: false, may: false };
    // By arena index: whether a value may be memory of the caller, or of the module.
    let (mut given, mut held) = (vec![false; graph.arena_len()], vec![false; graph.arena_len()]);
    for &id in graph.order() {
        let operands = graph.operands(id);
        let effects = super::of(reader, graph, id, true);
        match graph.node(id).op {
            Op::Input => given[id.index()] = has_memory(graph, id),
            Op::Output => all.hands_on |= operands.iter().any(|of| given[of.index()] || held[of.index()]),
            Op::Wait | Op::Collective(_) => all.fence = Fence::Full,
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
            // What the module holds is no operand of the call.
            if held[of.index()] {
                all.fence = Fence::Full;
            }
        }
        all.fence = all.fence.max(effects.fence);
        all.may |= effects.may;
    }
    all
}
