//! `run`: a graph as it came and bucketed, on all ranks, compared and timed.

mod tensors;

use crate::fault::InputFault;
use crate::input::{Facts, FactsArgs};
use crate::table::{Align, Table};
use crate::units::{count, human};
use crate::{Verdict, input, output, talk};
use anyhow::{Context, Result, anyhow, bail};
use bucketeer::check::eval::{EvalError, EvalOptions, Output, Scaling, ShrinkError, shrink};
use bucketeer::ir::{GlobalRank, Graph};
use bucketeer::passes::bucketing::{Decision, Reason, Remark};
use bucketeer::passes::lowering::{LowerError, LowerOptions, lower};
use bucketeer::passes::{Pass, PassReport, Pipeline, PipelineError, parse_bytes};
use bucketeer::program::Program;
use bucketeer::runtime::executor::{Event, Executor, Reference, Run, RunError, Times, chrome_trace, world_size};
use bucketeer::runtime::fake::FakeRank;
use bucketeer::runtime::local::{self, Link, LocalOptions};
use bucketeer::runtime::{Backend, CommError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The names of the two runs.
const NAMES: [&str; 2] = ["as it came", "bucketed"];

/// Runs of each from which on a loss is more than noise.
const MIN_REPEATS: u32 = 3;

/// How much longer communication may take bucketed before we say so.
const LOSS: f64 = 1.05;

/// All ranks' runs of the graph as it came, and of the bucketed one.
type Both = [Vec<Run>; 2];

/// Runs a graph as it came and bucketed, on all its ranks, compares the outputs bit for bit, and says where the time went
///
/// Ranks are threads of this process. Inputs are made from a seed, or read with --inputs; compute steps are run by the
/// reference evaluator, which is slow, so times of compute mean little, and those of communication are for this machine's
/// memory: with --link each call takes as long as on a network. Exit code 1 if the outputs differ.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The file to run: FX text, HLO text, a .pt2 archive or its model.json,
    /// native text or JSON, plain or gzip; `-` is stdin. It holds one graph
    #[arg(value_name = "GRAPH")]
    graph: PathBuf,
    /// The passes that bucket it, in text form, as for `rewrite` [default: what `rewrite` does, less large collectives where
    /// ranks share memory: copying those takes longer than a call]
    #[arg(long, value_name = "TEXT")]
    pipeline: Option<String>,
    /// What moves the data: `fake` answers at once, and nothing is compared
    #[arg(long, default_value = "local")]
    backend: BackendWord,
    /// How often each is run; the fastest run counts
    #[arg(long, value_name = "K", default_value_t = 1)]
    repeat: u32,
    /// Scale sizes down if the graph is too large to run, keeping all that divides
    #[arg(long)]
    shrink: bool,
    /// Most bytes of memory that all ranks together may take
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    max_memory: String,
    /// A network to play, such as alpha=20us,beta=10GB/s: no call ends before alpha and its bytes over beta
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// What the inputs are made from
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// A .safetensors file with the inputs, by name; `{rank}` in FILE stands for the rank, else all ranks read the same
    #[arg(long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// Make inputs that the file lacks from the seed
    #[arg(long, requires = "inputs")]
    fill_missing: bool,
    /// Write the outputs to a .safetensors file, by the names of their nodes; `{rank}` in FILE stands for the rank
    #[arg(long, value_name = "FILE")]
    outputs: Option<PathBuf>,
    /// Seconds that a collective may take before it fails
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Write what ran when, of the fastest run of each, for Chrome's and Perfetto's viewers
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    facts: FactsArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum BackendWord {
    /// Ranks as threads of this process
    Local,
    /// One rank without others
    Fake,
}

/// Runs the command.
pub fn run(arguments: RunArgs) -> Result<Verdict> {
    let job = Job::of(arguments)?;
    let progress = talk::Progress::start();
    progress.set("reading".to_owned());
    let label = input::label(&job.graph);
    let mut document = input::read_document(&job.graph)?;
    progress.pause(|| job.facts.apply(&mut document))?;
    input::well_formed(&label, &document)?;
    let [graph] = document.graphs() else {
        let what = format!("it holds {}; `run` takes one", count(document.graphs().len(), "graph"));
        return Err(InputFault::of_file(&label, what).into());
    };
    progress.set("bucketing".to_owned());
    let mut bucketed = graph.clone();
    let reports = job.pipeline.run(&mut bucketed).map_err(|error| match error {
        PipelineError::Input(errors) => InputFault::of_verify(&label, &document, 0, &errors).into(),
        error => anyhow!(error).context(label.clone()),
    })?;
    let declined = declined(&reports);
    let (graphs, scaling) = job.sized(graph, &bucketed)?;
    let programs = [job.lower(&graphs[0])?, job.lower(&graphs[1])?];
    let ranks = job.ranks_to_run(&programs)?;
    tensors::check(&job, &graphs[0], &programs[0], ranks)?;
    progress.set("reading inputs".to_owned());
    let inputs = (0..ranks).map(|rank| progress.pause(|| tensors::inputs(&job, &programs[0], rank)));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let [came, bucketed] = NAMES;
    let best = [
        job.fastest(&programs[0], &inputs, came, &progress)?,
        job.fastest(&programs[1], &inputs, bucketed, &progress)?,
    ];
    drop(progress);
    if let Some(trace) = &job.trace {
        write_traces(trace, &best)?;
    }
    let (mut text, verdict) = report(&job, &graphs[0], &programs, &best, scaling.as_ref());
    text.extend(declined);
    match &job.outputs {
        Some(_) if verdict != Verdict::Accepted => talk::warn("the outputs differ, so none are written"),
        Some(path) => tensors::write(path, &graphs[0], &best[0])?,
        None => {}
    }
    output::to_stdout(text.as_bytes())?;
    Ok(verdict)
}

/// What to do, as validated.
struct Job {
    graph: PathBuf,
    pipeline: Pipeline,
    backend: BackendWord,
    repeat: u32,
    shrink: bool,
    max_memory_bytes: u64,
    seed: u64,
    inputs: Option<PathBuf>,
    fill_missing: bool,
    outputs: Option<PathBuf>,
    local: LocalOptions,
    trace: Option<PathBuf>,
    facts: Facts,
}

impl Job {
    fn of(arguments: RunArgs) -> Result<Self> {
        let link = match &arguments.link {
            Some(text) => Some(text.parse::<Link>().map_err(|error| anyhow!("--link `{text}`: {error}"))?),
            None => None,
        };
        if link.is_some() && arguments.backend == BackendWord::Fake {
            bail!("--link: the backend `fake` moves nothing, so it cannot play a network");
        }
        if arguments.outputs.is_some() && arguments.backend == BackendWord::Fake {
            bail!("--outputs: the backend `fake` moves nothing, so its outputs mean nothing");
        }
        if arguments.repeat == 0 || arguments.timeout == 0 {
            bail!("--repeat and --timeout: expected a whole number of at least 1");
        }
        // Times at scaled sizes say nothing, so then all that can be is bucketed.
        let declines = arguments.backend == BackendWord::Local && !arguments.shrink;
        let max_member_bytes = declines.then(|| local::worthwhile_member_bytes(link.as_ref()));
        let pipeline = match &arguments.pipeline {
            Some(text) => text.parse().with_context(|| format!("--pipeline `{text}`"))?,
            None => default_pipeline(max_member_bytes),
        };
        let timeout = Duration::from_secs(arguments.timeout);
        Ok(Self {
            pipeline,
            graph: arguments.graph,
            backend: arguments.backend,
            repeat: arguments.repeat,
            shrink: arguments.shrink,
            max_memory_bytes: parse_bytes(&arguments.max_memory)
                .map_err(|error| anyhow!("--max-memory `{}`: {}", arguments.max_memory, error.expected))?,
            seed: arguments.seed,
            inputs: arguments.inputs,
            fill_missing: arguments.fill_missing,
            outputs: arguments.outputs,
            local: LocalOptions { timeout, link, ..LocalOptions::default() },
            trace: arguments.trace,
            facts: arguments.facts.validate()?,
        })
    }

    /// Both graphs, small enough to run.
    fn sized(&self, graph: &Graph, bucketed: &Graph) -> Result<(Vec<Graph>, Option<Scaling>)> {
        if !self.shrink {
            return Ok((vec![graph.clone(), bucketed.clone()], None));
        }
        let shrunk = shrink(&[graph, bucketed], &EvalOptions::default());
        let shrunk = shrunk.map_err(|error: ShrinkError| anyhow!("--shrink: {error}"))?;
        Ok((shrunk.graphs, shrunk.scaling))
    }

    fn lower(&self, graph: &Graph) -> Result<Program> {
        match lower(graph, &LowerOptions::default()) {
            Ok((program, _)) => Ok(program),
            Err(error @ LowerError::Size(_)) => Err(anyhow!(error).context("give sizes values with --hint")),
            Err(error) => Err(anyhow!(error)),
        }
    }

    /// How many ranks run both programs. Refuses those that would not fit, before anything is allocated.
    fn ranks_to_run(&self, programs: &[Program; 2]) -> Result<u32> {
        let mut ranks = 0;
        for program in programs {
            ranks = if self.backend == BackendWord::Fake { 1 } else { world_size(program)? };
            self.check_memory(program, ranks)?;
        }
        Ok(ranks)
    }

    fn check_memory(&self, program: &Program, ranks: u32) -> Result<()> {
        let given = program.buffers.iter().filter(|buffer| buffer.place.is_none()).map(|buffer| buffer.bytes);
        let each = given.fold(program.peak_bytes(), u64::saturating_add);
        let all = each.saturating_mul(u64::from(ranks));
        if all > self.max_memory_bytes {
            let (all, most) = (human(all), human(self.max_memory_bytes));
            let ranks = count(ranks as usize, "rank");
            bail!("running it takes {all} on {ranks}, more than the {most} of --max-memory; --shrink scales it down");
        }
        Ok(())
    }

    /// Runs a program as often as asked for, on all ranks; returns the run whose slowest rank was fastest.
    fn fastest(
        &self,
        program: &Program,
        inputs: &[Vec<Output>],
        name: &str,
        progress: &talk::Progress,
    ) -> Result<Vec<Run>> {
        let run = |nth: u32| {
            progress.set(format!("running {name}, {nth} of {}", self.repeat));
            self.ranks(program, inputs)
        };
        let mut best = run(1)?;
        for nth in 2..=self.repeat {
            let next = run(nth)?;
            if slowest(&next).total < slowest(&best).total {
                best = next;
            }
        }
        Ok(best)
    }

    /// Runs a program once, on all ranks, each with its inputs.
    fn ranks(&self, program: &Program, inputs: &[Vec<Output>]) -> Result<Vec<Run>> {
        let ranks = world_size(program)?;
        let one = |rank: &dyn Backend| self.one(program, &inputs[rank.rank().0 as usize], rank);
        if self.backend == BackendWord::Fake {
            let rank = FakeRank::new(GlobalRank(0), ranks).map_err(|error: CommError| anyhow!(error))?;
            return one(&rank).map(|run| vec![run]).map_err(explained);
        }
        let results = local::run(ranks, self.local.clone(), |rank| one(&rank))?;
        let mut runs = Vec::new();
        let mut errors: Vec<RunError> = Vec::new();
        for (rank, result) in results.into_iter().enumerate() {
            match result.map_err(|_| anyhow!("rank {rank} panicked; please report this"))? {
                Ok(run) => runs.push(run),
                Err(error) => errors.push(error),
            }
        }
        // Of several, the one that others only followed.
        let follows = |error: &RunError| matches!(error, RunError::Comm { error, .. } if matches!(**error, CommError::Remote { .. }));
        match errors.iter().position(|error| !follows(error)).or((!errors.is_empty()).then_some(0)) {
            None => Ok(runs),
            Some(first) => Err(explained(errors.swap_remove(first))),
        }
    }

    fn one(&self, program: &Program, inputs: &[Output], rank: &dyn Backend) -> Result<Run, RunError> {
        let mut executor = Executor::new(program, rank)?;
        executor.run(inputs, &mut Reference::new(rank.rank(), self.seed))
    }
}

/// Why a run failed, and what to do about it.
fn explained(error: RunError) -> anyhow::Error {
    match error {
        RunError::Compute(error) if matches!(*error, EvalError::TooLarge { .. } | EvalError::GraphTooLarge { .. }) => {
            anyhow!(error).context("the graph is too large to run; --shrink scales it down")
        }
        error => anyhow!(error),
    }
}

/// The times of the rank that took longest.
fn slowest(runs: &[Run]) -> Times {
    runs.iter().map(|run| run.times).max_by_key(|times| times.total).unwrap_or_default()
}

/// The traces of both runs in one file: the ranks as it came, then the ranks bucketed.
fn write_traces(path: &Path, best: &Both) -> Result<()> {
    let mut processes: Vec<(String, &[Event])> = Vec::new();
    for (name, runs) in NAMES.into_iter().zip(best) {
        processes.extend(runs.iter().enumerate().map(|(rank, run)| (format!("rank {rank}, {name}"), &*run.events)));
    }
    output::write(Some(path), chrome_trace(&processes).as_bytes())
}

/// The first output that differs: rank and place.
fn difference([before, after]: &Both) -> Option<(usize, usize)> {
    before.iter().zip(after).enumerate().find_map(|(rank, (before, after))| {
        let differs = |(a, b): (&Output, &Output)| !a.same_elements(b);
        let place = before.outputs.iter().zip(&after.outputs).position(differs)?;
        Some((rank, place))
    })
}

/// What `rewrite` does, less what is not worth copying.
fn default_pipeline(max_member_bytes: Option<u64>) -> Pipeline {
    let mut pipeline = Pipeline::default_rewrite();
    for pass in &mut pipeline.passes {
        if let Pass::Bucket(options) = pass {
            options.max_member_bytes = max_member_bytes;
        }
    }
    pipeline
}

/// What to say of collectives that were left alone since copying them takes longer than launching them.
fn declined(reports: &[PassReport]) -> Option<String> {
    let remarks = reports.iter().filter_map(|report| report.plan.as_ref()).flat_map(|plan| &plan.remarks);
    let most = |remark: &Remark| match &remark.decision {
        Decision::Alone(Reason::LargeMember { max_member_bytes, .. }) => Some(*max_member_bytes),
        _ => None,
    };
    let large: Vec<u64> = remarks.filter_map(most).collect();
    let most = human(*large.first()?);
    Some(format!(
        "  left alone: {} of more than {most}, as copying them would take longer than launching them between these ranks; \
         --pipeline buckets what it says\n",
        count(large.len(), "collective")
    ))
}

/// What to say where bucketing made communication slower: waiting for calls, packs, unpacks and other copies.
fn loss(before: Times, after: Times) -> Option<String> {
    let moving = |times: Times| times.exposed + times.pack.time + times.unpack.time + times.copy.time;
    let [before, after] = [before, after].map(|times| moving(times).as_secs_f64() * 1000.0);
    (after > before * LOSS).then(|| {
        format!(
            "  bucketing does not pay here: waits and copies take {after:.2} ms, {before:.2} ms as it came. Between these \
             ranks a call costs less than copying its members; --pipeline with mode=coalesced packs nothing, smaller \
             caps copy within the cache, and --link plays a network"
        )
    })
}

fn report(
    job: &Job,
    graph: &Graph,
    programs: &[Program; 2],
    best: &Both,
    scaling: Option<&Scaling>,
) -> (String, Verdict) {
    let [before, after] = best;
    let mut table = Table::new(&[
        ("", Align::Left),
        ("calls", Align::Right),
        ("sent", Align::Right),
        ("pack", Align::Right),
        ("comm", Align::Right),
        ("unpack", Align::Right),
        ("compute", Align::Right),
        ("exposed", Align::Right),
        ("total", Align::Right),
        ("memory", Align::Right),
    ]);
    for ((name, runs), program) in NAMES.into_iter().zip(best).zip(programs) {
        let slowest = slowest(runs);
        let time = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1000.0);
        table.row([
            name.to_owned(),
            program.launches().to_string(),
            human(slowest.sent_bytes),
            time(slowest.pack.time),
            time(slowest.comm.time),
            time(slowest.unpack.time),
            time(slowest.compute.time + slowest.copy.time),
            time(slowest.exposed),
            time(slowest.total),
            human(program.peak_bytes()),
        ]);
    }
    let ranks = count(before.len(), "rank");
    let mut lines = vec![format!(
        "graph `{}` on {ranks}, the slowest rank of the fastest of {}:",
        graph.name,
        count(job.repeat as usize, "run")
    )];
    lines.extend(table.lines(usize::MAX));
    let ratio = |of: fn(&Times) -> Duration| {
        let longest = |runs: &[Run]| runs.iter().map(|run| of(&run.times)).max().unwrap_or_default().as_secs_f64();
        let (before, after) = (longest(before), longest(after));
        if after > 0.0 { format!("{:.2}", before / after) } else { "-".to_owned() }
    };
    lines.push(format!(
        "  as it came over bucketed: comm {}, exposed {}, total {}",
        ratio(|times| times.comm.time),
        ratio(|times| times.exposed),
        ratio(|times| times.total)
    ));
    if job.repeat >= MIN_REPEATS
        && let Some(line) = loss(slowest(before), slowest(after))
    {
        lines.push(line);
    }
    if let Some(scaling) = scaling {
        lines.push(format!("  at 1/{} of the bytes", scaling.bytes_before / scaling.bytes_after.max(1)));
    }
    let outputs = before.first().map_or(0, |run| run.outputs.len());
    let verdict = match difference(best) {
        _ if job.backend == BackendWord::Fake => {
            lines.push("  not compared: nothing was moved".to_owned());
            Verdict::Accepted
        }
        None => {
            lines.push(format!("  outputs: {} on each rank, equal bit for bit", count(outputs, "output")));
            Verdict::Accepted
        }
        Some((rank, place)) => {
            lines.push(format!("  outputs differ: output {place} on rank {rank} first"));
            Verdict::Rejected
        }
    };
    (lines.join("\n") + "\n", verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bucketeer::runtime::executor::StepKindTimes;

    #[test]
    fn a_loss_of_more_than_five_in_a_hundred_is_said() {
        let times = |exposed: u64, copies: u64| {
            let each = StepKindTimes { steps: 1, time: Duration::from_micros(copies) };
            Times { exposed: Duration::from_micros(exposed), pack: each, unpack: each, copy: each, ..Times::default() }
        };
        assert_eq!(loss(times(700, 100), times(750, 100)), None);
        assert_eq!(loss(times(700, 100), times(0, 0)), None);
        let said = loss(times(700, 100), times(451, 200)).unwrap_or_default();
        assert!(said.contains("does not pay here: waits and copies take 1.05 ms, 1.00 ms as it came"), "{said}");
    }
}
