//! What a rank tells another about a call, and whether both call the same.

use super::words::{self, OneOf, Word};
use crate::call::{Call, Op, Reduction};
use crate::signature::Described;
use bucketeer_types::{DType, ReduceOp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A call as one other rank needs to know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    #[serde(with = "words")]
    op: Word,
    #[serde(with = "reduction")]
    reduction: Option<Reduction>,
    root: Option<u32>,
    #[serde(with = "words")]
    dtype: DType,
    count: u64,
    /// For an all-to-all: bytes that go to the other rank, and that are expected from it.
    gives: u64,
    wants: u64,
}

/// What differs between two ranks, and how each would put it.
#[derive(Debug, PartialEq)]
pub struct Difference {
    pub what: &'static str,
    pub first: String,
    pub second: String,
}

fn said(what: &'static str, first: impl ToString, second: impl ToString) -> Option<Difference> {
    Some(Difference { what, first: first.to_string(), second: second.to_string() })
}

impl Shape {
    /// Of a call, for the member at place `peer` of a group of `size`.
    pub fn of(call: &Call, size: usize, peer: usize) -> Self {
        let (mut gives, mut wants) = (0, 0);
        if matches!(call.op(), Op::AllToAll { .. }) {
            let (send, receive) = call.split_bytes(size);
            (gives, wants) = (send[peer], receive[peer]);
        }
        Self {
            op: call.op().name(),
            reduction: call.op().reduction(),
            root: call.op().root().map(|root| root.0),
            dtype: call.dtype(),
            count: call.count(),
            gives,
            wants,
        }
    }
}

/// A reduction as its op, or as its factor.
mod reduction {
    use super::*;

    type Form = Option<Result<OneOf<ReduceOp>, f64>>;

    pub fn serialize<S: Serializer>(reduction: &Option<Reduction>, to: S) -> Result<S::Ok, S::Error> {
        let form: Form = reduction.map(|reduction| match reduction {
            Reduction::Op(op) => Ok(OneOf(op)),
            Reduction::PreMulSum { factor } => Err(factor),
        });
        form.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Reduction>, D::Error> {
        let reduction = |form: Result<OneOf<_>, _>| match form {
            Ok(OneOf(op)) => Reduction::Op(op),
            Err(factor) => Reduction::PreMulSum { factor },
        };
        Ok(Form::deserialize(from)?.map(reduction))
    }
}

/// The first difference between the calls of two ranks; `first` comes first in the group.
pub fn difference(first: &[Shape], second: &[Shape]) -> Option<Difference> {
    if first.len() != second.len() {
        return said("number of calls", first.len(), second.len());
    }
    let mut pairs = first.iter().zip(second).enumerate();
    pairs.find_map(|(index, (a, b))| {
        let mut found = one(a, b)?;
        if first.len() > 1 {
            for text in [&mut found.first, &mut found.second] {
                *text = format!("{text} (call {} of {})", index + 1, first.len());
            }
        }
        Some(found)
    })
}

fn one(a: &Shape, b: &Shape) -> Option<Difference> {
    if a.op != b.op && (a.op, b.op) != ("send", "recv") && (a.op, b.op) != ("recv", "send") {
        return said("op", a.op, b.op);
    }
    let kind = |shape: &Shape| shape.reduction.map_or_else(|| "none".to_owned(), |reduction| reduction.to_string());
    if a.reduction != b.reduction {
        return said("reduction", kind(a), kind(b));
    }
    let root = |shape: &Shape| format!("group rank {}", shape.root.unwrap_or_default());
    if a.root != b.root {
        return said("root", root(a), root(b));
    }
    let elements = |shape: &Shape| format!("{} x {}", shape.dtype.short_name(), shape.count);
    if a.dtype != b.dtype {
        return said("dtype", elements(a), elements(b));
    }
    if a.op != "all_to_all_single" {
        return if a.count == b.count { None } else { said("count", elements(a), elements(b)) };
    }
    let gives = |bytes: u64| format!("{bytes} bytes to give");
    let wants = |bytes: u64| format!("room for {bytes} bytes");
    if a.gives != b.wants {
        return said("split", gives(a.gives), wants(b.wants));
    }
    if b.gives != a.wants {
        return said("split", wants(a.wants), gives(b.gives));
    }
    None
}
