//! Whether all that a program refers to is there, and within bounds; after that, everything may index freely.

use super::{
    ArenaOffset, Collective, CommOp, Compute, Made, Moves, Operand, Path, Program, ProgramError, Range, Run, Segment,
    StepKind, Stream, View,
};
use crate::ir::Arg;

/// Deepest nesting of bodies.
pub(super) const MAX_BODIES: u32 = 16;

type Result<T = ()> = std::result::Result<T, String>;

impl Program {
    /// Checks that ids are of this program, layouts fit their buffers for every rank, and steps refer to earlier ones.
    ///
    /// # Errors
    /// [`ProgramError::Form`], naming the first place at fault.
    pub fn check_form(&self) -> std::result::Result<(), ProgramError> {
        self.check_form_within(0)
    }

    /// As [`Self::check_form`], for the body of `depth` others.
    fn check_form_within(&self, depth: u32) -> std::result::Result<(), ProgramError> {
        let at = |place: String| move |reason| ProgramError::Form { place, reason };
        power(self.align_bytes).map_err(at("align_bytes".to_owned()))?;
        for (index, layout) in self.layouts.iter().enumerate() {
            let fits = layout.shape.len() == layout.strides.len()
                && layout.elements().and_then(|count| count.checked_mul(layout.dtype.bytes())).is_some_and(fits)
                && layout.span_bytes().is_some_and(fits);
            if !fits {
                return Err(at(format!("layout {index}"))("it has no size within 2^63 bytes".to_owned()));
            }
        }
        for body in &self.bodies {
            let of_body = |place: &str| at(format!("body {}{place}", body.target));
            ensure(depth < MAX_BODIES, "bodies are nested too deeply").map_err(of_body(""))?;
            body.program.check_form_within(depth + 1).map_err(|error| match error {
                ProgramError::Form { place, reason } => of_body(&format!(", {place}"))(reason),
                error => error,
            })?;
        }
        for buffer in &self.buffers {
            let arena = buffer.place.map_or(Ok(()), |place| self.check_place(place, buffer.bytes, buffer.align));
            let all =
                power(buffer.align).and_then(|()| ensure(fits(buffer.bytes), "it has more than 2^63 bytes")).and(arena);
            all.map_err(at(format!("buffer {}", buffer.name)))?;
        }
        for input in &self.inputs {
            self.check_operand(&input.value, 0).map_err(at(format!("input {}", input.name)))?;
        }
        for (index, step) in self.steps.iter().enumerate() {
            let earlier =
                |step: &super::StepId| ensure((step.0 as usize) < index, "it refers to a step that is not before it");
            let stream = match step.stream {
                Stream::Compute => Ok(()),
                Stream::Comm(group) => ensure((group as usize) < self.groups.len(), "there is no such group"),
            };
            let all = stream.and(step.after.iter().try_for_each(earlier)).and_then(|()| match &step.kind {
                StepKind::Pack(moves) | StepKind::Unpack(moves) => self.check_moves(moves),
                StepKind::Copy(segment) => self.check_segment(segment),
                StepKind::Collective(collective) => self.check_collective(collective, step.stream),
                StepKind::Wait(of) => earlier(of).and_then(|()| {
                    let of = &self.steps[of.0 as usize];
                    ensure(matches!(of.kind, StepKind::Collective(_)), "it waits for a step that is not a collective")
                }),
                StepKind::Compute(compute) => self.check_compute(compute),
                StepKind::Run(run) => self.check_run(run),
            });
            let all = all.and_then(|()| {
                let comm = matches!(&step.kind, StepKind::Collective(it) if it.path == Path::Normal);
                ensure(comm == (step.stream != Stream::Compute), "it is on the stream of another kind of step")
            });
            all.map_err(at(format!("step {index} ({})", step.node)))?;
        }
        let outputs = self.outputs.values.iter().try_for_each(|value| self.check_operand(value, 0));
        outputs.and_then(|()| holes(&self.outputs.args, self.outputs.values.len())).map_err(at("output".to_owned()))
    }

    fn check_place(&self, place: ArenaOffset, bytes: u64, align: u64) -> Result {
        let arena = self.arenas.get(place.arena as usize).ok_or("it is in an arena that is not there")?;
        let end = place.offset.checked_add(bytes);
        ensure(end.is_some_and(|end| end <= arena.bytes), "it reaches beyond its arena")?;
        ensure(align > 0 && place.offset.is_multiple_of(align), "its offset is not a multiple of its alignment")
    }

    fn check_range(&self, range: Range) -> Result {
        let buffer = self.buffers.get(range.buffer.0 as usize).ok_or("it uses a buffer that is not there")?;
        let ranks = match (range.rank_bytes, buffer.group) {
            (0, _) => 1,
            (_, Some(group)) => u64::from(self.groups.get(group as usize).map_or(0, |group| group.size)),
            (_, None) => 0,
        };
        let last = ranks.checked_sub(1).ok_or("it depends on the rank, but its buffer has no group with ranks")?;
        let skip = range.rank_bytes.checked_mul(last);
        let end = skip.and_then(|skip| skip.checked_add(range.offset)?.checked_add(range.bytes));
        ensure(end.is_some_and(|end| end <= buffer.bytes), "it reaches beyond its buffer")
    }

    fn check_view(&self, view: View) -> Result {
        let layout = self.layouts.get(view.layout.0 as usize).ok_or("it uses a layout that is not there")?;
        let bytes = layout.span_bytes().unwrap_or(u64::MAX);
        let View { buffer, offset, rank_bytes, .. } = view;
        self.check_range(Range { buffer, offset, bytes, rank_bytes })?;
        let element = layout.dtype.bytes();
        let aligned = offset.is_multiple_of(element) && rank_bytes.is_multiple_of(element);
        ensure(aligned, "an element is not at a multiple of its size")
    }

    fn check_operand(&self, operand: &Operand, depth: u32) -> Result {
        match operand {
            Operand::Tensor(view) => self.check_view(*view),
            Operand::Int(_) => Ok(()),
            Operand::Host(host) => ensure((host.0 as usize) < self.hosts.len(), "it uses a value that is not there"),
            Operand::Tuple(items) => {
                ensure(depth < 16, "tuples are nested too deeply")?;
                items.iter().try_for_each(|item| self.check_operand(item, depth + 1))
            }
        }
    }

    fn check_made(&self, made: &Made, depth: u32) -> Result {
        match made {
            Made::Nothing => Ok(()),
            Made::Tensor(view) => self.check_view(*view).and_then(|()| self.check_target(*view)),
            Made::Host(host) => ensure((host.0 as usize) < self.hosts.len(), "it makes a value that is not there"),
            Made::Tuple(items) => {
                ensure(depth < 16, "tuples are nested too deeply")?;
                items.iter().try_for_each(|item| self.check_made(item, depth + 1))
            }
        }
    }

    fn check_segment(&self, segment: &Segment) -> Result {
        self.check_view(segment.from)?;
        self.check_view(segment.to)?;
        let (from, to) = (self.layout(segment.from.layout), self.layout(segment.to.layout));
        ensure(from.shape == to.shape, "a segment's ends have different shapes")?;
        self.check_target(segment.to)
    }

    /// No more elements are written than there are places, so that no step is longer than the memory it touches.
    fn check_target(&self, to: View) -> Result {
        let layout = self.layout(to.layout);
        let written = layout.elements().and_then(|count| count.checked_mul(layout.dtype.bytes()));
        ensure(
            written.zip(layout.span_bytes()).is_some_and(|(written, span)| written <= span),
            "it writes a place twice",
        )
    }

    fn check_moves(&self, moves: &Moves) -> Result {
        moves.segments.iter().try_for_each(|segment| self.check_segment(segment))?;
        moves.zeros.iter().try_for_each(|&range| self.check_range(range))
    }

    fn check_compute(&self, compute: &Compute) -> Result {
        let call = self.calls.get(compute.call as usize).ok_or("it calls an operator that is not there")?;
        compute.operands.iter().try_for_each(|operand| self.check_operand(operand, 0))?;
        holes(&call.args, compute.operands.len())?;
        let written = compute.writes.iter().all(|&index| (index as usize) < compute.operands.len());
        ensure(written, "it writes an operand that is not there")?;
        self.check_made(&compute.made, 0)
    }

    /// Whether a run refers to what is there, and fits its bodies.
    pub(crate) fn check_run(&self, run: &Run) -> Result {
        let count = if run.pick.is_some() { 2 } else { 1 };
        ensure(run.bodies.len() == count, "it has another number of bodies than it may run")?;
        run.pick.iter().chain(&run.given).try_for_each(|operand| self.check_operand(operand, 0))?;
        self.check_made(&run.made, 0)?;
        for &body in &run.bodies {
            let body = self.bodies.get(body as usize).ok_or("it runs a body that is not there")?;
            self.fits_body(run, &body.program).map_err(|reason| format!("`{}`: {reason}", body.target))?;
        }
        Ok(())
    }

    /// Whether what a body is given and makes is of the types that it has.
    fn fits_body(&self, run: &Run, body: &Self) -> Result {
        ensure(run.given.len() == body.inputs.len(), "it is given another number of values than it has inputs")?;
        for (operand, input) in run.given.iter().zip(&body.inputs) {
            let fits = match (operand, &input.value) {
                (Operand::Tensor(view), Operand::Tensor(wanted)) => self.same_type(*view, body, *wanted),
                (Operand::Int(value), Operand::Int(wanted)) => value == wanted,
                (Operand::Int(_) | Operand::Host(_) | Operand::Tuple(_), Operand::Host(_)) => true,
                _ => false,
            };
            ensure(fits, &format!("its input `{}` is of another type than what it is given", input.name))?;
        }
        let fits = |made: &Made, value: Option<&Operand>| match (made, value) {
            (Made::Nothing, _) => true,
            (Made::Tensor(view), Some(Operand::Tensor(made))) => self.same_type(*view, body, *made),
            (Made::Host(_), Some(Operand::Int(_) | Operand::Host(_))) => true,
            _ => false,
        };
        let values = &body.outputs.values;
        // A list of one and the one are written alike; which it is, is what is read of it.
        let all = match &run.made {
            Made::Tuple(parts) => parts.iter().enumerate().all(|(at, part)| fits(part, values.get(at))),
            one => values.len() == 1 && fits(one, values.first()),
        };
        let all = (all && body.makes_list()) || run.made == Made::Nothing;
        ensure(all, "it makes values of other types than are read of it")
    }

    fn same_type(&self, view: View, body: &Self, other: View) -> bool {
        let (one, other) = (self.layout(view.layout), body.layout(other.layout));
        (one.dtype, &one.shape) == (other.dtype, &other.shape)
    }

    /// Whether what the program hands out is its values, in order.
    fn makes_list(&self) -> bool {
        (0..).zip(&self.outputs.args.positional).all(|(at, item)| *item == Arg::Operand(at))
    }

    fn check_collective(&self, collective: &Collective, stream: Stream) -> Result {
        let group = self.groups.get(collective.group as usize).ok_or("it uses a group that is not there")?;
        ensure(group.size > 0, "its group has no ranks")?;
        ensure(
            stream == Stream::Compute || stream == Stream::Comm(collective.group),
            "it is on the stream of another group",
        )?;
        let (ranks, element) = (u64::from(group.size), collective.dtype.bytes());
        for part in &collective.parts {
            self.check_range(part.send)?;
            self.check_range(part.recv)?;
            let bytes = part.count.checked_mul(element).ok_or("its count passes 2^63 bytes")?;
            let all = bytes.saturating_mul(ranks);
            let sum = |counts: &[u64]| {
                let sum = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
                sum.and_then(|sum| sum.checked_mul(element)).unwrap_or(u64::MAX)
            };
            let (send, recv) = match &collective.op {
                CommOp::AllGather => (bytes, all),
                CommOp::ReduceScatter(_) => (bytes, bytes / ranks),
                CommOp::AllToAll { send_counts, recv_counts } => {
                    ensure(
                        send_counts.len() as u64 == ranks && recv_counts.len() as u64 == ranks,
                        "it has not one count for each rank",
                    )?;
                    ensure(sum(send_counts) == bytes, "its counts do not add up to what it sends")?;
                    (bytes, sum(recv_counts))
                }
                CommOp::Barrier => (0, 0),
                CommOp::AllReduce(_)
                | CommOp::Broadcast { .. }
                | CommOp::Reduce { .. }
                | CommOp::Permute { .. }
                | CommOp::Send { .. }
                | CommOp::Recv { .. } => (bytes, bytes),
            };
            ensure((part.send.bytes, part.recv.bytes) == (send, recv), "its ranges are not as long as its count says")?;
            ensure(
                !matches!(collective.op, CommOp::ReduceScatter(_)) || part.count.is_multiple_of(ranks),
                "its count is not a multiple of its ranks",
            )?;
        }
        if let Some(clash) = self.clash_in_launch(collective) {
            return Err(format!("its tensors {} and {} {}", clash.first, clash.second, clash.reason));
        }
        let one_shot = collective.path == Path::OneShot;
        ensure(!one_shot || matches!(collective.op, CommOp::AllReduce(_)), "only an all-reduce goes in one shot")
    }
}

fn ensure(holds: bool, reason: &str) -> Result {
    if holds { Ok(()) } else { Err(reason.to_owned()) }
}

fn fits(bytes: u64) -> bool {
    i64::try_from(bytes).is_ok()
}

fn power(align: u64) -> Result {
    ensure(align.is_power_of_two(), "an alignment is not a power of two")
}

fn holes(args: &crate::ir::Args, operands: usize) -> Result {
    let mut within = true;
    args.for_each_operand(&mut |index| within &= (index as usize) < operands);
    ensure(within, "an argument is an operand that is not there")
}
