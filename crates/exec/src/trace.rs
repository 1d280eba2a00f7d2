//! What ran when, in the trace event format that Chrome's and Perfetto's viewers read.

use serde::Serialize;
use std::time::Duration;

/// Where something ran.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// The compute stream.
    Compute,
    /// The collectives of a group.
    Comm(Box<str>),
}

/// Something that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Where.
    pub row: Row,
    /// Name of the graph's node.
    pub name: Box<str>,
    /// `compute`, `pack`, `comm`, `wait`, `unpack` or `copy`.
    pub what: &'static str,
    /// When, from the start of the run. A collective begins at its launch.
    pub start: Duration,
    /// How long. A collective is seen to be done by the next step of the compute stream.
    pub time: Duration,
}

#[derive(Serialize)]
struct Trace<'a> {
    #[serde(rename = "traceEvents")]
    events: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    ph: &'static str,
    pid: usize,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Named>,
}

#[derive(Serialize)]
struct Named {
    name: String,
}

/// Events as JSON: a process for each list, such as a rank, by its name, and in it a row for each stream. Times are in
/// microseconds.
///
/// # Panics
/// Never: names and numbers can be written as JSON.
#[must_use]
pub fn chrome_trace(processes: &[(String, &[Event])]) -> String {
    let mut events = Vec::new();
    let label = |pid, tid, what, name| Entry {
        name: what,
        ph: "M",
        pid,
        tid,
        cat: None,
        ts: None,
        dur: None,
        args: Some(Named { name }),
    };
    for (rank, (name, list)) in processes.iter().enumerate() {
        events.push(label(rank, 0, "process_name", name.clone()));
        let mut rows: Vec<&Row> = list.iter().map(|event| &event.row).collect();
        rows.sort_unstable();
        rows.dedup();
        for (tid, row) in rows.iter().enumerate() {
            let name = match row {
                Row::Compute => "compute".to_owned(),
                Row::Comm(group) => format!("comm {group}"),
            };
            events.push(label(rank, tid, "thread_name", name));
        }
        let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
        events.extend(list.iter().map(|event| Entry {
            name: &event.name,
            ph: "X",
            pid: rank,
            tid: rows.binary_search(&&event.row).unwrap_or(0),
            cat: Some(event.what),
            ts: Some(micros(event.start)),
            dur: Some(micros(event.time)),
            args: None,
        }));
    }
    let trace = serde_json::to_string(&Trace { events });
    trace.expect("names and numbers can be written as JSON")
}
