//! Collectives of device memory, by a backend for memory of the host: a thread for each group.

use super::super::{Calls, RunError};
use super::fault;
use crate::lock;
use bucketeer::program::{Program, StepId, StepKind, Stream as StreamOf};
use bucketeer_comm::{Backend, Buffer};
use bucketeer_cuda::{Context, DeviceBuffer, Event, Stream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Scope;

/// A collective to carry.
pub(super) struct Job<'a> {
    pub step: StepId,
    pub node: &'a str,
    pub context: Context,
    /// What its stream waits for.
    pub before: Vec<Arc<Event>>,
    /// What is sent: on the device, and where it goes on the host.
    pub sends: Vec<(DeviceBuffer, Buffer)>,
    pub receives: Vec<(DeviceBuffer, Buffer)>,
    pub calls: Calls,
    /// Recorded when all has been enqueued that it does.
    pub done: Option<Arc<Event>>,
}

impl Job<'_> {
    /// Carries it. What came back may still be on its way to the device, in the stream's order.
    pub fn run(self, stream: &Stream, backend: &dyn Backend) -> Result<(), RunError> {
        let cuda = |error| fault(self.node, &error);
        let held = |error| RunError::buffer(format!("`{}`", self.node), error);
        for event in &self.before {
            stream.wait(event).map_err(cuda)?;
        }
        for (from, to) in &self.sends {
            stream.download(from, 0, &mut to.write().map_err(held)?).map_err(cuda)?;
        }
        self.calls.prepare(self.node)?;
        if let Some(work) = self.calls.start(self.node, backend)? {
            work.wait(None).map_err(|error| RunError::comm(self.node, error))?;
        }
        for (to, from) in &self.receives {
            let mut staging = self.context.alloc_pinned(to.len()).map_err(cuda)?;
            staging.bytes().map_err(cuda)?.copy_from_slice(&from.read().map_err(held)?);
            stream.copy_to_device(&staging, 0..to.len(), to, 0).map_err(cuda)?;
        }
        self.done.as_ref().map_or(Ok(()), |event| stream.record(event)).map_err(cuda)
    }
}

/// How far collectives are.
struct State {
    /// By step: whether all is enqueued that it does.
    recorded: Vec<bool>,
    failed: Option<RunError>,
}

/// The collectives of one run.
pub(super) struct Comm {
    state: Mutex<State>,
    changed: Condvar,
}

/// To a group's thread, which ends when this is dropped.
pub(super) struct Channel<'a>(Sender<Job<'a>>);

impl<'a> Channel<'a> {
    /// Jobs are carried in this order.
    pub fn send(&self, job: Job<'a>) {
        // A thread that is gone has said why in the state.
        let _ = self.0.send(job);
    }
}

impl Comm {
    pub fn new(steps: usize) -> Self {
        Self { state: Mutex::new(State { recorded: vec![false; steps], failed: None }), changed: Condvar::new() }
    }

    /// Starts the thread of a group.
    pub fn worker<'scope, 'env, 'a: 'scope>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        stream: &'env Stream,
        backend: &'env dyn Backend,
    ) -> Channel<'a> {
        let (sender, receiver) = channel::<Job<'a>>();
        scope.spawn(move || {
            for job in receiver {
                let step = job.step;
                let done = job.run(stream, backend);
                let mut state = lock(&self.state);
                let failed = done.is_err();
                match done {
                    Ok(()) => state.recorded[step.0 as usize] = true,
                    Err(error) => drop(state.failed.get_or_insert(error)),
                }
                drop(state);
                self.changed.notify_all();
                if failed {
                    return;
                }
            }
        });
        Channel(sender)
    }

    /// Waits until all is enqueued that a collective does.
    pub fn recorded(&self, step: StepId) -> Result<(), RunError> {
        let mut state = lock(&self.state);
        loop {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.recorded[step.0 as usize] {
                return Ok(());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for all collectives on streams of their own.
    pub fn all_recorded(&self, program: &Program) -> Result<(), RunError> {
        let on_comm = |step: &bucketeer::program::Step| {
            matches!(step.stream, StreamOf::Comm(_)) && matches!(step.kind, StepKind::Collective(_))
        };
        let steps = (0u32..).zip(&program.steps).filter(|(_, step)| on_comm(step));
        steps.map(|(index, _)| StepId(index)).try_for_each(|step| self.recorded(step))
    }
}
