//! Modules, kernels and launches.

use super::{Code, Handle, MOST_BLOCKS, MOST_THREADS, MOST_THREADS_OF_BLOCK, SHARED_BYTES, give, number, stream};
use crate::codes::{INVALID_HANDLE, INVALID_VALUE, NOT_FOUND};
use crate::log;
use crate::module::{Launch, Module};
use crate::state::{call, current, state};
use crate::stream::Work;
use serde_json::json;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
