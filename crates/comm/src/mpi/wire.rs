//! Messages between processes: all calls of MPI but its start and end.
//!
//! Only point-to-point messages that do not block, on a communicator of our own. Here the raw interface is used, as the
//! safe one of the `mpi` crate ties requests to a scope and drops the codes that MPI returns.

#![expect(unsafe_code, reason = "calls MPI; each place says which fact makes it sound")]

use super::span::Span;
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::SimpleCommunicator;
use std::ffi::c_int;
use std::mem::{self, MaybeUninit};

/// The tag of notes. Data have tags from 1 on.
const NOTE_TAG: c_int = 0;

/// The largest tag that every MPI has.
pub const MAX_TAG: u16 = 32_767;

/// What a request works on; kept until it is done.
enum Load {
    Bytes { _bytes: Vec<u8> },
    Span(Span),
}

struct Pending {
    load: Load,
    /// Which call it is for.
    owner: Option<u64>,
    /// The other end.
    peer: u32,
    receives: bool,
}

/// A request that is done.
pub struct Finished {
    pub owner: Option<u64>,
    pub peer: u32,
    /// The text of MPI's error, if it failed.
    pub result: Result<(), String>,
}

/// One process's end of all messages. Used under a lock, by one thread at a time.
pub struct Wire {
    comm: ffi::MPI_Comm,
    requests: Vec<ffi::MPI_Request>,
    /// By place in `requests`.
    pending: Vec<Pending>,
    indices: Vec<c_int>,
    statuses: Vec<MaybeUninit<ffi::MPI_Status>>,
}

// SAFETY: MPI was started with `MPI_THREAD_SERIALIZED` or more (`thread.rs` refuses less), which lets any thread call
// it, one at a time; `Wire` has no shared methods that call MPI, so whoever calls has it alone.
unsafe impl Send for Wire {}

fn text(code: c_int) -> String {
    format!("MPI's error {code}")
}

fn check(code: c_int) -> Result<(), String> {
    // `MPI_SUCCESS` is 0 by the standard.
    if code == 0 { Ok(()) } else { Err(text(code)) }
}

impl Wire {
    /// On a communicator of all processes that nobody else uses, and that outlives this.
    pub fn new(comm: &SimpleCommunicator) -> Result<Self, String> {
        let comm = comm.as_raw();
        // SAFETY: a valid communicator and a predefined handler.
        check(unsafe { ffi::MPI_Comm_set_errhandler(comm, ffi::RSMPI_ERRORS_RETURN) })?;
        let (requests, pending, indices, statuses) = Default::default();
        Ok(Self { comm, requests, pending, indices, statuses })
    }

    /// Number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Sends a note. Notes between two ranks arrive in order.
    pub fn send_note(&mut self, to: u32, bytes: Vec<u8>) -> Result<(), String> {
        let (start, count) = (bytes.as_ptr().cast_mut(), bytes.len());
        self.start(Load::Bytes { _bytes: bytes }, start, count, None, to, NOTE_TAG, false)
    }

    /// Sends a range, at most `c_int::MAX` bytes, to a tag that the receiver gave.
    pub fn send(&mut self, owner: u64, to: u32, tag: u16, span: Span) -> Result<(), String> {
        let (start, count) = (span.pointer(), span.bytes() as usize);
        self.start(Load::Span(span), start, count, Some(owner), to, c_int::from(tag), false)
    }

    /// Receives into a range. Messages with one tag from one rank arrive in order.
    pub fn receive(&mut self, owner: u64, from: u32, tag: u16, span: Span) -> Result<(), String> {
        let (start, count) = (span.pointer(), span.bytes() as usize);
        self.start(Load::Span(span), start, count, Some(owner), from, c_int::from(tag), true)
    }

    #[expect(clippy::too_many_arguments, reason = "what MPI asks for")]
    fn start(
        &mut self,
        load: Load,
        start: *mut u8,
        count: usize,
        owner: Option<u64>,
        peer: u32,
        tag: c_int,
        receives: bool,
    ) -> Result<(), String> {
        let too_many = |_| format!("a message of {count} bytes is longer than MPI can count");
        let count = c_int::try_from(count).map_err(too_many)?;
        let other = c_int::try_from(peer).map_err(|_| format!("there is no rank {peer}"))?;
        let mut request = MaybeUninit::uninit();
        // SAFETY: `start` is the first of `count` bytes that `load` owns or holds the lease on, to write where it
        // receives; `pending` keeps `load` until the request is done, and `drop` below even longer.
        let code = unsafe {
            let (start, request) = (start.cast(), request.as_mut_ptr());
            match receives {
                true => ffi::MPI_Irecv(start, count, ffi::RSMPI_UINT8_T, other, tag, self.comm, request),
                false => ffi::MPI_Isend(start, count, ffi::RSMPI_UINT8_T, other, tag, self.comm, request),
            }
        };
        check(code)?;
        if let Load::Span(span) = &load {
            span.hold().add_request();
        }
        // SAFETY: MPI has set it, as it returned success.
        self.requests.push(unsafe { request.assume_init() });
        self.pending.push(Pending { load, owner, peer, receives });
        Ok(())
    }

    /// Asks for the end of all receives of a call that no message has met yet.
    pub fn cancel_receives(&mut self, owner: u64) {
        for (request, pending) in self.requests.iter_mut().zip(&self.pending) {
            if pending.receives && pending.owner == Some(owner) {
                // SAFETY: an active request; it stays in the list, and ends there, cancelled or not.
                unsafe { ffi::MPI_Cancel(request) };
            }
        }
    }

    /// Moves what can be moved, and takes out the requests that are done.
    pub fn test(&mut self, done: &mut Vec<Finished>) {
        let active = self.requests.len();
        // As many as there are requests, which are far fewer than 2^31.
        let Ok(count) = c_int::try_from(active) else { return };
        self.indices.resize(active, 0);
        self.statuses.resize_with(active, MaybeUninit::uninit);
        let mut found: c_int = 0;
        // SAFETY: all three lists have `count` entries, and all requests are active.
        let code = unsafe {
            let statuses = self.statuses.as_mut_ptr().cast();
            ffi::MPI_Testsome(count, self.requests.as_mut_ptr(), &raw mut found, self.indices.as_mut_ptr(), statuses)
        };
        // With no request, MPI says `MPI_UNDEFINED`, which is negative.
        let Ok(found) = usize::try_from(found) else { return };
        let mut ended: Vec<(usize, Result<(), String>)> = Vec::with_capacity(found);
        for at in 0..found.min(active) {
            // SAFETY: MPI sets the first `found` statuses.
            let status = unsafe { self.statuses[at].assume_init_ref() };
            let result = if code == 0 { Ok(()) } else { check(status.MPI_ERROR) };
            if let Ok(index) = usize::try_from(self.indices[at]) {
                ended.push((index, result));
            }
        }
        // From the last, so that the places of those left stay as MPI said.
        ended.sort_unstable_by_key(|(index, _)| std::cmp::Reverse(*index));
        let first = done.len();
        for (index, result) in ended {
            self.requests.swap_remove(index);
            let Pending { load, owner, peer, .. } = self.pending.swap_remove(index);
            if let Load::Span(span) = load {
                span.hold().end_request();
            }
            done.push(Finished { owner, peer, result });
        }
        done[first..].reverse();
    }

    /// The next note that has come, and who sent it.
    pub fn next_note(&mut self) -> Result<Option<(u32, Vec<u8>)>, String> {
        // SAFETY: a constant.
        let any = unsafe { ffi::RSMPI_ANY_SOURCE };
        let Some((source, count)) = self.probe(any, NOTE_TAG)? else { return Ok(None) };
        let mut bytes = vec![0u8; count as usize];
        // SAFETY: `count` bytes to write. It does not block for long, as the message is there.
        check(unsafe {
            let (start, ignore) = (bytes.as_mut_ptr().cast(), ffi::RSMPI_STATUS_IGNORE);
            ffi::MPI_Recv(start, count, ffi::RSMPI_UINT8_T, source, NOTE_TAG, self.comm, ignore)
        })?;
        Ok(u32::try_from(source).ok().map(|source| (source, bytes)))
    }

    /// Takes in a message for which its call has no use any more, if one is there; whether one was.
    pub fn drain(&mut self, from: u32, tag: u16) -> Result<bool, String> {
        let Ok(source) = c_int::try_from(from) else { return Ok(false) };
        let tag = c_int::from(tag);
        let Some((_, count)) = self.probe(source, tag)? else { return Ok(false) };
        let mut bytes = vec![0u8; count as usize];
        let (start, length) = (bytes.as_mut_ptr(), bytes.len());
        self.start(Load::Bytes { _bytes: bytes }, start, length, None, from, tag, true)?;
        Ok(true)
    }

    fn probe(&mut self, source: c_int, tag: c_int) -> Result<Option<(c_int, c_int)>, String> {
        let (mut flag, mut count) = (0, 0);
        let mut status = MaybeUninit::uninit();
        // SAFETY: MPI writes the flag, and the status where the flag is set.
        check(unsafe { ffi::MPI_Iprobe(source, tag, self.comm, &raw mut flag, status.as_mut_ptr()) })?;
        if flag == 0 {
            return Ok(None);
        }
        // SAFETY: the flag is set, so the status is.
        let status: ffi::MPI_Status = unsafe { status.assume_init() };
        // SAFETY: a status of a message, and a number to write.
        check(unsafe { ffi::MPI_Get_count(&raw const status, ffi::RSMPI_UINT8_T, &raw mut count) })?;
        Ok(Some((status.MPI_SOURCE, count.max(0))))
    }
}

impl Drop for Wire {
    /// What MPI may still read or write is not freed.
    fn drop(&mut self) {
        mem::forget(mem::take(&mut self.pending));
    }
}
