//! What was read, as the edit logs of graphs keep it for every printer.

use bucketeer::ir::{Arg, Args, Graph};
use bucketeer_formats::Document;
use kit::files;
use std::path::PathBuf;

/// FX text, HLO text, and programs of torch.export.
fn sources() -> Vec<PathBuf> {
    let exported = files::with_ending(&kit::root().join("fixtures/export"), ".json");
    assert!(!exported.is_empty());
    [files::fx(), files::hlo(), exported].concat()
}

/// Edits all of a graph, and takes it back.
fn edit_and_take_back(graph: &mut Graph) {
    let order = graph.order().to_vec();
    let strange = graph.intern_args(Args::positional(vec![Arg::Int(7)]));
    graph.set_order(order.iter().rev().copied().collect());
    let (control, name) = (std::mem::take(&mut graph.control), graph.intern("of_nobody"));
    for &id in &order {
        let (then, operands) = (*graph.node(id), graph.operands(id).to_vec());
        graph.set_operands(id, &[]);
        let node = graph.node_mut(id);
        (node.args, node.name) = (strange, name);
        graph.set_operands(id, &operands);
        let node = graph.node_mut(id);
        (node.args, node.name) = (then.args, then.name);
    }
    graph.control = control;
    graph.set_order(order);
}

#[test]
fn edits_that_are_taken_back_are_none() {
    for path in sources() {
        let bytes = files::read(&path);
        let mut document = Document::read(bytes.clone()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        document.graphs_mut().iter_mut().for_each(edit_and_take_back);
        assert!(document.print() == bytes, "{}", path.display());
    }
}

#[test]
fn a_graph_without_a_log_is_printed_anew_and_says_the_same() {
    for path in files::fx() {
        let mut document = Document::read(files::read(&path)).unwrap();
        document.graphs_mut().iter_mut().for_each(Graph::stop_edit_log);
        let again = Document::read(document.print()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (then, now) in document.graphs().iter().zip(again.graphs()) {
            assert_eq!(then.order().len(), now.order().len(), "{}", path.display());
            let verdict = bucketeer::check::prove(then, now);
            assert!(verdict.is_equal(), "{}: {verdict}", path.display());
        }
    }
}
