//! Collectives, sends and receives. Arguments are checked first; calls of no bytes do nothing.
//!
//! Data that is only moved may be of any dtype: what NCCL has no name for travels as bytes.

use super::check::{self, Overlap, Reducing};
use super::{Comm, group};
use crate::nccl::NcclError;
use crate::nccl::result::{self, CallError, Operands, Progress};
use crate::nccl::sys::{NcclDataType, NcclRedOp};
use crate::{DeviceBuffer, Stream};
use bucketeer_types::DType;
use bucketeer_types::Reduction;

impl Comm {
    /// Every rank gets the reduced inputs, all of the same length. In place when both are the same.
    ///
    /// # Errors
    /// Of this and the calls below: when a length, dtype, address, rank or device does not fit; when the communicator
    /// is closed, or earlier work on it failed; when NCCL fails or takes too long.
    pub fn all_reduce(
        &self,
        stream: &Stream,
        input: &DeviceBuffer,
        output: &DeviceBuffer,
        dtype: DType,
        op: Reduction,
    ) -> Result<(), NcclError> {
        const CALL: &str = "ncclAllReduce";
        let count = self.elements(CALL, "input", stream, input, dtype)?;
        Self::expect_len(CALL, "output", self.elements(CALL, "output", stream, output, dtype)?, count)?;
        self.check_overlap(CALL, input, output, Overlap::Same)?;
        self.reduce_with(CALL, stream, [input, output], (dtype, op), count, |comm, on, op| {
            // SAFETY: both ranges have `count` elements and are the same or apart, as checked.
            unsafe { comm.all_reduce(on, op) }
        })
    }

    /// The root gets the reduced inputs. The outputs of others, as long, are not written.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce(
        &self,
        stream: &Stream,
        input: &DeviceBuffer,
        output: &DeviceBuffer,
        (dtype, op): (DType, Reduction),
        root: u32,
    ) -> Result<(), NcclError> {
        const CALL: &str = "ncclReduce";
        self.expect_member(CALL, "root", root)?;
        let count = self.elements(CALL, "input", stream, input, dtype)?;
        Self::expect_len(CALL, "output", self.elements(CALL, "output", stream, output, dtype)?, count)?;
        self.check_overlap(CALL, input, output, Overlap::Same)?;
        self.reduce_with(CALL, stream, [input, output], (dtype, op), count, |comm, on, op| {
            // SAFETY: as in `all_reduce`.
            unsafe { comm.reduce(on, op, root) }
        })
    }

    /// Every rank gets its part of the reduced inputs, which are as long as all outputs. In place when the output is
    /// this rank's part of the input.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter(
        &self,
        stream: &Stream,
        input: &DeviceBuffer,
        output: &DeviceBuffer,
        dtype: DType,
        op: Reduction,
    ) -> Result<(), NcclError> {
        const CALL: &str = "ncclReduceScatter";
        let count = self.elements(CALL, "output", stream, output, dtype)?;
        let all = count.saturating_mul(self.size() as usize);
        Self::expect_len(CALL, "input", self.elements(CALL, "input", stream, input, dtype)?, all)?;
        self.check_overlap(CALL, input, output, Overlap::OutputInInput)?;
        self.reduce_with(CALL, stream, [input, output], (dtype, op), count, |comm, on, op| {
            // SAFETY: the output has `count` elements, the input as many for each rank; they lie as NCCL allows.
            unsafe { comm.reduce_scatter(on, op) }
        })
    }

    /// Every rank gets the root's input. The inputs of others, as long, are not read. In place when both are the same.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn broadcast(
        &self,
        stream: &Stream,
        input: &DeviceBuffer,
        output: &DeviceBuffer,
        dtype: DType,
        root: u32,
    ) -> Result<(), NcclError> {
        const CALL: &str = "ncclBroadcast";
        self.expect_member(CALL, "root", root)?;
        let count = self.elements(CALL, "input", stream, input, dtype)?;
        Self::expect_len(CALL, "output", self.elements(CALL, "output", stream, output, dtype)?, count)?;
        self.check_overlap(CALL, input, output, Overlap::Same)?;
        self.move_with(CALL, stream, [input, output], dtype, count, |comm, on| {
            // SAFETY: as in `all_reduce`.
            unsafe { comm.broadcast(on, root) }
        })
    }

    /// Every rank gets all inputs, end to end in rank order. In place when the input is this rank's part of the output.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather(
        &self,
        stream: &Stream,
        input: &DeviceBuffer,
        output: &DeviceBuffer,
        dtype: DType,
    ) -> Result<(), NcclError> {
        const CALL: &str = "ncclAllGather";
        let count = self.elements(CALL, "input", stream, input, dtype)?;
        let all = count.saturating_mul(self.size() as usize);
        Self::expect_len(CALL, "output", self.elements(CALL, "output", stream, output, dtype)?, all)?;
        self.check_overlap(CALL, input, output, Overlap::InputInOutput)?;
        self.move_with(CALL, stream, [input, output], dtype, count, |comm, on| {
            // SAFETY: the input has `count` elements, the output as many for each rank; they lie as NCCL allows.
            unsafe { comm.all_gather(on) }
        })
    }

    /// Rank r's part s of the input becomes rank s's part r of the output; all parts are equally long. One call of
    /// NCCL since 2.28, sends and receives before. For parts of several lengths group [`send`](Self::send) and
    /// [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_to_all(
        &self,
        stream: &Stream,
        input: &DeviceBuffer,
        output: &DeviceBuffer,
        dtype: DType,
    ) -> Result<(), NcclError> {
        const CALL: &str = "ncclAlltoAll";
        let (all, size) = (self.elements(CALL, "input", stream, input, dtype)?, self.size() as usize);
        Self::expect_len(CALL, "output", self.elements(CALL, "output", stream, output, dtype)?, all)?;
        if !all.is_multiple_of(size) {
            return Err(NcclError::invalid(CALL, format!("{all} elements are no {size} equal parts")));
        }
        self.check_overlap(CALL, input, output, Overlap::Apart)?;
        if self.nccl().0.sys().ncclAlltoAll.is_none() {
            return self.all_to_all_by_parts(stream, input, output, dtype);
        }
        self.move_with(CALL, stream, [input, output], dtype, all / size, |comm, on| {
            // SAFETY: both ranges have as many elements for each rank, and are apart. Found above to be there.
            unsafe { comm.all_to_all(on) }.unwrap_or(Ok(Progress::Done))
        })
    }

    fn all_to_all_by_parts(
        &self,
        stream: &Stream,
        input: &DeviceBuffer,
        output: &DeviceBuffer,
        dtype: DType,
    ) -> Result<(), NcclError> {
        let group = if group::is_open() { None } else { Some(self.nccl().group()?) };
        let part = input.len() / self.size() as usize;
        let each = (0..self.size()).try_for_each(|peer| {
            let range = peer as usize * part..(peer as usize + 1) * part;
            self.send(stream, &input.slice(range.clone())?, dtype, peer)?;
            self.recv(stream, &output.slice(range)?, dtype, peer)
        });
        let ended = group.map_or(Ok(()), super::Group::end);
        each.and(ended)
    }

    /// Sends to a rank, which receives as many elements. Waits for it on the stream: two ranks that send to each other
    /// do so in a [`Group`](super::Group).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn send(&self, stream: &Stream, input: &DeviceBuffer, dtype: DType, to: u32) -> Result<(), NcclError> {
        const CALL: &str = "ncclSend";
        self.expect_member(CALL, "receiver", to)?;
        let count = self.elements(CALL, "input", stream, input, dtype)?;
        self.move_with(CALL, stream, [input, input], dtype, count, |comm, on| {
            // SAFETY: the range has `count` elements.
            unsafe { comm.send(on, to) }
        })
    }

    /// Receives from a rank, which sends as many elements.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn recv(&self, stream: &Stream, output: &DeviceBuffer, dtype: DType, from: u32) -> Result<(), NcclError> {
        const CALL: &str = "ncclRecv";
        self.expect_member(CALL, "sender", from)?;
        let count = self.elements(CALL, "output", stream, output, dtype)?;
        self.move_with(CALL, stream, [output, output], dtype, count, |comm, on| {
            // SAFETY: the range has `count` elements.
            unsafe { comm.recv(on, from) }
        })
    }

    fn reduce_with(
        &self,
        call: &'static str,
        stream: &Stream,
        buffers: [&DeviceBuffer; 2],
        (dtype, op): (DType, Reduction),
        count: usize,
        enqueue: impl FnOnce(&result::Comm, Operands, NcclRedOp) -> Result<Progress, CallError>,
    ) -> Result<(), NcclError> {
        let nccl = self.nccl();
        let (dtype, reducing) =
            check::reduction(op, dtype, nccl.0.version()).map_err(|reason| NcclError::invalid(call, reason))?;
        if count == 0 {
            return Ok(());
        }
        let on = operands(stream, buffers, count, dtype);
        self.0.launch(call, stream, &buffers, |comm| match reducing {
            Reducing::BuiltIn(op) => Ok(enqueue(comm, on, op)?),
            Reducing::PreMulSum(scalar) => {
                const CALL: &str = "ncclRedOpCreatePreMulSum";
                let op = comm.pre_mul_sum(dtype, scalar).ok_or_else(|| nccl.unsupported(CALL, 21_100))??;
                let enqueued = enqueue(comm, on, op);
                // Calls that returned have taken it over.
                let forgotten = comm.forget_op(op);
                let progress = enqueued?;
                forgotten?;
                Ok(progress)
            }
        })
    }

    fn move_with(
        &self,
        call: &'static str,
        stream: &Stream,
        buffers: [&DeviceBuffer; 2],
        dtype: DType,
        count: usize,
        enqueue: impl FnOnce(&result::Comm, Operands) -> Result<Progress, CallError>,
    ) -> Result<(), NcclError> {
        if count == 0 {
            return Ok(());
        }
        let on = match check::dtype_of(dtype, self.nccl().0.version()) {
            Some(dtype) => operands(stream, buffers, count, dtype),
            None => operands(stream, buffers, count * dtype.bytes() as usize, NcclDataType::UINT8),
        };
        self.0.launch(call, stream, &buffers, |comm| Ok(enqueue(comm, on)?))
    }
}

fn operands(stream: &Stream, [from, to]: [&DeviceBuffer; 2], count: usize, dtype: NcclDataType) -> Operands {
    Operands { from: from.pointer(), to: to.pointer(), count, dtype, stream: stream.as_raw() }
}
