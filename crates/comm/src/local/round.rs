//! One call of all its ranks: who has arrived, what is moved, how it ended.
//!
//! ```text
//! Gathering ──last rank arrives──► Moving ──last tile moved──► Moved ──link's time over──► done
//!     └───────────────┬───────────────┴───────────────┬──────────┘
//!                     └──────────► Failed ◄───────────┘
//! ```
//!
//! Leases on buffers are held from a rank's arrival until the round is done, or has failed and no thread is moving a
//! tile of it.

#![expect(unsafe_code, reason = "runs the tiles it gives out, each once, under its leases")]

use super::DebugLevel;
use super::hook::{Action, Phase, Point};
use super::plan::Plan;
use super::world::Probe;
use crate::buffer::Lease;
use crate::call::{Call, Op};
use crate::compare::{Difference, Side, difference};
use crate::error::{CommError, Site};
use crate::lock;
use crate::signature::Described;
use bucketeer_types::GlobalRank;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shorter than this, a link's time is spent without sleeping, which would take longer.
const YIELD_TIME: Duration = Duration::from_micros(100);

/// What a rank brings: its calls, and the leases on their buffers.
pub struct Post {
    pub op: &'static str,
    pub calls: Vec<Call>,
    pub leases: Vec<Lease>,
}

enum Stage {
    Gathering,
    Moving,
    Moved,
    Failed(CommError),
}

struct State {
    stage: Stage,
    /// By place; calls only until the last rank arrives.
    posts: Vec<Option<Vec<Call>>>,
    arrived: usize,
    leases: Vec<Lease>,
    plan: Option<Arc<Plan>>,
    tiles: usize,
    /// The next tile that nobody has claimed.
    next: usize,
    /// Threads that are moving a tile.
    running: usize,
    /// When the link has carried it.
    due: Option<Instant>,
    /// Threads that sleep on `changed`.
    sleepers: usize,
}

/// See the module docs.
pub struct Round {
    group: Arc<str>,
    op: &'static str,
    seq: u64,
    /// Who takes part, by place.
    ranks: Arc<[GlobalRank]>,
    probe: Option<Probe>,
    /// What a spinning rank looks at: a [`Sign`].
    sign: AtomicU8,
    state: Mutex<State>,
    changed: Condvar,
}

/// How far a round is, for those who look without the lock; only ever grows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sign {
    Gathering,
    /// The last rank to come moves everything.
    AtOnce,
    /// Whoever has time moves tiles.
    Shared,
    /// Moved or failed.
    Ended,
}

/// What a wait found.
pub enum Waited {
    /// The result is there, or never will be.
    Ended(Result<(), CommError>),
    /// The time is over.
    Late,
}

thread_local! {
    /// Where this thread reduces.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Round {
    pub fn new(group: Arc<str>, op: &'static str, seq: u64, ranks: Arc<[GlobalRank]>, probe: Option<Probe>) -> Self {
        let state = State {
            stage: Stage::Gathering,
            posts: (0..ranks.len()).map(|_| None).collect(),
            arrived: 0,
            leases: Vec::new(),
            plan: None,
            tiles: 0,
            next: 0,
            running: 0,
            due: None,
            sleepers: 0,
        };
        let sign = AtomicU8::new(Sign::Gathering as u8);
        Self { group, op, seq, ranks, probe, sign, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub const fn seq(&self) -> u64 {
        self.seq
    }

    /// What errors about this round say it is.
    pub fn site(&self) -> Site {
        Site { group: self.group.clone(), op: self.op, seq: Some(self.seq) }
    }

    /// Takes in the rank at `place`, or says how its calls differ from those of a rank that came before. Whether it was
    /// the last, with the bytes that the link carries.
    pub fn arrive(&self, place: usize, post: Post, level: DebugLevel) -> Result<Option<u64>, CommError> {
        let mut state = lock(&self.state);
        if let Some((other, found)) = self.compare(&state, place, &post.calls, level) {
            let (low, high) = (place.min(other), place.max(other));
            return Err(CommError::Mismatch {
                site: self.site(),
                what: found.what,
                ranks: (self.ranks[low], self.ranks[high]),
                values: Box::new((found.first, found.second)),
            });
        }
        state.posts[place] = Some(post.calls);
        state.leases.extend(post.leases);
        state.arrived += 1;
        if state.arrived < self.ranks.len() {
            return Ok(None);
        }
        let posts: Vec<Vec<Call>> = state.posts.iter_mut().filter_map(Option::take).collect();
        let bytes = posts.iter().map(|calls| link_bytes(calls)).max().unwrap_or(0);
        let plan = Plan::new(posts);
        // A round that moves nothing has one empty tile, so that someone ends it.
        state.tiles = plan.tiles().max(1);
        state.plan = Some(Arc::new(plan));
        Ok(Some(bytes))
    }

    /// Compares with the first place that has arrived; each pair has its own splits in an all-to-all, so there with all.
    fn compare(&self, state: &State, place: usize, calls: &[Call], level: DebugLevel) -> Option<(usize, Difference)> {
        let all = calls.iter().any(|call| matches!(call.op(), Op::AllToAll { .. }));
        let arrived = state.posts.iter().enumerate().filter_map(|(other, post)| Some((other, post.as_ref()?)));
        arrived.take(if all { usize::MAX } else { 1 }).find_map(|(other, theirs)| {
            let (ours, theirs) = (Side { place, calls }, Side { place: other, calls: theirs });
            let (first, second) = if place < other { (ours, theirs) } else { (theirs, ours) };
            Some((other, difference(first, second, self.ranks.len(), level == DebugLevel::Detail)?))
        })
    }

    /// Lets tiles be moved, after the last rank has arrived. `due` is when the link will have carried it. Whether all is
    /// to be moved at once, as no more than `at_once_bytes` are read and written.
    pub fn open(&self, due: Option<Instant>, at_once_bytes: Option<usize>) -> bool {
        let mut state = lock(&self.state);
        let traffic = state.plan.as_ref().map_or(0, |plan| plan.traffic());
        let at_once = at_once_bytes.is_some_and(|most| traffic <= most);
        if matches!(state.stage, Stage::Gathering) {
            state.stage = Stage::Moving;
            state.due = due;
            self.show(if at_once { Sign::AtOnce } else { Sign::Shared });
        }
        at_once
    }

    fn show(&self, sign: Sign) {
        self.sign.store(sign as u8, Ordering::Release);
    }

    /// Whether the round is at least so far.
    pub fn is_at(&self, sign: Sign) -> bool {
        self.sign.load(Ordering::Acquire) >= sign as u8
    }

    /// Whether no tile is left to claim.
    pub fn is_claimed(&self) -> bool {
        let state = lock(&self.state);
        !matches!(state.stage, Stage::Moving) || state.next >= state.tiles
    }

    /// Claims and moves tiles until none is left or the time is over; the last one ends the round.
    pub fn move_tiles(&self, deadline: Option<Instant>) {
        SCRATCH.with_borrow_mut(|scratch| {
            while deadline.is_none_or(|deadline| Instant::now() < deadline)
                && let Some((plan, tile)) = self.claim()
            {
                // SAFETY: `claim` gives out each tile once, and the leases are dropped by `unclaim` or `fail` only when
                // nobody is between `claim` and `unclaim`.
                unsafe { plan.run(tile, scratch) };
                drop(plan);
                self.unclaim();
            }
        });
    }

    /// The next tile, counted as running.
    fn claim(&self) -> Option<(Arc<Plan>, usize)> {
        let mut state = lock(&self.state);
        if !matches!(state.stage, Stage::Moving) || state.next >= state.tiles {
            return None;
        }
        let plan = state.plan.clone()?;
        let (tile, middle) = (state.next, state.tiles / 2);
        state.next += 1;
        state.running += 1;
        if self.probe.is_some() && tile == middle {
            drop(state);
            self.probe_ranks();
        }
        Some((plan, tile))
    }

    fn unclaim(&self) {
        let mut state = lock(&self.state);
        state.running -= 1;
        if state.running > 0 {
            return;
        }
        match state.stage {
            Stage::Moving if state.next >= state.tiles => {
                state.stage = Stage::Moved;
                state.plan = None;
                settle(&mut state, Instant::now());
                self.show(Sign::Ended);
                self.wake(&state);
            }
            Stage::Failed(_) => release(&mut state),
            _ => {}
        }
    }

    /// Asks the hook about each rank, on whatever thread moves the tile.
    fn probe_ranks(&self) {
        let Some(probe) = &self.probe else { return };
        for rank in self.ranks.iter().copied() {
            let point = Point { rank, group: &self.group, op: self.op, seq: self.seq, phase: Phase::During };
            match probe.ask(&point) {
                Action::Go => {}
                Action::Stall(time) => self.stall(time),
                Action::Kill => probe.kill(rank),
            }
        }
    }

    /// Sleeps, unless the round fails meanwhile.
    fn stall(&self, time: Duration) {
        let until = Instant::now().checked_add(time);
        let mut state = lock(&self.state);
        while matches!(state.stage, Stage::Moving) && until.is_none_or(|until| Instant::now() < until) {
            state = self.sleep(state, until);
        }
    }

    /// Ends the round with an error unless it is done. The error is made when it is known that it is needed.
    pub fn fail(&self, error: impl FnOnce() -> CommError) {
        let mut state = lock(&self.state);
        self.fail_locked(&mut state, error);
    }

    fn fail_locked(&self, state: &mut State, error: impl FnOnce() -> CommError) {
        settle(state, Instant::now());
        if is_done(state, Instant::now()) || matches!(state.stage, Stage::Failed(_)) {
            return;
        }
        state.stage = Stage::Failed(error());
        state.posts.iter_mut().for_each(|post| drop(post.take()));
        if state.running == 0 {
            release(state);
        }
        self.show(Sign::Ended);
        self.wake(state);
    }

    /// Ends the round because a rank waited for long enough, unless it has ended meanwhile. How it ended, and whether
    /// that was now.
    pub fn time_out(&self, waited: Duration) -> (Result<(), CommError>, bool) {
        let mut state = lock(&self.state);
        let mut fresh = false;
        let present: Vec<bool> = state.posts.iter().map(Option::is_some).collect();
        let complete = state.arrived == self.ranks.len();
        self.fail_locked(&mut state, || {
            let (mut arrived, mut missing) = (Vec::new(), Vec::new());
            for (rank, present) in self.ranks.iter().zip(present) {
                if present || complete { &mut arrived } else { &mut missing }.push(*rank);
            }
            fresh = true;
            CommError::Timeout { site: self.site(), waited, arrived, missing }
        });
        match &state.stage {
            Stage::Failed(error) => (Err(error.clone()), fresh),
            _ => (Ok(()), fresh),
        }
    }

    /// Whether it has ended, well or not.
    pub fn has_ended(&self) -> bool {
        let mut state = lock(&self.state);
        let now = Instant::now();
        settle(&mut state, now);
        is_done(&state, now) || matches!(state.stage, Stage::Failed(_))
    }

    /// Spins until the round is so far, `spins` times at most.
    pub fn spin(&self, sign: Sign, spins: u32) {
        for _ in 0..spins {
            if self.is_at(sign) {
                break;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until the round ends or the deadline passes.
    pub fn wait(&self, deadline: Option<Instant>) -> Waited {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            settle(&mut state, now);
            if let Stage::Failed(error) = &state.stage {
                return Waited::Ended(Err(error.clone()));
            }
            if is_done(&state, now) {
                return Waited::Ended(Ok(()));
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Waited::Late;
            }
            let due = state.due.filter(|_| matches!(state.stage, Stage::Moved));
            if due.is_some_and(|due| due - now < YIELD_TIME) {
                drop(state);
                std::thread::yield_now();
                state = lock(&self.state);
                continue;
            }
            let until = match (due, deadline) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            state = self.sleep(state, until);
        }
    }

    fn sleep<'a>(&self, mut state: MutexGuard<'a, State>, until: Option<Instant>) -> MutexGuard<'a, State> {
        state.sleepers += 1;
        let mut state = match until {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let time = until.saturating_duration_since(Instant::now());
                self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.sleepers -= 1;
        state
    }

    fn wake(&self, state: &State) {
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }
}

/// Bytes that a link carries for one rank: the larger of input and output, summed over a block.
fn link_bytes(calls: &[Call]) -> u64 {
    calls.iter().fold(0, |sum, call| sum.saturating_add(call.input_bytes().max(call.output_bytes())))
}

fn is_done(state: &State, now: Instant) -> bool {
    matches!(state.stage, Stage::Moved) && state.due.is_none_or(|due| due <= now)
}

/// Gives the buffers back once the round is done.
fn settle(state: &mut State, now: Instant) {
    if is_done(state, now) {
        state.due = None;
        release(state);
    }
}

fn release(state: &mut State) {
    state.plan = None;
    state.leases.clear();
}
