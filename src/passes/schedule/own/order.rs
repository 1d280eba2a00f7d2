//! The program order that a plan of one's own stands for: what stays in its order, and launches and waits between.

use super::super::problem::NONE;
use super::places::AllPlaced;
use super::{AllChosen, Gap, Program};
use crate::ir::{CollectiveKind, Op};

/// What stands in a gap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moved {
    Launch(usize),
    Wait(usize),
}

/// The places of the program as it was, in the order in which they stand now.
pub(super) fn order(program: &Program<'_>, all: &AllChosen, placed: &AllPlaced) -> Vec<u32> {
    let count = program.count();
    let gathers = |bucket: usize| {
        let kind = all.buckets[bucket].members.first().and_then(|&first| program.graph.collective(program.node(first)));
        kind.is_some_and(|found| matches!(found.kind, CollectiveKind::AllGather { .. }))
    };
    let mut moved: Vec<(Gap, Moved)> = Vec::with_capacity(2 * all.buckets.len());
    for (bucket, places) in placed.buckets.iter().enumerate() {
        moved.push((places.launch, Moved::Launch(bucket)));
        moved.push((places.wait, Moved::Wait(bucket)));
    }
    moved.sort_unstable();
    // What floats and reads a result that is waited for below follows the wait; what reads a gather's goes where it is read,
    // as members of a gather are copied out one by one.
    let mut reads_gather = vec![false; count];
    let mut later: Vec<(u32, u32)> = Vec::new();
    for place in 0..count {
        let of_gather = |&before: &u32| match all.waited_in[before as usize] {
            NONE => reads_gather[before as usize],
            bucket => gathers(bucket as usize),
        };
        reads_gather[place] = program.floats[place] && program.before.get(place).iter().any(of_gather);
        if is_later(program, placed, place) && !reads_gather[place] {
            later.push((placed.ready[place], place as u32));
        }
    }
    later.sort_unstable();
    let mut emit = Emit { program, all, out: Vec::with_capacity(count), done: vec![false; count], stack: Vec::new() };
    let (mut moved, mut later) = (moved.into_iter().peekable(), later.into_iter().peekable());
    for place in 0..count {
        while let Some((_, found)) = moved.next_if(|(gap, _)| gap.before as usize <= place) {
            match found {
                Moved::Launch(bucket) => emit.all(&all.buckets[bucket].members),
                // The first that was read stands for all of a gather.
                Moved::Wait(bucket) if gathers(bucket) => emit.all(first_read(program, &all.buckets[bucket].waits)),
                Moved::Wait(bucket) => emit.all(&all.buckets[bucket].waits),
            }
        }
        while let Some((_, floating)) = later.next_if(|(ready, _)| *ready as usize <= place) {
            emit.all(&[floating]);
        }
        if program.graph.node(program.node(place as u32)).op == Op::Output {
            (0..count as u32).filter(|&other| other as usize != place).for_each(|other| emit.all(&[other]));
        }
        let moves = all.launched_in[place] != NONE || all.waited_in[place] != NONE;
        if !moves && !is_later(program, placed, place) {
            emit.all(&[place as u32]);
        }
    }
    (0..count as u32).for_each(|place| emit.all(&[place]));
    emit.out
}

/// Whether something that floats has to stand further below than it did.
fn is_later(program: &Program<'_>, placed: &AllPlaced, place: usize) -> bool {
    program.floats[place] && placed.ready[place] as usize > place
}

/// The wait whose result was read first.
fn first_read<'w>(program: &Program<'_>, waits: &'w [u32]) -> &'w [u32] {
    let read = |wait: &u32| program.after.get(*wait as usize).iter().min().copied().unwrap_or(NONE);
    let first = waits.iter().enumerate().min_by_key(|(_, wait)| read(wait)).map_or(0, |(at, _)| at);
    waits.get(first..=first).unwrap_or_default()
}

/// Puts nodes out, each after all that must come before it, and members of a bucket side by side.
struct Emit<'a> {
    program: &'a Program<'a>,
    all: &'a AllChosen,
    out: Vec<u32>,
    done: Vec<bool>,
    /// Nodes being looked at: how far the members of the bucket, and the edges into that member, were.
    stack: Vec<(u32, usize, usize)>,
}

impl Emit<'_> {
    fn all(&mut self, places: &[u32]) {
        for &place in places {
            self.one(place);
        }
    }

    fn one(&mut self, place: u32) {
        self.stack.push((place, 0, 0));
        while let Some((place, member, edge)) = self.stack.pop() {
            if self.done[place as usize] {
                continue;
            }
            let bucket = self.all.launched_in[place as usize];
            let members = match bucket {
                NONE => std::slice::from_ref(&place),
                bucket => &self.all.buckets[bucket as usize].members,
            };
            let Some(&this) = members.get(member) else {
                members.iter().for_each(|&member| self.done[member as usize] = true);
                self.out.extend_from_slice(members);
                continue;
            };
            let before = self.program.before.get(this as usize);
            let apart = |before: u32| bucket == NONE || self.all.launched_in[before as usize] != bucket;
            let missing = before[edge..].iter().position(|&before| !self.done[before as usize] && apart(before));
            match missing {
                Some(offset) => {
                    self.stack.push((place, member, edge + offset));
                    self.stack.push((before[edge + offset], 0, 0));
                }
                None => self.stack.push((place, member + 1, 0)),
            }
        }
    }
}
