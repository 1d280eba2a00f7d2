//! Random damage to a graph: small edits that keep it well-formed more often than not, and change what it computes
//! more often than not.

use super::choices::Choices;
use bucketeer::ir::{
    Arg, Args, Collective, CollectiveKind, DType, Graph, GroupId, NodeId, Op, ReduceOp, TensorType, Type,
};

type Edit = fn(&mut Graph, &mut Choices<'_>) -> Option<NodeId>;

/// Each gives the node that it edited; none where the graph has no place for it.
const EDITS: &[(&str, Edit)] = &[
    ("two operands swapped", swap_operands),
    ("an operand replaced", redirect_operand),
    ("an integer changed", change_integer),
    ("a number changed", change_float),
    ("an operator changed", change_target),
    ("two arguments swapped", swap_arguments),
    ("a detour over another dtype", detour),
    ("a node left out", leave_out),
    ("a wait left out", leave_out_wait),
    ("neighbours swapped", swap_neighbours),
    ("a node moved", move_node),
    ("a collective changed", change_collective),
    ("another group", change_group),
    ("a node done twice", repeat_node),
    ("a write added", add_write),
    ("a copy added", add_copy),
    ("an order edge dropped", drop_edge),
];

/// Damages the graph in one or two places, and says how; nothing where it has no place for it.
pub(super) fn damage(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<String> {
    let mut done = Vec::new();
    for _ in 0..1 + usize::from(choices.below(4) == 3) {
        let (what, edit) = EDITS[choices.below(EDITS.len())];
        if let Some(id) = edit(graph, choices) {
            done.push(format!("{what} at `{}`", graph.name_of(id)));
        }
    }
    (!done.is_empty()).then(|| done.join(", "))
}

// Finding places.

fn nodes(graph: &Graph, wanted: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
    graph.order().iter().copied().filter(|&id| wanted(id)).collect()
}

fn is_call(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.node(id).op, Op::Call(_))
}

fn position(graph: &Graph, id: NodeId) -> Option<usize> {
    graph.order().iter().position(|&other| other == id)
}

/// Makes a node right before `place`, in its region.
fn insert(graph: &mut Graph, place: NodeId, op: Op, args: Args, operands: &[NodeId], ty: Type) -> NodeId {
    let name = graph.fresh_name("damage", &mut 0);
    let (ty, args) = (graph.intern_type(ty), graph.intern_args(args));
    let id = graph.create(op, name, ty, args, operands);
    graph.node_mut(id).region = graph.node(place).region;
    let mut order = graph.order().to_vec();
    let at = position(graph, place).unwrap_or(order.len());
    order.insert(at, id);
    graph.set_order(order);
    id
}

fn insert_call(graph: &mut Graph, place: NodeId, target: &str, rest: Vec<Arg>, operand: NodeId, ty: Type) -> NodeId {
    let target = graph.intern(target);
    let args = Args::positional([Arg::Operand(0)].into_iter().chain(rest).collect());
    insert(graph, place, Op::Call(target), args, &[operand], ty)
}

/// Takes a node out; what read it reads `instead`.
fn remove(graph: &mut Graph, id: NodeId, instead: NodeId) {
    for user in graph.order().to_vec() {
        graph.operands_mut(user).iter_mut().filter(|operand| **operand == id).for_each(|operand| *operand = instead);
    }
    graph.control.retain(|edge| edge.before != id && edge.after != id);
    graph.set_order(nodes(graph, |other| other != id));
}

fn set_args(graph: &mut Graph, id: NodeId, args: Args) {
    let args = graph.intern_args(args);
    graph.node_mut(id).args = args;
}

/// All arguments, also those inside lists.
fn each_arg<'a>(args: &'a mut Args, found: &mut Vec<&'a mut Arg>) {
    fn inner<'a>(arg: &'a mut Arg, found: &mut Vec<&'a mut Arg>) {
        match arg {
            Arg::List(items) | Arg::Tuple(items) => items.iter_mut().for_each(|item| inner(item, found)),
            Arg::Apply(_, args) => each_arg(args, found),
            _ => found.push(arg),
        }
    }
    let keyword = args.keyword.iter_mut().map(|(_, arg)| arg);
    args.positional.iter_mut().chain(keyword).for_each(|arg| inner(arg, found));
}

/// Edits one argument of a random node, of those that `wanted` takes.
fn edit_arg(
    graph: &mut Graph,
    choices: &mut Choices<'_>,
    wanted: impl Fn(&Arg) -> bool,
    edit: impl Fn(&mut Arg, &mut Choices<'_>),
) -> Option<NodeId> {
    let has = |id: NodeId| {
        let mut args = graph.args_of(id).clone();
        let mut found = Vec::new();
        each_arg(&mut args, &mut found);
        found.iter().any(|arg| wanted(arg))
    };
    let id = choices.pick(&nodes(graph, has))?;
    let mut args = graph.args_of(id).clone();
    let mut found = Vec::new();
    each_arg(&mut args, &mut found);
    found.retain(|arg| wanted(arg));
    let at = choices.below(found.len());
    edit(found[at], choices);
    set_args(graph, id, args);
    Some(id)
}

// Edits.

fn swap_operands(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let pairs = |id: NodeId| {
        let operands = graph.operands(id);
        let alike = |&(a, b): &(usize, usize)| {
            operands[a] != operands[b] && graph.type_of(operands[a]) == graph.type_of(operands[b])
        };
        (0..operands.len()).flat_map(|a| (0..a).map(move |b| (a, b))).filter(alike).collect::<Vec<_>>()
    };
    let id = choices.pick(&nodes(graph, |id| !pairs(id).is_empty()))?;
    let (a, b) = choices.pick(&pairs(id))?;
    graph.operands_mut(id).swap(a, b);
    Some(id)
}

fn redirect_operand(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let id = choices.pick(&nodes(graph, |id| !graph.operands(id).is_empty()))?;
    let place = choices.below(graph.operands(id).len());
    let old = graph.operands(id)[place];
    let before = &graph.order()[..position(graph, id)?];
    let alike = |&other: &NodeId| other != old && graph.type_of(other) == graph.type_of(old);
    let new = choices.pick(&before.iter().copied().filter(alike).collect::<Vec<_>>())?;
    graph.operands_mut(id)[place] = new;
    Some(id)
}

fn change_integer(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    edit_arg(
        graph,
        choices,
        |arg| matches!(arg, Arg::Int(_)),
        |arg, choices| {
            if let Arg::Int(value) = arg {
                *value = value.saturating_add([1, -1, 2, -2, 4, -4][choices.below(6)]);
            }
        },
    )
}

fn change_float(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    edit_arg(graph, choices, |arg| matches!(arg, Arg::Float(_)), |arg, _| *arg = Arg::Float("0.75".into()))
}

/// Operators that take the same arguments and make the same type.
const ALIKE: &[&[&str]] = &[
    &["neg", "relu", "sin"],
    &["add", "mul", "sub"],
    &["mul_", "add_"],
    &["aten.clone.default", "aten.alias.default", "aten.neg.default"],
    &["aten.reshape.default", "aten.view.default"],
    &["aten.sym_size.int", "aten.sym_stride.int"],
    &["operator.mul", "operator.add", "operator.floordiv"],
];

fn change_target(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let others = |id: NodeId| ALIKE.iter().find(|targets| targets.contains(&graph.target_of(id)));
    let id = choices.pick(&nodes(graph, |id| is_call(graph, id) && others(id).is_some()))?;
    let target = choices.pick(others(id)?)?;
    if target == graph.target_of(id) {
        return None;
    }
    let target = graph.intern(target);
    graph.node_mut(id).op = Op::Call(target);
    Some(id)
}

/// Two calls of one target take each other's arguments: parts of a split, slices.
fn swap_arguments(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let a = choices.pick(&nodes(graph, |id| is_call(graph, id)))?;
    let like_a = |b: NodeId| {
        graph.node(b).op == graph.node(a).op
            && graph.node(b).args != graph.node(a).args
            && graph.operands(b).len() == graph.operands(a).len()
    };
    let b = choices.pick(&nodes(graph, like_a))?;
    let args = (graph.node(a).args, graph.node(b).args);
    graph.node_mut(a).args = args.1;
    graph.node_mut(b).args = args.0;
    Some(a)
}

const DTYPES: &[DType] = &[DType::F32, DType::Bf16, DType::I64, DType::U8, DType::F64, DType::F16];

/// An operand is cast to another dtype and back.
fn detour(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let id = choices.pick(&nodes(graph, |id| graph.operands(id).iter().any(|&id| graph.tensor(id).is_some())))?;
    let place = choices.below(graph.operands(id).len());
    let from = graph.operands(id)[place];
    let ty = graph.tensor(from)?.clone();
    let dtype = choices.pick(DTYPES)?;
    let other = Type::Tensor(TensorType { dtype, ..ty.clone() });
    let there = insert_call(graph, id, "cast", vec![Arg::DType(dtype)], from, other);
    let back = insert_call(graph, id, "cast", vec![Arg::DType(ty.dtype)], there, Type::Tensor(ty));
    graph.operands_mut(id)[place] = back;
    Some(id)
}

/// A node of an operand of its type, or that nobody reads, goes.
fn leave_out(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let unread = |id: NodeId| graph.order().iter().all(|&user| !graph.operands(user).contains(&id));
    let instead = |id: NodeId| graph.operands(id).iter().copied().find(|&x| graph.type_of(x) == graph.type_of(id));
    let can_go =
        |id: NodeId| !matches!(graph.node(id).op, Op::Input | Op::Output) && (instead(id).is_some() || unread(id));
    let id = choices.pick(&nodes(graph, can_go))?;
    let instead = instead(id).unwrap_or(id);
    remove(graph, id, instead);
    Some(id)
}

fn leave_out_wait(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let id = choices.pick(&nodes(graph, |id| graph.node(id).op == Op::Wait && !graph.waits_for_list(id)))?;
    let instead = graph.operands(id)[0];
    remove(graph, id, instead);
    Some(id)
}

fn swap_neighbours(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let order = graph.order().to_vec();
    let free = |at: &usize| {
        let (a, b) = (order[*at], order[at + 1]);
        let movable = |id: NodeId| !matches!(graph.node(id).op, Op::Input | Op::Output);
        let same_region = graph.node(a).region == graph.node(b).region;
        movable(a) && movable(b) && same_region && !graph.operands(b).contains(&a)
    };
    let at = choices.pick(&(0..order.len() - 1).filter(free).collect::<Vec<_>>())?;
    let mut order = order;
    order.swap(at, at + 1);
    let id = order[at];
    graph.set_order(order);
    Some(id)
}

/// A node moves to anywhere between its operands and its readers, in its region.
fn move_node(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let id = choices.pick(&nodes(graph, |id| !matches!(graph.node(id).op, Op::Input | Op::Output)))?;
    let rest = nodes(graph, |other| other != id);
    let first = rest.iter().rposition(|other| graph.operands(id).contains(other)).map_or(0, |at| at + 1);
    let last = rest.iter().position(|&user| graph.operands(user).contains(&id)).unwrap_or(rest.len() - 1);
    let same_region = |at: &usize| graph.node(rest[*at]).region == graph.node(id).region;
    let at = choices.pick(&(first..=last).filter(same_region).collect::<Vec<_>>())?;
    let mut order = rest;
    order.insert(at, id);
    graph.set_order(order);
    Some(id)
}

fn change_collective(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max, ReduceOp::Min, ReduceOp::Product];
    let id = choices.pick(&nodes(graph, |id| graph.collective(id).is_some()))?;
    let mut collective = graph.collective(id)?;
    match &mut collective.kind {
        CollectiveKind::ReduceScatter { op, .. } | CollectiveKind::AllReduce { op } => *op = OPS[choices.below(5)],
        CollectiveKind::Reduce { op, root } => {
            *op = OPS[choices.below(5)];
            *root = choices.below(2) as u32;
        }
        CollectiveKind::Broadcast { root } => *root = 1 - (*root).min(1),
        CollectiveKind::AllGather { dim } => *dim = 1 - (*dim).min(1),
        CollectiveKind::AllToAll | CollectiveKind::Permute => {
            collective.kind = CollectiveKind::AllReduce { op: ReduceOp::Sum };
            set_args(graph, id, Args::positional(vec![Arg::Operand(0)]));
        }
    }
    let changed = graph.collective(id) != Some(collective);
    graph.node_mut(id).op = Op::Collective(collective);
    changed.then_some(id)
}

fn change_group(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let id = choices.pick(&nodes(graph, |id| graph.collective(id).is_some()))?;
    let old: Collective = graph.collective(id)?;
    let size = graph.group(old.group).size;
    let groups = (0..graph.groups().len()).map(GroupId::from_index);
    let others: Vec<_> = groups.filter(|&group| group != old.group && graph.group(group).size == size).collect();
    let group = choices.pick(&others)?;
    graph.node_mut(id).op = Op::Collective(Collective { group, ..old });
    Some(id)
}

/// A node is done again right before the next one, and one reader takes the second result. A collective is waited for.
fn repeat_node(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let id = choices.pick(&nodes(graph, |id| !matches!(graph.node(id).op, Op::Input | Op::Output)))?;
    let next = *graph.order().get(position(graph, id)? + 1)?;
    let (op, args, ty) = (graph.node(id).op, graph.args_of(id).clone(), graph.type_of(id).clone());
    let operands = graph.operands(id).to_vec();
    let mut again = insert(graph, next, op, args, &operands, ty.clone());
    graph.node_mut(again).region = graph.node(id).region;
    if matches!(op, Op::Collective(collective) if !collective.coalesced) {
        let wait = insert(graph, next, Op::Wait, Args::positional(vec![Arg::Operand(0)]), &[again], ty);
        graph.node_mut(wait).region = graph.node(id).region;
        again = wait;
    }
    let readers = nodes(graph, |user| user != again && graph.operands(user).contains(&id));
    if let Some(reader) = choices.pick(&readers) {
        graph.operands_mut(reader).iter_mut().filter(|x| **x == id).for_each(|operand| *operand = again);
    }
    Some(id)
}

/// Something is overwritten before a random node.
fn add_write(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let place = choices.pick(&nodes(graph, |id| graph.node(id).op != Op::Input))?;
    let before = &graph.order()[..position(graph, place)?];
    let tensors = before.iter().copied().filter(|&id| graph.tensor(id).is_some()).collect::<Vec<_>>();
    let written = choices.pick(&tensors)?;
    let ty = graph.type_of(written).clone();
    let (target, rest) = [("mul_", vec![Arg::Int(3)]), ("aten.zero_.default", vec![])][choices.below(2)].clone();
    Some(insert_call(graph, place, target, rest, written, ty))
}

/// An operand is copied, or taken by another name.
fn add_copy(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    let id = choices.pick(&nodes(graph, |id| graph.operands(id).iter().any(|&id| graph.tensor(id).is_some())))?;
    let place = choices.below(graph.operands(id).len());
    let from = graph.operands(id)[place];
    let ty = Type::Tensor(graph.tensor(from)?.clone());
    let target = ["aten.clone.default", "aten.alias.default"][choices.below(2)];
    let copy = insert_call(graph, id, target, Vec::new(), from, ty);
    graph.operands_mut(id)[place] = copy;
    Some(id)
}

fn drop_edge(graph: &mut Graph, choices: &mut Choices<'_>) -> Option<NodeId> {
    if graph.control.is_empty() {
        return None;
    }
    let at = choices.below(graph.control.len());
    Some(graph.control.remove(at).after)
}
