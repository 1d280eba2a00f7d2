//! Which steps wait for which events.
//!
//! A program says which steps of other streams a step has to come after. Many of these waits are implied by others: a
//! stream that has waited for a step has waited for all that the step's stream did before, and for all that that stream had
//! waited for. Those are left out. So are those that the host implies: before it reads a value, it waits for all that the
//! compute stream did. Takes steps times streams.

use crate::program::{Program, Step, StepId, StepKind, Stream};

/// What each step's stream waits for before it.
pub(super) struct Waits {
    by_step: Vec<Vec<StepId>>,
}

/// For each stream, how many steps of the program are over, as far as one stream knows.
type Known = Vec<u32>;

/// The compute stream is the first.
const fn number(stream: Stream) -> usize {
    match stream {
        Stream::Compute => 0,
        Stream::Comm(group) => group as usize + 1,
    }
}

fn merge(known: &mut Known, over: &Known) {
    known.iter_mut().zip(over).for_each(|(known, over)| *known = (*known).max(*over));
}

impl Waits {
    /// `host_reads` says before which steps the host waits for the compute stream.
    pub fn of(program: &Program, host_reads: impl Fn(&Step) -> bool) -> Self {
        let streams = program.groups.len() + 1;
        let mut awaited = vec![false; program.steps.len()];
        let named = |index: usize| {
            let step = &program.steps[index];
            let wait = if let StepKind::Wait(of) = step.kind { Some(of) } else { None };
            step.after.iter().copied().chain(wait)
        };
        (0..program.steps.len()).flat_map(named).for_each(|step| awaited[step.0 as usize] = true);
        let mut known: Vec<Known> = vec![vec![0; streams]; streams];
        // What is over when a step is, for those that are waited for.
        let mut at_end: Vec<Option<Known>> = vec![None; program.steps.len()];
        let mut by_step = Vec::with_capacity(program.steps.len());
        for (index, step) in program.steps.iter().enumerate() {
            let stream = number(step.stream);
            let mut before: Vec<StepId> = named(index).collect();
            // The last one implies most.
            before.sort_unstable_by(|a, b| b.cmp(a));
            before.retain(|other| {
                let of = number(program.steps[other.0 as usize].stream);
                if of == stream || known[stream][of] > other.0 {
                    return false;
                }
                if let Some(over) = &at_end[other.0 as usize] {
                    merge(&mut known[stream], over);
                }
                true
            });
            before.reverse();
            by_step.push(before);
            if host_reads(step) {
                // What is enqueued from now on, on any stream, comes after what the host has seen to be over.
                let over = known[0].clone();
                known.iter_mut().for_each(|known| merge(known, &over));
            }
            known[stream][stream] = index as u32 + 1;
            if awaited[index] {
                at_end[index] = Some(known[stream].clone());
            }
        }
        Self { by_step }
    }

    /// In step order.
    pub fn of_step(&self, step: StepId) -> &[StepId] {
        &self.by_step[step.0 as usize]
    }

    /// Of all steps, in order; a step is there as often as it is waited for.
    pub fn all(&self) -> impl Iterator<Item = &StepId> {
        self.by_step.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_that_others_imply_are_left_out() {
        let text = "program p align 16 {\n  group G: 2\n  arena comm 64 live 64\n  \
             buffer a: comm 32 align 16 at 0:0\n  buffer b: comm 32 align 16 at 0:32\n  \
             s0 x: pack {\n    zero a for 32\n  }\n  s1 y: pack {\n    zero b for 32\n  }\n  \
             s2 g on G after s0: all_reduce sum group G f32 normal {\n    8 a for 32 -> a for 32\n  }\n  \
             s3 h on G after s0 s1: all_reduce sum group G f32 normal {\n    8 b for 32 -> b for 32\n  }\n  \
             s4 v after s3: wait s3\n  s5 w after s2: wait s2\n  output () ()\n}\n";
        let program = Program::parse(text).unwrap_or_else(|error| panic!("{error}"));
        let waits = Waits::of(&program, |_| false);
        let of = |step: u32| waits.of_step(StepId(step)).iter().map(|step| step.0).collect::<Vec<_>>();
        assert_eq!([of(0), of(1), of(2), of(3), of(4), of(5)], [vec![], vec![], vec![0], vec![1], vec![3], vec![]]);
        assert_eq!(waits.all().count(), 3);
        // The host reads what y made, so h is enqueued after that is over.
        let waits = Waits::of(&program, |step| &*step.node == "g");
        assert_eq!([2, 3, 4].map(|step| waits.of_step(StepId(step)).len()), [1, 0, 1]);
    }
}
