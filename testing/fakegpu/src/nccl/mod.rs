//! The functions of libnccl: here those of calls and groups.
//!
//! Ranks are threads, processes, or both. Whatever two ranks call that does not fit together ends with code 5 of
//! `ncclCommGetAsyncError` on all of them; an abort, or the end of a process, with code 6 on the others. Sums are in
//! rank order. What NCCL does not do: collectives of one communicator wait for each other and for all ranks.

mod codes;
mod comm;
mod group;
mod make;
mod memory;
mod number;
mod room;
mod run;

pub use run::Item;

use crate::fault::{self, InjectedFault};
use crate::state::{State, call, state};
use codes::{IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE};
use comm::Comm;
use run::{Kind, Op};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

type Code = c_int;
type Handle = *mut c_void;

pub fn live() -> usize {
    comm::count()
}

/// The last error's text, which stays allocated as C's callers keep pointers to it; each text once.
static LAST: Mutex<(BTreeSet<&'static CStr>, &'static CStr)> = Mutex::new((BTreeSet::new(), c""));

/// Keeps a text for `ncclGetLastError`.
fn note(text: &str) {
    let Ok(text) = CString::new(text) else { return };
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let known = last.0.get(text.as_c_str()).copied();
    let kept = known.unwrap_or_else(|| {
        let kept: &'static CStr = Box::leak(text.into_boxed_c_str());
        last.0.insert(kept);
        kept
    });
    last.1 = kept;
}

fn wrong<T>(text: &str) -> Result<T, Code> {
    note(text);
    Err(INVALID_ARGUMENT)
}

unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return wrong("an argument is NULL");
    }
    to.write(value);
    Ok(())
}

/// A call that may be in a group, whose error it then is, too.
fn grouped(name: &'static str, args: Value, body: impl FnOnce() -> Result<(), Code>) -> Code {
    let code = call(name, args, body);
    if !matches!(code, 0 | IN_PROGRESS) {
        group::note_error(code);
    }
    code
}

fn known(handle: Handle) -> Result<Arc<Comm>, Code> {
    if handle.is_null() {
        return wrong("comm argument is NULL");
    }
    comm::find(handle as usize).map_or_else(|| wrong("the communicator is destroyed, or none"), Ok)
}

/// A communicator that is ready for calls.
fn ready(handle: Handle) -> Result<Arc<Comm>, Code> {
    let comm = known(handle)?;
    match comm.code() {
        0 => Ok(comm),
        IN_PROGRESS => {
            note("the communicator is still in progress");
            Err(INVALID_USAGE)
        }
        code => {
            note(&comm.lock().text);
            Err(code)
        }
    }
}

/// What a call of a collective, send or receive is given.
struct Given {
    name: &'static str,
    kind: Kind,
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
}

fn operate(given: &Given) -> Code {
    let number = known(given.comm).map_or(0, |comm| State::number(comm.handle as *const c_void));
    let mut args = json!({
        "comm": number, "count": given.count, "dtype": given.dtype, "stream": State::number(given.stream),
    });
    {
        let state = state();
        let pointers = [("from", given.from as u64), ("to", given.to as u64)];
        for (key, at) in pointers.into_iter().filter(|(_, at)| *at != 0) {
            args[key] = json!(state.memory.name(at));
        }
    }
    if matches!(given.kind, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter) {
        args["op"] = json!(given.op);
    }
    if !matches!(given.kind, Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather | Kind::AllToAll) {
        let key = if matches!(given.kind, Kind::Send | Kind::Recv) { "peer" } else { "root" };
        args[key] = json!(given.root);
    }
    grouped(given.name, args, || {
        let fault = fault::take_of_call();
        let comm = ready(given.comm)?;
        let stream = state().stream(given.stream).or_else(|_| wrong("the stream is none"))?;
        if stream.device != comm.device {
            return wrong("the stream is of another device than the communicator");
        }
        if number::form(given.dtype).is_none() {
            return wrong("Invalid type");
        }
        if given.root < 0 || given.root as u32 >= comm.size() {
            return wrong("Invalid root or peer: it must be in the communicator");
        }
        let (op, factor) = reduction(&comm, given)?;
        if fault == Some(InjectedFault::Pending) {
            comm.stick();
            return Err(IN_PROGRESS);
        }
        let Given { kind, count, dtype, root, .. } = *given;
        let (from, to) = (given.from as usize, given.to as usize);
        if count > 0 {
            group::call(comm, stream, Op { kind, from, to, count, dtype, op, factor, root, nth: 0 }, fault);
        }
        Ok(())
    })
}

/// The built-in reduction of a call, and a factor.
fn reduction(comm: &Comm, given: &Given) -> Result<(i32, Option<u64>), Code> {
    if (0..5).contains(&given.op) {
        return Ok((given.op, None));
    }
    match comm.lock().factors.get(&given.op) {
        Some((dtype, factor)) if *dtype == given.dtype => Ok((0, Some(*factor))),
        Some(_) => wrong("the reduction is of another dtype"),
        None => wrong("Invalid reduction op"),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: Handle,
    stream: Handle,
) -> Code {
    let (name, kind) = ("ncclAllReduce", Kind::AllReduce);
    operate(&Given { name, kind, from, to, count, dtype, op, root: 0, comm, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> Code {
    operate(&Given { name: "ncclReduce", kind: Kind::Reduce, from, to, count, dtype, op, root, comm, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> Code {
    let (name, kind) = ("ncclBroadcast", Kind::Broadcast);
    operate(&Given { name, kind, from, to, count, dtype, op: 0, root, comm, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    comm: Handle,
    stream: Handle,
) -> Code {
    let (name, kind) = ("ncclAllGather", Kind::AllGather);
    operate(&Given { name, kind, from, to, count, dtype, op: 0, root: 0, comm, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclReduceScatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: Handle,
    stream: Handle,
) -> Code {
    let (name, kind) = ("ncclReduceScatter", Kind::ReduceScatter);
    operate(&Given { name, kind, from, to, count, dtype, op, root: 0, comm, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAlltoAll(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    comm: Handle,
    stream: Handle,
) -> Code {
    let (name, kind) = ("ncclAlltoAll", Kind::AllToAll);
    operate(&Given { name, kind, from, to, count, dtype, op: 0, root: 0, comm, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(
    from: *const c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: Handle,
    stream: Handle,
) -> Code {
    let to = std::ptr::null_mut();
    let (name, kind) = ("ncclSend", Kind::Send);
    operate(&Given { name, kind, from, to, count, dtype, op: 0, root: peer, comm, stream })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: Handle,
    stream: Handle,
) -> Code {
    let from = std::ptr::null();
    let (name, kind) = ("ncclRecv", Kind::Recv);
    operate(&Given { name, kind, from, to, count, dtype, op: 0, root: peer, comm, stream })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut c_int,
    scalar: *const c_void,
    dtype: c_int,
    residence: c_int,
    comm: Handle,
) -> Code {
    call("ncclRedOpCreatePreMulSum", json!({ "dtype": dtype }), || {
        let comm = ready(comm)?;
        let Some(form) = number::form(dtype) else { return wrong("Invalid type") };
        if residence != 1 || scalar.is_null() {
            return wrong("the fake reads factors from the host alone");
        }
        let mut factor = [0; 8];
        factor[..form.bytes()].copy_from_slice(std::slice::from_raw_parts(scalar.cast(), form.bytes()));
        let mut inner = comm.lock();
        let number = (5..).find(|number| !inner.factors.contains_key(number)).unwrap_or(5);
        inner.factors.insert(number, (dtype, u64::from_le_bytes(factor)));
        drop(inner);
        give(op, number)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRedOpDestroy(op: c_int, comm: Handle) -> Code {
    call("ncclRedOpDestroy", json!({}), || match known(comm)?.lock().factors.remove(&op) {
        Some(_) => Ok(()),
        None => wrong("no such reduction"),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> Code {
    call("ncclGroupStart", json!({}), || {
        group::start();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> Code {
    let mut ended = false;
    let code = call("ncclGroupEnd", json!({}), || {
        ended = true;
        group::end()
    });
    if !ended {
        // A planned failure: the group is over, and launches nothing.
        group::note_error(code);
        let _ = group::end();
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Code {
    call("ncclGetVersion", json!({}), || give(version, state().settings.nccl_version))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    codes::text(code).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(comm: Handle) -> *const c_char {
    if let Some(comm) = comm::find(comm as usize) {
        let text = comm.lock().text.clone();
        if !text.is_empty() {
            note(&text);
        }
    }
    LAST.lock().unwrap_or_else(PoisonError::into_inner).1.as_ptr()
}
