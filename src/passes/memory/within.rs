//! What a policy chose, kept within a cap on memory.
//!
//! First all of it is merged and counted: where that is within the cap, there is no more to do. Else buckets are taken in the
//! order in which they were opened, and each is cut, where one more member would pass the cap, into buckets that do not; what a
//! bucket changes is reckoned by [`buffers`](super::buffers), and the length of each is found by doubling and halving. Then the
//! graph is merged and counted again, and what is alive where it is still above the cap is cut in two: at most
//! [`MOST_ROUNDS`] times, after which nothing is merged. A bucket may always be cut, whatever depends on what.
//!
//! The graphs of all ranks are decided as one: a bucket is cut on every rank where it passes the cap of any.
//!
//! Cost: near-linear in nodes, edges and members, for each time that a graph is merged and counted.

use super::alive::Lives;
use super::buffers::RankMemory;
use super::repair::{Cuts, cuts};
use super::{Alive, MemoryUse};
use crate::ir::{Dependencies, Graph, NodeId};
use crate::passes::merge::Merging;
use crate::passes::options::BucketOptions;
use crate::passes::plan::{Member, Reason};
use crate::passes::select::{Refusal, Selection};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

/// How often a graph is merged and counted after the first cut.
pub(super) const MOST_ROUNDS: usize = 12;

/// Of these rounds, those that cut only the largest bucket at each place above the cap.
pub(super) const GENTLE_ROUNDS: usize = 8;

/// A graph merged on trial.
pub(in crate::passes) struct Merged {
    pub(in crate::passes) graph: Graph,
    pub(in crate::passes) merging: Merging,
}

/// What is merged on trial: the graph, or those of all ranks.
pub(in crate::passes) trait Trial {
    type Error;

    /// By rank: its graph as it stands, and what must run before what.
    fn graphs(&self) -> Vec<(&Graph, &Dependencies)>;

    /// The members that a node of the selection is: by rank, and as the rank has it.
    fn members(&self, node: usize) -> SmallVec<[(usize, Member); 2]>;

    /// By bucket: whether its launch stands where its last member stood.
    fn stands_last(&self, selection: &Selection) -> Vec<bool>;

    /// By rank: its graph, merged.
    ///
    /// # Errors
    /// Why it cannot be merged.
    fn merge(&self, selection: &Selection) -> Result<Vec<Merged>, Self::Error>;
}

/// What passed a cap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Passed {
    pub(super) rank: usize,
    /// A node of the rank's graph as it stood.
    pub(super) at: NodeId,
    pub(super) alive_bytes: u64,
}

/// A selection within the cap.
pub(in crate::passes) struct Kept {
    pub(in crate::passes) selection: Selection,
    /// By rank, and by collective: why it was declined.
    pub(in crate::passes) declined: Vec<HashMap<NodeId, Reason, FxBuildHasher>>,
    /// By rank.
    pub(in crate::passes) memory: Vec<MemoryUse>,
    /// By rank: the graph merged so; none where nothing is merged.
    pub(in crate::passes) merged: Option<Vec<Merged>>,
}

/// Keeps a selection within the cap of the options. Where that says how much more than a graph needs, `came_with_bytes` is
/// what each rank's did; none if it is what they need now.
///
/// # Errors
/// As [`Trial::merge`], where what the policy chose cannot be merged.
pub(in crate::passes) fn within<T: Trial>(
    trial: &T,
    options: &BucketOptions,
    chosen: Selection,
    came_with_bytes: Option<&[u64]>,
) -> Result<Kept, T::Error> {
    let graphs = trial.graphs();
    let lives: Vec<Lives> = graphs.iter().map(|(graph, _)| Lives::of(graph)).collect();
    let before: Vec<Alive> = graphs.iter().zip(&lives).map(|((graph, _), lives)| lives.peak(graph)).collect();
    let needs = |rank: usize| came_with_bytes.map_or(before[rank].peak_bytes, |came| came[rank]);
    let caps: Vec<u64> = (0..before.len()).map(|rank| options.memory.bytes(needs(rank)).unwrap_or(u64::MAX)).collect();
    // What is above the cap already may stay so.
    let limits: Vec<u64> = caps.iter().zip(&before).map(|(&cap, alive)| cap.max(alive.peak_bytes)).collect();
    let mut passed: HashMap<usize, Passed, FxBuildHasher> = HashMap::default();
    let (buckets, found) = keep(trial, options, &chosen, lives, &limits, &mut passed)?;
    let cut = {
        let kept: hashbrown::HashSet<&[usize], FxBuildHasher> = buckets.iter().map(Vec::as_slice).collect();
        chosen.buckets.iter().filter(|members| !kept.contains(members.as_slice())).count()
    };
    let declined = declined(trial, &passed, &buckets, &limits, graphs.len());
    let use_of = |(rank, (alive, &cap_bytes)): (usize, (&Alive, &u64))| {
        let after = found.as_ref().map_or(*alive, |(_, after)| after[rank]);
        MemoryUse {
            cap_bytes,
            before_bytes: alive.peak_bytes,
            before_at: alive.peak_at.map(|at| graphs[rank].0.name_of(at).to_owned()),
            after_bytes: after.peak_bytes,
            unknown: after.unknown,
            cut,
            declined: declined[rank].len(),
        }
    };
    let memory = before.iter().zip(&caps).enumerate().map(use_of).collect();
    let selection = with_buckets(chosen, buckets);
    Ok(Kept { selection, declined, memory, merged: found.map(|(merged, _)| merged) })
}

type Found = Option<(Vec<Merged>, Vec<Alive>)>;

/// The buckets that are within the limits, and the graphs merged so.
fn keep<T: Trial>(
    trial: &T,
    options: &BucketOptions,
    chosen: &Selection,
    lives: Vec<Lives>,
    limits: &[u64],
    passed: &mut HashMap<usize, Passed, FxBuildHasher>,
) -> Result<(Vec<Vec<usize>>, Found), T::Error> {
    if chosen.buckets.is_empty() {
        return Ok((Vec::new(), None));
    }
    let fits = |alive: &[Alive]| alive.iter().zip(limits).all(|(alive, &limit)| alive.peak_bytes <= limit);
    let count = |merged: &[Merged]| -> (Vec<Lives>, Vec<Alive>) {
        let one = |merged: &Merged| {
            let lives = Lives::of(&merged.graph);
            let alive = lives.peak(&merged.graph);
            (lives, alive)
        };
        merged.iter().map(one).unzip()
    };
    let merged = trial.merge(chosen)?;
    let (_, alive) = count(&merged);
    if fits(&alive) {
        return Ok((chosen.buckets.clone(), Some((merged, alive))));
    }
    drop(merged);
    let mut buckets = Reckoning::of(trial, options, lives, limits).cut_all(chosen, passed);
    for round in 0..MOST_ROUNDS {
        if buckets.is_empty() {
            return Ok((buckets, None));
        }
        let selection = Selection { buckets, outcomes: Vec::new() };
        // Parts of what can be merged can be.
        let Ok(merged) = trial.merge(&selection) else { return Ok((Vec::new(), None)) };
        let (lives, alive) = count(&merged);
        buckets = selection.buckets;
        if fits(&alive) {
            return Ok((buckets, Some((merged, alive))));
        }
        let Cuts { places, passed: because } = cuts(trial, &buckets, &merged, &lives, limits, round);
        let mut kept = Vec::with_capacity(buckets.len());
        for (members, cut) in buckets.into_iter().zip(places) {
            let pieces = members.chunks(if cut { members.len().div_ceil(2) } else { members.len() });
            for piece in pieces {
                let dissolved = cut && round >= GENTLE_ROUNDS;
                match piece {
                    several if several.len() > 1 && !dissolved => kept.push(several.to_vec()),
                    members => passed.extend(members.iter().map(|&member| (member, because))),
                }
            }
        }
        buckets = kept;
        if round + 1 == MOST_ROUNDS {
            passed.extend(buckets.drain(..).flatten().map(|member| (member, because)));
        }
    }
    Ok((buckets, None))
}

/// By rank: why members were declined that are in no bucket now.
fn declined<T: Trial>(
    trial: &T,
    passed: &HashMap<usize, Passed, FxBuildHasher>,
    buckets: &[Vec<usize>],
    limits: &[u64],
    ranks: usize,
) -> Vec<HashMap<NodeId, Reason, FxBuildHasher>> {
    let graphs = trial.graphs();
    let mut declined = vec![HashMap::default(); ranks];
    let merged: hashbrown::HashSet<usize, FxBuildHasher> = buckets.iter().flatten().copied().collect();
    for (&node, &Passed { rank, at, alive_bytes }) in passed.iter().filter(|(node, _)| !merged.contains(*node)) {
        let reason =
            Reason::MemoryCap { at: graphs[rank].0.name_of(at).to_owned(), alive_bytes, limit_bytes: limits[rank] };
        for (own, member) in trial.members(node) {
            let reason = match own == rank {
                true => reason.clone(),
                false => Reason::AtAnotherRank { rank, because: Box::new(reason.clone()) },
            };
            declined[own].insert(member.collective, reason);
        }
    }
    declined
}

/// The selection with other buckets, each of which is a part of one that it had.
fn with_buckets(chosen: Selection, buckets: Vec<Vec<usize>>) -> Selection {
    let mut bucket_of = HashMap::<usize, usize, FxBuildHasher>::default();
    for (index, members) in buckets.iter().enumerate() {
        bucket_of.extend(members.iter().map(|&member| (member, index)));
    }
    let mut outcomes = chosen.outcomes;
    for outcome in &mut outcomes {
        if outcome.bucket.is_ok() {
            outcome.bucket = bucket_of.get(&outcome.node).copied().ok_or(Refusal::MemoryCap);
        }
    }
    Selection { buckets, outcomes }
}

/// The memory of all ranks, while buckets are cut.
struct Reckoning<'a, T> {
    trial: &'a T,
    ranks: Vec<RankMemory<'a>>,
    /// By rank: members of the bucket that is being cut, and the place in it of each.
    members: Vec<(Vec<usize>, Vec<Member>)>,
    /// What the last bucket passed that did not fit.
    passed: Option<Passed>,
}

impl<'a, T: Trial> Reckoning<'a, T> {
    fn of(trial: &'a T, options: &'a BucketOptions, lives: Vec<Lives>, limits: &[u64]) -> Self {
        let ranks = trial.graphs().into_iter().zip(lives).zip(limits);
        let ranks: Vec<RankMemory<'a>> = ranks
            .map(|(((graph, dependencies), lives), &limit)| RankMemory::of(graph, dependencies, options, lives, limit))
            .collect();
        let members = ranks.iter().map(|_| Default::default()).collect();
        Self { trial, ranks, members, passed: None }
    }

    /// Cuts all buckets, in the order in which they were opened.
    fn cut_all(mut self, chosen: &Selection, passed: &mut HashMap<usize, Passed, FxBuildHasher>) -> Vec<Vec<usize>> {
        let stands_last = self.trial.stands_last(chosen);
        let mut kept = Vec::with_capacity(chosen.buckets.len());
        for (nodes, stands_last) in chosen.buckets.iter().zip(stands_last) {
            for (places, members) in &mut self.members {
                places.clear();
                members.clear();
            }
            for (at, &node) in nodes.iter().enumerate() {
                for (rank, member) in self.trial.members(node) {
                    self.members[rank].0.push(at);
                    self.members[rank].1.push(member);
                }
            }
            let mut from = 0;
            while from < nodes.len() {
                let to = self.longest(from, nodes.len(), stands_last);
                if to - from > 1 {
                    self.add(from, to, stands_last);
                    kept.push(nodes[from..to].to_vec());
                } else if let Some(because) = self.passed {
                    passed.insert(nodes[from], because);
                }
                from = to;
            }
        }
        kept
    }

    /// The end of the longest bucket from a member on that fits.
    fn longest(&mut self, from: usize, end: usize, stands_last: bool) -> usize {
        let (mut fits, mut step) = (from + 1, 1);
        let mut above = loop {
            if fits == end {
                return end;
            }
            let to = (fits + step).min(end);
            if !self.tries(from, to, stands_last) {
                break to;
            }
            (fits, step) = (to, step * 2);
        };
        while above - fits > 1 {
            let middle = fits.midpoint(above);
            match self.tries(from, middle, stands_last) {
                true => fits = middle,
                false => above = middle,
            }
        }
        fits
    }

    /// Whether the bucket of some members fits; it is not kept.
    fn tries(&mut self, from: usize, to: usize, stands_last: bool) -> bool {
        let fits = self.add(from, to, stands_last);
        if !fits {
            self.passed = self.ranks.iter().position(|rank| !rank.fits()).map(|rank| {
                let (alive_bytes, at) = self.ranks[rank].most();
                Passed { rank, at, alive_bytes }
            });
        }
        self.ranks.iter_mut().for_each(RankMemory::take_back);
        fits
    }

    fn add(&mut self, from: usize, to: usize, stands_last: bool) -> bool {
        let mut fits = true;
        for (rank, (places, members)) in self.ranks.iter_mut().zip(&self.members) {
            let first = places.partition_point(|&at| at < from);
            let end = places.partition_point(|&at| at < to);
            fits &= rank.add(&members[first..end], stands_last);
        }
        fits
    }
}
