//! What a rank tells another about a call, and whether both call the same.

use super::bytes::{Malformed, Reader, Writer};
use crate::call::{Call, Op, Reduction};
use crate::signature::Described;
use bucketeer_types::{DType, ReduceOp};

/// Names of ops, by their number in notes.
pub const OPS: [&str; 13] = [
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
];

const REDUCTIONS: [ReduceOp; 8] = [
    ReduceOp::Sum,
    ReduceOp::Avg,
    ReduceOp::Product,
    ReduceOp::Min,
    ReduceOp::Max,
    ReduceOp::BitAnd,
    ReduceOp::BitOr,
    ReduceOp::BitXor,
];

/// A call as one other rank needs to know it.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    op: &'static str,
    reduction: Option<Reduction>,
    root: Option<u32>,
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

    pub fn write(&self, to: &mut Writer) {
        to.word(self.op);
        match self.reduction {
            None => to.u8(0),
            Some(Reduction::PreMulSum { factor }) => {
                to.u8(1);
                to.u64(factor.to_bits());
            }
            Some(Reduction::Op(op)) => to.u8(2 + position(&REDUCTIONS, &op)),
        }
        to.u64(self.root.map_or(0, |root| u64::from(root) + 1));
        to.u8(position(DType::ALL, &self.dtype));
        [self.count, self.gives, self.wants].iter().for_each(|number| to.u64(*number));
    }

    pub fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let op = from.word()?;
        let reduction = match from.u8()? {
            0 => None,
            1 => Some(Reduction::PreMulSum { factor: f64::from_bits(from.u64()?) }),
            code => Some(Reduction::Op(*REDUCTIONS.get(usize::from(code) - 2).ok_or(Malformed)?)),
        };
        let root = from.u64()?.checked_sub(1).map(u32::try_from).transpose().map_err(|_| Malformed)?;
        let dtype = *DType::ALL.get(usize::from(from.u8()?)).ok_or(Malformed)?;
        Ok(Self { op, reduction, root, dtype, count: from.u64()?, gives: from.u64()?, wants: from.u64()? })
    }
}

/// Both lists are shorter than 200 and hold every value there is.
fn position<T: PartialEq>(list: &[T], value: &T) -> u8 {
    list.iter().position(|entry| entry == value).map_or(u8::MAX, |at| at as u8)
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
