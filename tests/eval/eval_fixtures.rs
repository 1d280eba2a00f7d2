//! The reference evaluator on real graphs: each runs on all its ranks, and computes the same after every rewrite.

use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use bucketeer_eval::{Difference, EvalOptions, Scaling, compare, evaluate, shrink};
use bucketeer_formats::fx::FxText;
use kit::files;
use kit::planted;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PIPELINES: [&str; 4] = [
    "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}",
    "dedupe-waits,bucket-reduce-scatter{cap=16KiB},bucket-all-reduce{cap=16KiB},bucket-all-gather{cap=16KiB}",
    "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-reduce{cap=none,mode=coalesced},\
     bucket-all-gather{cap=none,mode=coalesced}",
    "bucket-reduce-scatter{cap=none,policy=adjacent},bucket-all-reduce{cap=none,policy=adjacent},\
     bucket-all-gather{cap=none,policy=adjacent}",
];

fn folder() -> PathBuf {
    kit::root().join("fixtures/fx")
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
    for path in files::fx() {
        let (name, stem) = names(&path);
        if name.starts_with("tiny_") || name.starts_with("live") {
            let options = options(&folder().join(format!("{stem}.groups.json")));
            found.push((path, options));
        }
    }
    assert_eq!(found.len(), 16);
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
#[ignore = "needs BUCKETEER_SHARED"]
fn every_shared_tiny_graph_is_evaluated_on_all_ranks() {
    let paths = files::texts(&files::shared().join("torch/tiny"));
    assert!(paths.len() >= 40, "{} graphs", paths.len());
    for path in paths {
        let start = Instant::now();
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

/// Scales both graphs down, runs them, and says what they differ in, beside outputs that share memory as PyTorch's do.
fn at_small_sizes(before: &Graph, after: &Graph, options: &EvalOptions) -> Result<(Duration, Scaling), String> {
    let start = Instant::now();
    let scaled = shrink(&[before, after], options).map_err(|error| error.to_string())?;
    let comparison = compare(&scaled.graphs[0], &scaled.graphs[1], options).map_err(|error| error.to_string())?;
    let mut values = comparison.differences.iter().filter(|found| !matches!(found, Difference::Sharing { .. }));
    match (values.next(), scaled.scaling) {
        (Some(found), _) => Err(found.to_string()),
        (None, None) => Err("nothing was scaled".to_owned()),
        (None, Some(Scaling { guessed: Some(view), .. })) => Err(format!("{view} is guessed")),
        (None, Some(scaling)) => Ok((start.elapsed(), scaling)),
    }
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn every_shared_graph_of_two_layers_is_evaluated_at_small_sizes() {
    let paths = files::texts(&files::shared().join("torch/graphs"));
    let (mut slowest, mut failed, mut count) = ((Duration::ZERO, String::new()), Vec::new(), 0);
    for path in paths.iter().filter(|path| path.display().to_string().contains("_l2_")) {
        let (name, stem) = names(path);
        let case = path.parent().and_then(Path::file_name).unwrap().to_string_lossy().into_owned();
        // `default` texts leave out the types of inputs.
        if name.contains(".default.txt") {
            continue;
        }
        let options = EvalOptions { groups: files::groups(&case).into_iter().collect(), ..EvalOptions::default() };
        let before = graph(&path.with_file_name(format!("{stem}.full.txt")));
        let mut after = graph(path);
        // A source is compared with our own rewrite of it.
        if name.ends_with(".full.txt") {
            PIPELINES[0].parse::<Pipeline>().unwrap().run(&mut after).unwrap();
        }
        count += 1;
        match at_small_sizes(&before, &after, &options) {
            Ok((took, scaling)) => {
                eprintln!("{took:?} {case}/{name} at 1/{}", scaling.bytes_before / scaling.bytes_after);
                slowest = slowest.max((took, format!("{case}/{name}")));
            }
            Err(error) => failed.push(format!("{case}/{name}: {error}")),
        }
    }
    assert!(count >= 300, "{count} graphs");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(slowest.0 <= Duration::from_secs(20), "{slowest:?}");
}

#[test]
#[ignore = "takes minutes without optimisation"]
fn every_fault_in_large_merged_graphs_shows_at_small_sizes() {
    let (mut all, mut missed) = (0, Vec::new());
    for pair in planted::pairs().iter().filter(|pair| pair.name.contains("_l2_")) {
        let (found, more) = planted::small::planted_at_small_sizes(pair, |_| true);
        eprintln!("{found} found in {}", pair.name);
        all += found;
        missed.extend(more);
    }
    assert!(missed.is_empty(), "missed:\n{}", missed.join("\n"));
    assert!(all >= 15, "{all}");
}
