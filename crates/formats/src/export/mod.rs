//! Programs of torch.export: `.pt2` archives, and the `model.json` inside of them.
//!
//! Reading keeps the bytes, and for each node where it stands in the JSON and what it was. Printing gives back the same
//! bytes, but for what changed: nodes that do something else, what is said of their values, and names of outputs. An
//! archive keeps all its other members as they are; weights are never read.
//!
//! * `archive`: the zip file;
//! * `records`: the JSON as far as it is understood;
//! * `arguments`, `codes`, `symbolic`: arguments, numbers that stand for dtypes and layouts, and SymPy's texts;
//! * `read`, `text`: from JSON to graphs;
//! * `write`, `edits`, `tables`: the JSON again, with what changed;
//! * `emit`, `schemas`: a node from the graph.

mod archive;
mod arguments;
mod codes;
mod edits;
mod emit;
mod error;
mod read;
mod records;
mod schemas;
mod symbolic;
mod tables;
mod text;
mod write;

pub use error::ExportError;

use archive::Archive;
use bucketeer::ir::Graph;
use std::fs::File;
use std::io;
use text::ProgramText;

/// The key of a node's metadata that holds the names of the collectives merged into it.
const MEMBERS_KEY: &str = "bucketeer_merges";

/// One JSON of a program, and which of the graphs are its.
#[derive(Clone, Debug)]
struct Program {
    source: Box<str>,
    text: ProgramText,
    graphs: std::ops::Range<usize>,
}

/// A file of torch.export: a JSON, or an archive with one or several.
#[derive(Clone, Debug)]
pub struct ExportFile {
    programs: Vec<Program>,
    graphs: Vec<Graph>,
    archive: Option<Archive>,
}

impl ExportFile {
    /// Reads a `model.json`.
    ///
    /// # Errors
    /// [`ExportError`], with the place of the first fault.
    pub fn parse_json(text: String) -> Result<Self, ExportError> {
        let mut file = Self { programs: Vec::new(), graphs: Vec::new(), archive: None };
        file.add(text, "model", None)?;
        Ok(file)
    }

    /// Reads an archive that is in memory.
    ///
    /// # Errors
    /// [`ExportError`] at the first fault.
    pub fn parse_archive(bytes: Vec<u8>) -> Result<Self, ExportError> {
        Self::of_archive(Archive::of_bytes(bytes)?)
    }

    /// Reads an archive from a file, of which only its table and the JSONs are read. The file is kept open, for what it
    /// holds besides is copied from it when the archive is written.
    ///
    /// # Errors
    /// [`ExportError`] at the first fault.
    pub fn open_archive(file: File) -> Result<Self, ExportError> {
        Self::of_archive(Archive::of_file(file)?)
    }

    /// The programs as they would be read from what is written. Of an archive nothing else is read or kept.
    ///
    /// # Errors
    /// [`ExportError`] at the first fault in what is written.
    pub(super) fn read_back(&self) -> Result<Self, ExportError> {
        let mut file = Self { programs: Vec::new(), graphs: Vec::new(), archive: None };
        for (index, program) in self.programs.iter().enumerate() {
            let text = write::print(&program.source, &program.text, &self.graphs[program.graphs.clone()]);
            let model = self.archive.as_ref().and_then(|archive| archive.models().get(index));
            let (stem, member) = model.map_or(("model", None), |model| (model.stem(), Some(&*model.name)));
            file.add(text.unwrap_or_else(|| program.source.to_string()), stem, member)?;
        }
        Ok(file)
    }

    fn of_archive(archive: Archive) -> Result<Self, ExportError> {
        let mut file = Self { programs: Vec::new(), graphs: Vec::new(), archive: None };
        for index in 0..archive.models().len() {
            let model = &archive.models()[index];
            let bytes = archive.read(model)?;
            let text = String::from_utf8(bytes).map_err(|error| {
                let at = error.utf8_error().valid_up_to();
                let bytes = error.as_bytes();
                ExportError {
                    member: Some(model.name.clone()),
                    place: Some(super::SourceLocation::of_byte(bytes, at)),
                    problem: format!("found the byte {:#04x}, which is not UTF-8", bytes[at]),
                    expected: "UTF-8 text".into(),
                }
            })?;
            file.add(text, model.stem(), Some(&model.name))?;
        }
        file.archive = Some(archive);
        Ok(file)
    }

    fn add(&mut self, text: String, name: &str, member: Option<&str>) -> Result<(), ExportError> {
        let (program, graphs) = read::read(&text, name).map_err(|fault| fault.in_text(&text, member))?;
        let first = self.graphs.len();
        self.graphs.extend(graphs);
        self.programs.push(Program { source: text.into_boxed_str(), text: program, graphs: first..self.graphs.len() });
        Ok(())
    }

    /// Whether it is an archive.
    #[must_use]
    pub const fn is_archive(&self) -> bool {
        self.archive.is_some()
    }

    /// The graphs: of each program its own, then those inside of it (bodies of `cond` and the like).
    #[must_use]
    pub fn graphs(&self) -> &[Graph] {
        &self.graphs
    }

    /// The graphs, to edit. Inputs stay as they are: the signature is kept.
    pub fn graphs_mut(&mut self) -> &mut [Graph] {
        &mut self.graphs
    }

    /// Writes the file with the graphs as they are now. Where nothing changed, its bytes are those that were read.
    ///
    /// # Errors
    /// When `out` fails, or the file that an archive was opened from.
    pub fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let texts = self
            .programs
            .iter()
            .map(|program| write::print(&program.source, &program.text, &self.graphs[program.graphs.clone()]));
        let Some(archive) = &self.archive else {
            return texts
                .into_iter()
                .zip(&self.programs)
                .try_for_each(|(text, program)| out.write_all(text.as_deref().unwrap_or(&program.source).as_bytes()));
        };
        archive.write(&texts.collect::<Vec<_>>(), out)
    }
}

/// Whether a text in braces is a program of torch.export: it has a `graph_module`, or a `schema_version`.
pub(super) fn is_program(bytes: &[u8]) -> bool {
    [&b"\"graph_module\""[..], b"\"schema_version\""].into_iter().any(|key| {
        memchr::memmem::find_iter(bytes, key).any(|at| bytes[at + key.len()..].trim_ascii_start().starts_with(b":"))
    })
}

/// Whether a file begins as an archive does.
pub(super) fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06")
}
