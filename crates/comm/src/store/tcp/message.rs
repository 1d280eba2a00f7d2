//! What a rank and the store say to one another.

use super::secret::Proof;
use super::wire::{Malformed, Reader, Writer};
use crate::error::Fate;
use crate::store::{MAX_REPLY_BYTES, MAX_REQUEST_BYTES, StoreError};
use bucketeer_types::GlobalRank;

/// First bytes of a hello: nobody else's protocol starts like this.
pub(super) const MAGIC: [u8; 4] = *b"BKTR";

/// Version of the protocol. The layouts of a hello and of a refusal are the same in all versions.
pub const PROTOCOL_VERSION: u32 = 1;

/// Most bytes of what a stranger may send at once.
pub(super) const MAX_HELLO_BYTES: usize = 128;

/// Most bytes of what a rank may send at once: the limit of requests, and a few numbers.
pub(super) const MAX_FRAME_BYTES: usize = MAX_REQUEST_BYTES + 1024;

/// Most bytes of a reply: values, and the length of each.
pub(super) const MAX_ANSWER_BYTES: usize = MAX_REPLY_BYTES + (1 << 20);

/// Ranks that a reply names of those that are missing.
pub(super) const RANKS_NAMED: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub version: u32,
    pub rank: u32,
    pub world_size: u32,
    pub has_secret: bool,
    pub nonce: Proof,
}

/// What a rank says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ClientFrame {
    Hello(Hello),
    Proof(Proof),
    Ping,
    Goodbye(Fate),
    Request(u64, Request),
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request {
    Set(String, Vec<u8>),
    SetOnce(String, Vec<u8>),
    Get(Vec<String>),
    Wait(Vec<String>),
    Add(String, i64),
    Remove(String),
    Gone,
    Refused,
    /// Waits for all ranks.
    Join,
    /// Ends the wait of that number.
    Cancel,
}

/// What the store says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ServerFrame {
    Challenge {
        has_secret: bool,
        nonce: Proof,
    },
    Welcome {
        proof: Proof,
        heartbeat_ms: u32,
        silence_ms: u32,
        holder: Option<GlobalRank>,
    },
    Refused(String),
    Pong,
    /// The store goes, and so did the rank that held it.
    Closing(Fate),
    Answer(u64, Answer),
}

/// What a request gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Done,
    Values(Vec<Option<Vec<u8>>>),
    Number(i64),
    Gone(Vec<(GlobalRank, Fate)>),
    Texts(Vec<String>),
    /// A wait was ended while these keys had no value.
    Missing(Vec<String>),
    Absent(Absent),
    Refuse(String),
    TooLarge {
        what: String,
        found: u64,
        most: u64,
    },
}

/// Why not all ranks are there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Absent {
    /// The first of them.
    pub missing: Vec<GlobalRank>,
    pub missing_count: u32,
    pub gone: Vec<(GlobalRank, Fate)>,
    pub refused: Vec<String>,
}

impl From<StoreError> for Answer {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::TooLarge { what, found, most } => {
                Self::TooLarge { what, found: found as u64, most: most as u64 }
            }
            StoreError::Refused { reason, .. } => Self::Refuse(reason),
            error => Self::Refuse(error.to_string()),
        }
    }
}

impl ClientFrame {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => Writer::new(1)
                .raw(&MAGIC)
                .u32(hello.version)
                .u32(hello.rank)
                .u32(hello.world_size)
                .u8(hello.has_secret.into())
                .raw(&hello.nonce),
            Self::Proof(proof) => Writer::new(2).raw(proof),
            Self::Ping => Writer::new(3),
            Self::Goodbye(fate) => Writer::new(4).u8(fate_code(*fate)),
            Self::Request(id, request) => encode_request(*id, request),
        }
        .finish()
    }

    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut read = Reader::new(body);
        let frame = match read.u8()? {
            1 => {
                if read.array()? != MAGIC {
                    return Err(Malformed);
                }
                Self::Hello(Hello {
                    version: read.u32()?,
                    rank: read.u32()?,
                    world_size: read.u32()?,
                    has_secret: flag(&mut read)?,
                    nonce: read.array()?,
                })
            }
            2 => Self::Proof(read.array()?),
            3 => Self::Ping,
            4 => Self::Goodbye(fate(&mut read)?),
            kind => {
                let id = read.u64()?;
                Self::Request(id, decode_request(kind, &mut read)?)
            }
        };
        read.end()?;
        Ok(frame)
    }
}

fn encode_request(id: u64, request: &Request) -> Writer {
    let new = |kind| Writer::new(kind).u64(id);
    let keys = |kind, keys: &[String]| new(kind).list(keys.iter(), |to, key| to.bytes(key.as_bytes()));
    match request {
        Request::Set(key, value) => new(16).bytes(key.as_bytes()).bytes(value),
        Request::SetOnce(key, value) => new(17).bytes(key.as_bytes()).bytes(value),
        Request::Get(list) => keys(18, list),
        Request::Wait(list) => keys(19, list),
        Request::Add(key, delta) => new(20).bytes(key.as_bytes()).raw(&delta.to_le_bytes()),
        Request::Remove(key) => new(21).bytes(key.as_bytes()),
        Request::Gone => new(22),
        Request::Refused => new(23),
        Request::Join => new(24),
        Request::Cancel => new(25),
    }
}

fn decode_request(kind: u8, read: &mut Reader<'_>) -> Result<Request, Malformed> {
    Ok(match kind {
        16 => Request::Set(read.text()?, read.bytes()?.to_vec()),
        17 => Request::SetOnce(read.text()?, read.bytes()?.to_vec()),
        18 => Request::Get(read.list(4, Reader::text)?),
        19 => Request::Wait(read.list(4, Reader::text)?),
        20 => Request::Add(read.text()?, i64::from_le_bytes(read.array()?)),
        21 => Request::Remove(read.text()?),
        22 => Request::Gone,
        23 => Request::Refused,
        24 => Request::Join,
        25 => Request::Cancel,
        _ => return Err(Malformed),
    })
}

impl ServerFrame {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Challenge { has_secret, nonce } => Writer::new(1).u8((*has_secret).into()).raw(nonce),
            Self::Welcome { proof, heartbeat_ms, silence_ms, holder } => {
                let welcome = Writer::new(2).raw(proof).u32(*heartbeat_ms).u32(*silence_ms);
                welcome.list(holder.iter(), |to, rank| to.u32(rank.0))
            }
            Self::Refused(text) => Writer::new(3).bytes(text.as_bytes()),
            Self::Pong => Writer::new(4),
            Self::Closing(fate) => Writer::new(5).u8(fate_code(*fate)),
            Self::Answer(id, answer) => encode_answer(*id, answer),
        }
        .finish()
    }

    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut read = Reader::new(body);
        let frame = match read.u8()? {
            1 => Self::Challenge { has_secret: flag(&mut read)?, nonce: read.array()? },
            2 => Self::Welcome {
                proof: read.array()?,
                heartbeat_ms: read.u32()?,
                silence_ms: read.u32()?,
                holder: read.list(4, rank)?.first().copied(),
            },
            3 => Self::Refused(read.text()?),
            4 => Self::Pong,
            5 => Self::Closing(fate(&mut read)?),
            kind => {
                let id = read.u64()?;
                Self::Answer(id, decode_answer(kind, &mut read)?)
            }
        };
        read.end()?;
        Ok(frame)
    }
}

fn encode_answer(id: u64, answer: &Answer) -> Writer {
    let new = |kind| Writer::new(kind).u64(id);
    let texts = |to: Writer, texts: &[String]| to.list(texts.iter(), |to, text| to.bytes(text.as_bytes()));
    let fates = |to: Writer, gone: &[(GlobalRank, Fate)]| {
        to.list(gone.iter(), |to, (rank, fate)| to.u32(rank.0).u8(fate_code(*fate)))
    };
    match answer {
        Answer::Done => new(16),
        Answer::Values(values) => new(17).list(values.iter(), |to, value| match value {
            None => to.u8(0),
            Some(value) => to.u8(1).bytes(value),
        }),
        Answer::Number(number) => new(18).raw(&number.to_le_bytes()),
        Answer::Gone(gone) => fates(new(19), gone),
        Answer::Texts(list) => texts(new(20), list),
        Answer::Missing(keys) => texts(new(21), keys),
        Answer::Absent(absent) => {
            let to = new(22).list(absent.missing.iter(), |to, rank| to.u32(rank.0)).u32(absent.missing_count);
            texts(fates(to, &absent.gone), &absent.refused)
        }
        Answer::Refuse(reason) => new(23).bytes(reason.as_bytes()),
        Answer::TooLarge { what, found, most } => new(24).bytes(what.as_bytes()).u64(*found).u64(*most),
    }
}

fn decode_answer(kind: u8, read: &mut Reader<'_>) -> Result<Answer, Malformed> {
    let fates = |read: &mut Reader<'_>| read.list(5, |read| Ok((rank(read)?, fate(read)?)));
    Ok(match kind {
        16 => Answer::Done,
        17 => Answer::Values(read.list(1, |read| Ok(if flag(read)? { Some(read.bytes()?.to_vec()) } else { None }))?),
        18 => Answer::Number(i64::from_le_bytes(read.array()?)),
        19 => Answer::Gone(fates(read)?),
        20 => Answer::Texts(read.list(4, Reader::text)?),
        21 => Answer::Missing(read.list(4, Reader::text)?),
        22 => Answer::Absent(Absent {
            missing: read.list(4, rank)?,
            missing_count: read.u32()?,
            gone: fates(read)?,
            refused: read.list(4, Reader::text)?,
        }),
        23 => Answer::Refuse(read.text()?),
        24 => Answer::TooLarge { what: read.text()?, found: read.u64()?, most: read.u64()? },
        _ => return Err(Malformed),
    })
}

fn rank(read: &mut Reader<'_>) -> Result<GlobalRank, Malformed> {
    read.u32().map(GlobalRank)
}

fn flag(read: &mut Reader<'_>) -> Result<bool, Malformed> {
    match read.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed),
    }
}

fn fate_code(fate: Fate) -> u8 {
    match fate {
        Fate::Left => 0,
        Fate::Panicked => 1,
        Fate::Killed => 2,
        Fate::Lost => 3,
    }
}

fn fate(read: &mut Reader<'_>) -> Result<Fate, Malformed> {
    [Fate::Left, Fate::Panicked, Fate::Killed, Fate::Lost].get(usize::from(read.u8()?)).copied().ok_or(Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_as_it_was_meant_and_not_if_it_is_cut() {
        let keys = vec!["a".to_owned(), String::new()];
        let requests = [
            Request::Set("k".to_owned(), vec![0, 255]),
            Request::SetOnce("k".to_owned(), vec![]),
            Request::Get(keys.clone()),
            Request::Wait(vec![]),
            Request::Add("n".to_owned(), -5),
            Request::Remove("é".to_owned()),
            Request::Gone,
            Request::Refused,
            Request::Join,
            Request::Cancel,
        ];
        let hello = Hello { version: 1, rank: 2, world_size: 3, has_secret: true, nonce: [9; 32] };
        let others = [
            ClientFrame::Hello(hello),
            ClientFrame::Proof([1; 32]),
            ClientFrame::Ping,
            ClientFrame::Goodbye(Fate::Panicked),
        ];
        let frames = requests.into_iter().map(|request| ClientFrame::Request(u64::MAX, request)).chain(others);
        for frame in frames {
            let bytes = frame.encode();
            assert_eq!(ClientFrame::decode(&bytes[4..]), Ok(frame.clone()));
            assert!(bytes.len() - 4 <= MAX_HELLO_BYTES);
            for end in 4..bytes.len() {
                assert!(ClientFrame::decode(&bytes[4..end]).is_err(), "{frame:?} cut to {end}");
            }
            assert!(ClientFrame::decode(&[&bytes[4..], &[0]].concat()).is_err(), "{frame:?} and more");
        }
    }

    #[test]
    fn what_the_store_says_is_read_as_it_was_meant_and_not_if_it_is_cut() {
        let gone = vec![(GlobalRank(1), Fate::Lost), (GlobalRank(7), Fate::Left)];
        let absent = Absent {
            missing: vec![GlobalRank(3)],
            missing_count: 1,
            gone: gone.clone(),
            refused: vec!["who".to_owned()],
        };
        let answers = [
            Answer::Done,
            Answer::Values(vec![None, Some(vec![]), Some(vec![1, 2])]),
            Answer::Number(i64::MIN),
            Answer::Gone(gone),
            Answer::Texts(vec!["a".to_owned()]),
            Answer::Missing(vec![]),
            Answer::Absent(absent),
            Answer::Refuse("no".to_owned()),
            Answer::TooLarge { what: "keys".to_owned(), found: 2, most: 1 },
        ];
        let others = [
            ServerFrame::Challenge { has_secret: false, nonce: [5; 32] },
            ServerFrame::Welcome { proof: [6; 32], heartbeat_ms: 1, silence_ms: 2, holder: None },
            ServerFrame::Welcome { proof: [6; 32], heartbeat_ms: 1, silence_ms: 2, holder: Some(GlobalRank(0)) },
            ServerFrame::Refused("no".to_owned()),
            ServerFrame::Pong,
            ServerFrame::Closing(Fate::Left),
        ];
        for frame in answers.into_iter().map(|answer| ServerFrame::Answer(3, answer)).chain(others) {
            let bytes = frame.encode();
            assert_eq!(ServerFrame::decode(&bytes[4..]), Ok(frame.clone()));
            for end in 4..bytes.len() {
                assert!(ServerFrame::decode(&bytes[4..end]).is_err(), "{frame:?} cut to {end}");
            }
        }
    }
}
