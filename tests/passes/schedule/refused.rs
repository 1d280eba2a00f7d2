//! Costs and caps that do not fit: one error, which names what and where, and the graph is left as it was.

use super::{Effort, options};
use bucketeer::ir::text::parse;
use bucketeer::passes::schedule::{CostError, Costs, PlanError, plan};

const STEP: &str = "x = input f32[8]; y = input f32[s0]
a = relu(x); r = all_reduce(a, sum, G0:4); w = wait(r)
b = relu(y) : f32[s0]; q = all_reduce(b, sum, G0:4); v = wait(q)
output(w, v)";

fn costs(compute: &str, size: u32, kind: &str) -> Costs {
    let text = format!(
        r#"{{"schema": "bucketeer-costs-1", "compute_ns": {{{compute}}}, "groups": {{"G0": {{"size": {size}, "costs":
        {{"{kind}": [{{"alpha_ns": 10, "ns_per_byte_num": 1, "ns_per_byte_den": 2}}]}}}}}}}}"#
    );
    Costs::from_json(&text).unwrap().0
}

fn refused(costs: &Costs, hint: Option<u64>) -> PlanError {
    let mut graph = parse(STEP).unwrap();
    graph.hints.extend(hint.map(|hint| ("s0".into(), hint)));
    let before = graph.clone();
    let error = plan(&mut graph, costs, &options(None, Effort::Low)).unwrap_err();
    assert!(graph == before);
    error
}

#[test]
fn what_has_no_cost_is_named() {
    let error = refused(&costs("", 4, "all_gather"), Some(3)).to_string();
    assert_eq!(error, "`r`: found `all_reduce` in group `G0`, which has costs for `all_gather` alone");
    let mut none = costs("", 4, "all_reduce");
    none.groups.clear();
    assert!(
        matches!(refused(&none, Some(3)), PlanError::Cost(CostError::NoGroup { node, group, .. }) if node == "r" && group == "G0")
    );
}

#[test]
fn times_of_nodes_that_are_not_there_are_refused() {
    let error = refused(&costs("\"a\": 5, \"nowhere\": 7", 4, "all_reduce"), Some(3)).to_string();
    assert_eq!(error, "the costs give a time to `nowhere`, which is not a node of the graph");
}

#[test]
fn groups_of_another_size_are_refused() {
    let error = refused(&costs("", 8, "all_reduce"), Some(3)).to_string();
    assert_eq!(error, "group `G0` has 4 ranks in the graph and 8 in the costs");
}

#[test]
fn sizes_that_are_not_known_are_named_and_hints_help() {
    let costs = costs("\"a\": 50, \"b\": 50", 4, "all_reduce");
    assert_eq!(refused(&costs, None).to_string(), "`q` has a size that is not known; state a hint for its symbols");
    let mut graph = parse(STEP).unwrap();
    graph.hints.insert("s0".into(), 3);
    let found = plan(&mut graph, &costs, &options(None, Effort::Default)).unwrap();
    // Both leave after the second computation, in one message: 10 + 22 ns; apart, the first hides behind the second.
    assert_eq!((found.before.exposed_ns(), found.after.exposed_ns()), (42, 16));
}

#[test]
fn texts_that_are_no_costs_are_refused_by_field() {
    let error = |text: &str| Costs::from_json(text).unwrap_err().to_string();
    assert!(error("{").starts_with("the JSON does not hold costs"));
    assert!(error(r#"{"schema": "x-2", "compute_ns": {}, "groups": {}}"#).starts_with("found schema `x-2`"));
    let negative = r#"{"schema": "bucketeer-costs-1", "compute_ns": {"a": -1}, "groups": {}}"#;
    assert!(error(negative).contains("-1"), "{}", error(negative));
    let group = |costs: &str| {
        format!(
            r#"{{"schema": "bucketeer-costs-1", "compute_ns": {{}}, "groups": {{"0": {{"size": 8, "costs": {{{costs}}}}}}}}}"#
        )
    };
    let kind = error(&group(r#""gather": []"#));
    assert!(kind.starts_with("group `0`: found costs for `gather`, expected one of all_gather"), "{kind}");
    let none = error(&group(r#""all_gather": []"#));
    assert_eq!(
        none,
        "group `0`, all_gather: a message cost has 0 pieces, or one that divides by 0; expected 1 to 8 with `ns_per_byte_den` above 0"
    );
}

#[test]
fn a_cap_below_what_any_plan_needs_is_refused_with_the_least_there_is() {
    let costs = costs("\"a\": 50, \"b\": 50", 4, "all_reduce");
    let mut graph = parse(STEP).unwrap();
    graph.hints.insert("s0".into(), 3);
    let before = graph.clone();
    let error = plan(&mut graph, &costs, &options(Some(10), Effort::Low)).unwrap_err();
    assert!(matches!(error, PlanError::Memory { cap_bytes: 10, least_bytes } if least_bytes > 10), "{error}");
    assert!(graph == before);
}
