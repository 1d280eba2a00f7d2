//! When buffers are in use: from the first step that touches them to the last, a collective's until its wait.

use super::{BufferId, Made, Operand, Program, Range, Step, StepKind, Stream, View};

/// How a step touches a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it.
    Write,
}

/// What a step touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Footprint {
    /// A tensor.
    View(View),
    /// Bytes.
    Range(Range),
}

impl Footprint {
    /// Where it is.
    #[must_use]
    pub const fn buffer(&self) -> BufferId {
        match self {
            Self::View(view) => view.buffer,
            Self::Range(range) => range.buffer,
        }
    }

    /// The bytes that it lies in; of a tensor beyond 64 bits, all.
    #[must_use]
    pub fn range(&self, program: &Program) -> Range {
        match *self {
            Self::View(view) => {
                let bytes = program.layout(view.layout).span_bytes().unwrap_or(u64::MAX);
                Range { buffer: view.buffer, offset: view.offset, bytes, rank_bytes: view.rank_bytes }
            }
            Self::Range(range) => range,
        }
    }
}

impl Step {
    /// Calls `visit` with everything that the step touches; a buffer may come several times.
    pub fn for_each_access(&self, visit: &mut dyn FnMut(Footprint, Access)) {
        match &self.kind {
            StepKind::Pack(moves) | StepKind::Unpack(moves) => {
                for segment in &moves.segments {
                    visit(Footprint::View(segment.from), Access::Read);
                    visit(Footprint::View(segment.to), Access::Write);
                }
                moves.zeros.iter().for_each(|range| visit(Footprint::Range(*range), Access::Write));
            }
            StepKind::Copy(segment) => {
                visit(Footprint::View(segment.from), Access::Read);
                visit(Footprint::View(segment.to), Access::Write);
            }
            StepKind::Collective(collective) => {
                for part in &collective.parts {
                    visit(Footprint::Range(part.send), Access::Read);
                    visit(Footprint::Range(part.recv), Access::Write);
                }
            }
            StepKind::Wait(_) => {}
            StepKind::Compute(compute) => {
                for (index, operand) in compute.operands.iter().enumerate() {
                    let written = compute.writes.contains(&(index as u32));
                    operand.for_each_view(&mut |view| {
                        visit(Footprint::View(view), Access::Read);
                        if written {
                            visit(Footprint::View(view), Access::Write);
                        }
                    });
                }
                compute.made.for_each_view(&mut |view| visit(Footprint::View(view), Access::Write));
            }
            StepKind::Run(run) => {
                for operand in run.pick.iter().chain(&run.given) {
                    operand.for_each_view(&mut |view| visit(Footprint::View(view), Access::Read));
                }
                run.made.for_each_view(&mut |view| visit(Footprint::View(view), Access::Write));
            }
        }
    }
}

impl Operand {
    /// Calls `visit` with each tensor in it.
    pub fn for_each_view(&self, visit: &mut dyn FnMut(View)) {
        match self {
            Self::Tensor(view) => visit(*view),
            Self::Int(_) | Self::Host(_) => {}
            Self::Tuple(items) => items.iter().for_each(|item| item.for_each_view(visit)),
        }
    }
}

impl Made {
    /// Calls `visit` with each tensor in it.
    pub fn for_each_view(&self, visit: &mut dyn FnMut(View)) {
        match self {
            Self::Tensor(view) => visit(*view),
            Self::Nothing | Self::Host(_) => {}
            Self::Tuple(items) => items.iter().for_each(|item| item.for_each_view(visit)),
        }
    }
}

/// First and last step of each buffer, both included; `None` for those that no step touches. What leaves the program
/// lives one step longer than there are.
#[must_use]
pub fn lives(program: &Program) -> Vec<Option<(u32, u32)>> {
    let mut lives: Vec<Option<(u32, u32)>> = vec![None; program.buffers.len()];
    let end = program.steps.len() as u32;
    let mut done: Vec<u32> = (0..end).collect();
    for (index, step) in program.steps.iter().enumerate() {
        if step.stream != Stream::Compute {
            done[index] = end;
        }
        if let StepKind::Wait(of) = step.kind {
            done[of.0 as usize] = done[of.0 as usize].min(index as u32);
        }
    }
    let mut touch = |buffer: BufferId, from: u32, to: u32| {
        let life = lives[buffer.0 as usize].get_or_insert((from, to));
        *life = (life.0.min(from), life.1.max(to));
    };
    for (index, step) in program.steps.iter().enumerate() {
        step.for_each_access(&mut |place, _| touch(place.buffer(), index as u32, done[index]));
    }
    for value in &program.outputs.values {
        value.for_each_view(&mut |view| touch(view.buffer, end, end));
    }
    lives
}
