//! Who divides an average: the collective itself, or a pack or unpack around a collective that then sums.
//!
//! Some backends have no average, and dividing before the sum keeps narrow floats from overflowing. The division costs
//! nothing where elements move through a kernel anyway; where they do not, it is refused.

use super::transfer::TransferError;
use crate::ir::ReduceOp;
use crate::program::{
    BufferId, Collective, CommOp, Made, Operand, Program, Range, Segment, Step, StepId, StepKind, View,
};
use bucketeer_types::class::{self, Class};
use std::collections::HashMap;

/// Who divides averages of floats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Average {
    /// The collective.
    #[default]
    Collective,
    /// The pack, by the group's size; the collective sums.
    Before,
    /// The unpack, by the group's size; the collective sums.
    After,
}

/// What is divided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Divisors {
    /// By step and segment.
    segments: HashMap<(usize, usize), u32>,
    /// Averages that become sums, in step order.
    pub summed: Vec<StepId>,
}

impl Divisors {
    /// What a segment's elements are divided by.
    #[must_use]
    pub fn of(&self, step: usize, segment: usize) -> u32 {
        self.segments.get(&(step, segment)).copied().unwrap_or(1)
    }
}

impl Average {
    /// What is divided in a program.
    ///
    /// # Errors
    /// [`TransferError::Average`] for a collective around which not all elements move through packs or unpacks of its own;
    /// [`TransferError::Division`] for integers.
    pub fn divisors(self, program: &Program) -> Result<Divisors, TransferError> {
        let mut divisors = Divisors::default();
        if self == Self::Collective {
            return Ok(divisors);
        }
        let accesses = Accesses::of(program);
        for (index, step) in program.steps.iter().enumerate() {
            let StepKind::Collective(collective) = &step.kind else { continue };
            if !averages(&collective.op) {
                continue;
            }
            let node = || step.node.to_string();
            if class::class(collective.dtype) != Class::Float {
                return Err(TransferError::Division { node: node(), dtype: collective.dtype });
            }
            let divisor = program.groups[collective.group as usize].size;
            let found = match self {
                Self::Before => accesses.packs(index, collective),
                _ => accesses.unpacks(index, collective),
            };
            let found = found.map_err(|reason| TransferError::Average { node: node(), reason })?;
            divisors.segments.extend(found.into_iter().map(|place| (place, divisor)));
            divisors.summed.push(StepId(index as u32));
        }
        Ok(divisors)
    }
}

const fn averages(op: &CommOp) -> bool {
    matches!(
        op,
        CommOp::AllReduce(ReduceOp::Avg)
            | CommOp::ReduceScatter(ReduceOp::Avg)
            | CommOp::Reduce { op: ReduceOp::Avg, .. }
    )
}

/// One use of a range.
struct Access {
    /// Index of the step; the number of steps for the program's outputs.
    step: usize,
    /// The segment of a pack, unpack or copy.
    segment: Option<usize>,
    /// Whether it fills with zeros.
    zeros: bool,
    range: Range,
    /// Bytes of the elements, less than the range's where they do not lie end to end.
    bytes: u64,
    writes: bool,
}

/// All uses of all buffers, each buffer's in step order.
struct Accesses {
    by_buffer: HashMap<BufferId, Vec<Access>>,
}

impl Accesses {
    fn of(program: &Program) -> Self {
        let mut found = Self { by_buffer: HashMap::new() };
        for (index, step) in program.steps.iter().enumerate() {
            found.step(program, index, step);
        }
        for value in &program.outputs.values {
            found.operand(program, program.steps.len(), value, false);
        }
        found
    }

    fn add(&mut self, access: Access) {
        self.by_buffer.entry(access.range.buffer).or_default().push(access);
    }

    fn view(&mut self, program: &Program, step: usize, segment: Option<usize>, view: View, writes: bool) {
        let layout = program.layout(view.layout);
        let range = Range {
            buffer: view.buffer,
            offset: view.offset,
            bytes: layout.span_bytes().unwrap_or(u64::MAX),
            rank_bytes: view.rank_bytes,
        };
        let bytes = layout.elements().unwrap_or(u64::MAX).saturating_mul(layout.dtype.bytes());
        self.add(Access { step, segment, zeros: false, range, bytes, writes });
    }

    fn segment(&mut self, program: &Program, step: usize, nth: usize, segment: &Segment) {
        self.view(program, step, Some(nth), segment.from, false);
        self.view(program, step, Some(nth), segment.to, true);
    }

    fn operand(&mut self, program: &Program, step: usize, operand: &Operand, writes: bool) {
        match operand {
            Operand::Tensor(view) => self.view(program, step, None, *view, writes),
            Operand::Tuple(parts) => parts.iter().for_each(|part| self.operand(program, step, part, writes)),
            Operand::Int(_) | Operand::Host(_) => {}
        }
    }

    fn made(&mut self, program: &Program, step: usize, made: &Made) {
        match made {
            Made::Tensor(view) => self.view(program, step, None, *view, true),
            Made::Tuple(parts) => parts.iter().for_each(|part| self.made(program, step, part)),
            Made::Nothing | Made::Host(_) => {}
        }
    }

    fn step(&mut self, program: &Program, index: usize, step: &Step) {
        match &step.kind {
            StepKind::Pack(moves) | StepKind::Unpack(moves) => {
                for (nth, segment) in moves.segments.iter().enumerate() {
                    self.segment(program, index, nth, segment);
                }
                for &range in &moves.zeros {
                    self.add(Access {
                        step: index,
                        segment: None,
                        zeros: true,
                        range,
                        bytes: range.bytes,
                        writes: true,
                    });
                }
            }
            StepKind::Copy(segment) => self.segment(program, index, 0, segment),
            StepKind::Collective(collective) => {
                for part in &collective.parts {
                    for (range, writes) in [(part.send, false), (part.recv, true)] {
                        self.add(Access {
                            step: index,
                            segment: None,
                            zeros: false,
                            range,
                            bytes: range.bytes,
                            writes,
                        });
                    }
                }
            }
            StepKind::Wait(_) => {}
            StepKind::Compute(compute) => {
                for (nth, operand) in compute.operands.iter().enumerate() {
                    self.operand(program, index, operand, compute.writes.contains(&(nth as u32)));
                }
                self.made(program, index, &compute.made);
            }
            StepKind::Run(run) => {
                for operand in run.pick.iter().chain(&run.given) {
                    self.operand(program, index, operand, false);
                }
                self.made(program, index, &run.made);
            }
        }
    }

    /// The uses that may share a byte with a range.
    fn near(&self, range: Range) -> impl Iterator<Item = &Access> {
        let end = range.offset.saturating_add(range.bytes);
        self.by_buffer.get(&range.buffer).into_iter().flatten().filter(move |access| {
            let other = access.range;
            other.rank_bytes != range.rank_bytes
                || (other.offset < end && range.offset < other.offset.saturating_add(other.bytes))
        })
    }

    /// The segments that write all that a collective sends, and nothing else reads before.
    fn packs(&self, at: usize, collective: &Collective) -> Result<Vec<(usize, usize)>, &'static str> {
        let mut segments = Vec::new();
        for part in &collective.parts {
            let mut bytes = 0u64;
            for access in self.near(part.send).filter(|access| access.step < at) {
                match access.segment {
                    Some(nth) if access.writes && within(access.range, part.send) => segments.push((access.step, nth)),
                    _ if access.zeros && within(access.range, part.send) => {}
                    _ => return Err("what it sends is not only written by packs; lower with realise off"),
                }
                bytes = bytes.saturating_add(access.bytes);
            }
            if bytes != part.send.bytes {
                return Err("what it sends is not written by packs; lower with realise off, or divide after");
            }
        }
        Ok(segments)
    }

    /// The segments that read all that a collective receives.
    fn unpacks(&self, at: usize, collective: &Collective) -> Result<Vec<(usize, usize)>, &'static str> {
        let mut segments = Vec::new();
        for part in &collective.parts {
            for access in self.near(part.recv).filter(|access| access.step > at) {
                match access.segment {
                    Some(nth) if !access.writes && within(access.range, part.recv) => segments.push((access.step, nth)),
                    _ => return Err("its result is read where it lies, not only by unpacks; divide before"),
                }
            }
        }
        Ok(segments)
    }
}

fn within(inner: Range, outer: Range) -> bool {
    let end = |range: Range| range.offset.saturating_add(range.bytes);
    inner.rank_bytes == outer.rank_bytes && inner.offset >= outer.offset && end(inner) <= end(outer)
}
