//! What a call does, without its buffers: to compare with what other ranks call, and to keep.

use super::call::{Op, Reduction};
use bucketeer_types::{DType, GroupRank, ReduceOp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Whatever says what a call does: a [`Call`](super::Call) or its [`CallSignature`].
pub trait Described {
    /// What it does.
    fn op(&self) -> &Op;

    /// What its buffers hold.
    fn dtype(&self) -> DType;

    /// Bytes of the input, 0 without one.
    fn input_bytes(&self) -> u64;

    /// Bytes of the output, 0 without one.
    fn output_bytes(&self) -> u64;

    /// Elements of what each rank gives; for a scatter, of what each gets.
    fn count(&self) -> u64 {
        let bytes = match self.op() {
            Op::ReduceScatter(_) | Op::Recv { .. } => self.output_bytes(),
            _ => self.input_bytes(),
        };
        bytes / self.dtype().bytes()
    }

    /// Bytes to and from each rank, for an all-to-all in a group of `group` ranks; nothing for other ops.
    fn split_bytes(&self, group: usize) -> (Vec<u64>, Vec<u64>) {
        let part = |list: &[u64], bytes: u64| match list {
            [] => vec![bytes / (group.max(1) as u64); group],
            _ => list.iter().map(|count| count.saturating_mul(self.dtype().bytes())).collect(),
        };
        match self.op() {
            Op::AllToAll { send, receive } => (part(send, self.input_bytes()), part(receive, self.output_bytes())),
            _ => (Vec::new(), Vec::new()),
        }
    }
}

/// What a call does. Its JSON form is an object of names and numbers, as in a flight record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "Form", try_from = "Form")]
pub struct CallSignature {
    op: Op,
    dtype: DType,
    input_bytes: u64,
    output_bytes: u64,
}

impl CallSignature {
    /// Of a call.
    #[must_use]
    pub fn of(call: &impl Described) -> Self {
        let (input_bytes, output_bytes) = (call.input_bytes(), call.output_bytes());
        Self { op: call.op().clone(), dtype: call.dtype(), input_bytes, output_bytes }
    }

    /// The same on all ranks of a collective: without how an all-to-all is split, and how much of it is this rank's.
    #[cfg(feature = "nccl")]
    pub(super) fn without_splits(self) -> Self {
        match self.op {
            Op::AllToAll { .. } => {
                let op = Op::AllToAll { send: Vec::new(), receive: Vec::new() };
                Self { op, dtype: self.dtype, input_bytes: 0, output_bytes: 0 }
            }
            _ => self,
        }
    }
}

impl Described for CallSignature {
    fn op(&self) -> &Op {
        &self.op
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn input_bytes(&self) -> u64 {
        self.input_bytes
    }

    fn output_bytes(&self) -> u64 {
        self.output_bytes
    }
}

impl fmt::Display for CallSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.name())?;
        if let Some(reduction) = self.op.reduction() {
            write!(f, " {reduction}")?;
        }
        for (word, rank) in [("root", self.op.root()), ("peer", self.op.peer())] {
            if let Some(rank) = rank {
                write!(f, " {word} {}", rank.0)?;
            }
        }
        match self.op {
            Op::Barrier => Ok(()),
            _ => write!(f, " {} x {}", self.dtype.short_name(), self.count()),
        }
    }
}

/// The JSON form.
#[derive(Serialize, Deserialize)]
struct Form {
    op: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    reduction: Option<String>,
    /// The bits of a factor, which JSON has no numbers for: it may be infinite or no number.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    factor_bits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    root: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    peer: Option<u32>,
    dtype: String,
    input_bytes: u64,
    output_bytes: u64,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    send_elements: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    receive_elements: Vec<u64>,
}

impl From<CallSignature> for Form {
    fn from(outline: CallSignature) -> Self {
        let CallSignature { op, dtype, input_bytes, output_bytes } = outline;
        let (reduction, factor_bits) = match op.reduction() {
            Some(Reduction::Op(op)) => (Some(op.name().to_owned()), None),
            Some(Reduction::PreMulSum { factor }) => (None, Some(factor.to_bits())),
            None => (None, None),
        };
        let (name, root, peer) = (op.name().to_owned(), op.root(), op.peer());
        let (send_elements, receive_elements) = match op {
            Op::AllToAll { send, receive } => (send, receive),
            _ => (Vec::new(), Vec::new()),
        };
        Self {
            op: name,
            reduction,
            factor_bits,
            root: root.map(|rank| rank.0),
            peer: peer.map(|rank| rank.0),
            dtype: dtype.short_name().to_owned(),
            input_bytes,
            output_bytes,
            send_elements,
            receive_elements,
        }
    }
}

impl TryFrom<Form> for CallSignature {
    type Error = String;

    fn try_from(form: Form) -> Result<Self, String> {
        let reduction = || match (&form.reduction, form.factor_bits) {
            (Some(name), None) => ReduceOp::from_name(name).map(Reduction::Op),
            (None, Some(bits)) => Some(Reduction::PreMulSum { factor: f64::from_bits(bits) }),
            _ => None,
        };
        let reduction = || reduction().ok_or_else(|| format!("{} has no reduction that is known", form.op));
        let rank =
            |what: &str, rank: Option<u32>| rank.map(GroupRank).ok_or_else(|| format!("{} has no {what}", form.op));
        let op = match &*form.op {
            "all_reduce" => Op::AllReduce(reduction()?),
            "all_gather_into" => Op::AllGather,
            "reduce_scatter" => Op::ReduceScatter(reduction()?),
            "broadcast" => Op::Broadcast { root: rank("root", form.root)? },
            "reduce" => Op::Reduce { op: reduction()?, root: rank("root", form.root)? },
            "all_to_all_single" => Op::AllToAll { send: form.send_elements, receive: form.receive_elements },
            "send" => Op::Send { to: rank("peer", form.peer)? },
            "recv" => Op::Recv { from: rank("peer", form.peer)? },
            "barrier" => Op::Barrier,
            other => return Err(format!("`{other}` is not an op")),
        };
        let dtype = DType::from_name(&form.dtype).ok_or_else(|| format!("`{}` is not a dtype", form.dtype))?;
        Ok(Self { op, dtype, input_bytes: form.input_bytes, output_bytes: form.output_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_survives_json() {
        let (sum, factor) = (Reduction::Op(ReduceOp::Sum), Reduction::PreMulSum { factor: f64::NEG_INFINITY });
        let root = GroupRank(3);
        let ops = [
            Op::AllReduce(factor),
            Op::AllGather,
            Op::ReduceScatter(sum),
            Op::Broadcast { root },
            Op::Reduce { op: sum, root },
            Op::AllToAll { send: vec![1, 0], receive: vec![2, 5] },
            Op::Send { to: root },
            Op::Recv { from: root },
            Op::Barrier,
        ];
        for op in ops {
            let outline = CallSignature { op, dtype: DType::Bf16, input_bytes: 12, output_bytes: 14 };
            let text = serde_json::to_string(&outline).unwrap();
            assert_eq!(serde_json::from_str::<CallSignature>(&text).unwrap(), outline, "{text}");
        }
    }

    #[test]
    fn json_that_is_no_call_is_refused() {
        let whole = r#"{"op":"all_reduce","reduction":"sum","dtype":"f32","input_bytes":4,"output_bytes":4}"#;
        assert_eq!(serde_json::from_str::<CallSignature>(whole).unwrap().to_string(), "all_reduce sum f32 x 1");
        for (from, to) in [("all_reduce", "all"), ("sum", "mean"), ("f32", "f33"), (r#""reduction":"sum","#, "")] {
            assert!(serde_json::from_str::<CallSignature>(&whole.replace(from, to)).is_err(), "{to}");
        }
    }
}
