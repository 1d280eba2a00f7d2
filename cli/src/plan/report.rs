//! What a plan is worth, for people and as JSON.

use super::explain::explained;
use super::helps::Helps;
use super::pictures::{Shown, kind};
use crate::output;
use crate::table::{Align, Table};
use crate::units::{human, time};
use anyhow::Result;
use bucketeer::ir::Graph;
use bucketeer::passes::schedule::{Bound, Launch, LowerBound, Planned, Timeline};
use serde::Serialize;

/// How much is shown.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Most of the dearest waits.
    pub waits: usize,
    pub explain: bool,
}

/// How a graph runs, and how it ran before it was planned.
pub struct Told<'a> {
    /// What runs now.
    pub graph: &'a Graph,
    /// How it ran: as it came first.
    pub before: &'a [Shown<'a>],
    /// What was planned, and what would help.
    pub planned: Option<(&'a Planned, &'a Helps)>,
    pub cap_bytes: Option<u64>,
}

impl Told<'_> {
    fn now(&self) -> &Timeline {
        self.planned.map_or(self.before[0].run, |(planned, _)| &planned.after)
    }

    /// As JSON text, with so many of the dearest waits.
    pub fn json(&self, most_waits: usize) -> Result<String> {
        let Self { graph, before, cap_bytes, .. } = *self;
        let (planned, helps) = self.planned.unzip();
        output::json(&Report {
            format: "bucketeer-plan",
            version: 1,
            graph: &graph.name,
            cap_bytes,
            as_written: Run::of(before[0].run),
            bucketed: before.get(1).map(|bucketed| Run::of(bucketed.run)),
            planned: planned.map(|planned| Run::of(&planned.after)),
            bounds: planned.map_or(Vec::new(), |planned| BoundReport::all(&planned.bounds)),
            bounds_as_written: planned.map_or(Vec::new(), |planned| BoundReport::all(&planned.bounds_as_written)),
            helps,
            waits: dearest(self.now(), most_waits).map(|launch| Wait::of(graph, launch)).collect(),
        })
    }

    /// For people.
    pub fn text(&self, view: &View) -> String {
        let (planned, helps) = self.planned.unzip();
        let mut lines = summary(self.graph, self.before, planned, self.cap_bytes);
        lines.extend(helps.map(Helps::lines).into_iter().flatten());
        lines.extend(waits(self.graph, self.now(), view.waits));
        if view.explain {
            lines.extend(explained(self.graph, self.now()));
        }
        lines.join("\n") + "\n"
    }
}

/// How much of the communication hides behind computation.
pub fn hidden(run: &Timeline) -> String {
    match run.message_ns {
        0 => "-".to_owned(),
        all => format!("{:.1} %", 100.0 * all.saturating_sub(run.exposed_ns()) as f64 / all as f64),
    }
}

fn summary(graph: &Graph, before: &[Shown<'_>], planned: Option<&Planned>, cap_bytes: Option<u64>) -> Vec<String> {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("step", Align::Right),
        ("computes", Align::Right),
        ("exposed", Align::Right),
        ("hidden", Align::Right),
        ("launches", Align::Right),
        ("buckets", Align::Right),
        ("peak", Align::Right),
    ]);
    let mut row = |name: &str, run: &Timeline| {
        table.row([
            name.to_owned(),
            time(run.makespan_ns),
            time(run.compute_ns),
            time(run.exposed_ns()),
            hidden(run),
            run.launches.len().to_string(),
            run.buckets().to_string(),
            human(run.peak_bytes),
        ]);
    };
    before.iter().for_each(|one| row(one.name, one.run));
    if let Some(planned) = planned {
        row("planned", &planned.after);
    }
    let mut lines = vec![format!("graph `{}`", graph.name)];
    lines.extend(table.lines(usize::MAX));
    let cap =
        cap_bytes.map_or_else(|| "no cap on memory".to_owned(), |cap| format!("at most {} alive at once", human(cap)));
    lines.push(format!("  {cap}"));
    if let Some(planned) = planned
        && let Some(bound) = planned.bounds.first()
    {
        let above = planned.after.makespan_ns.saturating_sub(bound.ns);
        let share = 100.0 * above as f64 / (bound.ns.max(1)) as f64;
        lines.push(format!(
            "  no plan is shorter than {}, by {}; this one is within {share:.2} % of that",
            time(bound.ns),
            why(graph, &bound.bound)
        ));
    }
    lines
}

/// A bound in words.
fn why(graph: &Graph, bound: &Bound) -> String {
    let group = |index: usize| graph.groups().get(index).map_or("?", |group| &group.name);
    match bound {
        Bound::Computation => "its computation alone".to_owned(),
        Bound::Path { through } => format!("the path through `{}`", graph.name_of(*through)),
        Bound::ComputeMachine { last } => format!("what runs up to `{}` and has to follow", graph.name_of(*last)),
        Bound::Stream { group: index, last } => {
            format!("the bytes of group `{}` up to `{}` and what has to follow", group(*index), graph.name_of(*last))
        }
        Bound::Families { group: index, launches, .. } => {
            let starts = if *launches == 1 { "one launch" } else { &format!("the {launches} launches") };
            format!("the bytes of group `{}` in {starts} that keys and memory ask for", group(*index))
        }
        Bound::Cut { at } => format!("what `{}` needs, and what needs it", graph.name_of(*at)),
        other => other.name().to_owned(),
    }
}

/// Messages that computation stands still for, the dearest first.
fn dearest(run: &Timeline, most: usize) -> impl Iterator<Item = &Launch> {
    let mut found: Vec<&Launch> = run.launches.iter().filter(|launch| launch.stalled_ns > 0).collect();
    found.sort_by_key(|launch| std::cmp::Reverse(launch.stalled_ns));
    found.into_iter().take(most)
}

fn waits(graph: &Graph, run: &Timeline, most: usize) -> Vec<String> {
    let mut table = Table::new(&[
        ("stands still", Align::Right),
        ("for", Align::Left),
        ("kind", Align::Left),
        ("group", Align::Left),
        ("bytes", Align::Right),
        ("members", Align::Right),
        ("takes", Align::Right),
    ]);
    let mut any = false;
    for launch in dearest(run, most) {
        any = true;
        table.row([
            time(launch.stalled_ns),
            graph.name_of(launch.node).to_owned(),
            graph.collective(launch.node).map_or("?", |collective| collective.kind.name()).to_owned(),
            graph.group(launch.group).name.to_string(),
            human(launch.bytes),
            launch.members.to_string(),
            time(launch.end_ns - launch.start_ns),
        ]);
    }
    if most == 0 {
        return Vec::new();
    }
    if any { table.lines(usize::MAX) } else { vec!["  computation never stands still".to_owned()] }
}

#[derive(Serialize)]
struct Report<'a> {
    format: &'static str,
    version: u32,
    graph: &'a str,
    cap_bytes: Option<u64>,
    as_written: Run,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucketed: Option<Run>,
    planned: Option<Run>,
    bounds: Vec<BoundReport>,
    bounds_as_written: Vec<BoundReport>,
    helps: Option<&'a Helps>,
    waits: Vec<Wait<'a>>,
}

#[derive(Serialize)]
struct BoundReport {
    name: &'static str,
    ns: u64,
}

impl BoundReport {
    fn all(bounds: &[LowerBound]) -> Vec<Self> {
        bounds.iter().map(|bound| Self { name: bound.bound.name(), ns: bound.ns }).collect()
    }
}

/// A run in numbers.
#[derive(Serialize)]
pub struct Run {
    makespan_ns: u64,
    compute_ns: u64,
    exposed_ns: u64,
    message_ns: u64,
    peak_bytes: u64,
    launches: usize,
    buckets: usize,
}

impl Run {
    pub fn of(run: &Timeline) -> Self {
        Self {
            makespan_ns: run.makespan_ns,
            compute_ns: run.compute_ns,
            exposed_ns: run.exposed_ns(),
            message_ns: run.message_ns,
            peak_bytes: run.peak_bytes,
            launches: run.launches.len(),
            buckets: run.buckets(),
        }
    }
}

#[derive(Serialize)]
struct Wait<'a> {
    node: &'a str,
    kind: &'static str,
    group: &'a str,
    stalled_ns: u64,
    bytes: u64,
    members: usize,
    start_ns: u64,
    end_ns: u64,
}

impl<'a> Wait<'a> {
    fn of(graph: &'a Graph, launch: &Launch) -> Self {
        Self {
            node: graph.name_of(launch.node),
            kind: kind(graph, launch),
            group: &graph.group(launch.group).name,
            stalled_ns: launch.stalled_ns,
            bytes: launch.bytes,
            members: launch.members,
            start_ns: launch.start_ns,
            end_ns: launch.end_ns,
        }
    }
}
