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

mod bytes;
mod engine;
mod flight;
mod note;
mod peers;
mod plan;
mod shape;
mod span;
mod thread;
mod ticket;
mod wire;

use super::backend::Backend;
use super::buffer::Lease;
use super::call::{Call, Op};
use super::error::{CommError, Fate, Site};
use super::group::Group;
use super::lock;
use super::signature::Described;
use super::work::{CallOptions, Work};
use bucketeer_types::GlobalRank;
use flight::Post;
use note::Lane;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use thread::{Shared, Started};
use ticket::{Part, Ticket};

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
    rank: GlobalRank,
    size: u32,
    timeout: Duration,
    groups: Mutex<Vec<Joined>>,
    /// Until the rank has left.
    thread: Option<JoinHandle<Result<(), CommError>>>,
}

/// A group this rank is in.
struct Joined {
    group: Group,
    /// The open coalescing block, if any.
    block: Option<Block>,
}

struct Block {
    calls: Vec<(Call, Vec<Lease>)>,
    ticket: Arc<Ticket>,
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
        Ok(Self { shared, rank, size, timeout, groups: Mutex::default(), thread: Some(thread) })
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
            Err(CommError::Remote { site, rank: self.rank, fate: Fate::Panicked })
        })
    }

    /// Applies a function to what this rank keeps of a group.
    fn with<T>(
        &self,
        group: &Group,
        op: &'static str,
        apply: impl FnOnce(&mut Joined) -> Result<T, CommError>,
    ) -> Result<T, CommError> {
        let mut groups = lock(&self.groups);
        match groups.get_mut(group.index()).filter(|joined| joined.group.is(group)) {
            Some(joined) => apply(joined),
            None => Err(group.not_made_by(self.rank, op)),
        }
    }

    fn join(&self, name: &str, members: &[GlobalRank], op: &'static str) -> Result<Group, CommError> {
        let mut groups = lock(&self.groups);
        let group = lock(&self.shared.engine).join(name, members, op)?;
        groups.push(Joined { group: group.clone(), block: None });
        Ok(group)
    }

    /// Launches calls: the collectives among them as one, each send and receive on its own.
    fn launch_all(
        &self,
        group: &Group,
        ticket: &Ticket,
        calls: Vec<(Call, Vec<Lease>)>,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let (singles, collectives): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|(call, _)| call.op().peer().is_some());
        let mut posts = Vec::with_capacity(singles.len() + 1);
        if !collectives.is_empty() {
            let (calls, leases): (Vec<_>, Vec<_>) = collectives.into_iter().unzip();
            posts.push(post(Lane::All, calls, leases.into_iter().flatten().collect(), group));
        }
        for (call, leases) in singles {
            let lane = match call.op() {
                Op::Recv { from } => Lane::From(from.0),
                op => Lane::To(op.peer().map_or(0, |to| to.0)),
            };
            posts.push(post(lane, vec![call], leases, group));
        }
        let mut engine = lock(&self.shared.engine);
        let launch = |post| {
            let (id, seq, outcome) = engine.launch(group, post)?;
            Ok(Part { id, seq, outcome })
        };
        let parts = posts.into_iter().map(launch).collect();
        drop(engine);
        ticket.launch(parts, options.timeout.unwrap_or(self.timeout))
    }

    fn finished(ticket: Arc<Ticket>, options: &CallOptions) -> Result<Work, CommError> {
        let work = Work::new(ticket);
        if !options.async_op {
            work.wait(None)?;
        }
        Ok(work)
    }
}

fn post(lane: Lane, calls: Vec<Call>, leases: Vec<Lease>, group: &Group) -> Post {
    let op = if let [call] = &*calls { call.op().name() } else { "coalesced" };
    let (hold, spans) = span::hold(&calls, leases, group);
    Post { lane, op, calls, hold, spans }
}

impl Backend for MpiRank {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn rank(&self) -> GlobalRank {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.size
    }

    fn new_group(&self, name: &str, members: &[GlobalRank]) -> Result<Group, CommError> {
        self.join(name, members, "new_group")
    }

    fn joined(&self, name: &str, members: &[GlobalRank]) -> Option<Group> {
        lock(&self.groups).iter().map(|joined| &joined.group).find(|group| group.is_of(name, members)).cloned()
    }

    fn launch(&self, group: &Group, call: Call, options: &CallOptions) -> Result<Work, CommError> {
        let op = call.op().name();
        let (ticket, calls) = self.with(group, op, |joined| {
            call.check(group).map_err(|reason| group.invalid(op, reason))?;
            let leases = call.lease(group);
            let leases = leases.map_err(|error| CommError::Buffer { site: group.site(op), error })?;
            match &mut joined.block {
                Some(_) if !options.async_op => Err(group.invalid(op, super::WAIT_IN_BLOCK)),
                Some(block) => {
                    block.calls.push((call, leases));
                    Ok((block.ticket.clone(), Vec::new()))
                }
                None => Ok((Ticket::new(self.shared.clone(), group.shared_name()), vec![(call, leases)])),
            }
        })?;
        if calls.is_empty() {
            return Ok(Work::new(ticket));
        }
        self.launch_all(group, &ticket, calls, options)?;
        Self::finished(ticket, options)
    }

    fn start_coalescing(&self, group: &Group) -> Result<(), CommError> {
        self.with(group, "start_coalescing", |joined| {
            if joined.block.is_some() {
                return Err(group.invalid("start_coalescing", super::BLOCK_OPEN));
            }
            let ticket = Ticket::new(self.shared.clone(), group.shared_name());
            joined.block = Some(Block { calls: Vec::new(), ticket });
            Ok(())
        })
    }

    fn end_coalescing(&self, group: &Group, options: &CallOptions) -> Result<Work, CommError> {
        let Block { calls, ticket } = self.with(group, "end_coalescing", |joined| {
            joined.block.take().ok_or_else(|| group.invalid("end_coalescing", super::NO_BLOCK))
        })?;
        self.launch_all(group, &ticket, calls, options)?;
        Self::finished(ticket, options)
    }

    fn abort(&self, group: &Group) {
        if self.with(group, "abort", |_| Ok(())).is_ok() {
            lock(&self.shared.engine).abort(group);
        }
    }

    fn shrink(&self, group: &Group, failed: &[GlobalRank]) -> Result<Group, CommError> {
        self.with(group, "shrink", |_| Ok(()))?;
        let (name, members) = group.without(failed).map_err(|reason| group.invalid("shrink", reason))?;
        lock(&self.shared.engine).abort(group);
        self.join(&name, &members, "shrink")
    }
}

impl Drop for MpiRank {
    fn drop(&mut self) {
        let fate = if std::thread::panicking() { Fate::Panicked } else { Fate::Left };
        // Who wants to know calls `finish`.
        let _ = self.leave(fate);
    }
}
