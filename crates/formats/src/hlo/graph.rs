//! A module as a graph.
//!
//! | HLO | graph |
//! | --- | --- |
//! | entry computation | the graph's top level; its parameters are the inputs, in the order of their numbers |
//! | body of a loop, branch or call | a region, in the order of the text, above the entry's nodes |
//! | `while(x), condition=c, body=b` | `hlo-while(x, condition=<root of c>, body=<root of b>)` |
//! | parameter of such a body | `hlo-parameter(number, name of the body)`: any value, for any call |
//! | `all-reduce(a)` | `all_reduce` of that name, and `NAME.wait` |
//! | `all-reduce(a, b)` | `all_reduce_coalesced` and one wait; readers take elements of the wait |
//! | `all-reduce-start`, `all-reduce-done` | the collective and its wait |
//! | `async-start(a), calls=w` of a body that only runs a collective | the collective of `w`, in flight |
//! | `get-tuple-element(x), index=1` | `getitem(x, 1)` |
//! | `reshape`, `transpose`, `slice`, .. | the operator that moves elements the same way (`layout.rs`) |
//! | any other instruction | a call of `hlo-OPCODE`, with its attributes as text |
//!
//! A collective that is not split into start and done is valid at once. The graph's collectives are in flight until a
//! wait, so each becomes two nodes, which print as one instruction. The wait is right behind the collective and all
//! readers name the wait, so nothing can read what is in flight, and passes need no second kind of collective.
//!
//! Regions return their root to the instruction that calls them, which has it as an operand. So a region stands above
//! all that depends on it, and two modules are equal only if their bodies are, as functions of their parameters.
//!
//! What acts on the world outside (`send`, `outfeed`, custom calls that say so, opcodes that are not known) is an operand of
//! the output, or of the instruction that calls the region it is in, so that none can go unnoticed. Such calls, and
//! collectives that the graph has no word for, say in arguments what they move and between whom; see
//! [`communication`](bucketeer::ir::communication).
//!
//! HLO has no effects on memory and no order beside operands and `control-predecessors`, which become order edges.
//! Metadata is not a part of the graph, but for `op_name` of collectives.

use super::attributes::{first_number, is_sync};
use super::calls::{self, Role, region_attributes};
use super::collective::{self, Collectives, Decoded};
use super::error::Fault;
use super::lex::Span;
use super::module::{Instruction, Module, is_async, is_call};
use super::opcodes::{Doing, doing};
use super::work::Works;
use super::{domains, layout, shape};
use bucketeer::ir::communication;
use bucketeer::ir::{
    Arg, Args, ArgsId, ControlEdge, Graph, HloFacts, Name, Names, NodeId, Op, Region, RegionId, Strength, Type, TypeId,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;
use std::fmt::Write;

/// Attributes that do not say what an instruction computes.
const NOTES: &[&str] = &["metadata", "origin", "statistics", "control-predecessors"];

/// No instruction, no node.
pub(super) const NONE: u32 = u32::MAX;

/// Which node is which instruction. What the nodes were is in the edit log of the graph.
#[derive(Clone, Debug)]
pub(super) struct Links {
    /// By node, of those that were read: its instruction. A collective and the wait behind it have the same.
    pub instruction: Vec<u32>,
    /// By instruction: its first node, and the one that others read. [`NONE`] for what is not in the graph.
    pub first: Vec<u32>,
    pub value: Vec<u32>,
    /// By computation: its region, if it is one or the entry.
    pub region: Vec<Option<RegionId>>,
}

/// Makes the graph of a module.
pub(super) fn build(text: &str, module: &mut Module) -> Result<(Graph, Links), Fault> {
    let names = std::mem::take(&mut module.names);
    let module = &*module;
    let mut builder = Builder::new(text, module, names)?;
    for index in (0..module.computations.len()).filter(|&index| index != module.entry).chain([module.entry]) {
        builder.computation(index)?;
    }
    builder.finish()
}

type Operands = SmallVec<[NodeId; 8]>;

/// Whether a type of the graph says all that a shape does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Whole,
    Partly,
}

/// What moves, and the name of the group.
type Communication = (String, Option<Box<str>>);

struct Builder<'t> {
    text: &'t str,
    module: &'t Module,
    roles: Vec<Role>,
    digests: Vec<u128>,
    /// By computation that is part of its caller: what communicates in it. Empty if nothing does.
    hidden: Vec<Option<u32>>,
    collectives: Collectives<'t>,
    works: Works<'t>,
    facts: HloFacts,
    graph: Graph,
    links: Links,
    region: RegionId,
    /// By computation: what in it acts on the world outside.
    effects: Vec<Vec<NodeId>>,
    /// Inputs by their numbers.
    inputs: Vec<(u64, NodeId)>,
    nodes: Vec<NodeId>,
    types: HashMap<&'t str, (TypeId, Known), FxBuildHasher>,
    /// Arguments by their text, in which the number of operands comes first.
    args: HashMap<Box<str>, ArgsId, FxBuildHasher>,
    /// By opcode.
    targets: HashMap<&'t str, (Name, Doing), FxBuildHasher>,
    wait_args: ArgsId,
    /// By name: whether a node has it, and the next number to try where one has.
    used: Vec<bool>,
    numbers: HashMap<Name, u32, FxBuildHasher>,
    buffer: String,
}

impl<'t> Builder<'t> {
    fn new(text: &'t str, module: &'t Module, names: Names) -> Result<Self, Fault> {
        let count = module.instructions.len();
        let (nodes, operands) = (count + count / 8, module.operand_count() + count / 8);
        let mut graph = Graph::with_names(module.name.of(text), names, nodes, operands);
        let roles = calls::roles(text, module);
        let mut hidden = calls::hidden(text, module);
        // The graph has the instructions of all other bodies.
        hidden.iter_mut().zip(&roles).filter(|(_, role)| **role != Role::Inner).for_each(|(at, _)| *at = None);
        if hidden.iter().all(Option::is_none) {
            hidden.clear();
        }
        let wait_args = graph.intern_args(Args::positional(vec![Arg::Operand(0)]));
        let links = Links {
            instruction: Vec::with_capacity(nodes),
            first: vec![NONE; count],
            value: vec![NONE; count],
            region: vec![None; module.computations.len()],
        };
        Ok(Self {
            text,
            module,
            roles,
            digests: calls::digests(text, module),
            hidden,
            collectives: Collectives::new(text, module)?,
            works: Works::new(text, module),
            facts: HloFacts::default(),
            graph,
            links,
            region: RegionId::ROOT,
            effects: vec![Vec::new(); module.computations.len()],
            inputs: Vec::new(),
            nodes: Vec::new(),
            types: HashMap::default(),
            args: HashMap::default(),
            targets: HashMap::default(),
            wait_args,
            used: Vec::new(),
            numbers: HashMap::default(),
            buffer: String::new(),
        })
    }

    fn computation(&mut self, index: usize) -> Result<(), Fault> {
        let computation = &self.module.computations[index];
        self.region = match self.roles[index] {
            Role::Inner => return self.check_shapes(index),
            Role::Entry => RegionId::ROOT,
            Role::Region(kind) => {
                let label = computation.name.of(self.text).into();
                self.graph.add_region(Region { parent: RegionId::ROOT, kind, label })
            }
        };
        self.links.region[index] = Some(self.region);
        let domains = domains::of(self.text, self.module, computation);
        let loose = self.loose_starts(index);
        for (nth, at) in computation.instructions().enumerate() {
            let domain = domains.as_ref().map_or("", |domains| domains[nth]);
            self.instruction(index, at, !loose[nth], domain)?;
        }
        Ok(())
    }

    /// Shapes are read everywhere, so that a fault in one is found wherever it stands.
    fn check_shapes(&mut self, index: usize) -> Result<(), Fault> {
        for instruction in &self.module.instructions[self.module.computations[index].instructions()] {
            self.ty(instruction.shape)?;
        }
        Ok(())
    }

    /// Which instructions of a computation are starts that anything but a `-done` or an `-update` takes: what then
    /// becomes of them is not seen.
    fn loose_starts(&self, index: usize) -> Vec<bool> {
        let (text, module) = (self.text, self.module);
        let computation = &module.computations[index];
        let first = computation.first as usize;
        let mut loose = vec![false; computation.instructions().len()];
        let word = |at: usize| module.instructions[at].opcode.of(text);
        if !computation.opcodes.is_async {
            return loose;
        }
        if is_async(word(computation.root as usize)) {
            loose[computation.root as usize - first] = true;
        }
        for at in computation.instructions().rev() {
            let takes = word(at).ends_with("-done") || (word(at).ends_with("-update") && !loose[at - first]);
            for operand in module.operands(&module.instructions[at]) {
                let target = operand.target as usize;
                loose[target - first] |= !takes && is_async(word(target));
            }
        }
        loose
    }

    fn ty(&mut self, span: Span) -> Result<TypeId, Fault> {
        self.typed(span).map(|(ty, _)| ty)
    }

    /// The type of a shape, and whether it says all that the shape does.
    fn typed(&mut self, span: Span) -> Result<(TypeId, Known), Fault> {
        let text = span.of(self.text);
        if let Some(&known) = self.types.get(text) {
            return Ok(known);
        }
        let ty = shape::parse(text).map_err(|fault| fault.shifted(span.at()))?;
        let known = if shape::is_known(&ty) { Known::Whole } else { Known::Partly };
        let id = self.graph.intern_type(ty);
        self.types.insert(text, (id, known));
        Ok((id, known))
    }

    /// A shape that the graph's types do not tell from others, as an argument.
    fn shape_note(&mut self, at: usize) -> Result<Option<String>, Fault> {
        let span = self.module.instructions[at].shape;
        let (_, known) = self.typed(span)?;
        Ok((known == Known::Partly).then(|| shape::without_layouts(span.of(self.text))))
    }

    fn instruction(&mut self, computation: usize, at: usize, may_fly: bool, domain: &str) -> Result<(), Fault> {
        let instruction = &self.module.instructions[at];
        let opcode = instruction.opcode.of(self.text);
        let ty = self.ty(instruction.shape)?;
        let operands: Operands = self.module.operands(instruction).iter().map(|o| self.value(o.target)).collect();
        let name = self.node_name(instruction.id, instruction.name.of(self.text));
        match opcode {
            "parameter" => self.parameter(computation, at, name, ty)?,
            "get-tuple-element" => self.element(at, name, ty, &operands)?,
            _ if opcode.ends_with("-done") && self.is_async(&operands) => {
                self.push(at, Op::Wait, name, ty, self.wait_args, &operands);
            }
            _ if opcode.ends_with("-update") && self.is_async(&operands) => {
                let alias = self.graph.intern("alias");
                self.push(at, Op::Call(alias), name, ty, self.wait_args, &operands);
            }
            _ if !collective::is_candidate(opcode) => self.call(computation, at, name, ty, operands)?,
            _ => {
                let known = self.graph.ty(ty).clone();
                let decoded = self.collectives.decode(&mut self.graph, self.module, instruction, &known, domain)?;
                match decoded.filter(|decoded| may_fly || !decoded.starts) {
                    Some(decoded) => self.collective(at, name, decoded, &operands),
                    None => self.call(computation, at, name, ty, operands)?,
                }
            }
        }
        self.control(at)
    }

    /// The node that stands for an instruction's value.
    fn value(&self, instruction: u32) -> NodeId {
        NodeId::from_index(self.links.value[instruction as usize] as usize)
    }

    /// Whether the first operand is a collective's result in flight.
    fn is_async(&self, operands: &[NodeId]) -> bool {
        let Some(&first) = operands.first().filter(|_| operands.len() == 1) else { return false };
        match self.graph.node(first).op {
            Op::Collective(_) => true,
            Op::Call(_) => self.graph.target_of(first) == "alias",
            _ => false,
        }
    }

    /// A name for a node: the instruction's own, unless another computation has an instruction of that name.
    fn node_name(&mut self, name: Name, stem: &str) -> Name {
        if self.used.len() <= name.index() {
            self.used.resize(self.graph.names().len(), false);
        }
        if !std::mem::replace(&mut self.used[name.index()], true) {
            return name;
        }
        let name = self.graph.fresh_name(stem, self.numbers.entry(name).or_insert(1));
        self.used.resize(self.graph.names().len(), false);
        self.used[name.index()] = true;
        name
    }

    /// A name for a node that is not an instruction.
    fn new_name(&mut self, stem: &str) -> Name {
        let name = self.graph.intern(stem);
        self.node_name(name, stem)
    }

    fn push(&mut self, at: usize, op: Op, name: Name, ty: TypeId, args: ArgsId, operands: &[NodeId]) -> NodeId {
        let id = self.graph.create(op, name, ty, args, operands);
        self.graph.node_mut(id).region = self.region;
        self.links.instruction.push(at as u32);
        if self.links.first[at] == NONE {
            self.links.first[at] = id.index() as u32;
        }
        self.links.value[at] = id.index() as u32;
        if op != Op::Input {
            self.nodes.push(id);
        }
        id
    }

    fn target(&mut self, opcode: &'t str) -> Op {
        Op::Call(self.target_of(opcode).0)
    }

    /// The target of an opcode, and what it does beside computing.
    fn target_of(&mut self, opcode: &'t str) -> (Name, Doing) {
        let graph = &mut self.graph;
        *self.targets.entry(opcode).or_insert_with(|| (graph.intern(&format!("hlo-{opcode}")), doing(opcode)))
    }

    fn parameter(&mut self, computation: usize, at: usize, name: Name, ty: TypeId) -> Result<(), Fault> {
        let span = self.module.instructions[at].arguments;
        let number = span.of(self.text).trim();
        let Some(number) = number.parse::<u64>().ok().filter(|&number| i64::try_from(number).is_ok()) else {
            return Err(Fault::new(span.at(), format!("`{number}` is not a parameter's number"), "a number from 0"));
        };
        let note = self.shape_note(at)?.map(|shape| ("shape".into(), Arg::Str(shape.into())));
        if self.roles[computation] == Role::Entry {
            let args = match note {
                Some(note) => self.graph.intern_args(Args { positional: Vec::new(), keyword: vec![note] }),
                None => ArgsId::EMPTY,
            };
            let id = self.push(at, Op::Input, name, ty, args, &[]);
            self.inputs.push((number, id));
            return Ok(());
        }
        let of = self.module.computations[computation].name.of(self.text);
        let positional = vec![Arg::Int(number as i64), Arg::Str(of.into())];
        let args = self.graph.intern_args(Args { positional, keyword: note.into_iter().collect() });
        let target = self.target("parameter");
        self.push(at, target, name, ty, args, &[]);
        Ok(())
    }

    fn element(&mut self, at: usize, name: Name, ty: TypeId, operands: &[NodeId]) -> Result<(), Fault> {
        let instruction = &self.module.instructions[at];
        let index = self.module.attribute(self.text, instruction, "index");
        let number = index.and_then(|index| first_number(index.of(self.text)));
        let (Some(number), [_]) = (number, operands) else {
            let place = index.unwrap_or(instruction.opcode);
            return Err(Fault::new(
                place.at(),
                "this takes no element of a tuple",
                "one operand, and `index=` with a number",
            ));
        };
        let args = self.graph.intern_args(Args::positional(vec![Arg::Operand(0), Arg::Int(number.into())]));
        let target = self.graph.intern("getitem");
        self.push(at, Op::Call(target), name, ty, args, operands);
        Ok(())
    }

    fn collective(&mut self, at: usize, name: Name, decoded: Decoded, operands: &[NodeId]) {
        let Decoded { op, mut positional, keyword, meta, result, starts } = decoded;
        let inputs: Vec<Arg> = (0..operands.len() as u32).map(Arg::Operand).collect();
        let first = if op.coalesced { Arg::List(inputs) } else { Arg::Operand(0) };
        positional.insert(0, first);
        let args = self.graph.intern_args(Args { positional, keyword });
        let ty = self.graph.intern_type(result);
        let id = self.push(at, Op::Collective(op), name, ty, args, operands);
        self.graph.set_meta(id, meta);
        let config = self.module.attribute(self.text, &self.module.instructions[at], "backend_config");
        if starts && config.is_some_and(|value| is_sync(value.of(self.text))) {
            self.facts.synchronous.insert(id);
        }
        if !starts {
            let wait = format!("{}.wait", self.graph.text(name));
            let wait = self.new_name(&wait);
            self.push(at, Op::Wait, wait, ty, self.wait_args, &[id]);
        }
    }

    fn call(
        &mut self,
        computation: usize,
        at: usize,
        name: Name,
        ty: TypeId,
        mut operands: Operands,
    ) -> Result<(), Fault> {
        let (text, module) = (self.text, self.module);
        let instruction = &module.instructions[at];
        let opcode = instruction.opcode.of(text);
        let count = operands.len();
        if layout::MOVES.contains(&opcode) {
            let types: Vec<&Type> = operands.iter().map(|&id| self.graph.type_of(id)).collect();
            if let Some((target, args)) = layout::operator(text, module, instruction, &types, self.graph.ty(ty)) {
                let args = self.graph.intern_args(args);
                let target = self.graph.intern(target);
                let id = self.push(at, Op::Call(target), name, ty, args, &operands);
                self.facts.work.extend(self.works.of(instruction).map(|work| (id, work)));
                return Ok(());
            }
        }
        // What is called as a region is an operand.
        let mut regions: Vec<(&str, Vec<usize>)> = Vec::new();
        for &key in region_attributes(opcode) {
            let Some(value) = module.attribute(text, instruction, key) else { continue };
            let callees: Vec<usize> = module.called(value).collect();
            if callees.iter().all(|&callee| matches!(self.roles[callee], Role::Region(_))) {
                regions.push((key, callees));
            }
        }
        let (target, doing) = self.target_of(opcode);
        let communicates = self.communication(instruction, doing)?;
        let note = self.shape_note(at)?;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        if let Some(shape) = &note {
            let _ = write!(buffer, "{shape}|");
        }
        if let Some((what, group)) = &communicates {
            let _ = write!(buffer, "{what}|{}|", group.as_deref().unwrap_or(""));
        }
        buffer.push_str(itoa::Buffer::new().format(count));
        for (key, callees) in &regions {
            let _ = write!(buffer, "|{key} {}", callees.len());
            operands.extend(callees.iter().map(|&callee| self.value(module.computations[callee].root)));
        }
        let inner = operands.len();
        for &callee in regions.iter().flat_map(|(_, callees)| callees) {
            operands.extend(self.effects[callee].iter().copied());
        }
        let effects = operands.len() - inner;
        if effects > 0 {
            let _ = write!(buffer, "|effects {effects}");
        }
        buffer.push('|');
        let start = buffer.len();
        if opcode == "constant" {
            buffer.push_str(instruction.arguments.of(text));
        }
        for attribute in module.attributes(instruction) {
            let key = attribute.key.of(text);
            if NOTES.contains(&key) || regions.iter().any(|(region, _)| *region == key) {
                continue;
            }
            if buffer.len() > start {
                buffer.push_str(", ");
            }
            buffer.push_str(key);
            buffer.push('=');
            if !is_call(key) {
                buffer.push_str(attribute.value.of(text));
                continue;
            }
            for callee in module.called(attribute.value) {
                let _ = write!(buffer, "#{:032x}", self.digests[callee]);
            }
        }
        let args = match self.args.get(buffer.as_str()) {
            Some(&known) => known,
            None => {
                let mut args = call_args(count, &regions, effects, &buffer[start..]);
                args.keyword.extend(note.map(|shape| ("shape".into(), Arg::Str(shape.into()))));
                if let Some((what, group)) = &communicates {
                    args.keyword.push((communication::COMMUNICATION.into(), Arg::Str(escaped(what))));
                    args.keyword.extend(group.clone().map(|name| (communication::GROUP.into(), Arg::Str(name))));
                }
                let id = self.graph.intern_args(args);
                self.args.insert(buffer.as_str().into(), id);
                id
            }
        };
        self.buffer = buffer;
        let id = self.push(at, Op::Call(target), name, ty, args, &operands);
        self.facts.work.extend(self.works.of(instruction).map(|work| (id, work)));
        let acts = communicates.is_some() && communication::of(&self.graph, id).is_some_and(|one| one.keeps_order());
        if effects > 0 || acts {
            self.effects[computation].push(id);
        }
        Ok(())
    }

    /// What an instruction that is not a collective of the graph moves between devices, and the name of the group.
    fn communication(&mut self, instruction: &Instruction, doing: Doing) -> Result<Option<Communication>, Fault> {
        let hidden = if self.hidden.is_empty() { None } else { self.hidden_in(instruction) };
        let says_so = instruction.opcode.of(self.text) == "custom-call";
        if doing == Doing::Computes && hidden.is_none() && !says_so {
            return Ok(None);
        }
        let hidden = hidden.map(|at| &self.module.instructions[at as usize]);
        let found = self.collectives.communication(&mut self.graph, self.module, instruction, hidden)?;
        Ok(found.map(|(what, group)| (what, group.map(|group| self.graph.group(group).name.clone()))))
    }

    /// An instruction that communicates in a body that is part of an instruction, as that of a fusion is.
    fn hidden_in(&self, instruction: &Instruction) -> Option<u32> {
        let attributes = self.module.attributes(instruction).iter().filter(|a| is_call(a.key.of(self.text)));
        let mut callees = attributes.flat_map(|attribute| self.module.called(attribute.value));
        callees.find_map(|callee| self.hidden[callee])
    }

    /// Puts an instruction behind its control predecessors.
    fn control(&mut self, at: usize) -> Result<(), Fault> {
        let instruction = &self.module.instructions[at];
        let Some(value) = self.module.attribute(self.text, instruction, "control-predecessors") else { return Ok(()) };
        let after = NodeId::from_index(self.links.first[at] as usize);
        // Inputs are there from the start.
        if self.graph.node(after).op != Op::Input {
            for before in self.module.predecessors(value) {
                let before = self.value(before as u32);
                self.graph.control.push(ControlEdge { before, after, strength: Strength::Hard });
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(Graph, Links), Fault> {
        self.inputs.sort_by_key(|&(number, _)| number);
        if let Some(twice) = self.inputs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let at = self.links.instruction[twice[1].1.index()] as usize;
            let problem = format!("parameter {} is there twice", twice[1].0);
            return Err(Fault::new(self.module.instructions[at].arguments.at(), problem, "another number"));
        }
        let mut order: Vec<NodeId> = self.inputs.iter().map(|&(_, id)| id).collect();
        order.append(&mut self.nodes);
        let root = self.value(self.module.computations[self.module.entry].root);
        let name = self.new_name("output");
        let mut operands = vec![root];
        operands.append(&mut self.effects[self.module.entry]);
        let args = Args::positional((0..operands.len() as u32).map(Arg::Operand).collect());
        let args = self.graph.intern_args(args);
        let output = self.graph.create(Op::Output, name, TypeId::UNKNOWN, args, &operands);
        self.links.instruction.push(NONE);
        order.push(output);
        self.graph.set_order(order);
        self.graph.hlo = Some(self.facts);
        self.graph.start_edit_log();
        Ok((self.graph, self.links))
    }
}

/// The arguments of a call: its operands, the bodies it calls, and its other attributes as text.
fn call_args(count: usize, regions: &[(&str, Vec<usize>)], effects: usize, attributes: &str) -> Args {
    let mut args = Args::positional((0..count as u32).map(Arg::Operand).collect());
    let mut next = count as u32;
    for (key, callees) in regions {
        let mut operands = callees.iter().map(|_| {
            next += 1;
            Arg::Operand(next - 1)
        });
        let arg = if let [_] = callees[..] { operands.next() } else { Some(Arg::List(operands.collect())) };
        args.keyword.extend(arg.map(|arg| ((*key).into(), arg)));
    }
    if effects > 0 {
        let operands = (next..next + effects as u32).map(Arg::Operand).collect();
        args.keyword.push(("effects".into(), Arg::List(operands)));
    }
    if !attributes.is_empty() {
        args.keyword.push(("attributes".into(), Arg::Str(escaped(attributes))));
    }
    args
}

/// A text as strings in arguments have it: what would end the string is escaped.
fn escaped(text: &str) -> Box<str> {
    if memchr::memchr3(b'\'', b'\\', b'\n', text.as_bytes()).is_none() {
        return text.into();
    }
    text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n").into()
}
