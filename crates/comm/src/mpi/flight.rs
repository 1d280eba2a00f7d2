//! One call of this rank, from its launch to its end.
//!
//! ```text
//! Gathering ──the last rank arrives──► First ──► Summing ──► Second ──► done
//!     └──────────────────┬───────────────┴──────────┴──────────┴──► failed
//! ```

use super::plan::{Move, Plan, plan};
use super::shape::{Difference, Shape, difference};
use super::span::{Hold, Spans};
use super::wire::Wire;
use crate::buffer::BufferError;
use crate::call::Call;
use crate::error::{CommError, Site};
use crate::group::Group;
use crate::transport::Lane;
use std::sync::{Arc, OnceLock};

/// Bytes of an output that are reduced before other work goes on.
const STEP_BYTES: u64 = 256 << 10;

/// How a call ended, once it has.
pub type Outcome = Arc<OnceLock<Result<(), CommError>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Gathering,
    First,
    /// Which sum, and from which byte on.
    Summing(usize, u64),
    Second,
}

pub struct Flight {
    pub group: Group,
    pub lane: Lane,
    pub site: Site,
    pub outcome: Outcome,
    /// On which this rank receives.
    pub tag: u16,
    /// By place: the tag on which the other receives. None where it has not arrived, or takes no part.
    pub tags: Vec<Option<u16>>,
    /// How many of the others have not arrived.
    pub missing: usize,
    pub stage: Stage,
    /// Requests in flight.
    pub requests: usize,
    calls: Vec<Call>,
    hold: Arc<Hold>,
    /// Until the call is planned.
    spans: Vec<Spans>,
    plan: Plan,
}

/// What is launched together: one send or receive, or all other calls of a block.
pub struct Post {
    pub lane: Lane,
    pub op: &'static str,
    pub calls: Vec<Call>,
    pub hold: Arc<Hold>,
    pub spans: Vec<Spans>,
}

/// What a step of a call came to.
pub enum Progress {
    /// It waits for ranks or messages.
    Waits,
    /// It has more to do.
    Goes,
    Done,
}

impl Flight {
    pub fn new(group: Group, post: Post, seq: u64, tag: u16) -> Self {
        let Post { lane, op, calls, hold, spans } = post;
        let site = Site { group: group.shared_name(), op, seq: Some(seq) };
        let tags = vec![None; group.size()];
        let mut flight = Self {
            group,
            lane,
            site,
            outcome: Outcome::default(),
            tag,
            tags,
            missing: 0,
            stage: Stage::Gathering,
            requests: 0,
            calls,
            hold,
            spans,
            plan: Plan::default(),
        };
        flight.missing = flight.others().count();
        flight
    }

    /// The number of the call in its lane.
    pub fn seq(&self) -> u64 {
        self.site.seq.unwrap_or_default()
    }

    /// Places of all others that take part.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (one, own) = match self.lane {
            Lane::All => (None, self.group.place()),
            Lane::To(peer) | Lane::From(peer) => (Some(peer as usize), self.group.place()),
        };
        (0..self.group.size()).filter(move |place| *place != own && one.is_none_or(|one| one == *place))
    }

    pub fn has_arrived(&self, place: usize) -> bool {
        place == self.group.place() || self.tags[place].is_some()
    }

    /// What the member at `peer` is told.
    pub fn shapes(&self, peer: usize) -> Vec<Shape> {
        self.calls.iter().map(|call| Shape::of(call, self.group.size(), peer)).collect()
    }

    /// The first difference to what the member at `peer` calls.
    pub fn difference(&self, peer: usize, theirs: &[Shape]) -> Option<Difference> {
        let ours = self.shapes(peer);
        if self.group.place() < peer { difference(&ours, theirs) } else { difference(theirs, &ours) }
    }

    /// Whether it is to be prepared.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Gathering && self.missing == 0
    }

    /// Whether the next step takes long.
    pub const fn is_long(&self) -> bool {
        matches!(self.stage, Stage::Summing(_, from) if from > 0)
    }

    /// Plans the call, after all have arrived, and copies what only this rank needs.
    pub fn prepare(&mut self) -> Result<(), BufferError> {
        let spans = std::mem::take(&mut self.spans);
        self.plan = plan(&self.calls, spans, &self.hold, self.group.place(), self.group.size())?;
        for (from, to) in self.plan.copies.drain(..) {
            from.copy_to(&to);
        }
        Ok(())
    }

    /// Goes on as far as can be without waiting, or until a part is reduced.
    ///
    /// # Errors
    /// MPI's, with the place of the other end.
    pub fn step(
        &mut self,
        id: u64,
        wire: &mut Wire,
        message_bytes: u64,
        scratch: &mut Vec<u8>,
    ) -> Result<Progress, (usize, String)> {
        if self.requests > 0 {
            return Ok(Progress::Waits);
        }
        match self.stage {
            Stage::Gathering if self.missing > 0 => return Ok(Progress::Waits),
            Stage::Gathering => {
                self.stage = Stage::First;
                let moves = std::mem::take(&mut self.plan.first);
                self.post(id, &moves, wire, message_bytes)?;
            }
            Stage::First => self.stage = Stage::Summing(0, 0),
            Stage::Summing(at, from) => {
                let Some(sum) = self.plan.sums.get(at) else {
                    self.stage = Stage::Second;
                    let moves = std::mem::take(&mut self.plan.second);
                    self.post(id, &moves, wire, message_bytes)?;
                    return Ok(Progress::Goes);
                };
                let mut until = from;
                while until < sum.output.bytes().min(from + STEP_BYTES) {
                    until = sum.reduce(until, scratch);
                }
                let more = until < sum.output.bytes();
                self.stage = if more { Stage::Summing(at, until) } else { Stage::Summing(at + 1, 0) };
            }
            Stage::Second => return Ok(Progress::Done),
        }
        Ok(Progress::Goes)
    }

    /// Receives before it sends, so that messages find their place when they come.
    fn post(&mut self, id: u64, moves: &[Move], wire: &mut Wire, message_bytes: u64) -> Result<(), (usize, String)> {
        for receives in [true, false] {
            for Move { peer, span, .. } in moves.iter().filter(|one| one.receives == receives) {
                let failed = |error| (*peer, error);
                let rank = self.group.members()[*peer].0;
                let mut at = 0;
                while at < span.bytes() {
                    let bytes = message_bytes.min(span.bytes() - at);
                    let part = span.part(at, bytes).map_err(|error| failed(error.to_string()))?;
                    let sent = match (receives, self.tags[*peer]) {
                        (true, _) => wire.receive(id, rank, self.tag, part),
                        (false, Some(tag)) => wire.send(id, rank, tag, part),
                        (false, None) => Err("it has not arrived".to_owned()),
                    };
                    sent.map_err(failed)?;
                    self.requests += 1;
                    at += bytes;
                }
            }
        }
        Ok(())
    }

    /// What it fails with when nobody waits for it any longer.
    pub fn late(&self, waited: std::time::Duration) -> CommError {
        let (mut arrived, mut missing) = (Vec::new(), Vec::new());
        let others: Vec<usize> = self.others().collect();
        for place in (0..self.group.size()).filter(|place| *place == self.group.place() || others.contains(place)) {
            let list = if self.has_arrived(place) { &mut arrived } else { &mut missing };
            list.push(self.group.members()[place]);
        }
        CommError::Timeout { site: self.site.clone(), waited, arrived, missing }
    }
}
