//! A launched call.

use super::error::CommError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How a call is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOptions {
    /// How long after its launch the call must be done; `None` takes the backend's.
    pub timeout: Option<Duration>,
    /// Return at once (the default); else launch and wait.
    pub async_op: bool,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self { timeout: None, async_op: true }
    }
}

impl CallOptions {
    /// Launch and wait.
    #[must_use]
    pub fn blocking() -> Self {
        Self { async_op: false, ..Self::default() }
    }

    /// The same with another timeout.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}

/// A backend's side of a [`Work`].
pub trait Completion: Send + Sync {
    /// See [`Work::wait`].
    ///
    /// # Errors
    /// See [`Work::wait`].
    fn wait(&self, timeout: Option<Duration>) -> Result<(), CommError>;

    /// See [`Work::is_done`].
    fn is_done(&self) -> bool;

    /// See [`Work::sequence_number`].
    fn sequence_number(&self) -> Option<u64>;
}

/// A call in flight, or ended. Copies are handles to the same call.
///
/// To drop it is to forget the call, not to end it: the call goes on, and so do its leases on buffers.
#[derive(Clone)]
pub struct Work(Arc<dyn Completion>);

impl Work {
    /// The handle to what a backend keeps of a call.
    pub fn new(completion: Arc<dyn Completion>) -> Self {
        Self(completion)
    }

    /// Blocks until the call is done; afterwards its buffers are free and the output holds the result. Can be called
    /// again and answers the same.
    ///
    /// `timeout` counts from now; without one, the call's own timeout counts from its launch. When the time is over the
    /// call fails on all its ranks and the group is broken.
    ///
    /// # Errors
    /// [`CommError::Timeout`], naming who did not arrive; [`CommError::Remote`], [`CommError::Mismatch`],
    /// [`CommError::Aborted`] or [`CommError::Comm`], as soon as known.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), CommError> {
        self.0.wait(timeout)
    }

    /// Whether the call has ended, well or not; [`wait`](Self::wait) then answers at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// How many calls this rank launched on the group before this one; for sends and receives, between the same two
    /// ranks. `None` until a call of a coalescing block is launched, by its end.
    #[must_use]
    pub fn sequence_number(&self) -> Option<u64> {
        self.0.sequence_number()
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("sequence_number", &self.sequence_number())
            .field("is_done", &self.is_done())
            .finish()
    }
}
