//! The same tensor sent twice: opt-in, for it trades traffic for memory.
//!
//! Two functional collectives of one kind, group, arguments and region on one tensor have one result. The first is kept
//! and stays alive until the last reader of both; how many bytes that keeps is reported. Left alone: collectives whose
//! input or result is written anywhere, or of which both results leave the graph, since outputs must not come to share
//! memory; those whose waits stand in two regions; and those that a hard order edge puts below something that stands
//! below the first. Cost: linear.

use super::control::{Tied, move_control_to};
use crate::ir::{Dependencies, Graph, NodeId, Op, Variant};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

/// What was folded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DuplicateStats {
    /// Collectives that went.
    pub folded: usize,
    /// Bytes of results that now live longer.
    pub kept_bytes: u64,
}

/// Folds collectives that send the same tensor again.
pub fn dedupe_collectives(graph: &mut Graph, dependencies: &Dependencies) -> DuplicateStats {
    let mut waits = single_waits(graph);
    let position = graph.positions();
    // By arena index of a wait: whether its value leaves the graph, those it serves for included.
    let mut escapes = vec![false; graph.arena_len()];
    for wait in waits.iter().flatten() {
        escapes[wait.index()] = dependencies.escapes(*wait);
    }
    let mut first = HashMap::<_, NodeId, FxBuildHasher>::default();
    let mut replaced_by = vec![None; graph.arena_len()];
    let mut stats = DuplicateStats::default();
    let region = |id: NodeId| graph.node(id).region;
    let tied = Tied::of(graph);
    for &id in graph.order() {
        let Some(wait) = waits[id.index()] else { continue };
        let Op::Collective(collective) = graph.node(id).op else { continue };
        let input = graph.collective_inputs(id).first().copied();
        let written = dependencies.is_written(wait) || input.is_none_or(|input| dependencies.is_written(input));
        if written || collective.coalesced || collective.variant != Variant::Functional {
            continue;
        }
        // Of operands that were themselves sent twice, the ones that stay.
        let operands: SmallVec<[NodeId; 2]> =
            graph.operands(id).iter().map(|operand| replaced_by[operand.index()].unwrap_or(*operand)).collect();
        let earlier = *first.entry((collective, graph.node(id).args, region(id), operands)).or_insert(id);
        let Some(serving) = waits[earlier.index()].filter(|_| earlier != id) else { continue };
        // Of the two waits, the one that stands first serves the readers of both.
        let (first_wait, other) =
            if position[serving.index()] < position[wait.index()] { (serving, wait) } else { (wait, serving) };
        let free = tied.may_give_way(id, earlier) && tied.may_give_way(other, first_wait);
        if free && region(first_wait) == region(other) && !(escapes[serving.index()] && escapes[wait.index()]) {
            escapes[first_wait.index()] = escapes[serving.index()] || escapes[wait.index()];
            replaced_by[id.index()] = Some(earlier);
            replaced_by[other.index()] = Some(first_wait);
            waits[earlier.index()] = Some(first_wait);
            stats.folded += 1;
            stats.kept_bytes += graph.tensor(wait).and_then(|t| t.bytes()?.as_const()).unwrap_or(0);
        }
    }
    if stats.folded > 0 {
        resolve(&mut replaced_by);
        let order: Vec<NodeId> = graph.order().iter().copied().filter(|id| replaced_by[id.index()].is_none()).collect();
        for &id in &order {
            for operand in graph.operands_mut(id) {
                *operand = replaced_by[operand.index()].unwrap_or(*operand);
            }
        }
        graph.set_order(order);
        move_control_to(graph, &replaced_by);
    }
    stats
}

/// Makes every replacement the last one: a wait that served may have been replaced in turn.
fn resolve(replaced_by: &mut [Option<NodeId>]) {
    for index in 0..replaced_by.len() {
        while let Some(next) = replaced_by[index].and_then(|by| replaced_by[by.index()]) {
            replaced_by[index] = Some(next);
        }
    }
}

/// By arena index of a collective: its wait, if that is its only reader and for it alone.
fn single_waits(graph: &Graph) -> Vec<Option<NodeId>> {
    let mut waits = vec![None; graph.arena_len()];
    let mut others = vec![false; graph.arena_len()];
    for &id in graph.order() {
        for &operand in graph.operands(id) {
            let waits_for_it = graph.node(id).op == Op::Wait && !graph.waits_for_list(id);
            if waits_for_it && waits[operand.index()].is_none() {
                waits[operand.index()] = Some(id);
            } else {
                others[operand.index()] = true;
            }
        }
    }
    for (wait, other) in waits.iter_mut().zip(others) {
        if other {
            *wait = None;
        }
    }
    waits
}
