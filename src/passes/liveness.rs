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

/// Computes the peak of a graph.
#[must_use]
pub fn peak_live(graph: &Graph) -> PeakLive {
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
    let mut peak = PeakLive::default();
    let mut size = vec![0u64; graph.arena_len()];
    let mut seen = vec![false; graph.arena_len()];
    let mut dies = vec![Vec::new(); order.len()];
    let mut alive = 0u64;
    for (at, &id) in order.iter().enumerate() {
        let class = class_of(id);
        if !std::mem::replace(&mut seen[class], true) && !matches!(graph.node(id).op, Op::Input | Op::Output) {
            match bytes(graph, graph.type_of(id)) {
                Some(bytes) => size[class] = bytes,
                None => peak.unknown += 1,
            }
            alive = alive.saturating_add(size[class]);
            if size[class] > 0 {
                dies[last_use[class] as usize].push(class);
            }
        }
        peak.bytes = peak.bytes.max(alive);
        for class in std::mem::take(&mut dies[at]) {
            alive -= size[class];
        }
    }
    peak
}

/// Bytes of a value; what is not a tensor takes none.
fn bytes(graph: &Graph, ty: &Type) -> Option<u64> {
    match ty {
        Type::Tensor(tensor) => graph.likely_value(&tensor.bytes()?),
        Type::Tuple(parts) => parts.iter().try_fold(0u64, |sum, part| sum.checked_add(bytes(graph, part)?)),
        Type::SymInt(_) | Type::SymOther(_) | Type::Token => Some(0),
        Type::Unknown => None,
    }
}
