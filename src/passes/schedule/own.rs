//! A plan of one's own: which collectives travel together, by patterns of names, and where each bucket is launched and
//! waited for.
//!
//! What no pattern matches stays where it is, and the computation keeps its order. A launch takes along, from below, what
//! makes its operand and takes no time, and calls of one operand each that lead back to an input of the graph, such as the
//! cast of a weight. What takes no time and reads a result that is waited for further below goes below, too.
//!
//! First everything that is wrong is found; only a plan without a fault is put into the graph.

mod faults;
mod glob;
mod order;
mod places;
mod select;

pub use faults::{OwnFault, OwnFaultKind, OwnPlanError, OwnPosition, SomeNames};

use super::Buckets;
use super::costs::Costs;
use super::problem::{Lists, NONE, PlanError, Problem, is_quiet};
use super::timeline::Timeline;
use super::{Planned, apply, bounds};
use crate::ir::{Dependencies, EffectTable, Graph, NodeId, Op};

/// A plan of one's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnPlan {
    /// Which collectives travel together, and where. Launches that stand at one place run in this order.
    pub buckets: Vec<OwnBucket>,
}

/// Collectives that travel together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnBucket {
    /// Which: all that one of these matches. They are packed in program order.
    pub members: Vec<OwnMembers>,
    /// Whether each travels alone, all launched and waited for at the same places.
    pub separate: bool,
    /// Launched right behind the node of this name; a pattern matches one node.
    pub launch_after: Option<String>,
    /// Launched right before the node of this name, behind what is waited for there. Without a place, it is launched where the last
    /// member was, or, if that is too late, right before what first needs it.
    pub launch_before: Option<String>,
    /// Waited for right before the node of this name. Without a place, right before what first needs it.
    pub wait_before: Option<String>,
}

/// Which collectives: those that match all that is stated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnMembers {
    /// A pattern of the collective's name.
    pub name: Option<String>,
    /// A pattern of the name of the graph's input that is sent: calls of one operand each lead from it to the collective.
    pub input: Option<String>,
    /// A pattern of one of the lines of source that the collective came from.
    pub source: Option<String>,
    /// The kind, such as `all_gather`.
    pub kind: Option<String>,
    /// A pattern of the group's name.
    pub group: Option<String>,
    /// A node that they stand above in the program as it came; a pattern matches one.
    pub above: Option<String>,
    /// A node that they stand below.
    pub below: Option<String>,
}

impl OwnMembers {
    /// Collectives whose names match a pattern.
    #[must_use]
    pub fn named(pattern: &str) -> Self {
        Self { name: Some(pattern.to_owned()), ..Self::default() }
    }

    /// Each field that is stated, and its name.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let fields = [
            ("name", &self.name),
            ("input", &self.input),
            ("source", &self.source),
            ("kind", &self.kind),
            ("group", &self.group),
            ("above", &self.above),
            ("below", &self.below),
        ];
        fields.into_iter().filter_map(|(name, pattern)| Some((name, pattern.as_deref()?)))
    }
}

/// Puts a plan of one's own into a graph.
///
/// `cap_bytes` is the most bytes that may be alive at once, counted as [`Timeline`] does. A step that takes longer than it did
/// is no fault.
///
/// Cost: linear in nodes and edges, and the product of patterns with wildcards and collectives.
///
/// # Errors
/// [`OwnPlanError`]: all faults of the plan at once, a graph or costs that cannot be planned, or a peak above the cap; the graph is
/// unchanged then.
///
/// ```
/// use bucketeer::ir::text::parse;
/// use bucketeer::passes::schedule::{Costs, OwnBucket, OwnMembers, OwnPlan, plan_own};
///
/// let mut graph = parse(
///     "a = input f32[8]; g0 = all_gather(a, world:2); w0 = wait(g0); m = relu(w0)
///      b = input f32[8]; g1 = all_gather(b, world:2); w1 = wait(g1); n = add(m, w1)
///      output(n)",
/// )?;
/// let costs = Costs::from_json(
///     r#"{"schema": "bucketeer-costs-1", "compute_ns": {"m": 900, "n": 900}, "groups": {"world": {"size": 2, "costs":
///         {"all_gather": [{"alpha_ns": 500, "ns_per_byte_num": 1, "ns_per_byte_den": 1}]}}}}"#,
/// )?
/// .0;
/// let bucket = OwnBucket { members: vec![OwnMembers::named("g?")], ..OwnBucket::default() };
/// let mut own = OwnPlan::default();
/// own.buckets.push(bucket);
/// let planned = plan_own(&mut graph, &costs, &own, None)?;
/// assert_eq!((planned.before.launches.len(), planned.after.launches.len()), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan_own(
    graph: &mut Graph,
    costs: &Costs,
    own: &OwnPlan,
    cap_bytes: Option<u64>,
) -> Result<Planned, OwnPlanError> {
    let has_bodies = graph.regions().len() > 1;
    if has_bodies || graph.scheduled {
        let found = if has_bodies { "a loop, a branch or a called graph" } else { "a schedule that was chosen" };
        return Err(PlanError::OwnForm { found }.into());
    }
    let before = Timeline::of(graph, costs).map_err(PlanError::from)?;
    let dependencies = Dependencies::of(graph);
    let problem = Problem::of(graph, &dependencies, costs, Buckets::Chosen)?;
    let program = Program::of(graph, &dependencies, &problem);
    let mut faults = Vec::new();
    let mut chosen = select::chosen(&program, own, &mut faults);
    let placed = places::place(&program, &mut chosen, &mut faults);
    if !faults.is_empty() {
        faults.sort_by_key(|fault: &OwnFault| fault.at);
        return Err(OwnPlanError::Faults(faults));
    }
    let order = order::order(&program, &chosen, &placed);
    let node = |&place: &u32| program.node(place);
    let buckets: Vec<Vec<NodeId>> = chosen
        .buckets
        .iter()
        .filter(|bucket| bucket.members.len() > 1)
        .map(|bucket| bucket.members.iter().map(node).collect())
        .collect();
    let mut planned = graph.clone();
    planned.set_order(order.iter().map(node).collect());
    let merges = apply::merge_planned(&mut planned, &buckets).map_err(PlanError::Apply)?;
    let after = Timeline::of(&planned, costs).map_err(PlanError::from)?;
    if let Some(cap_bytes) = cap_bytes.filter(|&cap_bytes| after.peak_bytes > cap_bytes) {
        let at = after.peak_at.map_or(String::new(), |at| planned.name_of(at).to_owned());
        return Err(OwnPlanError::Memory { peak_bytes: after.peak_bytes, at, cap_bytes });
    }
    let (bounds, bounds_as_written) = bounds::of_both_orders(&problem, cap_bytes);
    *graph = planned;
    Ok(Planned { before, after, bounds, bounds_as_written, merges })
}

/// A graph of one body by places in its program order, which are the slots of its dependencies.
struct Program<'a> {
    graph: &'a Graph,
    dependencies: &'a Dependencies,
    /// By place: what comes before, and what comes after.
    before: Lists,
    after: Lists,
    /// By place: whether the node goes where it is needed; the others stay, but for what the plan moves.
    floats: Vec<bool>,
    /// By place: the input that calls of one operand each lead from, or [`NONE`].
    from_input: Vec<u32>,
}

impl<'a> Program<'a> {
    fn of(graph: &'a Graph, dependencies: &'a Dependencies, problem: &Problem) -> Self {
        let count = graph.order().len();
        let mut before = Lists::with_capacity(count);
        (0..count).for_each(|place| before.push(dependencies.before(place).iter().copied()));
        let after = before.inverted(count);
        let effects = EffectTable::of(graph);
        let mut stays = vec![false; graph.arena_len()];
        problem.compute.iter().for_each(|id| stays[id.index()] = true);
        let (mut floats, mut from_input) = (vec![false; count], vec![NONE; count]);
        for (place, &id) in graph.order().iter().enumerate() {
            match (graph.node(id).op, graph.operands(id)) {
                (Op::Input, _) => {
                    from_input[place] = place as u32;
                    floats[place] = true;
                }
                (Op::Call(_), operands) => {
                    if let [one] = operands {
                        from_input[place] = from_input[dependencies.slot_of(*one)];
                    }
                    let brought = from_input[place] != NONE && is_quiet(&effects, id);
                    floats[place] = brought || !stays[id.index()];
                }
                (Op::Output | Op::Wait | Op::Collective(_), _) => {}
            }
        }
        Self { graph, dependencies, before, after, floats, from_input }
    }

    fn count(&self) -> usize {
        self.floats.len()
    }

    fn node(&self, place: u32) -> NodeId {
        self.graph.order()[place as usize]
    }

    fn name(&self, place: u32) -> &'a str {
        self.graph.name_of(self.node(place))
    }
}

/// Where something stands among what stays: before the node of this place of the program as it was, and within this gap first what
/// is launched behind the node above, then what is waited for, then what is launched before the node, then what is waited for
/// where it was launched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Gap {
    before: u32,
    part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    LaunchAfter,
    Wait,
    LaunchBefore,
    WaitOnTheSpot,
}

/// A bucket whose members are known.
struct Chosen {
    /// Which of the file.
    asked: usize,
    /// In program order.
    members: Vec<u32>,
    /// Their waits.
    waits: Vec<u32>,
    /// Where the file says that it is launched, and the place before which it is waited for.
    launch: Option<Gap>,
    wait: Option<u32>,
}

/// All buckets that are known, and what the plan moves beside them.
struct AllChosen {
    buckets: Vec<Chosen>,
    /// By place: the bucket of a member, or of its wait, or [`NONE`].
    launched_in: Vec<u32>,
    waited_in: Vec<u32>,
    /// By place: whether it is a member, or its wait, of a bucket with a fault, of which nothing is asked.
    loose: Vec<bool>,
}
