//! `plan`: when collectives are launched, travel together and are waited for, so that the step ends sooner.

mod costs;
mod helps;
mod own;
mod pictures;
mod report;
mod sweep;

use crate::fault::InputFault;
use crate::input::{Facts, FactsArgs};
use crate::proof::{self, Source};
use crate::talk::Progress;
use crate::units::time;
use crate::{ExitStatus, input, output, talk};
use anyhow::{Result, anyhow, bail};
use bucketeer::check::{self, Options};
use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use bucketeer::passes::memory::MemoryCap;
use bucketeer::passes::schedule::{
    Buckets, Effort, PlanError, ScheduleOptions, Timeline, plan, plannable, waited_on_the_spot,
};
use bucketeer_formats::{Document, Format};
use costs::CostsArgs;
use helps::Helps;
use pictures::Shown;
use std::path::PathBuf;

/// Plans a step: which collectives travel together, and where each is launched and waited for
///
/// Every node takes the time that the costs give it, every message the time of its kind, group and size. Computation and
/// the messages of each group run side by side; what the step takes beyond its computation is exposed. The plan makes that
/// short, within a cap on the bytes alive at once. It is proven, and written with -o in the form that was read: all ranks must
/// run that same graph.
#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    /// The file to plan: FX text, a .pt2 archive or its model.json, XLA HLO text, native text or JSON,
    /// plain or gzip; `-` is stdin. It holds one graph, which is that of all ranks
    #[arg(value_name = "GRAPH")]
    graph: PathBuf,
    #[command(flatten)]
    costs: CostsArgs,
    /// The most bytes that may be alive at once: `normal` is what the graph needs as it stands and 1 GiB or 5 %,
    /// whichever is more; `same` is what it needs as it stands; `+5%` is that much more; a size such as 80GB; `none` is no limit
    #[arg(long, value_name = "CAP", default_value = "normal")]
    memory: MemoryCap,
    /// How long to look; the plan is the same on every machine
    #[arg(long, value_name = "WORD", default_value = "default")]
    effort: EffortWord,
    /// Who says which collectives travel together: the plan, or the graph as it came, whose launches and waits then only move
    #[arg(long, value_name = "WORD", default_value = "chosen", conflicts_with = "pipeline")]
    buckets: BucketsWord,
    /// Passes that bucket it first, in text form, as for `rewrite`; launches and waits then only move
    #[arg(long, value_name = "TEXT")]
    pipeline: Option<Pipeline>,
    /// A plan of your own, as JSON, in place of one that is looked for: which collectives travel together, by patterns of
    /// names, and where each bucket is launched and waited for. All else stays as it is; docs/planning.md says how it is written
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pipeline", "buckets", "effort", "sweep", "as_written"])]
    own: Option<PathBuf>,
    #[command(flatten)]
    facts: FactsArgs,
    /// How many of the dearest waits to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    waits: usize,
    /// Say of each launch what travels in it, where it is launched and waited for, what it hides behind and what stays exposed
    #[arg(long, conflicts_with = "json")]
    explain: bool,
    /// Plan it for several caps on memory, from what the graph needs as it stands to as much as helps, and bucket it with several
    /// caps on buckets as `rewrite` does: what each takes. Writes no graph
    #[arg(long, conflicts_with_all = ["out", "pipeline", "as_written", "explain"])]
    sweep: bool,
    #[command(flatten)]
    pictures: PicturesArgs,
    /// Only say how the graph runs as it stands
    #[arg(long, conflicts_with = "out")]
    as_written: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
    /// Where to write the planned graph; may be the file that was read [default: nowhere]
    #[arg(short, long, value_name = "OUT")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum EffortWord {
    /// What is built at once
    Low,
    /// About two seconds
    Default,
    /// About a minute
    High,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum BucketsWord {
    /// What the plan chooses
    Chosen,
    /// As they are
    Kept,
}

impl From<EffortWord> for Effort {
    fn from(word: EffortWord) -> Self {
        match word {
            EffortWord::Low => Self::Low,
            EffortWord::Default => Self::Default,
            EffortWord::High => Self::High,
        }
    }
}

/// What is drawn.
#[derive(Debug, clap::Args)]
struct PicturesArgs {
    /// Write a page that shows what runs when, as it came above as planned: zoom, search, names under the pointer
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    timeline: Option<PathBuf>,
    /// Write what runs when for Chrome's and Perfetto's viewers
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    trace: Option<PathBuf>,
}

impl PicturesArgs {
    /// Writes the pictures that were asked for.
    fn draw(&self, graph: &str, shown: &[Shown<'_>]) -> Result<()> {
        if let Some(path) = &self.timeline {
            output::write(Some(path), pictures::page(graph, shown).as_bytes())?;
        }
        if let Some(path) = &self.trace {
            output::write(Some(path), pictures::trace(shown).as_bytes())?;
        }
        Ok(())
    }
}

/// Runs the command.
pub fn run(arguments: PlanArgs) -> Result<ExitStatus> {
    let view = report::View { waits: arguments.waits, explain: arguments.explain, json: arguments.json };
    let facts: Facts = arguments.facts.validate()?;
    let label = input::label(&arguments.graph);
    let progress = Progress::start();
    progress.set(format!("reading {label}"));
    let mut document = input::read_document(&arguments.graph)?;
    progress.pause(|| facts.apply(&mut document))?;
    input::well_formed(&label, &document)?;
    let Some(source) = document.only_graph().cloned() else {
        let count = crate::units::count(document.graphs().len(), "graph");
        bail!("{label} holds {count}; plan one at a time, with --graph N");
    };
    let refused = |error: PlanError| anyhow!(InputFault::of_file(&label, error.to_string()));
    plannable(&source).map_err(refused)?;
    let costs = arguments.costs.of(&source, &label)?;
    let before = Timeline::of(&source, &costs).map_err(|error| refused(error.into()))?;
    let cap_bytes = arguments.memory.bytes(before.peak_bytes);
    if arguments.as_written {
        drop(progress);
        let shown = [Shown { name: "as it came", graph: &source, run: &before }];
        arguments.pictures.draw(&source.name, &shown)?;
        return report::show(&source, &shown, None, cap_bytes, &view);
    }
    if arguments.sweep {
        let found = sweep::sweep(&source, &costs, &before, arguments.effort.into(), &progress).map_err(refused)?;
        drop(progress);
        return sweep::show(&source, &found, arguments.json);
    }
    let mut options = ScheduleOptions::default();
    (options.cap_bytes, options.effort) = (cap_bytes, arguments.effort.into());
    let graph = &mut document.graphs_mut()[0];
    let mut bucketed = None;
    let costs = match &arguments.pipeline {
        Some(pipeline) => {
            progress.set("bucketing".to_owned());
            pipeline.run(graph).map_err(|error| anyhow!(error).context(label.clone()))?;
            let costs = costs.of_what_is_left(graph);
            bucketed = Some(graph.clone());
            costs
        }
        None => costs,
    };
    if arguments.pipeline.is_some() || arguments.buckets == BucketsWord::Kept {
        options.buckets = Buckets::Kept;
    }
    progress.set("planning".to_owned());
    let planned = match &arguments.own {
        Some(path) => own::apply(path, graph, &label, &costs, cap_bytes)?,
        None => plan(graph, &costs, &options).map_err(refused)?,
    };
    progress.set("proving".to_owned());
    // What is written is what is proven, read back.
    let text = document.print();
    let written = crate::rewrite::read_back(&label, &document, &text)?;
    let proven = prove(&label, &document, &source, &written.graphs()[0])?;
    progress.set("what would help".to_owned());
    // Work that is as large as the plan's is not done for those in a hurry.
    let helps = match options.effort {
        Effort::Low => Helps::default(),
        _ => {
            let came = bucketed.as_ref().unwrap_or(&source);
            Helps::of(came, &document.graphs()[0], &costs, &planned, &options).map_err(refused)?
        }
    };
    drop(progress);
    if let Some(out) = &arguments.out {
        output::write(Some(out), &text)?;
    }
    let mut shown = vec![Shown { name: "as it came", graph: &source, run: &before }];
    shown.extend(bucketed.as_ref().map(|graph| Shown { name: "bucketed", graph, run: &planned.before }));
    let graph = &document.graphs()[0];
    let verdict = report::show(graph, &shown, Some((&planned, &helps)), cap_bytes, &view)?;
    shown.push(Shown { name: "planned", graph, run: &planned.after });
    arguments.pictures.draw(&source.name, &shown)?;
    proven.iter().for_each(|line| talk::say(line));
    if source.scheduled {
        talk::say("  buckets are kept, and so is the order of all but launches that are split from their waits");
    } else if matches!(document.format(), Format::Hlo) {
        let written = waited_on_the_spot(&document.graphs()[0]);
        let on_the_spot = Timeline::of(&written, &costs.of_what_is_left(&written))?;
        talk::say(&buckets_alone(&on_the_spot));
    }
    Ok(verdict)
}

/// What is written of the plan of a module that XLA orders itself: its buckets.
fn buckets_alone(on_the_spot: &Timeline) -> String {
    format!(
        "  XLA orders this module: the buckets are written, launches and waits are not. The planned time is that of a schedule \
         that launches\n  and waits as planned, and was not measured; with each collective waited for on the spot, the written \
         module takes {}",
        time(on_the_spot.makespan_ns)
    )
}

/// Proves a planned graph, and says on which conditions.
fn prove(label: &str, document: &Document, source: &Graph, result: &Graph) -> Result<Vec<String>> {
    let options = Options { launches_may_move: true, ..Options::default() };
    let before = Some(Source { file: label, document, graph: 0 });
    match check::prove_with(source, result, options) {
        check::Verdict::Equal(proof) => {
            let mut lines = vec!["  proven equal, where every rank runs this graph".to_owned()];
            lines.extend(proof::conditions(&proof).into_iter().map(|line| format!("    {line}")));
            Ok(lines)
        }
        check::Verdict::Different(found) => bail!(
            "{label}: graph `{}`: the plan does not compute what the graph does, or not provably. That is a fault of \
             bucketeer, please report it. Nothing is written\n{}",
            source.name,
            proof::difference(&found, before, None)
        ),
        check::Verdict::CannotDecide(found) => {
            bail!(
                "{label}: graph `{}` is not proven; nothing is written\n{}",
                source.name,
                proof::undecided(&found, before, None)
            )
        }
    }
}
