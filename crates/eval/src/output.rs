//! What a run shows to the outside.

use super::call::Rank;
use super::memory::NodeError;
use super::value::{Scalar, Value};
use bucketeer::ir::{DType, Graph, NodeId, Op};
use std::fmt;
use std::sync::Arc;

/// A result as a caller sees it.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A tensor.
    Tensor(OutputTensor),
    /// Several.
    Tuple(Vec<Output>),
    /// A number.
    Number(Scalar),
    /// Something of unknown type, by its fingerprint.
    Opaque(u64),
}

/// A tensor as a caller sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputTensor {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub sizes: Vec<usize>,
    /// Strides in elements.
    pub strides: Vec<usize>,
    /// Elements in logical order.
    pub bytes: Vec<u8>,
    /// Where it is, if known.
    pub device: Option<Arc<str>>,
    /// Whether it left without a wait. Its elements are those after one.
    pub pending: bool,
}

impl Output {
    /// Whether both are the same value, bit for bit, wherever and however it lies.
    #[must_use]
    pub fn same_elements(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tensor(a), Self::Tensor(b)) => (a.dtype, &a.sizes, &a.bytes) == (b.dtype, &b.sizes, &b.bytes),
            (Self::Tuple(a), Self::Tuple(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same_elements(b)),
            (Self::Number(a), Self::Number(b)) => a == b,
            (Self::Opaque(a), Self::Opaque(b)) => a == b,
            _ => false,
        }
    }
}

/// All that one rank shows.
#[derive(Clone, Debug, PartialEq)]
pub struct RankOutputs {
    /// Its number among all ranks.
    pub rank: u32,
    /// Results, in order.
    pub outputs: Vec<Output>,
    /// Inputs after the run, with their names.
    pub inputs: Vec<(Box<str>, Output)>,
    /// Results, by place, that share storage with a later result or with an input.
    pub shared: Vec<(usize, Sharer)>,
    /// Collectives whose operands were written while they were in flight, by name.
    pub races: Vec<Box<str>>,
}

/// With what a result shares storage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharer {
    /// Another result, by place.
    Output(usize),
    /// An input, by name.
    Input(Box<str>),
}

impl fmt::Display for Sharer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output(place) => write!(f, "output {place}"),
            Self::Input(name) => write!(f, "input `{name}`"),
        }
    }
}

/// Gathers what a rank shows, letting all that is in flight arrive.
pub fn collect(graph: &Graph, results: Option<NodeId>, rank: &mut Rank) -> Result<RankOutputs, NodeError> {
    let operands = results.map_or(&[][..], |id| graph.operands(id));
    let inputs: Vec<NodeId> = graph.order().iter().copied().filter(|&id| graph.node(id).op == Op::Input).collect();
    let pending = pending_storages(rank, operands.iter().chain(&inputs).copied());
    rank.memory.land(None);
    let outputs = operands.iter().map(|&id| see_node(graph, rank, id, &pending)).collect::<Result<_, _>>()?;
    let see = |&id: &NodeId| Ok((graph.name_of(id).into(), see_node(graph, rank, id, &[])?));
    let after = inputs.iter().map(see).collect::<Result<_, NodeError>>()?;
    let mut races: Vec<Box<str>> = rank.memory.races.iter().map(|&id| graph.name_of(id).into()).collect();
    races.sort_unstable();
    races.dedup();
    let shared = sharing(graph, rank, operands, &inputs);
    Ok(RankOutputs { rank: rank.global, outputs, inputs: after, shared, races })
}

fn pending_storages(rank: &Rank, ids: impl Iterator<Item = NodeId>) -> Vec<usize> {
    let mut pending = Vec::new();
    for value in ids.filter_map(|id| rank.values[id.index()].as_ref()) {
        value.for_each_tensor(&mut |tensor| {
            if rank.memory.is_pending(tensor) {
                pending.push(tensor.storage);
            }
        });
    }
    pending
}

pub fn see_node(graph: &Graph, rank: &Rank, id: NodeId, pending: &[usize]) -> Result<Output, NodeError> {
    match &rank.values[id.index()] {
        Some(value) => see(rank, value, pending),
        None => Err(NodeError::misfit(format!("`{}` has no value", graph.name_of(id)))),
    }
}

fn see(rank: &Rank, value: &Value, pending: &[usize]) -> Result<Output, NodeError> {
    Ok(match value {
        Value::Tensor(tensor) => Output::Tensor(OutputTensor {
            dtype: tensor.dtype,
            sizes: tensor.sizes.clone(),
            strides: tensor.strides.clone(),
            bytes: rank.memory.read(tensor)?,
            device: tensor.device.clone(),
            pending: pending.contains(&tensor.storage),
        }),
        Value::Tuple(values) => {
            Output::Tuple(values.iter().map(|value| see(rank, value, pending)).collect::<Result<_, _>>()?)
        }
        Value::Scalar(number) => Output::Number(*number),
        Value::Opaque(state) => Output::Opaque(*state),
    })
}

/// Storages that hold elements of a value.
fn storages(rank: &Rank, id: NodeId) -> Vec<usize> {
    let mut found = Vec::new();
    if let Some(value) = &rank.values[id.index()] {
        value.for_each_tensor(&mut |tensor| {
            if tensor.elements() > 0 {
                found.push(tensor.storage);
            }
        });
    }
    found
}

fn sharing(graph: &Graph, rank: &Rank, outputs: &[NodeId], inputs: &[NodeId]) -> Vec<(usize, Sharer)> {
    let mut holders: hashbrown::HashMap<usize, Vec<Sharer>, rustc_hash::FxBuildHasher> = hashbrown::HashMap::default();
    for &id in inputs {
        for storage in storages(rank, id) {
            holders.entry(storage).or_default().push(Sharer::Input(graph.name_of(id).into()));
        }
    }
    let mut shared = Vec::new();
    for (place, &id) in outputs.iter().enumerate().rev() {
        for storage in storages(rank, id) {
            let known = holders.entry(storage).or_default();
            shared.extend(known.iter().map(|sharer| (place, sharer.clone())));
            known.push(Sharer::Output(place));
        }
    }
    shared.sort_unstable();
    shared.dedup();
    shared
}
