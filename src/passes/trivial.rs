//! Collectives that move nothing: over a group of one rank, or of no bytes.
//!
//! Over a group of one, every kind returns its input; with no elements, the result is empty. Neither is launched. Both
//! follow from the graph alone, so all ranks agree. Collectives that write a given tensor (`out`) and coalesced lists
//! are left as they are. Cost: linear.

use super::control::move_control_to;
use super::emit::{Emitter, Scale, Shape};
use crate::ir::{
    Arg, Args, CollectiveKind, Dependencies, Dim, EffectTable, Graph, Memory, NodeId, Op, Slot, TensorType, Variant,
};

/// Replaces collectives that move nothing; returns how many.
pub fn fold_trivial(graph: &mut Graph) -> usize {
    let folds = find(graph);
    fold(graph, &folds)
}

/// As [`fold_trivial`], but only those that `allowed` says by arena index.
pub(super) fn fold_allowed(graph: &mut Graph, allowed: &[bool]) -> usize {
    let mut folds = find(graph);
    folds.iter_mut().zip(allowed).filter(|(_, allowed)| !**allowed).for_each(|(fold, _)| *fold = None);
    fold(graph, &folds)
}

/// By arena index: whether it is a collective that can be folded.
pub(super) fn foldable(graph: &Graph) -> Vec<bool> {
    find(graph).iter().map(Option::is_some).collect()
}

fn fold(graph: &mut Graph, folds: &[Option<Fold>]) -> usize {
    if folds.iter().all(Option::is_none) {
        return 0;
    }
    let dependencies = &Dependencies::of(graph);
    let gone = folds.iter().flatten().count();
    let mut wait_of = vec![None; graph.arena_len()];
    for fold in folds.iter().flatten() {
        wait_of[fold.wait.index()] = Some(*fold);
    }
    let count = graph.order().len();
    let mut emit = Emitter::new(graph, count);
    let mut replaced_by = vec![None; wait_of.len()];
    for slot in dependencies.slots() {
        let Slot::Node(id) = *slot else { continue };
        emit.region = emit.graph.node(id).region;
        // A collective that goes may send what another one made that goes.
        for operand in emit.graph.operands_mut(id) {
            *operand = replaced_by[operand.index()].unwrap_or(*operand);
        }
        if let Some(fold) = folds[id.index()] {
            replaced_by[id.index()] = Some(fold.wait);
        } else if let Some(fold) = wait_of[id.index()] {
            become_input(&mut emit, dependencies, fold);
        } else {
            emit.order.push(id);
        }
    }
    let Emitter { graph, order, .. } = emit;
    graph.set_order(order);
    move_control_to(graph, &replaced_by);
    gone
}

#[derive(Clone, Copy)]
struct Fold {
    collective: NodeId,
    wait: NodeId,
    empty: bool,
}

/// By arena index of a collective: how to fold it.
fn find(graph: &Graph) -> Vec<Option<Fold>> {
    let mut folds = vec![None; graph.arena_len()];
    let mut blocked = vec![false; graph.arena_len()];
    for &id in graph.order() {
        let is_wait = graph.node(id).op == Op::Wait;
        for &operand in graph.operands(id) {
            if graph.collective(operand).is_none() || blocked[operand.index()] {
                continue;
            }
            let fold = &mut folds[operand.index()];
            match fold {
                None if is_wait && same_region(graph, operand, id) => {
                    *fold = trivial(graph, operand, id);
                    blocked[operand.index()] = fold.is_none();
                }
                // Readers below the wait read what it made valid; a second wait or an earlier reader is not for us.
                Some(_) if !is_wait => {}
                _ => {
                    *fold = None;
                    blocked[operand.index()] = true;
                }
            }
        }
    }
    keep_waits_for_others(graph, &mut folds);
    folds
}

/// Leaves collectives alone whose wait is also one for another on the same memory.
fn keep_waits_for_others(graph: &Graph, folds: &mut [Option<Fold>]) {
    let writes = |id: NodeId| graph.collective(id).is_some_and(|c| c.variant != Variant::Functional);
    if !graph.order().iter().any(|&id| writes(id)) || folds.iter().all(Option::is_none) {
        return;
    }
    let memory = Memory::of(graph, &EffectTable::of(graph));
    // By alias class: results in flight, and waits passed. By arena index of a collective: waits passed at its launch.
    let mut in_flight = vec![0u32; graph.arena_len()];
    let mut waits = vec![0u32; graph.arena_len()];
    let mut waits_at_launch = vec![0u32; graph.arena_len()];
    let class = |id: NodeId| memory.class[id.index()] as usize;
    for &id in graph.order() {
        let operands = graph.operands(id);
        match graph.node(id).op {
            Op::Wait => {
                for &on in operands {
                    let waited = std::mem::take(&mut in_flight[class(on)]);
                    let own = u32::from(waits_at_launch[on.index()] == waits[class(on)]);
                    waits[class(on)] += 1;
                    if waited > own {
                        folds[on.index()] = None;
                    }
                }
            }
            Op::Collective(_) => {
                let made = if writes(id) { operands } else { std::slice::from_ref(&id) };
                made.iter().for_each(|&node| in_flight[class(node)] += 1);
                waits_at_launch[id.index()] = waits[class(id)];
            }
            Op::Input => in_flight[class(id)] += u32::from(graph.meta_of(id).pending),
            // Tensors of a list have memory of their own.
            _ if operands.first().is_some_and(|&list| graph.collective(list).is_some_and(|c| c.coalesced)) => {
                in_flight[class(id)] += 1;
            }
            _ => {}
        }
    }
}

fn same_region(graph: &Graph, a: NodeId, b: NodeId) -> bool {
    graph.node(a).region == graph.node(b).region
}

fn trivial(graph: &Graph, id: NodeId, wait: NodeId) -> Option<Fold> {
    let collective = graph.collective(id)?;
    let moves_itself = matches!(collective.kind, CollectiveKind::Permute | CollectiveKind::AllToAll);
    if collective.coalesced || collective.variant == Variant::Out || moves_itself {
        return None;
    }
    let (input, output) = (graph.tensor(*graph.collective_inputs(id).first()?)?, graph.tensor(wait)?);
    let known = |ty: &TensorType| ty.shape.iter().all(|dim| dim.as_const().is_some());
    let none = |ty: &TensorType| ty.elements() == Some(Dim::Const(0)) && known(ty);
    let empty = none(input) && none(output);
    let alone = graph.group(collective.group).size == Some(1) && input.dtype == output.dtype;
    (empty || alone).then_some(Fold { collective: id, wait, empty: empty && collective.variant == Variant::Functional })
}

/// Gives a wait the value of its collective's input.
fn become_input(emit: &mut Emitter<'_>, dependencies: &Dependencies, fold: Fold) {
    let Fold { collective, wait, empty } = fold;
    if empty {
        emit.become_empty(wait);
        return;
    }
    let input = emit.graph.collective_inputs(collective)[0];
    let in_place = emit.graph.collective(collective).is_some_and(|c| c.variant == Variant::InPlace);
    let (from, to) = (emit.tensor(input), emit.tensor(wait));
    let shared = dependencies.is_written(wait)
        || dependencies.is_written(input)
        || dependencies.escapes(wait)
        || !(from.is_dense() && from.strides.is_some());
    if in_place {
        let args = Args::positional(vec![Arg::Operand(0)]);
        emit.become_call(wait, "aten.alias.default", args, &[input]);
    } else if from.shape != to.shape {
        // A gather of a single element makes a dimension.
        let value = if shared { emit.clone(input) } else { input };
        let from = (value, to.shape.iter().map(|_| (0, Scale::Same)).collect());
        emit.become_reshape(wait, value, &Shape { dims: to.shape, from });
    } else if shared {
        emit.become_clone(wait, input);
    } else {
        let args = Args::positional(vec![Arg::Operand(0)]);
        emit.become_call(wait, "aten.alias.default", args, &[input]);
    }
}
