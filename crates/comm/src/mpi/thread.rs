//! The thread that starts and ends MPI, and in between moves what nobody waits for.
//!
//! MPI is started for calls from any thread, one at a time (`MPI_THREAD_SERIALIZED`): all calls go through the lock of
//! the [`Engine`]. It is to be ended by the thread that started it, which is this one.

use super::engine::Engine;
use super::note::{Note, VERSION};
use super::wire::Wire;
use super::{MAX_MESSAGE_BYTES, MpiOptions};
use crate::error::{CommError, Fate, Site};
use crate::lock;
use bucketeer_types::GlobalRank;
use mpi::Threading;
use mpi::environment::Universe;
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::CommunicatorCollectives;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How often this thread looks when calls are in flight and nobody waits for one.
const ACTIVE: Duration = Duration::from_micros(200);
/// How often it looks otherwise: for ranks that leave, abort or disagree.
const IDLE: Duration = Duration::from_millis(1);

/// How often this thread looks in a row, while there is something each time.
const LOOKS_AT_ONCE: usize = 16;

/// What a rank's threads share.
pub struct Shared {
    pub engine: Mutex<Engine>,
    /// Counts the looks of those who wait.
    pub looks: AtomicU64,
    /// Set when the handle is gone.
    pub leaving: OnceLock<Fate>,
}

/// What the rank is told when MPI has started.
pub struct Started {
    pub shared: Arc<Shared>,
    pub rank: GlobalRank,
    pub size: u32,
}

fn refused(reason: impl Into<String>) -> CommError {
    let site = Site { group: "world".into(), op: "init", seq: None };
    CommError::Invalid { site, reason: reason.into() }
}

/// Starts MPI, works until the rank leaves, and ends MPI.
///
/// # Errors
/// [`CommError::Timeout`], naming the ranks that MPI was not ended with; it is left as it is then.
pub fn serve(options: &MpiOptions, started: &Sender<Result<Started, CommError>>) -> Result<(), CommError> {
    let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Serialized) else {
        let _ = started.send(Err(refused("MPI has been started in this process before; it can be started once")));
        return Ok(());
    };
    let world = match start(&universe, threading, options) {
        Ok((comm, world)) => (comm, world),
        Err(error) => {
            let _ = started.send(Err(error));
            return Ok(());
        }
    };
    let (comm, Started { shared, rank, size }) = world;
    if started.send(Ok(Started { shared: shared.clone(), rank, size })).is_err() {
        let _ = shared.leaving.set(Fate::Left);
    }
    work(&shared);
    let result = leave(&shared, rank, size, options);
    lock(&shared.engine).close();
    if result.is_err() {
        // To end MPI would wait for the ranks that are stuck.
        std::mem::forget((comm, universe));
    }
    result
}

fn start(
    universe: &Universe,
    threading: Threading,
    options: &MpiOptions,
) -> Result<(SimpleCommunicator, Started), CommError> {
    if threading < Threading::Serialized {
        return Err(refused(format!(
            "this MPI only has thread level {threading:?}; Serialized is needed: take one that is built with threads"
        )));
    }
    if options.message_bytes == 0 || options.message_bytes > MAX_MESSAGE_BYTES {
        let bytes = options.message_bytes;
        return Err(refused(format!("messages of {bytes} bytes are asked for; MPI has 1 to {MAX_MESSAGE_BYTES}")));
    }
    let comm = universe.world().duplicate();
    let number = |number: i32| u32::try_from(number).map_err(|_| refused(format!("MPI says the rank {number}")));
    let (rank, size) = (GlobalRank(number(comm.rank())?), number(comm.size())?);
    // What ranks must have in common.
    let own = [VERSION, options.message_bytes];
    let mut all = vec![0; 2 * size as usize];
    comm.all_gather_into(&own[..], &mut all[..]);
    if let Some((other, theirs)) = all.chunks_exact(2).enumerate().find(|(_, theirs)| **theirs != own) {
        return Err(refused(format!(
            "rank {} has notes of version {} and messages of {} bytes, rank {other} has {} and {}",
            rank.0, own[0], own[1], theirs[0], theirs[1]
        )));
    }
    let wire = Wire::new(&comm).map_err(refused)?;
    let engine = Mutex::new(Engine::new(wire, rank, size, options.message_bytes));
    let shared = Arc::new(Shared { engine, looks: AtomicU64::new(0), leaving: OnceLock::new() });
    Ok((comm, Started { shared, rank, size }))
}

/// Moves what nobody waits for, until the rank leaves.
fn work(shared: &Shared) {
    let mut seen = 0;
    let mut pause = IDLE;
    while shared.leaving.get().is_none() {
        thread::park_timeout(pause);
        let looks = shared.looks.load(Ordering::Relaxed);
        if looks != seen {
            // Someone waits, and moves things meanwhile; but not what has come for calls that failed, for which another
            // rank may wait before it arrives.
            seen = looks;
            pause = ACTIVE;
            lock(&shared.engine).drain();
            continue;
        }
        let mut engine = lock(&shared.engine);
        // Others want the lock too.
        let more = (0..LOOKS_AT_ONCE).all(|_| engine.progress());
        engine.drain();
        pause = match more {
            true => Duration::ZERO,
            false if engine.is_active() => ACTIVE,
            false => IDLE,
        };
    }
}

/// Tells the others that this rank leaves, and waits until all have done so and have all their messages. With no fault
/// that takes as long as the slowest rank works, as the end of MPI does.
fn leave(shared: &Shared, rank: GlobalRank, size: u32, options: &MpiOptions) -> Result<(), CommError> {
    let fate = shared.leaving.get().copied().unwrap_or(Fate::Left);
    lock(&shared.engine).tell_all(&Note::Leave { fate });
    let start = Instant::now();
    let is_faulty = |engine: &Engine| fate != Fate::Left || engine.is_faulty();
    wait_for(shared, |engine| match engine.peers().staying(rank, false) {
        staying if staying.is_empty() && !engine.is_active() => Some(Ok(())),
        staying if is_faulty(engine) && start.elapsed() > options.leave_timeout => Some(Err(staying)),
        _ => None,
    })
    .and_then(|()| {
        lock(&shared.engine).tell_all(&Note::Finish);
        let start = Instant::now();
        wait_for(shared, |engine| match engine.peers().staying(rank, true) {
            staying if staying.is_empty() && !engine.has_requests() => Some(Ok(())),
            staying if start.elapsed() > options.leave_timeout => Some(Err(staying)),
            _ => None,
        })
    })
    .map_err(|missing| {
        let arrived = (0..size).map(GlobalRank).filter(|rank| !missing.contains(rank)).collect();
        let site = Site { group: "world".into(), op: "finish", seq: None };
        CommError::Timeout { site, waited: start.elapsed(), arrived, missing }
    })
}

fn wait_for<T>(shared: &Shared, found: impl Fn(&Engine) -> Option<T>) -> T {
    let mut idle = 0;
    loop {
        let mut engine = lock(&shared.engine);
        let moved = engine.progress();
        engine.drain();
        if let Some(found) = found(&engine) {
            return found;
        }
        drop(engine);
        idle = if moved { 0 } else { idle + 1 };
        pause(idle);
    }
}

/// What a thread does between two looks, after `idle` looks that found nothing: first nothing, then it lets others run,
/// then it sleeps, the longer the longer nothing comes.
pub fn pause(idle: u32) {
    match idle {
        0..=50 => std::hint::spin_loop(),
        51..=2000 => thread::yield_now(),
        _ => thread::sleep(Duration::from_micros(u64::from(idle - 2000).min(500))),
    }
}
