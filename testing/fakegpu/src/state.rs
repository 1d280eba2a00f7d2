//! All that the fake holds, behind one lock.

use crate::codes::{INVALID_CONTEXT, INVALID_HANDLE, NOT_INITIALIZED};
use crate::fault::{self, InjectedFault, Planned};
use crate::log;
use crate::memory::Heap;
use crate::module::{Kernel, Module};
use crate::stream::{Event, Stream};
use serde_json::Value;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How the fake behaves.
pub struct Settings {
    pub delay: Duration,
    /// The stream that is delayed, by its number; none for all.
    pub delay_stream: Option<u64>,
    pub driver_version: i32,
    pub devices: i32,
    pub arch: i32,
    pub memory_bytes: usize,
    pub nccl_version: i32,
}

impl Settings {
    fn from_env() -> Self {
        fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
            let text = std::env::var(name).ok()?;
            Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
        }
        Self {
            delay: Duration::from_micros(number("FAKEGPU_DELAY_US").unwrap_or(0)),
            delay_stream: number("FAKEGPU_DELAY_STREAM"),
            driver_version: number("FAKEGPU_DRIVER_VERSION").unwrap_or(13_000),
            devices: number("FAKEGPU_DEVICES").unwrap_or(8),
            arch: number("FAKEGPU_ARCH").unwrap_or(90),
            memory_bytes: number("FAKEGPU_MEMORY_BYTES").unwrap_or(4 << 30),
            nccl_version: number("FAKEGPU_NCCL_VERSION").unwrap_or(23_007),
        }
    }
}

/// A device's primary context.
#[derive(Default)]
pub struct Context {
    pub retained: u32,
    /// The code of the first failure, which all calls answer from then on.
    pub lost: Option<i32>,
}

pub struct State {
    pub started: bool,
    pub settings: Settings,
    pub faults: Vec<Planned>,
    pub contexts: BTreeMap<i32, Context>,
    pub memory: Heap,
    pub streams: BTreeMap<usize, Arc<Stream>>,
    pub events: BTreeMap<usize, Arc<Event>>,
    pub modules: BTreeMap<usize, Arc<Module>>,
    pub functions: BTreeMap<usize, (Arc<Module>, Arc<Kernel>)>,
    /// C sources to run in place of PTX, by the name of a kernel in it.
    pub ptx_sources: BTreeMap<String, String>,
    pub streams_made: u64,
    next_handle: usize,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    let faults = std::env::var("FAKEGPU_FAULT").unwrap_or_default();
    Mutex::new(State {
        started: false,
        settings: Settings::from_env(),
        faults: fault::parse(&faults).unwrap_or_else(|| panic!("FAKEGPU_FAULT={faults} is not a list of faults")),
        contexts: BTreeMap::new(),
        memory: Heap::default(),
        streams: BTreeMap::new(),
        events: BTreeMap::new(),
        modules: BTreeMap::new(),
        functions: BTreeMap::new(),
        ptx_sources: BTreeMap::new(),
        streams_made: 0,
        next_handle: 0,
    })
});

/// Raised by each reset, which ends all that hangs.
static EPOCH: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The device whose context is the thread's current one.
    static CURRENT: Cell<Option<i32>> = const { Cell::new(None) };
}

pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn epoch() -> u64 {
    EPOCH.load(Ordering::Acquire)
}

/// Blocks until the next reset.
pub fn hang() {
    let start = epoch();
    while epoch() == start {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Forgets faults, delays, losses and the log; ends what hangs. What is allocated stays.
pub fn reset() {
    EPOCH.fetch_add(1, Ordering::AcqRel);
    let streams: Vec<Arc<Stream>> = state().streams.values().cloned().collect();
    {
        let mut state = state();
        state.settings = Settings::from_env();
        state.faults.clear();
    }
    streams.iter().for_each(|stream| stream.wait());
    let mut state = state();
    state.ptx_sources.clear();
    state.streams_made = 0;
    state.contexts.values_mut().for_each(|context| context.lost = None);
    drop(state);
    log::clear(true);
}

/// Runs a call: strikes it with the fault that is planned for it, and logs it.
pub fn call(name: &'static str, args: Value, body: impl FnOnce() -> Result<(), i32>) -> i32 {
    let fault = fault::strike(&mut state().faults, name);
    let code = match fault {
        Some(InjectedFault::Code(code)) => code,
        Some(InjectedFault::Skip) => 0,
        Some(InjectedFault::Late(_) | InjectedFault::Pending | InjectedFault::Hang) | None => {
            fault::set_of_call(fault);
            let code = body().err().unwrap_or(0);
            fault::set_of_call(None);
            code
        }
    };
    log::call(name, args, code);
    code
}

/// The thread's current device, whose context is there and not lost.
pub fn current() -> Result<i32, i32> {
    let state = state();
    if !state.started {
        return Err(NOT_INITIALIZED);
    }
    let device = CURRENT.get().ok_or(INVALID_CONTEXT)?;
    let context = state.contexts.get(&device).ok_or(INVALID_CONTEXT)?;
    context.lost.map_or(Ok(device), Err)
}

pub fn set_current(device: Option<i32>) {
    CURRENT.set(device);
}

/// The handle of a device's context.
pub fn context_handle(device: i32) -> *mut c_void {
    ((usize::try_from(device).unwrap_or(0) + 1) << 32) as *mut c_void
}

/// The device of a context's handle.
pub fn device_of(handle: *mut c_void) -> Option<i32> {
    let device = i32::try_from((handle as usize >> 32).checked_sub(1)?).ok()?;
    (context_handle(device) == handle).then_some(device)
}

impl State {
    /// A handle that no other object has had.
    pub fn new_handle(&mut self) -> usize {
        self.next_handle += 0x10;
        self.next_handle
    }

    /// The number of a handle, for the log.
    pub fn number(handle: *const c_void) -> usize {
        handle as usize / 0x10
    }

    pub fn stream(&self, handle: *mut c_void) -> Result<Arc<Stream>, i32> {
        self.streams.get(&(handle as usize)).cloned().ok_or(INVALID_HANDLE)
    }

    pub fn event(&self, handle: *mut c_void) -> Result<Arc<Event>, i32> {
        self.events.get(&(handle as usize)).cloned().ok_or(INVALID_HANDLE)
    }

    /// A failure of work on a device: the first one stays.
    pub fn lose(&mut self, device: i32, code: i32) {
        self.contexts.entry(device).or_default().lost.get_or_insert(code);
    }
}
