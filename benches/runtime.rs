//! How fast ranks as threads exchange, against copying the same bytes.
//!
//! `cargo bench --bench runtime` prints, for an all-reduce of f32 in place on 2 ranks, the median and best time of a
//! call and the time of a memcpy of as many bytes in the same run; then 200 small all-reduces one by one, in flight
//! together, and as one block, with and without a link of 50 us; then programs of 200 all-reduces as they came and
//! bucketed. Names of parts run only those: `sizes`, `many`, `buckets`.

mod all_reduces;

use all_reduces::{Owner, bucketed_with, graph, lowered, mixed_bytes};
use bucketeer::ir::{DType, GlobalRank, ReduceOp};
use bucketeer::program::Program;
use bucketeer_comm::local::{Link, LocalOptions, LocalRank, run, world, worthwhile_member_bytes};
use bucketeer_comm::{Backend, Buffer, CallOptions, Group, Operands};
use bucketeer_eval::step::CallResult;
use bucketeer_exec::{ComputeStep, Executor, RunError, seeded_inputs};
use std::time::{Duration, Instant};

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == part);
    if runs("sizes") {
        sizes();
    }
    if runs("many") {
        many();
    }
    if runs("buckets") {
        buckets();
    }
}

/// Runs on 2 ranks and returns what rank 0 does.
fn on_two<T: Send>(options: LocalOptions, body: impl Fn(&LocalRank, &Group) -> T + Sync) -> T {
    let results = run(2, options, |rank| {
        let group = rank.new_group("world", &[GlobalRank(0), GlobalRank(1)]).expect("a group of both");
        let result = body(&rank, &group);
        rank.barrier(&group, &CallOptions::blocking()).expect("both are there");
        result
    });
    results.expect("two threads").into_iter().next().expect("two ranks").expect("no panic")
}

fn filled(rank: &LocalRank, bytes: u64) -> Buffer {
    let buffer = rank.arena(bytes).expect("there is memory").buffer(0, bytes).expect("the whole arena");
    buffer.write().expect("nobody else has it").fill(0);
    buffer
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn sizes() {
    println!(
        "{:>10} {:>12} {:>12} {:>12} {:>8} {:>14}",
        "bytes", "median us", "best us", "memcpy us", "ratio", "GB/s (bytes)"
    );
    for (bytes, repeats) in [(1 << 10, 3000), (64 << 10, 1000), (1 << 20, 300), (25 << 20, 30), (256 << 20, 7)] {
        let (mut times, mut copies) = on_two(LocalOptions::default(), |rank, group| {
            let buffer = filled(rank, bytes);
            let data = Operands::in_place(buffer.clone(), DType::F32);
            let mut times = Vec::new();
            for _ in 0..repeats + 2 {
                let start = Instant::now();
                rank.all_reduce(group, data.clone(), ReduceOp::Sum.into(), &CallOptions::blocking()).expect("a sum");
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            // One rank copies while the other waits for it.
            let mut copies = Vec::new();
            if group.rank().0 == 0 {
                let (source, mut target) = (vec![1u8; bytes as usize], vec![0u8; bytes as usize]);
                for _ in 0..repeats.min(100) {
                    let start = Instant::now();
                    target.copy_from_slice(std::hint::black_box(&source));
                    std::hint::black_box(&target);
                    copies.push(start.elapsed().as_secs_f64() * 1e6);
                }
            }
            (times.split_off(2), copies)
        });
        let (time, copy) = (median(&mut times), median(&mut copies));
        let speed = bytes as f64 / time / 1e3;
        println!("{bytes:>10} {time:>12.1} {:>12.1} {copy:>12.1} {:>8.2} {speed:>14.2}", times[0], time / copy);
    }
}

/// How 200 all-reduces are launched.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    OneByOne,
    InFlight,
    Block,
}

fn many() {
    println!("\nmedian (best) ms");
    println!("{:16} {:>6} {:>16} {:>16} {:>16}", "200 all-reduces", "link", "one by one", "in flight", "one block");
    for (name, bytes) in
        [("4 KiB each", vec![4 << 10; 200]), ("64 KiB each", vec![64 << 10; 200]), ("mixed to 1 MiB", mixed_bytes())]
    {
        for link in [None, Some("alpha=50us,beta=10GB/s")] {
            let options =
                LocalOptions { link: link.map(|text| text.parse().expect("a link")), ..LocalOptions::default() };
            let times = on_two(options, |rank, group| {
                [Way::OneByOne, Way::InFlight, Way::Block].map(|way| {
                    let buffers: Vec<Buffer> = bytes.iter().map(|bytes| filled(rank, *bytes)).collect();
                    let mut times: Vec<f64> =
                        (0..21).map(|_| launch(rank, group, &buffers, way).as_secs_f64() * 1e3).collect();
                    format!("{:.2} ({:.2})", median(&mut times), times[0])
                })
            });
            let label = link.map_or("none", |_| "50us");
            println!("{name:16} {label:>6} {:>16} {:>16} {:>16}", times[0], times[1], times[2]);
        }
    }
}

fn launch(rank: &LocalRank, group: &Group, buffers: &[Buffer], way: Way) -> Duration {
    rank.barrier(group, &CallOptions::blocking()).expect("both are there");
    let start = Instant::now();
    let options = if way == Way::OneByOne { CallOptions::blocking() } else { CallOptions::default() };
    if way == Way::Block {
        rank.start_coalescing(group).expect("no block is open");
    }
    let mut works = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let data = Operands::in_place(buffer.clone(), DType::F32);
        works.push(rank.all_reduce(group, data, ReduceOp::Sum.into(), &options).expect("a sum"));
    }
    if way == Way::Block {
        works = vec![rank.end_coalescing(group, &CallOptions::default()).expect("a block")];
    }
    for work in works {
        work.wait(None).expect("a sum");
    }
    start.elapsed()
}

/// Ways to bucket, as options of `bucket-all-reduce`. Coalesced: one launch of several tensors, with no buffer for all.
const FORMS: [&str; 4] = ["cap=none", "cap=1MiB", "cap=none,mode=coalesced", "cap=1MiB,mode=coalesced"];

/// Programs of 200 all-reduces of f32 on 2 ranks, as they came and bucketed. They take turns; the time of a turn is that of
/// the slower rank, compute steps (copies here) included.
fn buckets() {
    println!("\n200 all-reduces as a program: best (median) ms as they came, and that over the time of each form");
    print!("{:14} {:7} {:>5} {:>14}", "", "values", "link", "as they came");
    FORMS.iter().for_each(|form| print!(" {:>18}", form.replace("mode=coalesced", "coal.")));
    println!(" {:>18}", "as `run` does");
    for (name, bytes) in [("4 KiB each", vec![4 << 10; 200]), ("mixed to 1 MiB", mixed_bytes())] {
        for (owner, link) in [(Owner::Caller, None), (Owner::Graph, None), (Owner::Caller, Some("alpha=50us"))] {
            let came = graph(&bytes, DType::F32, owner);
            let mut programs = vec![lowered(&came)];
            programs.extend(FORMS.iter().map(|form| lowered(&bucketed_with(&came, form))));
            assert_eq!((programs[0].launches(), programs[1].launches()), (200, 1));
            let link: Option<Link> = link.map(|text| text.parse().expect("a link"));
            let most = worthwhile_member_bytes(link.as_ref());
            programs.push(lowered(&bucketed_with(&came, &format!("max-member={most}"))));
            let options = LocalOptions { link, ..LocalOptions::default() };
            let times = in_turn(&options, &programs);
            let cell = |(best, median): (f64, f64)| format!("{best:.2} ({median:.2})");
            let values = if owner == Owner::Caller { "caller" } else { "graph" };
            print!("{name:14} {values:7} {:>5} {:>14}", link.map_or("none", |_| "50us"), cell(times[0]));
            times[1..].iter().for_each(|time| print!(" {:>18}", cell((times[0].0 / time.0, times[0].1 / time.1))));
            println!();
        }
    }
}

/// Runs programs in turn on 2 ranks, each in a world of its own: best and median ms of each.
fn in_turn(options: &LocalOptions, programs: &[Program]) -> Vec<(f64, f64)> {
    let mut ranks: [Vec<LocalRank>; 2] = [Vec::new(), Vec::new()];
    for _ in programs {
        let world = world(2, options.clone()).expect("a world");
        ranks.iter_mut().zip(world).for_each(|(ranks, rank)| ranks.push(rank));
    }
    let times: Vec<Vec<Vec<f64>>> = std::thread::scope(|scope| {
        let threads = ranks.map(|ranks| scope.spawn(move || turns(&ranks, programs)));
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let slower = |(a, b): (&Vec<f64>, &Vec<f64>)| {
        let mut slower: Vec<f64> = a.iter().zip(b).map(|(a, b)| a.max(*b)).collect();
        let median = median(&mut slower);
        (slower[0], median)
    };
    times[0].iter().zip(&times[1]).map(slower).collect()
}

/// How long each program takes on one rank, in ms, turn by turn. All give the same.
fn turns(ranks: &[LocalRank], programs: &[Program]) -> Vec<Vec<f64>> {
    ranks[0].pin();
    let group = ranks[0].new_group("turns", &[GlobalRank(0), GlobalRank(1)]).expect("a group of both");
    let inputs = seeded_inputs(&programs[0], ranks[0].rank(), 0).expect("they are small");
    let executor = |(rank, program)| Executor::new(program, rank).expect("there is memory");
    let mut executors: Vec<_> = ranks.iter().map(|rank| rank as &dyn Backend).zip(programs).map(executor).collect();
    let mut copy =
        |step: &ComputeStep<'_>| Ok::<_, RunError>(CallResult { made: step.operands[0].clone(), written: Vec::new() });
    let mut times = vec![Vec::new(); programs.len()];
    for _ in 0..25 {
        let mut expected = None;
        for (executor, times) in executors.iter_mut().zip(&mut times) {
            ranks[0].barrier(&group, &CallOptions::blocking()).expect("both are there");
            let run = executor.run(&inputs, &mut copy).expect("it runs");
            times.push(run.times.total.as_secs_f64() * 1e3);
            assert!(run.outputs == *expected.get_or_insert_with(|| run.outputs.clone()));
        }
    }
    ranks[0].barrier(&group, &CallOptions::blocking()).expect("both are there");
    // The first runs meet memory that was never touched.
    times.into_iter().map(|mut times| times.split_off(2)).collect()
}
