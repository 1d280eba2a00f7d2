//! Tensors that `run` takes from files and writes to files.

use super::{Job, explained};
use crate::fault::{InputFault, clean};
use crate::output::{self, RANK, of_rank};
use crate::talk;
use crate::units::count;
use anyhow::{Context, Result, anyhow, bail};
use bucketeer::ir::{GlobalRank, Graph};
use bucketeer::program::Program;
use bucketeer_eval::Output;
use bucketeer_exec::{
    Run, TensorFault, TensorFile, TensorFileError, check_outputs, output_names, seeded_inputs, to_safetensors,
};
use std::path::{Path, PathBuf};

/// Names that a note lists.
const MOST_NAMES: usize = 5;

/// The values that one rank is given.
pub fn inputs(job: &Job, program: &Program, rank: u32) -> Result<Vec<Output>> {
    let global = GlobalRank(rank);
    let Some(path) = &job.inputs else { return seeded_inputs(program, global, job.seed).map_err(explained) };
    let read = || {
        let file = TensorFile::open(&of_rank(path, rank))?;
        note_surplus(path, rank, &file.surplus(program));
        file.inputs(program, job.fill_missing.then_some((global, job.seed)))
    };
    read().map_err(|error| refused(job, &error))
}

/// Ranks that share a file have the same to say about it.
fn note_surplus(path: &Path, rank: u32, surplus: &[&str]) {
    if surplus.is_empty() || (rank > 0 && !names_rank(path)) {
        return;
    }
    let names = listed(surplus.iter().take(MOST_NAMES + 1).map(|name| clean(name)).collect());
    let file = of_rank(path, rank);
    let are = if surplus.len() == 1 { "tensor is not an input" } else { "tensors are not inputs" };
    talk::say(&format!("note: {}: {} {are} of the graph: {names}", file.display(), surplus.len()));
}

/// Names in a line, as many as fit there.
fn listed(mut names: Vec<String>) -> String {
    if names.len() > MOST_NAMES {
        names.truncate(MOST_NAMES);
        names.push("...".to_owned());
    }
    names.join(", ")
}

/// A file that does not fit is the input's fault; that it cannot be read is not.
fn refused(job: &Job, error: &TensorFileError) -> anyhow::Error {
    let file = error.file.display().to_string();
    let hint = match &error.fault {
        TensorFault::Io(reason) => return anyhow!("cannot read {file}: {reason}"),
        TensorFault::Missing(_) => "; --fill-missing makes them from the seed",
        TensorFault::Tensor { .. } if job.shrink => {
            "; --shrink scales the graph's sizes down, and files have to fit that"
        }
        TensorFault::Tensor { .. } | TensorFault::File { .. } | TensorFault::Seed { .. } => "",
    };
    InputFault::of_file(&file, clean(&format!("{}{hint}", error.fault))).into()
}

fn names_rank(path: &Path) -> bool {
    path.to_string_lossy().contains(RANK)
}

/// That each of several ranks has a file of its own.
pub fn expect_rank(option: &str, path: &Path, ranks: u32) -> Result<()> {
    if ranks > 1 && !names_rank(path) {
        let ranks = count(ranks as usize, "rank");
        bail!("{option} {}: the files of {ranks} need `{RANK}` in it, for the rank that each is of", path.display());
    }
    Ok(())
}

/// Refuses, before anything runs, outputs that could not be written.
pub fn check(job: &Job, graph: &Graph, program: &Program, ranks: u32) -> Result<()> {
    let Some(path) = &job.outputs else { return Ok(()) };
    expect_rank("--outputs", path, ranks)?;
    check_outputs(program, &output_names(graph)).context("--outputs")
}

/// Writes what each rank made, counted from `first`, all files or none. What is of unknown type is left out.
pub fn write(path: &Path, graph: &Graph, first: u32, runs: &[Run]) -> Result<()> {
    let names = output_names(graph);
    let one = |(rank, run): (u32, &Run)| -> Result<(PathBuf, Vec<u8>)> {
        let path = of_rank(path, rank);
        let kept = names.iter().copied().zip(&run.outputs).filter(|(_, output)| !is_opaque(output));
        let (names, outputs): (Vec<&str>, Vec<Output>) = kept.map(|(name, output)| (name, output.clone())).unzip();
        let bytes = to_safetensors(&names, &outputs).with_context(|| format!("cannot write {}", path.display()))?;
        Ok((path, bytes))
    };
    output::write_all((first..).zip(runs).map(one))?;
    if let Some(run) = runs.first().filter(|_| first == 0) {
        note_left_out(&names, &run.outputs);
    }
    Ok(())
}

/// Such values, a device mesh for one, have no bytes. Graphs of PyTorch hand them through.
const fn is_opaque(output: &Output) -> bool {
    matches!(output, Output::Opaque(_))
}

fn note_left_out(names: &[&str], outputs: &[Output]) {
    let mut left_out: Vec<String> = Vec::new();
    for (name, _) in names.iter().zip(outputs).filter(|(_, output)| is_opaque(output)) {
        let name = clean(name);
        if !left_out.contains(&name) {
            left_out.push(name);
        }
    }
    if left_out.is_empty() {
        return;
    }
    let are = if left_out.len() == 1 { "is" } else { "are" };
    talk::insist(&format!("note: --outputs: {} {are} of unknown type, and left out", listed(left_out)));
}
