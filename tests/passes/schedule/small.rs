//! Real small graphs under made-up costs: the plan is proven, keeps its cap, and computes the same, bit for bit.

use super::{Effort, normal_cap, options, planned};
use bucketeer::Verdict;
use bucketeer::check::{Options, prove_with};
use bucketeer::ir::text::print;
use bucketeer::ir::{Graph, Op, verify};
use bucketeer::passes::schedule::{Buckets, Costs, GroupCosts, MessageCost, Piece, PlanError, Timeline, plan};
use bucketeer_eval::{EvalOptions, compare, shrink};
use indexmap::IndexMap;
use kit::files;
use kit::random::graph_strategy;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::path::Path;

/// Each call takes some time, and each group has a cost for each kind.
pub(super) fn made_up(graph: &Graph) -> Costs {
    let mut costs = Costs::default();
    for (at, &id) in graph.order().iter().enumerate() {
        if matches!(graph.node(id).op, Op::Call(_)) {
            costs.compute_ns.insert(graph.name_of(id).into(), [0, 700, 30, 5_000, 90][at % 5]);
        }
    }
    let piece = |alpha_ns, ns_per_byte_den| Piece { alpha_ns, ns_per_byte_num: 1, ns_per_byte_den };
    let cost = MessageCost::new(vec![piece(900, 2), piece(2_000, 9)]).unwrap();
    let kinds = ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "permute"];
    for group in graph.groups() {
        let costs_of = kinds.iter().map(|&kind| (kind.into(), cost.clone())).collect();
        let of = GroupCosts { label: "made up".into(), size: group.size.unwrap_or(2), costs: costs_of };
        costs.groups.insert(group.name.clone(), of);
    }
    costs
}

/// Who is in which group, of graphs whose texts do not list it.
fn groups_of(path: &Path) -> IndexMap<String, Vec<Vec<u32>>> {
    let name = path.file_name().unwrap().to_string_lossy();
    if name.contains("tiny") { IndexMap::new() } else { files::groups(&name).into_iter().collect() }
}

#[test]
fn plans_of_real_small_graphs_compute_the_same_bit_for_bit() {
    let (mut ran, mut shorter) = (0, 0);
    for path in files::fx() {
        let groups = groups_of(&path);
        for mut graph in files::graphs(&path) {
            // Symbols of the dynamic ones have likely values.
            graph.hints.extend((0..200).map(|at| (format!("s{at}").into(), 8)));
            let costs = made_up(&graph);
            let before = match Timeline::of(&graph, &costs) {
                Ok(before) => before,
                Err(error) => panic!("{}: {error}", path.display()),
            };
            for cap in [None, Some(normal_cap(before.peak_bytes)), Some(before.peak_bytes)] {
                let (after, found) = planned(&graph, &costs, &options(cap, Effort::Low));
                // Scaled down together, as they share their inputs.
                let options = EvalOptions { groups: groups.clone(), ..EvalOptions::default() };
                let small =
                    shrink(&[&graph, &after], &options).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let same = compare(&small.graphs[0], &small.graphs[1], &options);
                let same = same.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                assert!(same.is_equal(), "{}: {:?}", path.display(), same.differences);
                ran += 1;
                shorter += usize::from(found.after.makespan_ns < found.before.makespan_ns);
            }
        }
    }
    assert!(ran >= 18 * 3 && shorter * 2 > ran, "{shorter} of {ran} are shorter");
}

#[test]
fn messages_in_bodies_are_refused_by_name() {
    let text = "a = input f32[4]\nregion loop(n=2) {\n  r = all_reduce(a, sum, G0:2)\n  w = wait(r)\n}\noutput(w)";
    let mut graph = bucketeer::ir::text::parse(text).unwrap();
    let costs = made_up(&graph);
    let error = plan(&mut graph, &costs, &options(None, Effort::Low)).unwrap_err();
    assert!(matches!(&error, PlanError::MessageInBody { node, .. } if node == "r"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// In-place writes, views, unknown operators, draws, fences, coalesced and in-place collectives, control edges.
    #[test]
    fn plans_of_random_graphs_are_well_formed_and_proven(graph in graph_strategy(), cap in 0..3u8, kept in any::<bool>()) {
        let costs = made_up(&graph);
        let Ok(before) = Timeline::of(&graph, &costs) else { return Err(TestCaseError::reject("a size is not known")) };
        let cap = [None, Some(before.peak_bytes), Some(normal_cap(before.peak_bytes))][usize::from(cap)];
        let mut after = graph.clone();
        let mut how = options(cap, Effort::Work(200_000));
        how.buckets = if kept { Buckets::Kept } else { Buckets::Chosen };
        match plan(&mut after, &costs, &how) {
            Err(
                PlanError::Region { .. }
                | PlanError::MessageInBody { .. }
                | PlanError::TimeInBody { .. },
            ) => prop_assert!(after == graph),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
            Ok(found) => {
                prop_assert!(verify(&after).is_ok(), "{:?}", verify(&after));
                let verdict = prove_with(&graph, &after, Options { launches_may_move: true, ..Options::default() });
                prop_assert!(matches!(verdict, Verdict::Equal(_)), "{verdict}\n{}\n{}", print(&graph), print(&after));
                prop_assert!(found.after.makespan_ns <= found.before.makespan_ns);
                prop_assert!(!kept || found.after.launches.len() == found.before.launches.len());
                prop_assert!(cap.is_none_or(|cap| found.after.peak_bytes <= cap));
                let bound = &found.bounds[0];
                prop_assert!(bound.ns <= found.after.makespan_ns, "{bound:?} {}", print(&graph));
            }
        }
    }
}
