//! Which parameters share a bucket: the rule of c10d's `compute_bucket_assignment_by_size` (PyTorch 2.15).
//!
//! Tensors are walked in an order. Each dtype on each device has a bucket that is open and a place of its own in the list
//! of caps. A tensor is appended to the open bucket of its kind, and *then* the bucket is closed if it has as many bytes
//! as the cap in force: so a bucket may be above its cap by less than its last tensor, and a cap of 0 closes at each
//! tensor. Closing moves that kind to its next cap; the last cap repeats. A tensor with a sparse gradient is a bucket of
//! its own, which moves no cap. What is open at the end follows in the order in which the kinds came first, which is
//! the same on every platform. Linear in tensors, but for the sort.

use crate::fit::Fit;
use bucketeer_types::DType;
use std::collections::HashMap;

/// A tensor, as far as buckets need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Of its gradient.
    pub bytes: u64,
    /// Tensors of two dtypes share no bucket.
    pub dtype: DType,
    /// Nor do those of two devices.
    pub device: u32,
    /// Whether its gradient is rows and values.
    pub sparse: bool,
}

/// Buckets, and the cap that was in force for each when it was closed: 0 for sparse ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Indices of tensors, in the order in which they were walked.
    pub buckets: Vec<Vec<usize>>,
    /// In bytes, one for each bucket.
    pub limits_bytes: Vec<u64>,
}

/// Why there is no assignment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// Nothing to assign.
    #[error("there are no tensors to put into buckets")]
    NoTensors,
    /// No cap.
    #[error("the list of caps is empty; give at least one, in bytes")]
    NoCaps,
    /// An order names a tensor that there is not, or names one twice, or leaves one out.
    #[error("the order has {found}, of {count} tensors")]
    Order {
        /// What is wrong with it.
        found: String,
        /// How many tensors there are.
        count: usize,
    },
}

/// Puts tensors into buckets; see the module docs. Without an order they are walked as they come, and buckets are sorted by
/// their first tensor; with one they stay in the order in which they were closed.
///
/// ```
/// use bucketeer_reducer::{Item, assign};
/// use bucketeer_types::DType;
///
/// let item = |bytes| Item { bytes, dtype: DType::F32, device: 0, sparse: false };
/// let found = assign(&[item(36), item(4), item(36), item(4)], &[40], None)?;
/// assert_eq!(found.buckets, [[0, 1], [2, 3]]);
/// # Ok::<(), bucketeer_reducer::AssignError>(())
/// ```
///
/// # Errors
/// [`AssignError`]; an order has to name each tensor once.
pub fn assign(items: &[Item], caps_bytes: &[u64], order: Option<&[usize]>) -> Result<Assignment, AssignError> {
    let (Some(_), Some(&last)) = (items.first(), caps_bytes.last()) else {
        return Err(if items.is_empty() { AssignError::NoTensors } else { AssignError::NoCaps });
    };
    let walked: Vec<usize> = match order {
        None => (0..items.len()).collect(),
        Some(order) => check(order, items.len()).map(|()| order.to_vec())?,
    };
    let mut kinds: HashMap<(DType, u32), usize> = HashMap::new();
    let mut open: Vec<Open> = Vec::new();
    let mut closed: Vec<(Vec<usize>, u64)> = Vec::new();
    for index in walked {
        let item = items[index];
        if item.sparse {
            closed.push((vec![index], 0));
            continue;
        }
        let kind = *kinds.entry((item.dtype, item.device)).or_insert_with(|| {
            open.push(Open::default());
            open.len() - 1
        });
        let open = &mut open[kind];
        open.indices.push(index);
        open.bytes = open.bytes.saturating_add(item.bytes);
        let cap = caps_bytes.get(open.caps_used).copied().unwrap_or(last);
        if open.bytes >= cap {
            closed.push((std::mem::take(&mut open.indices), cap));
            *open = Open { caps_used: open.caps_used + 1, ..Open::default() };
        }
    }
    for open in open.into_iter().filter(|open| !open.indices.is_empty()) {
        closed.push((open.indices, caps_bytes.get(open.caps_used).copied().unwrap_or(last)));
    }
    if order.is_none() {
        // Tensors were walked as they come, so a bucket's first is its smallest.
        closed.sort_unstable_by_key(|(indices, _)| indices[0]);
    }
    let (buckets, limits_bytes) = closed.into_iter().unzip();
    Ok(Assignment { buckets, limits_bytes })
}

/// The bucket of a kind that is open.
#[derive(Default)]
struct Open {
    indices: Vec<usize>,
    bytes: u64,
    caps_used: usize,
}

/// Whether an order names each of `count` tensors once.
fn check(order: &[usize], count: usize) -> Result<(), AssignError> {
    let refuse = |found: String| Err(AssignError::Order { found, count });
    let mut seen = vec![false; count];
    for &index in order {
        match seen.get_mut(index) {
            None => return refuse(format!("index {index}")),
            Some(true) => return refuse(format!("index {index} twice")),
            Some(seen) => *seen = true,
        }
    }
    match seen.iter().position(|seen| !seen) {
        Some(index) => refuse(format!("no index {index}")),
        None => Ok(()),
    }
}

/// How large buckets may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caps {
    /// A first cap and one for all others, in bytes.
    Bytes {
        /// Of the bucket that is launched first.
        first: u64,
        /// Of all others.
        rest: u64,
    },
    /// A cap for each bucket, in bytes; the last repeats. It holds in the first step, too.
    List(Vec<u64>),
    /// Sizes that fit: planned after a few steps, by when gradients are ready and what messages cost. Until then as by default.
    /// Only where buckets are made again at all.
    Fit(Fit),
}

impl Default for Caps {
    /// c10d's: 1 MiB for the first bucket, so that something is on its way early, and 25 MiB for the others.
    fn default() -> Self {
        Self::Bytes { first: 1 << 20, rest: 25 << 20 }
    }
}

impl Caps {
    /// One cap for all buckets, the first included, in bytes.
    #[must_use]
    pub const fn bytes(cap: u64) -> Self {
        Self::Bytes { first: cap, rest: cap }
    }

    /// As a list.
    #[must_use]
    pub fn list(&self) -> Vec<u64> {
        match self {
            Self::Bytes { first, rest } => vec![*first, *rest],
            Self::List(list) => list.clone(),
            Self::Fit(_) => Self::default().list(),
        }
    }

    /// How sizes are planned, if they are.
    pub(crate) const fn fit(&self) -> Option<&Fit> {
        match self {
            Self::Fit(fit) => Some(fit),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(bytes: u64) -> Item {
        Item { bytes, dtype: DType::F32, device: 0, sparse: false }
    }

    #[test]
    fn a_bucket_closes_at_its_cap_and_not_below() {
        let sizes = |bytes: &[u64], caps: &[u64]| {
            let items: Vec<Item> = bytes.iter().map(|bytes| item(*bytes)).collect();
            assign(&items, caps, None).unwrap().buckets.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[39, 1, 39], &[40]), [2, 1]);
        assert_eq!(sizes(&[40, 1], &[40]), [1, 1]);
        assert_eq!(sizes(&[1, 1, 1], &[0]), [1, 1, 1]);
        assert_eq!(sizes(&[u64::MAX, u64::MAX, 1], &[u64::MAX]), [1, 1, 1]);
    }

    #[test]
    fn red_15_the_last_cap_repeats_and_an_empty_list_is_refused() {
        let found = assign(&[item(8); 5], &[8, 16], None).unwrap();
        assert_eq!((found.buckets, found.limits_bytes), (vec![vec![0], vec![1, 2], vec![3, 4]], vec![8, 16, 16]));
        assert_eq!(assign(&[item(8)], &[], None), Err(AssignError::NoCaps));
        assert_eq!(assign(&[], &[8], None), Err(AssignError::NoTensors));
    }

    #[test]
    fn an_order_names_each_tensor_once() {
        let refused = |order: &[usize]| assign(&[item(1), item(1)], &[1], Some(order)).unwrap_err().to_string();
        assert_eq!(refused(&[0, 2]), "the order has index 2, of 2 tensors");
        assert_eq!(refused(&[0, 0]), "the order has index 0 twice, of 2 tensors");
        assert_eq!(refused(&[1]), "the order has no index 0, of 2 tensors");
    }
}
