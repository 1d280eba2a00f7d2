//! Laws that hold for every rewrite of every graph, on random graphs.
//!
//! [`kit::rewrite`] checks the laws: the result is well-formed, no bucket exceeds its cap, every collective is
//! still there or in exactly one launch, untouched nodes keep their order but for those counted as moved, a second run
//! changes nothing, and all ranks compute the same bits. Here are the graphs and the options to try them with.

use bucketeer::ir::{Dependencies, Graph};
use bucketeer::passes::bucketing::{BucketKind, BucketOptions, BucketPlan, MixedDtype, plan};
use bucketeer::passes::select::{Caps, Policy};
use bucketeer_eval::EvalOptions;
use bucketeer_fuzzing::grow::{GraphOptions, grow};
use kit::rewrite::{evaluate, rewrite_graph, with_symbols};
use petgraph::graph::DiGraph;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use std::collections::{BTreeSet, HashSet};

/// A graph that shows itself as text where a law fails.
#[derive(Clone)]
struct Shown(Graph);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\n{}", bucketeer::ir::text::print(&self.0))
    }
}

fn graphs(options: GraphOptions) -> impl Strategy<Value = Shown> {
    kit::random::graph_strategy_with(options).prop_map(Shown)
}

fn bucket_pass() -> impl Strategy<Value = String> {
    let kind =
        prop::sample::select(vec!["all-gather", "reduce-scatter", "all-reduce", "broadcast", "all-to-all", "permute"]);
    let cap = prop::sample::select(vec!["none", "1", "64", "200B", "64/256", "1KiB", "1GiB"]);
    let policy = prop::sample::select(vec!["greedy", "greedy", "adjacent"]);
    let unpack = prop::sample::select(vec!["auto", "auto", "views", "copies"]);
    let members = prop::sample::select(vec!["", "", ",max-members=2", ",max-members=3"]);
    (kind, cap, policy, unpack, members, any::<bool>(), any::<bool>()).prop_map(
        |(kind, cap, policy, unpack, members, bytes, coalesced)| {
            let dtype = if bytes && kind == "all-gather" { ",mixed-dtype=bytes" } else { "" };
            let mode = if coalesced && !matches!(kind, "broadcast" | "all-to-all") { ",mode=coalesced" } else { "" };
            format!("bucket-{kind}{{cap={cap},policy={policy},unpack={unpack}{members}{dtype}{mode}}}")
        },
    )
}

fn pipeline() -> impl Strategy<Value = String> {
    let tidy = prop::sample::select(vec!["", "dedupe-waits", "dedupe-waits,fold-trivial", "dedupe-collectives"]);
    (tidy, prop::collection::vec(bucket_pass(), 1..5)).prop_map(|(tidy, buckets)| {
        let passes: Vec<String> = [tidy.to_owned()].into_iter().chain(buckets).filter(|p| !p.is_empty()).collect();
        passes.join(",")
    })
}

/// The symbol of random graphs as hinted, and empty.
fn sizes() -> [EvalOptions; 3] {
    [2, 3, 0].map(|s| with_symbols([("s", s)]))
}

/// Buckets contracted to one node each: no circle, by petgraph.
fn is_acyclic(graph: &Graph, plan: &BucketPlan) -> bool {
    let dependencies = Dependencies::of(graph);
    let count = dependencies.slots().len();
    let mut node: Vec<usize> = (0..count).collect();
    for bucket in &plan.buckets {
        let first = dependencies.slot_of(bucket.members[0].collective);
        bucket.members.iter().for_each(|member| node[dependencies.slot_of(member.collective)] = first);
    }
    let mut quotient = DiGraph::<(), ()>::new();
    let indices: Vec<_> = (0..count).map(|_| quotient.add_node(())).collect();
    let edges: BTreeSet<(usize, usize)> = (0..count)
        .flat_map(|slot| dependencies.before(slot).iter().map(move |&before| (before as usize, slot)))
        .map(|(before, after)| (node[before], node[after]))
        .collect();
    // An edge inside a bucket is a circle of one.
    for (before, after) in edges {
        quotient.add_edge(indices[before], indices[after], ());
    }
    !petgraph::algo::is_cyclic_directed(&quotient)
}

fn options(kind: BucketKind, policy: Policy, cap: Option<u64>) -> BucketOptions {
    BucketOptions { policy, caps: cap.map_or_else(Caps::default, Caps::bytes), ..BucketOptions::new(kind) }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_are_free_of_races(Shown(graph) in graphs(GraphOptions::default())) {
        for rank in evaluate(&graph, &EvalOptions::default()) {
            prop_assert_eq!(rank.races, Vec::<Box<str>>::new());
        }
    }

    #[test]
    fn every_rewrite_keeps_every_law(
        Shown(graph) in graphs(GraphOptions { steps: 60, ..GraphOptions::default() }),
        pipeline in pipeline(),
    ) {
        rewrite_graph(graph, &pipeline, &sizes());
    }

    #[test]
    fn graphs_without_regions_and_effects_keep_every_law(
        Shown(graph) in graphs(GraphOptions { steps: 80, regions: false, effects: false, ..GraphOptions::default() }),
        pipeline in pipeline(),
    ) {
        rewrite_graph(graph, &pipeline, &sizes());
    }

    #[test]
    fn buckets_make_no_circle(Shown(graph) in graphs(GraphOptions { steps: 80, ..GraphOptions::default() })) {
        let dependencies = Dependencies::of(&graph);
        for kind in BucketKind::ALL {
            for cap in [None, Some(64), Some(256)] {
                let greedy = plan(&graph, &dependencies, &options(kind, Policy::Greedy, cap));
                prop_assert!(is_acyclic(&graph, &greedy));
                prop_assert_eq!(&greedy, &plan(&graph, &dependencies, &options(kind, Policy::Greedy, cap)));
                let adjacent = plan(&graph, &dependencies, &options(kind, Policy::Adjacent, cap));
                prop_assert!(is_acyclic(&graph, &adjacent));
            }
        }
    }

    #[test]
    fn members_of_a_bucket_agree_on_the_key(Shown(graph) in graphs(GraphOptions::default())) {
        let dependencies = Dependencies::of(&graph);
        for kind in BucketKind::ALL {
            let split = options(kind, Policy::Greedy, None);
            let bytes = BucketOptions { mixed_dtype: MixedDtype::Bytes, ..split.clone() };
            for options in [split, bytes] {
                for bucket in plan(&graph, &dependencies, &options).buckets {
                    let facts: HashSet<_> = bucket.members.iter().map(|member| {
                        let id = member.collective;
                        let (collective, tensor) = (graph.collective(id).unwrap(), graph.tensor(id).unwrap());
                        let dtype = (options.mixed_dtype == MixedDtype::Split || !kind.mixes_dtypes()).then_some(tensor.dtype);
                        (collective.kind.name(), collective.kind.reduce_op(), collective.group, collective.variant,
                         dtype, tensor.device.clone(), graph.node(id).region, graph.meta_of(id).key.clone())
                    }).collect();
                    prop_assert_eq!(facts.len(), 1);
                }
            }
        }
    }
}

/// A property over kinds that are never merged would say nothing.
#[test]
fn random_graphs_merge_every_kind() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = graphs(GraphOptions { steps: 80, regions: false, effects: false, ..GraphOptions::default() });
    let mut merged = HashSet::new();
    for _ in 0..400 {
        let Shown(graph) = strategy.new_tree(&mut runner).unwrap().current();
        let dependencies = Dependencies::of(&graph);
        let any =
            |kind: &BucketKind| !plan(&graph, &dependencies, &options(*kind, Policy::Greedy, None)).buckets.is_empty();
        merged.extend(BucketKind::ALL.into_iter().filter(any));
    }
    assert_eq!(merged.len(), BucketKind::ALL.len(), "{merged:?}");
}

#[test]
fn a_hundred_plans_of_one_graph_are_one_plan() {
    let steps: Vec<_> = (0..300u32)
        .map(|at| {
            let mix = at.wrapping_mul(2_654_435_761);
            ((mix % 90) as u8, (mix >> 3) as u16, (mix >> 9) as u16, (mix >> 15) as u16)
        })
        .collect();
    let graph = grow(&steps, GraphOptions { regions: false, ..GraphOptions::default() });
    let all = || {
        let dependencies = Dependencies::of(&graph);
        BucketKind::ALL
            .map(|kind| format!("{:?}", plan(&graph, &dependencies, &options(kind, Policy::Greedy, Some(512)))))
    };
    let first = all();
    assert!(first.iter().any(|plan| plan.contains("Merged")), "the graph has something to merge");
    for _ in 0..100 {
        assert_eq!(all(), first);
    }
}
