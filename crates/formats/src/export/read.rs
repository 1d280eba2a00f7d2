//! From JSON to graphs: one node for each node of the program, and a `getitem` for each value of those with several.

use super::arguments::{ArgumentReader, Subgraph, Values};
use super::error::{Fault, offset};
use super::records::{
    ConstantInput, Entries, GraphRecord, Head, InputRecord, KEYWORD, MAJOR, Named, NodeRecord, POSITIONAL, Program,
    SymInt, TensorRecord, Version, parse, union,
};
use super::text::{GraphText, NONE, ProgramText, Table};
use super::{codes, symbolic};
use crate::fx::{Meaning, meaning};
use crate::group_values::GroupValues;
use bucketeer::ir::{Arg, ArgsId, Dim, Dims, Graph, Meta, NodeId, Op, SymExpr, TensorType, Type, TypeId};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;
use serde_json::value::RawValue;

/// Deepest nesting of graphs in graphs.
const MAX_DEPTH: u32 = 16;

/// Reads a program: its own graph, then the graphs inside of it in the order of the text.
pub(super) fn read(text: &str, name: &str) -> Result<(ProgramText, Vec<Graph>), Fault> {
    let whole: &RawValue = serde_json::from_str(text).map_err(|error| Fault::of_json(text, 0, &error))?;
    check_version(text, whole)?;
    let program: Program<'_> = parse(text, whole)?;
    let module = program.graph_module;
    let mut done = Done::default();
    let names = |at: usize| {
        let spec = module.signature.input_specs.get(at)?;
        Some(parse::<ConstantInput>(text, spec).ok()?.constant_input.name).filter(|name| !name.is_empty())
    };
    graph(text, name, &module.graph, &names, 0, &mut done)?;
    let span = |part: &RawValue| offset(text, part)..offset(text, part) + part.get().len();
    let texts = ProgramText {
        graphs: done.texts,
        output_specs: module.signature.output_specs.iter().map(|part| span(part)).collect(),
        call_graph: module.module_call_graph.map(span),
    };
    Ok((texts, done.graphs))
}

fn check_version(text: &str, whole: &RawValue) -> Result<(), Fault> {
    let expected = format!("{{\"major\": {MAJOR}, \"minor\": ..}}, as torch.export of PyTorch 2.6 and later writes it");
    let head: Head<'_> = parse(text, whole)?;
    let Some(part) = head.schema_version else {
        return Err(Fault::new(0, "the program does not state its schema_version", expected));
    };
    let Version { major, minor } = parse(text, part)?;
    if major == MAJOR {
        return Ok(());
    }
    let problem =
        format!("schema version {major}.{minor} is not supported; version {MAJOR} is, with any minor version");
    Err(Fault::new(offset(text, part), problem, expected))
}

/// What has been read.
#[derive(Default)]
struct Done {
    graphs: Vec<Graph>,
    texts: Vec<GraphText>,
}

/// Reads a graph and those inside of it.
fn graph<'a>(
    text: &'a str,
    name: &str,
    record: &GraphRecord<'a>,
    constant: &dyn Fn(usize) -> Option<String>,
    depth: u32,
    done: &mut Done,
) -> Result<(), Fault> {
    let (graph_read, graph_text, subgraphs) = GraphReader::new(text, name).read(record, constant)?;
    let outer = done.graphs.len();
    done.graphs.push(graph_read);
    done.texts.push(graph_text);
    for Subgraph { name, graph: record, at } in subgraphs {
        let inner = done.graphs.len();
        if depth == MAX_DEPTH {
            return Err(Fault::new(at, format!("graphs nest more than {MAX_DEPTH} levels deep"), "fewer levels"));
        }
        graph(text, &name, &record, &|_| None, depth + 1, done)?;
        let body = done.graphs[inner].clone();
        done.graphs[outer].bodies.insert(&name, body);
    }
    Ok(())
}

struct GraphReader<'a> {
    text: &'a str,
    graph: Graph,
    out: GraphText,
    values: Values,
    /// Types by name of the value, and by the text they were read from.
    types: HashMap<String, TypeId, FxBuildHasher>,
    known: HashMap<&'a str, TypeId, FxBuildHasher>,
    /// Names that values will have.
    reserved: HashSet<String, FxBuildHasher>,
    subgraphs: Vec<Subgraph<'a>>,
    group_values: GroupValues,
}

impl<'a> GraphReader<'a> {
    fn new(text: &'a str, name: &str) -> Self {
        Self {
            text,
            graph: Graph::new(name),
            out: GraphText::default(),
            values: Values::default(),
            types: HashMap::default(),
            known: HashMap::default(),
            reserved: HashSet::default(),
            subgraphs: Vec::new(),
            group_values: GroupValues::default(),
        }
    }

    fn at(&self, part: &RawValue) -> usize {
        offset(self.text, part)
    }

    fn span(&self, part: &RawValue) -> std::ops::Range<usize> {
        self.at(part)..self.at(part) + part.get().len()
    }

    fn read(
        mut self,
        record: &GraphRecord<'a>,
        constant: &dyn Fn(usize) -> Option<String>,
    ) -> Result<(Graph, GraphText, Vec<Subgraph<'a>>), Fault> {
        self.out.tensors = self.table(record.tensor_values, Self::tensor_type)?;
        self.out.integers = self.table(record.sym_int_values, Self::integer_type)?;
        for part in [record.sym_float_values, record.sym_bool_values].into_iter().flatten() {
            self.table(part, Self::other_type)?;
        }
        let parts: Vec<&'a RawValue> = parse(self.text, record.nodes)?;
        let nodes = parts.iter().map(|part| parse(self.text, part)).collect::<Result<Vec<NodeRecord<'a>>, _>>()?;
        self.reserve(&record.inputs, &nodes)?;
        for (index, part) in record.inputs.iter().enumerate() {
            self.input(part, index, constant)?;
        }
        self.out.inputs = self.graph.order().len();
        for (index, (part, node)) in parts.iter().zip(&nodes).enumerate() {
            self.node(part, node, index as u32)?;
        }
        self.output(&record.outputs)?;
        self.group_values.finish(&mut self.graph);
        self.out.nodes_array = self.span(record.nodes);
        self.out.nodes = parts.iter().map(|part| self.span(part)).collect();
        self.out.outputs = record.outputs.iter().map(|part| self.span(part)).collect();
        self.graph.start_edit_log();
        Ok((self.graph, self.out, self.subgraphs))
    }

    /// Reads what is said of values, by name.
    fn table(
        &mut self,
        part: &'a RawValue,
        read: impl Fn(&mut Self, &'a RawValue) -> Result<Type, Fault>,
    ) -> Result<Table, Fault> {
        let mut entries = Vec::new();
        self.known.clear();
        for (name, value) in parse::<Entries<'a>>(self.text, part)?.0 {
            let ty = match self.known.get(value.get()) {
                Some(&ty) => ty,
                None => {
                    let ty = read(self, value)?;
                    let id = self.graph.intern_type(ty);
                    self.known.insert(value.get(), id);
                    id
                }
            };
            if self.types.insert(name.clone(), ty).is_some() {
                let problem = format!("`{name}` is described a second time");
                return Err(Fault::new(self.at(value), problem, "one description of each value"));
            }
            entries.push((name.into(), self.span(value)));
        }
        Ok(Table { object: self.span(part), entries })
    }

    fn tensor_type(&mut self, part: &'a RawValue) -> Result<Type, Fault> {
        let record: TensorRecord<'a> = parse(self.text, part)?;
        let shape = self.dims(&record.sizes)?;
        let strides = self.dims(&record.strides)?;
        self.dim(record.storage_offset)?;
        let Some(dtype) = codes::dtype(record.dtype) else { return Ok(Type::Unknown) };
        let device = &record.device.kind;
        let plain = device.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        // Sparse tensors have no elements end to end; a size beyond us makes the whole type so.
        let (Some(shape), Some(strides)) = (shape, strides) else { return Ok(Type::Unknown) };
        if record.layout != codes::STRIDED || !plain || strides.len() != shape.len() {
            return Ok(Type::Unknown);
        }
        let device = match record.device.index.filter(|index| *index >= 0) {
            Some(index) => format!("{device}:{index}"),
            None => device.clone(),
        };
        let tensor = TensorType { dtype, shape, strides: Some(strides), device: Some(device.into()) };
        let bytes = tensor.bytes();
        if bytes.is_none_or(|bytes| bytes.as_const().is_some_and(|bytes| i64::try_from(bytes).is_err())) {
            let problem = format!("a tensor of type `{tensor}` has more than 2^63 bytes");
            return Err(Fault::new(self.at(part), problem, "a smaller tensor"));
        }
        Ok(Type::Tensor(tensor))
    }

    /// Sizes or strides; `None` if one of them is beyond what sizes can say.
    fn dims(&mut self, parts: &[&'a RawValue]) -> Result<Option<Dims>, Fault> {
        let dims = parts.iter().map(|part| self.dim(part)).collect::<Result<Vec<_>, _>>()?;
        Ok(dims.into_iter().collect())
    }

    fn dim(&mut self, part: &'a RawValue) -> Result<Option<Dim>, Fault> {
        let Some(expr) = self.expression(part)? else { return Ok(None) };
        let symbolic = expr.as_constant().is_none();
        let Some(dim) = Dim::from_expr(expr) else {
            return Err(Fault::new(self.at(part), "a size is negative", "0 or more"));
        };
        if symbolic {
            self.out.dims.entry(dim.clone()).or_insert_with(|| part.get().into());
        }
        Ok(Some(dim))
    }

    /// A symbolic integer; `None` if it is beyond what sizes can say.
    fn expression(&mut self, part: &'a RawValue) -> Result<Option<SymExpr>, Fault> {
        let record = match parse::<SymInt>(self.text, part)? {
            SymInt::AsInt(value) => return Ok(Some(SymExpr::constant(value))),
            SymInt::AsExpr(record) => record,
        };
        for (name, text) in symbolic::symbols(&record.expr_str) {
            self.out.symbols.entry(name.into()).or_insert_with(|| text.into());
        }
        let hint = record.hint.as_ref().and_then(|hint| hint.get("as_int")?.as_u64());
        if let (Some(name), Some(hint)) = (symbolic::symbol(&record.expr_str), hint) {
            self.graph.hints.insert(name.into(), hint);
        }
        Ok(symbolic::infix(&record.expr_str).and_then(|text| SymExpr::parse(&text).ok()))
    }

    fn integer_type(&mut self, part: &'a RawValue) -> Result<Type, Fault> {
        Ok(self.expression(part)?.map_or(Type::Unknown, Type::SymInt))
    }

    /// A symbolic float or bool.
    fn other_type(&mut self, part: &'a RawValue) -> Result<Type, Fault> {
        let (kind, value) = union(self.text, part)?;
        let text = match &*kind {
            "as_expr" => parse::<super::records::ExprRecord>(self.text, value)?.expr_str,
            _ => value.get().to_owned(),
        };
        Ok(Type::SymOther(text.into()))
    }

    /// Keeps the names of all values off the nodes that need a name of their own.
    fn reserve(&mut self, inputs: &[&'a RawValue], nodes: &[NodeRecord<'a>]) -> Result<(), Fault> {
        let mut names = Vec::new();
        for part in inputs.iter().chain(nodes.iter().flat_map(|node| &node.outputs)) {
            self.output_names(part, &mut |name, _| names.extend(name.map(str::to_owned)))?;
        }
        for name in names {
            self.graph.intern(&name);
            self.reserved.insert(name);
        }
        for name in nodes.iter().filter_map(|node| node.name.as_deref()) {
            self.graph.intern(name);
        }
        Ok(())
    }

    /// Calls `visit` with each value that an output or input names, `None` for one that has no name. Gives whether it
    /// is a list of values.
    fn output_names(&self, part: &'a RawValue, visit: &mut dyn FnMut(Option<&str>, usize)) -> Result<bool, Fault> {
        let (mut kind, mut value) = union(self.text, part)?;
        if kind == "as_optional_tensor" {
            (kind, value) = union(self.text, value)?;
        }
        let items: Vec<&'a RawValue> = match &*kind {
            "as_tensors" | "as_sym_ints" | "as_sym_floats" | "as_sym_bools" => parse(self.text, value)?,
            "as_ints" | "as_floats" | "as_bools" | "as_strings" | "as_nested_tensors" | "as_optional_tensors" => {
                parse::<Vec<&'a RawValue>>(self.text, value)?.iter().for_each(|part| visit(None, self.at(part)));
                return Ok(true);
            }
            "as_tensor" | "as_custom_obj" => {
                visit(Some(&parse::<Named>(self.text, value)?.name), self.at(value));
                return Ok(false);
            }
            "as_sym_int" | "as_sym_float" | "as_sym_bool" => vec![value],
            _ => {
                visit(None, self.at(value));
                return Ok(false);
            }
        };
        for &item in &items {
            if kind.starts_with("as_tensor") {
                visit(Some(&parse::<Named>(self.text, item)?.name), self.at(item));
                continue;
            }
            let (kind, value) = union(self.text, item)?;
            let name = if kind == "as_name" { Some(parse::<String>(self.text, value)?) } else { None };
            visit(name.as_deref(), self.at(value));
        }
        Ok(kind.ends_with('s'))
    }

    fn type_of(&self, name: &str) -> TypeId {
        self.types.get(name).copied().unwrap_or(TypeId::UNKNOWN)
    }

    fn define(&mut self, name: &str, id: NodeId, at: usize) -> Result<(), Fault> {
        if self.values.insert(name.to_owned(), id).is_some() {
            let problem = format!("`{name}` is defined a second time in graph `{}`", self.graph.name);
            return Err(Fault::new(at, problem, "a name that is not defined yet"));
        }
        Ok(())
    }

    fn input(
        &mut self,
        part: &'a RawValue,
        index: usize,
        constant: &dyn Fn(usize) -> Option<String>,
    ) -> Result<(), Fault> {
        let mut names = Vec::new();
        self.output_names(part, &mut |name, at| names.push((name.map(str::to_owned), at)))?;
        let [(name, at)] = &names[..] else {
            return Err(Fault::new(self.at(part), "an input is a list", "one value"));
        };
        let name = match name {
            Some(name) => name.clone(),
            // Constants have no name here, but one in the signature.
            None => {
                let name = constant(index).unwrap_or_else(|| format!("arg{index}"));
                let name = self.own_name(Some(&name), "arg");
                self.graph.text(name).to_owned()
            }
        };
        let (interned, ty) = (self.graph.intern(&name), self.type_of(&name));
        let id = self.graph.push(Op::Input, interned, ty, ArgsId::EMPTY, &[]);
        self.out.origin.push(NONE);
        self.define(&name, id, *at)
    }

    /// The name of a node that is not a value's: the wanted one if it is free.
    fn own_name(&mut self, wanted: Option<&str>, stem: &str) -> bucketeer::ir::Name {
        match wanted {
            Some(name) if !name.is_empty() && self.reserved.insert(name.to_owned()) => self.graph.intern(name),
            _ => {
                let name = self.graph.fresh_name(stem, &mut 1);
                let text = self.graph.text(name).to_owned();
                self.reserved.insert(text);
                name
            }
        }
    }

    fn node(&mut self, part: &'a RawValue, record: &NodeRecord<'a>, index: u32) -> Result<(), Fault> {
        let target = plain_target(&record.target);
        if target.is_empty() {
            return Err(Fault::new(self.at(part), "a node has an empty target", "the name of an operator"));
        }
        let (args, operands) = self.args(record)?;
        let group_values = &mut self.group_values;
        let mut group = |graph: &Graph, index: u32| group_values.name(graph, operands[index as usize]);
        let Meaning { op, args, .. } = meaning(&mut self.graph, target, args, &mut group);
        let args = self.graph.intern_args(args);
        let single = self.single_output(record)?;
        let (name, ty) = match &single {
            Some((name, _)) => (self.graph.intern(name), self.type_of(name)),
            None => {
                let stem = target.rsplit('.').nth(1).unwrap_or("node");
                (self.own_name(record.name.as_deref(), stem), TypeId::UNKNOWN)
            }
        };
        let id = self.graph.push(op, name, ty, args, &operands);
        self.out.origin.push(index);
        match single {
            Some((name, at)) => self.define(&name, id, at)?,
            None => {
                let ty = self.several_outputs(record, id)?;
                let ty = self.graph.intern_type(ty);
                self.graph.node_mut(id).ty = ty;
            }
        }
        if matches!(op, Op::Collective(_)) {
            self.set_meta(id, record)?;
        }
        Ok(())
    }

    fn args(&mut self, record: &NodeRecord<'a>) -> Result<(bucketeer::ir::Args, Vec<NodeId>), Fault> {
        let mut reader = ArgumentReader::new(self.text, &self.values);
        let mut args = bucketeer::ir::Args::default();
        for input in in_order(&record.inputs) {
            let arg = reader.read(input.arg)?;
            if is_positional(input) {
                args.positional.push(arg);
            } else {
                args.keyword.push((input.name.as_str().into(), arg));
            }
        }
        self.subgraphs.append(&mut reader.subgraphs);
        Ok((args, reader.operands))
    }

    /// The only value that a node makes, and where it is named.
    fn single_output(&self, record: &NodeRecord<'a>) -> Result<Option<(String, usize)>, Fault> {
        let [part] = &record.outputs[..] else { return Ok(None) };
        let tuple_of_one =
            record.target.starts_with("torch.ops.higher_order") && record.is_hop_single_tensor_return == Some(false);
        let mut found = None;
        let is_list = self.output_names(part, &mut |name, at| found = name.map(|name| (name.to_owned(), at)))?;
        Ok(found.filter(|_| !is_list && !tuple_of_one))
    }

    /// Makes a `getitem` for each value of a node; gives the type of all together.
    fn several_outputs(&mut self, record: &NodeRecord<'a>, id: NodeId) -> Result<Type, Fault> {
        let mut parts = Vec::new();
        for part in &record.outputs {
            let mut names = Vec::new();
            let is_list = self.output_names(part, &mut |name, at| names.push((name.map(str::to_owned), at)))?;
            parts.push((is_list, names));
        }
        match &parts[..] {
            [] => Ok(Type::Unknown),
            [(false, names)] if names.iter().all(|(name, _)| name.is_none()) => Ok(Type::Unknown),
            [(true, names)] => self.items(names, id),
            _ => {
                let mut types = Vec::with_capacity(parts.len());
                for (index, (is_list, names)) in parts.iter().enumerate() {
                    if *is_list {
                        let name = self.own_name(None, "list");
                        let list = self.item(name, TypeId::UNKNOWN, id, index);
                        let ty = self.items(names, list)?;
                        self.graph.node_mut(list).ty = self.graph.intern_type(ty.clone());
                        types.push(ty);
                    } else {
                        types.push(self.value(&names[0], id, index)?);
                    }
                }
                Ok(Type::Tuple(types))
            }
        }
    }

    fn items(&mut self, names: &[(Option<String>, usize)], of: NodeId) -> Result<Type, Fault> {
        let items = names.iter().enumerate().map(|(index, name)| self.value(name, of, index));
        Ok(Type::Tuple(items.collect::<Result<_, _>>()?))
    }

    fn value(&mut self, (name, at): &(Option<String>, usize), of: NodeId, index: usize) -> Result<Type, Fault> {
        let Some(name) = name else { return Ok(Type::Unknown) };
        let (interned, ty) = (self.graph.intern(name), self.type_of(name));
        let id = self.item(interned, ty, of, index);
        self.define(name, id, *at)?;
        Ok(self.graph.type_of(id).clone())
    }

    fn item(&mut self, name: bucketeer::ir::Name, ty: TypeId, of: NodeId, index: usize) -> NodeId {
        let target = self.graph.intern("operator.getitem");
        let args = bucketeer::ir::Args::positional(vec![Arg::Operand(0), Arg::Int(index as i64)]);
        let args = self.graph.intern_args(args);
        self.out.origin.push(NONE);
        self.graph.push(Op::Call(target), name, ty, args, &[of])
    }

    fn output(&mut self, parts: &[&'a RawValue]) -> Result<(), Fault> {
        let mut reader = ArgumentReader::new(self.text, &self.values);
        let args = parts.iter().map(|part| reader.read(part)).collect::<Result<Vec<_>, _>>()?;
        let operands = reader.operands;
        let args = self.graph.intern_args(bucketeer::ir::Args::positional(args));
        let name = self.own_name(Some("output"), "output");
        self.graph.push(Op::Output, name, TypeId::UNKNOWN, args, &operands);
        self.out.origin.push(NONE);
        Ok(())
    }

    /// Where a collective came from, and what was merged into it.
    fn set_meta(&mut self, id: NodeId, record: &NodeRecord<'a>) -> Result<(), Fault> {
        let Some(part) = record.metadata else { return Ok(()) };
        let mut meta = Meta::default();
        for (key, value) in parse::<Entries<'a>>(self.text, part)?.0 {
            match &*key {
                "stack_trace" => meta.sources.extend(last_frame(&parse::<String>(self.text, value)?)),
                super::MEMBERS_KEY => {
                    let list: String = parse(self.text, value)?;
                    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
                    meta.members = names.map(Box::from).collect();
                }
                _ => {}
            }
        }
        self.graph.set_meta(id, meta);
        Ok(())
    }
}

/// Inputs with those that have no name first, as a call has them.
pub(super) fn in_order<'r, 'a>(inputs: &'r [InputRecord<'a>]) -> impl Iterator<Item = &'r InputRecord<'a>> {
    let positional = inputs.iter().filter(|input| is_positional(input));
    positional.chain(inputs.iter().filter(|input| !is_positional(input)))
}

/// Older minor versions do not say how an argument is handed over: then tensors are taken as positional.
fn is_positional(input: &InputRecord<'_>) -> bool {
    match input.kind {
        Some(POSITIONAL) => true,
        Some(KEYWORD) => false,
        _ => input.name.is_empty() || input.arg.get().starts_with("{\"as_tensor"),
    }
}

/// A target as FX text has it, without `torch.ops.`.
pub(super) fn plain_target(target: &str) -> &str {
    let target = target.strip_prefix("torch.ops.").unwrap_or(target);
    target.strip_prefix('_').filter(|rest| rest.starts_with("operator.")).unwrap_or(target)
}

/// The innermost frame of a stack trace, as `path:line in function`.
fn last_frame(trace: &str) -> Option<Box<str>> {
    let line = trace.lines().rev().find_map(|line| line.trim().strip_prefix("File \""))?;
    let (path, rest) = line.split_once("\", line ")?;
    let (number, function) = rest.split_once(", in ")?;
    Some(format!("{path}:{number} in {function}").into())
}
