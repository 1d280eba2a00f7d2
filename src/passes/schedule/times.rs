//! How long each call of a graph computes, by its shapes.
//!
//! A call takes as long as its floating-point operations at the rate that is achieved, or as its bytes through memory, which
//! is longer; whole nanoseconds, rounded up. Operations are counted by the formulas of PyTorch's counter; a call that has none
//! takes its bytes alone. Symbols have the values of their hints.
//!
//! | call | bytes |
//! |---|---|
//! | a view, sizes and numbers, memory that nobody fills, a part taken out of a result of several | none |
//! | any other | those of each operand, read once, and of what it makes or writes over |
//! | a look-up (`embedding`, `index_select`, `gather`) | of its table as much as comes out |
//! | one that packs a bucket, or copies its members out | none: [`CopyCost`](super::costs::CopyCost) has their time |
//! | one that runs graphs (`invoke_subgraph`, `cond`) | its longest graph's time |
//!
//! A dimension whose stride is 0 is read once. How much an instruction of HLO computes is [`Work`], which the reader counts; one
//! whose work nobody knows is refused by name, and needs a measured time. Measured times beat all of this: see
//! [`override_times`].

use super::costs::{CostError, Costs, Map, check_names};
use super::flops;
use super::profile::Rates;
use super::timeline::copies_of_buckets;
use crate::ir::bodies::called_graphs;
use crate::ir::operators::{Alias, Effects, element_index};
use crate::ir::{DType, Dim, EffectTable, Graph, NodeId, Op, RegionId, TensorType, Type, Work};
use crate::passes::liveness::value_bytes;
use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

/// Operators that read of their first operand as much as they make.
const LOOKS_UP: &[&str] = &[
    "embedding",
    "index",
    "index_select",
    "gather",
    "take",
    "slice_copy",
    "select_copy",
    "slice",
    "hlo-gather",
    "hlo-dynamic-slice",
];

/// Operators that read nothing of what they write over.
const OVERWRITES: &[&str] = &["copy", "fill", "zero", "set"];

/// Operators that only set memory aside, and instructions that only name it.
const FREE: &[&str] = &[
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "empty_permuted",
    "hlo-bitcast",
    "hlo-constant",
    "hlo-get-tuple-element",
    "hlo-parameter",
    "hlo-tuple",
    "hlo-add-dependency",
    "hlo-after-all",
    "hlo-domain",
    "hlo-opt-barrier",
    "hlo-optimization-barrier",
    "hlo-partition-id",
    "hlo-replica-id",
];

impl Rates {
    /// The peak for products of a type, in FLOP/s.
    #[must_use]
    pub const fn peak_flops_per_s(&self, dtype: DType) -> u64 {
        match dtype {
            DType::F64 | DType::C128 => self.f64_flops_per_s,
            DType::F32 | DType::C64 => self.f32_flops_per_s,
            DType::F16 | DType::Bf16 | DType::C32 => self.f16_flops_per_s,
            DType::F8E4m3fn
            | DType::F8E5m2
            | DType::F8E4m3fnuz
            | DType::F8E5m2fnuz
            | DType::F8E8m0fnu
            | DType::F4E2m1fnX2 => self.f8_flops_per_s,
            _ => self.int_flops_per_s,
        }
    }

    /// Nanoseconds of so many operations, rounded up; at most [`u64::MAX`].
    #[must_use]
    pub fn flops_ns(&self, flops: u64, dtype: DType) -> u64 {
        let achieved = u128::from(self.peak_flops_per_s(dtype)) * u128::from(self.achieved_permille);
        // Thousandths of a peak, and billionths of a second.
        let ns = (u128::from(flops) * 1_000_000_000_000).div_ceil(achieved.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Nanoseconds of so many bytes, rounded up; at most [`u64::MAX`].
    #[must_use]
    pub fn bytes_ns(&self, bytes: u64) -> u64 {
        let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(self.memory_bytes_per_s.max(1)));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// The times of all calls that take any, by the names of their nodes.
///
/// # Errors
/// [`CostError::Size`] or [`CostError::Shapes`], naming a node whose sizes are not known or do not fit its operator.
pub fn of_graph(graph: &Graph, rates: &Rates) -> Result<Map<u64>, CostError> {
    beside(graph, rates, &Map::default())
}

/// The times of all calls that take any and that have no measured time. What a region does is its caller's time.
pub(super) fn beside(graph: &Graph, rates: &Rates, measured: &Map<u64>) -> Result<Map<u64>, CostError> {
    let is_timed = |id: NodeId| {
        let node = graph.node(id);
        let is_call = matches!(node.op, Op::Call(_)) && (graph.hlo.is_none() || node.region == RegionId::ROOT);
        is_call && !measured.contains_key(graph.name_of(id))
    };
    unknown_work(graph, graph.order().iter().copied().filter(|&id| is_timed(id)))?;
    let mut is_read = vec![false; graph.arena_len()];
    for &id in graph.order() {
        graph.operands(id).iter().for_each(|operand| is_read[operand.index()] = true);
    }
    let timer = Timer { graph, rates, parts: parts(graph), is_read };
    let effects = EffectTable::of(graph);
    // An HLO bucket copies nothing.
    let copies = if graph.hlo.is_some() { vec![false; graph.arena_len()] } else { copies_of_buckets(graph) };
    let mut times = Map::default();
    for &id in graph.order() {
        if is_timed(id) && !copies[id.index()] {
            let ns = timer.call(id, effects.get(id))?;
            if ns > 0 {
                times.insert(graph.name_of(id).into(), ns);
            }
        }
    }
    Ok(times)
}

/// Refuses calls of which nobody knows how much they compute.
fn unknown_work(graph: &Graph, calls: impl Iterator<Item = NodeId>) -> Result<(), CostError> {
    let Some(facts) = &graph.hlo else { return Ok(()) };
    let mut found = calls.filter_map(|id| match facts.work.get(&id)? {
        Work::Unknown(what) => Some(format!("`{}`, {what}", graph.name_of(id))),
        Work::Flops(_) => None,
    });
    let nodes: Vec<String> = found.by_ref().take(MOST_NAMED).collect();
    let more = found.count();
    if nodes.is_empty() { Ok(()) } else { Err(CostError::NoWork { nodes, more }) }
}

/// Most nodes that an error names.
const MOST_NAMED: usize = 5;

/// Puts measured times into costs, in place of those by shapes.
///
/// # Errors
/// [`CostError::NoNode`], naming one that is not in the graph; the costs are unchanged then.
pub fn override_times(costs: &mut Costs, graph: &Graph, measured: &Map<u64>) -> Result<(), CostError> {
    check_names(graph, measured)?;
    costs.compute_ns.extend(measured.iter().map(|(node, &ns)| (node.clone(), ns)));
    Ok(())
}

/// By arena index: the bytes of the parts that are taken out of a value.
fn parts(graph: &Graph) -> Vec<Option<u64>> {
    let mut parts = vec![None; graph.arena_len()];
    for &id in graph.order() {
        if let (Some(_), Some(&whole)) = (element_index(graph, id), graph.operands(id).first()) {
            let sum: &mut Option<u64> = &mut parts[whole.index()];
            *sum = sum.unwrap_or(0).checked_add(value_bytes(graph, id).unwrap_or(0));
        }
    }
    parts
}

/// Whether an instruction of HLO ends what another one began, which has its time.
pub(super) fn ends_another(target: &str) -> bool {
    target.starts_with("hlo-") && (target.ends_with("-done") || target.ends_with("-update"))
}

/// Whether a call takes no time, whatever its shapes.
pub(super) fn is_free(graph: &Graph, id: NodeId, effects: &Effects) -> bool {
    let moves = graph.hlo.as_ref().is_some_and(|facts| facts.work.contains_key(&id));
    let (target, is_part) = (graph.target_of(id), element_index(graph, id).is_some());
    let free = effects.shape_only || FREE.contains(&flops::operator(target)) || is_part || ends_another(target);
    free || (effects.is_view() && !moves)
}

struct Timer<'a> {
    graph: &'a Graph,
    rates: &'a Rates,
    /// By arena index: what [`parts`] says.
    parts: Vec<Option<u64>>,
    /// By arena index: whether any node reads the value.
    is_read: Vec<bool>,
}

impl Timer<'_> {
    fn call(&self, id: NodeId, effects: &Effects) -> Result<u64, CostError> {
        let graph = self.graph;
        if let Some(graphs) = called_graphs(graph, id) {
            let mut bodies = graphs.into_iter().filter_map(|target| graph.bodies.get(target));
            return bodies.try_fold(0, |longest: u64, body| Ok(longest.max(self.body(body)?)));
        }
        let operator = flops::operator(graph.target_of(id));
        let work = graph.hlo.as_ref().and_then(|facts| facts.work.get(&id));
        if is_free(graph, id, effects) || !self.has_tensors(id) {
            return Ok(0);
        }
        let memory_ns = self.rates.bytes_ns(self.bytes(id, effects, operator)?);
        if let Some(Work::Flops(list)) = work {
            let all = list.iter().map(|&(flops, dtype)| self.rates.flops_ns(flops, dtype));
            return Ok(memory_ns.max(all.fold(0, u64::saturating_add)));
        }
        let counted = flops::of_call(graph, id)?;
        Ok(memory_ns.max(counted.map_or(0, |(flops, dtype)| self.rates.flops_ns(flops, dtype))))
    }

    fn body(&self, body: &Graph) -> Result<u64, CostError> {
        let times = of_graph(body, self.rates)?;
        times.values().try_fold(0u64, |sum, &ns| sum.checked_add(ns)).ok_or(CostError::TooLong)
    }

    /// Whether a call takes or makes any tensor.
    fn has_tensors(&self, id: NodeId) -> bool {
        fn holds(ty: &Type) -> bool {
            match ty {
                Type::Tensor(_) => true,
                Type::Tuple(parts) => parts.iter().any(holds),
                Type::Unknown | Type::SymInt(_) | Type::SymOther(_) | Type::Token => false,
            }
        }
        let holds = |&id: &NodeId| holds(self.graph.type_of(id)) || self.parts[id.index()].is_some();
        holds(&id) || self.graph.operands(id).iter().any(holds)
    }

    /// Bytes that go through memory.
    fn bytes(&self, id: NodeId, effects: &Effects, operator: &str) -> Result<u64, CostError> {
        let graph = self.graph;
        let unknown = || CostError::Size { node: graph.name_of(id).to_owned() };
        let operands = graph.operands(id);
        // What is assumed of an operator that nothing describes is not what it does.
        let writes = if effects.assumed { &[] } else { &effects.writes[..] };
        let makes = match effects.alias {
            _ if effects.assumed => true,
            Alias::Fresh | Alias::Any => true,
            Alias::Of(_) | Alias::Written => graph.hlo.is_some(),
        };
        let made = if makes { self.value(id).ok_or_else(unknown)? } else { 0 };
        let mut bytes = made;
        let mut seen: HashSet<NodeId, FxBuildHasher> = HashSet::default();
        for (index, &operand) in operands.iter().enumerate() {
            let is_written = writes.contains(&(index as u32));
            if is_written {
                bytes = bytes.checked_add(self.value(operand).ok_or_else(unknown)?).ok_or(CostError::TooLong)?;
            }
            if (is_written && OVERWRITES.contains(&operator)) || !seen.insert(operand) {
                continue;
            }
            let read = self.read(operand).ok_or_else(unknown)?;
            let read = if index == 0 && LOOKS_UP.contains(&operator) { read.min(made) } else { read };
            bytes = bytes.checked_add(read).ok_or(CostError::TooLong)?;
        }
        Ok(bytes)
    }

    /// Bytes of a value; of one without a type those of its parts. What is neither a tensor nor taken apart has none, if
    /// no tensor goes into it.
    fn value(&self, id: NodeId) -> Option<u64> {
        let graph = self.graph;
        match graph.type_of(id) {
            Type::Unknown => self.parts[id.index()].or_else(|| {
                let is_object = matches!(graph.node(id).op, Op::Call(_))
                    && graph.operands(id).iter().all(|&from| graph.tensor(from).is_none());
                (is_object || !self.is_read[id.index()]).then_some(0)
            }),
            _ => value_bytes(graph, id),
        }
    }

    /// Bytes that are read of a value: a dimension whose stride is 0 is one element.
    fn read(&self, id: NodeId) -> Option<u64> {
        match self.graph.type_of(id) {
            Type::Tensor(TensorType { dtype, shape, strides: Some(strides), .. }) if strides.len() == shape.len() => {
                let moving = shape.iter().zip(strides).filter(|(_, stride)| **stride != Dim::Const(0));
                let sizes = moving.map(|(size, _)| self.graph.likely_value(size));
                sizes.into_iter().try_fold(dtype.bytes(), |bytes, size| bytes.checked_mul(size?))
            }
            _ => self.value(id),
        }
    }
}

#[cfg(test)]
mod tests;
