//! Where the time of a run went.

use super::trace::{Event, Launch, Moved, Row};
use bucketeer::program::{Collective, CommOp, Part, Program, Segment, Step, StepId, StepKind, Stream};
use bucketeer_comm::Group;
use std::time::{Duration, Instant};

/// How long a wait may be nothing.
const MOMENT: Duration = Duration::from_micros(1);

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
pub(super) struct Clock<'p> {
    program: &'p Program,
    /// By index in the program: none for groups that this rank is not in.
    groups: Vec<Option<Group>>,
    start: Instant,
    times: Times,
    events: Vec<Event>,
    /// By index in `events`, the step whose bytes are looked up when the run is over.
    moves: Vec<(usize, StepId)>,
    /// Collectives in flight: step, when it was launched.
    in_flight: Vec<(StepId, Instant)>,
}

impl<'p> Clock<'p> {
    pub fn start(program: &'p Program, groups: &[Option<Group>]) -> Self {
        let groups = groups.to_vec();
        let start = Instant::now();
        Self {
            program,
            groups,
            start,
            times: Times::default(),
            events: Vec::new(),
            moves: Vec::new(),
            in_flight: Vec::new(),
        }
    }

    fn step(&self, id: StepId) -> &'p Step {
        &self.program.steps[id.0 as usize]
    }

    /// A step of the compute stream is done.
    pub fn ran(&mut self, id: StepId, start: Instant) {
        let time = start.elapsed();
        let (of, what) = match self.step(id).kind {
            StepKind::Compute(_) => (&mut self.times.compute, "compute"),
            StepKind::Pack(_) => (&mut self.times.pack, "pack"),
            StepKind::Unpack(_) => (&mut self.times.unpack, "unpack"),
            StepKind::Copy(_) => (&mut self.times.copy, "copy"),
            // Its own steps are counted.
            StepKind::Collective(_) | StepKind::Wait(_) | StepKind::Run(_) => return,
        };
        of.steps += 1;
        of.time += time;
        self.event(id, self.row(id), what, start, time);
    }

    pub fn launched(&mut self, id: StepId, start: Instant) {
        self.in_flight.push((id, start));
        if let StepKind::Collective(comm) = &self.step(id).kind {
            let bytes = comm.parts.iter().map(|part| part.send.bytes).fold(0, u64::saturating_add);
            self.times.sent_bytes = self.times.sent_bytes.saturating_add(bytes);
        }
    }

    /// The compute stream has waited for a collective.
    pub fn waited(&mut self, id: StepId, start: Instant) {
        let time = start.elapsed();
        self.times.exposed += time;
        if time > MOMENT {
            self.event(id, Row::Compute, "wait", start, time);
        }
        self.note_done(|other| other == id);
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
            self.event(step, self.row(step), "comm", start, now - start);
        }
    }

    /// A body ran, from `start` on.
    pub fn ran_body(&mut self, start: Instant, times: &Times, events: Vec<Event>) {
        let own = &mut self.times;
        let pairs = [
            (&mut own.compute, times.compute),
            (&mut own.pack, times.pack),
            (&mut own.unpack, times.unpack),
            (&mut own.copy, times.copy),
            (&mut own.comm, times.comm),
        ];
        for (sum, of_body) in pairs {
            sum.steps += of_body.steps;
            sum.time += of_body.time;
        }
        own.sent_bytes = own.sent_bytes.saturating_add(times.sent_bytes);
        own.exposed += times.exposed;
        let later = start - self.start;
        self.events.extend(events.into_iter().map(|event| Event { start: event.start + later, ..event }));
    }

    /// Where a step runs.
    fn row(&self, id: StepId) -> Row {
        match self.step(id).stream {
            Stream::Compute => Row::Compute,
            Stream::Comm(group) => Row::Comm(self.program.groups[group as usize].name.clone()),
        }
    }

    fn event(&mut self, id: StepId, row: Row, what: &'static str, start: Instant, time: Duration) {
        let name = self.step(id).node.clone();
        // Who adds up bytes is not to count a collective twice.
        if what != "wait" {
            self.moves.push((self.events.len(), id));
        }
        self.events.push(Event { row, name, what, start: start - self.start, time, moved: None });
    }

    fn moved(&self, id: StepId) -> Option<Moved> {
        let own = |bytes| Some(Moved { bytes, launch: None });
        match &self.step(id).kind {
            StepKind::Collective(comm) => {
                let sum = |range: fn(&Part) -> u64| comm.parts.iter().map(range).fold(0, u64::saturating_add);
                let bytes = sum(|part| part.send.bytes).max(sum(|part| part.recv.bytes));
                Some(Moved { bytes, launch: self.launch(comm) })
            }
            StepKind::Pack(moves) | StepKind::Unpack(moves) => own(self.bytes(&moves.segments)),
            StepKind::Copy(segment) => own(self.bytes(std::slice::from_ref(segment))),
            StepKind::Compute(_) | StepKind::Wait(_) | StepKind::Run(_) => None,
        }
    }

    fn launch(&self, comm: &Collective) -> Option<Launch> {
        Some(Launch {
            group: self.groups[comm.group as usize].clone()?,
            dtype: (!matches!(comm.op, CommOp::Barrier)).then_some(comm.dtype),
            merged: (!comm.members.is_empty()).then_some(comm.members.len()),
        })
    }

    /// Bytes of the elements that segments write.
    fn bytes(&self, segments: &[Segment]) -> u64 {
        let one = |segment: &Segment| {
            let layout = &self.program.layouts[segment.to.layout.0 as usize];
            layout.elements().unwrap_or(0).saturating_mul(layout.dtype.bytes())
        };
        segments.iter().map(one).fold(0, u64::saturating_add)
    }

    pub fn end(mut self) -> (Times, Vec<Event>) {
        self.times.total = self.start.elapsed();
        for (event, id) in std::mem::take(&mut self.moves) {
            self.events[event].moved = self.moved(id);
        }
        (self.times, self.events)
    }
}
