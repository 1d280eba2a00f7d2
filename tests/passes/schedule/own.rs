//! Plans of one's own: what they say is what runs, and what is wrong with them is said at once.

use super::small::made_up;
use super::{Effort, folder, normal_cap, options, planned, read};
use bucketeer::Verdict;
use bucketeer::check::{Options, prove_with};
use bucketeer::ir::text::{parse, print};
use bucketeer::ir::{Graph, NodeId, Op, verify};
use bucketeer::passes::schedule::costs::message_bytes;
use bucketeer::passes::schedule::{
    Costs, OwnBucket, OwnMembers, OwnPlan, OwnPlanError, PlanError, Planned, Timeline, plan_own,
};
use indexmap::IndexMap;
use kit::files;
use kit::random::graph_strategy;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use serde_json::Value;
use std::cell::Cell;

/// What is gathered is read by a product each; a gradient is sent; two pairs of messages need one another.
const STEP: &str = "\
group G0:4
x = input f32[64]; a = input f32[16]; b = input f32[16]; h = input bf16[16]
c0 = add(x, x) : f32[64]
ca = cast(a) : f32[16]; ga = all_gather(ca, G0) : f32[64]; wa = wait(ga) : f32[64]
c1 = mul(c0, wa) : f32[64]
cb = cast(b) : f32[16]; gb = all_gather(cb, G0) : f32[64]; wb = wait(gb) : f32[64]
vb = aten.view.default(wb, [64]) : f32[64]
c2 = mul(c1, vb) : f32[64]
gh = all_gather(h, G0) : bf16[64]; wh = wait(gh) : bf16[64]
c3 = mul(c2, c2) : f32[64]
r1 = all_reduce(c1, sum, G0) : f32[64]; v1 = wait(r1) : f32[64]
r2 = all_reduce(c2, sum, G0) : f32[64]; v2 = wait(r2) : f32[64]
q1 = mul(v1, v1) : f32[64]; q2 = mul(v2, v2) : f32[64]
r3 = all_reduce(q1, sum, G0) : f32[64]; v3 = wait(r3) : f32[64]
r4 = all_reduce(q2, avg, G0) : f32[64]; v4 = wait(r4) : f32[64]
r5 = all_reduce(q2, sum, G0) : f32[64]; v5 = wait(r5) : f32[64]
t = all_to_all(q2, G0) : f32[64]; vt = wait(t) : f32[64]
u = all_to_all(q1, G0) : f32[64]; vu = wait(u) : f32[64]
output(c3, wh, v3, v4, v5, vt, vu)";

fn step() -> Graph {
    // `cast` is none of PyTorch's names; one with one operand that takes time.
    parse(&STEP.replace("group G0:4\n", "").replace(", G0)", ", G0:4)").replace("cast(", "aten.neg.default(")).unwrap()
}

/// 900 ns for each message, and a byte a nanosecond; 1,000 ns for each computation that `step` names `c`.
fn costs(graph: &Graph) -> Costs {
    let mut costs = made_up(graph);
    costs.compute_ns.retain(|name, _| name.starts_with(['c', 'q']));
    costs.compute_ns.values_mut().for_each(|ns| *ns = 1_000);
    costs
}

fn own(buckets: &str) -> OwnPlan {
    let text = format!(r#"{{"format": "bucketeer-own-plan", "version": 1, "buckets": [{buckets}]}}"#);
    OwnPlan::from_json(&text).unwrap()
}

/// Puts a plan into a graph, and holds it to what every plan has to keep to.
fn put(graph: &Graph, costs: &Costs, own: &OwnPlan) -> Result<(Graph, Planned), OwnPlanError> {
    let mut after = graph.clone();
    let planned = match plan_own(&mut after, costs, own, None) {
        Ok(planned) => planned,
        Err(error) => {
            assert!(after == *graph);
            return Err(error);
        }
    };
    assert!(verify(&after).is_ok(), "{:?}", verify(&after));
    let verdict = prove_with(graph, &after, Options { launches_may_move: true, ..Options::default() });
    assert!(matches!(verdict, Verdict::Equal(_)), "{verdict}\n{}\n{}", print(graph), print(&after));
    assert_eq!(Timeline::of(&after, costs).unwrap(), planned.after);
    let (bounds, ns) = (&planned.bounds, planned.after.makespan_ns);
    assert!(bounds.iter().all(|bound| bound.ns <= ns), "{ns} {bounds:?}\n{}\n{}", print(graph), print(&after));
    Ok((after, planned))
}

fn faults(graph: &Graph, buckets: &str) -> Vec<String> {
    match put(graph, &costs(graph), &own(buckets)) {
        Err(OwnPlanError::Faults(faults)) => faults.iter().map(ToString::to_string).collect(),
        other => panic!("{buckets}: {other:?}"),
    }
}

fn names(graph: &Graph) -> Vec<&str> {
    graph.order().iter().map(|&id| graph.name_of(id)).collect()
}

/// The names of some nodes, in the order in which they stand.
fn only<'g>(graph: &'g Graph, wanted: &str) -> Vec<&'g str> {
    let wanted: Vec<&str> = wanted.split(' ').collect();
    names(graph).into_iter().filter(|name| wanted.contains(name)).collect()
}

#[test]
fn a_plan_without_buckets_changes_nothing() {
    let graph = step();
    let (after, planned) = put(&graph, &costs(&graph), &OwnPlan::default()).unwrap();
    assert_eq!(print(&after), print(&graph));
    assert_eq!(planned.before, planned.after);
}

#[test]
fn a_bucket_is_launched_and_waited_for_where_the_file_says_and_all_else_stays() {
    let graph = step();
    let how = r#"{"members": ["g[ab]"], "launch_before": "c0", "wait_before": "c1"}"#;
    let (after, planned) = put(&graph, &costs(&graph), &own(how)).unwrap();
    assert_eq!((planned.before.launches.len(), planned.after.launches.len()), (10, 9));
    // Both casts come along; the view of the second result goes where it is read.
    let order = only(&after, "ca cb bucketed_all_gather c0 wa c1 wb vb c2 gh c3 r1 v1");
    assert_eq!(order, "ca cb bucketed_all_gather c0 wa c1 wb vb c2 gh c3 r1 v1".split(' ').collect::<Vec<_>>());
}

#[test]
fn without_places_a_bucket_is_launched_where_its_last_member_was_or_as_its_result_is_needed() {
    let graph = step();
    let kept = only(&graph, "c0 c1 c2 gh c3 q1 q2");
    let (after, _) = put(&graph, &costs(&graph), &own(r#"{"members": ["g[ab]"]}, {"members": ["r[12]"]}"#)).unwrap();
    // `c1` reads the first gather; the second stood below it.
    assert_eq!(only(&after, "c0 bucketed_all_gather c1 c2"), ["c0", "bucketed_all_gather", "c1", "c2"]);
    // Both sums are known behind `c2`; the last stood behind `c3`, and the first result is read by `q1`.
    let order = only(&after, "c2 c3 bucketed_all_reduce v1 q1 v2 q2");
    assert_eq!(order, "c2 c3 bucketed_all_reduce v1 v2 q1 q2".split(' ').collect::<Vec<_>>());
    assert_eq!(only(&after, "c0 c1 c2 gh c3 q1 q2"), kept);
}

#[test]
fn separate_members_travel_alone_and_are_moved_alike() {
    let graph = step();
    let how = r#"{"members": ["[tu]"], "separate": true, "wait_before": "output"}"#;
    let (after, planned) = put(&graph, &costs(&graph), &own(how)).unwrap();
    assert_eq!(planned.after.launches.len(), 10);
    assert_eq!(only(&after, "t vt u vu output"), ["t", "u", "vt", "vu", "output"]);
}

#[test]
fn members_are_found_by_name_input_kind_group_and_source() {
    let mut graph = step();
    let place = graph.order().iter().copied().find(|&id| graph.name_of(id) == "r2").unwrap();
    let mut meta = graph.meta_of(place).clone();
    meta.sources.push("File \"model.py\", line 7, in forward: layers.3".into());
    graph.set_meta(place, meta);
    for (members, travel) in [
        (r#""ga", "gb""#, "ga gb"),
        (r#"{"input": "[ab]"}"#, "ga gb"),
        (r#"{"kind": "all_gather", "input": "?"}, "ga""#, "ga gb gh"),
        (r#"{"kind": "all_reduce", "name": "r[15]"}, {"source": "*layers.3*"}"#, "r1 r2 r5"),
        (r#"{"group": "G*", "name": "r[12]"}"#, "r1 r2"),
        (r#"{"kind": "all_*", "above": "c2"}, {"below": "r5"}"#, "ga gb t u"),
    ] {
        match put(&graph, &costs(&graph), &own(&format!(r#"{{"members": [{members}], "separate": true}}"#))) {
            Ok((_, planned)) => assert_eq!(planned.after.launches.len(), 10),
            Err(error) => panic!("{members}: {error}"),
        }
        // Once more, with a place that nothing has: all that travel are named by what they claim.
        let each = travel.split(' ').map(|name| format!(r#"{{"members": ["{name}"]}}"#)).collect::<Vec<_>>().join(", ");
        let found = faults(&graph, &format!(r#"{{"members": [{members}], "separate": true}}, {each}"#));
        assert_eq!(found.len(), travel.split(' ').count(), "{members}: {found:?}");
    }
}

#[test]
fn each_fault_is_said_and_all_are_said_at_once() {
    let graph = step();
    // Each fault by itself, and the same within one file.
    let each = [
        r#"{"members": ["gq"]}"#,
        r#"{"members": [{"input": "l3_*", "kind": "all_gather"}]}"#,
        r#"{"members": [{"input": "l3_*"}]}"#,
        r#"{"members": [{"source": "*"}]}"#,
        r#"{"members": ["c*"]}"#,
        r#"{"members": [{"name": "g*", "below": "q1"}, {"above": "q9"}]}"#,
        r#"{"members": ["g[a"]}"#,
        r#"{"members": [{}]}"#,
        r#"{"members": []}"#,
        r#"{"members": ["g[ah]"]}"#,
        r#"{"members": ["r3", "r4"]}"#,
        r#"{"members": ["ga", "r1"]}"#,
        r#"{"members": ["t", "u"]}"#,
        r#"{"members": ["r1", "r3"]}"#,
        r#"{"members": ["r1", "r5"]}"#,
        r#"{"members": ["gb"], "launch_after": "c0", "launch_before": "c1"}"#,
        r#"{"members": ["gb"], "launch_after": "c9"}"#,
        r#"{"members": ["gb"], "launch_after": "c?", "wait_before": "nowhere"}"#,
        r#"{"members": ["gb"], "launch_after": "wb"}"#,
        r#"{"members": ["r1"], "launch_before": "c1"}"#,
        r#"{"members": ["r1"], "launch_after": "q1"}"#,
        r#"{"members": ["gb"], "launch_after": "c1", "wait_before": "c1"}"#,
        r#"{"members": ["gb"], "wait_before": "c3"}"#,
    ];
    let mut text = String::new();
    for buckets in each {
        text += &format!("{buckets}\n");
        faults(&graph, buckets).iter().for_each(|fault| text += &format!("    {fault}\n"));
    }
    for together in [
        r#"{"members": ["g?"]}, {"members": ["gb", "r1"]}"#,
        r#"{"members": ["r1", "r5"]}, {"members": ["r2", "r3"]}"#,
        r#"{"members": ["r1"], "wait_before": "q1"}, {"members": ["r3"], "launch_before": "c3"}"#,
        r#"{"members": ["ga"], "launch_before": "gb"}, {"members": ["gb"]}"#,
    ] {
        text += &format!("{together}\n");
        faults(&graph, together).iter().for_each(|fault| text += &format!("    {fault}\n"));
    }
    kit::assert_snapshot!("own_plan_faults", text);
    // Those that need nothing of others come out all the same in one file, each at its bucket.
    let alone: Vec<&str> = each[..13].iter().chain(&each[19..21]).copied().filter(|one| !one.contains("ga")).collect();
    let together = faults(&graph, &alone.join(", "));
    for (number, one) in alone.iter().enumerate() {
        let place = format!("buckets[{number}]");
        assert!(together.iter().any(|fault| fault.starts_with(&place)), "{one}: {together:#?}");
    }
}

#[test]
fn what_cannot_be_moved_or_merged_says_why() {
    let graph = parse(
        "x = input f32[8]; y = input f32[8]; z = input f32[8]
r = all_reduce(x, sum, G0:2); w = wait(r); again = wait(r)
s = all_reduce(y, sum, G0:2); v = wait(s)
one = all_reduce(y, sum, G1:1); u = wait(one)
none = all_reduce(z, sum, G0:2)
output(w, again, v, u, none)",
    )
    .unwrap();
    let found = faults(
        &graph,
        r#"{"members": ["r"]}, {"members": ["s", "one"]}, {"members": ["none"], "wait_before": "output"}"#,
    );
    let twice = "2 nodes wait for it; `dedupe-waits` makes them one";
    assert_eq!(
        found,
        [
            format!("buckets[0].members: `r` cannot be moved: {twice}"),
            "buckets[1].members: `one` cannot travel with others: its group has one rank, so it sends nothing; \
             `fold-trivial` takes it away"
                .to_owned(),
            "buckets[2].members: `none` cannot be moved: no wait in sight: its result leaves the graph before it is valid"
                .to_owned(),
        ]
    );
    let found = faults(&graph, r#"{"members": ["r", "s"]}"#);
    assert_eq!(found, [format!("buckets[0].members: `r` cannot travel with others: {twice}")]);
}

#[test]
fn texts_that_hold_no_plan_are_refused_with_line_and_column() {
    let head = r#"{"format": "bucketeer-own-plan", "version": 1, "buckets": "#;
    let mut text = String::new();
    for wrong in [
        "{".to_owned(),
        "[]".to_owned(),
        r#"{"format": "bucketeer-plan", "version": 1}"#.to_owned(),
        r#"{"format": "bucketeer-own-plan", "version": 2, "order": []}"#.to_owned(),
        r#"{"format": "bucketeer-own-plan", "version": -1}"#.to_owned(),
        r#"{"format": "bucketeer-own-plan", "version": 1}"#.to_owned(),
        format!("{head}[],\n \"rest\": 1}}"),
        format!("{head}[\n{{\"member\": []}}]}}"),
        format!("{head}[\n{{\"members\": [7]}}]}}"),
        format!("{head}[\n{{\"members\": [{{\"nam\": \"g\"}}]}}]}}"),
        format!("{head}[\n{{\"members\": [], \"separate\": \"yes\"}}]}}"),
        format!("{head}[\n{{\"members\": [\"a\"], \"members\": [\"b\"]}}]}}"),
    ] {
        let error = OwnPlan::from_json(&wrong).unwrap_err().to_string();
        text += &format!("{}\n    {error}\n", wrong.replace('\n', " "));
    }
    kit::assert_snapshot!("own_plan_texts", text);
}

#[test]
fn a_plan_is_read_as_it_is_written() {
    let plan = own(
        r#"{"members": ["g*", {"input": "l?_*", "kind": "all_gather"}], "launch_after": "c0", "wait_before": "c1"},
           {"members": [{"source": "*layers.3*", "group": "0", "name": "r*", "above": "c9", "below": "c1"}], "separate": true, "launch_before": "c1"}"#,
    );
    assert_eq!(OwnPlan::from_json(&plan.to_json()).unwrap(), plan);
}

#[test]
fn every_place_between_operand_and_reader_is_taken_and_no_other() {
    // `r` needs `c1`, and `c4` needs its result; calls of two operands, so that none floats.
    let text = "x = input f32[8]\nc0 = add(x, x); c1 = add(c0, x); r = all_reduce(c1, sum, G0:2); w = wait(r)
c2 = add(c1, x); c3 = add(c2, x); c4 = add(c3, w); c5 = add(c4, x)\noutput(c5)";
    let graph = parse(text).unwrap();
    let costs = costs(&graph);
    let places: Vec<String> = (0..6).map(|at| format!("c{at}")).collect();
    let (mut taken, mut refused) = (0, 0);
    for (launch, after) in (0..6).flat_map(|at| [(at, true), (at, false)]) {
        for wait in 0..=6 {
            let mut bucket = OwnBucket { members: vec![OwnMembers::named("r")], ..OwnBucket::default() };
            let field = if after { &mut bucket.launch_after } else { &mut bucket.launch_before };
            *field = Some(places[launch].clone());
            bucket.wait_before = Some(places.get(wait).cloned().unwrap_or_else(|| "output".to_owned()));
            let mut plan = OwnPlan::default();
            plan.buckets.push(bucket);
            let launched_before = launch + usize::from(after);
            let mut wrong = Vec::new();
            if launched_before < 2 {
                wrong.push("LaunchedTooEarly");
            }
            if launched_before > 4 {
                wrong.push("LaunchedTooLate");
            }
            if wait < launched_before {
                wrong.push("WaitedTooEarly");
            }
            if wait > 4 {
                wrong.push("WaitedTooLate");
            }
            match put(&graph, &costs, &plan) {
                Ok((after_graph, planned)) => {
                    assert!(wrong.is_empty(), "{plan:?}");
                    let expected: Vec<String> = (0..6)
                        .flat_map(|at| {
                            let launched = (launched_before == at).then(|| "r".to_owned());
                            let waited = (wait == at).then(|| "w".to_owned());
                            launched.into_iter().chain(waited).chain([places[at].clone()])
                        })
                        .collect();
                    assert_eq!(only(&after_graph, "c0 c1 c2 c3 c4 c5 r w"), expected, "{plan:?}");
                    let hidden = 1_000 * (wait - launched_before) as u64;
                    assert_eq!(planned.after.exposed_ns(), planned.before.exposed_ns().saturating_sub(hidden));
                    taken += 1;
                }
                Err(OwnPlanError::Faults(found)) => {
                    let mut found: Vec<String> = found
                        .iter()
                        .map(|fault| {
                            let kind = format!("{:?}", fault.what);
                            kind.split([' ', '{']).next().unwrap().to_owned()
                        })
                        .collect();
                    found.sort_by_key(|kind| wrong.iter().position(|wrong| wrong == kind));
                    assert_eq!(found, wrong, "{plan:?}");
                    refused += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
    // Three gaps, each named by the node above it or below it, and the waits that are left behind each.
    assert_eq!((taken, refused), (2 * (3 + 2 + 1), 84 - 12));
}

#[test]
fn nothing_is_launched_behind_the_outputs_and_a_graph_without_nodes_has_no_place() {
    let graph = parse("x = input f32[8]; r = all_reduce(x, sum, G0:2); w = wait(r); c = add(x, x); output(c)").unwrap();
    let found = faults(&graph, r#"{"members": ["r"], "launch_after": "output"}"#);
    assert_eq!(found, ["buckets[0].launch_after: it is launched behind `output`, which needs its result"]);
    let (after, _) = put(&graph, &costs(&graph), &own(r#"{"members": ["r"], "launch_after": "c"}"#)).unwrap();
    assert_eq!(only(&after, "c r w output"), ["c", "r", "w", "output"]);
    let empty = Graph::new("nothing");
    let found = faults(&empty, r#"{"members": ["*"], "launch_after": "*"}"#);
    assert_eq!(found.len(), 2, "{found:?}");
    let mut same = empty.clone();
    plan_own(&mut same, &Costs::default(), &OwnPlan::default(), Some(0)).unwrap();
    assert!(same == empty);
}

#[test]
fn a_cap_below_the_peak_refuses_the_plan_and_one_at_the_peak_takes_it() {
    let graph = step();
    let (costs, own) = (costs(&graph), own(r#"{"members": ["g[ab]"], "launch_before": "c0"}"#));
    let (_, planned) = put(&graph, &costs, &own).unwrap();
    let peak = planned.after.peak_bytes;
    let mut after = graph.clone();
    let error = plan_own(&mut after, &costs, &own, Some(peak - 1)).unwrap_err();
    assert!(after == graph);
    let OwnPlanError::Memory { peak_bytes, at, cap_bytes } = &error else { panic!("{error}") };
    assert_eq!((*peak_bytes, *cap_bytes), (peak, peak - 1));
    assert!(error.to_string().contains(at) && !at.is_empty());
    plan_own(&mut after, &costs, &own, Some(peak)).unwrap();
}

#[test]
fn messages_without_bytes_that_are_merged_take_no_time_and_no_bound_counts_them() {
    // The sums need what is computed before them, and what is computed behind them needs theirs.
    let graph = parse(
        "x = input f32[64]; a = input f32[16]; e = input f32[0]; f = input f32[0]
ga = all_gather(a, G0:4); wa = wait(ga); ge = all_gather(e, G0:4); we = wait(ge)
gf = all_gather(f, G0:4); wf = wait(gf)
c0 = aten.cat.default([wa, we, wf]) : f32[64]; c1 = add(c0, x) : f32[64]
y = aten.slice.Tensor(c1, 0, 0, 0) : f32[0]; z = aten.slice.Tensor(c1, 0, 64, 64) : f32[0]
ry = all_reduce(y, sum, G1:4); wy = wait(ry); rz = all_reduce(z, sum, G1:4); wz = wait(rz)
rx = all_reduce(c1, sum, G1:4); wx = wait(rx)
c2 = aten.cat.default([wy, wz, x]) : f32[64]; c3 = add(c2, wx) : f32[64]
output(c3)",
    )
    .unwrap();
    let costs = costs(&graph);
    // A message of 256 bytes takes 1,028 ns, one of none 900, and each of four computations 1,000.
    for (buckets, launches, ns) in [
        (r#"{"members": ["gf"]}"#, 6, 2_828 + 2_828 + 4_000),
        (r#"{"members": ["g[ef]"]}"#, 4, 1_028 + 2_828 + 4_000),
        (r#"{"members": ["g?"]}"#, 4, 1_028 + 2_828 + 4_000),
        (r#"{"members": ["r[yz]"]}"#, 4, 2_828 + 1_028 + 4_000),
        (r#"{"members": ["g?"]}, {"members": ["r[xz]"]}"#, 3, 1_028 + 1_928 + 4_000),
        (r#"{"members": ["g?"]}, {"members": ["r?"]}"#, 2, 1_028 + 1_028 + 4_000),
        (r#"{"members": ["g[ef]"]}, {"members": ["r[yz]"]}"#, 2, 1_028 + 1_028 + 4_000),
        (
            r#"{"members": ["g?"]}, {"members": ["r[yz]"]}, {"members": ["rx"], "wait_before": "c3"}"#,
            2,
            1_028 + 28 + 4_000,
        ),
    ] {
        let (_, found) = put(&graph, &costs, &own(buckets)).unwrap();
        assert_eq!((found.after.launches.len(), found.after.makespan_ns), (launches, ns), "{buckets}");
    }
    // A plan that is found leaves them as they are, and knows the bound that the last of these reaches.
    let (_, found) = planned(&graph, &costs, &options(None, Effort::Low));
    assert_eq!((found.after.launches.len(), found.bounds[0].ns), (6, 1_028 + 28 + 4_000));
}

#[test]
fn a_second_wait_does_not_wait_for_a_launch_that_it_only_stands_behind() {
    // `w` names what `g` reads, so it stays behind `g`, and waits for `r` alone.
    let graph = parse(
        "x = input f32[16]; r = all_reduce_(x, sum, G0:4); v = wait(x)
g = all_gather(v, G0:4); w = wait(r); c = aten.neg.default(w) : f32[16]; u = wait(g)
output(c, u)",
    )
    .unwrap();
    let costs = costs(&graph);
    let (_, found) = put(&graph, &costs, &OwnPlan::default()).unwrap();
    assert_eq!((found.after.makespan_ns, found.bounds[0].ns), (932 + 1_028, 932 + 1_028));
    planned(&graph, &costs, &options(None, Effort::Low));
}

#[test]
fn a_thousand_patterns_over_forty_thousand_nodes_take_near_linear_time() {
    let mut text = "x = input f32[8]\n".to_owned();
    for at in 0..10_000 {
        text += &format!("c{at} = add(x, x); r{at} = all_reduce(c{at}, sum, G0:2); w{at} = wait(r{at})\n");
    }
    let waits = (0..10_000).map(|at| format!("w{at}")).collect::<Vec<_>>().join(", ");
    let graph = parse(&(text + &format!("output({waits})"))).unwrap();
    let costs = costs(&graph);
    let mut plan = OwnPlan::default();
    for at in 0..1_000 {
        let members =
            vec![OwnMembers::named(&format!("*r*{}[0-4]", at * 7 % 1_000)), OwnMembers::named("*a*a*a*a*a*a*a*b")];
        plan.buckets.push(OwnBucket { members, ..OwnBucket::default() });
    }
    let start = std::time::Instant::now();
    let mut after = graph;
    assert!(matches!(plan_own(&mut after, &costs, &plan, None), Err(OwnPlanError::Faults(_))));
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

/// A plan of the shared instances, in our form: all collectives, each where the plan launches it and waits for it. None if its
/// order of computation is not that of the graph.
fn translated(graph: &Graph, costs: &Costs, plan: &Value) -> Option<OwnPlan> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let by_name: IndexMap<&str, NodeId> = graph.order().iter().map(|&id| (graph.name_of(id), id)).collect();
    let takes_time = |name: &str| costs.compute_ns.get(name).is_some_and(|&ns| ns > 0);
    let order: Vec<String> = plan["order"].as_array().unwrap().iter().map(text).collect();
    let computed: Vec<&str> = order.iter().map(String::as_str).filter(|name| takes_time(name)).collect();
    if names(graph).into_iter().filter(|name| takes_time(name)).ne(computed.iter().copied()) {
        return None;
    }
    // By launch: its bucket. Whether something was waited for since the last computation.
    let mut found: IndexMap<&str, OwnBucket> = IndexMap::new();
    let (mut nth, mut waited) = (0usize, false);
    let mut inputs = graph.order().iter().filter(|&&id| graph.node(id).op == Op::Input);
    let first = inputs.next_back().map(|&id| graph.name_of(id).to_owned());
    for name in &order {
        let (before, after) = (
            nth.checked_sub(1).map(|at| computed[at].to_owned()).or_else(|| first.clone()),
            Some(computed.get(nth).map_or("output", |name| name).to_owned()),
        );
        let launched = plan["buckets"].get(name);
        let op = by_name.get(&**name).map(|&id| graph.node(id).op);
        if takes_time(name) {
            (nth, waited) = (nth + 1, false);
        } else if launched.is_some() || matches!(op, Some(Op::Collective(_))) {
            let members = launched.map_or_else(
                || vec![name.clone()],
                |bucket| bucket["members"].as_array().unwrap().iter().map(text).collect(),
            );
            let mut bucket = OwnBucket {
                members: members.iter().map(|name| OwnMembers::named(name)).collect(),
                ..OwnBucket::default()
            };
            if waited {
                bucket.launch_before = after
            } else {
                bucket.launch_after = before
            }
            found.insert(name, bucket);
        } else if name.starts_with("wait:") || op == Some(Op::Wait) {
            let of = match name.strip_prefix("wait:") {
                Some(bucket) => bucket,
                None => graph.name_of(graph.operands(by_name[&**name])[0]),
            };
            found[of].wait_before = after;
            waited = true;
        }
    }
    let mut own = OwnPlan::default();
    own.buckets.extend(found.into_values());
    // As it would be read from a file.
    Some(OwnPlan::from_json(&own.to_json()).unwrap())
}

#[test]
fn an_exact_plan_of_another_program_takes_as_long_as_that_says() {
    let folder = folder("rn50_ddp_10gbe16");
    let (document, costs) = read(&folder);
    let plan: Value = serde_json::from_slice(&files::read(&folder.join("exact.plan.json"))).unwrap();
    let graph = &document.graphs()[0];
    let (_, planned) = put(graph, &costs, &translated(graph, &costs, &plan).unwrap()).unwrap();
    assert_eq!(planned.after.makespan_ns, 116_707_749);
    assert_eq!((planned.after.launches.len(), planned.after.buckets()), (4, 4));
    assert!(planned.after.peak_bytes <= normal_cap(planned.before.peak_bytes));
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn plans_of_shared_instances_take_as_long_as_their_judge_says() {
    let instances = files::shared().with_file_name("instances");
    let (mut exact, mut best) = (0, 0);
    for folder in std::fs::read_dir(instances).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
    {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let baseline: Value = serde_json::from_slice(&files::read(&folder.join("baseline.json"))).unwrap();
        let (document, costs) = read(&folder);
        let graph = &document.graphs()[0];
        let judged = [
            ("exact.plan.json", &baseline["exact_chain_optimum"]["makespan_ns"]),
            ("best.plan.json", &baseline["best_known"]["makespan_ns"]),
            ("pytorch.plan.json", &baseline["pytorch"]["best"]["makespan_ns"]),
        ];
        for (file, judged) in judged.into_iter().filter(|(file, _)| files::exists(&folder.join(file))) {
            let plan: Value = serde_json::from_slice(&files::read(&folder.join(file))).unwrap();
            let Some(own) = translated(graph, &costs, &plan) else { continue };
            let (_, planned) = put(graph, &costs, &own).unwrap_or_else(|error| panic!("{name} {file}: {error}"));
            assert_eq!(Some(planned.after.makespan_ns), judged.as_u64(), "{name} {file}");
            exact += usize::from(file.starts_with("exact"));
            best += usize::from(file.starts_with("best"));
        }
    }
    assert_eq!((exact, best), (6, 6));
}

/// Some buckets of a graph, drawn by numbers: collectives that stand side by side, places near them, and whether each travels
/// alone.
fn drawn(graph: &Graph, draws: &[(u16, u8, u8, u8)]) -> OwnPlan {
    let names = names(graph);
    let is_collective = |at: &usize| graph.collective(graph.order()[*at]).is_some();
    let collectives: Vec<usize> = (0..names.len()).filter(is_collective).collect();
    let mut plan = OwnPlan::default();
    for &(members, launch, wait, how) in draws {
        let mut bucket = OwnBucket { separate: how & 1 == 1, ..OwnBucket::default() };
        let first = usize::from(members) % collectives.len().max(1);
        let some = collectives.iter().skip(first).take(1 + usize::from(how >> 6));
        bucket.members.extend(some.map(|&at| OwnMembers::named(names[at])));
        let stood = collectives.get(first).copied().unwrap_or(0);
        let near = |offset: usize| names.get((stood + offset).saturating_sub(4)).map(|name| (*name).to_owned());
        match how >> 1 & 7 {
            0 => bucket.launch_after = near(usize::from(launch) % 8),
            1 => bucket.launch_before = near(usize::from(launch) % 8),
            2 => bucket.launch_before = near(4 + usize::from(launch) % 32),
            _ => {}
        }
        bucket.wait_before = if how >> 4 & 3 == 0 { near(5 + usize::from(wait) % 8) } else { None };
        plan.buckets.push(bucket);
    }
    plan
}

/// Holds a planned graph against what the file says.
fn holds(before: &Graph, after: &Graph, costs: &Costs, plan: &OwnPlan) {
    let position: IndexMap<&str, usize> = names(after).into_iter().enumerate().map(|(at, name)| (name, at)).collect();
    let named: Vec<&str> =
        plan.buckets.iter().flat_map(|bucket| &bucket.members).map(|member| member.name.as_deref().unwrap()).collect();
    // What stays: computation of more or less than one operand, and collectives that no bucket names.
    let stays = |name: &str| {
        let id = *before.order().iter().find(|&&id| before.name_of(id) == name).unwrap();
        match before.node(id).op {
            Op::Call(_) => costs.compute_ns.get(name).is_some_and(|&ns| ns > 0) && before.operands(id).len() != 1,
            Op::Collective(_) => !named.contains(&name),
            Op::Input | Op::Output | Op::Wait => false,
        }
    };
    let kept: Vec<&str> = names(before).into_iter().filter(|name| stays(name)).collect();
    let stand: Vec<&str> = names(after).into_iter().filter(|name| kept.contains(name)).collect();
    assert_eq!(kept, stand);
    for bucket in &plan.buckets {
        for name in bucket.members.iter().map(|member| member.name.as_deref().unwrap()) {
            let carries = |&&id: &&NodeId| {
                after.name_of(id) == name || after.meta_of(id).members.iter().any(|member| &**member == name)
            };
            let launch = after.order().iter().filter(|&&id| after.collective(id).is_some()).find(carries);
            let Some(&launch) = launch else {
                // Where all members of a bucket are without bytes nothing is launched.
                let id = *before.order().iter().find(|&&id| before.name_of(id) == name).unwrap();
                assert_eq!(message_bytes(before, id), Ok(0), "{name} is launched nowhere");
                continue;
            };
            let at = position[after.name_of(launch)];
            let is_wait = |id: &&NodeId| after.node(**id).op == Op::Wait && after.operands(**id).contains(&launch);
            let wait = after.order().iter().find(is_wait).map(|&id| position[after.name_of(id)]);
            let place = |field: &Option<String>| field.as_deref().filter(|name| stays(name)).map(|name| position[name]);
            assert!(place(&bucket.launch_after).is_none_or(|place| place < at), "{name}");
            assert!(place(&bucket.launch_before).is_none_or(|place| place > at), "{name}");
            assert!(place(&bucket.wait_before).is_none_or(|place| wait.is_some_and(|wait| wait < place)), "{name}");
        }
    }
}

#[test]
fn random_plans_of_random_graphs_are_refused_or_proven_and_run_as_they_say() {
    let (taken, refused) = (Cell::new(0u32), Cell::new(0u32));
    let config = ProptestConfig { cases: 2048, source_file: Some(file!()), ..ProptestConfig::default() };
    let strategy = (graph_strategy(), prop::collection::vec(any::<(u16, u8, u8, u8)>(), 1..4));
    let run = TestRunner::new(config).run(&strategy, |(graph, draws)| {
        let costs = made_up(&graph);
        if Timeline::of(&graph, &costs).is_err() {
            return Err(TestCaseError::reject("a size is not known"));
        }
        let plan = drawn(&graph, &draws);
        match put(&graph, &costs, &plan) {
            Ok((after, planned)) => {
                let merged = planned.merges.iter().map(|(plan, done)| plan.merged() - done.launches.len());
                let members: usize = merged.sum();
                prop_assert_eq!(planned.before.launches.len() - planned.after.launches.len(), members);
                holds(&graph, &after, &costs, &plan);
                taken.set(taken.get() + u32::from(planned.before.launches.len() > 1));
            }
            Err(OwnPlanError::Plan(PlanError::OwnForm { .. })) => {}
            Err(OwnPlanError::Faults(faults)) => {
                prop_assert!(!faults.is_empty());
                refused.set(refused.get() + 1);
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
        Ok(())
    });
    run.unwrap();
    assert!(taken.get() > 100 && refused.get() > 100, "{} are taken, {} refused", taken.get(), refused.get());
}
