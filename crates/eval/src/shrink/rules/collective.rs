//! Collectives: gathers multiply a size by that of the group, scatters divide it.

use crate::shrink::extents::Extent;
use crate::shrink::node::{Found, Node};
use crate::shrink::trace::{Shape, is_list};
use bucketeer::ir::{Arg, Collective, CollectiveKind, Variant};

/// The sizes of a collective's result.
pub fn shape(node: &mut Node<'_>, collective: Collective) -> Option<Shape> {
    let (_, arg) = node.arg(0, &["inputs", "input", "self"])?;
    let inputs = node.tensors(arg)?;
    let group = node.tracer.group_size(&node.graph.group(collective.group).name);
    let mut results = Vec::new();
    for input in &inputs {
        let result = match (collective.variant, collective.kind) {
            (Variant::InPlace, _) => input.clone(),
            (_, kind) => one(node, kind, group, input)?,
        };
        results.push(result);
    }
    if collective.variant == Variant::Out {
        let outs = node.tensors(node.args.get("out")?)?;
        for (result, out) in results.iter_mut().zip(outs) {
            // A buffer may have another shape than what it takes in.
            let (flat, whole) = (node.extents().product(result), node.extents().product(&out));
            node.extents().unify(whole, flat);
            *result = out;
        }
    }
    let mut shapes: Vec<Shape> = results.into_iter().map(Shape::Tensor).collect();
    Some(if collective.coalesced { Shape::Tuple(shapes) } else { shapes.pop()? })
}

fn one(node: &mut Node<'_>, kind: CollectiveKind, group: Option<u64>, input: &[Extent]) -> Option<Vec<Extent>> {
    let mut result = input.to_vec();
    match kind {
        CollectiveKind::AllGather { dim } => {
            let ranks = node.extents().fixed(group?);
            if result.is_empty() {
                return Some(vec![ranks]);
            }
            let dim = result.get_mut(dim as usize)?;
            *dim = node.extents().product(&[ranks, *dim]);
        }
        CollectiveKind::ReduceScatter { dim, .. } => {
            let (dim, group) = (result.get_mut(dim as usize)?, group?);
            if group == 0 || !node.size(*dim).is_multiple_of(group) {
                return None;
            }
            *dim = node.extents().quotient(*dim, group);
        }
        CollectiveKind::AllToAll => {
            let rows = *result.first()?;
            result[0] = all_to_all(node, rows, group?)?;
        }
        CollectiveKind::AllReduce { .. }
        | CollectiveKind::Broadcast { .. }
        | CollectiveKind::Reduce { .. }
        | CollectiveKind::Permute => {}
    }
    Some(result)
}

/// All ranks run this graph, so each sends to all what it receives from all: parts are equal.
fn all_to_all(node: &mut Node<'_>, rows: Extent, group: u64) -> Option<Extent> {
    let is_empty = |found: &Found<'_>| matches!(found.1, Arg::List(items) if items.is_empty());
    let received = node.arg(1, &["output_split_sizes"]).filter(|found| !is_empty(found));
    let sent = node.arg(2, &["input_split_sizes"]).filter(|found| !is_empty(found));
    let size = node.size(rows);
    if group == 0 || !size.is_multiple_of(group) {
        return None;
    }
    let equal = |node: &Node<'_>, found: &Option<Found<'_>>| {
        found.as_ref().is_none_or(|(_, arg)| {
            let sizes = node.ints(arg).unwrap_or_default();
            is_list(arg) && sizes.iter().all(|&part| u64::try_from(part) == Ok(size / group))
        })
    };
    if !equal(node, &sent) || !equal(node, &received) {
        node.fix(&[rows]);
        let total: i64 = node.ints(received?.1)?.iter().fold(0, |sum, part| part.saturating_add(sum));
        return Some(node.extents().fixed(u64::try_from(total).ok()?));
    }
    let part = node.extents().quotient(rows, group);
    for found in [sent, received].into_iter().flatten() {
        let count = node.ints(found.1)?.len();
        node.are_sizes_of(&found, &vec![part; count]);
    }
    Some(rows)
}
