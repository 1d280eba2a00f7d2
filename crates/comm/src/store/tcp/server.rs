//! The store's server: its handle, and what it is opened with.

use super::secret::Secret;
use super::serve::{self, WAKER};
use super::server_state::{Rules, ServerState};
use crate::error::Fate;
use crate::lock;
use crate::store::{MAX_WORLD_SIZE, StoreError};
use bucketeer_types::GlobalRank;
use mio::{Poll, Waker};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest heartbeat, silence or time for a hello.
const LONGEST_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// What a store is opened with.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Number of ranks.
    pub world_size: u32,
    /// What ranks must have. Without one, whoever reaches the port can be a rank.
    pub secret: Option<Secret>,
    /// The rank whose process this is, if it is one's: the culprit when the store goes.
    pub holder: Option<GlobalRank>,
    /// A rank that has said nothing for so long says that it lives.
    pub heartbeat: Duration,
    /// A rank, or for ranks the store, of which nothing was heard for so long is lost.
    pub silence: Duration,
    /// Time to say who one is.
    pub hello_limit: Duration,
    /// Connections at a time that have not said who they are; with one more, the one that came first is dropped.
    pub max_strangers: usize,
}

impl ServerOptions {
    /// The usual for a world: no secret, a heartbeat of 5 s, 30 s of silence, 5 s for a hello, 64 strangers and two for
    /// each rank.
    #[must_use]
    pub fn new(world_size: u32) -> Self {
        Self {
            world_size,
            secret: None,
            holder: None,
            heartbeat: Duration::from_secs(5),
            silence: Duration::from_secs(30),
            hello_limit: Duration::from_secs(5),
            max_strangers: 64 + 2 * world_size as usize,
        }
    }
}

/// A store's server: one thread that serves all connections. Dropping it closes the store.
pub struct StoreServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// What the handle and the thread share.
pub(super) struct Shared {
    pub state: Mutex<State>,
    /// Ranks may have come or gone.
    pub changed: Condvar,
}

pub(super) struct State {
    pub server: ServerState,
    /// The store is to be closed, and how its holder goes.
    pub closing: Option<Fate>,
}

impl StoreServer {
    /// Opens a store that listens on this address alone; port 0 is any free one.
    ///
    /// # Errors
    /// [`StoreError::Open`], for an address in use too, or options that make no sense.
    pub fn open(address: SocketAddr, options: ServerOptions) -> Result<Self, StoreError> {
        let fail = |reason: String| StoreError::Open { address: address.to_string(), reason };
        check(&options).map_err(fail)?;
        let listener = TcpListener::bind(address).map_err(|error| fail(bind_reason(&error)))?;
        let fail_io = |error: std::io::Error| fail(error.to_string());
        listener.set_nonblocking(true).map_err(fail_io)?;
        let bound = listener.local_addr().map_err(fail_io)?;
        let poll = Poll::new().map_err(fail_io)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(fail_io)?;
        let tick = (options.heartbeat.min(options.hello_limit) / 4)
            .clamp(Duration::from_millis(5), Duration::from_millis(250));
        let server = ServerState::new(rules(options), bound.to_string());
        let shared = Arc::new(Shared { state: Mutex::new(State { server, closing: None }), changed: Condvar::new() });
        let serve = serve::Serve::new(poll, listener, shared.clone(), tick).map_err(fail_io)?;
        let thread = std::thread::Builder::new().name("bucketeer store".to_owned());
        let thread = thread.spawn(move || serve.run()).map_err(fail_io)?;
        Ok(Self { address: bound, shared, waker, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ranks that are there now, in order.
    #[must_use]
    pub fn here(&self) -> Vec<GlobalRank> {
        lock(&self.shared.state).server.membership.here()
    }

    /// Ranks that are gone, in order, and how.
    #[must_use]
    pub fn gone(&self) -> Vec<(GlobalRank, Fate)> {
        lock(&self.shared.state).server.membership.gone()
    }

    /// Who was not let in, and who sent what makes no sense.
    #[must_use]
    pub fn refused(&self) -> Vec<String> {
        lock(&self.shared.state).server.membership.refused()
    }

    /// Says how a rank went that has not come: whoever started its process knows. Others that wait for it are told.
    pub fn ended(&self, rank: GlobalRank, fate: Fate) {
        lock(&self.shared.state).server.ended(rank.0, fate);
        // Without it the thread looks at its next tick.
        let _ = self.waker.wake();
    }

    /// Waits until no rank is there any more; whether that was so in time.
    #[must_use]
    pub fn wait_until_left(&self, limit: Duration) -> bool {
        let start = Instant::now();
        let mut state = lock(&self.shared.state);
        loop {
            if state.server.membership.here().is_empty() {
                return true;
            }
            let waited = start.elapsed();
            if waited >= limit {
                return false;
            }
            let woken = self.shared.changed.wait_timeout(state, limit - waited);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Closes the store; ranks that are there are told, and how its holder went.
    pub fn close(mut self, fate: Fate) {
        self.stop(fate);
    }

    fn stop(&mut self, fate: Fate) {
        let Some(thread) = self.thread.take() else { return };
        lock(&self.shared.state).closing = Some(fate);
        let _ = self.waker.wake();
        let _ = thread.join();
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.stop(if std::thread::panicking() { Fate::Panicked } else { Fate::Left });
    }
}

fn check(options: &ServerOptions) -> Result<(), String> {
    let ServerOptions { world_size, heartbeat, silence, hello_limit, holder, .. } = options;
    if !(1..=MAX_WORLD_SIZE).contains(world_size) {
        return Err(format!("a world has 1 to {MAX_WORLD_SIZE} ranks, not {world_size}"));
    }
    if let Some(rank) = holder.filter(|rank| rank.0 >= *world_size) {
        return Err(format!("rank {} cannot hold it in a world of {world_size}", rank.0));
    }
    let limits = [heartbeat, silence, hello_limit];
    if limits.iter().any(|limit| limit.is_zero() || **limit > LONGEST_LIMIT) || *silence < *heartbeat * 2 {
        return Err("limits must be above zero and at most a day, and the silence two heartbeats at least".to_owned());
    }
    Ok(())
}

fn rules(options: ServerOptions) -> Rules {
    let ServerOptions { world_size, secret, holder, heartbeat, silence, hello_limit, max_strangers } = options;
    Rules { world_size, secret, holder, heartbeat, silence, hello_limit, max_strangers: max_strangers.max(1) }
}

fn bind_reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another process listens there; end it, or choose another port (BUCKETEER_STORE_PORT)".to_owned()
        }
        std::io::ErrorKind::AddrNotAvailable => "this machine does not have the address".to_owned(),
        std::io::ErrorKind::PermissionDenied => "this user may not listen there".to_owned(),
        _ => error.to_string(),
    }
}
