//! A file that holds graphs, in whichever form it has.

use super::error::{ConvertError, ReadError, SourceLocation};
use super::export::{self, ExportFile};
use super::fx::{self, FxError, FxText};
use super::hlo::{self, HloText};
use super::stablehlo::is_stablehlo;
use bucketeer::ir::json::{from_json, to_json};
use bucketeer::ir::{Collective, CollectiveKind, Graph, ProcessGroup, Strength, text};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

/// A form that graphs have in files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Format {
    /// A program of torch.export: a `.pt2` archive, or its `model.json`.
    Export,
    /// PyTorch FX text.
    Fx,
    /// XLA HLO text.
    Hlo,
    /// Our own text.
    Native,
    /// Our own JSON.
    Json,
}

impl Format {
    /// The word for it in options: `fx`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Export => "export",
            Self::Fx => "fx",
            Self::Hlo => "hlo",
            Self::Native => "native",
            Self::Json => "json",
        }
    }

    /// The words for it in sentences.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Export => "a program of torch.export",
            Self::Fx => "FX text",
            Self::Hlo => "HLO text",
            Self::Native => "native text",
            Self::Json => "JSON",
        }
    }

    /// The form that a file name's ending stands for, without its dot.
    #[must_use]
    pub fn of_extension(extension: &str) -> Option<Self> {
        match extension {
            "txt" | "py" => Some(Self::Fx),
            "hlo" => Some(Self::Hlo),
            "pt2" => Some(Self::Export),
            "bkt" => Some(Self::Native),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// A file's graphs, which print in the file's form.
#[derive(Clone, Debug)]
pub struct Document {
    body: Body,
    /// The one graph to work on, if not all.
    selected: Option<usize>,
    /// The native text that was read.
    source: Box<str>,
}

#[derive(Clone, Debug)]
enum Body {
    Export(Box<ExportFile>),
    Fx(FxText),
    Hlo(Box<HloText>),
    Native(Box<[Graph; 1]>),
    Json(Box<[Graph; 1]>),
}

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];

/// What a small file may decompress to, whatever its size, and how many times its size a large one may. Texts of graphs
/// repeat themselves: real ones shrink to a twentieth.
const SMALL_BYTES: u64 = 64 << 20;
const LARGEST_RATIO: u64 = 200;

impl Document {
    /// Opens a file and reads it, as [`Document::read`] does. Of an archive only the graphs are read; the file is kept
    /// open, for all else is copied from it when the archive is written.
    ///
    /// # Errors
    /// An I/O error if the file cannot be opened or read, else [`ReadError`] at the first fault.
    pub fn open(path: &Path) -> io::Result<Result<Self, ReadError>> {
        let mut file = std::fs::File::open(path)?;
        let mut bytes = Vec::new();
        (&mut file).take(4).read_to_end(&mut bytes)?;
        // A pipe cannot be gone back and forth in.
        if export::is_archive(&bytes) && file.metadata()?.is_file() {
            file.rewind()?;
            return Ok(ExportFile::open_archive(file).map(Self::of_export).map_err(ReadError::Export));
        }
        file.read_to_end(&mut bytes)?;
        Ok(Self::read(bytes))
    }

    /// Reads a file: FX text, HLO text, a program of torch.export, native text or JSON, plain or as gzip, told apart by
    /// their content.
    ///
    /// # Errors
    /// [`ReadError`] at the first fault.
    pub fn read(bytes: Vec<u8>) -> Result<Self, ReadError> {
        if export::is_archive(&bytes) {
            return ExportFile::parse_archive(bytes).map(Self::of_export).map_err(ReadError::Export);
        }
        let bytes = if bytes.starts_with(GZIP_MAGIC) { decompress(&bytes)? } else { bytes };
        match detect(&bytes)? {
            Format::Export => {
                let text = into_text(bytes)?;
                ExportFile::parse_json(text).map(Self::of_export).map_err(ReadError::Export)
            }
            Format::Fx => Ok(Self::new(Body::Fx(FxText::parse(bytes).map_err(ReadError::Fx)?))),
            Format::Hlo => {
                let text = into_text(bytes)?;
                Ok(Self::new(Body::Hlo(Box::new(HloText::parse(text).map_err(ReadError::Hlo)?))))
            }
            Format::Native => {
                let source = utf8(&bytes)?;
                let graph = text::parse(source).map_err(ReadError::Native)?;
                Ok(Self { source: source.into(), ..Self::new(Body::Native(Box::new([graph]))) })
            }
            Format::Json => {
                let text = utf8(&bytes)?;
                let graph = from_json(text).map_err(|error| {
                    let place = match &error {
                        bucketeer::ir::json::JsonError::Shape(shape) => json_place(text, shape),
                        _ => None,
                    };
                    ReadError::Json { error: Box::new(error), place }
                })?;
                Ok(Self::new(Body::Json(Box::new([graph]))))
            }
        }
    }

    fn of_export(file: ExportFile) -> Self {
        Self::new(Body::Export(Box::new(file)))
    }

    fn new(body: Body) -> Self {
        Self { body, selected: None, source: "".into() }
    }

    /// The text that was read, for messages that point into it; empty for JSON, where lines mean little.
    #[must_use]
    pub fn source(&self) -> &str {
        match &self.body {
            Body::Fx(text) => text.source(),
            Body::Hlo(text) => text.source(),
            Body::Export(_) | Body::Native(_) | Body::Json(_) => &self.source,
        }
    }

    /// The form it prints in.
    #[must_use]
    pub const fn format(&self) -> Format {
        match self.body {
            Body::Export(_) => Format::Export,
            Body::Fx(_) => Format::Fx,
            Body::Hlo(_) => Format::Hlo,
            Body::Native(_) => Format::Native,
            Body::Json(_) => Format::Json,
        }
    }

    /// Whether the order of its text is a schedule that was chosen for it: HLO text that says `is_scheduled=true`.
    #[must_use]
    pub fn is_scheduled(&self) -> bool {
        matches!(&self.body, Body::Hlo(text) if text.is_scheduled())
    }

    /// What HLO text suggests as cap for collectives that are pipelined or synchronous, in bytes: see
    /// [`BucketOptions`](bucketeer::passes::bucketing::BucketOptions).
    #[must_use]
    pub fn suggested_cap_bytes(&self) -> Option<u64> {
        match &self.body {
            Body::Hlo(text) => text.suggested_cap_bytes(),
            _ => None,
        }
    }

    /// Spells every group of HLO text as lists of devices: see [`HloText::with_listed_groups`]. Other forms stay as they are.
    ///
    /// # Errors
    /// [`ReadError::Hlo`], if the lists would be too long to write.
    pub fn list_groups(&mut self) -> Result<(), ReadError> {
        if let Body::Hlo(text) = &mut self.body {
            **text = text.with_listed_groups().map_err(ReadError::Hlo)?;
        }
        Ok(())
    }

    /// Its graphs, in the order of the file; after [`Document::select`] the one that was selected.
    #[must_use]
    pub fn graphs(&self) -> &[Graph] {
        let graphs = match &self.body {
            Body::Export(file) => file.graphs(),
            Body::Fx(text) => text.graphs(),
            Body::Hlo(text) => text.graphs(),
            Body::Native(graph) | Body::Json(graph) => &graph[..],
        };
        self.selected.and_then(|index| graphs.get(index..=index)).unwrap_or(graphs)
    }

    /// The graph that is meant where one is asked for: the only one that no other calls.
    #[must_use]
    pub fn only_graph(&self) -> Option<&Graph> {
        let graphs = self.graphs();
        let called: Vec<&Graph> = graphs.iter().flat_map(|graph| graph.bodies.graphs()).collect();
        let same = |graph: &Graph, body: &Graph| graph.order().len() == body.order().len() && graph == body;
        let mut outermost = graphs.iter().filter(|graph| !called.iter().any(|body| same(graph, body)));
        outermost.next().filter(|_| outermost.next().is_none())
    }

    /// Its graphs, to edit, as [`Document::graphs`] gives them. In FX text and in programs of torch.export, inputs print as
    /// they were read.
    pub fn graphs_mut(&mut self) -> &mut [Graph] {
        let graphs = match &mut self.body {
            Body::Export(file) => file.graphs_mut(),
            Body::Fx(text) => text.graphs_mut(),
            Body::Hlo(text) => text.graphs_mut(),
            Body::Native(graph) | Body::Json(graph) => &mut graph[..],
        };
        match self.selected {
            Some(index) if index < graphs.len() => &mut graphs[index..=index],
            _ => graphs,
        }
    }

    /// Leaves all graphs but one out of [`Document::graphs`]. They are written as they are. An index that no graph has
    /// changes nothing.
    pub fn select(&mut self, graph: usize) {
        if graph < self.graphs().len() {
            self.selected = Some(self.selected.unwrap_or(0) + graph);
        }
    }

    /// The faults of graphs that could not be read beside others that could. They are written as they are.
    #[must_use]
    pub fn unread(&self) -> &[FxError] {
        match &self.body {
            Body::Fx(text) => text.unread(),
            _ => &[],
        }
    }

    /// The rank that logged a graph, if the log says so.
    #[must_use]
    pub fn rank_of(&self, graph: usize) -> Option<u32> {
        match &self.body {
            Body::Fx(text) => text.rank_of(self.selected.unwrap_or(0) + graph),
            _ => None,
        }
    }

    /// The log of each rank by itself, in the order of the ranks, if this is one of several.
    ///
    /// # Errors
    /// [`ReadError`] if a rank logged no graph that can be read.
    pub fn by_rank(&self) -> Result<Option<Vec<(u32, Self)>>, ReadError> {
        let Body::Fx(text) = &self.body else { return Ok(None) };
        let Some(logs) = text.by_rank() else { return Ok(None) };
        let read = |(rank, log): (u32, String)| Ok((rank, Self::read(log.into_bytes())?));
        logs.into_iter().map(read).collect::<Result<_, _>>().map(Some)
    }

    /// The graphs as FX text that was read, without what logs and terminals add and what stands between graphs; `None` for
    /// other forms. What changed since is not in it.
    #[must_use]
    pub fn cleaned(&self) -> Option<String> {
        match &self.body {
            Body::Fx(text) => Some(text.cleaned(self.selected)),
            _ => None,
        }
    }

    /// Where a graph begins in [`Document::source`], in bytes.
    #[must_use]
    pub fn start_of(&self, graph: usize) -> usize {
        match &self.body {
            Body::Fx(text) => text.start_of(self.selected.unwrap_or(0) + graph),
            _ => 0,
        }
    }

    /// Writes the file's bytes, with the graphs as they are now. An archive that was opened is copied piece by piece.
    ///
    /// # Errors
    /// When `out` fails, or the file that an archive is copied from.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.body {
            Body::Export(file) => file.write(out),
            _ => out.write_all(&self.print()),
        }
    }

    /// The file's bytes, with the graphs as they are now.
    ///
    /// # Panics
    /// When the file of an archive that was opened with [`Document::open`] can no longer be read; [`Document::write`]
    /// says so instead.
    #[must_use]
    pub fn print(&self) -> Vec<u8> {
        match &self.body {
            Body::Export(file) => {
                let mut bytes = Vec::new();
                file.write(&mut bytes).expect("the archive that was opened is still there");
                bytes
            }
            Body::Fx(text) => text.print(),
            Body::Hlo(text) => text.print(),
            Body::Native(graph) => text::print(&graph[0]).into_bytes(),
            Body::Json(graph) => {
                let mut text = to_json(&graph[0]);
                if !text.ends_with('\n') {
                    text.push('\n');
                }
                text.into_bytes()
            }
        }
    }

    /// What is written, as a reader finds it, with the same graph selected: `printed` is what [`print`](Self::print) gave. Of an archive only the
    /// programs are read, from what will be written of them.
    ///
    /// # Errors
    /// [`ReadError`] at the first fault in what is written.
    pub fn read_back(&self, printed: &[u8]) -> Result<Self, ReadError> {
        let found = match &self.body {
            Body::Export(file) => file.read_back().map(Self::of_export).map_err(ReadError::Export),
            _ => Self::read(printed.to_vec()),
        }?;
        Ok(Self { selected: self.selected, ..found })
    }

    /// The same graphs in another form. In its own form a document stays as it is.
    ///
    /// # Errors
    /// [`ConvertError`] if the form has no words for them.
    pub fn convert(self, to: Format) -> Result<Self, ConvertError> {
        if self.format() == to {
            return Ok(self);
        }
        match to {
            Format::Hlo => return Err(ConvertError::IntoHlo { from: self.format() }),
            Format::Export => return Err(ConvertError::IntoExport { from: self.format() }),
            _ => {}
        }
        let graph = self.into_only_graph(to)?;
        let body = match to {
            Format::Hlo | Format::Export => unreachable!("refused above"),
            Format::Native => Body::Native(Box::new([graph])),
            Format::Json => Body::Json(Box::new([graph])),
            Format::Fx => {
                let text = fx::print_fresh(&graph)?.into_bytes();
                Body::Fx(FxText::parse(text).map_err(ConvertError::FxReadBack)?)
            }
        };
        Ok(Self::new(body))
    }

    /// What a form has no words for and [`Document::convert`] leaves out, in words. None of it changes what the graph
    /// computes, but a later pass over the result does not know of it.
    #[must_use]
    pub fn losses(&self, to: Format) -> Vec<String> {
        if self.format() == Format::Hlo && to != Format::Hlo {
            let mut losses = vec!["layouts, metadata, and bodies of fusions and reductions".to_owned()];
            losses.extend(self.is_scheduled().then(|| "that its order is a schedule".to_owned()));
            return losses;
        }
        if self.format() == Format::Export && to != Format::Export {
            return vec!["weights, signature, and metadata of nodes that are not collectives".to_owned()];
        }
        if to != Format::Fx || self.format() == Format::Fx {
            return Vec::new();
        }
        let graph = &self.graphs()[0];
        let metas = || graph.order().iter().map(|&id| graph.meta_of(id));
        let wishes = graph.control.iter().filter(|edge| edge.strength == Strength::Soft).count();
        // A text states the size of a group only where it gathers or scatters.
        let states = |collective: Collective| {
            matches!(collective.kind, CollectiveKind::AllGather { .. } | CollectiveKind::ReduceScatter { .. })
        };
        let collectives = || graph.order().iter().filter_map(|&id| graph.collective(id));
        let unsaid = |(index, group): &(usize, &ProcessGroup)| {
            let mut users = collectives().filter(|collective| collective.group.index() == *index);
            !group.members.is_empty() || (group.size.is_some() && !users.any(states))
        };
        let counts = [
            (graph.control.len() - wishes, "order edge"),
            (wishes, "order wish"),
            (graph.hints.len(), "hint"),
            (metas().filter(|meta| meta.key.is_some()).count(), "bucket boundary"),
            (metas().filter(|meta| meta.pending).count(), "pending input"),
            (graph.groups().iter().enumerate().filter(unsaid).count(), "group's size or members"),
        ];
        let found = counts.into_iter().filter(|(count, _)| *count > 0);
        found.map(|(count, what)| format!("{what} ({count})")).collect()
    }

    fn into_only_graph(self, to: Format) -> Result<Graph, ConvertError> {
        let selected = self.selected;
        match self.body {
            Body::Native(graph) | Body::Json(graph) => {
                let [graph] = *graph;
                Ok(graph)
            }
            Body::Hlo(text) => Ok(hlo::with_plain_names(&text.graphs()[0])),
            Body::Fx(text) => only_graph(text.graphs(), selected, to).cloned(),
            Body::Export(file) => only_graph(file.graphs(), selected, to).map(hlo::with_plain_names),
        }
    }
}

fn only_graph(graphs: &[Graph], selected: Option<usize>, to: Format) -> Result<&Graph, ConvertError> {
    match selected.and_then(|index| graphs.get(index..=index)).unwrap_or(graphs) {
        [graph] => Ok(graph),
        graphs => {
            let names: Vec<&str> = graphs.iter().map(|graph| graph.name.as_str()).collect();
            Err(ConvertError::GraphCount { found: graphs.len(), names: names.join(", "), to })
        }
    }
}

fn decompress(bytes: &[u8]) -> Result<Vec<u8>, ReadError> {
    let limit = SMALL_BYTES.saturating_add(LARGEST_RATIO.saturating_mul(bytes.len() as u64));
    let mut out = Vec::new();
    let mut reader = flate2::read::MultiGzDecoder::new(bytes).take(limit + 1);
    reader.read_to_end(&mut out).map_err(ReadError::Gzip)?;
    if out.len() as u64 > limit {
        return Err(ReadError::TooLarge { compressed: bytes.len(), limit });
    }
    Ok(out)
}

fn into_text(bytes: Vec<u8>) -> Result<String, ReadError> {
    String::from_utf8(bytes).map_err(|error| not_text(error.as_bytes(), error.utf8_error().valid_up_to()))
}

fn not_text(bytes: &[u8], at: usize) -> ReadError {
    ReadError::NotText { byte: bytes[at], place: SourceLocation::of_byte(bytes, at) }
}

fn utf8(bytes: &[u8]) -> Result<&str, ReadError> {
    std::str::from_utf8(bytes).map_err(|error| not_text(bytes, error.valid_up_to()))
}

/// The place of an error of serde_json, which counts columns in bytes and has line 0 for none.
fn json_place(text: &str, error: &serde_json::Error) -> Option<SourceLocation> {
    let line = error.line().checked_sub(1)?;
    let start = if line == 0 { 0 } else { memchr::memchr_iter(b'\n', text.as_bytes()).nth(line - 1)? + 1 };
    Some(SourceLocation::of_byte(text.as_bytes(), start + error.column().saturating_sub(1)))
}

/// Tells the forms apart. JSON begins with a brace, and is a program of torch.export if it has a `graph_module`; HLO text
/// begins with `HloModule`. FX text has a line with a class or `def forward`, or at least statements in PyTorch's
/// operators; logs may stand before. Native text begins with a statement.
fn detect(bytes: &[u8]) -> Result<Format, ReadError> {
    let Some(first) = bytes.iter().position(|byte| !byte.is_ascii_whitespace()) else { return Err(ReadError::Empty) };
    if bytes[first] == b'{' {
        return Ok(if export::is_program(bytes) { Format::Export } else { Format::Json });
    }
    if hlo::begins(bytes) {
        return Ok(Format::Hlo);
    }
    if is_stablehlo(bytes) {
        return Err(ReadError::StableHlo);
    }
    let has = |words: &str| memchr::memmem::find(bytes, words.as_bytes()).is_some();
    if begins_native(&bytes[first..]) {
        return Ok(Format::Native);
    }
    if has("def forward") || has("torch.nn.Module") || has(" = torch.ops.") {
        return Ok(Format::Fx);
    }
    utf8(bytes)?;
    Err(ReadError::UnknownForm { place: SourceLocation::of_byte(bytes, first) })
}

/// Whether the first line that is not a comment looks like a statement of native text.
fn begins_native(bytes: &[u8]) -> bool {
    let line = bytes.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let Some(line) = line.into_iter().find(|line| !line.is_empty() && !line.starts_with(b"#")) else { return true };
    if line.starts_with(b"@") {
        return true;
    }
    let word = line.iter().position(|&byte| !(byte.is_ascii_alphanumeric() || byte == b'_')).unwrap_or(line.len());
    let (word, rest) = (&line[..word], line[word..].trim_ascii_start());
    match word {
        b"" | b"class" | b"def" | b"from" | b"import" => false,
        b"graph" | b"group" | b"hint" | b"region" if !rest.is_empty() => true,
        _ => (rest.starts_with(b"=") && !rest.starts_with(b"= torch.")) || rest.starts_with(b"("),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const NATIVE: &str = "x = input f32[8]\ns = all_reduce(x, sum, G:2)\nw = wait(s)\noutput(w)\n";

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_graph_keeps_its_meaning_through_all_forms() {
        let native = Document::read(NATIVE.as_bytes().to_vec()).unwrap();
        assert_eq!(native.format(), Format::Native);
        let printed = native.print();
        for format in [Format::Json, Format::Fx] {
            let other = native.clone().convert(format).unwrap();
            let read = Document::read(gzip(&other.print())).unwrap();
            assert_eq!(read.format(), format);
            let back = read.convert(Format::Native).unwrap().print();
            if format == Format::Json {
                assert_eq!(String::from_utf8_lossy(&back), String::from_utf8_lossy(&printed));
            }
        }
    }

    #[test]
    fn gzip_is_read_up_to_a_limit() {
        let bomb = gzip(&vec![b'\n'; 90 << 20]);
        assert!(matches!(Document::read(bomb), Err(ReadError::TooLarge { .. })));
        let mut cut = gzip(NATIVE.as_bytes());
        cut.truncate(cut.len() - 12);
        assert!(matches!(Document::read(cut), Err(ReadError::Gzip(_))));
    }

    #[test]
    fn what_is_no_graph_is_refused_with_its_place() {
        assert!(matches!(Document::read(Vec::new()), Err(ReadError::Empty)));
        assert!(matches!(Document::read(b" \n\n".to_vec()), Err(ReadError::Empty)));
        let error = Document::read(b"\n  dear diary,\n".to_vec()).unwrap_err();
        let place = error.place().unwrap();
        assert_eq!((place.line, place.column, place.source_line.as_str()), (2, 3, "  dear diary,"));
        let error = Document::read(b"x = input f32[8]\ny = \xff\n".to_vec()).unwrap_err();
        let place = error.place().unwrap();
        assert_eq!((place.line, place.column), (2, 5));
        let error = Document::read(b"{\"format\": 3}".to_vec()).unwrap_err();
        assert_eq!(error.place().unwrap().line, 1);
    }
}
