//! Memory that may be that of other values.

use super::{Result, Walk, undecided};
use crate::check::effects::{Alias, Effects, has_memory};
use crate::check::terms::{Event, Term, Val};
use crate::ir::{NodeId, Type};

impl Walk<'_, '_> {
    /// Gives a result that is written later its memory.
    pub(super) fn place_result(&mut self, id: NodeId, val: Val, effects: &Effects) -> Result {
        if effects.alias == Alias::Fresh {
            self.allocate(id, val)?;
            return Ok(());
        }
        let graph = self.found.graph;
        let mut nodes: Vec<NodeId> = Vec::new();
        for &operand in graph.operands(id).iter().filter(|&&operand| has_memory(graph, operand)) {
            if !nodes.contains(&operand) {
                nodes.push(operand);
            }
        }
        self.loose_view(id, val, val, &nodes)
    }

    /// A value that may be in the memory of these nodes, by a call that `key` stands for.
    pub(super) fn loose_view(&mut self, id: NodeId, val: Val, key: Val, of: &[NodeId]) -> Result {
        for &node in of {
            if self.memory.place(node).is_none() {
                self.make_loose(id, node)?;
            }
        }
        let Some(group) = self.memory.join(self.context, key, of) else {
            return undecided(id, "whose memory it may be, and the memory is written");
        };
        let role = self.context.event(Event::Role, vec![key]);
        if self.context.tensor(val).is_none() {
            self.memory.set_loose(self.context, id, val, role, Some(group));
            return Ok(());
        }
        if let Some(place) = self.allocate(id, val)?
            && self.memory.join_place(self.context, place, role, group).is_none()
        {
            return undecided(id, "whose memory it may be, and the memory is written");
        }
        Ok(())
    }

    /// From now on, what a node without a place holds may change.
    pub(super) fn make_loose(&mut self, id: NodeId, node: NodeId) -> Result {
        if self.memory.is_loose(node) {
            return Ok(());
        }
        if self.taken_apart.contains(&node) {
            let name = self.found.graph.name_of(node);
            return undecided(id, format!("may write `{name}`, whose parts are used one by one"));
        }
        let val = self.found.vals[node.index()];
        self.memory.set_loose(self.context, node, val, val, None);
        Ok(())
    }

    /// A call that changes how its first operand lies, and perhaps in which memory.
    pub(super) fn reshaped(&mut self, id: NodeId, position: usize, key: u32) -> Result {
        let graph = self.found.graph;
        let operands: Vec<NodeId> =
            graph.operands(id).iter().copied().filter(|&operand| has_memory(graph, operand)).collect();
        let Some(&first) = operands.first() else { return undecided(id, "reshapes nothing") };
        for &node in &operands {
            if self.memory.place(node).is_none() {
                self.make_loose(id, node)?;
            }
        }
        let call = self.context.whole(Term::Call(key), &Type::Unknown);
        let val = self.context.whole(Term::Part(key, 0), &Type::Unknown);
        let place = self.memory.place(first);
        if let Some(place) = place {
            self.note_hazards(id, place);
        }
        let Some(group) = self.memory.join(self.context, call, &operands) else {
            return undecided(id, "whose memory it is then");
        };
        // What has that place may be that very tensor, under another name.
        let same = |walk: &Self, node: NodeId| node == first || place.is_some() && walk.memory.place(node) == place;
        let nodes: Vec<NodeId> = graph.order()[..position].iter().copied().filter(|&node| same(self, node)).collect();
        for node in nodes.into_iter().chain([id]) {
            self.memory.set_loose(self.context, node, val, call, Some(group));
        }
        self.set(id, val);
        Ok(())
    }

    /// Adds to a call's operands which of them have bytes in common: what it leaves depends on that.
    pub(super) fn add_overlaps(&mut self, id: NodeId) -> Result {
        let operands = self.found.graph.operands(id);
        if operands.len() < 2 {
            return Ok(());
        }
        let Some(overlaps) = self.memory.overlaps(self.context, operands) else {
            return undecided(id, "which of its operands share memory");
        };
        self.operands.extend(overlaps);
        Ok(())
    }
}
