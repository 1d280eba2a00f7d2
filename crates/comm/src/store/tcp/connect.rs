//! How a rank gets to the store.

use super::message::{ClientFrame, Hello, MAX_HELLO_BYTES, PROTOCOL_VERSION, ServerFrame};
use super::secret::{Claim, Secret, Side, random};
use super::wire::Frames;
use crate::store::StoreError;
use bucketeer_types::GlobalRank;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

/// Pause between the first two attempts; later ones are longer, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Longest wait for one address to answer, before the next one is tried.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Most bytes of a refusal.
const MAX_REFUSAL_BYTES: usize = 4096;

/// Who wants to join which world, where.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// Where the store is: `host:port`.
    pub address: String,
    /// This rank.
    pub rank: GlobalRank,
    /// Number of ranks.
    pub world_size: u32,
    /// The secret of the world, if it has one.
    pub secret: Option<Secret>,
    /// Time for the store to be there, and then for all ranks.
    pub timeout: Duration,
}

/// A connection on which the store has let the rank in.
pub(super) struct Connection {
    pub stream: TcpStream,
    pub frames: Frames,
    pub heartbeat: Duration,
    pub silence: Duration,
    pub holder: Option<GlobalRank>,
}

/// Why there is no connection.
enum Failure {
    /// It may be there later.
    NotYet(String),
    Final(StoreError),
}

/// When a time is over; one that is longer than any clock runs is cut.
pub(super) fn deadline(timeout: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
    Instant::now() + timeout.min(LONGEST)
}

/// Connects, again and again until the store is there.
pub(super) fn connect(options: &JoinOptions, end: Instant) -> Result<Connection, StoreError> {
    let mut pause = FIRST_PAUSE;
    loop {
        let reason = match attempt(options, end) {
            Ok(connection) => return Ok(connection),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::NotYet(reason)) => reason,
        };
        if Instant::now() + pause >= end {
            return Err(lost(options, format!("tried for {:?}; {reason}", options.timeout)));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn lost(options: &JoinOptions, reason: String) -> StoreError {
    StoreError::Lost { address: options.address.clone(), reason }
}

/// Tries each address of the store's name once.
fn attempt(options: &JoinOptions, end: Instant) -> Result<Connection, Failure> {
    let not_yet = |error: std::io::Error| Failure::NotYet(error.to_string());
    let mut failure = Failure::NotYet("its name stands for no address".to_owned());
    for address in options.address.to_socket_addrs().map_err(not_yet)? {
        match open(address, end).map_err(not_yet).and_then(|stream| shake_hands(stream, options, end)) {
            Err(Failure::NotYet(reason)) => failure = Failure::NotYet(reason),
            done => return done,
        }
    }
    Err(failure)
}

fn open(address: SocketAddr, end: Instant) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, left(end).min(CONNECT_LIMIT))?;
    // Where nobody listens on a port of those that outgoing connections get, one may find itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Time that is left; sockets take no limit of zero.
fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

fn shake_hands(mut stream: TcpStream, options: &JoinOptions, end: Instant) -> Result<Connection, Failure> {
    let JoinOptions { rank, world_size, secret, .. } = options;
    let refused = |reason: String| {
        // Whoever listens there chose the words.
        let reason = reason.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        Failure::Final(StoreError::Refused { address: options.address.clone(), reason })
    };
    let rank_nonce = random().map_err(|reason| Failure::Final(lost(options, reason)))?;
    let hello = Hello {
        version: PROTOCOL_VERSION,
        rank: rank.0,
        world_size: *world_size,
        has_secret: secret.is_some(),
        nonce: rank_nonce,
    };
    let mut frames = Frames::default();
    send(&mut stream, &ClientFrame::Hello(hello), end)?;
    let store_nonce = match hear(&mut stream, &mut frames, end)? {
        ServerFrame::Challenge { has_secret, nonce } if has_secret == secret.is_some() => nonce,
        ServerFrame::Challenge { .. } => {
            return Err(refused("it and this rank must both have a secret, or none".to_owned()));
        }
        ServerFrame::Refused(reason) => return Err(refused(reason)),
        _ => return Err(Failure::NotYet(NO_STORE.to_owned())),
    };
    let claim = Claim { rank: rank.0, world_size: *world_size, rank_nonce, store_nonce };
    send(&mut stream, &ClientFrame::Proof(claim.prove(Side::Rank, secret.as_ref())), end)?;
    match hear(&mut stream, &mut frames, end)? {
        ServerFrame::Welcome { proof, heartbeat_ms, silence_ms, holder } => {
            if !claim.holds(&proof, Side::Store, secret.as_ref()) {
                return Err(refused("it does not have this rank's secret itself".to_owned()));
            }
            let [heartbeat, silence] = [heartbeat_ms, silence_ms].map(|ms| Duration::from_millis(u64::from(ms.max(1))));
            Ok(Connection { stream, frames, heartbeat, silence, holder })
        }
        ServerFrame::Refused(reason) => Err(refused(reason)),
        _ => Err(Failure::NotYet(NO_STORE.to_owned())),
    }
}

/// What an answer means that makes no sense.
const NO_STORE: &str = "the process listening there is not a bucketeer store";

fn send(stream: &mut TcpStream, frame: &ClientFrame, end: Instant) -> Result<(), Failure> {
    let sent = stream.set_write_timeout(Some(left(end))).and_then(|()| stream.write_all(&frame.encode()));
    sent.map_err(|error| Failure::NotYet(broken(&error)))
}

fn hear(stream: &mut TcpStream, frames: &mut Frames, end: Instant) -> Result<ServerFrame, Failure> {
    let not_yet = |text: &str| Failure::NotYet(text.to_owned());
    let mut buffer = [0; MAX_HELLO_BYTES];
    loop {
        match frames.next(MAX_REFUSAL_BYTES) {
            Ok(Some(body)) => return ServerFrame::decode(&body).map_err(|_| not_yet(NO_STORE)),
            Ok(None) => {}
            Err(_) => return Err(not_yet(NO_STORE)),
        }
        let read = stream.set_read_timeout(Some(left(end))).and_then(|()| stream.read(&mut buffer));
        match read {
            Ok(0) => return Err(not_yet(CLOSED)),
            Ok(len) => frames.feed(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::NotYet(broken(&error))),
        }
    }
}

const CLOSED: &str = "what listens there closed the connection instead of an answer; is it a store of bucketeer?";

fn broken(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "what listens there does not answer".to_owned(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => CLOSED.to_owned(),
        _ => error.to_string(),
    }
}
