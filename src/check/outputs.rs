//! Which outputs and inputs share memory.

use super::walk::Walked;
use crate::ir::optable::{Alias, split_target};
use crate::ir::{Arg, Graph, NodeId, Op};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// The memory of a value: the node that allocates it, and which of its results.
type Root = (NodeId, Option<u32>);

/// Two outputs, or an output and an input, that share memory in the result and not in the source.
pub(super) struct Shared {
    /// Output of the result.
    pub output: NodeId,
    /// The output or input it shares memory with.
    pub with: NodeId,
}

/// All of them, one for each output that shares more than it did.
pub(super) fn shared(before: &Walked<'_>, after: &Walked<'_>) -> Vec<Shared> {
    let (Some(source), Some(result)) = (before.output, after.output) else { return Vec::new() };
    let (mut old_roots, mut new_roots) = (Roots::new(before), Roots::new(after));
    let mut first: HashMap<Root, (NodeId, Root), FxBuildHasher> = HashMap::default();
    for (&(old, _), &(new, _)) in before.inputs.iter().zip(&after.inputs) {
        first.insert((new, None), (new, (old, None)));
    }
    let mut found = Vec::new();
    for (&old, &new) in before.graph.operands(source).iter().zip(after.graph.operands(result)) {
        let (old_root, new_root) = (old_roots.of(old), new_roots.of(new));
        match first.get(&new_root) {
            Some(&(with, root)) if root != old_root => found.push(Shared { output: new, with }),
            Some(_) => {}
            None => {
                first.insert(new_root, (new, old_root));
            }
        }
    }
    found
}

struct Roots<'a, 'g> {
    walked: &'a Walked<'g>,
    known: HashMap<NodeId, Root, FxBuildHasher>,
}

impl<'a, 'g> Roots<'a, 'g> {
    fn new(walked: &'a Walked<'g>) -> Self {
        Self { walked, known: HashMap::default() }
    }

    fn of(&mut self, id: NodeId) -> Root {
        let mut path = Vec::new();
        let mut at = id;
        let root = loop {
            if let Some(&root) = self.known.get(&at) {
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
            self.known.insert(node, root);
        }
        root
    }

    /// The operand whose memory a node's value is in, or its own memory.
    fn base(&self, id: NodeId) -> Result<NodeId, Root> {
        let graph = self.walked.graph;
        let own = Err((id, None));
        let operands = graph.operands(id);
        let index = match self.walked.effects.get(id).alias {
            Alias::Of(index) => index as usize,
            Alias::Fresh | Alias::Any => return own,
        };
        let Some(&base) = operands.get(index) else { return own };
        if copies(graph, id, base) {
            return own;
        }
        if let (Some(element), true) = (element_index(graph, id), self.makes_parts(base)) {
            return self.part(base, element);
        }
        Ok(base)
    }

    /// Whether a node makes a tuple of values that each have memory.
    fn makes_parts(&self, id: NodeId) -> bool {
        !matches!(self.walked.effects.get(id).alias, Alias::Of(_))
    }

    fn part(&self, tuple: NodeId, element: u32) -> Result<NodeId, Root> {
        let graph = self.walked.graph;
        // A collective into given tensors hands those on.
        let into = match graph.node(tuple).op {
            Op::Collective(_) => &self.walked.effects.get(tuple).writes,
            _ => return Err((tuple, Some(element))),
        };
        match into.get(element as usize).and_then(|&index| graph.operands(tuple).get(index as usize)) {
            Some(&operand) => Ok(operand),
            None => Err((tuple, Some(element))),
        }
    }
}

fn element_index(graph: &Graph, id: NodeId) -> Option<u32> {
    let (_, operator, _) = split_target(graph.target_of(id));
    let element = matches!(operator, "getitem" | "item" | "get_tuple_element");
    element
        .then(|| graph.args_of(id).at(1, "index").and_then(Arg::as_int))
        .flatten()
        .and_then(|i| u32::try_from(i).ok())
}

/// Whether an operator that may be a view copies here.
fn copies(graph: &Graph, id: NodeId, base: NodeId) -> bool {
    let (_, operator, _) = split_target(graph.target_of(id));
    let (Some(from), Some(to)) = (graph.tensor(base), graph.tensor(id)) else { return false };
    match operator {
        "to" | "float" | "half" | "bfloat16" | "type_as" | "cuda" | "cpu" => {
            from.dtype != to.dtype || from.device != to.device
        }
        "contiguous" => !from.is_dense(),
        "reshape" | "flatten" | "ravel" => from.strides.is_some() && !from.is_dense() && !keeps_strides(from, to),
        _ => false,
    }
}

/// Whether a tensor that is not dense takes another shape without a copy: dimensions of one step may be split or
/// joined. Only the case of equal shapes is looked at; others copy, or share what they shared before.
fn keeps_strides(from: &crate::ir::TensorType, to: &crate::ir::TensorType) -> bool {
    from.shape == to.shape
}
