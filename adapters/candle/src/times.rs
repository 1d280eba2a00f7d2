//! When the marks, launches and ends of a step were, and a trace of them.

use crate::mark::lock;
use bucketeer_comm::{
    Announced, Arena, Backend, BufferError, Call, CallOptions, CallSignature, CommError, Described, Group, Op, Work,
};
use bucketeer_types::GlobalRank;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often it is asked whether a launch has ended.
const POLL: Duration = Duration::from_micros(20);

/// When a gradient was taken: from the call of its mark to its end, in which buckets may be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkTimes {
    /// The parameter's index.
    pub param: usize,
    /// Its gradient was final.
    pub begin: Instant,
    /// It was copied.
    pub end: Instant,
}

/// When a launch was on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchTimes {
    /// The bucket; none for what else a step sends, as who used which parameter.
    pub bucket: Option<usize>,
    /// What is sent, in bytes.
    pub bytes: u64,
    /// It was launched.
    pub launched: Instant,
    /// It had ended, as seen within about 50 µs.
    pub done: Instant,
}

/// The times of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTimes {
    /// Number of the step, from 0.
    pub step: u64,
    /// When it began: forward runs from here.
    pub begin: Instant,
    /// When backward began and ended, if the step ran it.
    pub backward: Option<(Instant, Instant)>,
    /// When the end was begun, which waits for all launches, and when gradients were there.
    pub finish: (Instant, Instant),
    /// Marks, in their order.
    pub marks: Vec<MarkTimes>,
    /// Launches, in their order.
    pub launches: Vec<LaunchTimes>,
    /// Parameters of each bucket.
    pub buckets: Vec<Vec<usize>>,
}

impl StepTimes {
    /// How many buckets were launched before the last mark began.
    #[must_use]
    pub fn launched_early(&self) -> usize {
        let Some(last) = self.marks.last() else { return 0 };
        self.launches.iter().filter(|launch| launch.bucket.is_some() && launch.launched < last.begin).count()
    }
}

/// Steps as a trace that Perfetto and `chrome://tracing` open: a line for the step, one for marks, and one for each bucket on its
/// way. `names` are the parameters', by index.
#[must_use]
pub fn chrome_trace(rank: GlobalRank, names: &[&str], steps: &[StepTimes]) -> Value {
    let Some(start) = steps.first().map(|step| step.begin) else { return json!({ "traceEvents": [] }) };
    let micros = |at: Instant| at.saturating_duration_since(start).as_nanos() as f64 / 1000.0;
    let name = |param: &usize| names.get(*param).copied().unwrap_or("?");
    let span = |line: usize, what: String, from: Instant, to: Instant, args: Value| {
        let (ts, dur) = (micros(from), micros(to) - micros(from));
        json!({ "ph": "X", "pid": rank.0, "tid": line, "name": what, "ts": ts, "dur": dur, "args": args })
    };
    let title = |what: &str, line: usize, text: String| json!({ "ph": "M", "pid": rank.0, "tid": line, "name": what, "args": { "name": text } });
    let mut events = vec![
        title("process_name", 0, format!("rank {}", rank.0)),
        title("thread_name", 0, "step".to_owned()),
        title("thread_name", 1, "marks".to_owned()),
        title("thread_name", 2, "other launches".to_owned()),
    ];
    let most = steps.iter().map(|step| step.buckets.len()).max().unwrap_or(0);
    events.extend((0..most).map(|bucket| title("thread_name", 3 + bucket, format!("bucket {bucket}"))));
    for step in steps {
        let number = json!({ "step": step.step });
        let (finish, end) = step.finish;
        events.push(span(0, format!("step {}", step.step), step.begin, end, number.clone()));
        if let Some((from, to)) = step.backward {
            events.push(span(0, "backward".to_owned(), from, to, number.clone()));
        }
        events.push(span(0, "finish".to_owned(), finish, end, number));
        for mark in &step.marks {
            let args = json!({ "step": step.step, "parameter": mark.param });
            events.push(span(1, name(&mark.param).to_owned(), mark.begin, mark.end, args));
        }
        for launch in &step.launches {
            let held = launch.bucket.and_then(|bucket| step.buckets.get(bucket));
            let params: Vec<&str> = held.into_iter().flatten().map(name).collect();
            let args = json!({ "step": step.step, "bytes": launch.bytes, "parameters": params });
            let (line, what) = match launch.bucket {
                Some(bucket) => (3 + bucket, format!("bucket {bucket}")),
                None => (2, "launch".to_owned()),
            };
            events.push(span(line, what, launch.launched, launch.done, args));
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}

/// A launch that was seen.
struct Seen {
    reduces: bool,
    bytes: u64,
    launched: Instant,
    work: Work,
    done: Option<Instant>,
}

/// A backend that notes launches while a step runs.
pub struct Timed {
    inner: Arc<dyn Backend>,
    seen: Arc<Mutex<Vec<Seen>>>,
    on: Arc<AtomicBool>,
}

impl Timed {
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, seen: Arc::default(), on: Arc::default() }
    }

    /// Notes launches from now on.
    pub fn watch(&self) -> Watch {
        lock(&self.seen).clear();
        self.on.store(true, Ordering::Release);
        let (seen, on) = (self.seen.clone(), self.on.clone());
        let poll = move || {
            while on.load(Ordering::Acquire) {
                note(&seen);
                thread::sleep(POLL);
            }
        };
        // Without a thread, ends are as the step's end saw them.
        let thread = thread::Builder::new().name("bucketeer-times".to_owned()).spawn(poll).ok();
        Watch { seen: self.seen.clone(), on: self.on.clone(), thread }
    }

    fn noted(&self, call: &CallSignature, launch: impl FnOnce() -> Result<Work, CommError>) -> Result<Work, CommError> {
        if !self.on.load(Ordering::Acquire) {
            return launch();
        }
        let launched = Instant::now();
        let work = launch()?;
        lock(&self.seen).push(Seen {
            reduces: matches!(call.op(), Op::AllReduce(_)),
            bytes: call.output_bytes(),
            launched,
            work: work.clone(),
            done: None,
        });
        Ok(work)
    }
}

fn note(seen: &Mutex<Vec<Seen>>) {
    for launch in lock(seen).iter_mut().filter(|launch| launch.done.is_none() && launch.work.is_done()) {
        launch.done = Some(Instant::now());
    }
}

/// Notes ends of launches until it is dropped.
pub struct Watch {
    seen: Arc<Mutex<Vec<Seen>>>,
    on: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// What was launched. Buckets are launched in order; one that ranks agree to leave out is not.
    pub fn launches(&self, bucket_bytes: &[u64]) -> Vec<LaunchTimes> {
        note(&self.seen);
        let now = Instant::now();
        let mut next = 0;
        let times = |launch: &Seen| {
            let left = bucket_bytes.get(next..).unwrap_or_default();
            let bucket = left.iter().position(|bytes| launch.reduces && *bytes == launch.bytes).map(|at| next + at);
            next = bucket.map_or(next, |bucket| bucket + 1);
            let done = launch.done.unwrap_or(now);
            LaunchTimes { bucket, bytes: launch.bytes, launched: launch.launched, done }
        };
        lock(&self.seen).iter().map(times).collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.on.store(false, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It ends within a poll.
            let _ = thread.join();
        }
        lock(&self.seen).clear();
    }
}

impl Backend for Timed {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn rank(&self) -> GlobalRank {
        self.inner.rank()
    }

    fn world_size(&self) -> u32 {
        self.inner.world_size()
    }

    fn arena(&self, bytes: u64) -> Result<Arena, BufferError> {
        self.inner.arena(bytes)
    }

    fn new_group(&self, name: &str, members: &[GlobalRank]) -> Result<Group, CommError> {
        self.inner.new_group(name, members)
    }

    fn joined(&self, name: &str, members: &[GlobalRank]) -> Option<Group> {
        self.inner.joined(name, members)
    }

    fn announce(&self, launches: &[Announced]) -> Result<(), CommError> {
        self.inner.announce(launches)
    }

    fn launch(&self, group: &Group, call: Call, options: &CallOptions) -> Result<Work, CommError> {
        let seen = CallSignature::of(&call);
        self.noted(&seen, || self.inner.launch(group, call, options))
    }

    fn start_coalescing(&self, group: &Group) -> Result<(), CommError> {
        self.inner.start_coalescing(group)
    }

    fn end_coalescing(&self, group: &Group, options: &CallOptions) -> Result<Work, CommError> {
        self.inner.end_coalescing(group, options)
    }

    fn abort(&self, group: &Group) {
        self.inner.abort(group);
    }

    fn shrink(&self, group: &Group, failed: &[GlobalRank]) -> Result<Group, CommError> {
        self.inner.shrink(group, failed)
    }
}
