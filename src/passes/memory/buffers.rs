//! What a bucket would change in the bytes alive on one rank, reckoned by place of the graph as it stands.
//!
//! A launch stands where its first or its last member stood. What members are given lives to the pack there, and is there by
//! then; the packed buffer lives to the first wait, the launch's result to the last copy out of it or, where members are views
//! of it, to the last use of any. What was used up before a launch that stands last is copied out, used and dropped behind it,
//! one after the other. In mode `coalesced` nothing is packed: what members are given lives to the first wait, and what they
//! make is there from the launch on. What else moves along is not reckoned: a graph is merged and counted before anything is
//! promised of it.
//!
//! A place of the graph is three here, for what a merge may put there: the pack, the launch or its wait, what is unpacked.

use super::alive::{Life, Lives};
use super::ledger::Ledger;
use crate::ir::{CollectiveKind, Dependencies, Graph, NodeId};
use crate::passes::liveness::value_bytes;
use crate::passes::merge::is_copied_out;
use crate::passes::options::{BucketOptions, Mode};
use crate::passes::plan::Member;

/// Pieces larger than this are reckoned as so large, so that sums fit.
const MOST_BYTES: u64 = 1 << 40;

/// The places that stand for one of the graph.
const STEPS: u32 = 3;

/// Those of the pack, of the launch or its wait, and of what is unpacked.
const fn pack(place: u32) -> u32 {
    place * STEPS
}

const fn launch_or_wait(place: u32) -> u32 {
    place * STEPS + 1
}

const fn unpack(place: u32) -> u32 {
    place * STEPS + 2
}

fn reckoned(bytes: u64) -> i64 {
    bytes.min(MOST_BYTES) as i64
}

/// A rank's memory, while buckets are added to it.
pub(super) struct RankMemory<'a> {
    graph: &'a Graph,
    dependencies: &'a Dependencies,
    options: &'a BucketOptions,
    lives: Lives,
    positions: Vec<u32>,
    ledger: Ledger,
    /// The most that may be alive.
    limit_bytes: u64,
    /// What the bucket that is being tried changes.
    tried: Vec<(u32, u32, i64)>,
}

impl<'a> RankMemory<'a> {
    pub(super) fn of(
        graph: &'a Graph,
        dependencies: &'a Dependencies,
        options: &'a BucketOptions,
        lives: Lives,
        limit_bytes: u64,
    ) -> Self {
        let alive = lives.by_place(graph);
        let three = |&bytes: &i128| [i64::try_from(bytes).unwrap_or(i64::MAX).min(1 << 61); STEPS as usize];
        let ledger = Ledger::of(&alive.iter().flat_map(three).collect::<Vec<_>>());
        let positions = graph.positions();
        Self { graph, dependencies, options, lives, positions, ledger, limit_bytes, tried: Vec::new() }
    }

    /// Adds a bucket; whether the rank stays within its limit then.
    pub(super) fn add(&mut self, members: &[Member], stands_last: bool) -> bool {
        self.tried.clear();
        if members.len() > 1 {
            match self.options.mode {
                Mode::Concat => self.try_packed(members, stands_last),
                Mode::Coalesced => self.try_coalesced(members, stands_last),
            }
        }
        for &(from, to, bytes) in &self.tried {
            self.ledger.hold(from, to, bytes);
        }
        self.fits()
    }

    /// Whether the rank is within its limit.
    pub(super) fn fits(&self) -> bool {
        u64::try_from(self.ledger.most()).is_ok_and(|most| most <= self.limit_bytes)
    }

    /// The most bytes that are reckoned to be alive, and the first node of the graph at which they are.
    pub(super) fn most(&self) -> (u64, NodeId) {
        let order = self.graph.order();
        let at = self.ledger.place_of_most() / STEPS as usize;
        (u64::try_from(self.ledger.most()).unwrap_or(0), order[at.min(order.len() - 1)])
    }

    /// Takes the bucket out again that was added last.
    pub(super) fn take_back(&mut self) {
        for (from, to, bytes) in self.tried.drain(..) {
            self.ledger.hold(from, to, -bytes);
        }
    }

    /// The places of the launch and of its first wait.
    fn places(&self, members: &[Member], stands_last: bool) -> (u32, u32) {
        let places = members.iter().map(|member| self.positions[member.collective.index()]);
        let launch = if stands_last { places.max() } else { places.min() }.unwrap_or(0);
        let wait = members.iter().map(|member| self.positions[member.wait.index()].max(launch)).min();
        (launch, wait.unwrap_or(launch))
    }

    fn try_packed(&mut self, members: &[Member], stands_last: bool) {
        let (launch, wait) = self.places(members, stands_last);
        let (mut packed_bytes, mut made_bytes, mut made_until) = (0i64, 0i64, launch_or_wait(wait));
        // The largest of the results that are used up one after the other.
        let mut passing_bytes = 0i64;
        for member in members {
            for &input in self.graph.collective_inputs(member.collective) {
                packed_bytes += reckoned(value_bytes(self.graph, input).unwrap_or(0));
            }
            made_bytes += reckoned(value_bytes(self.graph, member.collective).unwrap_or(0));
            let unpacked = self.positions[member.wait.index()].max(launch);
            let Some(Life { bytes, from, last, .. }) = self.result(member) else {
                // What is written in place is copied back, and lives as before.
                self.try_inputs(member, launch, None);
                made_until = made_until.max(unpack(unpacked));
                continue;
            };
            self.try_inputs(member, launch, Some(pack(launch)));
            self.tried.push((pack(from), unpack(last), -reckoned(bytes)));
            let kind = self.graph.collective(member.collective).map(|collective| collective.kind);
            let gathers = matches!(kind, Some(CollectiveKind::AllGather { .. } | CollectiveKind::AllToAll));
            if !gathers && !is_copied_out(self.dependencies, self.options.unpack, member) {
                made_until = made_until.max(unpack(last));
                continue;
            }
            made_until = made_until.max(unpack(unpacked));
            if last > launch {
                self.tried.push((unpack(unpacked), unpack(last), reckoned(bytes)));
            } else {
                passing_bytes = passing_bytes.max(reckoned(bytes));
            }
        }
        self.tried.push((pack(launch), launch_or_wait(wait), packed_bytes));
        self.tried.push((launch_or_wait(launch), made_until, made_bytes));
        self.tried.push((unpack(launch), unpack(launch), passing_bytes));
    }

    fn try_coalesced(&mut self, members: &[Member], stands_last: bool) {
        let (launch, wait) = self.places(members, stands_last);
        for member in members {
            let Some(Life { bytes, from, last, .. }) = self.result(member) else {
                self.try_inputs(member, launch, None);
                continue;
            };
            self.try_inputs(member, launch, Some(launch_or_wait(wait)));
            self.tried.push((pack(from), unpack(last), -reckoned(bytes)));
            self.tried.push((launch_or_wait(launch), unpack(last.max(launch)), reckoned(bytes)));
        }
    }

    /// The memory that a member makes; `None` where it writes what it is given.
    fn result(&self, member: &Member) -> Option<Life> {
        let own = self.lives.storage[member.collective.index()] == Some(member.collective);
        own.then(|| self.lives.life[member.collective.index()])
    }

    /// What a member is given is there by the launch, and is needed to a step rather than to the member's own wait.
    fn try_inputs(&mut self, member: &Member, launch: u32, until: Option<u32>) {
        for &input in self.graph.collective_inputs(member.collective) {
            let Some(life) = self.lives.of_value(input) else { continue };
            let bytes = reckoned(life.bytes);
            let pulled = life.from > launch;
            let from = pack(life.from.min(launch));
            // What only launches use is there no longer than they need it.
            let besides = if pulled && life.last_besides_launches == life.from {
                from
            } else {
                unpack(life.last_besides_launches)
            };
            let last = until.map_or(unpack(life.last), |until| besides.max(until));
            self.tried.push((pack(life.from), unpack(life.last), -bytes));
            self.tried.push((from, last, bytes));
        }
    }
}
