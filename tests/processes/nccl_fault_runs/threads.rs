//! A run whose ranks are threads.

use super::plan::{Fault, Plan};
use super::rank::{Host, LIMIT, Told, play, wait};
use bucketeer::ir::GlobalRank;
use bucketeer_comm::store::{JoinOptions, MemoryStore, ServerOptions, Store, StoreError, StoreServer, TcpStore};
use bucketeer_cuda::nccl::{Nccl, NcclError};
use kit::fakegpu::Session;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

/// How long ranks that cannot meet wait for one another.
const MEETING: Duration = Duration::from_secs(2);

struct Threads<'a> {
    session: &'a Session,
    size: u32,
    finished: Mutex<BTreeSet<u32>>,
    memory: Vec<Arc<MemoryStore>>,
    server: Mutex<Option<StoreServer>>,
    /// Held by launches, alone by the one that a fault is for: the fake's faults are for whoever calls next.
    gate: RwLock<()>,
}

impl Host for Threads<'_> {
    fn finish(&self, rank: u32) {
        self.finished.lock().unwrap().insert(rank);
    }

    fn is_finished(&self, rank: u32) -> bool {
        self.finished.lock().unwrap().contains(&rank)
    }

    fn die(&self, rank: u32) {
        self.memory[rank as usize].lose();
        self.stall(rank);
    }

    fn stall(&self, rank: u32) {
        wait(|| (0..self.size).all(|other| other == rank || self.is_finished(other)));
    }

    fn end_store(&self) {
        drop(self.server.lock().unwrap().take());
    }

    fn struck(&self, fault: &str, launch: &mut dyn FnMut()) {
        let _alone = self.gate.write().unwrap();
        self.session.inject(fault);
        launch();
    }

    fn unstruck(&self, launch: &mut dyn FnMut()) {
        let _turn = self.gate.read().unwrap();
        launch();
    }
}

pub fn join_options(plan: &Plan, rank: u32, address: String, meeting: Duration) -> JoinOptions {
    let is_culprit = rank == plan.culprit;
    let claims = if is_culprit && plan.fault == Fault::DuplicateRank { (rank + 1) % plan.size } else { rank };
    let world_size = plan.size + u32::from(is_culprit && plan.fault == Fault::WrongWorldSize);
    let timeout = if plan.fault.is_of_store() { meeting } else { LIMIT };
    JoinOptions { address, rank: GlobalRank(claims), world_size, secret: None, timeout }
}

pub fn told_of_store(error: &StoreError) -> Told {
    let (kind, named) = match error {
        StoreError::Refused { .. } => ("refused", Vec::new()),
        StoreError::Absent { missing, .. } => ("absent", missing.iter().map(|rank| rank.0).collect()),
        _ => ("store", Vec::new()),
    };
    Told { kind: kind.to_owned(), named, text: error.to_string(), record: None }
}

pub fn told_of_library(error: &NcclError) -> Told {
    let text = error.to_string();
    let kind = if text.contains("/no/such/libnccl.so") { "library" } else { "misuse" };
    Told { kind: kind.to_owned(), named: Vec::new(), text, record: None }
}

/// Plays all ranks, and returns what they say and what is wrong with the fake's calls.
pub fn run(session: &Session, plan: &Plan, folder: &Path) -> (Vec<Option<Told>>, Vec<String>) {
    let driver = session.driver();
    let over_tcp = plan.fault == Fault::StoreLost || plan.fault.is_of_store();
    let open = || StoreServer::open("127.0.0.1:0".parse().unwrap(), ServerOptions::new(plan.size)).unwrap();
    let server = over_tcp.then(open);
    let address = server.as_ref().map(|server| server.address().to_string()).unwrap_or_default();
    let memory = MemoryStore::world(plan.size).into_iter().map(Arc::new).collect();
    let load = |rank: u32| {
        let is_culprit = rank == plan.culprit;
        if is_culprit && plan.fault == Fault::NoLibrary {
            return Nccl::load(Some(Path::new("/no/such/libnccl.so")));
        }
        let version = if is_culprit && plan.fault == Fault::OtherVersion { 22_705 } else { 23_007 };
        session.set_nccl_version(version);
        Nccl::load(Some(kit::fakegpu::path()))
    };
    let libraries: Vec<Result<Nccl, NcclError>> = (0..plan.size).map(load).collect();
    session.set_nccl_version(23_007);
    let mut host = Threads {
        session,
        size: plan.size,
        finished: Mutex::default(),
        memory,
        server: Mutex::new(server),
        gate: RwLock::default(),
    };
    // Only the hook that lets a rank go needs the handles; else they are the ranks' own.
    let mut handles: Vec<Option<Arc<MemoryStore>>> = host.memory.iter().cloned().map(Some).collect();
    if plan.fault != Fault::Dies {
        host.memory.clear();
    }
    let one = |number: u32, handle: Arc<MemoryStore>, host: &Threads<'_>| {
        let store: Arc<dyn Store> = if over_tcp {
            drop(handle);
            match TcpStore::join(&join_options(plan, number, address.clone(), MEETING)) {
                Ok(store) => Arc::new(store),
                Err(error) => return Some(told_of_store(&error)),
            }
        } else {
            handle
        };
        match &libraries[number as usize] {
            Ok(nccl) => play(plan, nccl, &driver, store, host, folder),
            Err(error) => Some(told_of_library(error)),
        }
    };
    let host = &host;
    let told = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(&mut handles)
            .map(|(number, handle)| {
                let (handle, one) = (handle.take().unwrap(), &one);
                scope.spawn(move || {
                    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(number, handle, host)));
                    host.finish(number);
                    let planned = plan.fault == Fault::Panics && number == plan.culprit;
                    told.unwrap_or_else(|panic| if planned { None } else { std::panic::resume_unwind(panic) })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let live = session.live_comms();
    let mut violations = session.violations();
    if live > 0 {
        violations.push(format!("{live} communicators are left"));
    }
    (told, violations)
}
