//! From text to graphs: one node for each statement, in one pass over the bytes.
//!
//! Nearly all time goes into looking things up: the name of the new value, the names of its operands, its annotation
//! and the key of its right side (see [`super::lex`]). Each is one probe of a hash table; nothing is parsed twice, and
//! no statement allocates.

use super::clean::Source;
use super::collective::{Meaning, meaning};
use super::error::Fault;
use super::expr::{ALIAS, KeyFault, parse_change, parse_return, parse_right_side};
use super::header::{Annotation, Header, Span, docstring_end, end_of_line, next_header, optional_annotation};
use super::lex::{is_keyword, is_letter, is_word, line_end, scan_right_side, skip_blanks, word_end};
use super::statement::{augmented, binding, changes_a_value};
use super::{ClassText, Statement};
use crate::group_values::GroupValues;
use bucketeer::ir::{ArgsId, Graph, Meta, MetaId, Name, NodeId, Op, Type, TypeId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

const UNDEFINED: u32 = u32::MAX;

/// How many distinct `# File:` lines in a row are kept.
const MOST_FILES: usize = 64;

/// What a file holds.
#[derive(Default)]
pub(super) struct Read {
    pub classes: Vec<ClassText>,
    pub graphs: Vec<Graph>,
    /// The fault of each graph that cannot be read.
    pub faults: Vec<Fault>,
}

/// Reads every class of a file. A graph with a fault does not keep others from being read, but for a file in which there
/// is no other.
pub(super) fn read(source: &Source) -> Result<Read, Fault> {
    let text = source.text();
    let bytes = text.as_bytes();
    let mut read = Read::default();
    // By graph, or for one with a fault: its indent.
    let mut outline: Vec<(usize, Option<usize>)> = Vec::new();
    let (mut at, mut behind_fault) = (0, false);
    loop {
        let mut header = match next_header(text, at, behind_fault) {
            Ok(Some(header)) => header,
            Ok(None) => break,
            Err(fault) => {
                at = (line_end(bytes, fault.at.clamp(at, bytes.len())) + 1).min(bytes.len());
                behind_fault = true;
                outline.push((0, None));
                read.faults.push(fault);
                continue;
            }
        };
        if header.is_outermost()
            && let Some(name) = heading(&text[at..header.start])
        {
            header.name = name;
        }
        match ClassReader::new(source, &header).read(&header) {
            Ok((class, graph)) => {
                at = class.end() as usize;
                behind_fault = false;
                outline.push((header.indent, Some(read.graphs.len())));
                read.classes.push(class);
                read.graphs.push(graph);
            }
            Err(fault) => {
                // The line of the fault may begin the next graph.
                let line = memchr::memrchr(b'\n', &bytes[..fault.at.min(bytes.len())]).map_or(0, |found| found + 1);
                at = line.max(header.body);
                behind_fault = true;
                outline.push((header.indent, None));
                read.faults.push(fault);
            }
        }
    }
    if read.graphs.is_empty() {
        if !read.faults.is_empty() {
            return Err(read.faults.swap_remove(0));
        }
        let expected = "`class GraphModule(torch.nn.Module):` or `def forward(self, ..):`";
        let problem = if text.trim().is_empty() { "the file is empty" } else { "there is no graph in this file" };
        return Err(Fault::problem(0, 0, format!("{problem}; expected {expected}"), expected));
    }
    give_bodies(&mut read.graphs, &outline);
    Ok(read)
}

/// The name of a graph by the last heading above it: `===== Backward graph 0 =====` is `backward_graph_0`.
fn heading(above: &str) -> Option<String> {
    let words = |line: &str| {
        let words = line.trim().strip_prefix("=====")?.strip_suffix("=====")?.trim_matches('=').trim();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        let name: String = words.chars().map(plain).collect();
        (name.starts_with(|c: char| c.is_ascii_lowercase()) && name.len() <= 80).then_some(name)
    };
    above.lines().rev().find_map(words)
}

/// Gives each graph the graphs that it calls: FX prints them below it, indented, as classes with the attribute's name.
fn give_bodies(graphs: &mut [Graph], outline: &[(usize, Option<usize>)]) {
    let mut around: Vec<(usize, Option<usize>)> = Vec::new();
    let mut inner: Vec<Vec<usize>> = vec![Vec::new(); graphs.len()];
    for &(indent, graph) in outline {
        while around.last().is_some_and(|&(outer, _)| outer >= indent) {
            around.pop();
        }
        if let (Some(&(_, Some(outer))), Some(graph)) = (around.last(), graph) {
            inner[outer].push(graph);
        }
        around.push((indent, graph));
    }
    // Inner graphs come later, and are whole before they are given.
    for outer in (0..graphs.len()).rev() {
        for &index in &inner[outer] {
            let body = graphs[index].clone();
            let name = body.name.clone();
            graphs[outer].bodies.insert(&name, body);
        }
    }
}

/// Comments since the last statement, as far as they matter.
#[derive(Default)]
struct Comments {
    /// What `# bucketeer: merges` lists.
    members: Option<Span>,
    /// The `# File:` lines in force, [`MOST_FILES`] at most: FX prints them where they change.
    files: Vec<Span>,
    /// Metadata of a collective with these sources and no members.
    files_meta: Option<MetaId>,
    /// Whether the line before was a `# File:` line.
    in_files: bool,
}

struct ClassReader<'a> {
    source: &'a Source,
    text: &'a str,
    at: usize,
    graph: Graph,
    class: ClassText,
    comments: Comments,
    keys: HashMap<Box<[u8]>, (Op, ArgsId), FxBuildHasher>,
    types: HashMap<&'a str, TypeId, FxBuildHasher>,
    /// What the name of a node stands for since an augmented assignment to it.
    rebound: HashMap<NodeId, NodeId, FxBuildHasher>,
    group_values: GroupValues,
    key: Vec<u8>,
    operands: Vec<NodeId>,
    spans: Vec<(u32, u32)>,
}

impl<'a> ClassReader<'a> {
    fn new(source: &'a Source, header: &Header) -> Self {
        let class = ClassText {
            start: (header.start - header.start_indent) as u32,
            indent: header.indent as u32,
            body: header.body as u32,
            statements: Vec::new(),
            inputs: 0,
            definitions: Vec::new(),
            rebound: Vec::new(),
            has_tails: false,
            has_strides: false,
        };
        Self {
            source,
            text: source.text(),
            at: header.body,
            graph: Graph::new(&header.name),
            class,
            comments: Comments::default(),
            keys: HashMap::default(),
            types: HashMap::default(),
            rebound: HashMap::default(),
            group_values: GroupValues::default(),
            key: Vec::new(),
            operands: Vec::new(),
            spans: Vec::new(),
        }
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    fn read(mut self, header: &Header) -> Result<(ClassText, Graph), Fault> {
        for input in &header.inputs {
            let ty = self.annotation_type(input.annotation)?;
            let name = self.define(input.name)?;
            self.push(Op::Input, name, ty, ArgsId::EMPTY);
        }
        self.class.inputs = self.graph.arena_len();
        while self.statement()? {}
        self.group_values.finish(&mut self.graph);
        self.graph.start_edit_log();
        Ok((self.class, self.graph))
    }

    /// Reads the next statement and what stands above it. Gives `false` after `return`.
    fn statement(&mut self) -> Result<bool, Fault> {
        let bytes = self.bytes();
        let lead = self.at;
        loop {
            let start = skip_blanks(bytes, self.at);
            match bytes.get(start) {
                None => return Err(self.truncated(start)),
                Some(b'\n') => self.at = start + 1,
                Some(b'#') => {
                    let end = line_end(bytes, start);
                    self.comment(start, end);
                    self.at = (end + 1).min(bytes.len());
                }
                Some(b'"' | b'\'') => {
                    let Some(end) = docstring_end(bytes, start) else {
                        return Err(Fault::expected(start, "a statement"));
                    };
                    self.at = end_of_line(bytes, end)?;
                }
                Some(&byte) if is_letter(byte) => {
                    let end = word_end(bytes, start);
                    match &bytes[start..end] {
                        b"return" => return self.return_statement(lead, start).map(|()| false),
                        b"class" | b"def" if bytes.get(end) == Some(&b' ') => return Err(self.truncated(start)),
                        _ => return self.assignment(lead, start, end).map(|()| true),
                    }
                }
                Some(_) => {
                    return Err(Fault::expected(
                        start,
                        "a statement, such as `name = torch.ops.aten.mm.default(a, b)`",
                    ));
                }
            }
        }
    }

    fn truncated(&self, at: usize) -> Fault {
        let problem = format!("graph `{}` has no `return`; is the file cut off?", self.graph.name);
        Fault::problem(at, 0, problem, "`return (..)` at the end of the graph")
    }

    fn comment(&mut self, start: usize, end: usize) {
        let words = self.text[start + 1..end].trim();
        let span = |text: &str| {
            let offset = self.text[start..end].find(text).unwrap_or(0);
            (start + offset, start + offset + text.len())
        };
        if let Some(members) = words.strip_prefix("bucketeer: merges ") {
            self.comments.members = Some(span(members));
        } else if let Some(file) = words.strip_prefix("File: ") {
            let file = span(file);
            self.comments.files_meta = None;
            if !self.comments.in_files {
                self.comments.files.clear();
            }
            let is_new = self.comments.files.iter().all(|&(a, b)| self.text[a..b] != self.text[file.0..file.1]);
            if is_new && self.comments.files.len() < MOST_FILES {
                self.comments.files.push(file);
            }
            self.comments.in_files = true;
            return;
        } else if words.starts_with("No stacktrace found") {
            self.comments.files.clear();
            self.comments.files_meta = None;
        }
        self.comments.in_files &= words.starts_with("...");
    }

    fn assignment(&mut self, lead: usize, start: usize, name_end: usize) -> Result<(), Fault> {
        let bytes = self.bytes();
        let mut at = name_end;
        let mut annotation = None;
        if bytes.get(at) != Some(&b' ') || bytes.get(at + 1) != Some(&b'=') {
            if changes_a_value(self.text, name_end) {
                return self.change(lead, start, name_end);
            }
            (annotation, at) = optional_annotation(self.text, at, b"=")?;
        }
        at = skip_blanks(bytes, at);
        if bytes.get(at) != Some(&b'=') || bytes.get(at + 1) == Some(&b'=') {
            return Err(Fault::expected(at, "`=`"));
        }
        let right = skip_blanks(bytes, at + 1);
        let ty = self.annotation_type(annotation)?;
        let right_end = self.scan(right)?;
        let (op, args) = self.right_side(right)?;
        // Another name for a value is that value.
        let is_untyped = ty == TypeId::UNKNOWN && self.operands.len() == 1;
        let is_name = is_untyped && matches!(op, Op::Call(target) if self.graph.text(target) == ALIAS);
        let ty = if is_name { self.type_or_operand(ty) } else { ty };
        let name = self.define((start, name_end))?;
        let id = self.push(op, name, ty, args);
        self.set_meta(id, matches!(op, Op::Collective(_)));
        self.finish(lead, start, right, right_end)
    }

    /// A statement that changes a value and binds the result to a name.
    fn change(&mut self, lead: usize, start: usize, changed_end: usize) -> Result<(), Fault> {
        let end = self.scan(start)?;
        let parsed = parse_change(str::from_utf8(&self.key).unwrap_or_default());
        let parsed = parsed.map_err(|fault| self.key_fault(start, fault))?;
        let binding = binding(self.text, end, &self.text[start..changed_end])?;
        let ty = self.annotation_type(binding.annotation)?;
        let op = Op::Call(self.graph.intern(&parsed.target));
        let args = self.graph.intern_args(parsed.args);
        let rebinds = augmented(&self.text[skip_blanks(self.bytes(), changed_end)..]).is_some();
        // A tensor that is changed where it stands keeps its type.
        let is_tensor = self.operands.first().is_some_and(|&changed| self.graph.tensor(changed).is_some());
        let ty = if rebinds && is_tensor { self.type_or_operand(ty) } else { ty };
        let name = self.define(binding.name)?;
        let id = self.push(op, name, ty, args);
        self.set_meta(id, false);
        if rebinds
            && let Some(&changed) = self.spans.first()
            && let Some(&before) = self.definition(changed)
        {
            self.rebound.insert(NodeId::from_index(before as usize), id);
            self.class.rebound.push(id);
        }
        self.finish(lead, start, start, binding.end)
    }

    /// A type, or that of the first operand if it is not stated.
    fn type_or_operand(&self, ty: TypeId) -> TypeId {
        let first = self.operands.first().filter(|_| ty == TypeId::UNKNOWN);
        first.map_or(ty, |&operand| self.graph.node(operand).ty)
    }

    /// The node that the word of a span was defined as.
    fn definition(&self, (at, len): (u32, u32)) -> Option<&u32> {
        let name = self.graph.names().find(&self.text[at as usize..(at + len) as usize])?;
        self.class.definitions.get(name.index())
    }

    fn return_statement(&mut self, lead: usize, start: usize) -> Result<(), Fault> {
        let right = skip_blanks(self.bytes(), start + "return".len());
        let right_end = self.scan(right)?;
        let key = std::mem::take(&mut self.key);
        let args =
            parse_return(str::from_utf8(&key).unwrap_or_default()).map_err(|fault| self.key_fault(right, fault))?;
        let args = self.graph.intern_args(args);
        let name = self.graph.fresh_name("output", &mut 0);
        self.push(Op::Output, name, TypeId::UNKNOWN, args);
        self.finish(lead, start, right, right_end)
    }

    /// Copies a right side to the key, and resolves its operands.
    fn scan(&mut self, right: usize) -> Result<usize, Fault> {
        let Self { graph, class, rebound, operands, spans, key, text, .. } = self;
        operands.clear();
        spans.clear();
        scan_right_side(text, right, key, |at, word| {
            let found = graph.names().find(word).and_then(|name| class.definitions.get(name.index()));
            let Some(&node) = found.filter(|&&node| node != UNDEFINED) else { return false };
            let node = NodeId::from_index(node as usize);
            operands.push(if rebound.is_empty() { node } else { *rebound.get(&node).unwrap_or(&node) });
            spans.push((at as u32, word.len() as u32));
            true
        })
    }

    /// What the key means: known already, or parsed now.
    fn right_side(&mut self, right: usize) -> Result<(Op, ArgsId), Fault> {
        if let Some(&known) = self.keys.get(&self.key[..]) {
            return Ok(known);
        }
        let parsed = parse_right_side(str::from_utf8(&self.key).unwrap_or_default());
        let parsed = parsed.map_err(|fault| self.key_fault(right, fault))?;
        let Self { graph, operands, group_values, .. } = self;
        let mut group = |graph: &Graph, index: u32| group_values.name(graph, operands[index as usize]);
        let Meaning { op, args, opaque_group } = meaning(graph, &parsed.target, parsed.args, &mut group);
        let args = self.graph.intern_args(args);
        if opaque_group.is_none() {
            self.keys.insert(self.key.as_slice().into(), (op, args));
        }
        Ok((op, args))
    }

    /// The fault in the text for one in the key, which is shorter by the names of the operands before it.
    fn key_fault(&self, right: usize, fault: KeyFault) -> Fault {
        let mut at = right + fault.at;
        for &(start, len) in &self.spans {
            if (start as usize) < at {
                at += len as usize - 1;
            }
        }
        match fault.undefined {
            None => Fault::expected(at, fault.expected),
            Some(word) => {
                let problem = format!("use of `{word}`, which is not defined before this line");
                Fault::problem(at, word.len(), problem, fault.expected)
            }
        }
    }

    fn annotation_type(&mut self, annotation: Option<Annotation>) -> Result<TypeId, Fault> {
        let Some(Annotation { text: (start, end), quoted }) = annotation else { return Ok(TypeId::UNKNOWN) };
        let text = &self.text[start..end];
        if let Some(&known) = self.types.get(text) {
            return Ok(known);
        }
        // Values of other classes say what they hold: `DTensor(f32[64][1]cpu, S(0))`.
        let is_tensor = text.split_once('[').is_some_and(|(dtype, _)| dtype.bytes().all(is_word));
        let is_type = quoted && (is_tensor || text.starts_with("Sym("));
        let ty = match Type::parse(text) {
            Ok(ty) => ty,
            Err(error) if is_type => {
                return Err(Fault::problem(start, end - start, error.to_string(), "a type such as f32[8, 4]"));
            }
            Err(_) => Type::Unknown,
        };
        self.class.has_strides |= ty.as_tensor().is_some_and(|tensor| tensor.strides.is_some());
        let id = self.graph.intern_type(ty);
        self.types.insert(text, id);
        Ok(id)
    }

    fn define(&mut self, (start, end): Span) -> Result<Name, Fault> {
        let text = &self.text[start..end];
        if is_keyword(text) {
            return Err(Fault::expected(start, "a name, which Python's keywords are not"));
        }
        let name = self.graph.intern(text);
        let definitions = &mut self.class.definitions;
        if definitions.len() <= name.index() {
            definitions.resize(name.index() + 1, UNDEFINED);
        }
        let first = std::mem::replace(&mut definitions[name.index()], self.graph.arena_len() as u32);
        if first != UNDEFINED {
            let first = self.line_of_node(first as usize);
            let problem = format!(
                "`{text}` is defined a second time on line {}; its first definition is on line {first}",
                self.source.line_of(start)
            );
            return Err(Fault::problem(start, end - start, problem, "a name that is not defined yet"));
        }
        Ok(name)
    }

    fn line_of_node(&self, index: usize) -> usize {
        let statement = index.checked_sub(self.class.inputs).and_then(|index| self.class.statements.get(index));
        let at = statement.map_or((self.class.body as usize).saturating_sub(1), |statement| statement.start as usize);
        self.source.line_of(at)
    }

    fn push(&mut self, op: Op, name: Name, ty: TypeId, args: ArgsId) -> NodeId {
        self.graph.push(op, name, ty, args, &self.operands)
    }

    fn set_meta(&mut self, id: NodeId, is_collective: bool) {
        let members = self.comments.members.take();
        self.comments.in_files = false;
        let has_sources = is_collective && !self.comments.files.is_empty();
        if members.is_none() && !has_sources {
            return;
        }
        match self.comments.files_meta {
            Some(meta) if members.is_none() => self.graph.node_mut(id).meta = meta,
            _ => self.make_meta(id, members, has_sources),
        }
    }

    fn make_meta(&mut self, id: NodeId, members: Option<Span>, has_sources: bool) {
        let text = |&(start, end): &Span| Box::from(&self.text[start..end]);
        let sources = if has_sources { self.comments.files.iter().map(text).collect() } else { Vec::new() };
        let list = members.map_or("", |(start, end)| &self.text[start..end]);
        let names: Vec<_> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(Box::from).collect();
        let without_members = names.is_empty();
        self.graph.set_meta(id, Meta { sources, members: names, ..Meta::default() });
        if without_members && has_sources {
            self.comments.files_meta = Some(self.graph.node(id).meta);
        }
    }

    /// Reads deletions and the end of the line, and notes where the statement stands.
    fn finish(&mut self, lead: usize, start: usize, right: usize, right_end: usize) -> Result<(), Fault> {
        let bytes = self.bytes();
        let tail_end = tail(bytes, right_end)?;
        self.class.has_tails |= tail_end > right_end;
        let end = end_of_line(bytes, tail_end)?;
        self.at = end;
        self.class.statements.push(Statement {
            lead: lead as u32,
            start: start as u32,
            right: right as u32,
            right_end: right_end as u32,
            tail_end: tail_end as u32,
            end: end as u32,
        });
        Ok(())
    }
}

/// The end of the deletions at `at`: `;  a = b = None`.
fn tail(bytes: &[u8], at: usize) -> Result<usize, Fault> {
    let semicolon = skip_blanks(bytes, at);
    if bytes.get(semicolon) != Some(&b';') {
        return Ok(at);
    }
    let mut start = skip_blanks(bytes, semicolon + 1);
    if matches!(bytes.get(start), Some(b'\n' | b'#') | None) {
        return Ok(semicolon + 1);
    }
    loop {
        let end = word_end(bytes, start);
        if &bytes[start..end] == b"None" {
            return Ok(end);
        }
        let equals = skip_blanks(bytes, end);
        if end == start || bytes.get(equals) != Some(&b'=') {
            return Err(Fault::expected(start.max(equals), "deletions, such as `;  x = None`"));
        }
        start = skip_blanks(bytes, equals + 1);
    }
}
