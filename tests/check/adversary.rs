//! Pairs of graphs that differ in one thing, which the checker must never call equal; and pairs that differ in nothing
//! that counts, which it must.
//!
//! The pairs are made from PyTorch's schemas and from the list of collectives, not by hand, so that no kind of
//! difference is left out because nobody thought of it. Each test says how many pairs it made, with `--nocapture`, and
//! fails if they are fewer than they were.

mod collectives;
mod followed;
mod schema;

use bucketeer::check::prove;
use bucketeer::ir::operators::Fence;
use bucketeer::ir::text::{parse, print};
use bucketeer::ir::{Graph, NodeId, Op};
use bucketeer_fuzzing::grow::GraphOptions;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use schema::{Parameter, Schema, schemas, values};
use std::collections::BTreeMap;

/// Inputs of every graph: squares, so that any dimension may be named.
const INPUTS: &str = "x = input f32[4, 4]; y = input f32[4, 4]";

/// Arguments of which another value changes nothing, each with why.
const SAYS_NOTHING: &[(&str, &str, &str)] = &[
    ("aten.squeeze.dim", "dim", "no dimension of the tensor has size 1"),
    ("aten.squeeze_copy.dim", "dim", "no dimension of the tensor has size 1"),
    ("aten.squeeze.dims", "dim", "no dimension of the tensor has size 1"),
    ("aten.squeeze_copy.dims", "dim", "no dimension of the tensor has size 1"),
    ("aten.expand.default", "implicit", "says how the call was written"),
    ("aten.expand_as.default", "other", "its shape is read, and both have one"),
    ("aten.view_as.default", "other", "its shape is read, and both have one"),
    ("aten.reshape_as.default", "other", "its shape is read, and both have one"),
    ("aten.narrow.default", "start", "nothing is taken, from wherever"),
    ("aten.copy_.default", "non_blocking", "what reads the copy later sees it, on one device"),
];

/// Schemas that say something else than their operators do, each with why.
const MISMARKED: &[(&str, &str)] = &[("prims.as_strided.default", "views of prims are marked as if they wrote")];

/// What was tried.
#[derive(Default)]
struct Tally {
    pairs: BTreeMap<&'static str, usize>,
    /// Graphs that are equal to themselves: of others no pair says anything.
    sound: usize,
    all: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn try_pair(&mut self, kind: &'static str, one: &str, other: &str) {
        let (Some(a), Some(b)) = (read(one), read(other)) else { return };
        *self.pairs.entry(kind).or_default() += 1;
        self.all += 1;
        self.sound += usize::from(prove(&a, &a).is_equal());
        if prove(&a, &b).is_equal() || prove(&b, &a).is_equal() {
            self.wrong.push(format!("{kind}:\n{one}\n--\n{other}"));
        }
    }

    /// A pair of which the second may not stand for the first, though the first may for the second.
    fn try_one_way(&mut self, kind: &'static str, before: &str, after: &str) {
        let (Some(a), Some(b)) = (read(before), read(after)) else { return };
        *self.pairs.entry(kind).or_default() += 1;
        self.all += 1;
        self.sound += usize::from(prove(&a, &a).is_equal());
        if prove(&a, &b).is_equal() {
            self.wrong.push(format!("{kind}:\n{before}\n--\n{after}"));
        }
    }

    /// Asserts that no pair was called equal, and that there were as many as are named.
    #[track_caller]
    fn finish(&self, least: &[(&str, usize)]) {
        for (kind, count) in &self.pairs {
            println!("{kind}: {count} pairs");
        }
        println!("{} of {} graphs are equal to themselves", self.sound, self.all);
        let shown: Vec<&str> = self.wrong.iter().take(20).map(String::as_str).collect();
        assert!(self.wrong.is_empty(), "{} pairs called equal, such as\n{}", self.wrong.len(), shown.join("\n\n"));
        for &(kind, least) in least {
            let count = self.pairs.get(kind).copied().unwrap_or(0);
            assert!(count >= least, "{count} pairs of kind `{kind}`, expected {least} at least");
        }
    }
}

fn read(text: &str) -> Option<Graph> {
    parse(text).ok()
}

/// A call with the first value of each argument; one argument may have its second, or be left out.
fn call(schema: &Schema, tensors: [&str; 2], change: Option<usize>) -> Option<String> {
    let (mut written, mut by_place) = (Vec::new(), true);
    for (index, parameter) in schema.parameters.iter().enumerate() {
        let (first, second) = match values(parameter, tensors[0], tensors[1]) {
            Some(values) => values,
            // What nothing is known of is left out, where it may be.
            None if parameter.default.is_some() => {
                by_place = false;
                continue;
            }
            None => return None,
        };
        let value = if change == Some(index) { second } else { first };
        let named = parameter.by_name || !by_place;
        written.push(if named { format!("{}={value}", parameter.name) } else { value });
    }
    Some(format!("{}({})", schema.target, written.join(", ")))
}

fn says_nothing(schema: &Schema, parameter: &Parameter) -> bool {
    SAYS_NOTHING.iter().any(|(target, name, _)| *target == schema.target && *name == parameter.name)
}

#[test]
fn no_argument_of_a_view_a_writer_or_a_random_operator_is_left_out_of_account() {
    let mut tally = Tally::default();
    for schema in schemas().iter().filter(|schema| schema.writes() || schema.viewed().is_some() || schema.draws) {
        let Some(plain) = call(schema, ["x", "y"], None) else { continue };
        let graph = |call: &str| format!("{INPUTS}\nr = {call}\noutput(r)");
        for (index, parameter) in schema.parameters.iter().enumerate() {
            if says_nothing(schema, parameter) {
                continue;
            }
            let Some(changed) = call(schema, ["x", "y"], Some(index)).filter(|changed| *changed != plain) else {
                continue;
            };
            let kind = if schema.writes() {
                "argument of a writer"
            } else if schema.draws {
                "argument of a random operator"
            } else {
                "argument of a view"
            };
            tally.try_pair(kind, &graph(&plain), &graph(&changed));
        }
    }
    tally.finish(&[
        ("argument of a view", 270),
        ("argument of a writer", 5500),
        ("argument of a random operator", 420),
    ]);
}

#[test]
fn no_argument_of_an_operator_that_is_followed_is_left_out_of_account() {
    let mut tally = Tally::default();
    for (one, other) in followed::pairs(INPUTS) {
        tally.try_pair("argument of an operator that is followed", &one, &other);
    }
    tally.finish(&[("argument of an operator that is followed", 700)]);
}

#[test]
fn an_operator_of_another_name_or_namespace_is_another() {
    let mut tally = Tally::default();
    for schema in schemas().iter().filter(|schema| schema.target.starts_with("aten.")) {
        let Some(plain) = call(schema, ["x", "y"], None) else { continue };
        let graph = |call: &str| format!("{INPUTS}\nr = {call}\noutput(r)");
        tally.try_pair("namespace", &graph(&plain), &graph(&plain.replacen("aten.", "mylib.", 1)));
        let (name, rest) = plain.split_once('(').unwrap_or((&plain, ""));
        tally.try_pair("overload", &graph(&plain), &graph(&format!("{name}_other({rest}")));
    }
    tally.finish(&[("namespace", 3400), ("overload", 3400)]);
}

#[test]
fn what_is_written_is_not_what_was() {
    let mut tally = Tally::default();
    let mismarked = |schema: &Schema| MISMARKED.iter().any(|(target, _)| *target == schema.target);
    for schema in schemas().iter().filter(|schema| schema.writes() && !mismarked(schema)) {
        for (index, parameter) in schema.parameters.iter().enumerate().filter(|(_, p)| p.mark.contains('!')) {
            let Some((first, _)) = values(parameter, "w", "v") else { continue };
            if !first.contains('w') {
                continue;
            }
            // The one argument that is looked at is `w`; all others are `x` and `y`.
            let Some(call) = call_with(schema, index, &first) else { continue };
            let start = "x = input f32[4, 4]; y = input f32[4, 4]; w = input f32[4, 4]; v = input f32[4, 4]";
            let below = format!("{start}\nn = neg(w)\nr = {call}\noutput(n)");
            let above = format!("{start}\nr = {call}\nn = neg(w)\noutput(n)");
            tally.try_pair("a read beside a write", &below, &above);
            let gone = format!("{start}\nn = neg(w)\noutput(n)");
            tally.try_pair("a write that is gone", &below, &gone);
        }
    }
    tally.finish(&[("a read beside a write", 1700), ("a write that is gone", 1700)]);
}

/// A call with `value` for one argument, and `x` and `y` for tensors elsewhere.
fn call_with(schema: &Schema, index: usize, value: &str) -> Option<String> {
    let (mut written, mut is_given) = (Vec::new(), false);
    let mut by_place = true;
    for (at, parameter) in schema.parameters.iter().enumerate() {
        let given = match values(parameter, "x", "y") {
            _ if at == index => {
                is_given = true;
                value.to_owned()
            }
            Some((first, _)) => first,
            None if parameter.default.is_some() => {
                by_place = false;
                continue;
            }
            None => return None,
        };
        let named = parameter.by_name || !by_place;
        written.push(if named { format!("{}={given}", parameter.name) } else { given });
    }
    is_given.then(|| format!("{}({})", schema.target, written.join(", ")))
}

#[test]
fn what_is_written_through_a_view_is_written() {
    let mut tally = Tally::default();
    for schema in schemas().iter().filter(|schema| !schema.writes() && schema.makes_view) {
        let Some(index) = schema.viewed() else { continue };
        let parameter = &schema.parameters[index];
        if parameter.ty != "Tensor" {
            continue;
        }
        let Some(call) = call_with(schema, index, "w") else { continue };
        // Through a view of no elements nothing is written, and what is converted is a copy.
        let call = match &*call {
            narrow if narrow.starts_with("aten.narrow.") => call.replace(", 0)", ", 2)"),
            to if to.starts_with("aten.to.") => call.replace("f64", "f32"),
            _ => call,
        };
        let start = "x = input f32[4, 4]; y = input f32[4, 4]; w = input f32[4, 4]";
        for ty in ["f32[4, 4]", "f32[4]", ""] {
            let view = if ty.is_empty() { format!("v = {call}") } else { format!("v = {call} : {ty}") };
            let write = "r = aten.mul_.Tensor(v, 3)";
            let below = format!("{start}\n{view}\nn = neg(w)\n{write}\noutput(n)");
            let above = format!("{start}\n{view}\n{write}\nn = neg(w)\noutput(n)");
            tally.try_pair("a write through a view", &below, &above);
        }
    }
    tally.finish(&[("a write through a view", 340)]);
}

#[test]
fn what_is_written_through_a_view_that_is_followed_is_written() {
    let mut tally = Tally::default();
    let start = "x = input f32[4, 4]; y = input f32[4, 4]; w = input f32[4, 4]";
    for view in followed::views("w") {
        for write in ["r = aten.mul_.Tensor(v, 3)", "r = aten.zero_.default(v)", "r = aten.fill_.Scalar(v, 2)"] {
            let below = format!("{start}\nv = {view}\nn = neg(w)\n{write}\noutput(n)");
            let above = format!("{start}\nv = {view}\n{write}\nn = neg(w)\noutput(n)");
            tally.try_pair("a write through a view that is followed", &below, &above);
            let gone = format!("{start}\nv = {view}\noutput(w)");
            let written = format!("{start}\nv = {view}\n{write}\noutput(w)");
            tally.try_pair("a write through a view that is followed", &written, &gone);
        }
    }
    tally.finish(&[("a write through a view that is followed", 300)]);
    // Of the others the view is a list, or of arguments that do not fit.
    assert!(tally.sound > 100, "{} of {}", tally.sound, tally.all);
}

#[test]
fn two_draws_are_not_one_and_keep_their_order() {
    let mut tally = Tally::default();
    for schema in schemas().iter().filter(|schema| schema.draws && !schema.writes()) {
        let Some(call) = call(schema, ["x", "y"], None) else { continue };
        let twice = format!("{INPUTS}\na = {call}\nb = {call}\noutput(a, b)");
        let once = format!("{INPUTS}\na = {call}\noutput(a, a)");
        tally.try_pair("two draws as one", &twice, &once);
        let swapped = format!("{INPUTS}\na = {call}\nb = {call}\noutput(b, a)");
        tally.try_pair("two draws swapped", &twice, &swapped);
        let other = "b = aten.randn.default([4])";
        let first = format!("{INPUTS}\na = {call}\n{other}\noutput(a, b)");
        let second = format!("{INPUTS}\n{other}\na = {call}\noutput(a, b)");
        tally.try_pair("a draw before another", &first, &second);
    }
    tally.finish(&[("two draws as one", 65), ("two draws swapped", 65), ("a draw before another", 65)]);
}

#[test]
fn no_attribute_of_a_collective_is_left_out_of_account() {
    let mut tally = Tally::default();
    for (kind, one, other) in collectives::pairs() {
        match kind {
            // A wait too many does no harm.
            "a wait that is gone" => tally.try_one_way(kind, &one, &other),
            _ => tally.try_pair(kind, &one, &other),
        }
    }
    tally.finish(collectives::LEAST);
}

/// A random graph that shows itself where a law fails.
#[derive(Clone)]
struct Shown(Graph);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\n{}", print(&self.0))
    }
}

fn graphs() -> impl Strategy<Value = Shown> {
    let options = GraphOptions { steps: 30, effects: false, regions: false, ..GraphOptions::default() };
    kit::random::graph_strategy_with(options).prop_map(Shown)
}

/// The same graph with other names for all values but the inputs, and for memory that nothing writes: what is in that
/// goes by the name.
fn renamed(graph: &Graph) -> Graph {
    let mut renamed = graph.clone();
    for (index, &id) in graph.order().iter().enumerate() {
        let keeps = match graph.node(id).op {
            Op::Input => true,
            Op::Call(target) => graph.text(target).contains("empty"),
            _ => false,
        };
        if !keeps {
            renamed.node_mut(id).name = renamed.intern(&format!("other_{index}"));
        }
    }
    renamed
}

/// The same graph with neighbours exchanged that have nothing to do with each other: one of them at most communicates,
/// and neither writes or is a view.
fn reordered(graph: &Graph, seed: u64) -> Graph {
    let mut order = graph.order().to_vec();
    let plain = |id: NodeId| {
        let effects = bucketeer::ir::operators::effects(graph, id);
        matches!(graph.node(id).op, Op::Call(_))
            && effects.writes.is_empty()
            && effects.fence == Fence::Free
            && !effects.is_view()
    };
    let writes = graph.order().iter().any(|&id| !bucketeer::ir::operators::effects(graph, id).writes.is_empty());
    let mut state = seed | 1;
    for at in (1..order.len()).chain(1..order.len()) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let (first, second) = (order[at - 1], order[at]);
        let movable = |id: NodeId| !matches!(graph.node(id).op, Op::Input | Op::Output | Op::Wait);
        let free = plain(first) && movable(second) || plain(second) && movable(first);
        if !state.is_multiple_of(3) && !writes && free && !graph.operands(second).contains(&first) {
            order.swap(at - 1, at);
        }
    }
    let mut reordered = graph.clone();
    reordered.set_order(order);
    reordered
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_graph_with_other_names_is_still_equal(Shown(graph) in graphs()) {
        let other = renamed(&graph);
        for (before, after) in [(&graph, &other), (&other, &graph)] {
            let verdict = prove(before, after);
            prop_assert!(verdict.is_equal(), "{verdict}\n{}", print(after));
        }
    }

    #[test]
    fn a_graph_in_an_order_that_counts_for_nothing_is_still_equal(Shown(graph) in graphs(), seed in any::<u64>()) {
        let other = reordered(&renamed(&graph), seed);
        let verdict = prove(&graph, &other);
        prop_assert!(verdict.is_equal(), "{verdict}\n{}", print(&other));
    }
}

#[test]
fn random_graphs_are_indeed_renamed_and_reordered() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut nodes, mut moved) = (0, 0);
    for seed in 0..200 {
        let Shown(graph) = graphs().new_tree(&mut runner).unwrap().current();
        let other = reordered(&graph, seed * 7919);
        nodes += graph.order().len();
        moved += graph.order().iter().zip(other.order()).filter(|(a, b)| a != b).count();
    }
    println!("{moved} of {nodes} nodes in 200 graphs stand elsewhere");
    assert!(moved * 50 > nodes, "{moved} of {nodes}");
}
