//! One rank's handle on a store over TCP.

use super::connect::{JoinOptions, connect, deadline};
use super::link::Link;
use super::message::{Absent, Answer, Request};
use super::server::StoreServer;
use crate::error::Fate;
use crate::store::limits::{check_key, check_keys, check_value};
use crate::store::{Store, StoreError};
use bucketeer_types::GlobalRank;
use std::time::{Duration, Instant};

/// How long the rank that holds the store waits, when it drops its handle, for others to leave.
pub const LINGER: Duration = Duration::from_secs(10);

/// One rank's handle on a store that a [`StoreServer`] serves. Dropping it says goodbye, so that others know that the
/// rank left.
pub struct TcpStore {
    rank: GlobalRank,
    world_size: u32,
    address: String,
    /// Dropped before the server.
    link: Option<Link>,
    server: Option<StoreServer>,
}

impl TcpStore {
    /// Joins a world, and waits until all of its ranks are there.
    ///
    /// # Errors
    /// [`StoreError::Lost`] when no store answers in time, [`StoreError::Refused`] when it does not let this rank in,
    /// [`StoreError::Absent`] when not all ranks come, with those that are missing and who was refused.
    pub fn join(options: &JoinOptions) -> Result<Self, StoreError> {
        Self::join_with(options, None)
    }

    /// As [`join`](Self::join), for the rank whose process serves the store. Dropping the handle then waits for up to
    /// [`LINGER`] until the other ranks have left, and closes the store.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn join_own(server: StoreServer, options: &JoinOptions) -> Result<Self, StoreError> {
        Self::join_with(options, Some(server))
    }

    fn join_with(options: &JoinOptions, server: Option<StoreServer>) -> Result<Self, StoreError> {
        let end = deadline(options.timeout);
        let connection = connect(options, end)?;
        let store = Self {
            rank: options.rank,
            world_size: options.world_size,
            address: options.address.clone(),
            link: Some(Link::start(options.address.clone(), connection)?),
            server,
        };
        let left = end.saturating_duration_since(Instant::now());
        match store.link()?.ask(Request::Join)?.answer_within(left)? {
            Answer::Done => Ok(store),
            Answer::Absent(absent) => Err(absent_error(absent, options)),
            answer => Err(store.unexpected(answer)),
        }
    }

    fn link(&self) -> Result<&Link, StoreError> {
        self.link.as_ref().ok_or_else(|| self.lost("the handle is being dropped"))
    }

    fn ask(&self, request: Request) -> Result<Answer, StoreError> {
        self.link()?.ask(request)?.answer()
    }

    fn lost(&self, reason: &str) -> StoreError {
        StoreError::Lost { address: self.address.clone(), reason: reason.to_owned() }
    }

    /// The error that an answer is, which is not what was asked for.
    fn unexpected(&self, answer: Answer) -> StoreError {
        match answer {
            Answer::Refuse(reason) => StoreError::Refused { address: self.address.clone(), reason },
            Answer::TooLarge { what, found, most } => StoreError::TooLarge {
                what,
                found: usize::try_from(found).unwrap_or(usize::MAX),
                most: usize::try_from(most).unwrap_or(usize::MAX),
            },
            _ => self.lost("its answer does not fit the request"),
        }
    }
}

fn absent_error(absent: Absent, options: &JoinOptions) -> StoreError {
    let Absent { missing, missing_count, gone, refused } = absent;
    let (world_size, timeout) = (options.world_size, options.timeout);
    StoreError::Absent { missing, missing_count, world_size, timeout, gone, refused }
}

impl Store for TcpStore {
    fn rank(&self) -> GlobalRank {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world_size
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        check_key(key)?;
        check_value(value)?;
        match self.ask(Request::Set(key.to_owned(), value.to_vec()))? {
            Answer::Done => Ok(()),
            answer => Err(self.unexpected(answer)),
        }
    }

    fn set_once(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        check_key(key)?;
        check_value(value)?;
        match self.ask(Request::SetOnce(key.to_owned(), value.to_vec()))? {
            Answer::Values(mut values) => {
                values.pop().flatten().ok_or_else(|| self.lost("its answer does not fit the request"))
            }
            answer => Err(self.unexpected(answer)),
        }
    }

    fn get(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        check_keys(keys)?;
        match self.ask(Request::Get(keys.to_vec()))? {
            Answer::Values(values) if values.len() == keys.len() => Ok(values),
            answer => Err(self.unexpected(answer)),
        }
    }

    fn wait(&self, keys: &[String], timeout: Duration) -> Result<Vec<Vec<u8>>, StoreError> {
        check_keys(keys)?;
        let start = Instant::now();
        match self.link()?.ask(Request::Wait(keys.to_vec()))?.answer_within(timeout)? {
            Answer::Values(values) if values.len() == keys.len() => {
                let values: Option<Vec<_>> = values.into_iter().collect();
                values.ok_or_else(|| self.lost("its answer does not fit the request"))
            }
            Answer::Missing(keys) => Err(StoreError::Timeout { keys, waited: start.elapsed() }),
            answer => Err(self.unexpected(answer)),
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        check_key(key)?;
        match self.ask(Request::Add(key.to_owned(), delta))? {
            Answer::Number(sum) => Ok(sum),
            answer => Err(self.unexpected(answer)),
        }
    }

    fn remove(&self, key: &str) -> Result<bool, StoreError> {
        check_key(key)?;
        match self.ask(Request::Remove(key.to_owned()))? {
            Answer::Number(there) => Ok(there != 0),
            answer => Err(self.unexpected(answer)),
        }
    }

    fn gone(&self) -> Vec<(GlobalRank, Fate)> {
        match self.ask(Request::Gone) {
            Ok(Answer::Gone(gone)) => gone,
            _ => self.link.as_ref().and_then(Link::holder_fate).into_iter().collect(),
        }
    }

    fn refused(&self) -> Vec<String> {
        match self.ask(Request::Refused) {
            Ok(Answer::Texts(texts)) => texts,
            _ => Vec::new(),
        }
    }
}

impl Drop for TcpStore {
    fn drop(&mut self) {
        drop(self.link.take());
        if let Some(server) = self.server.take() {
            let fate = if std::thread::panicking() { Fate::Panicked } else { Fate::Left };
            if fate == Fate::Left {
                let _ = server.wait_until_left(LINGER);
            }
            server.close(fate);
        }
    }
}
