//! Memory, copies and fills.

use super::{Code, Handle, address, give, number, stream};
use crate::codes::{INVALID_VALUE, OUT_OF_MEMORY};
use crate::log;
use crate::memory::AddressSpace;
use crate::state::{call, current, state};
use crate::stream::{Side, Work};
use serde_json::json;
use std::ffi::c_void;

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
        let start = state.memory.allocate(AddressSpace::Device(device), bytes).ok_or(OUT_OF_MEMORY)?;
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
        log::violation("a free of what is not an allocation of a device");
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
        let start = state().memory.allocate(AddressSpace::Host, bytes).ok_or(OUT_OF_MEMORY)?;
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
        log::violation("a free of what is not a page-locked memory");
        Err(INVALID_VALUE)
    })
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
