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
mod link;
mod meeting;
mod pin;
mod plan;
mod pool;
mod round;
mod ticket;
mod world;

pub use hook::{Action, Hook, Phase, Point};
pub use link::{Link, LinkError, worthwhile_member_bytes};

use super::backend::Backend;
use super::buffer::Lease;
use super::call::{Call, Op};
use super::error::{CommError, Fate, Site};
use super::group::Group;
use super::lock;
use super::work::{CallOptions, Work};
use crate::signature::Described;
use bucketeer_types::GlobalRank;
use meeting::{Lane, Meeting};
use round::Post;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use ticket::Ticket;
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
    let handle = |rank| LocalRank { world: world.clone(), rank: GlobalRank(rank), groups: Mutex::default() };
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
            let number = rank.rank.0;
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
    rank: GlobalRank,
    groups: Mutex<Vec<Joined>>,
}

/// A group this rank is in.
struct Joined {
    group: Group,
    meeting: Arc<Meeting>,
    /// The open coalescing block, if any.
    block: Option<Block>,
}

struct Block {
    calls: Vec<(Call, Vec<Lease>)>,
    ticket: Arc<Ticket>,
}

impl LocalRank {
    /// Ties the calling thread to the processor for this rank. [`run`] has done so.
    pub fn pin(&self) {
        pin::pin(self.rank.0 as usize);
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
        let group = Group::new(name, members, self.rank, self.world.size, groups.len())
            .map_err(|reason| CommError::Invalid { site: Site { group: name.into(), op, seq: None }, reason })?;
        let meeting = self.world.join(&group, op)?;
        groups.push(Joined { group: group.clone(), meeting, block: None });
        Ok(group)
    }

    /// Asks the hook before a launch.
    fn probe_before(&self, meeting: &Meeting, lane: Lane, place: usize, op: &'static str) -> Result<(), CommError> {
        let Some(hook) = &self.world.options.hook else { return Ok(()) };
        let seq = meeting.next(lane, place);
        match hook(&Point { rank: self.rank, group: &meeting.name, op, seq, phase: Phase::Before }) {
            Action::Go => {}
            Action::Stall(time) => thread::sleep(time),
            Action::Kill => {
                self.world.leave(self.rank, Fate::Killed);
                let site = Site { group: meeting.name.clone(), op, seq: Some(seq) };
                return Err(CommError::Remote { site, rank: self.rank, fate: Fate::Killed });
            }
        }
        Ok(())
    }

    /// Launches calls: the collectives among them as one, each send and receive in its own lane.
    fn launch_all(
        &self,
        group: &Group,
        ticket: &Arc<Ticket>,
        meeting: &Meeting,
        calls: Vec<(Call, Vec<Lease>)>,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let (singles, collectives): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|(call, _)| call.op().peer().is_some());
        let mut posts = Vec::with_capacity(singles.len() + 1);
        if let Some((first, _)) = collectives.first() {
            let op = if collectives.len() == 1 { first.op().name() } else { "coalesced" };
            let (calls, leases): (Vec<_>, Vec<_>) = collectives.into_iter().unzip();
            posts.push((Lane::All, group.place(), Post { op, calls, leases: leases.into_iter().flatten().collect() }));
        }
        for (call, leases) in singles {
            let (here, peer) = (group.place(), call.op().peer().map_or(0, |peer| peer.0 as usize));
            let (lane, place) = match call.op() {
                Op::Send { .. } => (Lane::Pair { from: here, to: peer }, 0),
                _ => (Lane::Pair { from: peer, to: here }, 1),
            };
            posts.push((lane, place, Post { op: call.op().name(), calls: vec![call], leases }));
        }
        let timeout = options.timeout.unwrap_or(self.world.options.timeout);
        let join = |(lane, place, post): (Lane, usize, Post)| {
            let op = post.op;
            self.probe_before(meeting, lane, place, op)?;
            Ok((op, meeting.join(lane, place, post, &self.world)?))
        };
        ticket.launch(posts.into_iter().map(join).collect(), timeout)
    }

    fn finish(ticket: Arc<Ticket>, options: &CallOptions) -> Result<Work, CommError> {
        let work = Work::new(ticket);
        if !options.async_op {
            work.wait(None)?;
        }
        Ok(work)
    }
}

impl Backend for LocalRank {
    fn name(&self) -> &'static str {
        "local"
    }

    fn rank(&self) -> GlobalRank {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world.size
    }

    fn new_group(&self, name: &str, members: &[GlobalRank]) -> Result<Group, CommError> {
        self.join(name, members, "new_group")
    }

    fn joined(&self, name: &str, members: &[GlobalRank]) -> Option<Group> {
        lock(&self.groups).iter().map(|joined| &joined.group).find(|group| group.is_of(name, members)).cloned()
    }

    fn launch(&self, group: &Group, call: Call, options: &CallOptions) -> Result<Work, CommError> {
        let op = call.op().name();
        let (meeting, ticket, calls) = self.with(group, op, |joined| {
            call.check(group).map_err(|reason| group.invalid(op, reason))?;
            let leases = call.lease(group);
            let leases = leases.map_err(|error| CommError::Buffer { site: group.site(op), error })?;
            let meeting = joined.meeting.clone();
            match &mut joined.block {
                Some(_) if !options.async_op => Err(group.invalid(op, super::WAIT_IN_BLOCK)),
                Some(block) => {
                    block.calls.push((call, leases));
                    Ok((meeting, block.ticket.clone(), Vec::new()))
                }
                None => {
                    let ticket = Ticket::new(self.world.clone(), meeting.clone(), self.rank);
                    Ok((meeting, Arc::new(ticket), vec![(call, leases)]))
                }
            }
        })?;
        if calls.is_empty() {
            return Ok(Work::new(ticket));
        }
        self.launch_all(group, &ticket, &meeting, calls, options)?;
        Self::finish(ticket, options)
    }

    fn start_coalescing(&self, group: &Group) -> Result<(), CommError> {
        self.with(group, "start_coalescing", |joined| {
            if joined.block.is_some() {
                return Err(group.invalid("start_coalescing", super::BLOCK_OPEN));
            }
            let ticket = Ticket::new(self.world.clone(), joined.meeting.clone(), self.rank);
            joined.block = Some(Block { calls: Vec::new(), ticket: Arc::new(ticket) });
            Ok(())
        })
    }

    fn end_coalescing(&self, group: &Group, options: &CallOptions) -> Result<Work, CommError> {
        let (meeting, block) = self.with(group, "end_coalescing", |joined| match joined.block.take() {
            Some(block) => Ok((joined.meeting.clone(), block)),
            None => Err(group.invalid("end_coalescing", super::NO_BLOCK)),
        })?;
        self.launch_all(group, &block.ticket, &meeting, block.calls, options)?;
        Self::finish(block.ticket, options)
    }

    fn abort(&self, group: &Group) {
        let found = self.with(group, "abort", |joined| Ok(joined.meeting.clone()));
        if let Ok(meeting) = found {
            meeting.abort(self.rank);
        }
    }

    fn shrink(&self, group: &Group, failed: &[GlobalRank]) -> Result<Group, CommError> {
        let meeting = self.with(group, "shrink", |joined| Ok(joined.meeting.clone()))?;
        let (name, members) = group.without(failed).map_err(|reason| group.invalid("shrink", reason))?;
        meeting.abort(self.rank);
        self.join(&name, &members, "shrink")
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        let fate = if thread::panicking() { Fate::Panicked } else { Fate::Left };
        self.world.leave(self.rank, fate);
    }
}
