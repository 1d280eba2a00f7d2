//! Whether a pending result is read.
//!
//! Each node's value is in one storage or several; a view shares those of its operand, or a span of the one. A collective
//! makes the storages of its result pending, and a wait on any view of them makes them valid. One walk in program order.

use super::spans::{Pending, Span};
use super::{NodeName, VerifyError};
use crate::ir::effects::EffectTable;
use crate::ir::entities::{Name, NodeId};
use crate::ir::graph::Graph;
use crate::ir::operators::{Alias, element_index, must_copy};
use crate::ir::ops::{Collective, Op, Variant};

/// The storages of a value.
#[derive(Clone, Copy)]
enum Storages {
    /// A span of this one.
    One(u32, Span),
    /// This many from this one on, one for each element of a coalesced result.
    Range(u32, u32),
    /// A list kept by [`PendingCheck`]: the operands of a collective that writes several.
    List(u32),
}

impl Default for Storages {
    fn default() -> Self {
        Self::Range(0, 0)
    }
}

/// What is pending, node by node.
struct PendingCheck<'g> {
    graph: &'g Graph,
    effects: EffectTable,
    /// By arena index.
    of: Vec<Storages>,
    /// By storage: what made it pending.
    pending: Vec<Pending>,
    lists: Vec<Vec<Storages>>,
    /// Whether sizes or strides were changed in place above, so that types do not say where parts lie.
    restated: bool,
}

/// Reports each read or write of a pending value.
pub(super) fn check(graph: &Graph, errors: &mut Vec<VerifyError>) {
    let mut check = PendingCheck {
        graph,
        effects: EffectTable::of(graph),
        of: vec![Storages::default(); graph.arena_len()],
        pending: Vec::new(),
        lists: Vec::new(),
        restated: false,
    };
    for &id in graph.order() {
        check.node(id, errors);
    }
}

impl PendingCheck<'_> {
    fn node(&mut self, id: NodeId, errors: &mut Vec<VerifyError>) {
        let graph = self.graph;
        match graph.node(id).op {
            Op::Input => {
                let pending = graph.meta_of(id).pending.then_some(id);
                self.of[id.index()] = self.fresh(pending);
            }
            Op::Output => {}
            Op::Wait => {
                for operand in graph.operands(id) {
                    self.set_pending(self.of[operand.index()], None);
                }
                if graph.waits_for_list(id) {
                    self.of[id.index()] = self.list(graph.operands(id));
                } else if let Some(first) = graph.operands(id).first() {
                    self.of[id.index()] = self.of[first.index()];
                }
            }
            Op::Collective(collective) => {
                self.read_operands(id, errors);
                self.of[id.index()] = self.start(id, collective);
            }
            Op::Call(target) => self.call(id, target, errors),
        }
    }

    /// A storage of its own.
    fn fresh(&mut self, pending: Option<NodeId>) -> Storages {
        let Storages::Range(first, _) = self.several(1, pending) else { return Storages::default() };
        Storages::One(first, Span::ALL)
    }

    fn several(&mut self, count: u32, pending: Option<NodeId>) -> Storages {
        let first = self.pending.len() as u32;
        self.pending.resize(self.pending.len() + count as usize, Pending::default());
        let storages = Storages::Range(first, count);
        self.set_pending(storages, pending);
        storages
    }

    /// Makes the result of a collective pending.
    fn start(&mut self, id: NodeId, collective: Collective) -> Storages {
        let graph = self.graph;
        let inputs = graph.collective_inputs(id);
        let written: Vec<NodeId> = match collective.variant {
            Variant::Functional if collective.coalesced => return self.several(inputs.len() as u32, Some(id)),
            Variant::Functional => return self.fresh(Some(id)),
            Variant::InPlace => inputs.to_vec(),
            Variant::Out => {
                let mut out = Vec::new();
                let operands = graph.operands(id);
                if let Some(arg) = graph.args_of(id).get("out") {
                    arg.for_each_operand(&mut |index| out.extend(operands.get(index as usize)));
                }
                out
            }
        };
        let list = self.list(&written);
        self.set_pending(list, Some(id));
        match (list, self.lists.last().map(Vec::as_slice)) {
            (_, Some(&[one])) if !collective.coalesced => one,
            _ => list,
        }
    }

    /// The storages of several nodes as a list. Lists hold no lists: a tuple among the operands is at fault, and following
    /// it could take forever.
    fn list(&mut self, nodes: &[NodeId]) -> Storages {
        let flat = |storages| if matches!(storages, Storages::List(_)) { Storages::default() } else { storages };
        self.lists.push(nodes.iter().map(|node| flat(self.of[node.index()])).collect());
        Storages::List(self.lists.len() as u32 - 1)
    }

    fn call(&mut self, id: NodeId, target: Name, errors: &mut Vec<VerifyError>) {
        let effects = self.effects.get(id).clone();
        let operands = self.graph.operands(id);
        let copies = must_copy(self.graph, id);
        // What a higher-order operator calls may wait by itself.
        if (!effects.is_view() || copies)
            && !effects.shape_only
            && self.graph.operator(target).namespace() != "higher_order"
        {
            self.read_operands(id, errors);
        }
        let base_storages = match effects.alias {
            Alias::Of(index) if !copies => operands.get(index as usize).map(|operand| self.of[operand.index()]),
            Alias::Of(_) | Alias::Fresh | Alias::Written | Alias::Any => None,
        };
        self.of[id.index()] = match base_storages {
            Some(Storages::One(storage, span)) if self.restated => Storages::One(storage, span.somewhere()),
            Some(Storages::One(storage, span)) => Storages::One(storage, span.of_view(self.graph, id)),
            Some(storages) => self.element(storages, element_index(self.graph, id)),
            None => self.fresh(None),
        };
        self.restated |= effects.restates;
    }

    /// The storages of one element of a tuple, or all of them.
    fn element(&self, storages: Storages, index: Option<u32>) -> Storages {
        let element = match (storages, index) {
            (Storages::Range(first, count), Some(index)) if count > 1 && index < count => {
                Some(Storages::One(first + index, Span::ALL))
            }
            (Storages::List(list), Some(index)) => self.lists[list as usize].get(index as usize).copied(),
            _ => None,
        };
        element.unwrap_or(storages)
    }

    fn read_operands(&self, id: NodeId, errors: &mut Vec<VerifyError>) {
        for (place, operand) in self.graph.operands(id).iter().enumerate() {
            let Some(pending) = self.first_pending(self.of[operand.index()]) else { continue };
            let error = VerifyError::ReadPending {
                pending: NodeName::of(self.graph, pending),
                reader: NodeName::of(self.graph, id),
            };
            // One report for `add(g, g)`.
            if place == 0 || errors.last() != Some(&error) {
                errors.push(error);
            }
        }
    }

    fn first_pending(&self, storages: Storages) -> Option<NodeId> {
        match storages {
            Storages::One(storage, span) => self.pending[storage as usize].by(span),
            Storages::Range(first, count) => {
                let mut each = self.pending[first as usize..(first + count) as usize].iter();
                each.find_map(|pending| pending.by(Span::ALL))
            }
            Storages::List(list) => self.lists[list as usize].iter().find_map(|&each| self.first_pending(each)),
        }
    }

    fn set_pending(&mut self, storages: Storages, value: Option<NodeId>) {
        match storages {
            Storages::One(storage, span) => self.pending[storage as usize].set(span, value),
            Storages::Range(first, count) => {
                let each = self.pending[first as usize..(first + count) as usize].iter_mut();
                each.for_each(|pending| pending.set(Span::ALL, value));
            }
            Storages::List(list) => {
                let each = std::mem::take(&mut self.lists[list as usize]);
                each.iter().for_each(|&each| self.set_pending(each, value));
                self.lists[list as usize] = each;
            }
        }
    }
}
