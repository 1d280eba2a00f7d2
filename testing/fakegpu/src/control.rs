//! What tests call beside CUDA's functions.

use crate::state::{reset, state};
use crate::{fault, log, nccl};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

/// Delays the start of every copy, fill and launch from now on.
#[unsafe(no_mangle)]
pub extern "C" fn fakegpu_set_delay_us(delay_us: u64) {
    let settings = &mut state().settings;
    settings.delay = Duration::from_micros(delay_us);
    settings.delay_stream = None;
}

/// Delays those of one stream alone; 0 when there is no such stream.
#[unsafe(no_mangle)]
pub extern "C" fn fakegpu_set_stream_delay_us(stream: *mut c_void, delay_us: u64) -> c_int {
    let mut state = state();
    let Ok(stream) = state.stream(stream) else { return 0 };
    state.settings.delay = Duration::from_micros(delay_us);
    state.settings.delay_stream = Some(stream.number);
    1
}

/// Plans faults, see [`fault`]; 0 when the text is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakegpu_inject(faults: *const c_char) -> c_int {
    match fault::parse(&CStr::from_ptr(faults).to_string_lossy()) {
        Some(planned) => {
            state().faults.extend(planned);
            1
        }
        None => 0,
    }
}

/// Forgets faults, delays, lost contexts, registered sources and the log, and ends what hangs; what is allocated stays.
/// Settings are as the environment says again.
#[unsafe(no_mangle)]
pub extern "C" fn fakegpu_reset() {
    reset();
}

/// Writes the log so far, and a zero byte, to `to` and forgets it, when `room` bytes are enough. Returns the bytes that
/// it needs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakegpu_log_take(to: *mut c_char, room: usize) -> usize {
    let text = log::text();
    if text.len() < room {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(text.len()).write(0);
        log::clear(false);
    }
    text.len() + 1
}

/// Number of violations since the last reset.
#[unsafe(no_mangle)]
pub extern "C" fn fakegpu_violations() -> u64 {
    log::violations()
}

/// Writes how many allocations, streams, events and modules there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakegpu_live(counts: *mut u64) {
    let state = state();
    let live = [state.memory.len(), state.streams.len(), state.events.len(), state.modules.len()];
    live.iter().enumerate().for_each(|(at, count)| counts.add(at).write(*count as u64));
}

/// Runs a C source in place of PTX that has a kernel of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakegpu_register_ptx(kernel: *const c_char, source: *const c_char) {
    let text = |text| CStr::from_ptr(text).to_string_lossy().into_owned();
    state().ptx_sources.insert(text(kernel), text(source));
}

/// Sets the driver's version: 12020 is 12.2.
#[unsafe(no_mangle)]
pub extern "C" fn fakegpu_set_driver_version(version: c_int) {
    state().settings.driver_version = version;
}

/// Sets the number of devices.
#[unsafe(no_mangle)]
pub extern "C" fn fakegpu_set_devices(devices: c_int) {
    state().settings.devices = devices;
}

/// Sets the memory of each device.
#[unsafe(no_mangle)]
pub extern "C" fn fakegpu_set_memory_bytes(bytes: usize) {
    state().settings.memory_bytes = bytes;
}

/// Sets NCCL's version: 23007 is 2.30.7.
#[unsafe(no_mangle)]
pub extern "C" fn fakegpu_set_nccl_version(version: c_int) {
    state().settings.nccl_version = version;
}

/// The number of communicators that were neither destroyed nor aborted.
#[unsafe(no_mangle)]
pub extern "C" fn fakegpu_nccl_live() -> u64 {
    nccl::live() as u64
}
