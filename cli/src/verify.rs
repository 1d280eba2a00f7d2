//! `verify`: whether two files of graphs compute the same, by proof and by running them.

use crate::advice::Answered as _;
use crate::fault::{InputFault, OptionFault};
use crate::input::{FactsArgs, Files};
use crate::proof::{self, Source, VerdictReport};
use crate::units::count;
use crate::{ExitStatus, input, output, talk};
use anyhow::Result;
use bucketeer::check::{self, Options};
use bucketeer::ir::Graph;
use bucketeer_eval::{Comparison, EvalError, EvalOptions, Scaling, ShrinkError};
use bucketeer_formats::Document;
use serde::Serialize;
use std::path::PathBuf;

/// Proves that a rewritten graph computes what its source does, for all inputs and sizes
///
/// Graphs are taken in pairs, in the order of the files. Exit code 0 if all pairs are equal; 1 if one differs, or not
/// provably is the same; 2 if something could not be followed.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// The source: FX text, HLO text, a .pt2 archive or its model.json,
    /// native text or JSON, plain or gzip; `-` is stdin
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// What it became, in any of these forms
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Also run both on all ranks, on random inputs of the stated sizes, and compare bit by bit
    #[arg(long)]
    eval: bool,
    /// What the random inputs are made from [default: 0]
    #[arg(long, value_name = "S", requires = "eval")]
    seed: Option<u64>,
    /// Scale graphs that are too large to run down to small sizes, both in the same way
    #[arg(long, requires = "eval")]
    shrink: bool,
    /// Accept outputs that share memory and did not before, as in PyTorch's merged graphs; what writes to an output
    /// later then writes to others, too
    #[arg(long)]
    outputs_may_share: bool,
    /// Accept collectives of a group in another order than the merges ask for, as in PyTorch's merged graphs; every rank
    /// must then run this very graph
    #[arg(long)]
    launches_may_move: bool,
    #[command(flatten)]
    facts: FactsArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: VerifyArgs) -> Result<ExitStatus> {
    let prints_json = arguments.json;
    let compared = compare(arguments, &Files::on_disk())?;
    let text = if prints_json { compared.json()? } else { compared.text() };
    output::to_stdout(text.as_bytes())?;
    Ok(compared.exit_status())
}

/// Two files, and what was found of each pair of graphs.
pub struct Compared {
    labels: [String; 2],
    documents: [Document; 2],
    found: Vec<(check::Verdict, Option<Result<Evaluated, ShrinkError>>)>,
}

/// Reads both files and holds them against each other.
pub fn compare(arguments: VerifyArgs, files: &Files) -> Result<Compared> {
    let facts = arguments.facts.validate().map_err(OptionFault::of)?;
    input::stdin_once([&*arguments.before, &*arguments.after])?;
    let labels = [input::label(&arguments.before), input::label(&arguments.after)];
    let progress = talk::Progress::start();
    progress.set("reading".to_owned());
    let mut before = input::read_whole(&arguments.before, files)?;
    let mut after = input::read_whole(&arguments.after, files)?;
    for document in [&mut before, &mut after] {
        progress.pause(|| facts.apply(document, files))?;
    }
    same_count(&labels, &before, &after)?;
    input::well_formed(&labels[0], &before)?;
    input::well_formed(&labels[1], &after)?;
    let options =
        Options { outputs_may_share: arguments.outputs_may_share, launches_may_move: arguments.launches_may_move };
    let eval_options = EvalOptions { seed: arguments.seed.unwrap_or(0), ..EvalOptions::default() };
    let mut found = Vec::new();
    for (old, new) in before.graphs().iter().zip(after.graphs()) {
        progress.set(format!("{}: proving", old.name));
        let verdict = check::prove_with(old, new, options);
        progress.set(format!("{}: running", old.name));
        let compared = arguments.eval.then(|| evaluate(old, new, &eval_options, arguments.shrink));
        found.push((verdict, compared));
    }
    Ok(Compared { labels, documents: [before, after], found })
}

impl Compared {
    /// The worst that was found.
    pub fn exit_status(&self) -> ExitStatus {
        let statuses = self.pairs().into_iter().map(|pair| pair.exit_status());
        statuses.max_by_key(|status| rank(*status)).unwrap_or(ExitStatus::Accepted)
    }

    fn pairs(&self) -> Vec<Pair<'_>> {
        let graphs = self.documents[0].graphs().iter().zip(self.documents[1].graphs());
        let found = self.found.iter().map(|(verdict, compared)| (verdict, compared.as_ref()));
        graphs.zip(found).map(|((old, new), (verdict, compared))| Pair { old, new, verdict, compared }).collect()
    }

    /// What was found, as JSON text.
    pub fn json(&self) -> Result<String> {
        let graphs = self.pairs().iter().map(PairReport::of).collect();
        output::json(&Report { format: "bucketeer-verify", version: 1, graphs })
    }

    /// What was found, for people.
    pub fn text(&self) -> String {
        let source = |side: usize, graph| Source { file: &self.labels[side], document: &self.documents[side], graph };
        let pairs = self.pairs();
        let several = pairs.len() > 1;
        let text = |(index, pair): (usize, &Pair<'_>)| pair.text(several, source(0, index), source(1, index)) + "\n";
        pairs.iter().enumerate().map(text).collect()
    }
}

/// Runs both graphs, at small sizes if they are too large and may be scaled.
fn evaluate(old: &Graph, new: &Graph, options: &EvalOptions, shrink: bool) -> Result<Evaluated, ShrinkError> {
    if !shrink {
        return Ok(Evaluated { comparison: bucketeer_eval::compare(old, new, options)?, scaling: None });
    }
    let shrunk = bucketeer_eval::shrink(&[old, new], options)?;
    let comparison = bucketeer_eval::compare(&shrunk.graphs[0], &shrunk.graphs[1], options)?;
    Ok(Evaluated { comparison, scaling: shrunk.scaling })
}

/// A file for each side is not a pair of files if they hold different numbers of graphs.
fn same_count(labels: &[String; 2], before: &Document, after: &Document) -> Result<()> {
    let (old, new) = (before.graphs().len(), after.graphs().len());
    if old == new {
        return Ok(());
    }
    let what = format!("the source holds {}, the result {}", count(old, "graph"), count(new, "graph"));
    Err(InputFault::of_file(&labels.join("\n  "), what).into())
}

/// What weighs more: that something is wrong goes before that something is not known.
const fn rank(status: ExitStatus) -> u8 {
    match status {
        ExitStatus::Accepted => 0,
        ExitStatus::Undecided => 1,
        ExitStatus::Rejected => 2,
    }
}

/// Two graphs, and what was found.
struct Pair<'a> {
    old: &'a Graph,
    new: &'a Graph,
    verdict: &'a check::Verdict,
    /// If it was asked for.
    compared: Option<&'a Result<Evaluated, ShrinkError>>,
}

/// What came of running two graphs.
pub struct Evaluated {
    comparison: Comparison,
    /// If they were scaled down.
    scaling: Option<Scaling>,
}

impl Evaluated {
    /// The view whose sizes were guessed, if one was: what differs may be due to that.
    fn guessed(&self) -> Option<&str> {
        self.scaling.as_ref().and_then(|scaling| scaling.guessed.as_deref())
    }

    fn exit_status(&self) -> ExitStatus {
        match (self.comparison.is_equal(), self.guessed()) {
            (true, _) => ExitStatus::Accepted,
            (false, None) => ExitStatus::Rejected,
            (false, Some(_)) => ExitStatus::Undecided,
        }
    }

    fn text(&self) -> String {
        let comparison = &self.comparison;
        let (ranks, outputs) = (count(comparison.ranks, "rank"), count(comparison.outputs, "output"));
        let word = if comparison.is_equal() { "the same" } else { "different" };
        let mut text = format!("\nevaluated: {word} on {ranks}, {outputs}");
        if let Some(scaling) = &self.scaling {
            let pair = |(from, to): &(u64, u64)| format!("{from} -> {to}");
            let mut sizes: Vec<String> = scaling.sizes.iter().take(SIZES_SHOWN).map(pair).collect();
            if let Some(more) = scaling.sizes.len().checked_sub(SIZES_SHOWN).filter(|more| *more > 0) {
                sizes.push(format!("{more} more"));
            }
            let part = scaling.bytes_before / scaling.bytes_after.max(1);
            text.push_str(&format!("\n  at 1/{part} of the bytes: {}", sizes.join(", ")));
        }
        comparison.differences.iter().for_each(|found| text.push_str(&format!("\n  {found}")));
        if let (Some(view), false) = (self.guessed(), comparison.is_equal()) {
            text.push_str(&format!("\n  which may be due to the small sizes: those of {view} are guessed"));
        }
        text
    }
}

/// Most sizes shown of those that were scaled.
const SIZES_SHOWN: usize = 6;

impl Pair<'_> {
    fn exit_status(&self) -> ExitStatus {
        let proven = match self.verdict {
            check::Verdict::Equal(_) => ExitStatus::Accepted,
            check::Verdict::Different(_) => ExitStatus::Rejected,
            check::Verdict::CannotDecide(_) => ExitStatus::Undecided,
        };
        let compared = match self.compared {
            None => ExitStatus::Accepted,
            Some(Ok(evaluated)) => evaluated.exit_status(),
            Some(Err(ShrinkError::Eval(EvalError::Unrelated(_)))) => ExitStatus::Rejected,
            Some(Err(_)) => ExitStatus::Undecided,
        };
        if rank(compared) > rank(proven) { compared } else { proven }
    }

    fn text(&self, named: bool, before: Source<'_>, after: Source<'_>) -> String {
        let mut text = String::new();
        if named {
            text.push_str(&format!("graph `{}`: ", self.old.name));
        }
        match self.verdict {
            check::Verdict::Equal(proof) => {
                let stats = &proof.stats;
                text.push_str(&format!(
                    "equal: {} before, {} after, {}",
                    count(stats.launches_before, "collective"),
                    stats.launches_after,
                    count(stats.nodes, "node")
                ));
                proof::conditions(proof).iter().for_each(|line| text.push_str(&format!("\n  {line}")));
            }
            check::Verdict::Different(found) => text.push_str(&proof::difference(found, Some(before), Some(after))),
            check::Verdict::CannotDecide(found) => text.push_str(&proof::undecided(found, Some(before), Some(after))),
        }
        match self.compared {
            None => {}
            Some(Ok(evaluated)) => text.push_str(&evaluated.text()),
            Some(Err(error)) => text.push_str(&format!("\ncannot evaluate: {}", error.advised())),
        }
        text
    }
}

#[derive(Serialize)]
struct Report {
    format: &'static str,
    version: u32,
    graphs: Vec<PairReport>,
}

#[derive(Serialize)]
struct PairReport {
    before: String,
    after: String,
    proof: VerdictReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluation: Option<EvaluationReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling: Option<ScalingReport>,
}

/// How graphs were scaled down before they were run.
#[derive(Serialize)]
struct ScalingReport {
    bytes_before: u64,
    bytes_after: u64,
    /// Sizes of inputs before and after.
    sizes: Vec<(u64, u64)>,
    /// A view whose sizes are guessed, so that a difference may be due to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    guessed: Option<String>,
}

impl ScalingReport {
    fn of(scaling: &Scaling) -> Self {
        let Scaling { bytes_before, bytes_after, sizes, guessed } = scaling.clone();
        Self { bytes_before, bytes_after, sizes, guessed }
    }
}

#[derive(Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
enum EvaluationReport {
    Equal { ranks: usize, outputs: usize },
    Different { ranks: usize, differences: Vec<String> },
    CannotEvaluate { reason: String },
}

impl PairReport {
    fn of(pair: &Pair<'_>) -> Self {
        let evaluation = |compared: &Result<Evaluated, ShrinkError>| match compared.as_ref().map(|ran| &ran.comparison)
        {
            Ok(Comparison { ranks, outputs, differences }) if differences.is_empty() => {
                EvaluationReport::Equal { ranks: *ranks, outputs: *outputs }
            }
            Ok(Comparison { ranks, differences, .. }) => EvaluationReport::Different {
                ranks: *ranks,
                differences: differences.iter().map(ToString::to_string).collect(),
            },
            Err(error) => EvaluationReport::CannotEvaluate { reason: error.to_string() },
        };
        let scaling = pair.compared.into_iter().flatten().find_map(|evaluated| evaluated.scaling.as_ref());
        Self {
            before: pair.old.name.clone(),
            after: pair.new.name.clone(),
            proof: VerdictReport::from(pair.verdict),
            evaluation: pair.compared.map(evaluation),
            scaling: scaling.map(ScalingReport::of),
        }
    }
}
