//! How time and memory of reading, planning, merging and printing grow with the graph.
//!
//! `cargo bench --bench scale` prints, for each graph, nodes, seconds of each stage, and peak memory of the process
//! (each graph runs in a process of its own). Growth is the time of a graph over that of the one before it in its
//! series; a doubling of nodes should not take 2.5 times as long. Ratios are against work measured in the same run: the
//! passes against petgraph's `toposort` of the same graph, reading and printing against copying the same bytes.
//! Give names of series to run only those.

mod synthetic;

use bucketeer::ir::Dependencies;
use bucketeer::passes::bucketing::{BucketKind, BucketOptions, plan};
use bucketeer::passes::memory::MemoryCap;
use bucketeer::passes::merge::merge;
use bucketeer::passes::select::{Caps, Policy};
use bucketeer_formats::fx::FxText;
use petgraph::graph::DiGraph;
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

/// A graph to time: series, size, kind, policy, cap in MiB (0 is none), cap on memory.
struct Case {
    series: &'static str,
    collectives: usize,
    kind: BucketKind,
    policy: Policy,
    cap_mib: u64,
    memory: MemoryCap,
}

const fn case(series: &'static str, collectives: usize, kind: BucketKind, cap_mib: u64) -> Case {
    Case { series, collectives, kind, policy: Policy::Greedy, cap_mib, memory: MemoryCap::None }
}

fn cases() -> Vec<Case> {
    use BucketKind::{AllGather, AllReduce};
    let mut cases = Vec::new();
    for collectives in [200, 2_000, 20_000, 40_000, 200_000] {
        cases.push(case("fsdp", collectives, AllGather, 100));
    }
    for collectives in [200, 2_000, 20_000, 40_000, 200_000] {
        cases.push(Case { policy: Policy::Adjacent, ..case("fsdp-adjacent", collectives, AllGather, 100) });
    }
    for collectives in [200, 2_000, 20_000, 40_000, 200_000] {
        cases.push(case("ddp", collectives, AllReduce, 100));
    }
    for collectives in [20_000, 200_000] {
        cases.push(case("fsdp-cap-1MiB", collectives, AllGather, 1));
        cases.push(case("ddp-outputs", collectives, AllReduce, 3));
    }
    // A cap on memory that all of the merges fit in, and one that cuts them: what the trial merge and the cuts cost.
    for (series, memory) in [
        ("fsdp-loose", MemoryCap::Bytes(1 << 50)),
        ("fsdp-tight", MemoryCap::More(2_000)),
        ("ddp-tight", MemoryCap::Same),
    ] {
        let kind = if series == "ddp-tight" { AllReduce } else { AllGather };
        for collectives in [20_000, 200_000] {
            cases.push(Case { memory, ..case(series, collectives, kind, 100) });
        }
    }
    for collectives in [100_000, 200_000] {
        cases.push(case("one-key", collectives, AllGather, 0));
        cases.push(case("alternating", collectives, AllGather, 1));
    }
    for users in [50_000, 100_000] {
        cases.push(case("many-users", users, AllGather, 0));
    }
    cases
}

fn text(series: &str, collectives: usize) -> String {
    match series {
        "ddp" | "ddp-outputs" | "ddp-tight" => synthetic::ddp(collectives),
        "one-key" => synthetic::one_key(collectives),
        "alternating" => synthetic::alternating(collectives),
        "many-users" => synthetic::many_users(collectives),
        _ => synthetic::fsdp(collectives),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if let Some(index) = std::env::var("BUCKETEER_BENCH_CASE").ok().and_then(|index| index.parse::<usize>().ok()) {
        run(&cases()[index]);
        return;
    }
    println!(
        "{:14} {:>9} {:>7} {:>8} {:>7} {:>8} {:>8} {:>8} {:>7} {:>8} {:>8} {:>7} {:>7}",
        "series",
        "nodes",
        "buckets",
        "moved",
        "read s",
        "select s",
        "merge s",
        "both s",
        "/topo",
        "print s",
        "MiB/s r/p",
        "growth",
        "MiB"
    );
    let this = std::env::current_exe().expect("the bench knows its own path");
    let mut before: Option<(&str, f64)> = None;
    for (index, case) in cases().iter().enumerate() {
        if !arguments.is_empty() && !arguments.iter().any(|wanted| wanted == case.series) {
            continue;
        }
        let child =
            Command::new(&this).env("BUCKETEER_BENCH_CASE", index.to_string()).output().expect("the bench runs");
        let line = String::from_utf8_lossy(&child.stdout).into_owned();
        let Some((row, both)) = line.trim_end().rsplit_once('|') else {
            println!("{}: failed: {}", case.series, String::from_utf8_lossy(&child.stderr));
            continue;
        };
        let both: f64 = both.parse().unwrap_or(f64::NAN);
        let growth = match before {
            Some((series, earlier)) if series == case.series => format!("{:.2}", both / earlier),
            _ => String::from("-"),
        };
        before = Some((case.series, both));
        println!("{}", row.replace("GROWTH", &format!("{growth:>7}")));
    }
}

/// The least time of a few tries, and the last result.
fn least<T>(tries: usize, mut work: impl FnMut() -> T) -> (Duration, T) {
    let mut best = Duration::MAX;
    let mut result = None;
    for _ in 0..tries {
        let start = Instant::now();
        let value = black_box(work());
        best = best.min(start.elapsed());
        result = Some(value);
    }
    (best, result.expect("at least one try"))
}

fn run(case: &Case) {
    let text = text(case.series, case.collectives).into_bytes();
    let bytes = text.len() as f64;
    let tries = if case.collectives > 50_000 { 1 } else { 3 };
    let (read, module) = least(tries, || FxText::parse(text.clone()).expect("the text is well-formed"));
    let mut module = module;
    let memory_read = peak_mib();
    let caps = if case.cap_mib == 0 { Caps::default() } else { Caps::bytes(case.cap_mib << 20) };
    let options = BucketOptions { policy: case.policy, caps, memory: case.memory, ..BucketOptions::new(case.kind) };
    let graph = &module.graphs()[0];
    let nodes = graph.order().len();
    let (select, (dependencies, chosen)) = least(tries, || {
        let dependencies = Dependencies::of(graph);
        let chosen = plan(graph, &dependencies, &options);
        (dependencies, chosen)
    });
    let (toposort, _) = least(tries, || {
        let mut plain = DiGraph::<(), ()>::with_capacity(nodes, dependencies.edge_count());
        let ids: Vec<_> = (0..dependencies.slots().len()).map(|_| plain.add_node(())).collect();
        for slot in 0..ids.len() {
            for &before in dependencies.before(slot) {
                plain.add_edge(ids[before as usize], ids[slot], ());
            }
        }
        petgraph::algo::toposort(&plain, None).expect("no cycle").len()
    });
    let graph = &mut module.graphs_mut()[0];
    let start = Instant::now();
    let report = merge(graph, &dependencies, &chosen).expect("the plan is of this graph");
    let merged = start.elapsed();
    let (print, printed) = least(1, || module.print());
    let both = (select + merged).as_secs_f64();
    let rate = |time: Duration| bytes / f64::from(1 << 20) / time.as_secs_f64();
    println!(
        "{:14} {:>9} {:>7} {:>8} {:>7.3} {:>8.4} {:>8.4} {:>8.4} {:>7.2} {:>8.3} {:>8} GROWTH {:>7}|{both}",
        case.series,
        nodes,
        chosen.buckets.len(),
        report.moved,
        read.as_secs_f64(),
        select.as_secs_f64(),
        merged.as_secs_f64(),
        both,
        both / toposort.as_secs_f64(),
        print.as_secs_f64(),
        format!("{:.0}/{:.0}", rate(read), rate(print)),
        format!("{}/{}", memory_read, peak_mib()),
    );
    assert!(!printed.is_empty());
}

/// Peak memory of this process so far, in MiB, where the system tells.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}
