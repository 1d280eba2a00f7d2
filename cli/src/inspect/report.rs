//! What is known of a graph's collectives, as data: the listing is made from it, and it is the JSON.

use crate::talk::Warning;
use crate::units::human;
use bucketeer::ir::{Dependencies, Graph, NodeId, Op, RegionId, Type, communication};
use bucketeer::passes::liveness::peak_live;
use bucketeer::passes::survey::{Surveyed, branch_around, survey};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct CollectiveReport {
    pub name: String,
    pub kind: &'static str,
    pub op: Option<&'static str>,
    pub group: String,
    pub group_size: Option<u32>,
    pub dtype: Option<&'static str>,
    pub bytes: Option<u64>,
    pub wait: Option<String>,
    pub depth: u32,
}

/// A call that communicates, or may, and is not a collective.
#[derive(Debug, Serialize)]
pub struct CommunicationReport {
    pub name: String,
    pub kind: String,
    /// The name of the group, if it is known.
    pub group: Option<String>,
    /// The region it is in, if that is not the graph itself.
    pub region: Option<String>,
    /// Whether it keeps its order with every collective.
    pub keeps_order: bool,
}

#[derive(Debug, Serialize)]
pub struct TotalReport {
    pub kind: &'static str,
    pub group: String,
    /// The class of sizes.
    pub size: &'static str,
    pub count: usize,
    pub bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct GroupReport {
    pub name: String,
    pub size: Option<u32>,
    pub members: Vec<Vec<u32>>,
}

#[derive(Debug, Serialize)]
pub struct GraphReport {
    pub graph: String,
    pub nodes: usize,
    pub collectives: Vec<CollectiveReport>,
    pub other_communication: Vec<CommunicationReport>,
    pub totals: Vec<TotalReport>,
    pub groups: Vec<GroupReport>,
    pub peak_live_bytes: u64,
    pub warnings: Vec<Warning>,
    /// Why the graph is not well-formed; nothing else is reported then.
    pub errors: Vec<String>,
}

/// The whole JSON document.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    format: &'static str,
    version: u32,
    input_format: &'static str,
    graphs: &'a [GraphReport],
}

pub fn document<'a>(input_format: &'static str, graphs: &'a [GraphReport]) -> Document<'a> {
    Document { format: "bucketeer-inspect", version: 1, input_format, graphs }
}

/// Below this, latency rather than bandwidth decides how long a collective takes.
const SMALL_BYTES: u64 = 30 << 20;

/// Classes of sizes: each holds what is below its bound.
const CLASSES: [(u64, &str); 4] = [
    (64 << 10, "below 64 KiB"),
    (1 << 20, "below 1 MiB"),
    (SMALL_BYTES, "below 30 MiB"),
    (u64::MAX, "30 MiB and more"),
];
const UNKNOWN_CLASS: &str = "not known";

impl GraphReport {
    pub fn of(graph: &Graph, errors: Vec<String>) -> Self {
        let mut report = Self {
            graph: graph.name.clone(),
            nodes: graph.order().len(),
            collectives: Vec::new(),
            other_communication: Vec::new(),
            totals: Vec::new(),
            groups: groups(graph),
            peak_live_bytes: 0,
            warnings: Vec::new(),
            errors,
        };
        // What is not well-formed has no order that could be followed.
        if report.errors.is_empty() {
            let dependencies = Dependencies::of(graph);
            let found = survey(graph, &dependencies);
            report.collectives = found.iter().map(|one| collective(graph, one)).collect();
            report.other_communication = other_communication(graph);
            report.totals = totals(graph, &found);
            report.peak_live_bytes = peak_live(graph).bytes;
            report.warnings = warnings(graph, &found);
        }
        report
    }
}

fn collective(graph: &Graph, one: &Surveyed) -> CollectiveReport {
    let group = graph.group(one.collective.group);
    CollectiveReport {
        name: graph.name_of(one.node).to_owned(),
        kind: one.collective.kind.name(),
        op: one.collective.kind.reduce_op().map(|op| op.name()),
        group: group.name.to_string(),
        group_size: group.size,
        dtype: dtype(graph, one.node),
        bytes: one.bytes,
        wait: one.wait.map(|wait| graph.name_of(wait).to_owned()),
        depth: one.depth,
    }
}

fn other_communication(graph: &Graph) -> Vec<CommunicationReport> {
    let one = |&id: &NodeId| {
        let found = communication::of(graph, id)?;
        let region = graph.node(id).region;
        Some(CommunicationReport {
            name: graph.name_of(id).to_owned(),
            kind: found.kind.to_owned(),
            group: found.group.map(ToOwned::to_owned),
            region: (region != RegionId::ROOT).then(|| graph.region(region).label.to_string()),
            keeps_order: found.keeps_order(),
        })
    };
    graph.order().iter().filter_map(one).collect()
}

/// The dtype of a collective's result; of a coalesced one, the one that all have.
fn dtype(graph: &Graph, node: NodeId) -> Option<&'static str> {
    match graph.type_of(node) {
        Type::Tensor(tensor) => Some(tensor.dtype.torch_name()),
        Type::Tuple(parts) => {
            let mut dtypes = parts.iter().map(|part| part.as_tensor().map(|tensor| tensor.dtype));
            let first = dtypes.next()??;
            dtypes.all(|dtype| dtype == Some(first)).then(|| first.torch_name())
        }
        Type::SymInt(_) | Type::SymOther(_) | Type::Token | Type::Unknown => None,
    }
}

fn totals(graph: &Graph, found: &[Surveyed]) -> Vec<TotalReport> {
    let mut rows: Vec<TotalReport> = Vec::new();
    for one in found {
        let kind = one.collective.kind.name();
        let group = &*graph.group(one.collective.group).name;
        let class = one.bytes.and_then(|bytes| CLASSES.iter().find(|(bound, _)| bytes < *bound));
        let size = class.map_or(UNKNOWN_CLASS, |(_, name)| name);
        let index = rows.iter().position(|row| row.kind == kind && row.group == group && row.size == size);
        let index = index.unwrap_or_else(|| {
            rows.push(TotalReport { kind, group: group.to_owned(), size, count: 0, bytes: 0 });
            rows.len() - 1
        });
        rows[index].count += 1;
        rows[index].bytes = rows[index].bytes.saturating_add(one.bytes.unwrap_or(0));
    }
    let class = |name: &str| CLASSES.iter().position(|(_, class)| *class == name).unwrap_or(CLASSES.len());
    rows.sort_by(|a, b| (a.kind, &a.group, class(a.size)).cmp(&(b.kind, &b.group, class(b.size))));
    rows
}

fn groups(graph: &Graph) -> Vec<GroupReport> {
    let ranks = |list: &Vec<bucketeer::ir::GlobalRank>| list.iter().map(|rank| rank.0).collect();
    let one = |group: &bucketeer::ir::ProcessGroup| GroupReport {
        name: group.name.to_string(),
        size: group.size,
        members: group.members.iter().map(ranks).collect(),
    };
    graph.groups().iter().map(one).collect()
}

fn warnings(graph: &Graph, found: &[Surveyed]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let sizes: Vec<u64> = found.iter().filter_map(|one| one.bytes).collect();
    let small: Vec<u64> = sizes.iter().copied().filter(|&bytes| bytes < SMALL_BYTES).collect();
    if small.len() > 1 {
        let (of, total) = (sizes.len(), sum(&sizes));
        warnings.push(Warning::Advice(format!(
            "graph `{}`: {} of {of} collectives move less than 30 MiB each, {} of {} together; merging them saves launches",
            graph.name,
            small.len(),
            human(sum(&small)),
            human(total)
        )));
    }
    let mut in_branches: Vec<(bucketeer::ir::RegionId, Vec<&str>)> = Vec::new();
    for one in found {
        let Some(region) = branch_around(graph, graph.node(one.node).region) else { continue };
        match in_branches.iter_mut().find(|(known, _)| *known == region) {
            Some((_, names)) => names.push(graph.name_of(one.node)),
            None => in_branches.push((region, vec![graph.name_of(one.node)])),
        }
    }
    for (region, names) in in_branches {
        warnings.push(Warning::OfResult(format!(
            "graph `{}`: region `{}` is a branch and holds collectives ({}); ranks that decide differently wait for ever",
            graph.name,
            graph.region(region).label,
            names.join(", ")
        )));
    }
    let unwaited = found.iter().filter(|one| one.wait.is_none()).map(|one| graph.name_of(one.node));
    let escaping: Vec<&str> = unwaited.collect();
    if !escaping.is_empty() {
        let outputs = graph.order().last().filter(|&&id| graph.node(id).op == Op::Output).map(|&id| graph.operands(id));
        let returned = |name: &&str| outputs.unwrap_or(&[]).iter().any(|&id| graph.name_of(id) == *name);
        let (out, lost): (Vec<&str>, Vec<&str>) = escaping.iter().partition(|name| returned(name));
        for (names, what) in [(out, "leave the graph before anything waits for them"), (lost, "are never waited for")] {
            if !names.is_empty() {
                let what = format!("graph `{}`: results of {} {what}", graph.name, names.join(", "));
                warnings.push(Warning::OfResult(what));
            }
        }
    }
    warnings
}

fn sum(sizes: &[u64]) -> u64 {
    sizes.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
}
