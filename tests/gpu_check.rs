//! `scripts/gpu-check` works on the fake GPU, and says so where there is none.

mod fakegpu;

use std::path::PathBuf;
use std::process::{Command, Output};

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
    let built = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
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

#[test]
fn every_check_passes_on_the_fake_gpu_and_the_table_has_all_buckets() {
    let source = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fixed-{}.c", std::process::id()));
    std::fs::write(&source, bucketeer::codegen::cuda::fixed_module()).unwrap();
    let library = fakegpu::path();
    let (output, text) =
        run(&[("BUCKETEER_CUDA_LIB", library), ("BUCKETEER_NVRTC_LIB", library), ("FAKEGPU_PTX_SOURCE", &source)]);
    std::fs::remove_file(&source).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in
        ["compiled kernel: 3 buckets are as on the host", "fixed kernel: ", "200 of 4 KiB, bf16", "rank-major of 8"]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(text.matches("one of 256 MiB, f32 to bf16").count(), 2, "{text}");
}

#[test]
fn without_a_gpu_it_says_what_is_missing_and_ends_with_a_code_of_its_own() {
    let (output, text) = run(&[("BUCKETEER_CUDA_LIB", "/nowhere/libcuda.so.1".as_ref())]);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("not run, there is no GPU to use") && text.contains("/nowhere/libcuda.so.1"), "{text}");
}
