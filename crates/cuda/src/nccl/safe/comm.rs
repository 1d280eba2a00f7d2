//! Communicators: their state, and their ends.

use super::{Group, Nccl, group};
use crate::lock;
use crate::nccl::NcclError;
use crate::nccl::result::{self, Progress};
use crate::{Context, DeviceBuffer, Stream};
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// What an error of work that was enqueued before is said to be of.
const EARLIER: &str = "an earlier call";

/// One rank's handle on a group of ranks. Clones are the same one; any thread may use it.
///
/// All ranks make the same calls in the same order. Calls on several streams run in the order of the calls.
#[derive(Clone)]
pub struct Comm(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) nccl: Nccl,
    pub(super) context: Context,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) timeout: Duration,
    pub(super) state: Mutex<State>,
}

/// What the lock guards. No wait for another rank holds it.
pub(super) struct State {
    /// None once it is closed or aborted.
    comm: Option<result::Comm>,
    /// The thread whose open group has calls of it.
    grouped: Option<ThreadId>,
    /// To be aborted at the group's end.
    doomed: bool,
    /// Buffers of calls that NCCL may not have launched yet.
    held: Vec<DeviceBuffer>,
    /// What is registered, with its memory.
    pub(super) registered: Vec<(u64, DeviceBuffer)>,
    /// Streams with calls.
    streams: Vec<Stream>,
}

impl State {
    /// Whether all streams with calls are idle.
    pub(super) fn is_idle(&self) -> Result<bool, NcclError> {
        Ok(self.streams.iter().try_fold(true, |idle, stream| stream.is_idle().map(|now| idle & now))?)
    }
}

impl Inner {
    pub(super) fn new(
        nccl: &Nccl,
        context: &Context,
        (rank, size): (u32, u32),
        timeout: Duration,
        comm: result::Comm,
    ) -> Self {
        let state = State {
            comm: Some(comm),
            grouped: None,
            doomed: false,
            held: Vec::new(),
            registered: Vec::new(),
            streams: Vec::new(),
        };
        Self { nccl: nccl.clone(), context: context.clone(), rank, size, timeout, state: Mutex::new(state) }
    }

    /// Calls with the handle, when there is one and no group of another thread has it.
    pub(super) fn with<T>(
        &self,
        call: &'static str,
        body: impl FnOnce(&result::Comm, &mut State) -> Result<T, NcclError>,
    ) -> Result<T, NcclError> {
        self.context.make_current()?;
        let mut state = lock(&self.state);
        let state = &mut *state;
        if state.grouped.is_some_and(|owner| owner != std::thread::current().id()) {
            return Err(NcclError::invalid(
                call,
                "a group of another thread has calls of this communicator; end it first",
            ));
        }
        let comm = if state.doomed { None } else { state.comm.take() };
        let Some(comm) = comm else { return Err(NcclError::Closed { call, rank: self.rank, size: self.size }) };
        let result = body(&comm, state);
        state.comm = Some(comm);
        result
    }

    /// Waits until NCCL has launched all calls so far; they need not have ended.
    pub(super) fn settle(&self, call: &'static str) -> Result<(), NcclError> {
        self.settle_as(call, call)
    }

    /// The same, where an error is said to be of `of`.
    fn settle_as(&self, call: &'static str, of: &'static str) -> Result<(), NcclError> {
        wait(self, call, || {
            self.with(call, |comm, state| {
                let progress = comm.progress(of)?;
                if progress == Progress::Done && state.grouped.is_none() {
                    state.held.clear();
                }
                Ok((progress == Progress::Done).then_some(()))
            })
        })
    }

    /// Enqueues a call that uses these buffers. The arguments are checked by the caller.
    pub(super) fn launch(
        self: &Arc<Self>,
        call: &'static str,
        stream: &Stream,
        buffers: &[&DeviceBuffer],
        enqueue: impl FnOnce(&result::Comm) -> Result<Progress, NcclError>,
    ) -> Result<(), NcclError> {
        let in_group = group::is_open();
        if !in_group {
            self.settle_as(call, EARLIER)?;
        }
        let progress = self.with(call, |comm, state| {
            if in_group && comm.progress(EARLIER)? == Progress::Pending {
                return Err(NcclError::invalid(call, "NCCL is still at the call before, which took too long; abort"));
            }
            buffers.iter().for_each(|buffer| buffer.used_on(stream));
            if !state.streams.iter().any(|known| known.as_raw() == stream.as_raw()) {
                state.streams.push(stream.clone());
            }
            // Held before the call: what it does with an error is not known.
            let before = state.held.len();
            state.held.extend(buffers.iter().map(|buffer| (*buffer).clone()));
            if in_group && state.grouped.is_none() {
                state.grouped = Some(std::thread::current().id());
                group::join(self);
            }
            let progress = enqueue(comm)?;
            if !in_group && progress == Progress::Done {
                state.held.truncate(before);
            }
            Ok(progress)
        })?;
        if !in_group && progress == Progress::Pending { self.settle(call) } else { Ok(()) }
    }

    /// After the end of the group that it was in.
    pub(super) fn ungroup(&self) {
        let doomed = {
            let mut state = lock(&self.state);
            state.grouped = None;
            if std::mem::take(&mut state.doomed) { state.comm.take() } else { None }
        };
        if let Some(comm) = doomed {
            let _ = self.context.make_current();
            drop(comm);
            lock(&self.state).held.clear();
        }
    }

    /// Takes the handle for good; from a group it is taken at the group's end.
    fn take(&self) -> Option<result::Comm> {
        let mut state = lock(&self.state);
        if state.grouped.is_some() {
            state.doomed = true;
            return None;
        }
        state.streams.clear();
        state.comm.take()
    }

    /// Frees what calls in flight needed, when there are none any more.
    fn clear(&self) {
        let mut state = lock(&self.state);
        let (held, registered) = (std::mem::take(&mut state.held), std::mem::take(&mut state.registered));
        drop(state);
        drop((held, registered));
    }
}

/// Asks until there is an answer, for as long as the communicator's timeout.
pub(super) fn wait<T>(
    inner: &Inner,
    call: &'static str,
    mut ask: impl FnMut() -> Result<Option<T>, NcclError>,
) -> Result<T, NcclError> {
    let &Inner { rank, size, timeout, .. } = inner;
    wait_for((rank, size), timeout, call, &mut ask)
}

pub(super) fn wait_for<T>(
    (rank, size): (u32, u32),
    timeout: Duration,
    call: &'static str,
    ask: &mut dyn FnMut() -> Result<Option<T>, NcclError>,
) -> Result<T, NcclError> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(5);
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(NcclError::Timeout { call, rank, size, timeout });
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

impl Comm {
    /// This rank, counted from 0 within the communicator.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.0.size
    }

    /// The context that its buffers and streams are of.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The library.
    #[must_use]
    pub fn nccl(&self) -> &Nccl {
        &self.0.nccl
    }

    /// The `ncclComm_t`, for other libraries; none when it is closed. Valid until it is closed, aborted or dropped.
    #[must_use]
    pub fn as_raw(&self) -> Option<*mut c_void> {
        lock(&self.0.state).comm.as_ref().map(|comm| comm.raw().0)
    }

    /// Size, rank and device ordinal as NCCL has them.
    ///
    /// # Errors
    /// When it is closed, or NCCL does not answer.
    pub fn shape(&self) -> Result<(u32, u32, u32), NcclError> {
        self.0.with("Comm::shape", |comm, _| Ok(comm.shape()?))
    }

    /// Whether work that was enqueued has failed; does not wait. For watchdogs: after an error nothing on this
    /// communicator ends by itself, and it is to be [aborted](Self::abort).
    ///
    /// # Errors
    /// The first error of the work; when it is closed.
    pub fn check(&self) -> Result<(), NcclError> {
        self.context().make_current()?;
        let state = lock(&self.0.state);
        let (rank, size) = (self.rank(), self.size());
        let comm = state.comm.as_ref().ok_or(NcclError::Closed { call: "Comm::check", rank, size })?;
        Ok(comm.progress(EARLIER).map(drop)?)
    }

    /// Whether all work enqueued so far has ended; does not wait.
    ///
    /// # Errors
    /// The first error of the work; when it is closed.
    pub fn is_idle(&self) -> Result<bool, NcclError> {
        self.check()?;
        lock(&self.0.state).is_idle()
    }

    /// Ends all work in order, then the communicator. All ranks close; the call waits for the others' part of the work,
    /// at most for the timeout, then aborts.
    ///
    /// # Errors
    /// The first error of the work, a timeout, a group that is open; when it is closed already.
    pub fn close(&self) -> Result<(), NcclError> {
        const CALL: &str = "Comm::close";
        let inner = &self.0;
        Group::expect_none(CALL)?;
        let ended = self.is_idle_in_time(CALL).and_then(|()| {
            inner.with(CALL, |comm, _| Ok(comm.finalize()?))?;
            wait(inner, CALL, || inner.with(CALL, |comm, _| Ok((comm.progress(CALL)? == Progress::Done).then_some(()))))
        });
        if matches!(ended, Err(NcclError::Closed { .. } | NcclError::Invalid { .. })) {
            return ended;
        }
        let Some(comm) = inner.take() else { return ended };
        let closed = if ended.is_ok() { comm.destroy() } else { comm.abort() };
        inner.clear();
        ended.and(closed.map_err(Into::into))
    }

    /// Waits for the streams by asking, so that a `finalize` that would wait without end has nothing to wait for.
    fn is_idle_in_time(&self, call: &'static str) -> Result<(), NcclError> {
        wait(&self.0, call, || Ok(self.is_idle()?.then_some(())))
    }

    /// Ends the communicator and its work where they are: buffers keep whatever they have then. Other ranks' work may
    /// hang until they abort, too. For any thread, also while another is in a call; in a group, at the group's end.
    /// Does nothing when it is closed.
    ///
    /// # Errors
    /// When NCCL fails. The communicator is gone then, too.
    pub fn abort(&self) -> Result<(), NcclError> {
        let Some(comm) = self.0.take() else { return Ok(()) };
        self.context().make_current()?;
        let aborted = comm.abort();
        self.0.clear();
        Ok(aborted?)
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} on GPU {}", self.rank(), self.size(), self.context().device().ordinal())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The handle goes first, which aborts what is in flight: with the context that it is of, and before the memory.
        let _ = self.context.make_current();
        drop(self.take());
    }
}
