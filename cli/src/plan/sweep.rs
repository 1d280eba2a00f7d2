//! What a step takes for several caps on memory, and for several caps on buckets.

use super::report::{Run, hidden};
use crate::output;
use crate::table::{Align, Table};
use crate::talk::Progress;
use crate::units::{human, time};
use anyhow::Result;
use bucketeer::ir::Graph;
use bucketeer::passes::bucketing::{BucketKind, BucketOptions};
use bucketeer::passes::schedule::{Buckets, Costs, Effort, PlanError, ScheduleOptions, Timeline, bucket_options, plan};
use bucketeer::passes::select::Caps;
use bucketeer::passes::{Pipeline, PipelineError};
use serde::Serialize;

/// Steps from the memory that the graph needs as it stands to what helps most.
const MEMORY_STEPS: u64 = 8;

/// Caps on buckets, in MiB; and none.
const BUCKET_CAPS_MIB: [u64; 8] = [1, 5, 25, 50, 100, 256, 512, 1024];

/// What each cap comes to.
pub struct Sweep {
    came: Timeline,
    /// By cap on bytes alive: the shortest plan within it.
    memory: Vec<(u64, Timeline)>,
    caps: Vec<Bucketed>,
}

/// A graph bucketed with a cap.
struct Bucketed {
    cap_bytes: Option<u64>,
    /// Waited for on the spot, as `rewrite` leaves it.
    run: Timeline,
    /// With launches and waits moved, if that fits the normal cap on memory.
    moved: Option<Timeline>,
}

/// Plans a graph for caps between what it needs as it stands and what a plan without a cap takes, and buckets it.
///
/// # Errors
/// [`PlanError`], for a graph or costs that cannot be planned.
pub fn sweep(
    graph: &Graph,
    costs: &Costs,
    came: &Timeline,
    effort: Effort,
    progress: &Progress,
) -> Result<Sweep, PlanError> {
    let planned = |graph: &Graph, costs: &Costs, cap_bytes: Option<u64>, effort: Effort, buckets: Buckets| {
        let mut options = ScheduleOptions::default();
        (options.cap_bytes, options.effort, options.buckets) = (cap_bytes, effort, buckets);
        plan(&mut graph.clone(), costs, &options).map(|planned| planned.after)
    };
    progress.set("planning without a cap".to_owned());
    let free = planned(graph, costs, None, effort, Buckets::Chosen)?;
    let mut memory: Vec<(u64, Timeline)> = Vec::new();
    let room = free.peak_bytes.saturating_sub(came.peak_bytes);
    for step in 0..MEMORY_STEPS {
        let cap = came.peak_bytes + (u128::from(room) * u128::from(step) / u128::from(MEMORY_STEPS)) as u64;
        progress.set(format!("planning within {}", human(cap)));
        let found = planned(graph, costs, Some(cap), effort, Buckets::Chosen)?;
        // What fits less memory fits more.
        let best = memory.last().filter(|(_, before)| before.makespan_ns <= found.makespan_ns);
        let found = best.map_or(found, |(_, before)| before.clone());
        memory.push((cap, found));
    }
    let best = memory.last().filter(|(_, before)| before.makespan_ns <= free.makespan_ns);
    let last = best.map_or(free, |(_, before)| before.clone());
    memory.push((came.peak_bytes + room, last));
    let normal = super::MemoryCap::Normal.bytes(came.peak_bytes);
    let mut caps = Vec::new();
    for cap_mib in BUCKET_CAPS_MIB.into_iter().map(Some).chain([None]) {
        let cap_bytes = cap_mib.map(|mib| mib << 20);
        progress.set(format!("bucketing with {}", cap_bytes.map_or("no cap".to_owned(), human)));
        let mut bucketed = graph.clone();
        if bucket(&mut bucketed, cap_bytes).is_err() {
            continue;
        }
        let costs = costs.of_what_is_left(&bucketed);
        let run = Timeline::of(&bucketed, &costs)?;
        let moved = match planned(&bucketed, &costs, normal, Effort::Low, Buckets::Kept) {
            Ok(moved) => Some(moved),
            Err(PlanError::Memory { .. }) => None,
            Err(error) => return Err(error),
        };
        caps.push(Bucketed { cap_bytes, run, moved });
    }
    Ok(Sweep { came: came.clone(), memory, caps })
}

fn bucket(graph: &mut Graph, cap_bytes: Option<u64>) -> Result<(), PipelineError> {
    let caps = cap_bytes.map_or_else(Caps::default, Caps::bytes);
    let kinds = BucketKind::ALL.into_iter().filter(|kind| kind.is_default());
    let options = kinds.map(|kind| BucketOptions { caps: caps.clone(), ..bucket_options(graph, kind) });
    let passes = options.collect();
    Pipeline::rewrite(passes).run(graph).map(|_| ())
}

/// A sweep as JSON text.
pub fn json(graph: &Graph, sweep: &Sweep) -> Result<String> {
    let memory = sweep.memory.iter();
    output::json(&Report {
        format: "bucketeer-plan-sweep",
        version: 1,
        graph: &graph.name,
        as_written: Run::of(&sweep.came),
        memory: memory.map(|(cap_bytes, run)| MemoryReport { cap_bytes: *cap_bytes, planned: Run::of(run) }).collect(),
        caps: sweep.caps.iter().map(CapReport::of).collect(),
    })
}

/// A sweep for people.
pub fn text(graph: &Graph, sweep: &Sweep) -> String {
    let mut lines = vec![format!("graph `{}`", graph.name)];
    lines.extend(memory_table(sweep));
    lines.extend(caps_table(sweep));
    lines.join("\n") + "\n"
}

fn memory_table(sweep: &Sweep) -> Vec<String> {
    let mut table = Table::new(&[
        ("alive at most", Align::Right),
        ("step", Align::Right),
        ("exposed", Align::Right),
        ("hidden", Align::Right),
        ("launches", Align::Right),
        ("peak", Align::Right),
    ]);
    let mut row = |cap: String, run: &Timeline| {
        let launches = run.launches.len().to_string();
        table.row([cap, time(run.makespan_ns), time(run.exposed_ns()), hidden(run), launches, human(run.peak_bytes)]);
    };
    row("as it came".to_owned(), &sweep.came);
    sweep.memory.iter().for_each(|(cap, run)| row(human(*cap), run));
    table.lines(usize::MAX)
}

fn caps_table(sweep: &Sweep) -> Vec<String> {
    let mut table = Table::new(&[
        ("buckets of at most", Align::Right),
        ("launches", Align::Right),
        ("step, as `rewrite`", Align::Right),
        ("exposed", Align::Right),
        ("peak", Align::Right),
        ("step, moved", Align::Right),
        ("exposed", Align::Right),
        ("peak", Align::Right),
    ]);
    for Bucketed { cap_bytes, run, moved } in &sweep.caps {
        let of = |what: &dyn Fn(&Timeline) -> String| moved.as_ref().map_or("-".to_owned(), what);
        table.row([
            cap_bytes.map_or("no cap".to_owned(), human),
            run.launches.len().to_string(),
            time(run.makespan_ns),
            time(run.exposed_ns()),
            human(run.peak_bytes),
            of(&|run| time(run.makespan_ns)),
            of(&|run| time(run.exposed_ns())),
            of(&|run| human(run.peak_bytes)),
        ]);
    }
    table.lines(usize::MAX)
}

#[derive(Serialize)]
struct Report<'a> {
    format: &'static str,
    version: u32,
    graph: &'a str,
    as_written: Run,
    memory: Vec<MemoryReport>,
    caps: Vec<CapReport>,
}

#[derive(Serialize)]
struct MemoryReport {
    cap_bytes: u64,
    planned: Run,
}

#[derive(Serialize)]
struct CapReport {
    cap_bytes: Option<u64>,
    bucketed: Run,
    planned: Option<Run>,
}

impl CapReport {
    fn of(found: &Bucketed) -> Self {
        let planned = found.moved.as_ref().map(Run::of);
        Self { cap_bytes: found.cap_bytes, bucketed: Run::of(&found.run), planned }
    }
}
