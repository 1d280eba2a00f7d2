//! What was done to a graph, as data: the tables are made from it, and it is the JSON.

use crate::talk::Warning;
use crate::units::{count, human};
use bucketeer::ir::{Dependencies, Graph, GroupId, NodeId};
use bucketeer::passes::bucketing::{Bucket, BucketKind, BucketPlan, Decision, Member, MixedDtype, Mode, Reason};
use bucketeer::passes::liveness::{PeakLive, peak_live};
use bucketeer::passes::memory::MemoryUse;
use bucketeer::passes::survey::{Surveyed, survey};
use bucketeer::passes::{PassReport, Pipeline};
use serde::Serialize;
use std::time::Duration;

/// A number before and after.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Change<T> {
    pub before: T,
    pub after: T,
}

/// Collectives of one kind and group.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Volume {
    pub count: usize,
    pub bytes: u64,
    /// How many of them have a size that is not known; they count as no bytes.
    pub unknown_size: usize,
}

#[derive(Debug, Serialize)]
pub struct KindReport {
    pub kind: &'static str,
    pub group: String,
    pub group_size: Option<u32>,
    #[serde(flatten)]
    pub volume: Change<Volume>,
    pub buckets: usize,
    pub biggest_bucket_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct MemberReport {
    pub name: String,
    pub bytes: Option<u64>,
    /// Where it begins in one rank's part of the buffer; none in coalesced mode.
    pub offset: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct BucketReport {
    pub pass: &'static str,
    pub kind: &'static str,
    pub group: String,
    /// None when bytes of several dtypes travel.
    pub dtype: Option<&'static str>,
    pub bytes: Option<u64>,
    pub members: Vec<MemberReport>,
}

/// Where a collective went, or why it did not.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// `bucket` counts from 1, within the pass.
    Merged { bucket: usize, of: usize, offset: Option<u64> },
    Alone {
        reason: &'static str,
        because: String,
        /// The same for people: with sizes as tables have them.
        #[serde(skip)]
        told: String,
    },
    /// Something else serves its readers.
    Folded,
    /// No pass was asked to merge its kind.
    NotAsked,
}

#[derive(Debug, Serialize)]
pub struct RemarkReport {
    pub name: String,
    pub kind: &'static str,
    pub group: String,
    pub bytes: Option<u64>,
    #[serde(flatten)]
    pub fate: Fate,
}

#[derive(Debug, Serialize)]
pub struct ReasonReport {
    pub reason: &'static str,
    pub count: usize,
}

#[derive(Debug, Serialize)]
pub struct PassSummary {
    pub pass: &'static str,
    pub removed: usize,
    #[serde(skip)]
    pub time: Duration,
}

#[derive(Debug, Serialize)]
pub struct GraphReport {
    /// Of graphs that were rewritten together, whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    pub graph: String,
    pub nodes: Change<usize>,
    #[serde(skip)]
    pub edges: Change<usize>,
    pub passes: Vec<PassSummary>,
    pub collectives: Vec<KindReport>,
    pub buckets: Vec<BucketReport>,
    pub left_alone: Vec<ReasonReport>,
    pub nodes_moved: usize,
    pub copies_added: usize,
    pub peak_live_bytes: Change<u64>,
    /// Values that count as no bytes in the peak.
    pub peak_live_unknown: Change<usize>,
    /// What was done to keep the cap on memory, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReport>,
    pub dropped_wishes: Vec<(String, String)>,
    /// No device is known of some collectives that were looked at; they were taken to be on one.
    pub no_device_data: bool,
    pub remarks: Vec<RemarkReport>,
    pub proof: ProofReport,
    pub warnings: Vec<Warning>,
}

/// A cap on the bytes alive at once, counted as plans count them.
#[derive(Debug, Serialize)]
pub struct MemoryReport {
    pub cap_bytes: u64,
    pub alive_bytes: Change<u64>,
    /// The node at which most was alive before.
    pub at: Option<String>,
    /// Values that count as no bytes.
    pub unknown: usize,
    pub buckets_cut: usize,
    pub declined: usize,
}

impl MemoryReport {
    /// The cap that the passes kept; where they had several, the lowest, which all of them are held against here.
    fn of(plans: &[(&'static str, &BucketPlan)]) -> Option<Self> {
        let uses = plans.iter().filter_map(|(_, plan)| plan.memory.clone());
        let cap_bytes = uses.clone().map(|one| one.cap_bytes).min()?;
        let MemoryUse { before_bytes, before_at, after_bytes, unknown, cut, declined, .. } =
            uses.reduce(MemoryUse::followed_by)?;
        let alive_bytes = Change { before: before_bytes, after: after_bytes };
        Some(Self { cap_bytes, alive_bytes, at: before_at, unknown, buckets_cut: cut, declined })
    }
}

/// Whether the result is proven to compute what the graph did.
#[derive(Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum ProofReport {
    Equal {
        /// What has to hold of operators that nothing describes.
        assumptions: Vec<String>,
    },
    /// It was not tried.
    NotTried {
        because: String,
    },
    CannotDecide {
        because: String,
    },
}

/// The whole JSON document.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    format: &'static str,
    version: u32,
    pipeline: String,
    graphs: &'a [GraphReport],
}

pub fn document<'a>(pipeline: &Pipeline, graphs: &'a [GraphReport]) -> Document<'a> {
    Document { format: "bucketeer-rewrite", version: 1, pipeline: pipeline.to_string(), graphs }
}

/// What is known of a graph before the passes.
#[derive(Debug)]
pub struct Before {
    nodes: usize,
    edges: usize,
    peak: PeakLive,
    collectives: Vec<Surveyed>,
    names: Vec<String>,
}

impl Before {
    pub fn of(graph: &Graph, dependencies: &Dependencies) -> Self {
        let collectives = survey(graph, dependencies);
        Self {
            nodes: graph.order().len(),
            edges: dependencies.edge_count(),
            peak: peak_live(graph),
            names: collectives.iter().map(|one| graph.name_of(one.node).to_owned()).collect(),
            collectives,
        }
    }
}

impl GraphReport {
    /// Gathers what the passes did to a graph.
    pub fn new(graph: &Graph, before: Before, passes: Vec<PassReport>) -> Self {
        let dependencies = Dependencies::of(graph);
        let peak = peak_live(graph);
        let plans: Vec<(&'static str, &BucketPlan)> =
            passes.iter().filter_map(|pass| Some((pass.name, pass.plan.as_ref()?))).collect();
        let merges = || passes.iter().filter_map(|pass| pass.merge.as_ref());
        let buckets: Vec<BucketReport> =
            plans.iter().flat_map(|(pass, plan)| bucket_reports(graph, pass, plan)).collect();
        let collectives = kinds(graph, &before.collectives, &survey(graph, &dependencies), &plans);
        let mut report = Self {
            rank: None,
            graph: graph.name.clone(),
            nodes: Change { before: before.nodes, after: graph.order().len() },
            edges: Change { before: before.edges, after: dependencies.edge_count() },
            collectives,
            left_alone: reasons(&plans),
            nodes_moved: merges().map(|merge| merge.moved).sum(),
            copies_added: merges().map(|merge| merge.copied).sum(),
            peak_live_bytes: Change { before: before.peak.bytes, after: peak.bytes },
            peak_live_unknown: Change { before: before.peak.unknown, after: peak.unknown },
            memory: MemoryReport::of(&plans),
            dropped_wishes: merges().flat_map(|merge| merge.dropped_wishes.iter().cloned()).collect(),
            no_device_data: plans.iter().any(|(_, plan)| lacks_devices(graph, plan)),
            remarks: remarks(graph, &before, &plans, &buckets),
            proof: ProofReport::NotTried { because: String::new() },
            warnings: Vec::new(),
            passes: passes
                .iter()
                .map(|pass| PassSummary { pass: pass.name, removed: pass.removed, time: pass.time })
                .collect(),
            buckets,
        };
        report.warnings = warnings(&report);
        report
    }

    /// Adds what came of the proof; that nothing did deserves attention.
    pub fn take_proof(&mut self, proof: ProofReport) {
        if let ProofReport::CannotDecide { because } = &proof {
            let what = format!("graph `{}`: the result is not proven: {because}", self.graph);
            self.warnings.push(Warning::OfResult(what));
        }
        self.proof = proof;
    }
}

fn warnings(report: &GraphReport) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let Change { before, after } = report.peak_live_bytes;
    // Whoever says what may be alive need not be told.
    if report.memory.is_none() && u128::from(after) * 10 > u128::from(before) * 11 {
        let (from, to) = (human(before), human(after));
        warnings.push(Warning::Advice(format!(
            "graph `{}`: peak live bytes grow from {from} to {to}, by {:.1} %; a lower cap keeps less alive",
            report.graph,
            growth_percent(before, after)
        )));
    }
    warnings.extend(report.memory.iter().flat_map(|memory| memory_warnings(&report.graph, memory)));
    for (before, after) in &report.dropped_wishes {
        let what = format!("graph `{}`: the wish that `{after}` runs after `{before}` was given up", report.graph);
        warnings.push(Warning::Advice(what));
    }
    warnings
}

/// What a cap on memory does not promise.
fn memory_warnings(graph: &str, memory: &MemoryReport) -> Vec<Warning> {
    let (cap, Change { before, .. }) = (memory.cap_bytes, memory.alive_bytes);
    let mut warnings = Vec::new();
    if before > cap {
        let at = memory.at.as_ref().map_or_else(String::new, |at| format!(" at `{at}`"));
        let (needs, cap) = apart(before, cap);
        warnings.push(Warning::Advice(format!(
            "graph `{graph}`: as it came, {needs} are alive at once{at}, above the cap of {cap}; nothing was \
             merged that makes it more"
        )));
    }
    if memory.unknown > 0 {
        warnings.push(Warning::Advice(format!(
            "graph `{graph}`: the size of {} is not known, so that the cap on memory does not count {}; \
             where it hangs on symbols, --hint gives them likely values",
            count(memory.unknown, "value"),
            if memory.unknown == 1 { "it" } else { "them" }
        )));
    }
    warnings
}

/// Two sizes as tables have them, unless that would make them look alike.
fn apart(one: u64, other: u64) -> (String, String) {
    match (human(one), human(other)) {
        (left, right) if left == right => (format!("{one} bytes"), format!("{other} bytes")),
        apart => apart,
    }
}

/// By how much a number grows, in per cent.
pub fn growth_percent(before: u64, after: u64) -> f64 {
    (after as f64 / before as f64 - 1.0) * 100.0
}

/// Collectives by kind and group, in order of first appearance.
fn kinds(
    graph: &Graph,
    before: &[Surveyed],
    after: &[Surveyed],
    plans: &[(&'static str, &BucketPlan)],
) -> Vec<KindReport> {
    let mut rows: Vec<((&'static str, GroupId), KindReport)> = Vec::new();
    let mut row = |kind: &'static str, group: GroupId, edit: &mut dyn FnMut(&mut KindReport)| {
        let index = rows.iter().position(|(key, _)| *key == (kind, group)).unwrap_or_else(|| {
            let volume = Change { before: Volume::default(), after: Volume::default() };
            let (name, group_size) = (graph.group(group).name.to_string(), graph.group(group).size);
            let row = KindReport { kind, group: name, group_size, volume, buckets: 0, biggest_bucket_bytes: None };
            rows.push(((kind, group), row));
            rows.len() - 1
        });
        edit(&mut rows[index].1);
    };
    for one in before {
        row(one.collective.kind.name(), one.collective.group, &mut |row| row.volume.before.add(one.bytes));
    }
    for one in after {
        row(one.collective.kind.name(), one.collective.group, &mut |row| row.volume.after.add(one.bytes));
    }
    for bucket in plans.iter().flat_map(|(_, plan)| &plan.buckets) {
        let bytes = bucket.members.iter().try_fold(0u64, |sum, member| sum.checked_add(member.bytes?));
        row(bucket.key.kind.name(), bucket.key.group, &mut |row| {
            row.buckets += 1;
            row.biggest_bucket_bytes = row.biggest_bucket_bytes.max(bytes);
        });
    }
    rows.into_iter().map(|(_, row)| row).collect()
}

impl Volume {
    pub fn add(&mut self, bytes: Option<u64>) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes.unwrap_or(0));
        self.unknown_size += usize::from(bytes.is_none());
    }
}

fn bucket_reports(graph: &Graph, pass: &'static str, plan: &BucketPlan) -> Vec<BucketReport> {
    let one = |bucket: &bucketeer::passes::bucketing::Bucket| {
        let offsets = offsets(graph, plan, bucket);
        let member = |(member, offset): (&Member, Option<u64>)| MemberReport {
            name: graph.name_of(member.collective).to_owned(),
            bytes: member.bytes,
            offset,
        };
        BucketReport {
            pass,
            kind: bucket.key.kind.name(),
            group: graph.group(bucket.key.group).name.to_string(),
            dtype: bucket.key.dtype.map(|dtype| dtype.torch_name()),
            bytes: bucket.members.iter().try_fold(0u64, |sum, member| sum.checked_add(member.bytes?)),
            members: bucket.members.iter().zip(offsets).map(member).collect(),
        }
    };
    plan.buckets.iter().map(one).collect()
}

/// Where each member begins in one rank's part of the buffer; not known from the first size on that is not.
fn offsets(graph: &Graph, plan: &BucketPlan, bucket: &Bucket) -> Vec<Option<u64>> {
    let ranks = match plan.options.kind {
        BucketKind::AllGather | BucketKind::ReduceScatter | BucketKind::AllToAll => {
            graph.group(bucket.key.group).size.map(u64::from)
        }
        BucketKind::AllReduce | BucketKind::Broadcast | BucketKind::Permute => Some(1),
    };
    let mut next = (plan.options.mode == Mode::Concat).then_some(0u64);
    let offset = |member: &Member| {
        let element = graph.tensor(member.collective).map_or(1, |tensor| tensor.dtype.bytes());
        let at = match plan.options.mixed_dtype {
            MixedDtype::Bytes => next.and_then(|at| at.checked_next_multiple_of(element)),
            MixedDtype::Split => next,
        };
        let part = member.bytes.zip(ranks).and_then(|(bytes, ranks)| bytes.checked_div(ranks));
        next = at.zip(part).and_then(|(at, part)| at.checked_add(part));
        at
    };
    bucket.members.iter().map(offset).collect()
}

fn reasons(plans: &[(&'static str, &BucketPlan)]) -> Vec<ReasonReport> {
    let mut rows: Vec<ReasonReport> = Vec::new();
    for remark in plans.iter().flat_map(|(_, plan)| &plan.remarks) {
        let Decision::Alone(reason) = &remark.decision else { continue };
        let label = reason.label();
        match rows.iter_mut().find(|row| row.reason == label) {
            Some(row) => row.count += 1,
            None => rows.push(ReasonReport { reason: label, count: 1 }),
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    rows
}

/// Every collective of the source in issue order, then those that passes made and later passes looked at.
fn remarks(
    graph: &Graph,
    before: &Before,
    plans: &[(&'static str, &BucketPlan)],
    buckets: &[BucketReport],
) -> Vec<RemarkReport> {
    let mut place = vec![usize::MAX; graph.arena_len()];
    let mut in_order = vec![false; graph.arena_len()];
    graph.order().iter().for_each(|id| in_order[id.index()] = true);
    let mut remarks = Vec::with_capacity(before.collectives.len());
    for (one, name) in before.collectives.iter().zip(&before.names) {
        place[one.node.index()] = remarks.len();
        let fate = if in_order[one.node.index()] { Fate::NotAsked } else { Fate::Folded };
        remarks.push(RemarkReport {
            name: name.clone(),
            kind: one.collective.kind.name(),
            group: graph.group(one.collective.group).name.to_string(),
            bytes: one.bytes,
            fate,
        });
    }
    let mut first_bucket = 0;
    for (_, plan) in plans {
        let offset_of = offsets_by_node(plan, &buckets[first_bucket..first_bucket + plan.buckets.len()]);
        first_bucket += plan.buckets.len();
        for remark in &plan.remarks {
            let fate = match &remark.decision {
                Decision::Merged { bucket } => {
                    let offset = offset_of.get(&remark.node).copied().flatten();
                    Fate::Merged { bucket: bucket + 1, of: plan.buckets.len(), offset }
                }
                Decision::Alone(reason) => {
                    Fate::Alone { reason: reason.label(), because: reason.to_string(), told: told(reason) }
                }
            };
            let at = place[remark.node.index()];
            if let Some(known) = remarks.get_mut(at) {
                known.fate = fate;
                continue;
            }
            place[remark.node.index()] = remarks.len();
            remarks.push(RemarkReport {
                name: remark.name.clone(),
                kind: plan.options.kind.name(),
                group: remark.group.clone(),
                bytes: remark.bytes,
                fate,
            });
        }
    }
    remarks
}

/// A reason with sizes as tables have them, unless that would make two sizes look alike.
fn told(reason: &Reason) -> String {
    let larger = |bytes: u64, most: u64| Some((human(bytes), human(most))).filter(|(bytes, most)| bytes != most);
    match reason {
        Reason::Oversize { bytes, cap_bytes } => larger(*bytes, *cap_bytes)
            .map_or_else(|| reason.to_string(), |(bytes, cap)| format!("{bytes} is more than the cap of {cap}")),
        Reason::LargeMember { bytes, max_member_bytes } => larger(*bytes, *max_member_bytes).map_or_else(
            || reason.to_string(),
            |(bytes, most)| format!("{bytes} is more than the {most} that are worth copying"),
        ),
        Reason::MemoryCap { at, alive_bytes, limit_bytes } => {
            let (alive, limit) = apart(*alive_bytes, *limit_bytes);
            format!("declined: {alive} would be alive at once at `{at}`; at most {limit} may be")
        }
        Reason::AtAnotherRank { rank, because } => {
            format!("cannot be merged on rank {rank}: {}", told(because))
        }
        _ => reason.to_string(),
    }
}

fn offsets_by_node(plan: &BucketPlan, reports: &[BucketReport]) -> std::collections::BTreeMap<NodeId, Option<u64>> {
    let members = plan.buckets.iter().zip(reports).flat_map(|(bucket, report)| {
        bucket.members.iter().zip(&report.members).map(|(member, report)| (member.collective, report.offset))
    });
    members.collect()
}

/// Whether some collective that was looked at is on a device that nobody stated.
fn lacks_devices(graph: &Graph, plan: &BucketPlan) -> bool {
    plan.remarks.iter().any(|remark| graph.tensor(remark.node).is_some_and(|tensor| tensor.device.is_none()))
}
