//! The rule of PyTorch Inductor: neighbours in wait order; see the module above.

use super::greedy::Greedy;
use super::{Candidate, Caps, Open, Outcome, PlanGraph, Refusal, Selection, finish};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

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
        self.id += 1;
        self.issued = (u32::MAX, 0);
        std::mem::take(&mut self.bucket)
    }
}

pub(super) struct Adjacent<'a, G: PlanGraph> {
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
    pub(super) fn new(graph: &'a G, caps: &'a Caps) -> Self {
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

    pub(super) fn run(mut self) -> Selection {
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
