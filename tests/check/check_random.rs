//! Random graphs: each is proven equal to itself, and to what any pipeline makes of it.

use bucketeer::check::{Options, Verdict, prove, prove_with};
use bucketeer::ir::Graph;
use bucketeer::ir::text::print;
use bucketeer::passes::Pipeline;
use bucketeer_fuzzing::grow::GraphOptions;
use kit::random::{graph_strategy, graph_strategy_with};
use proptest::prelude::*;

const PIPELINES: &[&str] = &[
    "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}",
    "bucket-all-gather{cap=none,mixed-dtype=bytes},bucket-broadcast{cap=none},bucket-all-reduce{cap=64}",
    "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-reduce{cap=none,mode=coalesced},bucket-all-gather{cap=none,mode=coalesced}",
    "bucket-all-gather{policy=adjacent,cap=none},bucket-reduce-scatter{policy=adjacent,cap=none},bucket-all-reduce{policy=adjacent,cap=none}",
    "dedupe-collectives,bucket-all-to-all{cap=none},bucket-broadcast{cap=none},bucket-all-reduce{cap=none,unpack=copies}",
];

fn rewritten(graph: &Graph, pipeline: &str) -> Graph {
    let mut after = graph.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap_or_else(|error| panic!("{error}\n{}", print(graph)));
    after
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_graph_equals_itself(graph in graph_strategy()) {
        let verdict = prove(&graph, &graph);
        prop_assert!(!matches!(verdict, Verdict::Different(_)), "{verdict}\n{}", print(&graph));
    }

    #[test]
    fn what_a_pipeline_makes_of_a_graph_is_proven(graph in graph_strategy(), which in 0..PIPELINES.len()) {
        let after = rewritten(&graph, PIPELINES[which]);
        let verdict = prove(&graph, &after);
        let text = || format!("{verdict}\n{}\nbecame\n{}", print(&graph), print(&after));
        prop_assert!(!matches!(verdict, Verdict::Different(_)), "{}", text());
    }

    #[test]
    fn without_regions_everything_is_decided(
        graph in graph_strategy_with(GraphOptions { regions: false, ..GraphOptions::default() }),
        which in 0..PIPELINES.len(),
    ) {
        let after = rewritten(&graph, PIPELINES[which]);
        let verdict = prove(&graph, &after);
        prop_assert!(verdict.is_equal(), "{verdict}\n{}\nbecame\n{}", print(&graph), print(&after));
        let loose = Options { outputs_may_share: true, launches_may_move: true };
        prop_assert!(prove_with(&graph, &after, loose).is_equal());
    }
}
