//! `rewrite`: reads graphs, merges their collectives, proves the result, and writes it back.

mod args;
mod prove;
mod readback;
mod report;
mod summary;
mod together;

pub use args::{Job, RewriteArgs};
pub use readback::read_back;
pub use report::GraphReport;

use crate::buckets::Form;
use crate::fault::{InputFault, OptionFault};
use crate::input::Files;
use crate::proof::Source;
use crate::talk::Warning;
use crate::{ExitStatus, advice, input, output, talk};
use anyhow::{Context, Result, anyhow};
use bucketeer::ir::{Dependencies, Graph};
use bucketeer::passes::{PassReport, Pipeline, PipelineError};
use bucketeer_formats::{Document, Format};
use report::Before;
use std::path::Path;
use std::time::{Duration, Instant};

/// Runs the command.
pub fn run(arguments: RewriteArgs) -> Result<ExitStatus> {
    let files = Files::on_disk();
    let mut job = arguments.validate()?;
    if job.graphs.len() > 1 {
        let ranks = input::read_ranks(&job.graphs, &job.facts, &files)?;
        return together::run(&mut job, ranks);
    }
    let graph = job.graphs[0].clone();
    let label = input::label(&graph);
    let progress = talk::Progress::start();
    let mut times = Times::default();
    progress.set(format!("reading {label}"));
    let document = times.measure("read", || input::read_document(&graph, &files))?;
    if let Some(logs) = input::split_by_rank(&document, &label)? {
        drop(progress);
        args::check_out_of_ranks(job.out.as_deref(), job.json)?;
        let ranks = input::of_ranks(logs, &job.facts, &files)?;
        job.graphs = vec![graph; ranks.len()];
        return together::run(&mut job, ranks);
    }
    let writes_graph = !job.json || job.out.is_some();
    let Done { document, text, reports } =
        rewrite_document(&mut job, &label, document, &files, writes_graph, &progress, &mut times)?;
    drop(progress);
    show(&job, &reports, &times);
    let content: &dyn output::Content = match &text {
        Some(text) => text,
        None => &document,
    };
    if job.dry_run {
        output::rehearse(job.out.as_deref(), content)?;
        say_dry_run(job.out.as_deref());
    } else if writes_graph {
        output::write(job.out.as_deref(), content)?;
    }
    if job.json {
        output::to_stdout(json(&job, &reports)?.as_bytes())?;
    }
    Ok(ExitStatus::Accepted)
}

/// What came of a rewrite.
pub struct Done {
    /// The graphs, in the form that is to be written.
    pub document: Document,
    /// The document as text. None for an archive, which is copied as it is written, for its weights may be larger than memory.
    pub text: Option<Vec<u8>>,
    /// What was done to each graph.
    pub reports: Vec<GraphReport>,
}

/// Rewrites the graphs of a document, and proves what will be written of them. If nothing will, what is in memory is proven.
pub fn rewrite_document(
    job: &mut Job,
    label: &str,
    mut document: Document,
    files: &Files,
    writes_graph: bool,
    progress: &talk::Progress,
    times: &mut Times,
) -> Result<Done> {
    job.fit_to(&Form::of(&document)).map_err(OptionFault::of).with_context(|| label.to_owned())?;
    job.spell_groups(&mut document).map_err(OptionFault::of).with_context(|| label.to_owned())?;
    progress.pause(|| advice::notes(&document).iter().for_each(|note| talk::say(note)));
    progress.pause(|| job.passes.notes.iter().for_each(|note| talk::say(note)));
    progress.pause(|| job.facts.apply(&mut document, files))?;
    let (mut reports, mut sources) = (Vec::new(), Vec::new());
    for index in 0..document.graphs().len() {
        let graph = &mut document.graphs_mut()[index];
        progress.pause(|| job.passes.warn_of_strangers(graph));
        sources.push(prove::wants(job, graph).then(|| graph.clone()));
        match rewrite(graph, &job.passes.pipeline, progress) {
            Ok(report) => reports.push(report),
            Err(PipelineError::Input(errors)) => {
                return Err(InputFault::of_verify(label, &document, index, &errors).into());
            }
            Err(error) => {
                let name = &document.graphs()[index].name;
                return Err(anyhow!(error).context(format!("{label}: graph `{name}`")));
            }
        }
    }
    progress.set("writing".to_owned());
    let other_form = job.to.filter(|&format| writes_graph && format != document.format());
    let streams = |document: &Document| document.format() == Format::Export;
    let prints = writes_graph && other_form.is_none() && !streams(&document);
    let mut text = if prints { times.measure("print", || document.print()) } else { Vec::new() };
    // What is written in another form, or not at all, is proven as it is in memory.
    let proves_text = writes_graph && other_form.is_none() && sources.iter().any(Option::is_some);
    let written = match proves_text {
        true => Some(times.measure("read back", || readback::read_back(label, &document, &text))?),
        false => None,
    };
    for (index, (report, source)) in reports.iter_mut().zip(&sources).enumerate() {
        progress.set(format!("{}: prove", report.graph));
        let result = &written.as_ref().unwrap_or(&document).graphs()[index];
        let before = Some(Source { file: label, document: &document, graph: index });
        report.take_proof(times.measure("prove", || prove::prove(job, before, source.as_ref(), result))?);
    }
    if let Some(format) = other_form {
        document = progress.pause(|| crate::convert::to_format(document, format, label))?;
        if !streams(&document) {
            text = times.measure("print", || document.print());
        }
    }
    let text = (!streams(&document)).then_some(text);
    Ok(Done { document, text, reports })
}

/// Rewrites a graph that is not text, by the rules of FX text, and proves it as it is in memory.
pub fn rewrite_graph(job: &mut Job, graph: &mut Graph, files: &Files) -> Result<GraphReport> {
    job.fit_to(&Form::fx(graph)).map_err(OptionFault::of)?;
    job.passes.notes.iter().for_each(|note| talk::say(note));
    job.facts.apply_to(std::slice::from_mut(graph), files)?;
    job.passes.warn_of_strangers(graph);
    let source = prove::wants(job, graph).then(|| graph.clone());
    let mut report = rewrite(graph, &job.passes.pipeline, &talk::Progress::start()).map_err(|error| match error {
        PipelineError::Input(errors) => InputFault::of_graph(graph, &errors).into(),
        error => anyhow!(error).context(format!("graph `{}`", graph.name)),
    })?;
    report.take_proof(prove::prove(job, None, source.as_ref(), graph)?);
    Ok(report)
}

/// Says that nothing was written, and where it would have been.
fn say_dry_run(out: Option<&Path>) {
    let out = out.map_or_else(|| "standard output".to_owned(), |out| out.display().to_string());
    talk::say(&format!("dry run: nothing was written to {out}"));
}

/// What was done, as JSON text.
pub fn json(job: &Job, reports: &[GraphReport]) -> Result<String> {
    output::json(&report::document(&job.passes.pipeline, reports))
}

/// Runs the pipeline over one graph and gathers what there is to say.
fn rewrite(graph: &mut Graph, pipeline: &Pipeline, progress: &talk::Progress) -> Result<GraphReport, PipelineError> {
    progress.set(format!("{}: verify", graph.name));
    bucketeer::ir::verify(graph).map_err(PipelineError::Input)?;
    let before = Before::of(graph, &Dependencies::of(graph));
    let name = graph.name.clone();
    let passes: Vec<PassReport> =
        pipeline.run_watched(graph, &mut |pass| progress.set(format!("{name}: {}", pass.name())))?;
    Ok(GraphReport::new(graph, before, passes))
}

/// The summary of all graphs, line by line.
pub fn summary(reports: &[GraphReport]) -> Vec<String> {
    reports.iter().flat_map(summary::summary).collect()
}

/// Says everything there is to say; the summary only if the report is for people.
pub fn show(job: &Job, reports: &[GraphReport], times: &Times) {
    for report in reports {
        if job.explain {
            summary::explain(report).iter().for_each(|line| talk::say(line));
        }
        if !job.json {
            summary::summary(report).iter().for_each(|line| talk::say(line));
        }
        report.warnings.iter().for_each(Warning::say);
        if job.stats {
            summary::stats(report).iter().for_each(|line| talk::say(line));
        }
    }
    if job.stats {
        talk::say(&times.line());
    }
}

/// How long the parts that are not passes took.
#[derive(Debug, Default)]
pub struct Times(Vec<(&'static str, Duration)>);

impl Times {
    pub fn measure<T>(&mut self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, time)) => *time += start.elapsed(),
            None => self.0.push((name, start.elapsed())),
        }
        done
    }

    fn line(&self) -> String {
        let parts: Vec<String> = self.0.iter().map(|(name, time)| format!("{name} {time:.1?}")).collect();
        format!("time: {}", parts.join(", "))
    }
}
