//! What this rank launched: work on the device's stream.

use super::channel::{Cause, Channel};
use super::verdict::{GroupFailure, LaunchSite, error_at};
use crate::buffer::{ReadGuard, WriteGuard};
use crate::error::CommError;
use crate::lock;
use crate::ticket::Pending;
use bucketeer_cuda::{CudaError, DeviceBuffer, Event, PinnedBuffer};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Memory of the host and of the device that one call of host buffers goes by.
pub struct Scratch {
    pub device: DeviceBuffer,
    pub pinned: PinnedBuffer,
}

/// What a call of host buffers holds of them: nobody else may touch them in the meantime.
pub enum Held {
    Read(ReadGuard),
    Write(WriteGuard),
}

/// What came back for a buffer of the host: the bytes of a scratch, and where they go in what is held.
pub struct Return {
    pub scratch: usize,
    pub bytes: usize,
    pub held: usize,
    pub to: Range<usize>,
}

/// A launch on its way.
pub struct Flight {
    pub places: Vec<LaunchSite>,
    /// The numbers of its entries in the flight record.
    pub entries: Vec<u64>,
    /// Over when all of it is done.
    pub event: Event,
    pub scratches: Vec<Scratch>,
    pub held: Vec<Held>,
    pub returns: Vec<Return>,
}

impl Flight {
    /// Copies what came back to where it goes.
    fn land(&mut self) -> Result<(), CudaError> {
        for Return { scratch, bytes, held, to } in &self.returns {
            let from = &self.scratches[*scratch].pinned.bytes()?[..*bytes];
            if let Held::Write(guard) = &mut self.held[*held] {
                guard[to.clone()].copy_from_slice(from);
            }
        }
        Ok(())
    }
}

enum Phase {
    Flying(Box<Flight>),
    Ended(Result<(), CommError>),
}

/// One launch, on its way or ended.
pub struct Launched {
    channel: Arc<Channel>,
    pub at: Instant,
    pub timeout: Duration,
    number: Option<u64>,
    phase: Mutex<Phase>,
    changed: Condvar,
}

/// How much longer than the grace a wait holds on after its time is over. Then it answers without a verdict, which there
/// would be if the watchdog were not held up itself.
const BACKSTOP: Duration = Duration::from_secs(10);

/// How long after something went wrong there is a verdict at the latest, unless the watchdog is held up itself.
pub fn backstop(grace: Duration) -> Duration {
    grace.saturating_mul(5).saturating_add(BACKSTOP)
}

impl Launched {
    pub fn new(channel: Arc<Channel>, flight: Flight, timeout: Duration) -> Self {
        let (at, number) = (Instant::now(), flight.places.first().map(|place| place.seq));
        let (phase, changed) = (Mutex::new(Phase::Flying(Box::new(flight))), Condvar::new());
        Self { channel, at, timeout, number, phase, changed }
    }

    /// Whether the device is done with it.
    ///
    /// # Errors
    /// When the device fails.
    pub fn is_over(&self) -> Result<bool, CudaError> {
        match &*lock(&self.phase) {
            Phase::Flying(flight) => flight.event.is_done(),
            Phase::Ended(_) => Ok(true),
        }
    }

    /// Its first launch and how long it has been on its way, when that is too long.
    pub fn late(&self, now: Instant) -> Option<(LaunchSite, Duration)> {
        let phase = lock(&self.phase);
        let Phase::Flying(flight) = &*phase else { return None };
        let waited = now.saturating_duration_since(self.at);
        if waited < self.timeout { None } else { Some((flight.places.first()?.clone(), waited)) }
    }

    /// What is on its way.
    pub fn places(&self) -> Vec<LaunchSite> {
        match &*lock(&self.phase) {
            Phase::Flying(flight) => flight.places.clone(),
            _ => Vec::new(),
        }
    }

    /// Ends it when the device is done with it. Returns it, for what later ones can use of it.
    pub fn complete(&self) -> Option<Box<Flight>> {
        self.finish(|channel, flight| match flight.land() {
            Ok(()) => Ok(()),
            Err(error) => Err(error_at(&channel.own_failure(&error), &channel.name(), &flight.places[0])),
        })
    }

    /// Ends it for a verdict on its group. What the device does with its scratch goes on without harm.
    pub fn fail(&self, verdict: &GroupFailure) {
        drop(self.finish(|channel, flight| {
            let places = &flight.places;
            let own = places.iter().find(|place| verdict.place() == Some(place)).or_else(|| places.first());
            Err(own
                .map_or_else(|| verdict.describe(&channel.name()), |place| error_at(verdict, &channel.name(), place)))
        }));
    }

    /// Notes in the flight record that it is about to [fail](Self::fail).
    pub fn note_failure(&self) {
        if let Phase::Flying(flight) = &*lock(&self.phase) {
            self.channel.recorded(&flight.entries, false);
        }
    }

    fn finish(&self, result: impl FnOnce(&Channel, &mut Flight) -> Result<(), CommError>) -> Option<Box<Flight>> {
        let mut phase = lock(&self.phase);
        let Phase::Flying(flight) = &mut *phase else { return None };
        let result = result(&self.channel, flight);
        self.channel.recorded(&flight.entries, result.is_ok());
        // Buffers are free before anyone sees the end.
        flight.held.clear();
        let flight = match std::mem::replace(&mut *phase, Phase::Ended(result)) {
            Phase::Flying(flight) => Some(flight),
            Phase::Ended(_) => None,
        };
        drop(phase);
        self.changed.notify_all();
        flight
    }

    /// What is left to say when even the watchdog is held up.
    fn given_up(&self, waited: Duration) -> CommError {
        let reason = format!("it is not done after {waited:?}, and what the watchdog asks for takes as long");
        // Held up by the store or the driver: it may be anyone's fault.
        let verdict = GroupFailure::Failed { rank: self.channel.own(), reason, elsewhere: true };
        match self.places().first() {
            Some(place) => error_at(&verdict, &self.channel.name(), place),
            None => verdict.describe(&self.channel.name()),
        }
    }
}

impl Pending for Arc<Launched> {
    fn wait(&self, start: Instant, timeout: Duration) -> Result<(), CommError> {
        let mut pause = Duration::from_micros(5);
        let mut raised = false;
        loop {
            self.channel.reap();
            let phase = lock(&self.phase);
            let place = match &*phase {
                Phase::Ended(result) => return result.clone(),
                Phase::Flying(flight) => flight.places.first(),
            };
            let waited = start.elapsed();
            if waited >= timeout {
                if !std::mem::replace(&mut raised, true)
                    && let Some(place) = place.cloned()
                {
                    drop(phase);
                    self.channel.raise(Cause::Late { place, waited });
                    continue;
                }
                if waited >= timeout.saturating_add(backstop(self.channel.grace())) {
                    drop(phase);
                    return Err(self.given_up(waited));
                }
            }
            drop(self.changed.wait_timeout(phase, pause).unwrap_or_else(PoisonError::into_inner));
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    fn is_done(&self) -> bool {
        self.channel.reap();
        matches!(*lock(&self.phase), Phase::Ended(_))
    }

    fn sequence_number(&self) -> Option<u64> {
        self.number
    }
}
