//! Graphs that a graph calls: the branches of `cond`, the body of `invoke_subgraph`.
//!
//! A call of a higher-order operator does what the graphs do that it is given. Where all of them are known, so are its
//! effects: it talks to other ranks, writes and draws as they do. Where one is not known, neither are they.
//!
//! A call that always runs its one graph, and whose graph launches known collectives and waits for each, is to the launches
//! around it as another launch. Any other call that communicates keeps its order with all of them: a branch may not launch at
//! all.

use super::args::Arg;
use super::communication;
use super::entities::NodeId;
use super::graph::Graph;
use super::operators::Operators;
use super::operators::{Alias, Effects, Fence, effects};
use super::ops::Op;
use super::types::Type;
use crate::ir::Short;
use hashbrown::HashSet;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use std::sync::{Arc, OnceLock};

/// Graphs by the attribute that holds them: `self.true_graph_0`.
#[derive(Clone, Debug, Default)]
pub struct Bodies(Arc<IndexMap<Box<str>, Option<Body>>>);

/// A graph that is called, and what it does, once that was asked for.
#[derive(Clone, Debug)]
struct Body {
    graph: Graph,
    /// With the declarations that it holds for.
    summary: OnceLock<(Operators, Summary)>,
}

/// What a graph does beside computing its results.
#[derive(Clone, Copy, Debug)]
struct Summary {
    fence: Fence,
    /// Whether it launches collectives that are known, and waits for each.
    launches: bool,
    /// Whether there is anything in it that other ranks take part in.
    communicates: bool,
    /// What it may write to.
    writes: OutsideMemory,
    /// What memory its results may be.
    aliases: OutsideMemory,
    /// Whether some of this is assumed, for an operator is not known.
    assumed: bool,
}

/// Memory that a graph did not make itself.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct OutsideMemory {
    /// What it is given.
    given: bool,
    /// What the module holds.
    held: bool,
}

impl OutsideMemory {
    const fn or(self, other: Self) -> Self {
        Self { given: self.given || other.given, held: self.held || other.held }
    }

    const fn is_any(self) -> bool {
        self.given || self.held
    }
}

impl Bodies {
    /// Changes the graphs in place.
    pub fn for_each_mut(&mut self, change: &mut dyn FnMut(&mut Graph)) {
        if self.is_empty() {
            return;
        }
        let mut bodies = Arc::unwrap_or_clone(std::mem::take(&mut self.0));
        for body in bodies.values_mut().flatten() {
            change(&mut body.graph);
            body.summary = OnceLock::new();
        }
        self.0 = Arc::new(bodies);
    }

    /// Adds the graph that an attribute holds. Of an attribute that has two different ones nothing is known.
    pub fn insert(&mut self, name: &str, graph: Graph) {
        self.0 = Arc::new({
            let mut bodies = Arc::unwrap_or_clone(std::mem::take(&mut self.0));
            let key = format!("self.{name}").into_boxed_str();
            let is_other = |known: &Option<Body>| known.as_ref().is_none_or(|body| body.graph != graph);
            let known = !bodies.get(&key).is_some_and(is_other);
            bodies.insert(key, known.then(|| Body { graph, summary: OnceLock::new() }));
            bodies
        });
    }

    /// The graph that an attribute holds, by its target: `self.true_graph_0`.
    #[must_use]
    pub fn get(&self, target: &str) -> Option<&Graph> {
        self.body(target).map(|body| &body.graph)
    }

    /// The graphs, in the order in which they came.
    pub fn graphs(&self) -> impl Iterator<Item = &Graph> {
        self.0.values().flatten().map(|body| &body.graph)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn body(&self, target: &str) -> Option<&Body> {
        self.0.get(target)?.as_ref()
    }

    /// What the graph of an attribute does, where its caller knows these operators.
    fn summary(&self, target: &str, operators: &Operators) -> Option<Summary> {
        let body = self.body(target)?;
        let find = || {
            let mut graph = body.graph.clone();
            graph.operators.clone_from(operators);
            (operators.clone(), summary(&graph))
        };
        let (known, summary) = body.summary.get_or_init(find);
        Some(if known == operators { *summary } else { find().1 })
    }
}

/// Higher-order operators that do nothing but run the graphs that they are given, some of them several times.
const RUNS_ITS_GRAPHS: &[&str] = &[
    "invoke_subgraph",
    "cond",
    "switch",
    "control_deps",
    "while_loop",
    "map",
    "map_impl",
    "scan",
    "associative_scan",
    "wrap",
    "wrap_activation_checkpoint",
    "tag_activation_checkpoint",
    "checkpoint",
    "strict_mode",
    "hints_wrapper",
    "invoke_quant",
    "invoke_quant_packed",
];

/// A call that runs one graph, or one of two, with what it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyCall<'g> {
    /// The attributes that hold the graphs; of two, the first runs where the predicate is true.
    pub targets: Short<&'g str, 2>,
    /// What says which of two runs.
    pub pick: Option<&'g Arg>,
    /// The values of the graphs' inputs.
    pub given: &'g [Arg],
}

/// Takes a call of one or two graphs apart: `invoke_subgraph(graph, name, *given)`, `cond(predicate, graph, graph, given)`.
#[must_use]
pub fn body_call(graph: &Graph, id: NodeId) -> Option<BodyCall<'_>> {
    let args = graph.args_of(id);
    if !args.keyword.is_empty() {
        return None;
    }
    let target = |arg| match arg {
        &Arg::Operand(index) => Some(graph.target_of(*graph.operands(id).get(index as usize)?)),
        Arg::Word(word) => graph.bodies.0.get_key_value(&*format!("self.{word}")).map(|(target, _)| &**target),
        _ => None,
    };
    let operator = graph.target_of(id).strip_prefix("higher_order.")?;
    match (operator.strip_suffix(".default").unwrap_or(operator), args.positional.as_slice()) {
        ("invoke_subgraph", [called, Arg::Str(_) | Arg::Word(_) | Arg::None, given @ ..]) => {
            Some(BodyCall { targets: Short::from([target(called)?]), pick: None, given })
        }
        ("cond", [pick, yes, no, rest @ ..]) => {
            let given = match rest {
                [] => &[][..],
                [Arg::Tuple(given) | Arg::List(given)] => given,
                _ => return None,
            };
            Some(BodyCall { targets: Short::from([target(yes)?, target(no)?]), pick: Some(pick), given })
        }
        _ => None,
    }
}

/// Whether a call runs its graph once, whatever its operands hold.
#[must_use]
pub fn always_runs(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.target_of(id), "higher_order.invoke_subgraph" | "higher_order.invoke_subgraph.default")
}

/// Whether a graph waits for all that it launches, and for nothing else; `None` if it launches nothing and waits for
/// nothing.
#[must_use]
pub fn waits_for_all(graph: &Graph) -> Option<bool> {
    // By arena index: the launch behind a value that nothing has waited for, and which of its tensors it is.
    let mut behind: Vec<Option<(NodeId, Option<i64>)>> = vec![None; graph.arena_len()];
    let mut open: HashSet<(NodeId, Option<i64>), FxBuildHasher> = HashSet::default();
    let mut found = None;
    for &id in graph.order() {
        let operands = graph.operands(id);
        match graph.node(id).op {
            Op::Collective(collective) => {
                found.get_or_insert(true);
                behind[id.index()] = Some((id, None));
                match graph.collective_inputs(id).len() as i64 {
                    count if collective.coalesced => open.extend((0..count).map(|index| (id, Some(index)))),
                    _ => drop(open.insert((id, None))),
                }
            }
            Op::Wait => {
                found.get_or_insert(true);
                for operand in operands {
                    // A second wait finds nothing in flight.
                    match behind[operand.index()] {
                        Some(launch) => drop(open.remove(&launch)),
                        None => return Some(false),
                    }
                }
                let lone = operands.first().filter(|_| !graph.waits_for_list(id));
                behind[id.index()] = lone.and_then(|operand| behind[operand.index()]);
            }
            Op::Call(target) if graph.text(target) == "operator.getitem" => {
                let of = operands.first().and_then(|operand| behind[operand.index()]);
                let index = graph.args_of(id).at(1, "index").and_then(Arg::as_int);
                behind[id.index()] = of.zip(index).map(|((launch, _), index)| (launch, Some(index)));
            }
            Op::Call(_) | Op::Input | Op::Output => {}
        }
    }
    found.map(|_| open.is_empty())
}

/// The targets of the graphs that a call is given; `None` if it is not a call that does what they do, or one of them is
/// not known.
#[must_use]
pub fn called_graphs(graph: &Graph, id: NodeId) -> Option<Vec<&str>> {
    if graph.bodies.is_empty() {
        return None;
    }
    let operator = graph.target_of(id).strip_prefix("higher_order.")?;
    let operator = operator.strip_suffix(".default").unwrap_or(operator);
    if !RUNS_ITS_GRAPHS.contains(&operator) {
        return None;
    }
    let mut found = Vec::new();
    for &operand in graph.operands(id) {
        let target = graph.target_of(operand);
        let is_attribute = matches!(graph.node(operand).op, Op::Call(_)) && target.starts_with("self.");
        // A tensor that the module holds has a type.
        if is_attribute && matches!(graph.type_of(operand), Type::Unknown) {
            found.push(graph.bodies.get(target).map(|_| target)?);
        }
    }
    let args = graph.args_of(id);
    let words = args.positional.iter().chain(args.keyword.iter().map(|(_, arg)| arg));
    for word in words.filter_map(|arg| if let Arg::Word(word) = arg { Some(word) } else { None }) {
        if let Some((target, body)) = graph.bodies.0.get_key_value(&*format!("self.{word}")) {
            found.push(body.as_ref().map(|_| &**target)?);
        }
    }
    (!found.is_empty()).then_some(found)
}

/// The first graph that a call runs and that communicates, by its target.
#[must_use]
pub fn communicating(graph: &Graph, id: NodeId) -> Option<&str> {
    let communicates =
        |target: &&str| graph.bodies.summary(target, &graph.operators).is_some_and(|summary| summary.communicates);
    called_graphs(graph, id)?.into_iter().find(communicates)
}

/// The effects of a call that does what graphs do which are known.
pub(super) fn effects_of_call(graph: &Graph, id: NodeId) -> Option<Effects> {
    let graphs = called_graphs(graph, id)?;
    let summaries: Vec<Summary> =
        graphs.into_iter().map(|target| graph.bodies.summary(target, &graph.operators)).collect::<Option<_>>()?;
    let mut all = summaries.into_iter().reduce(Summary::and)?;
    if all.launches && !always_runs(graph, id) {
        (all.fence, all.launches) = (Fence::Full, false);
    }
    let operands = 0..graph.operands(id).len() as u32;
    Some(Effects {
        alias: if all.aliases.is_any() { Alias::Any } else { Alias::Fresh },
        // What the module holds is not an operand.
        fence: if all.writes.held { Fence::Full } else { all.fence },
        launches: all.launches,
        writes: if all.writes.given { operands.collect() } else { Short::new() },
        assumed: all.assumed,
        ..Effects::pure()
    })
}

impl Summary {
    fn and(self, other: Self) -> Self {
        Self {
            fence: self.fence.max(other.fence),
            launches: self.launches || other.launches,
            communicates: self.communicates || other.communicates,
            writes: self.writes.or(other.writes),
            aliases: self.aliases.or(other.aliases),
            assumed: self.assumed || other.assumed,
        }
    }
}

/// What a graph does, from what its nodes do. Memory is followed from what it is given.
fn summary(graph: &Graph) -> Summary {
    let none = OutsideMemory::default();
    let mut all = Summary {
        fence: Fence::Free,
        launches: false,
        communicates: false,
        writes: none,
        aliases: none,
        assumed: false,
    };
    let mut memory = vec![none; graph.arena_len()];
    if waits_for_all(graph) == Some(false) {
        all.fence = Fence::Full;
    }
    for &id in graph.order() {
        let operands = graph.operands(id);
        let any = |memory: &[OutsideMemory]| operands.iter().fold(none, |found, of| found.or(memory[of.index()]));
        let node = match graph.node(id).op {
            Op::Output => {
                all.aliases = all.aliases.or(any(&memory));
                continue;
            }
            Op::Input => {
                memory[id.index()].given = true;
                continue;
            }
            Op::Wait | Op::Collective(_) => Effects { launches: true, ..effects(graph, id) },
            Op::Call(_) => effects(graph, id),
        };
        let of = |index: u32| operands.get(index as usize).map_or(none, |operand| memory[operand.index()]);
        let written = node.writes.iter().fold(none, |found, &index| found.or(of(index)));
        let own = match node.alias {
            Alias::Fresh => OutsideMemory { held: graph.target_of(id).starts_with("self."), ..none },
            Alias::Of(index) => of(index),
            Alias::Written => written,
            Alias::Any => any(&memory),
        };
        all = all.and(Summary {
            fence: node.fence,
            launches: node.launches,
            communicates: graph.collective(id).is_some()
                || communication::of(graph, id).is_some()
                || communicating(graph, id).is_some(),
            writes: written,
            aliases: none,
            assumed: node.assumed,
        });
        memory[id.index()] = own;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::text;

    fn caller(body: &str) -> Graph {
        let mut graph = text::parse(
            "x = input f32[8]\nb = self.body()\nc = higher_order.invoke_subgraph(b, \"s\", x)\nr = operator.getitem(c, 0)\noutput(r)\n",
        )
        .unwrap();
        graph.bodies.insert("body", text::parse(body).unwrap());
        graph
    }

    fn effects_with(body: &str) -> Effects {
        let graph = caller(body);
        let call = graph.order()[2];
        effects_of_call(&graph, call).expect("the body is known")
    }

    #[test]
    fn a_body_that_only_computes_is_no_wall() {
        let effects = effects_with("a = input f32[8]\nb = aten.mul.Tensor(a, 2) : f32[8]\noutput(b)\n");
        assert_eq!((effects.alias, effects.fence, effects.writes.len()), (Alias::Fresh, Fence::Free, 0));
    }

    #[test]
    fn a_body_hands_on_what_it_is_given_draws_writes_and_talks_for_its_caller() {
        let view = effects_with("a = input f32[8]\nb = aten.view.default(a, [2, 4]) : f32[2, 4]\noutput(b)\n");
        assert_eq!((view.alias, view.fence), (Alias::Any, Fence::Free));
        let draw = effects_with("a = input f32[8]\nb = aten.rand_like.default(a) : f32[8]\noutput(b)\n");
        assert_eq!((draw.alias, draw.fence), (Alias::Fresh, Fence::Random));
        let write = effects_with("a = input f32[8]\nb = aten.add_.Tensor(a, 1) : f32[8]\noutput(b)\n");
        assert_eq!((write.alias, write.fence, write.writes.as_slice()), (Alias::Any, Fence::Free, &[0, 1][..]));
        let own = effects_with(
            "a = input f32[8]\nc = aten.clone.default(a) : f32[8]\nb = aten.add_.Tensor(c, 1) : f32[8]\noutput(b)\n",
        );
        assert_eq!((own.alias, own.fence, own.writes.len()), (Alias::Fresh, Fence::Free, 0));
        let talk = effects_with("a = input f32[8]\nb = all_reduce(a, sum, G:2)\nw = wait(b)\noutput(w)\n");
        assert_eq!((talk.fence, talk.launches), (Fence::Free, true));
        let buffer = effects_with("a = input f32[8]\nb = self.buf() : f32[8]\noutput(b)\n");
        assert_eq!((buffer.alias, buffer.fence), (Alias::Any, Fence::Free));
        let update = effects_with(
            "a = input f32[8]\nb = self.buf() : f32[8]\nc = aten.add_.Tensor(b, a) : f32[8]\nd = aten.clone.default(a) : f32[8]\noutput(d)\n",
        );
        assert_eq!((update.alias, update.fence, update.writes.len()), (Alias::Fresh, Fence::Full, 0));
        let unknown = effects_with("a = input f32[8]\nb = mylib.two.default(a) : f32[8]\noutput(b)\n");
        assert!(unknown.assumed && unknown.writes.as_slice() == [0, 1] && unknown.alias == Alias::Any);
        // What the caller declares goes for the graphs that it calls.
        let mut graph = caller("a = input f32[8]\nb = mylib.two.default(a) : f32[8]\noutput(b)\n");
        for assumed in [true, false] {
            assert_eq!(effects_of_call(&graph, graph.order()[2]).unwrap().assumed, assumed);
            graph.operators.declare("mylib::two(Tensor x) -> Tensor").unwrap();
        }
    }

    #[test]
    fn a_call_is_a_launch_only_where_its_graph_waits_for_all_that_it_launches_and_for_nothing_else() {
        for left in [
            "a = input f32[8]\nb = all_reduce(a, sum, G:2)\noutput(b)\n",
            "a = input f32[8]\nw = wait(a)\noutput(w)\n",
            "a = input f32[8]\nb = all_reduce(a, sum, G:2)\nc = all_reduce(a, sum, G:2)\nw = wait(b)\nv = wait(b)\noutput(w)\n",
            "a = input f32[8]\nb = all_reduce_coalesced([a, a], sum, G:2)\nc = operator.getitem(b, 0)\nw = wait(c)\noutput(w)\n",
            "a = input f32[8]\nb = all_reduce(a, sum, G:2)\nw = wait(b)\nc10d.barrier.default()\noutput(w)\n",
        ] {
            let effects = effects_with(left);
            assert_eq!(effects.fence, Fence::Full, "{left}");
        }
        for whole in [
            "a = input f32[8]\nb = all_reduce_coalesced([a, a], sum, G:2)\nc = operator.getitem(b, 0)\nd = operator.getitem(b, 1)\nw = wait(c)\nv = wait(d)\noutput(w)\n",
            "a = input f32[8]\nb = all_reduce(a, sum, G:2)\nw = wait(b)\nv = wait(w)\noutput(v)\n",
        ] {
            let effects = effects_with(whole);
            assert_eq!((effects.fence, effects.launches), (Fence::Free, true), "{whole}");
        }
    }

    #[test]
    fn a_branch_that_communicates_is_a_fence() {
        let mut graph = text::parse(
            "x = input f32[8]\np = input b8[]\nb = self.body()\nc = higher_order.cond(p, b, b, [x])\nr = operator.getitem(c, 0)\noutput(r)\n",
        )
        .unwrap();
        let body = "a = input f32[8]\nb = all_reduce(a, sum, G:2)\nw = wait(b)\noutput(w)\n";
        graph.bodies.insert("body", text::parse(body).unwrap());
        let effects = effects_of_call(&graph, graph.order()[3]).expect("the body is known");
        assert_eq!((effects.fence, effects.launches), (Fence::Full, false));
    }

    #[test]
    fn a_call_of_a_graph_that_is_not_known_stays_unknown() {
        let graph = caller("a = input f32[8]\noutput(a)\n");
        let mut other = graph.clone();
        other.bodies = Bodies::default();
        assert_eq!(effects_of_call(&other, graph.order()[2]), None);
        other.bodies.insert("another", graph.bodies.get("self.body").unwrap().clone());
        assert_eq!(effects_of_call(&other, graph.order()[2]), None);
    }
}
