//! What ranks of an all-to-all send to one another, and what they take.

use super::{Launch, RankFault, ReplicaGroup};
use crate::ir::{Arg, CollectiveKind, Graph, NodeId, TensorType};

/// Elements that one rank exchanges with each rank of its replica group, by their places there; `None` where not known.
struct Exchange {
    sends: Vec<Option<u64>>,
    takes: Vec<Option<u64>>,
}

impl Exchange {
    /// Of an all-to-all, whose arguments are the tensor, the rows from each rank and the rows for each rank; an empty list
    /// means equal parts.
    fn of(graph: &Graph, id: NodeId, ranks: usize) -> Option<Self> {
        let collective = graph.collective(id)?;
        if collective.kind != CollectiveKind::AllToAll || collective.coalesced {
            return None;
        }
        let input = graph.collective_inputs(id).first().and_then(|&input| graph.tensor(input));
        let args = &graph.args_of(id).positional;
        let parts = |tensor: Option<&TensorType>, list: usize| parts(graph, id, tensor, args.get(list), ranks);
        Some(Self { sends: parts(input, 2), takes: parts(graph.tensor(id), 1) })
    }
}

/// The elements of each part of a tensor that is cut along its first dimension.
fn parts(
    graph: &Graph,
    id: NodeId,
    tensor: Option<&TensorType>,
    splits: Option<&Arg>,
    ranks: usize,
) -> Vec<Option<u64>> {
    let unknown = || vec![None; ranks];
    let (Some(tensor), Some(Arg::List(splits))) = (tensor, splits) else { return unknown() };
    let sizes: Option<Vec<u64>> = tensor.shape.iter().map(|size| graph.likely_value(size)).collect();
    let Some(sizes) = sizes.filter(|sizes| !sizes.is_empty()) else { return unknown() };
    let row = sizes[1..].iter().try_fold(1u64, |product, &size| product.checked_mul(size));
    if splits.is_empty() {
        let rows = sizes[0] / ranks.max(1) as u64;
        return vec![row.and_then(|row| row.checked_mul(rows)); ranks];
    }
    let rows = |split: &Arg| match split {
        Arg::Int(rows) => u64::try_from(*rows).ok(),
        Arg::Operand(index) => graph.operands(id).get(*index as usize).and_then(|&size| likely_size(graph, size)),
        _ => None,
    };
    let elements = |split| rows(split)?.checked_mul(row?);
    if splits.len() == ranks { splits.iter().map(elements).collect() } else { unknown() }
}

/// The value of a symbolic integer, if its type and the hints say it.
fn likely_size(graph: &Graph, size: NodeId) -> Option<u64> {
    match graph.type_of(size) {
        crate::ir::Type::SymInt(expr) => graph.likely_value(&crate::ir::Dim::from_expr(expr.clone())?),
        _ => None,
    }
}

/// The first all-to-all of a replica group in which a rank sends another one more or less than that one takes.
pub(super) fn first_mismatch(
    graphs: &[&Graph],
    replica_group: &ReplicaGroup,
    sequences: &[Vec<NodeId>],
) -> Option<RankFault> {
    let launches = sequences.first().map_or(0, Vec::len);
    (0..launches).find_map(|position| {
        let exchange = |(sequence, &rank): (&Vec<NodeId>, &u32)| {
            Exchange::of(graphs[rank as usize], *sequence.get(position)?, replica_group.ranks.len())
        };
        let all: Vec<Exchange> = sequences.iter().zip(&replica_group.ranks).map(exchange).collect::<Option<_>>()?;
        let pairs = (0..all.len()).flat_map(|from| (0..all.len()).map(move |to| (from, to)));
        let differs = |&(from, to): &(usize, usize)| {
            let (sent, taken) = (all[from].sends[to], all[to].takes[from]);
            sent.zip(taken).is_some_and(|(sent, taken)| sent != taken)
        };
        let (from, to) = pairs.into_iter().find(differs)?;
        let launch = |place: usize, what: String| {
            let (rank, id) = (replica_group.ranks[place], sequences[place][position]);
            Launch { rank, node: Some(graphs[rank as usize].name_of(id).to_owned()), what }
        };
        let number = |elements: Option<u64>| elements.unwrap_or_default();
        let (sent, taken) = (number(all[from].sends[to]), number(all[to].takes[from]));
        let sends = format!("sends rank {} {sent} elements", replica_group.ranks[to]);
        let takes = format!("takes {taken} from rank {}", replica_group.ranks[from]);
        Some(RankFault::Mismatch {
            replica_group: replica_group.name.clone(),
            position,
            left: launch(from, sends),
            right: launch(to, takes),
        })
    })
}
