//! A plan as a page and as a trace, and each launch in words.

use crate::units::{count, human, time};
use bucketeer::ir::{Graph, Op};
use bucketeer::passes::schedule::{Doing, Lane, Launch, Span, Timeline};
use bucketeer_draw::{TimedLane, TimedRun, TimedSpan, timeline_html};
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
    let runs: Vec<TimedRun> = shown.iter().map(timed).collect();
    timeline_html(title, &runs)
}

fn timed(Shown { name, graph, run }: &Shown<'_>) -> TimedRun {
    let timed = |span: &Span| TimedSpan {
        name: graph.name_of(span.node).to_owned(),
        what: span.doing.name(),
        start_ns: span.start_ns,
        ns: span.ns,
        notes: span.launch.iter().map(|&launch| what_is_sent(graph, &run.launches[launch])).collect(),
    };
    let spans = run.spans(graph);
    let lanes = spans.chunk_by(|one, next| one.lane == next.lane);
    let lanes = lanes
        .map(|spans| TimedLane { name: lane_name(graph, spans[0].lane), spans: spans.iter().map(timed).collect() });
    TimedRun { name: (*name).to_owned(), end_ns: run.makespan_ns, lanes: lanes.collect() }
}

fn lane_name(graph: &Graph, lane: Lane) -> String {
    match lane {
        Lane::Compute => "compute".to_owned(),
        Lane::Group(group) => format!("group {}", graph.group(group).name),
    }
}

fn what_is_sent(graph: &Graph, launch: &Launch) -> String {
    let kind = graph.collective(launch.node).map_or("?", |collective| collective.kind.name());
    let merged = if launch.members > 1 { format!(", {} members", launch.members) } else { String::new() };
    format!("{kind}, {}{merged}, group {}", human(launch.bytes), graph.group(launch.group).name)
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

/// Names that a line holds at most.
const MOST_NAMES: usize = 6;

/// By place of the program: the calls that take time before and after it.
struct Places {
    before: Vec<Option<usize>>,
    after: Vec<Option<usize>>,
}

impl Places {
    fn of(graph: &Graph, run: &Timeline) -> Self {
        let order = graph.order();
        let takes_time = |at: usize| matches!(graph.node(order[at]).op, Op::Call(_)) && run.takes_time(at);
        let (mut before, mut after) = (vec![None; order.len()], vec![None; order.len()]);
        for at in 1..order.len() {
            before[at] = if takes_time(at - 1) { Some(at - 1) } else { before[at - 1] };
        }
        for at in (1..order.len()).rev() {
            after[at - 1] = if takes_time(at) { Some(at) } else { after[at] };
        }
        Self { before, after }
    }
}

/// For each launch, in program order: what travels in it, between which calls it is launched and waited for, what it hides
/// behind and what stays exposed. Costs of groups times spans.
pub fn explained(graph: &Graph, run: &Timeline) -> Vec<String> {
    let spans = run.spans(graph);
    let computing: Vec<&Span> =
        spans.iter().filter(|span| span.lane == Lane::Compute && span.doing == Doing::Computing).collect();
    let positions = graph.positions();
    let places = Places::of(graph, run);
    let mut lines = Vec::with_capacity(3 * run.launches.len());
    for launch in &run.launches {
        let (node, at) = (launch.node, positions[launch.node.index()] as usize);
        lines.push(format!("  `{}`: {}", graph.name_of(node), what_is_sent(graph, launch)));
        let members = &graph.meta_of(node).members;
        if !members.is_empty() {
            let shown: Vec<&str> = members.iter().take(MOST_NAMES).map(|name| &**name).collect();
            let more = members.len().saturating_sub(MOST_NAMES);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            lines.push(format!("    carries {}{more}", shown.join(", ")));
        }
        let named = |at: usize| format!("`{}`", graph.name_of(graph.order()[at]));
        let after = places.before[at].map_or("at the start".to_owned(), |at| format!("after {}", named(at)));
        let reader = launch.wait.and_then(|wait| places.after[positions[wait.index()] as usize]);
        let until = reader.map_or("at the end".to_owned(), |at| format!("before {}", named(at)));
        let queued = launch.start_ns.saturating_sub(run.at_ns[at]);
        let queued = if queued > 0 { format!(", begins {} later", time(queued)) } else { String::new() };
        lines.push(format!(
            "    launched {after}{queued}, takes {}, waited for {until}",
            time(launch.end_ns - launch.start_ns)
        ));
        let first = computing.partition_point(|span| span.start_ns + span.ns <= launch.start_ns);
        let behind = computing[first..].iter().take_while(|span| span.start_ns < launch.end_ns);
        let overlap = |span: &Span| {
            (span.start_ns + span.ns).min(launch.end_ns).saturating_sub(span.start_ns.max(launch.start_ns))
        };
        let (mut hidden, mut calls, mut longest) = (0u64, 0usize, None::<(u64, &Span)>);
        for span in behind {
            let ns = overlap(span);
            hidden += ns;
            calls += 1;
            if longest.is_none_or(|(most, _)| ns > most) {
                longest = Some((ns, span));
            }
        }
        let hides = longest.map_or("hides behind nothing".to_owned(), |(_, span)| {
            let calls = count(calls, "call");
            format!("hides {} behind {calls}, most of it `{}`", time(hidden), graph.name_of(span.node))
        });
        let exposed = match launch.stalled_ns {
            0 => "computation never stands still for it".to_owned(),
            ns => format!("computation stands still for it for {}", time(ns)),
        };
        lines.push(format!("    {hides}; {exposed}"));
    }
    lines
}
