//! A graph with new sizes.

use super::extents::{Extent, Extents};
use super::node::{ArgPosition, Literal};
use super::solve::Sizes;
use super::trace::{Shape, Traced};
use crate::symbols::Symbols;
use bucketeer::ir::{Arg, Args, Dim, Dims, Graph, Op, SymExpr, TensorType, Type};

/// The new size of each extent.
pub struct Scale<'a> {
    /// All extents.
    pub extents: &'a Extents,
    /// Their new sizes.
    pub sizes: &'a mut Sizes,
    /// The values that symbols have.
    pub symbols: &'a Symbols,
}

impl Scale<'_> {
    /// The graph at its new sizes.
    pub fn graph(&mut self, graph: &Graph, traced: &Traced) -> Graph {
        let mut scaled = graph.clone();
        for &id in graph.order() {
            let Some(shape) = &traced.shapes[id.index()] else { continue };
            // Inputs lie as they lay, without what was between; what operators make, they lay out themselves.
            let is_input = graph.node(id).op == Op::Input;
            let ty = self.ty(graph.type_of(id), shape, is_input);
            scaled.node_mut(id).ty = scaled.intern_type(ty);
        }
        let mut literals = traced.literals.iter().peekable();
        while let Some(first) = literals.next() {
            let mut args = graph.args_of(first.node).clone();
            self.write(&mut args, first);
            while let Some(next) = literals.next_if(|next| next.node == first.node) {
                self.write(&mut args, next);
            }
            scaled.node_mut(first.node).args = scaled.intern_args(args);
        }
        scaled
    }

    fn size(&mut self, extent: Extent) -> u64 {
        self.sizes.of(self.extents, extent)
    }

    fn write(&mut self, args: &mut Args, literal: &Literal) {
        let arg = match &literal.place {
            ArgPosition::Positional(at) => args.positional.get_mut(*at),
            ArgPosition::Keyword(name) => args.keyword.iter_mut().find(|(key, _)| key == name).map(|(_, arg)| arg),
        };
        let arg = match (arg, literal.item) {
            (Some(Arg::List(items) | Arg::Tuple(items)), Some(item)) => items.get_mut(item),
            (arg, _) => arg,
        };
        if let (Some(Arg::Int(value)), Ok(size)) = (arg, i64::try_from(self.size(literal.extent))) {
            *value = size;
        }
    }

    fn ty(&mut self, ty: &Type, shape: &Shape, is_input: bool) -> Type {
        match (ty, shape) {
            (Type::Tensor(tensor), Shape::Tensor(dims)) => Type::Tensor(self.tensor(tensor, dims, is_input)),
            (Type::Tuple(types), Shape::Tuple(shapes)) => {
                Type::Tuple(types.iter().zip(shapes).map(|(ty, shape)| self.ty(ty, shape, is_input)).collect())
            }
            (Type::SymInt(expr), Shape::Number(number)) if !expr.to_string().contains('u') => {
                Type::SymInt(SymExpr::constant(i64::try_from(self.size(*number)).unwrap_or(i64::MAX)))
            }
            (other, _) => other.clone(),
        }
    }

    fn tensor(&mut self, ty: &TensorType, dims: &[Extent], is_input: bool) -> TensorType {
        let Some(old) = self.symbols.sizes(&ty.shape) else { return ty.clone() };
        let sizes: Vec<u64> = dims.iter().map(|&dim| self.size(dim)).collect();
        let numbers = |list: &[usize]| -> Vec<u64> { list.iter().map(|&size| size as u64).collect() };
        let strides = ty.strides.as_deref().and_then(|strides| self.symbols.sizes(strides));
        let strides = strides.and_then(|strides| relaid(&numbers(&old), &numbers(&strides), &sizes, is_input));
        let constants = |list: Vec<u64>| -> Dims { list.into_iter().map(Dim::Const).collect() };
        TensorType {
            dtype: ty.dtype,
            shape: constants(sizes),
            strides: strides.map(constants),
            device: ty.device.clone(),
        }
    }
}

/// Strides of new sizes in the order of old ones, without gaps; where the old ones have gaps, only if `close` says so.
fn relaid(old: &[u64], strides: &[u64], sizes: &[u64], close: bool) -> Option<Vec<u64>> {
    if old == sizes && close {
        return Some(strides.to_vec());
    }
    if old.len() != sizes.len() || strides.len() != sizes.len() {
        return None;
    }
    let mut order: Vec<usize> = (0..sizes.len()).filter(|&dim| old[dim] > 1 && strides[dim] > 0).collect();
    order.sort_by_key(|&dim| (strides[dim], std::cmp::Reverse(dim)));
    let mut new: Vec<u64> = strides.iter().map(|&stride| stride.min(1)).collect();
    let (mut step, mut step_old) = (1u64, 1u64);
    for dim in order {
        if strides[dim] != step_old && !close {
            return None;
        }
        new[dim] = step;
        step = step.saturating_mul(sizes[dim]);
        step_old = step_old.saturating_mul(old[dim]);
    }
    Some(new)
}
