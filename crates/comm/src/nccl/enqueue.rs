//! Calls in NCCL's terms, on a group's stream.
//!
//! Buffers of the device go to NCCL as they are. Those of the host go by way of page-locked memory and memory of the
//! device, in the stream's order: nothing waits on the host.

use super::channel::Channel;
use super::launched::{Held, Return, Scratch};
use crate::buffer::{Access, Buffer, BufferError, Holder};
use crate::call::{Call, Op, Reduction};
use crate::group::Group;
use crate::signature::Described;
use bucketeer_cuda::nccl::expect_reducible;
use bucketeer_cuda::nccl::{Comm, Nccl, NcclError};
use bucketeer_cuda::{Context, CudaError, DeviceBuffer};
use bucketeer_types::{DType, ReduceOp};
use std::ops::Range;

/// What a call holds of buffers of the host: with the place of each buffer in what is held.
#[derive(Default)]
pub struct HeldOfHost {
    pub held: Vec<Held>,
    input: Option<(usize, Range<usize>)>,
    output: Option<(usize, Range<usize>)>,
}

/// Where NCCL has no word for a dtype, but another dtype's gives the same bytes.
fn translated(dtype: DType, op: Reduction) -> (DType, Reduction) {
    match (dtype, op) {
        (DType::Bool, Reduction::Op(ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Max | ReduceOp::BitOr)) => {
            (DType::U8, ReduceOp::Max.into())
        }
        (DType::Bool, Reduction::Op(ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd)) => {
            (DType::U8, ReduceOp::Min.into())
        }
        _ => (dtype, op),
    }
}

/// That NCCL can do it, and reach the buffers.
pub fn check(nccl: &Nccl, context: &Context, call: &Call) -> Result<(), String> {
    for (what, buffer) in [("input", call.input()), ("output", call.output())] {
        let Some(memory) = buffer.and_then(Buffer::device) else { continue };
        let (width, gpu) = (call.dtype().bytes(), memory.context().device().ordinal());
        if memory.context().as_raw() != context.as_raw() {
            let own = context.device().ordinal();
            return Err(format!("the {what} is memory of a context of GPU {gpu}, and this rank is on GPU {own}"));
        }
        if !memory.pointer().is_multiple_of(width) {
            let name = call.dtype().torch_name();
            return Err(format!("the {what} begins at {:#x}, which is not aligned for {name}", memory.pointer()));
        }
    }
    match call.op().reduction() {
        Some(op) => {
            let (dtype, op) = translated(call.dtype(), op);
            expect_reducible(nccl, op, dtype)
        }
        None => Ok(()),
    }
}

/// Takes hold of a checked call's buffers, as far as they are of the host.
pub fn hold(call: &Call, group: &Group) -> Result<HeldOfHost, BufferError> {
    let mut of_host = HeldOfHost::default();
    for (buffer, access) in call.needed(group).into_iter().filter(|(buffer, _)| buffer.device().is_none()) {
        let holder = Holder::Call { op: call.op().name(), group: group.shared_name() };
        of_host.held.push(match access {
            Access::Read => Held::Read(buffer.read_as(holder)?),
            Access::Write => Held::Write(buffer.write_as(holder)?),
        });
        let at = of_host.held.len() - 1;
        let inside = |part: Option<&Buffer>| {
            // A part of what is held, or not in it.
            let part = part.filter(|part| part.bytes() == 0 && *part == buffer || part.overlaps(buffer))?;
            let start = part.offset().checked_sub(buffer.offset())? as usize;
            Some((at, start..start + part.bytes() as usize))
        };
        of_host.input = of_host.input.take().or_else(|| inside(call.input()));
        of_host.output = of_host.output.take().or_else(|| inside(call.output()));
    }
    Ok(of_host)
}

/// A call's buffers on the device.
struct OnDevice {
    input: DeviceBuffer,
    output: DeviceBuffer,
}

/// What is on its way, and what comes back.
#[derive(Default)]
pub struct Enqueued {
    pub scratches: Vec<Scratch>,
    pub held: Vec<Held>,
    pub returns: Vec<Return>,
}

/// Enqueues calls; several are launched as one.
///
/// # Errors
/// Some of them may have been enqueued.
pub fn enqueue(channel: &Channel, comm: &Comm, calls: Vec<(Call, HeldOfHost)>) -> Result<Enqueued, NcclError> {
    let mut made = Enqueued::default();
    let mut placed = Vec::with_capacity(calls.len());
    for (call, held) in calls {
        let on_device = made.place(channel, &call, held)?;
        if let Op::Reduce { root, .. } = call.op()
            && *root != channel.group.rank()
            && on_device.input.pointer() != on_device.output.pointer()
        {
            channel.stream.copy(&on_device.input, 0..on_device.input.len(), &on_device.output, 0)?;
        }
        placed.push((call, on_device));
    }
    let group = if placed.len() > 1 { Some(comm.nccl().group()?) } else { None };
    let each = placed.iter().try_for_each(|(call, on)| start(channel, comm, call, on, group.is_some()));
    let ended = group.map_or(Ok(()), bucketeer_cuda::nccl::Group::end);
    each.and(ended)?;
    for Return { scratch, bytes, .. } in &made.returns {
        let Scratch { device, pinned } = &mut made.scratches[*scratch];
        channel.stream.copy_to_host(device, 0..*bytes, pinned, 0)?;
    }
    Ok(made)
}

impl Enqueued {
    /// Brings a call's buffers to the device.
    fn place(&mut self, channel: &Channel, call: &Call, of_host: HeldOfHost) -> Result<OnDevice, NcclError> {
        let first_held = self.held.len();
        let HeldOfHost { held, input, output } = of_host;
        let in_place = matches!((&input, &output), (Some((a, _)), Some((b, _))) if a == b);
        let on_device = |made: &mut Self, part: &(usize, Range<usize>), reads: bool| {
            let mut scratch = channel.scratch(part.1.len())?;
            let bytes = part.1.len();
            if reads && bytes > 0 {
                let from = held_bytes(&held[part.0]);
                scratch.pinned.bytes()?[..bytes].copy_from_slice(&from[part.1.clone()]);
                channel.stream.copy_to_device(&scratch.pinned, 0..bytes, &scratch.device, 0)?;
            }
            let device = scratch.device.slice(0..bytes)?;
            made.scratches.push(scratch);
            Ok::<_, CudaError>(device)
        };
        let sent = match (&input, call.input()) {
            (Some(part), _) => Some(on_device(self, part, true)?),
            (None, Some(buffer)) => buffer.device(),
            (None, None) => None,
        };
        let received = match (&output, call.output()) {
            // The same bytes, or a part of them: NCCL gets both parts in one piece.
            (Some(part), _) if in_place && input.as_ref() == Some(part) => sent.clone(),
            (Some(part), _) => Some(on_device(self, part, false)?),
            (None, Some(buffer)) => buffer.device(),
            (None, None) => None,
        };
        if let Some((at, to)) = output {
            let scratch = self.scratches.len() - 1;
            self.returns.push(Return { scratch, bytes: to.len(), held: first_held + at, to });
        }
        self.held.extend(held);
        // A send has no output, a receive no input; nobody's input but the root's is read in a broadcast.
        let (input, output) = match (sent, received) {
            (Some(sent), Some(received)) => (sent, received),
            (Some(one), None) | (None, Some(one)) => (one.clone(), one),
            (None, None) => {
                // A barrier moves one byte of its own.
                let scratch = channel.scratch(1)?;
                let token = scratch.device.slice(0..1)?;
                self.scratches.push(scratch);
                (token.clone(), token)
            }
        };
        Ok(OnDevice { input, output })
    }
}

fn held_bytes(held: &Held) -> &[u8] {
    match held {
        Held::Read(guard) => guard,
        Held::Write(guard) => guard,
    }
}

fn start(channel: &Channel, comm: &Comm, call: &Call, on: &OnDevice, grouped: bool) -> Result<(), NcclError> {
    let (stream, OnDevice { input, output }, dtype) = (&channel.stream, on, call.dtype());
    match call.op() {
        Op::AllReduce(op) => {
            let (dtype, op) = translated(dtype, *op);
            comm.all_reduce(stream, input, output, dtype, op)
        }
        Op::ReduceScatter(op) => {
            let (dtype, op) = translated(dtype, *op);
            comm.reduce_scatter(stream, input, output, dtype, op)
        }
        Op::Reduce { op, root } => comm.reduce(stream, input, output, translated(dtype, *op), root.0),
        Op::AllGather => comm.all_gather(stream, input, output, dtype),
        Op::Broadcast { root } => comm.broadcast(stream, input, output, dtype, root.0),
        Op::AllToAll { send, receive } if send.is_empty() && receive.is_empty() => {
            comm.all_to_all(stream, input, output, dtype)
        }
        Op::AllToAll { .. } => {
            let group = if grouped { None } else { Some(comm.nccl().group()?) };
            let (sends, receives) = call.split_bytes(comm.size() as usize);
            let (mut from, mut to) = (0, 0);
            let each = (0..).zip(sends.iter().zip(&receives)).try_for_each(|(peer, (send, receive))| {
                let (sent, received) = (from..from + *send as usize, to..to + *receive as usize);
                (from, to) = (sent.end, received.end);
                comm.send(stream, &input.slice(sent)?, dtype, peer)?;
                comm.recv(stream, &output.slice(received)?, dtype, peer)
            });
            let ended = group.map_or(Ok(()), bucketeer_cuda::nccl::Group::end);
            each.and(ended)
        }
        Op::Send { to } => comm.send(stream, input, dtype, to.0),
        Op::Recv { from } => comm.recv(stream, output, dtype, from.0),
        Op::Barrier => {
            stream.fill(input, 0..1, 0)?;
            comm.all_reduce(stream, input, output, DType::U8, ReduceOp::Max.into())
        }
    }
}
