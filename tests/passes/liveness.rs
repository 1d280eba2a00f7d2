//! Bytes that are alive, held against a slow reading of the rules: at each node, all storages are looked at.

use bucketeer::ir::operators::element_index;
use bucketeer::ir::text::{parse, print};
use bucketeer::ir::{Dependencies, Graph, Op, Type};
use bucketeer::passes::Pipeline;
use bucketeer::passes::liveness::{LiveBytes, PeakLive, live_bytes, peak_live};
use kit::files;
use proptest::prelude::*;

/// By arena index: a number that is equal for values in one storage. All tensors of a list are one, for one launch makes
/// them and one wait makes them valid.
fn storages(graph: &Graph, dependencies: &Dependencies) -> Vec<usize> {
    let mut parent: Vec<usize> = (0..graph.arena_len()).collect();
    let mut join = |a: usize, b: usize| {
        let (a, b) = (find(&parent, a), find(&parent, b));
        parent[a.max(b)] = a.min(b);
    };
    for &id in graph.order() {
        join(dependencies.alias_class(id) as usize, id.index());
        let takes = element_index(graph, id).is_some();
        let parts = if takes || graph.waits_for_list(id) { graph.operands(id) } else { &[] };
        parts.iter().for_each(|part| join(part.index(), id.index()));
    }
    (0..graph.arena_len()).map(|at| find(&parent, at)).collect()
}

fn find(parent: &[usize], at: usize) -> usize {
    if parent[at] == at { at } else { find(parent, parent[at]) }
}

fn bytes(graph: &Graph, ty: &Type) -> Option<u64> {
    match ty {
        Type::Tensor(tensor) => graph.likely_value(&tensor.bytes()?),
        Type::Tuple(parts) => parts.iter().try_fold(0u64, |sum, part| sum.checked_add(bytes(graph, part)?)),
        Type::SymInt(_) | Type::SymOther(_) | Type::Token => Some(0),
        Type::Unknown => None,
    }
}

/// Quadratic: each storage's node that makes it, its last use and its bytes; then all of them at each node.
fn slowly(graph: &Graph) -> LiveBytes {
    let class = storages(graph, &Dependencies::of(graph));
    let mut found: Vec<(usize, usize, usize, u64)> = Vec::new();
    let mut seen = vec![false; graph.arena_len()];
    let mut unknown = 0;
    for (at, &id) in graph.order().iter().enumerate() {
        let own = class[id.index()];
        for used in graph.operands(id).iter().map(|operand| class[operand.index()]).chain([own]) {
            found.iter_mut().filter(|(of, ..)| *of == used).for_each(|(_, _, last, _)| *last = at);
        }
        // What views an input is the caller's, too.
        let is_first = !std::mem::replace(&mut seen[own], true);
        if is_first && !matches!(graph.node(id).op, Op::Input | Op::Output) {
            let bytes = bytes(graph, graph.type_of(id));
            unknown += usize::from(bytes.is_none());
            found.push((own, at, at, bytes.unwrap_or(0)));
        }
    }
    let alive = |place: usize| {
        let there = found.iter().filter(|(_, first, last, _)| (*first..=*last).contains(&place));
        there.map(|(.., bytes)| bytes).sum()
    };
    LiveBytes { bytes: (0..graph.order().len()).map(alive).collect(), unknown }
}

fn check(graph: &Graph) {
    let live = live_bytes(graph);
    assert_eq!(live, slowly(graph), "\n{}", print(graph));
    let peak = PeakLive { bytes: live.bytes.iter().copied().max().unwrap_or(0), unknown: live.unknown };
    assert_eq!(peak_live(graph), peak);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_alive_in_random_graphs_is_what_a_slow_reading_says(graph in kit::random::graph_strategy()) {
        check(&graph);
        let mut merged = graph;
        Pipeline::default_rewrite().run(&mut merged).unwrap();
        check(&merged);
    }
}

#[test]
fn what_is_alive_in_real_graphs_is_what_a_slow_reading_says() {
    let mut found = 0;
    for path in files::fx().into_iter().chain(files::hlo()) {
        for graph in files::graphs(&path).iter().filter(|graph| graph.order().len() < 3000) {
            check(graph);
            found += 1;
        }
    }
    assert!(found > 20, "{found} graphs");
}

#[test]
fn bytes_live_from_where_they_are_made_to_their_last_use() {
    let text = "a = input f32[4]\nb = aten.relu.default(a) : f32[4]\nv = aten.view.default(b, [2, 2]) : f32[2, 2]\n\
                c = aten.exp.default(v) : f32[2, 2]\nd = aten.exp.default(c) : f32[2, 2]\noutput(d)";
    assert_eq!(live_bytes(&parse(text).unwrap()).bytes, [0, 16, 16, 32, 32, 16]);
}
