//! Work of NCCL on a stream.

use super::codes::UNHANDLED_CUDA_ERROR;
use super::comm::{Comm, Stop};
use super::number::{Form, form};
use super::room::Header;
use crate::fault::InjectedFault;
use crate::stream::{Side, Stream};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    AllReduce = 1,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Send,
    Recv,
}

const NAMES: [&str; 9] = [
    "?",
    "ncclAllReduce",
    "ncclReduce",
    "ncclBroadcast",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclAlltoAll",
    "ncclSend",
    "ncclRecv",
];

/// A call, as far as it was checked when it was made.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub kind: Kind,
    pub from: usize,
    pub to: usize,
    pub count: usize,
    pub dtype: i32,
    /// A built-in reduction: 0 with a factor.
    pub op: i32,
    pub factor: Option<u64>,
    /// The root, or the other rank.
    pub root: i32,
    /// The number of a send or receive among those of its two ranks.
    pub nth: u64,
}

/// What the stream of one rank does: one collective, or sends and receives that run at once.
pub struct Item {
    pub comm: Arc<Comm>,
    pub number: u64,
    /// The number of a collective among those, the same on all ranks.
    pub nth: u64,
    pub ops: Vec<Op>,
}

impl Op {
    fn header(&self, comm: &Comm) -> Header {
        Header {
            kind: self.kind as u32,
            dtype: self.dtype,
            op: self.op,
            root: self.root,
            rank: comm.rank(),
            size: comm.size(),
            count: self.count as u64,
            extra: self.factor.unwrap_or(0),
            pid: std::process::id(),
        }
    }
}

/// A message in words.
fn words(header: &Header) -> String {
    let name = NAMES.get(header.kind as usize).unwrap_or(&"?");
    let reduces = matches!(header.kind, 1 | 2 | 5);
    let op = if reduces { format!(", op {}", header.op) } else { String::new() };
    let root = if matches!(header.kind, 2 | 3) { format!(", root {}", header.root) } else { String::new() };
    format!("rank {} calls {name} of {} of dtype {}{op}{root}", header.rank, header.count, header.dtype)
}

impl Item {
    /// Runs it in its turn; what it touches that it may not, is the error.
    pub fn run(self, stream: &Stream, fault: Option<InjectedFault>, is_lost: bool) -> Result<(), String> {
        let mut violation = Ok(());
        let mut run = || {
            self.comm.wait_turn(self.number)?;
            self.comm.strike(fault)?;
            if is_lost {
                return Err(Stop::Failure(UNHANDLED_CUDA_ERROR, "the context is lost".to_owned()));
            }
            match self.ops.as_slice() {
                [op] if !matches!(op.kind, Kind::Send | Kind::Recv) => self.collective(stream, op, &mut violation),
                ops => self.messages(stream, ops, &mut violation),
            }
        };
        if let Err(stop) = run() {
            self.comm.stop(stop);
        }
        self.comm.finish(self.number);
        violation
    }

    fn collective(&self, stream: &Stream, op: &Op, violation: &mut Result<(), String>) -> Result<(), Stop> {
        let (comm, form) = (&self.comm, form_of(op));
        let (rank, size) = (comm.rank() as usize, comm.size() as usize);
        let part = op.count * form.bytes();
        let is_root = op.root == comm.rank() as i32;
        let input = match op.kind {
            Kind::Broadcast if !is_root => Vec::new(),
            Kind::ReduceScatter | Kind::AllToAll => read(stream, op.from, part * size, violation)?,
            _ => read(stream, op.from, part, violation)?,
        };
        let mine = op.header(comm);
        comm.room.post(&format!("op.{}.{rank}", self.nth), mine, &input).map_err(Stop::system)?;
        let mut inputs = Vec::with_capacity(size);
        for other in 0..size {
            let name = format!("op.{}.{other}", self.nth);
            let (theirs, input) = comm.wait(|| comm.room.read(&name).map_err(Stop::system))?;
            if (Header { rank: mine.rank, pid: mine.pid, ..theirs }) != mine {
                return Err(Stop::usage(format!("{}, {}", words(&mine), words(&theirs))));
            }
            inputs.push(input);
        }
        // All have posted this one, so have read the one before.
        comm.room.remove(&format!("op.{}.{rank}", self.nth - 1));
        let output = match op.kind {
            Kind::Broadcast => inputs.swap_remove(op.root as usize),
            Kind::Reduce if !is_root => return Ok(()),
            Kind::AllReduce | Kind::Reduce => reduce(op, form, inputs),
            Kind::ReduceScatter => {
                reduce(op, form, inputs.iter().map(|input| input[rank * part..][..part].to_vec()).collect())
            }
            Kind::AllGather => inputs.concat(),
            _ => inputs.iter().flat_map(|input| input[rank * part..][..part].iter().copied()).collect(),
        };
        write(stream, op.to, &output, violation)
    }

    fn messages(&self, stream: &Stream, ops: &[Op], violation: &mut Result<(), String>) -> Result<(), Stop> {
        let comm = &self.comm;
        let name = |from: u32, to: u32, nth: u64| format!("message.{from}.{to}.{nth}");
        let sends = || ops.iter().filter(|op| op.kind == Kind::Send);
        for op in sends() {
            let input = read(stream, op.from, op.count * form_of(op).bytes(), violation)?;
            let name = name(comm.rank(), op.root as u32, op.nth);
            comm.room.post(&name, op.header(comm), &input).map_err(Stop::system)?;
        }
        for op in ops.iter().filter(|op| op.kind == Kind::Recv) {
            let name = name(op.root as u32, comm.rank(), op.nth);
            let (theirs, input) = comm.wait(|| comm.room.read(&name).map_err(Stop::system))?;
            let mine = op.header(comm);
            if (theirs.count, theirs.dtype) != (mine.count, mine.dtype) {
                return Err(Stop::usage(format!("{}, {}", words(&mine), words(&theirs))));
            }
            write(stream, op.to, &input, violation)?;
            comm.room.remove(&name);
        }
        // As with NCCL, a send is over when it was received.
        sends().try_for_each(|op| {
            let name = name(comm.rank(), op.root as u32, op.nth);
            comm.wait(|| Ok((!comm.room.has(&name)).then_some(())))
        })
    }
}

fn form_of(op: &Op) -> Form {
    form(op.dtype).expect("checked when it was called")
}

fn reduce(op: &Op, form: Form, mut inputs: Vec<Vec<u8>>) -> Vec<u8> {
    if let Some(factor) = op.factor {
        inputs.iter_mut().for_each(|input| form.scale(input, &factor.to_le_bytes()));
    }
    let ranks = inputs.len() as u32;
    let mut inputs = inputs.into_iter();
    let mut acc = inputs.next().unwrap_or_default();
    inputs.for_each(|input| form.combine(op.op, &mut acc, &input));
    if op.op == 4 {
        form.divide(&mut acc, ranks);
    }
    acc
}

fn read(stream: &Stream, at: usize, bytes: usize, violation: &mut Result<(), String>) -> Result<Vec<u8>, Stop> {
    match stream.hold("a collective reads", Side::Device(at), bytes) {
        // SAFETY: the range is allocated, and held while it is read.
        Ok(_held) => Ok(unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }.to_vec()),
        Err(text) => Err(touched(text, violation)),
    }
}

fn write(stream: &Stream, at: usize, content: &[u8], violation: &mut Result<(), String>) -> Result<(), Stop> {
    match stream.hold("a collective writes", Side::Device(at), content.len()) {
        // SAFETY: the range is allocated, and held while it is written.
        Ok(_held) => {
            unsafe { (at as *mut u8).copy_from_nonoverlapping(content.as_ptr(), content.len()) };
            Ok(())
        }
        Err(text) => Err(touched(text, violation)),
    }
}

fn touched(text: String, violation: &mut Result<(), String>) -> Stop {
    *violation = Err(text.clone());
    Stop::Failure(UNHANDLED_CUDA_ERROR, text)
}
