//! The normal form of a graph: what the native text can say.

use crate::ir::args::{Arg, Args};
use crate::ir::entities::NodeId;
use crate::ir::graph::Graph;
use crate::ir::ops::{CollectiveKind, Op};

/// Keywords that say what [`Collective`](crate::ir::Collective) or the first argument says already.
pub(super) const SAID: &[&str] = &[
    "self",
    "input",
    "inputs",
    "tensor",
    "reduce_op",
    "op",
    "group_size",
    "group_name",
    "group",
    "tag",
    "ranks",
    "dim",
    "gather_dim",
    "scatter_dim",
    "root",
    "src",
    "dst",
    "key",
    "members",
    "output_split_sizes",
    "input_split_sizes",
    "src_dst",
];

/// The arguments of a collective as the native text has them: the inputs, one or a list; for all-to-all and permute
/// then the lists that say how much goes where; and keywords for `out` and what else was given. Operand indexes
/// still count the node's operands.
fn normal_args(graph: &Graph, id: NodeId, kind: CollectiveKind, coalesced: bool) -> Args {
    let old = graph.args_of(id);
    let mut inputs = (0..graph.collective_inputs(id).len() as u32).map(Arg::Operand);
    let mut positional: Vec<Arg> =
        if coalesced { vec![Arg::List(inputs.collect())] } else { inputs.next().into_iter().collect() };
    let listed = |arg: &&Arg| matches!(arg, Arg::List(_) | Arg::Tuple(_) | Arg::None);
    match kind {
        CollectiveKind::AllToAll => {
            let splits = [old.at(1, "output_split_sizes"), old.at(2, "input_split_sizes")];
            positional.extend(splits.into_iter().flatten().filter(listed).cloned());
        }
        CollectiveKind::Permute => positional.extend(old.at(1, "src_dst").filter(listed).cloned()),
        CollectiveKind::AllGather { .. }
        | CollectiveKind::ReduceScatter { .. }
        | CollectiveKind::AllReduce { .. }
        | CollectiveKind::Broadcast { .. }
        | CollectiveKind::Reduce { .. } => {}
    }
    let keyword = old.keyword.iter().filter(|(key, _)| !SAID.contains(&&**key)).cloned().collect();
    Args { positional, keyword }
}

/// Numbers the holes of `args` in order of appearance and returns the operand of each; `operands` is what the holes
/// counted before.
pub(super) fn renumber(args: &mut Args, operands: &[NodeId]) -> Vec<NodeId> {
    fn visit(arg: &mut Arg, old: &[NodeId], new: &mut Vec<NodeId>) {
        match arg {
            Arg::Operand(index) => {
                if let Some(&operand) = old.get(*index as usize) {
                    *index = new.len() as u32;
                    new.push(operand);
                }
            }
            Arg::List(items) | Arg::Tuple(items) => items.iter_mut().for_each(|item| visit(item, old, new)),
            Arg::Apply(_, args) => visit_all(args, old, new),
            _ => {}
        }
    }
    fn visit_all(args: &mut Args, old: &[NodeId], new: &mut Vec<NodeId>) {
        args.positional.iter_mut().for_each(|arg| visit(arg, old, new));
        args.keyword.iter_mut().for_each(|(_, arg)| visit(arg, old, new));
    }
    let mut new = Vec::with_capacity(operands.len());
    visit_all(args, operands, &mut new);
    new
}

/// A collective's normal arguments and the operands they name; `None` for any other node.
pub(super) fn normal_collective(graph: &Graph, id: NodeId) -> Option<(Args, Vec<NodeId>)> {
    let collective = graph.collective(id)?;
    let mut args = normal_args(graph, id, collective.kind, collective.coalesced);
    let operands = renumber(&mut args, graph.operands(id));
    Some((args, operands))
}

/// Rewrites the arguments of every collective to the native form: group, reduce op, root and dimension are said by
/// [`Op::Collective`] alone, and an operand that only names the group is dropped.
pub fn normalize_collective_args(graph: &mut Graph) {
    for index in 0..graph.order().len() {
        let id = graph.order()[index];
        let Op::Collective(_) = graph.node(id).op else { continue };
        let Some((args, operands)) = normal_collective(graph, id) else { continue };
        if graph.args_of(id) != &args {
            let args = graph.intern_args(args);
            graph.node_mut(id).args = args;
        }
        if graph.operands(id) != operands {
            graph.set_operands(id, &operands);
        }
    }
}

/// Puts a well-formed graph into the form that reading its native text gives: [normal collective
/// arguments](normalize_collective_args) and regions numbered in order of appearance.
pub fn normalize(graph: &mut Graph) {
    normalize_collective_args(graph);
    super::print::renumber_regions(graph);
}
