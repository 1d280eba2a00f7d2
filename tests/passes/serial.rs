//! Plans and reports as data.

use bucketeer::ir::Dependencies;
use bucketeer::ir::text::parse;
use bucketeer::passes::select::{Candidate, Caps, PlanGraph, Policy, select};
use bucketeer::passes::{BucketKind, BucketOptions, Pipeline, bucketing};

const STEP: &str = "a = input f32[8]; r0 = all_reduce(a, sum, world:4); w0 = wait(r0)
    b = input f32[8, s0]; r1 = all_reduce(b, sum, world:4); w1 = wait(r1)
    c = input f32[16]; r2 = all_reduce(c, sum, world:4); w2 = wait(r2); output(w0, w1, w2)";

#[test]
fn a_plan_is_data_by_names_and_prints_itself() {
    let graph = parse(STEP).unwrap();
    let options = BucketOptions::new(BucketKind::AllReduce);
    let plan = bucketing::plan(&graph, &Dependencies::of(&graph), &options);
    kit::assert_snapshot!("plan_as_text", plan.to_string());
    kit::assert_snapshot!("plan_as_json", serde_json::to_string_pretty(&plan).unwrap());
    let reports = Pipeline::default_rewrite().run(&mut graph.clone()).unwrap();
    let all = serde_json::to_value(&reports).unwrap();
    assert_eq!(all[3]["pass"], "bucket-all-reduce");
    assert_eq!(all[3]["launches"], 1);
    assert_eq!(all[3]["plan"]["buckets"], serde_json::json!([["r0", "r2"]]));
}

#[test]
fn a_plan_under_a_cap_on_memory_says_what_it_kept() {
    let graph = parse(STEP).unwrap();
    let options = BucketOptions { memory: "100".parse().unwrap(), ..BucketOptions::new(BucketKind::AllReduce) };
    let plan = bucketing::plan(&graph, &Dependencies::of(&graph), &options);
    kit::assert_snapshot!("memory_plan_as_text", plan.to_string());
    kit::assert_snapshot!("memory_plan_as_json", serde_json::to_string_pretty(&plan).unwrap());
}

/// Three reductions without anything between them: 4, 4 and 9 bytes.
struct Three;

impl PlanGraph for Three {
    type Key = ();

    fn node_count(&self) -> usize {
        3
    }

    fn dependencies(&self, _: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::empty()
    }

    fn candidate(&self, node: usize) -> Option<Candidate<()>> {
        Some(Candidate { key: (), bytes: Some(if node == 2 { 9 } else { 4 }), wait: node })
    }
}

#[test]
fn a_selection_is_data_and_prints_itself() {
    let selection = select(&Three, Policy::Greedy, &Caps::bytes(8)).unwrap();
    assert_eq!(selection.to_string(), "bucket 1: nodes 0, 1\nnode 2: larger than the cap of 8 bytes");
    assert_eq!(
        serde_json::to_value(&selection).unwrap(),
        serde_json::json!({
            "buckets": [[0, 1]],
            "outcomes": [
                { "node": 0, "bucket": 1 },
                { "node": 1, "bucket": 1 },
                { "node": 2, "reason": "oversize", "cap_bytes": 8 },
            ],
        })
    );
}
