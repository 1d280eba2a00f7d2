//! Planning: which collectives travel together, and where each is launched and waited for, so that the step ends sooner in
//! the memory there is.

mod apply;
pub mod bounds;
mod build;
pub mod costs;
#[cfg(feature = "serde")]
pub mod costs_json;
mod fixed;
mod flops;
pub mod nccl;
mod on_the_spot;
pub mod own;
#[cfg(feature = "serde")]
pub mod own_json;
mod problem;
pub mod profile;
#[cfg(feature = "serde")]
pub mod profile_json;
mod profiles;
mod search;
mod spans;
mod state;
pub mod timeline;
pub mod times;
pub mod torch_model;

/// Exact plans for a chain of messages on one stream, as the crate `bucketeer-chain` makes them.
pub mod chain {
    pub use bucketeer_chain::{deadlines, releases};
}

pub use apply::ApplyError;
pub use bounds::{Bound, LowerBound};
pub use costs::{CopyCost, CostError, Costs, GroupCosts, MessageCost, Piece};
pub use on_the_spot::waited_on_the_spot;
pub use own::{OwnBucket, OwnFault, OwnMembers, OwnPlan, OwnPlanError, plan_own};
pub use problem::{PlanError, bucket_options, plannable};
pub use profile::Profile;
pub use spans::{Doing, Lane, Span};
pub use timeline::{Launch, Timeline};

use super::bucketing::BucketPlan;
use super::merge::MergeReport;
use crate::ir::{Dependencies, Graph, NodeId};
use problem::Problem;
pub use search::Effort;
use state::{Run, State};

/// Who says what travels together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Buckets {
    /// The plan.
    #[default]
    Chosen,
    /// The graph as it came: launches and waits move, and nothing is merged.
    Kept,
}

/// How a graph is planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ScheduleOptions {
    /// Who says what travels together.
    pub buckets: Buckets,
    /// The most bytes that may be alive at once, counted as [`Timeline`] does; `None` is no limit.
    pub cap_bytes: Option<u64>,
    /// How long to look.
    pub effort: Effort,
    /// Whether [`Planned`] says what no plan can be shorter than; it takes up to a second in graphs of thousands of nodes.
    pub bounds: bool,
}

impl Default for ScheduleOptions {
    fn default() -> Self {
        Self { buckets: Buckets::default(), cap_bytes: None, effort: Effort::default(), bounds: true }
    }
}

/// A plan that was put into its graph.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Planned {
    /// The graph as it came.
    pub before: Timeline,
    /// The graph as it is now.
    pub after: Timeline,
    /// What no plan can be shorter than, the strongest first; empty if not asked for.
    pub bounds: Vec<LowerBound>,
    /// The same for plans that keep the order of the computation.
    pub bounds_as_written: Vec<LowerBound>,
    /// By kind: what travels together, and what merging it did.
    pub merges: Vec<(BucketPlan, MergeReport)>,
}

/// Plans a graph and puts the plan into it.
///
/// # Errors
/// [`PlanError`], for a graph, costs or a cap that cannot be planned; the graph is unchanged then.
pub fn plan(graph: &mut Graph, costs: &Costs, schedule: &ScheduleOptions) -> Result<Planned, PlanError> {
    let before = Timeline::of(graph, costs)?;
    let dependencies = Dependencies::of(graph);
    let problem = Problem::of(graph, &dependencies, costs, schedule.buckets)?;
    let mut cap = schedule.cap_bytes;
    let keeps = |made: &Made| schedule.cap_bytes.is_none_or(|cap_bytes| made.after.peak_bytes <= cap_bytes);
    let source = &*graph;
    let make = |state: &State| Made::of(source, &dependencies, &problem, costs, state);
    // What is built at once, by the cap as it is, is there if nothing better keeps it.
    let mut best = Some(make(&search::search(&problem, schedule.cap_bytes, Effort::Low, None))?).filter(keeps);
    let mut from = None;
    let tries = if schedule.effort == Effort::Low { 0 } else { 5 };
    for _ in 0..tries {
        let found = search::search(&problem, cap, schedule.effort, from);
        let made = make(&found)?;
        if keeps(&made) {
            best = best.filter(|best| best.after.makespan_ns < made.after.makespan_ns).or(Some(made));
            break;
        }
        let over = made.after.peak_bytes - schedule.cap_bytes.unwrap_or(0);
        cap = cap.map(|cap| cap.saturating_sub(over));
        from = Some(found);
    }
    let (bounds, bounds_as_written) = match schedule.bounds {
        true => bounds::of_both_orders(&problem, schedule.cap_bytes),
        false => Default::default(),
    };
    match best.filter(|best| best.after.makespan_ns <= before.makespan_ns) {
        Some(Made { graph: made, after, merges }) => {
            *graph = made;
            Ok(Planned { before, after, bounds, bounds_as_written, merges })
        }
        // The graph as it stands is a plan, too.
        None if schedule.cap_bytes.is_none_or(|cap_bytes| before.peak_bytes <= cap_bytes) => {
            Ok(Planned { after: before.clone(), before, bounds, bounds_as_written, merges: Vec::new() })
        }
        None => {
            Err(PlanError::Memory { cap_bytes: schedule.cap_bytes.unwrap_or(u64::MAX), least_bytes: before.peak_bytes })
        }
    }
}

/// A plan put into a copy of its graph.
struct Made {
    graph: Graph,
    after: Timeline,
    merges: Vec<(BucketPlan, MergeReport)>,
}

impl Made {
    fn of(
        graph: &Graph,
        dependencies: &Dependencies,
        problem: &Problem,
        costs: &Costs,
        state: &State,
    ) -> Result<Self, PlanError> {
        let mut run = Run::default();
        run.time(problem, state, u64::MAX, None);
        let mut planned = graph.clone();
        planned.set_order(apply::order(graph, dependencies, problem, state, &run));
        let buckets: Vec<Vec<NodeId>> = state
            .buckets()
            .filter(|&bucket| state.count[bucket as usize] > 1)
            .map(|bucket| state.members(bucket).map(|m| problem.messages[m as usize].node).collect())
            .collect();
        let merges = apply::merge_planned(&mut planned, &buckets).map_err(PlanError::Apply)?;
        let after = Timeline::of(&planned, costs)?;
        Ok(Self { graph: planned, after, merges })
    }
}
