//! The fake NCCL between processes: each rank is one, as with the real NCCL.

use bucketeer::ir::{DType, ReduceOp};
use bucketeer_cuda::Driver;
use bucketeer_cuda::nccl::{InitOptions, Nccl, UniqueId};
use kit::fakegpu;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

/// Set in the processes that the tests below start: what to do, the rank, the number of ranks and the id in hex.
const TASK: &str = "NCCL_TEST_TASK";

/// Not a test of its own: what a rank does.
#[test]
#[ignore = "the other tests start it"]
fn child() {
    let task = std::env::var(TASK).expect("another test starts this one, and says what to do");
    let mut words = task.split(' ');
    let mut next = || words.next().unwrap();
    let (what, rank, size) = (next(), next().parse().unwrap(), next().parse().unwrap());
    let hex = next();
    let id = std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap());

    let nccl = Nccl::load(None).unwrap();
    let context = Driver::load(None).unwrap().device(rank).unwrap().context().unwrap();
    let options = InitOptions { timeout: Duration::from_secs(30), blocking: false };
    let comm = nccl.comm(&context, rank, size, &UniqueId::from_bytes(id), &options).unwrap();
    let (stream, buffer) = (context.stream().unwrap(), context.alloc(4 << 16).unwrap());
    let values: Vec<u8> = (0..1 << 16).flat_map(|at| ((at % 1000) as f32 + rank as f32).to_le_bytes()).collect();
    stream.upload(&values, &buffer, 0).unwrap();
    if what == "dies" && rank == 1 {
        std::process::abort();
    }
    comm.all_reduce(&stream, &buffer, &buffer, DType::F32, ReduceOp::Sum.into()).unwrap();
    if what == "dies" {
        while comm.check().is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("error: {}", comm.check().unwrap_err());
        return;
    }
    let mut sums = vec![0; values.len()];
    stream.download(&buffer, 0, &mut sums).unwrap();
    let ranks: u32 = (0..size).sum();
    let expected = (0..1 << 16).flat_map(|at| ((at % 1000) as f32 * size as f32 + ranks as f32).to_le_bytes());
    assert!(sums == expected.collect::<Vec<u8>>());
    // To the next, from the one before.
    let group = nccl.group().unwrap();
    comm.send(&stream, &buffer.slice(0..4).unwrap(), DType::F32, (rank + 1) % size).unwrap();
    comm.recv(&stream, &buffer.slice(4..8).unwrap(), DType::F32, (rank + size - 1) % size).unwrap();
    group.end().unwrap();
    comm.close().unwrap();
    println!("right");
}

fn start(what: &str, rank: u32, size: u32, id: &UniqueId) -> Child {
    let hex: String = id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = kit::again(module_path!(), "child");
    command.envs(["BUCKETEER_NCCL_LIB", "BUCKETEER_CUDA_LIB"].map(|name| (name, fakegpu::path())));
    command.env(TASK, format!("{what} {rank} {size} {hex}"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn run(what: &str, size: u32) -> Vec<Output> {
    let id = fakegpu::session().nccl().unique_id().unwrap();
    let ranks: Vec<Child> = (0..size).map(|rank| start(what, rank, size, &id)).collect();
    ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn processes_reduce_and_send_as_threads_do() {
    for size in [2, 4] {
        for (rank, output) in run("works", size).iter().enumerate() {
            assert!(output.status.success() && text(output).contains("right\n"), "{rank} of {size}: {}", text(output));
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_that_dies_is_named_by_the_others() {
    let outputs = run("dies", 2);
    assert!(!outputs[1].status.success());
    let expected = "error: an earlier call failed on rank 0 of 2 with ncclRemoteError (6)";
    let found = text(&outputs[0]);
    assert!(found.contains(expected) && found.contains("the process of rank 1 is gone"), "{found}");
}
