//! What a well-formed graph is. Every pass may rely on this list, and none may break it.
//!
//! **Order.** The program order names nodes of the arena, each once. Every operand is in the order and stands before
//! its user. Names of nodes are unique. There is at most one output, and it stands last.
//!
//! **Arguments.** The holes of a node's arguments count 0, 1, 2 in order of appearance, one for each operand. A wait
//! has an operand.
//!
//! **Regions.** The first region is the root. A region's parent stands before it in the table, and at most
//! [`MAX_DEPTH`] regions lie inside one another. The nodes of a region, with those of the regions inside it, stand
//! together in program order.
//!
//! **Groups.** A group with members states its size, every list of members has as many ranks, and no rank is in a
//! name's members twice. No group is empty.
//!
//! **Collectives.** The group exists. There is an input. An out-variant names `out`, and no other variant does. Where
//! types are known: dtypes agree; a gather's result is the group's size times its input along its dimension, a
//! scatter's the same part of it; other kinds keep the shape; a wait makes what it waits for. Sizes that are not both
//! numbers are not compared, numbers of dimensions are.
//!
//! **Waits.** Nothing reads the elements of a collective's result, or writes them, between its start and a wait on it
//! or on a view of it. Views, readers of shapes alone and the output may take it; a reshape that strides force to copy
//! is not a view. An input marked `pending` is such a result. A wait on anything else is allowed and does nothing, as in
//! PyTorch.
//!
//! **Order edges.** Both ends of each are in the order, and what a hard edge puts after stands after.
//!
//! Not checked here: that a started collective is ever waited for (its wait may be in another graph), the types of
//! calls, and what strides say. All checks together take time linear in the graph.

mod collectives;
mod error;
mod pending;
mod spans;

pub use error::{NodeName, VerifyError, VerifyErrors};

use super::entities::{NodeId, RegionId};
use super::graph::{Graph, ProcessGroup, Strength};
use super::ops::Op;
use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

/// Most regions that may lie inside one another.
pub const MAX_DEPTH: u32 = 64;

/// Position of nodes that are not in program order.
const ABSENT: u32 = u32::MAX;

/// Checks that a graph is well-formed.
///
/// # Errors
/// All faults that were found, in program order within each kind.
pub fn verify(graph: &Graph) -> Result<(), VerifyErrors> {
    let mut errors = Vec::new();
    let in_arena = arena(graph, &mut errors);
    let in_tables = tables(graph, &mut errors);
    // What points nowhere cannot be followed.
    if in_arena && in_tables {
        let positions = order(graph, &mut errors);
        for (position, &id) in graph.order().iter().enumerate() {
            operands(graph, id, position, &positions, &mut errors);
            collectives::check(graph, id, &mut errors);
        }
        region_order(graph, &mut errors);
        edges(graph, &positions, &mut errors);
        pending::check(graph, &mut errors);
    }
    if errors.is_empty() { Ok(()) } else { Err(VerifyErrors(errors)) }
}

/// Whether the order and all operands stay inside the arena.
fn arena(graph: &Graph, errors: &mut Vec<VerifyError>) -> bool {
    let before = errors.len();
    let inside = |id: NodeId| id.index() < graph.arena_len();
    for &id in graph.order() {
        if !inside(id) {
            errors.push(VerifyError::Dangling { what: "program order", index: id.index() });
            continue;
        }
        for operand in graph.operands(id).iter().filter(|id| !inside(**id)) {
            errors.push(VerifyError::Dangling { what: "operand list", index: operand.index() });
        }
    }
    for edge in &graph.control {
        for id in [edge.before, edge.after].into_iter().filter(|id| !inside(*id)) {
            errors.push(VerifyError::Dangling { what: "order edge", index: id.index() });
        }
    }
    errors.len() == before
}

/// Whether groups and regions are well-formed and the nodes' references to them exist.
fn tables(graph: &Graph, errors: &mut Vec<VerifyError>) -> bool {
    let before = errors.len();
    let mut depths = vec![0u32; graph.regions().len()];
    for (index, region) in graph.regions().iter().enumerate().skip(1) {
        match depths[..index].get(region.parent.index()) {
            Some(&depth) => depths[index] = depth + 1,
            None => errors.push(VerifyError::RegionParent { label: region.label.to_string(), index }),
        }
        if depths[index] == MAX_DEPTH + 1 {
            errors.push(VerifyError::RegionDepth { label: region.label.to_string() });
        }
    }
    for &id in graph.order().iter().filter(|id| id.index() < graph.arena_len()) {
        if graph.node(id).region.index() >= graph.regions().len() {
            errors.push(VerifyError::NoRegion { node: NodeName::of(graph, id) });
        }
        if graph.collective(id).is_some_and(|c| c.group.index() >= graph.groups().len()) {
            errors.push(VerifyError::NoGroup { node: NodeName::of(graph, id) });
        }
    }
    let broken = errors.len() != before;
    for group in graph.groups() {
        group_members(group, errors);
    }
    !broken
}

fn group_members(group: &ProcessGroup, errors: &mut Vec<VerifyError>) {
    let name = || group.name.to_string();
    if group.size == Some(0) {
        errors.push(VerifyError::EmptyGroup { group: name() });
    }
    // Lists of several lengths have no size in common.
    let uneven = group.members.windows(2).any(|pair| pair[0].len() != pair[1].len());
    if !group.members.is_empty() && group.size.is_none() && !uneven {
        errors.push(VerifyError::GroupWithoutSize { group: name() });
    }
    let mut seen = HashSet::with_hasher(FxBuildHasher);
    for members in &group.members {
        if let Some(size) = group.size
            && members.len() != size as usize
        {
            errors.push(VerifyError::GroupSize { group: name(), found: members.len(), expected: size });
        }
        for &rank in members {
            if !seen.insert(rank) {
                errors.push(VerifyError::RankTwice { group: name(), rank: rank.0 });
            }
        }
    }
}

/// Checks the order itself and gives each node's first place in it.
fn order(graph: &Graph, errors: &mut Vec<VerifyError>) -> Vec<u32> {
    let mut positions = vec![ABSENT; graph.arena_len()];
    let mut names = HashSet::with_hasher(FxBuildHasher);
    let mut outputs = 0;
    for (position, &id) in graph.order().iter().enumerate() {
        let name = || NodeName::of(graph, id);
        if positions[id.index()] != ABSENT {
            errors.push(VerifyError::TwiceInOrder { node: name() });
            continue;
        }
        positions[id.index()] = position as u32;
        if !names.insert(graph.node(id).name) {
            errors.push(VerifyError::NameTwice { name: name() });
        }
        if graph.node(id).op == Op::Output {
            outputs += 1;
            if outputs > 1 {
                errors.push(VerifyError::SecondOutput { node: name() });
            } else if position + 1 != graph.order().len() {
                errors.push(VerifyError::OutputNotLast { node: name() });
            }
        }
    }
    positions
}

fn operands(graph: &Graph, id: NodeId, position: usize, positions: &[u32], errors: &mut Vec<VerifyError>) {
    let name = || NodeName::of(graph, id);
    for &operand in graph.operands(id) {
        let at = positions[operand.index()];
        let (node, operand) = (name, || NodeName::of(graph, operand));
        if at == ABSENT {
            errors.push(VerifyError::OperandGone { node: node(), operand: operand() });
        } else if at as usize >= position {
            errors.push(VerifyError::UseBeforeDefinition { node: node(), operand: operand() });
        }
    }
    let count = graph.operands(id).len();
    let (mut holes, mut in_order) = (0usize, true);
    graph.args_of(id).for_each_operand(&mut |index| {
        in_order &= index as usize == holes;
        holes += 1;
    });
    if holes != count {
        errors.push(VerifyError::Holes { node: name(), holes, operands: count });
    } else if !in_order {
        errors.push(VerifyError::HoleOrder { node: name() });
    }
    if graph.node(id).op == Op::Wait {
        if count == 0 {
            errors.push(VerifyError::WaitForNothing { node: name() });
        }
        collectives::check_wait(graph, id, errors);
    }
}

/// Checks that the nodes of each region stand together.
fn region_order(graph: &Graph, errors: &mut Vec<VerifyError>) {
    let mut left = vec![false; graph.regions().len()];
    let mut open: Vec<RegionId> = Vec::new();
    for &id in graph.order() {
        let region = graph.node(id).region;
        if region == open.last().copied().unwrap_or(RegionId::ROOT) {
            continue;
        }
        let mut path: Vec<RegionId> = graph.regions_around(region).collect();
        path.reverse();
        let shared = open.iter().zip(&path).take_while(|(a, b)| a == b).count();
        open.drain(shared..).for_each(|region| left[region.index()] = true);
        if let Some(again) = path[shared..].iter().find(|region| left[region.index()]) {
            let label = graph.region(*again).label.to_string();
            errors.push(VerifyError::RegionSplit { node: NodeName::of(graph, id), label });
        }
        open = path;
    }
}

fn edges(graph: &Graph, positions: &[u32], errors: &mut Vec<VerifyError>) {
    for edge in &graph.control {
        let (before, after) = (positions[edge.before.index()], positions[edge.after.index()]);
        let name = |id| NodeName::of(graph, id);
        for (at, id) in [(before, edge.before), (after, edge.after)] {
            if at == ABSENT {
                errors.push(VerifyError::EdgeEndGone {
                    before: name(edge.before),
                    after: name(edge.after),
                    gone: name(id),
                });
            }
        }
        let both = before != ABSENT && after != ABSENT;
        if both && edge.strength == Strength::Hard && before >= after {
            errors.push(VerifyError::EdgeBroken { before: name(edge.before), after: name(edge.after) });
        }
    }
}
