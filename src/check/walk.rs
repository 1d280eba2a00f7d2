//! One walk over a graph in program order: what each node makes, what is in flight, what memory holds.

use super::exchange;
use super::flat::Leaf;
use super::int::Int;
use super::layout::{self, tensor_of};
use super::meaning::{self, Call};
use super::memory::{EffectTable, Memory};
use super::pattern;
use super::terms::{Context, GroupKey, Tensor, Term, Val, Value};
use crate::ir::optable::{Alias, Effects, Fence, pure_cast, split_target};
use crate::ir::{Arg, Collective, CollectiveKind, Graph, Name, NodeId, Op, RegionId, Type, Variant};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// No value yet.
const UNSET: Val = Val(u32::MAX);

/// Why a walk ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Something could not be followed.
    Undecided { node: NodeId, reason: String },
    /// The graph breaks a rule that every graph keeps.
    Fault { node: NodeId, reason: String },
}

/// Which graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Before = 0,
    After = 1,
}

/// A collective as it was started.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub node: NodeId,
    pub kind: CollectiveKind,
    pub group: GroupKey,
    /// What it sends.
    pub inputs: Vec<Val>,
    /// Its results in flight: the first, then one for each input.
    pub pending: u32,
    /// Whether it moves nothing: over one rank, or no bytes.
    pub trivial: bool,
    /// Fences before it.
    pub fences: u32,
}

/// A result in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub node: NodeId,
    pub waited: bool,
}

/// What a walk found.
pub(super) struct Walked<'g> {
    pub graph: &'g Graph,
    /// By arena index; of a node in memory that was still to be written, the value it had when it was made.
    pub vals: Vec<Val>,
    pub launches: Vec<Launch>,
    pub pending: Vec<Pending>,
    /// Inputs in order, with their memory's final content.
    pub inputs: Vec<(NodeId, Val)>,
    pub output: Option<NodeId>,
    /// Values of the output's operands at the end.
    pub outputs: Vec<Val>,
    /// The states of random numbers and of the world at the end.
    pub states: [Val; 2],
    /// Ranks that the graph was made for: a gather into a buffer that holds this rank's part.
    pub ranks: Vec<(GroupKey, i64, NodeId)>,
    /// (launch, writer): what a launch sends is written before the launch is waited for.
    pub hazards: Vec<(usize, NodeId)>,
    /// Ranges and pieces looked at.
    pub pieces: usize,
    pub effects: EffectTable,
}

pub(super) struct Walk<'g, 'c> {
    context: &'c mut Context<'g>,
    role: Role,
    memory: Memory,
    found: Walked<'g>,
    /// By arena index: results in flight that the value is of, as (first, count) into `found.pending`.
    in_flight: Vec<(u32, u32)>,
    /// Canonical numbers of the graph's targets, arguments, types and groups; `u32::MAX` is not asked yet.
    targets: Vec<u32>,
    args: Vec<u32>,
    types: Vec<u32>,
    groups: Vec<GroupKey>,
    /// Places of elements of tuples that are not followed.
    elements: HashMap<Val, Val, FxBuildHasher>,
    fences: u32,
    operands: Vec<Val>,
}

type Step<T = ()> = Result<T, Stop>;

fn undecided<T>(node: NodeId, reason: impl Into<String>) -> Step<T> {
    Err(Stop::Undecided { node, reason: reason.into() })
}

fn fault<T>(node: NodeId, reason: impl Into<String>) -> Step<T> {
    Err(Stop::Fault { node, reason: reason.into() })
}

/// Walks a graph.
pub(super) fn walk<'g>(context: &mut Context<'g>, graph: &'g Graph, role: Role) -> Step<Walked<'g>> {
    let effects = EffectTable::of(graph);
    let memory = Memory::of(graph, &effects);
    let groups = graph.groups().iter().map(|group| context.group(&group.name, group.size)).collect();
    let states = [false, true].map(|world| context.whole(Term::State(world), &Type::Unknown));
    let found = Walked {
        graph,
        vals: vec![UNSET; graph.arena_len()],
        launches: Vec::new(),
        pending: Vec::new(),
        inputs: Vec::new(),
        output: None,
        outputs: Vec::new(),
        states,
        ranks: Vec::new(),
        hazards: Vec::new(),
        pieces: 0,
        effects,
    };
    let mut walk = Walk {
        context,
        role,
        memory,
        found,
        in_flight: vec![(0, 0); graph.arena_len()],
        targets: Vec::new(),
        args: Vec::new(),
        types: Vec::new(),
        groups,
        elements: HashMap::default(),
        fences: 0,
        operands: Vec::new(),
    };
    for (position, &id) in graph.order().iter().enumerate() {
        if let Some(output) = walk.found.output {
            return fault(output, format!("is not last: `{}` stands after it", graph.name_of(id)));
        }
        walk.node(id, position)?;
    }
    walk.finish()
}

fn cached(list: &mut Vec<u32>, index: usize, make: impl FnOnce() -> u32) -> u32 {
    if list.len() <= index {
        list.resize(index + 1, u32::MAX);
    }
    if list[index] == u32::MAX {
        list[index] = make();
    }
    list[index]
}

impl<'g> Walk<'g, '_> {
    fn node(&mut self, id: NodeId, position: usize) -> Step {
        let graph = self.found.graph;
        for &operand in graph.operands(id) {
            if self.found.vals[operand.index()] == UNSET {
                return fault(id, format!("uses `{}` before it is defined", graph.name_of(operand)));
            }
        }
        match graph.node(id).op {
            Op::Input => self.input(id, position),
            Op::Output => self.output(id),
            Op::Wait => self.wait(id),
            Op::Collective(collective) => self.collective(id, position, collective),
            Op::Call(target) => self.call(id, position, target),
        }
    }

    fn set(&mut self, id: NodeId, val: Val) {
        self.found.vals[id.index()] = val;
        let origin = &mut self.context.origins[val.0 as usize][self.role as usize];
        if *origin == u32::MAX {
            *origin = id.index() as u32;
        }
    }

    /// What a node's value is now.
    fn read(&mut self, node: NodeId, reader: NodeId) -> Step<Val> {
        let Some(place) = self.memory.place(node) else { return Ok(self.found.vals[node.index()]) };
        match self.memory.read(self.context, place) {
            Some(val) => Ok(val),
            None => undecided(reader, format!("what is in the memory of `{}`", self.found.graph.name_of(node))),
        }
    }

    fn input(&mut self, id: NodeId, position: usize) -> Step {
        let graph = self.found.graph;
        let number = self.found.inputs.len() as u32;
        let val = match graph.type_of(id) {
            Type::SymInt(expr) => self.context.intern(Value::Int(expr.clone())),
            ty => self.context.whole(Term::Input(number), ty),
        };
        self.set(id, val);
        self.found.inputs.push((id, val));
        if self.memory.is_live(id, position) {
            self.allocate(id, val)?;
        }
        if graph.meta_of(id).pending {
            self.in_flight[id.index()] = (self.found.pending.len() as u32, 1);
            self.found.pending.push(Pending { node: id, waited: false });
        }
        Ok(())
    }

    /// Gives a fresh value memory that can be written.
    fn allocate(&mut self, id: NodeId, val: Val) -> Step<Option<Val>> {
        let Some(tensor) = tensor_of(self.context, val) else { return Ok(None) };
        let Some(place) = self.memory.allocate(self.context, &tensor) else {
            return undecided(id, "its memory is written, but its size is not known");
        };
        self.memory.set_place(id, place);
        Ok(Some(place))
    }

    fn output(&mut self, id: NodeId) -> Step {
        let operands = self.found.graph.operands(id);
        let values: Step<Vec<Val>> = operands.iter().map(|&operand| self.read(operand, id)).collect();
        self.found.outputs = values?;
        self.found.output = Some(id);
        Ok(())
    }

    fn wait(&mut self, id: NodeId) -> Step {
        let graph = self.found.graph;
        let Some(&first) = graph.operands(id).first() else { return fault(id, "waits for nothing") };
        for pending in self.in_flight_of(first) {
            self.found.pending[pending as usize].waited = true;
        }
        self.in_flight[id.index()] = self.in_flight[first.index()];
        if let Some(place) = self.memory.place(first) {
            self.memory.set_place(id, place);
        }
        self.set(id, self.found.vals[first.index()]);
        Ok(())
    }

    /// Results in flight that a value is of, waited for or not.
    fn in_flight_of(&mut self, node: NodeId) -> Vec<u32> {
        let (first, count) = self.in_flight[node.index()];
        let mut found: Vec<u32> = (first..first + count).collect();
        if let Some(place) = self.memory.place(node) {
            for storage in self.memory.storages_of(self.context, place) {
                found.extend(self.memory.storage_mut(storage).pending);
            }
        }
        found
    }

    /// Elements of a value in flight must not be read.
    fn check_read(&mut self, id: NodeId, operand: NodeId) -> Step {
        if self.in_flight[operand.index()].1 == 0 && self.memory.is_empty() {
            return Ok(());
        }
        for pending in self.in_flight_of(operand) {
            let pending = self.found.pending[pending as usize];
            if !pending.waited {
                let started = self.found.graph.name_of(pending.node);
                return fault(id, format!("reads the result of `{started}` before it is waited for"));
            }
        }
        Ok(())
    }

    fn call(&mut self, id: NodeId, position: usize, target: Name) -> Step {
        let graph = self.found.graph;
        let effects = self.found.effects.get(id).clone();
        let operands = graph.operands(id);
        if (!effects.is_view() && !effects.shape_only) || self.copies(id, target) {
            for &operand in operands {
                self.check_read(id, operand)?;
            }
        }
        let writes = !effects.writes.is_empty() || effects.fence == Fence::Full && !operands.is_empty();
        if writes && !self.memory.is_empty() {
            if graph.node(id).region != RegionId::ROOT {
                return undecided(id, "writes memory inside a region");
            }
            return self.writing_call(id, position, target, &effects);
        }
        if let (Alias::Of(index), true) = (effects.alias, self.memory.is_live(id, position)) {
            return self.view_of_memory(id, position, target, index as usize);
        }
        let val = self.pure(id, target, &effects)?;
        self.set(id, val);
        if let Alias::Of(index) = effects.alias
            && let Some(&base) = operands.get(index as usize)
        {
            self.in_flight[id.index()] = self.part_in_flight(id, base, target);
        }
        if self.memory.is_live(id, position) {
            self.allocate(id, val)?;
        }
        Ok(())
    }

    /// Which results in flight a view of `base` is of: one element of a list, or all.
    fn part_in_flight(&mut self, id: NodeId, base: NodeId, target: Name) -> (u32, u32) {
        let graph = self.found.graph;
        let (_, operator, _) = split_target(graph.text(target));
        let element = matches!(operator, "getitem" | "item" | "get_tuple_element")
            .then(|| graph.args_of(id).at(1, "index").and_then(Arg::as_int))
            .flatten()
            .and_then(|index| u32::try_from(index).ok());
        // A view that leaves memory behind keeps what is in flight into it.
        if let Some(place) = self.memory.place(base) {
            let part = match (self.context.value(place), element) {
                (Value::Tuple(parts), Some(index)) => parts.get(index as usize).copied().unwrap_or(place),
                _ => place,
            };
            let storages = self.memory.storages_of(self.context, part);
            let pending = storages.into_iter().find_map(|storage| self.memory.storage_mut(storage).pending);
            if let Some(pending) = pending {
                return (pending, 1);
            }
        }
        let (first, count) = self.in_flight[base.index()];
        match element {
            Some(index) if count > 1 && index < count => (first + index, 1),
            _ => (first, count),
        }
    }

    /// Whether a view operator copies: then it reads elements. Where strides are not stated, a view that may have
    /// gaps is taken to.
    fn copies(&self, id: NodeId, target: Name) -> bool {
        let graph = self.found.graph;
        let (_, operator, _) = split_target(graph.text(target));
        let Some(&base) = graph.operands(id).first() else { return false };
        match operator {
            "reshape" | "contiguous" | "flatten" | "ravel" | "reshape_as" => {}
            "to" | "type_as" | "float" | "half" | "bfloat16" | "cpu" | "cuda" => {
                let kind = |id: NodeId| graph.tensor(id).map(|ty| (ty.dtype, ty.device.clone()));
                return kind(base).is_none() || kind(base) != kind(id);
            }
            "item" => return graph.tensor(base).is_some(),
            _ => return false,
        }
        match graph.tensor(base) {
            Some(ty) if ty.strides.is_some() => !ty.is_dense(),
            _ => self.may_have_gaps(base),
        }
    }

    fn may_have_gaps(&self, mut id: NodeId) -> bool {
        let graph = self.found.graph;
        while self.found.effects.get(id).is_view() {
            let (_, operator, _) = split_target(graph.target_of(id));
            let dense = matches!(operator, "view" | "alias" | "detach" | "unsqueeze" | "_unsafe_view")
                || graph.node(id).op == Op::Wait;
            let Some(&base) = graph.operands(id).first().filter(|_| dense) else { return true };
            id = base;
        }
        false
    }

    /// The call's canonical key; its operands are in `self.operands`.
    fn key(&mut self, id: NodeId, target: Name) -> u32 {
        let graph = self.found.graph;
        let node = graph.node(id);
        let context = &mut *self.context;
        let target = cached(&mut self.targets, target.index(), || context.text(graph.text(target)));
        let args = cached(&mut self.args, node.args.index(), || context.args_id(graph.args(node.args)));
        let ty = cached(&mut self.types, node.ty.index(), || context.type_id(graph.ty(node.ty)));
        if node.region != RegionId::ROOT {
            let region = context.whole(Term::Region(node.region.index() as u32), &Type::Unknown);
            self.operands.push(region);
        }
        context.intern_call(target, args, ty, &self.operands)
    }

    /// Reads a node's operands into `self.operands`.
    fn read_operands(&mut self, id: NodeId) -> Step {
        self.operands.clear();
        for &operand in self.found.graph.operands(id) {
            let val = if self.memory.is_empty() { self.found.vals[operand.index()] } else { self.read(operand, id)? };
            self.operands.push(val);
        }
        Ok(())
    }

    /// The value of a call that writes nothing.
    fn pure(&mut self, id: NodeId, target: Name, effects: &Effects) -> Step<Val> {
        self.read_operands(id)?;
        let count = self.operands.len();
        match effects.fence {
            Fence::Free => {}
            Fence::Random => self.operands.push(self.found.states[0]),
            Fence::Full => self.operands.push(self.found.states[1]),
        }
        let key = self.key(id, target);
        self.advance_states(key, effects.fence);
        if let Some(result) = self.context.call(key).result
            && !self.names_memory(target)
        {
            return Ok(result);
        }
        let operands = std::mem::take(&mut self.operands);
        let meaning = self.meaning(id, target, &operands[..count]);
        self.operands = operands;
        let graph = self.found.graph;
        let val = match meaning {
            Some(val) => {
                self.check_type(id, val)?;
                val
            }
            None => self.context.whole(Term::Call(key), graph.type_of(id)),
        };
        self.context.set_result(key, val);
        Ok(val)
    }

    /// Whether the operator's value depends on the node's name: memory that is never written.
    fn names_memory(&self, target: Name) -> bool {
        let (_, operator, _) = split_target(self.found.graph.text(target));
        operator.contains("empty") || operator == "_pre_bucket_all_gather"
    }

    fn advance_states(&mut self, key: u32, fence: Fence) {
        match fence {
            Fence::Free => {}
            Fence::Random => self.found.states[0] = self.context.whole(Term::Part(key, u32::MAX), &Type::Unknown),
            Fence::Full => {
                self.found.states[1] = self.context.whole(Term::Part(key, u32::MAX), &Type::Unknown);
                self.fences += 1;
            }
        }
    }

    fn meaning(&mut self, id: NodeId, target: Name, operands: &[Val]) -> Option<Val> {
        let graph = self.found.graph;
        let name = if self.names_memory(target) { self.context.text(graph.name_of(id)) } else { 0 };
        let call = Call {
            target: graph.text(target),
            args: graph.args_of(id),
            operands,
            ty: graph.type_of(id),
            name,
            cast: pure_cast(graph, id),
        };
        let val = meaning::of(self.context, &call)?;
        if let Some(tensor) = self.context.tensor(val) {
            self.found.pieces += tensor.flat.pieces.len();
        }
        Some(val)
    }

    /// Whether what was found agrees with what the graph states.
    fn check_type(&self, id: NodeId, val: Val) -> Step {
        let graph = self.found.graph;
        let (Value::Tensor(tensor), Type::Tensor(stated)) = (self.context.value(val), graph.type_of(id)) else {
            return Ok(());
        };
        let clash = |(found, stated): (&Int, &crate::ir::Dim)| matches!((found.known(), stated.as_const()), (Some(a), Some(b)) if u64::try_from(a) != Ok(b));
        let same = tensor.dtype == stated.dtype
            && tensor.shape.len() == stated.shape.len()
            && !tensor.shape.iter().zip(&stated.shape).any(clash);
        if same {
            return Ok(());
        }
        let sizes: Vec<String> = tensor.shape.iter().map(Int::to_string).collect();
        let found = format!("{}[{}]", tensor.dtype.short_name(), sizes.join(", "));
        fault(id, format!("is stated to be {stated}, but makes {found}"))
    }

    /// A view whose memory is still to be written.
    fn view_of_memory(&mut self, id: NodeId, position: usize, target: Name, index: usize) -> Step {
        let graph = self.found.graph;
        let Some(&base) = graph.operands(id).get(index) else { return fault(id, "is a view of nothing") };
        let effects = self.found.effects.get(id).clone();
        let Some(place) = self.memory.place(base) else {
            return self.element_of_unknown(id, target, &effects);
        };
        self.read_operands(id)?;
        let mut operands = std::mem::take(&mut self.operands);
        operands[index] = place;
        let view = self.meaning(id, target, &operands);
        self.operands = operands;
        let val = self.pure(id, target, &effects)?;
        self.set(id, val);
        self.in_flight[id.index()] = self.part_in_flight(id, base, target);
        let Some(view) = view else {
            let operator = graph.text(target);
            return undecided(id, format!("`{operator}` of memory that is written later is not followed"));
        };
        if self.is_view_of_memory(target, view) {
            self.memory.set_place(id, view);
        } else if self.memory.is_live(id, position) {
            self.allocate(id, val)?;
        }
        Ok(())
    }

    /// The element of a tuple whose parts have no places yet.
    fn element_of_unknown(&mut self, id: NodeId, target: Name, effects: &Effects) -> Step {
        let val = self.pure(id, target, effects)?;
        self.set(id, val);
        let base = self.found.graph.operands(id)[0];
        self.in_flight[id.index()] = self.part_in_flight(id, base, target);
        if let Some(&place) = self.elements.get(&val) {
            self.memory.set_place(id, place);
        } else if let Some(place) = self.allocate(id, val)? {
            self.elements.insert(val, place);
        }
        Ok(())
    }

    /// Whether a result over storage leaves is a view by strides, and not a copy.
    fn is_view_of_memory(&self, target: Name, view: Val) -> bool {
        let graph = self.found.graph;
        let (_, operator, _) = split_target(graph.text(target));
        let Value::Tensor(tensor) = self.context.value(view) else { return true };
        let storage = |leaf: Leaf| matches!(self.context.leaf(leaf).term, Term::Storage(_));
        if !tensor.flat.pieces.iter().all(|piece| storage(piece.leaf)) {
            return false;
        }
        match operator {
            "reshape" | "flatten" | "ravel" | "to" => layout::has_strides(tensor),
            "contiguous" => {
                let dense = |piece: &super::flat::Piece| piece.inner == pattern::dense(piece.bytes.clone());
                tensor.flat.single().is_none_or(dense)
            }
            _ => true,
        }
    }

    fn writing_call(&mut self, id: NodeId, position: usize, target: Name, effects: &Effects) -> Step {
        let graph = self.found.graph;
        let operands = graph.operands(id);
        self.read_operands(id)?;
        match effects.fence {
            Fence::Free => {}
            Fence::Random => self.operands.push(self.found.states[0]),
            Fence::Full => self.operands.push(self.found.states[1]),
        }
        let key = self.key(id, target);
        self.advance_states(key, effects.fence);
        let written: Vec<usize> = if effects.fence == Fence::Full {
            (0..operands.len()).collect()
        } else {
            effects.writes.iter().map(|&index| index as usize).collect()
        };
        let known = self.known_write(id, target, written.len());
        let mut places = Vec::with_capacity(written.len());
        for (part, &index) in written.iter().enumerate() {
            let node = operands[index];
            let Some(place) = self.memory.place(node) else {
                if self.context.tensor(self.found.vals[node.index()]).is_none() {
                    continue;
                }
                return undecided(id, format!("writes `{}`, whose memory is not followed", graph.name_of(node)));
            };
            let value = known.as_ref().and_then(|known| known.get(part).cloned()).or_else(|| {
                let val = self.context.whole(Term::Part(key, part as u32), graph.type_of(node));
                tensor_of(self.context, val)
            });
            self.note_hazards(id, place);
            let done = value.and_then(|value| self.memory.write(self.context, place, &value));
            if done.is_none() {
                return undecided(id, format!("what it writes to `{}`", graph.name_of(node)));
            }
            places.push(place);
        }
        let result = match (effects.alias, places.as_slice()) {
            (Alias::Of(_), &[place]) => Some(place),
            (Alias::Any, [_, ..]) if effects.fence != Fence::Full => {
                Some(self.context.intern(Value::Tuple(places.clone())))
            }
            _ => None,
        };
        let val = match result {
            Some(place) => {
                self.memory.set_place(id, place);
                match self.memory.read(self.context, place) {
                    Some(val) => val,
                    None => return undecided(id, "what it wrote"),
                }
            }
            None => self.context.whole(Term::Call(key), graph.type_of(id)),
        };
        self.set(id, val);
        let shared = effects.fence == Fence::Full && graph.tensor(id).is_some();
        if shared && self.memory.is_live(id, position + 1) {
            return undecided(id, "its result may share memory that is written later");
        }
        Ok(())
    }

    /// Writes to what a launch in flight still sends.
    fn note_hazards(&mut self, writer: NodeId, place: Val) {
        for storage in self.memory.storages_of(self.context, place) {
            let readers = std::mem::take(&mut self.memory.storage_mut(storage).readers);
            let (found, node) = (&mut self.found, |pending: &Pending| pending.node);
            let flying: Vec<(usize, u32)> = readers
                .into_iter()
                .filter(|&(_, pending)| {
                    let pending = found.pending[pending as usize];
                    !pending.waited && node(&pending) != writer
                })
                .collect();
            found.hazards.extend(flying.iter().map(|&(launch, _)| (launch, writer)));
            self.memory.storage_mut(storage).readers = flying;
        }
    }

    /// What a call writes, where that is known: one tensor for each operand written, in the shape of that operand.
    fn known_write(&mut self, id: NodeId, target: Name, count: usize) -> Option<Vec<Tensor>> {
        let graph = self.found.graph;
        let (_, operator, overload) = split_target(graph.text(target));
        let args = graph.args_of(id);
        let tensor = |walk: &Self, place: usize| tensor_of(walk.context, *walk.operands.get(place)?);
        match (operator, overload) {
            ("copy_", _) if count == 1 => {
                let (into, from) = (tensor(self, 0)?, tensor(self, 1)?);
                let from = layout::expand(&from, &into.shape)?;
                let from = layout::cast(self.context, &from, into.dtype)?;
                Some(vec![self.to_device_of(id, from)?])
            }
            ("zero_", _) if count == 1 => {
                let into = tensor(self, 0)?;
                Some(vec![super::terms::constant(self.context, "0", into.dtype, into.shape)?])
            }
            ("fill_", "Scalar") if count == 1 => {
                let into = tensor(self, 0)?;
                let text = super::terms::fill_text(args.at(1, "value")?)?;
                Some(vec![super::terms::constant(self.context, &text, into.dtype, into.shape)?])
            }
            ("split_with_sizes_copy", "out") => {
                let from = tensor(self, 0)?;
                let dim = layout::dimension(args.at(2, "dim").map_or(Some(0), Arg::as_int)?, from.shape.len())?;
                let Arg::List(sizes) = args.at(1, "split_sizes")? else { return None };
                let sizes: Option<Vec<Int>> = sizes.iter().map(|size| size.as_int().map(Int::Known)).collect();
                let sizes = sizes?;
                let total: i64 = sizes.iter().filter_map(Int::known).sum();
                let parts = layout::split(self.context, &from, dim, &sizes)?;
                let fits = from.shape[dim].is(total) && parts.len() == count && self.outs_fit(id, &parts);
                fits.then_some(parts)
            }
            ("_foreach_copy_", _) => self.foreach_copy(count),
            _ => None,
        }
    }

    /// Whether `out` tensors have the dtypes and shapes of what is written to them.
    fn outs_fit(&self, id: NodeId, parts: &[Tensor]) -> bool {
        let graph = self.found.graph;
        let mut index = 0;
        let mut fit = true;
        if let Some(out) = graph.args_of(id).get("out") {
            out.for_each_operand(&mut |operand| {
                let into = self.operands.get(operand as usize).and_then(|&val| self.context.tensor(val));
                let same = |(into, part): (&Tensor, &Tensor)| into.dtype == part.dtype && into.shape == part.shape;
                fit &= into.zip(parts.get(index)).is_some_and(same);
                index += 1;
            });
        }
        fit && index == parts.len()
    }

    fn foreach_copy(&mut self, count: usize) -> Option<Vec<Tensor>> {
        let tensors: Option<Vec<Tensor>> =
            self.operands.iter().map(|&operand| tensor_of(self.context, operand)).collect();
        let tensors = tensors.filter(|tensors| tensors.len() == 2 * count)?;
        let (into, from) = tensors.split_at(count);
        into.iter()
            .zip(from)
            .map(|(into, from)| {
                let from = layout::expand(from, &into.shape)?;
                layout::cast(self.context, &from, into.dtype)
            })
            .collect()
    }

    /// A value copied to another device is another value: collectives run where their input is.
    fn to_device_of(&mut self, id: NodeId, from: Tensor) -> Option<Tensor> {
        let graph = self.found.graph;
        let device = |node: &NodeId| graph.tensor(*node).and_then(|ty| ty.device.as_deref());
        let [into, source, ..] = graph.operands(id) else { return None };
        match (device(into), device(source)) {
            (Some(to), Some(old)) if to != old => {
                let to = self.context.text(to);
                layout::map_leaves(self.context, &from, |leaf| Term::Moved(to, leaf))
            }
            _ => Some(from),
        }
    }

    fn collective(&mut self, id: NodeId, position: usize, collective: Collective) -> Step {
        let graph = self.found.graph;
        let operands = graph.operands(id);
        for &operand in operands {
            self.check_read(id, operand)?;
        }
        let sent = graph.collective_inputs(id).len();
        if sent == 0 {
            return fault(id, "sends nothing");
        }
        self.read_operands(id)?;
        let inputs = self.operands[..sent].to_vec();
        let results = self.results(id, collective, &inputs)?;
        let group = self.groups[collective.group.index()];
        let pending = self.found.pending.len() as u32;
        let empty = |val: &Val| self.context.tensor(*val).is_some_and(|tensor| tensor.flat.pieces.is_empty());
        let alone = self.context.groups[group.0 as usize].1 == Some(1)
            && !matches!(collective.kind, CollectiveKind::AllToAll | CollectiveKind::Permute);
        let trivial = alone || inputs.iter().chain(&results).all(empty);
        for _ in 0..sent {
            self.found.pending.push(Pending { node: id, waited: false });
        }
        let kind = collective.kind;
        let fences = self.fences;
        self.found.launches.push(Launch { node: id, kind, group, inputs, pending, trivial, fences });
        self.in_flight[id.index()] = (pending, sent as u32);
        let launch = self.found.launches.len() - 1;
        for (part, &input) in graph.collective_inputs(id).iter().enumerate() {
            let Some(place) = self.memory.place(input) else { continue };
            for storage in self.memory.storages_of(self.context, place) {
                self.memory.storage_mut(storage).readers.push((launch, pending + part as u32));
            }
        }
        let val = match (collective.coalesced, results.as_slice()) {
            (false, &[one]) => one,
            _ => self.context.intern(Value::Tuple(results.clone())),
        };
        self.set(id, val);
        match collective.variant {
            Variant::Functional => self.fresh_results(id, position, val, &results),
            Variant::InPlace => self.results_into(id, collective, &operands[..sent], &results, pending),
            Variant::Out => {
                let mut outs = Vec::new();
                if let Some(out) = graph.args_of(id).get("out") {
                    out.for_each_operand(&mut |index| outs.extend(operands.get(index as usize).copied()));
                }
                if outs.len() != sent {
                    return fault(id, format!("has {} `out` tensors for {sent} inputs", outs.len()));
                }
                self.in_place_gather(id, collective, &operands[..sent], &outs)?;
                self.results_into(id, collective, &outs, &results, pending)
            }
        }
    }

    /// What a collective makes of each input.
    fn results(&mut self, id: NodeId, collective: Collective, inputs: &[Val]) -> Step<Vec<Val>> {
        let graph = self.found.graph;
        let group = self.groups[collective.group.index()];
        let mut results = Vec::with_capacity(inputs.len());
        for (place, &input) in inputs.iter().enumerate() {
            let tensor = tensor_of(self.context, input);
            let made = tensor.and_then(|tensor| exchange::result(self.context, collective.kind, group, &tensor));
            let val = match made {
                Some(tensor) => {
                    self.found.pieces += tensor.flat.pieces.len();
                    self.context.intern(Value::Tensor(tensor))
                }
                None => {
                    let target = graph.target_of(id);
                    let (target, args) = (self.context.text(target), self.context.args_id(graph.args_of(id)));
                    let operands = std::mem::take(&mut self.operands);
                    let key = self.context.intern_call(target, args, 0, &operands);
                    self.operands = operands;
                    let ty = match graph.type_of(id) {
                        Type::Tuple(parts) if collective.coalesced => parts.get(place).unwrap_or(&Type::Unknown),
                        ty => ty,
                    };
                    self.context.whole(Term::Exchange(collective.kind, key, group, input), ty)
                }
            };
            if !collective.coalesced && collective.variant != Variant::Out {
                self.check_type(id, val)?;
            }
            results.push(val);
        }
        Ok(results)
    }

    fn fresh_results(&mut self, id: NodeId, position: usize, val: Val, results: &[Val]) -> Step {
        if !self.memory.is_live(id, position) {
            return Ok(());
        }
        let mut places = Vec::with_capacity(results.len());
        for &result in results {
            match self.allocate(id, result)? {
                Some(place) => places.push(place),
                None => return undecided(id, "its result is written, but its type is not known"),
            }
        }
        let tuple = matches!(self.context.value(val), Value::Tuple(_));
        let place = if tuple { self.context.intern(Value::Tuple(places)) } else { places[0] };
        self.memory.set_place(id, place);
        Ok(())
    }

    /// Results that overwrite tensors.
    fn results_into(
        &mut self,
        id: NodeId,
        collective: Collective,
        into: &[NodeId],
        results: &[Val],
        pending: u32,
    ) -> Step {
        let graph = self.found.graph;
        if graph.node(id).region != RegionId::ROOT {
            return undecided(id, "writes memory inside a region");
        }
        let mut places = Vec::with_capacity(into.len());
        for (index, (&node, &result)) in into.iter().zip(results).enumerate() {
            let name = graph.name_of(node);
            let place = self.memory.place(node);
            let (Some(place), Some(value)) = (place, tensor_of(self.context, result)) else {
                return undecided(id, format!("what it makes of `{name}`"));
            };
            let same = |into: &Tensor| {
                into.dtype == value.dtype
                    && super::int::product(&into.shape)
                        .is_some_and(|count| super::int::product(&value.shape) == Some(count))
            };
            if !self.context.tensor(place).is_some_and(same) {
                return fault(id, format!("writes a result to `{name}`, which has another dtype or size"));
            }
            self.note_hazards(id, place);
            if self.memory.write(self.context, place, &value).is_none() {
                return undecided(id, format!("what it writes to `{name}`"));
            }
            for storage in self.memory.storages_of(self.context, place) {
                self.memory.storage_mut(storage).pending = Some(pending + index as u32);
            }
            places.push(place);
        }
        let place = match (collective.coalesced, places.as_slice()) {
            (false, &[place]) => place,
            _ => self.context.intern(Value::Tuple(places)),
        };
        self.memory.set_place(id, place);
        Ok(())
    }

    /// A gather whose input is part of its result must find it at its own rank's place. PyTorch's merged graphs hold
    /// that rank as a number: they are right on that rank alone.
    fn in_place_gather(&mut self, id: NodeId, collective: Collective, inputs: &[NodeId], outs: &[NodeId]) -> Step {
        let group = self.groups[collective.group.index()];
        let size = self.context.groups[group.0 as usize].1;
        for &input in inputs {
            let Some(from) = self.memory.place(input) else { continue };
            let sources = self.memory.storages_of(self.context, from);
            for &out in outs {
                let Some(to) = self.memory.place(out) else { continue };
                if !self.memory.storages_of(self.context, to).iter().any(|storage| sources.contains(storage)) {
                    continue;
                }
                let (from, to) = (self.context.tensor(from), self.context.tensor(to));
                let rank = from.zip(to).and_then(|(from, to)| rank_of_slot(collective.kind, size, from, to));
                let Some(rank) = rank else {
                    return fault(id, "sends part of the memory that it writes, not at the place of one rank");
                };
                if let Some(&(_, other, node)) =
                    self.found.ranks.iter().find(|known| known.0 == group && known.1 != rank)
                {
                    let name = self.found.graph.name_of(node);
                    return fault(id, format!("is made for rank {rank}, but `{name}` for rank {other}"));
                }
                self.found.ranks.push((group, rank, id));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Step<Walked<'g>> {
        for index in 0..self.found.inputs.len() {
            let (id, _) = self.found.inputs[index];
            self.found.inputs[index].1 = self.read(id, id)?;
        }
        Ok(self.found)
    }
}

/// The rank whose slot of `to` is `from`.
fn rank_of_slot(kind: CollectiveKind, size: Option<u32>, from: &Tensor, to: &Tensor) -> Option<i64> {
    let (CollectiveKind::AllGather { dim: 0 }, Some(from), Some(to)) = (kind, from.flat.single(), to.flat.single())
    else {
        return None;
    };
    let dense = |piece: &super::flat::Piece| piece.inner == pattern::dense(piece.bytes.clone());
    let rank = from.offset.sub(&to.offset)?.div(&from.bytes)?.known()?;
    (dense(from) && dense(to) && (0..i64::from(size?)).contains(&rank)).then_some(rank)
}
