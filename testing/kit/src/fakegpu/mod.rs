//! The fake GPU for tests: finds or builds `libfakegpu.so`, and lends it to one test at a time.

#![expect(unsafe_code, reason = "calls the fake's own functions, with the types that `testing/fakegpu` gives them")]

pub mod adding;
mod path;

use bucketeer_cuda::nccl::Nccl;
use bucketeer_cuda::nvrtc::Nvrtc;
use bucketeer_cuda::{Driver, Stream};
pub use path::path;
use serde_json::Value;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

static CONTROL: LazyLock<libloading::Library> = LazyLock::new(|| {
    // SAFETY: the library's start-up code is that of Rust's standard library.
    unsafe { libloading::Library::new(path()) }.unwrap_or_else(|error| panic!("{}: {error:?}", path().display()))
});

static TURN: Mutex<()> = Mutex::new(());

/// Exclusive use of the fake in this process, without delays and faults at its start and after its end.
pub struct Session {
    _turn: MutexGuard<'static, ()>,
    /// What there was at the start.
    live: [u64; 4],
    live_comms: u64,
}

/// Waits for its turn.
pub fn session() -> Session {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut session = Session { _turn: turn, live: [0; 4], live_comms: Session::all_live_comms() };
    session.reset();
    session.live = session.all_live();
    session
}

macro_rules! control {
    ($name:literal, fn($($ty:ty),*) $(-> $ret:ty)?, $($arg:expr),*) => {{
        // SAFETY: the function has this type in `testing/fakegpu/src/control.rs`.
        let function = unsafe { CONTROL.get::<unsafe extern "C" fn($($ty),*) $(-> $ret)?>(concat!($name, "\0")) };
        let function = function.expect("the fake has all control functions");
        // SAFETY: pointers are of live texts that end in a zero, or buffers of the length that is given.
        unsafe { function($($arg),*) }
    }};
}

fn text(text: &str) -> CString {
    CString::new(text).expect("no zero byte in it")
}

impl Session {
    /// The fake as a driver.
    pub fn driver(&self) -> Driver {
        Driver::load(Some(path())).expect("the fake loads")
    }

    /// The fake as a compiler, without a cache.
    pub fn nvrtc(&self) -> Nvrtc {
        Nvrtc::load(Some(path())).expect("the fake loads").with_cache(None)
    }

    /// Starts every copy, fill and launch this much late.
    pub fn delay_us(&self, delay_us: u64) {
        control!("fakegpu_set_delay_us", fn(u64), delay_us);
    }

    /// Starts those of one stream this much late, and no others.
    pub fn delay_stream_us(&self, stream: &Stream, delay_us: u64) {
        let known = control!("fakegpu_set_stream_delay_us", fn(*mut c_void, u64) -> c_int, stream.as_raw(), delay_us);
        assert_eq!(known, 1, "the stream is the fake's");
    }

    /// Plans faults: `cuMemAlloc_v2:2=2`, as in `testing/fakegpu/src/fault.rs`.
    pub fn inject(&self, faults: &str) {
        let planned = control!("fakegpu_inject", fn(*const c_char) -> c_int, text(faults).as_ptr());
        assert_eq!(planned, 1, "{faults}");
    }

    /// Ends what hangs; forgets faults, delays, lost contexts and the log.
    pub fn reset(&self) {
        control!("fakegpu_reset", fn(),);
    }

    /// The calls and violations since the last time.
    pub fn log(&self) -> Vec<Value> {
        let mut bytes = Vec::<u8>::new();
        loop {
            let (to, room) = (bytes.as_mut_ptr().cast::<c_char>(), bytes.len());
            let needed = control!("fakegpu_log_take", fn(*mut c_char, usize) -> usize, to, room);
            if needed <= room {
                bytes.truncate(needed - 1);
                break;
            }
            bytes = vec![0; needed];
        }
        let text = String::from_utf8(bytes).expect("the log is text");
        text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    /// The texts of the violations since the log was last taken.
    pub fn violations(&self) -> Vec<String> {
        let log = self.log();
        log.iter().filter_map(|line| line["violation"].as_str().map(str::to_owned)).collect()
    }

    fn all_live(&self) -> [u64; 4] {
        let mut counts = [0; 4];
        control!("fakegpu_live", fn(*mut u64), counts.as_mut_ptr());
        counts
    }

    /// Allocations, streams, events and modules that were made in this session and are still there.
    pub fn live(&self) -> [u64; 4] {
        let now = self.all_live();
        std::array::from_fn(|at| now[at].saturating_sub(self.live[at]))
    }

    /// Runs C source in place of PTX that has a kernel of this name.
    pub fn register_ptx(&self, kernel: &str, source: &str) {
        let (kernel, source) = (text(kernel), text(source));
        control!("fakegpu_register_ptx", fn(*const c_char, *const c_char), kernel.as_ptr(), source.as_ptr());
    }

    /// Sets the driver's version: 12020 is 12.2.
    pub fn set_driver_version(&self, version: i32) {
        control!("fakegpu_set_driver_version", fn(c_int), version);
    }

    /// The fake as NCCL.
    pub fn nccl(&self) -> Nccl {
        Nccl::load(Some(path())).expect("the fake loads")
    }

    /// Sets NCCL's version: 23007 is 2.30.7.
    pub fn set_nccl_version(&self, version: i32) {
        control!("fakegpu_set_nccl_version", fn(c_int), version);
    }

    fn all_live_comms() -> u64 {
        control!("fakegpu_nccl_live", fn() -> u64,)
    }

    /// Communicators that were made in this session, and neither closed nor aborted.
    pub fn live_comms(&self) -> u64 {
        Self::all_live_comms().saturating_sub(self.live_comms)
    }

    /// Sets the number of devices.
    pub fn set_devices(&self, devices: i32) {
        control!("fakegpu_set_devices", fn(c_int), devices);
    }

    /// Sets the memory of each device.
    pub fn set_memory_bytes(&self, bytes: usize) {
        control!("fakegpu_set_memory_bytes", fn(usize), bytes);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reset();
    }
}
