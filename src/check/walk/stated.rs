//! What a walk found, held against the types that the graph states.

use super::{Result, Walk, fault};
use crate::check::int::Int;
use crate::check::terms::{Val, Value};
use crate::ir::{NodeId, Type};

impl Walk<'_, '_> {
    /// Whether what was found agrees with what the graph states.
    pub(super) fn check_type(&self, id: NodeId, val: Val) -> Result {
        let stated = self.found.graph.type_of(id);
        match self.clash(val, stated) {
            Some(found) => fault(id, format!("is stated to be {stated}, but makes {found}")),
            None => Ok(()),
        }
    }

    /// Whether the sizes of a value are the stated ones, whatever the symbols are.
    pub(super) fn is_as_stated(&self, val: Val, stated: &Type) -> bool {
        match (self.context.value(val), stated) {
            (Value::Tensor(tensor), Type::Tensor(stated)) => {
                crate::check::terms::shape_of(stated).is_some_and(|stated| tensor.shape == stated)
            }
            (Value::Int(found), Type::SymInt(stated)) => found == stated,
            (Value::Tuple(parts), Type::Tuple(stated)) => {
                parts.iter().zip(stated).all(|(&part, stated)| self.is_as_stated(part, stated))
            }
            _ => true,
        }
    }

    /// What a value is, or a part of it, where that is not what is stated.
    fn clash(&self, val: Val, stated: &Type) -> Option<String> {
        // Of sizes with symbols: one is larger wherever the symbols are positive.
        let differ = |found: &Int, stated: &Int| found.compare(stated).is_some_and(std::cmp::Ordering::is_ne);
        match (self.context.value(val), stated) {
            (Value::Tensor(tensor), Type::Tensor(stated)) => {
                let mut sizes = tensor.shape.iter().zip(&stated.shape);
                let clash = tensor.dtype != stated.dtype
                    || tensor.shape.len() != stated.shape.len()
                    || sizes.any(|(found, dim)| Int::from_dim(dim).is_some_and(|stated| differ(found, &stated)));
                clash.then(|| {
                    let sizes: Vec<String> = tensor.shape.iter().map(Int::to_string).collect();
                    format!("{}[{}]", tensor.dtype.short_name(), sizes.join(", "))
                })
            }
            (Value::Int(found), Type::SymInt(stated)) => {
                let (found, stated) = (Int::from_expr(found.clone()), Int::from_expr(stated.clone()));
                differ(&found, &stated).then(|| format!("Sym({found})"))
            }
            (Value::Tuple(parts), Type::Tuple(stated)) if parts.len() != stated.len() => {
                Some(format!("{} parts", parts.len()))
            }
            (Value::Tuple(parts), Type::Tuple(stated)) => {
                parts.iter().zip(stated).find_map(|(&part, stated)| self.clash(part, stated))
            }
            _ => None,
        }
    }
}
