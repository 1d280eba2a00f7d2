//! Graphs with numbers for sizes: symbols replaced by the values they are given, or hinted.

use super::entities::{NodeId, TypeId};
use super::graph::Graph;
use super::symexpr::SymExpr;
use super::symvalue;
use super::types::{Dim, TensorType, Type};
use indexmap::IndexMap;
use std::borrow::Cow;

/// A size that has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Nothing says what the size is.
    #[error("`{node}`: size `{size}` has no value; give one for `{symbol}`")]
    Unknown {
        /// Name of the first node with that size.
        node: String,
        /// The size.
        size: String,
        /// The first symbol in it without a value.
        symbol: String,
    },
    /// The size is negative, or a tensor passes 2^63 bytes.
    #[error("`{node}`: with the given values, `{what}` is negative or passes 2^63 bytes")]
    Range {
        /// Name of the first node with that size.
        node: String,
        /// The size, or the type.
        what: String,
    },
}

/// A graph with numbers for sizes, and the symbols' values that were used.
pub type Concrete<'g> = (Cow<'g, Graph>, IndexMap<Box<str>, u64>);

/// The graph with a number for every size of a tensor, and the symbols' values that were used. Values in `given` come
/// before hints. A symbolic integer that no tensor needs may stay symbolic. A graph without symbols is handed back as it is.
///
/// # Errors
/// [`SizeError`], for the first node in order that has a size without a value.
pub fn with_sizes<'g>(graph: &'g Graph, given: &IndexMap<Box<str>, u64>) -> Result<Concrete<'g>, SizeError> {
    let mut sizes = Sizes { graph, given, used: IndexMap::new() };
    let mut new: Vec<Option<Type>> = Vec::new();
    let mut seen: Vec<bool> = Vec::new();
    for &id in graph.order() {
        let ty = graph.node(id).ty.index();
        if seen.len() <= ty {
            seen.resize(ty + 1, false);
            new.resize(ty + 1, None);
        }
        if !std::mem::replace(&mut seen[ty], true) {
            new[ty] = sizes.concrete(id, graph.type_of(id))?;
        }
    }
    if new.iter().all(Option::is_none) {
        return Ok((Cow::Borrowed(graph), sizes.used));
    }
    let mut used = sizes.used;
    used.sort_keys();
    let mut result = graph.clone();
    let ids: Vec<Option<TypeId>> = new.into_iter().map(|ty| ty.map(|ty| result.intern_type(ty))).collect();
    for &id in graph.order() {
        if let Some(ty) = ids[graph.node(id).ty.index()] {
            result.node_mut(id).ty = ty;
        }
    }
    Ok((Cow::Owned(result), used))
}

struct Sizes<'a> {
    graph: &'a Graph,
    given: &'a IndexMap<Box<str>, u64>,
    used: IndexMap<Box<str>, u64>,
}

impl Sizes<'_> {
    fn value(&self, symbol: &str) -> Option<i64> {
        let value = self.given.get(symbol).or_else(|| self.graph.hints.get(symbol));
        value.and_then(|&value| i64::try_from(value).ok())
    }

    /// The value of an expression, or the first symbol without one.
    fn evaluate(&mut self, expr: &SymExpr) -> Result<Option<i64>, String> {
        let used = std::cell::RefCell::new(Vec::new());
        let unknown = std::cell::RefCell::new(None);
        let symbol = |name: &str| match self.value(name) {
            Some(value) => {
                used.borrow_mut().push((Box::from(name), value));
                Some(value)
            }
            None => {
                unknown.borrow_mut().get_or_insert_with(|| name.to_owned());
                None
            }
        };
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let atom = |text: &str| if plain(text) { symbol(text) } else { symvalue::evaluate(text, &symbol) };
        let value = expr.evaluate(&atom);
        if let Some(symbol) = unknown.into_inner() {
            return Err(symbol);
        }
        for (name, value) in used.into_inner() {
            self.used.entry(name).or_insert(value.unsigned_abs());
        }
        Ok(value)
    }

    fn size(&mut self, id: NodeId, dim: &Dim) -> Result<Dim, SizeError> {
        let Dim::Sym(expr) = dim else { return Ok(dim.clone()) };
        let node = || self.graph.name_of(id).to_owned();
        let (unknown, range) = (node(), node());
        match self.evaluate(expr) {
            Err(symbol) => Err(SizeError::Unknown { node: unknown, size: expr.to_string(), symbol }),
            Ok(value) => value
                .and_then(|value| u64::try_from(value).ok())
                .map(Dim::Const)
                .ok_or_else(|| SizeError::Range { node: range, what: expr.to_string() }),
        }
    }

    /// The type with numbers, if it has symbols.
    fn concrete(&mut self, id: NodeId, ty: &Type) -> Result<Option<Type>, SizeError> {
        match ty {
            Type::Tensor(tensor) => Ok(self.tensor(id, tensor)?.map(Type::Tensor)),
            Type::Tuple(parts) => {
                let new: Vec<Option<Type>> =
                    parts.iter().map(|part| self.concrete(id, part)).collect::<Result<_, _>>()?;
                let any = new.iter().any(Option::is_some);
                let pairs = new.into_iter().zip(parts);
                Ok(any.then(|| Type::Tuple(pairs.map(|(new, old)| new.unwrap_or_else(|| old.clone())).collect())))
            }
            Type::SymInt(expr) if expr.as_constant().is_none() => {
                // Nothing in memory depends on it.
                Ok(self.evaluate(expr).ok().flatten().map(|value| Type::SymInt(SymExpr::constant(value))))
            }
            Type::SymInt(_) | Type::Unknown | Type::SymOther(_) | Type::Token => Ok(None),
        }
    }

    fn tensor(&mut self, id: NodeId, tensor: &TensorType) -> Result<Option<TensorType>, SizeError> {
        let symbolic = |dims: &[Dim]| dims.iter().any(|dim| dim.as_const().is_none());
        let strides_symbolic = tensor.strides.as_deref().is_some_and(symbolic);
        if !symbolic(&tensor.shape) && !strides_symbolic {
            return Ok(None);
        }
        let mut new = tensor.clone();
        for dim in new.shape.iter_mut().chain(new.strides.iter_mut().flatten()) {
            *dim = self.size(id, dim)?;
        }
        let fits = new.bytes().and_then(|bytes| bytes.as_const()).is_some_and(|bytes| i64::try_from(bytes).is_ok());
        if !fits {
            let node = self.graph.name_of(id).to_owned();
            return Err(SizeError::Range { node, what: tensor.to_string() });
        }
        Ok(Some(new))
    }
}
