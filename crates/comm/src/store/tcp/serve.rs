//! The thread of a store's server: moves bytes between sockets and the server's state. It never waits for one connection
//! alone.

use super::peer::PeerId;
use super::server::Shared;
use super::server_state::ServerState;
use crate::error::Fate;
use crate::lock;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::{BTreeSet, HashMap};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LISTENER: Token = Token(usize::MAX);
pub(super) const WAKER: Token = Token(usize::MAX - 1);

/// Events that are looked at together.
const EVENTS: usize = 4096;

/// Connections that are accepted before others are served again.
const ACCEPTS: usize = 64;

/// Bytes that are read from one connection before others are served again.
const READ_BYTES: usize = 1 << 16;

/// Time to send what is left when the store is closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

struct Socket {
    stream: TcpStream,
    /// It may have bytes to be read; so until it says that it has none.
    readable: bool,
    /// Nothing more is sent.
    shut: bool,
}

pub(super) struct Serve {
    poll: Poll,
    listener: TcpListener,
    /// There may be connections to be accepted.
    accepting: bool,
    sockets: HashMap<PeerId, Socket>,
    /// Sockets to look at.
    ready: BTreeSet<PeerId>,
    shared: Arc<Shared>,
    tick: Duration,
    buffer: Vec<u8>,
}

impl Serve {
    pub fn new(
        poll: Poll,
        listener: std::net::TcpListener,
        shared: Arc<Shared>,
        tick: Duration,
    ) -> std::io::Result<Self> {
        let mut listener = TcpListener::from_std(listener);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            poll,
            listener,
            accepting: true,
            sockets: HashMap::new(),
            ready: BTreeSet::new(),
            shared,
            tick,
            buffer: vec![0; READ_BYTES],
        })
    }

    pub fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut next_tick = Instant::now() + self.tick;
        loop {
            let idle = self.ready.is_empty() && !self.accepting;
            let timeout = if idle { next_tick.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            match self.poll.poll(&mut events, Some(timeout)) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Without events there is nothing to serve; ranks notice that their connections end.
                Err(_) => return,
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accepting = true,
                    WAKER => {}
                    Token(id) => self.note(id, event.is_readable() || event.is_read_closed() || event.is_error()),
                }
            }
            let shared = self.shared.clone();
            let mut state = lock(&shared.state);
            let now = Instant::now();
            let late = now >= next_tick;
            self.accept(&mut state.server, now, late);
            self.turn(&mut state.server, now);
            if late {
                // After what came was heard: this thread may have been held up itself.
                state.server.tick(now);
                self.settle_touched(&mut state.server, now);
                next_tick = now + self.tick;
            }
            if let Some(fate) = state.closing {
                return self.finish(&mut state.server, fate);
            }
            drop(state);
            shared.changed.notify_all();
        }
    }

    fn note(&mut self, id: PeerId, readable: bool) {
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.readable |= readable;
            self.ready.insert(id);
        }
    }

    /// Accepts who waits. Where the process has no descriptors left, a stranger has to go, and others wait for a tick.
    fn accept(&mut self, server: &mut ServerState, now: Instant, late: bool) {
        if !self.accepting && !late {
            return;
        }
        self.accepting = true;
        for _ in 0..ACCEPTS {
            match self.listener.accept() {
                Ok((stream, from)) => self.welcome(server, stream, from.ip().to_canonical().to_string(), now),
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    self.accepting = false;
                    if error.kind() != ErrorKind::WouldBlock {
                        server.evict();
                    }
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, server: &mut ServerState, mut stream: TcpStream, ip: String, now: Instant) {
        let _ = stream.set_nodelay(true);
        let id = server.open(ip, now);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut stream, Token(id), interest).is_err() {
            return server.closed(id);
        }
        self.sockets.insert(id, Socket { stream, readable: true, shut: false });
        self.ready.insert(id);
    }

    /// Reads once from each socket that has something, and sends what there is to send.
    fn turn(&mut self, server: &mut ServerState, now: Instant) {
        let ids = std::mem::take(&mut self.ready);
        for &id in &ids {
            self.read(server, id, now);
        }
        for &id in &ids {
            self.settle(server, id, now);
        }
        self.settle_touched(server, now);
    }

    /// Looks at all that have news. A connection that turns out to be broken is news to others.
    fn settle_touched(&mut self, server: &mut ServerState, now: Instant) {
        loop {
            let ids = server.take_touched();
            if ids.is_empty() {
                return;
            }
            for id in ids {
                self.settle(server, id, now);
            }
        }
    }

    fn read(&mut self, server: &mut ServerState, id: PeerId, now: Instant) {
        if server.peer(id).is_some_and(|peer| peer.paused) {
            server.proceed(id, now);
        }
        let Some(socket) = self.sockets.get_mut(&id).filter(|socket| socket.readable) else { return };
        if server.peer(id).is_none_or(|peer| peer.is_paused()) {
            return;
        }
        match socket.stream.read(&mut self.buffer) {
            Ok(0) => server.closed(id),
            Ok(len) => server.hear(id, &self.buffer[..len], now),
            Err(error) if error.kind() == ErrorKind::WouldBlock => socket.readable = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => server.closed(id),
        }
    }

    /// Sends what the socket takes, and looks at what is to become of it.
    fn settle(&mut self, server: &mut ServerState, id: PeerId, now: Instant) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let Some(peer) = server.peer(id) else { return self.forget(id) };
        while !peer.out.is_empty() {
            match socket.stream.write(peer.out.as_slices().0) {
                Ok(len) => {
                    // Who is not read from is heard by what it takes.
                    if peer.is_paused() {
                        peer.heard = now;
                    }
                    peer.out.drain(..len);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    server.closed(id);
                    return self.forget(id);
                }
            }
        }
        if peer.out.is_empty() {
            peer.out.shrink_to(READ_BYTES);
            if peer.is_leaving() && !socket.shut {
                socket.shut = true;
                let _ = socket.stream.shutdown(Shutdown::Write);
            }
        }
        if (socket.readable || peer.paused) && !peer.is_paused() {
            self.ready.insert(id);
        }
    }

    fn forget(&mut self, id: PeerId) {
        if let Some(mut socket) = self.sockets.remove(&id) {
            let _ = self.poll.registry().deregister(&mut socket.stream);
        }
    }

    /// Sends what is left, and waits for ranks to close their ends, so that they read it.
    fn finish(mut self, server: &mut ServerState, fate: Fate) {
        let now = Instant::now();
        server.close(fate, now);
        let end = now + CLOSE_LIMIT;
        let mut events = Events::with_capacity(EVENTS);
        loop {
            self.turn(server, now);
            let left = end.saturating_duration_since(Instant::now());
            if self.sockets.is_empty() || left.is_zero() {
                return;
            }
            let timeout = if self.ready.is_empty() { left } else { Duration::ZERO };
            if self.poll.poll(&mut events, Some(timeout)).is_err_and(|error| error.kind() != ErrorKind::Interrupted) {
                return;
            }
            for event in &events {
                self.note(event.token().0, true);
            }
        }
    }
}
