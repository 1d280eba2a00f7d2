//! What ran when, in the trace event format that Chrome's and Perfetto's viewers read.

use bucketeer::ir::{DType, GlobalRank};
use bucketeer_comm::Group;
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
    /// What was moved: of a `comm`, a `pack`, an `unpack` and a `copy`.
    pub moved: Option<Moved>,
}

/// What was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// In bytes. Of a collective the larger of what this rank sends and what it receives, with padding; of others the
    /// elements that they write, without.
    pub bytes: u64,
    /// Of a collective, how.
    pub launch: Option<Launch>,
}

/// A collective that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Between whom.
    pub group: Group,
    /// Element type; none of a barrier.
    pub dtype: Option<DType>,
    /// How many collectives were merged into it; none if nobody says so.
    pub merged: Option<usize>,
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
    args: Option<Args<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Named {
        name: String,
    },
    Moved {
        bytes: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        dtype: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<&'a str>,
        /// Global ranks, in the group's order.
        #[serde(skip_serializing_if = "Option::is_none")]
        ranks: Option<Vec<u32>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        merged: Option<usize>,
    },
}

impl<'a> Args<'a> {
    fn of(moved: &'a Moved) -> Self {
        let launch = moved.launch.as_ref();
        let ranks = |launch: &Launch| launch.group.members().iter().map(|&GlobalRank(rank)| rank).collect();
        Self::Moved {
            bytes: moved.bytes,
            dtype: launch.and_then(|launch| launch.dtype).map(DType::torch_name),
            group: launch.map(|launch| launch.group.name()),
            ranks: launch.map(ranks),
            merged: launch.and_then(|launch| launch.merged),
        }
    }
}

/// Events as JSON: a process for each list, such as a rank, by its name, and in it a row for each stream. Times are in
/// microseconds. What was moved is in `args`: `bytes`, and of collectives `dtype`, `group`, its `ranks`, and `merged`, the number
/// of collectives merged into it, where known.
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
        args: Some(Args::Named { name }),
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
            args: event.moved.as_ref().map(Args::of),
        }));
    }
    let trace = serde_json::to_string(&Trace { events });
    trace.expect("names and numbers can be written as JSON")
}
