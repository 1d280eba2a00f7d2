//! The functions of libcuda.

use crate::codes::{
    INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_INITIALIZED, NOT_READY, OUT_OF_MEMORY,
};
use crate::fault::{self, Fault};
use crate::memory::Place;
use crate::module::{Launch, Module};
use crate::state::{State, call, context_handle, current, device_of, hang, set_current, state};
use crate::stream::{Event, Side, Stream, Work};
use crate::{codes, log};
use serde_json::{Value, json};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

type Code = c_int;
type Handle = *mut c_void;

const DISABLE_TIMING: c_uint = 2;
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
    if fault::take_of_call() == Some(Fault::Hang) {
        hang();
    }
}

fn number(handle: *const c_void) -> Value {
    json!(State::number(handle))
}

fn address(at: u64) -> Value {
    json!(state().memory.name(at))
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
    if let Some(Fault::Code(code)) = fault {
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

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    call("cuMemGetInfo_v2", json!({}), || {
        let device = current()?;
        let state = state();
        let all = state.settings.memory_bytes;
        give(free, all.saturating_sub(state.memory.in_use(device)))?;
        give(total, all)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> Code {
    call("cuMemAlloc_v2", json!({ "bytes": bytes }), || {
        let device = current()?;
        if bytes == 0 || pointer.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut state = state();
        let left = state.settings.memory_bytes.saturating_sub(state.memory.in_use(device));
        if bytes > left {
            return Err(OUT_OF_MEMORY);
        }
        let start = state.memory.allocate(Place::Device(device), bytes).ok_or(OUT_OF_MEMORY)?;
        give(pointer, start as u64)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(pointer: u64) -> Code {
    call("cuMemFree_v2", json!({ "memory": address(pointer) }), || {
        current()?;
        if state().memory.free(pointer as usize, false) {
            return Ok(());
        }
        log::violation("a free of what is no allocation of a device");
        Err(INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(pointer: *mut *mut c_void, bytes: usize) -> Code {
    call("cuMemAllocHost_v2", json!({ "bytes": bytes }), || {
        current()?;
        if bytes == 0 || pointer.is_null() {
            return Err(INVALID_VALUE);
        }
        if bytes > state().settings.memory_bytes {
            return Err(OUT_OF_MEMORY);
        }
        let start = state().memory.allocate(Place::Host, bytes).ok_or(OUT_OF_MEMORY)?;
        give(pointer, start as *mut c_void)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(pointer: *mut c_void) -> Code {
    call("cuMemFreeHost", json!({ "memory": address(pointer as u64) }), || {
        current()?;
        if state().memory.free(pointer as usize, true) {
            return Ok(());
        }
        log::violation("a free of what is no page-locked memory");
        Err(INVALID_VALUE)
    })
}

/// The stream of a call, which must be of the current context.
fn stream(handle: Handle) -> Result<Arc<Stream>, Code> {
    let device = current()?;
    let stream = state().stream(handle)?;
    if stream.device == device { Ok(stream) } else { Err(INVALID_HANDLE) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, on: Handle) -> Code {
    let args = json!({ "to": address(to), "from": address(from as u64), "bytes": bytes, "stream": number(on) });
    call("cuMemcpyHtoDAsync_v2", args, || {
        let stream = stream(on)?;
        let (to, from) = (to as usize, from as usize);
        if state().memory.is_pinned(from) {
            stream.enqueue(Work::Copy { to: Side::Device(to), from: Side::Pinned(from), bytes });
        } else {
            let content = std::slice::from_raw_parts(from as *const u8, bytes).to_vec();
            stream.enqueue(Work::Write { to, content });
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, on: Handle) -> Code {
    let args = json!({ "to": address(to as u64), "from": address(from), "bytes": bytes, "stream": number(on) });
    call("cuMemcpyDtoHAsync_v2", args, || {
        let stream = stream(on)?;
        let (to, from) = (to as usize, from as usize);
        if state().memory.is_pinned(to) {
            stream.enqueue(Work::Copy { to: Side::Pinned(to), from: Side::Device(from), bytes });
        } else {
            stream.enqueue(Work::Read { to, from, bytes });
            stream.wait();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, on: Handle) -> Code {
    let args = json!({ "to": address(to), "from": address(from), "bytes": bytes, "stream": number(on) });
    call("cuMemcpyDtoDAsync_v2", args, || {
        let (to, from) = (Side::Device(to as usize), Side::Device(from as usize));
        stream(on)?.enqueue(Work::Copy { to, from, bytes });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, on: Handle) -> Code {
    let args = json!({ "to": address(to), "value": value, "bytes": bytes, "stream": number(on) });
    call("cuMemsetD8Async", args, || {
        stream(on)?.enqueue(Work::Fill { to: to as usize, value, bytes });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(to: *mut Handle, _flags: c_uint) -> Code {
    call("cuStreamCreate", json!({}), || {
        let device = current()?;
        let mut state = state();
        let handle = state.new_handle();
        give(to, handle as Handle)?;
        let number = state.streams_made;
        state.streams_made += 1;
        state.streams.insert(handle, Stream::start(device, number));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(on: Handle) -> Code {
    call("cuStreamDestroy_v2", json!({ "stream": number(on) }), || {
        current()?;
        let stream = state().streams.remove(&(on as usize)).ok_or(INVALID_HANDLE)?;
        stream.close();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(on: Handle) -> Code {
    call("cuStreamSynchronize", json!({ "stream": number(on) }), || {
        let stream = stream(on)?;
        hang_if_planned();
        stream.wait();
        current().map(drop)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(on: Handle) -> Code {
    call("cuStreamQuery", json!({ "stream": number(on) }), || {
        if stream(on)?.is_idle() { current().map(drop) } else { Err(NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(on: Handle, event: Handle, _flags: c_uint) -> Code {
    let args = json!({ "stream": number(on), "event": number(event) });
    call("cuStreamWaitEvent", args, || {
        let stream = stream(on)?;
        let event = state().event(event)?;
        let generation = event.recorded();
        stream.enqueue(Work::Wait(event, generation));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(to: *mut Handle, flags: c_uint) -> Code {
    call("cuEventCreate", json!({ "flags": flags }), || {
        current()?;
        let mut state = state();
        let handle = state.new_handle();
        give(to, handle as Handle)?;
        state.events.insert(handle, Arc::new(Event::new(flags & DISABLE_TIMING == 0)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> Code {
    call("cuEventDestroy_v2", json!({ "event": number(event) }), || {
        current()?;
        state().events.remove(&(event as usize)).map(drop).ok_or(INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, on: Handle) -> Code {
    let args = json!({ "event": number(event), "stream": number(on) });
    call("cuEventRecord", args, || {
        let stream = stream(on)?;
        let event = state().event(event)?;
        let generation = event.record();
        stream.enqueue(Work::Record(event, generation));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> Code {
    call("cuEventSynchronize", json!({ "event": number(event) }), || {
        current()?;
        let event = state().event(event)?;
        hang_if_planned();
        event.wait_for(event.recorded());
        current().map(drop)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Handle) -> Code {
    call("cuEventQuery", json!({ "event": number(event) }), || {
        current()?;
        let done = state().event(event)?.is_done();
        if done { current().map(drop) } else { Err(NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) -> Code {
    let args = json!({ "start": number(start), "end": number(end) });
    call("cuEventElapsedTime", args, || {
        current()?;
        let start = state().event(start)?;
        let end = state().event(end)?;
        if !start.timing || !end.timing {
            return Err(INVALID_HANDLE);
        }
        if !start.is_done() || !end.is_done() {
            return Err(NOT_READY);
        }
        let (Some(start), Some(end)) = (start.time(), end.time()) else { return Err(INVALID_HANDLE) };
        give(milliseconds, end.saturating_duration_since(start).as_secs_f32() * 1e3)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    to: *mut Handle,
    image: *const c_void,
    count: c_uint,
    names: *mut c_int,
    values: *mut *mut c_void,
) -> Code {
    const ERROR_LOG: c_int = 5;
    const ERROR_LOG_BYTES: c_int = 6;
    call("cuModuleLoadDataEx", json!({}), || {
        let device = current()?;
        let option = |name| (0..count as usize).find(|at| *names.add(*at) == name).map(|at| *values.add(at));
        let module = Module::load(image, device).map_err(|(code, text)| {
            if let (Some(to), Some(room)) = (option(ERROR_LOG), option(ERROR_LOG_BYTES))
                && room as usize > 0
            {
                let len = text.len().min(room as usize - 1);
                to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), len);
                to.cast::<u8>().add(len).write(0);
            }
            code
        })?;
        let mut state = state();
        let handle = state.new_handle();
        give(to, handle as Handle)?;
        state.modules.insert(handle, Arc::new(module));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> Code {
    call("cuModuleUnload", json!({ "module": number(module) }), || {
        current()?;
        let mut state = state();
        let module = state.modules.remove(&(module as usize)).ok_or(INVALID_HANDLE)?;
        module.unloaded.store(true, Ordering::Release);
        state.functions.retain(|_, (of, _)| !Arc::ptr_eq(of, &module));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(to: *mut Handle, module: Handle, name: *const c_char) -> Code {
    let name = CStr::from_ptr(name).to_string_lossy();
    call("cuModuleGetFunction", json!({ "module": number(module), "name": name }), || {
        current()?;
        let mut state = state();
        let module = state.modules.get(&(module as usize)).cloned().ok_or(INVALID_HANDLE)?;
        let kernel = module.kernel(&name).ok_or(NOT_FOUND)?;
        let handle = state.new_handle();
        give(to, handle as Handle)?;
        state.functions.insert(handle, (module, Arc::new(kernel)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Handle) -> Code {
    call("cuFuncGetAttribute", json!({ "attribute": attribute, "function": number(function) }), || {
        current()?;
        if !state().functions.contains_key(&(function as usize)) {
            return Err(INVALID_HANDLE);
        }
        // A kernel here has no registers of a GPU and no local memory; 1 and 0 stand for that.
        let found = match attribute {
            0 => MOST_THREADS_OF_BLOCK as c_int,
            3 => 0,
            4 => 1,
            _ => return Err(INVALID_VALUE),
        };
        give(value, found)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    on: Handle,
    params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Code {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let found = state().functions.get(&(function as usize)).cloned();
    let name = found.as_ref().map(|(_, kernel)| kernel.name.clone());
    let args = json!({ "kernel": name, "grid": grid, "block": block, "stream": number(on) });
    call("cuLaunchKernel", args, || {
        let stream = stream(on)?;
        let (module, kernel) = found.ok_or(INVALID_HANDLE)?;
        let fits =
            |found: [u32; 3], most: [u32; 3]| found.iter().zip(most).all(|(found, most)| (1..=most).contains(found));
        let threads: u64 = block.iter().map(|count| u64::from(*count)).product();
        let fit = fits(grid, MOST_BLOCKS) && fits(block, MOST_THREADS) && threads <= u64::from(MOST_THREADS_OF_BLOCK);
        if !fit || shared_bytes > SHARED_BYTES || module.device != stream.device {
            return Err(INVALID_VALUE);
        }
        // A null pointer ends the list, as `bucketeer` writes it: the driver itself cannot tell a wrong number.
        let given = (0..=kernel.is_pointer.len()).take_while(|at| !(*params.add(*at)).is_null()).count();
        if given != kernel.is_pointer.len() {
            log::violation(&format!("kernel {} has {} parameters", kernel.name, kernel.is_pointer.len()));
            return Err(INVALID_VALUE);
        }
        let args = (0..given).map(|at| (*params.add(at)).cast::<u64>().read_unaligned()).collect();
        stream.enqueue(Work::Launch(Launch { module, kernel, grid, block, args }));
        Ok(())
    })
}
