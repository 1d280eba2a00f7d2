//! Views of memory that is written.

use super::elements::element_index;
use super::strides::copies_by_layout;
use super::{Result, Walk, fault, undecided};
use crate::check::effects::{Alias, Effects, Placement};
use crate::check::flat::{Leaf, Piece};
use crate::check::layout;
use crate::check::terms::{Term, Val, Value};
use crate::ir::operators::split_target;
use crate::ir::{Name, NodeId};

impl Walk<'_, '_> {
    /// A view whose memory is still to be written.
    pub(super) fn view_of_memory(&mut self, id: NodeId, position: usize, target: Name, index: usize) -> Result {
        let graph = self.found.graph;
        let Some(&base) = graph.operands(id).get(index) else { return fault(id, "is a view of nothing") };
        let effects = self.found.effects.get(id).clone();
        let Some(place) = self.memory.place(base) else {
            return self.element_of_unknown(id, position, target, &effects);
        };
        if self.window_of_memory(id, target, index)? {
            return Ok(());
        }
        self.read_operands(id)?;
        let mut operands = std::mem::take(&mut self.operands);
        operands[index] = place;
        let view = match effects.placement {
            Placement::Unseen => self.meaning(id, target, &operands),
            Placement::Strides | Placement::Place => None,
        };
        self.operands = operands;
        let val = self.pure(id, target, &effects)?;
        self.set(id, val);
        self.in_flight[id.index()] = self.part_in_flight(id, base);
        let Some(view) = view else {
            return self.view_not_followed(id, position, val, base);
        };
        let is_view = self.is_view_of_memory(target, view);
        let (_, operator, _) = split_target(graph.text(target));
        // A storage holds its elements in logical order; what is a view follows from how they lie.
        let copies = if copies_by_layout(operator) { self.copies(id, target) } else { None };
        if copies == Some(false) && !is_view {
            return self.view_not_followed(id, position, val, base);
        }
        if is_view && copies != Some(true) {
            self.memory.set_view(self.context, id, view, base);
            self.in_flight[id.index()] = self.inherited_in_flight(id, base);
        } else if self.memory.is_live(id, position) {
            self.allocate(id, val)?;
        }
        Ok(())
    }

    /// A view that may be anywhere in the memory of its operand.
    fn view_not_followed(&mut self, id: NodeId, position: usize, val: Val, base: NodeId) -> Result {
        if self.memory.is_live(id, position) { self.loose_view(id, val, val, &[base]) } else { Ok(()) }
    }

    /// The element of a tuple whose parts have no places yet.
    fn element_of_unknown(&mut self, id: NodeId, position: usize, target: Name, effects: &Effects) -> Result {
        let graph = self.found.graph;
        let base = graph.operands(id)[0];
        let is_element = element_index(graph, id).is_some();
        let val = self.pure(id, target, effects)?;
        self.set(id, val);
        self.in_flight[id.index()] = self.part_in_flight(id, base);
        if self.memory.is_loose(base) || !is_element {
            return self.view_not_followed(id, position, val, base);
        }
        if matches!(self.found.effects.get(base).alias, Alias::Of(_)) {
            return undecided(id, "whose memory it is, and the memory is written");
        }
        self.taken_apart.insert(base);
        if let Some(&place) = self.elements.get(&(base, val)) {
            self.memory.set_place(id, place);
        } else if let Some(place) = self.allocate(id, val)? {
            self.elements.insert((base, val), place);
        }
        Ok(())
    }

    /// Whether a result over storage leaves is a view by strides, and not a copy.
    pub(super) fn is_view_of_memory(&self, target: Name, view: Val) -> bool {
        let graph = self.found.graph;
        let (_, operator, _) = split_target(graph.text(target));
        let Value::Tensor(tensor) = self.context.value(view) else { return true };
        let storage = |leaf: Leaf| matches!(self.context.leaf(leaf).term, Term::Storage(_));
        if !tensor.flat.pieces.iter().all(|piece| storage(piece.leaf)) {
            return false;
        }
        match operator {
            "reshape" | "flatten" | "ravel" | "to" => layout::has_strides(tensor) == Some(true),
            "contiguous" => tensor.flat.single().is_none_or(Piece::is_dense),
            _ => true,
        }
    }
}
