//! The order of a graph for petgraph's algorithms, and for any tool built on its visit traits.
//!
//! [`OrderGraph`] is a view of [`Dependencies`]: nodes are slots, an edge goes from each slot to one that must come
//! after it, and its weight says why. Parallel edges stay apart. Building it costs one pass over the edges.
//!
//! ```
//! use bucketeer::ir::{Dependencies, Order, text, visit::OrderGraph};
//! use petgraph::algo::toposort;
//! use petgraph::visit::{Dfs, EdgeFiltered, EdgeRef};
//!
//! let graph = text::parse(
//!     "a = input f32[4]
//!      b = input f32[4]
//!      sum = all_reduce(a, sum, G0:2)
//!      done = wait(sum)
//!      scaled = mul(b, 2.0)
//!      after(scaled, done)
//!      output(done, scaled)",
//! )?;
//! let dependencies = Dependencies::of(&graph);
//! let order = OrderGraph::new(&dependencies);
//!
//! assert!(toposort(&order, None).is_ok());
//!
//! // Everything that must come after the all-reduce ...
//! let names = |mut dfs: Dfs<usize, _>| {
//!     let mut names = Vec::new();
//!     while let Some(slot) = dfs.next(&order) {
//!         names.extend(dependencies.node(slot).map(|id| graph.name_of(id)));
//!     }
//!     names
//! };
//! let sum = graph.order()[2];
//! assert_eq!(names(Dfs::new(&order, dependencies.slot_of(sum))), ["sum", "done", "output", "scaled"]);
//!
//! // ... and what reads its value, however far away: the multiplication only has to wait.
//! let data = EdgeFiltered::from_fn(&order, |edge| *edge.weight() == Order::Data);
//! let mut dfs = Dfs::new(&data, dependencies.slot_of(sum));
//! let mut readers = 0;
//! while dfs.next(&data).is_some() {
//!     readers += 1;
//! }
//! assert_eq!(readers, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::effects::{Dependencies, Order, Slot};
use petgraph::graph::DiGraph;
use petgraph::visit::{
    Data, EdgeCount, GraphBase, GraphProp, IntoEdgeReferences, IntoEdges, IntoNeighbors, IntoNeighborsDirected,
    IntoNodeIdentifiers, IntoNodeReferences, NodeCompactIndexable, NodeCount, NodeIndexable, Visitable,
};
use petgraph::{Directed, Direction};
use std::ops::Range;

/// The bit set that petgraph's own graphs are visited with.
type Visited = <DiGraph<(), ()> as Visitable>::Map;

/// The order of a graph, readable in both directions; see the module docs.
#[derive(Debug)]
pub struct OrderGraph<'a> {
    dependencies: &'a Dependencies,
    /// Edges out of slot `s` are numbered `starts[s]..starts[s + 1]`.
    starts: Vec<u32>,
    to: Vec<u32>,
    why: Vec<Order>,
}

impl<'a> OrderGraph<'a> {
    /// A view of the order.
    #[must_use]
    pub fn new(dependencies: &'a Dependencies) -> Self {
        let count = dependencies.slots().len();
        let mut starts = vec![0u32; count + 1];
        for slot in 0..count {
            dependencies.before(slot).iter().for_each(|&before| starts[before as usize + 1] += 1);
        }
        for slot in 0..count {
            starts[slot + 1] += starts[slot];
        }
        let mut next = starts.clone();
        let mut to = vec![0; dependencies.edge_count()];
        let mut why = vec![Order::Data; dependencies.edge_count()];
        for slot in 0..count {
            for (before, reason) in dependencies.before_with_reason(slot) {
                let place = next[before] as usize;
                (to[place], why[place]) = (slot as u32, reason);
                next[before] += 1;
            }
        }
        Self { dependencies, starts, to, why }
    }

    /// Slots that must come after `slot`; a slot may be named more than once.
    #[must_use]
    pub fn after(&self, slot: usize) -> &[u32] {
        &self.to[self.edges_out(slot)]
    }

    fn edges_out(&self, slot: usize) -> Range<usize> {
        self.starts[slot] as usize..self.starts[slot + 1] as usize
    }
}

/// An edge of an [`OrderGraph`].
#[derive(Clone, Copy, Debug)]
pub struct OrderEdge<'a> {
    id: usize,
    source: usize,
    target: usize,
    why: &'a Order,
}

impl petgraph::visit::EdgeRef for OrderEdge<'_> {
    type NodeId = usize;
    type EdgeId = usize;
    type Weight = Order;

    fn source(&self) -> usize {
        self.source
    }

    fn target(&self) -> usize {
        self.target
    }

    fn weight(&self) -> &Order {
        self.why
    }

    fn id(&self) -> usize {
        self.id
    }
}

/// Slots at the other ends of a slot's edges.
#[derive(Clone, Debug)]
pub struct Neighbors<'a>(std::slice::Iter<'a, u32>);

impl Iterator for Neighbors<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.0.next().map(|&slot| slot as usize)
    }
}

/// Edges, in the order of their numbers.
#[derive(Clone, Debug)]
pub struct OrderEdges<'a> {
    graph: &'a OrderGraph<'a>,
    source: usize,
    ids: Range<usize>,
}

impl<'a> Iterator for OrderEdges<'a> {
    type Item = OrderEdge<'a>;

    fn next(&mut self) -> Option<OrderEdge<'a>> {
        let id = self.ids.next()?;
        while self.graph.edges_out(self.source).end <= id {
            self.source += 1;
        }
        let target = self.graph.to[id] as usize;
        Some(OrderEdge { id, source: self.source, target, why: &self.graph.why[id] })
    }
}

impl GraphBase for OrderGraph<'_> {
    type NodeId = usize;
    type EdgeId = usize;
}

impl Data for OrderGraph<'_> {
    type NodeWeight = Slot;
    type EdgeWeight = Order;
}

impl GraphProp for OrderGraph<'_> {
    type EdgeType = Directed;
}

impl NodeCount for OrderGraph<'_> {
    fn node_count(&self) -> usize {
        self.dependencies.slots().len()
    }
}

impl NodeIndexable for OrderGraph<'_> {
    fn node_bound(&self) -> usize {
        self.node_count()
    }

    fn to_index(&self, slot: usize) -> usize {
        slot
    }

    fn from_index(&self, index: usize) -> usize {
        index
    }
}

impl NodeCompactIndexable for OrderGraph<'_> {}

impl EdgeCount for OrderGraph<'_> {
    fn edge_count(&self) -> usize {
        self.to.len()
    }
}

impl Visitable for OrderGraph<'_> {
    type Map = Visited;

    fn visit_map(&self) -> Visited {
        Visited::with_capacity(self.node_count())
    }

    fn reset_map(&self, map: &mut Visited) {
        map.clear();
        map.grow(self.node_count());
    }
}

impl IntoNodeIdentifiers for &OrderGraph<'_> {
    type NodeIdentifiers = Range<usize>;

    fn node_identifiers(self) -> Range<usize> {
        0..self.node_count()
    }
}

impl<'a> IntoNodeReferences for &'a OrderGraph<'_> {
    type NodeRef = (usize, &'a Slot);
    type NodeReferences = std::iter::Enumerate<std::slice::Iter<'a, Slot>>;

    fn node_references(self) -> Self::NodeReferences {
        self.dependencies.slots().iter().enumerate()
    }
}

impl<'a> IntoNeighbors for &'a OrderGraph<'_> {
    type Neighbors = Neighbors<'a>;

    fn neighbors(self, slot: usize) -> Neighbors<'a> {
        Neighbors(self.after(slot).iter())
    }
}

impl<'a> IntoNeighborsDirected for &'a OrderGraph<'_> {
    type NeighborsDirected = Neighbors<'a>;

    fn neighbors_directed(self, slot: usize, direction: Direction) -> Neighbors<'a> {
        match direction {
            Direction::Outgoing => self.neighbors(slot),
            Direction::Incoming => Neighbors(self.dependencies.before(slot).iter()),
        }
    }
}

impl<'a> IntoEdgeReferences for &'a OrderGraph<'_> {
    type EdgeRef = OrderEdge<'a>;
    type EdgeReferences = OrderEdges<'a>;

    fn edge_references(self) -> OrderEdges<'a> {
        OrderEdges { graph: self, source: 0, ids: 0..self.to.len() }
    }
}

impl<'a> IntoEdges for &'a OrderGraph<'_> {
    type Edges = OrderEdges<'a>;

    fn edges(self, slot: usize) -> OrderEdges<'a> {
        OrderEdges { graph: self, source: slot, ids: self.edges_out(slot) }
    }
}
