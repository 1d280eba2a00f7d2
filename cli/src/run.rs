//! `run`: a graph as it came and bucketed, on all ranks, compared and timed.

#[cfg(feature = "mpi")]
mod mpi;
mod planned;
mod processes;
mod report;
mod tensors;
mod threads;
mod told;

use crate::advice::Answered as _;
use crate::fault::InputFault;
use crate::input::{Facts, FactsArgs, Files};
use crate::units::{count, human};
use crate::{ExitStatus, input, output, talk, world};
use anyhow::{Context, Result, anyhow, bail};
use bucketeer::ir::Graph;
use bucketeer::passes::lowering::{LowerError, LowerOptions, lower};
use bucketeer::passes::{Pass, Pipeline, PipelineError};
use bucketeer::program::Program;
use bucketeer_comm::local::{self, LocalOptions};
use bucketeer_eval::{EvalError, EvalOptions, Output, Scaling, ShrinkError, shrink};
use bucketeer_exec::{Event, Run, RunError, chrome_trace, world_size};
use bucketeer_types::sizes::parse_bytes;
use report::{Outcome, declined, made_up, report, unknown_names};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The names of the runs.
const NAMES: [&str; 3] = ["as it came", "bucketed", "planned"];

/// All ranks' runs: of the graph as it came, of the bucketed one, and of the planned one where that was asked for.
type Runs = Vec<Vec<Run>>;

/// Runs a graph as it came and bucketed, on all its ranks, compares the outputs bit for bit, and says where the time went
///
/// Ranks are threads of this process, or with --backend nccl processes of a launcher, each with a GPU:
/// `bucketeer launch --nproc 4 -- run GRAPH --backend nccl`. Inputs are made from a seed, or read with --inputs; compute steps are run by the
/// reference evaluator, which is slow, so times of compute mean little, and those of communication are for this machine's
/// memory: with --link each call takes as long as on a network. Each is run once before it is timed. For operators that the
/// evaluator does not know it makes numbers up, the same in both runs; these are counted, and --outputs then writes
/// nothing. Exit code 1 if the outputs differ.
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
    /// What moves the data: ranks are threads on `local`, and processes with a GPU each on `nccl`; `fake` answers at once, and
    /// nothing is compared
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
    /// Run it planned, too, as `plan` does: by what computing took in the run as it came, and the network that is played
    #[arg(long, requires = "link")]
    planned: bool,
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
    /// Write outputs although the evaluator made numbers up for operators that it does not know: to compare runs with one
    /// another, and nothing else
    #[arg(long, requires = "outputs")]
    made_up: bool,
    /// Seconds that a collective may take before it fails
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Write what ran when, of the fastest run of each, for Chrome's and Perfetto's viewers, with bytes, dtypes, groups and their
    /// ranks; where ranks are processes, each writes its own, and `{rank}` in FILE stands for the rank
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// With --backend nccl, the folder where each rank writes its last calls when one fails, as flight-rankN.json
    /// [default: bucketeer-flight-PORT in the system's folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    flight_records: Option<PathBuf>,
    #[command(flatten)]
    facts: FactsArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum BackendWord {
    /// Ranks as threads of this process
    Local,
    /// Ranks as processes with a GPU each: under `bucketeer launch`, torchrun, mpirun or srun
    Nccl,
    /// Ranks as processes of MPI: under mpirun
    #[cfg(feature = "mpi")]
    Mpi,
    /// One rank without others
    Fake,
}

impl BackendWord {
    /// Whether each rank is a process.
    fn has_processes(self) -> bool {
        !matches!(self, Self::Local | Self::Fake)
    }
}

/// This process among others.
enum Process {
    Nccl(processes::Process),
    #[cfg(feature = "mpi")]
    Mpi(mpi::Process),
}

impl Process {
    fn rank(&self) -> u32 {
        match self {
            Self::Nccl(process) => process.rank(),
            #[cfg(feature = "mpi")]
            Self::Mpi(process) => process.rank(),
        }
    }

    fn run(
        self,
        job: &Job,
        programs: &[Program],
        inputs: &[Output],
        progress: &talk::Progress,
    ) -> Result<(Runs, Outcome)> {
        match self {
            Self::Nccl(process) => process.run(job, programs, inputs, progress),
            #[cfg(feature = "mpi")]
            Self::Mpi(process) => process.run(job, programs, inputs, progress),
        }
    }
}

/// Runs the command.
pub fn run(arguments: RunArgs) -> Result<ExitStatus> {
    let job = Job::of(arguments)?;
    let progress = talk::Progress::start();
    progress.set("reading".to_owned());
    let label = input::label(&job.graph);
    let mut document = input::read_document(&job.graph, &Files::on_disk())?;
    progress.pause(|| job.facts.apply(&mut document, &Files::on_disk()))?;
    input::well_formed(&label, &document)?;
    let Some(graph) = document.only_graph() else {
        let what = format!("it holds {}; `run` takes one, as --graph N says", count(document.graphs().len(), "graph"));
        return Err(InputFault::of_file(&label, what).into());
    };
    progress.set("bucketing".to_owned());
    let mut bucketed = graph.clone();
    let reports = job.pipeline.run(&mut bucketed).map_err(|error| match error {
        PipelineError::Input(errors) => InputFault::of_verify(&label, &document, 0, &errors).into(),
        error => anyhow!(error).context(label.clone()),
    })?;
    job.pipeline.run_in_bodies(&mut bucketed).map_err(|error| anyhow!(error).context(label.clone()))?;
    let declined = declined(&reports);
    let (graphs, scaling) = job.sized(graph, &bucketed)?;
    let mut programs = vec![job.lower(&graphs[0])?, job.lower(&graphs[1])?];
    let ranks = job.ranks_to_run(&programs)?;
    tensors::check(&job, &graphs[0], &programs[0], ranks)?;
    let process = match job.backend {
        BackendWord::Nccl => Some(Process::Nccl(processes::Process::join(&job, ranks)?)),
        #[cfg(feature = "mpi")]
        BackendWord::Mpi => Some(Process::Mpi(mpi::Process::join(&job, ranks)?)),
        BackendWord::Local | BackendWord::Fake => None,
    };
    progress.set("reading inputs".to_owned());
    let own = process.as_ref().map_or(0..ranks, |process| process.rank()..process.rank() + 1);
    let inputs = own.clone().map(|rank| progress.pause(|| tensors::inputs(&job, &programs[0], rank)));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let is_process = process.is_some();
    let (best, outcome) = match process {
        Some(process) => process.run(&job, &programs, &inputs[0], &progress)?,
        None => job.on_threads(&graphs[0], &mut programs, &inputs, &progress)?,
    };
    drop(progress);
    if let Some(trace) = &job.trace {
        let trace = if is_process { output::of_rank(trace, own.start) } else { trace.clone() };
        write_traces(&trace, own.start, &best)?;
    }
    let (mut text, verdict) = report(&job, &graphs[0], &programs, &outcome, scaling.as_ref());
    let unknown = best[0].first().map_or(&[][..], |run| &run.unknown);
    text.extend(made_up(unknown));
    text.extend(declined);
    // One rank speaks for all.
    let speaks = own.start == 0;
    match &job.outputs {
        Some(_) if verdict != ExitStatus::Accepted && speaks => talk::warn("the outputs differ, so none are written"),
        Some(_) if verdict != ExitStatus::Accepted => {}
        Some(_) if !unknown.is_empty() && !job.made_up => bail!(
            "--outputs: {}; nothing is written (--made-up writes them all the same, to compare runs)",
            unknown_names(unknown)
        ),
        Some(path) => tensors::write(path, &graphs[0], own.start, &best[0])?,
        None => {}
    }
    if speaks {
        output::to_stdout(text.as_bytes())?;
    }
    Ok(verdict)
}

/// What to do, as validated.
struct Job {
    graph: PathBuf,
    pipeline: Pipeline,
    backend: BackendWord,
    repeat: u32,
    shrink: bool,
    planned: bool,
    max_memory_bytes: u64,
    seed: u64,
    inputs: Option<PathBuf>,
    fill_missing: bool,
    outputs: Option<PathBuf>,
    made_up: bool,
    local: LocalOptions,
    trace: Option<PathBuf>,
    flight_records: Option<PathBuf>,
    facts: Facts,
}

impl Job {
    fn of(arguments: RunArgs) -> Result<Self> {
        let link = world::link(arguments.link.as_deref())?;
        if link.is_some() && arguments.backend == BackendWord::Fake {
            bail!("--link: the backend `fake` moves nothing, so it cannot play a network");
        }
        if link.is_some() && arguments.backend.has_processes() {
            bail!("--link: ranks that are processes have a network of their own; the backend `local` can play one");
        }
        if arguments.flight_records.is_some() && arguments.backend != BackendWord::Nccl {
            bail!("--flight-records: only the backend `nccl` writes them");
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
            planned: arguments.planned,
            max_memory_bytes: parse_bytes(&arguments.max_memory)
                .map_err(|error| anyhow!("--max-memory `{}`: {}", arguments.max_memory, error.expected))?,
            seed: arguments.seed,
            inputs: arguments.inputs,
            fill_missing: arguments.fill_missing,
            outputs: arguments.outputs,
            made_up: arguments.made_up,
            local: LocalOptions { timeout, link, ..LocalOptions::default() },
            trace: arguments.trace,
            flight_records: arguments.flight_records,
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

    /// How many ranks run the programs. Refuses those that would not fit, before anything is allocated.
    fn ranks_to_run(&self, programs: &[Program]) -> Result<u32> {
        let mut ranks = 0;
        for program in programs {
            ranks = if self.backend == BackendWord::Fake { 1 } else { world_size(program).map_err(explained)? };
            // Of processes each knows of its own memory alone.
            self.check_memory(program, if self.backend.has_processes() { 1 } else { ranks })?;
        }
        if let Some(trace) = self.trace.as_ref().filter(|_| self.backend.has_processes() && ranks > 1) {
            tensors::expect_rank("--trace", trace, ranks)?;
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
}

/// Why a run failed, and what to do about it.
fn explained(error: RunError) -> anyhow::Error {
    match error {
        RunError::Compute(error) if matches!(*error, EvalError::TooLarge { .. } | EvalError::GraphTooLarge { .. }) => {
            anyhow!(error).context("the graph is too large to run; --shrink scales it down")
        }
        error => anyhow!(error.advised()),
    }
}

/// The traces of all runs in one file: the ranks as it came, then the ranks bucketed, then the ranks planned.
fn write_traces(path: &Path, first: u32, best: &Runs) -> Result<()> {
    let mut processes: Vec<(String, &[Event])> = Vec::new();
    for (name, runs) in NAMES.into_iter().zip(best) {
        let named = (first..).zip(runs).map(|(rank, run)| (format!("rank {rank}, {name}"), &*run.events));
        processes.extend(named);
    }
    output::write(Some(path), chrome_trace(&processes).as_bytes())
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
