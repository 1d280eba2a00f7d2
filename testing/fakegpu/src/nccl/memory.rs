//! Memory that NCCL allocates, and is told of.

use super::codes::UNHANDLED_CUDA_ERROR;
use super::{Code, Handle, give, known, note, ready, wrong};
use crate::memory::AddressSpace;
use crate::state::{call, current, state};
use serde_json::json;
use std::ffi::{c_int, c_void};

/// Of pages, as NCCL's: windows begin at one.
const PAGE: usize = 4096;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemAlloc(to: *mut *mut c_void, bytes: usize) -> Code {
    call("ncclMemAlloc", json!({ "bytes": bytes }), || {
        let short = |_| {
            note("Cuda failure 2 'out of memory'");
            UNHANDLED_CUDA_ERROR
        };
        let device = current().map_err(short)?;
        let mut state = state();
        let left = state.settings.memory_bytes.saturating_sub(state.memory.in_use(device));
        if bytes > left {
            return Err(short(2));
        }
        let start = state.memory.allocate_aligned(AddressSpace::Device(device), bytes, PAGE).ok_or_else(|| short(2))?;
        give(to, start as *mut c_void)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclMemFree(pointer: *mut c_void) -> Code {
    call("ncclMemFree", json!({}), || {
        if state().memory.free(pointer as usize, false) {
            return Ok(());
        }
        crate::log::violation("a free by NCCL of what is not an allocation of a device");
        wrong("the memory is none")
    })
}

fn register(comm: Handle, pointer: *mut c_void, bytes: usize) -> Result<usize, Code> {
    let comm = ready(comm)?;
    let is_there = state().memory.find(pointer as usize, bytes).is_ok();
    if !is_there {
        return wrong("the memory is none");
    }
    let handle = state().new_handle();
    comm.lock().registered.insert(handle, (pointer as usize, bytes));
    Ok(handle)
}

fn deregister(comm: Handle, handle: Handle) -> Result<(), Code> {
    match known(comm)?.lock().registered.remove(&(handle as usize)) {
        Some(_) => Ok(()),
        None => wrong("nothing is registered by this handle"),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRegister(comm: Handle, pointer: *mut c_void, bytes: usize, to: *mut usize) -> Code {
    call("ncclCommRegister", json!({ "bytes": bytes }), || give(to, register(comm, pointer, bytes)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDeregister(comm: Handle, handle: Handle) -> Code {
    call("ncclCommDeregister", json!({}), || deregister(comm, handle))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommWindowRegister(
    comm: Handle,
    pointer: *mut c_void,
    bytes: usize,
    to: *mut usize,
    _flags: c_int,
) -> Code {
    call("ncclCommWindowRegister", json!({ "bytes": bytes }), || {
        if !(pointer as usize).is_multiple_of(PAGE) {
            return wrong("a window begins at a page");
        }
        give(to, register(comm, pointer, bytes)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommWindowDeregister(comm: Handle, handle: Handle) -> Code {
    call("ncclCommWindowDeregister", json!({}), || deregister(comm, handle))
}
