//! The table of `docs/buckets.md` is what the code does: this test makes it anew and compares.
//!
//! `BUCKETEER_UPDATE_DOCS=1 cargo test --test passes table` writes the file.

use bucketeer::ir::{Dependencies, Graph};
use bucketeer::passes::bucketing::{BucketKind, BucketOptions, plan};
use bucketeer::passes::liveness::peak_live;
use bucketeer::passes::merge::merge;
use bucketeer::passes::select::{Caps, Policy};
use bucketeer_formats::fx::FxText;
use kit::files;
use serde_json::Value;
use std::fmt::Write as _;

const HEAD: &str = "\
# Launches left: PyTorch, `adjacent`, `greedy`

For each graph and kind: collectives before, and launches left at caps of 25, 100 and 2000 MiB, each kind planned alone
on the original graph. `PyTorch` is 2.15's own search (the golden files); `adjacent` is the same rule here; `greedy` is
the default. Then, for `greedy` at 100 MiB: nodes that changed their place, and peak live bytes before and after (by
program order, inputs not counted). A test makes this table anew and compares.

Reading: `greedy` leaves fewest launches wherever members are passed over (FSDP at small caps: large weights between
small ones) or interleaved (FSDP with tensor parallelism). Peak bytes grow where far-apart gathers share a bucket,
since all of a bucket's results are there at once; at large caps that is the price of fewer launches. A smaller cap, or
`--max-members`, bounds it. Chains of dependent collectives (tensor parallelism) merge under no policy.

| case | graph | kind | all | 25: PyTorch / adjacent / greedy | 100 | 2000 | moved | peak MiB |
|---|---|---|---|---|---|---|---|---|
";

fn launches(graph: &Graph, dependencies: &Dependencies, options: &BucketOptions) -> (usize, usize) {
    let plan = plan(graph, dependencies, options);
    let merged: usize = plan.buckets.iter().map(|bucket| bucket.members.len()).sum();
    (plan.remarks.len(), plan.remarks.len() - merged + plan.buckets.len())
}

fn options(kind: BucketKind, policy: Policy, cap_mib: u64) -> BucketOptions {
    BucketOptions { policy, caps: Caps::bytes(cap_mib << 20), ..BucketOptions::new(kind) }
}

fn row(case: &str, name: &str, graph: &Graph, lists: &Value, kind: BucketKind) -> Option<String> {
    let dependencies = Dependencies::of(graph);
    let mut cells = Vec::new();
    let mut all = 0;
    for cap in [25, 100, 2000] {
        let count = |policy| launches(graph, &dependencies, &options(kind, policy, cap));
        let (adjacent, greedy) = (count(Policy::Adjacent), count(Policy::Greedy));
        all = greedy.0;
        let list = lists["buckets"][kind.name()]["default"][cap.to_string()].as_array();
        let pytorch = list.map_or(all, |buckets| {
            all - buckets.iter().map(|bucket| bucket.as_array().map_or(0, |members| members.len() - 1)).sum::<usize>()
        });
        cells.push(format!("{pytorch} / {} / {}", adjacent.1, greedy.1));
    }
    if all == 0 {
        return None;
    }
    let mut merged = graph.clone();
    let chosen = plan(graph, &dependencies, &options(kind, Policy::Greedy, 100));
    let report = merge(&mut merged, &dependencies, &chosen).unwrap();
    let mib = |graph: &Graph| peak_live(graph).bytes as f64 / f64::from(1 << 20);
    let (before, after) = (mib(graph), mib(&merged));
    Some(format!(
        "| {case} | {name} | {} | {all} | {} | {} | {} | {} | {before:.0} → {after:.0} |",
        kind.name(),
        cells[0],
        cells[1],
        cells[2],
        report.moved,
    ))
}

#[test]
fn the_table_of_buckets_is_up_to_date() {
    let mut table = String::from(HEAD);
    let mut cases: Vec<_> = std::fs::read_dir(files::torch_graphs()).unwrap().map(|e| e.unwrap().path()).collect();
    cases.sort();
    for case in cases {
        for name in ["forward", "backward", "joint"] {
            let golden = case.join(format!("{name}.golden.json"));
            if !files::exists(&golden) {
                continue;
            }
            let lists: Value = serde_json::from_slice(&files::read(&golden)).unwrap();
            let module = FxText::parse(files::read(&case.join(format!("{name}.full.txt")))).unwrap();
            let case = case.file_name().unwrap().to_string_lossy();
            for kind in [BucketKind::AllGather, BucketKind::ReduceScatter, BucketKind::AllReduce] {
                if let Some(row) = row(&case, name, &module.graphs()[0], &lists, kind) {
                    let _ = writeln!(table, "{row}");
                }
            }
        }
    }
    files::hold_page("buckets.md", &table);
}
