//! Where the time of a run went.

use super::MOMENT;
use super::trace::{Event, Row};
use crate::program::{Program, StepId, StepKind, Stream};
use std::time::{Duration, Instant};

/// Time and number of steps of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepKindTimes {
    /// How many.
    pub steps: usize,
    /// How long, all together.
    pub time: Duration,
}

/// Where the time of a run went, on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// From the first step to the end of the last.
    pub total: Duration,
    /// Compute steps.
    pub compute: StepKindTimes,
    /// Packs.
    pub pack: StepKindTimes,
    /// Unpacks.
    pub unpack: StepKindTimes,
    /// Copies that are neither.
    pub copy: StepKindTimes,
    /// Collectives, from launch to the moment when they were seen to be done. Those in flight together count each.
    pub comm: StepKindTimes,
    /// Bytes that collectives sent on this rank.
    pub sent_bytes: u64,
    /// How long the compute stream waited for collectives: what overlap did not hide.
    pub exposed: Duration,
}

/// Keeps the times of a run.
pub(super) struct Clock {
    start: Instant,
    times: Times,
    events: Vec<Event>,
    /// Collectives in flight: step, when it was launched.
    in_flight: Vec<(StepId, Instant)>,
    /// By step: what it is, for the trace.
    steps: Vec<(Row, Box<str>, Kind)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Compute,
    Pack,
    Unpack,
    Copy,
    Comm(u64),
    Wait,
}

impl Clock {
    pub fn start(program: &Program) -> Self {
        let step = |step: &crate::program::Step| {
            let row = match step.stream {
                Stream::Compute => Row::Compute,
                Stream::Comm(group) => Row::Comm(program.groups[group as usize].name.clone()),
            };
            let kind = match &step.kind {
                StepKind::Pack(_) => Kind::Pack,
                StepKind::Unpack(_) => Kind::Unpack,
                StepKind::Copy(_) => Kind::Copy,
                StepKind::Collective(comm) => Kind::Comm(comm.parts.iter().map(|part| part.send.bytes).sum()),
                StepKind::Wait(_) => Kind::Wait,
                StepKind::Compute(_) => Kind::Compute,
            };
            (row, step.node.clone(), kind)
        };
        Self {
            start: Instant::now(),
            times: Times::default(),
            events: Vec::new(),
            in_flight: Vec::new(),
            steps: program.steps.iter().map(step).collect(),
        }
    }

    /// A step of the compute stream is done.
    pub fn ran(&mut self, step: StepId, start: Instant) {
        let time = start.elapsed();
        let of = match self.steps[step.0 as usize].2 {
            Kind::Compute => &mut self.times.compute,
            Kind::Pack => &mut self.times.pack,
            Kind::Unpack => &mut self.times.unpack,
            Kind::Copy => &mut self.times.copy,
            Kind::Comm(_) | Kind::Wait => return,
        };
        of.steps += 1;
        of.time += time;
        self.event(step, None, start, time);
    }

    pub fn launched(&mut self, step: StepId, start: Instant) {
        self.in_flight.push((step, start));
        if let Kind::Comm(bytes) = self.steps[step.0 as usize].2 {
            self.times.sent_bytes = self.times.sent_bytes.saturating_add(bytes);
        }
    }

    /// The compute stream has waited for a collective.
    pub fn waited(&mut self, step: StepId, start: Instant) {
        let time = start.elapsed();
        self.times.exposed += time;
        if time > MOMENT {
            self.event(step, Some(Row::Compute), start, time);
        }
        self.note_done(|other| other == step);
    }

    /// Notes which collectives in flight have ended.
    pub fn note_done(&mut self, is_done: impl Fn(StepId) -> bool) {
        let now = Instant::now();
        let mut ended = Vec::new();
        self.in_flight.retain(|&(step, start)| {
            let done = is_done(step);
            if done {
                ended.push((step, start));
            }
            !done
        });
        for (step, start) in ended {
            self.times.comm.steps += 1;
            self.times.comm.time += now - start;
            self.event(step, None, start, now - start);
        }
    }

    fn event(&mut self, step: StepId, row: Option<Row>, start: Instant, time: Duration) {
        let (own, node, kind) = &self.steps[step.0 as usize];
        let what = match (kind, &row) {
            (Kind::Comm(_), Some(_)) => "wait",
            (Kind::Comm(_), None) => "comm",
            (Kind::Compute, _) => "compute",
            (Kind::Pack, _) => "pack",
            (Kind::Unpack, _) => "unpack",
            (Kind::Copy, _) => "copy",
            (Kind::Wait, _) => "wait",
        };
        self.events.push(Event {
            row: row.unwrap_or_else(|| own.clone()),
            name: node.clone(),
            what,
            start: start - self.start,
            time,
        });
    }

    pub fn end(mut self) -> (Times, Vec<Event>) {
        self.times.total = self.start.elapsed();
        (self.times, self.events)
    }
}
