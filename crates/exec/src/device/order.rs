//! Which steps wait for which events.
//!
//! A program says which steps of other streams a step has to come after: often the last one so far. A wait is left out
//! - where others imply it: a stream that has waited for a step has waited for all that the step's stream did before, and for
//!   all that that stream had waited for;
//! - where the host implies it: before it reads a value, it waits for all that the compute stream did;
//! - where none of the few steps in question touches memory that the step touches. Later steps of the stream then ask again.
//!
//! Takes steps times streams.

use super::super::memory::ProgramMemory;
use bucketeer::program::lives::Access;
use bucketeer::program::{BufferId, Program, Range, Step, StepId, StepKind, Stream};
use std::collections::BTreeSet;

/// Most steps that are looked at for one that touches the same memory.
const MOST_STEPS: u32 = 32;

/// Most waits that a stream puts off, so that not all are asked for at each of many steps.
const MOST_DEFERRED: usize = 32;

/// What each step's stream waits for before it.
pub(super) struct Waits {
    by_step: Vec<Vec<Wait>>,
}

/// One wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wait {
    /// For what.
    pub step: StepId,
    /// Whether the stream waits for its event. Else only the host waits until all is enqueued that it does: then a collective has
    /// sent what it sends.
    pub event: bool,
}

/// What one stream knows to be over.
#[derive(Clone, Default)]
struct Known {
    /// For each stream, how many steps of the program.
    over: Vec<u32>,
    /// Steps that it should have waited for, and did not have to so far.
    deferred: BTreeSet<StepId>,
}

impl Known {
    fn merge(&mut self, other: &Self) {
        self.over.iter_mut().zip(&other.over).for_each(|(over, other)| *over = (*over).max(*other));
        self.deferred.extend(&other.deferred);
    }
}

/// The compute stream is the first.
const fn number(stream: Stream) -> usize {
    match stream {
        Stream::Compute => 0,
        Stream::Comm(group) => group as usize + 1,
    }
}

impl Waits {
    /// `host_reads` says before which steps the host waits for the compute stream; `staged`, whether what collectives send is
    /// copied before they are carried.
    pub fn of(program: &Program, memory: &ProgramMemory<'_>, host_reads: impl Fn(&Step) -> bool, staged: bool) -> Self {
        let named = |index: usize| {
            let step = &program.steps[index];
            let wait = if let StepKind::Wait(of) = step.kind { Some(of) } else { None };
            step.after.iter().copied().chain(wait)
        };
        let mut awaited = vec![false; program.steps.len()];
        (0..program.steps.len()).flat_map(named).for_each(|step| awaited[step.0 as usize] = true);
        let streams = program.groups.len() + 1;
        let mut known = vec![Known { over: vec![0; streams], ..Known::default() }; streams];
        // What is over when a step is, for those that are waited for.
        let mut at_end: Vec<Option<Known>> = vec![None; program.steps.len()];
        let mut by_step = Vec::with_capacity(program.steps.len());
        for (index, step) in program.steps.iter().enumerate() {
            let stream = number(step.stream);
            let mut asked = std::mem::take(&mut known[stream].deferred);
            asked.extend(named(index));
            let mut waits: Vec<Wait> = Vec::new();
            while let Some(&last) = asked.last() {
                let on = |step: &StepId| number(program.steps[step.0 as usize].stream);
                let of = on(&last);
                let mut list: Vec<StepId> = asked.iter().copied().filter(|step| on(step) == of).collect();
                asked.retain(|step| on(step) != of);
                let over = known[stream].over[of];
                list.retain(|step| of != stream && step.0 >= over);
                let Some(&last) = list.last() else { continue };
                let few = last.0 - over < MOST_STEPS && known[stream].deferred.len() < MOST_DEFERRED;
                let (mut over_at, mut sent_at) = (None, None);
                for at in over..=last.0 {
                    let other = &program.steps[at as usize];
                    if number(other.stream) == of {
                        match conflict(program, memory, step, other, staged) {
                            Some(Conflict::Sent) => sent_at = Some(at),
                            Some(Conflict::Any) => over_at = Some(at),
                            None => {}
                        }
                    }
                    if !few {
                        over_at = Some(last.0);
                        break;
                    }
                }
                // The first that stands for all that has to be over.
                let covers = |at: u32| list.iter().copied().find(|step| step.0 >= at);
                let wait = over_at.and_then(covers);
                if let Some(wait) = wait {
                    waits.push(Wait { step: wait, event: true });
                    if let Some(end) = &at_end[wait.0 as usize] {
                        known[stream].merge(end);
                        asked.append(&mut known[stream].deferred);
                    }
                }
                let rest = list.iter().copied().filter(|step| wait.is_none_or(|wait| *step > wait));
                known[stream].deferred.extend(rest);
                let sent = sent_at.and_then(covers).filter(|step| wait.is_none_or(|wait| *step > wait));
                waits.extend(sent.map(|step| Wait { step, event: false }));
            }
            waits.sort_unstable_by_key(|wait| wait.step);
            by_step.push(waits);
            if host_reads(step) {
                // What is enqueued from now on, on any stream, comes after what the host has seen to be over.
                let over = Known { over: known[0].over.clone(), ..Known::default() };
                known.iter_mut().for_each(|known| known.merge(&over));
            }
            known[stream].over[stream] = index as u32 + 1;
            if awaited[index] {
                at_end[index] = Some(known[stream].clone());
            }
        }
        Self { by_step }
    }

    /// In step order.
    pub fn of_step(&self, step: StepId) -> &[Wait] {
        &self.by_step[step.0 as usize]
    }

    /// Waits for events, of all steps: who waits for which step, in order.
    pub fn events(&self) -> impl Iterator<Item = (StepId, StepId)> {
        (0u32..)
            .zip(&self.by_step)
            .flat_map(|(step, waits)| waits.iter().filter(|wait| wait.event).map(move |wait| (StepId(step), wait.step)))
    }
}

/// Ranges that a step touches, and whether it writes them.
fn touched(program: &Program, step: &Step) -> Vec<(Range, bool)> {
    let mut ranges = Vec::new();
    step.for_each_access(&mut |place, access| ranges.push((place.range(program), access == Access::Write)));
    ranges
}

/// Why a step has to come after another.
enum Conflict {
    /// It writes what a collective of a group's stream sends from a copy.
    Sent,
    /// Both touch the same bytes, and one writes them, in any other way.
    Any,
}

/// A wait for a collective touches nothing: who reads what came waits.
fn conflict(
    program: &Program,
    memory: &ProgramMemory<'_>,
    step: &Step,
    other: &Step,
    staged: bool,
) -> Option<Conflict> {
    let (ours, theirs) = (touched(program, step), touched(program, other));
    let meets = |(a, writes): &(Range, bool), (b, other_writes): &(Range, bool)| {
        (*writes || *other_writes) && overlap(program, memory, *a, *b)
    };
    let sends = staged && matches!(other.stream, Stream::Comm(_));
    let mut found = None;
    for theirs in &theirs {
        if ours.iter().any(|ours| meets(ours, theirs)) {
            if theirs.1 || !sends {
                return Some(Conflict::Any);
            }
            found = Some(Conflict::Sent);
        }
    }
    found
}

fn overlap(program: &Program, memory: &ProgramMemory<'_>, a: Range, b: Range) -> bool {
    // Buffers in one arena may share bytes; others do not.
    let place = |range: Range| -> (Result<u32, BufferId>, u64) {
        let at = memory.offset_in(range) as u64;
        match program.buffer(range.buffer).place {
            Some(place) => (Ok(place.arena), place.offset.saturating_add(at)),
            None => (Err(range.buffer), at),
        }
    };
    let ((a_in, a_at), (b_in, b_at)) = (place(a), place(b));
    a_in == b_in && a_at < b_at.saturating_add(b.bytes) && b_at < a_at.saturating_add(a.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bucketeer_comm::fake::FakeRank;

    #[test]
    fn waits_that_others_imply_or_that_nobody_needs_are_left_out() {
        let text = "program p align 16 {\n  group G: 1\n  arena comm 64 live 64\n  \
             buffer a: comm 32 align 16 at 0:0\n  buffer b: comm 32 align 16 at 0:32\n  \
             s0 x: pack {\n    zero a for 32\n  }\n  s1 y: pack {\n    zero b for 32\n  }\n  \
             s2 g on G after s0: all_reduce sum group G f32 normal {\n    8 a for 32 -> a for 32\n  }\n  \
             s3 h on G after s0 s1: all_reduce sum group G f32 normal {\n    8 b for 32 -> b for 32\n  }\n  \
             s4 v after s3: wait s3\n  s5 w after s2: wait s2\n  s6 z: pack {\n    zero a for 32\n  }\n  \
             s7 q: pack {\n    zero b for 32\n  }\n  output () ()\n}\n";
        let of = |text: &str, host_reads: fn(&Step) -> bool| {
            let program = Program::parse(text).unwrap_or_else(|error| panic!("{error}"));
            let backend = FakeRank::new(bucketeer::ir::GlobalRank(0), 1).unwrap();
            let memory = ProgramMemory::new(&program, &backend, vec![0]).unwrap();
            let waits = Waits::of(&program, &memory, host_reads, true);
            let of = |step: u32| waits.of_step(StepId(step)).iter().map(|wait| wait.step.0).collect::<Vec<_>>();
            (0..8).map(of).collect::<Vec<_>>()
        };
        assert_eq!(of(text, |_| false), [vec![], vec![], vec![0], vec![1], vec![], vec![], vec![2], vec![3]]);
        // The host has read what y made, so h is enqueued after that is over.
        assert_eq!(
            of(text, |step| &*step.node == "g"),
            [vec![], vec![], vec![0], vec![], vec![], vec![], vec![2], vec![3]]
        );
        // g does not touch what y writes, and what x wrote is over with it: it waits for both or for none.
        let late = text.replace("g on G after s0:", "g on G after s1:");
        assert_eq!(of(&late, |_| false), [vec![], vec![], vec![1], vec![], vec![], vec![], vec![2], vec![3]]);
        // Here nothing that g waits for touches a; h, which is behind it, waits for y though only g is told to.
        let apart = text.replace("zero a for 32", "zero b for 16").replace("g on G after s0:", "g on G after s1:");
        let apart = apart.replace("h on G after s0 s1:", "h on G:");
        assert_eq!(of(&apart, |_| false), [vec![], vec![], vec![], vec![1], vec![], vec![], vec![3], vec![]]);
    }
}
