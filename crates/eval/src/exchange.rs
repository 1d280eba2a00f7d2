//! Collectives: what each rank of a team receives from what all of them sent.
//!
//! Reductions run in the order of the group's ranks, rounded to the dtype at each step; an average is their sum divided
//! once. A sum of bools is their or. Nothing is reduced in floats of one byte.

use super::memory::NodeError;
use super::tensor::{Tensor, count};
use bucketeer::ir::{CollectiveKind, DType, ReduceOp};
use bucketeer_types::class::{Class, class, is_fp8};
use bucketeer_types::num::{combine, load_float, load_int, store_float, store_int};
use std::cell::OnceCell;

/// What the ranks of a team send, in the order of the group's ranks.
pub struct Sent<'a> {
    /// Sizes and dtypes; where they are does not matter.
    pub tensors: &'a [Tensor],
    /// Elements in logical order.
    pub bytes: &'a [Vec<u8>],
    /// For all-to-all, by rank: rows to send to and to receive from each rank.
    pub splits: &'a [Splits],
    /// For permute: from and to.
    pub pairs: &'a [(usize, usize)],
    /// All ranks' elements reduced to one tensor's, once some rank asked for them.
    pub reduced: OnceCell<Vec<u8>>,
}

/// How many rows of an all-to-all go where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Splits {
    /// Rows from each rank.
    pub output: Vec<usize>,
    /// Rows to each rank.
    pub input: Vec<usize>,
}

/// Sizes and elements that one rank receives.
pub type Received = (Vec<usize>, Vec<u8>);

impl Sent<'_> {
    /// Whether all ranks send tensors alike, as all kinds but all-to-all want.
    fn alike(&self) -> Result<(), NodeError> {
        let first = &self.tensors[0];
        match self.tensors.iter().position(|tensor| (tensor.dtype, &tensor.sizes) != (first.dtype, &first.sizes)) {
            None => Ok(()),
            Some(rank) => {
                let say = |tensor: &Tensor| format!("{} {:?}", tensor.dtype.short_name(), tensor.sizes);
                let (a, b) = (say(first), say(&self.tensors[rank]));
                Err(NodeError::misfit(format!("group rank 0 sends {a}, group rank {rank} {b}")))
            }
        }
    }

    /// What the rank at `place` receives.
    ///
    /// # Errors
    /// When sizes do not fit, or the reduction is not defined.
    pub fn receive(&self, kind: CollectiveKind, place: usize) -> Result<Received, NodeError> {
        if kind != CollectiveKind::AllToAll {
            self.alike()?;
        }
        let own = &self.tensors[place];
        let root = |root: u32| match (root as usize) < self.tensors.len() {
            true => Ok(root as usize),
            false => Err(NodeError::misfit(format!("there is no root {root} among {} ranks", self.tensors.len()))),
        };
        match kind {
            CollectiveKind::AllGather { dim } => self.gather(dim as usize),
            CollectiveKind::ReduceScatter { op, dim } => self.scatter(op, dim as usize, place),
            CollectiveKind::AllReduce { op } => Ok((own.sizes.clone(), self.reduced(op)?.to_vec())),
            CollectiveKind::Broadcast { root: from } => Ok((own.sizes.clone(), self.bytes[root(from)?].clone())),
            // Elsewhere than on the root the result is what was sent.
            CollectiveKind::Reduce { op, root: to } => {
                let bytes = if root(to)? == place { self.reduced(op)?.to_vec() } else { self.bytes[place].clone() };
                Ok((own.sizes.clone(), bytes))
            }
            CollectiveKind::AllToAll => self.all_to_all(place),
            CollectiveKind::Permute => {
                let from = self.pairs.iter().find(|(_, to)| *to == place).map(|(from, _)| *from);
                let bytes = match from.map(|from| self.bytes.get(from)) {
                    None => vec![0; self.bytes[place].len()],
                    Some(Some(bytes)) => bytes.clone(),
                    Some(None) => return Err(NodeError::misfit("a pair names a rank that is not in the group")),
                };
                Ok((own.sizes.clone(), bytes))
            }
        }
    }

    fn gather(&self, dim: usize) -> Result<Received, NodeError> {
        let mut sizes = self.tensors[0].sizes.clone();
        if sizes.is_empty() {
            // Single elements are gathered to one a rank.
            sizes.push(1);
        }
        if dim >= sizes.len() {
            return Err(NodeError::misfit(format!("there is no dimension {dim}")));
        }
        let rows = count(&sizes[..dim]);
        sizes[dim] = sizes[dim].saturating_mul(self.tensors.len());
        let mut out = Vec::with_capacity(self.bytes.iter().map(Vec::len).sum());
        for row in 0..rows {
            for bytes in self.bytes {
                let run = bytes.len() / rows;
                out.extend_from_slice(&bytes[row * run..(row + 1) * run]);
            }
        }
        Ok((sizes, out))
    }

    fn scatter(&self, op: ReduceOp, dim: usize, place: usize) -> Result<Received, NodeError> {
        let ranks = self.tensors.len();
        let mut sizes = self.tensors[0].sizes.clone();
        match sizes.get_mut(dim) {
            Some(size) if size.is_multiple_of(ranks) => *size /= ranks,
            size => {
                return Err(NodeError::misfit(format!(
                    "size {size:?} of dimension {dim} is not divided by {ranks} ranks"
                )));
            }
        }
        let whole = self.reduced(op)?;
        let rows = count(&sizes[..dim]);
        let run = count(&sizes[dim..]) * self.tensors[0].width();
        let mut out = Vec::with_capacity(rows * run);
        for row in 0..rows {
            let start = (row * ranks + place) * run;
            out.extend_from_slice(&whole[start..start + run]);
        }
        Ok((sizes, out))
    }

    /// All ranks' elements reduced to one tensor's, the same for each rank.
    fn reduced(&self, op: ReduceOp) -> Result<&[u8], NodeError> {
        match self.reduced.get() {
            Some(whole) => Ok(whole),
            None => {
                let whole = self.reduce(op)?;
                Ok(self.reduced.get_or_init(|| whole))
            }
        }
    }

    fn reduce(&self, op: ReduceOp) -> Result<Vec<u8>, NodeError> {
        let dtype = self.tensors[0].dtype;
        check_reduction(op, dtype)?;
        let width = dtype.bytes() as usize;
        let mut total = self.bytes[0].clone();
        for bytes in &self.bytes[1..] {
            let mut next = Vec::with_capacity(total.len());
            for (left, right) in total.chunks_exact(width).zip(bytes.chunks_exact(width)) {
                combine(op, dtype, left, right, &mut next);
            }
            total = next;
        }
        Ok(if op == ReduceOp::Avg { divided(dtype, &total, self.bytes.len()) } else { total })
    }

    fn all_to_all(&self, place: usize) -> Result<Received, NodeError> {
        let own = &self.tensors[place];
        let (mut sizes, mut out) = (own.sizes.clone(), Vec::new());
        for (from, bytes) in self.bytes.iter().enumerate() {
            let sent = &self.splits[from].input;
            let (Some(&rows), Some(&expected)) = (sent.get(place), self.splits[place].output.get(from)) else {
                return Err(NodeError::misfit("the lists of sizes are not as long as the group"));
            };
            if rows != expected
                || self.tensors[from].sizes[1..] != own.sizes[1..]
                || self.tensors[from].dtype != own.dtype
            {
                let text = format!("group rank {from} sends {rows} rows to group rank {place}, which wants {expected}");
                return Err(NodeError::misfit(text));
            }
            let row = count(&own.sizes[1..]) * own.width();
            let start = sent[..place].iter().sum::<usize>() * row;
            out.extend_from_slice(&bytes[start..start + rows * row]);
        }
        sizes[0] = self.splits[place].output.iter().sum();
        Ok((sizes, out))
    }
}

fn check_reduction(op: ReduceOp, dtype: DType) -> Result<(), NodeError> {
    let bits = matches!(op, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor);
    let name = dtype.torch_name();
    match class(dtype) {
        _ if is_fp8(dtype) => {
            Err(NodeError::Undefined(format!("{name} is not reduced by any backend; convert it first")))
        }
        Class::Opaque => Err(NodeError::Undefined(format!("{op} of {name} is not defined here"))),
        Class::Float if bits => Err(NodeError::misfit(format!("{op} of {name}"))),
        _ => Ok(()),
    }
}

fn divided(dtype: DType, total: &[u8], ranks: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(total.len());
    for element in total.chunks_exact(dtype.bytes() as usize) {
        match class(dtype) {
            Class::Float => store_float(dtype, load_float(dtype, element) / ranks as f64, &mut out),
            Class::Bool => out.extend_from_slice(element),
            Class::Int | Class::Opaque => store_int(dtype, load_int(dtype, element) / ranks as i128, &mut out),
        }
    }
    out
}
