//! The graphs of all ranks rewritten together, so that they still launch the same.
//!
//! Where each rank has a graph of its own, a merge that is legal on one rank may not be on another, and launches of two
//! groups that change places on one rank only wait for each other in a ring. So what to merge, and where it goes, is
//! decided once, on all graphs as one: the nth launch of a group's ranks is one node of the [`Joint`] graph, and the path
//! that forbids a merge may lead through any rank. The launches are put in one order, of which each rank gets its part:
//! no ring can close, because the first launch of that order that has not run is waited for by nobody before it.
//!
//! A call that communicates in a known group is a launch like any other. What a send on one rank means for the receive on
//! another is not known, so that graphs with calls whose ranks are not known are refused: launches of others that change
//! places around them might close a ring.
//!
//! A collective is merged if every rank of its group can merge it, and buckets of a group hold the same launches in the
//! same order on every rank. What moves nothing is folded if every rank can fold it. The other passes run on each graph by
//! itself; whether the ranks still launch the same is looked at after each pass.
//!
//! Not covered: policy `adjacent`, which is a rule on one graph, and loops or branches that hold collectives.
//!
//! Cost: near-linear in the nodes and edges of all graphs.

mod joint;
mod replica_groups;

use super::bucketing::{BucketOptions, BucketPlan, Declined, View, planned, without_remarks};
use super::memory::within::{Kept, Merged, Trial, within};
use super::memory::{Alive, MemoryCap};
use super::merge::{MergeError, Merging, SizeReaders, check_sums, late, merge_in_order};
use super::order::{Adjusted, Cycle, Place, Reordering, reorder, stands_last};
use super::pipeline::{Pass, PassReport, Pipeline, PipelineError, run_pass};
use super::plan::Member;
use super::remarks::Scope;
use super::rounds::Round;
use super::select::{Policy, Selection, selected};
use super::trivial::{fold_allowed, foldable};
use crate::ir::{Dependencies, Graph, verify};
use joint::{Joint, Pairing};
use replica_groups::ReplicaGroups;
use smallvec::SmallVec;
use std::time::Instant;

/// A launch as one rank has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchAt {
    /// The rank.
    pub rank: usize,
    /// The node.
    pub node: String,
    /// What differs: kind, dtype, bytes.
    pub what: String,
}

/// Why the graphs of all ranks cannot be rewritten together.
#[derive(Debug, thiserror::Error)]
pub enum TogetherError {
    /// Something is wrong with one rank's graph, or became so.
    #[error("rank {rank}: {error}")]
    Rank {
        /// The rank.
        rank: usize,
        /// What.
        error: PipelineError,
    },
    /// Nobody says who is in a group.
    #[error("rank {rank}: the members of group `{group}` are not known; list them")]
    UnknownMembers {
        /// The rank.
        rank: usize,
        /// The group.
        group: String,
    },
    /// A rank launches in a group it is not in.
    #[error("rank {rank} launches `{node}` in group `{group}`, but is in none of its lists")]
    NotAMember {
        /// The rank.
        rank: usize,
        /// The launch.
        node: String,
        /// The group.
        group: String,
    },
    /// A call may communicate, and nothing says with whom.
    #[error(
        "rank {rank}: `{node}` ({kind}) may communicate with any rank, so no order of launches is known to be safe; rewrite \
         the parts of the program before and behind it by themselves"
    )]
    UnknownCommunication {
        /// The rank.
        rank: usize,
        /// The call.
        node: String,
        /// What it is.
        kind: String,
    },
    /// A group has ranks that have no graph.
    #[error("group `{group}` has rank {member}, but there are graphs for {ranks} ranks")]
    NoGraphOfRank {
        /// The group.
        group: String,
        /// The rank.
        member: u32,
        /// How many graphs there are.
        ranks: usize,
    },
    /// Two ranks launch different things.
    #[error(
        "{group} #{position}: rank {} launches `{}` ({}), rank {} launches `{}` ({}){}",
        left.rank, left.node, left.what, right.rank, right.node, right.what, by(*after)
    )]
    Differ {
        /// The group.
        group: String,
        /// Which launch of the group.
        position: usize,
        /// One rank.
        left: Box<LaunchAt>,
        /// Another.
        right: Box<LaunchAt>,
        /// The pass after which it was found; none if the graphs came so.
        after: Option<&'static str>,
    },
    /// A launch never meets those it waits for.
    #[error(
        "rank {rank} launches `{node}` in {group}, and rank {missing} never does, or waits for something else in a \
         ring; `check-ranks` says more{}", by(*after)
    )]
    Stuck {
        /// The rank.
        rank: usize,
        /// The launch.
        node: String,
        /// The group.
        group: String,
        /// A rank that is waited for.
        missing: u32,
        /// The pass after which it was found; none if the graphs came so.
        after: Option<&'static str>,
    },
    /// Loops and branches that hold collectives are not rewritten together.
    #[error(
        "rank {rank}: `{node}` is in `{region}`; graphs with collectives in loops or branches cannot be rewritten \
         together"
    )]
    Region {
        /// The rank.
        rank: usize,
        /// The launch.
        node: String,
        /// The region, as written.
        region: String,
    },
    /// The policy is a rule on one graph.
    #[error("pass `{pass}`: policies `adjacent` and `xla` are rules on one graph; several are rewritten with `greedy`")]
    Adjacent {
        /// The pass.
        pass: &'static str,
    },
}

fn by(after: Option<&'static str>) -> String {
    after.map_or_else(String::new, |pass| format!(", after pass `{pass}`"))
}

impl Pipeline {
    /// Runs the passes on the graphs of all ranks together, rank 0's first: the launches of each group stay the same on
    /// all of its ranks, and none wait for one another in a ring. Returns the reports of each rank's passes.
    ///
    /// Groups that list no members hold all ranks, if they have that size or none.
    ///
    /// # Errors
    /// [`TogetherError`]; the graphs are then in an undefined but safe state and should be thrown away.
    ///
    /// ```
    /// use bucketeer::{ir::text::{parse, print}, passes::Pipeline};
    ///
    /// let one = "a = input f32[4]; b = input f32[4]
    ///     s = all_reduce(a, sum, G:2); w = wait(s)
    ///     t = all_reduce(b, sum, G:2); output(w, wait(t))";
    /// // On rank 1 the second launch needs the first, so that rank 0 may not merge them either.
    /// let other = "a = input f32[4]
    ///     s = all_reduce(a, sum, G:2); w = wait(s)
    ///     t = all_reduce(w, sum, G:2); output(w, wait(t))";
    /// let (mut one, mut other) = (parse(one)?, parse(other)?);
    /// let before = print(&one);
    /// let pipeline: Pipeline = "bucket-all-reduce".parse()?;
    /// pipeline.run_together(&mut [&mut one, &mut other], &mut |_| {})?;
    /// assert_eq!(print(&one), before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_together(
        &self,
        graphs: &mut [&mut Graph],
        watch: &mut dyn FnMut(&Pass),
    ) -> Result<Vec<Vec<PassReport>>, TogetherError> {
        for (rank, graph) in graphs.iter().enumerate() {
            verify(graph).map_err(|errors| TogetherError::Rank { rank, error: PipelineError::Input(errors) })?;
        }
        let mut played = Played::of(graphs, None)?;
        let mut reports: Vec<Vec<PassReport>> = vec![Vec::new(); graphs.len()];
        let peak_bytes = |graphs: &[&mut Graph]| graphs.iter().map(|graph| Alive::of(graph).peak_bytes).collect();
        let came: Option<Vec<u64>> = self.has_relative_cap().then(|| peak_bytes(graphs));
        for pass in &self.passes {
            watch(pass);
            let of_pass = match pass {
                Pass::Bucket(options) if options.policy != Policy::Greedy => {
                    return Err(TogetherError::Adjacent { pass: pass.name() });
                }
                Pass::Bucket(options) => bucket(pass.name(), options, graphs, &played, came.as_deref())?,
                Pass::FoldTrivial => fold_agreed(pass.name(), graphs, &played),
                // What ranks launch is compared below, if a pass of the user's own changes anything.
                Pass::DedupeWaits | Pass::DedupeCollectives | Pass::Own(_) => by_rank(pass, graphs)?,
            };
            if of_pass.iter().any(PassReport::changed) {
                played = Played::of(graphs, Some(pass.name()))?;
            }
            for ((rank, graph), report) in graphs.iter().enumerate().zip(of_pass) {
                let broken = |errors| PipelineError::BrokenBy { pass: pass.name(), errors };
                if report.changed() {
                    verify(graph).map_err(|errors| TogetherError::Rank { rank, error: broken(errors) })?;
                }
                reports[rank].push(report);
            }
        }
        Ok(reports)
    }
}

/// What is known of the graphs as they are, from playing the launches of all ranks.
struct Played {
    /// By rank.
    orders: Vec<Dependencies>,
    pairing: Pairing,
}

impl Played {
    /// Plays the launches of graphs that came so, or that a pass made.
    fn of(graphs: &[&mut Graph], after: Option<&'static str>) -> Result<Self, TogetherError> {
        let graphs: Vec<&Graph> = graphs.iter().map(|graph| &**graph).collect();
        let orders: Vec<Dependencies> = graphs.iter().map(|graph| Dependencies::of(graph)).collect();
        let pairing = Pairing::of(&graphs, &orders, &ReplicaGroups::of(&graphs)?, after)?;
        Ok(Self { orders, pairing })
    }
}

/// Runs a pass on each graph by itself.
fn by_rank(pass: &Pass, graphs: &mut [&mut Graph]) -> Result<Vec<PassReport>, TogetherError> {
    let one = |(rank, graph): (usize, &mut &mut Graph)| {
        let start = Instant::now();
        let mut report = run_pass(pass, graph).map_err(|error| TogetherError::Rank { rank, error })?;
        report.time = start.elapsed();
        Ok(report)
    };
    graphs.iter_mut().enumerate().map(one).collect()
}

/// Folds the launches that every rank can fold.
fn fold_agreed(pass: &'static str, graphs: &mut [&mut Graph], played: &Played) -> Vec<PassReport> {
    let start = Instant::now();
    let Played { orders, pairing } = played;
    let mut allowed: Vec<Vec<bool>> = graphs.iter().map(|graph| foldable(graph)).collect();
    for number in 0..pairing.count() {
        let nodes = pairing.parts(number).iter().filter_map(|&(rank, slot)| {
            let rank = rank as usize;
            Some((rank, orders[rank].node(slot as usize)?.index()))
        });
        let nodes: SmallVec<[(usize, usize); 8]> = nodes.collect();
        let all = nodes.iter().all(|&(rank, node)| allowed[rank][node]);
        nodes.iter().for_each(|&(rank, node)| allowed[rank][node] = all);
    }
    let one = |(graph, allowed): (&mut &mut Graph, Vec<bool>)| {
        let removed = fold_allowed(graph, &allowed);
        PassReport { removed, time: start.elapsed(), ..PassReport::new(pass) }
    };
    graphs.iter_mut().zip(allowed).map(one).collect()
}

/// One bucket pass on all graphs as one.
fn bucket(
    pass: &'static str,
    options: &BucketOptions,
    graphs: &mut [&mut Graph],
    played: &Played,
    came_with_bytes: Option<&[u64]>,
) -> Result<Vec<PassReport>, TogetherError> {
    let start = Instant::now();
    let (decided, merged) = decide(pass, options, graphs, played, came_with_bytes)?;
    let mut merged = merged.into_iter().flatten();
    let any = decided.iter().any(|of_rank| !of_rank.plan.buckets.is_empty());
    let mut reports = Vec::with_capacity(graphs.len());
    for ((graph, dependencies), Decided { plan, readers, order }) in graphs.iter_mut().zip(&played.orders).zip(decided)
    {
        // A rank without a bucket keeps step with those that have one: its nodes may move, too.
        let merging = match (any, merged.next()) {
            (false, _) => Merging::default(),
            (true, None) => merge_in_order(graph, dependencies, &plan, readers, &order),
            (true, Some(Merged { graph: merged, merging })) => {
                **graph = merged;
                merging
            }
        };
        reports.push(PassReport {
            time: start.elapsed(),
            plan: Some(plan),
            merge: Some(merging.report),
            ..PassReport::new(pass)
        });
    }
    Ok(reports)
}

/// What a bucket pass does to one rank's graph.
struct Decided {
    plan: BucketPlan,
    readers: SizeReaders,
    /// Of the graph's slots.
    order: Reordering,
}

/// What to merge on each rank, and in which order; with the graphs merged so, where that was made to see whether a cap on
/// memory is kept.
fn decide(
    pass: &'static str,
    options: &BucketOptions,
    graphs: &[&mut Graph],
    played: &Played,
    came_with_bytes: Option<&[u64]>,
) -> Result<(Vec<Decided>, Option<Vec<Merged>>), TogetherError> {
    let Played { orders, pairing } = played;
    let views: Vec<View<'_>> = graphs
        .iter()
        .zip(orders)
        .map(|(graph, dependencies)| View::new(graph, dependencies, options, Round::Only, None))
        .collect();
    let joint = Joint::new(pairing, orders, views);
    let all = AllRanks { pass, options, orders, joint: &joint };
    let selection = selected(&joint, options.policy, &options.caps);
    if options.memory == MemoryCap::None {
        return Ok((all.decided(&selection, Some(&vec![Declined::default(); graphs.len()]))?, None));
    }
    let Kept { selection, declined, memory, merged } = within(&all, options, selection, came_with_bytes)?;
    let mut decided = all.decided(&selection, Some(&declined))?;
    for (Decided { plan, .. }, memory) in decided.iter_mut().zip(memory) {
        plan.memory = Some(memory);
    }
    Ok((decided, merged))
}

/// The graphs of all ranks, in one bucket pass.
struct AllRanks<'a> {
    pass: &'static str,
    options: &'a BucketOptions,
    orders: &'a [Dependencies],
    joint: &'a Joint<'a>,
}

impl AllRanks<'_> {
    fn graph(&self, rank: usize) -> &Graph {
        self.joint.view(rank).graph
    }

    /// What a selection does to each rank's graph; with remarks, if by rank there are reasons why members were declined.
    fn decided(&self, selection: &Selection, declined: Option<&[Declined]>) -> Result<Vec<Decided>, TogetherError> {
        let Self { pass, options, orders, joint } = *self;
        let mut adjusted = Adjusted::default();
        let (mut plans, mut late_kind) = (Vec::with_capacity(orders.len()), false);
        for (rank, dependencies) in orders.iter().enumerate() {
            let (view, own) = (joint.view(rank), joint.selection_of(rank, selection));
            let plan = match declined {
                Some(declined) => planned(view, &own, options, Scope::AllRanks, &declined[rank]),
                None => without_remarks(view, &own, options),
            };
            check_sums(view.graph, &plan).map_err(|error| merge_error(rank, pass, error))?;
            let readers = SizeReaders::of(view.graph, &plan.buckets);
            joint.lift(rank, readers.adjusted(dependencies), &mut adjusted);
            late_kind |= !plan.buckets.is_empty() && late(&plan);
            plans.push((plan, readers));
        }
        let place = if late_kind { Place::BestOrLast } else { Place::BestOrFirst };
        let order = reorder(joint, &selection.buckets, &adjusted, place).map_err(|Cycle { bucket }| {
            let (rank, slot) = joint.parts(selection.buckets[bucket][0])[0];
            let rank = rank as usize;
            let members = vec![self.graph(rank).name_of(joint.view(rank).node(slot as usize)).to_owned()];
            merge_error(rank, pass, MergeError::Cycle { members })
        })?;
        let decided = plans.into_iter().zip(joint.project(&order));
        Ok(decided.map(|((plan, readers), order)| Decided { plan, readers, order }).collect())
    }
}

impl Trial for AllRanks<'_> {
    type Error = TogetherError;

    fn graphs(&self) -> Vec<(&Graph, &Dependencies)> {
        self.orders.iter().enumerate().map(|(rank, dependencies)| (self.graph(rank), dependencies)).collect()
    }

    fn members(&self, node: usize) -> SmallVec<[(usize, Member); 2]> {
        let part = |&(rank, slot): &(u32, u32)| {
            let rank = rank as usize;
            (rank, self.joint.view(rank).member(slot as usize))
        };
        self.joint.parts(node).iter().map(part).collect()
    }

    fn stands_last(&self, selection: &Selection) -> Vec<bool> {
        let kind = |bucket: &Vec<usize>| self.members(bucket[0]).first().map(|&(rank, _)| rank);
        let rank = selection.buckets.first().and_then(kind).unwrap_or(0);
        let plan = without_remarks(self.joint.view(rank), &self.joint.selection_of(rank, selection), self.options);
        stands_last(self.joint, &selection.buckets, if late(&plan) { Place::BestOrLast } else { Place::BestOrFirst })
    }

    fn merge(&self, selection: &Selection) -> Result<Vec<Merged>, TogetherError> {
        let decided = self.decided(selection, None)?;
        let one = |(rank, Decided { plan, readers, order }): (usize, Decided)| {
            let mut graph = self.graph(rank).clone();
            let merging = merge_in_order(&mut graph, &self.orders[rank], &plan, readers, &order);
            Merged { graph, merging }
        };
        Ok(decided.into_iter().enumerate().map(one).collect())
    }
}

fn merge_error(rank: usize, pass: &'static str, error: MergeError) -> TogetherError {
    TogetherError::Rank { rank, error: PipelineError::Merge { pass, error } }
}
