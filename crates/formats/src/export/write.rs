//! From graphs back to the JSON; see [`super::ExportFile::write`].
//!
//! A node that is what it was is copied, wherever it now stands, with other names of its operands where they have other
//! names. Values of nodes that make several are not nodes of their own in the JSON: they are named by the node.

use super::edits::{Edits, names_in};
use super::emit::{self, Style, list, quoted};
use super::read::in_order;
use super::records::{InputRecord, NodeRecord, union};
use super::tables;
use super::text::{GraphText, NONE, ProgramText};
use bucketeer::ir::{Arg, EditLog, Graph, NodeId, Op, Original, Type};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;
use std::ops::Range;

/// The JSON of a program with its graphs as they are now; `None` if nothing changed.
pub(super) fn print(text: &str, program: &ProgramText, graphs: &[Graph]) -> Option<String> {
    let mut edits = Edits::default();
    let mut outputs = Vec::new();
    // Graphs inside of others come behind them, and are part of what is copied of them.
    for (index, (then, graph)) in program.graphs.iter().zip(graphs).enumerate().rev() {
        if graph.is_as_logged(|now, then| then.does_the_same(now)) {
            continue;
        }
        let printer = Printer::new(text, then, graph);
        let renamed = printer.write(&mut edits);
        if index == 0 {
            outputs = renamed;
        }
    }
    signature(text, program, &outputs, &mut edits);
    (!edits.is_empty()).then(|| edits.apply(text, 0..text.len()))
}

/// Gives outputs their names in the signature.
fn signature(text: &str, program: &ProgramText, outputs: &[Renamed], edits: &mut Edits) {
    for renamed in outputs {
        let Some(spec) = program.output_specs.get(renamed.index) else { continue };
        for name in names_in(text, spec.clone()).into_iter().filter(|name| text[name.clone()] == renamed.then) {
            edits.replace(name, renamed.now.clone());
        }
    }
    if outputs.is_empty() {
        return;
    }
    let now: HashMap<&str, &str, FxBuildHasher> = outputs.iter().map(|it| (&*it.then, &*it.now)).collect();
    for name in program.call_graph.iter().flat_map(|range| names_in(text, range.clone())) {
        if let Some(now) = now.get(&text[name.clone()]) {
            edits.replace(name, (*now).to_owned());
        }
    }
}

/// An output that has another name; names are as JSON has them between quotes.
struct Renamed {
    index: usize,
    then: String,
    now: String,
}

pub(super) struct Printer<'a> {
    pub text: &'a str,
    pub then: &'a GraphText,
    pub graph: &'a Graph,
    pub style: Style,
    /// Where what is said of tensors stands, by name.
    pub described: HashMap<&'a str, &'a Range<usize>, FxBuildHasher>,
    /// Names of all values that were read.
    pub were: HashSet<&'a str, FxBuildHasher>,
    /// Which value names an element of what a node with several makes.
    slots: HashMap<(NodeId, i64), NodeId, FxBuildHasher>,
}

impl<'a> Printer<'a> {
    fn new(text: &'a str, then: &'a GraphText, graph: &'a Graph) -> Self {
        let sorted = then.nodes.first().is_some_and(|range| text[range.clone()].starts_with("{\"inputs\""));
        let style = if sorted { Style::Sorted } else { Style::Fields };
        let order = graph.edit_log().map_or(&[][..], EditLog::order);
        let read = || order.iter().filter_map(|&id| Some((id, graph.original(id)?)));
        let were = read().map(|(_, read)| graph.text(read.node.name)).collect();
        let described = then.tensors.entries.iter().map(|(name, range)| (&**name, range)).collect();
        let mut printer = Self { text, then, graph, style, described, were, slots: HashMap::default() };
        // Where a node keeps its outputs, its values keep their names.
        for (id, read) in read() {
            let is_item = then.origin[id.index()] == NONE && matches!(read.node.op, Op::Call(_));
            if let Some(Arg::Int(index)) = graph.args(read.node.args).positional.get(1).filter(|_| is_item)
                && printer.keeps_outputs(printer.root_then(id))
            {
                printer.slots.insert((read.operands[0], *index), id);
            }
        }
        for &id in graph.order() {
            if let Some(slot) = printer.slot(id) {
                printer.slots.entry(slot).or_insert(id);
            }
        }
        printer
    }

    /// The node that made a value, when it was read.
    fn root_then(&self, mut id: NodeId) -> NodeId {
        while self.then.origin[id.index()] == NONE
            && let Some(&operand) = self.graph.original(id).and_then(|read| read.operands.first())
        {
            id = operand;
        }
        id
    }

    /// The node of the JSON that a node was read from.
    fn origin(&self, id: NodeId) -> Option<Range<usize>> {
        let index = *self.then.origin.get(id.index())?;
        (index != NONE).then(|| self.then.nodes[index as usize].clone())
    }

    fn is_copied(&self, id: NodeId) -> bool {
        let does_the_same = |read: Original<'_>| read.does_the_same(self.graph.node(id));
        self.origin(id).is_some() && self.graph.original(id).is_some_and(does_the_same)
    }

    fn keeps_outputs(&self, id: NodeId) -> bool {
        let makes_the_same = |read: Original<'_>| read.node.ty == self.graph.node(id).ty;
        self.origin(id).is_some() && self.graph.original(id).is_some_and(makes_the_same)
    }

    /// The node and the index, if a value is an element of what a node with several makes.
    pub fn slot(&self, id: NodeId) -> Option<(NodeId, i64)> {
        if !matches!(self.graph.node(id).op, Op::Call(_))
            || self.graph.target_of(id) != "operator.getitem"
            || self.is_copied(id)
        {
            return None;
        }
        let &[of] = self.graph.operands(id) else { return None };
        let [Arg::Operand(0), Arg::Int(index)] = self.graph.args_of(id).positional[..] else { return None };
        let makes_several = matches!(self.graph.type_of(of), Type::Tuple(_)) && self.graph.node(of).op != Op::Input;
        (makes_several && index >= 0).then_some((of, index))
    }

    /// The name under which others read a value.
    pub fn name(&self, id: NodeId) -> String {
        let named = self.slot(id).and_then(|slot| self.slots.get(&slot)).copied();
        self.graph.name_of(named.unwrap_or(id)).to_owned()
    }

    /// The value that names an element.
    pub fn owner(&self, slot: (NodeId, i64)) -> Option<NodeId> {
        self.slots.get(&slot).copied()
    }

    /// A name for an element that no value has.
    pub fn unused(&self, id: NodeId, index: usize) -> String {
        let mut name = format!("{}_unused_{index}", self.graph.name_of(id));
        while self.graph.names().find(&name).is_some() {
            name.push('_');
        }
        name
    }

    fn write(&self, edits: &mut Edits) -> Vec<Renamed> {
        let mut nodes = Vec::with_capacity(self.graph.order().len());
        let mut renamed = Vec::new();
        for &id in self.graph.order() {
            match self.graph.node(id).op {
                Op::Input => {}
                Op::Output => renamed = self.outputs(id, edits),
                _ if self.slot(id).is_some() => {}
                _ => nodes.push(self.node(id, edits)),
            }
        }
        // What stands before the first and behind the last node, and between nodes, is kept.
        let array = &self.then.nodes_array;
        let inside = array.start + 1..array.end - 1;
        let (first, last) = (self.then.nodes.first(), self.then.nodes.last());
        let before = &self.text[inside.start..first.map_or(inside.start, |range| range.start)];
        let behind = &self.text[last.map_or(inside.end, |range| range.end)..inside.end];
        let between = match &self.then.nodes[..] {
            [one, two, ..] => &self.text[one.end..two.start],
            _ => ", ",
        };
        // Edits inside of nodes that are gone.
        edits.forget(array.clone());
        edits.replace(array.clone(), format!("[{before}{}{behind}]", nodes.join(between)));
        tables::write(self, edits);
        renamed
    }

    /// A node of the JSON: copied where it is what it was, else made.
    fn node(&self, id: NodeId, edits: &mut Edits) -> String {
        match self.origin(id).filter(|_| self.is_copied(id)) {
            Some(range) if self.rename_operands(id, &range, edits) => edits.apply(self.text, range),
            _ => self.fresh(id),
        }
    }

    /// Gives the operands of a copied node their names. `false` if they cannot be told apart.
    fn rename_operands(&self, id: NodeId, range: &Range<usize>, edits: &mut Edits) -> bool {
        let operands = self.graph.operands(id);
        let then = self.graph.original(id).map_or(&[][..], |read| read.operands);
        if operands.len() == then.len() && operands.iter().zip(then.iter()).all(|(&now, &then)| self.kept(now, then)) {
            return true;
        }
        let Ok(record) = serde_json::from_str::<NodeRecord<'_>>(&self.text[range.clone()]) else { return false };
        let mut names = Vec::new();
        let is_graph = |input: &InputRecord<'_>| union(self.text, input.arg).is_ok_and(|(kind, _)| kind == "as_graph");
        for input in in_order(&record.inputs).filter(|input| !is_graph(input)) {
            let start = super::error::offset(self.text, input.arg);
            names.extend(names_in(self.text, start..start + input.arg.get().len()));
        }
        names.retain(|name| self.were.contains(&self.text[name.clone()]));
        if names.len() != operands.len() {
            return false;
        }
        for (range, &operand) in names.into_iter().zip(operands) {
            let name = self.name(operand);
            if self.text[range.clone()] != name {
                edits.replace(range, unquoted(&name));
            }
        }
        true
    }

    /// Whether an operand still has the name it had.
    fn kept(&self, now: NodeId, then: NodeId) -> bool {
        now == then && self.name(now) == self.graph.name_of(now)
    }

    fn fresh(&self, id: NodeId) -> String {
        let (target, args, names) = emit::call(self.graph, id);
        let name = |operand: NodeId| self.name(operand);
        let input = |key: &str, arg: &Arg, kind: u32| {
            let arg = emit::argument(self.graph, id, arg, &name, self.style);
            self.style.object(vec![("name", quoted(key)), ("arg", arg), ("kind", kind.to_string())])
        };
        let positional = args.positional.iter().zip(&names).map(|(arg, key)| input(key, arg, 1));
        let inputs: Vec<String> = positional.chain(args.keyword.iter().map(|(key, arg)| input(key, arg, 2))).collect();
        let members = &self.graph.meta_of(id).members;
        let metadata = match &members[..] {
            [] => "{}".to_owned(),
            members => self.style.object(vec![(super::MEMBERS_KEY, quoted(&members.join(", ")))]),
        };
        self.style.object(vec![
            ("target", quoted(&emit::full_target(&target))),
            ("inputs", list(inputs)),
            ("outputs", self.outputs_of(id)),
            ("metadata", metadata),
            ("is_hop_single_tensor_return", "null".into()),
            ("name", quoted(self.graph.name_of(id))),
        ])
    }

    /// What a node makes: as its JSON had it, if that still holds.
    fn outputs_of(&self, id: NodeId) -> String {
        if let Some(range) = self.origin(id).filter(|_| self.keeps_outputs(id))
            && let Ok(record) = serde_json::from_str::<NodeRecord<'_>>(&self.text[range])
        {
            return list(record.outputs.iter().map(|part| part.get().to_owned()));
        }
        let name = quoted(self.graph.name_of(id));
        match self.graph.type_of(id) {
            Type::Tensor(_) => format!("[{{\"as_tensor\": {{\"name\": {name}}}}}]"),
            Type::SymInt(_) => format!("[{{\"as_sym_int\": {{\"as_name\": {name}}}}}]"),
            Type::SymOther(_) => format!("[{{\"as_sym_float\": {{\"as_name\": {name}}}}}]"),
            Type::Tuple(parts) => {
                let item = |index: usize| match self.owner((id, index as i64)) {
                    Some(owner) => self.graph.name_of(owner).to_owned(),
                    None => self.unused(id, index),
                };
                let items = (0..parts.len()).map(|index| format!("{{\"name\": {}}}", quoted(&item(index))));
                format!("[{{\"as_tensors\": {}}}]", list(items))
            }
            Type::Unknown | Type::Token => "[]".into(),
        }
    }

    /// Writes the outputs of the graph that have other names.
    fn outputs(&self, id: NodeId, edits: &mut Edits) -> Vec<Renamed> {
        let mut renamed = Vec::new();
        let mut operands = self.graph.operands(id).iter();
        for (index, (range, arg)) in self.then.outputs.iter().zip(&self.graph.args_of(id).positional).enumerate() {
            let mut count = 0;
            arg.for_each_operand(&mut |_| count += 1);
            let names = names_in(self.text, range.clone());
            for (name, &operand) in names.into_iter().zip(operands.by_ref().take(count)) {
                let (then, now) = (self.text[name.clone()].to_owned(), unquoted(&self.name(operand)));
                if then != now {
                    edits.replace(name, now.clone());
                    renamed.push(Renamed { index, then, now });
                }
            }
        }
        renamed
    }
}

/// A name as JSON has it between quotes.
fn unquoted(name: &str) -> String {
    let quoted = quoted(name);
    quoted[1..quoted.len() - 1].to_owned()
}
