//! Commands on text, and the command line itself. While they work, other threads of Python do, too.

use crate::errors::exception;
use bucketeer_cli::api::{self, Fault, Flags, Takes};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::path::PathBuf;

/// A file of graphs: its content, or where it is.
#[derive(FromPyObject)]
pub enum Source {
    Content(PyBackedBytes),
    Path(PathBuf),
}

impl From<Source> for api::Source {
    fn from(source: Source) -> Self {
        match source {
            Source::Content(content) => Self::Content(content.to_vec()),
            Source::Path(path) => Self::Path(path),
        }
    }
}

/// Content of files that options name.
pub type Files = Vec<(String, PyBackedBytes)>;

/// The options that words and files say.
pub fn flags(words: Vec<String>, files: &Files) -> Flags {
    files.iter().fold(words.into(), |flags: Flags, (name, content)| flags.with_file(name, content.to_vec()))
}

/// Works without holding up other threads of Python.
pub fn apart<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, Fault> + Send) -> PyResult<T> {
    py.detach(work).map_err(|fault| exception(py, fault))
}

/// Result, report as JSON, summary, and what else was said.
type Rewritten<'py> = (Bound<'py, PyBytes>, String, String, Vec<String>);

/// Rewrites the graphs of a file.
#[pyfunction]
pub fn rewrite(py: Python<'_>, source: Source, words: Vec<String>, files: Files) -> PyResult<Rewritten<'_>> {
    let flags = flags(words, &files);
    let done = apart(py, || api::rewrite(source, flags))?;
    Ok((PyBytes::new(py, &done.result), done.report, done.summary, done.said))
}

/// What runs when: as an HTML page, as SVG and as JSON.
type Timeline = (String, String, String);

/// Result if there is one, report as JSON, summary, timeline if there is one, and what else was said.
type Planned<'py> = (Option<Bound<'py, PyBytes>>, String, String, Option<Timeline>, Vec<String>);

/// Plans the graph of a file.
#[pyfunction]
pub fn plan(py: Python<'_>, source: Source, words: Vec<String>, files: Files) -> PyResult<Planned<'_>> {
    let flags = flags(words, &files);
    let done = apart(py, || api::plan(source, flags))?;
    let result = done.result.map(|bytes| PyBytes::new(py, &bytes));
    let timeline = done.timeline.zip(done.svg).zip(done.spans).map(|((page, svg), spans)| (page, svg, spans));
    Ok((result, done.report, done.summary, timeline, done.said))
}

/// Report as JSON if nothing is drawn, listing or drawing, and what else was said.
#[pyfunction]
pub fn inspect(
    py: Python<'_>,
    source: Source,
    words: Vec<String>,
    files: Files,
) -> PyResult<(Option<String>, String, Vec<String>)> {
    let flags = flags(words, &files);
    let done = apart(py, || api::inspect(source, flags))?;
    Ok((done.report, done.text, done.said))
}

/// Report as JSON, the same for people, and what else was said.
type Checked = (String, String, Vec<String>);

/// Proves that a file's graphs compute what those of another do.
#[pyfunction]
pub fn verify(py: Python<'_>, before: Source, after: Source, words: Vec<String>, files: Files) -> PyResult<Checked> {
    let flags = flags(words, &files);
    let done = apart(py, || api::verify(before, after, flags))?;
    Ok((done.report, done.text, done.said))
}

/// Holds the graphs of all ranks against each other.
#[pyfunction]
pub fn check_ranks(py: Python<'_>, sources: Vec<Source>, words: Vec<String>, files: Files) -> PyResult<Checked> {
    let flags = flags(words, &files);
    let done = apart(py, || api::check_ranks(sources.into_iter().map(Into::into).collect(), flags))?;
    Ok((done.report, done.text, done.said))
}

/// The options of a command, each with what follows it: `nothing`, `value`, `switch` or `list`.
#[pyfunction]
pub fn options(command: &str) -> Vec<(String, &'static str)> {
    let takes = |takes: Takes| match takes {
        Takes::Nothing => "nothing",
        Takes::Value => "value",
        Takes::Switch => "switch",
        Takes::List => "list",
    };
    api::options(command).into_iter().map(|option| (option.name, takes(option.takes))).collect()
}

/// The whole command line, the program's name first; the exit code. `program` starts it again.
#[pyfunction]
pub fn main(py: Python<'_>, arguments: Vec<OsString>, program: Vec<OsString>) -> u8 {
    py.detach(|| bucketeer_cli::main(arguments, &program))
}
