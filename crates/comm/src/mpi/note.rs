//! Notes: what ranks tell one another beside the data.

use super::shape::Shape;
use super::words::{self, Word};
use crate::buffer::BufferError;
use crate::error::{CommError, Fate, Site};
use crate::forms;
use crate::transport::Lane;
use bucketeer_types::GlobalRank;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// All ranks have the same; changed with the form of notes, or with the order of messages.
pub const VERSION: u64 = 2;

/// Bytes that are no note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A call of a group: its lane and number.
pub type CallId = (Lane, u64);

/// A rank has arrived at a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    pub lane: Lane,
    pub seq: u64,
    /// On which it wants its data.
    pub tag: u16,
    pub shapes: Vec<Shape>,
}

/// A rank has given a group up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Break {
    #[serde(with = "Cause")]
    pub cause: CommError,
    /// The call that the cause is about, if any.
    pub at: Option<CallId>,
    /// Calls for which it will do nothing more.
    pub given_up: Vec<CallId>,
}

/// Of groups, `group` is the sender's own number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Note {
    /// A group was made. Groups are numbered from 0 in the order in which they are made.
    Join {
        group: u32,
        name: Arc<str>,
        #[serde(with = "forms::ranks")]
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
        // A cause that breaks no group has no form; no bytes are no note.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Reads a note; lanes are as its sender sees them.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        match postcard::take_from_bytes(bytes) {
            Ok((note, [])) => Ok(note),
            _ => Err(Malformed),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Site")]
struct Where {
    group: Arc<str>,
    #[serde(with = "words")]
    op: Word,
    seq: Option<u64>,
}

/// Errors that break a group; see `Engine::break_group`. Those that do not come last: serde numbers variants with skipped ones
/// when it writes, and without them when it reads.
#[derive(Serialize, Deserialize)]
#[serde(remote = "CommError")]
enum Cause {
    Mismatch {
        #[serde(with = "Where")]
        site: Site,
        #[serde(with = "words")]
        what: Word,
        #[serde(with = "forms::pair")]
        ranks: (GlobalRank, GlobalRank),
        values: Box<(String, String)>,
    },
    Timeout {
        #[serde(with = "Where")]
        site: Site,
        waited: Duration,
        #[serde(with = "forms::ranks")]
        arrived: Vec<GlobalRank>,
        #[serde(with = "forms::ranks")]
        missing: Vec<GlobalRank>,
    },
    Remote {
        #[serde(with = "Where")]
        site: Site,
        #[serde(with = "forms::rank")]
        rank: GlobalRank,
        fate: Fate,
    },
    Aborted {
        #[serde(with = "Where")]
        site: Site,
        #[serde(with = "forms::rank")]
        by: GlobalRank,
    },
    Failed {
        #[serde(with = "Where")]
        site: Site,
        #[serde(with = "forms::rank")]
        rank: GlobalRank,
        reason: Arc<str>,
        elsewhere: bool,
    },
    #[serde(skip)]
    Invalid { site: Site, reason: String },
    #[serde(skip)]
    Buffer { site: Site, error: BufferError },
    #[serde(skip)]
    Comm { site: Site, cause: Arc<CommError> },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arena, Call, Op, Operands};
    use bucketeer_types::{DType, GroupRank, ReduceOp, Reduction};

    /// Notes of every kind, with every cause that can be told.
    fn notes() -> Vec<Note> {
        let buffer = |bytes| Arena::new(64).unwrap().buffer(0, bytes).unwrap();
        let data = || Operands::in_place(buffer(32), DType::F32);
        let root = GroupRank(1);
        let calls = [
            Call::collective(Op::AllReduce(Reduction::PreMulSum { factor: f64::NEG_INFINITY }), data()),
            Call::collective(Op::Reduce { op: Reduction::Op(ReduceOp::BitXor), root }, data()),
            Call::collective(Op::AllToAll { send: vec![3, 5], receive: vec![1, 7] }, data()),
            Call::send(buffer(8), DType::Bf16, root),
            Call::barrier(),
        ];
        let shapes = calls.iter().map(|call| Shape::of(call, 2, 1)).collect();
        let site = || Site { group: "g".into(), op: "all_reduce", seq: Some(300) };
        let (rank, fate) = (GlobalRank(70_000), Fate::Killed);
        let causes = [
            CommError::Mismatch {
                site: site(),
                what: "dtype",
                ranks: (GlobalRank(0), rank),
                values: Box::new(("f32 x 1".to_owned(), "f64 x 1".to_owned())),
            },
            CommError::Timeout {
                site: Site { seq: None, ..site() },
                waited: Duration::new(90, 1),
                arrived: vec![GlobalRank(0)],
                missing: vec![rank, GlobalRank(2)],
            },
            CommError::Remote { site: site(), rank, fate },
            CommError::Aborted { site: site(), by: rank },
            CommError::Failed { site: site(), rank, reason: "no memory".into(), elsewhere: true },
        ];
        let mut notes = vec![
            Note::Join { group: 0, name: "g".into(), members: [GlobalRank(0), rank].into() },
            Note::Arrive { group: 7, arrival: Arrival { lane: Lane::From(1), seq: 1 << 40, tag: 32_767, shapes } },
            Note::Leave { fate },
            Note::Finish,
        ];
        notes.extend(causes.map(|cause| {
            let broken = Break { cause, at: Some((Lane::To(9), 2)), given_up: vec![(Lane::All, 0), (Lane::To(1), 5)] };
            Note::Break { group: 1, broken }
        }));
        notes
    }

    #[test]
    fn every_note_is_read_as_it_was_written() {
        for note in notes() {
            assert_eq!(Note::decode(&note.encode()), Ok(note));
        }
    }

    #[test]
    fn notes_that_are_cut_short_or_go_on_are_malformed() {
        for note in notes() {
            let mut bytes = note.encode();
            for end in 0..bytes.len() {
                assert_eq!(Note::decode(&bytes[..end]), Err(Malformed), "{end} bytes of {note:?}");
            }
            bytes.push(0);
            assert_eq!(Note::decode(&bytes), Err(Malformed), "{note:?}");
        }
    }

    #[test]
    fn lists_longer_than_their_note_and_words_of_no_list_are_malformed() {
        let join = Note::Join { group: 0, name: "g".into(), members: [].into() }.encode();
        assert_eq!(join, [0, 0, 1, b'g', 0]);
        // 2^63 ranks; a name of 2^63 bytes.
        let most = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
        assert_eq!(Note::decode(&[&join[..4], &most[..]].concat()), Err(Malformed));
        assert_eq!(Note::decode(&[&join[..2], &most[..], b"g"].concat()), Err(Malformed));
        let aborted =
            CommError::Aborted { site: Site { group: "g".into(), op: "shrink", seq: None }, by: GlobalRank(0) };
        let broken = Break { cause: aborted, at: None, given_up: Vec::new() };
        let mut bytes = Note::Break { group: 0, broken }.encode();
        let place = bytes.iter().position(|byte| *byte == 12).unwrap();
        bytes[place] = 100;
        assert_eq!(Note::decode(&bytes), Err(Malformed));
    }

    #[test]
    fn a_cause_that_breaks_no_group_is_not_told() {
        let cause =
            CommError::Invalid { site: Site { group: "g".into(), op: "send", seq: None }, reason: String::new() };
        let note = Note::Break { group: 0, broken: Break { cause, at: None, given_up: Vec::new() } };
        assert_eq!(Note::decode(&note.encode()), Err(Malformed));
    }
}
