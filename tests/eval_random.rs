//! Random graphs are evaluated, and compute the same after every rewrite.

mod common;

use bucketeer::check::eval::{EvalError, EvalOptions, compare, evaluate};
use bucketeer::ir::text::print;
use bucketeer::passes::Pipeline;
use common::GraphOptions;
use proptest::prelude::*;

const PIPELINES: [&str; 4] = [
    "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}",
    "bucket-all-gather{cap=64,mixed-dtype=bytes},bucket-reduce-scatter{cap=64},bucket-broadcast{cap=none}",
    "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-reduce{cap=none,mode=coalesced},\
     bucket-all-gather{cap=none,mode=coalesced}",
    "dedupe-collectives,bucket-all-reduce{cap=none,policy=adjacent},bucket-all-gather{cap=1KiB,policy=adjacent}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_graphs_are_evaluated_and_rewrites_change_nothing(
        graph in common::graph_strategy_with(GraphOptions { regions: false, ..GraphOptions::default() }),
        pipeline in prop::sample::select(PIPELINES.to_vec()),
    ) {
        let options = EvalOptions::default();
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
    fn graphs_with_loops_and_branches_are_evaluated(graph in common::graph_strategy()) {
        match evaluate(&graph, &EvalOptions::default()) {
            Ok(ranks) => prop_assert!((1..=common::RANKS as usize).contains(&ranks.len())),
            Err(error) => prop_assert!(matches!(error, EvalError::Undefined { .. }), "{error}\n{}", print(&graph)),
        }
    }
}
