//! FX text: real graphs come back byte for byte, and changes show where they were made and nowhere else.

use bucketeer::formats::fx::{FxText, print_fresh};
use bucketeer::ir::{Graph, NodeId, Op};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

fn shared() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let named = std::env::var_os("BUCKETEER_SHARED").map(PathBuf::from);
    let found = named.unwrap_or(beside).join("fixtures/torch");
    if found.is_dir() {
        return Some(found);
    }
    // Past the test harness, which would swallow it.
    let _ = writeln!(std::io::stderr(), "skipped: {} is not there (set BUCKETEER_SHARED)", found.display());
    None
}

fn text_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.to_string_lossy().into_owned();
        if path.is_dir() {
            text_files(&path, found);
        } else if name.ends_with(".txt") || name.ends_with(".txt.gz") {
            found.push(path);
        }
    }
}

fn read(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    if path.extension().is_none_or(|extension| extension != "gz") {
        return bytes;
    }
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut text).unwrap();
    text
}

/// The lines that assign, without those of a joint header.
fn statements(text: &str) -> Vec<String> {
    let is_statement = |line: &&str| line.contains(" = ") && !line.contains("fx_pytree.");
    text.lines().filter(is_statement).map(str::to_owned).collect()
}

fn real_files() -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    if let Some(folder) = shared() {
        text_files(&folder, &mut files);
        assert!(files.len() > 500, "only {} files in {}", files.len(), folder.display());
    }
    files.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

#[test]
fn real_graphs_come_back_byte_for_byte() {
    for (path, bytes) in real_files() {
        let text = FxText::parse(bytes.clone()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(text.print() == bytes, "{}", path.display());
    }
}

#[test]
fn real_graphs_printed_fresh_are_read_as_the_same_graphs() {
    for (path, bytes) in real_files() {
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
#[test]
fn real_graphs_printed_fresh_have_the_statements_that_fx_printed() {
    for (path, bytes) in real_files() {
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

#[test]
fn reordered_and_renamed_real_graphs_are_printed_as_if_fresh() {
    for (path, bytes) in real_files().into_iter().filter(|(_, bytes)| bytes.len() < 100_000) {
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
