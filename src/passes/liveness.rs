//! How many bytes are alive at once, by program order.
//!
//! A storage (an alias class) lives from the node that makes it to the last node that touches it; outputs live to the
//! end. Inputs are the caller's and not counted. A collective's buffers live from launch to wait because its wait names
//! them. Cost: linear.

use crate::ir::{EffectTable, Graph, Memory, NodeId, Op, Type};

/// The largest number of bytes alive at once, inputs not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakLive {
    /// Bytes at the peak.
    pub bytes: u64,
    /// Values whose size is not known; they count as nothing.
    pub unknown: usize,
}

/// Bytes alive by program order, inputs not counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LiveBytes {
    /// By place in the program: bytes alive while the node there runs, at most [`u64::MAX`].
    pub bytes: Vec<u64>,
    /// Values whose size is not known; they count as nothing.
    pub unknown: usize,
}

/// Computes the peak of a graph.
#[must_use]
pub fn peak_live(graph: &Graph) -> PeakLive {
    let LiveBytes { bytes, unknown } = live_bytes(graph);
    PeakLive { bytes: bytes.into_iter().max().unwrap_or(0), unknown }
}

/// Follows what is alive through a graph.
#[must_use]
pub fn live_bytes(graph: &Graph) -> LiveBytes {
    let memory = Memory::with_whole_lists(graph, &EffectTable::of(graph));
    let class_of = |id: NodeId| memory.class[id.index()] as usize;
    let order = graph.order();
    let mut last_use = vec![0u32; graph.arena_len()];
    for (at, &id) in order.iter().enumerate() {
        last_use[class_of(id)] = at as u32;
        for &operand in graph.operands(id) {
            last_use[class_of(operand)] = at as u32;
        }
    }
    let mut live = LiveBytes { bytes: Vec::with_capacity(order.len()), unknown: 0 };
    let mut seen = vec![false; graph.arena_len()];
    // By place: bytes whose last use is there. Sums of sizes may be more than 2^64.
    let mut dies = vec![0u128; order.len()];
    let mut alive = 0u128;
    for (at, &id) in order.iter().enumerate() {
        let class = class_of(id);
        if !std::mem::replace(&mut seen[class], true) && !matches!(graph.node(id).op, Op::Input | Op::Output) {
            let bytes = value_bytes(graph, id);
            live.unknown += usize::from(bytes.is_none());
            let bytes = u128::from(bytes.unwrap_or(0));
            alive += bytes;
            dies[last_use[class] as usize] += bytes;
        }
        live.bytes.push(u64::try_from(alive).unwrap_or(u64::MAX));
        alive -= dies[at];
    }
    live
}

/// Bytes of a value, symbols by their hints; what is not a tensor takes none.
pub(super) fn value_bytes(graph: &Graph, id: NodeId) -> Option<u64> {
    fn of(graph: &Graph, ty: &Type) -> Option<u64> {
        match ty {
            Type::Tensor(tensor) => graph.likely_value(&tensor.bytes()?),
            Type::Tuple(parts) => parts.iter().try_fold(0u64, |sum, part| sum.checked_add(of(graph, part)?)),
            Type::SymInt(_) | Type::SymOther(_) | Type::Token => Some(0),
            Type::Unknown => None,
        }
    }
    of(graph, graph.type_of(id))
}
