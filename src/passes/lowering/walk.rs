//! One walk over the graph in order: where each value lies, and the steps that make it.

use super::buckets::{Plan, plan};
use super::build::{Builder, layout_of, refuse};
use super::facts::Facts;
use super::{LowerError, LowerOptions, LowerReport};
use crate::ir::Short;
use crate::ir::{Graph, NodeId, Op, TensorType, Type};
use crate::program::{
    BufferId, BufferKind, HostId, Input, Layout, Moves, Operand, Outputs, Program, Segment, StepId, StepKind, View,
};
use hashbrown::{HashMap, HashSet};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

type Map<K, V> = HashMap<K, V, FxBuildHasher>;

/// What a node's value is in the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// Nothing that could be read.
    Nothing,
    /// A tensor in a buffer.
    Tensor(View),
    /// A bucket with padding: an index into [`Lowering::paddeds`].
    Padded(u32),
    /// Several: an index into [`Lowering::tuples`].
    Tuple(u32),
    /// An integer.
    Int(i64),
    /// Known when the program runs.
    Host(HostId),
}

/// A bucket with padding between its members, as it is sent or as it comes back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Padded {
    pub bucket: u32,
    pub buffer: BufferId,
    pub offset: u64,
    pub rank_bytes: u64,
    pub rows: u64,
    /// Whether it is what is sent, not what comes back.
    pub sent: bool,
}

/// A launch that was not waited for yet.
#[derive(Debug)]
pub(super) struct Flight {
    pub step: StepId,
    pub node: NodeId,
    /// What is put in its place behind the wait.
    pub then: Vec<Segment>,
}

/// A graph on its way to a program, from its first node to its last.
pub(super) struct Lowering<'g> {
    pub graph: &'g Graph,
    pub facts: Facts<'g>,
    pub plan: Plan,
    pub build: Builder,
    pub report: LowerReport,
    pub options: &'g LowerOptions,
    pub values: Vec<Value>,
    pub tuples: Vec<Vec<Value>>,
    pub paddeds: Vec<Padded>,
    /// By class of the result.
    pub flights: Map<usize, Vec<Flight>>,
    /// Bucket results, by buffer and class, and the unpack that copies out of them.
    pub unpacks: Map<(BufferId, usize), StepId>,
    pub constants: Map<crate::ir::Name, View>,
    /// By attribute: the program of the graph that it holds, or why there is none.
    pub bodies: Map<&'g str, Result<u32, String>>,
    /// Absorbed casts and views of them: their values still have the old dtype.
    pub unconverted: HashSet<NodeId, FxBuildHasher>,
}

pub(super) fn walk(
    graph: &Graph,
    options: &LowerOptions,
    symbols: IndexMap<Box<str>, u64>,
) -> Result<(Program, LowerReport), LowerError> {
    let mut facts = Facts::of(graph);
    let plan = plan(&mut facts, options);
    let mut lowering = Lowering {
        graph,
        facts,
        plan,
        build: Builder::new(graph, options.align_bytes),
        report: LowerReport::default(),
        options,
        values: vec![Value::Nothing; graph.arena_len()],
        tuples: Vec::new(),
        paddeds: Vec::new(),
        flights: Map::default(),
        unpacks: Map::default(),
        constants: Map::default(),
        bodies: Map::default(),
        unconverted: HashSet::default(),
    };
    lowering.build.program.symbols = symbols;
    for &id in graph.order() {
        let value = lowering.node(id)?;
        lowering.values[id.index()] = value;
    }
    if graph.order().last().is_none_or(|&id| graph.node(id).op != Op::Output) {
        lowering.wait_for_all();
    }
    lowering.report.absorbed = lowering.plan.absorbed.len();
    Ok((lowering.build.program, lowering.report))
}

impl<'g> Lowering<'g> {
    fn node(&mut self, id: NodeId) -> Result<Value, LowerError> {
        match self.graph.node(id).op {
            Op::Input => self.input(id),
            Op::Output => self.output(id),
            Op::Wait => self.wait(id),
            Op::Collective(collective) => self.collective(id, collective),
            Op::Call(_) => self.call(id),
        }
    }

    pub fn value(&self, id: NodeId) -> Value {
        self.values[id.index()]
    }

    pub fn tuple(&mut self, parts: Vec<Value>) -> Value {
        self.tuples.push(parts);
        Value::Tuple(self.tuples.len() as u32 - 1)
    }

    pub fn host(&mut self, id: NodeId, part: Option<usize>) -> HostId {
        let name = self.graph.name_of(id);
        let name = part.map_or_else(|| name.into(), |part| format!("{name}.{part}").into());
        self.build.program.hosts.push(name);
        HostId(self.build.program.hosts.len() as u32 - 1)
    }

    /// The tensor that a node makes or hands on.
    pub fn tensor(&self, id: NodeId, from: NodeId) -> Result<View, LowerError> {
        match self.value(from) {
            Value::Tensor(view) => Ok(view),
            _ => refuse(self.graph, id, format!("`{}` is not a tensor of known size", self.graph.name_of(from))),
        }
    }

    pub fn tensor_type(&self, id: NodeId) -> Result<&'g TensorType, LowerError> {
        match self.graph.tensor(id) {
            Some(ty) => Ok(ty),
            None => refuse(self.graph, id, "its size is not known"),
        }
    }

    pub fn shape_of(&self, id: NodeId) -> Result<Short<u64, 4>, LowerError> {
        let shape = self.tensor_type(id)?.shape.iter().map(crate::ir::Dim::as_const).collect();
        match shape {
            Some(shape) => Ok(shape),
            None => refuse(self.graph, id, "its size is not known"),
        }
    }

    /// The layout of a new tensor of a type: as stated, if the strides are those of some order of the dimensions.
    pub fn fresh_layout(&self, id: NodeId, ty: &TensorType) -> Result<Layout, LowerError> {
        let stated = layout_of(ty).filter(super::layouts::fills_its_storage);
        let layout = stated.or_else(|| {
            let plain = TensorType { strides: None, ..ty.clone() };
            layout_of(&plain)
        });
        let fits = |layout: &Layout| layout.span_bytes().is_some_and(|bytes| i64::try_from(bytes).is_ok());
        match layout.filter(fits) {
            Some(layout) => Ok(layout),
            None => refuse(self.graph, id, "it has more than 2^63 bytes"),
        }
    }

    /// Memory for what a node makes: its slot in a bucket, or a buffer of its own.
    pub fn fresh(&mut self, id: NodeId) -> Result<View, LowerError> {
        if let Some(slot) = self.realised(id) {
            return Ok(slot);
        }
        let ty = self.tensor_type(id)?;
        let layout = self.fresh_layout(id, ty)?;
        let name = self.graph.name_of(id);
        Ok(self.build.tensor(name, layout, BufferKind::Device, ty.device.as_deref()))
    }

    fn input(&mut self, id: NodeId) -> Result<Value, LowerError> {
        if self.graph.meta_of(id).pending {
            return refuse(self.graph, id, "it is in flight when the program starts; wait for it before");
        }
        let name = self.graph.name_of(id);
        let value = match self.graph.type_of(id) {
            Type::Tensor(ty) => {
                let Some(layout) = layout_of(ty).filter(|layout| layout.span_bytes().is_some()) else {
                    return refuse(self.graph, id, "its size is not known, or passes 2^63 bytes");
                };
                Value::Tensor(self.build.tensor(name, layout, BufferKind::Input, ty.device.as_deref()))
            }
            Type::SymInt(expr) if expr.as_constant().is_some() => Value::Int(expr.as_constant().unwrap_or_default()),
            _ => Value::Host(self.host(id, None)),
        };
        let operand = self.operand(value);
        self.build.program.inputs.push(Input { name: name.into(), value: operand });
        Ok(value)
    }

    pub fn operand(&self, value: Value) -> Operand {
        match value {
            Value::Tensor(view) => Operand::Tensor(view),
            Value::Int(value) => Operand::Int(value),
            Value::Host(host) => Operand::Host(host),
            Value::Tuple(index) => {
                Operand::Tuple(self.tuples[index as usize].iter().map(|&part| self.operand(part)).collect())
            }
            Value::Nothing | Value::Padded(_) => Operand::Tuple(Vec::new()),
        }
    }

    /// A wait for the launches whose results share the memory of what is waited for.
    fn wait(&mut self, id: NodeId) -> Result<Value, LowerError> {
        let mut any = false;
        for &operand in self.graph.operands(id) {
            let class = self.facts.class(operand);
            for flight in self.flights.remove(&class).unwrap_or_default() {
                self.land(self.graph.name_of(id), flight);
                any = true;
            }
        }
        self.report.waits_dropped += usize::from(!any);
        if self.graph.waits_for_list(id) {
            let parts = self.graph.operands(id).iter().map(|&operand| self.value(operand)).collect();
            return Ok(self.tuple(parts));
        }
        Ok(self.graph.operands(id).first().map_or(Value::Nothing, |&operand| self.value(operand)))
    }

    fn land(&mut self, node: &str, flight: Flight) {
        self.build.step(node, StepKind::Wait(flight.step));
        self.put_back(node, flight.then);
    }

    /// Puts what a finished launch made in its place.
    pub(super) fn put_back(&mut self, node: &str, segments: Vec<Segment>) {
        if !segments.is_empty() {
            self.build.step(node, StepKind::Unpack(Moves { segments, zeros: Vec::new() }));
        }
    }

    /// Waits for what nobody waited for, in issue order.
    fn wait_for_all(&mut self) {
        let mut left: Vec<Flight> = std::mem::take(&mut self.flights).into_values().flatten().collect();
        left.sort_by_key(|flight| flight.step);
        for flight in left {
            let name = self.graph.name_of(flight.node).to_owned();
            self.land(&name, flight);
        }
    }

    fn output(&mut self, id: NodeId) -> Result<Value, LowerError> {
        self.wait_for_all();
        let graph = self.graph;
        let mut values = Vec::new();
        let mut copies = Map::default();
        for &operand in graph.operands(id) {
            let value = self.output_value(id, operand, self.value(operand), &mut copies)?;
            values.push(self.operand(value));
        }
        self.build.program.outputs = Outputs { args: graph.args_of(id).clone(), values };
        Ok(Value::Nothing)
    }

    /// What leaves the program may not lie in a comm buffer: the next run would write it.
    fn output_value(
        &mut self,
        id: NodeId,
        operand: NodeId,
        value: Value,
        copies: &mut Map<View, View>,
    ) -> Result<Value, LowerError> {
        match value {
            Value::Tensor(view) if self.build.is_comm(view.buffer) => {
                if let Some(&copy) = copies.get(&view) {
                    return Ok(Value::Tensor(copy));
                }
                let Layout { dtype, shape, .. } = self.build.layout(view).clone();
                let Some(dense) = Layout::dense(dtype, &shape) else {
                    return refuse(self.graph, id, "an output passes 64 bits");
                };
                let device = self.build.program.buffer(view.buffer).device.clone();
                let name = format!("{}.output{}", self.graph.name_of(operand), copies.len());
                let to = self.build.tensor(&name, dense, BufferKind::Output, device.as_deref());
                self.build.step(self.graph.name_of(operand), StepKind::Copy(Segment { from: view, to }));
                copies.insert(view, to);
                Ok(Value::Tensor(to))
            }
            Value::Tensor(view) => {
                let buffer = &mut self.build.program.buffers[view.buffer.0 as usize];
                if buffer.kind == BufferKind::Device {
                    buffer.kind = BufferKind::Output;
                }
                Ok(value)
            }
            Value::Tuple(index) => {
                let parts = self.tuples[index as usize].clone();
                let parts = parts.into_iter().map(|part| self.output_value(id, operand, part, copies));
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                Ok(self.tuple(parts))
            }
            Value::Padded(_) => refuse(self.graph, id, "a padded bucket leaves the graph"),
            Value::Nothing => refuse(self.graph, id, format!("`{}` makes nothing", self.graph.name_of(operand))),
            Value::Int(_) | Value::Host(_) => Ok(value),
        }
    }
}
