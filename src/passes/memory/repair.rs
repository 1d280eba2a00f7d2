//! What to cut where a merged graph is above its cap: buckets that reach over the places where that is so.

use super::alive::Lives;
use super::within::{GENTLE_ROUNDS, Merged, Passed, Trial};
use crate::ir::{Graph, NodeId};
use crate::passes::plan::Member;
use std::collections::BTreeSet;

/// Most places above the cap for which the nearest bucket is looked for, where none reaches over them.
const MOST_SEARCHES: usize = 64;

/// What is to be cut.
pub(super) struct Cuts {
    /// By bucket: whether.
    pub(super) places: Vec<bool>,
    /// What passed the cap.
    pub(super) passed: Passed,
}

/// A stretch of places in a merged graph.
#[derive(Clone, Copy)]
struct Reach {
    from: u32,
    to: u32,
    bytes: u64,
}

/// Buckets to cut of merged graphs of which at least one is above its limit.
pub(super) fn cuts<T: Trial>(
    trial: &T,
    buckets: &[Vec<usize>],
    merged: &[Merged],
    lives: &[Lives],
    limits: &[u64],
    round: usize,
) -> Cuts {
    let mut places = vec![false; buckets.len()];
    let mut passed: Option<Passed> = None;
    let mut members: Vec<Vec<Vec<Member>>> = merged.iter().map(|_| vec![Vec::new(); buckets.len()]).collect();
    for (index, nodes) in buckets.iter().enumerate() {
        for (rank, member) in nodes.iter().flat_map(|&node| trial.members(node)) {
            members[rank][index].push(member);
        }
    }
    let graphs = trial.graphs();
    for (rank, (one, lives)) in merged.iter().zip(lives).enumerate() {
        let alive = lives.by_place(&one.graph);
        let above = stretches(&alive, limits[rank]);
        if above.is_empty() {
            continue;
        }
        let (worst, bytes) = above.iter().copied().fold((0, 0), |most, one| if one.1 > most.1 { one } else { most });
        passed.get_or_insert(Passed {
            rank,
            at: named(graphs[rank].0, &one.graph, worst),
            alive_bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
        });
        let reaches = Reaches::of(graphs[rank].0, one, lives).all(&members[rank]);
        if round < GENTLE_ROUNDS {
            largest(&above, &reaches, &mut places);
        } else {
            for (cut, reach) in places.iter_mut().zip(&reaches) {
                let Some(reach) = reach else { continue };
                let first = above.partition_point(|&(place, _)| place < reach.from);
                *cut |= above.get(first).is_some_and(|&(place, _)| place <= reach.to);
            }
        }
    }
    Cuts { places, passed: passed.expect("one of the graphs is above its limit") }
}

/// The worst place of each stretch of places above the limit, and the bytes alive there.
fn stretches(alive: &[i128], limit_bytes: u64) -> Vec<(u32, i128)> {
    let mut found: Vec<(u32, i128)> = Vec::new();
    let mut inside = false;
    for (place, &bytes) in alive.iter().enumerate() {
        let above = bytes > i128::from(limit_bytes);
        if above && !inside {
            found.push((place as u32, bytes));
        } else if above && let Some(worst) = found.last_mut().filter(|worst| bytes > worst.1) {
            *worst = (place as u32, bytes);
        }
        inside = above;
    }
    found
}

/// Marks, for each place, the largest bucket that reaches over it; the nearest where none does.
fn largest(above: &[(u32, i128)], reaches: &[Option<Reach>], cut: &mut [bool]) {
    let known = || reaches.iter().enumerate().filter_map(|(index, reach)| Some((index, (*reach)?)));
    let mut begins: Vec<(u32, usize)> = known().map(|(index, reach)| (reach.from, index)).collect();
    begins.sort_unstable();
    let mut begins = begins.into_iter().peekable();
    // Those that reach over the place, by bytes; ones that ended are dropped when they come up.
    let mut open: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut searches = 0;
    for &(place, _) in above {
        while let Some((_, index)) = begins.next_if(|&(from, _)| from <= place) {
            open.extend(reaches[index].map(|reach| (reach.bytes, index)));
        }
        while let Some(&(bytes, index)) = open.last()
            && reaches[index].is_none_or(|reach| reach.to < place)
        {
            open.remove(&(bytes, index));
        }
        if let Some(&(_, index)) = open.last() {
            cut[index] = true;
        } else if searches < MOST_SEARCHES {
            searches += 1;
            let distance = |reach: Reach| reach.from.saturating_sub(place).max(place.saturating_sub(reach.to));
            if let Some((index, _)) = known().min_by_key(|&(index, reach)| (distance(reach), index)) {
                cut[index] = true;
            }
        }
    }
}

/// The node of the graph as it stood that is at a place of the merged one, or the next that is.
fn named(graph: &Graph, merged: &Graph, place: u32) -> NodeId {
    let order = merged.order();
    let from = (place as usize).min(order.len());
    let known = |id: &&NodeId| id.index() < graph.arena_len();
    let found = order[from..].iter().find(known).or_else(|| order[..from].iter().rev().find(known));
    *found.expect("a graph that has bytes alive has nodes, of which the merge made some from others")
}

/// Where buckets reach in a merged graph.
struct Reaches<'a> {
    merged: &'a Merged,
    lives: &'a Lives,
    /// By arena index: the place in the merged graph.
    positions: Vec<u32>,
    /// By arena index of the graph as it stood: the place in it.
    old: Vec<u32>,
    /// By place of the graph as it stood: where the merged graph has the next node that did not move.
    next: Vec<u32>,
    /// By place of the merged graph: whether the node there was made by the merge, or moved.
    strange: Vec<bool>,
}

impl<'a> Reaches<'a> {
    fn of(graph: &Graph, merged: &'a Merged, lives: &'a Lives) -> Self {
        let positions = merged.graph.positions();
        let mut strange: Vec<bool> = merged.graph.order().iter().map(|id| id.index() >= graph.arena_len()).collect();
        for id in &merged.merging.moved {
            if let Some(strange) = strange.get_mut(positions[id.index()] as usize) {
                *strange = true;
            }
        }
        let mut next = vec![lives.places as u32; graph.order().len() + 1];
        for (at, id) in graph.order().iter().enumerate().rev() {
            let place = positions[id.index()];
            let stays = strange.get(place as usize) == Some(&false);
            next[at] = if stays { place } else { next[at + 1] };
        }
        Self { merged, lives, positions, old: graph.positions(), next, strange }
    }

    /// By bucket; none of those that launch nothing on this rank.
    fn all(&self, members: &[Vec<Member>]) -> Vec<Option<Reach>> {
        let mut launches = self.merged.merging.launches.iter();
        let of = |members: &Vec<Member>| {
            // A rank that takes no part in a bucket has no launch for it.
            let launch = if members.is_empty() { None } else { launches.next().copied().flatten() };
            launch.map(|launch| self.reach(launch, members))
        };
        members.iter().map(of).collect()
    }

    fn reach(&self, launch: NodeId, members: &[Member]) -> Reach {
        let mut from = self.positions[launch.index()];
        let mut to = from;
        // What was packed for it, and taken along.
        while from > 0 && self.strange[from as usize - 1] {
            from -= 1;
        }
        to = to.max(self.lives.of_value(launch).map_or(0, |life| life.last));
        let mut bytes = 0u64;
        for member in members {
            bytes = bytes.saturating_add(member.bytes.unwrap_or(0));
            from = from.min(self.next[self.old[member.collective.index()] as usize]);
            let wait = self.positions[member.wait.index()];
            if wait != u32::MAX {
                to = to.max(wait);
            }
            to = to.max(self.lives.of_value(member.wait).map_or(0, |life| life.last));
        }
        Reach { from, to, bytes }
    }
}
