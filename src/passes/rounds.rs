//! Bucketing one kind: select and merge, once or in the rounds of XLA's combiners.
//!
//! XLA's annotator (off by default) writes into a module how large buckets may grow where nothing runs beside them
//! (`suggested_combiner_threshold`), and marks collectives (`sync_collective`). Its combiners then go over the module
//! three times: over what is pipelined, up to that size; over what is marked, up to that size; over all that is left, up
//! to their own. Each time sees the merges of the times before.

use super::bucketing::{BucketOptions, BucketPlan, Decision, Reason, plan_round};
use super::memory::within::Merged;
use super::memory::{Alive, MemoryCap};
use super::merge::{MergeError, MergeReport, merge};
use crate::ir::{Dependencies, Graph, NodeId};

/// Which collectives a selection looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Round {
    /// All, at once.
    Only,
    /// What is pipelined.
    Pipelined,
    /// What is marked as synchronous.
    Sync,
    /// All that the others left.
    Rest,
}

impl Round {
    fn of(options: &BucketOptions) -> &'static [Self] {
        if options.suggested_cap_bytes.is_some() { &[Self::Pipelined, Self::Sync, Self::Rest] } else { &[Self::Only] }
    }

    /// Whether the round looks at a collective.
    pub(super) fn check(self, graph: &Graph, id: NodeId) -> Result<(), Reason> {
        let takes = match self {
            Self::Only | Self::Rest => true,
            Self::Pipelined => graph.args_of(id).get("pipelined").is_some(),
            Self::Sync => graph.meta_of(id).sync,
        };
        if takes { Ok(()) } else { Err(Reason::Filtered { by: "policy xla: neither pipelined nor synchronous" }) }
    }
}

/// Merges the collectives of one kind.
pub(super) fn bucket(graph: &mut Graph, options: &BucketOptions) -> Result<(BucketPlan, MergeReport), MergeError> {
    let mut known = BucketPlan::empty(options.clone());
    let mut done = MergeReport::default();
    let memory = resolved(options.memory, graph);
    for &round in Round::of(options) {
        let mut options = options.clone();
        if let (Round::Pipelined | Round::Sync, Some(cap)) = (round, options.suggested_cap_bytes) {
            options.caps.cap_bytes = vec![cap];
        }
        options.memory = memory;
        let dependencies = Dependencies::keeping_schedule(graph);
        let (plan, merged) = plan_round(graph, &dependencies, &options, round);
        let report = match merged {
            None => merge(graph, &dependencies, &plan)?,
            Some(Merged { graph: merged, merging }) => {
                *graph = merged;
                merging.report
            }
        };
        done.launches.extend(report.launches);
        done.moved += report.moved;
        done.copied += report.copied;
        done.dropped_wishes.extend(report.dropped_wishes);
        add(&mut known, plan);
    }
    Ok((known, done))
}

/// A cap in bytes, of the graph as it stands.
pub(super) fn resolved(cap: MemoryCap, graph: &Graph) -> MemoryCap {
    let bytes = if cap.is_relative() { cap.bytes(Alive::of(graph).peak_bytes) } else { None };
    bytes.map_or(cap, MemoryCap::Bytes)
}

/// Adds what a later round decided. Of merged collectives that it saw nothing is said, and of what was merged before
/// nothing else.
fn add(known: &mut BucketPlan, mut later: BucketPlan) {
    let first = known.buckets.len();
    known.buckets.append(&mut later.buckets);
    known.memory = match (known.memory.take(), later.memory.take()) {
        (Some(known), Some(later)) => Some(known.followed_by(later)),
        (known, later) => known.or(later),
    };
    for remark in &mut later.remarks {
        if let Decision::Merged { bucket } = &mut remark.decision {
            *bucket += first;
        }
    }
    if known.remarks.is_empty() {
        known.remarks = later.remarks;
        return;
    }
    let found = later.remarks.into_iter().map(|remark| (remark.node, remark));
    let mut found: hashbrown::HashMap<NodeId, _, rustc_hash::FxBuildHasher> = found.collect();
    for remark in &mut known.remarks {
        if matches!(remark.decision, Decision::Alone(_))
            && let Some(later) = found.remove(&remark.node)
        {
            *remark = later;
        }
    }
}
