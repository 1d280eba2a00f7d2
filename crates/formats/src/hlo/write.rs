//! From the graph back to the text; see [`super::HloText::print`].
//!
//! A computation that did not change is copied. In one that did, each line whose instruction is what it was, and whose
//! operands have the names they had, is copied as well, wherever it now stands. Parameters stay where they stood, unless a
//! line above needs them.

use super::emit;
use super::graph::{Links, NONE};
use super::module::{Instruction, Module};
use bucketeer::ir::{ControlEdge, Graph, NodeId, Op};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Prints a module.
pub(super) fn print(text: &str, module: &Module, links: &Links, graph: &Graph) -> Vec<u8> {
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    let mut at = 0;
    let (order, control) = as_read(graph);
    if graph.control != control || !graph.is_as_logged(|now, then| then.does_the_same(now)) {
        let (then, now) = (bodies(order, graph), bodies(graph.order(), graph));
        let printer = Printer::new(text, module, links, graph);
        for (index, computation) in module.computations.iter().enumerate() {
            let Some(region) = links.region[index] else { continue };
            if then[region.index()] == now[region.index()] && !printer.touched[region.index()] {
                continue;
            }
            out.push_str(&text[at..computation.body.at()]);
            Body::new(&printer, index, &mut out).write(&now[region.index()]);
            at = module.instructions[computation.end as usize - 1].end as usize;
        }
    }
    out.push_str(&text[at..]);
    out.into_bytes()
}

/// Program order and order edges as they were read.
fn as_read(graph: &Graph) -> (&[NodeId], &[ControlEdge]) {
    graph.edit_log().map_or((&[], &[]), |log| (log.order(), log.control()))
}

/// Whether a node is what was read.
fn is_same(graph: &Graph, id: NodeId) -> bool {
    let then = graph.original(id);
    then.is_some_and(|then| then.does_the_same(graph.node(id)) && graph.operands(id) == then.operands)
}

/// Whether a node is what was read, but for its operands.
fn says_the_same(graph: &Graph, id: NodeId) -> bool {
    graph.original(id).is_some_and(|then| then.does_the_same(graph.node(id)))
}

/// The nodes of each region, in order.
fn bodies(order: &[NodeId], graph: &Graph) -> Vec<Vec<NodeId>> {
    let mut bodies = vec![Vec::new(); graph.regions().len()];
    order.iter().for_each(|&id| bodies[graph.node(id).region.index()].push(id));
    bodies
}

/// What printing any body needs to know.
pub(super) struct Printer<'a> {
    pub text: &'a str,
    pub module: &'a Module,
    pub links: &'a Links,
    pub graph: &'a Graph,
    /// Whether shapes of the text have layouts.
    pub layouts: bool,
    /// By region: whether a node of it changed.
    touched: Vec<bool>,
    /// By node: what has to run before it, by order edges. Only nodes that have such edges, now or before, are there.
    before: HashMap<NodeId, Vec<NodeId>, FxBuildHasher>,
    /// Nodes as they were read, by name.
    by_name: HashMap<&'a str, NodeId, FxBuildHasher>,
}

impl<'a> Printer<'a> {
    fn new(text: &'a str, module: &'a Module, links: &'a Links, graph: &'a Graph) -> Self {
        let (order, control) = as_read(graph);
        let mut touched = vec![false; graph.regions().len()];
        for &id in graph.order().iter().filter(|&&id| !is_same(graph, id)) {
            touched[graph.node(id).region.index()] = true;
        }
        let mut before: HashMap<NodeId, Vec<NodeId>, FxBuildHasher> = HashMap::default();
        for edge in control {
            before.entry(edge.after).or_default();
        }
        for edge in &graph.control {
            before.entry(edge.after).or_default().push(edge.before);
        }
        if graph.control != control {
            before.keys().for_each(|id| touched[graph.node(*id).region.index()] = true);
        }
        let mut by_name = HashMap::default();
        for &id in order {
            let name = graph.original(id).map(|then| graph.text(then.node.name));
            by_name.extend(name.map(|name| (name, id)));
        }
        let layouts = module.instructions.iter().any(|instruction| instruction.shape.of(text).contains("]{"));
        Self { text, module, links, graph, layouts, touched, before, by_name }
    }

    /// The instruction that a node was read from.
    pub(super) fn instruction(&self, id: NodeId) -> Option<&'a Instruction> {
        let at = *self.links.instruction.get(id.index())?;
        (at != NONE).then(|| &self.module.instructions[at as usize])
    }

    /// Whether a node is the wait that stands behind a collective which is one instruction with it.
    pub(super) fn is_second(&self, id: NodeId) -> bool {
        let at = self.links.instruction.get(id.index()).copied().filter(|&at| at != NONE);
        at.is_some_and(|at| self.links.first[at as usize] as usize != id.index())
    }

    /// The node whose line defines the value of `id`: waits for what is valid at once, copies and aliases have none.
    pub(super) fn definition(&self, mut id: NodeId) -> NodeId {
        while self.hands_on(id) {
            id = self.graph.operands(id)[0];
        }
        id
    }

    /// Whether a node is another name for its operand.
    pub(super) fn hands_on(&self, id: NodeId) -> bool {
        let (op, then) = (self.graph.node(id).op, self.graph.original(id));
        match op {
            Op::Wait => then.is_none() || self.is_second(id),
            Op::Call(_) if then.is_some_and(|then| then.node.op == op) => false,
            Op::Call(_) => matches!(self.graph.target_of(id), "aten.alias.default" | "aten.clone.default"),
            _ => false,
        }
    }

    /// The name under which others read a node's value.
    pub(super) fn name(&self, id: NodeId) -> &'a str {
        let id = self.definition(id);
        self.instruction(id).map_or_else(|| self.graph.name_of(id), |instruction| instruction.name.of(self.text))
    }

    /// The instructions that were merged into a collective.
    pub(super) fn members(&self, id: NodeId) -> Vec<&'a Instruction> {
        let names = self.graph.meta_of(id).members.iter();
        names.filter_map(|name| self.by_name.get(&**name)).filter_map(|&id| self.instruction(id)).collect()
    }

    /// The merged collective that a node takes its part of, or the node itself.
    fn unpacked(&self, id: NodeId) -> NodeId {
        let mut at = self.definition(id);
        while self.graph.collective(at).is_none() {
            let made = !is_same(self.graph, at) && matches!(self.graph.node(at).op, Op::Call(_));
            match self.graph.operands(at).first() {
                Some(&operand) if made => at = self.definition(operand),
                _ => return id,
            }
        }
        at
    }

    /// The names of what runs before a node by order edges; `None` if it never had any.
    fn predecessors(&self, id: NodeId) -> Option<Vec<&'a str>> {
        let mut names = Vec::new();
        for &before in self.before.get(&id)? {
            let name = self.name(self.unpacked(before));
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Some(names)
    }
}

/// One computation.
struct Body<'a, 'o> {
    printer: &'a Printer<'a>,
    out: &'o mut String,
    /// The node whose line is the root's.
    root: NodeId,
    /// Whether the text marks the root.
    marked: bool,
    indent: &'a str,
    percent: &'a str,
    /// The first instruction, and which have been printed, from that one on.
    first: usize,
    printed: Vec<bool>,
    /// The first instruction that is still to be printed.
    low: usize,
    /// Parameters in the order of the text, and how many of them need not be looked at again.
    parameters: Vec<(usize, NodeId)>,
    passed: usize,
}

impl<'a, 'o> Body<'a, 'o> {
    fn new(printer: &'a Printer<'a>, index: usize, out: &'o mut String) -> Self {
        let (text, module) = (printer.text, printer.module);
        let computation = &module.computations[index];
        let instruction = &module.instructions[computation.first as usize];
        let before = &text[..instruction.start as usize];
        let blanks = before.len() - before.trim_end_matches([' ', '\t']).len();
        let indent = &before[before.len() - blanks..];
        let percent = &text[..instruction.name.at()];
        let percent = if percent.ends_with('%') { "%" } else { "" };
        let root = NodeId::from_index(printer.links.value[computation.root as usize] as usize);
        Self {
            printer,
            out,
            root,
            marked: module.instructions[computation.root as usize].is_root,
            indent,
            percent,
            first: computation.first as usize,
            printed: vec![false; computation.instructions().len()],
            low: 0,
            parameters: Vec::new(),
            passed: 0,
        }
    }

    fn write(mut self, nodes: &[NodeId]) {
        // What is gone needs no place.
        self.printed.fill(true);
        for &id in nodes {
            let Some(at) = self.place(id) else { continue };
            self.printed[at] = false;
            if self.printer.graph.node(id).op == Op::Input {
                self.parameters.push((at, id));
            }
        }
        self.parameters.sort_unstable_by_key(|&(at, _)| at);
        let last = nodes.iter().rev().copied().find(|&id| self.has_line(id));
        if !self.has_line(self.root) {
            self.root = self.printer.definition(self.root);
        }
        self.marked |= last != Some(self.root);
        for &id in nodes {
            if self.printer.graph.node(id).op == Op::Input || !self.has_line(id) {
                continue;
            }
            self.parameters_on_top();
            for &operand in self.printer.graph.operands(id) {
                let operand = self.printer.definition(operand);
                if self.printer.graph.node(operand).op == Op::Input
                    && let Some(at) = self.place(operand).filter(|&at| !self.printed[at])
                {
                    self.line(operand, Some(at));
                }
            }
            self.line(id, self.place(id));
        }
        self.parameters_up_to(usize::MAX);
    }

    /// A node's place among the instructions that were read.
    fn place(&self, id: NodeId) -> Option<usize> {
        let at = self.printer.links.instruction.get(id.index()).copied().filter(|&at| at != NONE);
        at.map(|at| at as usize - self.first)
    }

    /// Prints the parameters that stood above all that is still to be printed.
    fn parameters_on_top(&mut self) {
        let is_parameter = |body: &Self, at: usize| {
            let id = body.printer.links.first[body.first + at];
            id != NONE && body.printer.graph.node(NodeId::from_index(id as usize)).op == Op::Input
        };
        while self.low < self.printed.len() && (self.printed[self.low] || is_parameter(self, self.low)) {
            self.low += 1;
        }
        self.parameters_up_to(self.low);
    }

    fn parameters_up_to(&mut self, end: usize) {
        while let Some(&(at, id)) = self.parameters.get(self.passed)
            && at < end
        {
            self.passed += 1;
            if !self.printed[at] {
                self.line(id, Some(at));
            }
        }
    }

    /// Whether a node has a line of its own.
    fn has_line(&self, id: NodeId) -> bool {
        let graph = self.printer.graph;
        graph.node(id).op != Op::Output
            && (!self.printer.hands_on(id) || (id == self.root && self.needs_copy(id)))
            && !emit::is_split(graph, id)
    }

    /// Whether a root that hands its operand on must be a line, since its operand's line is not a line of its own.
    fn needs_copy(&self, id: NodeId) -> bool {
        let definition = self.printer.definition(id);
        let of = self.printer.instruction(definition).map(|instruction| instruction.name);
        of != self.printer.instruction(id).map(|instruction| instruction.name)
    }

    /// Prints the line of a node.
    fn line(&mut self, id: NodeId, at: Option<usize>) {
        if let Some(at) = at {
            self.printed[at] = true;
        }
        let printer = self.printer;
        let is_root = self.marked && id == self.root;
        let predecessors = printer.predecessors(id);
        if let Some(instruction) = printer.instruction(id)
            && says_the_same(printer.graph, id)
        {
            self.old_line(id, instruction, is_root, predecessors.as_deref());
            return;
        }
        let name = printer.instruction(id).map_or_else(|| printer.graph.name_of(id), |i| i.name.of(printer.text));
        let root = if is_root { "ROOT " } else { "" };
        self.out.push_str(&format!("{}{root}{}{name} = ", self.indent, self.percent));
        emit::instruction(printer, id, self.percent, self.out);
        if let Some(names) = predecessors.filter(|names| !names.is_empty()) {
            self.out.push_str(", control-predecessors=");
            self.names(&names);
        }
        self.out.push('\n');
    }

    fn names(&mut self, names: &[&str]) {
        let list: Vec<String> = names.iter().map(|name| format!("{}{name}", self.percent)).collect();
        self.out.push_str(&format!("{{{}}}", list.join(", ")));
    }

    /// Copies a line, with other names where operands have others.
    fn old_line(&mut self, id: NodeId, old: &Instruction, is_root: bool, predecessors: Option<&[&str]>) {
        let Printer { text, module, .. } = *self.printer;
        let mut copied = old.lead as usize;
        if is_root && !old.is_root {
            self.out.push_str(&text[copied..old.start as usize]);
            self.out.push_str("ROOT ");
            copied = old.start as usize;
        }
        // Of a collective and its wait, the first has the operands.
        for (operand, &now) in module.operands(old).iter().zip(self.printer.graph.operands(id)) {
            let name = self.printer.name(now);
            if operand.name.of(text) != name {
                self.out.push_str(&text[copied..operand.name.at()]);
                self.out.push_str(name);
                copied = operand.name.end as usize;
            }
        }
        let stated = module.attributes(old).iter().position(|a| a.key.of(text) == "control-predecessors");
        let then: Vec<&str> = stated.map_or_else(Vec::new, |nth| {
            let value = module.attributes(old)[nth].value;
            module.predecessors(value).map(|at| module.instructions[at].name.of(text)).collect()
        });
        let now = predecessors.unwrap_or(&[]);
        if then != now {
            if let Some(nth) = stated {
                let attribute = module.attributes(old)[nth];
                // The comma before it goes with it.
                let comma = text[..attribute.key.at()].rfind(',').unwrap_or(attribute.key.at());
                let from = if now.is_empty() { comma } else { attribute.value.at() };
                self.out.push_str(&text[copied..from]);
                copied = attribute.value.end as usize;
            } else {
                self.out.push_str(&text[copied..old.text_end as usize]);
                self.out.push_str(", control-predecessors=");
                copied = old.text_end as usize;
            }
            if !now.is_empty() {
                self.names(now);
            }
        }
        self.out.push_str(&text[copied..old.end as usize]);
        if !self.out.ends_with('\n') {
            self.out.push('\n');
        }
    }
}
