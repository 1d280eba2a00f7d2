//! Resources that the device may still work with when their owner drops them.

use crate::lock;
use crate::result::{self, CallError, DeviceMemory, HostMemory};
use crate::sys::EventFlags;
use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long is waited for work in flight, so that a device that hangs does not hang the host.
const MOST_WAIT: Duration = Duration::from_secs(2);

/// The streams that were given work on a resource.
#[derive(Default)]
pub struct Uses(Mutex<Vec<Arc<result::Stream>>>);

impl Uses {
    /// To be called before the work is enqueued, so that no drop on another thread comes between.
    pub fn add(&self, stream: &Arc<result::Stream>) {
        let mut streams = lock(&self.0);
        if !streams.iter().any(|known| Arc::ptr_eq(known, stream)) {
            streams.push(stream.clone());
        }
    }

    /// All of them, of a resource that is being dropped.
    pub fn take(&mut self) -> Vec<Arc<result::Stream>> {
        std::mem::take(self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// What is freed by its drop.
#[allow(dead_code, reason = "held for their drop")]
pub enum Resource {
    Device(DeviceMemory),
    Host(HostMemory),
    Module(result::Module),
    Other(Box<dyn Any + Send + Sync>),
}

struct Retired {
    /// Over when the work is that was in flight at the drop.
    events: Vec<result::Event>,
    #[expect(dead_code, reason = "held for its drop")]
    resource: Resource,
}

/// The resources of a context that wait to be freed.
#[derive(Default)]
pub struct Retirement(Mutex<Vec<Retired>>);

impl Retirement {
    /// Frees a resource as soon as the work is over that the streams hold now.
    pub fn retire(&self, streams: &[Arc<result::Stream>], resource: Resource) {
        let events = streams.iter().map(|stream| {
            let event = result::Event::new(stream.context(), EventFlags::DISABLE_TIMING)?;
            stream.record(&event).map(|()| event)
        });
        match events.collect() {
            Ok(events) => {
                lock(&self.0).push(Retired { events, resource });
                self.collect();
            }
            // On a context that is lost nothing is in flight. Else nobody can tell when the work ends: the memory stays
            // taken.
            Err(CallError { code, .. }) if code.is_sticky() => drop(resource),
            Err(_) => std::mem::forget(resource),
        }
    }

    /// Frees what has become free.
    pub fn collect(&self) {
        let done = {
            let mut retired = lock(&self.0);
            let (done, waiting) = retired.drain(..).partition(Retired::is_over);
            *retired = waiting;
            done
        };
        let _: Vec<Retired> = done; // dropped without the lock
    }

    /// Waits a while for all the rest; whether there was any.
    pub fn settle(&self) -> bool {
        let start = Instant::now();
        let any = self.waiting() > 0;
        while self.waiting() > 0 && start.elapsed() < MOST_WAIT {
            self.collect();
            std::thread::sleep(Duration::from_micros(50));
        }
        any
    }

    /// Waits a while for all the rest, then leaves it allocated.
    pub fn finish(&self) {
        self.settle();
        std::mem::take(&mut *lock(&self.0)).into_iter().for_each(std::mem::forget);
    }

    /// Number of resources that wait.
    pub fn waiting(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Retired {
    /// Whether no work is in flight. What cannot be told counts as in flight.
    fn is_over(&self) -> bool {
        self.events.iter().all(|event| match event.is_done() {
            Ok(done) => done,
            Err(error) => error.code.is_sticky(),
        })
    }
}
