//! Nodes that take an element of a tuple, as the checker reads them: passes ask the table of operators.

use crate::ir::operators::split_target;
use crate::ir::{Arg, Graph, NodeId, Op, Type};

/// Which element of a tuple a node takes, counted from the front; `None` where it is no such node, or no number says.
pub(super) fn element_index(graph: &Graph, id: NodeId) -> Option<u32> {
    let Op::Call(target) = graph.node(id).op else { return None };
    let (_, operator, _) = split_target(graph.text(target));
    if !matches!(operator, "getitem" | "item" | "get_tuple_element") {
        return None;
    }
    let index = graph.args_of(id).at(1, "index").and_then(Arg::as_int)?;
    let tuple = *graph.operands(id).first()?;
    let from_front = match graph.type_of(tuple) {
        Type::Tuple(parts) if index < 0 => index.checked_add(i64::try_from(parts.len()).ok()?)?,
        _ => index,
    };
    u32::try_from(from_front).ok()
}
