//! A communicator.

use super::{Api, CallError, Progress};
use crate::nccl::sys::{
    NcclComm, NcclConfig, NcclDataType, NcclRedOp, NcclResult, NcclUniqueId, NcclWindow, ScalarResidence, WindowFlags,
};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Where NCCL writes the handle of a new communicator or window: during the call, at the end of its group, or later from a thread of its own.
/// So it has an address that stays, and is leaked when NCCL may still write.
#[derive(Default)]
pub struct Slot(Box<AtomicPtr<c_void>>);

impl Slot {
    fn pointer(&self) -> *mut NcclComm {
        // `NcclComm` is a transparent pointer, and `AtomicPtr` has a pointer's layout.
        self.0.as_ptr().cast()
    }

    /// The handle, once it is written.
    pub fn written(&self) -> Option<*mut c_void> {
        let raw = self.0.load(Ordering::Acquire);
        (!raw.is_null()).then_some(raw)
    }

    /// Gives the address up for good.
    pub fn leak(self) {
        Box::leak(self.0);
    }
}

/// What a call reads, writes and counts. Streams and pointers are the device's.
#[derive(Clone, Copy)]
pub struct Operands {
    pub from: u64,
    pub to: u64,
    pub count: usize,
    pub dtype: NcclDataType,
    pub stream: *mut c_void,
}

impl Api {
    /// Starts to make the communicator of a rank; the context of its device is current. `blocking` waits for the
    /// others. Outside of a group it is one that waits, or the slot is written before the call returns.
    ///
    /// # Safety
    /// The slot is kept until it is written or [leaked](Slot::leak).
    pub unsafe fn init_rank(
        &self,
        slot: &Slot,
        (rank, size): (u32, u32),
        id: NcclUniqueId,
        blocking: bool,
    ) -> Result<Progress, CallError> {
        let (nranks, nth) = (size as c_int, rank as c_int);
        let at = Some((NcclComm::NULL, (rank, size)));
        if let Some(init) = self.sys.ncclCommInitRankConfig {
            let mut config = NcclConfig::new(blocking);
            // SAFETY: the slot stays; the configuration is read during the call.
            let code = unsafe { init(slot.pointer(), nranks, id, nth, &raw mut config) };
            return self.check("ncclCommInitRankConfig", at, code);
        }
        // SAFETY: the slot stays.
        let code = unsafe { (self.sys.ncclCommInitRank)(slot.pointer(), nranks, id, nth) };
        self.check("ncclCommInitRank", at, code)
    }

    /// What has become of a communicator's work so far; an error of it fails `call`.
    ///
    /// # Safety
    /// The communicator is live.
    pub unsafe fn progress(&self, raw: NcclComm, rank: (u32, u32), call: &'static str) -> Result<Progress, CallError> {
        let mut state = NcclResult::SUCCESS;
        // SAFETY: writes one integer; the rest is promised by the caller.
        let code = unsafe { (self.sys.ncclCommGetAsyncError)(raw, &raw mut state) };
        self.check("ncclCommGetAsyncError", Some((raw, rank)), code)?;
        self.check(call, Some((raw, rank)), state)
    }
}

/// A communicator, aborted when dropped. Not to be used by two threads at once.
pub struct Comm {
    api: Arc<Api>,
    raw: NcclComm,
    rank: (u32, u32),
}

impl Comm {
    /// # Safety
    /// `raw` is a communicator of this library that nobody else destroys, and these are its rank and size.
    pub unsafe fn own(api: &Arc<Api>, raw: *mut c_void, rank: (u32, u32)) -> Self {
        Self { api: api.clone(), raw: NcclComm(raw), rank }
    }

    /// The handle.
    pub fn raw(&self) -> NcclComm {
        self.raw
    }

    fn check(&self, call: &'static str, code: NcclResult) -> Result<Progress, CallError> {
        self.api.check(call, Some((self.raw, self.rank)), code)
    }

    /// The same with the rank and size that it has among its own.
    pub fn with_rank(mut self, rank: (u32, u32)) -> Self {
        self.rank = rank;
        self
    }

    /// What has become of the work so far; an error of it fails `call`.
    pub fn progress(&self, call: &'static str) -> Result<Progress, CallError> {
        // SAFETY: the communicator is live.
        unsafe { self.api.progress(self.raw, self.rank, call) }
    }

    /// Its size, rank and device, as NCCL has them.
    pub fn shape(&self) -> Result<(u32, u32, u32), CallError> {
        let sys = &self.api.sys;
        let ask = |name, get: unsafe extern "C" fn(NcclComm, *mut c_int) -> NcclResult| {
            let mut value = 0;
            // SAFETY: writes one integer; the communicator is live.
            self.check(name, unsafe { get(self.raw, &raw mut value) })?;
            Ok(u32::try_from(value).unwrap_or(u32::MAX))
        };
        Ok((
            ask("ncclCommCount", sys.ncclCommCount)?,
            ask("ncclCommUserRank", sys.ncclCommUserRank)?,
            ask("ncclCommCuDevice", sys.ncclCommCuDevice)?,
        ))
    }

    /// # Safety
    /// Of this and the calls below: until the work has ended, both ranges are memory of the communicator's device of
    /// the length that the call asks for, overlap only as it allows, and the stream is of the same device.
    pub unsafe fn all_reduce(&self, on: Operands, op: NcclRedOp) -> Result<Progress, CallError> {
        let Operands { from, to, count, dtype, stream } = on;
        // SAFETY: promised by the caller.
        let code =
            unsafe { (self.api.sys.ncclAllReduce)(from as *const _, to as *mut _, count, dtype, op, self.raw, stream) };
        self.check("ncclAllReduce", code)
    }

    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn reduce(&self, on: Operands, op: NcclRedOp, root: u32) -> Result<Progress, CallError> {
        let Operands { from, to, count, dtype, stream } = on;
        let root = root as c_int;
        // SAFETY: promised by the caller.
        let code = unsafe {
            (self.api.sys.ncclReduce)(from as *const _, to as *mut _, count, dtype, op, root, self.raw, stream)
        };
        self.check("ncclReduce", code)
    }

    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn broadcast(&self, on: Operands, root: u32) -> Result<Progress, CallError> {
        let Operands { from, to, count, dtype, stream } = on;
        let root = root as c_int;
        // SAFETY: promised by the caller.
        let code = unsafe {
            (self.api.sys.ncclBroadcast)(from as *const _, to as *mut _, count, dtype, root, self.raw, stream)
        };
        self.check("ncclBroadcast", code)
    }

    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn all_gather(&self, on: Operands) -> Result<Progress, CallError> {
        let Operands { from, to, count, dtype, stream } = on;
        // SAFETY: promised by the caller.
        let code =
            unsafe { (self.api.sys.ncclAllGather)(from as *const _, to as *mut _, count, dtype, self.raw, stream) };
        self.check("ncclAllGather", code)
    }

    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn reduce_scatter(&self, on: Operands, op: NcclRedOp) -> Result<Progress, CallError> {
        let Operands { from, to, count, dtype, stream } = on;
        // SAFETY: promised by the caller.
        let code = unsafe {
            (self.api.sys.ncclReduceScatter)(from as *const _, to as *mut _, count, dtype, op, self.raw, stream)
        };
        self.check("ncclReduceScatter", code)
    }

    /// None when NCCL is older than 2.28.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn all_to_all(&self, on: Operands) -> Option<Result<Progress, CallError>> {
        let Operands { from, to, count, dtype, stream } = on;
        let call = self.api.sys.ncclAlltoAll?;
        // SAFETY: promised by the caller.
        let code = unsafe { call(from as *const _, to as *mut _, count, dtype, self.raw, stream) };
        Some(self.check("ncclAlltoAll", code))
    }

    /// Sends `from`; `to` is not used.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn send(&self, on: Operands, peer: u32) -> Result<Progress, CallError> {
        let peer = peer as c_int;
        // SAFETY: promised by the caller.
        let code =
            unsafe { (self.api.sys.ncclSend)(on.from as *const _, on.count, on.dtype, peer, self.raw, on.stream) };
        self.check("ncclSend", code)
    }

    /// Receives to `to`; `from` is not used.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn recv(&self, on: Operands, peer: u32) -> Result<Progress, CallError> {
        let peer = peer as c_int;
        // SAFETY: promised by the caller.
        let code = unsafe { (self.api.sys.ncclRecv)(on.to as *mut _, on.count, on.dtype, peer, self.raw, on.stream) };
        self.check("ncclRecv", code)
    }

    /// A sum of values times `scalar`, one element of `dtype`. None when NCCL is older than 2.11.
    pub fn pre_mul_sum(&self, dtype: NcclDataType, mut scalar: [u8; 8]) -> Option<Result<NcclRedOp, CallError>> {
        let create = self.api.sys.ncclRedOpCreatePreMulSum?;
        let mut op = NcclRedOp::SUM;
        let value = scalar.as_mut_ptr().cast();
        // SAFETY: writes one integer, and reads one element of at most 8 bytes from the host during the call.
        let code = unsafe { create(&raw mut op, value, dtype, ScalarResidence::HOST_IMMEDIATE, self.raw) };
        Some(self.check("ncclRedOpCreatePreMulSum", code).map(|_| op))
    }

    /// Forgets a reduction, which may be done as soon as the calls with it have returned.
    pub fn forget_op(&self, op: NcclRedOp) -> Result<(), CallError> {
        let Some(destroy) = self.api.sys.ncclRedOpDestroy else { return Ok(()) };
        // SAFETY: takes any integer; the communicator is live.
        self.check("ncclRedOpDestroy", unsafe { destroy(op, self.raw) }).map(drop)
    }

    /// Starts a communicator of the ranks that give the same color; none gives no color. None when NCCL is older than
    /// 2.18.
    ///
    /// # Safety
    /// The slot is kept until it is written or [leaked](Slot::leak).
    pub unsafe fn split(&self, slot: &Slot, color: Option<u32>, key: i32) -> Option<Result<Progress, CallError>> {
        let split = self.api.sys.ncclCommSplit?;
        let color = color.map_or(-1, |color| color as c_int);
        // SAFETY: the slot stays; without a configuration the parent's is taken.
        let code = unsafe { split(self.raw, color, key, slot.pointer(), std::ptr::null_mut()) };
        Some(self.check("ncclCommSplit", code))
    }

    /// Starts a communicator without some ranks; `abort` ends the work in flight first. None when NCCL is older than
    /// 2.27.
    ///
    /// # Safety
    /// The slot is kept until it is written or [leaked](Slot::leak).
    pub unsafe fn shrink(&self, slot: &Slot, excluded: &[u32], abort: bool) -> Option<Result<Progress, CallError>> {
        let shrink = self.api.sys.ncclCommShrink?;
        let mut list: Vec<c_int> = excluded.iter().map(|rank| *rank as c_int).collect();
        let (ranks, count) = (list.as_mut_ptr(), list.len() as c_int);
        // SAFETY: the slot stays; the list is read during the call.
        let code = unsafe { shrink(self.raw, ranks, count, slot.pointer(), std::ptr::null_mut(), c_int::from(abort)) };
        Some(self.check("ncclCommShrink", code))
    }

    /// Registers memory; the handle. None when NCCL is older than 2.19.
    ///
    /// # Safety
    /// The range is memory of the device until it is deregistered or the communicator is gone.
    pub unsafe fn register(&self, pointer: u64, bytes: usize) -> Option<Result<*mut c_void, CallError>> {
        let register = self.api.sys.ncclCommRegister?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one pointer; the range is promised by the caller.
        let code = unsafe { register(self.raw, pointer as *mut _, bytes, &raw mut handle) };
        Some(self.check("ncclCommRegister", code).map(|_| handle))
    }

    /// # Safety
    /// The handle is of [`register`](Self::register), used once, and no work is in flight on the memory.
    pub unsafe fn deregister(&self, handle: *mut c_void) -> Result<(), CallError> {
        let Some(deregister) = self.api.sys.ncclCommDeregister else { return Ok(()) };
        // SAFETY: promised by the caller.
        self.check("ncclCommDeregister", unsafe { deregister(self.raw, handle) }).map(drop)
    }

    /// Starts to register memory as part of a window over all ranks. None when NCCL is older than 2.27.
    ///
    /// # Safety
    /// As [`register`](Self::register), and the slot is kept until it is written or [leaked](Slot::leak).
    pub unsafe fn register_window(
        &self,
        slot: &Slot,
        pointer: u64,
        bytes: usize,
        flags: WindowFlags,
    ) -> Option<Result<Progress, CallError>> {
        let register = self.api.sys.ncclCommWindowRegister?;
        // SAFETY: the slot stays; the range is promised by the caller.
        let code = unsafe { register(self.raw, pointer as *mut _, bytes, slot.pointer().cast(), flags) };
        Some(self.check("ncclCommWindowRegister", code))
    }

    /// # Safety
    /// As [`deregister`](Self::deregister), for a window.
    pub unsafe fn deregister_window(&self, window: NcclWindow) -> Result<(), CallError> {
        let Some(deregister) = self.api.sys.ncclCommWindowDeregister else { return Ok(()) };
        // SAFETY: promised by the caller.
        self.check("ncclCommWindowDeregister", unsafe { deregister(self.raw, window) }).map(drop)
    }

    /// Starts to end all work in order; done when [`progress`](Self::progress) says so. Nothing with NCCL before 2.14.
    pub fn finalize(&self) -> Result<Progress, CallError> {
        let Some(finalize) = self.api.sys.ncclCommFinalize else { return Ok(Progress::Done) };
        // SAFETY: the communicator is live.
        self.check("ncclCommFinalize", unsafe { finalize(self.raw) })
    }

    /// Frees it, after [`finalize`](Self::finalize).
    pub fn destroy(self) -> Result<(), CallError> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: moved out of below, and `this` is not dropped.
        let api = unsafe { std::ptr::read(&this.api) };
        // SAFETY: nobody has the handle any more.
        let code = unsafe { (api.sys.ncclCommDestroy)(this.raw) };
        api.check("ncclCommDestroy", Some((NcclComm::NULL, this.rank)), code).map(drop)
    }

    /// Ends its work where it is, and frees it.
    pub fn abort(self) -> Result<(), CallError> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: as in `destroy`.
        let api = unsafe { std::ptr::read(&this.api) };
        // SAFETY: nobody has the handle any more.
        let code = unsafe { (api.sys.ncclCommAbort)(this.raw) };
        api.check("ncclCommAbort", Some((NcclComm::NULL, this.rank)), code).map(drop)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: live, and not used after this. An error leaves it to the process's end.
        let _ = unsafe { (self.api.sys.ncclCommAbort)(self.raw) };
    }
}
