//! A plan put into its graph: nodes in the planned order, and the members of each bucket merged where it is launched.
//!
//! First the nodes are put in order, with the members of a bucket next to one another, and their waits where the bucket is
//! waited for. Then the one merge pass of all policies merges what stands together, so that what it writes, and what
//! proves it, is the same as everywhere.

use super::fixed::blocks;
use super::problem::{KINDS, Maker, NONE, Problem, bucket_options, is_in_body};
use super::state::{Run, State};
use crate::ir::{Dependencies, Graph, NodeId, Op};
use crate::passes::bucketing::BucketPlan;
use crate::passes::merge::{MergeError, MergeReport, merge_at};
use crate::passes::order::Place;
use crate::passes::own::{BucketPolicy, Candidates, PolicyError, plan_with};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// The program order that a plan stands for.
pub(super) fn order(
    graph: &Graph,
    dependencies: &Dependencies,
    problem: &Problem,
    state: &State,
    run: &Run,
) -> Vec<NodeId> {
    let places = state.order.len();
    let mut emit = Emit {
        graph,
        dependencies,
        out: Vec::with_capacity(graph.order().len()),
        done: vec![false; graph.arena_len()],
        stack: Vec::new(),
    };
    // Bodies stand above all that calls them.
    for &id in graph.order().iter().filter(|&&id| graph.node(id).op == Op::Input || is_in_body(graph, id)) {
        emit.node(id);
    }
    // By place: buckets that are waited for before it, and copies that are made before it or at it.
    let mut waits: Vec<Vec<u32>> = vec![Vec::new(); places + 1];
    for bucket in state.buckets() {
        let gathers = problem.messages[state.head[bucket as usize] as usize].gathers;
        let at = run.waited_at(problem, state, bucket) as usize;
        // What is needed at a place is waited for there; a gather's members one by one, as they are read.
        if (!gathers || graph.scheduled) && at < places {
            waits[at].push(bucket);
        }
    }
    let (wait_of, blocked) = (waits_of(graph, problem), waits_that_block(graph));
    let mut early: Vec<Vec<NodeId>> = vec![Vec::new(); places + 1];
    let mut early_before: Vec<Vec<NodeId>> = vec![Vec::new(); places + 1];
    for (at, storage) in problem.storages.iter().enumerate() {
        if let Maker::Early(_) = storage.maker {
            let made = problem.sources.get(at).iter().map(|&item| state.place_of(item)).max();
            let arrived = problem
                .arrivals
                .get(at)
                .iter()
                .map(|&m| run.waited_at(problem, state, state.bucket_of[m as usize]))
                .max();
            match (made, arrived) {
                (made, Some(arrived)) if made.is_none_or(|made| arrived > made) => {
                    early_before[(arrived as usize).min(places)].push(storage.node)
                }
                (Some(made), _) => early[made as usize].push(storage.node),
                _ => {}
            }
        }
    }
    let computes = state.computes();
    for (at, &unit) in state.order.iter().enumerate() {
        for &bucket in &waits[at] {
            state.members(bucket).filter_map(|m| wait_of[m as usize]).for_each(|wait| emit.node(wait));
        }
        early_before[at].iter().for_each(|&id| emit.node(id));
        match unit.checked_sub(computes) {
            None => {
                let id = problem.compute[unit as usize];
                emit.node(id);
                // A collective that blocks is waited for at once.
                blocked.get(&id).into_iter().flatten().for_each(|&wait| emit.node(wait));
            }
            Some(bucket) => {
                // All that its members need, and then they side by side.
                for message in state.members(bucket) {
                    emit.all_before(problem.messages[message as usize].node);
                }
                state.members(bucket).for_each(|message| emit.node(problem.messages[message as usize].node));
            }
        }
        early[at].iter().for_each(|&id| emit.node(id));
    }
    for &id in graph.order() {
        emit.node(id);
    }
    emit.out
}

/// By message: the first wait for it.
fn waits_of(graph: &Graph, problem: &Problem) -> Vec<Option<NodeId>> {
    let mut message_of = vec![NONE; graph.arena_len()];
    for (index, message) in problem.messages.iter().enumerate() {
        message_of[message.node.index()] = index as u32;
    }
    let mut waits = vec![None; problem.messages.len()];
    for &id in graph.order().iter().filter(|&&id| graph.node(id).op == Op::Wait) {
        for operand in graph.operands(id) {
            if let Some(wait) = waits.get_mut(message_of[operand.index()] as usize) {
                wait.get_or_insert(id);
            }
        }
    }
    waits
}

/// The waits for each collective that blocks.
fn waits_that_block(graph: &Graph) -> HashMap<NodeId, Vec<NodeId>, FxBuildHasher> {
    let mut waits: HashMap<NodeId, Vec<NodeId>, FxBuildHasher> = HashMap::default();
    for &id in graph.order().iter().filter(|&&id| graph.scheduled && graph.node(id).op == Op::Wait) {
        for &launch in graph.operands(id).iter().filter(|&&launch| blocks(graph, launch)) {
            waits.entry(launch).or_default().push(id);
        }
    }
    waits
}

/// Puts nodes out, each after all that must come before it.
struct Emit<'a> {
    graph: &'a Graph,
    dependencies: &'a Dependencies,
    out: Vec<NodeId>,
    done: Vec<bool>,
    stack: Vec<(NodeId, usize)>,
}

impl Emit<'_> {
    fn node(&mut self, id: NodeId) {
        if self.done[id.index()] {
            return;
        }
        self.stack.push((id, 0));
        while let Some((id, edge)) = self.stack.pop() {
            if self.done[id.index()] {
                continue;
            }
            let before = self.dependencies.before(self.dependencies.slot_of(id));
            let missing = before[edge..].iter().position(|&slot| {
                self.dependencies.node(slot as usize).is_some_and(|before| !self.done[before.index()])
            });
            match missing {
                Some(offset) => {
                    self.stack.push((id, edge + offset));
                    self.stack.extend(self.dependencies.node(before[edge + offset] as usize).map(|before| (before, 0)));
                }
                None => {
                    self.done[id.index()] = true;
                    self.out.push(id);
                }
            }
        }
    }

    fn all_before(&mut self, id: NodeId) {
        debug_assert!(self.graph.collective(id).is_some());
        for &slot in self.dependencies.before(self.dependencies.slot_of(id)) {
            if let Some(before) = self.dependencies.node(slot as usize) {
                self.node(before);
            }
        }
    }
}

/// What a plan says travels together.
struct Planned<'a>(&'a [Vec<NodeId>]);

impl BucketPolicy for Planned<'_> {
    fn name(&self) -> &'static str {
        "plan"
    }

    fn choose(&self, candidates: &Candidates<'_>) -> Option<Vec<Vec<NodeId>>> {
        let listed: hashbrown::HashSet<NodeId, rustc_hash::FxBuildHasher> = candidates.list().iter().copied().collect();
        let of_kind = self.0.iter().filter(|members| members.first().is_some_and(|first| listed.contains(first)));
        Some(of_kind.cloned().collect())
    }
}

/// Merges what a plan says travels together, in a graph that is in the planned order.
pub(super) fn merge_planned(
    graph: &mut Graph,
    buckets: &[Vec<NodeId>],
) -> Result<Vec<(BucketPlan, MergeReport)>, ApplyError> {
    let mut done = Vec::new();
    for kind in KINDS {
        let options = bucket_options(graph, kind);
        if !options.applies_to(graph) {
            continue;
        }
        let dependencies = Dependencies::of(graph);
        let plan = plan_with(graph, &dependencies, &options, &Planned(buckets))?;
        let report = merge_at(graph, &dependencies, &plan, Some(Place::Last))?;
        done.push((plan, report));
    }
    Ok(done)
}

/// Why a plan cannot be put into its graph: a fault of the planner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field holds")]
#[non_exhaustive]
pub enum ApplyError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Merge(#[from] MergeError),
}
