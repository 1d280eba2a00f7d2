//! When buffers are in use: from the first step that touches them to the last, a collective's until its wait.

use super::{BufferId, Made, Operand, Program, Step, StepKind, Stream};

/// How a step touches a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it.
    Write,
}

impl Step {
    /// Calls `visit` with every buffer that the step touches; one may come several times.
    pub fn for_each_access(&self, visit: &mut dyn FnMut(BufferId, Access)) {
        match &self.kind {
            StepKind::Pack(moves) | StepKind::Unpack(moves) => {
                for segment in &moves.segments {
                    visit(segment.from.buffer, Access::Read);
                    visit(segment.to.buffer, Access::Write);
                }
                moves.zeros.iter().for_each(|range| visit(range.buffer, Access::Write));
            }
            StepKind::Copy(segment) => {
                visit(segment.from.buffer, Access::Read);
                visit(segment.to.buffer, Access::Write);
            }
            StepKind::Collective(collective) => {
                for part in &collective.parts {
                    visit(part.send.buffer, Access::Read);
                    visit(part.recv.buffer, Access::Write);
                }
            }
            StepKind::Wait(_) => {}
            StepKind::Compute(compute) => {
                for (index, operand) in compute.operands.iter().enumerate() {
                    let written = compute.writes.contains(&(index as u32));
                    visit_operand(operand, &mut |buffer| {
                        visit(buffer, Access::Read);
                        if written {
                            visit(buffer, Access::Write);
                        }
                    });
                }
                visit_made(&compute.made, &mut |buffer| visit(buffer, Access::Write));
            }
        }
    }
}

fn visit_operand(operand: &Operand, visit: &mut dyn FnMut(BufferId)) {
    match operand {
        Operand::Tensor(view) => visit(view.buffer),
        Operand::Int(_) | Operand::Host(_) => {}
        Operand::Tuple(items) => items.iter().for_each(|item| visit_operand(item, visit)),
    }
}

fn visit_made(made: &Made, visit: &mut dyn FnMut(BufferId)) {
    match made {
        Made::Tensor(view) => visit(view.buffer),
        Made::Nothing | Made::Host(_) => {}
        Made::Tuple(items) => items.iter().for_each(|item| visit_made(item, visit)),
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
        step.for_each_access(&mut |buffer, _| touch(buffer, index as u32, done[index]));
    }
    for value in &program.outputs.values {
        visit_operand(value, &mut |buffer| touch(buffer, end, end));
    }
    lives
}
