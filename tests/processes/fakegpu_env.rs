//! What the fake GPU is told by environment variables, which it reads once: each case is a process of its own.

use bucketeer_cuda::Driver;
use kit::fakegpu;
use std::path::PathBuf;
use std::process::Output;

/// Set in the processes that the tests below start.
const CHILD: &str = "FAKEGPU_ENV_TEST_CHILD";

/// Not a test of its own: what a child process does. Fills a buffer on each of two streams and prints what it saw.
#[test]
#[ignore = "the other tests start it"]
fn child() {
    assert!(std::env::var_os(CHILD).is_some(), "another test starts this one");
    let work = || -> Result<Vec<u8>, bucketeer_cuda::CudaError> {
        let driver = Driver::load(None)?;
        let device = driver.device(0)?;
        println!("{} devices of {}, driver {}", driver.device_count()?, device.arch()?, driver.version()?);
        let context = device.context()?;
        println!("{} bytes", context.memory()?.1);
        let (one, two) = (context.stream()?, context.stream()?);
        let buffer = context.alloc(1)?;
        // Both are enqueued at once: the one that is late wins.
        one.fill(&buffer, 0..1, 1)?;
        two.fill(&buffer, 0..1, 2)?;
        context.synchronize()?;
        let mut last = vec![0];
        one.download(&buffer, 0, &mut last)?;
        Ok(last)
    };
    match work() {
        Ok(last) => println!("last {last:?}"),
        Err(error) => println!("error: {error}"),
    }
}

fn run(variables: &[(&str, &str)]) -> Output {
    let mut command = kit::again(module_path!(), "child");
    command.env(CHILD, "1").env("BUCKETEER_CUDA_LIB", fakegpu::path());
    command.envs(variables.iter().copied()).output().unwrap()
}

fn text(variables: &[(&str, &str)]) -> String {
    String::from_utf8(run(variables).stdout).unwrap()
}

#[test]
fn devices_are_as_many_and_as_large_as_is_said() {
    let out = text(&[]);
    assert!(out.contains("8 devices of sm_90, driver 13.0\n4294967296 bytes\n"), "{out}");
    let out = text(&[
        ("FAKEGPU_DEVICES", "2"),
        ("FAKEGPU_ARCH", "80"),
        ("FAKEGPU_DRIVER_VERSION", "12020"),
        ("FAKEGPU_MEMORY_BYTES", "5000"),
    ]);
    assert!(out.contains("2 devices of sm_80, driver 12.2\n5000 bytes\n"), "{out}");
    let out = text(&[("FAKEGPU_DEVICES", "0")]);
    assert!(out.contains("error: cuInit failed with CUDA_ERROR_NO_DEVICE (100)"), "{out}");
}

#[test]
fn the_stream_that_is_delayed_comes_last() {
    for (stream, last) in [("0", "last [1]"), ("1", "last [2]")] {
        let out = text(&[("FAKEGPU_DELAY_US", "100000"), ("FAKEGPU_DELAY_STREAM", stream)]);
        assert!(out.contains(last), "stream {stream}: {out}");
    }
}

#[test]
fn faults_strike_from_the_start() {
    let out = text(&[("FAKEGPU_FAULT", "cuStreamCreate:2=999;cuMemAlloc_v2:1=2")]);
    assert!(out.contains("error: cuStreamCreate failed with CUDA_ERROR_UNKNOWN (999)"), "{out}");
    let out = run(&[("FAKEGPU_FAULT", "nonsense")]);
    let error = String::from_utf8(out.stderr).unwrap();
    assert!(!out.status.success() && error.contains("FAKEGPU_FAULT=nonsense is not a list of faults"), "{error}");
}

#[test]
fn the_log_is_a_file_of_json_lines() {
    let file: PathBuf = std::env::temp_dir().join(format!("fakegpu-log-{}", std::process::id()));
    text(&[("FAKEGPU_LOG", file.to_str().unwrap())]);
    let log = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], serde_json::json!({ "call": "cuInit", "args": {}, "code": 0 }));
    let fill = lines.iter().find(|line| line["call"] == "cuMemsetD8Async").unwrap();
    let args = serde_json::json!({ "to": "0+0", "value": 1, "bytes": 1, "stream": 1 });
    assert_eq!(*fill, serde_json::json!({ "call": "cuMemsetD8Async", "args": args, "code": 0 }));
    assert_eq!(lines.last().unwrap()["call"], "cuDevicePrimaryCtxRelease_v2");
}
