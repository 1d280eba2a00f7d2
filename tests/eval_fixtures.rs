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

fn tiny() -> Vec<(PathBuf, EvalOptions)> {
    let all = files::texts(&folder());
    let is_tiny = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("tiny_") || name.starts_with("live")
    };
    let with_groups = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let groups = folder().join(format!("{}.groups.json", name.split('.').next().unwrap()));
        let options = options(&groups);
        (path, options)
    };
    all.into_iter().filter(is_tiny).map(with_groups).collect()
}

#[test]
fn every_tiny_graph_is_evaluated_on_all_ranks() {
    for (path, options) in tiny() {
        let start = std::time::Instant::now();
        let ranks = evaluate(&graph(&path), &options).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let world = if path.to_string_lossy().contains("tiny_") { 4 } else { 2 };
        eprintln!("{} {:?}", path.display(), start.elapsed());
        assert_eq!(ranks.len(), world, "{}", path.display());
        assert!(ranks.iter().all(|rank| rank.races.is_empty()));
    }
}

#[test]
fn every_tiny_graph_computes_the_same_after_every_rewrite() {
    for (path, options) in tiny() {
        for pipeline in PIPELINES {
            let before = graph(&path);
            let mut after = before.clone();
            pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
            let comparison = compare(&before, &after, &options);
            let comparison = comparison.unwrap_or_else(|error| panic!("{}, {pipeline}: {error}", path.display()));
            let differences: Vec<String> = comparison.differences.iter().map(ToString::to_string).collect();
            assert!(comparison.is_equal(), "{}, {pipeline}: {}", path.display(), differences.join("\n"));
        }
    }
}
