//! How long proving a rewrite takes, by nodes of source and result together, and how much memory.
//!
//! `cargo bench --bench check` prints a line for each graph, merged and as it was; names of series run only those.
//! Every graph runs in a process of its own.

mod synthetic;

use bucketeer::check::{Verdict, prove};
use bucketeer::passes::Pipeline;
use bucketeer_formats::fx::FxText;
use std::process::Command;
use std::time::Instant;

const CASES: &[(&str, usize)] = &[
    ("fsdp", 20_000),
    ("fsdp", 100_000),
    ("fsdp", 200_000),
    ("ddp", 20_000),
    ("ddp", 200_000),
    ("one-key", 100_000),
    ("alternating", 100_000),
];
const PIPELINES: [(&str, &str); 2] =
    [("merged", "bucket-all-gather{cap=100MiB},bucket-all-reduce{cap=100MiB}"), ("as it was", "")];

fn main() {
    if let Ok(index) = std::env::var("BUCKETEER_BENCH_CASE") {
        run(CASES[index.parse::<usize>().expect("an index")]);
        return;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let this = std::env::current_exe().expect("the bench knows its own path");
    println!(
        "{:12} {:10} {:>9} {:>9} {:>8} {:>9} {:>6}",
        "series", "result", "nodes", "pieces", "seconds", "us/node", "MiB"
    );
    for (index, case) in CASES.iter().enumerate() {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == case.0) {
            continue;
        }
        let child =
            Command::new(&this).env("BUCKETEER_BENCH_CASE", index.to_string()).output().expect("the bench runs");
        print!("{}", String::from_utf8_lossy(&child.stdout));
    }
}

fn run((series, collectives): (&str, usize)) {
    let text = match series {
        "ddp" => synthetic::ddp(collectives),
        "one-key" => synthetic::one_key(collectives),
        "alternating" => synthetic::alternating(collectives),
        _ => synthetic::fsdp(collectives),
    };
    let module = FxText::parse(text.into_bytes()).expect("generated graphs are read");
    let before = &module.graphs()[0];
    for (name, pipeline) in PIPELINES {
        let mut after = before.clone();
        pipeline.parse::<Pipeline>().expect("a pipeline").run(&mut after).expect("generated graphs are rewritten");
        let start = Instant::now();
        let verdict = prove(before, &after);
        let seconds = start.elapsed().as_secs_f64();
        let Verdict::Equal(proof) = verdict else { panic!("{verdict}") };
        let nodes = proof.stats.nodes;
        println!(
            "{series:12} {name:10} {nodes:>9} {:>9} {seconds:>8.3} {:>9.2} {:>6}",
            proof.stats.pieces,
            seconds * 1e6 / nodes as f64,
            peak_mib()
        );
    }
}

/// Peak memory of the process, where the system says.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}
