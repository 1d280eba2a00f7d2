//! The text form, for people and tests. Equal programs have equal texts.

use super::args::{self, name, quote};
use super::text::{kind_word, path_word};
use super::{
    Arena, Buffer, Collective, CommOp, Compute, Group, Made, Moves, Operand, Program, Range, Run, Segment, Step,
    StepKind, Stream, View,
};
use std::fmt::{self, Write as _};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {} align {} {{", name(&self.name), self.align_bytes)?;
        for (symbol, value) in &self.symbols {
            writeln!(f, "  symbol {} = {value}", name(symbol))?;
        }
        for group in &self.groups {
            writeln!(f, "  group {}", show_group(group))?;
        }
        for arena in &self.arenas {
            writeln!(f, "  arena {}", show_arena(arena))?;
        }
        for body in &self.bodies {
            // No line breaks within: texts are quoted.
            let text = body.program.to_string();
            writeln!(f, "  body {} {}", name(&body.target), text.trim_end().replace('\n', "\n  "))?;
        }
        for buffer in &self.buffers {
            writeln!(f, "  buffer {}", self.show_buffer(buffer))?;
        }
        for host in &self.hosts {
            writeln!(f, "  host {}", name(host))?;
        }
        for input in &self.inputs {
            writeln!(f, "  input {} = {}", name(&input.name), self.show_operand(&input.value))?;
        }
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {}", self.step_line(index, step))?;
        }
        let outputs = &self.outputs;
        writeln!(f, "  output ({}) {}", args::print(&outputs.args), self.show_operands(&outputs.values))?;
        f.write_str("}\n")
    }
}

fn show_group(group: &Group) -> String {
    let mut text = format!("{}: {}", name(&group.name), group.size);
    if !group.members.is_empty() {
        let _ = write!(text, " = {:?}", group.members);
    }
    text
}

fn show_arena(arena: &Arena) -> String {
    format!("{} {} live {}{}", kind_word(arena.kind), arena.bytes, arena.live_bytes, on(arena.device.as_deref()))
}

fn on(device: Option<&str>) -> String {
    device.map_or_else(String::new, |device| format!(" on {}", quote(device)))
}

impl Program {
    fn show_buffer(&self, buffer: &Buffer) -> String {
        let mut text =
            format!("{}: {} {} align {}", name(&buffer.name), kind_word(buffer.kind), buffer.bytes, buffer.align);
        if let Some(place) = buffer.place {
            let _ = write!(text, " at {}:{}", place.arena, place.offset);
        }
        if let Some(group) = buffer.group {
            let _ = write!(text, " ranks {}", name(self.groups.get(group as usize).map_or("", |group| &group.name)));
        }
        text + &on(buffer.device.as_deref())
    }

    fn at(&self, buffer: super::BufferId, offset: u64, rank_bytes: u64) -> String {
        let mut text = name(&self.buffer(buffer).name);
        if offset > 0 {
            let _ = write!(text, "+{offset}");
        }
        if rank_bytes > 0 {
            let _ = write!(text, "+rank*{rank_bytes}");
        }
        text
    }

    /// A view: `f32[4, 2][1, 4] x+16+rank*64`; strides are left out where they are dense.
    #[must_use]
    pub fn show_view(&self, view: View) -> String {
        let layout = self.layout(view.layout);
        let list = |items: &[u64]| items.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let dense = super::Layout::dense(layout.dtype, &layout.shape);
        let mut text = format!("{}[{}]", layout.dtype.short_name(), list(&layout.shape));
        if dense.as_ref() != Some(layout) {
            let _ = write!(text, "[{}]", list(&layout.strides));
        }
        text + " " + &self.at(view.buffer, view.offset, view.rank_bytes)
    }

    fn show_range(&self, range: Range) -> String {
        format!("{} for {}", self.at(range.buffer, range.offset, range.rank_bytes), range.bytes)
    }

    fn show_operand(&self, operand: &Operand) -> String {
        match operand {
            Operand::Tensor(view) => self.show_view(*view),
            Operand::Int(value) => value.to_string(),
            Operand::Host(host) => format!("host {}", name(&self.hosts[host.0 as usize])),
            Operand::Tuple(items) => self.show_operands(items),
        }
    }

    fn show_operands(&self, items: &[Operand]) -> String {
        let items: Vec<String> = items.iter().map(|item| self.show_operand(item)).collect();
        format!("({})", items.join(", "))
    }

    fn show_made(&self, made: &Made) -> String {
        match made {
            Made::Nothing => "nothing".to_owned(),
            Made::Tensor(view) => self.show_view(*view),
            Made::Host(host) => format!("host {}", name(&self.hosts[host.0 as usize])),
            Made::Tuple(items) => {
                let items: Vec<String> = items.iter().map(|item| self.show_made(item)).collect();
                format!("({})", items.join(", "))
            }
        }
    }

    fn show_segment(&self, segment: &Segment) -> String {
        format!("{} -> {}", self.show_view(segment.from), self.show_view(segment.to))
    }

    fn show_moves(&self, moves: &Moves) -> String {
        let segments = moves.segments.iter().map(|segment| self.show_segment(segment));
        let zeros = moves.zeros.iter().map(|range| format!("zero {}", self.show_range(*range)));
        let all: Vec<String> = segments.chain(zeros).map(|line| format!("\n    {line}")).collect();
        format!("{{{}\n  }}", all.concat())
    }

    fn show_collective(&self, collective: &Collective) -> String {
        let mut text = String::from(collective.op.name());
        let _ = match &collective.op {
            CommOp::ReduceScatter(op) | CommOp::AllReduce(op) => write!(text, " {op}"),
            CommOp::Broadcast { root } => write!(text, " root {root}"),
            CommOp::Reduce { op, root } => write!(text, " {op} root {root}"),
            CommOp::AllToAll { send_counts, recv_counts } => write!(text, " {send_counts:?} {recv_counts:?}"),
            CommOp::Permute { pairs } => {
                let pairs: Vec<[u32; 2]> = pairs.iter().map(|&(from, to)| [from, to]).collect();
                write!(text, " {pairs:?}")
            }
            CommOp::Send { peer } | CommOp::Recv { peer } => write!(text, " peer {peer}"),
            CommOp::AllGather | CommOp::Barrier => Ok(()),
        };
        let group = &self.groups[collective.group as usize].name;
        let (dtype, path) = (collective.dtype.short_name(), path_word(collective.path));
        let parts = collective.parts.iter().map(|part| {
            format!("\n    {} {} -> {}", part.count, self.show_range(part.send), self.show_range(part.recv))
        });
        let parts: String = parts.collect();
        let _ = write!(text, " group {} {dtype} {path}", name(group));
        if !collective.members.is_empty() {
            let members: Vec<String> = collective.members.iter().map(|member| name(member).to_string()).collect();
            let _ = write!(text, " of [{}]", members.join(", "));
        }
        let _ = write!(text, " {{{parts}\n  }}");
        text
    }

    fn show_compute(&self, compute: &Compute) -> String {
        let call = &self.calls[compute.call as usize];
        let operands = self.show_operands(&compute.operands);
        let mut text = format!("compute {}({}) {operands}", name(&call.target), args::print(&call.args));
        if !compute.writes.is_empty() {
            let _ = write!(text, " writes {:?}", compute.writes);
        }
        let _ = write!(text, " -> {}", self.show_made(&compute.made));
        text
    }

    fn show_run(&self, run: &Run) -> String {
        let body = |&body: &u32| self.bodies.get(body as usize).map_or_else(String::new, |body| name(&body.target));
        let bodies: Vec<String> = run.bodies.iter().map(body).collect();
        let mut text = format!("run [{}]", bodies.join(", "));
        if let Some(pick) = &run.pick {
            let _ = write!(text, " by {}", self.show_operand(pick));
        }
        let _ = write!(text, " {} -> {}", self.show_operands(&run.given), self.show_made(&run.made));
        text
    }

    fn step_line(&self, index: usize, step: &Step) -> String {
        let stream = match step.stream {
            Stream::Compute => String::new(),
            Stream::Comm(group) => {
                let group = self.groups.get(group as usize).map_or("", |group| &group.name);
                format!(" on {}", name(group))
            }
        };
        let after: Vec<String> = step.after.iter().map(|step| format!("s{}", step.0)).collect();
        let after = if after.is_empty() { String::new() } else { format!(" after {}", after.join(" ")) };
        let what = match &step.kind {
            StepKind::Pack(moves) => format!("pack {}", self.show_moves(moves)),
            StepKind::Unpack(moves) => format!("unpack {}", self.show_moves(moves)),
            StepKind::Copy(segment) => format!("copy {}", self.show_segment(segment)),
            StepKind::Collective(collective) => self.show_collective(collective),
            StepKind::Wait(step) => format!("wait s{}", step.0),
            StepKind::Compute(compute) => self.show_compute(compute),
            StepKind::Run(run) => self.show_run(run),
        };
        format!("s{index} {}{stream}{after}: {what}", name(&step.node))
    }
}
