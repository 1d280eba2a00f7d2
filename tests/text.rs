//! The native text form: what it reads, what it prints, and what it refuses.

use bucketeer::ir::text::{parse, print};
use bucketeer::ir::{Arg, CollectiveKind, DType, GlobalRank, Graph, Op, RegionKind, Strength, Type, Variant};
use std::path::PathBuf;

fn read(text: &str) -> Graph {
    parse(text).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"))
}

fn round_trip(text: &str) -> Graph {
    let graph = read(text);
    let printed = print(&graph);
    let again = read(&printed);
    assert_eq!(again, graph, "printed:\n{printed}");
    assert_eq!(print(&again), printed);
    graph
}

/// The sketches of the case collection, each a graph in a file.
fn sketches() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sketches");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(&path).unwrap())
    };
    files.into_iter().map(read).collect()
}

fn type_text(graph: &Graph, name: &str) -> String {
    let id = graph.order().iter().find(|&&id| graph.name_of(id) == name);
    graph.type_of(*id.unwrap_or_else(|| panic!("no {name}"))).to_string()
}

#[test]
fn every_sketch_round_trips() {
    let sketches = sketches();
    assert!(sketches.len() > 50, "{}", sketches.len());
    for (_, text) in sketches {
        round_trip(&text);
    }
}

#[test]
fn the_canonical_form_is_one_statement_a_line() {
    let text = "graph step {
group G0:8 = [[0, 1, 2, 3, 4, 5, 6, 7]]
group D
hint u0 = 8
  u0 = input Sym(u0)
  a = input f32[8, 16][16, 1]cuda:0
  pend = input f32[8] pending
  g0 = all_gather(a, G0:8) : f32[64, 16][16, 1]cuda:0 key=\"L1\" src=\"a.py:10\" members=[x, y]
  w0 = wait(g0) : f32[64, 16][16, 1]cuda:0
  region loop(n=3) {
    t = slice(w0, 0, 8, dim=0) : f32[8, 16][16, 1]cuda:0
    s = all_reduce_(t, avg, D, impl=registered) : f32[8, 16][16, 1]cuda:0
  }
  after(t, w0)
  soft_after(w0, a)
  output(w0, t)
}
";
    assert_eq!(print(&round_trip(text)), text);
}
