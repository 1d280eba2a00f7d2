//! How a call ended, and what a thread's last failure was.

#![expect(unsafe_code, reason = "names of C are global; pointers of C are read in `raw`")]
#![expect(clippy::missing_safety_doc, reason = "the crate's docs say for all functions what pointers have to be")]

use crate::raw;
use bucketeer_comm::CommError;
use bucketeer_reducer::ReducerError;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended. Take each number that you do not know for a failure: later versions may have more.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketeerStatus {
    /// Done.
    Ok = 0,
    /// An argument cannot be used: a null pointer, a length, a number that stands for nothing. Nothing was changed.
    Argument = 1,
    /// A handle was never made, is freed, or is of another kind. Nothing was changed.
    Handle = 2,
    /// The call does not fit what the reducer is doing: a second step, an end without a step, a free during a step. Nothing was
    /// changed.
    State = 3,
    /// A mark was refused: a second one, a wrong size, a step that is over. Nothing was changed; the step can go on.
    Mark = 4,
    /// Parameters, options, a group, a root, a length or a weight cannot be used.
    Invalid = 5,
    /// Ranks made reducers of different things. All ranks get this.
    Disagree = 6,
    /// Parameters were not marked in a step that was to be finished. The reducer is broken.
    Missing = 7,
    /// A step was given up after marks. The reducer is broken.
    GivenUp = 8,
    /// A hook failed. The reducer is broken.
    Hook = 9,
    /// A collective failed, or ranks did not find one another. The reducer is broken.
    Comm = 10,
    /// Another rank failed, and says why. The reducer is broken.
    Elsewhere = 11,
    /// Ranks ran out of data, where that is an error.
    RanOut = 12,
    /// An earlier step failed: go on with bucketeer_reducer_change_group.
    Broken = 13,
    /// Memory cannot be had, or is in use.
    Memory = 14,
    /// This library was built without what is asked for.
    Unsupported = 15,
    /// A fault of this library. The reducer of the call is lost: free it.
    Panic = 16,
}

impl BucketeerStatus {
    const ALL: [(Self, &'static CStr); 17] = [
        (Self::Ok, c"ok"),
        (Self::Argument, c"argument"),
        (Self::Handle, c"handle"),
        (Self::State, c"state"),
        (Self::Mark, c"mark"),
        (Self::Invalid, c"invalid"),
        (Self::Disagree, c"disagree"),
        (Self::Missing, c"missing"),
        (Self::GivenUp, c"given up"),
        (Self::Hook, c"hook"),
        (Self::Comm, c"comm"),
        (Self::Elsewhere, c"elsewhere"),
        (Self::RanOut, c"ran out"),
        (Self::Broken, c"broken"),
        (Self::Memory, c"memory"),
        (Self::Unsupported, c"unsupported"),
        (Self::Panic, c"panic"),
    ];
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: BucketeerStatus,
    text: String,
    /// Ranks to go on without.
    culprits: Vec<u32>,
}

impl Failure {
    pub(crate) fn new(status: BucketeerStatus, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), culprits: Vec::new() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(BucketeerStatus::Argument, text)
    }

    pub(crate) fn state(text: impl Into<String>) -> Self {
        Self::new(BucketeerStatus::State, text)
    }
}

impl From<ReducerError> for Failure {
    fn from(error: ReducerError) -> Self {
        let status = match &error {
            ReducerError::Invalid { .. } | ReducerError::Assign { .. } => BucketeerStatus::Invalid,
            ReducerError::Disagree { .. } => BucketeerStatus::Disagree,
            ReducerError::Mark { .. } => BucketeerStatus::Mark,
            ReducerError::Missing { .. } => BucketeerStatus::Missing,
            ReducerError::GivenUp { .. } => BucketeerStatus::GivenUp,
            ReducerError::Hook { .. } => BucketeerStatus::Hook,
            ReducerError::Comm { .. } => BucketeerStatus::Comm,
            ReducerError::Elsewhere { .. } => BucketeerStatus::Elsewhere,
            ReducerError::RanOut { .. } => BucketeerStatus::RanOut,
            ReducerError::Broken { .. } => BucketeerStatus::Broken,
            ReducerError::Buffer { .. } | ReducerError::Device { .. } => BucketeerStatus::Memory,
        };
        let culprits = error.culprits().into_iter().map(|rank| rank.0).collect();
        Self { status, text: error.to_string(), culprits }
    }
}

impl From<CommError> for Failure {
    fn from(error: CommError) -> Self {
        let status = match &error {
            CommError::Invalid { .. } => BucketeerStatus::Invalid,
            CommError::Buffer { .. } => BucketeerStatus::Memory,
            _ => BucketeerStatus::Comm,
        };
        let culprits = error.culprits().into_iter().map(|rank| rank.0).collect();
        Self { status, text: error.to_string(), culprits }
    }
}

/// A thread's last failure, as C reads it.
struct Last {
    status: BucketeerStatus,
    text: CString,
    culprits: Vec<u32>,
}

impl Default for Last {
    fn default() -> Self {
        Self { status: BucketeerStatus::Ok, text: CString::default(), culprits: Vec::new() }
    }
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// Runs the body of a function of C: no panic leaves it, and its failure is kept for the calling thread.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> BucketeerStatus {
    // What a panic leaves half done is behind locks whose states say so; see `reducer::Turn`.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return BucketeerStatus::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(BucketeerStatus::Panic, format!("this library has a fault: {}", said(&*panic))),
    };
    let status = failure.status;
    // A text of ours may hold a name of the caller's, but no zero, as names end with one.
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // A thread that ends has no last failure any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Last { status, text, culprits: failure.culprits });
    status
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a text")
}

/// What the last failed call of this thread says, in UTF-8, with rank, step and parameter where there are any; empty if none
/// failed. Calls that succeed leave it alone. The text is the library's, and good until this thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_last_error() -> *const c_char {
    // A pointer to what the thread keeps: it is replaced by this thread alone.
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// How the last failed call of this thread ended; BUCKETEER_STATUS_OK if none failed.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_last_error_status() -> BucketeerStatus {
    LAST.try_with(|last| last.borrow().status).unwrap_or(BucketeerStatus::Ok)
}

/// The ranks to go on without, after the last failed call of this thread: those that went away or did not arrive. Writes at most
/// `capacity` of them to `ranks`, which may be null if that is 0, and how many there are to `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_last_error_culprits(
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> BucketeerStatus {
    let culprits = LAST.try_with(|last| last.borrow().culprits.clone()).unwrap_or_default();
    // SAFETY: the caller's pointers are as the crate's docs ask for.
    call(|| unsafe { raw::give_list(&culprits, (ranks, "ranks"), capacity, (count, "count")) })
}

/// A word for a status: `mark`. Null for a number that stands for none. The text is good for ever.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_status_name(status: i32) -> *const c_char {
    let found = BucketeerStatus::ALL.iter().find(|(known, _)| *known as i32 == status);
    found.map_or(std::ptr::null(), |(_, name)| name.as_ptr())
}

/// The version of this library: `0.1.0`. The text is good for ever.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The version of the interface that this header describes.
pub const BUCKETEER_ABI_VERSION: u32 = 1;

/// The version of the interface that the library has. It is counted up when a function, a number or a field changes its meaning,
/// and not when there are more of them.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_abi_version() -> u32 {
    BUCKETEER_ABI_VERSION
}
