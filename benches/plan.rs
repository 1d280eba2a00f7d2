//! How long plans take.
//!
//! `cargo bench --bench plan` prints, for chains of messages, the time of an exact plan over that of adding up as many
//! numbers twice; and for training steps, the time to plan at low effort over that of finding what must come before what
//! (`Dependencies::of`), each measured in the same run, with the growth from one size to the next. A step twice as large
//! should not take 2.5 times as long.

mod synthetic;

use bucketeer::ir::{Dependencies, Graph, Op};
use bucketeer::passes::schedule::{
    Costs, Effort, GroupCosts, MessageCost, Piece, ScheduleOptions, Timeline, chain, plan,
};
use bucketeer_formats::fx::FxText;
use std::hint::black_box;
use std::time::{Duration, Instant};

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed())
}

fn cost() -> MessageCost {
    let piece = |alpha_ns, ns_per_byte_den| Piece { alpha_ns, ns_per_byte_num: 1, ns_per_byte_den };
    MessageCost::new(vec![piece(18_000, 100), piece(25_000, 368)]).expect("has two pieces")
}

/// Calls take between nothing and half a millisecond.
fn costs(graph: &Graph) -> Costs {
    let mut costs = Costs::default();
    for (at, &id) in graph.order().iter().enumerate().filter(|(_, id)| matches!(graph.node(**id).op, Op::Call(_))) {
        costs.compute_ns.insert(graph.name_of(id).into(), [0, 20_000, 500_000, 3_000][at % 4]);
    }
    for group in graph.groups() {
        let kinds = ["all_gather", "reduce_scatter", "all_reduce"].map(|kind| (kind.into(), cost()));
        let size = group.size.unwrap_or(8);
        let of = GroupCosts { label: "".into(), size, costs: kinds.into_iter().collect() };
        costs.groups.insert(group.name.clone(), of);
    }
    costs
}

fn main() {
    println!("{:10} {:>9} {:>10} {:>14}", "chain", "messages", "seconds", "over two sums");
    for count in [125_000u64, 250_000, 500_000, 1_000_000] {
        let release: Vec<u64> = (0..count).map(|at| at * 30_000).collect();
        let bytes: Vec<u64> = (0..count).map(|at| 1_000 + (at * 7_919) % 40_000_000).collect();
        let cost = cost();
        let (_, plain) = timed(|| black_box(release.iter().sum::<u64>()) ^ black_box(bytes.iter().sum::<u64>()));
        let (found, took) = timed(|| chain::releases(black_box(&release), black_box(&bytes), &cost));
        assert!(!found.1.is_empty());
        let ratio = took.as_secs_f64() / plain.as_secs_f64().max(1e-9);
        println!("{:10} {count:>9} {:>10.4} {ratio:>14.0}", "two pieces", took.as_secs_f64());
    }
    println!(
        "{:10} {:>9} {:>12} {:>10} {:>17} {:>7} {:>12} {:>10} {:>10}",
        "step", "nodes", "collectives", "seconds", "over dependencies", "growth", "with bounds", "exposed", "planned"
    );
    for (series, sizes) in [("fsdp", [200, 2_000, 20_000, 200_000]), ("ddp", [200, 2_000, 20_000, 200_000])] {
        let mut before: Option<(usize, f64)> = None;
        for collectives in sizes {
            let text = if series == "ddp" { synthetic::ddp(collectives) } else { synthetic::fsdp(collectives) };
            let mut graph = FxText::parse(text.into_bytes()).expect("is well formed").graphs()[0].clone();
            let costs = costs(&graph);
            let (_, plain) = timed(|| black_box(Dependencies::of(&graph)));
            let as_written = Timeline::of(&graph, &costs).expect("all has a cost");
            let mut options = ScheduleOptions::default();
            (options.effort, options.cap_bytes) = (Effort::Low, Some(as_written.peak_bytes + (1 << 30)));
            let nodes = graph.order().len();
            let mut again = graph.clone();
            let (_, bounded) = timed(|| plan(&mut again, &costs, &options).expect("can be planned"));
            drop(again);
            options.bounds = false;
            let (found, took) = timed(|| plan(&mut graph, &costs, &options).expect("can be planned"));
            let took = took.as_secs_f64();
            let growth = before.replace((nodes, took)).map_or(String::new(), |(fewer, less)| {
                // For a doubling of nodes.
                format!("{:.2}", (took / less).powf(std::f64::consts::LN_2 / (nodes as f64 / fewer as f64).ln()))
            });
            println!(
                "{series:10} {nodes:>9} {:>12} {took:>10.3} {:>17.1} {growth:>7} {:>12.3} {:>10} {:>10}",
                as_written.launches.len(),
                took / plain.as_secs_f64(),
                bounded.as_secs_f64(),
                as_written.exposed_ns() / 1_000_000,
                found.after.exposed_ns() / 1_000_000,
            );
        }
    }
}
