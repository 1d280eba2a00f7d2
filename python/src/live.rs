//! Live `torch.fx` graphs: read node by node, edited as our graph, and told back as edits.
//!
//! Nothing of PyTorch is imported but what is needed to tell its values apart ([`Torch`]); what an operator is called and
//! what its schema is, Python tells, once for each operator of a graph.

use crate::errors::exception;
use crate::text::{Files, apart, flags};
use crate::values::{Torch, Values};
use bucketeer::ir::{Arg, Args, CollectiveKind, GlobalRank, Graph, GroupId, NodeId, Op, ProcessGroup, Type, TypeId};
use bucketeer_cli::api::{self, FaultKind};
use bucketeer_formats::fx::nodes::{self, Edit, NodeReader, Opcode};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Graphs may call graphs so deep.
const MOST_DEPTH: u32 = 64;

/// A node of a live graph, in arguments of new nodes: by its place in the list, or, from the length of the list on, by the
/// number of the new node.
#[pyclass(frozen)]
pub struct Ref {
    /// The place.
    #[pyo3(get)]
    place: usize,
}

/// What was done to a graph.
#[pyclass(frozen)]
pub struct Told(api::Told);

#[pymethods]
impl Told {
    /// What was done, as JSON.
    #[getter]
    fn report(&self) -> &str {
        &self.0.report
    }

    /// What was done, for people.
    #[getter]
    fn summary(&self) -> &str {
        &self.0.summary
    }

    /// Of plans: what runs when, as an HTML page.
    #[getter]
    fn timeline(&self) -> Option<&str> {
        self.0.timeline.as_deref()
    }

    /// The same as a picture without scripts, SVG.
    #[getter]
    fn svg(&self) -> Option<&str> {
        self.0.svg.as_deref()
    }

    /// The same as JSON.
    #[getter]
    fn spans(&self) -> Option<&str> {
        self.0.spans.as_deref()
    }

    /// Warnings and notes.
    #[getter]
    fn said(&self) -> Vec<String> {
        self.0.said.clone()
    }
}

/// Checks flags of `bucketeer rewrite`, or of `bucketeer plan`, before there is a graph.
#[pyfunction]
pub fn check_flags(py: Python<'_>, words: Vec<String>, files: Files, plans: bool) -> PyResult<()> {
    let mut nothing = Graph::new("nothing");
    let flags = flags(words, &files);
    let done = if plans { api::plan_graph(&mut nothing, flags) } else { api::rewrite_graph(&mut nothing, flags) };
    match done {
        Err(fault) if fault.kind == FaultKind::Options => Err(exception(py, fault)),
        // What is in a file is at fault whatever the graph is.
        Err(fault) if files.iter().any(|(name, _)| fault.message.contains(&**name)) => Err(exception(py, fault)),
        // A graph of nothing may be refused for that.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// What has to change in a list of nodes so that it is what the graph is now.
#[pyclass(frozen)]
pub struct Edits {
    /// The new order: places of nodes, and from the length of the list on numbers of new ones. Nodes that do not come up go.
    #[pyo3(get)]
    order: Vec<usize>,
    /// The places of nodes that stay with other operands, and those, in order of appearance.
    #[pyo3(get)]
    rewired: Vec<(usize, Vec<usize>)>,
    /// Of each new node its name, target, arguments, keyword arguments, and the names of the nodes that were merged into it.
    #[pyo3(get)]
    created: Py<PyList>,
}

/// A live graph as it was read, and what became of it.
#[pyclass(frozen)]
pub struct LiveGraph {
    graph: Mutex<Graph>,
    values: Values,
    count: usize,
}

/// What reading one graph needs.
struct Reader<'a, 'py> {
    py: Python<'py>,
    torch: &'a Torch<'py>,
    describe: &'a Bound<'py, PyAny>,
    values: &'a mut Values,
    /// By the address of a target: what it is called.
    targets: HashMap<usize, (Py<PyAny>, Box<str>)>,
    /// Schemas of operators, as they were found.
    schemas: Vec<String>,
    /// Graphs that were read, by the address of each, which is kept.
    bodies: HashMap<usize, (Py<PyAny>, Graph)>,
}

impl<'py> Reader<'_, 'py> {
    /// What a call's target is called. `describe` is asked once for each, and gives its schema, too, if it has one.
    fn target(&mut self, target: &Bound<'py, PyAny>) -> PyResult<usize> {
        let key = target.as_ptr() as usize;
        if !self.targets.contains_key(&key) {
            let (text, schema): (String, Option<String>) = self.describe.call1((target,))?.extract()?;
            self.schemas.extend(schema);
            self.targets.insert(key, (target.clone().unbind(), text.into()));
        }
        Ok(key)
    }

    /// A graph that is called. Several calls may be of the same one.
    fn body(&mut self, graph: &Bound<'py, PyAny>, name: &str, depth: u32) -> PyResult<Graph> {
        let key = graph.as_ptr() as usize;
        if let Some((_, known)) = self.bodies.get(&key) {
            return Ok(known.clone());
        }
        let (body, _) = self.graph(graph, name, depth)?;
        self.bodies.insert(key, (graph.clone().unbind(), body.clone()));
        Ok(body)
    }

    fn graph(&mut self, graph: &Bound<'py, PyAny>, name: &str, depth: u32) -> PyResult<(Graph, usize)> {
        if depth > MOST_DEPTH {
            return Err(PyRuntimeError::new_err(format!("graphs call graphs more than {MOST_DEPTH} deep")));
        }
        let py = self.py;
        let owner = graph.getattr(intern!(py, "owning_module")).ok();
        let mut reader = NodeReader::new(name);
        let mut places: HashMap<usize, NodeId> = HashMap::new();
        let mut operands: Vec<NodeId> = Vec::new();
        for node in graph.getattr(intern!(py, "nodes"))?.try_iter()? {
            let node = node?;
            operands.clear();
            let name_object = node.getattr(intern!(py, "name"))?;
            let name = name_object.cast::<PyString>()?.to_str()?;
            let op_object = node.getattr(intern!(py, "op"))?;
            let op = op_object.cast::<PyString>()?.to_str()?;
            let target_object = node.getattr(intern!(py, "target"))?;
            let mut read = |values: &mut Values| -> PyResult<Args> {
                let args = node.getattr(intern!(py, "args"))?;
                let kwargs = node.getattr(intern!(py, "kwargs"))?;
                values.args(self.torch, args.cast::<PyTuple>()?, kwargs.cast::<PyDict>()?, &places, &mut operands)
            };
            let id = match op {
                "placeholder" => {
                    let ty = self.value_type(&node, &mut reader)?;
                    reader.push(Opcode::Placeholder, name, Args::default(), &[], ty)
                }
                "output" => {
                    let mut args = read(self.values)?;
                    let returned = args.positional.pop().unwrap_or(Arg::None);
                    reader.push(Opcode::Output, name, nodes::results(returned), &operands, TypeId::UNKNOWN)
                }
                "get_attr" => {
                    let path = target_object.extract::<String>()?;
                    if let Some(body) = owner.as_ref().and_then(|owner| self.torch.graph_at(owner, &path)) {
                        reader.body(&path, self.body(&body, &path, depth + 1)?);
                    }
                    let ty = self.value_type(&node, &mut reader)?;
                    reader.push(Opcode::Call(&format!("self.{path}")), name, Args::default(), &[], ty)
                }
                "call_function" => {
                    let args = read(self.values)?;
                    let key = self.target(&target_object)?;
                    let ty = self.value_type(&node, &mut reader)?;
                    reader.push(Opcode::Call(&self.targets[&key].1), name, args, &operands, ty)
                }
                "call_method" | "call_module" => {
                    let args = read(self.values)?;
                    let path = target_object.extract::<String>()?;
                    let target = match (op, args == Args::default()) {
                        ("call_method", _) => format!("method.{path}"),
                        (_, true) => format!("self.{path}.__call__"),
                        (_, false) => format!("self.{path}"),
                    };
                    let ty = self.value_type(&node, &mut reader)?;
                    reader.push(Opcode::Call(&target), name, args, &operands, ty)
                }
                other => {
                    return Err(PyTypeError::new_err(format!(
                        "node `{name}` is a `{other}`, which no graph of FX has"
                    )));
                }
            };
            places.insert(node.as_ptr() as usize, id);
        }
        Ok((reader.finish(), places.len()))
    }

    /// The type of the value that a node's metadata holds.
    fn value_type(&mut self, node: &Bound<'py, PyAny>, reader: &mut NodeReader) -> PyResult<TypeId> {
        let py = self.py;
        let meta = node.getattr(intern!(py, "meta"))?;
        let Some(value) = meta.cast::<PyDict>()?.get_item(intern!(py, "val"))? else { return Ok(TypeId::UNKNOWN) };
        let ty = self.values.type_of(self.torch, &value);
        if ty == Type::Unknown {
            return Ok(TypeId::UNKNOWN);
        }
        Ok(reader.intern_type(ty))
    }
}

/// Reads a `torch.fx.Graph`. `describe` gives what a call's target is called and its schema, or none; `groups` has the
/// ranks of process groups by name, and `hints` likely values of symbols.
#[pyfunction]
pub fn read_live(
    py: Python<'_>,
    graph: &Bound<'_, PyAny>,
    name: &str,
    describe: &Bound<'_, PyAny>,
    groups: &Bound<'_, PyAny>,
    hints: &Bound<'_, PyAny>,
) -> PyResult<LiveGraph> {
    let torch = Torch::new(py)?;
    let mut values = Values::default();
    let mut reader = Reader {
        py,
        torch: &torch,
        describe,
        values: &mut values,
        targets: HashMap::new(),
        schemas: Vec::new(),
        bodies: HashMap::new(),
    };
    let (mut read, count) = reader.graph(graph, name, 0)?;
    let schemas = std::mem::take(&mut reader.schemas);
    for schema in &schemas {
        declare(&mut read, schema)?;
    }
    give_members(&mut read, groups)?;
    let symbols: Vec<String> = values.symbols.iter().cloned().collect();
    for symbol in symbols {
        let hint: Option<u64> = hints.call1((symbol.as_str(),))?.extract()?;
        if let Some(hint) = hint {
            read.hints.insert(symbol.into(), hint);
        }
    }
    read.hints.sort_keys();
    Ok(LiveGraph { graph: Mutex::new(read), values, count })
}

/// Schemas that the tables have in the same words, as was found before: graphs call the same few operators.
static KNOWN: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// Takes a schema that the tables do not have in the same words.
fn declare(graph: &mut Graph, schema: &str) -> PyResult<()> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.contains(schema) {
        return Ok(());
    }
    let is_new = graph.operators.declare_if_new(schema).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    if !is_new {
        known.insert(schema.to_owned());
    }
    Ok(())
}

/// Asks for the ranks of each group that the graph names.
fn give_members(graph: &mut Graph, groups: &Bound<'_, PyAny>) -> PyResult<()> {
    for index in 0..graph.groups().len() {
        let id = GroupId::from_index(index);
        let (name, stated) = (graph.group(id).name.to_string(), graph.group(id).size);
        let ranks: Option<Vec<u32>> = groups.call1((name.as_str(),))?.extract()?;
        let Some(ranks) = ranks else { continue };
        let size = u32::try_from(ranks.len()).ok();
        if stated.is_some() && stated != size {
            let (found, stated) = (ranks.len(), stated.unwrap_or_default());
            let what = format!("group `{name}` has {found} ranks, but operators of the graph state {stated}");
            return Err(PyRuntimeError::new_err(what));
        }
        let group = graph.group_mut(id);
        group.size = size;
        group.members = vec![ranks.into_iter().map(GlobalRank).collect()];
    }
    Ok(())
}

#[pymethods]
impl LiveGraph {
    /// How many nodes were read.
    #[getter]
    fn count(&self) -> usize {
        self.count
    }

    /// What has to change in the list of nodes.
    fn edits(&self, py: Python<'_>) -> PyResult<Edits> {
        let torch = Torch::new(py)?;
        let graph = self.lock();
        let edits = nodes::edits(&graph).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let mut numbers: HashMap<NodeId, usize> = HashMap::new();
        for edit in &edits {
            if let Edit::New(new) = edit {
                numbers.insert(new.id, self.count + numbers.len());
            }
        }
        let place = |id: &NodeId| numbers.get(id).copied().unwrap_or(id.index());
        let (mut order, mut rewired) = (Vec::with_capacity(edits.len()), Vec::new());
        let created = PyList::empty(py);
        for edit in &edits {
            match edit {
                Edit::Kept(kept) => order.push(*kept),
                Edit::Rewired(kept, operands) => {
                    order.push(*kept);
                    rewired.push((*kept, operands.iter().map(place).collect()));
                }
                Edit::New(new) => {
                    order.push(place(&new.id));
                    let refs: Vec<Py<PyAny>> = new
                        .operands
                        .iter()
                        .map(|id| Ok(Py::new(py, Ref { place: place(id) })?.into_any()))
                        .collect::<PyResult<_>>()?;
                    let (args, kwargs) = self.values.to_python(&torch, &new.args, &refs)?;
                    let members: Vec<&str> = new.members.iter().map(|name| &**name).collect();
                    created.append((new.name, &new.target, args, kwargs, members))?;
                }
            }
        }
        Ok(Edits { order, rewired, created: created.unbind() })
    }

    /// Rewrites it, as `bucketeer rewrite` does with these flags.
    fn rewrite(&self, py: Python<'_>, words: Vec<String>, files: Files) -> PyResult<Told> {
        let flags = flags(words, &files);
        apart(py, || api::rewrite_graph(&mut self.lock(), flags)).map(Told)
    }

    /// Plans it, as `bucketeer plan` does with these flags.
    fn plan(&self, py: Python<'_>, words: Vec<String>, files: Files) -> PyResult<Told> {
        let flags = flags(words, &files);
        apart(py, || api::plan_graph(&mut self.lock(), flags)).map(Told)
    }

    /// What it launches, in order: the group, and what ranks have to agree on. Tensors that were merged stand for themselves, each
    /// with its dtype and sizes.
    fn launches(&self) -> Vec<(String, String)> {
        let graph = self.lock();
        let named: HashMap<&str, NodeId> = (0..self.count)
            .map(NodeId::from_index)
            .map(|id| (graph.original(id).map_or("", |then| graph.text(then.node.name)), id))
            .collect();
        let mut launches = Vec::new();
        for &id in graph.order() {
            let Op::Collective(collective) = graph.node(id).op else { continue };
            let members = &graph.meta_of(id).members;
            let sent: Vec<String> = match members.is_empty() {
                true => {
                    graph.collective_inputs(id).iter().map(|&input| payload(&graph, collective.kind, input)).collect()
                }
                false => members
                    .iter()
                    .map(|name| {
                        match named.get(&**name).and_then(|&of| graph.original(of)?.operands.first().copied()) {
                            Some(input) => payload(&graph, collective.kind, input),
                            None => (**name).to_owned(),
                        }
                    })
                    .collect(),
            };
            let group = graph.group(collective.group);
            launches.push((group.name.to_string(), format!("{} of {}", described(collective.kind), sent.join(", "))));
        }
        launches
    }

    /// How many collectives it launches.
    fn launch_count(&self) -> usize {
        let graph = self.lock();
        graph.order().iter().filter(|&&id| matches!(graph.node(id).op, Op::Collective(_))).count()
    }

    /// The groups that the graph names, with the global ranks of those that are known.
    fn groups(&self) -> Vec<(String, Vec<u32>)> {
        self.lock().groups().iter().map(|group| (group.name.to_string(), members(group))).collect()
    }

    /// Symbols of sizes, and their likely values.
    fn hints(&self) -> Vec<(String, u64)> {
        self.lock().hints.iter().map(|(symbol, &value)| (symbol.to_string(), value)).collect()
    }

    /// The symbols of its sizes.
    fn symbols(&self) -> Vec<String> {
        self.values.symbols.iter().cloned().collect()
    }

    /// The schemas that were taken from the dispatcher, for the tables do not have them.
    #[getter]
    fn declared(&self) -> Vec<String> {
        self.lock().operators.iter().map(|(_, schema)| schema.to_owned()).collect()
    }
}

/// The global ranks of this rank's group, if they are known.
fn members(group: &ProcessGroup) -> Vec<u32> {
    group.members.first().map_or(Vec::new(), |ranks| ranks.iter().map(|rank| rank.0).collect())
}

/// A kind, with what all ranks have to say alike.
fn described(kind: CollectiveKind) -> String {
    let op = kind.reduce_op().map_or_else(String::new, |op| format!(" {op}"));
    let root = match kind {
        CollectiveKind::Broadcast { root } | CollectiveKind::Reduce { root, .. } => format!(" with root {root}"),
        _ => String::new(),
    };
    format!("{}{op}{root}", kind.name())
}

/// What an input sends: dtype and sizes, with hints in the place of symbols. In an exchange each rank may send and get as many rows
/// as it likes.
fn payload(graph: &Graph, kind: CollectiveKind, input: NodeId) -> String {
    let Some(tensor) = graph.tensor(input) else { return "?".to_owned() };
    let size = |dim| graph.likely_value(dim).map_or_else(|| format!("{dim}"), |value| value.to_string());
    let mut sizes: Vec<String> = tensor.shape.iter().map(size).collect();
    if let (CollectiveKind::AllToAll, Some(first)) = (kind, sizes.first_mut()) {
        *first = "..".to_owned();
    }
    format!("{}[{}]", tensor.dtype.torch_name(), sizes.join(", "))
}

impl LiveGraph {
    /// The graph. A thread that panicked with it left it as it was: edits are made on a copy.
    pub fn lock(&self) -> std::sync::MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
