//! The store's side of all conversations, without sockets: bytes in, bytes out.
//!
//! A peer is a stranger until it has said who it is and shown that it has the secret; then it is a rank. What a peer is
//! to be sent stays with it until the socket takes it.

use super::membership::Membership;
use super::message::{Answer, ClientFrame, MAX_FRAME_BYTES, MAX_HELLO_BYTES, Request, ServerFrame};
use super::peer::{Peer, PeerId, Standing, Want};
use super::secret::Secret;
use super::wire::Malformed;
use crate::error::Fate;
use crate::store::first_keys;
use crate::store::kv_table::{Done, KvTable, WaitId, Waiting};
use bucketeer_types::GlobalRank;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Waits of one rank at a time.
pub(super) const MAX_WAITS: usize = 4096;

/// Bytes that a peer may leave unread before it is dropped.
pub(super) const MAX_UNREAD_BYTES: usize = 64 << 20;

/// Time for a peer that is told to go to read why.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

/// What a store's server goes by.
pub(super) struct Rules {
    pub world_size: u32,
    pub secret: Option<Secret>,
    pub holder: Option<GlobalRank>,
    pub heartbeat: Duration,
    pub silence: Duration,
    pub hello_limit: Duration,
    pub max_strangers: usize,
}

/// Who waits for values: a peer, and the number of its request.
type Ticket = (PeerId, u64);

pub(super) struct ServerState {
    pub(super) rules: Rules,
    pub(super) membership: Membership,
    table: KvTable<Ticket>,
    peers: BTreeMap<PeerId, Peer>,
    /// Peers that are not ranks, or not any more, in the order in which they came.
    strangers: BTreeSet<PeerId>,
    /// Requests that wait for all ranks.
    joining: Vec<Ticket>,
    /// Peers that have something to be sent, or are to be closed.
    touched: BTreeSet<PeerId>,
    next: PeerId,
}

impl ServerState {
    pub fn new(rules: Rules, place: String) -> Self {
        Self {
            membership: Membership::new(rules.world_size),
            rules,
            table: KvTable::new(place),
            peers: BTreeMap::new(),
            strangers: BTreeSet::new(),
            joining: Vec::new(),
            touched: BTreeSet::new(),
            next: 0,
        }
    }

    /// A connection was accepted. Where there are too many strangers, the one that came first has to go.
    pub fn open(&mut self, ip: String, now: Instant) -> PeerId {
        if self.strangers.len() >= self.rules.max_strangers {
            self.evict();
        }
        let id = self.next;
        self.next += 1;
        self.peers.insert(id, Peer::new(ip, now));
        self.strangers.insert(id);
        id
    }

    /// Drops the stranger that came first.
    pub fn evict(&mut self) {
        if let Some(first) = self.strangers.first().copied() {
            self.drop_peer(first);
        }
    }

    /// Bytes came.
    pub fn hear(&mut self, id: PeerId, bytes: &[u8], now: Instant) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.heard = now;
        if matches!(peer.standing, Standing::Leaving { .. }) {
            return;
        }
        peer.frames.feed(bytes);
        self.proceed(id, now);
    }

    /// Takes what was heard, until too much waits to be sent.
    pub fn proceed(&mut self, id: PeerId, now: Instant) {
        loop {
            let Some(peer) = self.peers.get_mut(&id) else { return };
            peer.paused = peer.is_paused();
            if peer.paused {
                return;
            }
            let most = match peer.standing {
                Standing::Leaving { .. } => return,
                Standing::Stranger { .. } | Standing::Claimed { .. } => MAX_HELLO_BYTES,
                Standing::Rank { .. } => MAX_FRAME_BYTES,
            };
            let frame = match peer.frames.next(most) {
                Ok(None) => return,
                Ok(Some(body)) => ClientFrame::decode(&body),
                Err(Malformed) => Err(Malformed),
            };
            match frame {
                Ok(frame) => self.take(id, frame, now),
                Err(Malformed) => return self.babble(id),
            }
        }
    }

    /// The connection ended.
    pub fn closed(&mut self, id: PeerId) {
        self.drop_peer(id);
    }

    /// Drops who has been silent for too long.
    pub fn tick(&mut self, now: Instant) {
        let overdue = |peer: &Peer| match &peer.standing {
            Standing::Stranger { since } | Standing::Claimed { since, .. } => *since + self.rules.hello_limit <= now,
            Standing::Leaving { until } => *until <= now,
            Standing::Rank { .. } => peer.heard + self.rules.silence <= now,
        };
        let late: Vec<PeerId> = self.peers.iter().filter(|(_, peer)| overdue(peer)).map(|(&id, _)| id).collect();
        for id in late {
            if let Some(peer) = self.peers.get(&id)
                && matches!(peer.standing, Standing::Stranger { .. } | Standing::Claimed { .. })
            {
                let text = format!("{}: did not say who it is within {:?}", peer.ip, self.rules.hello_limit);
                self.membership.refuse(text);
            }
            self.drop_peer(id);
        }
    }

    /// Who has news.
    pub fn take_touched(&mut self) -> BTreeSet<PeerId> {
        std::mem::take(&mut self.touched)
    }

    /// `None` once it is dropped.
    pub fn peer(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(&id)
    }

    /// Notes how a rank went that this side knows to be gone before it came.
    pub fn ended(&mut self, rank: u32, fate: Fate) {
        if self.membership.state_of(rank) == Some(super::membership::RankState::Empty) {
            self.membership.leave(rank, fate);
            self.tell_joining();
        }
    }

    /// Says to all ranks that the store goes, and drops strangers.
    pub fn close(&mut self, fate: Fate, now: Instant) {
        while !self.strangers.is_empty() {
            self.evict();
        }
        let ids: Vec<PeerId> = self.peers.keys().copied().collect();
        for id in ids {
            self.tell(id, &ServerFrame::Closing(fate));
            self.drop_waits(id);
            self.send_off(id, now);
        }
    }

    fn take(&mut self, id: PeerId, frame: ClientFrame, now: Instant) {
        let Some(peer) = self.peers.get(&id) else { return };
        match (frame, &peer.standing) {
            (ClientFrame::Hello(hello), Standing::Stranger { since }) => {
                let since = *since;
                self.greet(id, hello, since, now);
            }
            (ClientFrame::Proof(proof), &Standing::Claimed { claim, .. }) => self.admit(id, claim, &proof, now),
            (ClientFrame::Ping, Standing::Rank { .. }) => self.tell(id, &ServerFrame::Pong),
            (ClientFrame::Goodbye(fate), &Standing::Rank { rank, .. }) => {
                self.drop_waits(id);
                self.membership.leave(rank, fate);
                self.tell_joining();
                self.send_off(id, now);
            }
            (ClientFrame::Request(number, request), Standing::Rank { .. }) => {
                if let Some(answer) = self.answer(id, number, request) {
                    self.tell(id, &ServerFrame::Answer(number, answer));
                }
            }
            _ => self.babble(id),
        }
    }

    /// The answer, unless it is to come later.
    fn answer(&mut self, id: PeerId, number: u64, request: Request) -> Option<Answer> {
        let result = match request {
            Request::Set(key, value) => self.table.set(&key, &value).map(|done| (Answer::Done, done)),
            Request::SetOnce(key, value) => self
                .table
                .set_once(&key, &value)
                .map(|(there, done)| (Answer::Values(vec![Some(there.to_vec())]), done)),
            Request::Get(keys) => self.table.get(&keys).map(|values| {
                let values = values.into_iter().map(|value| value.map(|value| value.to_vec()));
                (Answer::Values(values.collect()), Vec::new())
            }),
            Request::Add(key, delta) => self.table.add(&key, delta).map(|(sum, done)| (Answer::Number(sum), done)),
            Request::Remove(key) => self.table.remove(&key).map(|there| (Answer::Number(there.into()), Vec::new())),
            Request::Gone => Ok((Answer::Gone(self.membership.gone()), Vec::new())),
            Request::Refused => Ok((Answer::Texts(self.membership.refused()), Vec::new())),
            Request::Wait(keys) => return self.wait(id, number, keys),
            Request::Join => return self.join(id, number),
            Request::Cancel => return self.cancel(id, number),
        };
        match result {
            Ok((answer, done)) => {
                self.end_waits(done);
                Some(answer)
            }
            Err(error) => Some(error.into()),
        }
    }

    fn wait(&mut self, id: PeerId, number: u64, keys: Vec<String>) -> Option<Answer> {
        if let Some(refusal) = self.check_waits(id, number) {
            return Some(refusal);
        }
        match self.table.wait(keys, (id, number)) {
            Ok(Waiting::Done(values)) => Some(values_answer(&values)),
            Ok(Waiting::Until(wait)) => {
                self.note_wait(id, number, Want::Keys(wait));
                None
            }
            Err(error) => Some(error.into()),
        }
    }

    fn join(&mut self, id: PeerId, number: u64) -> Option<Answer> {
        if let Some(refusal) = self.check_waits(id, number) {
            return Some(refusal);
        }
        if self.membership.all_arrived() {
            return Some(Answer::Done);
        }
        if self.membership.cannot_be_whole() {
            return Some(Answer::Absent(self.membership.absent()));
        }
        self.joining.push((id, number));
        self.note_wait(id, number, Want::Ranks);
        None
    }

    /// Ends a wait, whose answer this is. One that has ended has its answer.
    fn cancel(&mut self, id: PeerId, number: u64) -> Option<Answer> {
        match self.peers.get_mut(&id)?.waits_mut()?.remove(&number)? {
            Want::Keys(wait) => self.table.cancel(wait).map(|missing| Answer::Missing(first_keys(missing))),
            Want::Ranks => {
                self.joining.retain(|&ticket| ticket != (id, number));
                Some(Answer::Absent(self.membership.absent()))
            }
        }
    }

    fn check_waits(&self, id: PeerId, number: u64) -> Option<Answer> {
        let waits = self.peers.get(&id)?.waits()?;
        if waits.len() >= MAX_WAITS {
            return Some(Answer::Refuse(format!("a rank may have {MAX_WAITS} waits at a time")));
        }
        let twice = waits.contains_key(&number);
        twice.then(|| Answer::Refuse(format!("request {number} waits already")))
    }

    fn note_wait(&mut self, id: PeerId, number: u64, want: Want) {
        if let Some(waits) = self.peers.get_mut(&id).and_then(Peer::waits_mut) {
            waits.insert(number, want);
        }
    }

    fn end_waits(&mut self, done: Vec<Done<Ticket>>) {
        for Done { ticket: (id, number), values, .. } in done {
            if let Some(waits) = self.peers.get_mut(&id).and_then(Peer::waits_mut) {
                waits.remove(&number);
            }
            let answer = values.map_or_else(Answer::from, |values| values_answer(&values));
            self.tell(id, &ServerFrame::Answer(number, answer));
        }
    }

    /// Answers those that wait for all ranks, if there is an answer.
    pub(super) fn tell_joining(&mut self) {
        let answer = if self.membership.all_arrived() {
            Answer::Done
        } else if self.membership.cannot_be_whole() && !self.joining.is_empty() {
            Answer::Absent(self.membership.absent())
        } else {
            return;
        };
        for (id, number) in std::mem::take(&mut self.joining) {
            if let Some(waits) = self.peers.get_mut(&id).and_then(Peer::waits_mut) {
                waits.remove(&number);
            }
            self.tell(id, &ServerFrame::Answer(number, answer.clone()));
        }
    }

    pub(super) fn tell(&mut self, id: PeerId, frame: &ServerFrame) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.out.extend(frame.encode());
        self.touched.insert(id);
        if peer.out.len() > MAX_UNREAD_BYTES {
            self.drop_peer(id);
        }
    }

    /// Puts a rank's standing in a peer that has shown that it is one.
    pub(super) fn promote(&mut self, id: PeerId, rank: u32) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.standing = Standing::Rank { rank, waits: BTreeMap::new() };
            self.strangers.remove(&id);
        }
    }

    /// Nothing more is taken from a peer; it is closed once it has what it is to be sent.
    pub(super) fn send_off(&mut self, id: PeerId, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.standing = Standing::Leaving { until: now + LEAVE_LIMIT };
            self.strangers.insert(id);
            self.touched.insert(id);
        }
    }

    /// A peer said what makes no sense.
    fn babble(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get(&id) {
            let text = match peer.standing {
                Standing::Rank { rank, .. } => format!("{}: rank {rank} sent what cannot be read", peer.ip),
                _ => format!("{}: what it sent is not from a rank of bucketeer", peer.ip),
            };
            self.membership.refuse(text);
            self.drop_peer(id);
        }
    }

    /// Takes a peer's waits away.
    fn drop_waits(&mut self, id: PeerId) {
        let Some(waits) = self.peers.get_mut(&id).and_then(Peer::waits_mut).map(std::mem::take) else { return };
        let mut keys: Vec<WaitId> = Vec::new();
        let mut joins = false;
        for (_, want) in waits {
            match want {
                Want::Keys(wait) => keys.push(wait),
                Want::Ranks => joins = true,
            }
        }
        for wait in keys {
            self.table.cancel(wait);
        }
        if joins {
            self.joining.retain(|ticket| ticket.0 != id);
        }
    }

    fn drop_peer(&mut self, id: PeerId) {
        self.drop_waits(id);
        let Some(peer) = self.peers.remove(&id) else { return };
        self.strangers.remove(&id);
        self.touched.insert(id);
        if let Standing::Rank { rank, .. } = peer.standing {
            self.membership.leave(rank, Fate::Lost);
            self.tell_joining();
        }
    }
}

fn values_answer(values: &[crate::store::kv_table::Value]) -> Answer {
    Answer::Values(values.iter().map(|value| Some(value.to_vec())).collect())
}
