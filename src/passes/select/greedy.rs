//! First fit over all legal candidates; see the module above.

use super::{Candidate, Caps, Open, PlanGraph, Refusal, Selection, finish};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Places in a set of buckets; place 0 is for all that have retired.
const SLOTS: usize = 256;
const WORDS: usize = SLOTS / 64;
const RETIRED: usize = 0;
/// Index of the empty set.
const NOTHING: u32 = 0;

/// A set of buckets, by place.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Set([u64; WORDS]);

impl Set {
    fn insert(&mut self, place: usize) {
        self.0[place / 64] |= 1 << (place % 64);
    }

    fn remove(&mut self, place: usize) {
        self.0[place / 64] &= !(1 << (place % 64));
    }

    const fn contains(&self, place: usize) -> bool {
        self.0[place / 64] >> (place % 64) & 1 == 1
    }

    fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    /// The members of the set, smallest first.
    fn places(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(word, mut bits)| {
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(word * 64 + bit)
            })
        })
    }
}

pub(super) struct Greedy<'a, G: PlanGraph> {
    graph: &'a G,
    caps: &'a Caps,
    /// Every bucket ever opened.
    buckets: Vec<Open>,
    keys: HashMap<G::Key, usize, FxBuildHasher>,
    /// By number of the key: buckets that still have a place, oldest first, and how many were opened.
    by_key: Vec<(Vec<usize>, usize)>,
    /// The bucket in each place.
    in_place: Vec<Option<usize>>,
    /// Buckets that depend on the one in each place, without itself.
    after: Vec<Set>,
    /// The epoch in which a bucket last left each place; see `refresh`.
    left_at: Vec<u32>,
    epoch: u32,
    /// By node: the set of buckets it depends on, as an index into `sets`. Neighbours mostly share one.
    reach: Vec<u32>,
    /// Sets, each with the epoch in which it was stored; the first is empty.
    sets: Vec<(Set, u32)>,
    refusals: HashMap<usize, Refusal, FxBuildHasher>,
}

impl<'a, G: PlanGraph> Greedy<'a, G> {
    pub(super) fn new(graph: &'a G, caps: &'a Caps) -> Self {
        Self {
            graph,
            caps,
            buckets: Vec::new(),
            keys: HashMap::default(),
            by_key: Vec::new(),
            in_place: vec![None; SLOTS],
            after: vec![Set::default(); SLOTS],
            left_at: vec![0; SLOTS],
            epoch: 0,
            reach: Vec::with_capacity(graph.node_count()),
            sets: vec![(Set::default(), 0)],
            refusals: HashMap::default(),
        }
    }

    pub(super) fn run(mut self) -> Selection {
        let mut candidates = Vec::new();
        for node in 0..self.graph.node_count() {
            let mut reach = NOTHING;
            for before in self.graph.dependencies(node) {
                reach = self.union(reach, self.reach[before]);
            }
            if let Some(candidate) = self.graph.candidate(node) {
                candidates.push(node);
                let mut set = self.refresh(reach);
                if let Some(place) = self.find_bucket(node, &candidate, &mut set) {
                    set.insert(place);
                    reach = self.store(set);
                }
            }
            self.reach.push(reach);
        }
        finish(self.buckets, self.refusals, &candidates)
    }

    /// The union of two sets. It is mostly one of the two, and then nothing is stored.
    fn union(&mut self, a: u32, b: u32) -> u32 {
        if a == b || b == NOTHING {
            return a;
        }
        if a == NOTHING {
            return b;
        }
        let (of_a, of_b) = (self.refresh(a), self.refresh(b));
        let mut union = of_a;
        union.add(&of_b);
        match union {
            union if union == of_a => a,
            union if union == of_b => b,
            union => self.store(union),
        }
    }

    fn store(&mut self, set: Set) -> u32 {
        self.sets.push((set, self.epoch));
        self.sets.len() as u32 - 1
    }

    /// A set, with the buckets that have retired since it was stored moved to the place of the retired.
    fn refresh(&mut self, index: u32) -> Set {
        let (set, stored_at) = &mut self.sets[index as usize];
        if *stored_at != self.epoch {
            for place in set.places() {
                if self.left_at[place] > *stored_at {
                    set.remove(place);
                    set.insert(RETIRED);
                }
            }
            *stored_at = self.epoch;
        }
        *set
    }

    /// Puts a candidate into a bucket; returns the bucket's place, if it has one.
    fn find_bucket(&mut self, node: usize, candidate: &Candidate<G::Key>, reach: &mut Set) -> Option<usize> {
        if candidate.bytes.is_none() && !self.caps.cap_bytes.is_empty() {
            self.refusals.insert(node, Refusal::SizeUnknown);
            return None;
        }
        let bytes = candidate.bytes.unwrap_or(0);
        let key = *self.keys.entry(candidate.key).or_insert_with(|| {
            self.by_key.push((Vec::new(), 0));
            self.by_key.len() - 1
        });
        let mut refused = None;
        for nth in 0..self.by_key[key].0.len() {
            let index = self.by_key[key].0[nth];
            let bucket = &self.buckets[index];
            let (place, other) = (bucket.place, bucket.members[0]);
            let refusal = if !bucket.has_room(bytes, self.caps) {
                Refusal::CapReached { other }
            } else if reach.contains(place) || self.after[place].meets(reach) {
                Refusal::Dependent { other }
            } else {
                self.join(node, bytes, index, reach);
                return Some(place);
            };
            self.note(index, refusal, node);
            refused = stronger(refused, refusal);
        }
        let opened = self.by_key[key].1;
        self.by_key[key].1 += 1;
        let limit = self.caps.limit(opened);
        if let Some(cap_bytes) = limit.filter(|&limit| bytes > limit) {
            self.refusals.insert(node, Refusal::Oversize { cap_bytes });
            return None;
        }
        let index = self.buckets.len();
        let place = self.take_place(reach);
        self.in_place[place] = Some(index);
        self.by_key[key].0.push(index);
        self.buckets.push(Open { members: Vec::new(), bytes: 0, limit, refused, place, key });
        self.join(node, bytes, index, reach);
        Some(place)
    }

    /// Remembers, while a bucket has one member, what kept others out.
    fn note(&mut self, index: usize, refusal: Refusal, by: usize) {
        let bucket = &mut self.buckets[index];
        if bucket.members.len() == 1 {
            let seen = match refusal {
                Refusal::CapReached { .. } => Refusal::CapReached { other: by },
                _ => Refusal::Dependent { other: by },
            };
            bucket.refused = stronger(bucket.refused, seen);
        }
    }

    fn join(&mut self, node: usize, bytes: u64, index: usize, reach: &Set) {
        let bucket = &mut self.buckets[index];
        bucket.members.push(node);
        bucket.bytes = bucket.bytes.saturating_add(bytes);
        if reach.is_empty() {
            return;
        }
        let mut gained = self.after[bucket.place];
        gained.insert(bucket.place);
        for before in 0..SLOTS {
            if reach.contains(before) || self.after[before].meets(reach) {
                self.after[before].add(&gained);
            }
        }
    }

    /// A free place, made free by retiring a bucket if there is none.
    fn take_place(&mut self, reach: &mut Set) -> usize {
        let free = self.in_place[1..].iter().position(Option::is_none);
        free.map_or_else(|| self.retire(reach), |at| at + 1)
    }

    /// Moves the bucket with the least room (the oldest of them) to the place of the retired; returns its own.
    fn retire(&mut self, reach: &mut Set) -> usize {
        let room = |index: usize| {
            let bucket = &self.buckets[index];
            bucket.limit.map_or(u64::MAX, |limit| limit.saturating_sub(bucket.bytes))
        };
        let held = (1..SLOTS).filter_map(|place| self.in_place[place].map(|index| (room(index), index, place)));
        let Some((_, index, place)) = held.min() else { return RETIRED };
        self.by_key[self.buckets[index].key].0.retain(|&open| open != index);
        self.epoch += 1;
        self.left_at[place] = self.epoch;
        self.in_place[place] = None;
        let gained = std::mem::take(&mut self.after[place]);
        self.after[RETIRED].add(&gained);
        self.after[RETIRED].remove(place);
        let all_retired = self.after[RETIRED];
        for set in self.after.iter_mut().skip(1) {
            if set.contains(place) || set.contains(RETIRED) {
                set.remove(place);
                set.insert(RETIRED);
                set.add(&all_retired);
            }
        }
        if reach.contains(place) {
            reach.remove(place);
            reach.insert(RETIRED);
        }
        place
    }
}

/// Of two reasons, the one that tells more.
fn stronger(known: Option<Refusal>, new: Refusal) -> Option<Refusal> {
    match (known, new) {
        (Some(Refusal::Dependent { other }), _) => Some(Refusal::Dependent { other }),
        (Some(known), Refusal::CapReached { .. }) => Some(known),
        (_, new) => Some(new),
    }
}
