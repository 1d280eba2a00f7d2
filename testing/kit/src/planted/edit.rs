//! Finding places in a graph, and changing it.

use bucketeer::ir::{Arg, Args, Collective, Dim, Graph, NodeId, Op, TensorType, Type};

pub fn calls(graph: &Graph, base: &str) -> Vec<NodeId> {
    let is = |id: &&NodeId| {
        let target = graph.target_of(**id);
        matches!(graph.node(**id).op, Op::Call(_)) && (target == base || target.split('.').nth(1) == Some(base))
    };
    graph.order().iter().filter(is).copied().collect()
}

pub fn launches(graph: &Graph, wanted: impl Fn(Collective) -> bool) -> Vec<NodeId> {
    graph.order().iter().copied().filter(|&id| graph.collective(id).is_some_and(&wanted)).collect()
}

pub fn waits(graph: &Graph) -> Vec<NodeId> {
    graph.order().iter().copied().filter(|&id| graph.node(id).op == Op::Wait).collect()
}

pub fn users(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    graph.order().iter().copied().filter(|&user| graph.operands(user).contains(&id)).collect()
}

pub fn output(graph: &Graph) -> NodeId {
    *graph.order().last().unwrap()
}

/// Makes a call right before `place`.
pub fn insert(graph: &mut Graph, place: NodeId, target: &str, args: Args, operands: &[NodeId], ty: Type) -> NodeId {
    let target = graph.intern(target);
    insert_op(graph, place, Op::Call(target), args, operands, ty)
}

pub fn insert_op(graph: &mut Graph, place: NodeId, op: Op, args: Args, operands: &[NodeId], ty: Type) -> NodeId {
    let name = graph.fresh_name("planted", &mut 0);
    let (ty, args) = (graph.intern_type(ty), graph.intern_args(args));
    let id = graph.create(op, name, ty, args, operands);
    let mut order = graph.order().to_vec();
    let at = order.iter().position(|&node| node == place).unwrap();
    order.insert(at, id);
    graph.set_order(order);
    id
}

/// Has all nodes but `except` use `new` in place of `old`.
pub fn replace_uses(graph: &mut Graph, old: NodeId, new: NodeId, except: &[NodeId]) {
    for id in graph.order().to_vec() {
        if id != new && !except.contains(&id) {
            for operand in graph.operands_mut(id).iter_mut().filter(|operand| **operand == old) {
                *operand = new;
            }
        }
    }
}

pub fn next_of(graph: &Graph, id: NodeId) -> NodeId {
    let at = graph.order().iter().position(|&node| node == id).unwrap();
    graph.order()[at + 1]
}

pub fn move_before(graph: &mut Graph, id: NodeId, place: NodeId) {
    let mut order: Vec<NodeId> = graph.order().iter().copied().filter(|&node| node != id).collect();
    let at = order.iter().position(|&node| node == place).unwrap();
    order.insert(at, id);
    graph.set_order(order);
}

pub fn is_before(graph: &Graph, a: NodeId, b: NodeId) -> bool {
    let positions = graph.positions();
    positions[a.index()] < positions[b.index()]
}

pub fn set_args(graph: &mut Graph, id: NodeId, args: Args) {
    let args = graph.intern_args(args);
    graph.node_mut(id).args = args;
}

pub fn with_int(graph: &mut Graph, id: NodeId, place: usize, value: i64) {
    let mut args = graph.args_of(id).clone();
    args.positional[place] = Arg::Int(value);
    set_args(graph, id, args);
}

pub fn operand() -> Arg {
    Arg::Operand(0)
}

pub fn positional(args: Vec<Arg>) -> Args {
    Args::positional(args)
}

/// The tensor type with one dimension of so many elements.
pub fn flat(ty: &TensorType, elements: i64) -> Type {
    Type::Tensor(ty.with_shape([Dim::Const(elements as u64)].into_iter().collect()))
}

pub fn count(graph: &Graph, id: NodeId) -> Option<i64> {
    graph.tensor(id)?.elements()?.as_const().and_then(|count| i64::try_from(count).ok())
}

/// Two operands of one node that differ and have one type.
pub fn alike(graph: &Graph, id: NodeId) -> Option<(usize, usize)> {
    let operands = graph.operands(id);
    let known = |id: NodeId| graph.tensor(id).is_some();
    (0..operands.len()).flat_map(|a| (0..a).map(move |b| (b, a))).find(|&(a, b)| {
        operands[a] != operands[b] && known(operands[a]) && graph.type_of(operands[a]) == graph.type_of(operands[b])
    })
}

/// The launches that were packed: what they send is a `cat`, or a view or copy of one.
pub fn packs(graph: &Graph) -> Vec<NodeId> {
    let mut found = Vec::new();
    for id in launches(graph, |_| true) {
        let mut at = graph.collective_inputs(id)[0];
        loop {
            match graph.target_of(at) {
                "aten.cat.default" => {
                    found.push(at);
                    break;
                }
                "aten.view.default" | "aten.reshape.default" => at = graph.operands(at)[0],
                "aten.copy_.default" => at = graph.operands(at)[1],
                _ => break,
            }
        }
    }
    found
}

/// Splits of what a launch made.
pub fn unpacks(graph: &Graph) -> Vec<NodeId> {
    let splits = calls(graph, "split_with_sizes");
    let mut found = Vec::new();
    for split in splits {
        let mut at = graph.operands(split)[0];
        while matches!(graph.target_of(at), "aten.view.default" | "aten.reshape.default") {
            at = graph.operands(at)[0];
        }
        if graph.node(at).op == Op::Wait {
            found.push(split);
        }
    }
    found
}
