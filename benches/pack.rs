//! How fast packs and unpacks move, against copying the same bytes.
//!
//! `cargo bench --bench pack` prints GB/s (read and written bytes) and the ratio to a memcpy that reads and writes as
//! many bytes, measured in turn in the same run; of each the best of many. `kernel` rows call `copy_elements`; `step`
//! rows are pack and unpack steps of a program that is run whole, leases and all, against a memcpy for each member. Names of parts run only those:
//! `kernel`, `step`.

mod all_reduces;

use all_reduces::{Owner, bucketed, graph, lowered, mixed_bytes};
use bucketeer::ir::{DType, GlobalRank};
use bucketeer::program::{Layout, Program, StepKind, View};
use bucketeer_comm::Backend;
use bucketeer_comm::fake::FakeRank;
use bucketeer_exec::{Executor, Reference, Times, copy_elements, seeded_inputs};
use std::hint::black_box;
use std::time::{Duration, Instant};

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == part);
    println!("{:44} {:>10} {:>9} {:>12} {:>7}", "", "bytes", "GB/s", "memcpy GB/s", "ratio");
    if runs("kernel") {
        kernels();
    }
    if runs("step") {
        steps();
    }
}

fn row(name: &str, bytes: usize, seconds: f64, memcpy_seconds: f64) {
    let speed = |seconds: f64| bytes as f64 / seconds / 1e9;
    let ratio = memcpy_seconds / seconds;
    println!("{name:44} {bytes:>10} {:>9.1} {:>12.1} {ratio:>7.2}", speed(seconds), speed(memcpy_seconds));
}

fn seconds(work: &mut impl FnMut()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// The best times of both, which take turns.
fn duel(turns: usize, mut ours: impl FnMut(), mut theirs: impl FnMut()) -> (f64, f64) {
    (0..turns).fold((f64::MAX, f64::MAX), |(a, b), _| (a.min(seconds(&mut ours)), b.min(seconds(&mut theirs))))
}

/// One tensor on both sides.
struct Case {
    name: &'static str,
    from: Layout,
    to: Layout,
}

fn case(name: &'static str, dtypes: (DType, DType), shape: &[u64], strides: Option<&[u64]>) -> Case {
    let layout = |dtype| Layout::dense(dtype, shape).expect("it is small");
    let mut from = layout(dtypes.0);
    from.strides = strides.map_or(from.strides, Into::into);
    Case { name, from, to: layout(dtypes.1) }
}

fn kernels() {
    let same = (DType::F32, DType::F32);
    let cases = [
        case("f32, dense, in cache", same, &[1 << 15], None),
        case("f32, dense, 64 MiB", same, &[1 << 24], None),
        case("f32 -> bf16, in cache", (DType::F32, DType::Bf16), &[1 << 15], None),
        case("f32 -> bf16, 64 MiB", (DType::F32, DType::Bf16), &[1 << 24], None),
        case("bf16 -> f32, in cache", (DType::Bf16, DType::F32), &[1 << 15], None),
        case("f32 -> f16, in cache", (DType::F32, DType::F16), &[1 << 15], None),
        case("f16 -> f32, in cache", (DType::F16, DType::F32), &[1 << 15], None),
        case("f64 -> f32, in cache", (DType::F64, DType::F32), &[1 << 15], None),
        case("f32, rows of 4 KiB out of 8, 32 MiB", same, &[8192, 1024], Some(&[2048, 1])),
        case("f32, rows of 16 bytes out of 32, in cache", same, &[8192, 4], Some(&[8, 1])),
        case("f32, every second element, in cache", same, &[1 << 15], Some(&[2])),
        case("f32, transposed, in cache", same, &[180, 180], Some(&[1, 180])),
        case("f32, transposed, 64 MiB", same, &[4100, 4100], Some(&[1, 4100])),
        case("f32 -> bf16, transposed, in cache", (DType::F32, DType::Bf16), &[180, 180], Some(&[1, 180])),
    ];
    for Case { name, from, to } in cases {
        let span = |layout: &Layout| layout.span_bytes().expect("it is small") as usize;
        let (source, mut target) = (vec![1u8; span(&from)], vec![0u8; span(&to)]);
        let elements = from.elements().expect("it is small") as usize;
        let bytes = elements * (from.dtype.bytes() + to.dtype.bytes()) as usize;
        let (copied, mut copy) = (vec![1u8; bytes / 2], vec![0u8; bytes / 2]);
        let repeats = (4_000_000 / bytes).max(1);
        let (ours, theirs) = duel(
            if bytes > 1 << 24 { 15 } else { 400 },
            || {
                for _ in 0..repeats {
                    copy_elements(black_box(&source), &from, &mut target, &to).expect("they fit");
                    black_box(&target);
                }
            },
            || {
                for _ in 0..repeats {
                    copy.copy_from_slice(black_box(&copied));
                    black_box(&copy);
                }
            },
        );
        row(name, bytes, ours / repeats as f64, theirs / repeats as f64);
    }
}

type IsKind = fn(&StepKind) -> bool;
type TimeOf = fn(&Times) -> Duration;

/// How many bytes each segment of the steps of a kind reads and writes.
fn moved(program: &Program, is_kind: IsKind) -> Vec<usize> {
    let bytes = |view: View| {
        let layout = program.layout(view.layout);
        layout.elements().expect("it is small") as usize * layout.dtype.bytes() as usize
    };
    let steps = program.steps.iter().filter(|step| is_kind(&step.kind));
    let segments = steps.flat_map(|step| match &step.kind {
        StepKind::Pack(moves) | StepKind::Unpack(moves) => &moves.segments[..],
        _ => &[],
    });
    segments.map(|segment| bytes(segment.from) + bytes(segment.to)).collect()
}

/// Copies member by member, end to end on both sides.
fn copy_members(members: &[usize], source: &[u8], target: &mut [u8]) {
    let mut at = 0;
    for bytes in members {
        let end = at + bytes / 2;
        target[at..end].copy_from_slice(&black_box(source)[at..end]);
        at = end;
    }
}

fn steps() {
    for (name, bytes, sent) in [
        ("8 of 8 MiB", vec![8 << 20; 8], DType::F32),
        ("200 of 1 KiB to 1 MiB", mixed_bytes(), DType::F32),
        ("200 of 1 KiB to 1 MiB, f32 -> bf16", mixed_bytes(), DType::Bf16),
        ("200 of 4 KiB", vec![4 << 10; 200], DType::F32),
        ("8 of 64 KiB", vec![64 << 10; 8], DType::F32),
    ] {
        let program = lowered(&bucketed(&graph(&bytes, sent, Owner::Caller)));
        assert_eq!(program.launches(), 1);
        // A rank without others, so that nobody else uses the memory.
        let rank = FakeRank::new(GlobalRank(0), 2).expect("a rank");
        let mut executor = Executor::new(&program, &rank).expect("there is memory");
        let inputs = seeded_inputs(&program, rank.rank(), 0).expect("they are small");
        let mut kernels = Reference::new(rank.rank(), 0);
        let kinds: [(_, IsKind, TimeOf); 2] = [
            ("pack", |kind| matches!(kind, StepKind::Pack(_)), |times| times.pack.time),
            ("unpack", |kind| matches!(kind, StepKind::Unpack(_)), |times| times.unpack.time),
        ];
        for (step, is_kind, time) in kinds {
            let members = moved(&program, is_kind);
            let all = members.iter().sum::<usize>();
            let (mut source, mut target) = (vec![1u8; all / 2], vec![0u8; all / 2]);
            let mut best = [f64::MAX; 2];
            for turn in 0..30 {
                let times = executor.run(&inputs, &mut kernels).expect("it runs").times;
                best[0] = best[0].min(time(&times).as_secs_f64());
                // What a step moves has just been written, too.
                source.fill(turn);
                best[1] = best[1].min(seconds(&mut || copy_members(&members, &source, &mut target)));
                black_box(&target);
            }
            row(&format!("{step} {name}"), all, best[0], best[1]);
        }
    }
}
