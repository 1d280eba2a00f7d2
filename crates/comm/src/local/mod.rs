//! Ranks as threads of one process.
//!
//! Each rank's thread has a [`LocalRank`]. Its calls meet those of the other ranks by group and order; when the last has
//! come, the transfer is cut into tiles of 256 KiB that a pool of threads moves, helped by the ranks that wait. Small
//! transfers are moved at once, by the last rank to come. So calls return at once and run beside what the ranks compute,
//! and any number of ranks and groups works on any number of processors.
//!
//! **Values.** Reductions run in the order of the group's ranks, rounded to the dtype at each step; an average is
//! divided last. So a merged collective gives the members' results bit for bit, and so does the reference evaluator.
//!
//! **Copies.** None but the one that is asked for: ranks read one another's buffers where they are.
//!
//! ```
//! use bucketeer_types::{DType, GlobalRank, ReduceOp};
//! use bucketeer_comm::local::{LocalOptions, run};
//! use bucketeer_comm::{Backend, CallOptions, Operands};
//!
//! let members = [GlobalRank(0), GlobalRank(1)];
//! let sums = run(2, LocalOptions::default(), |rank| {
//!     let group = rank.new_group("world", &members)?;
//!     let buffer = rank.arena(8)?.buffer(0, 8)?;
//!     buffer.write()?.fill(rank.rank().0 as u8 + 1);
//!     let data = Operands::in_place(buffer.clone(), DType::U8);
//!     rank.all_reduce(&group, data, ReduceOp::Sum.into(), &CallOptions::default())?.wait(None)?;
//!     let bytes = buffer.read()?.to_vec();
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(bytes)
//! })?;
//! for sum in sums {
//!     assert_eq!(sum.expect("no rank panics").unwrap(), [3; 8]);
//! }
//! # Ok::<(), bucketeer_comm::CommError>(())
//! ```

mod hook;
mod launched;
mod link;
mod meeting;
mod pin;
mod plan;
mod pool;
mod round;
mod world;

pub use hook::{Action, Hook, Phase, Point};
pub use link::{Link, LinkError, worthwhile_member_bytes};

use super::buffer::Lease;
use super::call::Call;
use super::error::{CommError, Fate, Site};
use super::group::Group;
use super::groups::GroupTable;
use super::transport::{Joined, Lane, Transport, lease, parts};
use bucketeer_types::GlobalRank;
use launched::Launched;
use meeting::{Meeting, Meets};
use round::Post;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use world::World;

/// Most ranks of a world.
pub const MAX_RANKS: u32 = 4096;

/// How much is compared between ranks before each call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DebugLevel {
    /// What decides where bytes go: op, root and bytes. Ranks that disagree on dtype or reduction get a result, by the
    /// first rank's.
    Off,
    /// Everything. The default here, as it costs nothing that can be measured.
    #[default]
    Detail,
}

/// How ranks as threads behave.
#[derive(Clone)]
pub struct LocalOptions {
    /// How long a call may take if it does not say so itself. Ten minutes, as for NCCL in PyTorch.
    pub timeout: Duration,
    /// What is compared between ranks.
    pub debug: DebugLevel,
    /// A network to play; none by default.
    pub link: Option<Link>,
    /// Whether [`run`] ties each rank to a processor, where there are enough for all. Ranks that the system puts on one
    /// processor take turns, which costs 50 µs a turn.
    pub pin: bool,
    /// How many threads move tiles at once; by default one for each processor.
    pub movers: Option<usize>,
    /// Faults on request.
    pub hook: Option<Hook>,
}

impl Default for LocalOptions {
    fn default() -> Self {
        let timeout = Duration::from_secs(600);
        Self { timeout, debug: DebugLevel::default(), link: None, pin: true, movers: None, hook: None }
    }
}

impl fmt::Debug for LocalOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = f.debug_struct("LocalOptions");
        parts.field("timeout", &self.timeout).field("debug", &self.debug).field("link", &self.link);
        parts.field("pin", &self.pin).field("movers", &self.movers).field("hook", &self.hook.is_some()).finish()
    }
}

/// The handles of `ranks` ranks, to be moved to threads of their own.
///
/// # Errors
/// [`CommError::Invalid`] for no ranks, or more than [`MAX_RANKS`].
pub fn world(ranks: u32, options: LocalOptions) -> Result<Vec<LocalRank>, CommError> {
    if ranks == 0 || ranks > MAX_RANKS {
        let site = Site { group: "world".into(), op: "world", seq: None };
        let reason = format!("{ranks} ranks are asked for; 1 to {MAX_RANKS} can be had");
        return Err(CommError::Invalid { site, reason });
    }
    let world = Arc::new(World::new(ranks, options));
    let handle = |rank| LocalRank { world: world.clone(), groups: GroupTable::new(GlobalRank(rank), ranks) };
    Ok((0..ranks).map(handle).collect())
}

/// Runs a function on each of `ranks` ranks, on threads of their own, and returns what they return, in rank order; the
/// `Err` of a thread that panicked holds what it panicked with.
///
/// # Errors
/// As [`world`]; and [`CommError::Invalid`] when the system gives no threads.
pub fn run<T: Send>(
    ranks: u32,
    options: LocalOptions,
    body: impl Fn(LocalRank) -> T + Sync,
) -> Result<Vec<thread::Result<T>>, CommError> {
    let pinned = options.pin && ranks as usize <= pin::processors();
    let handles = world(ranks, options)?;
    let body = &body;
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(handles.len());
        for rank in handles {
            let number = rank.groups.rank().0;
            let work = move || {
                if pinned {
                    pin::pin(number as usize);
                }
                body(rank)
            };
            let thread = thread::Builder::new().name(format!("rank-{number}")).spawn_scoped(scope, work);
            // Handles of ranks that never start are dropped, which releases those that wait for them.
            threads.push(thread.map_err(|error| {
                let site = Site { group: "world".into(), op: "run", seq: None };
                CommError::Invalid { site, reason: format!("no thread for rank {number}: {error}") }
            })?);
        }
        Ok(threads.into_iter().map(thread::ScopedJoinHandle::join).collect())
    })
}

/// One rank of a world of threads; see the module docs.
///
/// To drop it is to leave: calls in flight of all its groups fail on the other ranks, and name this one. So wait for
/// one's work first.
pub struct LocalRank {
    world: Arc<World>,
    groups: GroupTable<Joined<Self>>,
}

impl LocalRank {
    /// Ties the calling thread to the processor for this rank. [`run`] has done so.
    pub fn pin(&self) {
        pin::pin(self.groups.rank().0 as usize);
    }

    /// Asks the hook before a launch.
    fn probe_before(&self, meeting: &Meeting, lane: Meets, place: usize, op: &'static str) -> Result<(), CommError> {
        let Some(hook) = &self.world.options.hook else { return Ok(()) };
        let (rank, seq) = (self.groups.rank(), meeting.next(lane, place));
        match hook(&Point { rank, group: &meeting.name, op, seq, phase: Phase::Before }) {
            Action::Go => {}
            Action::Stall(time) => thread::sleep(time),
            Action::Kill => {
                self.world.leave(rank, Fate::Killed);
                let site = Site { group: meeting.name.clone(), op, seq: Some(seq) };
                return Err(CommError::Remote { site, rank, fate: Fate::Killed });
            }
        }
        Ok(())
    }
}

impl Transport for LocalRank {
    const NAME: &'static str = "local";
    type State = Arc<Meeting>;
    type Held = Vec<Lease>;
    type Pending = Launched;

    fn groups(&self) -> &GroupTable<Joined<Self>> {
        &self.groups
    }

    fn timeout(&self) -> Duration {
        self.world.options.timeout
    }

    fn join(&self, group: &Group, op: &'static str) -> Result<Self::State, CommError> {
        self.world.join(group, op)
    }

    fn hold(&self, group: &Group, _: &Self::State, call: &Call) -> Result<Self::Held, CommError> {
        lease(group, call)
    }

    fn post(
        &self,
        group: &Group,
        meeting: &Self::State,
        calls: Vec<(Call, Self::Held)>,
        _: Duration,
    ) -> Result<Launched, CommError> {
        let mut rounds = Vec::new();
        for part in parts(calls) {
            let (op, here) = (part.op, group.place());
            let (meets, place) = match part.lane {
                Lane::All => (Meets::All, here),
                Lane::To(peer) => (Meets::Pair { from: here, to: peer as usize }, 0),
                Lane::From(peer) => (Meets::Pair { from: peer as usize, to: here }, 1),
            };
            self.probe_before(meeting, meets, place, op)?;
            let post = Post { op, calls: part.calls, leases: part.held.into_iter().flatten().collect() };
            rounds.push((op, meeting.join(meets, place, post, &self.world)?));
        }
        Ok(Launched::new(self.world.clone(), meeting.clone(), self.groups.rank(), rounds))
    }

    fn give_up(&self, _: &Group, meeting: &Self::State) {
        meeting.abort(self.groups.rank());
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        let fate = if thread::panicking() { Fate::Panicked } else { Fate::Left };
        self.world.leave(self.groups.rank(), fate);
    }
}
