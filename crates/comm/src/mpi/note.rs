//! Notes: what ranks tell one another beside the data.

use super::bytes::{Malformed, Reader, Writer};
use super::shape::Shape;
use crate::error::{CommError, Fate, Site};
use crate::transport::Lane;
use bucketeer_types::GlobalRank;
use std::sync::Arc;
use std::time::Duration;

/// All ranks have the same; changed with the form of notes, or with the order of messages.
pub const VERSION: u64 = 1;

/// A call of a group: its lane and number.
pub type Place = (Lane, u64);

/// A rank has arrived at a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    pub lane: Lane,
    pub seq: u64,
    /// On which it wants its data.
    pub tag: u16,
    pub shapes: Vec<Shape>,
}

/// A rank has given a group up.
#[derive(Clone, Debug, PartialEq)]
pub struct Break {
    pub cause: CommError,
    /// The call that the cause is about, if any.
    pub at: Option<Place>,
    /// Calls for which it will do nothing more.
    pub given_up: Vec<Place>,
}

/// Of groups, `group` is the sender's own number.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// A group was made. Groups are numbered from 0 in the order in which they are made.
    Join {
        group: u32,
        name: Arc<str>,
        members: Arc<[GlobalRank]>,
    },
    Arrive {
        group: u32,
        arrival: Arrival,
    },
    Break {
        group: u32,
        broken: Break,
    },
    /// The rank's handle is dropped.
    Leave {
        fate: Fate,
    },
    /// The rank has nothing more to send or receive.
    Finish,
}

impl Note {
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Join { group, name, members } => {
                to.u8(0);
                to.u64(u64::from(*group));
                to.text(name);
                to.list(members, |to, rank| to.u64(u64::from(rank.0)));
            }
            Self::Arrive { group, arrival } => {
                to.u8(1);
                to.u64(u64::from(*group));
                write_place(&mut to, &(arrival.lane, arrival.seq));
                to.u64(u64::from(arrival.tag));
                to.list(&arrival.shapes, |to, shape| shape.write(to));
            }
            Self::Break { group, broken } => {
                to.u8(2);
                to.u64(u64::from(*group));
                write_cause(&mut to, &broken.cause);
                to.list(broken.at.as_slice(), write_place);
                to.list(&broken.given_up, write_place);
            }
            Self::Leave { fate } => {
                to.u8(3);
                write_fate(&mut to, *fate);
            }
            Self::Finish => to.u8(4),
        }
        to.0
    }

    /// Reads a note; lanes are as its sender sees them.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(bytes);
        let note = match from.u8()? {
            0 => {
                let (group, name) = (from.u32()?, from.text()?.into());
                Self::Join { group, name, members: read_ranks(&mut from)?.into() }
            }
            1 => {
                let group = from.u32()?;
                let (lane, seq) = read_place(&mut from)?;
                let tag = from.u32()?.try_into().map_err(|_| Malformed)?;
                let shapes = from.list(Shape::read)?;
                Self::Arrive { group, arrival: Arrival { lane, seq, tag, shapes } }
            }
            2 => {
                let (group, cause) = (from.u32()?, read_cause(&mut from)?);
                let (at, given_up) = (from.list(read_place)?.first().copied(), from.list(read_place)?);
                Self::Break { group, broken: Break { cause, at, given_up } }
            }
            3 => Self::Leave { fate: read_fate(&mut from)? },
            4 => Self::Finish,
            _ => return Err(Malformed),
        };
        if from.0.is_empty() { Ok(note) } else { Err(Malformed) }
    }
}

fn write_place(to: &mut Writer, (lane, seq): &Place) {
    let (code, peer) = match lane {
        Lane::All => (0, 0),
        Lane::To(peer) => (1, *peer),
        Lane::From(peer) => (2, *peer),
    };
    to.u8(code);
    to.u64(u64::from(peer));
    to.u64(*seq);
}

fn read_place(from: &mut Reader<'_>) -> Result<Place, Malformed> {
    let (code, peer) = (from.u8()?, from.u32()?);
    let lane = match code {
        0 => Lane::All,
        1 => Lane::To(peer),
        2 => Lane::From(peer),
        _ => return Err(Malformed),
    };
    Ok((lane, from.u64()?))
}

fn read_ranks(from: &mut Reader<'_>) -> Result<Vec<GlobalRank>, Malformed> {
    from.list(|from| from.u32().map(GlobalRank))
}

const FATES: [Fate; 4] = [Fate::Left, Fate::Panicked, Fate::Killed, Fate::Lost];

fn write_fate(to: &mut Writer, fate: Fate) {
    to.u8(FATES.iter().position(|other| *other == fate).map_or(u8::MAX, |at| at as u8));
}

fn read_fate(from: &mut Reader<'_>) -> Result<Fate, Malformed> {
    FATES.get(usize::from(from.u8()?)).copied().ok_or(Malformed)
}

fn write_cause(to: &mut Writer, cause: &CommError) {
    let site = cause.site();
    to.text(&site.group);
    to.word(site.op);
    to.list(site.seq.as_slice(), |to, seq| to.u64(*seq));
    let rank = |to: &mut Writer, rank: &GlobalRank| to.u64(u64::from(rank.0));
    match cause {
        CommError::Mismatch { what, ranks, values, .. } => {
            to.u8(0);
            to.text(what);
            [ranks.0, ranks.1].iter().for_each(|one| rank(to, one));
            [&values.0, &values.1].iter().for_each(|value| to.text(value));
        }
        CommError::Timeout { waited, arrived, missing, .. } => {
            to.u8(1);
            // 500 years fit.
            to.u64(waited.as_nanos().try_into().unwrap_or(u64::MAX));
            [arrived, missing].iter().for_each(|list| to.list(list, rank));
        }
        CommError::Remote { rank: gone, fate, .. } => {
            to.u8(2);
            rank(to, gone);
            write_fate(to, *fate);
        }
        CommError::Aborted { by, .. } => {
            to.u8(3);
            rank(to, by);
        }
        CommError::Failed { rank: failed, reason, elsewhere, .. } => {
            to.u8(4);
            rank(to, failed);
            to.text(reason);
            to.u8(u8::from(*elsewhere));
        }
        // None of these breaks a group; see `Engine::break_group`.
        CommError::Invalid { .. } | CommError::Buffer { .. } | CommError::Comm { .. } => to.u8(u8::MAX),
    }
}

/// What two ranks can disagree on.
const DISAGREE: [&str; 8] = ["number of calls", "op", "reduction", "root", "dtype", "count", "split", "members"];

fn read_cause(from: &mut Reader<'_>) -> Result<CommError, Malformed> {
    let (group, op) = (from.text()?.into(), from.word()?);
    let site = Site { group, op, seq: from.list(Reader::u64)?.first().copied() };
    let rank = |from: &mut Reader<'_>| from.u32().map(GlobalRank);
    Ok(match from.u8()? {
        0 => {
            let what = from.text()?;
            let what = DISAGREE.iter().find(|known| **known == what).ok_or(Malformed)?;
            let ranks = (rank(from)?, rank(from)?);
            let values = Box::new((from.text()?.to_owned(), from.text()?.to_owned()));
            CommError::Mismatch { site, what, ranks, values }
        }
        1 => {
            let waited = Duration::from_nanos(from.u64()?);
            CommError::Timeout { site, waited, arrived: read_ranks(from)?, missing: read_ranks(from)? }
        }
        2 => CommError::Remote { site, rank: rank(from)?, fate: read_fate(from)? },
        3 => CommError::Aborted { site, by: rank(from)? },
        4 => {
            let (rank, reason) = (rank(from)?, from.text()?.into());
            CommError::Failed { site, rank, reason, elsewhere: from.u8()? != 0 }
        }
        _ => return Err(Malformed),
    })
}
