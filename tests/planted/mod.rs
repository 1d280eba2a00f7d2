//! Faults to plant into merged graphs: each is a way in which a rewrite could be wrong.

#![allow(dead_code, reason = "each test file uses a part")]

use bucketeer::formats::fx::FxText;
use bucketeer::ir::optable::effects;
use bucketeer::ir::{
    Arg, Args, Collective, CollectiveKind, DType, Dim, Graph, NodeId, Op, ReduceOp, Strength, TensorType, Type, text,
};
use bucketeer::passes::Pipeline;
use std::path::Path;

/// A source graph with a right rewrite of it.
pub struct Pair {
    pub name: String,
    pub before: Graph,
    pub after: Graph,
}

/// One kind of fault.
pub struct Fault {
    pub name: &'static str,
    /// Whether some output, or memory that is left, has another value on some input.
    pub changes_values: bool,
    /// Plants it; false where the graph has no place for it.
    pub plant: fn(&mut Graph) -> bool,
}

const CONCAT: &str = "bucket-reduce-scatter{cap=100MiB},bucket-all-reduce{cap=100MiB},bucket-all-gather{cap=100MiB}";
const COALESCED: &str = "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-gather{cap=none,mode=coalesced}";
const NO_CAP: &str = "bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none},bucket-broadcast{cap=none}";

/// Effects of all kinds around collectives that merge.
const EFFECTS: &str = "graph effects {
  a = input f32[4]; b = input f32[4]; s = input f32[4]; t = input f32[4]
  c = input f32[4]; d = input f32[4]
  before = aten.add.Tensor(s, a) : f32[4]
  ga = all_gather(a, G0:2)
  wa = wait(ga)
  wrote = aten.copy_.default(s, b) : f32[4]
  late = aten.mul.Tensor(s, a) : f32[4]
  gb = all_gather(b, G0:2)
  wb = wait(gb)
  n = aten.neg.default(a) : f32[4]
  gn = all_gather(n, G0:2)
  wn = wait(gn)
  first = aten.rand_like.default(a) : f32[4]
  second = aten.rand_like.default(b) : f32[4]
  bc = broadcast(c, 0, G0:2)
  wbc = wait(bc)
  bd = broadcast(d, 0, G0:2)
  wbd = wait(bd)
  after(bc, wb)
  opaque_comm.barrier()
  gc = all_gather(c, H:2)
  wc = wait(gc)
  gs = all_gather(s, G0:2)
  ws = wait(gs)
  r = all_reduce(d, sum, H:2)
  wr = wait(r)
  cut = aten.sub.Tensor(wr, c) : f32[4]
  output(wa, wb, before, late, first, second, wbc, wbd, wc, ws, wr, cut, wn)
}";

/// Graphs with their rewrites.
pub fn pairs() -> Vec<Pair> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/fx");
    let mut pairs = Vec::new();
    for (file, pipeline) in [
        ("fsdp_l2_ws8_bf16.backward.txt", CONCAT),
        ("tiny_hsdp_rsar_bf16_rsfp32.backward.txt", CONCAT),
        ("tiny_fsdp_tp_bf16_rsfp32.backward.txt", CONCAT),
        ("tiny_ddp_bf16_arfp32.backward.txt", CONCAT),
        ("live_dynamic.backward.txt", NO_CAP),
        ("live.joint.txt", COALESCED),
    ] {
        let module = FxText::parse(super::files::read(&folder.join(file))).unwrap();
        pairs.push(rewritten(file, &module.graphs()[0], pipeline));
    }
    pairs.push(rewritten("effects", &text::parse(EFFECTS).unwrap(), NO_CAP));
    let Some(shared) = super::files::shared() else { return pairs };
    for (case, file) in [
        ("fsdp_l2_ws8_bf16", "backward.all_gather.default.cap100"),
        ("fsdp_l2_ws8_bf16", "forward.all_gather.custom_ops.cap100"),
        ("fsdp_uneven_l2_ws8_bf16", "backward.reduce_scatter.default.cap100"),
        ("hsdp_rsar_l2_ws8_bf16_rsfp32", "backward.all_reduce.default.cap100"),
    ] {
        let folder = shared.join("torch/graphs").join(case);
        let graph = |name: &str| FxText::parse(super::files::read(&folder.join(name))).unwrap().graphs()[0].clone();
        let name = format!("PyTorch {case} {file}");
        let stem = file.split('.').next().unwrap();
        let before = graph(&format!("{stem}.full.txt"));
        pairs.push(Pair { name, before, after: graph(&format!("{file}.merged.txt")) });
    }
    pairs
}

fn rewritten(name: &str, before: &Graph, pipeline: &str) -> Pair {
    let mut after = before.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    Pair { name: name.to_owned(), before: before.clone(), after }
}

fn calls(graph: &Graph, base: &str) -> Vec<NodeId> {
    let is = |id: &&NodeId| {
        let target = graph.target_of(**id);
        matches!(graph.node(**id).op, Op::Call(_)) && (target == base || target.split('.').nth(1) == Some(base))
    };
    graph.order().iter().filter(is).copied().collect()
}

fn launches(graph: &Graph, wanted: impl Fn(Collective) -> bool) -> Vec<NodeId> {
    graph.order().iter().copied().filter(|&id| graph.collective(id).is_some_and(&wanted)).collect()
}

fn waits(graph: &Graph) -> Vec<NodeId> {
    graph.order().iter().copied().filter(|&id| graph.node(id).op == Op::Wait).collect()
}

fn users(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    graph.order().iter().copied().filter(|&user| graph.operands(user).contains(&id)).collect()
}

fn output(graph: &Graph) -> NodeId {
    *graph.order().last().unwrap()
}

/// Makes a call right before `place`.
fn insert(graph: &mut Graph, place: NodeId, target: &str, args: Args, operands: &[NodeId], ty: Type) -> NodeId {
    let target = graph.intern(target);
    insert_op(graph, place, Op::Call(target), args, operands, ty)
}

fn insert_op(graph: &mut Graph, place: NodeId, op: Op, args: Args, operands: &[NodeId], ty: Type) -> NodeId {
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
fn replace_uses(graph: &mut Graph, old: NodeId, new: NodeId, except: &[NodeId]) {
    for id in graph.order().to_vec() {
        if id != new && !except.contains(&id) {
            for operand in graph.operands_mut(id).iter_mut().filter(|operand| **operand == old) {
                *operand = new;
            }
        }
    }
}

fn next_of(graph: &Graph, id: NodeId) -> NodeId {
    let at = graph.order().iter().position(|&node| node == id).unwrap();
    graph.order()[at + 1]
}

fn move_before(graph: &mut Graph, id: NodeId, place: NodeId) {
    let mut order: Vec<NodeId> = graph.order().iter().copied().filter(|&node| node != id).collect();
    let at = order.iter().position(|&node| node == place).unwrap();
    order.insert(at, id);
    graph.set_order(order);
}

fn is_before(graph: &Graph, a: NodeId, b: NodeId) -> bool {
    let positions = graph.positions();
    positions[a.index()] < positions[b.index()]
}

fn set_args(graph: &mut Graph, id: NodeId, args: Args) {
    let args = graph.intern_args(args);
    graph.node_mut(id).args = args;
}

fn with_int(graph: &mut Graph, id: NodeId, place: usize, value: i64) {
    let mut args = graph.args_of(id).clone();
    args.positional[place] = Arg::Int(value);
    set_args(graph, id, args);
}

fn operand() -> Arg {
    Arg::Operand(0)
}

fn positional(args: Vec<Arg>) -> Args {
    Args::positional(args)
}

/// The tensor type with one dimension of so many elements.
fn flat(ty: &TensorType, elements: i64) -> Type {
    Type::Tensor(ty.with_shape([Dim::Const(elements as u64)].into_iter().collect()))
}

fn count(graph: &Graph, id: NodeId) -> Option<i64> {
    graph.tensor(id)?.elements()?.as_const().and_then(|count| i64::try_from(count).ok())
}

/// Two operands of one node that differ and have one type.
fn alike(graph: &Graph, id: NodeId) -> Option<(usize, usize)> {
    let operands = graph.operands(id);
    let known = |id: NodeId| graph.tensor(id).is_some();
    (0..operands.len()).flat_map(|a| (0..a).map(move |b| (b, a))).find(|&(a, b)| {
        operands[a] != operands[b] && known(operands[a]) && graph.type_of(operands[a]) == graph.type_of(operands[b])
    })
}

/// The launches that were packed: what they send is a `cat`, or a view or copy of one.
fn packs(graph: &Graph) -> Vec<NodeId> {
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
fn unpacks(graph: &Graph) -> Vec<NodeId> {
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

fn swap_pack(graph: &mut Graph) -> bool {
    for pack in packs(graph) {
        if let Some((a, b)) = alike(graph, pack) {
            graph.operands_mut(pack).swap(a, b);
            return true;
        }
    }
    false
}

fn twice_in_pack(graph: &mut Graph) -> bool {
    for pack in packs(graph) {
        if let Some((a, b)) = alike(graph, pack) {
            let first = graph.operands(pack)[a];
            graph.operands_mut(pack)[b] = first;
            return true;
        }
    }
    false
}

fn swap_unpack(graph: &mut Graph) -> bool {
    for tuple in unpacks(graph).into_iter().chain(launches(graph, |c| c.coalesced)) {
        let items = users(graph, tuple);
        for (&a, &b) in items.iter().flat_map(|a| items.iter().map(move |b| (a, b))) {
            if a != b && graph.type_of(a) == graph.type_of(b) && graph.node(a).args != graph.node(b).args {
                let args = (graph.node(a).args, graph.node(b).args);
                graph.node_mut(a).args = args.1;
                graph.node_mut(b).args = args.0;
                return true;
            }
        }
    }
    false
}

/// Reads a member of a buffer of one dimension one element late.
fn off_by_one(graph: &mut Graph) -> bool {
    read_elsewhere(graph, |start, _, _| start + 1)
}

/// Reads a member of a buffer from the start of another.
fn wrong_start(graph: &mut Graph) -> bool {
    read_elsewhere(graph, |start, size, total| if start + 2 * size <= total { start + size } else { start - size })
}

fn read_elsewhere(graph: &mut Graph, place: impl Fn(i64, i64, i64) -> i64) -> bool {
    for split in unpacks(graph) {
        let buffer = graph.operands(split)[0];
        let (Some(Arg::List(sizes)), Some(total)) = (graph.args_of(split).at(1, "split_sizes"), count(graph, buffer))
        else {
            continue;
        };
        let sizes: Option<Vec<i64>> = sizes.iter().map(Arg::as_int).collect();
        let (Some(sizes), 1) = (sizes, graph.tensor(buffer).unwrap().shape.len()) else { continue };
        for item in users(graph, split) {
            let index = graph.args_of(item).positional[1].as_int().unwrap() as usize;
            let start: i64 = sizes[..index].iter().sum();
            let new = place(start, sizes[index], total);
            if new < 0 || new == start || new + sizes[index] > total {
                continue;
            }
            let ty = graph.type_of(item).clone();
            let args = positional(vec![operand(), Arg::Int(0), Arg::Int(new), Arg::Int(new + sizes[index])]);
            let part = insert(graph, item, "aten.slice.Tensor", args, &[buffer], ty);
            replace_uses(graph, item, part, &[]);
            return true;
        }
    }
    false
}

/// Packs a scatter's members end to end, not chunk by chunk.
fn member_major_scatter(graph: &mut Graph) -> bool {
    for pack in packs(graph) {
        if graph.args_of(pack).at(1, "dim") != Some(&Arg::Int(1)) || graph.operands(pack).len() < 2 {
            continue;
        }
        let (Some(total), Some(ty)) = (count(graph, pack), graph.tensor(pack).cloned()) else { continue };
        let mut rows = Vec::new();
        for table in graph.operands(pack).to_vec() {
            let Some(elements) = count(graph, table) else { return false };
            let args = positional(vec![operand(), Arg::List(vec![Arg::Int(elements)])]);
            rows.push(insert(graph, pack, "aten.reshape.default", args, &[table], flat(&ty, elements)));
        }
        let list = Arg::List((0..rows.len() as u32).map(Arg::Operand).collect());
        let place = next_of(graph, pack);
        let row = insert(graph, place, "aten.cat.default", positional(vec![list]), &rows, flat(&ty, total));
        for user in users(graph, pack) {
            replace_uses(graph, user, row, &[]);
        }
        return true;
    }
    false
}

/// Takes a gather's member as a run of the buffer, not as columns of the table of ranks.
fn rank_order_of_gather(graph: &mut Graph) -> bool {
    for split in unpacks(graph) {
        let table = graph.operands(split)[0];
        let (Some(ty), Some(total)) = (graph.tensor(table).cloned(), count(graph, table)) else { continue };
        if ty.shape.len() != 2 {
            continue;
        }
        for item in users(graph, split) {
            let (Some(elements), shape) = (count(graph, item), graph.tensor(item).unwrap().shape.clone()) else {
                continue;
            };
            if elements == total {
                continue;
            }
            let row = positional(vec![operand(), Arg::List(vec![Arg::Int(-1)])]);
            let row = insert(graph, item, "aten.view.default", row, &[table], flat(&ty, total));
            let part = positional(vec![operand(), Arg::Int(0), Arg::Int(0), Arg::Int(elements)]);
            let part = insert(graph, item, "aten.slice.Tensor", part, &[row], flat(&ty, elements));
            let sizes = shape.iter().map(|dim| Arg::Int(dim.as_const().unwrap() as i64)).collect();
            let back = positional(vec![operand(), Arg::List(sizes)]);
            let back = insert(graph, item, "aten.view.default", back, &[part], Type::Tensor(ty.with_shape(shape)));
            replace_uses(graph, item, back, &[]);
            return true;
        }
    }
    false
}

/// Cuts the gathered table into as many columns as ranks, and transposes.
fn transposed_gather(graph: &mut Graph) -> bool {
    for split in unpacks(graph) {
        let table = graph.operands(split)[0];
        let Some(ty) = graph.tensor(table).cloned() else { continue };
        let [Dim::Const(rows), Dim::Const(columns)] = ty.shape[..] else { continue };
        let buffer = graph.operands(table)[0];
        let turned: TensorType = ty.with_shape([Dim::Const(columns), Dim::Const(rows)].into_iter().collect());
        let sizes = Arg::List(vec![Arg::Int(columns as i64), Arg::Int(rows as i64)]);
        let view = insert(
            graph,
            split,
            "aten.view.default",
            positional(vec![operand(), sizes]),
            &[buffer],
            Type::Tensor(turned),
        );
        let order = Arg::List(vec![Arg::Int(1), Arg::Int(0)]);
        let ty = Type::Tensor(TensorType { strides: None, ..ty });
        let turned = insert(graph, split, "aten.permute.default", positional(vec![operand(), order]), &[view], ty);
        graph.operands_mut(split)[0] = turned;
        return true;
    }
    false
}

fn drop_wait(graph: &mut Graph) -> bool {
    let Some(&wait) = waits(graph).last() else { return false };
    let started = graph.operands(wait)[0];
    replace_uses(graph, wait, started, &[]);
    graph.set_order(graph.order().iter().copied().filter(|&id| id != wait).collect());
    true
}

/// A reader takes the result directly, and the wait comes after it.
fn wait_after_read(graph: &mut Graph) -> bool {
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

fn change_collective(graph: &mut Graph, change: impl Fn(&Graph, &mut Collective) -> bool) -> bool {
    for id in launches(graph, |_| true).into_iter().rev() {
        let mut collective = graph.collective(id).unwrap();
        if change(graph, &mut collective) {
            graph.node_mut(id).op = Op::Collective(collective);
            return true;
        }
    }
    false
}

fn other_group(graph: &mut Graph) -> bool {
    let size = launches(graph, |_| true).first().and_then(|&id| graph.group(graph.collective(id).unwrap().group).size);
    let other = graph.intern_group("planted", size);
    change_collective(graph, |_, collective| {
        let before = collective.group;
        collective.group = other;
        before != other
    })
}

fn other_reduction(graph: &mut Graph) -> bool {
    let other = |op: &mut ReduceOp| *op = if *op == ReduceOp::Sum { ReduceOp::Avg } else { ReduceOp::Sum };
    change_collective(graph, |_, collective| match &mut collective.kind {
        CollectiveKind::ReduceScatter { op, .. } | CollectiveKind::AllReduce { op } => {
            other(op);
            true
        }
        _ => false,
    })
}

fn other_root(graph: &mut Graph) -> bool {
    change_collective(graph, |_, collective| match &mut collective.kind {
        CollectiveKind::Broadcast { root } => {
            *root += 1;
            true
        }
        _ => false,
    })
}

/// Reduces in bf16 what was reduced in f32, and converts the result back.
fn cast_across_sum(graph: &mut Graph) -> bool {
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
fn double_rounding(graph: &mut Graph) -> bool {
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

fn stale_read(graph: &mut Graph) -> bool {
    let Some(&write) = calls(graph, "copy_").first() else { return false };
    let written = graph.operands(write)[0];
    let reader =
        users(graph, written).into_iter().find(|&id| is_before(graph, write, id) && graph.node(id).op != Op::Output);
    let Some(reader) = reader.filter(|&id| matches!(graph.node(id).op, Op::Call(_))) else { return false };
    move_before(graph, reader, write);
    true
}

fn dropped_write(graph: &mut Graph) -> bool {
    let Some(&write) = calls(graph, "copy_").first() else { return false };
    let written = graph.operands(write)[0];
    replace_uses(graph, write, written, &[]);
    graph.set_order(graph.order().iter().copied().filter(|&id| id != write).collect());
    true
}

fn extra_write(graph: &mut Graph) -> bool {
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
fn drop_launch(graph: &mut Graph) -> bool {
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
fn launch_for_another(graph: &mut Graph) -> bool {
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

fn second_launch(graph: &mut Graph) -> bool {
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
fn foreign_launch(graph: &mut Graph) -> bool {
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
fn leaking_pad(graph: &mut Graph) -> bool {
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
fn escaping_view(graph: &mut Graph) -> bool {
    let split_items: Vec<NodeId> = unpacks(graph).into_iter().flat_map(|split| users(graph, split)).collect();
    let copies: Vec<NodeId> =
        calls(graph, "clone").into_iter().filter(|&id| split_items.contains(&graph.operands(id)[0])).collect();
    for &copy in &copies {
        let from = graph.operands(copy)[0];
        replace_uses(graph, copy, from, &[]);
    }
    copies.len() > 1
}

/// An output is handed out twice in one memory: the second was a tensor of its own.
fn input_as_output(graph: &mut Graph) -> bool {
    let id = output(graph);
    for (place, operand) in graph.operands(id).to_vec().into_iter().enumerate() {
        if graph.target_of(operand) == "aten.clone.default"
            && graph.type_of(operand) == graph.type_of(graph.operands(operand)[0])
        {
            let from = graph.operands(operand)[0];
            graph.operands_mut(id)[place] = from;
            return graph.node(from).op == Op::Input;
        }
    }
    false
}

fn lost_edge(graph: &mut Graph) -> bool {
    let before = graph.control.len();
    graph.control.retain(|edge| edge.strength == Strength::Soft);
    graph.control.len() < before
}

fn broken_edge(graph: &mut Graph) -> bool {
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

fn swapped_launches(graph: &mut Graph) -> bool {
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

fn across_fence(graph: &mut Graph) -> bool {
    let Some(&fence) = calls(graph, "barrier").first() else { return false };
    let launch = launches(graph, |_| true).into_iter().find(|&id| {
        is_before(graph, fence, id) && graph.operands(id).iter().all(|&operand| is_before(graph, operand, fence))
    });
    launch.is_some_and(|id| {
        move_before(graph, id, fence);
        true
    })
}

fn dropped_fence(graph: &mut Graph) -> bool {
    let Some(&fence) = calls(graph, "barrier").first() else { return false };
    graph.set_order(graph.order().iter().copied().filter(|&id| id != fence).collect());
    true
}

fn swapped_draws(graph: &mut Graph) -> bool {
    let [first, second, ..] = calls(graph, "rand_like")[..] else { return false };
    move_before(graph, second, first);
    true
}

/// Two outputs of one type change places.
fn swapped_outputs(graph: &mut Graph) -> bool {
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

fn lost_output(graph: &mut Graph) -> bool {
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
fn wrong_slot(graph: &mut Graph) -> bool {
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

fn other_constant(graph: &mut Graph) -> bool {
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

fn swapped_operands(graph: &mut Graph) -> bool {
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
fn wrong_run_time_size(graph: &mut Graph) -> bool {
    let splits = unpacks(graph);
    for split in splits {
        if graph.operands(split).len() > 2 {
            graph.operands_mut(split)[1..].reverse();
            return true;
        }
    }
    false
}

fn undivided_size(graph: &mut Graph) -> bool {
    let Some(&id) = calls(graph, "operator.floordiv").last() else { return false };
    let place = graph.args_of(id).positional.iter().position(|arg| arg.as_int().is_some());
    place.is_some_and(|place| {
        with_int(graph, id, place, 1);
        true
    })
}

/// The member of another bucket of that type.
fn other_buckets_member(graph: &mut Graph) -> bool {
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
fn stale_member(graph: &mut Graph) -> bool {
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
fn unwritten_buffer(graph: &mut Graph) -> bool {
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
fn write_in_flight(graph: &mut Graph) -> bool {
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

/// All kinds.
pub const FAULTS: &[Fault] = &[
    Fault { name: "members swapped in the pack", changes_values: true, plant: swap_pack },
    Fault { name: "one member packed twice, another not", changes_values: true, plant: twice_in_pack },
    Fault { name: "members swapped in the unpack", changes_values: true, plant: swap_unpack },
    Fault { name: "member read one element late", changes_values: true, plant: off_by_one },
    Fault { name: "member read from another's start", changes_values: true, plant: wrong_start },
    Fault { name: "member of another bucket", changes_values: true, plant: other_buckets_member },
    Fault { name: "scatter packed member by member", changes_values: true, plant: member_major_scatter },
    Fault { name: "gather unpacked member by member", changes_values: true, plant: rank_order_of_gather },
    Fault { name: "gathered table transposed", changes_values: true, plant: transposed_gather },
    Fault { name: "wait dropped", changes_values: false, plant: drop_wait },
    Fault { name: "wait after a read", changes_values: false, plant: wait_after_read },
    Fault { name: "result written while in flight", changes_values: true, plant: write_in_flight },
    Fault { name: "group swapped", changes_values: false, plant: other_group },
    Fault { name: "reduction changed", changes_values: true, plant: other_reduction },
    Fault { name: "root of a broadcast changed", changes_values: true, plant: other_root },
    Fault { name: "rounding moved across a sum", changes_values: true, plant: cast_across_sum },
    Fault { name: "rounded twice", changes_values: true, plant: double_rounding },
    Fault { name: "stale read after an in-place write", changes_values: true, plant: stale_read },
    Fault { name: "in-place write dropped", changes_values: true, plant: dropped_write },
    Fault { name: "in-place write added", changes_values: true, plant: extra_write },
    Fault { name: "collective dropped, input in its place", changes_values: true, plant: drop_launch },
    Fault {
        name: "collective dropped, another's result in its place",
        changes_values: true,
        plant: launch_for_another,
    },
    Fault { name: "collective launched twice", changes_values: false, plant: second_launch },
    Fault { name: "collective that nobody asked for", changes_values: false, plant: foreign_launch },
    Fault { name: "pad leaking", changes_values: true, plant: leaking_pad },
    Fault { name: "view of a bucket escaping as an output", changes_values: false, plant: escaping_view },
    Fault { name: "order edge dropped", changes_values: false, plant: lost_edge },
    Fault { name: "order edge broken", changes_values: false, plant: broken_edge },
    Fault { name: "launches of a group swapped", changes_values: false, plant: swapped_launches },
    Fault { name: "collective moved across a fence", changes_values: false, plant: across_fence },
    Fault { name: "fence dropped", changes_values: false, plant: dropped_fence },
    Fault { name: "random draws swapped", changes_values: true, plant: swapped_draws },
    Fault { name: "outputs swapped", changes_values: true, plant: swapped_outputs },
    Fault { name: "output lost", changes_values: true, plant: lost_output },
    Fault { name: "input of a gather not at a rank's place", changes_values: true, plant: wrong_slot },
    Fault { name: "constant changed", changes_values: true, plant: other_constant },
    Fault { name: "operands swapped", changes_values: true, plant: swapped_operands },
    Fault { name: "run-time sizes in another order", changes_values: true, plant: wrong_run_time_size },
    Fault { name: "run-time size not divided", changes_values: true, plant: undivided_size },
    Fault { name: "member packed before its last step", changes_values: true, plant: stale_member },
    Fault { name: "memory that was never written", changes_values: true, plant: unwritten_buffer },
];
