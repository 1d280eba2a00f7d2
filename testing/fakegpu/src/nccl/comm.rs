//! Communicators: how the ranks meet, in what order their work runs, and how it ends.

use super::codes::{IN_PROGRESS, INVALID_USAGE, REMOTE_ERROR, SYSTEM_ERROR};
use super::room::{Header, Room};
use crate::fault::InjectedFault;
use crate::state::{epoch, state};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a wait looks whether a rank's process is gone.
const LOOK_AT_PROCESSES: Duration = Duration::from_millis(50);
const ERROR: &str = "error";

/// Why work ends early.
#[derive(Clone, Debug)]
pub enum Stop {
    /// Aborted here, or reset: nobody is to be told.
    Quiet,
    /// A failure that the communicator keeps.
    Failure(i32, String),
}

impl Stop {
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Failure(INVALID_USAGE, text.into())
    }

    pub fn system(text: String) -> Self {
        Self::Failure(SYSTEM_ERROR, text)
    }
}

#[derive(Default)]
pub struct Inner {
    /// 0, in progress, or the first failure.
    code: i32,
    pub text: String,
    enqueued: u64,
    collectives: u64,
    done: u64,
    /// Numbers of the next messages to and from each rank.
    pub sent: BTreeMap<u32, u64>,
    pub received: BTreeMap<u32, u64>,
    pub children: u64,
    /// Dtypes and factors of sums, by their `ncclRedOp_t`.
    pub factors: BTreeMap<i32, (i32, u64)>,
    pub registered: BTreeMap<usize, (usize, usize)>,
    finalizing: bool,
}

pub struct Comm {
    pub handle: usize,
    pub room: Room,
    pub name: String,
    /// Known when it meets; for a split, when all have said their colors.
    rank: AtomicU32,
    size: AtomicU32,
    pub device: i32,
    pub blocking: bool,
    aborted: AtomicBool,
    epoch: u64,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// The processes of the ranks.
    pids: Mutex<Vec<u32>>,
}

static ALL: LazyLock<Mutex<BTreeMap<usize, Arc<Comm>>>> = LazyLock::new(Mutex::default);

fn all() -> MutexGuard<'static, BTreeMap<usize, Arc<Comm>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn find(handle: usize) -> Option<Arc<Comm>> {
    all().get(&handle).cloned()
}

pub fn forget(handle: usize) -> Option<Arc<Comm>> {
    all().remove(&handle)
}

pub fn count() -> usize {
    all().len()
}

impl Comm {
    /// A communicator that has yet to [meet](Self::meet).
    pub fn new(name: String, device: i32, blocking: bool) -> Result<Arc<Self>, String> {
        let handle = state().new_handle();
        let comm = Arc::new(Self {
            handle,
            room: Room::enter(&name)?,
            name,
            rank: AtomicU32::new(0),
            size: AtomicU32::new(0),
            device,
            blocking,
            aborted: AtomicBool::new(false),
            epoch: epoch(),
            inner: Mutex::new(Inner { code: IN_PROGRESS, ..Inner::default() }),
            changed: Condvar::new(),
            pids: Mutex::default(),
        });
        all().insert(handle, comm.clone());
        Ok(comm)
    }

    pub fn rank(&self) -> u32 {
        self.rank.load(Ordering::Acquire)
    }

    pub fn size(&self) -> u32 {
        self.size.load(Ordering::Acquire)
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all ranks, and notes what became of it. `extra` must be the same on all.
    pub fn meet(&self, rank: u32, size: u32, extra: u64, fault: Option<InjectedFault>) {
        self.rank.store(rank, Ordering::Release);
        self.size.store(size, Ordering::Release);
        match self.strike(fault).and_then(|()| self.meet_all(extra)) {
            Ok(()) => {
                let mut inner = self.lock();
                if inner.code == IN_PROGRESS {
                    inner.code = 0;
                }
            }
            Err(stop) => self.stop(stop),
        }
    }

    fn meet_all(&self, extra: u64) -> Result<(), Stop> {
        let (rank, size) = (self.rank(), self.size());
        let header = Header { rank, size, extra, pid: std::process::id(), ..Header::default() };
        if !self.room.post(&format!("init.{rank}"), header, &[]).map_err(Stop::system)? {
            return Err(Stop::usage(format!("rank {rank} is there twice")));
        }
        for other in 0..size {
            let name = format!("init.{other}");
            let (theirs, _) = self.wait(|| self.room.read(&name).map_err(Stop::system))?;
            if (theirs.size, theirs.extra) != (size, extra) {
                let text = format!("rank {other} is one of {} ranks, rank {rank} one of {size}", theirs.size);
                return Err(Stop::usage(text));
            }
            self.pids.lock().unwrap_or_else(PoisonError::into_inner).push(theirs.pid);
        }
        Ok(())
    }

    /// What a fault of a call does to its work.
    pub fn strike(&self, fault: Option<InjectedFault>) -> Result<(), Stop> {
        match fault {
            Some(InjectedFault::Late(code)) => Err(Stop::Failure(code, "a fault was asked for".to_owned())),
            Some(InjectedFault::Hang) => self.wait(|| Ok(None)),
            Some(InjectedFault::Code(_) | InjectedFault::Skip | InjectedFault::Pending) | None => Ok(()),
        }
    }

    /// Asks until there is an answer, or the communicator ends.
    pub fn wait<T>(&self, mut ask: impl FnMut() -> Result<Option<T>, Stop>) -> Result<T, Stop> {
        let mut looked = Instant::now();
        let mut pause = Duration::from_micros(10);
        loop {
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
            self.expect_live()?;
            if looked.elapsed() > LOOK_AT_PROCESSES {
                self.expect_processes()?;
                looked = Instant::now();
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    fn is_over(&self) -> bool {
        self.aborted.load(Ordering::Acquire) || epoch() != self.epoch
    }

    fn expect_live(&self) -> Result<(), Stop> {
        if self.is_over() {
            return Err(Stop::Quiet);
        }
        match self.room.read(ERROR).map_err(Stop::system)? {
            Some((header, text)) => Err(Stop::Failure(header.op, String::from_utf8_lossy(&text).into_owned())),
            None => Ok(()),
        }
    }

    fn expect_processes(&self) -> Result<(), Stop> {
        if !cfg!(target_os = "linux") {
            return Ok(());
        }
        let pids = self.pids.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended and is not waited for yet has the state Z, behind the name in brackets.
        let is_gone = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
        };
        let gone = pids.iter().position(is_gone);
        gone.map_or(Ok(()), |rank| Err(Stop::Failure(REMOTE_ERROR, format!("the process of rank {rank} is gone"))))
    }

    /// Ends the communicator's work, and tells the other ranks.
    pub fn stop(&self, stop: Stop) {
        let Stop::Failure(code, text) = stop else { return };
        {
            let mut inner = self.lock();
            if inner.code == 0 || inner.code == IN_PROGRESS {
                inner.code = code;
                inner.text.clone_from(&text);
            }
        }
        self.tell(code, &text);
        self.changed.notify_all();
    }

    /// What is not a misuse reaches the others as the error of a remote rank.
    fn tell(&self, code: i32, text: &str) {
        let op = if code == INVALID_USAGE { code } else { REMOTE_ERROR };
        let header = Header { op, rank: self.rank(), ..Header::default() };
        let _ = self.room.post(ERROR, header, format!("rank {}: {text}", self.rank()).as_bytes());
    }

    /// What `ncclCommGetAsyncError` answers.
    pub fn code(&self) -> i32 {
        let inner = self.lock();
        if inner.code == 0 && inner.finalizing && inner.done < inner.enqueued { IN_PROGRESS } else { inner.code }
    }

    /// It stays in progress until it is aborted.
    pub fn stick(&self) {
        self.lock().code = IN_PROGRESS;
    }

    /// The number of the next collective, from 1.
    pub fn next_collective(&self) -> u64 {
        let mut inner = self.lock();
        inner.collectives += 1;
        inner.collectives
    }

    /// The number of the next piece of work.
    pub fn next(&self) -> u64 {
        let mut inner = self.lock();
        inner.enqueued += 1;
        inner.enqueued
    }

    fn pause<'a>(&self, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        self.changed.wait_timeout(inner, Duration::from_millis(1)).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until all work before has ended.
    pub fn wait_turn(&self, number: u64) -> Result<(), Stop> {
        let mut inner = self.lock();
        while inner.code == 0 && !self.is_over() && inner.done + 1 < number {
            inner = self.pause(inner);
        }
        if inner.code == 0 && !self.is_over() { Ok(()) } else { Err(Stop::Quiet) }
    }

    pub fn finish(&self, number: u64) {
        let mut inner = self.lock();
        inner.done = inner.done.max(number);
        self.changed.notify_all();
    }

    /// From here on it is in progress until all work has ended.
    pub fn finalize(&self) {
        self.lock().finalizing = true;
        if self.blocking {
            self.wait_for_work();
        }
    }

    /// Waits until all work has ended, or there is a failure.
    pub fn wait_for_work(&self) {
        let mut inner = self.lock();
        while inner.done < inner.enqueued && inner.code == 0 && !self.is_over() {
            inner = self.pause(inner);
        }
    }

    /// Ends the work alone, where it is.
    pub fn give_up(&self) {
        self.aborted.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Ends everything where it is; `told`: the other ranks hear of it.
    pub fn end(&self, told: bool) {
        if told {
            self.tell(REMOTE_ERROR, "it aborted");
        }
        self.aborted.store(true, Ordering::Release);
        self.changed.notify_all();
        if self.size() > 0 {
            self.room.leave(self.rank(), self.size());
        }
    }
}
