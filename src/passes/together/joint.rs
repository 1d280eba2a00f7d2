//! The graphs of all ranks as one: the nth launch of a replica group is one node.

use super::super::bucketing::{BucketKey, Reason, View, collective_bytes};
use super::super::order::{Adjusted, Reordering, Slots};
use super::super::select::{Candidate, Outcome, PlanGraph, Refusal, Selection};
use super::replica_groups::ReplicaGroups;
use super::{LaunchAt, TogetherError};
use crate::ir::communication::{self, Launch, Launches};
use crate::ir::{Dependencies, Graph, GroupId, NodeId, RegionId};
use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// Which slots of which ranks are one node, all numbered in an order in which they can run.
pub(super) struct Pairing {
    /// By rank and slot: its number.
    number: Vec<Vec<u32>>,
    /// Parts of number `n` are `parts[starts[n]..starts[n + 1]]`: rank and slot, by rank.
    starts: Vec<u32>,
    parts: Vec<(u32, u32)>,
}

/// A replica group whose ranks are arriving at a launch.
#[derive(Clone, Default)]
struct Meeting {
    /// Those that are there, with their slots.
    arrived: Vec<(u32, u32)>,
    /// How many launches it has had.
    position: usize,
}

impl Pairing {
    /// Plays all ranks: each runs until it launches something, and waits there for its replica group.
    pub(super) fn of(
        graphs: &[&Graph],
        orders: &[Dependencies],
        replica_groups: &ReplicaGroups,
        after: Option<&'static str>,
    ) -> Result<Self, TogetherError> {
        let slots: usize = orders.iter().map(Slots::count).sum();
        let number = orders.iter().map(|order| vec![0; order.count()]).collect();
        let mut pairing = Self { number, starts: Vec::with_capacity(slots + 1), parts: Vec::with_capacity(slots) };
        let mut at = vec![0usize; graphs.len()];
        let mut meetings = vec![Meeting::default(); replica_groups.list.len()];
        let launches: Vec<Launches<'_>> = graphs.iter().map(|graph| Launches::of(graph)).collect();
        let mut ready: VecDeque<usize> = (0..graphs.len()).collect();
        while let Some(rank) = ready.pop_front() {
            while let Some(slot) = (at[rank] < orders[rank].count()).then_some(at[rank]) {
                let Some(group) = group_of(graphs[rank], &launches[rank], &orders[rank], rank, slot)? else {
                    pairing.add(&[(rank as u32, slot as u32)]);
                    at[rank] += 1;
                    continue;
                };
                let replica_group = replica_groups
                    .replica_group(rank, group)
                    .expect("all groups that are launched in have replica_groups");
                let meeting = &mut meetings[replica_group];
                meeting.arrived.push((rank as u32, slot as u32));
                if meeting.arrived.len() < replica_groups.list[replica_group].ranks.len() {
                    break;
                }
                let mut met = std::mem::take(&mut meeting.arrived);
                met.sort_unstable();
                same_launch(graphs, orders, &met).map_err(|(left, right)| TogetherError::Differ {
                    group: replica_groups.list[replica_group].name.clone(),
                    position: meeting.position,
                    left,
                    right,
                    after,
                })?;
                meeting.position += 1;
                pairing.add(&met);
                for &(other, _) in &met {
                    at[other as usize] += 1;
                    if other as usize != rank {
                        ready.push_back(other as usize);
                    }
                }
            }
        }
        pairing.starts.push(pairing.parts.len() as u32);
        let stuck = (0..graphs.len()).find(|&rank| at[rank] < orders[rank].count());
        let Some(rank) = stuck else { return Ok(pairing) };
        let node = orders[rank].node(at[rank]).expect("only launches are waited at");
        let replica_group = match launches[rank].get(node) {
            Some(Launch::In(group)) => replica_groups.replica_group(rank, group),
            Some(Launch::Unknown(_)) | None => None,
        };
        let replica_group = replica_group.expect("only launches of replica_groups are waited at");
        let arrived = |member: u32| meetings[replica_group].arrived.iter().any(|&(rank, _)| rank == member);
        let missing = replica_groups.list[replica_group].ranks.iter().copied().find(|&member| !arrived(member));
        Err(TogetherError::Stuck {
            rank,
            node: graphs[rank].name_of(node).to_owned(),
            group: replica_groups.list[replica_group].name.clone(),
            missing: missing.unwrap_or_default(),
            after,
        })
    }

    fn add(&mut self, parts: &[(u32, u32)]) {
        let number = self.starts.len() as u32;
        self.starts.push(self.parts.len() as u32);
        for &(rank, slot) in parts {
            self.number[rank as usize][slot as usize] = number;
        }
        self.parts.extend_from_slice(parts);
    }

    pub(super) fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// The slots that are this number, by rank.
    pub(super) fn parts(&self, number: usize) -> &[(u32, u32)] {
        &self.parts[self.starts[number] as usize..self.starts[number + 1] as usize]
    }
}

/// The group of the launch in a slot, if there is one.
fn group_of(
    graph: &Graph,
    launches: &Launches<'_>,
    order: &Dependencies,
    rank: usize,
    slot: usize,
) -> Result<Option<GroupId>, TogetherError> {
    let Some(id) = order.node(slot) else { return Ok(None) };
    let Some(Launch::In(group)) = launches.get(id) else { return Ok(None) };
    let region = graph.node(id).region;
    if region != RegionId::ROOT {
        let (node, region) = (graph.name_of(id).to_owned(), graph.region(region).label.to_string());
        return Err(TogetherError::Region { rank, node, region });
    }
    Ok(Some(group))
}

/// Whether all parts of a launch are the same; else the first one and the first that differs.
fn same_launch(
    graphs: &[&Graph],
    orders: &[Dependencies],
    parts: &[(u32, u32)],
) -> Result<(), (Box<LaunchAt>, Box<LaunchAt>)> {
    let of = |&(rank, slot): &(u32, u32)| {
        let id = orders[rank as usize].node(slot as usize).expect("launches are nodes");
        (rank as usize, id)
    };
    let (first_rank, first) = of(&parts[0]);
    for part in &parts[1..] {
        let (rank, id) = of(part);
        if traits(graphs[first_rank], first) != traits(graphs[rank], id) {
            let at = |rank: usize, id: NodeId| {
                let (graph, what) = (graphs[rank], describe(graphs[rank], id));
                Box::new(LaunchAt { rank, node: graph.name_of(id).to_owned(), what })
            };
            return Err((at(first_rank, first), at(rank, id)));
        }
    }
    Ok(())
}

/// What the ranks of a launch must agree on. What an all-to-all sends may differ in size.
fn traits(graph: &Graph, id: NodeId) -> impl PartialEq {
    let collective = graph.collective(id);
    let call = communication::describe(graph, id);
    let how = collective.map(|launch| (launch.kind, launch.variant, launch.coalesced));
    let exchange = collective.is_some_and(|launch| launch.kind == crate::ir::CollectiveKind::AllToAll);
    let inputs = graph.collective_inputs(id).iter().map(|&input| graph.tensor(input));
    let much = |tensor: Option<&crate::ir::TensorType>| {
        let elements = tensor.and_then(crate::ir::TensorType::elements).filter(|_| !exchange);
        (tensor.map(|tensor| tensor.dtype), elements.and_then(|elements| graph.likely_value(&elements)))
    };
    (how, call, inputs.map(much).collect::<Vec<_>>())
}

fn describe(graph: &Graph, id: NodeId) -> String {
    let Some(launch) = graph.collective(id) else { return communication::describe(graph, id) };
    let kind = launch.described();
    let dtype = graph.collective_inputs(id).first().and_then(|&input| graph.tensor(input)).map(|tensor| tensor.dtype);
    let dtype = dtype.map_or("?", |dtype| dtype.short_name());
    let bytes = collective_bytes(graph, id).map_or("unknown".to_owned(), |bytes| bytes.to_string());
    format!("{kind} {dtype}, {bytes} bytes")
}

/// The graphs of all ranks as the selection and the reordering see them.
pub(super) struct Joint<'a> {
    pairing: &'a Pairing,
    views: Vec<View<'a>>,
    /// Numbers before number `n` are `before[starts[n]..starts[n + 1]]`.
    starts: Vec<u32>,
    before: Vec<u32>,
    /// By number: what is equal for candidates with equal keys on every rank, or `u32::MAX`.
    key_of: Vec<u32>,
}

impl<'a> Joint<'a> {
    pub(super) fn new(pairing: &'a Pairing, orders: &[Dependencies], views: Vec<View<'a>>) -> Self {
        let count = pairing.count();
        let mut starts = Vec::with_capacity(count + 1);
        let mut before = Vec::with_capacity(orders.iter().map(Dependencies::edge_count).sum());
        for number in 0..count {
            starts.push(before.len() as u32);
            for &(rank, slot) in pairing.parts(number) {
                let numbers = &pairing.number[rank as usize];
                before.extend(orders[rank as usize].before(slot as usize).iter().map(|&slot| numbers[slot as usize]));
            }
        }
        starts.push(before.len() as u32);
        let mut joint = Self { pairing, views, starts, before, key_of: vec![u32::MAX; count] };
        joint.find_candidates();
        joint
    }

    pub(super) fn view(&self, rank: usize) -> &View<'a> {
        &self.views[rank]
    }

    pub(super) fn parts(&self, number: usize) -> &[(u32, u32)] {
        self.pairing.parts(number)
    }

    /// A launch is a candidate if it is one on every rank; where it is not, the other ranks are told.
    fn find_candidates(&mut self) {
        let mut keys: IndexSet<Vec<(u32, BucketKey)>, FxBuildHasher> = IndexSet::default();
        for number in 0..self.pairing.count() {
            let parts = self.pairing.parts(number);
            let entry = |&(rank, slot): &(u32, u32)| self.views[rank as usize].candidate_at(slot as usize);
            if parts.iter().all(|part| entry(part).is_none()) {
                continue;
            }
            match parts.iter().find(|part| entry(part).is_none()) {
                None => {
                    let key = parts.iter().filter_map(|part| Some((part.0, entry(part)?.key))).collect();
                    self.key_of[number] = keys.insert_full(key).0 as u32;
                }
                Some(&(by, slot)) => {
                    let because = self.views[by as usize].excluded(slot as usize).cloned().unwrap_or(Reason::NoPartner);
                    let reason = Reason::AtAnotherRank { rank: by as usize, because: Box::new(because) };
                    for &(rank, slot) in parts {
                        if self.views[rank as usize].candidate_at(slot as usize).is_some() {
                            self.views[rank as usize].exclude(slot as usize, reason.clone());
                        }
                    }
                }
            }
        }
    }

    /// The slot of a number on a rank, if the rank takes part.
    fn slot(&self, rank: usize, number: usize) -> Option<usize> {
        let found = self.parts(number).iter().find(|part| part.0 as usize == rank)?;
        Some(found.1 as usize)
    }

    /// A rank's part of a selection.
    pub(super) fn selection_of(&self, rank: usize, selection: &Selection) -> Selection {
        let mut index = vec![usize::MAX; selection.buckets.len()];
        let mut own = Selection::default();
        for (at, members) in selection.buckets.iter().enumerate() {
            let slots: Vec<usize> = members.iter().filter_map(|&number| self.slot(rank, number)).collect();
            if !slots.is_empty() {
                index[at] = own.buckets.len();
                own.buckets.push(slots);
            }
        }
        // Members of a bucket have one replica group, so whoever takes part in one takes part in the other.
        let slot = |number: usize| self.slot(rank, number).unwrap_or_default();
        let refusal = |refusal: Refusal| match refusal {
            Refusal::CapReached { other } => Refusal::CapReached { other: slot(other) },
            Refusal::Dependent { other } => Refusal::Dependent { other: slot(other) },
            same @ (Refusal::Oversize { .. }
            | Refusal::SizeUnknown
            | Refusal::NotAdjacent
            | Refusal::MemoryCap
            | Refusal::NotChosen
            | Refusal::NoPartner) => same,
        };
        let outcome = |outcome: &Outcome| {
            let node = self.slot(rank, outcome.node)?;
            Some(Outcome { node, bucket: outcome.bucket.map(|bucket| index[bucket]).map_err(refusal) })
        };
        own.outcomes = selection.outcomes.iter().filter_map(outcome).collect();
        // A rank's launches stand in its own order.
        own.outcomes.sort_unstable_by_key(|outcome| outcome.node);
        own
    }

    /// Adds a rank's changes of the edges to those of all.
    pub(super) fn lift(&self, rank: usize, own: Adjusted, all: &mut Adjusted) {
        let number = |slot: usize| self.pairing.number[rank][slot];
        let without = own.without.into_iter();
        all.without.extend(without.map(|(from, to)| (number(from as usize), number(to as usize))));
        for (to, from) in own.with {
            let list = all.with.entry(number(to) as usize).or_default();
            list.extend(from.into_iter().map(|slot| number(slot) as usize));
        }
    }

    /// Each rank's part of an order.
    pub(super) fn project(&self, order: &Reordering) -> Vec<Reordering> {
        let mut own: Vec<Reordering> =
            self.views.iter().map(|_| Reordering { slots: Vec::new(), moved: Vec::new() }).collect();
        for &number in &order.slots {
            for &(rank, slot) in self.parts(number) {
                own[rank as usize].slots.push(slot as usize);
            }
        }
        for &number in &order.moved {
            for &(rank, slot) in self.parts(number) {
                own[rank as usize].moved.push(slot as usize);
            }
        }
        own
    }
}

impl PlanGraph for Joint<'_> {
    type Key = u32;

    fn node_count(&self) -> usize {
        self.pairing.count()
    }

    fn dependencies(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        Slots::before(self, node).iter().map(|&number| number as usize)
    }

    fn candidate(&self, node: usize) -> Option<Candidate<u32>> {
        let key = self.key_of[node];
        if key == u32::MAX {
            return None;
        }
        let bytes = |&(rank, slot): &(u32, u32)| self.views[rank as usize].entry(slot as usize).bytes;
        let bytes = self.parts(node).iter().map(bytes).try_fold(0, |most, bytes| Some(u64::max(most, bytes?)));
        // Only policy `adjacent` asks for the wait.
        Some(Candidate { key, bytes, wait: node })
    }
}

impl Slots for Joint<'_> {
    fn count(&self) -> usize {
        self.pairing.count()
    }

    fn before(&self, slot: usize) -> &[u32] {
        &self.before[self.starts[slot] as usize..self.starts[slot + 1] as usize]
    }
}
