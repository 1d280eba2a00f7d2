//! How many floating-point operations a call takes, by the shapes of what it is given.
//!
//! Formulas are those of `torch/utils/flop_counter.py` of PyTorch 2.15: a product of `m x k` and `k x n` takes `2 m n k`, masks
//! and biases take nothing, and sequences of different lengths are as long as the longest. What PyTorch counts after it has
//! taken a call apart (`linear`, `matmul`) or not at all (grouped products, products with vectors, low-level attention without
//! offsets as it lies in memory) is counted by the same rule.

use super::costs::CostError;
use crate::ir::operators::split_target;
use crate::ir::{Arg, DType, Graph, NodeId, TensorType, Type};

/// A call, its arguments and their shapes.
struct Call<'a> {
    graph: &'a Graph,
    id: NodeId,
}

/// Floating-point operations, and the type they are done in.
pub(super) type Flops = (u64, DType);

/// The operator that a target names: without what says that it writes in place.
pub(super) fn operator(target: &str) -> &str {
    let (namespace, base, _) = split_target(target);
    // Functions of PyTorch are as deep as `torch._C._nn.linear`.
    let base = if namespace == "torch" { target.rsplit('.').next().unwrap_or(base) } else { base };
    if base.starts_with("__") { base } else { base.trim_end_matches('_') }
}

/// What a call takes; `None` for one that has no formula.
pub(super) fn of_call(graph: &Graph, id: NodeId) -> Result<Option<Flops>, CostError> {
    let call = Call { graph, id };
    let operator = operator(graph.target_of(id));
    let counted = match operator {
        "mm" | "bmm" | "matmul" | "_int_mm" | "_scaled_mm" | "_scaled_mm_v2" | "mv" | "dot" | "vdot" => {
            call.matmul(0, 1)?
        }
        "addmm" | "baddbmm" | "addbmm" | "addmv" | "_addmm_activation" => call.matmul(1, 2)?,
        "_grouped_mm" | "_scaled_grouped_mm" => call.grouped(0, 1)?,
        "linear" => call.linear()?,
        "convolution" | "_convolution" | "convolution_overrideable" => call.convolution(call.flag(6))?,
        "cudnn_convolution" | "_slow_conv2d_forward" | "conv1d" | "conv2d" | "conv3d" => call.convolution(false)?,
        "convolution_backward" => call.convolution_backward()?,
        "_flash_attention_forward" => call.lengths_attention([0, 1, 2], [3, 4, 5, 6])?,
        "_flash_attention_backward" => call.lengths_attention_backward([6, 7, 8, 9])?,
        "_efficient_attention_forward" => call.lengths_attention([0, 1, 2], [4, 5, 6, 7])?,
        "_efficient_attention_backward" => call.lengths_attention_backward([6, 7, 8, 9])?,
        "flex_attention" | "scaled_dot_product_attention" => call.attention(0)?,
        "flex_attention_backward" => call.attention_backward(0)?,
        _ if operator.starts_with("_scaled_dot_product_") && operator.ends_with("_backward") => {
            call.attention_backward(1)?
        }
        _ if operator.starts_with("_scaled_dot_product_") => call.attention(0)?,
        _ => return Ok(None),
    };
    Ok(Some(counted))
}

/// A product that fits in 64 bits.
fn product(factors: impl IntoIterator<Item = u64>) -> Result<u64, CostError> {
    factors.into_iter().try_fold(1u64, u64::checked_mul).ok_or(CostError::TooLong)
}

fn sum(a: u64, b: u64) -> Result<u64, CostError> {
    a.checked_add(b).ok_or(CostError::TooLong)
}

impl<'a> Call<'a> {
    fn named(&self) -> String {
        self.graph.name_of(self.id).to_owned()
    }

    fn shapes(&self, found: String, expected: &'static str) -> CostError {
        CostError::Shapes { node: self.named(), found, expected }
    }

    fn tensor(&self, position: usize) -> Result<&'a TensorType, CostError> {
        let expected = "a tensor where the operator takes one";
        let found = match self.graph.args_of(self.id).positional.get(position) {
            Some(Arg::Operand(index)) => self.graph.operands(self.id).get(*index as usize),
            // Names differ by operator; the order of keywords is that of the schema.
            None => self.graph.operands(self.id).get(position),
            Some(_) => return Err(self.shapes(format!("argument {position} without one"), expected)),
        };
        let Some(&operand) = found else { return Err(self.shapes(format!("no argument {position}"), expected)) };
        match self.graph.type_of(operand) {
            Type::Tensor(tensor) => Ok(tensor),
            Type::Unknown => Err(CostError::Size { node: self.named() }),
            _ => Err(self.shapes(format!("argument {position} without one"), expected)),
        }
    }

    fn sizes(&self, tensor: &TensorType) -> Result<Vec<u64>, CostError> {
        let sizes = tensor.shape.iter().map(|dim| self.graph.likely_value(dim));
        sizes.collect::<Option<Vec<u64>>>().ok_or_else(|| CostError::Size { node: self.named() })
    }

    fn shape(&self, position: usize) -> Result<Vec<u64>, CostError> {
        self.sizes(self.tensor(position)?)
    }

    fn ranked<const RANK: usize>(&self, position: usize) -> Result<[u64; RANK], CostError> {
        let shape = self.shape(position)?;
        let found = format!("argument {position} of {} dimensions", shape.len());
        shape.try_into().map_err(|_| self.shapes(found, "as many as the operator takes"))
    }

    fn flag(&self, position: usize) -> bool {
        self.graph.args_of(self.id).at(position, "transposed") == Some(&Arg::Bool(true))
    }

    fn is_given(&self, position: usize) -> bool {
        matches!(self.graph.args_of(self.id).positional.get(position), Some(Arg::Operand(_)))
    }

    fn whole(&self, position: usize) -> Result<u64, CostError> {
        let found = match self.graph.args_of(self.id).positional.get(position) {
            Some(Arg::Int(value)) => u64::try_from(*value).ok(),
            Some(Arg::Operand(index)) => match self.graph.type_of(self.graph.operands(self.id)[*index as usize]) {
                Type::SymInt(expr) => {
                    crate::ir::Dim::from_expr(expr.clone()).and_then(|dim| self.graph.likely_value(&dim))
                }
                _ => None,
            },
            _ => None,
        };
        found.ok_or_else(|| CostError::Size { node: self.named() })
    }

    /// A product of matrices, batches of them or vectors.
    fn matmul(&self, left: usize, right: usize) -> Result<Flops, CostError> {
        let (a, b, dtype) = (self.shape(left)?, self.shape(right)?, self.tensor(left)?.dtype);
        let odd = || self.shapes(format!("{a:?} times {b:?}"), "matrices that can be multiplied");
        let (Some((&k, rows)), Some(&last)) = (a.split_last(), b.last()) else { return Err(odd()) };
        let (k_right, n, batch_right) = match b[..] {
            [_] => (last, 1, &b[..0]),
            [.., k_right, n] => (k_right, n, &b[..b.len() - 2]),
            [] => return Err(odd()),
        };
        let (m, batch_left) = rows.split_last().map_or((1, rows), |(&m, batch)| (m, batch));
        if k != k_right {
            return Err(odd());
        }
        // Batches of one are repeated.
        let batch = (1..=batch_left.len().max(batch_right.len())).map(|from_end| {
            let size = |batch: &[u64]| batch.len().checked_sub(from_end).map_or(1, |at| batch[at]);
            if size(batch_left) == 1 { size(batch_right) } else { size(batch_left) }
        });
        Ok((product(batch.chain([2, m, n, k]))?, dtype))
    }

    /// Products of groups: of rows, of columns or of what is summed over, where offsets say so.
    fn grouped(&self, left: usize, right: usize) -> Result<Flops, CostError> {
        let (a, b, dtype) = (self.shape(left)?, self.shape(right)?, self.tensor(left)?.dtype);
        match (&a[..], &b[..]) {
            (&[_, _, _], &[_, _, _]) => self.matmul(left, right),
            (&[m, k], &[_, inner, n] | &[inner, n]) | (&[_, m, k], &[inner, n]) if k == inner => {
                Ok((product([2, m, n, k])?, dtype))
            }
            _ => Err(self.shapes(format!("{a:?} times {b:?}"), "groups of matrices that can be multiplied")),
        }
    }

    fn linear(&self) -> Result<Flops, CostError> {
        let (input, weight) = (self.shape(0)?, self.shape(1)?);
        match (input.last(), &weight[..]) {
            (Some(k), &[n, inner]) if *k == inner => {
                Ok((product(input.into_iter().chain([2, n]))?, self.tensor(0)?.dtype))
            }
            _ => Err(self.shapes(format!("{input:?} and a weight {weight:?}"), "inputs of the weight's size")),
        }
    }

    /// One convolution: `over` are the sizes that the filter is put at.
    fn filter(batch: u64, over: &[u64], weight: &[u64]) -> Result<u64, CostError> {
        product(over.iter().chain(weight).copied().chain([batch, 2]))
    }

    fn convolution(&self, transposed: bool) -> Result<Flops, CostError> {
        let (input, weight) = (self.shape(0)?, self.shape(1)?);
        let output = match self.graph.type_of(self.id) {
            Type::Tensor(tensor) => self.sizes(tensor)?,
            _ => return Err(CostError::Size { node: self.named() }),
        };
        let over = if transposed { &input } else { &output };
        let (Some(&batch), Some(over)) = (input.first(), over.get(2..)) else {
            return Err(self.shapes(format!("an input {input:?}"), "one with a batch and channels"));
        };
        Ok((Self::filter(batch, over, &weight)?, self.tensor(0)?.dtype))
    }

    fn convolution_backward(&self) -> Result<Flops, CostError> {
        let (grad, input, weight) = (self.shape(0)?, self.shape(1)?, self.shape(2)?);
        let args = self.graph.args_of(self.id);
        let mask = match args.at(10, "output_mask") {
            Some(Arg::List(mask) | Arg::Tuple(mask)) => &mask[..],
            _ => &[],
        };
        let wants = |at: usize| mask.get(at) == Some(&Arg::Bool(true));
        let transposed = args.at(7, "transposed") == Some(&Arg::Bool(true));
        if grad.len() < 2 || input.len() < 2 || weight.len() < 2 {
            return Err(self.shapes(format!("a gradient {grad:?}"), "one with a batch and channels"));
        }
        let mut flops = 0;
        if wants(0) {
            let over = if transposed { &input } else { &grad };
            flops = Self::filter(grad[0], &over[2..], &weight)?;
        }
        if wants(1) {
            // Batch and channels change places: what was a batch is summed over.
            let (batch, filter) = if transposed { (grad[1], &input) } else { (input[1], &grad) };
            flops = sum(flops, Self::filter(batch, &weight[2..], filter)?)?;
        }
        Ok((flops, self.tensor(0)?.dtype))
    }

    /// Attention of queries, keys and values that lie as batch, heads, sequence, size.
    fn attention(&self, first: usize) -> Result<Flops, CostError> {
        let [batch, heads, queries, size] = self.ranked(first)?;
        let [_, _, keys, value_size] = self.ranked(first + 2)?;
        Ok((product([2, batch, heads, queries, keys, sum(size, value_size)?])?, self.tensor(first)?.dtype))
    }

    fn attention_backward(&self, first: usize) -> Result<Flops, CostError> {
        let [batch, heads, queries, size] = self.ranked(first)?;
        let [_, _, keys, value_size] = self.ranked(first + 2)?;
        let sizes = sum(product([3, size])?, product([2, value_size])?)?;
        Ok((product([2, batch, heads, queries, keys, sizes])?, self.tensor(first)?.dtype))
    }

    /// Batch, heads, queries, keys, and sizes of keys and values, of what lies as batch, sequence, heads, size: or as one
    /// sequence of all, cut at offsets. `lengths` are the positions of the offsets and of the longest.
    fn lengths(&self, [query, _, value]: [usize; 3], lengths: [usize; 4]) -> Result<[u64; 6], CostError> {
        let (queries, values) = (self.shape(query)?, self.shape(value)?);
        let [offsets, _, longest_query, longest_key] = lengths;
        let found = || self.shapes(format!("queries {queries:?}"), "three dimensions with offsets, or four");
        let (&[.., heads, size], &[.., value_size]) = (&queries[..], &values[..]) else { return Err(found()) };
        if self.is_given(offsets) {
            let [ends] = self.ranked(offsets)?;
            let (queries, keys) = (self.whole(longest_query)?, self.whole(longest_key)?);
            return Ok([ends.saturating_sub(1), heads, queries, keys, size, value_size]);
        }
        match (&queries[..], &values[..]) {
            (&[batch, queries, _, _], &[_, keys, _, _]) => Ok([batch, heads, queries, keys, size, value_size]),
            _ => Err(found()),
        }
    }

    fn lengths_attention(&self, tensors: [usize; 3], lengths: [usize; 4]) -> Result<Flops, CostError> {
        let [batch, heads, queries, keys, size, value_size] = self.lengths(tensors, lengths)?;
        let flops = product([2, batch, heads, queries, keys, sum(size, value_size)?])?;
        Ok((flops, self.tensor(tensors[0])?.dtype))
    }

    fn lengths_attention_backward(&self, lengths: [usize; 4]) -> Result<Flops, CostError> {
        let [batch, heads, queries, keys, size, value_size] = self.lengths([1, 2, 3], lengths)?;
        let sizes = sum(product([3, size])?, product([2, value_size])?)?;
        Ok((product([2, batch, heads, queries, keys, sizes])?, self.tensor(1)?.dtype))
    }
}

#[cfg(test)]
mod tests;
