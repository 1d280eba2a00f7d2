//! Random graphs for properties.

use bucketeer::ir::Graph;
use bucketeer_fuzzing::grow::{GraphOptions, STEP_KINDS, grow};
use proptest::prelude::*;

/// Valid graphs with everything in them.
pub fn graph_strategy() -> impl Strategy<Value = Graph> {
    graph_strategy_with(GraphOptions::default())
}

/// Valid graphs with some things left out.
pub fn graph_strategy_with(options: GraphOptions) -> impl Strategy<Value = Graph> {
    let step = (0..STEP_KINDS, any::<u16>(), any::<u16>(), any::<u16>());
    prop::collection::vec(step, 0..=options.steps).prop_map(move |steps| grow(&steps, options))
}
