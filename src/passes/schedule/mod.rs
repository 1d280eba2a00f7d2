//! Planning: which collectives travel together, and where each is launched and waited for, so that the step ends sooner in
//! the memory there is.

mod apply;
pub mod bounds;
mod build;
pub mod chain;
pub mod costs;
#[cfg(feature = "serde")]
pub mod costs_json;
mod flops;
mod hull;
pub mod nccl;
mod problem;
pub mod profile;
#[cfg(feature = "serde")]
pub mod profile_json;
mod profiles;
mod search;
mod state;
pub mod timeline;
pub mod times;
pub mod torch_model;

pub use apply::ApplyError;
pub use bounds::{Bound, LowerBound};
pub use costs::{CopyCost, CostError, Costs, GroupCosts, MessageCost, Piece};
pub use problem::PlanError;
pub use profile::Profile;
pub use timeline::{Launch, Timeline};

use super::bucketing::BucketPlan;
use super::merge::MergeReport;
use crate::ir::{Dependencies, Graph, NodeId};
use problem::Problem;
pub use search::Effort;
use state::{Memory, Run, State};

/// How a graph is planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ScheduleOptions {
    /// The most bytes that may be alive at once, counted as [`Timeline`] does; `None` is no limit.
    pub cap_bytes: Option<u64>,
    /// How long to look.
    pub effort: Effort,
}

/// A plan that was put into its graph.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Planned {
    /// The graph as it came.
    pub before: Timeline,
    /// The graph as it is now.
    pub after: Timeline,
    /// What no plan can be shorter than, the strongest first.
    pub bounds: Vec<LowerBound>,
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
    let problem = Problem::of(graph, &dependencies, costs)?;
    // What the search takes for the peak is a little more than what the program takes: as much as for the program as it
    // stands. Where that was too kind, it looks again with a lower cap.
    let written = State::as_written(&problem);
    let mut run = Run::default();
    run.time(&problem, &written, u64::MAX, None);
    let (reckoned, _) = Memory::default().peak(&problem, &written, &run);
    let mut cap = schedule.cap_bytes.map(|cap| cap.saturating_add(reckoned.saturating_sub(before.peak_bytes)));
    let mut from = None;
    for _ in 0..5 {
        let found = search::search(&problem, cap, schedule.effort, from);
        run.time(&problem, &found, u64::MAX, None);
        let mut planned = graph.clone();
        planned.set_order(apply::order(graph, &dependencies, &problem, &found, &run));
        let buckets: Vec<Vec<NodeId>> = found
            .buckets()
            .filter(|&bucket| found.count[bucket as usize] > 1)
            .map(|bucket| found.members(bucket).map(|m| problem.messages[m as usize].node).collect())
            .collect();
        let merges = apply::merge_planned(&mut planned, &buckets).map_err(PlanError::Apply)?;
        let after = Timeline::of(&planned, costs)?;
        match schedule.cap_bytes.filter(|&cap_bytes| after.peak_bytes > cap_bytes) {
            None => {
                *graph = planned;
                return Ok(Planned { before, after, bounds: bounds::bounds(&problem), merges });
            }
            Some(cap_bytes) => cap = cap.map(|cap| cap.saturating_sub(after.peak_bytes - cap_bytes)),
        }
        from = Some(found);
    }
    if schedule.cap_bytes.is_none_or(|cap_bytes| before.peak_bytes <= cap_bytes) {
        // The graph as it stands is a plan, too.
        let bounds = bounds::bounds(&problem);
        return Ok(Planned { after: before.clone(), before, bounds, merges: Vec::new() });
    }
    Err(PlanError::Memory { cap_bytes: schedule.cap_bytes.unwrap_or(u64::MAX), least_bytes: before.peak_bytes })
}
