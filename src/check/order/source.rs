//! What leads from launch to launch in the source, where what stands between them is gone in the result: a member of no
//! bytes that the merged launch claims and does not send, a wait that another one stands for.

use super::spans::{Beside, Channels};
use crate::check::launches::Assignment;
use crate::check::walk::Walked;
use crate::ir::{NodeId, Op};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// By arena index of the result: the first member of a merged launch that a node leads to in the source, and the last
/// member of one that it follows there. Empty where nothing is gone.
pub(super) struct InSource {
    leads_to: Vec<usize>,
    follows: Vec<usize>,
}

impl InSource {
    pub fn of(before: &Walked<'_>, after: &Walked<'_>, assignment: &Assignment) -> Self {
        let mut found = Self { leads_to: Vec::new(), follows: Vec::new() };
        if !may_go(before) && assignment.twins.is_empty() {
            return found;
        }
        let images = Images::of(before, after, assignment);
        let (leads_to, follows) = spans(before, assignment);
        found.leads_to = vec![usize::MAX; after.graph.arena_len()];
        found.follows = vec![0; after.graph.arena_len()];
        for &id in before.graph.order() {
            if let Some(image) = images.image(before, id) {
                let first = &mut found.leads_to[image.index()];
                *first = (*first).min(leads_to[id.index()]);
                let last = &mut found.follows[image.index()];
                *last = (*last).max(follows[id.index()]);
            }
        }
        found
    }

    /// `usize::MAX` for none.
    pub fn leads_to(&self, id: NodeId) -> usize {
        self.leads_to.get(id.index()).copied().unwrap_or(usize::MAX)
    }

    /// 0 for none.
    pub fn follows(&self, id: NodeId) -> usize {
        self.follows.get(id.index()).copied().unwrap_or(0)
    }
}

/// Where nodes of the source are in the result.
struct Images<'g> {
    by_name: HashMap<&'g str, NodeId, FxBuildHasher>,
    /// Launches in a launch of the result.
    launches: HashMap<NodeId, NodeId, FxBuildHasher>,
}

impl<'g> Images<'g> {
    fn of(before: &Walked<'g>, after: &Walked<'g>, assignment: &Assignment) -> Self {
        let mut images = Self { by_name: HashMap::default(), launches: HashMap::default() };
        images.by_name.extend(after.graph.order().iter().map(|&id| (after.graph.name_of(id), id)));
        for (launch, members) in after.launches.iter().zip(&assignment.members) {
            images.launches.extend(members.iter().map(|&member| (before.launches[member].node, launch.node)));
        }
        images
    }

    fn image(&self, before: &Walked<'_>, id: NodeId) -> Option<NodeId> {
        self.launches.get(&id).or_else(|| self.by_name.get(before.graph.name_of(id))).copied()
    }
}

/// Whether there is something that may go without a trace: a launch of no bytes, a second wait.
fn may_go(before: &Walked<'_>) -> bool {
    let mut waited = vec![false; before.graph.arena_len()];
    let mut waits = before.graph.order().iter().filter(|&&id| before.graph.node(id).op == Op::Wait);
    before.launches.iter().any(|launch| launch.trivial)
        || waits.any(|&id| {
            let on = before.graph.operands(id).first().copied();
            let is_wait = on.is_some_and(|on| before.graph.node(on).op == Op::Wait);
            is_wait || on.is_some_and(|on| std::mem::replace(&mut waited[on.index()], true))
        })
}

/// By arena index of the source: first members that a node leads to, and last ones that it follows.
fn spans(before: &Walked<'_>, assignment: &Assignment) -> (Vec<usize>, Vec<usize>) {
    let graph = before.graph;
    let (mut leads_to, mut follows) = (vec![usize::MAX; graph.arena_len()], vec![0; graph.arena_len()]);
    for members in assignment.members.iter().filter(|members| members.len() > 1) {
        for &member in members {
            let id = before.launches[member].node.index();
            leads_to[id] = leads_to[id].min(members[0]);
            follows[id] = follows[id].max(members[members.len() - 1]);
        }
    }
    let mut beside = Beside::of(before);
    for &(launch, follower) in &before.followers {
        beside.add_edge(before.launches[launch].node, follower);
    }
    let needs = |id: NodeId| graph.operands(id).iter().chain(beside.edges_into(id));
    let mut through = Channels::default();
    for &id in graph.order().iter().rev() {
        let mut first = leads_to[id.index()];
        beside.receive(id, &through, usize::min, usize::MAX, &mut first);
        leads_to[id.index()] = first;
        if first != usize::MAX {
            beside.send(id, &mut through, usize::min, usize::MAX, first);
            for needed in needs(id) {
                leads_to[needed.index()] = leads_to[needed.index()].min(first);
            }
        }
    }
    let mut through = Channels::default();
    for &id in graph.order() {
        let mut last = needs(id).map(|needed| follows[needed.index()]).fold(follows[id.index()], usize::max);
        beside.receive(id, &through, usize::max, 0, &mut last);
        follows[id.index()] = last;
        if last > 0 {
            beside.send(id, &mut through, usize::max, 0, last);
        }
    }
    (leads_to, follows)
}
