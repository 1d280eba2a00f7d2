//! What a call costs on processes of MPI, against MPI's own all-reduce; and what buckets are worth there, against ranks as
//! threads.
//!
//! `cargo bench --features mpi --bench mpi` starts itself under `mpirun -n 2`, twice: for MPI's own blocking all-reduce of
//! f32, then for ours, with 200 all-reduces as a program, as they came and bucketed. The same programs then run on local
//! ranks. Ratios compare what ran in turn, in one world.

mod all_reduces;

use all_reduces::{Owner, bucketed_with, graph, lowered, mixed_bytes};
use bucketeer::ir::{DType, GlobalRank, ReduceOp};
use bucketeer::program::Program;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_comm::mpi::{MpiOptions, MpiRank};
use bucketeer_comm::{Backend, CallOptions, Operands};
use bucketeer_eval::step::CallResult;
use bucketeer_exec::{ComputeStep, Executor, RunError, seeded_inputs};
use mpi::collective::SystemOperation;
use mpi::traits::{Communicator, CommunicatorCollectives};
use std::process::Command;
use std::time::Instant;

const TASK: &str = "BUCKETEER_MPI_BENCH";
const SIZES: [(u64, usize); 5] = [(1 << 10, 2000), (64 << 10, 500), (1 << 20, 100), (25 << 20, 10), (256 << 20, 5)];

/// Ways to bucket, as options of `bucket-all-reduce`.
const FORMS: [&str; 3] = ["cap=none", "cap=1MiB", "cap=none,mode=coalesced"];

fn main() {
    match std::env::var(TASK).as_deref() {
        Ok("raw") => raw(),
        Ok(_) => ours(),
        Err(_) => {
            for task in ["raw", "ours"] {
                start(task);
            }
            drop(run(2, LocalOptions::default(), |rank| programs("local", &rank)).expect("two threads"));
        }
    }
}

/// This program under `mpirun`.
fn start(task: &str) {
    let mpirun = std::env::var("BUCKETEER_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
    let Ok(version) = Command::new(&mpirun).arg("--version").output() else {
        return println!("skipped: there is no {mpirun}");
    };
    let mut command = Command::new(mpirun);
    if String::from_utf8_lossy(&version.stdout).contains("Open MPI") {
        command.args(["--allow-run-as-root", "--oversubscribe"]);
    }
    command.args(["-n", "2"]).arg(std::env::current_exe().expect("a bench has a path")).env(TASK, task);
    let status = command.status().expect("it was found before");
    assert!(status.success(), "{task}: {status}");
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn raw() {
    let universe = mpi::initialize().expect("MPI starts once");
    let world = universe.world();
    for (bytes, repeats) in SIZES {
        let input = vec![1f32; bytes as usize / 4];
        let mut output = input.clone();
        let mut times = Vec::new();
        for _ in 0..repeats + 2 {
            let start = Instant::now();
            world.all_reduce_into(&input[..], &mut output[..], SystemOperation::sum());
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        let mut times = times.split_off(2);
        if world.rank() == 0 {
            println!("MPI_Allreduce {bytes:>10} bytes: median {:.1} us, best {:.1}", median(&mut times), times[0]);
        }
    }
}

fn ours() {
    let rank = MpiRank::init(MpiOptions::default()).expect("MPI starts");
    let group = rank.new_group("sizes", &[GlobalRank(0), GlobalRank(1)]).expect("a group of both");
    for (bytes, repeats) in SIZES {
        let arena = rank.arena(2 * bytes).expect("there is memory");
        let (input, output) = (arena.buffer(0, bytes).expect("half"), arena.buffer(bytes, bytes).expect("half"));
        let data = Operands::new(input, output, DType::F32);
        let mut times = Vec::new();
        for _ in 0..repeats + 2 {
            let start = Instant::now();
            rank.all_reduce(&group, data.clone(), ReduceOp::Sum.into(), &CallOptions::blocking()).expect("a sum");
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        let mut times = times.split_off(2);
        if rank.rank() == GlobalRank(0) {
            println!("ours on MPI   {bytes:>10} bytes: median {:.1} us, best {:.1}", median(&mut times), times[0]);
        }
    }
    programs("mpi", &rank);
    rank.finish().expect("both leave");
}

/// Programs of 200 all-reduces, as they came and in each form; prints best (median) times of rank 0 in ms, and the first
/// over each.
fn programs(name: &str, rank: &dyn Backend) {
    let tell = rank.rank() == GlobalRank(0);
    for (sizes, bytes) in
        [("4 KiB each", vec![4 << 10; 200]), ("64 KiB each", vec![64 << 10; 200]), ("mixed to 1 MiB", mixed_bytes())]
    {
        let came = graph(&bytes, DType::F32, Owner::Caller);
        let mut programs = vec![lowered(&came)];
        programs.extend(FORMS.iter().map(|form| lowered(&bucketed_with(&came, form))));
        for (index, program) in programs.iter_mut().enumerate() {
            // A rank joins a name once.
            program.groups.iter_mut().for_each(|group| group.name = format!("{} {sizes} {index}", group.name).into());
        }
        let mut times = turns(rank, &format!("turns {sizes}"), &programs);
        if tell {
            let times: Vec<(f64, f64)> = times.iter_mut().map(|list| (median(list), list[0])).collect();
            print!("{name:6} 200 all-reduces, {sizes:15}: {:8.2} ({:.2}) ms", times[0].1, times[0].0);
            for (form, time) in FORMS.iter().zip(&times[1..]) {
                print!("; {form}: {:.2} ({:.2}) times as fast", times[0].1 / time.1, times[0].0 / time.0);
            }
            println!();
        }
    }
}

/// How long each program takes, in ms, turn by turn. All give the same.
fn turns(rank: &dyn Backend, name: &str, programs: &[Program]) -> Vec<Vec<f64>> {
    let group = rank.new_group(name, &[GlobalRank(0), GlobalRank(1)]).expect("a group of both");
    let fence = || drop(rank.barrier(&group, &CallOptions::blocking()).expect("both are there"));
    let inputs = seeded_inputs(&programs[0], rank.rank(), 0).expect("they are small");
    let mut executors: Vec<_> =
        programs.iter().map(|program| Executor::new(program, rank).expect("there is memory")).collect();
    let mut copy =
        |step: &ComputeStep<'_>| Ok::<_, RunError>(CallResult { made: step.operands[0].clone(), written: Vec::new() });
    let mut times = vec![Vec::new(); programs.len()];
    for _ in 0..17 {
        let mut expected = None;
        for (executor, times) in executors.iter_mut().zip(&mut times) {
            fence();
            let run = executor.run(&inputs, &mut copy).expect("it runs");
            times.push(run.times.total.as_secs_f64() * 1e3);
            assert!(run.outputs == *expected.get_or_insert_with(|| run.outputs.clone()));
        }
    }
    fence();
    // The first runs meet memory that was never touched.
    times.into_iter().map(|mut times| times.split_off(2)).collect()
}
