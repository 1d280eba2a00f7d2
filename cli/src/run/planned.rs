//! The planned run: by what computing and copying took in the runs before it, and by the network that is played.

use crate::proof;
use anyhow::{Result, anyhow, bail};
use bucketeer::check::{self, Options, Verdict};
use bucketeer::ir::Graph;
use bucketeer::passes::schedule::costs::Map;
use bucketeer::passes::schedule::{CopyCost, Costs, GroupCosts, MessageCost, Piece, ScheduleOptions, Timeline, plan};
use bucketeer_comm::local::Link;
use bucketeer_exec::{Event, Run};
use std::collections::BTreeMap;
use std::time::Duration;

/// The graph as `plan` has it, with as many bytes alive as it needs as it stands and a GiB.
pub fn graph(graph: &Graph, link: &Link, runs: &[Vec<Run>]) -> Result<Graph> {
    let costs = costs(graph, link, runs)?;
    let mut planned = graph.clone();
    let mut options = ScheduleOptions::default();
    let before = Timeline::of(graph, &costs);
    options.cap_bytes = Some(before.map_err(|error| anyhow!("--planned: {error}"))?.peak_bytes.saturating_add(1 << 30));
    plan(&mut planned, &costs, &options).map_err(|error| anyhow!("--planned: {error}"))?;
    let launches_may_move = Options { launches_may_move: true, ..Options::default() };
    match check::prove_with(graph, &planned, launches_may_move) {
        Verdict::Equal(_) => Ok(planned),
        Verdict::Different(found) => bail!("--planned: {}", proof::difference(&found, None, None)),
        Verdict::CannotDecide(found) => bail!("--planned: {}", proof::undecided(&found, None, None)),
    }
}

/// What each node took in the run as it came, and messages take on the link and until all ranks have come.
fn costs(graph: &Graph, link: &Link, runs: &[Vec<Run>]) -> Result<Costs> {
    let mut costs = Costs { copy: copies(runs.get(1).map_or(&[], Vec::as_slice)), ..Costs::default() };
    costs.compute_ns = computing(runs.first().map_or(&[], Vec::as_slice));
    // A rate is a whole number of bytes in a second, or no limit.
    let rate = link.beta_bytes_per_s;
    let (num, den) = if rate.is_finite() { (1_000_000_000, rate.max(1.0) as u64) } else { (0, 1) };
    let line = Piece {
        alpha_ns: start_ns(link, runs.first().map_or(&[], Vec::as_slice)),
        ns_per_byte_num: num,
        ns_per_byte_den: den,
    };
    for &id in graph.order() {
        let Some(collective) = graph.collective(id) else { continue };
        let group = graph.group(collective.group);
        let Some(size) = group.size else { continue };
        let known = costs.groups.entry(group.name.clone());
        let known = known.or_insert_with(|| GroupCosts { label: "the link".into(), size, costs: Map::default() });
        known.costs.insert(collective.kind.name().into(), MessageCost::new(vec![line])?);
    }
    // What runs in graphs that it calls has names of its own.
    Ok(costs.of_what_is_left(graph))
}

/// Nanoseconds by node: of all ranks the median, since ranks that share cores keep one another waiting.
fn computing(ranks: &[Run]) -> Map<u64> {
    let mut found: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for run in ranks {
        let mut own: BTreeMap<&str, u64> = BTreeMap::new();
        for event in run.events.iter().filter(|event| event.what == "compute") {
            *own.entry(&event.name).or_default() += nanoseconds(event.time);
        }
        own.into_iter().for_each(|(name, ns)| found.entry(name).or_default().push(ns));
    }
    found.into_iter().map(|(name, mut times)| (name.into(), median(&mut times))).collect()
}

/// What a call took beyond its bytes on the link, by the median: ranks that share cores come late.
fn start_ns(link: &Link, ranks: &[Run]) -> u64 {
    let calls = ranks.iter().flat_map(|run| run.events.iter().filter(|event| event.what == "comm"));
    let beyond = |event: &Event| {
        let bytes = event.moved.as_ref().map_or(0, |moved| moved.bytes);
        event.time.saturating_sub(link.duration(bytes).saturating_sub(link.alpha))
    };
    median(&mut calls.map(|event| nanoseconds(beyond(event))).collect::<Vec<_>>()).max(nanoseconds(link.alpha))
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// A pack takes what the fastest took, and for its bytes what it took beyond that, by the median.
fn copies(ranks: &[Run]) -> CopyCost {
    let is_copy = |event: &&Event| matches!(event.what, "pack" | "unpack");
    let copies = ranks.iter().flat_map(|run| run.events.iter().filter(is_copy));
    let copies: Vec<(u64, u64)> = copies
        .filter_map(|event| Some((nanoseconds(event.time), event.moved.as_ref().map(|moved| moved.bytes.max(1))?)))
        .collect();
    let fixed_ns = copies.iter().map(|&(ns, _)| ns).min().unwrap_or(0);
    let mut beyond: Vec<(u64, u64)> = copies.into_iter().map(|(ns, bytes)| (ns - fixed_ns, bytes)).collect();
    beyond.sort_unstable_by_key(|&(ns, bytes)| u128::from(ns) * u128::from(u32::MAX) / u128::from(bytes));
    let (ns, bytes) = beyond.get(beyond.len() / 2).copied().unwrap_or((0, 1));
    CopyCost { fixed_ns, ns_per_byte_num: ns, ns_per_byte_den: bytes }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
