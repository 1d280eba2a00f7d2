//! Collectives: what they take and make.

use super::{NodeName, VerifyError};
use crate::ir::args::Arg;
use crate::ir::entities::NodeId;
use crate::ir::graph::Graph;
use crate::ir::operators::collective_result;
use crate::ir::ops::{Collective, CollectiveKind, Variant};
use crate::ir::types::{Dim, TensorType, Type};

/// Checks that a wait makes what it waits for, as far as both are known.
pub(super) fn check_wait(graph: &Graph, id: NodeId, errors: &mut Vec<VerifyError>) {
    let operands = graph.operands(id);
    let &[waited, ..] = operands else { return };
    let mut check = |waited: NodeId, found: Option<&TensorType>| {
        if let (Some(expected), Some(found)) = (graph.tensor(waited), found)
            && !compatible(expected, found)
        {
            let (node, waited) = (NodeName::of(graph, id), NodeName::of(graph, waited));
            let (found, expected) = (found.to_string(), expected.to_string());
            errors.push(VerifyError::WaitType { node, waited, found, expected });
        }
    };
    match graph.type_of(id) {
        _ if !graph.waits_for_list(id) => check(waited, graph.tensor(id)),
        Type::Unknown => {}
        Type::Tuple(parts) if parts.len() == operands.len() => {
            operands.iter().zip(parts).for_each(|(&waited, part)| check(waited, part.as_tensor()));
        }
        found => {
            let (node, found) = (NodeName::of(graph, id), found.to_string());
            errors.push(VerifyError::WaitList { node, found, expected: operands.len() });
        }
    }
}

/// Checks a node if it is a collective.
pub(super) fn check(graph: &Graph, id: NodeId, errors: &mut Vec<VerifyError>) {
    let Some(collective) = graph.collective(id) else { return };
    let name = || NodeName::of(graph, id);
    let inputs = graph.collective_inputs(id);
    if inputs.is_empty() || !starts_with_value(graph, id) {
        errors.push(VerifyError::NoInput { node: name() });
        return;
    }
    match (collective.variant, graph.args_of(id).get("out")) {
        (Variant::Out, None) => errors.push(VerifyError::NoOut { node: name() }),
        (Variant::Functional, Some(_)) => errors.push(VerifyError::OutNotUsed { node: name() }),
        _ => {}
    }
    match graph.type_of(id) {
        Type::Tuple(parts) if collective.coalesced && parts.len() != inputs.len() => {
            errors.push(VerifyError::CollectiveCount { node: name(), found: parts.len(), expected: inputs.len() });
        }
        Type::Tuple(parts) if collective.coalesced => {
            for (input, part) in inputs.iter().zip(parts) {
                pair(graph, id, collective, *input, part.as_tensor(), errors);
            }
        }
        ty if !collective.coalesced => pair(graph, id, collective, inputs[0], ty.as_tensor(), errors),
        _ => {}
    }
}

/// Whether the first argument is a value or a list of values.
fn starts_with_value(graph: &Graph, id: NodeId) -> bool {
    let args = graph.args_of(id);
    let first = args.positional.first().or_else(|| args.keyword.first().map(|(_, arg)| arg));
    match first {
        Some(Arg::Operand(_)) => true,
        Some(Arg::List(items) | Arg::Tuple(items)) => {
            !items.is_empty() && items.iter().all(|item| matches!(item, Arg::Operand(_)))
        }
        _ => false,
    }
}

/// One input and what is made of it.
fn pair(
    graph: &Graph,
    id: NodeId,
    collective: Collective,
    input: NodeId,
    result: Option<&TensorType>,
    errors: &mut Vec<VerifyError>,
) {
    let Some(given) = graph.tensor(input) else { return };
    // A single element is gathered to one element a rank, as if it had a dimension.
    let row = (collective.kind == CollectiveKind::AllGather { dim: 0 } && given.shape.is_empty())
        .then(|| given.with_shape([Dim::Const(1)].into_iter().collect()));
    let stated = || given.to_string();
    let given = row.as_ref().unwrap_or(given);
    let (node, input) = (NodeName::of(graph, id), NodeName::of(graph, input));
    let size = graph.group(collective.group).size;
    if let CollectiveKind::AllGather { dim } | CollectiveKind::ReduceScatter { dim, .. } = collective.kind {
        let Some(along) = given.shape.get(dim as usize) else {
            errors.push(VerifyError::CollectiveDim { node, input, given: stated(), dim });
            return;
        };
        if let (CollectiveKind::ReduceScatter { .. }, Some(length), Some(size)) =
            (collective.kind, along.as_const(), size)
            && !length.is_multiple_of(u64::from(size))
        {
            errors.push(VerifyError::Indivisible { node, input, given: stated(), dim, size });
            return;
        }
    }
    let Some(found) = result else { return };
    let expected = match collective.kind {
        // How much each rank gets is in the arguments.
        CollectiveKind::AllToAll => (found.dtype != given.dtype).then(|| format!("dtype {}", given.dtype.short_name())),
        kind => match collective_result(kind, size, given) {
            Some(expected) => (!compatible(&expected, found))
                .then(|| TensorType { strides: None, device: None, ..expected }.to_string()),
            None => (found.dtype != given.dtype || found.shape.len() != given.shape.len())
                .then(|| format!("dtype {} and {} dimensions", given.dtype.short_name(), given.shape.len())),
        },
    };
    if let Some(expected) = expected {
        let found = found.to_string();
        errors.push(VerifyError::CollectiveType { node, input, given: stated(), found, expected });
    }
}

/// Whether dtypes, ranks and all sizes that are numbers agree.
fn compatible(a: &TensorType, b: &TensorType) -> bool {
    let clash = |(a, b): (&Dim, &Dim)| matches!((a, b), (Dim::Const(a), Dim::Const(b)) if a != b);
    a.dtype == b.dtype && a.shape.len() == b.shape.len() && !a.shape.iter().zip(&b.shape).any(clash)
}
