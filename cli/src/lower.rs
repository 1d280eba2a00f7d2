//! `lower`: a graph as buffers and steps, with a memory plan.

use crate::advice::Answered as _;
use crate::fault::InputFault;
use crate::input::{Facts, FactsArgs, Files};
use crate::units::{count, human as bytes};
use crate::{ExitStatus, input, output, talk};
use anyhow::{Context, Result, anyhow, bail};
use bucketeer::check::program::{ProgramVerdict, prove};
use bucketeer::codegen::average::Average;
use bucketeer::codegen::cuda::{CudaModule, CudaOptions};
use bucketeer::codegen::plan::LaunchPlan;
use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerError, LowerOptions, LowerReport, lower};
use bucketeer::program::{Program, StepKind};
use bucketeer_types::sizes::parse_bytes;
use std::path::PathBuf;

/// Programs of at most so many nodes are proven unasked.
const MOST_NODES: usize = 100_000;

/// Lowers a graph to a program of comm buffers, packs, collectives, waits and unpacks, and plans its memory
///
/// The program is the same on every rank. Symbolic sizes need values: hints in the file, or --hint. The result is proven
/// to compute what the graph does before it is written.
#[derive(Debug, clap::Args)]
pub struct LowerArgs {
    /// The file to lower: FX text, HLO text, a .pt2 archive or its model.json,
    /// native text or JSON, plain or gzip; `-` is stdin. It holds one graph
    #[arg(value_name = "GRAPH")]
    graph: PathBuf,
    /// The form to write
    #[arg(long, value_name = "FORM", default_value = "program")]
    emit: Form,
    /// Members of buckets lie at multiples of this power of two
    #[arg(long, value_name = "N", default_value_t = 16)]
    align_bytes: u64,
    /// All-reduces of at most this size go in one shot from comm buffers
    #[arg(long, value_name = "SIZE", default_value = "0")]
    one_shot_max: String,
    /// Copy into buckets what its producer could write there
    #[arg(long)]
    no_realise: bool,
    /// Passes to run first, in text form, as for `rewrite`; the summary then has the peak before them, too
    #[arg(long, value_name = "TEXT")]
    pipeline: Option<String>,
    #[command(flatten)]
    facts: FactsArgs,
    /// Whether to prove that the program computes what the graph does; by default up to 100,000 nodes
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    verify: Option<Switch>,
    /// With `--emit cuda` and `--emit plan`: who divides the averages of floats
    #[arg(long, value_name = "WHO", default_value = "collective")]
    average: AverageWord,
    /// Where to write the program [default: stdout]
    #[arg(short, long, value_name = "OUT")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Form {
    /// Text, for people
    Program,
    /// JSON, for machines
    Json,
    /// What a host does: arenas, buffers, kernels and launches, as JSON
    Plan,
    /// Packs, unpacks and copies as CUDA C++
    Cuda,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum AverageWord {
    /// The collective
    Collective,
    /// The pack; the collective sums
    Before,
    /// The unpack; the collective sums
    After,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Runs the command.
pub fn run(arguments: LowerArgs) -> Result<ExitStatus> {
    let one_shot_max_bytes = match arguments.one_shot_max.as_str() {
        "0" => 0,
        text => parse_bytes(text).with_context(|| format!("--one-shot-max {text}"))?,
    };
    let (align_bytes, realise) = (arguments.align_bytes, !arguments.no_realise);
    let options = LowerOptions { align_bytes, one_shot_max_bytes, realise, ..LowerOptions::default() };
    let pipeline: Option<Pipeline> = arguments.pipeline.as_deref().map(str::parse).transpose().context("--pipeline")?;
    let facts: Facts = arguments.facts.validate()?;
    let label = input::label(&arguments.graph);
    let mut document = input::read_document(&arguments.graph, &Files::on_disk())?;
    facts.apply(&mut document, &Files::on_disk())?;
    input::well_formed(&label, &document)?;
    let Some(graph) = document.only_graph() else {
        bail!("{label} holds {}; lower one at a time, with --graph N", count(document.graphs().len(), "graph"));
    };
    let (program, report) = lowered(&label, graph, &options)?;
    let (graph, program, report, before) = match &pipeline {
        None => (graph.clone(), program, report, None),
        Some(pipeline) => {
            let mut rewritten = graph.clone();
            pipeline.run(&mut rewritten).map_err(|error| anyhow!(error).context(label.clone()))?;
            pipeline.run_in_bodies(&mut rewritten).map_err(|error| anyhow!(error).context(label.clone()))?;
            let (after, report) = lowered(&label, &rewritten, &options)?;
            (rewritten, after, report, Some(program.peak_bytes()))
        }
    };
    summary(&program, report, before).iter().for_each(|line| talk::say(line));
    let wanted = arguments.verify.map_or(graph.order().len() <= MOST_NODES, |word| word == Switch::On);
    if wanted {
        prove_or_stop(&label, &graph, &program, arguments.verify.is_some())?;
    }
    let text = match arguments.emit {
        Form::Program => program.to_string(),
        Form::Json => program.to_json(),
        Form::Plan => LaunchPlan::of(&program, &kernels(&label, &program, arguments.average)?).to_json(),
        Form::Cuda => kernels(&label, &program, arguments.average)?.source().to_owned(),
    };
    output::write(arguments.out.as_deref(), text.as_bytes())?;
    Ok(ExitStatus::Accepted)
}

fn lowered(label: &str, graph: &Graph, options: &LowerOptions) -> Result<(Program, LowerReport)> {
    lower(graph, options).map_err(|error| match error {
        LowerError::Align(_) => anyhow!("--align-bytes: {error}"),
        error => InputFault::of_file(label, error.advised()).into(),
    })
}

fn prove_or_stop(label: &str, graph: &Graph, program: &Program, asked: bool) -> Result<()> {
    match prove(graph, program) {
        ProgramVerdict::Equal(_) => talk::say("  proven equal"),
        ProgramVerdict::Different(fault) => bail!(
            "{label}: graph `{}`: the program does not compute what the graph does, or not provably. That is a fault of \
             bucketeer, please report it. Nothing is written; --verify=off writes it unproven\n{fault}",
            graph.name
        ),
        ProgramVerdict::CannotDecide(fault) if asked => {
            bail!("{label}: graph `{}` is not proven; nothing is written\n{fault}", graph.name)
        }
        ProgramVerdict::CannotDecide(fault) => talk::insist(&format!("  not proven: cannot decide: {fault}")),
    }
    Ok(())
}

fn summary(program: &Program, report: LowerReport, before: Option<u64>) -> Vec<String> {
    let (mut packs, mut computes, mut copies) = (0, 0, 0);
    for step in &program.steps {
        match step.kind {
            StepKind::Pack(_) | StepKind::Unpack(_) => packs += 1,
            StepKind::Copy(_) => copies += 1,
            StepKind::Compute(_) | StepKind::Run(_) => computes += 1,
            StepKind::Collective(_) | StepKind::Wait(_) => {}
        }
    }
    let peak = match before {
        Some(before) => format!("{} before the passes, {} after", bytes(before), bytes(program.peak_bytes())),
        None => bytes(program.peak_bytes()),
    };
    vec![
        format!(
            "program `{}`: {}, {}: {computes} compute, {packs} packs and unpacks, {copies} copies, {} launches",
            program.name,
            count(program.buffers.len(), "buffer"),
            count(program.steps.len(), "step"),
            program.launches(),
        ),
        format!(
            "  peak {peak}, of that comm {}; largest live set {}",
            bytes(program.comm_bytes()),
            bytes(program.live_bytes())
        ),
        format!(
            "  {} members packed, {} written in place by their producers, {} casts absorbed, {} of padding, {} in place, {} \
             in one shot",
            report.packed,
            report.realised,
            report.absorbed,
            bytes(report.padding_bytes),
            report.in_place,
            report.one_shot
        ),
    ]
}

/// The kernels of a program.
fn kernels(label: &str, program: &Program, average: AverageWord) -> Result<CudaModule> {
    let average = match average {
        AverageWord::Collective => Average::Collective,
        AverageWord::Before => Average::Before,
        AverageWord::After => Average::After,
    };
    CudaModule::of(program, &CudaOptions { average }).map_err(|error| anyhow!(error).context(label.to_owned()))
}
