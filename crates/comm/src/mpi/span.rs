//! Ranges of buffers that a call holds leases on, and what is done with their bytes on this rank.
//!
//! A [`Span`] exists only together with the lease on its range, and MPI keeps the span of each request until the request
//! is done ([`wire`](super::wire)). So memory that MPI reads or writes is neither freed nor lent to others. Bytes are
//! touched here only while no request of the same call is in flight; a counter says so.

#![expect(unsafe_code, reason = "borrows the bytes of ranges that are leased, while MPI has none of them")]

use crate::buffer::{Access, Arena, Buffer, BufferError, Holder, Lease};
use crate::call::{Call, Reduction};
use crate::group::Group;
use crate::kernels;
use bucketeer_types::DType;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of each input that are reduced at once, to stay in the processor's own cache.
pub const BLOCK_BYTES: u64 = 32 << 10;

/// The leases of a call or block, and how many requests MPI has for it.
pub struct Hold {
    _leases: Vec<Lease>,
    requests: AtomicUsize,
}

impl Hold {
    pub fn new(leases: Vec<Lease>) -> Arc<Self> {
        Arc::new(Self { _leases: leases, requests: AtomicUsize::new(0) })
    }

    pub fn add_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub fn end_request(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// See the module docs.
#[derive(Clone)]
pub struct Span {
    buffer: Buffer,
    /// For the leases of the call, and to see that MPI has nothing of it.
    hold: Arc<Hold>,
    /// Where the range is scratch: the lease on it.
    _scratch: Option<Arc<Lease>>,
}

/// What a call reads and writes. There is no input where it is not read.
pub struct Spans {
    pub input: Option<Span>,
    pub output: Option<Span>,
}

/// The spans of calls, and one hold for all.
pub fn hold(calls: &[Call], leases: Vec<Lease>, group: &Group) -> (Arc<Hold>, Vec<Spans>) {
    let hold = Hold::new(leases);
    let span = |buffer: &Buffer| Span { buffer: buffer.clone(), hold: hold.clone(), _scratch: None };
    let spans = calls.iter().map(|call| Spans {
        input: call.input().filter(|_| call.reads_input(group)).map(span),
        output: call.output().map(span),
    });
    let spans = spans.collect();
    (hold, spans)
}

impl Span {
    /// Memory of a call's own.
    pub fn scratch(hold: &Arc<Hold>, arena: &Arena, bytes: u64) -> Result<Self, BufferError> {
        let buffer = arena.buffer(0, bytes)?;
        let lease = buffer.lease(Access::Write, Holder::Host)?;
        Ok(Self { buffer, hold: hold.clone(), _scratch: Some(Arc::new(lease)) })
    }

    pub fn bytes(&self) -> u64 {
        self.buffer.bytes()
    }

    pub const fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub fn part(&self, offset: u64, bytes: u64) -> Result<Self, BufferError> {
        Ok(Self { buffer: self.buffer.part(offset, bytes)?, ..self.clone() })
    }

    /// Where the bytes are, for MPI.
    pub fn pointer(&self) -> *mut u8 {
        self.buffer.pointer()
    }

    fn is_free(&self) -> bool {
        self.hold.requests.load(Ordering::Relaxed) == 0
    }

    /// Copies, unless both are the same range. Both have equally many bytes.
    ///
    /// # Panics
    /// While MPI has a request of the call.
    pub fn copy_to(&self, target: &Self) {
        assert!(self.is_free() && target.is_free(), "bytes are copied before a call's requests or after them");
        if self.buffer != target.buffer {
            let all = 0..self.buffer.bytes() as usize;
            // SAFETY: both ranges are leased and in the hands of this call alone, and MPI has none of them. They do not
            // overlap: leases keep different ranges apart, and the one case in place has the same range for both.
            unsafe { target.buffer.leased_mut(all.clone()).copy_from_slice(self.buffer.leased(all)) };
        }
    }
}

/// A reduction on this rank: inputs in the order of the ranks, equally long, to an output that may be one of them.
pub struct Sum {
    pub reduction: Reduction,
    pub dtype: DType,
    pub inputs: Vec<Span>,
    pub output: Span,
}

impl Sum {
    /// Reduces from a byte on, at most [`BLOCK_BYTES`] of each input; where it stopped.
    ///
    /// # Panics
    /// While MPI has a request of the call.
    pub fn reduce(&self, from: u64, scratch: &mut Vec<u8>) -> u64 {
        let until = self.output.bytes().min(from + BLOCK_BYTES);
        let range = from as usize..until as usize;
        assert!(self.output.is_free(), "a call reduces while none of its requests is in flight");
        scratch.clear();
        for (place, input) in self.inputs.iter().enumerate() {
            // SAFETY: the range is leased and in the hands of this call alone, MPI has none of it, and it is only read
            // until the slice ends.
            let bytes = unsafe { input.buffer.leased(range.clone()) };
            if place == 0 {
                scratch.extend_from_slice(bytes);
                kernels::begin(self.reduction, self.dtype, scratch);
            } else {
                kernels::combine(self.reduction, self.dtype, scratch, bytes);
            }
        }
        // Ranks are numbered in 32 bits.
        kernels::finish(self.reduction, self.dtype, self.inputs.len() as u32, scratch);
        // SAFETY: as above; no slice of an input lives any more.
        unsafe { self.output.buffer.leased_mut(range) }.copy_from_slice(scratch);
        until
    }
}
