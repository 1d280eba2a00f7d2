//! One walk over a graph in program order: what each node makes, what is in flight, what memory holds.

mod elements;
mod lies;
mod loose;
mod started;
mod stated;
mod strides;
mod views;
mod window;
mod writes;

pub(super) use strides::Root;

use self::elements::element_index;
use super::effects::{Alias, EffectTable, Effects, Fence, Placement, Unknown};
use super::layout::tensor_of;
use super::meaning::{self, Call, Class};
use super::memory::{WrittenMemory, attribute};
use super::terms::{Context, GroupKey, State, Term, Val, Value};
use super::verdict::Side;
use crate::ir::{CollectiveKind, Graph, Name, NodeId, Op, Operators, RegionId, Type};
use hashbrown::{HashMap, HashSet};
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

/// A collective as it was started.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub node: NodeId,
    pub kind: CollectiveKind,
    pub group: GroupKey,
    /// The same with what it is asked for beside its kind.
    pub requested: GroupKey,
    /// Of an all-to-all: whether all its parts are equal.
    pub even: bool,
    /// Of a permute: a number for its pairs, where they are all that it says behind its tensors.
    pub pairs: Option<u32>,
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
    /// By index in the graph.
    pub groups: Vec<GroupKey>,
    /// By arena index; of a node in memory that was still to be written, the value it had when it was made.
    pub vals: Vec<Val>,
    pub launches: Vec<Launch>,
    pub pending: Vec<Pending>,
    /// Inputs in order, with their memory's final content.
    pub inputs: Vec<(NodeId, Val)>,
    /// Attributes of the module by their first readers: with what they hold before and after.
    pub attributes: Vec<(NodeId, Val, Val)>,
    pub output: Option<NodeId>,
    /// Values of the output's operands at the end.
    pub outputs: Vec<Val>,
    /// For each of these, the collective whose result it is, if that is not waited for.
    pub unready: Vec<Option<NodeId>>,
    /// The memory that each of these is in.
    pub roots: Vec<Root>,
    /// The states at the end, in the order of [`State::ALL`].
    pub states: [Val; 3],
    /// Calls of graphs that launch, in order, each with the number of launches above it.
    pub launching: Vec<(NodeId, usize)>,
    /// Ranks that the graph was made for: a gather into a buffer that holds this rank's part.
    pub ranks: Vec<(GroupKey, i64, NodeId)>,
    /// (launch, writer): what a launch sends is written before the launch is waited for.
    pub hazards: Vec<(usize, NodeId)>,
    /// (launch, node): the first node below a launch that writes what it sends, or waits for it.
    pub followers: Vec<(usize, NodeId)>,
    /// (wait, node): the node names a result that a wait for a list, above it, waited for.
    pub below_lists: Vec<(NodeId, NodeId)>,
    /// By arena index: a number for memory that is written, `u32::MAX` for other; empty if nothing is.
    pub written: Vec<u32>,
    /// Of the result: the first call whose meaning is not followed and that the source does not make.
    pub foreign: Option<NodeId>,
    /// Ranges and pieces looked at.
    pub pieces: usize,
    pub effects: EffectTable,
    /// What each node read of its operands, if that is recorded.
    pub reads: Option<Reads>,
}

/// The values of nodes' operands at the time they were read.
#[derive(Default)]
pub(super) struct Reads {
    /// By arena index: start in `vals`.
    starts: Vec<u32>,
    vals: Vec<Val>,
}

impl Reads {
    /// What a node read, an entry for each operand; `None` if it read nothing.
    pub fn of(&self, graph: &Graph, id: NodeId) -> Option<&[Val]> {
        let start = self.starts[id.index()] as usize;
        self.vals.get(start..start.checked_add(graph.operands(id).len())?)
    }
}

pub(super) struct Walk<'g, 'c> {
    context: &'c mut Context<'g>,
    side: Side,
    memory: WrittenMemory,
    found: Walked<'g>,
    /// By arena index: results in flight that the value is of, as (first, count) into `found.pending`.
    in_flight: Vec<(u32, u32)>,
    /// By result in flight: the last list that waited for it.
    list_waits: HashMap<u32, NodeId, FxBuildHasher>,
    /// Canonical numbers of the graph's targets, arguments and types; `u32::MAX` is not asked yet.
    targets: Vec<u32>,
    args: Vec<u32>,
    types: Vec<u32>,
    classes: Vec<Option<Class>>,
    /// Places of elements of tuples that are not followed.
    elements: HashMap<(NodeId, Val), Val, FxBuildHasher>,
    /// Tuples that have some.
    taken_apart: HashSet<NodeId, FxBuildHasher>,
    /// First readers of attributes of the module, by place in `found.attributes`.
    attributes: HashMap<Name, usize, FxBuildHasher>,
    /// Splits by places in the memory they are views of.
    splits: HashMap<NodeId, Option<Val>, FxBuildHasher>,
    fences: u32,
    /// The state that the last change of mode left, which every call after it depends on.
    mode: Option<Val>,
    operands: Vec<Val>,
    /// Calls from this number on are not of the other graph.
    first_call: usize,
}

type Result<T = (), E = Stop> = std::result::Result<T, E>;

fn undecided<T>(node: NodeId, reason: impl Into<String>) -> Result<T> {
    Err(Stop::Undecided { node, reason: reason.into() })
}

fn fault<T>(node: NodeId, reason: impl Into<String>) -> Result<T> {
    Err(Stop::Fault { node, reason: reason.into() })
}

/// Walks a graph.
pub(super) fn walk<'g>(
    context: &mut Context<'g>,
    graph: &'g Graph,
    side: Side,
    effects: (&Operators, Unknown),
) -> Result<Walked<'g>> {
    walk_with(context, graph, side, effects, None)
}

/// Walks a graph and records what its nodes read.
pub(super) fn walk_recording<'g>(context: &mut Context<'g>, graph: &'g Graph) -> Result<Walked<'g>> {
    let reads = Reads { starts: vec![u32::MAX; graph.arena_len()], vals: Vec::new() };
    walk_with(context, graph, Side::Before, (&graph.operators, Unknown::May), Some(reads))
}

fn walk_with<'g>(
    context: &mut Context<'g>,
    graph: &'g Graph,
    side: Side,
    (declared, unknown): (&Operators, Unknown),
    reads: Option<Reads>,
) -> Result<Walked<'g>> {
    let effects = EffectTable::of(graph, declared, unknown);
    let memory = WrittenMemory::of(graph, &effects);
    let groups = context.groups.of(graph);
    let first_call = context.call_count();
    let states = State::ALL.map(|state| context.whole(Term::State(state), &Type::Unknown));
    let found = Walked {
        graph,
        groups,
        vals: vec![UNSET; graph.arena_len()],
        launches: Vec::new(),
        pending: Vec::new(),
        inputs: Vec::new(),
        attributes: Vec::new(),
        output: None,
        outputs: Vec::new(),
        unready: Vec::new(),
        roots: Vec::new(),
        states,
        launching: Vec::new(),
        ranks: Vec::new(),
        hazards: Vec::new(),
        followers: Vec::new(),
        below_lists: Vec::new(),
        written: memory.written_classes(),
        foreign: None,
        pieces: 0,
        effects,
        reads,
    };
    let mut walk = Walk {
        context,
        side,
        memory,
        found,
        in_flight: vec![(0, 0); graph.arena_len()],
        targets: Vec::new(),
        args: Vec::new(),
        types: Vec::new(),
        classes: Vec::new(),
        list_waits: HashMap::default(),
        elements: HashMap::default(),
        taken_apart: HashSet::default(),
        attributes: HashMap::default(),
        splits: HashMap::default(),
        fences: 0,
        mode: None,
        operands: Vec::new(),
        first_call,
    };
    for (position, &id) in graph.order().iter().enumerate() {
        if let Some(output) = walk.found.output {
            return fault(output, format!("is not last: `{}` stands after it", graph.name_of(id)));
        }
        walk.node(id, position)?;
    }
    walk.finish()
}

/// Whether a node is stated to be on another device than its first operand.
fn changes_device(graph: &Graph, id: NodeId) -> bool {
    let device = |id| graph.tensor(id).and_then(|tensor| tensor.device.as_deref());
    let from = graph.operands(id).first().and_then(|&from| device(from));
    from.zip(device(id)).is_some_and(|(from, to)| from != to)
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
    fn node(&mut self, id: NodeId, position: usize) -> Result {
        let graph = self.found.graph;
        for &operand in graph.operands(id) {
            if self.found.vals[operand.index()] == UNSET {
                return fault(id, format!("uses `{}` before it is defined", graph.name_of(operand)));
            }
        }
        self.note_below_list(id);
        match graph.node(id).op {
            Op::Input => self.input(id, position),
            Op::Output => self.output(id),
            Op::Wait => self.wait(id, position),
            Op::Collective(collective) => self.collective(id, position, collective),
            Op::Call(target) => self.call(id, position, target),
        }
    }

    /// What names a result below the list that waited for it stays below that, and so below all in the list.
    fn note_below_list(&mut self, id: NodeId) {
        if self.list_waits.is_empty() || self.found.effects.get(id).shape_only {
            return;
        }
        for &operand in self.found.graph.operands(id) {
            let (first, count) = self.in_flight[operand.index()];
            let waits = (first..first + count).filter_map(|pending| self.list_waits.get(&pending));
            self.found.below_lists.extend(waits.map(|&wait| (wait, id)));
        }
    }

    fn set(&mut self, id: NodeId, val: Val) {
        self.found.vals[id.index()] = val;
        let origin = &mut self.context.origins[val.0 as usize][self.side as usize];
        if *origin == u32::MAX {
            *origin = id.index() as u32;
        }
    }

    /// What a node's value is now.
    fn read(&mut self, node: NodeId, reader: NodeId) -> Result<Val> {
        let Some(place) = self.memory.place(node) else {
            return Ok(self.memory.loose(self.context, node).unwrap_or(self.found.vals[node.index()]));
        };
        match self.memory.read(self.context, place) {
            Some(val) => Ok(val),
            None => undecided(reader, format!("what is in the memory of `{}`", self.found.graph.name_of(node))),
        }
    }

    fn input(&mut self, id: NodeId, position: usize) -> Result {
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
    fn allocate(&mut self, id: NodeId, val: Val) -> Result<Option<Val>> {
        let Some(tensor) = tensor_of(self.context, val) else { return Ok(None) };
        let Some(place) = self.memory.allocate(self.context, &tensor) else {
            return undecided(id, "its memory is written, but its size is not known");
        };
        self.memory.set_place(id, place);
        Ok(Some(place))
    }

    fn output(&mut self, id: NodeId) -> Result {
        let operands = self.found.graph.operands(id);
        let values: Result<Vec<Val>> = operands.iter().map(|&operand| self.read(operand, id)).collect();
        self.found.outputs = values?;
        self.found.unready = operands.iter().map(|&operand| self.first_in_flight(operand)).collect();
        self.found.roots = self.roots(operands);
        self.found.output = Some(id);
        Ok(())
    }

    fn wait(&mut self, id: NodeId, position: usize) -> Result {
        let graph = self.found.graph;
        let Some(&first) = graph.operands(id).first() else { return fault(id, "waits for nothing") };
        if graph.waits_for_list(id) {
            return self.wait_for_list(id, position);
        }
        for pending in self.in_flight_of(first) {
            self.found.pending[pending as usize].waited = true;
        }
        self.in_flight[id.index()] = self.in_flight[first.index()];
        if let Some(place) = self.memory.place(first) {
            self.memory.set_view(self.context, id, place, first);
            for storage in self.memory.storages_of_node(self.context, id) {
                self.note_followed(storage, id);
            }
        } else if self.memory.is_loose(first) {
            let val = self.read(first, id)?;
            self.set(id, val);
            return self.loose_view(id, val, val, &[first]);
        }
        self.set(id, self.found.vals[first.index()]);
        Ok(())
    }

    /// A list of what is waited for, each as it is.
    fn wait_for_list(&mut self, id: NodeId, position: usize) -> Result {
        let operands = self.found.graph.operands(id);
        let mut places = Vec::new();
        for &operand in operands {
            for pending in self.in_flight_of(operand) {
                self.found.pending[pending as usize].waited = true;
                self.list_waits.insert(pending, id);
            }
            for storage in self.memory.storages_of_node(self.context, operand) {
                self.note_followed(storage, id);
            }
            places.extend(self.memory.place(operand));
        }
        // What is written later has memory; what is not has the value that it has now.
        if self.memory.is_live(id, position) {
            if places.len() != operands.len() {
                return undecided(id, "waits for a list of which some is in memory that is not followed");
            }
            let place = self.context.intern(Value::Tuple(places));
            self.memory.set_place(id, place);
        }
        let vals: Result<Vec<Val>> = operands.iter().map(|&operand| self.read(operand, id)).collect();
        let val = self.context.intern(Value::Tuple(vals?));
        self.set(id, val);
        Ok(())
    }

    /// Results in flight that a value is of, waited for or not.
    fn in_flight_of(&mut self, node: NodeId) -> Vec<u32> {
        let (first, count) = self.in_flight[node.index()];
        let mut found: Vec<u32> = (first..first + count).collect();
        found.extend(self.memory.pending_at(self.context, node));
        found
    }

    /// The collective of the first result in flight that a value is of and that is not waited for.
    fn first_in_flight(&mut self, node: NodeId) -> Option<NodeId> {
        let mut found = self.in_flight_of(node).into_iter().map(|pending| self.found.pending[pending as usize]);
        found.find(|pending| !pending.waited).map(|pending| pending.node)
    }

    /// Whether the first of these is a result that is not waited for.
    fn is_in_flight(&mut self, operands: &[NodeId]) -> bool {
        let Some(&first) = operands.first() else { return false };
        if self.in_flight[first.index()].1 == 0 && self.memory.is_empty() {
            return false;
        }
        self.first_in_flight(first).is_some()
    }

    /// Whether something is in flight into the memory of a node: what of it a view shows then counts.
    fn is_flown_into(&self, node: Option<&NodeId>) -> bool {
        let pending = node.map_or_else(Vec::new, |&node| self.memory.pending_at(self.context, node));
        pending.into_iter().any(|pending| !self.found.pending[pending as usize].waited)
    }

    /// Elements of a value in flight must not be read, nor written.
    fn check_read(&mut self, id: NodeId, operand: NodeId) -> Result {
        self.check_access(id, operand, "reads")
    }

    fn check_access(&mut self, id: NodeId, operand: NodeId, how: &str) -> Result {
        if self.in_flight[operand.index()].1 == 0 && self.memory.is_empty() {
            return Ok(());
        }
        match self.first_in_flight(operand) {
            Some(started) => {
                let started = self.found.graph.name_of(started);
                fault(id, format!("{how} the result of `{started}` before it is waited for"))
            }
            None => Ok(()),
        }
    }

    fn call(&mut self, id: NodeId, position: usize, target: Name) -> Result {
        let graph = self.found.graph;
        let effects = self.found.effects.get(id).clone();
        let operands = graph.operands(id);
        if (!effects.is_view() && !effects.shape_only)
            || self.is_in_flight(operands) && self.copies(id, target) != Some(false)
        {
            for (index, &operand) in operands.iter().enumerate() {
                let writes = effects.writes.contains(&(index as u32)) && !effects.may;
                self.check_access(id, operand, if writes { "writes" } else { "reads" })?;
            }
        }
        if attribute(graph, id).is_some() {
            return self.attribute(id, position, target, &effects);
        }
        if !effects.writes.is_empty() && !self.memory.is_empty() {
            if graph.node(id).region != RegionId::ROOT {
                return undecided(id, "writes memory inside a region");
            }
            return self.writing_call(id, position, target, &effects);
        }
        if let Alias::Of(index) = effects.alias
            && (self.memory.is_live(id, position) || self.is_flown_into(operands.get(index as usize)))
        {
            return self.view_of_memory(id, position, target, index as usize);
        }
        let val = self.pure(id, target, &effects)?;
        self.set(id, val);
        if effects.sets_mode {
            self.mode = Some(self.found.states[1]);
        }
        if let Alias::Of(index) = effects.alias
            && let Some(&base) = operands.get(index as usize)
        {
            self.in_flight[id.index()] = self.part_in_flight(id, base);
        }
        if self.memory.is_live(id, position) {
            self.place_result(id, val, &effects)?;
        }
        Ok(())
    }

    /// An attribute of the module: one memory, however often it is read.
    fn attribute(&mut self, id: NodeId, position: usize, target: Name, effects: &Effects) -> Result {
        if let Some(&index) = self.attributes.get(&target) {
            let first = self.found.attributes[index].0;
            if let Some(place) = self.memory.place(first) {
                self.memory.set_view(self.context, id, place, first);
            } else if self.memory.is_loose(first) {
                let val = self.read(first, id)?;
                self.set(id, val);
                return self.loose_view(id, val, val, &[first]);
            }
            let val = self.read(first, id)?;
            self.set(id, val);
            self.in_flight[id.index()] = self.in_flight[first.index()];
            return Ok(());
        }
        let val = self.pure(id, target, effects)?;
        self.set(id, val);
        self.attributes.insert(target, self.found.attributes.len());
        self.found.attributes.push((id, val, val));
        if self.memory.is_live(id, position) {
            self.allocate(id, val)?;
        }
        Ok(())
    }

    /// Which results in flight a view of `base` is of: one element of a list, or all.
    fn part_in_flight(&mut self, id: NodeId, base: NodeId) -> (u32, u32) {
        let graph = self.found.graph;
        let element = element_index(graph, id);
        // A view that leaves memory behind keeps what is in flight into it.
        if let Some(place) = self.memory.place(base) {
            let part = match (self.context.value(place), element) {
                (Value::Tuple(parts), Some(index)) => parts.get(index as usize).copied(),
                _ => None,
            };
            let pending = match part {
                Some(part) => self.memory.pending_in(self.context, part),
                None => self.memory.pending_at(self.context, base),
            };
            if let Some(&pending) = pending.first() {
                return (pending, 1);
            }
        }
        self.inherited_in_flight(id, base)
    }

    /// As [`Self::part_in_flight`], of a view that has a place: what is in flight into that is found by the place.
    fn inherited_in_flight(&self, id: NodeId, base: NodeId) -> (u32, u32) {
        let element = element_index(self.found.graph, id);
        let (first, count) = self.in_flight[base.index()];
        match element {
            Some(index) if count > 1 && index < count => (first + index, 1),
            _ => (first, count),
        }
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
        self.operands.extend(self.mode);
        context.intern_call(target, args, ty, &self.operands)
    }

    /// As [`Self::key`], for a call that may draw random numbers or communicate: then it also reads the state that such
    /// calls left, and leaves another.
    fn key_with_state(&mut self, id: NodeId, target: Name, effects: &Effects) -> u32 {
        let [random, world, launches] = self.found.states;
        match effects.fence {
            Fence::Free => {}
            Fence::Random => self.operands.push(random),
            Fence::Full => self.operands.extend([world, launches]),
        }
        if effects.launches {
            self.operands.push(world);
        }
        let key = self.key(id, target);
        let mut state_key = key;
        if effects.launches {
            // What is launched is the same whatever was launched before, and so is what arrives.
            let count = self.operands.len();
            self.operands.push(launches);
            state_key = self.key(id, target);
            self.operands.truncate(count);
        }
        self.advance_states(id, state_key, effects);
        key
    }

    /// Reads a node's operands into `self.operands`.
    fn read_operands(&mut self, id: NodeId) -> Result {
        self.operands.clear();
        for &operand in self.found.graph.operands(id) {
            let val = if self.memory.is_empty() { self.found.vals[operand.index()] } else { self.read(operand, id)? };
            self.operands.push(val);
        }
        if let Some(reads) = &mut self.found.reads {
            reads.starts[id.index()] = reads.vals.len() as u32;
            reads.vals.extend_from_slice(&self.operands);
        }
        Ok(())
    }

    /// The value of a call that writes nothing.
    fn pure(&mut self, id: NodeId, target: Name, effects: &Effects) -> Result<Val> {
        self.read_operands(id)?;
        let count = self.operands.len();
        self.add_placement(id, effects)?;
        let key = self.key_with_state(id, target, effects);
        // Equal values may lie otherwise.
        if self.class(target).only_views && self.view_cannot_be(id) && !self.context.is_loose_view(key, self.side) {
            return fault(id, "is a view of a tensor whose strides allow only a copy");
        }
        if let Some(result) = self.context.call(key).result
            && !self.class(target).names_memory
        {
            self.context.gaps.see_again(key, self.side, id);
            return Ok(result);
        }
        let operands = std::mem::take(&mut self.operands);
        let meaning = match effects.placement {
            Placement::Unseen => self.meaning(id, target, &operands[..count]),
            Placement::Strides | Placement::Place => None,
        };
        self.operands = operands;
        let graph = self.found.graph;
        let val = match meaning {
            Some(val) => {
                self.check_type(id, val)?;
                if !self.is_as_stated(val, graph.type_of(id)) {
                    self.note_foreign(id, key);
                }
                val
            }
            None => {
                self.note_foreign(id, key);
                // What is copied to another device is another value, and known to be.
                if self.class(target).only_moves() && !changes_device(graph, id) {
                    self.context.gaps.add(key, self.side, id);
                }
                self.context.whole(Term::Call(key), graph.type_of(id))
            }
        };
        self.context.set_result(key, val);
        Ok(val)
    }

    /// A call that is not followed, or whose sizes are stated otherwise, may be one that cannot run, so the result makes
    /// none that the source does not.
    fn note_foreign(&mut self, id: NodeId, key: u32) {
        if self.side == Side::After && key as usize >= self.first_call {
            self.found.foreign.get_or_insert(id);
        }
    }

    fn class(&mut self, target: Name) -> Class {
        let index = target.index();
        if self.classes.len() <= index {
            self.classes.resize(index + 1, None);
        }
        let graph = self.found.graph;
        *self.classes[index].get_or_insert_with(|| Class::of(graph.text(target)))
    }

    fn advance_states(&mut self, id: NodeId, key: u32, effects: &Effects) {
        if effects.fence == Fence::Free && !effects.launches {
            return;
        }
        let left = self.context.whole(Term::Part(key, u32::MAX), &Type::Unknown);
        match effects.fence {
            Fence::Free => {}
            Fence::Random => self.found.states[0] = left,
            Fence::Full => {
                self.found.states[1] = left;
                self.fences += 1;
            }
        }
        if effects.launches {
            self.found.states[2] = left;
            self.found.launching.push((id, self.found.launches.len()));
        }
    }

    fn meaning(&mut self, id: NodeId, target: Name, operands: &[Val]) -> Option<Val> {
        let graph = self.found.graph;
        let class = self.class(target);
        if !class.is_followed() {
            return None;
        }
        let name = if class.names_memory { self.context.text(graph.name_of(id)) } else { 0 };
        let call = Call {
            args: graph.args_of(id),
            operands,
            ty: graph.type_of(id),
            name,
            changes_device: changes_device(graph, id),
        };
        let val = meaning::of(self.context, class, &call)?;
        if let Some(tensor) = self.context.tensor(val) {
            self.found.pieces += tensor.flat.pieces.len();
        }
        Some(val)
    }

    fn finish(mut self) -> Result<Walked<'g>> {
        for index in 0..self.found.inputs.len() {
            let (id, _) = self.found.inputs[index];
            self.found.inputs[index].1 = self.read(id, id)?;
        }
        for index in 0..self.found.attributes.len() {
            let (id, ..) = self.found.attributes[index];
            self.found.attributes[index].2 = self.read(id, id)?;
        }
        Ok(self.found)
    }
}
