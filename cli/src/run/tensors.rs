//! Tensors that `run` takes from files and writes to files.

use super::{Job, explained};
use crate::fault::{InputFault, clean};
use crate::output::{self, RANK, of_rank};
use crate::talk;
use crate::units::count;
use anyhow::{Context, Result, anyhow, bail};
use bucketeer::check::eval::Output;
use bucketeer::ir::{GlobalRank, Graph};
use bucketeer::program::Program;
use bucketeer::runtime::executor::{
    Run, TensorFault, TensorFile, TensorFileError, check_outputs, output_names, seeded_inputs, to_safetensors,
};
use std::path::{Path, PathBuf};

/// Surplus tensors that a note lists.
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
    let mut names = surplus.iter().take(MOST_NAMES).map(|name| clean(name)).collect::<Vec<_>>().join(", ");
    if surplus.len() > MOST_NAMES {
        names += ", ...";
    }
    let file = of_rank(path, rank);
    let are = if surplus.len() == 1 { "tensor is" } else { "tensors are" };
    talk::say(&format!("note: {}: {} {are} no input of the graph: {names}", file.display(), surplus.len()));
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

/// Writes what each rank made, counted from `first`, all files or none.
pub fn write(path: &Path, graph: &Graph, first: u32, runs: &[Run]) -> Result<()> {
    let names = output_names(graph);
    let one = |(rank, run): (u32, &Run)| -> Result<(PathBuf, Vec<u8>)> {
        let path = of_rank(path, rank);
        let bytes = to_safetensors(&names, &run.outputs).with_context(|| format!("cannot write {}", path.display()))?;
        Ok((path, bytes))
    };
    output::write_all((first..).zip(runs).map(one))
}
