//! Where values lie in memory: which operators copy, and which memory a value is in.

use super::Walk;
use super::elements::element_index;
use crate::check::effects::Alias;
use crate::check::flat::{Flat, Piece};
use crate::check::int::{Int, ONE, ZERO};
use crate::check::layout::{self, tensor_of};
use crate::check::pattern::{self, Pattern};
use crate::check::terms::{Tensor, Term, Val, Value, element, shape_of};
use crate::ir::operators::split_target;
use crate::ir::{Name, NodeId, Op, TensorType};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Most views of views that are looked through for strides.
const MAX_VIEWS: u32 = 64;

/// The memory of a value: the node that allocates it, and which of its results.
pub(crate) type Root = (NodeId, Option<u32>);

/// Whether an operator gives a view, or a copy where the elements lie otherwise than it needs.
pub(super) fn copies_by_layout(operator: &str) -> bool {
    matches!(operator, "reshape" | "flatten" | "ravel" | "reshape_as" | "contiguous")
}

/// Whether such an operator copies, of its result as places in the memory of its operand; `None` where that does not say.
/// Other operators do not.
fn is_copy(operator: &str, result: &Tensor) -> Option<bool> {
    match operator {
        "contiguous" => Some(!result.flat.single().is_none_or(Piece::is_dense)),
        _ if copies_by_layout(operator) => layout::has_strides(result).map(|view| !view),
        _ => Some(false),
    }
}

impl Walk<'_, '_> {
    /// Whether a view operator copies, and so reads elements; `None` where strides do not say.
    pub(super) fn copies(&mut self, id: NodeId, target: Name) -> Option<bool> {
        let graph = self.found.graph;
        let (_, operator, _) = split_target(graph.text(target));
        let Some(&base) = graph.operands(id).first() else { return Some(false) };
        match operator {
            "to" | "type_as" | "float" | "half" | "bfloat16" | "cpu" | "cuda" => {
                let kind = |id: NodeId| graph.tensor(id).map(|ty| (ty.dtype, ty.device.clone()));
                let (old, new) = (kind(base)?, kind(id)?);
                Some(old != new)
            }
            "item" => Some(graph.tensor(base).is_some()),
            _ if copies_by_layout(operator) => {
                let from = self.by_strides(base, 0)?;
                if operator == "contiguous" {
                    return is_copy(operator, &from);
                }
                let shape = shape_of(graph.tensor(id)?)?;
                is_copy(operator, &layout::reshape(&from, &shape)?)
            }
            _ => Some(false),
        }
    }

    /// Whether only a copy would do for this `view`: PyTorch refuses to run it.
    pub(super) fn view_cannot_be(&mut self, id: NodeId) -> bool {
        let graph = self.found.graph;
        let from = graph.operands(id).first().copied().and_then(|base| self.by_strides(base, 0));
        let shape = graph.tensor(id).and_then(shape_of);
        let view = from.zip(shape).and_then(|(from, shape)| layout::reshape(&from, &shape));
        view.and_then(|view| layout::has_strides(&view)) == Some(false)
    }

    /// A value by places in the memory that it is a view of, which is taken to lie as its type says.
    pub(super) fn by_strides(&mut self, id: NodeId, depth: u32) -> Option<Tensor> {
        let graph = self.found.graph;
        let base = graph.operands(id).first().copied().filter(|_| self.found.effects.get(id).is_view());
        let part = base.is_some_and(|base| !self.found.effects.get(base).is_view() && graph.tensor(base).is_none());
        let (Op::Call(target), Some(base), false) = (graph.node(id).op, base, part) else {
            if let (Op::Wait, Some(base)) = (graph.node(id).op, base) {
                return self.by_strides(base, depth + 1);
            }
            return self.as_stated(graph.tensor(id)?);
        };
        if depth > MAX_VIEWS {
            return None;
        }
        let from = match graph.tensor(base) {
            Some(_) => {
                let tensor = self.by_strides(base, depth + 1)?;
                self.context.intern(Value::Tensor(tensor))
            }
            // A part of a split: the split by places, found once for all its parts.
            None => match self.splits.get(&base) {
                Some(&split) => split?,
                None => {
                    let split = self.split_by_strides(base, depth);
                    self.splits.insert(base, split);
                    split?
                }
            },
        };
        let val = self.meaning_over(id, target, from)?;
        let tensor = tensor_of(self.context, val)?;
        let (_, operator, _) = split_target(graph.text(target));
        // A copy is in memory of its own.
        if is_copy(operator, &tensor) == Some(true) {
            return self.as_stated(graph.tensor(id)?);
        }
        Some(tensor)
    }

    /// A tensor of a type, where its elements lie.
    fn as_stated(&mut self, ty: &TensorType) -> Option<Tensor> {
        let shape = shape_of(ty)?;
        let leaf = self.context.intern_leaf(Term::Storage(u32::MAX), None, None);
        let strides = match &ty.strides {
            Some(strides) if !ty.is_dense() && strides.len() == shape.len() => strides,
            _ => {
                let dense = self.context.leaf_tensor(leaf, ty.dtype, shape)?;
                return tensor_of(self.context, dense);
            }
        };
        let mut places = Pattern::new();
        for (size, stride) in shape.iter().zip(strides) {
            pattern::push(&mut places, size.clone(), Int::from_dim(stride)?.mul(&element(ty.dtype))?)?;
        }
        pattern::push(&mut places, element(ty.dtype), ONE)?;
        Some(Tensor { dtype: ty.dtype, shape, flat: Flat::run(leaf, ZERO, places)? })
    }

    fn split_by_strides(&mut self, id: NodeId, depth: u32) -> Option<Val> {
        let graph = self.found.graph;
        let Op::Call(target) = graph.node(id).op else { return None };
        let whole = self.by_strides(*graph.operands(id).first()?, depth + 1)?;
        let whole = self.context.intern(Value::Tensor(whole));
        self.meaning_over(id, target, whole)
    }

    /// The value of a call with another first operand.
    fn meaning_over(&mut self, id: NodeId, target: Name, first: Val) -> Option<Val> {
        let operands = self.found.graph.operands(id);
        let mut vals: Vec<Val> = operands.iter().map(|operand| self.found.vals[operand.index()]).collect();
        *vals.first_mut()? = first;
        self.meaning(id, target, &vals)
    }

    /// The memory that each of these values is in.
    pub(super) fn roots(&mut self, nodes: &[NodeId]) -> Vec<Root> {
        let mut known: HashMap<NodeId, Root, FxBuildHasher> = HashMap::default();
        nodes.iter().map(|&node| self.root(node, &mut known)).collect()
    }

    fn root(&mut self, id: NodeId, known: &mut HashMap<NodeId, Root, FxBuildHasher>) -> Root {
        let mut path = Vec::new();
        let mut at = id;
        let root = loop {
            if let Some(&root) = known.get(&at) {
                break root;
            }
            match self.base(at) {
                Ok(base) => {
                    path.push(at);
                    at = base;
                }
                Err(root) => break root,
            }
        };
        for node in path {
            known.insert(node, root);
        }
        root
    }

    /// The operand whose memory a node's value is in, or its own memory.
    fn base(&mut self, id: NodeId) -> Result<NodeId, Root> {
        let graph = self.found.graph;
        // What a wait for a list hands on is what it waited for.
        let list = graph.operands(id).first().copied().filter(|&list| graph.waits_for_list(list));
        let element = list.zip(element_index(graph, id));
        if let Some(&waited) = element.and_then(|(list, index)| graph.operands(list).get(index as usize)) {
            return Ok(waited);
        }
        let own = Err((id, None));
        let index = match self.found.effects.get(id).alias {
            Alias::Of(index) => index as usize,
            Alias::Fresh | Alias::Written | Alias::Any => return own,
        };
        let Some(&base) = graph.operands(id).get(index) else { return own };
        if let Op::Call(target) = graph.node(id).op
            && self.copies(id, target) == Some(true)
        {
            return own;
        }
        let makes_parts = !matches!(self.found.effects.get(base).alias, Alias::Of(_));
        match element_index(graph, id) {
            Some(element) if makes_parts => self.part(base, element),
            _ => Ok(base),
        }
    }

    /// The memory of a part of a tuple of values that each have memory.
    fn part(&self, tuple: NodeId, element: u32) -> Result<NodeId, Root> {
        let graph = self.found.graph;
        let own = Err((tuple, Some(element)));
        if graph.collective(tuple).is_none() {
            return own;
        }
        // A collective into given tensors hands those on.
        let into = &self.found.effects.get(tuple).writes;
        let operand = into.get(element as usize).and_then(|&index| graph.operands(tuple).get(index as usize));
        operand.map_or(own, |&operand| Ok(operand))
    }
}
