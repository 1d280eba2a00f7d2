//! Graphs of several ranks, rewritten together.

use super::args::Job;
use super::report::{Before, GraphReport};
use super::{Times, json, prove, readback, say_dry_run, summary};
use crate::advice::Answered as _;
use crate::buckets::Form;
use crate::fault::InputFault;
use crate::input::File;
use crate::proof::Source;
use crate::talk::Warning;
use crate::{ExitStatus, check_ranks, output, talk};
use anyhow::{Context, Result, anyhow, bail};
use bucketeer::check::ranks::{RankOptions, check_ranks as find_faults};
use bucketeer::ir::{Dependencies, Graph};
use bucketeer::passes::{PipelineError, TogetherError};
use bucketeer_formats::{Document, Format};

/// Rewrites the nth graphs of all files together, proves each, and holds the ranks' launches against each other.
pub fn run(job: &mut Job, mut files: Vec<File>) -> Result<ExitStatus> {
    let progress = talk::Progress::start();
    let mut times = Times::default();
    files.iter().try_for_each(|file| job.fit_to(&Form::of(&file.document)).with_context(|| file.label.clone()))?;
    files.iter_mut().try_for_each(|file| job.spell_groups(&mut file.document).with_context(|| file.label.clone()))?;
    let job = &*job;
    progress.pause(|| job.passes.notes.iter().for_each(|note| talk::say(note)));
    let count = files.first().map_or(0, |file| file.document.graphs().len());
    let (mut reports, mut sources_of_reports) = (Vec::new(), Vec::new());
    for index in 0..count {
        progress.pause(|| files.iter().for_each(|file| job.passes.warn_of_strangers(&file.document.graphs()[index])));
        let graphs = || files.iter().map(|file| &file.document.graphs()[index]);
        let sources: Vec<Option<Graph>> =
            graphs().map(|graph| prove::wants(job, graph).then(|| graph.clone())).collect();
        let before: Vec<Before> = graphs().map(|graph| Before::of(graph, &Dependencies::of(graph))).collect();
        let mut graphs: Vec<&mut Graph> = files.iter_mut().map(|file| &mut file.document.graphs_mut()[index]).collect();
        let name = graphs[0].name.clone();
        let passes =
            job.passes.pipeline.run_together(&mut graphs, &mut |pass| progress.set(format!("{name}: {}", pass.name())));
        let passes = passes.map_err(|error| refused(&files, error))?;
        for ((rank, before), (passes, source)) in before.into_iter().enumerate().zip(passes.into_iter().zip(sources)) {
            let mut report = GraphReport::new(&files[rank].document.graphs()[index], before, passes);
            report.rank = Some(rank);
            reports.push(report);
            sources_of_reports.push((index, source));
        }
    }
    let mut written = Vec::new();
    for File { label, document } in &files {
        progress.set(format!("{label}: read back"));
        written.push(times.measure("read back", || written_by(job, label, document))?);
    }
    for (report, (index, source)) in reports.iter_mut().zip(&sources_of_reports) {
        let rank = report.rank.unwrap_or(0);
        progress.set(format!("{}: prove", report.graph));
        let File { label, document } = &files[rank];
        let result = &written[rank].as_ref().unwrap_or(document).graphs()[*index];
        let proof = times.measure("prove", || {
            let before = Source { file: label, document, graph: *index };
            prove::prove(job, Some(before), source.as_ref(), result)
        })?;
        report.take_proof(proof);
    }
    (0..count).try_for_each(|index| times.measure("check ranks", || agree(&files, index)))?;
    progress.set("writing".to_owned());
    if job.out.is_some() {
        let texts = times.measure("print", || progress.pause(|| texts(job, files)))?;
        match job.dry_run {
            true => texts.iter().try_for_each(|(path, document)| output::rehearse(Some(path), document))?,
            false => output::write_all(texts.into_iter().map(Ok))?,
        }
    }
    drop(progress);
    show(job, &reports, &times);
    if job.dry_run {
        say_dry_run(job.out.as_deref());
    }
    if job.json {
        output::to_stdout(json(job, &reports)?.as_bytes())?;
    }
    Ok(ExitStatus::Accepted)
}

/// A rank's file, read from what will be written of it; `None` where nothing is, or in another form.
fn written_by(job: &Job, label: &str, document: &Document) -> Result<Option<Document>> {
    let same_form = job.to.is_none_or(|format| format == document.format());
    let proves = document.graphs().iter().any(|graph| prove::wants(job, graph));
    if job.out.is_none() || !same_form || !proves {
        return Ok(None);
    }
    let printed = if document.format() == Format::Export { Vec::new() } else { document.print() };
    readback::read_back(label, document, &printed).map(Some)
}

/// Each rank's file, as it is to be.
fn texts(job: &Job, files: Vec<File>) -> Result<Vec<(std::path::PathBuf, Document)>> {
    let text = |(rank, file): (usize, File)| {
        let File { label, mut document } = file;
        if let Some(format) = job.to {
            document = crate::convert::to_format(document, format, &label)?;
        }
        Ok(job.out_of_rank(rank as u32).map(|out| (out, document)))
    };
    files.into_iter().enumerate().filter_map(|file| text(file).transpose()).collect()
}

/// What the passes see to, seen by a check that knows nothing of them.
fn agree(files: &[File], index: usize) -> Result<()> {
    let graphs: Vec<&Graph> = files.iter().map(|file| &file.document.graphs()[index]).collect();
    let found = find_faults(&graphs, &RankOptions::default()).map_err(|error| check_ranks::refused(files, error))?;
    match found.first() {
        None => Ok(()),
        Some(fault) => bail!(
            "graph `{}`: the ranks no longer launch the same. That is a fault of bucketeer, please report it. Nothing is \
             written\n{fault}",
            graphs[0].name
        ),
    }
}

/// Graphs that do not belong together are the input's fault; that something is not known, or not done, is not.
fn refused(files: &[File], error: TogetherError) -> anyhow::Error {
    let of_rank = |rank: usize| files.get(rank).map_or("", |file| &*file.label).to_owned();
    let file = match &error {
        TogetherError::NotAMember { rank, .. } => of_rank(*rank),
        TogetherError::Rank { rank, error: PipelineError::Input(_) } => of_rank(*rank),
        TogetherError::Differ { left, right, after: None, .. } => {
            format!("{}\n  {}", of_rank(left.rank), of_rank(right.rank))
        }
        TogetherError::Stuck { rank, missing, after: None, .. } => {
            format!("{}\n  {}", of_rank(*rank), of_rank(*missing as usize))
        }
        TogetherError::NoGraphOfRank { .. } => {
            let labels: Vec<&str> = files.iter().map(|file| &*file.label).collect();
            labels.join("\n  ")
        }
        TogetherError::Rank { .. }
        | TogetherError::UnknownMembers { .. }
        | TogetherError::UnknownCommunication { .. }
        | TogetherError::Differ { .. }
        | TogetherError::Stuck { .. }
        | TogetherError::Region { .. }
        | TogetherError::Adjacent { .. } => return anyhow!(error.advised()),
    };
    InputFault::of_file(&file, error).into()
}

/// Everything that is said, on stderr; once for ranks of which the same is to be said.
fn show(job: &Job, reports: &[GraphReport], times: &Times) {
    let mut said: Vec<(Vec<usize>, Vec<String>, &[Warning])> = Vec::new();
    for report in reports {
        let mut lines = Vec::new();
        if job.explain {
            lines.extend(summary::explain(report));
        }
        if !job.json {
            lines.extend(summary::summary(report));
        }
        match said.iter_mut().find(|(_, known, warned)| *known == lines && *warned == report.warnings) {
            Some((ranks, ..)) => ranks.extend(report.rank),
            None => said.push((report.rank.into_iter().collect(), lines, &report.warnings)),
        }
    }
    for (ranks, lines, warnings) in &said {
        let heading = format!("{}:", name_of(ranks));
        if warnings.iter().any(|warning| matches!(warning, Warning::OfResult(_))) {
            talk::insist(&heading);
        } else if !lines.is_empty() || !warnings.is_empty() {
            talk::say(&heading);
        }
        lines.iter().for_each(|line| talk::say(line));
        warnings.iter().for_each(Warning::say);
    }
    if job.stats {
        reports.first().into_iter().flat_map(summary::stats).for_each(|line| talk::say(&line));
        talk::say(&times.line());
    }
}

/// `rank 0`, `ranks 0, 2-5`.
fn name_of(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |&(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let list: Vec<String> = runs.iter().map(run).collect();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", list.join(", "))
}
