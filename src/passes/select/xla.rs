//! The rule of XLA's collective combiners (`CombineInstructionsByKey` in `collective_combiner_utils.h`, as of jaxlib
//! 0.10.2), in near-linear time; see the module above.
//!
//! XLA walks a computation in post order. The first candidate it meets sets the key. Others of that key join, in the order
//! of the walk: one above the cap by itself is dropped for good; the bucket ends before one that no longer fits, before
//! one that depends on a member, and behind the last that the count allows. Two members or more become one instruction.
//! Then the walk begins again, over the graph as merged so far, until no candidate is left.
//!
//! XLA builds the post order and all reachability anew for each bucket. Here both are kept:
//!
//! - *Order.* A depth-first walk comes to the merged instruction where it came to the first member, and from there to all
//!   that the others need. So what the later members need, and stands behind the first, moves before it, in the order of
//!   a depth-first walk from them; all else stays. The order is a linked list.
//! - *Reachability.* What depends on a member stands behind the first one, so it is marked while the bucket is filled.
//!
//! A bucket is given up as soon as no candidate of its key is left. Cost: the stretches of the order from each bucket's
//! first member to its end, and the edges into them. They overlap only where buckets of different keys do.

use super::{Caps, Open, PlanGraph, Refusal, Selection, finish};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// No node.
const NONE: u32 = u32::MAX;

pub(super) struct Xla<'a, G: PlanGraph> {
    graph: &'a G,
    caps: &'a Caps,
    /// The nodes in post order, those of each body by themselves, as a list.
    first: u32,
    next: Vec<u32>,
    previous: Vec<u32>,
    /// Whether a node is a candidate that is still to be looked at.
    waits: Vec<bool>,
    /// Candidates of each key that are still to be looked at.
    left: HashMap<G::Key, usize, FxBuildHasher>,
    /// The first member of the bucket that a node was merged into; itself if it was not.
    merged: Vec<u32>,
    /// Members of merged buckets, by the first.
    members: HashMap<u32, Vec<usize>, FxBuildHasher>,
    /// The last walk that came over a node, and the last whose bucket the node depends on; counted from 1.
    walked: Vec<u32>,
    depends: Vec<u32>,
    walks: u32,
    buckets: Vec<Open>,
    /// Buckets opened for each key.
    opened: HashMap<G::Key, usize, FxBuildHasher>,
    refusals: HashMap<usize, Refusal, FxBuildHasher>,
}

impl<'a, G: PlanGraph> Xla<'a, G> {
    pub(super) fn new(graph: &'a G, caps: &'a Caps) -> Self {
        let count = graph.node_count();
        let order = post_order(graph);
        let (mut next, mut previous) = (vec![NONE; count], vec![NONE; count]);
        for pair in order.windows(2) {
            next[pair[0] as usize] = pair[1];
            previous[pair[1] as usize] = pair[0];
        }
        let mut left: HashMap<G::Key, usize, FxBuildHasher> = HashMap::default();
        let mut waits = vec![false; count];
        for (node, waits) in waits.iter_mut().enumerate() {
            if let Some(candidate) = graph.candidate(node) {
                *left.entry(candidate.key).or_default() += 1;
                *waits = true;
            }
        }
        Self {
            graph,
            caps,
            first: order.first().copied().unwrap_or(NONE),
            next,
            previous,
            waits,
            left,
            merged: (0..count as u32).collect(),
            members: HashMap::default(),
            walked: vec![0; count],
            depends: vec![0; count],
            walks: 0,
            buckets: Vec::new(),
            opened: HashMap::default(),
            refusals: HashMap::default(),
        }
    }

    pub(super) fn run(mut self) -> Selection {
        let candidates: Vec<usize> = (0..self.waits.len()).filter(|&node| self.waits[node]).collect();
        let mut at = self.first;
        while at != NONE {
            at = if self.waits[at as usize] { self.bucket(at) } else { self.next[at as usize] };
        }
        finish(self.buckets, self.refusals, &candidates)
    }

    /// Fills a bucket from its first candidate on, and gives the node where the next walk begins.
    fn bucket(&mut self, first: u32) -> u32 {
        let Some(candidate) = self.graph.candidate(first as usize) else { return self.next[first as usize] };
        let key = candidate.key;
        self.walks += 1;
        let number = self.walks;
        let opened = self.opened.get(&key).copied().unwrap_or(0);
        let mut bucket = Open { limit: self.caps.limit(opened), ..Open::default() };
        let mut at = first;
        while at != NONE {
            let node = at as usize;
            self.walked[node] = number;
            if self.needs(at, number) {
                self.depends[node] = number;
            }
            let other = self.graph.candidate(node).filter(|other| self.waits[node] && other.key == key);
            if let Some(candidate) = other
                && !self.offer(&mut bucket, node, candidate.bytes, number)
            {
                break;
            }
            if bucket.members.is_empty() || self.left.get(&key) == Some(&0) {
                break;
            }
            at = self.next[node];
        }
        if bucket.members.is_empty() {
            return self.next[first as usize];
        }
        *self.opened.entry(key).or_default() += 1;
        let begin = if bucket.members.len() > 1 { self.merge(&bucket.members, number) } else { first };
        self.buckets.push(bucket);
        begin
    }

    /// Whether anything that runs before a node depends on the bucket being filled.
    fn needs(&self, at: u32, number: u32) -> bool {
        let depends = |node: usize| {
            self.graph.dependencies(node).any(|before| self.depends[self.merged[before] as usize] == number)
        };
        match self.members.get(&at) {
            Some(members) => members.iter().any(|&member| depends(member)),
            None => depends(at as usize),
        }
    }

    /// Takes a candidate into the bucket, or drops it. Gives `false` if the bucket ends here.
    fn offer(&mut self, bucket: &mut Open, node: usize, bytes: Option<u64>, number: u32) -> bool {
        let fits = match (bytes, bucket.limit) {
            (None, _) => Err(Refusal::SizeUnknown),
            (Some(bytes), Some(limit)) if bytes > limit => Err(Refusal::Oversize { cap_bytes: limit }),
            (Some(bytes), _) => Ok(bytes),
        };
        let bytes = match fits {
            Ok(bytes) => bytes,
            Err(refusal) => {
                self.done(node);
                self.refusals.insert(node, refusal);
                if matches!(refusal, Refusal::Oversize { .. }) && !bucket.members.is_empty() {
                    bucket.refused.get_or_insert(Refusal::CapReached { other: node });
                }
                return true;
            }
        };
        let other = bucket.members.first().copied();
        let refusal = match other {
            Some(other) if !bucket.has_room(bytes, self.caps) => Some(Refusal::CapReached { other }),
            Some(other) if self.depends[node] == number => Some(Refusal::Dependent { other }),
            _ => None,
        };
        if let Some(refusal) = refusal {
            // Of the two, whichever stays alone is told.
            bucket.refused = Some(match refusal {
                Refusal::CapReached { .. } => Refusal::CapReached { other: node },
                _ => Refusal::Dependent { other: node },
            });
            self.refusals.insert(node, refusal);
            return false;
        }
        self.done(node);
        if other.is_some() {
            // One that opens a bucket and stays alone in it was kept out of the one before for a reason.
            self.refusals.remove(&node);
        }
        self.depends[node] = number;
        bucket.members.push(node);
        bucket.bytes += bytes;
        self.caps.max_members.is_none_or(|most| bucket.members.len() < most)
    }

    fn done(&mut self, node: usize) {
        self.waits[node] = false;
        if let Some(candidate) = self.graph.candidate(node)
            && let Some(left) = self.left.get_mut(&candidate.key)
        {
            *left -= 1;
        }
    }

    /// Merges a bucket into its first member, and moves what the others need before it. Gives the first node that moved,
    /// or the first member.
    fn merge(&mut self, members: &[usize], number: u32) -> u32 {
        let first = members[0] as u32;
        let mut needed = Vec::new();
        let mut stack: Vec<(usize, bool)> = Vec::new();
        for &member in members {
            self.walked[member] = 0;
        }
        for &member in &members[1..] {
            self.push_needed(member, number, &mut stack);
            while let Some((node, done)) = stack.pop() {
                if done {
                    needed.push(node as u32);
                } else if self.walked[node] == number {
                    self.walked[node] = 0;
                    stack.push((node, true));
                    match self.members.get(&(node as u32)) {
                        Some(merged) => {
                            let merged = merged.clone();
                            merged.iter().rev().for_each(|&member| self.push_needed(member, number, &mut stack));
                        }
                        None => self.push_needed(node, number, &mut stack),
                    }
                }
            }
        }
        for &node in &needed {
            self.unlink(node);
            self.link_before(node, first);
        }
        for &member in &members[1..] {
            self.unlink(member as u32);
            self.merged[member] = first;
        }
        self.members.insert(first, members.to_vec());
        needed.first().copied().unwrap_or(first)
    }

    /// Puts what runs before a node, and was walked over for this bucket, on the stack, the first on top.
    fn push_needed(&self, node: usize, number: u32, stack: &mut Vec<(usize, bool)>) {
        let from = stack.len();
        let before = self.graph.dependencies(node).map(|before| self.merged[before] as usize);
        stack.extend(before.filter(|&before| self.walked[before] == number).map(|before| (before, false)));
        stack[from..].reverse();
    }

    fn unlink(&mut self, node: u32) {
        let (previous, next) = (self.previous[node as usize], self.next[node as usize]);
        match previous {
            NONE => self.first = next,
            previous => self.next[previous as usize] = next,
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
    }

    fn link_before(&mut self, node: u32, at: u32) {
        let previous = self.previous[at as usize];
        self.previous[node as usize] = previous;
        self.next[node as usize] = at;
        self.previous[at as usize] = node;
        match previous {
            NONE => self.first = node,
            previous => self.next[previous as usize] = node,
        }
    }
}

/// The nodes of each body in XLA's post order: depth first from the nodes that nothing of the body depends on, what a node
/// depends on before it, in the order in which it says so.
fn post_order<G: PlanGraph>(graph: &G) -> Vec<u32> {
    let count = graph.node_count();
    let within = |node: usize| graph.dependencies(node).filter(move |&before| graph.body(before) == graph.body(node));
    let mut has_user = vec![false; count];
    for node in 0..count {
        within(node).for_each(|before| has_user[before] = true);
    }
    // Bodies one after the other, in the order of their first nodes.
    let mut bodies: Vec<(usize, usize)> =
        (0..count).filter(|&node| !has_user[node]).map(|n| (graph.body(n), n)).collect();
    bodies.sort_unstable();
    let mut order = Vec::with_capacity(count);
    let mut seen = vec![false; count];
    let mut stack: Vec<(usize, bool)> = Vec::new();
    for (_, sink) in bodies {
        stack.push((sink, false));
        while let Some((node, done)) = stack.pop() {
            if done {
                order.push(node as u32);
            } else if !std::mem::replace(&mut seen[node], true) {
                stack.push((node, true));
                let from = stack.len();
                stack.extend(within(node).filter(|&before| !seen[before]).map(|before| (before, false)));
                stack[from..].reverse();
            }
        }
    }
    order
}
