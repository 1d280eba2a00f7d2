//! Which steps are done before a step starts, by streams and events: vector clocks.
//!
//! A clock holds, for each stream, the first step that is not known to be done. Steps of one stream are done in order.

use super::{Play, different, stream_number};
use crate::program::{BufferId, Program, StepId, StepKind, Stream};
use smallvec::SmallVec;

type Clock = SmallVec<[u32; 4]>;

/// Accesses of one buffer that later ones have to come after.
#[derive(Clone, Default)]
struct Accesses {
    /// Stream and step.
    write: Option<(u32, u32)>,
    /// The last of each stream since the write.
    reads: SmallVec<[(u32, u32); 1]>,
}

pub(super) struct Clocks {
    /// What each stream knows.
    streams: Vec<Clock>,
    /// By collective: what it knew when it started.
    launches: hashbrown::HashMap<u32, Clock, rustc_hash::FxBuildHasher>,
    /// The compute stream's clock over time: from which step on it is this.
    history: Vec<(u32, Clock)>,
    accesses: Vec<Accesses>,
    now: (u32, u32),
    waited: hashbrown::HashSet<u32, rustc_hash::FxBuildHasher>,
}

impl Clocks {
    pub fn new(streams: usize, buffers: usize) -> Self {
        let none: Clock = SmallVec::from_elem(0, streams);
        Self {
            history: vec![(0, none.clone())],
            streams: vec![none; streams],
            launches: hashbrown::HashMap::default(),
            accesses: vec![Accesses::default(); buffers],
            now: (0, 0),
            waited: hashbrown::HashSet::default(),
        }
    }

    /// The next step starts, after what it is said to be after.
    pub fn begin(&mut self, program: &Program, index: usize) {
        let step = &program.steps[index];
        let stream = stream_number(step.stream);
        self.now = (stream as u32, index as u32);
        let mut changed = false;
        for &after in &step.after {
            let other = stream_number(program.steps[after.0 as usize].stream);
            let known = match other {
                0 => {
                    let at = self.history.partition_point(|(from, _)| *from <= after.0);
                    self.history[at - 1].1.clone()
                }
                _ => self.launches.get(&after.0).cloned().unwrap_or_default(),
            };
            let clock = &mut self.streams[stream];
            for (mine, theirs) in clock.iter_mut().zip(&known) {
                changed |= *theirs > *mine;
                *mine = (*mine).max(*theirs);
            }
            changed |= clock[other] < after.0 + 1;
            clock[other] = clock[other].max(after.0 + 1);
        }
        if stream == 0 {
            if changed {
                self.history.push((index as u32, self.streams[0].clone()));
            }
        } else {
            self.launches.insert(index as u32, self.streams[stream].clone());
        }
    }

    /// All steps are issued; what comes now is on the compute stream.
    pub fn end(&mut self, steps: usize) {
        self.now = (0, steps as u32);
    }

    /// Whether a step of a stream is done before the current one starts.
    fn is_done(&self, (stream, step): (u32, u32)) -> bool {
        stream == self.now.0 || self.streams[self.now.0 as usize][stream as usize] > step
    }

    /// Whether all that touched a buffer is done.
    pub fn is_free(&self, buffer: BufferId) -> bool {
        let accesses = &self.accesses[buffer.0 as usize];
        accesses.write.iter().chain(&accesses.reads).all(|&access| self.is_done(access))
    }

    pub fn read(&mut self, program: &Program, buffer: BufferId) -> Play {
        if let Some(write) = self.accesses[buffer.0 as usize].write
            && !self.is_done(write)
        {
            return race(program, buffer, "reads", write);
        }
        let now = self.now;
        let reads = &mut self.accesses[buffer.0 as usize].reads;
        match reads.iter_mut().find(|(stream, _)| *stream == now.0) {
            Some(last) => last.1 = now.1,
            None => reads.push(now),
        }
        Ok(())
    }

    pub fn write(&mut self, program: &Program, buffer: BufferId) -> Play {
        let accesses = &self.accesses[buffer.0 as usize];
        let open = accesses.write.iter().chain(&accesses.reads).copied().find(|&access| !self.is_done(access));
        if let Some(open) = open {
            return race(program, buffer, "writes", open);
        }
        let now = self.now;
        self.accesses[buffer.0 as usize] = Accesses { write: Some(now), reads: SmallVec::new() };
        Ok(())
    }

    pub fn wait(&mut self, of: StepId) {
        self.waited.insert(of.0);
    }

    /// Whether each launch on a stream of its own is waited for, and its wait ordered behind it.
    pub fn all_waited(&self, program: &Program) -> Play {
        for (index, step) in program.steps.iter().enumerate() {
            match step.kind {
                StepKind::Collective(_) if step.stream != Stream::Compute && !self.waited.contains(&(index as u32)) => {
                    return different(format!("nothing waits for s{index} (`{}`)", step.node));
                }
                StepKind::Wait(of) if !step.after.contains(&of) => {
                    return different(format!("s{index} (`{}`) is not after the step it waits for", step.node));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn race(program: &Program, buffer: BufferId, what: &str, (_, step): (u32, u32)) -> Play {
    let (buffer, node) = (&program.buffer(buffer).name, &program.steps[step as usize].node);
    different(format!("it {what} `{buffer}`, and nothing orders that behind s{step} (`{node}`)"))
}
