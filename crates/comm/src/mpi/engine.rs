//! All of a rank's groups and calls, and what it knows of the other ranks.
//!
//! **Calls.** A rank that launches a call tells all others that take part ([`Note::Arrive`]): what it calls, and the tag
//! on which it wants its data. When a rank knows that all have arrived, and that they call the same, it posts its sends
//! and receives. So who has not arrived is known at any time, and nothing is moved between ranks that disagree.
//!
//! **Faults.** A rank that gives a group up says so to all members, and names its calls that it does nothing more for
//! ([`Note::Break`]). Messages for these that are on their way are taken in and dropped ([`Engine::drain`]): so every
//! send ends, buffers come back, and MPI can be ended.

use super::flight::{Flight, Outcome, Post, Progress};
use super::note::{Arrival, Break, CallId, Note};
use super::peers::{Known, Peers};
use super::wire::{Finished, MAX_TAG, Wire};
use crate::error::{CommError, Fate, Site};
use crate::group::{Group, numbers};
use crate::transport::Lane;
use bucketeer_types::GlobalRank;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Most notes that are read before other work goes on.
const NOTES_AT_ONCE: usize = 1024;

/// A sequence of calls.
#[derive(Default)]
struct Calls {
    /// How many this rank has launched.
    next: u64,
    /// Those in flight, by number.
    open: BTreeMap<u64, u64>,
    /// By place, arrivals at calls that this rank has not launched.
    early: BTreeMap<usize, VecDeque<Arrival>>,
}

struct Joined {
    group: Group,
    lanes: BTreeMap<Lane, Calls>,
    /// The first error; since then nothing is launched.
    broken: Option<Arc<CommError>>,
    /// The call that the error is about, if this rank has not launched it.
    ahead: Option<CallId>,
    /// Whether the others know that it is broken here.
    told: bool,
}

pub struct Engine {
    wire: Wire,
    rank: GlobalRank,
    message_bytes: u64,
    joined: Vec<Joined>,
    by_name: HashMap<Arc<str>, usize>,
    peers: Peers,
    flights: HashMap<u64, Flight>,
    next_flight: u64,
    /// Tags in use, those of failed calls among them.
    tags: BTreeSet<u16>,
    next_tag: u16,
    /// Where messages may come for calls that failed.
    orphans: Vec<(u32, u16)>,
    /// Calls with work to do that waits for nobody.
    busy: VecDeque<u64>,
    finished: Vec<Finished>,
    scratch: Vec<u8>,
    /// Whether something went wrong that leaves ranks apart.
    faulty: bool,
    /// Whether MPI has ended, or is left alone.
    closed: bool,
}

impl Engine {
    pub fn new(wire: Wire, rank: GlobalRank, size: u32, message_bytes: u64) -> Self {
        Self {
            wire,
            rank,
            message_bytes,
            joined: Vec::new(),
            by_name: HashMap::new(),
            peers: Peers::new(size),
            flights: HashMap::new(),
            next_flight: 0,
            tags: BTreeSet::new(),
            next_tag: 1,
            orphans: Vec::new(),
            busy: VecDeque::new(),
            finished: Vec::new(),
            scratch: Vec::new(),
            faulty: false,
            closed: false,
        }
    }

    pub const fn peers(&self) -> &Peers {
        &self.peers
    }

    pub const fn is_faulty(&self) -> bool {
        self.faulty
    }

    /// Whether calls or messages are in flight.
    pub fn is_active(&self) -> bool {
        !self.flights.is_empty() || self.wire.in_flight() > 0
    }

    /// Whether MPI still works on something.
    pub fn has_requests(&self) -> bool {
        self.wire.in_flight() > 0
    }

    fn tell(&mut self, rank: GlobalRank, note: &Note) {
        let is_lost = self.peers.gone(rank) == Some(Fate::Lost);
        if rank != self.rank && !is_lost && self.wire.send_note(rank.0, note.encode()).is_err() {
            self.lose(rank, Fate::Lost);
        }
    }

    fn tell_members(&mut self, index: usize, note: &Note) {
        for rank in self.joined[index].group.shared_members().iter() {
            self.tell(*rank, note);
        }
    }

    /// Tells all ranks of the world.
    pub fn tell_all(&mut self, note: &Note) {
        for rank in 0..self.peers.size() {
            self.tell(GlobalRank(rank), note);
        }
    }

    /// Makes a group known to its members. Its index is the number of groups that this rank has joined before.
    pub fn join(&mut self, group: &Group, op: &'static str) -> Result<(), CommError> {
        let members = group.members();
        if let Some((rank, theirs)) = self.peers.other_members(group) {
            let (ours, theirs, own) = (numbers(members), numbers(&theirs), self.rank.0);
            let reason = format!(
                "rank {own} says the members are {ours}, but a group of that name with rank {} has the members {theirs}",
                rank.0
            );
            return Err(group.invalid(op, reason));
        }
        if let Some((rank, fate)) = members.iter().find_map(|rank| Some((*rank, self.peers.gone(*rank)?))) {
            return Err(CommError::Remote { site: group.site(op), rank, fate });
        }
        let index = self.joined.len();
        debug_assert_eq!(index, group.index(), "both count the groups of this rank");
        self.joined.push(Joined {
            group: group.clone(),
            lanes: BTreeMap::new(),
            broken: None,
            ahead: None,
            told: false,
        });
        self.by_name.insert(group.shared_name(), index);
        let note = Note::Join { group: index as u32, name: group.shared_name(), members: group.shared_members() };
        self.tell_members(index, &note);
        for (rank, waiting) in self.peers.link(group) {
            waiting.into_iter().for_each(|known| self.hear(rank, index, known));
        }
        Ok(())
    }

    /// Launches a call; its id and what its end will be found in.
    pub fn launch(&mut self, group: &Group, post: Post) -> Result<(u64, u64, Outcome), CommError> {
        let (index, lane, op) = (group.index(), post.lane, post.op);
        let joined = &mut self.joined[index];
        let seq = joined.lanes.entry(lane).or_default().next;
        let site = Site { group: group.shared_name(), op, seq: Some(seq) };
        if let Some(cause) = joined.broken.clone() {
            // Others may wait for this call.
            self.tell_broken(index, &cause, None, Vec::new());
            let ahead = self.joined[index].ahead.take_if(|ahead| *ahead == (lane, seq));
            return Err(if ahead.is_some() { (*cause).clone().of(op) } else { cause.at(site) });
        }
        let Some(tag) = self.free_tag() else {
            let reason = format!("{MAX_TAG} calls are in flight or have failed; no more can be");
            return Err(CommError::Invalid { site, reason });
        };
        let id = self.next_flight;
        let flight = Flight::new(group.clone(), post, seq, tag);
        let others: Vec<usize> = flight.others().collect();
        let notes: Vec<(usize, Note)> = others
            .iter()
            .map(|place| {
                let arrival = Arrival { lane, seq, tag, shapes: flight.shapes(*place) };
                (*place, Note::Arrive { group: index as u32, arrival })
            })
            .collect();
        let outcome = flight.outcome.clone();
        self.next_flight += 1;
        self.tags.insert(tag);
        self.flights.insert(id, flight);
        let calls = self.joined[index].lanes.entry(lane).or_default();
        calls.next += 1;
        calls.open.insert(seq, id);
        let early: Vec<_> = calls.early.iter_mut().filter_map(|(at, list)| Some((*at, list.pop_front()?))).collect();
        for (place, note) in notes {
            self.tell(group.members()[place], &note);
        }
        let mut early = early;
        early.sort_unstable_by_key(|(place, _)| *place);
        for (place, arrival) in early {
            self.arrive(id, place, arrival);
        }
        self.go_on(id);
        Ok((id, seq, outcome))
    }

    fn free_tag(&mut self) -> Option<u16> {
        for _ in 0..MAX_TAG {
            let tag = self.next_tag;
            self.next_tag = if tag == MAX_TAG { 1 } else { tag + 1 };
            if !self.tags.contains(&tag) {
                return Some(tag);
            }
        }
        None
    }

    /// Another rank has arrived at a call in flight.
    fn arrive(&mut self, id: u64, place: usize, arrival: Arrival) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let members = flight.group.shared_members();
        if arrival.seq != flight.seq() || flight.tags[place].is_some() {
            return self.lose(members[place], Fate::Lost);
        }
        if let Some(found) = flight.difference(place, &arrival.shapes) {
            let own = flight.group.place();
            let ranks = (members[own.min(place)], members[own.max(place)]);
            let values = Box::new((found.first, found.second));
            let error = CommError::Mismatch { site: flight.site.clone(), what: found.what, ranks, values };
            let (index, at) = (flight.group.index(), (flight.lane, flight.seq()));
            return self.break_group(index, error, Some(at));
        }
        flight.tags[place] = Some(arrival.tag);
        flight.missing -= 1;
        if flight.missing > 0 {
            return;
        }
        self.go_on(id);
    }

    /// Lets a call do what it can without waiting; long work is put off.
    fn go_on(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        if flight.is_ready()
            && let Err(error) = flight.prepare()
        {
            let (index, site) = (flight.group.index(), flight.site.clone());
            let _ = flight.outcome.set(Err(CommError::Buffer { site: site.clone(), error }));
            return self.break_group(index, CommError::Aborted { site, by: self.rank }, None);
        }
        // One block at once: who waits looks at the others too.
        loop {
            let Some(flight) = self.flights.get_mut(&id) else { return };
            match flight.step(id, &mut self.wire, self.message_bytes, &mut self.scratch) {
                Ok(Progress::Waits) => return,
                Ok(Progress::Goes) if flight.is_long() => return self.busy.push_back(id),
                Ok(Progress::Goes) => {}
                Ok(Progress::Done) => return self.end(id, Ok(())),
                Err((place, _)) => {
                    let rank = flight.group.members()[place];
                    return self.lose(rank, Fate::Lost);
                }
            }
        }
    }

    /// Ends a call.
    fn end(&mut self, id: u64, result: Result<(), CommError>) {
        let Some(flight) = self.flights.remove(&id) else { return };
        let seq = flight.seq();
        if let Some(calls) = self.joined[flight.group.index()].lanes.get_mut(&flight.lane) {
            calls.open.remove(&seq);
        }
        if result.is_ok() {
            self.tags.remove(&flight.tag);
        } else {
            self.wire.cancel_receives(id);
            let members = flight.group.shared_members();
            self.orphans.extend(flight.others().map(|place| (members[place].0, flight.tag)));
        }
        let outcome = flight.outcome.clone();
        // The leases that MPI has no requests for are given back before anyone is told.
        drop(flight);
        let _ = outcome.set(result);
    }

    /// Gives a group up, for an error that is about the call `at`. The first error stays the cause of all later ones.
    fn break_group(&mut self, index: usize, error: CommError, at: Option<CallId>) {
        self.break_some(index, error, at, |_, _| true);
    }

    /// Breaks a group, and gives up those of its calls that `is_over` says are.
    fn break_some(
        &mut self,
        index: usize,
        error: CommError,
        at: Option<CallId>,
        is_over: impl Fn(&Flight, CallId) -> bool,
    ) {
        let joined = &mut self.joined[index];
        if joined.broken.is_none() {
            joined.ahead = at.filter(|(lane, seq)| joined.lanes.get(lane).map_or(0, |calls| calls.next) <= *seq);
        }
        let cause = joined.broken.get_or_insert_with(|| Arc::new(error)).clone();
        let open =
            joined.lanes.iter().flat_map(|(lane, calls)| calls.open.iter().map(|(seq, id)| ((*lane, *seq), *id)));
        let is_over = |(place, id): &(CallId, u64)| self.flights.get(id).is_some_and(|flight| is_over(flight, *place));
        let over: Vec<(CallId, u64)> = open.filter(is_over).collect();
        // That a rank ends before the others is no fault.
        let is_fault = !over.is_empty() || !matches!(*cause, CommError::Remote { fate: Fate::Left, .. });
        self.faulty |= is_fault;
        if is_fault {
            self.tell_broken(index, &cause, at, over.iter().map(|(place, _)| *place).collect());
        }
        for (place, id) in over {
            let Some(flight) = self.flights.get(&id) else { continue };
            let site = flight.site.clone();
            let error = if at == Some(place) { (*cause).clone().of(site.op) } else { cause.at(site) };
            self.end(id, Err(error));
        }
    }

    /// Tells the members that a group is broken here, unless they know; and what this rank does nothing more for.
    fn tell_broken(&mut self, index: usize, cause: &CommError, at: Option<CallId>, given_up: Vec<CallId>) {
        if std::mem::replace(&mut self.joined[index].told, true) && given_up.is_empty() {
            return;
        }
        let broken = Break { cause: cause.clone(), at, given_up };
        self.tell_members(index, &Note::Break { group: index as u32, broken });
    }

    /// Nobody waits for a call any longer.
    pub fn time_out(&mut self, id: u64, waited: Duration) {
        if let Some(flight) = self.flights.get(&id) {
            let (index, at) = (flight.group.index(), (flight.lane, flight.seq()));
            let error = flight.late(waited);
            self.break_group(index, error, Some(at));
        }
    }

    /// This rank gives a group up.
    pub fn abort(&mut self, group: &Group) {
        let site = Site { group: group.shared_name(), op: "all calls", seq: None };
        self.break_group(group.index(), CommError::Aborted { site, by: self.rank }, None);
    }

    /// A rank has gone: calls that it has not arrived at cannot end, nor can any of its calls if its process is lost.
    fn lose(&mut self, rank: GlobalRank, fate: Fate) {
        if !self.peers.lose(rank, fate) {
            return;
        }
        for index in 0..self.joined.len() {
            let group = &self.joined[index].group;
            let Some(place) = group.members().iter().position(|member| *member == rank) else { continue };
            let site = Site { group: group.shared_name(), op: "all calls", seq: None };
            let error = CommError::Remote { site, rank, fate };
            self.break_some(index, error, None, |flight, _| {
                flight.others().any(|other| other == place) && (fate == Fate::Lost || !flight.has_arrived(place))
            });
        }
    }

    /// Moves what can be moved without waiting; whether anything was.
    pub fn progress(&mut self) -> bool {
        if self.closed {
            return false;
        }
        let mut moved = self.read_notes();
        let mut finished = std::mem::take(&mut self.finished);
        self.wire.test(&mut finished);
        moved |= !finished.is_empty();
        for Finished { owner, peer, result } in finished.drain(..) {
            let failed = result.is_err();
            let ready = owner.filter(|id| {
                let flight = self.flights.get_mut(id);
                flight.is_some_and(|flight| {
                    flight.requests -= 1;
                    flight.requests == 0
                })
            });
            if failed {
                self.lose(GlobalRank(peer), Fate::Lost);
            } else if let Some(id) = ready {
                self.go_on(id);
            }
        }
        self.finished = finished;
        if let Some(id) = self.busy.pop_front() {
            moved = true;
            self.go_on(id);
        }
        moved
    }

    fn read_notes(&mut self) -> bool {
        for read in 0..NOTES_AT_ONCE {
            match self.wire.next_note() {
                Ok(Some((rank, bytes))) => self.read(GlobalRank(rank), &bytes),
                // A note that cannot be had is as good as one that never came.
                Ok(None) | Err(_) => return read > 0,
            }
        }
        true
    }

    fn read(&mut self, rank: GlobalRank, bytes: &[u8]) {
        match Note::decode(bytes) {
            Ok(Note::Join { group, name, members }) => self.joined_by(rank, group, name, members),
            Ok(Note::Arrive { group, arrival }) => self.know(rank, group, Known::Arrival(arrival)),
            Ok(Note::Break { group, broken }) => self.know(rank, group, Known::Break(broken)),
            Ok(Note::Leave { fate }) => self.lose(rank, fate),
            Ok(Note::Finish) => self.peers.finish(rank),
            Err(_) => self.lose(rank, Fate::Lost),
        }
    }

    /// Another rank has made a group.
    fn joined_by(&mut self, rank: GlobalRank, group: u32, name: Arc<str>, members: Arc<[GlobalRank]>) {
        let own = self.by_name.get(&name).copied();
        let ours = own.map(|index| self.joined[index].group.shared_members());
        let equal = ours.as_ref().is_none_or(|ours| *ours == members);
        let link = own.filter(|_| equal);
        if !self.peers.add(rank, group, name.clone(), members.clone(), link) {
            return self.lose(rank, Fate::Lost);
        }
        if let (Some(index), Some(ours), false) = (own, ours, equal) {
            let site = Site { group: name, op: "new_group", seq: None };
            let (own, other) = ((self.rank, numbers(&ours)), (rank, numbers(&members)));
            let ((a, first), (b, second)) = if self.rank < rank { (own, other) } else { (other, own) };
            let values = Box::new((first, second));
            let error = CommError::Mismatch { site, what: "members", ranks: (a, b), values };
            self.break_group(index, error, None);
        }
    }

    /// What another rank says of one of its groups.
    fn know(&mut self, rank: GlobalRank, group: u32, known: Known) {
        match self.peers.find(rank, group, known) {
            Ok(None) => {}
            Ok(Some((index, known))) => self.hear(rank, index, known),
            Err(()) => self.lose(rank, Fate::Lost),
        }
    }

    /// What another member says of a group of this rank.
    fn hear(&mut self, rank: GlobalRank, index: usize, known: Known) {
        let joined = &mut self.joined[index];
        let Some(place) = joined.group.members().iter().position(|member| *member == rank) else { return };
        let flip = |lane| match lane {
            Lane::All => Lane::All,
            Lane::To(_) => Lane::From(place as u32),
            Lane::From(_) => Lane::To(place as u32),
        };
        match known {
            Known::Arrival(mut arrival) => {
                arrival.lane = flip(arrival.lane);
                let calls = joined.lanes.entry(arrival.lane).or_default();
                match calls.open.get(&arrival.seq).copied() {
                    Some(id) => self.arrive(id, place, arrival),
                    // At one that has failed, if its number is lower.
                    None if arrival.seq < calls.next => {}
                    None => calls.early.entry(place).or_default().push_back(arrival),
                }
            }
            Known::Break(Break { cause, at, given_up }) => {
                let mut flipped = |(lane, seq): CallId| (flip(lane), seq);
                let at = at.map(&mut flipped);
                let given_up: BTreeSet<CallId> = given_up.into_iter().map(flipped).collect();
                // It arrives at no more calls. Those that it has arrived at, and did not give up, may still end well.
                self.break_some(index, cause, at, |flight, at| {
                    given_up.contains(&at) || flight.others().any(|other| other == place) && !flight.has_arrived(place)
                });
            }
        }
    }

    /// Takes in messages for calls that failed here while others were sending.
    pub fn drain(&mut self) {
        if self.closed {
            return;
        }
        let peers = &self.peers;
        self.orphans.retain(|(rank, _)| !peers.is_finished(GlobalRank(*rank)));
        for at in 0..self.orphans.len() {
            let (rank, tag) = self.orphans[at];
            while let Ok(true) = self.wire.drain(rank, tag) {}
        }
    }

    /// MPI is not called any more; what has not ended fails.
    pub fn close(&mut self) {
        let fate = Fate::Left;
        for index in 0..self.joined.len() {
            let site = Site { group: self.joined[index].group.shared_name(), op: "all calls", seq: None };
            self.joined[index]
                .broken
                .get_or_insert_with(|| Arc::new(CommError::Remote { site, rank: self.rank, fate }));
        }
        let fail = |flight: Flight| {
            let _ = flight.outcome.set(Err(CommError::Remote { site: flight.site.clone(), rank: self.rank, fate }));
        };
        self.flights.drain().map(|(_, flight)| flight).for_each(fail);
        self.closed = true;
    }
}
