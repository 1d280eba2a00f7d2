//! Laws that hold for every rewrite of every graph, on random graphs.

mod common;

use common::interp::{Settings, run};
use common::{GraphOptions, graph_strategy_with};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_graphs_run(graph in graph_strategy_with(GraphOptions::default())) {
        let result = run(&graph, &Settings::default());
        prop_assert_eq!(result.races.len(), 0);
    }
}
