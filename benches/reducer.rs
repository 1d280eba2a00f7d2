//! How long a step of gradients takes on two ranks, from the first mark to the last gradient written.
//!
//! `cargo bench --bench reducer -- [--set resnet50|mixed200|tiny] [--delay-us 0,50,200] [--view] [--fit] [--iters N]` prints a line of JSON
//! for each delay, for the comparison with PyTorch in `scripts/bench_reducer.py`, which runs both in turn and prints ratios. Without
//! arguments it prints, for all sets: what a mark costs beside the copy, over copying the same bytes without a reducer.

use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_reducer::{Caps, Fit, Item, Param, Reducer, ReducerOptions, plan};
use bucketeer_types::DType;
use kit::collective::{Random, ranks};
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Shapes of a set of parameters, in order of definition.
fn shapes(set: &str) -> Vec<Vec<u64>> {
    match set {
        "resnet50" => resnet50(),
        "mixed200" => {
            // Log-uniform between 1 KiB and 1 MiB.
            let mut random = Random::new(7);
            (0..200).map(|_| vec![2f64.powf(8.0 + random.below(10_000) as f64 / 1000.0) as u64]).collect()
        }
        "tiny" => vec![vec![1000], vec![10], vec![300, 7], vec![5]],
        other => panic!("{other} is not a set: resnet50, mixed200 or tiny"),
    }
}

fn resnet50() -> Vec<Vec<u64>> {
    let mut shapes = vec![vec![64, 3, 7, 7], vec![64], vec![64]];
    let mut input = 64;
    for (width, blocks) in [(64, 3), (128, 4), (256, 6), (512, 3)] {
        for block in 0..blocks {
            let norm = |shapes: &mut Vec<Vec<u64>>, width| shapes.extend([vec![width], vec![width]]);
            shapes.push(vec![width, input, 1, 1]);
            norm(&mut shapes, width);
            shapes.push(vec![width, width, 3, 3]);
            norm(&mut shapes, width);
            shapes.push(vec![width * 4, width, 1, 1]);
            norm(&mut shapes, width * 4);
            if block == 0 {
                shapes.push(vec![width * 4, input, 1, 1]);
                norm(&mut shapes, width * 4);
            }
            input = width * 4;
        }
    }
    shapes.extend([vec![1000, 2048], vec![1000]]);
    shapes
}

fn params(set: &str) -> Vec<Param> {
    let param = |(at, shape): (usize, Vec<u64>)| Param::new(format!("p{at}"), &shape, DType::F32);
    shapes(set).into_iter().enumerate().map(param).collect()
}

fn pause(time: Duration) {
    if time >= Duration::from_micros(200) {
        std::thread::sleep(time);
    } else {
        let end = Instant::now() + time;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
}

fn fill(bytes: &mut [u8], value: f32) {
    bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|one| *one = value.to_le_bytes());
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

struct Bench {
    set: String,
    view: bool,
    fit: bool,
    iters: usize,
    world: usize,
}

impl Bench {
    /// Milliseconds of each iteration on a rank; whether all gradients are right is checked in the first.
    fn rank(&self, backend: Arc<dyn Backend>, delay: Duration, meet: &Barrier) -> (Vec<f64>, usize) {
        let place = backend.rank().0 as usize;
        let group = backend.new_group("gradients", &ranks(self.world)).unwrap();
        let params = params(&self.set);
        let mut own: Vec<Vec<u8>> = params.iter().map(|param| vec![0; param.bytes() as usize]).collect();
        let mut grads = own.clone();
        let caps = if self.fit { Caps::Fit(Fit::default()) } else { Caps::default() };
        let mut reducer =
            Reducer::new(backend, &group, params, ReducerOptions { caps, ..ReducerOptions::default() }).unwrap();
        let mut times = Vec::new();
        for iteration in 0..self.iters + 8 {
            own.iter_mut().for_each(|own| fill(own, place as f32 + 1.0));
            let step = reducer.step().unwrap();
            meet.wait();
            let start = Instant::now();
            for (at, own) in own.iter().enumerate().rev() {
                if self.view {
                    step.slot(at).unwrap().write().unwrap().copy_from_slice(own);
                    step.ready_in_place(at).unwrap();
                } else {
                    step.ready(at, own).unwrap();
                }
                if at > 0 && !delay.is_zero() {
                    pause(delay);
                }
            }
            if self.view {
                step.finish().unwrap();
            } else {
                // As `.grad` is written: from the buckets, as they come.
                step.finish_each(|bucket| {
                    bucket.params().for_each(|param| bucket.copy_to(param, &mut grads[param]).unwrap());
                })
                .unwrap();
            }
            let took = start.elapsed().as_secs_f64() * 1e3;
            let wanted = (self.world as f32 + 1.0) / 2.0;
            if iteration == 0 && !self.view {
                let right =
                    |grad: &Vec<u8>| grad.as_chunks::<4>().0.iter().all(|one| f32::from_le_bytes(*one) == wanted);
                assert!(grads.iter().all(right));
            }
            // Rebuilds come in the first steps.
            if iteration >= 8 {
                times.push(took);
            }
        }
        (times, reducer.buckets().len())
    }

    /// What marks cost without a reducer: the same copies and pauses.
    fn alone(&self, delay: Duration) -> f64 {
        let params = params(&self.set);
        let own: Vec<Vec<u8>> = params.iter().map(|param| vec![1; param.bytes() as usize]).collect();
        let mut copy = own.clone();
        let mut times: Vec<f64> = (0..self.iters.max(5))
            .map(|_| {
                let start = Instant::now();
                for at in (0..own.len()).rev() {
                    copy[at].copy_from_slice(&own[at]);
                    if at > 0 && !delay.is_zero() {
                        pause(delay);
                    }
                }
                black_box(&copy);
                start.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        median(&mut times)
    }

    fn run(&self, delay_us: u64) {
        let delay = Duration::from_micros(delay_us);
        let meet = Barrier::new(self.world);
        let results = run(self.world as u32, LocalOptions::default(), |rank| self.rank(Arc::new(rank), delay, &meet));
        let results: Vec<(Vec<f64>, usize)> = results.unwrap().into_iter().map(|rank| rank.unwrap()).collect();
        let slowest = |at: usize| results.iter().map(|(times, _)| times[at]).fold(0.0, f64::max);
        let mut times: Vec<f64> = (0..self.iters).map(slowest).collect();
        let bytes: u64 = params(&self.set).iter().map(Param::bytes).sum();
        let (least, most) = times.iter().fold((f64::MAX, 0f64), |(low, high), time| (low.min(*time), high.max(*time)));
        println!(
            "{{\"set\": \"{}\", \"tensors\": {}, \"bytes\": {bytes}, \"world\": {}, \"delay_us\": {delay_us}, \"buckets\": {}, \
             \"view\": {}, \"median_ms\": {:.3}, \"min_ms\": {least:.3}, \"max_ms\": {most:.3}, \"marks_alone_ms\": {:.3}, \"iters\": {}}}",
            self.set,
            params(&self.set).len(),
            self.world,
            results[0].1,
            self.view,
            median(&mut times),
            self.alone(delay),
            self.iters
        );
    }
}

/// What a mark costs beside the copy, on one rank.
fn marks() {
    println!("{:24} {:>8} {:>12} {:>14}", "marks", "count", "ns a mark", "over one copy");
    for (name, elements) in [("of 16 bytes", 4u64), ("of 4 KiB", 1024)] {
        let count = 2000;
        let params: Vec<Param> = (0..count).map(|at| Param::new(format!("p{at}"), &[elements], DType::F32)).collect();
        let own = vec![1u8; elements as usize * 4];
        let results = run(1, LocalOptions::default(), |rank| {
            let group = rank.new_group("gradients", &ranks(1)).unwrap();
            let mut reducer = Reducer::new(Arc::new(rank), &group, params.clone(), ReducerOptions::default()).unwrap();
            let mut times = Vec::new();
            for _ in 0..50 {
                let step = reducer.step().unwrap();
                let start = Instant::now();
                (1..count).rev().for_each(|param| step.ready(param, &own).unwrap());
                times.push(start.elapsed().as_secs_f64() * 1e9 / (count - 1) as f64);
                // The last one launches.
                step.ready(0, &own).unwrap();
                step.finish().unwrap();
            }
            median(&mut times)
        });
        let mark = results.unwrap().remove(0).unwrap();
        let mut target = vec![0u8; own.len() * count];
        let mut times: Vec<f64> = (0..50)
            .map(|_| {
                let start = Instant::now();
                target.chunks_mut(own.len()).for_each(|target| target.copy_from_slice(black_box(&own)));
                black_box(&target);
                start.elapsed().as_secs_f64() * 1e9 / count as f64
            })
            .collect();
        let copy = median(&mut times);
        println!("{name:24} {count:>8} {:>12.0} {:>14.1}", mark - copy, mark / copy.max(0.1));
    }
    let items: Vec<Item> = (0..100_000)
        .map(|at| Item { bytes: 1000 + at * 7919 % 100_000, dtype: DType::F32, device: 0, sparse: false })
        .collect();
    let ready: Vec<u64> = (0..100_000u64).map(|at| (100_000 - at) * 3000).collect();
    let measured: Vec<(u64, u64)> = (10..28).map(|at| (1 << at, 20_000 + (1 << at) / 100)).collect();
    let cost = bucketeer_chain::MessageCost::fit(&measured);
    let mut times: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            black_box(plan(black_box(&items), &ready, &cost));
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    println!("plan of buckets for {} parameters: {:.1} ms", items.len(), median(&mut times));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    if let Some(set) = value("--sizes") {
        // Elements of each, for the twin.
        let sizes: Vec<String> = params(&set).iter().map(|param| param.elements().to_string()).collect();
        return println!("{}", sizes.join(","));
    }
    let Some(set) = value("--set") else { return marks() };
    let iters = value("--iters").map_or(20, |iters| iters.parse().expect("a number of iterations"));
    let world = value("--world").map_or(2, |world| world.parse().expect("a number of ranks"));
    let bench = Bench { set, view: has("--view"), fit: has("--fit"), iters, world };
    for delay in value("--delay-us").unwrap_or_else(|| "0".to_owned()).split(',') {
        bench.run(delay.parse().expect("microseconds"));
    }
}
