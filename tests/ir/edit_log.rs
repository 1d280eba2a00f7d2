//! The edit log: what nodes were when it was started.

use bucketeer::ir::text::parse;
use bucketeer::ir::{ArgsId, Graph, Meta, NodeId, Op, TypeId};

fn logged() -> (Graph, [NodeId; 3]) {
    let mut graph = parse("x = input f32[4]; y = input f32[4]\nz = add(x, y)\noutput(z)").unwrap();
    graph.start_edit_log();
    let order = graph.order();
    let nodes = [order[0], order[1], order[2]];
    (graph, nodes)
}

fn is_as_logged(graph: &Graph) -> bool {
    graph.is_as_logged(|now, then| now == then.node)
}

#[test]
fn a_node_is_its_own_original_until_it_is_edited() {
    let (mut graph, [x, y, z]) = logged();
    assert!(is_as_logged(&graph));
    assert_eq!(graph.original(z).unwrap().operands, [x, y]);
    graph.set_operands(z, &[y]);
    graph.operands_mut(z)[0] = x;
    graph.node_mut(z).op = Op::Wait;
    let then = graph.original(z).unwrap();
    assert!(matches!(then.node.op, Op::Call(_)) && then.operands == [x, y], "it is what it was before the first edit");
    assert!(!is_as_logged(&graph) && !then.does_the_same(graph.node(z)));
}

#[test]
fn metadata_and_the_order_are_logged() {
    let (mut graph, [x, y, _]) = logged();
    let then = graph.node(x).meta;
    graph.set_meta(x, Meta { sync: true, ..Meta::default() });
    assert_eq!(graph.original(x).unwrap().node.meta, then);
    assert!(!is_as_logged(&graph));
    let (mut graph, order) = (logged().0, graph.order().to_vec());
    graph.set_order([&[y, x], &order[2..]].concat());
    assert!(!is_as_logged(&graph));
    assert_eq!(graph.edit_log().unwrap().order(), order);
}

#[test]
fn what_was_made_since_has_no_original() {
    let (mut graph, [x, ..]) = logged();
    let name = graph.intern("new");
    let new = graph.create(Op::Wait, name, TypeId::UNKNOWN, ArgsId::EMPTY, &[x]);
    graph.set_operands(new, &[]);
    assert!(graph.original(new).is_none() && !graph.edit_log().unwrap().contains(new));
    assert!(is_as_logged(&graph), "it is not in the program order");
}

#[test]
fn a_clone_takes_the_log_along_and_a_stopped_log_tells_nothing() {
    let (mut graph, [x, y, z]) = logged();
    graph.set_operands(z, &[y, x]);
    let mut clone = graph.clone();
    assert_eq!(clone.original(z).unwrap().operands, [x, y]);
    clone.stop_edit_log();
    assert!(clone.original(z).is_none() && clone.edit_log().is_none() && !is_as_logged(&clone));
    assert!(clone == graph, "a log is not a part of what a graph is");
}
