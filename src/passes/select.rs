//! Which collectives travel together: the selection, on any graph.
//!
//! A toolchain implements [`PlanGraph`] for its own representation, calls [`select`], and gets a plain value back.
//! Nothing here knows what a tensor is.
//!
//! # Greedy
//!
//! One sweep in issue order. Each collective joins the first bucket of its key that has room and that it may join, or
//! opens a new one: a dependent or oversized candidate is passed over, not a reason to stop.
//!
//! Two merges that are each legal can close a loop together, so legality is decided in the *quotient graph*, where
//! each bucket is one node. The sweep carries with each node `n` the set `reach(n)` of buckets it depends on, and keeps
//! for each bucket `A` the set `after(A)` of buckets that depend on it, transitively, through whatever has joined so
//! far. A collective `x` may join `A` exactly if no bucket in `{A} + after(A)` is in `reach(x)`. When `x` joins, every
//! bucket that it depends on, and every bucket that those follow, gains `{A} + after(A)`.
//!
//! *Cost.* The sets are bit sets over 256 places, so a node costs a few words per edge and a collective a few
//! hundred operations, whatever the graph: near-linear. When all places are taken, the bucket with the least room
//! retires into place 0, which stands for all retired buckets as if they were one. That only adds dependencies, so it
//! may lose a merge (only when more than 255 buckets are open at once) and never allows a wrong one. Stored sets are
//! brought up to date when they are read.
//!
//! # Adjacent
//!
//! The rule of PyTorch Inductor's `greedy_bucket_collective_by_mb`: waits in program order; a run of waits whose
//! collectives have equal keys is cut at the cap; a member that depends on the bucket being filled is dropped. Buckets
//! are filled one at a time, so it is enough to carry with each node the last bucket that it depends on.
//!
//! While collectives are read only through their waits, buckets of this rule depend on one another only in the order in
//! which they were filled. Where something depends on a collective that was not waited for (a control edge, a reader of
//! a shape) they might close a loop, so that the greedy sweep looks over them and splits those that would.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;
use std::hash::Hash;

/// A graph as the selection sees it: nodes numbered in a topological order, which is also the issue order.
pub trait PlanGraph {
    /// Collectives with equal keys may travel together.
    type Key: Copy + Eq + Hash;

    /// How many nodes there are.
    fn node_count(&self) -> usize;

    /// Nodes that must run before `node`; all have smaller numbers. All order counts, not only data: memory, control.
    fn dependencies(&self, node: usize) -> impl Iterator<Item = usize> + '_;

    /// What `node` is, if it is a collective that may be merged.
    fn candidate(&self, node: usize) -> Option<Candidate<Self::Key>>;
}

/// A collective that may be merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate<K> {
    /// Everything that members of one bucket must agree on.
    pub key: K,
    /// The larger of what goes in and what comes out, in bytes; `None` if it is not known.
    pub bytes: Option<u64>,
    /// The node that waits for it; after it in the order, or the collective itself if it blocks. One node may wait for
    /// several.
    pub wait: usize,
}

/// Which collectives are tried with which.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// First fit over all legal candidates.
    #[default]
    Greedy,
    /// PyTorch Inductor's rule: neighbours in wait order.
    Adjacent,
}

/// How large a bucket may grow. No bucket exceeds its cap unless it has exactly one member.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Caps {
    /// Cap by bucket index, counted within one key; the last goes for all further buckets. Empty is no limit.
    pub cap_bytes: Vec<u64>,
    /// Most members of a bucket; `None` is no limit.
    pub max_members: Option<usize>,
}

impl Caps {
    /// One cap for all buckets.
    #[must_use]
    pub fn bytes(cap_bytes: u64) -> Self {
        Self { cap_bytes: vec![cap_bytes], max_members: None }
    }

    /// The cap of the bucket with this index within its key.
    #[must_use]
    pub fn limit(&self, index: usize) -> Option<u64> {
        self.cap_bytes.get(index).or(self.cap_bytes.last()).copied()
    }
}

/// Why a candidate is in no bucket with others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// Larger than the cap by itself.
    Oversize {
        /// The cap it passed.
        cap_bytes: u64,
    },
    /// Its size is not known, and there is a cap.
    SizeUnknown,
    /// Each bucket it could have joined was full.
    CapReached {
        /// A member of the first such bucket.
        other: usize,
    },
    /// It depends on a bucket it could have joined, or the bucket on it.
    Dependent {
        /// A member of the bucket.
        other: usize,
    },
    /// No neighbour in wait order has its key, though others do.
    NotAdjacent,
    /// No other candidate has its key.
    NoPartner,
}

/// What became of one candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The candidate.
    pub node: usize,
    /// Index into [`Selection::buckets`], or why there is none.
    pub bucket: Result<usize, Refusal>,
}

/// What to merge. Buckets have two members or more, in the order in which they are packed; buckets stand in the order
/// in which they were opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// Members of each bucket.
    pub buckets: Vec<Vec<usize>>,
    /// One for each candidate, in issue order.
    pub outcomes: Vec<Outcome>,
}

/// Decides which collectives travel together. A pure function of its arguments.
#[must_use]
pub fn select<G: PlanGraph>(graph: &G, policy: Policy, caps: &Caps) -> Selection {
    match policy {
        Policy::Greedy => Greedy::new(graph, caps).run(),
        Policy::Adjacent => Adjacent::new(graph, caps).run(),
    }
}

/// A bucket being filled.
#[derive(Default)]
struct Open {
    members: Vec<usize>,
    bytes: u64,
    limit: Option<u64>,
    /// What kept others out, for remarks: set while it has one member.
    refused: Option<Refusal>,
    /// Its place among the sets of the greedy sweep, and the number of its key.
    place: usize,
    key: usize,
}

impl Open {
    fn has_room(&self, bytes: u64, caps: &Caps) -> bool {
        // Without a cap a bucket is still an object of less than 2^63 bytes.
        let limit = self.limit.unwrap_or(i64::MAX as u64);
        let fits = self.bytes.checked_add(bytes).is_some_and(|sum| sum <= limit);
        fits && caps.max_members.is_none_or(|most| self.members.len() < most)
    }
}

/// Turns filled buckets into the result: those with one member are dropped, with a reason.
fn finish(open: Vec<Open>, mut refusals: HashMap<usize, Refusal, FxBuildHasher>, candidates: &[usize]) -> Selection {
    let mut selection = Selection::default();
    let mut bucket_of = HashMap::<usize, usize, FxBuildHasher>::default();
    for bucket in open {
        if let [only] = bucket.members[..] {
            refusals.entry(only).or_insert(bucket.refused.unwrap_or(Refusal::NoPartner));
            continue;
        }
        for &member in &bucket.members {
            bucket_of.insert(member, selection.buckets.len());
        }
        selection.buckets.push(bucket.members);
    }
    selection.outcomes = candidates
        .iter()
        .map(|&node| {
            let refusal = refusals.get(&node).copied().unwrap_or(Refusal::NoPartner);
            Outcome { node, bucket: bucket_of.get(&node).copied().ok_or(refusal) }
        })
        .collect();
    selection
}

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

struct Greedy<'a, G: PlanGraph> {
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
    fn new(graph: &'a G, caps: &'a Caps) -> Self {
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

    fn run(mut self) -> Selection {
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

/// Carried by the `adjacent` sweep with each node.
#[derive(Clone, Copy)]
struct Trace {
    /// The last bucket it depends on, counted from 1 over all keys.
    bucket: u32,
    /// It depends, through something that does not wait, on collectives whose bucket was not decided yet: between
    /// these numbers in issue order, or none if `first` is greater than `last`.
    first: u32,
    last: u32,
}

impl Trace {
    const NONE: Self = Self { bucket: 0, first: u32::MAX, last: 0 };

    fn add(&mut self, other: Self) {
        self.bucket = self.bucket.max(other.bucket);
        self.add_undecided(other);
    }

    fn add_undecided(&mut self, other: Self) {
        (self.first, self.last) = (self.first.min(other.first), self.last.max(other.last));
    }

    const fn has_undecided(self) -> bool {
        self.first <= self.last
    }
}

/// Collectives whose waits follow each other, of one key.
struct Run<K> {
    key: Option<K>,
    bucket: Open,
    /// Number of the bucket being filled.
    id: u32,
    /// Smallest and largest issue number of its members.
    issued: (u32, u32),
}

impl<K> Run<K> {
    /// Takes out the bucket that was filled, and begins the next.
    fn cut(&mut self) -> Open {
        let empty = Open { members: Vec::new(), bytes: 0, limit: None, refused: None, place: RETIRED, key: 0 };
        self.id += 1;
        self.issued = (u32::MAX, 0);
        std::mem::replace(&mut self.bucket, empty)
    }
}

struct Adjacent<'a, G: PlanGraph> {
    graph: &'a G,
    caps: &'a Caps,
    /// Candidates in issue order; an issue number is an index here.
    candidates: Vec<(usize, Candidate<G::Key>)>,
    /// By wait: issue numbers of what it waits for.
    waited: HashMap<usize, SmallVec<[u32; 1]>, FxBuildHasher>,
    /// By key: how many buckets were opened, and how many candidates there are.
    keys: HashMap<G::Key, (usize, usize), FxBuildHasher>,
    run: Run<G::Key>,
    done: Vec<Open>,
    traces: Vec<Trace>,
    refusals: HashMap<usize, Refusal, FxBuildHasher>,
    /// Whether anything depends on a collective other than through its wait. Only then can buckets close a loop.
    read_unwaited: bool,
}

impl<'a, G: PlanGraph> Adjacent<'a, G> {
    fn new(graph: &'a G, caps: &'a Caps) -> Self {
        let mut run = Run { key: None, bucket: Open::default(), id: 0, issued: (0, 0) };
        run.cut();
        let mut adjacent = Self {
            graph,
            caps,
            candidates: Vec::new(),
            waited: HashMap::default(),
            keys: HashMap::default(),
            run,
            done: Vec::new(),
            traces: Vec::with_capacity(graph.node_count()),
            refusals: HashMap::default(),
            read_unwaited: false,
        };
        for node in 0..graph.node_count() {
            if let Some(candidate) = graph.candidate(node) {
                adjacent.waited.entry(candidate.wait).or_default().push(adjacent.candidates.len() as u32);
                adjacent.keys.entry(candidate.key).or_default().1 += 1;
                adjacent.candidates.push((node, candidate));
            }
        }
        adjacent
    }

    fn run(mut self) -> Selection {
        let mut issued = 0;
        for node in 0..self.graph.node_count() {
            let mut trace = self.trace_of(node);
            let number = self.candidates.get(issued).is_some_and(|&(next, _)| next == node).then_some(issued as u32);
            issued += usize::from(number.is_some());
            let waited = self.waited.remove(&node).unwrap_or_default();
            if !waited.is_empty() {
                trace = self.wait(node, trace, &waited);
            }
            if let Some(own) = number.filter(|own| !waited.contains(own)) {
                // Whoever reads it before its wait is decided carries its number. Its wait drops it again.
                trace.add_undecided(Trace { bucket: 0, first: own, last: own });
            }
            self.traces.push(trace);
        }
        self.done.push(self.run.cut());
        self.done.retain(|bucket| !bucket.members.is_empty());
        let candidates: Vec<usize> = self.candidates.iter().map(|&(node, _)| node).collect();
        let selection = finish(self.done, self.refusals, &candidates);
        if self.read_unwaited { without_loops(self.graph, selection) } else { selection }
    }

    fn trace_of(&self, node: usize) -> Trace {
        let mut trace = Trace::NONE;
        self.graph.dependencies(node).for_each(|before| trace.add(self.traces[before]));
        trace
    }

    /// Decides on all that `node` waits for; returns the trace of the wait.
    fn wait(&mut self, node: usize, before: Trace, waited: &[u32]) -> Trace {
        let mut trace = Trace { bucket: before.bucket, ..Trace::NONE };
        for &own in waited {
            let (collective, candidate) = self.candidates[own as usize];
            let input = if collective == node { before } else { self.trace_of(collective) };
            trace.add_undecided(input);
            if self.decide(own, &candidate, input) {
                trace.bucket = self.run.id;
                // Those that read the collective itself from here on depend on its bucket.
                if let Some(of_collective) = self.traces.get_mut(collective) {
                    of_collective.bucket = self.run.id;
                }
            }
        }
        let waits_for = |before: &usize| waited.iter().any(|&own| self.candidates[own as usize].0 == *before);
        let mut others = self.graph.dependencies(node).filter(|before| !waits_for(before));
        self.read_unwaited |= trace.has_undecided() || others.any(|before| self.traces[before].has_undecided());
        trace
    }

    /// Whether the candidate goes into the bucket being filled, after cutting it if need be.
    fn decide(&mut self, own: u32, candidate: &Candidate<G::Key>, input: Trace) -> bool {
        let (run, caps, collective) = (&mut self.run, self.caps, self.candidates[own as usize].0);
        if run.key != Some(candidate.key) {
            self.done.push(run.cut());
            run.key = Some(candidate.key);
        }
        if candidate.bytes.is_none() && !caps.cap_bytes.is_empty() {
            self.refusals.insert(collective, Refusal::SizeUnknown);
            return false;
        }
        let bytes = candidate.bytes.unwrap_or(0);
        if let Some(&other) = run.bucket.members.first() {
            let unwaited = input.first <= run.issued.1 && input.last >= run.issued.0;
            if input.bucket == run.id || unwaited {
                self.refusals.insert(collective, Refusal::Dependent { other });
                return false;
            }
            if !run.bucket.has_room(bytes, caps) {
                if run.bucket.members.len() == 1 {
                    self.refusals.entry(other).or_insert(Refusal::CapReached { other: collective });
                }
                self.done.push(run.cut());
                run.bucket.refused = Some(Refusal::CapReached { other });
            }
        }
        if run.bucket.members.is_empty() {
            let (opened, with_key) = self.keys.entry(candidate.key).or_default();
            run.bucket.limit = caps.limit(*opened);
            *opened += 1;
            if let Some(cap_bytes) = run.bucket.limit.filter(|&limit| bytes > limit) {
                self.refusals.insert(collective, Refusal::Oversize { cap_bytes });
            } else if run.bucket.refused.is_none() && *with_key > 1 {
                run.bucket.refused = Some(Refusal::NotAdjacent);
            }
        }
        run.bucket.members.push(collective);
        run.bucket.bytes = run.bucket.bytes.saturating_add(bytes);
        run.issued = (run.issued.0.min(own), run.issued.1.max(own));
        true
    }
}

/// A graph whose candidates may only go into the buckets that were chosen for them.
struct Chosen<'a, G> {
    graph: &'a G,
    /// By member: its bucket, and its place there.
    bucket_of: HashMap<usize, (usize, usize), FxBuildHasher>,
}

impl<G: PlanGraph> PlanGraph for Chosen<'_, G> {
    type Key = usize;

    fn node_count(&self) -> usize {
        self.graph.node_count()
    }

    fn dependencies(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.graph.dependencies(node)
    }

    fn candidate(&self, node: usize) -> Option<Candidate<usize>> {
        let &(key, _) = self.bucket_of.get(&node)?;
        Some(Candidate { key, bytes: None, wait: self.graph.candidate(node)?.wait })
    }
}

/// The part of a selection that closes no loop: the greedy sweep with the chosen buckets as keys, so that a bucket
/// comes apart where one of its members has to stay out.
fn without_loops<G: PlanGraph>(graph: &G, chosen: Selection) -> Selection {
    let placed =
        chosen.buckets.iter().enumerate().flat_map(|(index, members)| {
            members.iter().enumerate().map(move |(place, &member)| (member, (index, place)))
        });
    let view = Chosen { graph, bucket_of: placed.collect() };
    let legal = Greedy::new(&view, &Caps::default()).run();
    let mut buckets = legal.buckets;
    buckets.iter_mut().for_each(|members| members.sort_unstable_by_key(|member| view.bucket_of[member]));
    buckets.sort_unstable_by_key(|members| view.bucket_of[&members[0]]);
    let mut now: HashMap<usize, Result<usize, Refusal>, FxBuildHasher> =
        legal.outcomes.iter().map(|outcome| (outcome.node, outcome.bucket)).collect();
    for (index, members) in buckets.iter().enumerate() {
        now.extend(members.iter().map(|&member| (member, Ok(index))));
    }
    let outcome = |old: Outcome| now.get(&old.node).map_or(old, |&bucket| Outcome { bucket, ..old });
    Selection { outcomes: chosen.outcomes.into_iter().map(outcome).collect(), buckets }
}
