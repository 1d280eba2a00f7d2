//! Threads that move tiles, so that communication goes on while ranks compute.
//!
//! A rank that waits for a call helps to move it. Together at most as many threads move as there are processors: a tile
//! whose mover was put aside by the system would hold up the whole call.

use super::round::Round;
use crate::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

struct State {
    /// Rounds that may have tiles left.
    queue: VecDeque<Arc<Round>>,
    /// Threads that move tiles now, waiting ranks included.
    movers: usize,
    /// Threads of the pool.
    workers: usize,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    most: usize,
}

/// The movers of one world. Its threads start with the first round that is large enough, and end with the pool.
pub struct Pool(Arc<Shared>);

impl Pool {
    /// A pool where at most `most` threads move at once.
    pub fn new(most: usize) -> Self {
        let state = State { queue: VecDeque::new(), movers: 0, workers: 0, closed: false };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), most: most.max(1) }))
    }

    /// Has a round moved by the pool; by the caller when the system gives no threads.
    pub fn push(&self, round: &Arc<Round>) {
        let mut state = lock(&self.0.state);
        while state.workers < self.0.most {
            let shared = self.0.clone();
            let name = format!("mover-{}", state.workers);
            if thread::Builder::new().name(name).spawn(move || shared.work()).is_err() {
                break;
            }
            state.workers += 1;
        }
        if state.workers == 0 {
            drop(state);
            round.move_tiles(None);
            return;
        }
        state.queue.push_back(round.clone());
        drop(state);
        self.0.changed.notify_all();
    }

    /// Moves tiles of a round on the calling thread until the deadline, unless enough threads move already.
    pub fn help(&self, round: &Round, deadline: Option<Instant>) {
        let mut state = lock(&self.0.state);
        if state.movers >= self.0.most {
            return;
        }
        state.movers += 1;
        drop(state);
        round.move_tiles(deadline);
        let mut state = lock(&self.0.state);
        state.movers -= 1;
        let more = !state.queue.is_empty();
        drop(state);
        if more {
            self.0.changed.notify_one();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.closed = true;
        state.queue.clear();
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// The life of a thread of the pool.
    fn work(&self) {
        let mut state = lock(&self.state);
        while !state.closed {
            while state.queue.front().is_some_and(|round| round.is_claimed()) {
                state.queue.pop_front();
            }
            let front = if state.movers < self.most { state.queue.front().cloned() } else { None };
            let Some(round) = front else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.movers += 1;
            drop(state);
            round.move_tiles(None);
            drop(round);
            state = lock(&self.state);
            state.movers -= 1;
        }
    }
}
