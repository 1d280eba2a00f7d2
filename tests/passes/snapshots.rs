//! Rewritten graphs of `fixtures/`, as a reader of a change would look at them.
//!
//! Of small graphs the whole text is kept; of larger ones the lines that the rewrite made, cut to a readable width, and
//! what was decided for each collective. Every rewrite is done twice, and the second changes nothing.

use bucketeer::passes::bucketing::Decision;
use bucketeer::passes::{PassReport, Pipeline};
use bucketeer_formats::fx::FxText;
use kit::files;
use std::collections::HashSet;
use std::fmt::Write as _;

const PIPELINE: &str = "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=16KiB},bucket-all-reduce{cap=16KiB},\
                        bucket-all-gather{cap=16KiB}";

fn rewrite(text: Vec<u8>, pipeline: &str) -> (String, Vec<PassReport>) {
    let pipeline: Pipeline = pipeline.parse().unwrap();
    let mut module = FxText::parse(text).unwrap();
    let reports = module.graphs_mut().iter_mut().flat_map(|graph| pipeline.run(graph).unwrap()).collect();
    let printed = module.print();
    let mut again = FxText::parse(printed.clone()).unwrap_or_else(|error| panic!("the output is read back: {error}"));
    for graph in again.graphs_mut() {
        pipeline.run(graph).unwrap();
    }
    assert!(again.print() == printed, "a second run changes nothing");
    (String::from_utf8(printed).unwrap(), reports)
}

fn fixture(name: &str) -> Vec<u8> {
    files::read(&kit::root().join("fixtures/fx").join(name))
}

#[test]
fn small_graphs_whole() {
    for name in
        ["live_static.forward.txt", "live_static.backward.txt", "live_dynamic.forward.txt", "live_dynamic.backward.txt"]
    {
        // Without a cap, sizes that are only known at run time are no obstacle.
        let (text, _) = rewrite(fixture(name), "bucket-reduce-scatter{cap=none},bucket-all-gather{cap=none}");
        kit::assert_snapshot!(name.trim_end_matches(".txt"), text);
    }
}

#[test]
fn a_coalesced_rewrite_whole() {
    let pipeline = "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-gather{cap=none,mode=coalesced}";
    let (text, _) = rewrite(fixture("live.joint.txt"), pipeline);
    kit::assert_snapshot!("live.joint.coalesced", text);
}

/// What the rewrite made of a graph: decisions, and new lines.
fn digest(name: &str, pipeline: &str) -> String {
    let before = String::from_utf8(fixture(name)).unwrap();
    let (after, reports) = rewrite(before.clone().into_bytes(), pipeline);
    let mut digest = format!("{pipeline}\n\n");
    for report in &reports {
        let Some(plan) = &report.plan else { continue };
        let moved = report.merge.as_ref().map_or(0, |merge| merge.moved);
        let _ = writeln!(digest, "{}: {} buckets, {moved} nodes moved", report.name, plan.buckets.len());
        for remark in &plan.remarks {
            let decision = match &remark.decision {
                Decision::Merged { bucket } => format!("bucket {bucket}"),
                Decision::Alone(reason) => reason.to_string(),
            };
            let bytes = remark.bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
            let _ = writeln!(digest, "  {} ({bytes} bytes): {decision}", remark.name);
        }
    }
    let known: HashSet<&str> = before.lines().map(statement).collect();
    let _ = writeln!(digest, "\nnew lines:");
    for line in after.lines().map(statement).filter(|line| !known.contains(line)) {
        let cut: String = line.trim_start().chars().take(150).collect();
        let _ = writeln!(digest, "{cut}{}", if cut.len() < line.trim_start().len() { " .." } else { "" });
    }
    digest
}

/// A line without the deletions behind it, which move with last uses.
fn statement(line: &str) -> &str {
    line.split_once(";  ").map_or(line, |(statement, _)| statement)
}

#[test]
fn new_lines_of_larger_graphs() {
    for name in [
        "tiny_fsdp_bf16_rsfp32.backward.txt",
        "tiny_hsdp_rsar_bf16_rsfp32.backward.txt",
        "tiny_ddp_bf16_arfp32.backward.txt",
        "tiny_tp_sp_dyn_bf16.backward.txt",
        "tiny_fsdp_tp_bf16_rsfp32.backward.txt",
        "tiny_moe_bf16_rsfp32.backward.txt",
        "tiny_fsdp_uneven_bf16.backward.txt",
    ] {
        kit::assert_snapshot!(name.trim_end_matches(".txt"), digest(name, PIPELINE));
    }
}

#[test]
fn graphs_of_real_size_keep_their_decisions() {
    for name in ["fsdp_l2_ws8_bf16.backward.txt", "hsdp_rsar_l2_ws8_bf16_rsfp32.backward.txt"] {
        let pipeline = "bucket-reduce-scatter{cap=100MiB},bucket-all-reduce{cap=100MiB},bucket-all-gather{cap=100MiB}";
        let digest = digest(name, pipeline);
        let decisions = digest.split("\nnew lines:").next().unwrap();
        kit::assert_snapshot!(name.trim_end_matches(".txt"), decisions);
    }
}
