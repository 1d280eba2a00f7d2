//! Order: of launches in each group, around fences, and by control edges; and that waits are kept.
//!
//! **Launches.** Number the source's collectives in program order. A launch of the result spans the numbers of its
//! members. Two launches of a group must stand in the order of their spans, unless the spans overlap: then the merge
//! itself had to choose. What a merged launch needs may have had to move up with it, and what needs it down: the span
//! of a launch that leads to a merged one (by data, memory, random draws or order edges) reaches to that one's first
//! member, and of one that follows from a merged one, to its last (spans.rs).
//!
//! **Calls of graphs that launch** count as launches of every group, which stand between those around them. Among each other
//! they keep their order, as their state says.
//!
//! **Fences.** Each collective has as many fences before it as it had.
//!
//! **Control.** What a hard edge of the source puts after still stands after, and the result says so itself, by an edge
//! or by data. **Waits.** What the source waits for, the result waits for.
//!
//! **Flight.** A launch sends until it is waited for: what it sends is not written before, unless the source did so, too.

mod source;
mod spans;

use super::launches::Assignment;
use super::walk::Walked;
use crate::ir::{NodeId, Op, Strength};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// What is out of order; numbers are of launches.
pub(super) enum Disorder {
    /// (source launch, source launch): the first came first, and does so no more.
    Swapped(usize, usize),
    /// (source launch, call in the result): they have changed places, and no merge asks for that.
    Called(usize, NodeId),
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
        spans::launches(before, after, assignment)?;
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
    let in_source: std::collections::BTreeSet<usize> = before.hazards.iter().map(|&(launch, _)| launch).collect();
    for &(launch, writer) in &after.hazards {
        let known = |member: &usize| in_source.contains(member);
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
    // Where launches are now; of several that send the same, any one may have taken another's place.
    let mut moved: HashMap<NodeId, Vec<NodeId>, FxBuildHasher> = HashMap::default();
    for (index, (launch, places)) in before.launches.iter().zip(&assignment.of).enumerate() {
        // Of no bytes, it is where a launch claims it, or has its name.
        let name = before.graph.name_of(launch.node);
        let same = || names.get(name).copied().filter(|&id| after.graph.collective(id).is_some());
        let claimed = claims.get(name).copied().or_else(same).filter(|_| launch.trivial);
        let found = match assignment.twins.get(&index) {
            Some(twins) => twins.iter().map(|&twin| after.launches[twin].node).collect(),
            None => places[0].map(|place| after.launches[place.0].node).or(claimed).into_iter().collect(),
        };
        moved.insert(launch.node, found);
    }
    let named = |id: NodeId| names.get(before.graph.name_of(id)).copied();
    // Of several waits on one result, one may stand for those below it.
    let mut waits: HashMap<NodeId, NodeId, FxBuildHasher> = HashMap::default();
    let mut last: HashMap<NodeId, NodeId, FxBuildHasher> = HashMap::default();
    for &id in before.graph.order().iter().filter(|&&id| before.graph.node(id).op == Op::Wait) {
        let on = before.graph.operands(id);
        if let Some(image) = named(id) {
            last.extend(on.iter().map(|&on| (on, image)));
        } else if let [on] = on
            && let Some(&image) = last.get(on)
        {
            waits.insert(id, image);
        }
    }
    // Also where several launches became one.
    let mut waits_of_result: HashMap<NodeId, NodeId, FxBuildHasher> = HashMap::default();
    for &id in after.graph.order().iter().filter(|&&id| after.graph.node(id).op == Op::Wait) {
        for &on in after.graph.operands(id) {
            waits_of_result.entry(on).or_insert(id);
        }
    }
    let images = |id: NodeId| -> Vec<NodeId> {
        if let Some(nodes) = moved.get(&id).filter(|nodes| !nodes.is_empty()) {
            return nodes.clone();
        }
        let on = if before.graph.node(id).op == Op::Wait { before.graph.operands(id) } else { &[] };
        let wait = named(id).or_else(|| waits.get(&id).copied());
        let starts = on.iter().filter(|_| wait.is_none()).filter_map(|on| moved.get(on));
        let others = starts.flatten().filter_map(|start| waits_of_result.get(start).copied());
        wait.into_iter().chain(others).collect()
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
        let (from, to) = (images(edge.before), images(edge.after));
        if from.is_empty() || to.is_empty() {
            // A collective that moves nothing takes its edges along.
            let gone = |id: NodeId| moved.get(&id).is_some_and(Vec::is_empty);
            if gone(edge.before) || gone(edge.after) {
                continue;
            }
            return broken("one end is gone");
        }
        let pairs = || from.iter().flat_map(|&from| to.iter().map(move |&to| (from, to)));
        let in_order = |&(from, to): &(NodeId, NodeId)| positions[from.index()] < positions[to.index()];
        if !pairs().any(|pair| in_order(&pair)) {
            return broken("the second no longer stands after the first");
        }
        let says =
            |&(from, to): &(NodeId, NodeId)| stated.contains(&(from, to)) || after.graph.operands(to).contains(&from);
        if !pairs().any(|pair| in_order(&pair) && says(&pair)) {
            return broken("the result does not state it");
        }
    }
    Ok(())
}
