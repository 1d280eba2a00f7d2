//! How many bytes are alive at each place of the program.
//!
//! A storage lives as [`bucketeer::passes::liveness`] has it, from the node that makes it to the last node that touches it,
//! and the largest number here is the peak there; a property test says so. Cost: linear.

use bucketeer::ir::optable::element_index;
use bucketeer::ir::{Dependencies, Graph, Op, Type};

/// Bytes alive by program order, inputs not counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Live {
    /// By place in the program: bytes alive while the node there runs, at most [`u64::MAX`].
    pub bytes: Vec<u64>,
    /// Values whose size is not known; they count as nothing.
    pub unknown: usize,
}

impl Live {
    /// Follows a graph that [`verify`](bucketeer::ir::verify()) accepts, from its dependencies.
    #[must_use]
    pub fn of(graph: &Graph, dependencies: &Dependencies) -> Self {
        let class = storages(graph, dependencies);
        let order = graph.order();
        let mut last_use = vec![0usize; graph.arena_len()];
        for (at, &id) in order.iter().enumerate() {
            last_use[class[id.index()]] = at;
            graph.operands(id).iter().for_each(|operand| last_use[class[operand.index()]] = at);
        }
        let mut live = Self { bytes: Vec::with_capacity(order.len()), unknown: 0 };
        let mut seen = vec![false; graph.arena_len()];
        // By place: bytes whose last use is there. Sums of sizes may be more than 2^64.
        let mut die = vec![0u128; order.len()];
        let mut alive = 0u128;
        for (at, &id) in order.iter().enumerate() {
            let class = class[id.index()];
            if !std::mem::replace(&mut seen[class], true) && !matches!(graph.node(id).op, Op::Input | Op::Output) {
                let size = bytes(graph, graph.type_of(id)).unwrap_or_else(|| {
                    live.unknown += 1;
                    0
                });
                alive += u128::from(size);
                die[last_use[class]] += u128::from(size);
            }
            live.bytes.push(u64::try_from(alive).unwrap_or(u64::MAX));
            alive -= die[at];
        }
        live
    }
}

/// By arena index: a number that is equal for values in one storage. All tensors of a list are one, for one launch makes
/// them and one wait makes them valid.
fn storages(graph: &Graph, dependencies: &Dependencies) -> Vec<usize> {
    let mut parent: Vec<usize> = (0..graph.arena_len()).collect();
    let mut join = |a: usize, b: usize| {
        let (a, b) = (find(&mut parent, a), find(&mut parent, b));
        parent[a.max(b)] = a.min(b);
    };
    for &id in graph.order() {
        join(dependencies.alias_class(id) as usize, id.index());
        let takes = element_index(graph, id).is_some();
        let parts = if takes || graph.waits_for_list(id) { graph.operands(id) } else { &[] };
        parts.iter().for_each(|part| join(part.index(), id.index()));
    }
    (0..graph.arena_len()).map(|at| find(&mut parent, at)).collect()
}

/// The first of a set, of sets that point at their first.
fn find(parent: &mut [usize], mut at: usize) -> usize {
    while parent[at] != at {
        parent[at] = parent[parent[at]];
        at = parent[at];
    }
    at
}

/// Bytes of a value; what is no tensor takes none. `None` if not known.
fn bytes(graph: &Graph, ty: &Type) -> Option<u64> {
    match ty {
        Type::Tensor(tensor) => graph.likely_value(&tensor.bytes()?),
        Type::Tuple(parts) => parts.iter().try_fold(0u64, |sum, part| sum.checked_add(bytes(graph, part)?)),
        Type::SymInt(_) | Type::SymOther(_) | Type::Token => Some(0),
        Type::Unknown => None,
    }
}
