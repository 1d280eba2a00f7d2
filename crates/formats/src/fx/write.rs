//! From graphs back to the file they came from; see [`super::FxText::print`].

use super::clean::Source;
use super::emit::{self, Annotations, ReturnForm};
use super::lex::scan_right_side;
use super::statement::write_change;
use super::tails::{LastUses, Seen, can_delete, write_tail};
use super::{ClassText, Statement};
use bucketeer::ir::{EditLog, Graph, Node, NodeId, Op, Original};

/// Prints a file.
pub(super) fn print(source: &Source, classes: &[ClassText], graphs: &[Graph]) -> Vec<u8> {
    if graphs.iter().all(is_unchanged) {
        return source.file().as_bytes().to_vec();
    }
    let mut out = Vec::with_capacity(source.raw().len() + source.raw().len() / 16);
    let mut at = 0;
    for (class, graph) in classes.iter().zip(graphs) {
        if !is_unchanged(graph) {
            out.extend_from_slice(source.raw_lines(at, class.body as usize).as_bytes());
            ClassWriter::new(source, class, graph, &mut out).write();
            at = class.end() as usize;
        }
    }
    out.extend_from_slice(source.raw_lines(at, source.text().len()).as_bytes());
    out
}

fn is_unchanged(graph: &Graph) -> bool {
    graph.is_as_logged(|now, then| says_the_same(now, then) && now.meta == then.node.meta)
}

/// Whether a node still is what it was, operands and metadata aside.
fn says_the_same(now: &Node, then: &Original<'_>) -> bool {
    then.does_the_same(now) && now.name == then.node.name
}

struct ClassWriter<'a> {
    source: &'a Source,
    text: &'a str,
    class: &'a ClassText,
    graph: &'a Graph,
    out: &'a mut Vec<u8>,
    /// A span of whole lines that is still to be copied.
    pending: (usize, usize),
    /// A byte of the original line printed last; new lines look like it.
    style_at: usize,
    indent: &'a str,
    line: String,
    key: Vec<u8>,
}

impl<'a> ClassWriter<'a> {
    fn new(source: &'a Source, class: &'a ClassText, graph: &'a Graph, out: &'a mut Vec<u8>) -> Self {
        let text = source.text();
        let indent = class
            .statements
            .first()
            .map_or("        ", |statement| &text[line_start(text, statement)..statement.start as usize]);
        let style_at = (class.body as usize).saturating_sub(1);
        let (pending, line, key) = ((0, 0), String::new(), Vec::new());
        Self { source, text, class, graph, out, pending, style_at, indent, line, key }
    }

    fn write(mut self) {
        let graph = self.graph;
        let read = graph.edit_log().map_or(&[][..], EditLog::order);
        let then = read.iter().filter_map(|&id| Some((id, graph.original(id)?.operands)));
        let (then, now) = (LastUses::new(graph.arena_len(), then), LastUses::of(graph));
        let mut seen_then = Seen::new(graph.arena_len());
        let mut seen_now = Seen::new(self.graph.arena_len());
        let (mut deleted_then, mut deleted) = (Vec::new(), Vec::new());
        for &id in self.graph.order() {
            let op = self.graph.node(id).op;
            if op == Op::Input {
                continue;
            }
            deleted.clear();
            if self.class.has_tails && can_delete(op) {
                now.deleted_by(id, self.graph.operands(id), &mut seen_now, &mut deleted);
            }
            let statement = id.index().checked_sub(self.class.inputs).and_then(|at| self.class.statements.get(at));
            match statement.zip(graph.original(id)) {
                Some((statement, read)) => {
                    deleted_then.clear();
                    if self.class.has_tails && can_delete(read.node.op) {
                        then.deleted_by(id, read.operands, &mut seen_then, &mut deleted_then);
                    }
                    let same_tail = if self.class.rebound.is_empty() {
                        deleted == deleted_then && deleted.iter().all(|&id| self.has_old_name(id))
                    } else {
                        self.has_tail(statement, &deleted)
                    };
                    self.old_statement(id, statement, read, (!same_tail).then_some(&deleted[..]));
                }
                None => self.new_statement(id, &deleted),
            }
        }
        self.flush();
    }

    /// Whether a statement deletes these values, as its text has it.
    fn has_tail(&self, statement: &Statement, deleted: &[NodeId]) -> bool {
        let mut tail = String::new();
        write_tail(&mut tail, self.graph, deleted);
        tail == self.text[statement.right_end as usize..statement.tail_end as usize]
    }

    /// Whether the text may call one of these values by the name of what an augmented assignment changed.
    fn has_other_names(&self, operands: &[NodeId]) -> bool {
        let rebound = &self.class.rebound;
        !rebound.is_empty() && operands.iter().any(|operand| rebound.binary_search(operand).is_ok())
    }

    fn has_old_name(&self, id: NodeId) -> bool {
        self.graph.original(id).is_some_and(|then| then.node.name == self.graph.node(id).name)
    }

    fn flush(&mut self) {
        let (start, end) = self.pending;
        self.out.extend_from_slice(self.source.raw_lines(start, end).as_bytes());
        self.pending = (end, end);
        if end > start {
            self.style_at = end - 1;
        }
    }

    /// Copies whole lines.
    fn copy(&mut self, start: usize, end: usize) {
        if self.pending.1 != start {
            self.flush();
            self.pending.0 = start;
        }
        self.pending.1 = end;
    }

    fn old_statement(&mut self, id: NodeId, statement: &Statement, then: Original<'a>, new_tail: Option<&[NodeId]>) {
        let (now, operands) = (self.graph.node(id), self.graph.operands(id));
        let same_operands = operands == then.operands && operands.iter().all(|&operand| self.has_old_name(operand));
        let members = self.new_members(id, then.node);
        let as_read = same_operands && says_the_same(now, &then) && !self.has_other_names(operands);
        if as_read && new_tail.is_none() && members.is_none() {
            return self.copy(statement.lead as usize, statement.end as usize);
        }
        let start = line_start(self.text, statement);
        self.copy(statement.lead as usize, start);
        self.flush();
        self.style_at = statement.start as usize;
        self.line.clear();
        let indent = &self.text[start..statement.start as usize];
        if let Some(members) = members {
            self.line.push_str(&format!("{indent}# {members}\n"));
        }
        self.line.push_str(indent);
        if !(statement.is_change() && self.change(id, statement, as_read)) {
            self.left_side(id, statement, then.node);
            let same_call = now.op == then.node.op && now.args == then.node.args;
            if !(same_call && self.splice(id, statement, operands, then.operands.len())) {
                self.right_side(id, statement);
            }
        }
        match new_tail {
            Some(deleted) => write_tail(&mut self.line, self.graph, deleted),
            None => self.line.push_str(&self.text[statement.right_end as usize..statement.tail_end as usize]),
        }
        self.line.push_str(&self.text[statement.tail_end as usize..statement.end as usize]);
        self.put_line();
    }

    /// Writes a statement that changes a value. Gives `false`, having written nothing, if the node is something else now.
    fn change(&mut self, id: NodeId, statement: &Statement, as_read: bool) -> bool {
        if as_read {
            self.line.push_str(&self.text[statement.start as usize..statement.right_end as usize]);
            return true;
        }
        let length = self.line.len();
        if !matches!(write_change(&mut self.line, self.graph, id), Ok(true)) {
            self.line.truncate(length);
            return false;
        }
        self.annotate(id);
        let changed = self.graph.operands(id).first().map_or("None", |&changed| self.graph.name_of(changed));
        self.line.push_str(&format!(" = {changed}"));
        true
    }

    /// The comment for merged collectives that the text above the statement does not have.
    fn new_members(&self, id: NodeId, then: &Node) -> Option<String> {
        let changed = self.graph.node(id).meta != then.meta;
        changed.then(|| emit::members_comment(self.graph.meta_of(id))).flatten()
    }

    fn left_side(&mut self, id: NodeId, statement: &Statement, then: &Node) {
        let now = self.graph.node(id);
        let right = statement.right as usize;
        if now.op == Op::Output {
            let is_return = then.op == Op::Output;
            self.line.push_str(if is_return { &self.text[statement.start as usize..right] } else { "return " });
            return;
        }
        self.line.push_str(self.graph.name_of(id));
        if now.ty == then.ty && then.op != Op::Output && !statement.is_change() {
            let name_end = statement.start as usize + self.graph.text(then.name).len();
            self.line.push_str(&self.text[name_end..right]);
        } else {
            self.annotate(id);
            self.line.push_str(" = ");
        }
    }

    fn annotate(&mut self, id: NodeId) {
        let annotations = if self.class.has_strides { Annotations::Strides } else { Annotations::Sizes };
        emit::write_annotation(&mut self.line, self.graph, id, annotations);
    }

    /// Puts the operands' names in the place of the old ones, of which there were so many. Gives `false`, having done
    /// nothing, if the right side has another number of them.
    fn splice(&mut self, id: NodeId, statement: &Statement, operands: &[NodeId], were: usize) -> bool {
        let (start, length) = (statement.right as usize, self.line.len());
        let mut copied = start;
        let mut next = 0;
        let Self { line, key, graph, class, text, .. } = self;
        let scanned = scan_right_side(text, start, key, |at, word| {
            let found = graph.names().find(word).and_then(|name| class.definitions.get(name.index()));
            if found.is_none_or(|&node| node as usize >= id.index()) {
                return false;
            }
            if let Some(&operand) = operands.get(next) {
                line.push_str(&text[copied..at]);
                line.push_str(graph.name_of(operand));
                copied = at + word.len();
            }
            next += 1;
            true
        });
        if scanned.is_err() || next != operands.len() || next != were {
            line.truncate(length);
            return false;
        }
        line.push_str(&text[copied..statement.right_end as usize]);
        true
    }

    fn right_side(&mut self, id: NodeId, statement: &Statement) {
        let old = &self.text[statement.right as usize..statement.right_end as usize];
        let form = if old.starts_with(super::expr::UNFLATTEN) {
            ReturnForm::Unflatten
        } else if old.starts_with('(') {
            ReturnForm::Tuple
        } else {
            ReturnForm::Plain
        };
        self.print_from_graph(id, form);
    }

    fn print_from_graph(&mut self, id: NodeId, form: ReturnForm) {
        let result = if self.graph.node(id).op == Op::Output {
            emit::write_return(&mut self.line, self.graph, id, form)
        } else {
            emit::check_name(self.graph, id).and(emit::write_right_side(&mut self.line, self.graph, id))
        };
        if let Err(error) = result {
            self.line.push_str(&format!("  # bucketeer: cannot be said in FX text: {error}"));
        }
    }

    fn new_statement(&mut self, id: NodeId, deleted: &[NodeId]) {
        self.flush();
        self.line.clear();
        let meta = self.graph.meta_of(id);
        let members = emit::members_comment(meta);
        let sources = if members.is_some() { emit::source_comments(meta) } else { Vec::new() };
        for comment in sources.into_iter().chain(members) {
            self.line.push_str(&format!("{}# {comment}\n", self.indent));
        }
        self.line.push_str(self.indent);
        if self.graph.node(id).op == Op::Output {
            self.line.push_str("return ");
            self.print_from_graph(id, self.return_form());
        } else {
            self.line.push_str(self.graph.name_of(id));
            self.annotate(id);
            self.line.push_str(" = ");
            self.print_from_graph(id, ReturnForm::Tuple);
            write_tail(&mut self.line, self.graph, deleted);
        }
        self.line.push('\n');
        self.put_line();
    }

    /// How the class returned its results when it was read.
    fn return_form(&self) -> ReturnForm {
        let old = self.class.statements.last().map(|last| &self.text[last.right as usize..last.right_end as usize]);
        match old {
            Some(old) if old.starts_with(super::expr::UNFLATTEN) => ReturnForm::Unflatten,
            _ => ReturnForm::Tuple,
        }
    }

    /// Prints the lines in `line`, each with the log prefix and line end of the line before it.
    fn put_line(&mut self) {
        let (prefix, end) = self.source.style(self.style_at);
        for line in self.line.split_inclusive('\n') {
            self.out.extend_from_slice(prefix.as_bytes());
            match line.strip_suffix('\n') {
                Some(line) => {
                    self.out.extend_from_slice(line.as_bytes());
                    self.out.extend_from_slice(end.as_bytes());
                }
                None => self.out.extend_from_slice(line.as_bytes()),
            }
        }
    }
}

/// Where the line of a statement starts, below its comments.
fn line_start(text: &str, statement: &Statement) -> usize {
    let lead = &text.as_bytes()[statement.lead as usize..statement.start as usize];
    memchr::memrchr(b'\n', lead).map_or(statement.lead as usize, |at| statement.lead as usize + at + 1)
}
