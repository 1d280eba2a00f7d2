//! Order: of launches in each group, around fences, and by control edges; and that waits are kept.
//!
//! **Launches.** Number the source's collectives in program order. A launch of the result spans the numbers of its
//! members. Two launches of a group must stand in the order of their spans, unless the spans overlap: then the merge
//! itself had to choose. What a merged launch needs may have had to move up with it, and what needs it down: the span
//! of a launch that leads to a merged one (by data, memory, random draws or order edges) reaches to that one's first
//! member, and of one that follows from a merged one, to its last.
//!
//! **Fences.** Each collective has as many fences before it as it had.
//!
//! **Control.** What a hard edge of the source puts after still stands after, and the result says so itself, by an edge
//! or by data. **Waits.** What the source waits for, the result waits for.
//!
//! **Flight.** A launch sends until it is waited for: what it sends is not written before, unless the source did so, too.

use super::launches::Assignment;
use super::walk::Walked;
use crate::ir::optable::Fence;
use crate::ir::{NodeId, Op, Strength};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// What is out of order; numbers are of launches.
pub(super) enum Disorder {
    /// (source launch, source launch): the first came first, and does so no more.
    Swapped(usize, usize),
    /// A source launch crossed a fence: (source, result).
    Fence(usize, usize),
    /// A source result was waited for, and the result's launch is not.
    Wait(usize, usize),
    /// What a launch of the result sends is written while it is in flight, by this node.
    Race(usize, NodeId),
    /// An order edge does not hold, or is no longer stated; (before, after) in the source.
    Control(NodeId, NodeId, &'static str),
}

/// Checks all of the above.
pub(super) fn check(
    before: &Walked<'_>,
    after: &Walked<'_>,
    assignment: &Assignment,
    launches_may_move: bool,
) -> Result<(), Disorder> {
    waits(before, after, assignment)?;
    fences(before, after, assignment)?;
    flight(before, after, assignment)?;
    if !launches_may_move {
        launches(before, after, assignment)?;
    }
    control(before, after, assignment)
}

fn waits(before: &Walked<'_>, after: &Walked<'_>, assignment: &Assignment) -> Result<(), Disorder> {
    for (index, (launch, places)) in before.launches.iter().zip(&assignment.of).enumerate() {
        for (part, place) in places.iter().enumerate() {
            let Some((to, slot)) = *place else { continue };
            let waited = before.pending[launch.pending as usize + part].waited;
            if waited && !after.pending[after.launches[to].pending as usize + slot].waited {
                return Err(Disorder::Wait(index, to));
            }
        }
    }
    Ok(())
}

fn flight(before: &Walked<'_>, after: &Walked<'_>, assignment: &Assignment) -> Result<(), Disorder> {
    for &(launch, writer) in &after.hazards {
        let known = |member: &usize| before.hazards.iter().any(|(launch, _)| launch == member);
        if !assignment.members[launch].iter().any(known) {
            return Err(Disorder::Race(launch, writer));
        }
    }
    Ok(())
}

fn fences(before: &Walked<'_>, after: &Walked<'_>, assignment: &Assignment) -> Result<(), Disorder> {
    for (to, members) in assignment.members.iter().enumerate() {
        let crossed = members.iter().find(|&&member| before.launches[member].fences != after.launches[to].fences);
        if let Some(&member) = crossed {
            return Err(Disorder::Fence(member, to));
        }
    }
    Ok(())
}

/// For each launch of the result, the first and last source launch that it may count as.
fn spans(before: &Walked<'_>, after: &Walked<'_>, assignment: &Assignment) -> Vec<(usize, usize)> {
    let graph = after.graph;
    let mut launch_of: HashMap<NodeId, usize, FxBuildHasher> = HashMap::default();
    for (index, launch) in after.launches.iter().enumerate() {
        launch_of.insert(launch.node, index);
    }
    let ends = |index: usize| {
        let members = &assignment.members[index];
        (members.first().copied(), members.last().copied(), members.len() > 1)
    };
    let mut spans: Vec<(usize, usize)> = (0..after.launches.len())
        .map(|index| (ends(index).0.unwrap_or(0), ends(index).1.unwrap_or(usize::MAX)))
        .collect();
    let mut up = vec![usize::MAX; graph.arena_len()];
    needed_by_empty(before, after, assignment, &mut up);
    let mut beside = Beside::of(after);
    beside.add_landed(before, assignment);
    let mut through = vec![[usize::MAX; 2]; beside.channels];
    for &id in graph.order().iter().rev() {
        let mut first = up[id.index()];
        beside.receive(id, &through, usize::min, &mut first);
        if let Some(&index) = launch_of.get(&id) {
            spans[index].0 = spans[index].0.min(first);
            if ends(index).2 {
                first = first.min(ends(index).0.unwrap_or(first));
            }
        }
        if first == usize::MAX {
            continue;
        }
        beside.send(id, &mut through, usize::min, first);
        for operand in graph.operands(id).iter().chain(beside.edges_into(id)) {
            let entry = &mut up[operand.index()];
            *entry = (*entry).min(first);
        }
    }
    let mut down = vec![0; graph.arena_len()];
    let mut through = vec![[0; 2]; beside.channels];
    for &id in graph.order() {
        let needs = graph.operands(id).iter().chain(beside.edges_into(id));
        let mut last = needs.map(|operand| down[operand.index()]).max().unwrap_or(0);
        beside.receive(id, &through, usize::max, &mut last);
        if let Some(&index) = launch_of.get(&id) {
            spans[index].1 = spans[index].1.max(last);
            if ends(index).2 {
                last = last.max(ends(index).1.unwrap_or(last));
            }
        }
        beside.send(id, &mut through, usize::max, last);
        down[id.index()] = last;
    }
    spans
}

/// What leads from node to node beside data: memory that is written, one channel each, the state of random numbers,
/// and hard order edges. A channel leads from each write to what is after it, and from all that is before it to it.
struct Beside<'a, 'g> {
    walked: &'a Walked<'g>,
    channels: usize,
    edges: HashMap<NodeId, Vec<NodeId>, FxBuildHasher>,
}

impl<'a, 'g> Beside<'a, 'g> {
    fn of(walked: &'a Walked<'g>) -> Self {
        let mut edges: HashMap<NodeId, Vec<NodeId>, FxBuildHasher> = HashMap::default();
        for edge in walked.graph.control.iter().filter(|edge| edge.strength == Strength::Hard) {
            edges.entry(edge.after).or_default().push(edge.before);
        }
        Self { walked, channels: walked.written.len() + 1, edges }
    }

    /// In the source, a write to what was sent stood below the wait. It still follows the launch, though that may send a
    /// copy now.
    fn add_landed(&mut self, before: &Walked<'_>, assignment: &Assignment) {
        if before.landed.is_empty() {
            return;
        }
        let after = self.walked;
        let mut images: HashMap<&str, NodeId, FxBuildHasher> = HashMap::default();
        images.extend(after.graph.order().iter().map(|&id| (after.graph.name_of(id), id)));
        for (launch, places) in before.launches.iter().zip(&assignment.of) {
            if let Some((to, _)) = places[0] {
                images.insert(before.graph.name_of(launch.node), after.launches[to].node);
            }
        }
        let image = |id: NodeId| images.get(before.graph.name_of(id)).copied();
        for &(launch, writer) in &before.landed {
            if let (Some(launch), Some(writer)) = (image(before.launches[launch].node), image(writer)) {
                self.edges.entry(writer).or_default().push(launch);
            }
        }
    }

    fn edges_into(&self, id: NodeId) -> &[NodeId] {
        self.edges.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The channels of a node, and whether it writes them.
    fn visit(&self, id: NodeId, visit: &mut dyn FnMut(usize, bool)) {
        let effects = self.walked.effects.get(id);
        if effects.fence == Fence::Random {
            visit(self.channels - 1, true);
        }
        if self.walked.written.is_empty() {
            return;
        }
        for (index, node) in self.walked.graph.operands(id).iter().enumerate() {
            let class = self.walked.written[node.index()];
            if class != u32::MAX {
                visit(class as usize, effects.writes.contains(&(index as u32)));
            }
        }
    }

    /// What comes to a node through its channels, the best of it.
    fn receive(&self, id: NodeId, through: &[[usize; 2]], best: fn(usize, usize) -> usize, value: &mut usize) {
        self.visit(id, &mut |channel, writes| {
            let [reads, written] = through[channel];
            *value = best(*value, if writes { best(reads, written) } else { written });
        });
    }

    /// What a node hands on.
    fn send(&self, id: NodeId, through: &mut [[usize; 2]], best: fn(usize, usize) -> usize, value: usize) {
        self.visit(id, &mut |channel, writes| {
            let place = &mut through[channel][usize::from(writes)];
            *place = best(*place, value);
        });
    }
}

/// What members of no bytes need counts as needed by the launch that claims them, though it does not send it.
fn needed_by_empty(before: &Walked<'_>, after: &Walked<'_>, assignment: &Assignment, up: &mut [usize]) {
    if before.launches.iter().all(|launch| !launch.trivial) {
        return;
    }
    let mut names: HashMap<&str, NodeId, FxBuildHasher> = HashMap::default();
    for &id in after.graph.order() {
        names.insert(after.graph.name_of(id), id);
    }
    for members in assignment.members.iter().filter(|members| members.len() > 1) {
        for &member in members.iter().filter(|&&member| before.launches[member].trivial) {
            for &operand in before.graph.operands(before.launches[member].node) {
                if let Some(id) = names.get(before.graph.name_of(operand)) {
                    up[id.index()] = up[id.index()].min(members[0]);
                }
            }
        }
    }
}

fn launches(before: &Walked<'_>, after: &Walked<'_>, assignment: &Assignment) -> Result<(), Disorder> {
    let spans = spans(before, after, assignment);
    // By group: the launch whose span begins last, of those so far.
    let mut latest: HashMap<u32, usize, FxBuildHasher> = HashMap::default();
    for (index, launch) in after.launches.iter().enumerate() {
        if assignment.members[index].is_empty() {
            continue;
        }
        let seen = latest.entry(launch.group.0).or_insert(index);
        if spans[index].1 < spans[*seen].0 {
            let first = |index: usize| assignment.members[index].first().copied().unwrap_or(0);
            debug_assert!(first(index) < before.launches.len());
            return Err(Disorder::Swapped(first(index), first(*seen)));
        }
        if spans[index].0 > spans[*seen].0 {
            *seen = index;
        }
    }
    Ok(())
}

fn control(before: &Walked<'_>, after: &Walked<'_>, assignment: &Assignment) -> Result<(), Disorder> {
    if before.graph.control.iter().all(|edge| edge.strength == Strength::Soft) {
        return Ok(());
    }
    let mut names: HashMap<&str, NodeId, FxBuildHasher> = HashMap::default();
    for &id in after.graph.order() {
        names.insert(after.graph.name_of(id), id);
    }
    let mut claims: HashMap<&str, NodeId, FxBuildHasher> = HashMap::default();
    for launch in &after.launches {
        claims.extend(after.graph.meta_of(launch.node).members.iter().map(|name| (&**name, launch.node)));
    }
    let mut moved: HashMap<NodeId, Option<NodeId>, FxBuildHasher> = HashMap::default();
    for (launch, places) in before.launches.iter().zip(&assignment.of) {
        // Of no bytes, it is where a launch claims it.
        let claimed = claims.get(before.graph.name_of(launch.node)).copied().filter(|_| launch.trivial);
        let found = places[0].map(|place| after.launches[place.0].node);
        moved.insert(launch.node, found.or(claimed));
    }
    let named = |id: NodeId| names.get(before.graph.name_of(id)).copied();
    // Of several waits on one result, one may stand for those below it.
    let mut waits: HashMap<NodeId, NodeId, FxBuildHasher> = HashMap::default();
    let mut last: HashMap<NodeId, NodeId, FxBuildHasher> = HashMap::default();
    for &id in before.graph.order().iter().filter(|&&id| before.graph.node(id).op == Op::Wait) {
        let Some(&on) = before.graph.operands(id).first() else { continue };
        if let Some(image) = named(id) {
            last.insert(on, image);
        } else if let Some(&image) = last.get(&on) {
            waits.insert(id, image);
        }
    }
    // Also where several launches became one.
    let mut waits_of_result: HashMap<NodeId, NodeId, FxBuildHasher> = HashMap::default();
    for &id in after.graph.order().iter().filter(|&&id| after.graph.node(id).op == Op::Wait) {
        if let Some(&on) = after.graph.operands(id).first() {
            waits_of_result.entry(on).or_insert(id);
        }
    }
    let image = |id: NodeId| match moved.get(&id) {
        Some(Some(node)) => Some(*node),
        _ => named(id).or_else(|| {
            let on = before.graph.operands(id).first().filter(|_| before.graph.node(id).op == Op::Wait)?;
            waits.get(&id).or_else(|| waits_of_result.get(&(*moved.get(on)?)?)).copied()
        }),
    };
    let positions = after.graph.positions();
    let stated: std::collections::BTreeSet<(NodeId, NodeId)> = after
        .graph
        .control
        .iter()
        .filter(|edge| edge.strength == Strength::Hard)
        .map(|edge| (edge.before, edge.after))
        .collect();
    for edge in before.graph.control.iter().filter(|edge| edge.strength == Strength::Hard) {
        let broken = |why| Err(Disorder::Control(edge.before, edge.after, why));
        let (Some(from), Some(to)) = (image(edge.before), image(edge.after)) else {
            // A collective that moves nothing takes its edges along.
            let gone = |id: NodeId| moved.get(&id).is_some_and(Option::is_none);
            if gone(edge.before) || gone(edge.after) {
                continue;
            }
            return broken("one end is gone");
        };
        if positions[from.index()] >= positions[to.index()] {
            return broken("the second no longer stands after the first");
        }
        if !stated.contains(&(from, to)) && !after.graph.operands(to).contains(&from) {
            return broken("the result does not state it");
        }
    }
    Ok(())
}
