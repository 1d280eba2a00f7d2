//! Random graphs are evaluated, and compute the same after every rewrite.

use bucketeer::ir::text::print;
use bucketeer::passes::Pipeline;
use bucketeer_eval::{EvalOptions, compare, evaluate};
use bucketeer_fuzzing::grow::{GraphOptions, RANKS};
use proptest::prelude::*;

const PIPELINES: [&str; 5] = [
    "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}",
    "bucket-all-gather{cap=64,mixed-dtype=bytes},bucket-reduce-scatter{cap=64},bucket-broadcast{cap=none}",
    "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-reduce{cap=none,mode=coalesced},\
     bucket-all-gather{cap=none,mode=coalesced}",
    "dedupe-collectives,bucket-all-reduce{cap=none,policy=adjacent},bucket-all-gather{cap=1KiB,policy=adjacent}",
    "bucket-all-to-all{cap=none},bucket-all-gather{cap=none,unpack=copies},bucket-all-reduce{cap=100/1KiB,unpack=copies}",
];

/// Seeds and values of the symbol of random graphs; it is hinted to be 2.
fn settings() -> impl Strategy<Value = EvalOptions> {
    (any::<u64>(), prop::sample::select(vec![None, Some(0), Some(1), Some(3)])).prop_map(|(seed, s)| EvalOptions {
        seed,
        symbols: s.into_iter().map(|s| ("s".to_owned(), s)).collect(),
        ..EvalOptions::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn random_graphs_are_evaluated_and_rewrites_change_nothing(
        graph in kit::random::graph_strategy_with(GraphOptions { regions: false, ..GraphOptions::default() }),
        pipeline in prop::sample::select(PIPELINES.to_vec()),
        options in settings(),
    ) {
        let mut after = graph.clone();
        pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
        let comparison = compare(&graph, &after, &options);
        let say = || format!("{pipeline}\nbefore:\n{}\nafter:\n{}", print(&graph), print(&after));
        match comparison {
            Ok(comparison) => {
                let found: Vec<String> = comparison.differences.iter().map(ToString::to_string).collect();
                prop_assert!(found.is_empty(), "{}\n{}", found.join("\n"), say());
            }
            Err(error) => prop_assert!(false, "{error}\n{}", say()),
        }
    }

    #[test]
    fn graphs_with_loops_and_branches_are_evaluated_and_rewrites_change_nothing(
        graph in kit::random::graph_strategy(),
        pipeline in prop::sample::select(PIPELINES.to_vec()),
        options in settings(),
    ) {
        let ranks = evaluate(&graph, &options);
        let ranks = ranks.unwrap_or_else(|error| panic!("{error}\n{}", print(&graph)));
        prop_assert!((1..=RANKS as usize).contains(&ranks.len()));
        let mut after = graph.clone();
        pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
        let comparison = compare(&graph, &after, &options).unwrap_or_else(|error| panic!("{error}\n{}", print(&graph)));
        let found: Vec<String> = comparison.differences.iter().map(ToString::to_string).collect();
        prop_assert!(found.is_empty(), "{}\n{pipeline}\n{}\n{}", found.join("\n"), print(&graph), print(&after));
    }
}
