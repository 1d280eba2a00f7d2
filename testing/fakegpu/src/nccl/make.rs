//! How communicators come to be, and how they end.

use super::codes::{IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, SYSTEM_ERROR};
use super::comm::{self, Comm, Stop};
use super::group::{self, Job};
use super::room::Header;
use super::{Code, Handle, give, grouped, known, note, ready, wrong};
use crate::fault;
use crate::state::{call, current, state};
use serde_json::json;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const MAGIC: &[u8; 8] = b"fakenccl";

#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Code {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    call("ncclGetUniqueId", json!({}), || {
        let mut bytes = [0; 128];
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
        bytes[16..24].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        bytes[24..32].copy_from_slice(&now.to_le_bytes());
        give(id, UniqueId(bytes))
    })
}

/// The current context's device.
fn device() -> Result<i32, Code> {
    current().map_err(|code| {
        note(&format!("Cuda failure {code}"));
        super::codes::UNHANDLED_CUDA_ERROR
    })
}

fn init(name: &'static str, to: *mut usize, size: c_int, id: UniqueId, rank: c_int, blocking: bool) -> Code {
    grouped(name, json!({ "rank": rank, "size": size }), || {
        let fault = fault::take_of_call();
        let device = device()?;
        if to.is_null() || size < 1 || rank < 0 || rank >= size {
            return wrong("Invalid rank requested");
        }
        if &id.0[..8] != MAGIC {
            return wrong("the unique id is none");
        }
        let folder = id.0[8..32].iter().map(|byte| format!("{byte:02x}")).collect();
        let comm = Comm::new(folder, device, blocking).map_err(system)?;
        let maker = comm.clone();
        let work = Box::new(move || maker.meet(rank as u32, size as u32, 0, fault));
        start(comm, to, work)
    })
}

fn system(text: String) -> Code {
    note(&text);
    SYSTEM_ERROR
}

fn start(comm: Arc<Comm>, to: *mut usize, work: Box<dyn FnOnce() + Send>) -> Result<(), Code> {
    // Without waiting, the caller asks through the handle how far it is.
    // SAFETY: the caller's pointer was checked.
    unsafe { to.write(if comm.blocking { 0 } else { comm.handle }) };
    group::make(Job { comm, slot: to as usize, work })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRank(comm: *mut usize, size: c_int, id: UniqueId, rank: c_int) -> Code {
    init("ncclCommInitRank", comm, size, id, rank, true)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut usize,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> Code {
    let blocking = match config.as_ref() {
        None => true,
        Some(config) if config.magic == 0xcafe_beef && config.size >= size_of::<Config>() => config.blocking != 0,
        Some(_) => {
            note("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
            return INVALID_ARGUMENT;
        }
    };
    init("ncclCommInitRankConfig", comm, size, id, rank, blocking)
}

/// A communicator of some of a parent's ranks; all of them say in the parent's room what they want.
fn child(name: &'static str, parent: Handle, to: *mut usize, wish: Wish) -> Code {
    grouped(name, json!({ "wish": format!("{wish:?}") }), || {
        let fault = fault::take_of_call();
        let parent = match wish {
            // Its work may have failed: that is what it is for.
            Wish::Without(_) => known(parent)?,
            Wish::Color(..) => ready(parent)?,
        };
        if to.is_null() {
            return wrong("an argument is NULL");
        }
        let nth = {
            let mut inner = parent.lock();
            inner.children += 1;
            inner.children
        };
        let place = match &wish {
            Wish::Color(color, _) => format!("{}-split{nth}-{color}", parent.name),
            Wish::Without(excluded) => {
                let list: Vec<String> = excluded.iter().map(ToString::to_string).collect();
                format!("{}-shrink-{}", parent.name, list.join("-"))
            }
        };
        if matches!(wish, Wish::Color(-1, _)) {
            // SAFETY: not null, as checked.
            unsafe { to.write(0) };
            return say(&parent, nth, -1, 0).map_err(system);
        }
        let comm = Comm::new(place, parent.device, parent.blocking).map_err(system)?;
        let maker = comm.clone();
        let work = Box::new(move || match place_in(&parent, nth, &wish) {
            Ok((rank, size)) => maker.meet(rank, size, 0, fault),
            Err(stop) => maker.stop(stop),
        });
        start(comm, to, work)
    })
}

#[derive(Debug)]
enum Wish {
    /// A color, and a key.
    Color(i32, i32),
    /// The ranks that are left out, in order.
    Without(Vec<u32>),
}

fn say(parent: &Comm, nth: u64, color: i32, key: i32) -> Result<(), String> {
    let header = Header { op: color, root: key, rank: parent.rank(), ..Header::default() };
    parent.room.post(&format!("split.{nth}.{}", parent.rank()), header, &[]).map(drop)
}

/// Rank and size in the child.
fn place_in(parent: &Comm, nth: u64, wish: &Wish) -> Result<(u32, u32), Stop> {
    let mut members = match *wish {
        Wish::Without(ref excluded) => {
            (0..parent.size()).filter(|rank| !excluded.contains(rank)).map(|rank| (0, rank)).collect::<Vec<_>>()
        }
        Wish::Color(color, key) => {
            say(parent, nth, color, key).map_err(Stop::system)?;
            let mut members = Vec::new();
            for rank in 0..parent.size() {
                let name = format!("split.{nth}.{rank}");
                let (theirs, _) = parent.wait(|| parent.room.read(&name).map_err(Stop::system))?;
                if theirs.op == color {
                    members.push((theirs.root, rank));
                }
            }
            members
        }
    };
    members.sort_unstable();
    let at = members.iter().position(|(_, rank)| *rank == parent.rank());
    let at = at.ok_or_else(|| Stop::usage("this rank is left out"))?;
    Ok((at as u32, members.len() as u32))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommSplit(
    parent: Handle,
    color: c_int,
    key: c_int,
    to: *mut usize,
    _config: *const Config,
) -> Code {
    child("ncclCommSplit", parent, to, Wish::Color(color.max(-1), key))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommShrink(
    parent: Handle,
    excluded: *const c_int,
    count: c_int,
    to: *mut usize,
    _config: *const Config,
    flags: c_int,
) -> Code {
    let mut list: Vec<u32> = match usize::try_from(count) {
        Ok(count) if count > 0 && !excluded.is_null() => {
            std::slice::from_raw_parts(excluded, count).iter().map(|rank| *rank as u32).collect()
        }
        _ => {
            note("no rank is excluded");
            return INVALID_ARGUMENT;
        }
    };
    list.sort_unstable();
    if flags & 1 == 1
        && let Ok(parent) = known(parent)
    {
        parent.give_up();
    }
    child("ncclCommShrink", parent, to, Wish::Without(list))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: Handle, to: *mut Code) -> Code {
    // Not logged: it is asked again and again.
    let fault = fault::strike(&mut state().faults, "ncclCommGetAsyncError");
    if let Some(fault::InjectedFault::Code(code)) = fault {
        return code;
    }
    known(comm).and_then(|comm| give(to, comm.code())).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(comm: Handle, to: *mut c_int) -> Code {
    call("ncclCommCount", json!({}), || give(to, known(comm)?.size() as c_int))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(comm: Handle, to: *mut c_int) -> Code {
    call("ncclCommUserRank", json!({}), || give(to, known(comm)?.rank() as c_int))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCuDevice(comm: Handle, to: *mut c_int) -> Code {
    call("ncclCommCuDevice", json!({}), || give(to, known(comm)?.device))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(comm: Handle) -> Code {
    call("ncclCommFinalize", json!({}), || {
        let comm = ready(comm)?;
        comm.finalize();
        if comm.code() == IN_PROGRESS { Err(IN_PROGRESS) } else { Ok(()) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: Handle) -> Code {
    call("ncclCommDestroy", json!({}), || {
        let comm = known(comm)?;
        if comm.code() == IN_PROGRESS {
            return Err(INVALID_USAGE);
        }
        comm.wait_for_work();
        comm::forget(comm.handle);
        comm.end(false);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: *mut c_void) -> Code {
    call("ncclCommAbort", json!({}), || {
        let comm = known(comm)?;
        comm::forget(comm.handle);
        comm.end(true);
        Ok(())
    })
}
