//! The reference evaluator on real graphs: each runs on all its ranks, and computes the same after every rewrite.

mod files;

use bucketeer::check::eval::{EvalOptions, compare, evaluate};
use bucketeer::formats::fx::FxText;
use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use std::path::{Path, PathBuf};

const PIPELINES: [&str; 4] = [
    "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}",
    "dedupe-waits,bucket-reduce-scatter{cap=16KiB},bucket-all-reduce{cap=16KiB},bucket-all-gather{cap=16KiB}",
    "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-reduce{cap=none,mode=coalesced},\
     bucket-all-gather{cap=none,mode=coalesced}",
    "bucket-reduce-scatter{cap=none,policy=adjacent},bucket-all-reduce{cap=none,policy=adjacent},\
     bucket-all-gather{cap=none,policy=adjacent}",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/fx")
}

/// The graph of a file.
fn graph(path: &Path) -> Graph {
    let text = FxText::parse(files::read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.graphs()[0].clone()
}

/// The groups and symbols that stand beside a graph.
fn options(groups: &Path) -> EvalOptions {
    let mut options = EvalOptions::default();
    let Ok(text) = std::fs::read(groups) else { return options };
    let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let parse = |value: &serde_json::Value| serde_json::from_value(value.clone()).unwrap();
    for (name, lists) in value["groups"].as_object().unwrap() {
        options.groups.insert(name.clone(), parse(lists));
    }
    for (name, size) in value.get("symbols").and_then(|symbols| symbols.as_object()).into_iter().flatten() {
        options.symbols.insert(name.clone(), size.as_i64().unwrap());
    }
    options
}

/// A file's name, and that up to the first point.
fn names(path: &Path) -> (String, String) {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let stem = name.split('.').next().unwrap().to_owned();
    (name, stem)
}

fn tiny() -> Vec<(PathBuf, EvalOptions)> {
    let mut found = Vec::new();
    for path in files::texts(&folder()) {
        let (name, stem) = names(&path);
        if name.starts_with("tiny_") || name.starts_with("live") {
            let options = options(&folder().join(format!("{stem}.groups.json")));
            found.push((path, options));
        }
    }
    found
}

fn runs_on_all_ranks(path: &Path, options: &EvalOptions) {
    let graph = graph(path);
    let ranks = evaluate(&graph, options).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let listed = options.groups.values().flatten().flatten().max().map_or(2, |last| *last as usize + 1);
    // A graph without collectives is the same on each rank.
    let alone = graph.order().iter().all(|&id| graph.collective(id).is_none());
    assert_eq!(ranks.len(), if alone { 1 } else { listed }, "{}", path.display());
    assert!(ranks.iter().all(|rank| rank.races.is_empty()));
}

#[test]
fn every_tiny_graph_is_evaluated_on_all_ranks() {
    tiny().iter().for_each(|(path, options)| runs_on_all_ranks(path, options));
}

#[test]
#[ignore = "takes a minute without optimisation"]
fn every_shared_tiny_graph_is_evaluated_on_all_ranks() {
    let shared = files::shared().map(|shared| files::texts(&shared.join("torch/tiny"))).unwrap_or_default();
    for path in shared {
        let start = std::time::Instant::now();
        runs_on_all_ranks(&path, &options(&path.with_file_name("case.json")));
        eprintln!("{:?} {}", start.elapsed(), path.display());
    }
}

fn same_after(path: &Path, pipeline: &str, options: &EvalOptions) {
    let before = graph(path);
    let mut after = before.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    let comparison = compare(&before, &after, options);
    let comparison = comparison.unwrap_or_else(|error| panic!("{}, {pipeline}: {error}", path.display()));
    let differences: Vec<String> = comparison.differences.iter().map(ToString::to_string).collect();
    assert!(comparison.is_equal(), "{}, {pipeline}: {}", path.display(), differences.join("\n"));
}

#[test]
fn every_tiny_graph_computes_the_same_after_a_rewrite() {
    // Each graph with one pipeline or all: what is left out here, the random graphs cover.
    for (nth, (path, options)) in tiny().into_iter().enumerate() {
        let small = names(&path).0.starts_with("live");
        for (at, pipeline) in PIPELINES.iter().enumerate() {
            if small || at == nth % PIPELINES.len() {
                same_after(&path, pipeline, &options);
            }
        }
    }
}

#[test]
#[ignore = "takes minutes without optimisation"]
fn every_tiny_graph_computes_the_same_after_every_rewrite() {
    for (path, options) in tiny() {
        PIPELINES.iter().for_each(|pipeline| same_after(&path, pipeline, &options));
    }
}
