//! Groups: what a thread calls between `ncclGroupStart` and `ncclGroupEnd`.

use super::codes::{IN_PROGRESS, INVALID_USAGE};
use super::comm::Comm;
use super::run::{Item, Kind, Op};
use crate::fault::InjectedFault;
use crate::stream::{Stream, Work};
use std::cell::RefCell;
use std::sync::Arc;

/// A communicator in the making.
pub struct Job {
    pub comm: Arc<Comm>,
    /// Where a caller that waits finds it at the end.
    pub slot: usize,
    pub work: Box<dyn FnOnce() + Send>,
}

struct Call {
    comm: Arc<Comm>,
    stream: Arc<Stream>,
    op: Op,
    fault: Option<InjectedFault>,
}

#[derive(Default)]
struct Group {
    depth: u32,
    jobs: Vec<Job>,
    calls: Vec<Call>,
    /// The first error of a call in it.
    error: Option<i32>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// An error of a call in a group is the group's, too.
pub fn note_error(code: i32) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.error.get_or_insert(code);
        }
    });
}

pub fn end() -> Result<(), i32> {
    let depth = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        Some(group.depth)
    });
    match depth {
        None => Err(INVALID_USAGE),
        Some(0) => finish(GROUP.take()),
        Some(_) => Ok(()),
    }
}

fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

/// Makes a communicator now, or at the group's end.
pub fn make(job: Job) -> Result<(), i32> {
    if is_open() {
        GROUP.with_borrow_mut(|group| group.jobs.push(job));
        return Ok(());
    }
    finish(Group { jobs: vec![job], ..Group::default() })
}

/// Enqueues a call now, or at the group's end.
pub fn call(comm: Arc<Comm>, stream: Arc<Stream>, op: Op, fault: Option<InjectedFault>) {
    let call = Call { comm, stream, op, fault };
    if is_open() {
        GROUP.with_borrow_mut(|group| group.calls.push(call));
    } else {
        enqueue(vec![call]);
    }
}

fn finish(group: Group) -> Result<(), i32> {
    if let Some(error) = group.error {
        group.jobs.iter().for_each(|job| drop(super::comm::forget(job.comm.handle)));
        return Err(error);
    }
    let mut threads = Vec::new();
    let mut is_pending = false;
    for Job { comm, slot, work } in group.jobs {
        let thread = std::thread::spawn(work);
        if comm.blocking { threads.push((thread, comm, slot)) } else { is_pending = true }
    }
    let mut failed = None;
    for (thread, comm, slot) in threads {
        let code = if thread.join().is_ok() { comm.code() } else { 3 };
        if code == 0 {
            // SAFETY: the caller keeps its pointer until the end of the call or group.
            unsafe { (slot as *mut usize).write(if comm.size() > 0 { comm.handle } else { 0 }) };
        } else {
            super::note(&comm.lock().text);
            failed.get_or_insert(code);
        }
        if code != 0 || comm.size() == 0 {
            super::comm::forget(comm.handle);
        }
    }
    enqueue(group.calls);
    match failed {
        Some(code) => Err(code),
        None if is_pending => Err(IN_PROGRESS),
        None => Ok(()),
    }
}

/// Collectives one by one; the sends and receives on one communicator and stream at once, where the first of them is.
fn enqueue(calls: Vec<Call>) {
    let mut items: Vec<(Item, Arc<Stream>, Option<InjectedFault>)> = Vec::new();
    for Call { comm, stream, mut op, fault } in calls {
        let is_message = matches!(op.kind, Kind::Send | Kind::Recv);
        if is_message {
            let mut inner = comm.lock();
            let peer = op.root as u32;
            let counts = if op.kind == Kind::Send { &mut inner.sent } else { &mut inner.received };
            let count = counts.entry(peer).or_default();
            op.nth = *count;
            *count += 1;
        }
        let same = |(item, on, _): &&mut (Item, Arc<Stream>, Option<InjectedFault>)| {
            let messages = matches!(item.ops[0].kind, Kind::Send | Kind::Recv);
            messages && Arc::ptr_eq(&item.comm, &comm) && Arc::ptr_eq(on, &stream)
        };
        match items.iter_mut().find(same) {
            Some((item, _, planned)) if is_message => {
                item.ops.push(op);
                *planned = planned.or(fault);
            }
            _ => {
                let nth = if is_message { 0 } else { comm.next_collective() };
                items.push((Item { number: comm.next(), nth, comm, ops: vec![op] }, stream, fault));
            }
        }
    }
    for (item, stream, fault) in items {
        stream.enqueue_with(Work::Nccl(item), fault);
    }
}
