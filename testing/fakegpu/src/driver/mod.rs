//! The functions of libcuda: here those of devices and contexts.

mod memory;
mod module;
mod stream;

use crate::codes::{self, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_INITIALIZED};
use crate::fault::{self, InjectedFault};
use crate::log;
use crate::state::{State, call, context_handle, current, device_of, hang, set_current, state};
use crate::stream::Stream;
use serde_json::{Value, json};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

type Code = c_int;
type Handle = *mut c_void;

const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MOST_THREADS: [u32; 3] = [1024, 1024, 64];
const MOST_THREADS_OF_BLOCK: u32 = 1024;
const SHARED_BYTES: u32 = 48 << 10;

/// Writes an answer through a caller's pointer.
unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    to.write(value);
    Ok(())
}

fn started() -> Result<(), Code> {
    if state().started { Ok(()) } else { Err(NOT_INITIALIZED) }
}

fn device(ordinal: c_int) -> Result<(), Code> {
    started()?;
    if (0..state().settings.devices).contains(&ordinal) { Ok(()) } else { Err(INVALID_DEVICE) }
}

/// A call that waits hangs here, if that is planned.
fn hang_if_planned() {
    if fault::take_of_call() == Some(InjectedFault::Hang) {
        hang();
    }
}

fn number(handle: *const c_void) -> Value {
    json!(State::number(handle))
}

fn address(at: u64) -> Value {
    json!(state().memory.name(at))
}

/// The stream of a call, which must be of the current context.
fn stream(handle: Handle) -> Result<Arc<Stream>, Code> {
    let device = current()?;
    let stream = state().stream(handle)?;
    if stream.device == device { Ok(stream) } else { Err(INVALID_HANDLE) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> Code {
    call("cuInit", json!({}), || {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mut state = state();
        if state.settings.devices == 0 {
            return Err(100);
        }
        state.started = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    call("cuDriverGetVersion", json!({}), || give(version, state().settings.driver_version))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: Code, name: *mut *const c_char) -> Code {
    codes::words(code).ok_or(INVALID_VALUE).and_then(|(found, _)| give(name, found.as_ptr())).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code {
    codes::words(code).ok_or(INVALID_VALUE).and_then(|(_, found)| give(text, found.as_ptr())).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    call("cuDeviceGetCount", json!({}), || {
        started()?;
        give(count, state().settings.devices)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(to: *mut c_int, ordinal: c_int) -> Code {
    call("cuDeviceGet", json!({ "ordinal": ordinal }), || {
        device(ordinal)?;
        give(to, ordinal)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, ordinal: c_int) -> Code {
    call("cuDeviceGetName", json!({ "device": ordinal }), || {
        device(ordinal)?;
        let text = format!("Fake GPU {ordinal}");
        let room = usize::try_from(len).unwrap_or(0);
        if name.is_null() || room == 0 {
            return Err(INVALID_VALUE);
        }
        let written = text.len().min(room - 1);
        name.copy_from_nonoverlapping(text.as_ptr().cast(), written);
        name.add(written).write(0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, ordinal: c_int) -> Code {
    call("cuDeviceGetAttribute", json!({ "attribute": attribute, "device": ordinal }), || {
        device(ordinal)?;
        let arch = state().settings.arch;
        let found = match attribute {
            1 => MOST_THREADS_OF_BLOCK as c_int,
            2..=4 => MOST_THREADS[attribute as usize - 2] as c_int,
            5..=7 => MOST_BLOCKS[attribute as usize - 5] as c_int,
            8 => SHARED_BYTES as c_int,
            16 => 2,
            75 => arch / 10,
            76 => arch % 10,
            _ => return Err(INVALID_VALUE),
        };
        give(value, found)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, ordinal: c_int) -> Code {
    call("cuDeviceTotalMem_v2", json!({ "device": ordinal }), || {
        device(ordinal)?;
        give(bytes, state().settings.memory_bytes)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, ordinal: c_int) -> Code {
    call("cuDevicePrimaryCtxRetain", json!({ "device": ordinal }), || {
        device(ordinal)?;
        give(context, context_handle(ordinal))?;
        state().contexts.entry(ordinal).or_default().retained += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) -> Code {
    call("cuDevicePrimaryCtxRelease_v2", json!({ "device": ordinal }), || {
        device(ordinal)?;
        let mut state = state();
        let context = state.contexts.get_mut(&ordinal).filter(|context| context.retained > 0);
        let context = context.ok_or(codes::INVALID_CONTEXT)?;
        context.retained -= 1;
        if context.retained == 0 {
            state.contexts.remove(&ordinal);
            let leaked = state.memory.free_device(ordinal);
            if leaked > 0 {
                log::violation(&format!("GPU {ordinal}: {leaked} allocations are left at the context's end"));
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> Code {
    // Not logged: it comes before every other call.
    let fault = fault::strike(&mut state().faults, "cuCtxSetCurrent");
    if let Some(InjectedFault::Code(code)) = fault {
        return code;
    }
    if context.is_null() {
        set_current(None);
        return 0;
    }
    match device_of(context).filter(|device| state().contexts.contains_key(device)) {
        Some(device) => {
            set_current(Some(device));
            0
        }
        None => codes::INVALID_CONTEXT,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Code {
    call("cuCtxSynchronize", json!({}), || {
        let device = current()?;
        hang_if_planned();
        let streams: Vec<Arc<Stream>> =
            state().streams.values().filter(|stream| stream.device == device).cloned().collect();
        streams.iter().for_each(|stream| stream.wait());
        current().map(drop)
    })
}
