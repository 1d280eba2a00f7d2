//! Random worlds with one random fault each, on the fake GPU library: every rank ends, with an error that names the culprit,
//! and so does its flight record. Which ranks are named rightly is in `judge.rs`.

mod judge;
mod plan;
mod processes;
mod rank;
mod threads;

use kit::fakegpu;
use plan::Plan;
use processes::TASK;
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Processes that play runs of threads at the same time, and threads that watch runs of processes: both mostly wait.
const WORKERS: u64 = 6;

/// Where `child` is.
const MODULE: &str = module_path!();

/// Not a test of its own: what the processes do that the others start.
#[test]
#[ignore = "the other tests start it"]
fn child() {
    let task = std::env::var(TASK).expect("another test starts this one, and says what to do");
    let words: Vec<&str> = task.split(' ').collect();
    match words[..] {
        ["threads", first, count, step] => {
            let number = |word: &str| word.parse::<u64>().unwrap();
            let seeds = (number(first)..).step_by(number(step) as usize).take(number(count) as usize);
            seeds.for_each(|seed| {
                if let Err(reason) = in_threads(seed) {
                    println!("\nWRONG {seed}: {reason}");
                }
            });
            println!("\nALL PLAYED");
        }
        _ => processes::child(&words),
    }
}

fn folder(seed: u64) -> PathBuf {
    let name = format!("faults-{}-{seed}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn verdict(plan: &Plan, told: &[Option<rank::Told>], violations: &[String]) -> Result<(), String> {
    let mut judged = judge::judge(plan, told);
    // The memory of a device that is lost cannot be freed.
    let lost = plan.fault == plan::Fault::Call("cuMemcpyHtoDAsync_v2:1=late:719");
    if violations.iter().any(|it| !lost || !it.ends_with("allocations are left at the context's end")) {
        judged = Err(format!("the fake found {violations:?}"));
    }
    judged.map_err(|reason| format!("{reason}\n{plan:?}\n{told:#?}"))
}

/// Plays a run; one that hangs ends the process.
fn in_threads(seed: u64) -> Result<(), String> {
    let plan = Plan::new(seed);
    let folder = folder(seed);
    let session = fakegpu::session();
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (watched, of) = (over.clone(), plan.clone());
    let watcher = std::thread::spawn(move || {
        let start = Instant::now();
        while !watched.load(Ordering::Acquire) {
            if start.elapsed() > rank::LIMIT * 2 {
                println!("\nWRONG {seed}: hangs\n{of:?}");
                std::process::exit(1);
            }
            std::thread::park_timeout(std::time::Duration::from_millis(200));
        }
    });
    let (told, violations) = threads::run(&session, &plan, &folder);
    over.store(true, Ordering::Release);
    watcher.thread().unpark();
    watcher.join().unwrap();
    let judged = verdict(&plan, &told, &violations);
    let _ = std::fs::remove_dir_all(folder);
    judged
}

fn in_processes(seed: u64) -> Result<(), String> {
    let plan = Plan::new(seed);
    let folder = folder(seed);
    let judged = processes::run(&plan, &folder).map_err(|reason| format!("{reason}\n{plan:?}"));
    let judged = judged.and_then(|(told, violations)| verdict(&plan, &told, &violations));
    let _ = std::fs::remove_dir_all(folder);
    judged
}

/// Plays `count` runs from a seed on, some of them in processes; returns what is wrong.
fn play(first: u64, in_threads: u64, of_processes: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    let task = |at: u64| {
        let count = (in_threads + WORKERS - 1 - at) / WORKERS;
        format!("threads {} {count} {WORKERS}", first + at)
    };
    let base = folder(u64::MAX);
    let workers: Vec<Child> = (0..WORKERS).map(|at| processes::start(&task(at), &base, None)).collect();
    let next = AtomicU64::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS / 2 {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth >= of_processes {
                        return;
                    }
                    // Other seeds than those of threads, and other kinds of faults next to one another.
                    let seed = first + 1_000_000 + 7 * nth;
                    if let Err(reason) = in_processes(seed) {
                        found.lock().unwrap().push(format!("in processes, {seed}: {reason}"));
                    }
                }
            });
        }
    });
    wrong.extend(found.into_inner().unwrap());
    for worker in workers {
        let Output { stdout, stderr, .. } = worker.wait_with_output().unwrap();
        let (text, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        if text.contains("WRONG ") || !text.contains("ALL PLAYED") {
            wrong.push(format!("in threads: {text}{errors}"));
        }
    }
    let _ = std::fs::remove_dir_all(base);
    wrong
}

fn expect_right(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_fault_of_any_kind_ends_all_ranks_and_names_the_culprit() {
    expect_right(&play(0, 36, 8));
}

/// `BUCKETEER_FAULT_SEED` and `BUCKETEER_FAULT_RUNS` say which, and how many.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "minutes; in release"]
fn a_thousand_faults_end_all_ranks_and_name_the_culprit() {
    let number = |name: &str, usual: u64| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let (seed, runs) = (number("BUCKETEER_FAULT_SEED", 1_000), number("BUCKETEER_FAULT_RUNS", 1_000));
    let of_processes = runs / 8;
    let start = Instant::now();
    let wrong = play(seed, runs - of_processes, of_processes);
    println!("{runs} runs, {of_processes} of them in processes, in {:?}", start.elapsed());
    expect_right(&wrong);
}

/// One run again: `BUCKETEER_FAULT_SEED` says which.
#[test]
#[ignore = "to look at one run"]
fn one_fault_of_a_seed() {
    let seed = std::env::var("BUCKETEER_FAULT_SEED").map_or(0, |text| text.parse().unwrap());
    expect_right(&in_threads(seed).err().into_iter().chain(in_processes(seed).err()).collect::<Vec<_>>());
}
