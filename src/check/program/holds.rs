//! Whether an operand of the program is what a node of the graph makes.

use super::{Play, Player, different, undecided};
use crate::check::memory::attribute;
use crate::check::terms::{Val, Value};
use crate::ir::operators::split_target;
use crate::ir::{Arg, Graph, NodeId, Op};
use crate::program::{HostId, Layout, Operand, View};
use smallvec::SmallVec;

/// Most views that are looked through.
const MAX_VIEWS: u32 = 64;

impl<'g> Player<'_, 'g, '_> {
    /// The attribute of the module that a node reads, if `host` is a value by the node's name: no step makes it, and it
    /// holds what the attribute does. None of an attribute that lies in a buffer, where writes to that would be missed.
    pub(super) fn attribute_of(&self, node: NodeId, host: HostId) -> Option<&'g str> {
        let name = self.program.hosts.get(host.0 as usize)?;
        attribute(self.graph, node).filter(|_| **name == *self.graph.name_of(node))?;
        Some(self.graph.target_of(node)).filter(|target| !self.constants.contains_key(target))
    }

    /// Needs an operand to be `val`, the value of `node` when it is read.
    pub(super) fn holds(&mut self, operand: &Operand, node: NodeId, val: Val) -> Play {
        match operand {
            Operand::Tensor(view) => self.view_holds(*view, node, val),
            Operand::Int(value) => match self.context.value(val) {
                Value::Int(expr) if expr.as_constant() == Some(*value) => Ok(()),
                Value::Int(expr) => different(format!("{value} is given for `{}`, which is {expr}", self.name(node))),
                // A size that is read from a value that is not followed: the type says it.
                _ => match self.graph.type_of(node) {
                    crate::ir::Type::SymInt(expr) if expr.as_constant() == Some(*value) => Ok(()),
                    _ => different(format!("{value} is given for `{}`, which is no such integer", self.name(node))),
                },
            },
            Operand::Host(host) => match self.hosts.get(host) {
                Some(&known) if known == val => Ok(()),
                Some(_) => different(format!("another value is given for `{}`", self.name(node))),
                None => match self.attribute_of(node, *host).map(|target| self.held.get(target)) {
                    Some(Some(&known)) if known == val => Ok(()),
                    Some(_) => undecided(format!("what `{}` holds by then", self.name(node))),
                    None if self.is_written(node) => undecided(format!("what `{}` is by then", self.name(node))),
                    None => different(format!("another value is given for `{}`", self.name(node))),
                },
            },
            Operand::Tuple(items) => {
                let Value::Tuple(parts) = self.context.value(val).clone() else {
                    return undecided(format!("`{}` is a tuple that is not followed", self.name(node)));
                };
                if parts.len() != items.len() {
                    return different(format!("a tuple of another length is given for `{}`", self.name(node)));
                }
                items.iter().zip(parts).try_for_each(|(item, part)| self.holds(item, node, part))
            }
        }
    }

    fn name(&self, node: NodeId) -> &str {
        self.graph.name_of(node)
    }

    pub(super) fn view_holds(&mut self, view: View, node: NodeId, val: Val) -> Play {
        let mut layout = self.program.layout(view.layout).clone();
        let (mut at, mut wanted) = (node, val);
        let mut first = None;
        for _ in 0..MAX_VIEWS {
            let found = self.contents.get(self.context, self.program, view, &layout);
            if matches!(&found, Ok(found) if *found == wanted) {
                return Ok(());
            }
            first.get_or_insert(found);
            // A view that the walk of the graph did not follow: undone, it has to be what it is a view of. Memory that is
            // written holds another value later.
            let Some((base, back)) = self.undone(&layout, at).filter(|_| !self.is_written(at)) else { break };
            (at, wanted, layout) = (base, self.walked.vals[base.index()], back);
        }
        let found = match first {
            Some(Ok(found)) => self.shown(found),
            Some(Err(halt)) => return Err(halt),
            None => String::new(),
        };
        let (place, name, wanted) = (self.program.show_view(view), self.name(node), self.shown(val));
        different(format!("`{place}` has to hold `{name}`, which is {wanted}; it holds {found}"))
    }

    pub(super) fn is_written(&self, node: NodeId) -> bool {
        self.walked.written.get(node.index()).is_some_and(|&class| class != u32::MAX)
    }

    /// What a node is a view of, and how that lies if the node lies as `layout` says.
    fn undone(&self, layout: &Layout, node: NodeId) -> Option<(NodeId, Layout)> {
        let graph = self.graph;
        let &base = graph.operands(node).first()?;
        match graph.node(node).op {
            Op::Wait if !graph.waits_for_list(node) => Some((base, layout.clone())),
            Op::Call(target) => {
                let args = graph.args_of(node);
                let (_, operator, _) = split_target(graph.text(target));
                let rank = layout.shape.len();
                match operator {
                    "alias" | "detach" => Some((base, layout.clone())),
                    "permute" => {
                        let Some(Arg::List(dims) | Arg::Tuple(dims)) = args.at(1, "dims") else { return None };
                        let dims: Vec<usize> = dims.iter().map(|dim| place(dim, rank)).collect::<Option<_>>()?;
                        let inverse: Option<Vec<usize>> =
                            (0..rank).map(|dim| dims.iter().position(|&other| other == dim)).collect();
                        Some((base, turned(layout, &inverse?)))
                    }
                    "transpose" | "t" | "swapaxes" | "swapdims" if rank >= 2 => {
                        let dim = |at: usize, name: &str, default: usize| {
                            args.at(at, name).map_or(Some(default), |arg| place(arg, rank))
                        };
                        let mut order: Vec<usize> = (0..rank).collect();
                        order.swap(dim(1, "dim0", 0)?, dim(2, "dim1", 1)?);
                        Some((base, turned(layout, &order)))
                    }
                    "expand" => Some((base, unexpanded(layout, &shape_of(graph, base)?)?)),
                    "unsqueeze" if !layout.is_dense() => {
                        let dim = place(args.at(1, "dim")?, rank)?;
                        let mut back = layout.clone();
                        back.strides.remove(dim);
                        (back.shape.remove(dim) == 1).then_some((base, back))
                    }
                    "view" | "reshape" | "_unsafe_view" | "squeeze" | "unsqueeze" | "flatten" if layout.is_dense() => {
                        let shape = shape_of(graph, base)?;
                        let same = graph.tensor(base)?.dtype == layout.dtype;
                        let back = Layout::dense(layout.dtype, &shape)?;
                        (same && back.elements() == layout.elements()).then_some((base, back))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    pub(super) fn shown(&self, val: Val) -> String {
        let show = crate::check::show::Show { context: self.context, graphs: [self.graph, self.graph] };
        let mut text = show.term(val);
        if text.len() > 400 {
            let end = (0..=400).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text.truncate(end);
            text.push_str(" ..");
        }
        text
    }
}

fn place(arg: &Arg, rank: usize) -> Option<usize> {
    let dim = arg.as_int()?;
    usize::try_from(if dim < 0 { dim + i64::try_from(rank).ok()? } else { dim }).ok().filter(|&dim| dim < rank)
}

fn turned(layout: &Layout, order: &[usize]) -> Layout {
    let pick = |list: &[u64]| order.iter().map(|&dim| list[dim]).collect();
    Layout { dtype: layout.dtype, shape: pick(&layout.shape), strides: pick(&layout.strides) }
}

fn shape_of(graph: &Graph, node: NodeId) -> Option<SmallVec<[u64; 4]>> {
    graph.tensor(node)?.shape.iter().map(crate::ir::Dim::as_const).collect()
}

/// The layout of what was expanded: repeated dimensions once, new ones gone.
fn unexpanded(layout: &Layout, shape: &[u64]) -> Option<Layout> {
    let new = layout.shape.len().checked_sub(shape.len())?;
    let repeats = |dim: usize| layout.strides[dim] == 0 || layout.shape[dim] == 1;
    let kept = |dim: usize| shape[dim - new] == layout.shape[dim] || (shape[dim - new] == 1 && repeats(dim));
    if !(0..new).all(repeats) || !(new..layout.shape.len()).all(kept) {
        return None;
    }
    Some(Layout { dtype: layout.dtype, shape: shape.into(), strides: layout.strides[new..].into() })
}
