//! Faults in collectives, waits, memory, order and outputs.

use super::edit::*;
use bucketeer::ir::operators::effects;
use bucketeer::ir::{
    Arg, Args, Collective, CollectiveKind, DType, Graph, GroupId, NodeId, Op, ReduceOp, Strength, TensorType, Type,
};

pub fn drop_wait(graph: &mut Graph) -> bool {
    let Some(&wait) = waits(graph).last() else { return false };
    let started = graph.operands(wait)[0];
    replace_uses(graph, wait, started, &[]);
    graph.set_order(graph.order().iter().copied().filter(|&id| id != wait).collect());
    true
}

/// A reader takes the result directly, and the wait comes after it.
pub fn wait_after_read(graph: &mut Graph) -> bool {
    for wait in waits(graph) {
        let started = graph.operands(wait)[0];
        let readers = users(graph, wait);
        let Some(&reader) = readers.iter().find(|&&id| graph.node(id).op != Op::Output) else { continue };
        // The first reader of elements behind views; a reshape of an unpacked part copies.
        let mut at = reader;
        let is_view = |at: NodeId| effects(graph, at).is_view() && graph.target_of(at) != "aten.reshape.default";
        while is_view(at) || unpacks(graph).iter().any(|&split| graph.operands(split)[0] == at) {
            match users(graph, at).first() {
                Some(&next) if graph.node(next).op != Op::Output => at = next,
                _ => break,
            }
        }
        if is_view(at) {
            continue;
        }
        let place = next_of(graph, at);
        replace_uses(graph, wait, started, &[]);
        move_before(graph, wait, place);
        return true;
    }
    false
}

pub fn change_collective(graph: &mut Graph, change: impl Fn(&Graph, &mut Collective) -> bool) -> bool {
    for id in launches(graph, |_| true).into_iter().rev() {
        let mut collective = graph.collective(id).unwrap();
        if change(graph, &mut collective) {
            graph.node_mut(id).op = Op::Collective(collective);
            return true;
        }
    }
    false
}

/// A group of its own, whose ranks are counted in another order: gathers and scatters show it, reductions need not.
pub fn other_group(graph: &mut Graph) -> bool {
    [true, false].into_iter().any(|ordered| {
        let Some(&id) = launches(graph, |c| is_ordered(c) == ordered).last() else { return false };
        let mut collective = graph.collective(id).unwrap();
        let size = graph.group(collective.group).size;
        let mut members = graph.group(collective.group).members.clone();
        members.iter_mut().for_each(|list| list.reverse());
        collective.group = graph.intern_group("planted", size);
        graph.group_mut(collective.group).members = members;
        graph.node_mut(id).op = Op::Collective(collective);
        true
    })
}

fn is_ordered(collective: Collective) -> bool {
    matches!(collective.kind, CollectiveKind::AllGather { .. } | CollectiveKind::ReduceScatter { .. })
}

/// The group of the same ranks, counted the other way round: what is gathered or scattered comes in another order.
pub fn other_rank_order(graph: &mut Graph) -> bool {
    let same_ranks = |graph: &Graph, old: GroupId| {
        let sorted = |group: GroupId| {
            let mut members: Vec<_> = graph.group(group).members.first()?.clone();
            members.sort_unstable();
            Some(members)
        };
        let groups = (0..graph.groups().len()).map(GroupId::from_index);
        groups.filter(|&group| group != old).find(|&group| sorted(group).is_some() && sorted(group) == sorted(old))
    };
    change_collective(graph, |graph, collective| {
        let ordered =
            matches!(collective.kind, CollectiveKind::AllGather { .. } | CollectiveKind::ReduceScatter { .. });
        match same_ranks(graph, collective.group).filter(|_| ordered) {
            Some(other) => {
                collective.group = other;
                true
            }
            None => false,
        }
    })
}

/// What was reduced is reduced again.
pub fn reduced_twice(graph: &mut Graph) -> bool {
    // An average of averages is the same one.
    for id in launches(graph, |c| c.kind == CollectiveKind::AllReduce { op: ReduceOp::Sum } && !c.coalesced) {
        let Some(&wait) = users(graph, id).first() else { continue };
        let (op, args, ty) = (graph.node(id).op, graph.args_of(id).clone(), graph.type_of(id).clone());
        let place = next_of(graph, wait);
        let again = insert_op(graph, place, op, args, &[wait], ty.clone());
        let result = insert_op(graph, place, Op::Wait, positional(vec![operand()]), &[again], ty);
        replace_uses(graph, wait, result, &[again]);
        return true;
    }
    false
}

pub fn other_reduction(graph: &mut Graph) -> bool {
    let other = |op: &mut ReduceOp| *op = if *op == ReduceOp::Sum { ReduceOp::Avg } else { ReduceOp::Sum };
    change_collective(graph, |_, collective| match &mut collective.kind {
        CollectiveKind::ReduceScatter { op, .. } | CollectiveKind::AllReduce { op } => {
            other(op);
            true
        }
        _ => false,
    })
}

pub fn other_root(graph: &mut Graph) -> bool {
    change_collective(graph, |_, collective| match &mut collective.kind {
        CollectiveKind::Broadcast { root } => {
            *root += 1;
            true
        }
        _ => false,
    })
}

/// Reduces in bf16 what was reduced in f32, and converts the result back.
pub fn cast_across_sum(graph: &mut Graph) -> bool {
    for id in launches(graph, |c| c.kind.reduce_op().is_some() && !c.coalesced) {
        let input = graph.operands(id)[0];
        let (Some(from), Some(to)) = (graph.tensor(input).cloned(), graph.tensor(id).cloned()) else { continue };
        let Some(&wait) = users(graph, id).first() else { continue };
        if from.dtype != DType::F32 {
            continue;
        }
        let cast = |dtype| positional(vec![operand(), Arg::DType(dtype)]);
        let narrow = |ty: &TensorType| Type::Tensor(TensorType { dtype: DType::Bf16, ..ty.clone() });
        let small = insert(graph, id, "prims.convert_element_type.default", cast(DType::Bf16), &[input], narrow(&from));
        graph.operands_mut(id)[0] = small;
        let ty = graph.intern_type(narrow(&to));
        graph.node_mut(id).ty = ty;
        graph.node_mut(wait).ty = ty;
        let place = next_of(graph, wait);
        let back =
            insert(graph, place, "prims.convert_element_type.default", cast(DType::F32), &[wait], Type::Tensor(to));
        replace_uses(graph, wait, back, &[]);
        return true;
    }
    false
}

/// Rounds through f16 on the way to bf16.
pub fn double_rounding(graph: &mut Graph) -> bool {
    for id in calls(graph, "convert_element_type") {
        let (from, Some(to)) = (graph.operands(id)[0], graph.tensor(id).cloned()) else { continue };
        let source = graph.tensor(from).unwrap().clone();
        if (source.dtype, to.dtype) != (DType::F32, DType::Bf16) {
            continue;
        }
        let ty = Type::Tensor(TensorType { dtype: DType::F16, ..source });
        let args = positional(vec![operand(), Arg::DType(DType::F16)]);
        let half = insert(graph, id, "prims.convert_element_type.default", args, &[from], ty);
        graph.operands_mut(id)[0] = half;
        return true;
    }
    false
}

pub fn stale_read(graph: &mut Graph) -> bool {
    let Some(&write) = calls(graph, "copy_").first() else { return false };
    let written = graph.operands(write)[0];
    let reader =
        users(graph, written).into_iter().find(|&id| is_before(graph, write, id) && graph.node(id).op != Op::Output);
    let Some(reader) = reader.filter(|&id| matches!(graph.node(id).op, Op::Call(_))) else { return false };
    move_before(graph, reader, write);
    true
}

pub fn dropped_write(graph: &mut Graph) -> bool {
    let Some(&write) = calls(graph, "copy_").first() else { return false };
    let written = graph.operands(write)[0];
    replace_uses(graph, write, written, &[]);
    graph.set_order(graph.order().iter().copied().filter(|&id| id != write).collect());
    true
}

pub fn extra_write(graph: &mut Graph) -> bool {
    let inputs: Vec<NodeId> = graph.order().iter().copied().filter(|&id| graph.node(id).op == Op::Input).collect();
    for (&a, &b) in inputs.iter().flat_map(|a| inputs.iter().map(move |b| (a, b))) {
        if a != b && graph.tensor(a).is_some() && graph.type_of(a) == graph.type_of(b) {
            let args = positional(vec![operand(), Arg::Operand(1)]);
            let ty = graph.type_of(a).clone();
            let place = output(graph);
            insert(graph, place, "aten.copy_.default", args, &[a, b], ty);
            return true;
        }
    }
    false
}

/// A launch whose result has the type of its input gives the input back.
pub fn drop_launch(graph: &mut Graph) -> bool {
    for wait in waits(graph) {
        let started = graph.operands(wait)[0];
        if graph.collective(started).is_none() {
            continue;
        }
        let input = graph.collective_inputs(started)[0];
        if graph.type_of(input) == graph.type_of(started) && graph.operands(started).len() == 1 {
            replace_uses(graph, wait, input, &[]);
            graph.set_order(graph.order().iter().copied().filter(|id| ![wait, started].contains(id)).collect());
            return true;
        }
    }
    false
}

/// A launch goes whose result nothing reads any more: another of that type is read in its place.
pub fn launch_for_another(graph: &mut Graph) -> bool {
    let waits = waits(graph);
    for (&a, &b) in waits.iter().flat_map(|a| waits.iter().map(move |b| (a, b))) {
        if is_before(graph, a, b) && graph.type_of(a) == graph.type_of(b) && !graph.operands(a).contains(&b) {
            replace_uses(graph, b, a, &[]);
            let started = graph.operands(b)[0];
            if users(graph, started) != [b] {
                return false;
            }
            graph.set_order(graph.order().iter().copied().filter(|id| ![b, started].contains(id)).collect());
            return true;
        }
    }
    false
}

pub fn second_launch(graph: &mut Graph) -> bool {
    let Some(&id) = launches(graph, |c| c.variant == bucketeer::ir::Variant::Functional).last() else { return false };
    let (op, args) = (graph.node(id).op, graph.args_of(id).clone());
    let (ty, operands) = (graph.type_of(id).clone(), graph.operands(id).to_vec());
    let place = next_of(graph, id);
    let again = insert_op(graph, place, op, args, &operands, ty.clone());
    if !graph.collective(id).unwrap().coalesced {
        insert_op(graph, place, Op::Wait, positional(vec![operand()]), &[again], ty);
    }
    true
}

/// Sends something that was never asked for.
pub fn foreign_launch(graph: &mut Graph) -> bool {
    let Some(&id) = launches(graph, |c| matches!(c.kind, CollectiveKind::AllReduce { .. }) && !c.coalesced).last()
    else {
        return false;
    };
    let Some(&input) = graph.order().iter().find(|&&id| graph.node(id).op == Op::Input && graph.tensor(id).is_some())
    else {
        return false;
    };
    let (op, args, ty) = (graph.node(id).op, graph.args_of(id).clone(), graph.type_of(input).clone());
    let place = next_of(graph, id);
    let sent = insert_op(graph, place, op, args, &[input], ty.clone());
    insert_op(graph, place, Op::Wait, positional(vec![operand()]), &[sent], ty);
    true
}

/// A bucket with fill between its members is read from the fill on.
pub fn leaking_pad(graph: &mut Graph) -> bool {
    for pack in packs(graph) {
        let Some(&launch) = users(graph, pack).first() else { continue };
        let Some(Collective { kind: CollectiveKind::AllReduce { .. }, .. }) = graph.collective(launch) else {
            continue;
        };
        let (Some(ty), Some(&wait)) = (graph.tensor(pack).cloned(), users(graph, launch).first()) else { continue };
        let Some(total) = count(graph, pack) else { continue };
        let fill = Args {
            positional: vec![Arg::List(vec![Arg::Int(4)]), Arg::Int(0)],
            keyword: vec![("dtype".into(), Arg::DType(ty.dtype))],
        };
        let fill = insert(graph, pack, "aten.full.default", fill, &[], flat(&ty, 4));
        let mut parts = vec![fill];
        parts.extend(graph.operands(pack));
        let list = Arg::List((0..parts.len() as u32).map(Arg::Operand).collect());
        graph.set_operands(pack, &parts);
        set_args(graph, pack, positional(vec![list]));
        let padded = graph.intern_type(flat(&ty, total + 4));
        for id in [pack, launch, wait] {
            graph.node_mut(id).ty = padded;
        }
        let place = next_of(graph, wait);
        let cut = positional(vec![operand(), Arg::Int(0), Arg::Int(0), Arg::Int(total)]);
        let cut = insert(graph, place, "aten.slice.Tensor", cut, &[wait], flat(&ty, total));
        replace_uses(graph, wait, cut, &[]);
        return true;
    }
    false
}

/// A copy made so that outputs have memory of their own is left out.
pub fn escaping_view(graph: &mut Graph) -> bool {
    let split_items: Vec<NodeId> = unpacks(graph).into_iter().flat_map(|split| users(graph, split)).collect();
    let copies: Vec<NodeId> =
        calls(graph, "clone").into_iter().filter(|&id| split_items.contains(&graph.operands(id)[0])).collect();
    for &copy in &copies {
        let from = graph.operands(copy)[0];
        replace_uses(graph, copy, from, &[]);
    }
    copies.len() > 1
}

/// An output that is a copy of an input is the input itself: a caller that writes the one changes the other.
pub fn input_as_output(graph: &mut Graph) -> bool {
    let id = output(graph);
    let is_copy = |&operand: &NodeId| {
        graph.target_of(operand) == "aten.clone.default" && graph.node(graph.operands(operand)[0]).op == Op::Input
    };
    let Some(place) = graph.operands(id).iter().position(is_copy) else { return false };
    let from = graph.operands(graph.operands(id)[place])[0];
    graph.operands_mut(id)[place] = from;
    true
}

pub fn lost_edge(graph: &mut Graph) -> bool {
    let before = graph.control.len();
    graph.control.retain(|edge| edge.strength == Strength::Soft);
    graph.control.len() < before
}

pub fn broken_edge(graph: &mut Graph) -> bool {
    let Some(edge) = graph.control.first().copied() else { return false };
    // The second runs before the first, with all that it needs.
    let mut needed = vec![edge.after];
    let mut at = 0;
    while let Some(&id) = needed.get(at) {
        for &operand in graph.operands(id) {
            if is_before(graph, edge.before, operand) && !needed.contains(&operand) {
                needed.push(operand);
            }
        }
        at += 1;
    }
    if needed.iter().any(|&id| graph.operands(id).contains(&edge.before)) {
        return false;
    }
    for &id in needed.iter().rev() {
        move_before(graph, id, edge.before);
    }
    true
}

pub fn swapped_launches(graph: &mut Graph) -> bool {
    let all = launches(graph, |_| true);
    for (&first, &second) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
        let same = graph.collective(first).unwrap().group == graph.collective(second).unwrap().group;
        let single = !packs(graph).iter().any(|pack| users(graph, *pack).iter().any(|id| [first, second].contains(id)));
        let free = graph.operands(second).iter().all(|&operand| is_before(graph, operand, first));
        if same && single && free && is_before(graph, first, second) {
            move_before(graph, second, first);
            return true;
        }
    }
    false
}

pub fn across_fence(graph: &mut Graph) -> bool {
    let Some(&fence) = calls(graph, "barrier").first() else { return false };
    let launch = launches(graph, |_| true).into_iter().find(|&id| {
        is_before(graph, fence, id) && graph.operands(id).iter().all(|&operand| is_before(graph, operand, fence))
    });
    launch.is_some_and(|id| {
        move_before(graph, id, fence);
        true
    })
}

pub fn dropped_fence(graph: &mut Graph) -> bool {
    let Some(&fence) = calls(graph, "barrier").first() else { return false };
    graph.set_order(graph.order().iter().copied().filter(|&id| id != fence).collect());
    true
}

pub fn swapped_draws(graph: &mut Graph) -> bool {
    let [first, second, ..] = calls(graph, "rand_like")[..] else { return false };
    move_before(graph, second, first);
    true
}

/// Two outputs of one type change places.
pub fn swapped_outputs(graph: &mut Graph) -> bool {
    let id = output(graph);
    if graph.node(id).op != Op::Output {
        return false;
    }
    let made = |graph: &Graph, at: usize| graph.node(graph.operands(id)[at]).op != Op::Input;
    match alike(graph, id) {
        Some((a, b)) if made(graph, a) || made(graph, b) => {
            graph.operands_mut(id).swap(a, b);
            true
        }
        _ => false,
    }
}

pub fn lost_output(graph: &mut Graph) -> bool {
    let id = output(graph);
    let mut args = graph.args_of(id).clone();
    let lists = args.positional.iter_mut().find_map(|arg| match arg {
        Arg::Tuple(items) | Arg::List(items) => Some(items),
        _ => None,
    });
    let items = match lists {
        Some(items) => items,
        None => &mut args.positional,
    };
    let Some(last) = items.iter().rposition(|item| matches!(item, Arg::Operand(_))) else { return false };
    items[last] = Arg::None;
    let operands = graph.operands(id).to_vec();
    graph.set_operands(id, &operands[..operands.len() - 1]);
    set_args(graph, id, args);
    true
}

/// The slot of a gather's input is not the place of a rank.
pub fn wrong_slot(graph: &mut Graph) -> bool {
    for id in launches(graph, |c| c.variant == bucketeer::ir::Variant::Out) {
        let mut slot = graph.operands(id)[0];
        if graph.target_of(slot) == "aten.copy_.default" {
            slot = graph.operands(slot)[0];
        }
        let args = graph.args_of(slot).clone();
        let (Some(start), Some(end)) =
            (args.positional.get(2).and_then(Arg::as_int), args.positional.get(3).and_then(Arg::as_int))
        else {
            continue;
        };
        with_int(graph, slot, 2, start + 1);
        with_int(graph, slot, 3, end + 1);
        return true;
    }
    false
}

pub fn other_constant(graph: &mut Graph) -> bool {
    for id in graph.order().to_vec() {
        let args = graph.args_of(id).clone();
        let is_float = |arg: &Arg| matches!(arg, Arg::Float(_));
        let arithmetic = graph.target_of(id).starts_with("aten.mul") || graph.target_of(id).starts_with("aten.pow");
        if let (Some(place), true) = (args.positional.iter().position(is_float), arithmetic) {
            let mut args = args;
            args.positional[place] = Arg::Float("0.75".into());
            set_args(graph, id, args);
            return true;
        }
    }
    false
}

pub fn swapped_operands(graph: &mut Graph) -> bool {
    for base in ["sub", "mm"] {
        for id in calls(graph, base) {
            let &[a, b] = graph.operands(id) else { continue };
            if a != b && graph.type_of(a) == graph.type_of(b) {
                graph.set_operands(id, &[b, a]);
                return true;
            }
        }
    }
    false
}

/// A size computed at run time is another.
pub fn wrong_run_time_size(graph: &mut Graph) -> bool {
    let splits = unpacks(graph);
    for split in splits {
        if graph.operands(split).len() > 2 {
            graph.operands_mut(split)[1..].reverse();
            return true;
        }
    }
    false
}

pub fn undivided_size(graph: &mut Graph) -> bool {
    let Some(&id) = calls(graph, "operator.floordiv").last() else { return false };
    let place = graph.args_of(id).positional.iter().position(|arg| arg.as_int().is_some());
    place.is_some_and(|place| {
        with_int(graph, id, place, 1);
        true
    })
}

/// The member of another bucket of that type.
pub fn other_buckets_member(graph: &mut Graph) -> bool {
    let items: Vec<(NodeId, NodeId)> = unpacks(graph)
        .into_iter()
        .flat_map(|split| users(graph, split).into_iter().map(move |item| (split, item)))
        .collect();
    for (&(s, a), &(t, b)) in items.iter().flat_map(|a| items.iter().map(move |b| (a, b))) {
        if s != t && is_before(graph, a, b) && graph.type_of(a) == graph.type_of(b) {
            replace_uses(graph, b, a, &[]);
            return true;
        }
    }
    false
}

/// A member that depends on another is packed with what it was before.
pub fn stale_member(graph: &mut Graph) -> bool {
    for pack in packs(graph) {
        let operands = graph.operands(pack).to_vec();
        for (place, &member) in operands.iter().enumerate() {
            let mut at = member;
            while graph.operands(at).len() == 1 && graph.target_of(at) == "aten.view.default" {
                at = graph.operands(at)[0];
            }
            let earlier = graph.operands(at).iter().copied().find(|&from| graph.type_of(from) == graph.type_of(member));
            if let (Some(earlier), Op::Call(_)) = (earlier, graph.node(at).op) {
                graph.operands_mut(pack)[place] = earlier;
                return true;
            }
        }
    }
    false
}

/// Reads the buffer that a gather writes in place of the gather's result.
pub fn unwritten_buffer(graph: &mut Graph) -> bool {
    let Some(&split) = unpacks(graph).first() else { return false };
    let buffer = graph.operands(split)[0];
    let ty = graph.tensor(buffer).cloned();
    let Some(ty) = ty.filter(|ty| ty.elements().is_some_and(|count| count.as_const().is_some())) else { return false };
    let sizes = ty.shape.iter().map(|dim| Arg::Int(dim.as_const().unwrap() as i64)).collect();
    let args = Args { positional: vec![Arg::List(sizes)], keyword: vec![("dtype".into(), Arg::DType(ty.dtype))] };
    let empty = insert(graph, split, "aten.empty.memory_format", args, &[], Type::Tensor(ty));
    graph.operands_mut(split)[0] = empty;
    true
}

/// A result is written over after the launch, before it is waited for.
pub fn write_in_flight(graph: &mut Graph) -> bool {
    for wait in waits(graph) {
        let started = graph.operands(wait)[0];
        if graph.collective(started).is_some() && graph.tensor(started).is_some() {
            let ty = graph.type_of(started).clone();
            insert(graph, wait, "aten.zero_.default", positional(vec![operand()]), &[started], ty);
            return true;
        }
    }
    false
}
