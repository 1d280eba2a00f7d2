//! What operators do beside making a value: the checker's own reading, which the passes do not share.
//!
//! # Sources, the first that knows the operator counts
//!
//! 1. What the user declared (`graph.operators`).
//! 2. How graphs are spelled: HLO, Python's own operators and functions, modules, graphs in graphs   (python.rs).
//! 3. PyTorch's schemas (`schemas/torch.txt`, schema.rs, table.rs), and what they leave out           (undeclared.rs).
//! 4. **May**: what nothing describes may write and hand on each tensor that it is given, and may draw random numbers. If
//!    it is given nothing and nothing reads it, it is there for what it does elsewhere: a fence.
//!
//! A name without a namespace, as in native text, is that of `aten`, then of `prims`; without an overload, it may be any.

mod bodies;
mod python;
mod reading;
pub(super) mod schema;
pub(super) mod table;
mod undeclared;

use crate::ir::operators::split_target;
use crate::ir::{Arg, Args, Collective, Graph, NodeId, Op, Operators, Type, TypeId, Variant};
use hashbrown::HashMap;
use reading::Operator;
use rustc_hash::FxBuildHasher;
use schema::Schema;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::rc::Rc;

/// Operands, by index.
pub(super) type Indices = SmallVec<[u32; 1]>;

/// Whose memory a result is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alias {
    /// Its own.
    Fresh,
    /// That of one operand.
    Of(u32),
    /// A tuple of what is written, in order.
    Written,
    /// Perhaps that of any operand.
    Any,
}

/// What keeps a call in its place beside data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fence {
    /// Nothing.
    Free,
    /// It draws random numbers, or may.
    Random,
    /// It may talk to other ranks, or to the world.
    Full,
}

/// What a call reads beside the elements of its operands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Placement {
    /// Nothing.
    Unseen,
    /// The strides of its first operand.
    Strides,
    /// Where in which memory its first operand lies.
    Place,
}

/// Everything about a call that is not data flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Effects {
    pub alias: Alias,
    pub writes: Indices,
    pub fence: Fence,
    /// Whether it launches known collectives each time, in a graph that it calls, and leaves none in flight.
    pub launches: bool,
    /// Whether it reads only the shapes of its operands.
    pub shape_only: bool,
    pub placement: Placement,
    /// Whether it changes which elements its first operand shows: `t_`, `resize_`, `set_`.
    pub reshapes: bool,
    /// Whether what comes after it computes otherwise: autocast, default dtypes.
    pub sets_mode: bool,
    /// Whether nothing describes it: what it does is only what it may do.
    pub may: bool,
}

impl Effects {
    fn pure() -> Self {
        Self {
            alias: Alias::Fresh,
            writes: SmallVec::new(),
            fence: Fence::Free,
            launches: false,
            shape_only: false,
            placement: Placement::Unseen,
            reshapes: false,
            sets_mode: false,
            may: false,
        }
    }

    fn alias(alias: Alias) -> Self {
        Self { alias, ..Self::pure() }
    }

    /// What an operator may do that nothing describes.
    fn may(args: &Args) -> Self {
        let mut writes = Indices::new();
        args.for_each_operand(&mut |index| writes.push(index));
        let alias = if writes.is_empty() { Alias::Fresh } else { Alias::Any };
        Self { alias, writes, fence: Fence::Random, may: true, ..Self::pure() }
    }

    /// What an operator may do that may communicate.
    fn fence(args: &Args) -> Self {
        Self { fence: Fence::Full, may: false, ..Self::may(args) }
    }

    /// Whether the call hands its operand's memory on and does nothing else.
    pub fn is_view(&self) -> bool {
        matches!(self.alias, Alias::Of(_)) && self.writes.is_empty() && self.fence == Fence::Free && !self.launches
    }

    /// What either does.
    fn or(mut self, other: &Self) -> Self {
        for &index in &other.writes {
            if !self.writes.contains(&index) {
                self.writes.push(index);
            }
        }
        self.alias = if self.alias == other.alias { self.alias } else { Alias::Any };
        self.fence = self.fence.max(other.fence);
        self.launches |= other.launches;
        self.shape_only &= other.shape_only;
        self.placement = self.placement.max(other.placement);
        self.reshapes |= other.reshapes;
        self.sets_mode |= other.sets_mode;
        self.may |= other.may;
        self
    }
}

/// Whether operators that nothing describes are taken at the worst, or to do nothing: to tell what a proof would rest on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Unknown {
    #[default]
    May,
    Pure,
}

/// Effects of every node, found once for each distinct call.
pub(super) struct EffectTable {
    index: Vec<u32>,
    distinct: Vec<Effects>,
    /// Whether anything is written.
    pub writes: bool,
}

impl EffectTable {
    /// Of a graph whose operators are declared as in `declared`.
    pub fn of(graph: &Graph, declared: &Operators, unknown: Unknown) -> Self {
        let mut known = HashMap::<_, u32, FxBuildHasher>::default();
        let reader = Reader { library: Library::default(), bodies: RefCell::default(), declared, unknown };
        let mut table = Self { index: vec![0; graph.arena_len()], distinct: Vec::new(), writes: false };
        let read = readers(graph);
        for &id in graph.order() {
            let node = graph.node(id);
            let called = graph.operands(id).first().filter(|_| !graph.bodies.is_empty()).copied();
            let key = (node.op, node.args, node.ty != TypeId::UNKNOWN, read[id.index()], called);
            let index = *known.entry(key).or_insert_with(|| {
                table.distinct.push(of(&reader, graph, id, read[id.index()]));
                table.distinct.len() as u32 - 1
            });
            table.index[id.index()] = index;
        }
        table.writes = table.distinct.iter().any(|effects| !effects.writes.is_empty());
        table
    }

    pub fn get(&self, id: NodeId) -> &Effects {
        &self.distinct[self.index[id.index()] as usize]
    }
}

/// By arena index: whether anything uses a node.
fn readers(graph: &Graph) -> Vec<bool> {
    let mut read = vec![false; graph.arena_len()];
    for &id in graph.order() {
        for operand in graph.operands(id) {
            read[operand.index()] = true;
        }
    }
    read
}

/// Calls that nothing describes.
pub(super) fn unknown(graph: &Graph, declared: &Operators) -> Vec<NodeId> {
    let table = EffectTable::of(graph, declared, Unknown::May);
    if table.distinct.iter().all(|effects| !effects.may) {
        return Vec::new();
    }
    graph.order().iter().copied().filter(|&id| table.get(id).may).collect()
}

/// An operator as users declare it: without the overload that is the default.
pub(super) fn operator_name(graph: &Graph, id: NodeId) -> String {
    let target = graph.target_of(id);
    target.strip_suffix(".default").unwrap_or(target).to_owned()
}

/// Whether a value may have memory: sizes and tokens have none.
pub(super) fn has_memory(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.type_of(id), Type::Tensor(_) | Type::Tuple(_) | Type::Unknown)
}

/// What the reading of a graph's effects goes by.
struct Reader<'o> {
    library: Library,
    /// What graphs do that are called, by the attribute that holds them.
    bodies: RefCell<HashMap<Box<str>, bodies::Summary, FxBuildHasher>>,
    declared: &'o Operators,
    unknown: Unknown,
}

fn of(reader: &Reader<'_>, graph: &Graph, id: NodeId, is_read: bool) -> Effects {
    let node = graph.node(id);
    match node.op {
        Op::Input | Op::Output => Effects::pure(),
        // The tensors of the list are those that are waited for.
        Op::Wait if graph.waits_for_list(id) => Effects::alias(Alias::Any),
        Op::Wait => Effects::alias(Alias::Of(0)),
        Op::Collective(collective) => of_collective(graph, id, collective),
        Op::Call(target) => {
            let args = graph.args_of(id);
            let known = bodies::effects(reader, graph, id);
            let effects = known.unwrap_or_else(|| of_call(&reader.library, graph.text(target), args, reader.declared));
            match reader.unknown {
                Unknown::Pure if effects.may => Effects::pure(),
                Unknown::May if effects.may && effects.writes.is_empty() && !is_read => {
                    Effects { fence: Fence::Full, sets_mode: true, ..effects }
                }
                _ => effects,
            }
        }
    }
}

fn of_collective(graph: &Graph, id: NodeId, collective: Collective) -> Effects {
    let writes: Indices = match collective.variant {
        Variant::Functional => return Effects::pure(),
        Variant::InPlace => (0..graph.collective_inputs(id).len() as u32).collect(),
        Variant::Out => {
            let mut writes = Indices::new();
            if let Some(out) = graph.args_of(id).get("out") {
                out.for_each_operand(&mut |index| writes.push(index));
            }
            writes
        }
    };
    let alias = if let [only] = writes[..] { Alias::Of(only) } else { Alias::Written };
    Effects { alias, writes, ..Effects::pure() }
}

/// The effects of a call, by target and arguments.
fn of_call(library: &Library, target: &str, args: &Args, declared: &Operators) -> Effects {
    if let Some(schema) = declared.schema(target).and_then(Schema::read) {
        let communicates = schema.has_tag("communicates");
        let effects = Operator::declared(schema).read(args).unwrap_or_else(|| Effects::may(args));
        let fence = if communicates { Fence::Full } else { effects.fence };
        return Effects { fence, ..effects };
    }
    if let Some(effects) = python::spelled(library, target, args) {
        return effects;
    }
    let (namespace, name, overload) = split_target(target);
    if target.split('.').count() > 3 {
        return Effects::fence(args);
    }
    if communicates(namespace, name) {
        let declared = says_what_it_writes(namespace).then(|| library.effects(namespace, name, overload, args));
        return declared
            .flatten()
            .map_or_else(|| Effects::fence(args), |effects| Effects { fence: Fence::Full, ..effects });
    }
    library.effects(namespace, name, overload, args).unwrap_or_else(|| Effects::may(args))
}

/// Namespaces of communication, and names that mean it in any.
fn communicates(namespace: &str, name: &str) -> bool {
    let spaces = [
        "c10d",
        "c10d_functional",
        "_c10d_functional",
        "_c10d_functional_autograd",
        "symm_mem",
        "opaque_comm",
        // Streams and devices order what is not in the graph.
        "streams",
        "cuda",
        "rpc",
        "profiler",
        "mempool",
        "debug_mode_ops",
    ];
    let names =
        ["send", "recv", "isend", "irecv", "barrier", "monitored_barrier", "batch_p2p_ops", "shard_dim_alltoall"];
    spaces.contains(&namespace) || names.contains(&name)
}

/// Of communication: whether its schemas say what is written. Those of `c10d` and of symmetric memory do not.
fn says_what_it_writes(namespace: &str) -> bool {
    matches!(namespace, "c10d_functional" | "_c10d_functional" | "_c10d_functional_autograd" | "_dtensor")
}

/// PyTorch's schemas, each read once.
#[derive(Default)]
struct Library {
    known: RefCell<HashMap<Box<str>, Rc<[Operator<'static>]>, FxBuildHasher>>,
}

impl Library {
    /// What a call does: of one overload, or of any where none is said.
    fn effects(&self, namespace: &str, name: &str, overload: &str, args: &Args) -> Option<Effects> {
        let spaces: &[&str] = if namespace.is_empty() { &["aten", "prims"] } else { &[namespace] };
        spaces.iter().find_map(|space| {
            let operators = self.operators(space, name, overload);
            let read = |containers: bool| {
                let asked = operators.iter().filter(move |operator| operator.writes_container == containers);
                asked.filter_map(|operator| operator.read(args)).reduce(|all, one| all.or(&one))
            };
            // What sorts or reverses a list in place has the name of what makes a tensor: it takes a list.
            let takes_list = args.positional.iter().any(|arg| matches!(arg, Arg::List(_) | Arg::Tuple(_)));
            match read(false) {
                Some(found) if !takes_list => Some(found),
                found => found.into_iter().chain(read(true)).reduce(|all, one| all.or(&one)),
            }
        })
    }

    fn operators(&self, namespace: &str, name: &str, overload: &str) -> Rc<[Operator<'static>]> {
        let target = format!("{namespace}.{name}.{overload}");
        if let Some(known) = self.known.borrow().get(&*target) {
            return known.clone();
        }
        let lines = match overload {
            "" => table::overloads(namespace, name),
            _ => table::overload(namespace, name, overload).into_iter().collect(),
        };
        let schemas: Vec<Schema<'_>> = lines.into_iter().filter_map(Schema::read).collect();
        // Lists and texts have operators of the same names.
        let of_tensors = schemas.iter().any(Schema::has_tensors);
        let schemas = schemas.into_iter().filter(|schema| schema.has_tensors() || !of_tensors);
        let operators: Rc<[Operator<'_>]> = schemas.filter_map(Operator::of_pytorch).collect();
        self.known.borrow_mut().insert(target.into(), operators.clone());
        operators
    }
}

/// A reading of one call, to be held against another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Operands that are written.
    pub writes: Vec<u32>,
    /// Whose memory the result is.
    pub alias: Alias,
    /// What keeps it in place.
    pub fence: Fence,
}

/// PyTorch's schemas, as the checker reads them.
pub fn schema_lines() -> impl Iterator<Item = &'static str> {
    table::lines()
}

/// What a call does by a schema line; `None` if that is not one, or not of such a call.
#[must_use]
pub fn read_line(line: &str, args: &Args) -> Option<Reading> {
    let operator = Operator::of_pytorch(Schema::read(line)?)?;
    let effects = match communicates(operator.namespace, operator.name) {
        true if !says_what_it_writes(operator.namespace) => Effects::fence(args),
        true => Effects { fence: Fence::Full, ..operator.read(args)? },
        false => operator.read(args)?,
    };
    let mut writes = effects.writes.to_vec();
    writes.sort_unstable();
    writes.dedup();
    Some(Reading { writes, alias: effects.alias, fence: effects.fence })
}
