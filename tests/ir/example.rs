//! The examples print what their readers are told they print.

#[path = "../../examples/petgraph_plan.rs"]
mod petgraph_plan;

#[test]
fn a_compiler_with_its_own_graph_gets_buckets_reasons_and_places() {
    assert_eq!(
        petgraph_plan::run(),
        [
            "merge grad3 + grad2",
            "leave grad1 alone: nothing else is of its group",
            "leave grad0 alone: it and total depend on one another",
            "leave total alone: it and grad3 depend on one another",
            "run loss, layer, layer, grad3, wait, wait, layer, grad1, wait, layer, grad0, wait, norm, total, wait",
        ]
    );
}
