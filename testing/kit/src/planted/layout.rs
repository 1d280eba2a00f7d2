//! Faults in how a bucket is packed and unpacked.

use super::edit::*;
use bucketeer::ir::{Arg, Dim, Graph, TensorType, Type};

pub fn swap_pack(graph: &mut Graph) -> bool {
    for pack in packs(graph) {
        if let Some((a, b)) = alike(graph, pack) {
            graph.operands_mut(pack).swap(a, b);
            return true;
        }
    }
    false
}

pub fn twice_in_pack(graph: &mut Graph) -> bool {
    for pack in packs(graph) {
        if let Some((a, b)) = alike(graph, pack) {
            let first = graph.operands(pack)[a];
            graph.operands_mut(pack)[b] = first;
            return true;
        }
    }
    false
}

pub fn swap_unpack(graph: &mut Graph) -> bool {
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
pub fn off_by_one(graph: &mut Graph) -> bool {
    read_elsewhere(graph, |start, _, _| start + 1)
}

/// Reads a member of a buffer from the start of another.
pub fn wrong_start(graph: &mut Graph) -> bool {
    read_elsewhere(graph, |start, size, total| if start + 2 * size <= total { start + size } else { start - size })
}

pub fn read_elsewhere(graph: &mut Graph, place: impl Fn(i64, i64, i64) -> i64) -> bool {
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
pub fn member_major_scatter(graph: &mut Graph) -> bool {
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
pub fn rank_order_of_gather(graph: &mut Graph) -> bool {
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
pub fn transposed_gather(graph: &mut Graph) -> bool {
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
