//! Values that are one of a few, and travel as their place in a list that all ranks have.

use bucketeer_types::{DType, ReduceOp};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value of a list.
pub trait Listed: Copy + PartialEq + 'static {
    /// Of another list, the notes are of another [`VERSION`](super::note::VERSION).
    const LIST: &'static [Self];
}

/// Names of ops, and of what two ranks can disagree on.
pub type Word = &'static str;

impl Listed for Word {
    const LIST: &'static [Self] = &[
        "all_reduce",
        "all_gather_into",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "all_to_all_single",
        "send",
        "recv",
        "barrier",
        "coalesced",
        "all calls",
        "new_group",
        "shrink",
        "number of calls",
        "op",
        "reduction",
        "root",
        "dtype",
        "count",
        "split",
        "members",
    ];
}

impl Listed for ReduceOp {
    const LIST: &'static [Self] =
        &[Self::Sum, Self::Avg, Self::Product, Self::Min, Self::Max, Self::BitAnd, Self::BitOr, Self::BitXor];
}

impl Listed for DType {
    const LIST: &'static [Self] = Self::ALL;
}

pub fn serialize<T: Listed, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    let place = T::LIST.iter().position(|entry| entry == value);
    place.ok_or_else(|| S::Error::custom("the value is not in its list"))?.serialize(to)
}

pub fn deserialize<'de, T: Listed, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let found = T::LIST.get(usize::deserialize(from)?);
    found.copied().ok_or_else(|| D::Error::custom("the list has no such place"))
}

/// One of a list inside another type.
#[derive(Serialize, Deserialize)]
pub struct OneOf<T: Listed>(#[serde(with = "self")] pub T);
