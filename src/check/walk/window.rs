//! Views of memory that is written, by the part of it that they see.

use super::strides::copies_by_layout;
use super::{Result, Walk};
use crate::check::effects::Placement;
use crate::check::terms::Value;
use crate::ir::operators::split_target;
use crate::ir::{Name, NodeId};

impl Walk<'_, '_> {
    /// Gives a view of one range of the memory at `place` its place and its value, which is read where it lies: to read all
    /// of the memory for each of many views of it would take its square. False where the view is of another kind.
    pub(super) fn window_of_memory(&mut self, id: NodeId, target: Name, index: usize) -> Result<bool> {
        let graph = self.found.graph;
        let (_, operator, _) = split_target(graph.text(target));
        let placed = self.found.effects.get(id).placement != Placement::Unseen;
        if placed || copies_by_layout(operator) || self.class(target).only_views {
            return Ok(false);
        }
        let base = graph.operands(id)[index];
        let mut operands = Vec::with_capacity(graph.operands(id).len());
        for (at, &operand) in graph.operands(id).iter().enumerate() {
            let place = self.memory.place(operand).filter(|_| at == index);
            operands.push(match place {
                Some(place) => place,
                None => self.read(operand, id)?,
            });
        }
        let Some(view) = self.meaning(id, target, &operands) else { return Ok(false) };
        let one = |value: &Value| matches!(value, Value::Tensor(tensor) if tensor.flat.pieces.len() == 1);
        if !one(self.context.value(view)) || !self.is_view_of_memory(target, view) {
            return Ok(false);
        }
        let Some(val) = self.memory.read(self.context, view) else { return Ok(false) };
        if !self.is_as_stated(val, graph.type_of(id)) {
            return Ok(false);
        }
        self.set(id, val);
        self.in_flight[id.index()] = self.inherited_in_flight(id, base);
        self.memory.set_view(self.context, id, view, base);
        Ok(true)
    }
}
