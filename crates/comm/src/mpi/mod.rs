//! Ranks as processes that MPI starts: for clusters of CPUs. Only with the feature `mpi`; see `docs/mpi.md`.
//!
//! A rank is a process of `mpirun`. Its [`MpiRank`] uses MPI for messages between two processes, and nothing else of it:
//! no collectives, no communicators of groups. So a group is made without waiting for its members, a call that fails
//! leaves nothing in MPI that cannot end, and reductions are our own.
//!
//! **Values.** As of [`local`](super::local), bit for bit: reductions run in the order of the group's ranks, rounded to
//! the dtype at each step, and an average is divided last. MPI's own reductions promise no order. An all-reduce gives
//! part r of all inputs to rank r, which reduces them; then all get all parts: as many bytes as in a ring.
//!
//! **Arrivals.** Each call begins with a short note from each rank to each other that takes part. It says what the rank
//! calls. Data moves when all notes agree: so a rank that calls something else ends in [`CommError::Mismatch`], and one
//! that does not come is named by [`CommError::Timeout`]. That costs the time of one short message for each call.
//!
//! **Progress.** Whoever waits, or asks whether a call is done, moves messages; a thread in the background does so every
//! 200 us while calls are in flight and nobody waits.
//!
//! **The end.** To drop the handle is to leave, and waits until all ranks have left, as the end of MPI does. Calls that
//! wait for a rank that has left fail and name it. After a fault a rank waits for [`MpiOptions::leave_timeout`] at most;
//! then it does not end MPI, which could hang, and `mpirun` ends the other processes when this one exits.
//!
//! ```no_run
//! use bucketeer_types::{DType, GlobalRank, ReduceOp};
//! use bucketeer_comm::mpi::{MpiOptions, MpiRank};
//! use bucketeer_comm::{Backend, CallOptions, Operands};
//!
//! // mpirun -n 2 this-program
//! let rank = MpiRank::init(MpiOptions::default())?;
//! let world: Vec<GlobalRank> = (0..rank.world_size()).map(GlobalRank).collect();
//! let group = rank.new_group("world", &world)?;
//! let buffer = rank.arena(8)?.buffer(0, 8)?;
//! buffer.write()?.fill(rank.rank().0 as u8 + 1);
//! let data = Operands::in_place(buffer.clone(), DType::U8);
//! rank.all_reduce(&group, data, ReduceOp::Sum.into(), &CallOptions::blocking())?;
//! rank.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod engine;
mod flight;
mod launched;
mod note;
mod peers;
mod plan;
mod shape;
mod span;
mod thread;
mod wire;
mod words;

use super::backend::Backend;
use super::buffer::Lease;
use super::call::Call;
use super::error::{CommError, Fate, Site};
use super::group::Group;
use super::groups::GroupTable;
use super::lock;
use super::transport::{Joined, Transport, lease, parts};
use flight::Post;
use launched::{Launched, Part};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use thread::{Shared, Started};

/// Most bytes of one message: what MPI can count.
pub const MAX_MESSAGE_BYTES: u64 = i32::MAX as u64;

/// How ranks as processes behave. All ranks have the same.
#[derive(Clone, Debug)]
pub struct MpiOptions {
    /// How long a call may take if it does not say so itself. Ten minutes, as for NCCL in PyTorch.
    pub timeout: Duration,
    /// How long a rank that leaves waits for the others, after a fault.
    pub leave_timeout: Duration,
    /// Longer data are sent in messages of so many bytes: 1 to [`MAX_MESSAGE_BYTES`].
    pub message_bytes: u64,
}

impl Default for MpiOptions {
    fn default() -> Self {
        let (timeout, leave_timeout) = (Duration::from_secs(600), Duration::from_secs(10));
        Self { timeout, leave_timeout, message_bytes: 1 << 30 }
    }
}

/// This process's rank, as any backend.
///
/// # Errors
/// As [`MpiRank::init`].
pub fn backend(options: MpiOptions) -> Result<Box<dyn Backend>, CommError> {
    Ok(Box::new(MpiRank::init(options)?))
}

/// This process's rank; see the module docs.
pub struct MpiRank {
    shared: Arc<Shared>,
    timeout: Duration,
    groups: GroupTable<Joined<Self>>,
    /// Until the rank has left.
    thread: Option<JoinHandle<Result<(), CommError>>>,
}

impl MpiRank {
    /// Starts MPI, on a thread of its own; all processes of `mpirun` do so. A process that `mpirun` did not start is a
    /// world of one.
    ///
    /// # Errors
    /// [`CommError::Invalid`] when MPI was started before in this process, has not the threads that are needed, or when
    /// the ranks have other options. If MPI itself cannot start, it ends the process with a text of its own.
    pub fn init(options: MpiOptions) -> Result<Self, CommError> {
        let invalid =
            |reason| CommError::Invalid { site: Site { group: "world".into(), op: "init", seq: None }, reason };
        let (sender, receiver) = mpsc::channel();
        let timeout = options.timeout;
        let thread = std::thread::Builder::new().name("mpi".to_owned());
        let thread = thread.spawn(move || thread::serve(&options, &sender));
        let thread = thread.map_err(|error| invalid(format!("no thread for MPI: {error}")))?;
        let started = receiver.recv().unwrap_or_else(|_| Err(invalid("MPI's thread panicked".to_owned())));
        let Started { shared, rank, size } = started?;
        Ok(Self { shared, timeout, groups: GroupTable::new(rank, size), thread: Some(thread) })
    }

    /// Leaves, as a drop does, and says how that went.
    ///
    /// # Errors
    /// [`CommError::Timeout`]: after a fault, these ranks did not leave in time. MPI is not ended then.
    pub fn finish(mut self) -> Result<(), CommError> {
        self.leave(Fate::Left)
    }

    fn leave(&mut self, fate: Fate) -> Result<(), CommError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let _ = self.shared.leaving.set(fate);
        thread.thread().unpark();
        thread.join().unwrap_or_else(|_| {
            let site = Site { group: "world".into(), op: "finish", seq: None };
            Err(CommError::Remote { site, rank: self.groups.rank(), fate: Fate::Panicked })
        })
    }
}

impl Transport for MpiRank {
    const NAME: &'static str = "mpi";
    // The engine finds its own by the group's index.
    type State = ();
    type Held = Vec<Lease>;
    type Pending = Launched;

    fn groups(&self) -> &GroupTable<Joined<Self>> {
        &self.groups
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn join(&self, group: &Group, op: &'static str) -> Result<(), CommError> {
        lock(&self.shared.engine).join(group, op)
    }

    fn hold(&self, group: &Group, (): &(), call: &Call) -> Result<Self::Held, CommError> {
        lease(group, call)
    }

    fn post(&self, group: &Group, (): &(), calls: Vec<(Call, Self::Held)>, _: Duration) -> Result<Launched, CommError> {
        let posts = parts(calls).into_iter().map(|part| {
            let (hold, spans) = span::hold(&part.calls, part.held.into_iter().flatten().collect(), group);
            Post { lane: part.lane, op: part.op, calls: part.calls, hold, spans }
        });
        let posts: Vec<Post> = posts.collect();
        let mut engine = lock(&self.shared.engine);
        let launch = |post| {
            let (id, seq, outcome) = engine.launch(group, post)?;
            Ok(Part { id, seq, outcome })
        };
        let parts = posts.into_iter().map(launch).collect::<Result<_, CommError>>()?;
        Ok(Launched::new(self.shared.clone(), parts))
    }

    fn give_up(&self, group: &Group, (): &()) {
        lock(&self.shared.engine).abort(group);
    }
}

impl Drop for MpiRank {
    fn drop(&mut self) {
        let fate = if std::thread::panicking() { Fate::Panicked } else { Fate::Left };
        // Who wants to know calls `finish`.
        let _ = self.leave(fate);
    }
}
