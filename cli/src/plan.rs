//! `plan`: when collectives are launched, travel together and are waited for, so that the step ends sooner.

mod costs;
mod explain;
mod helps;
mod hiding;
mod own;
mod pictures;
mod report;
mod spans;
mod sweep;

use crate::fault::{InputFault, OptionFault, Refusal};
use crate::input::{Facts, FactsArgs, Files};
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
    Buckets, Costs, Effort, PlanError, Planned, ScheduleOptions, Timeline, plan, plannable, waited_on_the_spot,
};
use bucketeer_formats::Format;
use costs::CostsArgs;
use helps::Helps;
use pictures::Shown;
use std::path::{Path, PathBuf};
use sweep::Sweep;

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
    /// Write what runs when, as it came above as planned: a picture without scripts if the name ends in `.svg`, data if it ends in
    /// `.json`, else a page: zoom, search, names under the pointer
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    timeline: Option<PathBuf>,
    /// Write what runs when for Chrome's and Perfetto's viewers
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    trace: Option<PathBuf>,
}

impl PicturesArgs {
    /// Writes the pictures that were asked for.
    fn draw(&self, found: &Found) -> Result<()> {
        if let Some(path) = &self.timeline {
            output::write(Some(path), found.timeline(TimelineForm::of(path))?.as_bytes())?;
        }
        if let Some(path) = &self.trace {
            output::write(Some(path), pictures::trace(&found.shown()).as_bytes())?;
        }
        Ok(())
    }
}

/// What shows what runs when.
#[derive(Clone, Copy, Debug)]
enum TimelineForm {
    /// An HTML page of its own.
    Page,
    /// SVG.
    Picture,
    /// JSON.
    Data,
}

impl TimelineForm {
    /// The form that the end of a file's name asks for.
    fn of(path: &Path) -> Self {
        let end = path.extension().map(|end| end.to_string_lossy().to_ascii_lowercase());
        match end.as_deref() {
            Some("svg") => Self::Picture,
            Some("json") => Self::Data,
            _ => Self::Page,
        }
    }
}

/// What runs when, in all forms.
pub struct Timelines {
    /// An HTML page of its own.
    pub page: String,
    /// A picture without scripts.
    pub svg: String,
    /// As JSON.
    pub spans: String,
}

/// Runs the command.
pub fn run(arguments: PlanArgs) -> Result<ExitStatus> {
    let found = of_file(&arguments, &Files::on_disk())?;
    if let (Some(out), Some(text)) = (&arguments.out, &found.text) {
        output::write(Some(out), text)?;
    }
    let text = if arguments.json { found.json()? } else { found.summary() };
    output::to_stdout(text.as_bytes())?;
    if !arguments.sweep {
        arguments.pictures.draw(&found)?;
    }
    found.say_rest();
    Ok(ExitStatus::Accepted)
}

/// A graph as it came.
pub struct Came {
    pub source: Graph,
    run: Timeline,
    cap_bytes: Option<u64>,
}

/// What came of it.
enum Outcome {
    /// Nothing was to be planned.
    AsWritten,
    Swept(Box<Sweep>),
    Planned(Box<Made>),
}

/// A plan that was made.
struct Made {
    planned: Planned,
    helps: Helps,
    /// The graph as the passes bucketed it, if they were to.
    bucketed: Option<Graph>,
    /// By node of the planned graph.
    costs: Costs,
}

/// What was found for a graph.
pub struct Found {
    pub came: Came,
    outcome: Outcome,
    /// The planned graph.
    graph: Option<Graph>,
    /// What is written of it.
    pub text: Option<Vec<u8>>,
    /// What is said behind all else.
    rest: Vec<String>,
    view: report::View,
}

/// Plans the graph of a file, and proves what will be written of it.
pub fn of_file(arguments: &PlanArgs, files: &Files) -> Result<Found> {
    let facts: Facts = arguments.facts.clone().validate().map_err(OptionFault::of)?;
    let label = input::label(&arguments.graph);
    let progress = Progress::start();
    progress.set(format!("reading {label}"));
    let mut document = input::read_document(&arguments.graph, files)?;
    progress.pause(|| facts.apply(&mut document, files))?;
    input::well_formed(&label, &document)?;
    let Some(source) = document.only_graph().cloned() else {
        let count = crate::units::count(document.graphs().len(), "graph");
        bail!(OptionFault::of(anyhow!("{label} holds {count}; plan one at a time, with --graph N")));
    };
    let (came, outcome) = arguments.work(source, &mut document.graphs_mut()[0], &label, files, &progress)?;
    let Outcome::Planned(made) = &outcome else { return Ok(Found::unplanned(arguments, came, outcome)) };
    progress.set("proving".to_owned());
    // What is written is what is proven, read back.
    let text = document.print();
    let written = crate::rewrite::read_back(&label, &document, &text)?;
    let before = Source { file: &label, document: &document, graph: 0 };
    let mut rest = prove(Some(before), &came.source, &written.graphs()[0])?;
    let graph = document.graphs()[0].clone();
    if came.source.scheduled {
        let kept = "  buckets are kept, and so is the order of all but launches that are split from their waits";
        rest.push(kept.to_owned());
    } else if matches!(document.format(), Format::Hlo) {
        let written = waited_on_the_spot(&graph);
        let on_the_spot = Timeline::of(&written, &made.costs.of_what_is_left(&written))?;
        rest.push(buckets_alone(&on_the_spot));
    }
    let view = arguments.view();
    Ok(Found { came, outcome, graph: Some(graph), text: Some(text), rest, view })
}

/// Plans a graph that is not text, and proves it as it is in memory.
pub fn of_graph(arguments: &PlanArgs, graph: &mut Graph, files: &Files) -> Result<Found> {
    const LABEL: &str = "<graph>";
    let facts: Facts = arguments.facts.clone().validate().map_err(OptionFault::of)?;
    facts.apply_to(std::slice::from_mut(graph), files)?;
    bucketeer::ir::verify(graph).map_err(|errors| InputFault::of_graph(graph, &errors))?;
    let (came, outcome) = arguments.work(graph.clone(), graph, LABEL, files, &Progress::start())?;
    let Outcome::Planned(_) = &outcome else { return Ok(Found::unplanned(arguments, came, outcome)) };
    let rest = prove(None, &came.source, graph)?;
    let view = arguments.view();
    Ok(Found { came, outcome, graph: Some(graph.clone()), text: None, rest, view })
}

impl PlanArgs {
    fn view(&self) -> report::View {
        report::View { waits: self.waits, explain: self.explain }
    }

    /// Plans a graph in place, or does what else is asked for.
    fn work(
        &self,
        source: Graph,
        graph: &mut Graph,
        label: &str,
        files: &Files,
        progress: &Progress,
    ) -> Result<(Came, Outcome)> {
        let refused = |error: PlanError| anyhow!(InputFault::of_file(label, error.to_string()));
        plannable(&source).map_err(refused)?;
        let costs = self.costs.of(&source, label, files)?;
        let run = Timeline::of(&source, &costs).map_err(|error| refused(error.into()))?;
        let cap_bytes = self.memory.bytes(run.peak_bytes);
        let came = Came { source, run, cap_bytes };
        if self.as_written {
            return Ok((came, Outcome::AsWritten));
        }
        if self.sweep {
            let swept = sweep::sweep(&came.source, &costs, &came.run, self.effort.into(), progress).map_err(refused)?;
            return Ok((came, Outcome::Swept(Box::new(swept))));
        }
        let mut options = ScheduleOptions::default();
        (options.cap_bytes, options.effort) = (cap_bytes, self.effort.into());
        let mut bucketed = None;
        let costs = match &self.pipeline {
            Some(pipeline) => {
                progress.set("bucketing".to_owned());
                pipeline.run(graph).map_err(|error| anyhow!(error).context(label.to_owned()))?;
                let costs = costs.of_what_is_left(graph);
                bucketed = Some(graph.clone());
                costs
            }
            None => costs,
        };
        if self.pipeline.is_some() || self.buckets == BucketsWord::Kept {
            options.buckets = Buckets::Kept;
        }
        progress.set("planning".to_owned());
        let planned = match &self.own {
            Some(path) => own::apply(path, files, graph, label, &costs, cap_bytes)?,
            None => plan(graph, &costs, &options).map_err(refused)?,
        };
        progress.set("what would help".to_owned());
        // Work that is as large as the plan's is not done for those in a hurry.
        let helps = match options.effort {
            Effort::Low => Helps::default(),
            _ => {
                let came = bucketed.as_ref().unwrap_or(&came.source);
                Helps::of(came, graph, &costs, &planned, &options).map_err(refused)?
            }
        };
        Ok((came, Outcome::Planned(Box::new(Made { planned, helps, bucketed, costs }))))
    }
}

impl Found {
    fn unplanned(arguments: &PlanArgs, came: Came, outcome: Outcome) -> Self {
        Self { came, outcome, graph: None, text: None, rest: Vec::new(), view: arguments.view() }
    }

    fn before(&self) -> Vec<Shown<'_>> {
        let mut before = vec![Shown { name: "as it came", graph: &self.came.source, run: &self.came.run }];
        if let Outcome::Planned(made) = &self.outcome {
            let bucketed = made.bucketed.as_ref();
            before.extend(bucketed.map(|graph| Shown { name: "bucketed", graph, run: &made.planned.before }));
        }
        before
    }

    fn planned(&self) -> Option<Shown<'_>> {
        let (Outcome::Planned(made), Some(graph)) = (&self.outcome, &self.graph) else { return None };
        Some(Shown { name: "planned", graph, run: &made.planned.after })
    }

    /// How the graph ran and runs, to be drawn.
    fn shown(&self) -> Vec<Shown<'_>> {
        let mut shown = self.before();
        shown.extend(self.planned());
        shown
    }

    fn told<T>(&self, tell: impl FnOnce(&report::Told<'_>) -> T) -> T {
        let planned = match &self.outcome {
            Outcome::Planned(made) => Some((&made.planned, &made.helps)),
            Outcome::AsWritten | Outcome::Swept(_) => None,
        };
        let graph = self.graph.as_ref().unwrap_or(&self.came.source);
        tell(&report::Told { graph, before: &self.before(), planned, cap_bytes: self.came.cap_bytes })
    }

    /// As JSON text.
    pub fn json(&self) -> Result<String> {
        match &self.outcome {
            Outcome::Swept(swept) => sweep::json(&self.came.source, swept),
            Outcome::AsWritten | Outcome::Planned(_) => self.told(|told| told.json(self.view.waits)),
        }
    }

    /// For people.
    pub fn summary(&self) -> String {
        match &self.outcome {
            Outcome::Swept(swept) => sweep::text(&self.came.source, swept),
            Outcome::AsWritten | Outcome::Planned(_) => self.told(|told| told.text(&self.view)),
        }
    }

    /// What runs when, in one form.
    fn timeline(&self, form: TimelineForm) -> Result<String> {
        let name = &self.came.source.name;
        Ok(match form {
            TimelineForm::Page => pictures::page(name, &self.shown()),
            TimelineForm::Picture => pictures::svg(name, &self.shown()),
            TimelineForm::Data => {
                let before = self.before();
                spans::json(name, &before[0], before.get(1), self.planned().as_ref())?
            }
        })
    }

    /// What runs when, in all forms; none of a sweep.
    pub fn timelines(&self) -> Result<Option<Timelines>> {
        if matches!(self.outcome, Outcome::Swept(_)) {
            return Ok(None);
        }
        Ok(Some(Timelines {
            page: self.timeline(TimelineForm::Page)?,
            svg: self.timeline(TimelineForm::Picture)?,
            spans: self.timeline(TimelineForm::Data)?,
        }))
    }

    /// Says under which conditions it is proven, and what of it is written.
    pub fn say_rest(&self) {
        self.rest.iter().for_each(|line| talk::say(line));
    }
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
fn prove(before: Option<Source<'_>>, source: &Graph, result: &Graph) -> Result<Vec<String>> {
    let options = Options { launches_may_move: true, ..Options::default() };
    let named = proof::named(before, &source.name);
    match check::prove_with(source, result, options) {
        check::Verdict::Equal(proof) => {
            let mut lines = vec!["  proven equal, where every rank runs this graph".to_owned()];
            lines.extend(proof::conditions(&proof).into_iter().map(|line| format!("    {line}")));
            Ok(lines)
        }
        check::Verdict::Different(found) => bail!(Refusal(format!(
            "{named}: the plan does not compute what the graph does, or not provably. That is a fault of bucketeer, please \
             report it. Nothing is written\n{}",
            proof::difference(&found, before, None)
        ))),
        check::Verdict::CannotDecide(found) => {
            let why = proof::undecided(&found, before, None);
            bail!(Refusal(format!("{named} is not proven; nothing is written\n{why}")))
        }
    }
}
