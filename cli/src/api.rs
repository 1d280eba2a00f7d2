//! What the commands do, on values in memory: the same work by the same options, without a word on stdout or stderr.
//!
//! Graphs are given as a [`Source`], options as [`Flags`], by the names that the command line has for them. Reports are the
//! JSON documents that `--json` prints. What a command would say on stderr beside its summary is in `said`, line by line.
//! Nothing is kept between calls, and several threads may call at once.
//!
//! ```
//! use bucketeer_cli::api::{FaultKind, Flags, rewrite};
//!
//! let graph = b"x = input f32[4]; y = input f32[4]
//! a = all_reduce(x, sum, G:2); b = all_reduce(y, sum, G:2)
//! output(wait(a), wait(b))";
//! let rewritten = rewrite(graph.to_vec(), ["--all-reduce", "1KiB", "--verify=on"])?;
//! assert_eq!(String::from_utf8_lossy(&rewritten.result).matches("= all_reduce(").count(), 1);
//! assert!(rewritten.summary.contains("proven equal"));
//!
//! let fault = rewrite(graph.to_vec(), ["--all-reduce", "1 apple"]).unwrap_err();
//! assert_eq!(fault.kind, FaultKind::Options);
//! # Ok::<(), bucketeer_cli::api::Fault>(())
//! ```

mod fault;
mod given;

pub use fault::{Fault, FaultKind};
pub use given::{Flags, Known, Source, Takes, options};

use crate::check_ranks::CheckRanksArgs;
use crate::fault::{InputFault, OptionFault};
use crate::inspect::{Found, InspectArgs};
use crate::plan::{PlanArgs, Timelines};
use crate::rewrite::{Done, Job, RewriteArgs, Times};
use crate::verify::VerifyArgs;
use crate::{ExitStatus, input, rewrite as rewriting, talk};
use anyhow::anyhow;
use bucketeer::ir::Graph;
use clap::FromArgMatches;
use given::Given;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A name in messages for a graph that is no file.
const GRAPH: &str = "<graph>";

/// What came of [`rewrite`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rewritten {
    /// The file with its graphs rewritten, or what `--to` made of it.
    pub result: Vec<u8>,
    /// What was done, as JSON.
    pub report: String,
    /// What was done, for people.
    pub summary: String,
    /// Errors in parts that were left out, warnings, notes, and what `--explain` and `--stats` say.
    pub said: Vec<String>,
}

/// What came of [`plan`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    /// The file with its graph planned; none with `--as-written` and `--sweep`.
    pub result: Option<Vec<u8>>,
    /// What the plan is worth, as JSON.
    pub report: String,
    /// What the plan is worth, for people.
    pub summary: String,
    /// What runs when, as an HTML page of its own; none with `--sweep`.
    pub timeline: Option<String>,
    /// The same as a picture without scripts, SVG.
    pub svg: Option<String>,
    /// The same as JSON.
    pub spans: Option<String>,
    /// Warnings, notes, and on which conditions the plan is proven.
    pub said: Vec<String>,
}

/// What came of a graph that is not text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// As JSON.
    pub report: String,
    /// For people.
    pub summary: String,
    /// Of plans: what runs when, as an HTML page of its own; none with `--sweep`.
    pub timeline: Option<String>,
    /// The same as a picture without scripts, SVG.
    pub svg: Option<String>,
    /// The same as JSON.
    pub spans: Option<String>,
    /// Warnings, notes, and what else was asked for.
    pub said: Vec<String>,
}

/// What came of [`inspect`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspected {
    /// What is in the graphs, as JSON; none with `--dot` and `--svg`.
    pub report: Option<String>,
    /// What is in the graphs, for people; or the drawing that `--dot` or `--svg` asks for.
    pub text: String,
    /// What is wrong with graphs that are not well-formed, warnings and notes.
    pub said: Vec<String>,
}

/// What a check came to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// All is well.
    Accepted,
    /// Something is wrong, or not provably right.
    Rejected,
    /// Something could not be followed.
    Undecided,
}

impl From<ExitStatus> for Verdict {
    fn from(status: ExitStatus) -> Self {
        match status {
            ExitStatus::Accepted => Self::Accepted,
            ExitStatus::Rejected => Self::Rejected,
            ExitStatus::Undecided => Self::Undecided,
        }
    }
}

/// What came of [`verify`] and [`check_ranks`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checked {
    /// The worst that was found.
    pub verdict: Verdict,
    /// What was found, as JSON.
    pub report: String,
    /// What was found, for people.
    pub text: String,
    /// Warnings.
    pub said: Vec<String>,
}

/// Merges the collectives of the graphs of a file, proves the result unless `--verify=off`, and prints it in the form it came in.
///
/// # Errors
/// [`Fault`], also where `--verify=on` and the result is not proven.
pub fn rewrite(source: impl Into<Source>, flags: impl Into<Flags>) -> Result<Rewritten, Fault> {
    let sources = vec![(GRAPH.to_owned(), source.into())];
    let work = |Given { arguments, files, .. }: Given<RewriteArgs>| {
        let mut job = in_memory(arguments)?;
        let graph = job.graphs[0].clone();
        let label = input::label(&graph);
        let mut times = Times::default();
        let document = times.measure("read", || input::read_document(&graph, &files))?;
        if input::split_by_rank(&document, &label)?.is_some() {
            let what = "it is the log of several ranks, which the command `rewrite` takes apart; give one rank's";
            return Err(InputFault::of_file(&label, what).into());
        }
        let progress = talk::Progress::start();
        let done = rewriting::rewrite_document(&mut job, &label, document, &files, true, &progress, &mut times)?;
        let Done { document, text, reports } = done;
        rewriting::show(&job, &reports, &times);
        let result = text.unwrap_or_else(|| document.print());
        Ok((result, rewriting::json(&job, &reports)?, lines(&rewriting::summary(&reports))))
    };
    let ((result, report, summary), said) = run("rewrite", sources, flags.into(), work)?;
    Ok(Rewritten { result, report, summary, said })
}

/// Rewrites a graph in place as [`rewrite`] does FX text, and proves it as it is in memory.
///
/// # Errors
/// [`Fault`], also where `--verify=on` and the result is not proven. The graph is then as it was.
pub fn rewrite_graph(graph: &mut Graph, flags: impl Into<Flags>) -> Result<Told, Fault> {
    let mut copy = graph.clone();
    let work = |Given { arguments, files, .. }: Given<RewriteArgs>| {
        let mut job = in_memory(arguments)?;
        let reports = [rewriting::rewrite_graph(&mut job, &mut copy, &files)?];
        rewriting::show(&job, &reports, &Times::default());
        Ok((rewriting::json(&job, &reports)?, lines(&rewriting::summary(&reports))))
    };
    let ((report, summary), said) = run("rewrite", no_source(), flags.into(), work)?;
    *graph = copy;
    Ok(Told { report, summary, timeline: None, svg: None, spans: None, said })
}

/// What is to be done to one graph, where nothing is written and the summary is apart from what is said.
fn in_memory(arguments: RewriteArgs) -> anyhow::Result<Job> {
    let mut job = arguments.validate().map_err(OptionFault::of)?;
    if job.graphs.len() > 1 {
        return Err(OptionFault::of(anyhow!("one graph is rewritten at a time here, and there are several")).into());
    }
    job.json = true;
    Ok(job)
}

/// Plans the step that a file holds, proves the plan, and prints it in the form it came in.
///
/// # Errors
/// [`Fault`], also where the plan is not proven.
pub fn plan(source: impl Into<Source>, flags: impl Into<Flags>) -> Result<Planned, Fault> {
    let sources = vec![(GRAPH.to_owned(), source.into())];
    let work = |Given { arguments, files, .. }: Given<PlanArgs>| {
        let found = crate::plan::of_file(&arguments, &files)?;
        found.say_rest();
        Ok((found.json()?, found.summary(), found.timelines()?, found.text))
    };
    let ((report, summary, timelines, result), said) = run("plan", sources, flags.into(), work)?;
    let [timeline, svg, spans] = apart(timelines);
    Ok(Planned { result, report, summary, timeline, svg, spans, said })
}

/// Plans a graph in place, and proves it as it is in memory. With `--as-written` and `--sweep` it stays as it is.
///
/// # Errors
/// [`Fault`], also where the plan is not proven. The graph is then as it was.
pub fn plan_graph(graph: &mut Graph, flags: impl Into<Flags>) -> Result<Told, Fault> {
    let mut copy = graph.clone();
    let work = |Given { arguments, files, .. }: Given<PlanArgs>| {
        let found = crate::plan::of_graph(&arguments, &mut copy, &files)?;
        found.say_rest();
        Ok((found.json()?, found.summary(), found.timelines()?))
    };
    let ((report, summary, timelines), said) = run("plan", no_source(), flags.into(), work)?;
    *graph = copy;
    let [timeline, svg, spans] = apart(timelines);
    Ok(Told { report, summary, timeline, svg, spans, said })
}

/// The page, the picture and the spans.
fn apart(timelines: Option<Timelines>) -> [Option<String>; 3] {
    timelines.map_or([None, None, None], |Timelines { page, svg, spans }| [page, svg, spans].map(Some))
}

/// Says what a file's graphs communicate, or draws it.
///
/// # Errors
/// [`Fault`]. That a graph is not well-formed is none: the report says so.
pub fn inspect(source: impl Into<Source>, flags: impl Into<Flags>) -> Result<Inspected, Fault> {
    let sources = vec![(GRAPH.to_owned(), source.into())];
    let work = |Given { arguments, files, .. }: Given<InspectArgs>| {
        let found = crate::inspect::look(arguments, &files)?;
        found.say_faults();
        found.say_rest();
        let report = match &found {
            Found::Picture(_) => None,
            Found::StableHlo(_) | Found::Graphs { .. } => Some(found.json()?),
        };
        Ok((report, found.text()))
    };
    let ((report, text), said) = run("inspect", sources, flags.into(), work)?;
    Ok(Inspected { report, text, said })
}

/// Proves that a file's graphs compute what those of another do.
///
/// # Errors
/// [`Fault`]. That they do not, or not provably, is none: the verdict says so.
pub fn verify(before: impl Into<Source>, after: impl Into<Source>, flags: impl Into<Flags>) -> Result<Checked, Fault> {
    let sources = vec![("<before>".to_owned(), before.into()), ("<after>".to_owned(), after.into())];
    let work = |Given { arguments, files, .. }: Given<VerifyArgs>| {
        let compared = crate::verify::compare(arguments, &files)?;
        Ok((compared.exit_status(), compared.json()?, compared.text()))
    };
    checked(run("verify", sources, flags.into(), work)?)
}

/// Checks that all ranks launch the same collectives, and none wait for one another in a ring. One file is for all ranks; of
/// several, the first is rank 0's.
///
/// # Errors
/// [`Fault`], also where it is not known who is in a group. That ranks disagree is none: the verdict says so.
pub fn check_ranks(sources: Vec<Source>, flags: impl Into<Flags>) -> Result<Checked, Fault> {
    let one = sources.len() == 1;
    let name = |rank: usize| if one { GRAPH.to_owned() } else { format!("<rank {rank}>") };
    let sources = sources.into_iter().enumerate().map(|(rank, source)| (name(rank), source)).collect();
    let work = |Given { arguments, files, .. }: Given<CheckRanksArgs>| {
        let checked = crate::check_ranks::check(arguments, &files)?;
        Ok((checked.exit_status(), checked.json()?, checked.text()))
    };
    checked(run("check-ranks", sources, flags.into(), work)?)
}

fn checked(((status, report, text), said): ((ExitStatus, String, String), Vec<String>)) -> Result<Checked, Fault> {
    Ok(Checked { verdict: status.into(), report, text, said })
}

/// A name for the graph that is there already, as a command asks for one.
fn no_source() -> Vec<(String, Source)> {
    vec![(GRAPH.to_owned(), Source::Content(Vec::new()))]
}

fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Reads the flags of a command and works. Gives back what was said meanwhile; whatever breaks, the caller goes on.
fn run<A: FromArgMatches, T>(
    command: &str,
    sources: Vec<(String, Source)>,
    flags: Flags,
    work: impl FnOnce(Given<A>) -> anyhow::Result<T>,
) -> Result<(T, Vec<String>), Fault> {
    let given = given::read::<A>(command, sources, flags)?;
    // What the work was given goes with it, so nothing half-made is seen again.
    let (done, said) = talk::listen(given.is_quiet, || catch_unwind(AssertUnwindSafe(|| work(given))));
    match done {
        Ok(Ok(done)) => Ok((done, said)),
        Ok(Err(error)) => Err(Fault::of_error(&error)),
        Err(payload) => Err(Fault::of_panic(&*payload)),
    }
}

#[cfg(test)]
mod tests;
