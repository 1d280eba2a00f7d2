//! A plan as a page, as a picture and as a trace.

use super::hiding::Hiding;
use crate::units::human;
use bucketeer::ir::{Graph, NodeId};
use bucketeer::passes::schedule::{Doing, Lane, Launch, Span, Timeline};
use bucketeer_draw::{TimedLane, TimedRun, TimedSpan, timeline_html, timeline_svg};
use bucketeer_exec::{Event, Moved, Row, chrome_trace};
use std::time::Duration;

/// A graph, and how it runs.
pub struct Shown<'a> {
    /// What it is, such as "as it came".
    pub name: &'static str,
    pub graph: &'a Graph,
    pub run: &'a Timeline,
}

/// Runs above one another, as a page of its own.
pub fn page(title: &str, shown: &[Shown<'_>]) -> String {
    timeline_html(title, &timed(shown))
}

/// Runs above one another, as a picture without scripts.
pub fn svg(title: &str, shown: &[Shown<'_>]) -> String {
    timeline_svg(title, &timed(shown))
}

fn timed(shown: &[Shown<'_>]) -> Vec<TimedRun> {
    shown.iter().map(timed_run).collect()
}

fn timed_run(&Shown { name, graph, run }: &Shown<'_>) -> TimedRun {
    let (hidings, awaited) = (Hiding::all(graph, run), Awaited::of(graph, run));
    let notes = |span: &Span| match span.launch {
        Some(index) => {
            let launch = &run.launches[index];
            let sent = std::iter::once(what_is_sent(graph, launch)).chain(carries(graph, launch));
            sent.chain([hidings[index].in_words(graph, launch)]).collect()
        }
        None => awaited.by(span).iter().map(|&node| format!("for `{}`", graph.name_of(node))).collect(),
    };
    let timed = |span: &Span| TimedSpan {
        name: graph.name_of(span.node).to_owned(),
        what: span.doing.name(),
        start_ns: span.start_ns,
        ns: span.ns,
        notes: notes(span),
    };
    let spans = run.spans(graph);
    let lanes = spans.chunk_by(|one, next| one.lane == next.lane);
    let lanes = lanes
        .map(|spans| TimedLane { name: lane_name(graph, spans[0].lane), spans: spans.iter().map(timed).collect() });
    TimedRun { name: name.to_owned(), end_ns: run.makespan_ns, lanes: lanes.collect() }
}

/// By arena index of a wait: the launches that computation stands still for there.
pub struct Awaited(Vec<Vec<NodeId>>);

impl Awaited {
    pub fn of(graph: &Graph, run: &Timeline) -> Self {
        let mut launches = vec![Vec::new(); graph.arena_len()];
        for launch in run.launches.iter().filter(|launch| launch.stalled_ns > 0) {
            if let Some(wait) = launch.wait {
                launches[wait.index()].push(launch.node);
            }
        }
        Self(launches)
    }

    /// The launches that a span waits for; none of one that does not.
    pub fn by(&self, span: &Span) -> &[NodeId] {
        if span.doing == Doing::Waiting { &self.0[span.node.index()] } else { &[] }
    }
}

fn lane_name(graph: &Graph, lane: Lane) -> String {
    match lane {
        Lane::Compute => "compute".to_owned(),
        Lane::Group(group) => format!("group {}", graph.group(group).name),
    }
}

/// One word.
pub fn kind(graph: &Graph, launch: &Launch) -> &'static str {
    graph.collective(launch.node).map_or("?", |collective| collective.kind.name())
}

/// Kind, bytes, members and group of a message.
pub fn what_is_sent(graph: &Graph, launch: &Launch) -> String {
    let kind = kind(graph, launch);
    let merged = if launch.members > 1 { format!(", {} members", launch.members) } else { String::new() };
    format!("{kind}, {}{merged}, group {}", human(launch.bytes), graph.group(launch.group).name)
}

/// Names that a line holds at most.
const MOST_NAMES: usize = 6;

/// The first of the collectives that were merged into a message, if any were.
pub fn carries(graph: &Graph, launch: &Launch) -> Option<String> {
    let members = &graph.meta_of(launch.node).members;
    let shown: Vec<&str> = members.iter().take(MOST_NAMES).map(|name| &**name).collect();
    let more = members.len().saturating_sub(MOST_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!members.is_empty()).then(|| format!("carries {}{more}", shown.join(", ")))
}

/// Runs side by side, for Chrome's and Perfetto's viewers.
pub fn trace(shown: &[Shown<'_>]) -> String {
    let events: Vec<(String, Vec<Event>)> = shown.iter().map(|one| (one.name.to_owned(), events(one))).collect();
    let lists: Vec<(String, &[Event])> = events.iter().map(|(name, list)| (name.clone(), &list[..])).collect();
    chrome_trace(&lists)
}

fn events(Shown { graph, run, .. }: &Shown<'_>) -> Vec<Event> {
    let event = |span: &Span| Event {
        row: match span.lane {
            Lane::Compute => Row::Compute,
            Lane::Group(group) => Row::Comm(graph.group(group).name.clone()),
        },
        name: graph.name_of(span.node).into(),
        what: span.doing.name(),
        start: Duration::from_nanos(span.start_ns),
        time: Duration::from_nanos(span.ns),
        moved: span.launch.map(|launch| Moved { bytes: run.launches[launch].bytes, launch: None }),
    };
    run.spans(graph).iter().map(event).collect()
}
