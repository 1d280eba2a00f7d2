//! Where merged launches go, and what moves for them.
//!
//! A bucket's launch stands where its first or its last member stood. At the first, what later members' inputs depend
//! on must move up; at the last, what reads earlier members must move down. Each bucket takes the place that moves
//! fewer nodes, the first in a tie. Everything else keeps its order.
//!
//! Invariants: the slots are in topological order, and the quotient graph (each bucket one node) has no cycle; the
//! selection sees to it, and a plan made otherwise is refused with [`Cycle`].
//!
//! One walk over the slots emits each as soon as all it depends on is out. Reaching a launch that stands first, the walk
//! takes along whatever it still needs; a node that is not ready yet goes on the list of one of the nodes it waits for
//! and follows when it can. Cost: linear in slots and edges, plus a heap for the nodes that move.

use crate::ir::Dependencies;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A bucket, as slots of its members in issue order.
pub type Members = Vec<usize>;

/// An order to be changed: slots, numbered in a topological order.
pub trait Slots {
    /// How many there are.
    fn count(&self) -> usize;

    /// Slots that must come before `slot`; a slot may be named more than once.
    fn before(&self, slot: usize) -> &[u32];
}

impl Slots for Dependencies {
    fn count(&self) -> usize {
        self.slots().len()
    }

    fn before(&self, slot: usize) -> &[u32] {
        self.before(slot)
    }
}

/// The new order.
#[derive(Debug, PartialEq, Eq)]
pub struct Reordering {
    /// Slots in their new order. Of each bucket only the first member is in it, where the launch goes.
    pub slots: Vec<usize>,
    /// Slots that changed their place relative to the rest, launches not counted.
    pub moved: Vec<usize>,
}

/// The plan would close a loop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bucket {bucket} would depend on itself")]
pub struct Cycle {
    /// Index of a bucket on the loop.
    pub bucket: usize,
}

/// Changes to the edges that come with the merge.
#[derive(Debug, Default)]
pub struct Adjusted {
    /// Edges that go away: from a member to a reader of its shape, which will read the member's input instead.
    pub(super) without: hashbrown::HashSet<(u32, u32), rustc_hash::FxBuildHasher>,
    /// By later end: further edges, from that input.
    pub(super) with: hashbrown::HashMap<usize, Vec<usize>, rustc_hash::FxBuildHasher>,
}

/// Where launches go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Where it moves fewer nodes; at the first member where finding that out costs too much.
    BestOrFirst,
    /// Where it moves fewer nodes; at the last member where finding that out costs too much.
    BestOrLast,
    /// At the last member.
    Last,
}

/// Orders the slots with every bucket as one launch, at that place.
///
/// # Errors
/// [`Cycle`], if the buckets depend on one another in a circle.
pub fn reorder<S: Slots>(
    dependencies: &S,
    buckets: &[Members],
    adjusted: &Adjusted,
    place: Place,
) -> Result<Reordering, Cycle> {
    let count = dependencies.count();
    let mut bucket_of = vec![NONE; count];
    for (index, members) in buckets.iter().enumerate() {
        members.iter().for_each(|&slot| bucket_of[slot] = index as u32);
    }
    let quotient = Quotient { dependencies, buckets, adjusted, bucket_of };
    let anchors = quotient.anchors(place);
    let mut builder = OrderBuilder {
        quotient: &quotient,
        emitted: vec![false; count],
        displaced: vec![false; count],
        waiting: hashbrown::HashMap::default(),
        ready: BinaryHeap::new(),
        out: Vec::with_capacity(count),
        moved: Vec::new(),
    };
    for slot in 0..count {
        match quotient.bucket_of[slot] {
            NONE => builder.reach(slot),
            bucket if anchors[bucket as usize] == slot => builder.launch(bucket as usize, slot)?,
            _ => {}
        }
    }
    let total = count - buckets.iter().map(|members| members.len() - 1).sum::<usize>();
    if builder.out.len() < total {
        let missing = buckets.iter().position(|members| !builder.emitted[members[0]]);
        return Err(Cycle { bucket: missing.unwrap_or(0) });
    }
    Ok(Reordering { slots: builder.out, moved: builder.moved })
}

/// By bucket: whether its launch stands at its last member rather than its first, if no other bucket were there.
pub(super) fn stands_last<S: Slots>(dependencies: &S, buckets: &[Members], place: Place) -> Vec<bool> {
    let mut bucket_of = vec![NONE; dependencies.count()];
    for (index, members) in buckets.iter().enumerate() {
        members.iter().for_each(|&slot| bucket_of[slot] = index as u32);
    }
    let quotient = Quotient { dependencies, buckets, adjusted: &Adjusted::default(), bucket_of };
    let anchors = quotient.anchors(place);
    anchors.into_iter().zip(buckets).map(|(anchor, members)| anchor == span(members).1).collect()
}

const NONE: u32 = u32::MAX;

/// The slots with each bucket as one node, named by its first member.
struct Quotient<'a, S> {
    dependencies: &'a S,
    buckets: &'a [Members],
    adjusted: &'a Adjusted,
    bucket_of: Vec<u32>,
}

impl<S: Slots> Quotient<'_, S> {
    fn name(&self, slot: usize) -> usize {
        match self.bucket_of[slot] {
            NONE => slot,
            bucket => self.buckets[bucket as usize][0],
        }
    }

    fn members<'b>(&'b self, name: &'b usize) -> &'b [usize] {
        match self.bucket_of[*name] {
            NONE => std::slice::from_ref(name),
            bucket => &self.buckets[bucket as usize],
        }
    }

    /// The next thing that must come before `name`, from `cursor` on; moves the cursor behind it.
    fn next_before(&self, name: usize, cursor: &mut Cursor) -> Option<usize> {
        let members = self.members(&name);
        while let Some(&member) = members.get(cursor.member) {
            let before = self.dependencies.before(member);
            let further = if self.adjusted.with.is_empty() { None } else { self.adjusted.with.get(&member) };
            let edge = cursor.edge;
            cursor.edge += 1;
            let found = match (before.get(edge), further.and_then(|list| list.get(edge.wrapping_sub(before.len())))) {
                (Some(&before), _) if self.goes_away(before, member) => continue,
                (Some(&before), _) => before as usize,
                (None, Some(&before)) => before,
                (None, None) => {
                    *cursor = Cursor { member: cursor.member + 1, edge: 0 };
                    continue;
                }
            };
            let found = self.name(found);
            if found != name {
                return Some(found);
            }
        }
        None
    }

    fn goes_away(&self, before: u32, after: usize) -> bool {
        !self.adjusted.without.is_empty() && self.adjusted.without.contains(&(before, after as u32))
    }

    /// The slot at which each bucket is launched.
    fn anchors(&self, place: Place) -> Vec<usize> {
        if self.buckets.is_empty() || place == Place::Last {
            return self.buckets.iter().map(|members| span(members).1).collect();
        }
        let readers = Readers::of(self.dependencies);
        let mut marks = vec![NONE; self.bucket_of.len()];
        let anchor = |(index, members): (usize, &Members)| {
            let (first, last) = span(members);
            let stamp = index as u32 * 2;
            // What the search may cost before the habit of the kind decides, so that all searches stay linear.
            let budget = 64 * members.len();
            let mut up = Search::new(stamp, members, |slot| slot > first);
            let mut down = Search::new(stamp + 1, members, |slot| slot < last);
            let before = |slot: usize| self.dependencies.before(slot);
            let after = |slot: usize| readers.after(slot);
            // In step, so that the cost is that of the smaller set; once one is known, the other need not grow larger.
            let (mut up_over, mut down_over) = (false, false);
            for _ in 0..budget {
                up_over = up_over || up.step(&mut marks, &self.bucket_of, index as u32, before);
                down_over = down_over || down.step(&mut marks, &self.bucket_of, index as u32, after);
                if up_over && (down_over || down.found >= up.found) {
                    return if down.found < up.found { last } else { first };
                }
                if down_over && up.found > down.found {
                    return last;
                }
            }
            if place == Place::BestOrFirst { first } else { last }
        };
        self.buckets.iter().enumerate().map(anchor).collect()
    }
}

/// Slots that must come after each slot.
struct Readers {
    /// Those after slot `s` are `to[starts[s]..starts[s + 1]]`.
    starts: Vec<u32>,
    to: Vec<u32>,
}

impl Readers {
    fn of(slots: &impl Slots) -> Self {
        let count = slots.count();
        let mut starts = vec![0u32; count + 1];
        for slot in 0..count {
            slots.before(slot).iter().for_each(|&before| starts[before as usize + 1] += 1);
        }
        for slot in 0..count {
            starts[slot + 1] += starts[slot];
        }
        let mut next = starts.clone();
        let mut to = vec![0; starts[count] as usize];
        for slot in 0..count {
            for &before in slots.before(slot) {
                let place = &mut next[before as usize];
                to[*place as usize] = slot as u32;
                *place += 1;
            }
        }
        Self { starts, to }
    }

    fn after(&self, slot: usize) -> &[u32] {
        &self.to[self.starts[slot] as usize..self.starts[slot + 1] as usize]
    }
}

fn span(members: &[usize]) -> (usize, usize) {
    members.iter().fold((usize::MAX, 0), |(first, last), &slot| (first.min(slot), last.max(slot)))
}

/// Counts the nodes that one of the two places would move, a few at a time.
struct Search<F> {
    stamp: u32,
    /// Slots being looked at, each with the number of its edges that were.
    stack: Vec<(usize, usize)>,
    inside: F,
    found: usize,
}

impl<F: Fn(usize) -> bool> Search<F> {
    fn new(stamp: u32, members: &[usize], inside: F) -> Self {
        Self { stamp, stack: members.iter().map(|&slot| (slot, 0)).collect(), inside, found: 0 }
    }

    /// Looks along up to eight edges; returns whether the search is over. A slot that both searches of one bucket see
    /// may be counted twice; no slot can be above and below the same members.
    fn step<'e>(&mut self, marks: &mut [u32], bucket_of: &[u32], own: u32, edges: impl Fn(usize) -> &'e [u32]) -> bool {
        for _ in 0..8 {
            let Some((top, at)) = self.stack.last_mut() else { return true };
            let Some(&next) = edges(*top).get(*at) else {
                self.stack.pop();
                continue;
            };
            *at += 1;
            let next = next as usize;
            if (self.inside)(next) && marks[next] != self.stamp && bucket_of[next] != own {
                marks[next] = self.stamp;
                self.found += 1;
                self.stack.push((next, 0));
            }
        }
        false
    }
}

/// How far the edges into a node have been looked at: member of its bucket, edge of the member.
#[derive(Clone, Copy, Default)]
struct Cursor {
    member: usize,
    edge: usize,
}

/// The order on its way: each node goes out as soon as all that it depends on is out.
struct OrderBuilder<'a, S> {
    quotient: &'a Quotient<'a, S>,
    emitted: Vec<bool>,
    /// Nodes that were passed over or taken along.
    displaced: Vec<bool>,
    /// By a node that is not out yet: nodes that wait for it, each with the edges that were seen to be out.
    waiting: hashbrown::HashMap<usize, Vec<(usize, Cursor)>, rustc_hash::FxBuildHasher>,
    /// Nodes that were passed over and can follow now, by place.
    ready: BinaryHeap<Reverse<usize>>,
    out: Vec<usize>,
    moved: Vec<usize>,
}

impl<S: Slots> OrderBuilder<'_, S> {
    /// Emits a node, or puts it aside until it is ready.
    fn reach(&mut self, name: usize) {
        if self.emitted[name] || !self.wait_for_missing(name, Cursor::default()) {
            return;
        }
        self.emit(name);
    }

    /// If something that must come before `name` is not out yet, lists `name` with it; returns whether all is out.
    fn wait_for_missing(&mut self, name: usize, mut cursor: Cursor) -> bool {
        loop {
            let seen = cursor;
            match self.quotient.next_before(name, &mut cursor) {
                None => return true,
                Some(before) if self.emitted[before] => {}
                Some(before) => {
                    self.displace(name);
                    self.waiting.entry(before).or_default().push((name, seen));
                    return false;
                }
            }
        }
    }

    fn displace(&mut self, name: usize) {
        if self.quotient.bucket_of[name] == NONE && !std::mem::replace(&mut self.displaced[name], true) {
            self.moved.push(name);
        }
    }

    /// Emits a node and all that were waiting for nothing else.
    fn emit(&mut self, name: usize) {
        self.put(name);
        while let Some(Reverse(next)) = self.ready.pop() {
            if !self.emitted[next] {
                self.put(next);
            }
        }
    }

    fn put(&mut self, name: usize) {
        self.emitted[name] = true;
        self.out.push(name);
        for (waiter, cursor) in self.waiting.remove(&name).unwrap_or_default() {
            if self.wait_for_missing(waiter, cursor) {
                self.ready.push(Reverse(waiter));
            }
        }
    }

    /// Reaches the place of a launch. One that stands first takes along what it needs.
    fn launch(&mut self, bucket: usize, anchor: usize) -> Result<(), Cycle> {
        let name = self.quotient.buckets[bucket][0];
        let (first, _) = span(&self.quotient.buckets[bucket]);
        if self.emitted[name] {
            return Ok(());
        }
        if anchor == first {
            self.take_along(bucket, name)?;
        }
        self.reach(name);
        Ok(())
    }

    /// Emits everything that `name` needs and that is not out, in the order it stood.
    fn take_along(&mut self, bucket: usize, name: usize) -> Result<(), Cycle> {
        let mut needed = Vec::new();
        let mut seen = hashbrown::HashSet::<usize, rustc_hash::FxBuildHasher>::default();
        let mut stack = vec![name];
        while let Some(top) = stack.pop() {
            let mut cursor = Cursor::default();
            while let Some(before) = self.quotient.next_before(top, &mut cursor) {
                if before == name {
                    return Err(Cycle { bucket });
                }
                if !self.emitted[before] && seen.insert(before) {
                    needed.push(before);
                    stack.push(before);
                }
            }
        }
        // Slots are in topological order but for other buckets among them, so those that are not ready wait in turn.
        needed.sort_unstable();
        for node in needed {
            self.displace(node);
            self.reach(node);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Args, Graph, NodeId, Op, TypeId};

    /// A graph of plain calls, each with the numbers of the calls it reads.
    fn graph(reads: &[&[usize]]) -> Graph {
        let mut graph = Graph::new("g");
        let mut ids: Vec<NodeId> = Vec::new();
        for (index, reads) in reads.iter().enumerate() {
            let name = graph.intern(&format!("n{index}"));
            let target = graph.intern("relu");
            let operands: Vec<_> = reads.iter().map(|&read| ids[read]).collect();
            let args = graph.intern_args(Args::default());
            ids.push(graph.push(Op::Call(target), name, TypeId::UNKNOWN, args, &operands));
        }
        graph
    }

    fn order(reads: &[&[usize]], buckets: &[Members]) -> Result<Reordering, Cycle> {
        reorder(&Dependencies::of(&graph(reads)), buckets, &Adjusted::default(), Place::BestOrFirst)
    }

    #[test]
    fn a_launch_at_the_first_member_takes_later_inputs_along() {
        // 1 and 4 travel together; 3 is the input of 4, and much reads 1.
        let reads: &[&[usize]] = &[&[], &[0], &[1], &[0], &[3], &[2], &[1], &[4]];
        let found = order(reads, &[vec![1, 4]]).unwrap();
        assert_eq!((found.slots, found.moved), (vec![0, 3, 1, 2, 5, 6, 7], vec![3]));
    }

    #[test]
    fn a_launch_at_the_last_member_lets_early_readers_follow() {
        // 1 and 5 travel together; 5 needs 2, 3 and 4, and only 6 reads 1.
        let reads: &[&[usize]] = &[&[], &[0], &[0], &[2], &[3], &[4], &[1]];
        let found = order(reads, &[vec![1, 5]]).unwrap();
        assert_eq!((found.slots, found.moved), (vec![0, 2, 3, 4, 1, 6], vec![]));
    }

    #[test]
    fn a_plan_that_closes_a_loop_is_refused() {
        assert_eq!(order(&[&[], &[0], &[1]], &[vec![0, 2]]), Err(Cycle { bucket: 0 }));
        // Two buckets that are legal alone: 0 > 3 and 1 > 2.
        assert!(order(&[&[], &[], &[1], &[0]], &[vec![0, 2], vec![1, 3]]).is_err());
    }

    #[test]
    fn without_buckets_nothing_moves() {
        let reads: &[&[usize]] = &[&[], &[0], &[0], &[1, 2]];
        let found = order(reads, &[]).unwrap();
        assert_eq!((found.slots, found.moved), (vec![0, 1, 2, 3], vec![]));
    }
}
