//! Reading what the command line names.

use crate::fault::{InputFault, OptionFault};
use crate::units::count;
use crate::{output, talk};
use anyhow::{Context, Result, anyhow, bail};
use bucketeer::ir::{Graph, Operators};
use bucketeer_formats::stablehlo::is_stablehlo;
use bucketeer_formats::{Document, GroupsError, GroupsFile, ReadError};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The name of a file in messages; `-` is stdin.
pub fn label(path: &Path) -> String {
    if is_stdin(path) { "<stdin>".to_owned() } else { path.display().to_string() }
}

/// Refuses a list of files that names stdin twice: it can be read only once.
pub fn stdin_once<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    if paths.into_iter().filter(|path| is_stdin(path)).count() > 1 {
        bail!("`-` is given more than once, but stdin can be read only once");
    }
    Ok(())
}

/// Refuses a document with a graph that is not well-formed.
pub fn well_formed(label: &str, document: &Document) -> Result<()> {
    for (index, graph) in document.graphs().iter().enumerate() {
        bucketeer::ir::verify(graph).map_err(|errors| InputFault::of_verify(label, document, index, &errors))?;
    }
    Ok(())
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Where files are read from: on disk and from stdin, unless their content was given.
#[derive(Debug, Default)]
pub struct Files {
    /// By name. If there is such a map, stdin is somebody else's.
    given: Option<BTreeMap<PathBuf, Vec<u8>>>,
}

impl Files {
    /// Files on disk, and stdin.
    pub const fn on_disk() -> Self {
        Self { given: None }
    }

    /// Files that have this content whatever is on disk, and beside them those on disk. There is no stdin.
    pub const fn with(given: BTreeMap<PathBuf, Vec<u8>>) -> Self {
        Self { given: Some(given) }
    }

    fn content(&self, path: &Path) -> Option<&[u8]> {
        self.given.as_ref()?.get(path).map(Vec::as_slice)
    }

    /// Whether there is a file of that name.
    pub fn has(&self, path: &Path) -> bool {
        self.content(path).is_some() || path.exists()
    }

    /// A file's bytes.
    pub fn read(&self, path: &Path) -> Result<Vec<u8>> {
        if is_stdin(path) && self.content(path).is_none() {
            if self.given.is_some() {
                bail!("`-`: there is no standard input to read here");
            }
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read stdin")?;
            return Ok(bytes);
        }
        self.read_file(path)
    }

    /// The bytes of a file that is never stdin, whatever its name.
    pub fn read_file(&self, path: &Path) -> Result<Vec<u8>> {
        match self.content(path) {
            Some(content) => Ok(content.to_owned()),
            None => std::fs::read(path).with_context(|| format!("cannot read {}", label(path))),
        }
    }

    /// A file of graphs, of which not all may have been read. What is on disk and may be large is left there.
    fn open(&self, path: &Path) -> Result<Document> {
        let read = match is_stdin(path) || self.content(path).is_some() {
            true => Document::read(self.read(path)?),
            false => Document::open(path).with_context(|| format!("cannot read {}", path.display()))?,
        };
        checked(&label(path), read)
    }
}

/// A file of graphs. Those of it that cannot be read are said and left out.
pub fn read_document(path: &Path, files: &Files) -> Result<Document> {
    let document = files.open(path)?;
    for error in document.unread() {
        talk::error(&InputFault::of_unread(&label(path), error).to_string());
    }
    Ok(document)
}

/// A file of graphs that belong to those of another file by their place: all of them have to be there.
pub fn read_whole(path: &Path, files: &Files) -> Result<Document> {
    let document = files.open(path)?;
    match document.unread().first() {
        Some(error) => Err(InputFault::of_unread(&label(path), error).into()),
        None => Ok(document),
    }
}

fn checked(label: &str, read: Result<Document, ReadError>) -> Result<Document> {
    let document = read.map_err(|error| InputFault::of_read(label, &error))?;
    if document.graphs().is_empty() {
        return Err(InputFault::of_file(label, "it holds no graph").into());
    }
    Ok(document)
}

/// What `inspect` looks at.
pub enum Inspected {
    /// A module of StableHLO.
    StableHlo(Vec<u8>),
    /// Anything else.
    Document(Box<Document>),
}

/// A file of graphs, or of StableHLO. Of what may be large only the beginning is looked at.
pub fn read_inspected(path: &Path, files: &Files) -> Result<Inspected> {
    const BEGINNING_BYTES: u64 = 64 << 10;
    if is_stdin(path) || files.content(path).is_some() {
        let bytes = files.read(path)?;
        if is_stablehlo(&bytes) {
            return Ok(Inspected::StableHlo(bytes));
        }
        let document = checked(&label(path), Document::read(bytes))?;
        for error in document.unread() {
            talk::error(&InputFault::of_unread(&label(path), error).to_string());
        }
        return Ok(Inspected::Document(Box::new(document)));
    }
    let mut beginning = Vec::new();
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    file.take(BEGINNING_BYTES)
        .read_to_end(&mut beginning)
        .with_context(|| format!("cannot read {}", path.display()))?;
    if is_stablehlo(&beginning) {
        return Ok(Inspected::StableHlo(files.read(path)?));
    }
    read_document(path, files).map(|document| Inspected::Document(Box::new(document)))
}

/// A file and what it holds.
#[derive(Debug)]
pub struct File {
    pub label: String,
    pub document: Document,
}

/// The files of all ranks, which hold as many well-formed graphs each: the nth ones belong together. One file may be the
/// log of all.
pub fn read_ranks(paths: &[PathBuf], facts: &Facts, from: &Files) -> Result<Vec<File>> {
    stdin_once(paths.iter().map(|path| &**path))?;
    let mut files: Vec<File> = Vec::new();
    for (place, path) in paths.iter().enumerate() {
        let (document, label) = (read_whole(path, from)?, label(path));
        match split_by_rank(&document, &label)? {
            Some(logs) if paths.len() == 1 => files.extend(logs),
            Some(_) => return Err(InputFault::of_file(&label, "it is the log of several ranks; give it alone").into()),
            None => {
                if paths.len() > 1 {
                    logged_by(&label, &document, place)?;
                }
                files.push(File { label, document });
            }
        }
    }
    of_ranks(files, facts, from)
}

/// The log of each rank by itself, if a file is the log of several.
pub fn split_by_rank(document: &Document, label: &str) -> Result<Option<Vec<File>>> {
    let logs = document.by_rank().map_err(|error| InputFault::of_read(label, &error))?;
    let Some(logs) = logs else { return Ok(None) };
    let ranks: Vec<String> = logs.iter().map(|(rank, _)| rank.to_string()).collect();
    if logs.iter().zip(0..).any(|(&(rank, _), place)| rank != place) {
        let what = format!("it is the log of ranks {}; expected those of all ranks, from 0 on", ranks.join(", "));
        return Err(InputFault::of_file(label, what).into());
    }
    let file = |(rank, document): (u32, Document)| match document.unread().first() {
        Some(error) => Err(InputFault::of_unread(label, error).into()),
        None => Ok(File { label: format!("{label} (rank {rank})"), document }),
    };
    logs.into_iter().map(file).collect::<Result<_>>().map(Some)
}

/// Refuses the log of one rank in the place of another.
fn logged_by(label: &str, document: &Document, place: usize) -> Result<()> {
    let rank = (0..document.graphs().len()).find_map(|graph| document.rank_of(graph));
    match rank.filter(|&rank| rank as usize != place) {
        None => Ok(()),
        Some(rank) => {
            let what = format!(
                "its lines begin with `[rank{rank}]`, but it is given in the place of rank {place}; give the files in the \
                 order of the ranks, such as 'rank{{rank}}.txt'"
            );
            Err(InputFault::of_file(label, what).into())
        }
    }
}

/// The files that names stand for: `{rank}` in a name is each number for which there is a file, from 0 on.
pub fn expand(paths: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((before, after)) = name.split_once(output::RANK).filter(|_| !path.exists()) else {
            all.push(path);
            continue;
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let number = |name: &str| {
            let digits = name.strip_prefix(before)?.strip_suffix(after)?;
            digits.parse::<u32>().ok().filter(|number| number.to_string() == digits)
        };
        let mut ranks: Vec<u32> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str().and_then(number)).collect();
        ranks.sort_unstable();
        if ranks.is_empty() {
            bail!("{}: there is no such file for any rank", path.display());
        }
        if let Some((rank, _)) = (0..).zip(&ranks).find(|(expected, found)| expected != *found) {
            bail!("{}: there are {}, but none for rank {rank}", path.display(), count(ranks.len(), "file"));
        }
        all.extend(ranks.into_iter().map(|rank| output::of_rank(&path, rank)));
    }
    Ok(all)
}

/// Gives the facts to the files of all ranks, and holds them against each other.
pub fn of_ranks(read: Vec<File>, facts: &Facts, from: &Files) -> Result<Vec<File>> {
    let mut files: Vec<File> = Vec::new();
    for File { label, mut document } in read {
        facts.apply(&mut document, from)?;
        well_formed(&label, &document)?;
        let here = document.graphs().len();
        if let Some(first) = files.first().map(|file| file.document.graphs().len()).filter(|&first| first != here) {
            let what = format!("rank 0 has {}, this one has {}", count(first, "graph"), count(here, "graph"));
            return Err(InputFault::of_file(&label, what).into());
        }
        files.push(File { label, document });
    }
    Ok(files)
}

/// Which graph of a file is meant.
#[derive(Clone, Debug, clap::Args)]
pub struct GraphArgs {
    /// Of a file of several graphs, work on this one only: its number, from 1, or its name
    #[arg(long = "graph", value_name = "N|NAME")]
    wanted: Option<String>,
}

impl GraphArgs {
    /// Leaves the other graphs of a document as they are. A file of one graph has no other.
    pub fn apply(&self, document: &mut Document) -> Result<()> {
        let graphs = document.graphs();
        let Some(wanted) = self.wanted.as_deref().filter(|_| graphs.len() > 1) else { return Ok(()) };
        let by_number = wanted.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let named: Vec<usize> = (0..graphs.len()).filter(|&index| graphs[index].name == wanted).collect();
        match (by_number.filter(|&index| index < graphs.len()), &named[..]) {
            (Some(index), _) | (None, &[index]) => {
                document.select(index);
                Ok(())
            }
            (None, named) => {
                let problem =
                    if named.is_empty() { "no graph has that number or name" } else { "several have that name" };
                let list =
                    graphs.iter().enumerate().map(|(index, graph)| format!("\n  {} `{}`", index + 1, graph.name));
                let list = list.collect::<String>();
                bail!(OptionFault::of(anyhow!("--graph `{wanted}`: {problem}; there are{list}")))
            }
        }
    }
}

/// Facts about a graph that its file does not hold.
#[derive(Clone, Debug, clap::Args)]
pub struct FactsArgs {
    #[command(flatten)]
    graph: GraphArgs,
    /// Members of the process groups, as JSON: {"0": [[0, 1], [2, 3]], "dp": [0, 1, 2, 3]}, alone or under "groups"
    #[arg(long, value_name = "FILE")]
    groups: Option<std::path::PathBuf>,
    /// A likely value of a symbolic size, to hold sizes against caps and to run graphs; may be
    /// repeated
    #[arg(long = "hint", value_name = "SYMBOL=VALUE")]
    hints: Vec<String>,
    /// What operators do that are not PyTorch's, as schemas, one a line:
    /// mylib::scale_by(Tensor(a!) g, Tensor x) -> Tensor
    ///
    /// Without, such an operator is taken to write and alias the tensors that it is given, and to draw random numbers. After
    /// a schema may stand `tags:` and PyTorch's tags, such as nondeterministic_seeded, or `communicates`.
    #[arg(long, value_name = "FILE")]
    ops: Option<std::path::PathBuf>,
}

/// Facts about a graph, as validated; files are read later.
#[derive(Debug)]
pub struct Facts {
    graph: GraphArgs,
    groups: Option<std::path::PathBuf>,
    ops: Option<std::path::PathBuf>,
    hints: Vec<(String, u64)>,
}

impl FactsArgs {
    /// Checks the options, before any work.
    pub fn validate(self) -> Result<Facts> {
        let hints = self.hints.iter().map(|hint| read_hint(hint)).collect::<Result<_>>()?;
        Ok(Facts { graph: self.graph, groups: self.groups, ops: self.ops, hints })
    }
}

impl Facts {
    /// Gives the facts to all graphs of a document.
    pub fn apply(&self, document: &mut Document, files: &Files) -> Result<()> {
        self.graph.apply(document)?;
        self.apply_to(document.graphs_mut(), files)
    }

    /// Gives the facts to graphs.
    pub fn apply_to(&self, graphs: &mut [Graph], files: &Files) -> Result<()> {
        for (symbol, value) in &self.hints {
            for graph in &mut *graphs {
                graph.hints.insert(symbol.as_str().into(), *value);
            }
        }
        if let Some(path) = &self.ops {
            let fault = |error: &dyn std::fmt::Display| InputFault::of_file(&label(path), error.to_string());
            let bytes = files.read(path)?;
            let text = std::str::from_utf8(&bytes).map_err(|error| fault(&error))?;
            let operators = Operators::parse(text).map_err(|error| fault(&error))?;
            for graph in &mut *graphs {
                graph.operators.extend(&operators);
            }
        }
        let Some(path) = &self.groups else { return Ok(()) };
        let fault = |error: GroupsError| InputFault::of_file(&label(path), error);
        let file = GroupsFile::parse(&files.read(path)?).map_err(fault)?;
        for graph in graphs {
            let missing = file.apply(graph).map_err(fault)?;
            if !missing.is_empty() {
                let names: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
                talk::warn(&format!("{} lacks group {} of graph `{}`", label(path), names.join(", "), graph.name));
            }
        }
        Ok(())
    }
}

fn read_hint(text: &str) -> Result<(String, u64)> {
    let (symbol, value) = text.split_once('=').unwrap_or((text, ""));
    match value.trim().parse() {
        Ok(value) if !symbol.trim().is_empty() && i64::try_from(value).is_ok() => Ok((symbol.trim().to_owned(), value)),
        _ => bail!("--hint `{text}`: expected a symbol, `=` and a whole number of at most 2^63 - 1, such as s0=128"),
    }
}
