//! How fast HLO text is read and printed, and how long policy `xla` takes.
//!
//! `cargo bench --bench hlo` prints a line for each question; file names after `--` are read instead of generated text.

use bucketeer::ir::Dependencies;
use bucketeer::passes::bucketing::{BucketKind, BucketOptions, plan};
use bucketeer_formats::Document;
use std::fmt::Write;
use std::time::Instant;

/// So many independent all-reduces, each with its parameter, and a few other instructions for each.
fn independent(count: usize, others: usize) -> String {
    let mut text =
        "HloModule m, replica_count=8\n\n%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  \
                    %b = f32[] parameter(1)\n  ROOT %c = f32[] add(%a, %b)\n}\n\nENTRY %main {\n"
            .to_owned();
    for nth in 0..count {
        let _ = writeln!(text, "  %p.{nth} = f32[1024]{{0}} parameter({nth}), metadata={{op_name=\"params[{nth}]\"}}");
        let mut last = format!("p.{nth}");
        for other in 0..others {
            let _ = writeln!(
                text,
                "  %m.{nth}.{other} = f32[1024]{{0}} multiply(%{last}, %p.{nth}), \
                 metadata={{op_name=\"jit(step)/transpose(jvp())/layer/mul\" stack_frame_id={other}}}"
            );
            last = format!("m.{nth}.{other}");
        }
        let _ = writeln!(
            text,
            "  %r.{nth} = f32[1024]{{0}} all-reduce(%{last}), channel_id=1, replica_groups={{{{0,1,2,3,4,5,6,7}}}}, \
             use_global_device_ids=true, to_apply=%add, metadata={{op_name=\"jit(step)/psum\" stack_frame_id=7}}"
        );
    }
    let shapes = vec!["f32[1024]{0}"; count].join(", ");
    let names: Vec<String> = (0..count).map(|nth| format!("%r.{nth}")).collect();
    let _ = writeln!(text, "  ROOT %t = ({shapes}) tuple({})\n}}", names.join(", "));
    text
}

/// The best of five.
fn best<T>(mut work: impl FnMut() -> T) -> (f64, T) {
    best_with(|| (), |()| work())
}

/// The best of five, on something that is prepared each time, which does not count.
fn best_with<I, T>(mut prepare: impl FnMut() -> I, mut work: impl FnMut(I) -> T) -> (f64, T) {
    let mut best = (f64::INFINITY, work(prepare()));
    for _ in 0..5 {
        let prepared = prepare();
        let start = Instant::now();
        let made = work(prepared);
        let seconds = start.elapsed().as_secs_f64();
        if seconds < best.0 {
            best = (seconds, made);
        }
    }
    best
}

fn read_and_print(name: &str, text: &str) {
    let mib = text.len() as f64 / 1e6;
    // The copy that is read is not part of reading.
    let (read, mut document) = best_with(|| text.as_bytes().to_vec(), |bytes| Document::read(bytes).expect("HLO text"));
    let (print, _) = best(|| document.print());
    // A merge, so that some lines change.
    let mut options = BucketOptions::xla(BucketKind::AllReduce);
    options.caps.max_members = Some(2);
    let nodes = document.graphs()[0].order().len();
    let pipeline = bucketeer::passes::Pipeline { passes: vec![bucketeer::passes::Pass::Bucket(options)] };
    pipeline.run(&mut document.graphs_mut()[0]).expect("a merge");
    let (changed, _) = best(|| document.print());
    println!(
        "{name:24} {mib:>8.1} MB {nodes:>9} nodes  read {:>6.0} MB/s  print {:>7.0} MB/s  print changed {:>6.0} MB/s",
        mib / read,
        mib / print,
        mib / changed
    );
}

fn main() {
    let files: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    for file in &files {
        read_and_print(file, &std::fs::read_to_string(file).expect("a file"));
    }
    if !files.is_empty() {
        return;
    }
    read_and_print("10,000 all-reduces", &independent(10_000, 8));
    read_and_print("100,000 all-reduces", &independent(100_000, 8));
    for (count, members) in [(1000, 2), (2000, 2), (4000, 2), (4000, 2000), (100_000, 2), (200_000, 2)] {
        let document = Document::read(independent(count, 2).into_bytes()).expect("HLO text");
        let graph = &document.graphs()[0];
        let dependencies = Dependencies::of(graph);
        let mut options = BucketOptions::xla(BucketKind::AllReduce);
        options.caps.max_members = Some(members);
        let (seconds, plan) = best(|| plan(graph, &dependencies, &options));
        println!(
            "policy xla: {count:>7} all-reduces, at most {members:>4} together: {:>6} buckets in {:>8.2} ms",
            plan.buckets.len(),
            seconds * 1e3
        );
    }
}
