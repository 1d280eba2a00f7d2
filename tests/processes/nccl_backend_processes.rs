//! The backend `nccl` with ranks as processes that meet in a store over TCP, as a launcher starts them: this test's own program,
//! started again. They compute what the reference does, and go on without one that is killed.

use bucketeer::ir::{DType, GlobalRank, ReduceOp};
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::rendezvous::Rendezvous;
use bucketeer_comm::store::{ServerOptions, StoreServer};
use bucketeer_comm::{Backend, CallOptions, CommError, Fate, Operands};
use bucketeer_cuda::Driver;
use bucketeer_cuda::nccl::Nccl;
use kit::collective::{Case, nccl_kinds, ranks, run_cases};
use kit::fakegpu;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Set in the processes that the tests below start: what to do.
const TASK: &str = "NCCL_BACKEND_TASK";

/// Far longer than any of it takes.
const LONG: Duration = Duration::from_secs(100);

/// Not a test of its own: what a rank does.
#[test]
#[ignore = "the other tests start it"]
fn child() {
    let task = std::env::var(TASK).expect("another test starts this one, and says what to do");
    let meeting = Rendezvous::from_env().unwrap().unwrap();
    let (number, size) = (meeting.rank.0, meeting.world_size);
    let store = Arc::new(meeting.join(LONG).unwrap());
    let nccl = Nccl::load(None).unwrap();
    let context = Driver::load(None).unwrap().device(meeting.local_rank.unwrap()).unwrap().context().unwrap();
    let options = NcclOptions {
        timeout: LONG,
        poll: Duration::from_millis(2),
        store_poll: Duration::from_millis(5),
        ..NcclOptions::default()
    };
    let rank = NcclRank::new(&nccl, &context, store, options).unwrap();
    match task.as_str() {
        "suite" => suite(&rank, size as usize),
        "reducer" => return reducer(rank),
        _ => shrink(&rank, number, size as usize),
    }
    rank.close().unwrap();
    assert_eq!(fakegpu::session().violations(), [""; 0]);
    println!("\nright");
}

/// All cases of the reducer.
fn reducer(rank: NcclRank) {
    let rank = Arc::new(rank);
    let backend: Arc<dyn Backend> = rank.clone();
    assert!(reducer_suite::run_all(&backend) > 0);
    drop(backend);
    Arc::into_inner(rank).expect("no case keeps its backend").close().unwrap();
    assert_eq!(fakegpu::session().violations(), [""; 0]);
    println!("\nright");
}

#[test]
fn reducers_do_on_processes_what_they_do_on_threads() {
    for (rank, output) in run("reducer", 4).iter().enumerate() {
        expect_right(rank, output);
    }
}

/// The suite's cases that NCCL can do. All kinds and reductions, with few of the lengths.
fn cases(size: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::Bf16, DType::I64, DType::Bool] {
        for (nth, kind) in nccl_kinds(dtype, size).into_iter().enumerate() {
            let in_place = nth % 2 == 0 && Case::can_be_in_place(kind);
            cases.extend([0, 67].map(|count| Case { kind, dtype, count, in_place }));
        }
    }
    cases
}

fn suite(rank: &NcclRank, size: usize) {
    let cases = cases(size);
    let input = |index: usize, case: &Case, place| case.input(index as u64, place, size, true);
    for (name, coalesced) in [("alone", false), ("together", true)] {
        let group = rank.new_group(name, &ranks(size)).unwrap();
        let place = group.rank().0 as usize;
        let outputs = run_cases(rank, &group, &cases, |index, case| input(index, case, place), coalesced).unwrap();
        for (index, (case, output)) in cases.iter().zip(outputs).enumerate() {
            let inputs: Vec<Vec<u8>> = (0..size).map(|place| input(index, case, place)).collect();
            assert_eq!(output, case.expected(&inputs, place), "{case:?} on rank {place} of {size}");
        }
    }
}

/// Sums a byte of each rank, which is its number and 1.
fn sum(rank: &NcclRank, group: &bucketeer_comm::Group) -> Result<u8, CommError> {
    let buffer = rank.arena(1).unwrap().buffer(0, 1).unwrap();
    buffer.write().unwrap()[0] = rank.rank().0 as u8 + 1;
    let data = Operands::in_place(buffer.clone(), DType::U8);
    rank.all_reduce(group, data, ReduceOp::Sum.into(), &CallOptions::blocking())?;
    Ok(buffer.read().unwrap()[0])
}

fn shrink(rank: &NcclRank, number: u32, size: usize) {
    let group = rank.new_group("world", &ranks(size)).unwrap();
    assert_eq!(sum(rank, &group).unwrap(), 1 + 2 + 3);
    if number == 1 {
        let own = std::process::id().to_string();
        Command::new("kill").args(["-KILL", &own]).status().unwrap();
    }
    let error = sum(rank, &group).unwrap_err();
    assert!(matches!(error, CommError::Remote { rank: GlobalRank(1), fate: Fate::Lost, .. }), "{error}");
    let smaller = rank.shrink(&group, &error.culprits()).unwrap();
    for _ in 0..3 {
        assert_eq!(sum(rank, &smaller).unwrap(), 1 + 3);
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Starts a rank as `bucketeer launch` does.
fn start(task: &str, (rank, size): (u32, u32), server: &StoreServer, shared: &Path) -> Child {
    let (address, ranks) = (server.address(), size.to_string());
    let mut command = kit::again(module_path!(), "child");
    command.envs(["BUCKETEER_NCCL_LIB", "BUCKETEER_CUDA_LIB"].map(|name| (name, fakegpu::path())));
    command.envs(["RANK", "LOCAL_RANK"].map(|name| (name, rank.to_string())));
    command.envs(["WORLD_SIZE", "LOCAL_WORLD_SIZE"].map(|name| (name, &ranks)));
    command.env("MASTER_ADDR", address.ip().to_string()).env("MASTER_PORT", address.port().to_string());
    command.env("BUCKETEER_LAUNCHER", std::process::id().to_string()).env("FAKEGPU_NCCL_DIR", shared);
    command.env(TASK, task);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn run(task: &str, size: u32) -> Vec<Output> {
    let shared = folder(&format!("processes-{task}-{size}"));
    let server = StoreServer::open("127.0.0.1:0".parse().unwrap(), ServerOptions::new(size)).unwrap();
    let ranks: Vec<Child> = (0..size).map(|rank| start(task, (rank, size), &server, &shared)).collect();
    let outputs = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    std::fs::remove_dir_all(shared).unwrap();
    outputs
}

fn expect_right(rank: usize, output: &Output) {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("\nright\n"), "rank {rank}: {text}");
}

#[test]
fn ranks_that_are_processes_compute_what_the_reference_does() {
    for size in 1..=4 {
        run("suite", size).iter().enumerate().for_each(|(rank, output)| expect_right(rank, output));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn processes_go_on_without_one_that_is_killed() {
    let outputs = run("shrink", 3);
    [0, 2].into_iter().for_each(|rank| expect_right(rank, &outputs[rank]));
    assert!(!outputs[1].status.success());
}
