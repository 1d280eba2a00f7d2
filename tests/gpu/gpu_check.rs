//! `scripts/gpu-check` works on the fake GPU, and says so where there is none.

use bucketeer_comm::store::{ServerOptions, StoreServer};
use kit::fakegpu;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The program that the script runs, built if it is not.
fn binary() -> PathBuf {
    // This test is TARGET/PROFILE/deps/NAME.
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--example", "gpu_check", "--target-dir"]).arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let built = command.current_dir(kit::root()).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    profile.join("examples/gpu_check")
}

fn run(variables: &[(&str, &std::path::Path)]) -> (Output, String) {
    let mut command = Command::new(binary());
    command.arg("--quick").env_remove("BUCKETEER_CACHE").envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

/// The fixed kernel's source, which the fake runs in place of PTX.
struct Source(PathBuf);

impl Source {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fixed-{}-{}.c", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, bucketeer::codegen::cuda::fixed_module()).unwrap();
        Self(path)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn every_check_passes_on_the_fake_gpu_and_the_table_has_all_buckets() {
    let (source, library) = (Source::new(), fakegpu::path());
    let (output, text) = run(&[
        ("BUCKETEER_CUDA_LIB", library),
        ("BUCKETEER_NVRTC_LIB", library),
        ("BUCKETEER_NCCL_LIB", library),
        ("FAKEGPU_PTX_SOURCE", &source.0),
    ]);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in [
        "compiled kernel: 3 buckets are as on the host",
        "fixed kernel: ",
        "real graph on 4 ranks that share the GPU, collectives over the host: as on the host, bit for bit",
        "NCCL, a world of one: 5 kinds of collectives are right",
        "on 1 rank: equal bit for bit\n  as it came 200 calls",
        "NCCL, two processes on one GPU as two hosts: 5 kinds of collectives are right",
        "on 2 ranks: equal bit for bit\n  as it came 200 calls",
        "NCCL, real graph on 2 ranks, against the host: equal bit for bit",
        "200 of 4 KiB, bf16",
        "rank-major of 8",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(text.matches("  bucketed     1 calls").count(), 2, "{text}");
    assert_eq!(text.matches("one of 256 MiB, f32 to bf16").count(), 2, "{text}");
}

#[test]
fn without_nccl_all_else_is_checked_and_that_is_said() {
    let (source, library) = (Source::new(), fakegpu::path());
    let (output, text) = run(&[
        ("BUCKETEER_CUDA_LIB", library),
        ("BUCKETEER_NVRTC_LIB", "/nowhere/libnvrtc.so.12".as_ref()),
        ("BUCKETEER_NCCL_LIB", "/nowhere/libnccl.so.2".as_ref()),
        ("FAKEGPU_PTX_SOURCE", &source.0),
    ]);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in [
        "no NVRTC, so the fixed kernel alone",
        "real graph on 4 ranks",
        "NCCL: not checked, the library is not there: ",
        "/nowhere/libnccl.so.2",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("NCCL, "), "{text}");
}

#[test]
fn two_processes_that_nccl_does_not_connect_say_so_and_have_an_exit_code_of_their_own() {
    let server = StoreServer::open("127.0.0.1:0".parse().unwrap(), ServerOptions::new(2)).unwrap();
    let ranks = [0, 1].map(|rank| {
        let mut command = Command::new(binary());
        command.env("GPU_CHECK_PAIR", format!("{rank} {}", server.address()));
        // As the real one does where both are of one host.
        command.env("FAKEGPU_FAULT", "ncclCommInitRankConfig:1=5").stdout(Stdio::piped());
        command.envs(["BUCKETEER_CUDA_LIB", "BUCKETEER_NCCL_LIB"].map(|name| (name, fakegpu::path())));
        command.spawn().unwrap()
    });
    for output in ranks.map(|rank| rank.wait_with_output().unwrap()) {
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(4), "{text}");
        assert!(text.contains("NCCL, two processes on one GPU: ") && text.contains("ncclInvalidUsage"), "{text}");
    }
}

#[test]
fn without_a_gpu_it_says_what_is_missing_and_ends_with_a_code_of_its_own() {
    let (output, text) = run(&[("BUCKETEER_CUDA_LIB", "/nowhere/libcuda.so.1".as_ref())]);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("not run, there is no GPU to use") && text.contains("/nowhere/libcuda.so.1"), "{text}");
}
