//! Process groups that are values of the graph.
//!
//! A collective's group may be a node instead of a name: `_dtensor.mesh_get_process_group(mesh, 0)`, or an attribute of
//! the module. Graphs make the same group again for each use, so that a group is known by the call that makes it: two
//! nodes with the same target, arguments and operands are one group. It is called `%name`, after the node with the
//! shortest name (the first by alphabet among those), which no rewrite changes.

use bucketeer::ir::{ArgsId, Graph, GroupId, Name, NodeId, Op};
use hashbrown::HashMap;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

/// Calls that give back the same group when they are called again with the same arguments. Any other call may make a
/// group of its own each time.
fn finds_the_same_again(target: &str) -> bool {
    let target = target.strip_suffix(".default").unwrap_or(target);
    let attribute = target.strip_prefix("self.").is_some_and(|path| !path.ends_with(".__call__"));
    attribute
        || target.starts_with("getattr.")
        || matches!(target, "alias" | "operator.getitem" | "_dtensor.mesh_get_process_group" | "method.get_group")
}

/// How deep the operands of a call are compared: `mesh["dp"].get_group()` and the like.
const DEPTH: u32 = 8;

type Call = (Name, ArgsId, SmallVec<[NodeId; 2]>);

/// The groups of a graph that are values.
#[derive(Default, Debug)]
pub(super) struct GroupValues {
    /// The first node that was seen of each call.
    first: HashMap<Call, NodeId, FxBuildHasher>,
    /// Nodes after which a group is called, each with the node of the same call that has the shortest name.
    named: IndexMap<NodeId, NodeId, FxBuildHasher>,
}

impl GroupValues {
    /// The name of the group that a node is, until [`GroupValues::finish`].
    pub(super) fn name(&mut self, graph: &Graph, id: NodeId) -> String {
        let first = self.first_of(graph, id, DEPTH);
        self.named.entry(first).or_insert(first);
        group_name(graph, first)
    }

    /// The first node that was seen of the same call.
    fn first_of(&mut self, graph: &Graph, id: NodeId, depth: u32) -> NodeId {
        let node = graph.node(id);
        let Op::Call(target) = node.op else { return id };
        if depth == 0 || !finds_the_same_again(graph.text(target)) {
            return id;
        }
        let operands = graph.operands(id).iter().map(|&of| self.first_of(graph, of, depth - 1)).collect();
        *self.first.entry((target, node.args, operands)).or_insert(id)
    }

    /// Gives the groups their names, once all nodes are there.
    pub(super) fn finish(&mut self, graph: &mut Graph) {
        if self.named.is_empty() {
            return;
        }
        for &id in graph.order() {
            let first = self.first_of(graph, id, DEPTH);
            if let Some(shortest) = self.named.get_mut(&first) {
                let key = |id: NodeId| (graph.name_of(id).len(), graph.name_of(id));
                *shortest = if key(id) < key(*shortest) { id } else { *shortest };
            }
        }
        let names: HashMap<String, String, FxBuildHasher> =
            self.named.iter().map(|(&first, &id)| (group_name(graph, first), group_name(graph, id))).collect();
        for index in 0..graph.groups().len() {
            let group = graph.group_mut(GroupId::from_index(index));
            if let Some(name) = names.get(&*group.name) {
                group.name = name.as_str().into();
            }
        }
    }
}

/// What a group is called that is a node.
fn group_name(graph: &Graph, id: NodeId) -> String {
    format!("%{}", graph.name_of(id))
}
