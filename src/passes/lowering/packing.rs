//! Buckets while the program is made: their buffers, slots, packs and launches.

use super::LowerError;
use super::buckets::How;
use super::build::refuse;
use super::walk::{Lowering, Padded, Value};
use crate::ir::Short;
use crate::ir::{CollectiveKind, DType, NodeId};
use crate::program::{BufferId, BufferKind, CommOp, Layout, Moves, Part, Path, Range, Segment, StepKind, View};

impl Lowering<'_> {
    /// The comm buffer of a bucket, made when it is first asked for.
    pub(super) fn bucket_buffer(&mut self, number: u32) -> BufferId {
        let bucket = &self.plan.buckets[number as usize];
        if let Some(buffer) = bucket.buffer {
            return buffer;
        }
        let gather = matches!(bucket.kind, CollectiveKind::AllGather { .. });
        let bytes = bucket.send_bytes() * if gather { bucket.ranks } else { 1 };
        let name = format!("{}.comm", self.graph.name_of(bucket.launch));
        let device = self.graph.tensor(bucket.launch).and_then(|ty| ty.device.clone());
        let group = self.graph.collective(bucket.launch).map(|collective| collective.group.index() as u32);
        let buffer = self.build.buffer(&name, bytes, BufferKind::Comm, device.as_deref());
        self.build.program.buffers[buffer.0 as usize].group = group;
        self.plan.buckets[number as usize].buffer = Some(buffer);
        buffer
    }

    /// What a rank sends: of a gather, its slot of the result.
    pub(super) fn bucket_send(&mut self, number: u32) -> Range {
        let buffer = self.bucket_buffer(number);
        let bucket = &self.plan.buckets[number as usize];
        let bytes = bucket.send_bytes();
        let gather = matches!(bucket.kind, CollectiveKind::AllGather { .. });
        Range { buffer, offset: 0, bytes, rank_bytes: if gather { bytes } else { 0 } }
    }

    fn bucket_dtype(&self, number: u32) -> DType {
        let input = self.graph.collective_inputs(self.plan.buckets[number as usize].launch)[0];
        self.graph.tensor(input).map_or(DType::U8, |ty| ty.dtype)
    }

    /// The slot of a member, in the shape of `shape`: that of a row, or with the rows as its first dimension.
    fn slot(&mut self, number: u32, nth: u32, shape: &[u64], by_row: bool) -> Option<View> {
        let send = self.bucket_send(number);
        let dtype = self.bucket_dtype(number);
        let bucket = &self.plan.buckets[number as usize];
        let (offset, row_bytes) = (bucket.members[nth as usize].offset, bucket.row_bytes);
        let mut layout = Layout::dense(dtype, shape)?;
        if by_row {
            *layout.strides.first_mut()? = row_bytes / dtype.bytes();
        }
        let layout = self.build.layout_id(layout);
        Some(View { buffer: send.buffer, layout, offset: send.offset + offset, rank_bytes: send.rank_bytes })
    }

    /// Where a producer that writes into its slot puts its value.
    pub(super) fn realised(&mut self, producer: NodeId) -> Option<View> {
        let &(number, nth) = self.plan.realised.get(&producer)?;
        let ty = self.graph.tensor(producer)?;
        let shape: Short<u64, 4> = ty.shape.iter().map(|dim| dim.as_const()).collect::<Option<_>>()?;
        self.slot(number, nth, &shape, false)
    }

    /// The segment that copies a member into its slot.
    fn member_segment(&mut self, number: u32, nth: u32) -> Option<Segment> {
        let bucket = &self.plan.buckets[number as usize];
        let (rows, node) = (bucket.rows, bucket.members[nth as usize].node);
        let Value::Tensor(from) = self.value(node) else { return None };
        let shape = self.build.layout(from).shape.clone();
        let by_row = rows > 1;
        if by_row && shape.first() != Some(&rows) {
            return None;
        }
        let to = self.slot(number, nth, &shape, by_row)?;
        Some(Segment { from, to })
    }

    /// Packs what is not in its slot yet.
    pub(super) fn pack(&mut self, number: u32, node: NodeId) -> Result<(), LowerError> {
        let send = self.bucket_send(number);
        let bucket = self.plan.buckets[number as usize].clone();
        let mut moves = Moves::default();
        for (nth, member) in bucket.members.iter().enumerate() {
            if member.elements == 0 {
                continue;
            }
            if member.how == How::Realised {
                self.report.realised += 1;
                continue;
            }
            let Some(segment) = self.member_segment(number, nth as u32) else {
                let name = self.graph.name_of(member.node).to_owned();
                return refuse(self.graph, node, format!("`{name}` is not a tensor of known size"));
            };
            self.report.packed += 1;
            moves.segments.push(segment);
        }
        if bucket.padding > 0 {
            let mut at = 0;
            let element = self.bucket_dtype(number).bytes();
            let ends = bucket.members.iter().map(|member| (member.offset, member.offset + member.elements * element));
            for (start, end) in ends.chain([(bucket.row_bytes, bucket.row_bytes)]) {
                if start > at {
                    for row in 0..bucket.rows {
                        moves.zeros.push(Range {
                            offset: send.offset + row * bucket.row_bytes + at,
                            bytes: start - at,
                            ..send
                        });
                    }
                }
                at = at.max(end);
            }
            self.report.padding_bytes += bucket.padding * bucket.rows;
        }
        if !moves.segments.is_empty() || !moves.zeros.is_empty() {
            self.build.step(self.graph.name_of(node), StepKind::Pack(moves));
        }
        Ok(())
    }

    /// The `cat` of a bucket.
    pub(super) fn bucket_cat(&mut self, id: NodeId, number: u32) -> Result<Value, LowerError> {
        self.pack(number, id)?;
        let send = self.bucket_send(number);
        let bucket = &self.plan.buckets[number as usize];
        if bucket.padding > 0 {
            return Ok(self.padded(number, send.buffer, send.offset, send.rank_bytes, bucket.rows, true));
        }
        let shape = self.shape_of(id)?;
        let view = self.build.view_of(send, self.bucket_dtype(number), &shape);
        view.map_or_else(|| refuse(self.graph, id, "its size passes 64 bits"), |view| Ok(Value::Tensor(view)))
    }

    fn padded(&mut self, number: u32, buffer: BufferId, offset: u64, rank_bytes: u64, rows: u64, sent: bool) -> Value {
        self.paddeds.push(Padded { bucket: number, buffer, offset, rank_bytes, rows, sent });
        Value::Padded(self.paddeds.len() as u32 - 1)
    }

    /// The launch of a bucket; its result.
    pub(super) fn bucket_launch(&mut self, id: NodeId, number: u32) -> Result<Value, LowerError> {
        if self.plan.buckets[number as usize].cat.is_none() {
            self.pack(number, id)?;
        }
        let send = self.bucket_send(number);
        let dtype = self.bucket_dtype(number);
        let bucket = self.plan.buckets[number as usize].clone();
        let (op, recv, rows) = match bucket.kind {
            CollectiveKind::AllGather { .. } => {
                let all = Range { bytes: send.bytes * bucket.ranks, rank_bytes: 0, ..send };
                (CommOp::AllGather, all, bucket.rows * bucket.ranks)
            }
            CollectiveKind::ReduceScatter { op, .. } => {
                let bytes = send.bytes / bucket.ranks;
                let recv = if bucket.in_place {
                    Range { bytes, rank_bytes: bytes, ..send }
                } else {
                    let name = format!("{}.result", self.graph.name_of(id));
                    let device = self.graph.tensor(id).and_then(|ty| ty.device.clone());
                    let buffer = self.build.buffer(&name, bytes, BufferKind::Comm, device.as_deref());
                    Range { buffer, offset: 0, bytes, rank_bytes: 0 }
                };
                (CommOp::ReduceScatter(self.reduce_op(id, op, dtype)?), recv, bucket.rows / bucket.ranks)
            }
            CollectiveKind::AllReduce { op } => (CommOp::AllReduce(self.reduce_op(id, op, dtype)?), send, bucket.rows),
            _ => {
                let CollectiveKind::Broadcast { root } = bucket.kind else {
                    return refuse(self.graph, id, "collectives of this kind have no bucket");
                };
                (CommOp::Broadcast { root }, send, bucket.rows)
            }
        };
        let path = if bucket.one_shot { Path::OneShot } else { Path::Normal };
        let part = Part { count: send.bytes / dtype.bytes(), send, recv };
        self.start(id, op, dtype, path, vec![part], Vec::new());
        if bucket.padding > 0 {
            return Ok(self.padded(number, recv.buffer, recv.offset, recv.rank_bytes, rows.max(1), false));
        }
        let shape = self.shape_of(id)?;
        let view = self.build.view_of(recv, dtype, &shape);
        view.map_or_else(|| refuse(self.graph, id, "its size passes 64 bits"), |view| Ok(Value::Tensor(view)))
    }
}
