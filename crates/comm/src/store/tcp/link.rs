//! One rank's connection: requests that wait for their answers, a thread that reads these, one that says the rank
//! lives.

use super::connect::Connection;
use super::message::{Answer, ClientFrame, MAX_ANSWER_BYTES, Request, ServerFrame};
use super::wire::Frames;
use crate::error::Fate;
use crate::lock;
use crate::store::StoreError;
use bucketeer_types::GlobalRank;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for a goodbye to be heard.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 16;

const STACK_BYTES: usize = 256 << 10;

pub(super) struct Link {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    pulse: Option<JoinHandle<()>>,
    /// Dropped to end the pulse.
    stop_pulse: Option<Sender<()>>,
    /// Disconnected once the reader has ended.
    reading: Mutex<Receiver<()>>,
}

struct Shared {
    address: String,
    holder: Option<GlobalRank>,
    silence: Duration,
    stream: TcpStream,
    writer: Mutex<TcpStream>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// By its number, where the answer to a request goes.
    waiting: HashMap<u64, SyncSender<Answer>>,
    /// Why nothing more can be asked, and how the store's holder went.
    lost: Option<(String, Fate)>,
}

/// A request that was sent.
pub(super) struct Asked<'a> {
    link: &'a Link,
    id: u64,
    answer: Receiver<Answer>,
}

impl Link {
    pub fn start(address: String, connection: Connection) -> Result<Self, StoreError> {
        let Connection { stream, frames, heartbeat, silence, holder } = connection;
        let lost = |error: std::io::Error| StoreError::Lost { address: address.clone(), reason: error.to_string() };
        stream.set_write_timeout(Some(silence)).map_err(lost)?;
        stream.set_read_timeout(Some(silence / 4)).map_err(lost)?;
        let shared = Arc::new(Shared {
            address: address.clone(),
            holder,
            silence,
            writer: Mutex::new(stream.try_clone().map_err(lost)?),
            stream,
            state: Mutex::default(),
        });
        let (ended, reading) = channel();
        let (stop_pulse, stopped) = channel();
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        let (for_reader, for_pulse) = (shared.clone(), shared.clone());
        let mut link =
            Self { shared, reader: None, pulse: None, stop_pulse: Some(stop_pulse), reading: Mutex::new(reading) };
        let read = move || {
            for_reader.read(frames);
            drop(ended);
        };
        link.reader = Some(thread("bucketeer store: answers").spawn(read).map_err(lost)?);
        let beat = move || for_pulse.beat(heartbeat, &stopped);
        link.pulse = Some(thread("bucketeer store: pulse").spawn(beat).map_err(lost)?);
        Ok(link)
    }

    /// Sends a request.
    pub fn ask(&self, request: Request) -> Result<Asked<'_>, StoreError> {
        let (sender, answer) = sync_channel(1);
        let id = {
            let mut state = lock(&self.shared.state);
            if state.lost.is_some() {
                return Err(self.shared.lost_error(&state));
            }
            let id = state.next;
            state.next += 1;
            state.waiting.insert(id, sender);
            id
        };
        self.shared.send(&ClientFrame::Request(id, request))?;
        Ok(Asked { link: self, id, answer })
    }

    /// How the store's holder went; `None` while the store is there, or where no rank held it.
    pub fn holder_fate(&self) -> Option<(GlobalRank, Fate)> {
        let lost = lock(&self.shared.state).lost.clone();
        Some((self.shared.holder?, lost?.1))
    }

    /// Says goodbye, waits until the store has heard it, and ends the threads.
    pub fn leave(&mut self, fate: Fate) {
        let shared = &self.shared;
        drop(self.stop_pulse.take());
        if lock(&shared.state).lost.is_none() && shared.stream.set_write_timeout(Some(GOODBYE_LIMIT)).is_ok() {
            let _ = shared.send(&ClientFrame::Goodbye(fate));
            let _ = shared.stream.shutdown(Shutdown::Write);
            // The store closes its end once it knows.
            let _ = lock(&self.reading).recv_timeout(GOODBYE_LIMIT);
        }
        let _ = shared.stream.shutdown(Shutdown::Both);
        for thread in [self.reader.take(), self.pulse.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.leave(if std::thread::panicking() { Fate::Panicked } else { Fate::Left });
    }
}

impl Asked<'_> {
    /// The answer of a request that does not wait.
    pub fn answer(self) -> Result<Answer, StoreError> {
        // The reader ends by itself long before; this is for a store that lives and does not answer.
        self.receive(self.link.shared.silence * 2)?.ok_or_else(|| {
            self.link.shared.lose("it does not answer".to_owned(), Fate::Lost);
            self.link.shared.lost_error(&lock(&self.link.shared.state))
        })
    }

    /// The answer of a request that waits. After the time it is ended, and the answer is what the store says then.
    pub fn answer_within(self, timeout: Duration) -> Result<Answer, StoreError> {
        if let Some(answer) = self.receive(timeout)? {
            return Ok(answer);
        }
        self.link.shared.send(&ClientFrame::Request(self.id, Request::Cancel))?;
        self.answer()
    }

    fn receive(&self, timeout: Duration) -> Result<Option<Answer>, StoreError> {
        match self.answer.recv_timeout(timeout) {
            Ok(answer) => Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                let shared = &self.link.shared;
                Err(shared.lost_error(&lock(&shared.state)))
            }
        }
    }
}

impl Shared {
    fn send(&self, frame: &ClientFrame) -> Result<(), StoreError> {
        let sent = lock(&self.writer).write_all(&frame.encode());
        sent.map_err(|error| {
            let reason = match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => format!("it took nothing for {:?}", self.silence),
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => CLOSED.to_owned(),
                _ => error.to_string(),
            };
            self.lose(reason, Fate::Lost);
            self.lost_error(&lock(&self.state))
        })
    }

    /// Fails all requests, now and later. The first reason stays.
    fn lose(&self, reason: String, fate: Fate) {
        let mut state = lock(&self.state);
        state.lost.get_or_insert((reason, fate));
        state.waiting.clear();
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn lost_error(&self, state: &State) -> StoreError {
        let reason = state.lost.as_ref().map_or("it is gone", |(reason, _)| reason);
        let reason = match self.holder {
            Some(rank) => format!("{reason} (rank {} held it)", rank.0),
            None => reason.to_owned(),
        };
        StoreError::Lost { address: self.address.clone(), reason }
    }

    /// Reads answers until the connection ends.
    fn read(&self, frames: Frames) {
        let (reason, fate) = self.read_to_end(frames);
        self.lose(reason, fate);
    }

    fn read_to_end(&self, mut frames: Frames) -> (String, Fate) {
        let mut stream = &self.stream;
        let mut buffer = vec![0; READ_BYTES];
        let mut heard = Instant::now();
        loop {
            loop {
                let frame = match frames.next(MAX_ANSWER_BYTES) {
                    Ok(None) => break,
                    Ok(Some(body)) => ServerFrame::decode(&body),
                    Err(malformed) => Err(malformed),
                };
                match frame {
                    Ok(ServerFrame::Answer(id, answer)) => self.hand_over(id, answer),
                    Ok(ServerFrame::Pong) => {}
                    Ok(ServerFrame::Closing(fate)) => return ("it was closed".to_owned(), fate),
                    Ok(_) | Err(_) => return ("what it sent cannot be read".to_owned(), Fate::Lost),
                }
            }
            match stream.read(&mut buffer) {
                Ok(0) => return (CLOSED.to_owned(), Fate::Lost),
                Ok(len) => {
                    frames.feed(&buffer[..len]);
                    heard = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if heard.elapsed() >= self.silence {
                        return (format!("nothing was heard of it for {:?}", self.silence), Fate::Lost);
                    }
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return (CLOSED.to_owned(), Fate::Lost),
                Err(error) => return (error.to_string(), Fate::Lost),
            }
        }
    }

    fn hand_over(&self, id: u64, answer: Answer) {
        let sender = lock(&self.state).waiting.remove(&id);
        // Whoever asked may not be there any more.
        let _ = sender.map(|sender| sender.send(answer));
    }

    /// Says now and then that the rank lives.
    fn beat(&self, heartbeat: Duration, stopped: &Receiver<()>) {
        while stopped.recv_timeout(heartbeat) == Err(RecvTimeoutError::Timeout) {
            if lock(&self.state).lost.is_some() || self.send(&ClientFrame::Ping).is_err() {
                return;
            }
        }
    }
}

const CLOSED: &str = "the connection ended";
