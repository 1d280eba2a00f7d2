//! A run whose ranks are processes: this test's own program, started again.

use super::plan::{Fault, Plan};
use super::rank::{Host, LIMIT, Told, play, wait};
use super::threads::{join_options, told_of_library, told_of_store};
use bucketeer_comm::store::{ServerOptions, Store, StoreServer, TcpStore};
use bucketeer_cuda::Driver;
use bucketeer_cuda::nccl::Nccl;
use kit::fakegpu;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Set in the processes that are started: what they are.
pub const TASK: &str = "NCCL_FAULT_TASK";

/// How long ranks that cannot meet wait for one another: a process takes longer to come than a thread.
const MEETING: Duration = Duration::from_secs(5);

const ANSWER: &str = "answer: ";

pub fn start(task: &str, folder: &Path, plan: Option<(&Plan, u32)>) -> Child {
    let mut command = kit::again(super::MODULE, "child");
    command.envs(["BUCKETEER_NCCL_LIB", "BUCKETEER_CUDA_LIB"].map(|name| (name, fakegpu::path())));
    if let Some((plan, rank)) = plan
        && rank == plan.culprit
    {
        match plan.fault {
            Fault::NoLibrary => command.env("BUCKETEER_NCCL_LIB", "/no/such/libnccl.so"),
            Fault::OtherVersion => command.env("FAKEGPU_NCCL_VERSION", "22705"),
            _ => &mut command,
        };
    }
    // A rank that is killed leaves what it has there.
    let shared = folder.join("shared");
    std::fs::create_dir_all(&shared).unwrap();
    command.env(TASK, task).env("FAKEGPU_NCCL_DIR", shared);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

struct Process<'a> {
    plan: &'a Plan,
    store: Arc<TcpStore>,
    store_pid: &'a str,
    session: &'a fakegpu::Session,
}

impl Host for Process<'_> {
    fn finish(&self, rank: u32) {
        let _ = self.store.set(&format!("finished/{rank}"), b"");
    }

    fn is_finished(&self, rank: u32) -> bool {
        let is_gone = || self.store.gone().iter().any(|(gone, _)| gone.0 == rank);
        self.store.get(&[format!("finished/{rank}")]).map_or(true, |found| found[0].is_some()) || is_gone()
    }

    fn die(&self, _: u32) {
        signal("-KILL", &std::process::id().to_string());
    }

    fn stall(&self, rank: u32) {
        if self.plan.fault == Fault::Stalls {
            signal("-STOP", &std::process::id().to_string());
        }
        wait(|| (0..self.plan.size).all(|other| other == rank || self.is_finished(other)));
    }

    fn end_store(&self) {
        signal("-KILL", self.store_pid);
    }

    fn struck(&self, fault: &str, launch: &mut dyn FnMut()) {
        self.session.inject(fault);
        launch();
    }

    fn unstruck(&self, launch: &mut dyn FnMut()) {
        launch();
    }
}

fn signal(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

/// What a child does.
pub fn child(words: &[&str]) {
    match *words {
        ["store", size] => serve(size.parse().unwrap()),
        ["rank", rank, seed, address, folder, store_pid] => {
            let plan = Plan::new(seed.parse().unwrap());
            let session = fakegpu::session();
            let told = one(&plan, rank.parse().unwrap(), address, Path::new(folder), store_pid, &session);
            let told = told.as_ref().map_or(Value::Null, Told::to_json);
            println!("\n{ANSWER}{}", json!({ "told": told, "violations": session.violations() }));
        }
        _ => panic!("{words:?}"),
    }
}

fn serve(size: u32) {
    let server = StoreServer::open("127.0.0.1:0".parse().unwrap(), ServerOptions::new(size)).unwrap();
    println!("\n{ANSWER}{}", server.address());
    // Ends with whoever started it.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    wait(|| false);
}

fn one(
    plan: &Plan,
    number: u32,
    address: &str,
    folder: &Path,
    store_pid: &str,
    session: &fakegpu::Session,
) -> Option<Told> {
    let store = match TcpStore::join(&join_options(plan, number, address.to_owned(), MEETING)) {
        Ok(store) => Arc::new(store),
        Err(error) => return Some(told_of_store(&error)),
    };
    let nccl = match Nccl::load(None) {
        Ok(nccl) => nccl,
        Err(error) => return Some(told_of_library(&error)),
    };
    let driver = Driver::load(None).unwrap();
    let host = Process { plan, store: store.clone(), store_pid, session };
    let told = play(plan, &nccl, &driver, store, &host, folder);
    host.finish(number);
    told
}

/// Ends the processes that are still there.
struct Children(Vec<Option<Child>>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in self.0.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Children {
    fn is_over(&mut self, at: usize) -> bool {
        self.0[at].as_mut().is_none_or(|child| child.try_wait().unwrap().is_some())
    }
}

/// Plays all ranks, and returns what they say and what is wrong with the fake's calls.
pub fn run(plan: &Plan, folder: &Path) -> Result<(Vec<Option<Told>>, Vec<String>), String> {
    let mut store = Children(Vec::new());
    let mut server = None;
    let (address, store_pid) = if plan.fault == Fault::StoreLost {
        let mut child = start(&format!("store {}", plan.size), folder, None);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let answer = lines.map_while(Result::ok).find_map(|line| line.strip_prefix(ANSWER).map(str::to_owned));
        let pid = child.id();
        store.0.push(Some(child));
        (answer.ok_or("the store did not start")?, pid)
    } else {
        let opened = StoreServer::open("127.0.0.1:0".parse().unwrap(), ServerOptions::new(plan.size)).unwrap();
        let address = opened.address().to_string();
        server = Some(opened);
        (address, 0)
    };
    let task = |rank: u32| {
        format!("rank {rank} {} {address} {} {store_pid}", plan.seed, folder.to_str().expect("no odd names"))
    };
    let start = |rank: u32| Some(start(&task(rank), folder, Some((plan, rank))));
    let mut ranks = Children((0..plan.size).map(start).collect());
    let stops = (plan.fault == Fault::Stalls).then_some(plan.culprit as usize);
    let started = Instant::now();
    while !(0..ranks.0.len()).all(|at| Some(at) == stops || ranks.is_over(at)) {
        if started.elapsed() > LIMIT {
            return Err(format!("not over after {LIMIT:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some(child) = stops.and_then(|at| ranks.0[at].as_mut()) {
        child.kill().unwrap();
    }
    let outputs = ranks.0.iter_mut().map(|child| child.take().unwrap().wait_with_output().unwrap());
    let outputs: Vec<_> = outputs.collect();
    drop(server);
    let (mut told, mut violations) = (Vec::new(), Vec::new());
    for (rank, output) in (0..).zip(outputs) {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let answer = text.lines().find_map(|line| line.strip_prefix(ANSWER));
        let ends = matches!(plan.fault, Fault::Dies | Fault::Stalls | Fault::Panics) && rank == plan.culprit;
        match answer {
            _ if ends => told.push(None),
            Some(answer) => {
                let answer: Value = serde_json::from_str(answer).unwrap();
                let list = answer["violations"].as_array().unwrap();
                violations.extend(list.iter().map(|it| it.as_str().unwrap().to_owned()));
                told.push((!answer["told"].is_null()).then(|| Told::from_json(&answer["told"])));
            }
            None => return Err(format!("rank {rank}: {text}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }
    Ok((told, violations))
}
