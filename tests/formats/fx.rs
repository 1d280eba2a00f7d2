//! FX text: real graphs come back byte for byte, and changes show where they were made and nowhere else.

use bucketeer::ir::{Graph, NodeId, Op, verify};
use bucketeer_formats::fx::{FxText, print_fresh};
use kit::files;
use std::path::PathBuf;

/// The lines that assign, without those of a joint header. A graph inside of another is indented; one by itself is not.
fn statements(text: &str) -> Vec<String> {
    let is_statement = |line: &&str| line.contains(" = ") && !line.contains("fx_pytree.");
    text.lines().filter(is_statement).map(|line| format!("        {}", line.trim_start())).collect()
}

fn contents(paths: Vec<PathBuf>) -> Vec<(PathBuf, Vec<u8>)> {
    paths.into_iter().map(|path| (path.clone(), files::read(&path))).collect()
}

/// The graphs in the tree, of tiny and of real size.
fn in_the_tree() -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths = files::fx();
    paths.extend(files::texts(&files::torch_graphs()));
    assert_eq!(paths.len(), 68);
    // A few of these take as long as all others without optimisation.
    paths.retain(|path| !path.to_string_lossy().contains("_l32_"));
    contents(paths)
}

fn shared() -> Vec<(PathBuf, Vec<u8>)> {
    let paths = files::texts(&files::shared().join("torch"));
    assert!(paths.len() > 500, "only {} files", paths.len());
    contents(paths)
}

fn come_back(files: Vec<(PathBuf, Vec<u8>)>) {
    for (path, bytes) in files {
        let text = FxText::parse(bytes.clone()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for graph in text.graphs() {
            verify(graph).unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
        }
        assert!(text.print() == bytes, "{}", path.display());
    }
}

fn are_the_same_when_fresh(files: Vec<(PathBuf, Vec<u8>)>) {
    for (path, bytes) in files {
        let text = FxText::parse(bytes).unwrap();
        for graph in text.graphs() {
            let fresh = print_fresh(graph).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let again = FxText::parse(fresh.into_bytes()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(again.graphs() == [graph.clone()], "{}", path.display());
        }
    }
}

/// Fresh text follows FX in every byte, deletions too. What a graph does not keep is the form of the header and of the
/// return, and whether a collective's arguments had keywords.
fn have_the_statements_of_fx(files: Vec<(PathBuf, Vec<u8>)>) {
    for (path, bytes) in files {
        let text = FxText::parse(bytes.clone()).unwrap();
        let fresh: String = text.graphs().iter().map(|graph| print_fresh(graph).unwrap()).collect();
        let original = String::from_utf8(bytes).unwrap();
        let (ours, theirs) = (statements(&fresh), statements(&original));
        assert_eq!(ours.len(), theirs.len(), "{}", path.display());
        for (ours, theirs) in ours.iter().zip(&theirs).filter(|(_, theirs)| !theirs.contains("group_name = ")) {
            assert_eq!(ours, theirs, "{}", path.display());
        }
    }
}

/// Every node as late as its users allow, which is where no pass would put it.
fn sink(graph: &mut Graph) {
    let (inputs, others): (Vec<NodeId>, Vec<NodeId>) =
        graph.order().iter().partition(|&&id| graph.node(id).op == Op::Input);
    let mut placed = vec![false; graph.arena_len()];
    inputs.iter().for_each(|id| placed[id.index()] = true);
    let mut late = Vec::new();
    let (last, before) = others.split_last().unwrap();
    let mut stack: Vec<(NodeId, usize)> = before.iter().rev().chain([last]).map(|&id| (id, 0)).collect();
    while let Some((id, next)) = stack.pop() {
        match graph.operands(id).get(next) {
            _ if placed[id.index()] => {}
            Some(&operand) => stack.extend([(id, next + 1), (operand, 0)]),
            None => {
                placed[id.index()] = true;
                late.push(id);
            }
        }
    }
    late.retain(|id| id != last);
    graph.set_order(inputs.into_iter().chain(late).chain([*last]).collect());
}

fn are_fresh_when_reordered(files: Vec<(PathBuf, Vec<u8>)>) {
    for (path, bytes) in files.into_iter().filter(|(_, bytes)| bytes.len() < 100_000) {
        let mut text = FxText::parse(bytes).unwrap();
        for graph in text.graphs_mut() {
            sink(graph);
            for id in graph.order().to_vec().into_iter().step_by(3) {
                if !matches!(graph.node(id).op, Op::Input | Op::Output) {
                    let name = graph.intern(&format!("{}_renamed", graph.name_of(id)));
                    graph.node_mut(id).name = name;
                }
            }
        }
        let printed = String::from_utf8(text.print()).unwrap();
        FxText::parse(printed.clone().into_bytes()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let fresh: String = text.graphs().iter().map(|graph| print_fresh(graph).unwrap()).collect();
        let (ours, theirs) = (statements(&printed), statements(&fresh));
        assert_eq!(ours.len(), theirs.len(), "{}", path.display());
        for (ours, theirs) in ours.iter().zip(&theirs).filter(|(ours, _)| !ours.contains("group_name = ")) {
            assert_eq!(ours, theirs, "{}", path.display());
        }
    }
}

#[test]
fn real_graphs_are_well_formed_and_come_back_byte_for_byte() {
    come_back(in_the_tree());
}

#[test]
fn real_graphs_printed_fresh_are_read_as_the_same_graphs() {
    are_the_same_when_fresh(in_the_tree());
}

#[test]
fn real_graphs_printed_fresh_have_the_statements_that_fx_printed() {
    have_the_statements_of_fx(in_the_tree());
}

#[test]
fn reordered_and_renamed_real_graphs_are_printed_as_if_fresh() {
    are_fresh_when_reordered(in_the_tree());
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn shared_real_graphs_are_well_formed_and_come_back_byte_for_byte() {
    come_back(shared());
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn shared_real_graphs_printed_fresh_are_read_as_the_same_graphs() {
    are_the_same_when_fresh(shared());
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn shared_real_graphs_printed_fresh_have_the_statements_that_fx_printed() {
    have_the_statements_of_fx(shared());
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn shared_reordered_and_renamed_real_graphs_are_printed_as_if_fresh() {
    are_fresh_when_reordered(shared());
}
