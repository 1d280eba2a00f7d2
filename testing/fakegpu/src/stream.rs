//! Streams: threads that do work in order. Events: points in it.

use crate::codes::ILLEGAL_ADDRESS;
use crate::fault::{self, InjectedFault};
use crate::log;
use crate::memory::{AddressSpace, Allocation};
use crate::module::Launch;
use crate::nccl::Item;
use crate::state::{epoch, hang, state};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a thread that waits looks whether a reset has ended its wait.
const LOOK: Duration = Duration::from_millis(5);

/// An address, and what it is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Memory of the stream's device.
    Device(usize),
    /// Page-locked memory.
    Pinned(usize),
}

/// What a stream does.
pub enum Work {
    Copy {
        to: Side,
        from: Side,
        bytes: usize,
    },
    /// Bytes that were read from pageable memory when the copy was asked for, as the driver stages them.
    Write {
        to: usize,
        content: Vec<u8>,
    },
    /// A copy to pageable memory, which its caller waits for.
    Read {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Fill {
        to: usize,
        value: u8,
        bytes: usize,
    },
    Launch(Launch),
    Nccl(Item),
    Record(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
}

impl Work {
    const fn is_order(&self) -> bool {
        matches!(self, Self::Record(..) | Self::Wait(..))
    }
}

struct Queue {
    work: VecDeque<(Work, Option<InjectedFault>)>,
    enqueued: u64,
    done: u64,
    closed: bool,
}

pub struct Stream {
    pub device: i32,
    /// How many streams were made before.
    pub number: u64,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Stream {
    /// A stream with its thread.
    pub fn start(device: i32, number: u64) -> Arc<Self> {
        let queue = Queue { work: VecDeque::new(), enqueued: 0, done: 0, closed: false };
        let stream = Arc::new(Self { device, number, queue: Mutex::new(queue), changed: Condvar::new() });
        let worker = stream.clone();
        std::thread::Builder::new()
            .name(format!("fakegpu stream {number}"))
            .spawn(move || worker.run())
            .expect("a thread can be started");
        stream
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work, with the fault of the call that this thread is in.
    pub fn enqueue(&self, work: Work) {
        self.enqueue_with(work, fault::take_of_call());
    }

    /// Adds work with a fault.
    pub fn enqueue_with(&self, work: Work, fault: Option<InjectedFault>) {
        let mut queue = self.lock();
        queue.work.push_back((work, fault));
        queue.enqueued += 1;
        self.changed.notify_all();
    }

    /// Waits for all work enqueued so far.
    pub fn wait(&self) {
        let mut queue = self.lock();
        let target = queue.enqueued;
        while queue.done < target {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn is_idle(&self) -> bool {
        let queue = self.lock();
        queue.done == queue.enqueued
    }

    /// Ends its thread, after all work.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        loop {
            let mut queue = self.lock();
            let (work, fault) = loop {
                match queue.work.pop_front() {
                    Some(next) => break next,
                    None if queue.closed => return,
                    None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(queue);
            self.step(work, fault);
            self.lock().done += 1;
            self.changed.notify_all();
        }
    }

    fn step(&self, work: Work, fault: Option<InjectedFault>) {
        if !work.is_order() {
            self.delay();
        }
        let lost = || state().contexts.get(&self.device).is_none_or(|context| context.lost.is_some());
        let work = match work {
            // Its faults are its communicator's, not the context's.
            Work::Nccl(item) => {
                let is_lost = lost();
                if let Err(text) = item.run(self, fault, is_lost) {
                    log::violation(&format!("stream {}: {text}", self.number));
                    state().lose(self.device, ILLEGAL_ADDRESS);
                }
                return;
            }
            work => work,
        };
        match fault {
            Some(InjectedFault::Hang) => hang(),
            Some(InjectedFault::Late(code)) => state().lose(self.device, code),
            Some(InjectedFault::Code(_) | InjectedFault::Skip | InjectedFault::Pending) | None => {}
        }
        if lost() && !work.is_order() {
            return;
        }
        if let Err(text) = self.perform(work) {
            log::violation(&format!("stream {}: {text}", self.number));
            state().lose(self.device, ILLEGAL_ADDRESS);
        }
    }

    fn delay(&self) {
        let delay = {
            let settings = &state().settings;
            if settings.delay_stream.is_none_or(|number| number == self.number) {
                settings.delay
            } else {
                Duration::ZERO
            }
        };
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }

    fn perform(&self, work: Work) -> Result<(), String> {
        match work {
            Work::Copy { to, from, bytes } => {
                // The allocations are held while the bytes move, whoever frees them meanwhile.
                let _to = self.hold("copy to", to, bytes)?;
                let _from = self.hold("copy from", from, bytes)?;
                // SAFETY: both ranges are allocated, as found above, and held.
                unsafe { std::ptr::copy(address(from) as *const u8, address(to) as *mut u8, bytes) };
            }
            Work::Write { to, content } => {
                let _to = self.hold("copy to", Side::Device(to), content.len())?;
                // SAFETY: as above.
                unsafe { std::ptr::copy(content.as_ptr(), to as *mut u8, content.len()) };
            }
            Work::Read { to, from, bytes } => {
                let _from = self.hold("copy from", Side::Device(from), bytes)?;
                // SAFETY: as above; the caller waits, so its memory is there.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            }
            Work::Fill { to, value, bytes } => {
                let _to = self.hold("fill of", Side::Device(to), bytes)?;
                // SAFETY: as above.
                unsafe { (to as *mut u8).write_bytes(value, bytes) };
            }
            Work::Launch(launch) => return launch.run(self.device),
            Work::Nccl(_) => unreachable!("it has run"),
            Work::Record(event, generation) => event.reach(generation),
            Work::Wait(event, generation) => event.wait_for(generation),
        }
        Ok(())
    }

    /// The allocation that all of a range is in.
    pub fn hold(&self, what: &str, side: Side, bytes: usize) -> Result<Allocation, String> {
        let state = state();
        let found = state.memory.find(address(side), bytes).map_err(|text| format!("{what} {text}"))?;
        let place =
            if matches!(side, Side::Pinned(_)) { AddressSpace::Host } else { AddressSpace::Device(self.device) };
        if found.place == place { Ok(found.clone()) } else { Err(format!("{what} {found}, which is not of {place:?}")) }
    }
}

const fn address(side: Side) -> usize {
    match side {
        Side::Device(at) | Side::Pinned(at) => at,
    }
}

#[derive(Default)]
struct Reached {
    /// How often it was recorded.
    recorded: u64,
    /// The latest record that the work has come to, and when.
    reached: u64,
    at: Option<Instant>,
}

pub struct Event {
    pub timing: bool,
    reached: Mutex<Reached>,
    changed: Condvar,
}

impl Event {
    pub fn new(timing: bool) -> Self {
        Self { timing, reached: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Reached> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a record.
    pub fn record(&self) -> u64 {
        let mut reached = self.lock();
        reached.recorded += 1;
        reached.recorded
    }

    /// The record that a wait from now on is for.
    pub fn recorded(&self) -> u64 {
        self.lock().recorded
    }

    fn reach(&self, generation: u64) {
        let mut reached = self.lock();
        if generation > reached.reached {
            *reached = Reached { reached: generation, at: Some(Instant::now()), ..*reached };
        }
        self.changed.notify_all();
    }

    /// Waits for a record, or a reset.
    pub fn wait_for(&self, generation: u64) {
        let start = epoch();
        let mut reached = self.lock();
        while reached.reached < generation && epoch() == start {
            reached = self.changed.wait_timeout(reached, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn is_done(&self) -> bool {
        let reached = self.lock();
        reached.reached >= reached.recorded
    }

    /// When the latest record was reached.
    pub fn time(&self) -> Option<Instant> {
        self.lock().at
    }
}
