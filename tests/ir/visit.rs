//! petgraph's algorithms on the order of random graphs, held against plain loops.

use bucketeer::ir::visit::OrderGraph;
use bucketeer::ir::{Dependencies, Order, Slot};
use petgraph::Direction::{Incoming, Outgoing};
use petgraph::algo::{has_path_connecting, is_cyclic_directed, tarjan_scc, toposort};
use petgraph::graph::DiGraph;
use petgraph::visit::{EdgeCount, EdgeRef, IntoEdgeReferences, IntoEdges, IntoNeighborsDirected, NodeCount, Topo};
use proptest::prelude::*;

/// Whether each slot comes after `root`, or is it.
fn reached(dependencies: &Dependencies, root: usize) -> Vec<bool> {
    let mut reached = vec![false; dependencies.slots().len()];
    reached[root] = true;
    for slot in root + 1..reached.len() {
        reached[slot] = dependencies.before(slot).iter().any(|&before| reached[before as usize]);
    }
    reached
}

proptest! {
    #[test]
    fn petgraph_finds_the_same_paths_as_a_sweep(graph in kit::random::graph_strategy()) {
        let dependencies = Dependencies::of(&graph);
        let order = OrderGraph::new(&dependencies);
        for from in 0..order.node_count() {
            let reached = reached(&dependencies, from);
            for (to, &reached) in reached.iter().enumerate() {
                prop_assert_eq!(has_path_connecting(&order, from, to, None), reached, "{} to {}", from, to);
            }
        }
    }

    #[test]
    fn petgraph_sorts_every_order(graph in kit::random::graph_strategy()) {
        let dependencies = Dependencies::of(&graph);
        let order = OrderGraph::new(&dependencies);
        prop_assert!(!is_cyclic_directed(&order));
        prop_assert_eq!(tarjan_scc(&order).len(), order.node_count());
        let sorted = toposort(&order, None).expect("no cycle");
        let mut topo = Topo::new(&order);
        let mut walked = 0;
        while topo.next(&order).is_some() {
            walked += 1;
        }
        prop_assert_eq!(walked, order.node_count());
        let mut place = vec![usize::MAX; order.node_count()];
        sorted.iter().enumerate().for_each(|(at, &slot)| place[slot] = at);
        for slot in 0..order.node_count() {
            prop_assert!(dependencies.before(slot).iter().all(|&before| place[before as usize] < place[slot]));
        }
    }

    #[test]
    fn both_directions_and_all_edges_say_the_same(graph in kit::random::graph_strategy()) {
        let dependencies = Dependencies::of(&graph);
        let order = OrderGraph::new(&dependencies);
        let mut expected = Vec::new();
        for slot in 0..order.node_count() {
            expected.extend(dependencies.before_with_reason(slot).map(|(before, why)| (before, slot, why)));
        }
        expected.sort_unstable();
        let mut all: Vec<_> = (&order).edge_references().map(|edge| (edge.source(), edge.target(), *edge.weight())).collect();
        let ids: Vec<usize> = (&order).edge_references().map(|edge| edge.id()).collect();
        prop_assert_eq!(ids, (0..order.edge_count()).collect::<Vec<_>>());
        all.sort_unstable();
        prop_assert_eq!(&all, &expected);
        let slots = 0..order.node_count();
        let out: Vec<_> = slots.clone().flat_map(|slot| (&order).edges(slot).map(|edge| (edge.source(), edge.target()))).collect();
        let forth: Vec<_> = slots.clone().flat_map(|slot| order.neighbors_directed(slot, Outgoing).map(move |to| (slot, to))).collect();
        prop_assert_eq!(&out, &forth);
        let mut back: Vec<_> = slots.flat_map(|slot| order.neighbors_directed(slot, Incoming).map(move |from| (from, slot))).collect();
        let mut forth = forth;
        back.sort_unstable();
        forth.sort_unstable();
        prop_assert_eq!(back, forth);
    }

    #[test]
    fn a_petgraph_graph_of_the_same_edges_is_the_same(graph in kit::random::graph_strategy()) {
        let dependencies = Dependencies::of(&graph);
        let order = OrderGraph::new(&dependencies);
        let mut copy = DiGraph::<Slot, Order>::new();
        let nodes: Vec<_> = dependencies.slots().iter().map(|&slot| copy.add_node(slot)).collect();
        for edge in (&order).edge_references() {
            copy.add_edge(nodes[edge.source()], nodes[edge.target()], *edge.weight());
        }
        let view = format!("{:?}", petgraph::dot::Dot::new(&order));
        prop_assert_eq!(view, format!("{:?}", petgraph::dot::Dot::new(&copy)));
    }
}
