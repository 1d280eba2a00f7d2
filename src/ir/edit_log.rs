//! What a graph was at one time, and what was edited since.
//!
//! Readers of text start the log when a graph is read ([`Graph::start_edit_log`]). Their printers ask it for each node
//! what it was ([`Graph::original`]), and copy from the text what nobody touched. Nodes are copied when they are first
//! edited, so reading a graph costs its program order and nothing else.
//!
//! The log goes with the graph, also into clones. It holds ids, so it says nothing of another graph.

use super::entities::NodeId;
use super::graph::{ControlEdge, Graph, Node};
use std::sync::Arc;

/// A node as it was when the log was started.
#[derive(Clone, Copy, Debug)]
pub struct Original<'g> {
    /// The node.
    pub node: &'g Node,
    /// Its operands.
    pub operands: &'g [NodeId],
}

impl Original<'_> {
    /// Whether a node does what this one did and makes what it made, whatever its operands, name and metadata are.
    #[must_use]
    pub fn does_the_same(&self, now: &Node) -> bool {
        now.op == self.node.op && now.args == self.node.args && now.ty == self.node.ty
    }
}

/// The log of a graph; see [`Graph::edit_log`].
#[derive(Clone, Debug)]
pub struct EditLog {
    order: Arc<[NodeId]>,
    control: Arc<[ControlEdge]>,
    /// Ids of the nodes that were there are below it.
    count: usize,
    /// By node: 0, or one more than its place in `edited`. As long as it has to be.
    place: Vec<u32>,
    edited: Vec<(Node, Box<[NodeId]>)>,
}

impl EditLog {
    /// Starts here: nothing is edited.
    pub(super) fn of(order: &[NodeId], control: &[ControlEdge], count: usize) -> Self {
        Self { order: order.into(), control: control.into(), count, place: Vec::new(), edited: Vec::new() }
    }

    /// The program order when the log was started.
    #[must_use]
    pub fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// The order edges when the log was started.
    #[must_use]
    pub fn control(&self) -> &[ControlEdge] {
        &self.control
    }

    /// Whether a node was there when the log was started.
    #[must_use]
    pub const fn contains(&self, id: NodeId) -> bool {
        id.index() < self.count
    }

    /// What a node was, if it was edited.
    pub(super) fn edited(&self, id: NodeId) -> Option<Original<'_>> {
        let place = *self.place.get(id.index())?;
        let (node, operands) = self.edited.get((place as usize).wrapping_sub(1))?;
        Some(Original { node, operands })
    }

    /// Notes what a node is, before its first edit.
    pub(super) fn before_edit(&mut self, id: NodeId, node: &Node, operands: &[NodeId]) {
        if !self.contains(id) {
            return;
        }
        if self.place.len() <= id.index() {
            self.place.resize(self.count, 0);
        }
        let place = &mut self.place[id.index()];
        if *place == 0 {
            self.edited.push((*node, operands.into()));
            *place = self.edited.len() as u32;
        }
    }
}

impl Graph {
    /// Whether the program order, and each node with its operands, is what it was when the log was started; `same` says
    /// what of a node counts. `false` without a log.
    #[must_use]
    pub fn is_as_logged(&self, same: impl Fn(&Node, &Original<'_>) -> bool) -> bool {
        let is_same = |&id: &NodeId| {
            let then = self.original(id);
            then.is_some_and(|then| same(self.node(id), &then) && self.operands(id) == then.operands)
        };
        self.edit_log().is_some_and(|log| self.order() == log.order()) && self.order().iter().all(is_same)
    }
}
