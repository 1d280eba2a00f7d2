//! Where the members of a group meet: the rounds of its collectives, and those between each two ranks.

use super::round::{Post, Round, Waited};
use super::world::{Probe, World};
use super::{DebugLevel, Link};
use crate::error::{CommError, Fate, Site};
use crate::lock;
use bucketeer_types::GlobalRank;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Who meets in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meets {
    /// All members, each at its own place.
    All,
    /// A sender, at place 0, and a receiver, at place 1; by their places in the group.
    Pair { from: usize, to: usize },
}

/// A sequence of rounds with the same ranks.
struct Channel {
    ranks: Arc<[GlobalRank]>,
    /// By place, how many rounds the rank has joined.
    next: Vec<u64>,
    /// Sequence number of the first round of `rounds`.
    first: u64,
    rounds: VecDeque<Arc<Round>>,
    /// When the link has carried all before.
    free_at: Option<Instant>,
}

impl Channel {
    fn new(ranks: Arc<[GlobalRank]>) -> Self {
        let next = vec![0; ranks.len()];
        Self { ranks, next, first: 0, rounds: VecDeque::new(), free_at: None }
    }

    /// The next round of the rank at a place, made if it is the first to come.
    fn enter(&mut self, place: usize, make: impl FnOnce(Arc<[GlobalRank]>) -> Round) -> Arc<Round> {
        while self.rounds.front().is_some_and(|round| round.has_ended()) {
            self.rounds.pop_front();
            self.first += 1;
        }
        // A round ends after all have joined it, or with its group. So none that has ended is this rank's next.
        let index = (self.next[place] - self.first) as usize;
        self.next[place] += 1;
        if index == self.rounds.len() {
            self.rounds.push_back(Arc::new(make(self.ranks.clone())));
        }
        self.rounds[index].clone()
    }

    /// When the link will have carried that many more bytes.
    fn book(&mut self, link: Link, bytes: u64) -> Option<Instant> {
        let now = Instant::now();
        let start = self.free_at.map_or(now, |free_at| free_at.max(now));
        self.free_at = start.checked_add(link.duration(bytes));
        self.free_at
    }
}

struct Table {
    all: Channel,
    pairs: BTreeMap<(usize, usize), Channel>,
    /// The first error; since then nothing is launched.
    broken: Option<Arc<CommError>>,
}

impl Table {
    fn channel(&mut self, lane: Meets, members: &[GlobalRank]) -> &mut Channel {
        match lane {
            Meets::All => &mut self.all,
            Meets::Pair { from, to } => {
                let make = || Channel::new([members[from], members[to]].as_slice().into());
                self.pairs.entry((from, to)).or_insert_with(make)
            }
        }
    }

    fn next(&self, lane: Meets, place: usize) -> u64 {
        match lane {
            Meets::All => self.all.next[place],
            Meets::Pair { from, to } => self.pairs.get(&(from, to)).map_or(0, |channel| channel.next[place]),
        }
    }

    /// Fails all rounds in flight. The first error stays the cause of all later ones.
    fn break_with(&mut self, error: &CommError) {
        let cause = self.broken.get_or_insert_with(|| Arc::new(error.clone())).clone();
        let channels = std::iter::once(&mut self.all).chain(self.pairs.values_mut());
        for round in channels.flat_map(|channel| channel.rounds.drain(..)) {
            round.fail(|| cause.at(round.site()));
        }
    }
}

/// What all members of a group share.
pub struct Meeting {
    pub name: Arc<str>,
    pub members: Arc<[GlobalRank]>,
    level: DebugLevel,
    link: Option<Link>,
    probe: Option<Probe>,
    table: Mutex<Table>,
}

impl Meeting {
    pub fn new(
        name: Arc<str>,
        members: Arc<[GlobalRank]>,
        level: DebugLevel,
        link: Option<Link>,
        probe: Option<Probe>,
    ) -> Self {
        let table = Table { all: Channel::new(members.clone()), pairs: BTreeMap::new(), broken: None };
        Self { name, members, level, link, probe, table: Mutex::new(table) }
    }

    /// The sequence number of the next round of the rank at a place of a lane.
    pub fn next(&self, lane: Meets, place: usize) -> u64 {
        lock(&self.table).next(lane, place)
    }

    /// Brings a rank's calls to its next round of a lane. The last rank to come starts the transfer.
    pub fn join(&self, lane: Meets, place: usize, post: Post, world: &World) -> Result<Arc<Round>, CommError> {
        let op = post.op;
        let mut table = lock(&self.table);
        let seq = table.next(lane, place);
        if let Some(cause) = &table.broken {
            return Err(cause.at(self.site(op, Some(seq))));
        }
        let channel = table.channel(lane, &self.members);
        let round = channel.enter(place, |ranks| Round::new(self.name.clone(), op, seq, ranks, self.probe.clone()));
        match round.arrive(place, post, self.level) {
            Ok(None) => Ok(round),
            Ok(Some(bytes)) => {
                let due = self.link.and_then(|link| channel.book(link, bytes));
                let at_once = round.open(due, world.at_once_bytes());
                drop(table);
                world.start(&round, at_once);
                Ok(round)
            }
            Err(error) => {
                table.break_with(&error);
                Err(error.of(op))
            }
        }
    }

    /// Waits for a round; when the time is over, the group breaks.
    pub fn wait(&self, round: &Round, deadline: Option<Instant>, started: Instant) -> Result<(), CommError> {
        if let Waited::Ended(result) = round.wait(deadline) {
            return result;
        }
        let mut table = lock(&self.table);
        let (result, fresh) = round.time_out(started.elapsed());
        if let (Err(error), true) = (&result, fresh) {
            table.break_with(error);
        }
        result
    }

    /// A rank has gone: all rounds in flight fail, and nothing more is launched.
    pub fn lose(&self, rank: GlobalRank, fate: Fate) {
        let site = self.site("all calls", None);
        lock(&self.table).break_with(&CommError::Remote { site, rank, fate });
    }

    /// A member gives the group up.
    pub fn abort(&self, by: GlobalRank) {
        let site = self.site("all calls", None);
        lock(&self.table).break_with(&CommError::Aborted { site, by });
    }

    fn site(&self, op: &'static str, seq: Option<u64>) -> Site {
        Site { group: self.name.clone(), op, seq }
    }
}
