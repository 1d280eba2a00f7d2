//! Views of the same elements in other dimensions.

use crate::shrink::extents::Extent;
use crate::shrink::node::{ArgPosition, Found, Node};
use crate::shrink::trace::is_list;
use bucketeer::ir::{Arg, DType};

/// Other dtypes for the same bytes.
pub fn bits(node: &mut Node<'_>, mut dims: Vec<Extent>) -> Option<Vec<Extent>> {
    let Arg::Operand(operand) = node.arg(0, &["self", "input", "a", "x"])?.1 else { return None };
    let id = *node.graph.operands(node.id).get(*operand as usize)?;
    let (old, new) = (node.graph.tensor(id)?.dtype, node.dtype(1)?);
    if old.bytes() != new.bytes() {
        let last = dims.last_mut()?;
        *last = rescaled(node, *last, old, new)?;
    }
    Some(dims)
}

/// Elements of one dtype as elements of another.
pub fn rescaled(node: &mut Node<'_>, count: Extent, from: DType, to: DType) -> Option<Extent> {
    let (old, new) = (from.bytes(), to.bytes());
    if old >= new {
        let times = node.extents().fixed(old / new);
        return Some(node.extents().product(&[count, times]));
    }
    let times = new / old;
    if !node.size(count).is_multiple_of(times) {
        return None;
    }
    if let Some((whole, rest)) = node.extents().factor(count, times) {
        node.extents().fix(rest);
        return Some(whole);
    }
    let (whole, rest) = (node.size(count) / times, node.extents().fixed(times));
    let whole = node.extents().leaf(whole);
    let product = node.extents().product(&[whole, rest]);
    node.extents().equate(count, product);
    Some(whole)
}

/// The same elements in other dimensions.
pub fn view(node: &mut Node<'_>, dims: &[Extent]) -> Option<Vec<Extent>> {
    let found @ (_, arg) = node.arg(1, &["size", "shape", "other"])?;
    if let Some(like) = node.tensor_of(arg) {
        let sizes = node.sizes(&like);
        let made = reshape(node, dims, &sizes)?;
        node.same(&made, &like);
        return Some(made);
    }
    // As methods are called: `x.view(2, 3)`.
    let items: Vec<Found<'_>> = if is_list(arg) {
        Vec::new()
    } else {
        node.args.positional.iter().enumerate().skip(1).map(|(at, arg)| (ArgPosition::Positional(at), arg)).collect()
    };
    let asked = match items.as_slice() {
        [] => node.ints(arg)?,
        items => items.iter().map(|(_, arg)| node.int(arg)).collect::<Option<Vec<i64>>>()?,
    };
    let elements = node.sizes(dims).iter().fold(1u64, |all, &size| all.saturating_mul(size));
    let known = asked.iter().filter(|size| **size >= 0).fold(1u64, |all, size| all.saturating_mul(size.unsigned_abs()));
    let size = |&size: &i64| if size < 0 { elements.checked_div(known).unwrap_or(0) } else { size.unsigned_abs() };
    let sizes: Vec<u64> = asked.iter().map(size).collect();
    let made = reshape(node, dims, &sizes)?;
    match items.as_slice() {
        [] => node.are_sizes_of(&found, &made),
        items => {
            for (item, &dim) in items.iter().zip(&made) {
                node.are_sizes_of(item, &[dim]);
            }
        }
    }
    Some(made)
}

/// Dimensions seen as others: those that together hold as many elements are matched, from the first on.
fn reshape(node: &mut Node<'_>, dims: &[Extent], sizes: &[u64]) -> Option<Vec<Extent>> {
    let old = node.sizes(dims);
    let count = |sizes: &[u64]| sizes.iter().fold(1u64, |all, &size| all.saturating_mul(size));
    if count(&old) != count(sizes) {
        return None;
    }
    if count(sizes) == 0 {
        node.fix(dims);
        return Some(sizes.iter().map(|&size| node.extents().fixed(size)).collect());
    }
    let (mut from, mut to, mut made) = (0, 0, Vec::new());
    while to < sizes.len() {
        let (start, start_to) = (from, to);
        let (mut a, mut b) = (1u64, 1u64);
        loop {
            if a < b || (from == start && from < old.len()) {
                a = a.saturating_mul(*old.get(from)?);
                from += 1;
            } else {
                b = b.saturating_mul(*sizes.get(to)?);
                to += 1;
            }
            if a == b && to > start_to {
                break;
            }
        }
        let whole = node.extents().product(&dims[start..from]);
        made.extend(divided(node, whole, &sizes[start_to..to], &dims[start..from]));
    }
    Some(made)
}

/// One size as the product of several.
fn divided(node: &mut Node<'_>, whole: Extent, sizes: &[u64], from: &[Extent]) -> Vec<Extent> {
    let (mut rest, mut made) = (whole, Vec::new());
    for (nth, &size) in sizes.iter().enumerate().rev() {
        if nth == 0 {
            made.push(rest);
            break;
        }
        let Some((major, minor)) = node.extents().factor(rest, size) else {
            let left: Vec<u64> = sizes[..=nth].to_vec();
            let mut others = undivided(node, rest, &left, from);
            others.reverse();
            made.append(&mut others);
            break;
        };
        made.push(minor);
        rest = major;
    }
    made.reverse();
    made
}

/// Sizes whose product does not follow from how the whole came about. Rows for the ranks of a group stay as many; else
/// nothing can change, or it is guessed that any sizes with the right product will do.
fn undivided(node: &mut Node<'_>, whole: Extent, sizes: &[u64], from: &[Extent]) -> Vec<Extent> {
    let rows_of_group = |node: &Node<'_>| {
        sizes.iter().position(|&size| size > 1).filter(|&at| {
            node.tracer.is_group_size(sizes[at]) && sizes[at + 1..].iter().filter(|&&size| size > 1).count() == 1
        })
    };
    let guesses = rows_of_group(node).is_none();
    if guesses && !node.tracer.may_guess {
        node.fix(from);
        node.fix(&[whole]);
        return sizes.iter().map(|&size| node.extents().fixed(size)).collect();
    }
    if guesses {
        let place = node.tracer.extents.place;
        node.tracer.guessed.get_or_insert(place);
    }
    let made: Vec<Extent> = sizes
        .iter()
        .map(|&size| {
            let stays = node.tracer.is_group_size(size);
            if stays { node.extents().fixed(size) } else { node.extents().leaf(size) }
        })
        .collect();
    let product = node.extents().product(&made);
    node.extents().equate(whole, product);
    made
}

/// Neighbouring dimensions as one.
pub fn flatten(node: &mut Node<'_>, dims: Vec<Extent>) -> Option<Vec<Extent>> {
    let rank = dims.len();
    if rank == 0 {
        return Some(vec![node.extents().fixed(1)]);
    }
    let (start, end) = (node.dim_at(1, "start_dim", 0, rank)?, node.dim_at(2, "end_dim", -1, rank)?);
    let flat = node.extents().product(dims.get(start..=end)?);
    Some([&dims[..start], &[flat], &dims[end + 1..]].concat())
}
