//! Streams and events.

use super::{Code, Handle, give, hang_if_planned, number, stream};
use crate::codes::{INVALID_HANDLE, NOT_READY};
use crate::state::{call, current, state};
use crate::stream::{Event, Stream, Work};
use serde_json::json;
use std::ffi::c_uint;
use std::sync::Arc;

const DISABLE_TIMING: c_uint = 2;

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
