//! `run --backend nccl` on the fake GPU: ranks as processes of `launch`, with the command line that a user of GPUs types.
#![cfg(target_os = "linux")]

use crate::support::{Folder, Ran};
use std::path::Path;
use std::time::{Duration, Instant};

/// Nothing here waits for a timeout.
const LIMIT: Duration = Duration::from_secs(120);

/// The fake as all three libraries, without a cache of kernels.
pub fn fake() -> [(&'static str, &'static Path); 4] {
    let library = kit::fakegpu::path();
    let libraries = ["BUCKETEER_NCCL_LIB", "BUCKETEER_CUDA_LIB", "BUCKETEER_NVRTC_LIB"].map(|name| (name, library));
    [libraries[0], libraries[1], libraries[2], ("BUCKETEER_CACHE", Path::new(""))]
}

/// `run` of a real graph, as `fixtures/fx` has it.
fn run_line(name: &str) -> String {
    let file = |end: &str| format!("{}/fixtures/fx/{name}.{end}", kit::root().display());
    let graph = if name == "tiny_moe_bf16_rsfp32" { "forward.txt" } else { "backward.txt" };
    format!("run {} --groups {}", file(graph), file("groups.json"))
}

/// Asserts that the files of both names are equal byte for byte on each of four ranks.
#[track_caller]
fn expect_equal(folder: &Folder, [a, b]: [&str; 2]) {
    let read = |name: &str, rank: u32| std::fs::read(folder.path(&format!("{name}-{rank}.safetensors"))).unwrap();
    for rank in 0..4 {
        assert!(read(a, rank) == read(b, rank), "{a} and {b} differ on rank {rank}");
        assert!(read(a, rank).len() > 1000, "rank {rank}");
    }
}

/// The number of calls of both programs, as `run` says.
fn calls(ran: &Ran) -> [u32; 2] {
    ["as it came  ", "bucketed  "].map(|name| {
        let line = ran.out().lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line[name.len() + 2..].split_whitespace().next().unwrap().parse().unwrap()
    })
}

#[test]
fn four_processes_make_of_real_graphs_what_local_ranks_make() {
    let folder = Folder::new();
    // One group of all; two kinds of groups of two ranks; all-to-alls.
    for (name, expected) in
        [("tiny_ddp_bf16_arfp32", [21, 1]), ("tiny_fsdp_tp_bf16_rsfp32", [56, 13]), ("tiny_moe_bf16_rsfp32", [21, 5])]
    {
        let run = run_line(name);
        let local = folder.run(&format!("{run} --outputs local-{{rank}}.safetensors --made-up")).expect(0, &[]);
        let line = format!("launch --nproc 4 -- {run} --backend nccl --outputs nccl-{{rank}}.safetensors --made-up");
        let ran = folder.run_in(fake(), &line).expect(0, &[]);
        assert_eq!(calls(&ran), expected, "{name}\n{}", ran.out());
        assert!(ran.out().contains("outputs on each rank, equal bit for bit"), "{}", ran.out());
        // Meshes are handed through; one rank says so.
        assert_eq!(ran.talk().matches("note: --outputs: primals_2").count(), 1, "{name}\n{}", ran.talk());
        assert_eq!(local.talk().matches("note: --outputs: primals_2").count(), 1, "{name}\n{}", local.talk());
        expect_equal(&folder, ["local", "nccl"]);
        let of_rank = |rank: u32| std::fs::read(folder.path(&format!("nccl-{rank}.safetensors"))).unwrap();
        // What is reduced over all is the same on all; else each rank has a part of its own.
        assert_eq!(of_rank(0) == of_rank(1), name == "tiny_ddp_bf16_arfp32", "{name}");
    }
}

#[test]
fn without_a_compiler_the_kernel_that_is_shipped_does_the_same() {
    let folder = Folder::with("fixed.c", bucketeer::codegen::cuda::fixed_module());
    let run = run_line("tiny_ddp_bf16_arfp32");
    folder.run(&format!("{run} --outputs local-{{rank}}.safetensors --made-up")).expect(0, &[]);
    let line = format!("launch --nproc 4 -- {run} --backend nccl --outputs nccl-{{rank}}.safetensors --made-up");
    let source = folder.path("fixed.c");
    let without =
        [("BUCKETEER_NVRTC_LIB", Path::new("/nowhere/libnvrtc.so")), ("FAKEGPU_PTX_SOURCE", source.as_path())];
    let ran = folder.run_in(fake().into_iter().chain(without), &line).expect(0, &[]);
    assert_eq!(calls(&ran), [21, 1], "{}", ran.out());
    expect_equal(&folder, ["local", "nccl"]);
}

#[test]
fn another_number_of_processes_than_ranks_is_refused_by_name() {
    let folder = Folder::new();
    let run = format!("{} --backend nccl", run_line("tiny_ddp_bf16_arfp32"));
    for processes in [2, 5] {
        let said =
            format!("the graph runs on 4 ranks, and bucketeer launch says that there are {processes}; start as many");
        let line = format!("launch --nproc {processes} -- {run}");
        folder
            .run_in(fake(), &line)
            .expect(2, &[&said, "bucketeer launch --nproc 4 -- run", "failed first: exit code 2"]);
    }
    let said =
        "the graph runs on 4 ranks, and no launcher says which rank this is, so it is a world of one; start as many";
    folder.run_in(fake(), &run).expect(2, &[said]);
}

#[test]
fn a_library_that_is_missing_is_named_and_nobody_waits() {
    let folder = Folder::new();
    let line = format!("launch --nproc 4 -- {} --backend nccl", run_line("tiny_ddp_bf16_arfp32"));
    for (variable, file) in
        [("BUCKETEER_NCCL_LIB", "/nowhere/libnccl.so.2"), ("BUCKETEER_CUDA_LIB", "/nowhere/libcuda.so.1")]
    {
        let start = Instant::now();
        let missing = fake().into_iter().chain([(variable, Path::new(file))]);
        let ran = folder.run_in(missing, &line).expect(2, &["error: --backend nccl", file, variable, "failed first"]);
        assert!(start.elapsed() < LIMIT && ran.out().is_empty(), "{:?}", start.elapsed());
    }
}

#[test]
fn each_rank_writes_a_trace_of_both_programs() {
    let folder = Folder::new();
    let run = format!("launch --nproc 4 -- {} --backend nccl", run_line("tiny_ddp_bf16_arfp32"));
    folder.run_in(fake(), &format!("{run} --trace t.json")).expect(2, &["--trace t.json", "need `{rank}` in it"]);
    folder.run_in(fake(), &format!("{run} --trace t-{{rank}}.json")).expect(0, &[]);
    assert_eq!(folder.files(), (0..4).map(|rank| format!("t-{rank}.json")).collect::<Vec<_>>());
    for rank in 0..4 {
        let trace: serde_json::Value = serde_json::from_str(&folder.read(&format!("t-{rank}.json"))).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let names = events.iter().filter(|event| event["name"] == "process_name");
        let names: Vec<&str> = names.map(|event| event["args"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, [format!("rank {rank}, as it came"), format!("rank {rank}, bucketed")]);
        let comm: Vec<_> = events.iter().filter(|event| event["cat"] == "comm").collect();
        assert_eq!(comm.len(), 21 + 1);
        assert!(comm.iter().all(|event| event["args"]["ranks"] == serde_json::json!([0, 1, 2, 3])), "{comm:?}");
        assert!(comm.iter().all(|event| event["args"]["bytes"].as_u64().is_some_and(|bytes| bytes > 0)), "{comm:?}");
        assert_eq!(comm.iter().filter(|event| event["args"]["merged"] == 21).count(), 1, "{comm:?}");
    }
}

#[test]
fn repeated_runs_make_the_same_and_report_the_fastest() {
    let folder = Folder::new();
    let run = run_line("tiny_fsdp_tp_bf16_rsfp32");
    for (name, repeat) in [("once", 1), ("thrice", 3)] {
        let line = format!(
            "launch --nproc 4 -- {run} --backend nccl --repeat {repeat} --outputs {name}-{{rank}}.safetensors --made-up"
        );
        let ran = folder.run_in(fake(), &line).expect(0, &[]);
        let said = format!("the slowest rank of the fastest of {repeat} run");
        assert!(ran.out().contains(&said), "{}", ran.out());
    }
    expect_equal(&folder, ["once", "thrice"]);
}

#[test]
fn a_world_of_one_needs_no_launcher() {
    let graph = "a = input f32[640]; b = input f32[32]\n\
                 s = all_reduce(a, avg, G:1) : f32[640]; t = all_reduce(b, avg, G:1) : f32[32]\n\
                 output(wait(s), wait(t))\n";
    let folder = Folder::with("g.bkt", graph);
    folder.run("run g.bkt --outputs local.safetensors").expect(0, &[]);
    let ran = folder.run_in(fake(), "run g.bkt --backend nccl --outputs nccl.safetensors --trace t.json");
    let ran = ran.expect(0, &[]);
    assert!(ran.out().contains("graph `graph` on 1 rank,"), "{}", ran.out());
    // What one rank reduces is there already.
    assert_eq!(calls(&ran), [0, 0], "{}", ran.out());
    assert_eq!(folder.files(), ["g.bkt", "local.safetensors", "nccl.safetensors", "t.json"]);
    assert!(
        std::fs::read(folder.path("local.safetensors")).unwrap()
            == std::fs::read(folder.path("nccl.safetensors")).unwrap()
    );
}
