//! Groups: calls that are launched together.

use super::Nccl;
use super::comm::Inner;
use crate::nccl::NcclError;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

thread_local! {
    /// The communicators with calls in this thread's group; none when no group is open.
    static OPEN: RefCell<Option<Vec<Arc<Inner>>>> = const { RefCell::new(None) };
}

pub(super) fn is_open() -> bool {
    OPEN.with_borrow(Option::is_some)
}

/// A communicator has a call in the open group.
pub(super) fn join(inner: &Arc<Inner>) {
    OPEN.with_borrow_mut(|open| {
        if let Some(members) = open {
            members.push(inner.clone());
        }
    });
}

/// The calls of this thread, on whatever communicators, from [`Nccl::group`] to [`end`](Self::end). They are launched
/// at its end: sends and receives among them run at once, and one thread can call for several ranks. Dropped without
/// an end, it ends all the same, and an error is lost.
#[must_use = "the calls are launched at its end"]
pub struct Group {
    nccl: Nccl,
    ended: bool,
    /// It is the thread's.
    _here: PhantomData<*const ()>,
}

impl Nccl {
    /// Opens this thread's group.
    ///
    /// # Errors
    /// When one is open.
    pub fn group(&self) -> Result<Group, NcclError> {
        Group::expect_none("Nccl::group")?;
        self.0.group_start()?;
        OPEN.set(Some(Vec::new()));
        Ok(Group { nccl: self.clone(), ended: false, _here: PhantomData })
    }
}

impl Group {
    pub(super) fn expect_none(call: &'static str) -> Result<(), NcclError> {
        if is_open() { Err(NcclError::invalid(call, "this thread has a group open; end it first")) } else { Ok(()) }
    }

    /// Launches the calls, and waits until NCCL has done so; not for the work.
    ///
    /// # Errors
    /// The first error of a call or launch, or a timeout. Communicators with calls in it are to be aborted then.
    pub fn end(mut self) -> Result<(), NcclError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), NcclError> {
        const CALL: &str = "ncclGroupEnd";
        self.ended = true;
        let ended = self.nccl.0.group_end();
        let members = OPEN.take().unwrap_or_default();
        members.iter().for_each(|inner| inner.ungroup());
        ended?;
        members.iter().try_for_each(|inner| inner.settle(CALL))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.finish();
        }
    }
}
