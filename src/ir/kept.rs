//! What nodes were before they were edited.

use super::entities::NodeId;
use super::graph::Node;

/// A node and its operands.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The node.
    pub node: Node,
    /// Its operands.
    pub operands: Box<[NodeId]>,
}

/// The nodes that a graph had at one time. Those that were not edited since are not copied.
#[derive(Clone, Debug)]
pub(super) struct Originals {
    /// By node: 0, or one more than its place in `edited`.
    place: Vec<u32>,
    edited: Vec<Kept>,
}

impl Originals {
    /// The first `count` nodes of a graph.
    pub(super) fn of(count: usize) -> Self {
        Self { place: vec![0; count], edited: Vec::new() }
    }

    pub(super) fn contains(&self, id: NodeId) -> bool {
        id.index() < self.place.len()
    }

    /// What a node was, if it was edited.
    pub(super) fn get(&self, id: NodeId) -> Option<&Kept> {
        let place = *self.place.get(id.index())?;
        self.edited.get((place as usize).wrapping_sub(1))
    }

    /// Notes what a node is, before its first edit.
    pub(super) fn keep(&mut self, id: NodeId, node: &Node, operands: &[NodeId]) {
        if let Some(place @ 0) = self.place.get_mut(id.index()) {
            self.edited.push(Kept { node: *node, operands: operands.into() });
            *place = self.edited.len() as u32;
        }
    }
}
