//! One rank's memory: the arenas of the plan, and buffers for what the caller gives.

use super::copy::{copy_elements, gathered, scattered};
use super::{RunError, kernels};
use bucketeer::program::{BufferKind, Layout, Made, Operand, Program, Range, Segment, StepKind, View};
use bucketeer_comm::{ALIGN_BYTES, Arena, Backend, Buffer, BufferError};
use bucketeer_eval::{Output, OutputTensor};

/// See the module docs.
pub(super) struct ProgramMemory<'a> {
    program: &'a Program,
    /// By index of the buffer.
    buffers: Vec<Buffer>,
    /// This rank's place in each group.
    places: Vec<u64>,
    /// Values that are not tensors.
    hosts: Vec<Option<Output>>,
    bytes: u64,
}

impl<'a> ProgramMemory<'a> {
    pub fn new(program: &'a Program, backend: &dyn Backend, places: Vec<u64>) -> Result<Self, RunError> {
        let fault = |what: &str| {
            let what = what.to_owned();
            move |error| RunError::buffer(what, error)
        };
        let mut arenas = Vec::with_capacity(program.arenas.len());
        for arena in &program.arenas {
            arenas.push(backend.arena(arena.bytes).map_err(fault("the plan"))?);
        }
        let mut own = 0u64;
        let mut offsets = Vec::with_capacity(program.buffers.len());
        for buffer in &program.buffers {
            let at = own.checked_next_multiple_of(ALIGN_BYTES as u64);
            let (at, end) = match buffer.place {
                Some(_) => (0, Some(own)),
                None => (at.unwrap_or(u64::MAX), at.and_then(|at| at.checked_add(buffer.bytes))),
            };
            offsets.push(at);
            own = end.ok_or(BufferError::Memory { bytes: u64::MAX }).map_err(fault(&buffer.name))?;
        }
        let callers: Arena = backend.arena(own).map_err(fault("what the caller gives"))?;
        let mut buffers = Vec::with_capacity(program.buffers.len());
        for (buffer, offset) in program.buffers.iter().zip(offsets) {
            let (arena, offset) = match buffer.place {
                Some(place) => (&arenas[place.arena as usize], place.offset),
                None => (&callers, offset),
            };
            buffers.push(arena.buffer(offset, buffer.bytes).map_err(fault(&buffer.name))?);
        }
        let bytes = program.peak_bytes().saturating_add(own);
        let memory = Self { program, buffers, places, hosts: vec![None; program.hosts.len()], bytes };
        for (buffer, held) in program.buffers.iter().zip(&memory.buffers) {
            if buffer.kind == BufferKind::Constant
                && let Output::Tensor(value) = kernels::seeded_constant(buffer)?
            {
                held.write().map_err(fault(&buffer.name))?.copy_from_slice(&value.bytes);
            }
        }
        Ok(memory)
    }

    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// This rank's place in a group.
    pub fn place(&self, group: u32) -> u64 {
        self.places[group as usize]
    }

    fn offset(&self, buffer: bucketeer::program::BufferId, offset: u64, rank_bytes: u64) -> Option<u64> {
        let group = self.program.buffer(buffer).group;
        let place = group.map_or(0, |group| self.place(group));
        offset.checked_add(rank_bytes.checked_mul(place)?)
    }

    /// Where a range begins in its buffer, at this rank.
    pub fn offset_in(&self, range: Range) -> usize {
        self.offset(range.buffer, range.offset, range.rank_bytes).unwrap_or(u64::MAX) as usize
    }

    /// A dense range.
    pub fn range(&self, node: &str, range: Range) -> Result<Buffer, RunError> {
        let offset = self.offset(range.buffer, range.offset, range.rank_bytes).unwrap_or(u64::MAX);
        let part = self.buffers[range.buffer.0 as usize].part(offset, range.bytes);
        part.map_err(|error| RunError::buffer(format!("`{node}`"), error))
    }

    /// The range that a view's elements lie in, and how.
    fn view(&self, node: &str, view: View) -> Result<(Buffer, &'a Layout), RunError> {
        let layout = self.program.layout(view.layout);
        let offset = self.offset(view.buffer, view.offset, view.rank_bytes).unwrap_or(u64::MAX);
        let bytes = layout.span_bytes().unwrap_or(u64::MAX);
        let part = self.buffers[view.buffer.0 as usize].part(offset, bytes);
        let part = part.map_err(|error| RunError::buffer(format!("`{node}`"), error))?;
        Ok((part, layout))
    }

    /// Moves a segment.
    pub fn copy(&self, node: &str, segment: &Segment) -> Result<(), RunError> {
        let fault = |error| RunError::buffer(format!("`{node}`"), error);
        let ((from, from_layout), (to, to_layout)) = (self.view(node, segment.from)?, self.view(node, segment.to)?);
        let moved = if from.overlaps(&to) {
            // Elements are apart, but the ranges around them are not.
            let bytes = from.read().map_err(fault)?.to_vec();
            copy_elements(&bytes, from_layout, &mut to.write().map_err(fault)?, to_layout)
        } else {
            let (source, mut target) = (from.read().map_err(fault)?, to.write().map_err(fault)?);
            copy_elements(&source, from_layout, &mut target, to_layout)
        };
        moved.map_err(|error| RunError::copy(node, &error))
    }

    pub fn zero(&self, node: &str, range: Range) -> Result<(), RunError> {
        let fault = |error| RunError::buffer(format!("`{node}`"), error);
        self.range(node, range)?.write().map_err(fault)?.fill(0);
        Ok(())
    }

    /// Puts the caller's values where the program expects them.
    pub fn take_inputs(&mut self, values: &[Output]) -> Result<(), RunError> {
        let program = self.program;
        if values.len() != program.inputs.len() {
            let name = program.inputs.get(values.len()).map_or_else(String::new, |input| input.name.to_string());
            let mut reason = format!("{} values are given for {} inputs", values.len(), program.inputs.len());
            if let Some(needs) = program.inputs.get(values.len()).and_then(|input| launch_of(program, &input.value)) {
                reason += &format!("; {needs} is not launched without it");
            }
            return Err(RunError::Input { name, reason });
        }
        for (input, value) in program.inputs.iter().zip(values) {
            match &input.value {
                Operand::Tensor(view) => self.write_tensor(&input.name, *view, value).map_err(|error| match error {
                    RunError::Made { found, expected, node } => {
                        RunError::Input { name: node, reason: format!("is {found}, but {expected} is expected") }
                    }
                    error => error,
                })?,
                Operand::Host(host) => self.hosts[host.0 as usize] = Some(value.clone()),
                Operand::Int(_) | Operand::Tuple(_) => {}
            }
        }
        Ok(())
    }

    /// A value for the outside, or for a compute step.
    pub fn read_operand(&self, operand: &Operand, node: &str) -> Result<Output, RunError> {
        Ok(match operand {
            Operand::Tensor(view) => Output::Tensor(self.read_tensor(node, *view)?),
            Operand::Int(value) => Output::Number(bucketeer_eval::Scalar::Int(*value)),
            Operand::Host(host) => self.hosts[host.0 as usize].clone().ok_or_else(|| RunError::Made {
                node: node.to_owned(),
                found: "nothing".to_owned(),
                expected: format!("`{}`", self.program.hosts[host.0 as usize]),
            })?,
            Operand::Tuple(items) => {
                Output::Tuple(items.iter().map(|item| self.read_operand(item, node)).collect::<Result<_, _>>()?)
            }
        })
    }

    fn read_tensor(&self, node: &str, view: View) -> Result<OutputTensor, RunError> {
        let (part, layout) = self.view(node, view)?;
        let held = part.read().map_err(|error| RunError::buffer(format!("`{node}`"), error))?;
        let sizes = |list: &[u64]| list.iter().map(|&size| size as usize).collect();
        Ok(OutputTensor {
            dtype: layout.dtype,
            sizes: sizes(&layout.shape),
            strides: sizes(&layout.strides),
            bytes: gathered(&held, layout).map_err(|error| RunError::copy(node, &error))?,
            device: self.program.buffer(view.buffer).device.as_deref().map(Into::into),
            pending: false,
        })
    }

    /// Overwrites a tensor.
    pub fn write_tensor(&self, node: &str, view: View, value: &Output) -> Result<(), RunError> {
        let (part, layout) = self.view(node, view)?;
        let found = match value {
            Output::Tensor(tensor) => {
                let same = tensor.sizes.iter().map(|&size| size as u64).eq(layout.shape.iter().copied());
                if tensor.dtype == layout.dtype && same {
                    let held = part.write();
                    let mut held = held.map_err(|error| RunError::buffer(format!("`{node}`"), error))?;
                    let done = scattered(&tensor.bytes, &mut held, layout);
                    return done.map_err(|error| RunError::copy(node, &error));
                }
                format!("{}{:?}", tensor.dtype.short_name(), tensor.sizes)
            }
            Output::Tuple(_) => "several values".to_owned(),
            Output::Number(_) => "a number".to_owned(),
            Output::Opaque(_) => "something of unknown type".to_owned(),
        };
        let expected = format!("{}{:?}", layout.dtype.short_name(), layout.shape);
        Err(RunError::Made { node: node.to_owned(), found, expected })
    }

    /// Puts what a compute step made where it goes.
    pub fn write_made(&mut self, node: &str, made: &Made, value: &Output) -> Result<(), RunError> {
        match (made, value) {
            (Made::Nothing, _) => Ok(()),
            (Made::Tensor(view), value) => self.write_tensor(node, *view, value),
            (Made::Host(host), value) => {
                self.hosts[host.0 as usize] = Some(value.clone());
                Ok(())
            }
            (Made::Tuple(parts), Output::Tuple(values)) if parts.len() <= values.len() => {
                parts.iter().zip(values).try_for_each(|(part, value)| self.write_made(node, part, value))
            }
            (Made::Tuple(parts), _) => Err(RunError::Made {
                node: node.to_owned(),
                found: "something else".to_owned(),
                expected: format!("{} of {} values", super::describe(made), parts.len()),
            }),
        }
    }
}

/// The first collective that sends an input, as it is or packed with others.
fn launch_of(program: &Program, input: &Operand) -> Option<String> {
    let Operand::Tensor(View { buffer, .. }) = *input else { return None };
    let mut holds = vec![buffer];
    for step in &program.steps {
        match &step.kind {
            StepKind::Pack(moves) => {
                let packed = moves.segments.iter().filter(|segment| segment.from.buffer == buffer);
                holds.extend(packed.map(|segment| segment.to.buffer));
            }
            StepKind::Copy(segment) if segment.from.buffer == buffer => holds.push(segment.to.buffer),
            StepKind::Collective(collective) => {
                if collective.parts.iter().any(|part| holds.contains(&part.send.buffer)) {
                    let members: Vec<String> = collective.members.iter().map(|member| format!("`{member}`")).collect();
                    let of = if members.is_empty() { String::new() } else { format!(" (of {})", members.join(", ")) };
                    return Some(format!("`{}`{of}", step.node));
                }
            }
            StepKind::Copy(_) | StepKind::Unpack(_) | StepKind::Wait(_) | StepKind::Compute(_) | StepKind::Run(_) => {}
        }
    }
    None
}
