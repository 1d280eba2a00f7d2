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
//! *Cost.* The sets are bit sets over [`SLOTS`] places, so a node costs a few words per edge and a collective a few
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

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
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
    /// The node that waits for it; after it in the order.
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
        Policy::Adjacent => adjacent(graph, caps),
    }
}

/// A bucket being filled.
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
    fn empty() -> Self {
        Self { members: Vec::new(), bytes: 0, limit: None, refused: None, place: RETIRED, key: 0 }
    }

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
    reach: Vec<Set>,
    /// The epoch in which each node's set was stored.
    stored_at: Vec<u32>,
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
            stored_at: Vec::with_capacity(graph.node_count()),
            refusals: HashMap::default(),
        }
    }

    fn run(mut self) -> Selection {
        let mut candidates = Vec::new();
        for node in 0..self.graph.node_count() {
            let mut reach = Set::default();
            for before in self.graph.dependencies(node) {
                reach.add(&self.refresh(before));
            }
            if let Some(candidate) = self.graph.candidate(node) {
                candidates.push(node);
                if let Some(place) = self.find_bucket(node, &candidate, &mut reach) {
                    reach.insert(place);
                }
            }
            self.reach.push(reach);
            self.stored_at.push(self.epoch);
        }
        finish(self.buckets, self.refusals, &candidates)
    }

    /// A node's set, with the buckets that have retired since it was stored moved to the place of the retired.
    fn refresh(&mut self, node: usize) -> Set {
        let stored_at = self.stored_at[node];
        if stored_at != self.epoch {
            let mut set = self.reach[node];
            for place in set.places() {
                if self.left_at[place] > stored_at {
                    set.remove(place);
                    set.insert(RETIRED);
                }
            }
            self.reach[node] = set;
            self.stored_at[node] = self.epoch;
        }
        self.reach[node]
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

/// Numbers of collectives in issue order, counted from 1, from the smallest to the largest of some.
#[derive(Clone, Copy)]
struct Span {
    first: u32,
    last: u32,
}

impl Span {
    const NONE: Self = Self { first: u32::MAX, last: 0 };

    const fn one(number: u32) -> Self {
        Self { first: number, last: number }
    }

    fn and(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    const fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Carried by the `adjacent` sweep with each node.
#[derive(Clone, Copy)]
struct Trace {
    /// The last bucket it depends on, counted from 1 over all keys.
    bucket: u32,
    /// It depends, through something that does not wait, on collectives whose bucket was not decided yet: these.
    undecided: Span,
}

struct Run<K> {
    key: Option<K>,
    bucket: Open,
    /// Number of the bucket being filled.
    id: u32,
    /// Issue numbers of its members.
    issued: Span,
    /// Collectives that its members need and whose bucket was not decided when they joined.
    needs: Span,
    /// The same, for all buckets up to each number.
    decided: Vec<Span>,
}

impl<K> Run<K> {
    /// Closes the bucket being filled and opens another.
    fn next_bucket(&mut self) -> Open {
        let sofar = self.decided.last().copied().unwrap_or(Span::NONE);
        self.decided.push(sofar.and(self.needs));
        self.id += 1;
        (self.issued, self.needs) = (Span::NONE, Span::NONE);
        std::mem::replace(&mut self.bucket, Open::empty())
    }

    /// All undecided collectives that something depends on, through the buckets it depends on, too.
    fn undecided(&self, trace: Trace) -> Span {
        self.decided.get(trace.bucket as usize).map_or(trace.undecided, |span| span.and(trace.undecided))
    }
}

fn adjacent<G: PlanGraph>(graph: &G, caps: &Caps) -> Selection {
    let mut collective_of_wait = HashMap::<usize, (usize, Candidate<G::Key>), FxBuildHasher>::default();
    let mut number = HashMap::<usize, u32, FxBuildHasher>::default();
    let mut candidates = Vec::new();
    for node in 0..graph.node_count() {
        if let Some(candidate) = graph.candidate(node) {
            collective_of_wait.insert(candidate.wait, (node, candidate));
            candidates.push(node);
            number.insert(node, candidates.len() as u32);
        }
    }
    let mut keys = HashMap::<G::Key, (usize, usize), FxBuildHasher>::default();
    for (_, candidate) in candidates.iter().filter_map(|&node| graph.candidate(node).map(|c| (node, c))) {
        keys.entry(candidate.key).or_default().1 += 1;
    }
    let mut run =
        Run { key: None, bucket: Open::empty(), id: 0, issued: Span::NONE, needs: Span::NONE, decided: Vec::new() };
    let mut done: Vec<Open> = Vec::new();
    let mut refusals = HashMap::<usize, Refusal, FxBuildHasher>::default();
    let mut traces: Vec<Trace> = Vec::with_capacity(graph.node_count());
    for node in 0..graph.node_count() {
        let mut trace = trace_of(graph, node, &traces);
        let Some(&(collective, candidate)) = collective_of_wait.get(&node) else {
            traces.push(trace);
            if let Some(&own) = number.get(&node) {
                // Whoever reads it before its wait is decided carries its number. Its wait drops it again.
                traces[node].undecided = trace.undecided.and(Span::one(own));
            }
            continue;
        };
        if run.key != Some(candidate.key) {
            done.push(run.next_bucket());
            run.key = Some(candidate.key);
        }
        let own = number[&collective];
        let input = trace_of(graph, collective, &traces);
        let undecided = run.undecided(input);
        let bytes = candidate.bytes.unwrap_or(0);
        let (opened, with_key) = keys.get_mut(&candidate.key).map_or((0, 0), |entry| *entry);
        // A member that the candidate needs, or the other way round, without a wait between.
        let early = undecided.meets(run.issued) || run.needs.meets(Span::one(own));
        if candidate.bytes.is_none() && !caps.cap_bytes.is_empty() {
            refusals.insert(collective, Refusal::SizeUnknown);
        } else if !run.bucket.members.is_empty() && (input.bucket == run.id || early) {
            refusals.insert(collective, Refusal::Dependent { other: run.bucket.members[0] });
        } else {
            if !run.bucket.members.is_empty() && !run.bucket.has_room(bytes, caps) {
                if let [only] = run.bucket.members[..] {
                    refusals.entry(only).or_insert(Refusal::CapReached { other: collective });
                }
                done.push(run.next_bucket());
                run.bucket.refused = done.last().map(|full| Refusal::CapReached { other: full.members[0] });
            }
            if run.bucket.members.is_empty() {
                run.bucket.limit = caps.limit(opened);
                if let Some(entry) = keys.get_mut(&candidate.key) {
                    entry.0 += 1;
                }
                if let Some(cap_bytes) = run.bucket.limit.filter(|&limit| bytes > limit) {
                    refusals.insert(collective, Refusal::Oversize { cap_bytes });
                } else if run.bucket.refused.is_none() && with_key > 1 {
                    run.bucket.refused = Some(Refusal::NotAdjacent);
                }
            }
            run.bucket.members.push(collective);
            run.bucket.bytes = run.bucket.bytes.saturating_add(bytes);
            run.issued = run.issued.and(Span::one(own));
            run.needs = run.needs.and(undecided);
            trace.bucket = run.id;
            // Those that read the collective itself from here on depend on its bucket.
            traces[collective].bucket = run.id;
        }
        // The wait drops the number of its own collective, and keeps what else it depends on.
        let others = graph.dependencies(node).filter(|&before| before != collective);
        trace.undecided = others.fold(input.undecided, |span, before| span.and(traces[before].undecided));
        traces.push(trace);
    }
    done.push(run.bucket);
    done.retain(|bucket| !bucket.members.is_empty());
    finish(done, refusals, &candidates)
}

/// What a node depends on.
fn trace_of<G: PlanGraph>(graph: &G, node: usize, traces: &[Trace]) -> Trace {
    let mut trace = Trace { bucket: 0, undecided: Span::NONE };
    for before in graph.dependencies(node) {
        trace.bucket = trace.bucket.max(traces[before].bucket);
        trace.undecided = trace.undecided.and(traces[before].undecided);
    }
    trace
}
