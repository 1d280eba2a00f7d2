//! Rules and passes of a toolchain's own: they change what is decided, never what is legal, and what they make is verified
//! and proven as anything else.

use bucketeer::ir::text::{parse, print};
use bucketeer::ir::{Dependencies, Graph, NodeId, Op};
use bucketeer::passes::bucketing::{BucketPlan, Decision, Reason};
use bucketeer::passes::merge::{MergeError, merge};
use bucketeer::passes::order::Place;
use bucketeer::passes::own::{BucketPolicy, BucketWith, Candidates, GraphPass, OwnPass, PolicyError, plan_with};
use bucketeer::passes::{BucketKind, BucketOptions, Pass, PassReport, Pipeline, PipelineError};
use bucketeer::{Verdict, prove};
use std::error::Error;
use std::sync::Arc;

/// Four reductions of 32 bytes, the last of which needs the first, and a gather.
const STEP: &str = "
    a = input f32[8]; r0 = all_reduce(a, sum, world:4); w0 = wait(r0)
    b = input f32[8]; r1 = all_reduce(b, sum, world:4); w1 = wait(r1)
    c = input f32[8]; r2 = all_reduce(c, max, world:4); w2 = wait(r2)
    d = add(a, w0); r3 = all_reduce(d, sum, world:4); w3 = wait(r3)
    g = all_gather(b, world:4); w4 = wait(g)
    output(w0, w1, w2, w3, w4)";

fn node(graph: &Graph, name: &str) -> NodeId {
    *graph.order().iter().find(|&&id| graph.name_of(id) == name).unwrap()
}

/// Chooses these, by name.
#[derive(Clone)]
struct These(&'static [&'static [&'static str]]);

impl BucketPolicy for These {
    fn name(&self) -> &'static str {
        "these"
    }

    fn choose(&self, candidates: &Candidates<'_>) -> Option<Vec<Vec<NodeId>>> {
        let bucket = |names: &&[&str]| names.iter().map(|name| node(candidates.graph(), name)).collect();
        Some(self.0.iter().map(bucket).collect())
    }
}

fn plan_of(options: &BucketOptions, chosen: &'static [&'static [&'static str]]) -> Result<BucketPlan, PolicyError> {
    let graph = parse(STEP).unwrap();
    plan_with(&graph, &Dependencies::of(&graph), options, &These(chosen))
}

fn reduces() -> BucketOptions {
    BucketOptions::new(BucketKind::AllReduce)
}

#[test]
fn a_choice_of_ones_own_is_merged_proven_and_remarked_on() {
    let before = parse(STEP).unwrap();
    let mut after = before.clone();
    let own = BucketWith { options: reduces(), policy: Arc::new(These(&[&["r1", "r3"]])) };
    let pipeline = Pipeline { passes: vec![Pass::DedupeWaits, Pass::Own(OwnPass(Arc::new(own)))] };
    assert_eq!(pipeline.to_string(), "dedupe-waits,these");
    let reports = pipeline.run(&mut after).unwrap();
    let plan = reports[1].plan.as_ref().unwrap();
    assert_eq!(plan.names(&before), [["r1", "r3"]]);
    let decision = |name: &str| &plan.remarks.iter().find(|remark| remark.name == name).unwrap().decision;
    assert_eq!(*decision("r0"), Decision::Alone(Reason::NotChosen));
    assert_eq!(*decision("r3"), Decision::Merged { bucket: 0 });
    assert!(matches!(prove(&before, &after), Verdict::Equal(_)));
    assert_eq!(print(&after).matches("all_reduce(").count(), 3);
}

#[test]
fn what_a_rule_may_not_choose_is_refused_by_name() {
    let refused = |options: &BucketOptions, chosen| plan_of(options, chosen).unwrap_err().to_string();
    let options = reduces();
    assert_eq!(
        refused(&options, &[&["r0", "g"]]),
        "policy `these` chose `g`, which is not a candidate; choose among those it is given"
    );
    assert_eq!(
        refused(&options, &[&["r0", "r1"], &["r3", "r0"]]),
        "policy `these` chose `r0` twice; a collective travels once"
    );
    assert_eq!(refused(&options, &[&["r0", "r0"]]), "policy `these` chose `r0` twice; a collective travels once");
    assert_eq!(
        refused(&options, &[&["r0", "r2"]]),
        "policy `these` chose `r0` and `r2` for one bucket; they differ in reduce op, root or dimension"
    );
    let capped = |cap_bytes, max_members| {
        let mut options = reduces();
        options.caps.cap_bytes = vec![cap_bytes];
        options.caps.max_members = max_members;
        options
    };
    assert_eq!(
        refused(&capped(63, None), &[&["r0", "r1"]]),
        "policy `these` chose a bucket from `r0` on that does not fit the caps: 64 bytes are more than 63"
    );
    assert!(plan_of(&capped(64, Some(2)), &[&["r0", "r1"]]).is_ok());
    assert_eq!(
        refused(&capped(64, Some(1)), &[&["r0", "r1"]]),
        "policy `these` chose a bucket from `r0` on that does not fit the caps: 2 members are more than 1"
    );
    // One member is not a bucket, and nothing is not a fault.
    assert_eq!(plan_of(&options, &[&["r0"], &[]]).unwrap().buckets, []);
}

#[test]
fn a_choice_that_closes_a_loop_is_refused_before_the_graph_is_touched() {
    let mut graph = parse(STEP).unwrap();
    let plan = plan_of(&reduces(), &[&["r0", "r3"]]).unwrap();
    let before = print(&graph);
    let dependencies = Dependencies::of(&graph);
    let error = merge(&mut graph, &dependencies, &plan).unwrap_err();
    assert_eq!(error, MergeError::Cycle { members: vec!["r0".to_owned(), "r3".to_owned()] });
    assert_eq!(print(&graph), before);
}

/// Counts every collective as if it had 1000 bytes, and those of a name as unknown.
struct Costs;

impl BucketPolicy for Costs {
    fn name(&self) -> &'static str {
        "costs"
    }

    fn cost_bytes(&self, graph: &Graph, collective: NodeId, bytes: Option<u64>) -> Option<u64> {
        assert_eq!(bytes, Some(32));
        (graph.name_of(collective) != "r1").then_some(1000)
    }

    fn place(&self, _: &BucketPlan) -> Option<Place> {
        Some(Place::Last)
    }
}

#[test]
fn a_cost_of_ones_own_counts_against_the_cap() {
    let graph = parse(
        "a = input f32[8]; r0 = all_reduce(a, sum, world:4); w0 = wait(r0)
        r1 = all_reduce(a, sum, world:4); w1 = wait(r1); r2 = all_reduce(a, sum, world:4); w2 = wait(r2)
        r3 = all_reduce(a, sum, world:4); w3 = wait(r3); output(w0, w1, w2, w3)",
    )
    .unwrap();
    let names = |cap_bytes: u64| {
        let mut options = reduces();
        options.caps.cap_bytes = vec![cap_bytes];
        plan_with(&graph, &Dependencies::of(&graph), &options, &Costs).unwrap().names(&graph)
    };
    assert_eq!(names(1999), [[""; 0]; 0]);
    assert_eq!(names(2000), [["r0", "r2"]]);
    assert_eq!(names(3000), [["r0", "r2", "r3"]]);
}

#[test]
fn a_place_of_ones_own_is_where_the_launch_stands() {
    let text = "a = input f32[8]; b = input f32[8]; r0 = all_reduce(a, sum, world:4); between = neg(a)
        w0 = wait(r0); d = neg(w0); r1 = all_reduce(b, sum, world:4); w1 = wait(r1); output(d, w1)";
    let between_is_first = |policy: Arc<dyn BucketPolicy>| {
        let mut graph = parse(text).unwrap();
        let pass = BucketWith { options: reduces(), policy };
        Pipeline { passes: vec![Pass::Own(OwnPass(Arc::new(pass)))] }.run(&mut graph).unwrap();
        let order = graph.order();
        let launch = order.iter().position(|&id| matches!(graph.node(id).op, Op::Collective(_))).unwrap();
        order.iter().position(|&id| graph.name_of(id) == "between").unwrap() < launch
    };
    assert!(between_is_first(Arc::new(AtLast)));
    assert!(!between_is_first(Arc::new(AsTheKind)));
}

/// At the last member.
struct AtLast;

impl BucketPolicy for AtLast {
    fn name(&self) -> &'static str {
        "last"
    }

    fn place(&self, plan: &BucketPlan) -> Option<Place> {
        assert_eq!(plan.buckets.len(), 1);
        Some(Place::Last)
    }
}

/// As the kind has it.
struct AsTheKind;

impl BucketPolicy for AsTheKind {
    fn name(&self) -> &'static str {
        "early"
    }
}

/// Takes the wait away that a reader needs.
#[derive(Debug)]
struct Breaks;

impl GraphPass for Breaks {
    fn name(&self) -> &'static str {
        "breaks"
    }

    fn run(&self, graph: &mut Graph) -> Result<PassReport, Box<dyn Error + Send + Sync>> {
        let order = graph.order().iter().copied().filter(|&id| graph.name_of(id) != "w0").collect();
        graph.set_order(order);
        Ok(PassReport { removed: 1, ..PassReport::new(self.name()) })
    }
}

/// Cannot be done.
#[derive(Debug)]
struct Refuses;

impl GraphPass for Refuses {
    fn name(&self) -> &'static str {
        "refuses"
    }

    fn run(&self, _: &mut Graph) -> Result<PassReport, Box<dyn Error + Send + Sync>> {
        Err("there is nothing to do".into())
    }
}

#[test]
fn a_pass_of_ones_own_that_breaks_the_graph_or_fails_is_named() {
    let run = |pass: Arc<dyn GraphPass>| {
        Pipeline { passes: vec![Pass::Own(OwnPass(pass))] }.run(&mut parse(STEP).unwrap()).unwrap_err()
    };
    let broken = run(Arc::new(Breaks));
    assert!(matches!(broken, PipelineError::BrokenBy { pass: "breaks", .. }), "{broken}");
    assert!(broken.to_string().contains("`w0`"), "{broken}");
    assert_eq!(run(Arc::new(Refuses)).to_string(), "pass `refuses`: there is nothing to do");
}

/// A rule that looks at the rank it runs on, which is a mistake.
#[derive(Debug)]
struct ByRank(std::sync::Mutex<bool>);

impl GraphPass for ByRank {
    fn name(&self) -> &'static str {
        "by-rank"
    }

    fn run(&self, graph: &mut Graph) -> Result<PassReport, Box<dyn Error + Send + Sync>> {
        let first = std::mem::replace(&mut *self.0.lock().unwrap(), false);
        let chosen: &[&[&str]] = if first { &[&["r0", "r1"]] } else { &[&["r1", "r3"]] };
        BucketWith { options: reduces(), policy: Arc::new(These(chosen)) }.run(graph)
    }
}

#[test]
fn ranks_that_merge_different_things_by_a_rule_of_their_own_are_refused() {
    let text = format!("group world:2 = [[0, 1]]\n{}", STEP.replace("world:4", "world"));
    let (mut one, mut other) = (parse(&text).unwrap(), parse(&text).unwrap());
    let pass = Pass::Own(OwnPass(Arc::new(ByRank(std::sync::Mutex::new(true)))));
    let error = Pipeline { passes: vec![pass] }.run_together(&mut [&mut one, &mut other], &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("rank"), "{error}");
}
