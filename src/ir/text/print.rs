//! Graphs as text.

use super::call::{constant, is_reserved, stands_alone};
use super::lex::{is_float, is_word, quote};
use super::normal::normal_collective;
use super::parse::kind_of_label;
use crate::ir::args::{Arg, Args};
use crate::ir::entities::{Name, NodeId, RegionId};
use crate::ir::graph::{ControlEdge, Graph, ProcessGroup, Region, RegionKind, Strength};
use crate::ir::operators::infer_type;
use crate::ir::ops::{Collective, CollectiveKind, Op, Variant};
use crate::ir::types::{DType, Type};
use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;
use std::fmt::Write as _;

/// The canonical text of a graph.
#[must_use]
pub fn print(graph: &Graph) -> String {
    let mut printer = Printer::new(graph);
    let name = if is_word(&graph.name) { graph.name.clone() } else { quote(&graph.name) };
    let _ = writeln!(printer.out, "graph {name} {{");
    for group in graph.groups() {
        printer.group(group);
    }
    for (symbol, value) in &graph.hints {
        let symbol = word_or_quoted(symbol);
        let _ = writeln!(printer.out, "hint {symbol} = {value}");
    }
    let mut cursor = RegionCursor::new(graph);
    let late = edges_name_output(graph);
    let mut edges = Some(&graph.control);
    for &id in graph.order() {
        for step in cursor.steps_to(graph, id) {
            printer.step(step);
        }
        if graph.node(id).op == Op::Output && graph.order().last() == Some(&id) && !late {
            printer.edges(edges.take());
        }
        printer.node(id);
    }
    for step in cursor.steps_to_end() {
        printer.step(step);
    }
    printer.edges(edges.take());
    printer.out.push_str("}\n");
    printer.out
}

/// Whether an order edge has an output at an end, so that edges cannot be stated before it.
fn edges_name_output(graph: &Graph) -> bool {
    graph.control.iter().any(|edge| [edge.before, edge.after].iter().any(|&id| graph.node(id).op == Op::Output))
}

fn word_or_quoted(text: &str) -> String {
    if is_word(text) && !text.starts_with('-') { text.to_owned() } else { quote(text) }
}

/// A border between regions.
#[derive(Clone, Copy)]
enum Border {
    Open(RegionId),
    Close,
}

/// Follows the program order through the tree of regions. A region without nodes stands before the next of its
/// siblings, by number, that has some.
struct RegionCursor {
    /// Open regions, outermost first, without the root.
    open: Vec<RegionId>,
    /// By region: its children without nodes, last first.
    empty: Vec<Vec<RegionId>>,
}

/// The region around a region, if that is a region made before it; any other is at fault, and taken as outermost.
fn parent_of(graph: &Graph, region: RegionId) -> RegionId {
    let parent = graph.regions().get(region.index()).map_or(RegionId::ROOT, |r| r.parent);
    if parent < region { parent } else { RegionId::ROOT }
}

impl RegionCursor {
    fn new(graph: &Graph) -> Self {
        let count = graph.regions().len();
        let mut full = vec![false; count];
        for &id in graph.order() {
            let region = graph.node(id).region;
            if let Some(flag) = full.get_mut(region.index()) {
                *flag = true;
            }
        }
        let mut empty = vec![Vec::new(); count];
        for index in (1..count).rev() {
            let region = RegionId::from_index(index);
            let parent = parent_of(graph, region);
            if full[index] {
                full[parent.index()] = true;
            } else {
                empty[parent.index()].push(region);
            }
        }
        Self { open: Vec::new(), empty }
    }

    fn path(graph: &Graph, region: RegionId) -> Vec<RegionId> {
        let mut path = Vec::new();
        let mut at = region;
        while at != RegionId::ROOT {
            path.push(at);
            at = parent_of(graph, at);
        }
        path.reverse();
        path
    }

    fn current(&self) -> RegionId {
        self.open.last().copied().unwrap_or(RegionId::ROOT)
    }

    /// The borders crossed on the way to a node.
    fn steps_to(&mut self, graph: &Graph, id: NodeId) -> Vec<Border> {
        let region = graph.node(id).region;
        let mut steps = Vec::new();
        if region == self.current() {
            return steps;
        }
        let path = Self::path(graph, region);
        let shared = self.open.iter().zip(&path).take_while(|(a, b)| a == b).count();
        self.close_to(shared, &mut steps);
        for &next in &path[shared..] {
            self.open_empty(self.current(), Some(next), &mut steps);
            steps.push(Border::Open(next));
            self.open.push(next);
        }
        steps
    }

    fn steps_to_end(&mut self) -> Vec<Border> {
        let mut steps = Vec::new();
        self.close_to(0, &mut steps);
        self.open_empty(RegionId::ROOT, None, &mut steps);
        steps
    }

    fn close_to(&mut self, depth: usize, steps: &mut Vec<Border>) {
        while self.open.len() > depth {
            self.open_empty(self.current(), None, steps);
            steps.push(Border::Close);
            self.open.pop();
        }
    }

    /// Opens and closes the children of `parent` without nodes that come before `end`.
    fn open_empty(&mut self, parent: RegionId, end: Option<RegionId>, steps: &mut Vec<Border>) {
        // Each entry is a region to open, or none to close one: a stack, for regions may nest deep.
        let mut todo = Vec::new();
        while self.empty[parent.index()].last().is_some_and(|&child| end.is_none_or(|end| child < end)) {
            todo.extend(self.empty[parent.index()].pop().map(Some));
            while let Some(entry) = todo.pop() {
                let Some(region) = entry else {
                    steps.push(Border::Close);
                    continue;
                };
                steps.push(Border::Open(region));
                todo.push(None);
                todo.extend(std::mem::take(&mut self.empty[region.index()]).into_iter().map(Some));
            }
        }
    }
}

/// Numbers the regions in the order in which their text names them.
pub(super) fn renumber_regions(graph: &mut Graph) {
    let mut cursor = RegionCursor::new(graph);
    let mut steps = Vec::new();
    for &id in graph.order() {
        steps.extend(cursor.steps_to(graph, id));
    }
    steps.extend(cursor.steps_to_end());
    let mut numbers = vec![RegionId::ROOT; graph.regions().len()];
    let mut regions = vec![graph.region(RegionId::ROOT).clone()];
    for step in steps {
        let Border::Open(old) = step else { continue };
        // A region that is left and entered again is at fault; it keeps its first number.
        if numbers[old.index()] == RegionId::ROOT {
            numbers[old.index()] = RegionId::from_index(regions.len());
            let parent = numbers[parent_of(graph, old).index()];
            regions.push(Region { parent, ..graph.region(old).clone() });
        }
    }
    for index in 0..graph.order().len() {
        let id = graph.order()[index];
        let old = graph.node(id).region;
        graph.node_mut(id).region = numbers.get(old.index()).copied().unwrap_or(RegionId::ROOT);
    }
    graph.set_regions(regions);
}

/// Writes the parts of a graph.
pub(in crate::ir) struct Printer<'g> {
    graph: &'g Graph,
    out: String,
    depth: usize,
    values: HashSet<Name, FxBuildHasher>,
}

impl<'g> Printer<'g> {
    pub(in crate::ir) fn new(graph: &'g Graph) -> Self {
        let values = graph.order().iter().map(|&id| graph.node(id).name).collect();
        Self { graph, out: String::new(), depth: 0, values }
    }

    /// A node's arguments without parentheses.
    #[cfg(feature = "serde")]
    pub(in crate::ir) fn args_text(&mut self, id: NodeId) -> String {
        let whole = std::mem::take(&mut self.out);
        self.args(self.graph.args_of(id), self.graph.operands(id));
        std::mem::replace(&mut self.out, whole)
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.out.write_fmt(text);
    }

    fn indent(&mut self) {
        for _ in 0..=self.depth {
            self.out.push_str("  ");
        }
    }

    fn group_name(&mut self, group: &ProcessGroup) {
        let name = word_or_quoted(&group.name);
        match group.size {
            Some(size) => self.write(format_args!("{name}:{size}")),
            None => self.out.push_str(&name),
        }
    }

    fn group(&mut self, group: &ProcessGroup) {
        self.out.push_str("group ");
        self.group_name(group);
        for (index, members) in group.members.iter().enumerate() {
            self.out.push_str(if index == 0 { " = [[" } else { ", [" });
            for (place, rank) in members.iter().enumerate() {
                let comma = if place > 0 { ", " } else { "" };
                self.write(format_args!("{comma}{}", rank.0));
            }
            self.out.push(']');
        }
        self.out.push_str(if group.members.is_empty() { "\n" } else { "]\n" });
    }

    fn step(&mut self, step: Border) {
        match step {
            Border::Open(id) => {
                self.indent();
                let region = self.graph.region(id);
                self.out.push_str("region ");
                if region.kind != kind_of_label(&region.label) {
                    self.out.push_str(match region.kind {
                        RegionKind::Loop => "@loop ",
                        RegionKind::Branch => "@branch ",
                        RegionKind::Called | RegionKind::Root => "@called ",
                    });
                }
                let label = label_text(&region.label);
                self.write(format_args!("{label} {{\n"));
                self.depth += 1;
            }
            Border::Close => {
                self.depth = self.depth.saturating_sub(1);
                self.indent();
                self.out.push_str("}\n");
            }
        }
    }

    fn edges(&mut self, edges: Option<&Vec<ControlEdge>>) {
        for edge in edges.into_iter().flatten() {
            self.indent();
            let word = match edge.strength {
                Strength::Hard => "after",
                Strength::Soft => "soft_after",
            };
            let (after, before) = (self.graph.name_of(edge.after), self.graph.name_of(edge.before));
            self.write(format_args!("{word}({after}, {before})\n"));
        }
    }

    fn node(&mut self, id: NodeId) {
        let graph = self.graph;
        let node = graph.node(id);
        self.indent();
        let name = graph.name_of(id);
        if node.op != Op::Output || name != "output" {
            self.write(format_args!("{name} = "));
        }
        let ty = graph.type_of(id);
        match node.op {
            Op::Input if graph.args_of(id) == &Args::default() => {
                self.out.push_str("input");
                if *ty != Type::Unknown {
                    self.write(format_args!(" {ty}"));
                }
            }
            Op::Collective(collective) => self.collective(id, collective),
            Op::Input | Op::Output | Op::Wait | Op::Call(_) => {
                self.head(id);
                self.args(graph.args_of(id), graph.operands(id));
                self.out.push(')');
                self.result(ty, node.op, graph.args_of(id), graph.operands(id));
            }
        }
        self.meta(id);
        self.out.push('\n');
    }

    fn head(&mut self, id: NodeId) {
        let target = self.graph.target_of(id);
        let call = matches!(self.graph.node(id).op, Op::Call(_));
        if call && (!is_word(target) || target.starts_with('-')) {
            let target = quote(target);
            self.write(format_args!("@{target}("));
        } else {
            let mark = if call && is_reserved(target) { "@" } else { "" };
            self.write(format_args!("{mark}{target}("));
        }
    }

    /// The type, unless it is what the reader finds by itself.
    fn result(&mut self, ty: &Type, op: Op, args: &Args, operands: &[NodeId]) {
        if *ty != Type::Unknown || infer_type(self.graph, op, args, operands) != Type::Unknown {
            self.write(format_args!(" : {ty}"));
        }
    }

    fn collective(&mut self, id: NodeId, collective: Collective) {
        let Some((args, operands)) = normal_collective(self.graph, id) else { return };
        let kind = collective.kind;
        let coalesced = if collective.coalesced { "_coalesced" } else { "" };
        let variant = match collective.variant {
            Variant::Functional => "",
            Variant::InPlace => "_",
            Variant::Out => "_out",
        };
        self.write(format_args!("{}{coalesced}{variant}(", kind.name()));
        for arg in args.positional.iter().take(1) {
            self.arg(arg, &operands);
            self.out.push_str(", ");
        }
        if let Some(op) = kind.reduce_op() {
            self.write(format_args!("{op}, "));
        }
        if let CollectiveKind::Broadcast { root } | CollectiveKind::Reduce { root, .. } = kind {
            self.write(format_args!("{}, ", root));
        }
        for arg in args.positional.iter().skip(1) {
            self.arg(arg, &operands);
            self.out.push_str(", ");
        }
        self.group_name(self.graph.group(collective.group));
        if let CollectiveKind::AllGather { dim } | CollectiveKind::ReduceScatter { dim, .. } = kind
            && dim != 0
        {
            self.write(format_args!(", dim={dim}"));
        }
        for (key, arg) in &args.keyword {
            self.write(format_args!(", {key}="));
            self.keyword_arg(arg, &operands);
        }
        self.out.push(')');
        self.result(self.graph.type_of(id), Op::Collective(collective), &args, &operands);
    }

    fn args(&mut self, args: &Args, operands: &[NodeId]) {
        let mut comma = "";
        for arg in &args.positional {
            self.out.push_str(comma);
            comma = ", ";
            self.arg(arg, operands);
        }
        for (key, arg) in &args.keyword {
            self.write(format_args!("{comma}{key}="));
            comma = ", ";
            self.keyword_arg(arg, operands);
        }
    }

    /// An argument behind `key=`, where a word is a word.
    fn keyword_arg(&mut self, arg: &Arg, operands: &[NodeId]) {
        match arg {
            Arg::Word(word) if self.is_plain(word) => self.out.push_str(word),
            arg => self.arg(arg, operands),
        }
    }

    /// Whether a word can be told from everything else.
    fn is_plain(&self, word: &str) -> bool {
        is_word(word) && constant(word).is_none() && !self.is_value(word)
    }

    fn arg(&mut self, arg: &Arg, operands: &[NodeId]) {
        match arg {
            Arg::Operand(index) => {
                let name = operands.get(*index as usize).map_or("?", |&id| self.graph.name_of(id));
                self.out.push_str(name);
            }
            Arg::Int(value) => self.write(format_args!("{value}")),
            Arg::Float(text) if is_float(text) => self.out.push_str(text),
            Arg::Float(text) => self.write(format_args!("@@{}", quote(text))),
            Arg::Str(text) => self.string(text),
            Arg::Bool(value) => self.out.push_str(if *value { "True" } else { "False" }),
            Arg::None => self.out.push_str("None"),
            Arg::DType(dtype) => self.dtype(*dtype),
            Arg::Word(word) => {
                let escaped = if self.is_plain(word) && stands_alone(word) {
                    word.to_string()
                } else {
                    format!("@{}", quote(word))
                };
                self.out.push_str(&escaped);
            }
            Arg::List(items) => self.items('[', items, "]", operands),
            Arg::Tuple(items) => self.items('(', items, if items.len() == 1 { ",)" } else { ")" }, operands),
            Arg::Apply(name, args) => {
                let name = if is_word(name) { name.to_string() } else { quote(name) };
                self.write(format_args!("@{name}("));
                self.args(args, operands);
                self.out.push(')');
            }
        }
    }

    fn items(&mut self, open: char, items: &[Arg], close: &str, operands: &[NodeId]) {
        self.out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(", ");
            }
            self.arg(item, operands);
        }
        self.out.push_str(close);
    }

    fn is_value(&self, word: &str) -> bool {
        self.graph.names().find(word).is_some_and(|name| self.values.contains(&name))
    }

    fn dtype(&mut self, dtype: DType) {
        let short = dtype.short_name();
        if self.is_value(short) {
            self.write(format_args!("torch.{}", dtype.torch_name()));
        } else {
            self.out.push_str(short);
        }
    }

    /// Escapes are kept as written, so only the kind of quotes is free.
    fn string(&mut self, text: &str) {
        let mark = if text.contains('\'') && !text.contains('"') && !text.contains('\\') { '"' } else { '\'' };
        self.write(format_args!("{mark}{text}{mark}"));
    }

    fn meta(&mut self, id: NodeId) {
        let meta = self.graph.meta_of(id);
        if meta.pending {
            self.out.push_str(" pending");
        }
        if let Some(key) = &meta.key {
            self.write(format_args!(" key={}", quote(key)));
        }
        for source in &meta.sources {
            self.write(format_args!(" src={}", quote(source)));
        }
        for (index, member) in meta.members.iter().enumerate() {
            let start = if index == 0 { " members=[" } else { ", " };
            self.write(format_args!("{start}{}", word_or_quoted(member)));
        }
        if !meta.members.is_empty() {
            self.out.push(']');
        }
    }
}

/// A label as it may stand before `{`.
fn label_text(label: &str) -> String {
    let plain = label.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && label.trim() == label
        && !label.contains(['{', '}', '\n', '\r', '#', ';', '"']);
    if plain { label.to_owned() } else { quote(label) }
}
