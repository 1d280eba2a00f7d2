//! A graph as the planner sees it: what takes time or has effects, what is sent, and what of both must come first.
//!
//! *Items* are the calls that take time or do more than make a value, and the collectives. All other nodes (casts, views,
//! waits) are *plumbing*: they take no time, go where they are needed, and matter for memory alone. What must come before an
//! item is read off [`Dependencies`] through the plumbing, so that memory, fences and control count as data do.
//!
//! Cost: linear in nodes and edges. Plumbing that more than [`MOST_SOURCES`] items lead to becomes an item itself, so that no
//! chain of it multiplies.

use super::Buckets;
use super::costs::{CopyCost, CostError, Costs, MessageCost, message_bytes, operand_bytes};
use super::fixed::{Behind, Fixed, blocks};
use super::timeline::members;
use crate::ir::operators::{Alias, Fence, element_index};
use crate::ir::{CollectiveKind, Dependencies, EffectTable, Graph, NodeId, Op, RegionId, Variant, communication};
use crate::passes::bucketing::{BucketKind, BucketOptions, MixedDtype, Mode, Unpack, View};
use crate::passes::liveness::value_bytes;
use crate::passes::memory::alive::{Arrivals, storages};
use crate::passes::rounds::Round;
use crate::passes::select::Caps;
use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

/// Most items that plumbing may lead back to.
const MOST_SOURCES: usize = 64;

/// No item, no class, no place.
pub(super) const NONE: u32 = u32::MAX;

/// Why a graph cannot be planned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field holds")]
#[non_exhaustive]
pub enum PlanError {
    #[error(transparent)]
    Cost(#[from] CostError),
    #[error(
        "`{node}` stands in a loop, a branch or a called graph that stands among what calls it; planning takes bodies that stand \
         above it, as HLO text has them, and graphs of one body, as PyTorch prints them"
    )]
    Region { node: String },
    #[error(
        "`{node}` communicates in `{body}`, the body of a loop, a branch or a call, and how often that runs is not known; planning \
         takes messages of the entry alone. Unroll or inline what runs it, or have its buckets from `rewrite`"
    )]
    MessageInBody { node: String, body: String },
    #[error(
        "the costs give a time to `{node}`, which is in `{body}`, the body of a loop, a branch or a call; give its whole time to \
         what runs it"
    )]
    TimeInBody { node: String, body: String },
    #[error(
        "a plan of your own takes programs of one body and without a schedule, and there is {found}; leave it to the plan"
    )]
    OwnForm { found: &'static str },
    #[error("the graph has {found} nodes that take time or communicate, which is above {most}")]
    TooLarge { found: usize, most: usize },
    #[error("a plan could not be put into its graph, which is a fault of bucketeer: {0}")]
    Apply(super::apply::ApplyError),
    #[error(
        "a peak of at most {cap_bytes} bytes is asked for; as it stands the graph needs {least_bytes}, and no plan was found below"
    )]
    Memory { cap_bytes: u64, least_bytes: u64 },
}

/// Whether a node stands in a loop, a branch or a called graph. All of it is its caller's time.
pub(super) fn is_in_body(graph: &Graph, id: NodeId) -> bool {
    graph.node(id).region != RegionId::ROOT
}

fn body_of(graph: &Graph, id: NodeId) -> String {
    graph.region(graph.node(id).region).label.to_string()
}

/// Whether a graph has a form that can be planned: messages stand outside of bodies, and bodies above all that calls them, so
/// that they stay where they are.
///
/// # Errors
/// [`PlanError`], naming the first node that stands where planning does not look.
pub fn plannable(graph: &Graph) -> Result<(), PlanError> {
    let mut calls_begun = false;
    for &id in graph.order() {
        if !is_in_body(graph, id) {
            calls_begun |= graph.node(id).op != Op::Input;
            continue;
        }
        let node = graph.name_of(id).to_owned();
        if graph.collective(id).is_some() || communication::of(graph, id).is_some() {
            return Err(PlanError::MessageInBody { node, body: body_of(graph, id) });
        }
        // What a body reads from outside of bodies is not there yet.
        if calls_begun || !graph.operands(id).iter().all(|&operand| is_in_body(graph, operand)) {
            return Err(PlanError::Region { node });
        }
    }
    Ok(())
}

/// A list of lists, end to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    pub fn with_capacity(lists: usize) -> Self {
        let mut starts = Vec::with_capacity(lists + 1);
        starts.push(0);
        Self { starts, items: Vec::new() }
    }

    pub fn push(&mut self, list: impl IntoIterator<Item = u32>) {
        self.items.extend(list);
        self.starts.push(self.items.len() as u32);
    }

    pub fn get(&self, index: usize) -> &[u32] {
        &self.items[self.starts[index] as usize..self.starts[index + 1] as usize]
    }

    /// For each of `count` numbers, the indices of the lists that hold it.
    pub fn inverted(&self, count: usize) -> Self {
        let mut starts = vec![0u32; count + 1];
        self.items.iter().for_each(|&item| starts[item as usize + 1] += 1);
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut next = starts.clone();
        let mut items = vec![0; self.items.len()];
        for list in 0..self.starts.len() - 1 {
            for &item in self.get(list) {
                items[next[item as usize] as usize] = list as u32;
                next[item as usize] += 1;
            }
        }
        Self { starts, items }
    }
}

/// A collective.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub node: NodeId,
    /// Index of its group's clock.
    pub group: u32,
    /// Bytes that its time is reckoned with.
    pub bytes: u64,
    /// Index of its cost.
    pub cost: u32,
    /// Collectives of equal class may travel together; [`NONE`] travels alone.
    pub class: u32,
    /// Whether it has no bytes and a plan of one's own may merge it, so that nothing is launched for it.
    pub vanishes: bool,
    /// Whether it is a bucket as it came, and so is packed and unpacked also where it travels alone.
    pub is_bucket: bool,
    /// Whether it is a gather, whose members are copied out where they are first read.
    pub gathers: bool,
    /// Whether what a bucket of them packs is apart from what it makes, as in a scatter.
    pub is_packed_apart: bool,
    /// Bytes of what is given to it, and of what it makes.
    pub operand_bytes: u64,
    pub result_bytes: u64,
    /// Whether its result is copied out of a bucket: it is written, or leaves the graph.
    pub is_copied: bool,
}

/// Something that has memory of its own: an item's result, or plumbing that copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage {
    pub node: NodeId,
    pub bytes: u64,
    pub maker: Maker,
    /// Whether it lives to the end.
    pub is_returned: bool,
}

/// Who makes a storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Maker {
    /// An item that computes.
    Compute(u32),
    /// A message, with its result.
    Message(u32),
    /// Plumbing, as soon as all that it comes from is there.
    Early(u32),
    /// Plumbing, where it is first read.
    Late(u32),
}

/// A graph, ready to be planned.
pub(super) struct Problem {
    /// Nodes of the items that compute, in program order.
    pub compute: Vec<NodeId>,
    /// Their times.
    pub compute_ns: Vec<u64>,
    pub messages: Vec<Message>,
    pub costs: Vec<MessageCost>,
    pub copy: CopyCost,
    pub groups: usize,
    /// By item: items that come before. Items that compute come first in the numbering, then messages.
    pub before: Lists,
    pub after: Lists,
    /// By item: messages that must have arrived.
    pub waits: Lists,
    pub storages: Vec<Storage>,
    /// By storage: the items that read it.
    pub item_uses: Lists,
    /// By storage: storages made by plumbing that reads it.
    pub copy_uses: Lists,
    /// By storage of plumbing: the items that it comes from, and the messages that must have arrived.
    pub sources: Lists,
    pub arrivals: Lists,
    /// By message: its result's storage.
    pub result_of: Vec<u32>,
    /// Place of each item in the program as it stands.
    pub as_written: Vec<u32>,
}

impl Problem {
    pub fn of(graph: &Graph, dependencies: &Dependencies, costs: &Costs, buckets: Buckets) -> Result<Self, PlanError> {
        plannable(graph)?;
        costs.check(graph)?;
        let in_body = |&&id: &&NodeId| is_in_body(graph, id) && costs.compute_ns.contains_key(graph.name_of(id));
        if let Some(&id) = graph.order().iter().find(in_body) {
            return Err(PlanError::TimeInBody { node: graph.name_of(id).to_owned(), body: body_of(graph, id) });
        }
        let effects = EffectTable::of(graph);
        let mut builder = Builder::new(graph, dependencies, costs, &effects);
        builder.items()?;
        let mut problem = builder.finish()?;
        // What a schedule has split is one message each: to merge them needs other shapes.
        if buckets == Buckets::Kept || graph.scheduled {
            problem.messages.iter_mut().for_each(|message| (message.class, message.vanishes) = (NONE, false));
        }
        Ok(problem)
    }

    /// How many items there are.
    pub fn item_count(&self) -> usize {
        self.compute.len() + self.messages.len()
    }

    /// The time of a message that travels by itself.
    pub fn alone_ns(&self, message: &Message) -> u64 {
        self.costs[message.cost as usize].ns(message.bytes)
    }

    /// Whether an item has to be over before another one that stands behind it begins: a message may only have to be launched.
    pub fn is_over(&self, first: usize, second: usize) -> bool {
        first.checked_sub(self.compute.len()).is_none_or(|message| self.waits.get(second).contains(&(message as u32)))
    }

    /// The number of a message among all items.
    pub fn item_of_message(&self, message: u32) -> u32 {
        self.compute.len() as u32 + message
    }
}

/// What leads to a node: items, and messages that must have arrived.
#[derive(Clone, Default)]
struct Sources {
    items: Vec<u32>,
    arrived: Vec<u32>,
}

impl Sources {
    fn add(&mut self, other: &Self) {
        self.items.extend_from_slice(&other.items);
        self.arrived.extend_from_slice(&other.arrived);
    }

    fn tidy(&mut self) {
        for list in [&mut self.items, &mut self.arrived] {
            list.sort_unstable();
            list.dedup();
        }
    }

    fn len(&self) -> usize {
        self.items.len() + self.arrived.len()
    }
}

/// Whether a call does no more than make a value.
pub(super) fn is_quiet(effects: &EffectTable, id: NodeId) -> bool {
    let effects = effects.get(id);
    effects.writes.is_empty()
        && effects.fence == Fence::Free
        && !effects.sets_mode
        && !effects.assumed
        && !effects.launches
        && matches!(effects.alias, Alias::Fresh | Alias::Of(_))
}

struct Builder<'a> {
    graph: &'a Graph,
    dependencies: &'a Dependencies,
    costs: &'a Costs,
    effects: &'a EffectTable,
    /// By arena index: the item that a node is, numbered as nodes come, or [`NONE`].
    item_of: Vec<u32>,
    /// Items as they come: their nodes and sources.
    nodes: Vec<NodeId>,
    sources: Vec<Sources>,
    /// By arena index of plumbing: what leads to it.
    through: Vec<Sources>,
    /// What a scheduled graph keeps.
    fixed: Option<Fixed<'a>>,
}

impl<'a> Builder<'a> {
    fn new(graph: &'a Graph, dependencies: &'a Dependencies, costs: &'a Costs, effects: &'a EffectTable) -> Self {
        Self {
            graph,
            dependencies,
            costs,
            effects,
            item_of: vec![NONE; graph.arena_len()],
            nodes: Vec::new(),
            sources: Vec::new(),
            through: vec![Sources::default(); graph.arena_len()],
            fixed: graph.scheduled.then(|| Fixed::new(graph, effects)),
        }
    }

    /// Whether a collective is sent beside what computes.
    fn is_message(&self, id: NodeId) -> bool {
        self.graph.collective(id).is_some() && !blocks(self.graph, id)
    }

    /// Whether a call does more than make a value, or takes time; in a schedule, whether it does more than name one.
    fn is_item(&self, id: NodeId) -> bool {
        let stays = |fixed: &Fixed<'_>| !fixed.names(id);
        self.fixed.as_ref().is_some_and(stays)
            || !is_quiet(self.effects, id)
            || self.costs.compute_ns.get(self.graph.name_of(id)).is_some_and(|&ns| ns > 0)
    }

    /// Finds the items and what leads to each node.
    fn items(&mut self) -> Result<(), PlanError> {
        let graph = self.graph;
        let (mut arrivals, mut launched) = (Arrivals::new(graph, self.effects), Vec::new());
        for &id in graph.order() {
            let op = graph.node(id).op;
            if matches!(op, Op::Input | Op::Output) || is_in_body(graph, id) {
                if let (Op::Input, Some(fixed)) = (op, &mut self.fixed) {
                    fixed.node(id);
                }
                continue;
            }
            // A wait may stand behind other launches, too, as they read what it is for: these need not have arrived.
            let mut awaited: Vec<NodeId> = Vec::new();
            match op {
                Op::Collective(_) => {
                    arrivals.launch(graph, self.effects, id);
                    launched.push(id);
                }
                Op::Call(_) => arrivals.call(graph, id),
                Op::Wait => {
                    let launches = graph.operands(id).iter().flat_map(|&operand| arrivals.waited_by(operand));
                    awaited.extend(launches.map(|at| launched[at]).filter(|&launch| self.is_message(launch)));
                }
                Op::Input | Op::Output => {}
            }
            let mut sources = Sources::default();
            for (slot, _) in self.dependencies.before_with_reason(self.dependencies.slot_of(id)) {
                let Some(before) = self.dependencies.node(slot) else { continue };
                match self.item_of[before.index()] {
                    NONE => {
                        let through = std::mem::take(&mut self.through[before.index()]);
                        sources.add(&through);
                        self.through[before.index()] = through;
                    }
                    // A wait makes its collective's result valid.
                    item if awaited.contains(&before) => sources.arrived.push(item),
                    item => sources.items.push(item),
                }
            }
            if let Some(fixed) = &mut self.fixed {
                let Behind { nodes, arrived } = fixed.node(id);
                let item = |id: &NodeId| Some(self.item_of[id.index()]).filter(|&item| item != NONE);
                sources.items.extend(nodes.iter().filter_map(item));
                sources.arrived.extend(arrived.iter().filter_map(item));
            }
            // A wait for a part of a list is one for the launch.
            sources.arrived.extend(awaited.iter().map(|launch| self.item_of[launch.index()]));
            sources.tidy();
            let is_item = match op {
                Op::Collective(_) => true,
                Op::Call(_) => self.is_item(id) || sources.len() > MOST_SOURCES,
                Op::Wait | Op::Input | Op::Output => false,
            };
            if is_item {
                self.item_of[id.index()] = self.nodes.len() as u32;
                self.nodes.push(id);
                self.sources.push(sources);
            } else {
                self.through[id.index()] = sources;
            }
        }
        let most = (u32::MAX / 4) as usize;
        if self.nodes.len() > most { Err(PlanError::TooLarge { found: self.nodes.len(), most }) } else { Ok(()) }
    }

    /// How long computation takes at an item: a collective that blocks takes its message's time.
    fn compute_ns(&self, id: NodeId) -> Result<u64, CostError> {
        if self.graph.collective(id).is_some() {
            return Ok(self.costs.of_collective(self.graph, id)?.ns(message_bytes(self.graph, id)?));
        }
        Ok(self.costs.compute_ns.get(self.graph.name_of(id)).copied().unwrap_or(0))
    }

    fn finish(self) -> Result<Problem, PlanError> {
        let graph = self.graph;
        let is_message = |item: u32| self.is_message(self.nodes[item as usize]);
        // Items that compute first, then messages.
        let (mut compute, mut sent) = (Vec::new(), Vec::new());
        for item in 0..self.nodes.len() as u32 {
            if is_message(item) { sent.push(item) } else { compute.push(item) }
        }
        let mut number = vec![NONE; self.nodes.len()];
        for (at, &item) in compute.iter().chain(&sent).enumerate() {
            number[item as usize] = at as u32;
        }
        let messages_from = compute.len() as u32;
        let renumbered = |items: &[u32]| -> Vec<u32> { items.iter().map(|&item| number[item as usize]).collect() };
        let arrivals_of =
            |items: &[u32]| -> Vec<u32> { items.iter().map(|&item| number[item as usize] - messages_from).collect() };
        let (mut before, mut waits) = (Lists::with_capacity(self.nodes.len()), Lists::with_capacity(self.nodes.len()));
        let mut as_written = Vec::with_capacity(self.nodes.len());
        for &item in compute.iter().chain(&sent) {
            let Sources { items, arrived } = &self.sources[item as usize];
            let mut all: Vec<u32> = renumbered(items);
            all.extend(renumbered(arrived));
            all.sort_unstable();
            all.dedup();
            before.push(all);
            waits.push(arrivals_of(arrived));
            as_written.push(item);
        }
        let after = before.inverted(self.nodes.len());
        let (messages, costs) = self.messages(&sent)?;
        let compute_nodes: Vec<NodeId> = compute.iter().map(|&item| self.nodes[item as usize]).collect();
        let compute_ns =
            compute_nodes.iter().map(|&id| self.compute_ns(id)).collect::<Result<Vec<u64>, CostError>>()?;
        let mut problem = Problem {
            compute_ns,
            compute: compute_nodes,
            messages,
            costs,
            // Buckets of HLO take their members as they are.
            copy: if graph.hlo.is_some() { CopyCost::default() } else { self.costs.copy },
            groups: graph.groups().len(),
            before,
            after,
            waits,
            storages: Vec::new(),
            item_uses: Lists::default(),
            copy_uses: Lists::default(),
            sources: Lists::default(),
            arrivals: Lists::default(),
            result_of: vec![NONE; sent.len()],
            as_written,
        };
        self.storages(&mut problem, &number);
        Ok(problem)
    }

    fn messages(&self, sent: &[u32]) -> Result<(Vec<Message>, Vec<MessageCost>), PlanError> {
        let graph = self.graph;
        let classes = self.classes();
        let mut costs: IndexSet<MessageCost, FxBuildHasher> = IndexSet::default();
        let mut messages = Vec::with_capacity(sent.len());
        for &item in sent {
            let node = self.nodes[item as usize];
            let cost = self.costs.of_collective(graph, node)?;
            let size = || CostError::Size { node: graph.name_of(node).to_owned() };
            let Some(collective) = graph.collective(node) else { continue };
            let bytes = message_bytes(graph, node)?;
            // Without bytes there is nothing to pack: the planner sends it alone.
            let class = classes[node.index()];
            let (class, vanishes) = if bytes > 0 { (class, false) } else { (NONE, class != NONE) };
            messages.push(Message {
                node,
                group: collective.group.index() as u32,
                bytes,
                cost: costs.insert_full(cost.clone()).0 as u32,
                class,
                vanishes,
                is_bucket: members(graph, node) > 1,
                gathers: matches!(collective.kind, CollectiveKind::AllGather { .. }),
                is_packed_apart: matches!(collective.kind, CollectiveKind::ReduceScatter { .. }),
                operand_bytes: operand_bytes(graph, node).ok_or_else(size)?,
                result_bytes: match collective.variant {
                    Variant::Functional => value_bytes(graph, node).ok_or_else(size)?,
                    Variant::InPlace | Variant::Out => 0,
                },
                is_copied: self.dependencies.is_written(node) || self.dependencies.escapes(node),
            });
        }
        Ok((messages, costs.into_iter().collect()))
    }

    /// By arena index: what a collective agrees on with those that it may travel with.
    fn classes(&self) -> Vec<u32> {
        let mut classes = vec![NONE; self.graph.arena_len()];
        let mut keys = IndexSet::<_, FxBuildHasher>::default();
        for kind in KINDS {
            let options = bucket_options(self.graph, kind);
            if !options.applies_to(self.graph) {
                continue;
            }
            let view = View::new(self.graph, self.dependencies, &options, Round::Only, None);
            for slot in 0..self.dependencies.slots().len() {
                if let (Some(entry), Some(id)) = (view.candidate_at(slot), self.dependencies.node(slot)) {
                    classes[id.index()] = keys.insert_full(entry.key).0 as u32;
                }
            }
        }
        classes
    }

    /// Memory: who makes what, and who reads it.
    fn storages(&self, problem: &mut Problem, number: &[u32]) {
        let graph = self.graph;
        let owner = storages(graph, self.effects);
        let messages_from = problem.compute.len() as u32;
        let mut index = vec![NONE; graph.arena_len()];
        let mut wholes = vec![NONE; graph.arena_len()];
        for &id in graph.order() {
            if owner[id.index()] != Some(id) || is_in_body(graph, id) {
                continue;
            }
            let item = match self.item_of[id.index()] {
                NONE => NONE,
                item => number[item as usize],
            };
            // What is taken out of a result of several parts is there from where that is made.
            let whole = element_index(graph, id).and_then(|_| graph.operands(id).first().copied());
            let whole_item = whole.map_or(NONE, |whole| match self.item_of[whole.index()] {
                NONE => NONE,
                item => number[item as usize],
            });
            let maker = match (item, whole_item) {
                (NONE, item) if item != NONE && item < messages_from => Maker::Compute(item),
                (NONE, item) if item != NONE => Maker::Message(item - messages_from),
                (NONE, _) if self.is_early(id) => Maker::Early(0),
                (NONE, _) => Maker::Late(0),
                (item, _) if item < messages_from => Maker::Compute(item),
                (item, _) => Maker::Message(item - messages_from),
            };
            if let (Maker::Message(message), NONE) = (maker, whole_item) {
                problem.result_of[message as usize] = problem.storages.len() as u32;
            }
            index[id.index()] = problem.storages.len() as u32;
            wholes[id.index()] = whole_item;
            let bytes = if matches!(graph.type_of(id), crate::ir::Type::Tuple(_)) {
                0
            } else {
                value_bytes(graph, id).unwrap_or(0)
            };
            problem.storages.push(Storage { node: id, bytes, maker, is_returned: false });
        }
        let count = problem.storages.len();
        let (mut items, mut copies) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for &id in graph.order().iter().filter(|&&id| !is_in_body(graph, id)) {
            for &operand in graph.operands(id) {
                let Some(of) = owner[operand.index()].filter(|of| index[of.index()] != NONE) else { continue };
                let storage = index[of.index()] as usize;
                let own = owner[id.index()].map_or(NONE, |own| index[own.index()]);
                match (graph.node(id).op, self.item_of[id.index()]) {
                    (Op::Output, _) => problem.storages[storage].is_returned = true,
                    (_, NONE) => {
                        // Plumbing that makes a copy reads where it stands; a view is read through.
                        if own != NONE && own as usize != storage && owner[id.index()] == Some(id) {
                            copies[storage].push(own);
                        }
                    }
                    (_, item) => items[storage].push(number[item as usize]),
                }
            }
        }
        let flat = |lists: Vec<Vec<u32>>| {
            let mut all = Lists::with_capacity(count);
            for mut list in lists {
                list.sort_unstable();
                list.dedup();
                all.push(list);
            }
            all
        };
        problem.item_uses = flat(items);
        problem.copy_uses = flat(copies);
        let (mut sources, mut arrivals) = (Lists::with_capacity(count), Lists::with_capacity(count));
        for at in 0..count {
            let Storage { node, maker, .. } = problem.storages[at];
            let through = match maker {
                Maker::Early(_) | Maker::Late(_) => self.through[node.index()].clone(),
                Maker::Compute(_) | Maker::Message(_) => Sources::default(),
            };
            sources.push(through.items.iter().map(|&item| number[item as usize]));
            arrivals.push(through.arrived.iter().map(|&item| number[item as usize] - messages_from));
            problem.storages[at].maker = match maker {
                Maker::Early(_) => Maker::Early(at as u32),
                Maker::Late(_) => Maker::Late(at as u32),
                other => other,
            };
        }
        problem.sources = sources;
        problem.arrivals = arrivals;
    }

    /// Whether plumbing that makes a copy runs as soon as it can: it needs less than what it is made from, which something
    /// in the graph makes.
    fn is_early(&self, id: NodeId) -> bool {
        let graph = self.graph;
        let given = graph.operands(id).iter().filter_map(|&operand| value_bytes(graph, operand)).sum::<u64>();
        let made = value_bytes(graph, id).unwrap_or(0);
        let through = &self.through[id.index()];
        // A gather is waited for where it is read, so what is made from it can wait too.
        let gathers = |&item: &u32| {
            let collective = graph.collective(self.nodes[item as usize]);
            collective.is_some_and(|found| matches!(found.kind, CollectiveKind::AllGather { .. }))
        };
        through.len() > 0 && made < given && !through.arrived.iter().any(gathers)
    }
}

/// Kinds that the planner merges.
pub(super) const KINDS: [BucketKind; 3] = [BucketKind::AllGather, BucketKind::ReduceScatter, BucketKind::AllReduce];

/// The options that its buckets are made with: no cap, as the plan says what travels together. In HLO a bucket takes its
/// members as they are, of any dtypes where nothing is summed.
#[must_use]
pub fn bucket_options(graph: &Graph, kind: BucketKind) -> BucketOptions {
    let mut options = BucketOptions { caps: Caps::default(), ..BucketOptions::new(kind) };
    if graph.hlo.is_some() {
        (options.mode, options.unpack) = (Mode::Coalesced, Unpack::Views);
        options.mixed_dtype = if kind.mixes_dtypes() { MixedDtype::Bytes } else { MixedDtype::Split };
    }
    options
}
