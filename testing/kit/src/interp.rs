//! The reference interpreter: what a graph computes, on all ranks at once, slow and obvious.
//!
//! Values are raw bytes in storages; views share them, so a write shows in every view, as in PyTorch. All ranks run in
//! lockstep in program order. The result of a collective is poison until a wait names its storage. Operators that are
//! not known here mix their target, arguments and operands' elements into their result, the same way every time.
//!
//! While it runs it checks what no text says: that each tensor has the dtype and sizes its type states, and that
//! nothing is written that a collective in flight still sends.

use crate::tensor::{Mixer, Num, Tensor, combine, dense_strides, load, store};
use bucketeer::ir::{
    Arg, Collective, CollectiveKind, DType, Dim, Graph, NodeId, Op, ReduceOp, RegionId, RegionKind, SymExpr,
    TensorType, Type, Variant,
};
use std::collections::{HashMap, HashSet};

/// What the graph is run with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Values of symbols; others have their hint, or 4.
    pub symbols: HashMap<String, i64>,
    /// Inputs are arbitrary bits, with NaN payloads, rather than numbers.
    pub raw_inputs: bool,
    /// Nodes that must lie in memory as their types state, dense where they state nothing.
    pub laid_out: HashSet<String>,
}

/// A value of one rank.
#[derive(Clone, Debug)]
pub enum Value {
    /// A window on memory.
    Tensor(Tensor),
    /// Several values.
    Tuple(Vec<Value>),
    /// A size, or another integer.
    Int(i64),
    /// Something known only by its fingerprint.
    Opaque(u64),
}

/// A result as a caller sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Dtype, shape, elements in logical order, and whether it left without a wait.
    Tensor(DType, Vec<usize>, Vec<u8>, bool),
    /// Several results.
    Tuple(Vec<Seen>),
    /// An integer.
    Int(i64),
    /// The fingerprint of something else.
    Opaque(u64),
}

/// All that a run shows to the outside.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// By rank and output.
    pub outputs: Vec<Vec<Seen>>,
    /// By rank and input, after the run.
    pub inputs: Vec<Vec<Seen>>,
    /// Writes to what a collective in flight sends.
    pub races: Vec<String>,
    /// Pairs of outputs (or output and input) of rank 0 that share storage.
    pub shared: Vec<(String, String)>,
}

impl Run {
    /// How the results of two runs differ, if they do.
    pub fn difference(&self, other: &Self) -> Option<String> {
        for (what, left, right) in [("output", &self.outputs, &other.outputs), ("input", &self.inputs, &other.inputs)] {
            for (rank, (a, b)) in left.iter().zip(right).enumerate() {
                if a.len() != b.len() {
                    return Some(format!("rank {rank} has {} {what}s, then {}", a.len(), b.len()));
                }
                if let Some(nth) = a.iter().zip(b).position(|(a, b)| a != b) {
                    let short = |seen: &Seen| format!("{seen:?}").chars().take(400).collect::<String>();
                    return Some(format!("rank {rank}, {what} {nth}: {}\nbecame {}", short(&a[nth]), short(&b[nth])));
                }
            }
        }
        (self.outputs.len() != other.outputs.len()).then(|| "the number of ranks changed".to_owned())
    }
}

/// What a collective in flight will write, and what it sends until then.
struct InFlight {
    name: String,
    to: Tensor,
    bytes: Vec<u8>,
    from: Tensor,
    sent: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Rank {
    heap: Vec<Vec<u8>>,
    in_flight: Vec<InFlight>,
    values: HashMap<NodeId, Value>,
    pub(super) random: u64,
    pub(super) world: u64,
}

/// Runs a graph on every rank its groups name.
pub fn run(graph: &Graph, settings: &Settings) -> Run {
    let mut machine = Machine::new(graph, settings);
    machine.range(0, graph.order().len(), RegionId::ROOT);
    machine.finish()
}

pub(super) struct Machine<'a> {
    pub(super) graph: &'a Graph,
    pub(super) settings: &'a Settings,
    pub(super) ranks: Vec<Rank>,
    /// By group, the lists of ranks that communicate.
    groups: Vec<Vec<Vec<usize>>>,
    run: Run,
}

fn teams(graph: &Graph) -> (usize, Vec<Vec<Vec<usize>>>) {
    let named = |list: &Vec<bucketeer::ir::GlobalRank>| list.iter().map(|rank| rank.0 as usize).collect::<Vec<_>>();
    let listed: Vec<Vec<Vec<usize>>> =
        graph.groups().iter().map(|group| group.members.iter().map(named).collect()).collect();
    let most = listed.iter().flatten().flatten().map(|rank| rank + 1).max().unwrap_or(1);
    let world = graph.groups().iter().fold(most, |world, group| {
        let size = group.size.unwrap_or(2) as usize;
        if world.is_multiple_of(size) { world } else { (world..).find(|n| n.is_multiple_of(size)).unwrap_or(size) }
    });
    let groups = graph.groups().iter().zip(listed).map(|(group, list)| {
        let size = group.size.unwrap_or(2) as usize;
        let blocks = || (0..world / size).map(|nth| (nth * size..(nth + 1) * size).collect()).collect();
        if list.is_empty() { blocks() } else { list }
    });
    let groups = groups.collect();
    (world, groups)
}

/// The ranks of each group whose graph does not list them, by name: blocks of its size, or of two.
pub fn groups(graph: &Graph) -> impl Iterator<Item = (String, Vec<Vec<u32>>)> {
    let (_, lists) = teams(graph);
    let unlisted = graph.groups().iter().zip(lists).filter(|(group, _)| group.members.is_empty());
    unlisted.map(|(group, lists)| {
        let numbers = |list: Vec<usize>| list.into_iter().map(|rank| rank as u32).collect();
        (group.name.to_string(), lists.into_iter().map(numbers).collect())
    })
}

impl<'a> Machine<'a> {
    fn new(graph: &'a Graph, settings: &'a Settings) -> Self {
        let (world, groups) = teams(graph);
        let ranks = (0..world).map(|_| Rank::default()).collect();
        Self { graph, settings, ranks, groups, run: Run::default() }
    }

    /// Runs the nodes at these places; loops run twice.
    fn range(&mut self, from: usize, to: usize, region: RegionId) {
        let order = self.graph.order();
        let mut at = from;
        while at < to {
            let mut inner = self.graph.node(order[at]).region;
            if inner == region {
                self.node(order[at]);
                at += 1;
                continue;
            }
            while self.graph.region(inner).parent != region {
                inner = self.graph.region(inner).parent;
            }
            let inside = |&id: &NodeId| self.graph.encloses(inner, self.graph.node(id).region);
            let end = at + order[at..to].iter().take_while(|id| inside(id)).count();
            let times = if self.graph.region(inner).kind == RegionKind::Loop { 2 } else { 1 };
            for _ in 0..times {
                self.range(at, end, inner);
            }
            at = end;
        }
    }

    fn node(&mut self, id: NodeId) {
        match self.graph.node(id).op {
            Op::Input => (0..self.ranks.len()).for_each(|rank| self.input(id, rank)),
            Op::Output => self.output(id),
            Op::Wait => (0..self.ranks.len()).for_each(|rank| self.wait(id, rank)),
            Op::Collective(collective) => self.collective(id, collective),
            Op::Call(target) => {
                let target = self.graph.text(target);
                (0..self.ranks.len()).for_each(|rank| self.call(id, target, rank));
            }
        }
        (0..self.ranks.len()).for_each(|rank| self.check_type(id, rank));
    }

    // Types.

    fn symbol(&self, name: &str) -> Option<i64> {
        let hint = self.graph.hints.get(name).map(|&hint| hint as i64);
        Some(self.settings.symbols.get(name).copied().or(hint).unwrap_or(4))
    }

    pub(super) fn evaluate(&self, expr: &SymExpr) -> i64 {
        expr.evaluate(&|name| self.symbol(name)).expect("test sizes are small")
    }

    pub(super) fn shape(&self, ty: &TensorType) -> Vec<usize> {
        self.sizes(&ty.shape)
    }

    pub(super) fn sizes(&self, dims: &[Dim]) -> Vec<usize> {
        let size = |dim: &Dim| match dim {
            Dim::Const(size) => *size as usize,
            Dim::Sym(expr) => self.evaluate(expr) as usize,
        };
        dims.iter().map(size).collect()
    }

    fn check_type(&self, id: NodeId, rank: usize) {
        let Some(value) = self.ranks[rank].values.get(&id) else { return };
        self.check_value(id, self.graph.type_of(id), value);
    }

    fn check_value(&self, id: NodeId, ty: &Type, value: &Value) {
        let name = self.graph.name_of(id);
        match (ty, value) {
            (Type::Tensor(ty), Value::Tensor(tensor)) => {
                assert_eq!((ty.dtype, self.shape(ty)), (tensor.dtype, tensor.shape.clone()), "type of `{name}`");
                if self.settings.laid_out.contains(name) && tensor.elements() > 0 {
                    let stated = ty.strides.as_ref().map(|strides| self.sizes(strides));
                    let stated = stated.unwrap_or_else(|| dense_strides(&tensor.shape));
                    let same = |at: usize| tensor.shape[at] == 1 || tensor.strides[at] == stated[at];
                    let found = &tensor.strides;
                    assert!((0..stated.len()).all(same), "strides of `{name}`: {found:?}, stated {stated:?}");
                }
            }
            (Type::Tuple(types), Value::Tuple(values)) => {
                assert_eq!(types.len(), values.len(), "length of tuple `{name}`");
                types.iter().zip(values).for_each(|(ty, value)| self.check_value(id, ty, value));
            }
            (Type::SymInt(expr), Value::Int(value)) => assert_eq!(self.evaluate(expr), *value, "value of `{name}`"),
            (Type::Tensor(_) | Type::Tuple(_) | Type::SymInt(_), _) => panic!("`{name}` is {value:?}, not {ty}"),
            _ => {}
        }
    }

    // Memory.

    pub(super) fn new_tensor(&mut self, rank: usize, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Tensor {
        let heap = &mut self.ranks[rank].heap;
        let tensor =
            Tensor { storage: heap.len(), dtype, shape: shape.to_vec(), strides: dense_strides(shape), offset: 0 };
        assert_eq!(bytes.len(), tensor.elements() * tensor.width(), "bytes of a tensor");
        heap.push(bytes);
        tensor
    }

    pub(super) fn read(&self, rank: usize, tensor: &Tensor) -> Vec<u8> {
        let storage = &self.ranks[rank].heap[tensor.storage];
        let width = tensor.width();
        tensor.places().into_iter().flat_map(|place| storage[place..place + width].iter().copied()).collect()
    }

    pub(super) fn write(&mut self, rank: usize, tensor: &Tensor, bytes: &[u8]) {
        let width = tensor.width();
        let storage = &mut self.ranks[rank].heap[tensor.storage];
        assert_eq!(bytes.len(), tensor.elements() * width, "bytes written");
        for (place, element) in tensor.places().into_iter().zip(bytes.chunks(width)) {
            storage[place..place + width].copy_from_slice(element);
        }
    }

    fn poison(&mut self, rank: usize, tensor: &Tensor) {
        self.write(rank, tensor, &vec![0xa5; tensor.elements() * tensor.width()]);
    }

    pub(super) fn set(&mut self, rank: usize, id: NodeId, value: Value) {
        self.ranks[rank].values.insert(id, value);
    }

    pub(super) fn value(&self, rank: usize, id: NodeId) -> &Value {
        let name = || self.graph.name_of(id);
        self.ranks[rank].values.get(&id).unwrap_or_else(|| panic!("`{}` is read before it is made", name()))
    }

    pub(super) fn tensor(&self, rank: usize, id: NodeId) -> Option<&Tensor> {
        match self.value(rank, id) {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    // Ends.

    fn input(&mut self, id: NodeId, rank: usize) {
        let graph = self.graph;
        let value = match graph.type_of(id) {
            Type::Tensor(ty) => {
                let shape = self.shape(ty);
                let elements: usize = shape.iter().product();
                let mut mixer = Mixer::new(graph.name_of(id));
                mixer.number(rank as u64);
                let width = ty.dtype.bytes() as usize;
                let element = |at: u64| match self.settings.raw_inputs {
                    true => mixer.at(at).to_le_bytes().repeat(2)[..width].to_vec(),
                    false => mixer.element(ty.dtype, at),
                };
                let bytes: Vec<u8> = (0..elements as u64).flat_map(element).collect();
                let tensor = self.new_tensor(rank, ty.dtype, &shape, bytes.clone());
                if graph.meta_of(id).pending {
                    self.poison(rank, &tensor);
                    let from = self.new_tensor(rank, ty.dtype, &[0], Vec::new());
                    let name = graph.name_of(id).to_owned();
                    let flight = InFlight { name, to: tensor.clone(), bytes, from, sent: Vec::new() };
                    self.ranks[rank].in_flight.push(flight);
                }
                Value::Tensor(tensor)
            }
            Type::SymInt(expr) => Value::Int(self.evaluate(expr)),
            _ => Value::Opaque(Mixer::new(graph.name_of(id)).at(rank as u64)),
        };
        self.set(rank, id, value);
    }

    fn output(&mut self, id: NodeId) {
        for rank in 0..self.ranks.len() {
            let values: Vec<Value> =
                self.graph.operands(id).iter().map(|&operand| self.value(rank, operand).clone()).collect();
            let late: Vec<usize> = self.ranks[rank].in_flight.iter().map(|flight| flight.to.storage).collect();
            self.land(rank, None);
            let seen = values.iter().map(|value| self.see(rank, value, &late)).collect();
            self.run.outputs.push(seen);
        }
        self.run.shared = self.sharing(id);
    }

    fn see(&self, rank: usize, value: &Value, late: &[usize]) -> Seen {
        match value {
            Value::Tensor(tensor) => {
                let pending = late.contains(&tensor.storage);
                Seen::Tensor(tensor.dtype, tensor.shape.clone(), self.read(rank, tensor), pending)
            }
            Value::Tuple(values) => Seen::Tuple(values.iter().map(|value| self.see(rank, value, late)).collect()),
            Value::Int(value) => Seen::Int(*value),
            Value::Opaque(value) => Seen::Opaque(*value),
        }
    }

    /// Outputs go by their place, since a rewrite may name one value for two.
    fn sharing(&self, output: NodeId) -> Vec<(String, String)> {
        let graph = self.graph;
        let outputs = graph.operands(output).iter().enumerate().map(|(nth, &id)| (format!("output {nth}"), id));
        let inputs = graph.order().iter().filter(|&&id| graph.node(id).op == Op::Input);
        let all: Vec<_> = outputs.chain(inputs.map(|&id| (graph.name_of(id).to_owned(), id))).collect();
        let tensor = |id: NodeId| self.tensor(0, id).filter(|tensor| tensor.elements() > 0);
        let mut shared = Vec::new();
        for (nth, (a, x)) in all.iter().enumerate().take(graph.operands(output).len()) {
            let same = |y: NodeId| tensor(*x).zip(tensor(y)).is_some_and(|(x, y)| x.storage == y.storage);
            shared.extend(all[nth + 1..].iter().filter(|(_, y)| same(*y)).map(|(b, _)| (a.clone(), b.clone())));
        }
        shared
    }

    fn finish(mut self) -> Run {
        for rank in 0..self.ranks.len() {
            self.land(rank, None);
            let ids = self.graph.order().iter().copied().filter(|&id| self.graph.node(id).op == Op::Input);
            let seen = ids.map(|id| self.see(rank, self.value(rank, id), &[])).collect();
            self.run.inputs.push(seen);
        }
        self.run
    }

    // Collectives.

    /// Lets what is in flight to a storage, or all, arrive.
    fn land(&mut self, rank: usize, storage: Option<usize>) {
        let all = std::mem::take(&mut self.ranks[rank].in_flight);
        let (landing, rest) = all.into_iter().partition(|flight| storage.is_none_or(|s| s == flight.to.storage));
        self.ranks[rank].in_flight = rest;
        let landing: Vec<InFlight> = landing;
        for flight in landing {
            if flight.from.storage != flight.to.storage && self.read(rank, &flight.from) != flight.sent {
                self.run.races.push(format!("what `{}` sends is written while it is in flight", flight.name));
            }
            self.write(rank, &flight.to, &flight.bytes);
        }
    }

    fn wait(&mut self, id: NodeId, rank: usize) {
        fn storages(value: &Value, out: &mut Vec<usize>) {
            match value {
                Value::Tensor(tensor) => out.push(tensor.storage),
                Value::Tuple(values) => values.iter().for_each(|value| storages(value, out)),
                _ => {}
            }
        }
        let mut values = self.graph.operands(id).iter().map(|&operand| self.value(rank, operand).clone());
        let value = if self.graph.waits_for_list(id) {
            Value::Tuple(values.collect())
        } else {
            values.next().expect("a wait waits for something")
        };
        let mut waited = Vec::new();
        storages(&value, &mut waited);
        waited.into_iter().for_each(|storage| self.land(rank, Some(storage)));
        self.set(rank, id, value);
    }

    fn collective(&mut self, id: NodeId, collective: Collective) {
        let graph = self.graph;
        let inputs = graph.collective_inputs(id).to_vec();
        let mut results: Vec<Vec<Value>> = vec![Vec::new(); self.ranks.len()];
        for team in self.groups[collective.group.index()].clone() {
            for (nth, &input) in inputs.iter().enumerate() {
                let tensors: Vec<Tensor> = team
                    .iter()
                    .map(|&rank| self.tensor(rank, input).expect("collectives send tensors").clone())
                    .collect();
                let sent: Vec<Vec<u8>> = team.iter().zip(&tensors).map(|(&r, t)| self.read(r, t)).collect();
                for (index, &rank) in team.iter().enumerate() {
                    let (shape, bytes) = self.exchange(id, collective.kind, index, &tensors, &sent);
                    let to = self.destination(id, collective, rank, nth, &tensors[index], &shape);
                    self.poison(rank, &to);
                    results[rank].push(Value::Tensor(to.clone()));
                    let (from, sent) = (tensors[index].clone(), sent[index].clone());
                    let name = graph.name_of(id).to_owned();
                    self.ranks[rank].in_flight.push(InFlight { name, to, bytes, from, sent });
                }
            }
        }
        for (rank, mut values) in results.into_iter().enumerate() {
            assert!(!values.is_empty(), "rank {rank} is in no group of `{}`", graph.name_of(id));
            let value = if collective.coalesced { Value::Tuple(values) } else { values.remove(0) };
            self.set(rank, id, value);
        }
    }

    fn destination(
        &mut self,
        id: NodeId,
        collective: Collective,
        rank: usize,
        nth: usize,
        input: &Tensor,
        shape: &[usize],
    ) -> Tensor {
        match collective.variant {
            Variant::InPlace => input.clone(),
            Variant::Functional => {
                let bytes = vec![0; shape.iter().product::<usize>() * input.width()];
                self.new_tensor(rank, input.dtype, shape, bytes)
            }
            Variant::Out => {
                let mut outs = Vec::new();
                let out = self.graph.args_of(id).get("out").expect("verified");
                out.for_each_operand(&mut |index| outs.push(self.graph.operands(id)[index as usize]));
                self.tensor(rank, outs[nth]).expect("`out` is a tensor").clone()
            }
        }
    }

    /// What the rank with this index in its group receives: shape and elements.
    fn exchange(
        &self,
        id: NodeId,
        kind: CollectiveKind,
        index: usize,
        tensors: &[Tensor],
        sent: &[Vec<u8>],
    ) -> (Vec<usize>, Vec<u8>) {
        let own = &tensors[index];
        let width = own.width();
        let same = |bytes: &[u8]| (own.shape.clone(), bytes.to_vec());
        for tensor in tensors {
            assert_eq!((tensor.dtype, &tensor.shape), (own.dtype, &own.shape), "ranks disagree");
        }
        match kind {
            CollectiveKind::AllGather { dim } => {
                let mut shape = own.shape.clone();
                if shape.is_empty() {
                    shape.push(1);
                }
                let run: usize = shape[dim as usize..].iter().product::<usize>() * width;
                shape[dim as usize] *= tensors.len();
                let rows = sent[0].len().checked_div(run).unwrap_or(0);
                let row = |at: usize| sent.iter().flat_map(move |one| one[at * run..(at + 1) * run].iter().copied());
                (shape, (0..rows).flat_map(row).collect())
            }
            CollectiveKind::ReduceScatter { op, dim } => {
                let whole = reduce(op, own.dtype, sent);
                let mut shape = own.shape.clone();
                shape[dim as usize] /= tensors.len();
                let run: usize = shape[dim as usize..].iter().product::<usize>() * width;
                let rows: usize = shape[..dim as usize].iter().product();
                let part = |row: usize| {
                    let start = (row * tensors.len() + index) * run;
                    whole[start..start + run].to_vec()
                };
                (shape, (0..rows).flat_map(part).collect())
            }
            CollectiveKind::AllReduce { op } => same(&reduce(op, own.dtype, sent)),
            CollectiveKind::Broadcast { root } => same(&sent[root as usize % sent.len()]),
            CollectiveKind::Reduce { op, root } if index == root as usize % sent.len() => {
                same(&reduce(op, own.dtype, sent))
            }
            CollectiveKind::Reduce { .. } => same(&sent[index]),
            CollectiveKind::AllToAll => {
                assert!(self.exchanges_evenly(id), "`{}` splits unevenly", self.graph.name_of(id));
                let part = sent[0].len() / tensors.len();
                same(&sent.iter().flat_map(|one| one[index * part..(index + 1) * part].to_vec()).collect::<Vec<_>>())
            }
            CollectiveKind::Permute => {
                let pairs = self.pairs(id);
                let from = pairs.iter().find(|(_, to)| *to == index).map(|(from, _)| *from);
                same(&from.map_or_else(|| vec![0; sent[index].len()], |from| sent[from].clone()))
            }
        }
    }

    /// Uneven splits differ by rank, which one text for all ranks cannot say; they are refused here.
    fn exchanges_evenly(&self, id: NodeId) -> bool {
        self.graph.args_of(id).positional[1..].iter().all(|arg| match arg {
            Arg::List(splits) => splits.windows(2).all(|pair| pair[0] == pair[1]),
            _ => true,
        })
    }

    fn pairs(&self, id: NodeId) -> Vec<(usize, usize)> {
        let Some(Arg::List(items)) = self.graph.args_of(id).positional.get(1) else { return Vec::new() };
        let pair = |item: &Arg| match item {
            Arg::List(pair) => Some((pair.first()?.as_int()? as usize, pair.get(1)?.as_int()? as usize)),
            _ => None,
        };
        items.iter().filter_map(pair).collect()
    }
}

fn reduce(op: ReduceOp, dtype: DType, sent: &[Vec<u8>]) -> Vec<u8> {
    let width = dtype.bytes() as usize;
    let mut total = sent[0].clone();
    for other in &sent[1..] {
        let pairs = total.chunks(width).zip(other.chunks(width));
        total = pairs.flat_map(|(a, b)| combine(op, dtype, a, b)).collect();
    }
    if op == ReduceOp::Avg {
        let share = |bytes: &[u8]| match load(dtype, bytes) {
            Num::Float(x) => store(dtype, Num::Float(x / sent.len() as f64)),
            Num::Int(x) => store(dtype, Num::Int(x / sent.len() as i128)),
        };
        total = total.chunks(width).flat_map(share).collect();
    }
    total
}

pub(super) fn convert(bytes: &[u8], from: DType, to: DType) -> Vec<u8> {
    if from == to {
        return bytes.to_vec();
    }
    bytes.chunks(from.bytes() as usize).flat_map(|element| store(to, load(from, element))).collect()
}
