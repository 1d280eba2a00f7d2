//! How long does it take to lower a graph, plan its memory and prove the program, and how do these grow with the graph?
//!
//! Prints seconds, and each as a multiple of petgraph's `toposort` of the same graph in the same run; `growth` is the time
//! over that of the row above (a graph of half the size). Give a number of collectives to run only that.

mod synthetic;

use bucketeer::check::program::{ProgramVerdict, prove};
use bucketeer::ir::Dependencies;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer_formats::fx::FxText;
use petgraph::graph::DiGraph;
use std::hint::black_box;
use std::time::{Duration, Instant};

fn time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let value = black_box(work());
    (start.elapsed(), value)
}

fn main() {
    let wanted: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    println!(
        "{:12} {:>9} {:>8} {:>8} {:>7} {:>8} {:>8} {:>8}",
        "series", "nodes", "steps", "lower s", "/topo", "growth", "over %", "prove s"
    );
    for (series, make) in [("fsdp", synthetic::fsdp as fn(usize) -> String), ("ddp", synthetic::ddp)] {
        let mut before = None;
        for collectives in [25_000, 50_000, 100_000, 200_000] {
            if !wanted.is_empty() && !wanted.contains(&collectives) {
                continue;
            }
            let module = FxText::parse(make(collectives).into_bytes()).expect("the text is well-formed");
            let mut graph = module.graphs()[0].clone();
            for index in 0..graph.groups().len() {
                let group = graph.group_mut(bucketeer::ir::GroupId::from_index(index));
                group.size = group.size.or(Some(8));
            }
            let dependencies = Dependencies::of(&graph);
            let (toposort, _) = time(|| {
                let mut plain = DiGraph::<(), ()>::with_capacity(graph.order().len(), dependencies.edge_count());
                let ids: Vec<_> = (0..dependencies.slots().len()).map(|_| plain.add_node(())).collect();
                for slot in 0..ids.len() {
                    for &from in dependencies.before(slot) {
                        plain.add_edge(ids[from as usize], ids[slot], ());
                    }
                }
                petgraph::algo::toposort(&plain, None).expect("no cycle").len()
            });
            let (lowering, result) = time(|| lower(&graph, &LowerOptions::default()).expect("it is lowered"));
            let (proving, verdict) = time(|| prove(&graph, &result.0));
            assert!(matches!(verdict, ProgramVerdict::Equal(_)), "{verdict:?}");
            let seconds = lowering.as_secs_f64();
            let growth = before.map_or_else(|| "-".to_owned(), |earlier: f64| format!("{:.2}", seconds / earlier));
            before = Some(seconds);
            let over = 100.0 * (result.0.peak_bytes() as f64 / result.0.live_bytes().max(1) as f64 - 1.0);
            println!(
                "{series:12} {:>9} {:>8} {seconds:>8.3} {:>7.2} {growth:>8} {over:>8.1} {:>8.3}",
                graph.order().len(),
                result.0.steps.len(),
                seconds / toposort.as_secs_f64(),
                proving.as_secs_f64(),
            );
        }
    }
}
