//! What runs when, as JSON.

use super::hiding::Hiding;
use super::pictures::{Awaited, Shown, kind};
use crate::output;
use anyhow::Result;
use bucketeer::passes::schedule::{Lane, Span};
use serde::Serialize;

#[derive(Serialize)]
struct Report<'a> {
    format: &'static str,
    version: u32,
    graph: &'a str,
    as_written: Vec<TimedSpan<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucketed: Option<Vec<TimedSpan<'a>>>,
    planned: Option<Vec<TimedSpan<'a>>>,
}

#[derive(Serialize)]
struct TimedSpan<'a> {
    node: &'a str,
    doing: &'static str,
    group: Option<&'a str>,
    start_ns: u64,
    end_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    awaits: Vec<&'a str>,
}

#[derive(Serialize)]
struct Message {
    kind: &'static str,
    bytes: u64,
    members: usize,
    hidden_ns: u64,
    stalled_ns: u64,
}

/// A graph's runs as JSON text: as it came, as passes bucketed it if they did, and as it is planned.
pub fn json(
    graph: &str,
    came: &Shown<'_>,
    bucketed: Option<&Shown<'_>>,
    planned: Option<&Shown<'_>>,
) -> Result<String> {
    output::json(&Report {
        format: "bucketeer-timeline",
        version: 1,
        graph,
        as_written: spans(came),
        bucketed: bucketed.map(spans),
        planned: planned.map(spans),
    })
}

fn spans<'a>(&Shown { graph, run, .. }: &Shown<'a>) -> Vec<TimedSpan<'a>> {
    let (hidings, awaited) = (Hiding::all(graph, run), Awaited::of(graph, run));
    let timed = |span: &Span| TimedSpan {
        node: graph.name_of(span.node),
        doing: span.doing.name(),
        group: match span.lane {
            Lane::Compute => None,
            Lane::Group(group) => Some(&graph.group(group).name),
        },
        start_ns: span.start_ns,
        end_ns: span.start_ns + span.ns,
        message: span.launch.map(|index| {
            let launch = &run.launches[index];
            Message {
                kind: kind(graph, launch),
                bytes: launch.bytes,
                members: launch.members,
                hidden_ns: hidings[index].ns,
                stalled_ns: launch.stalled_ns,
            }
        }),
        awaits: awaited.by(span).iter().map(|&node| graph.name_of(node)).collect(),
    };
    run.spans(graph).iter().map(timed).collect()
}
