//! Communication that the graph has no word for: it keeps its order, and ranks are held to it.

use bucketeer::check::ranks::{RankOptions, RanksError, check_ranks};
use bucketeer::formats::{Document, GroupsFile};
use bucketeer::ir::text::parse;
use bucketeer::ir::{Dependencies, Graph, verify};
use bucketeer::passes::{Pipeline, TogetherError};
use std::path::Path;

const DEFAULT: &str = "bucket-reduce-scatter,bucket-all-reduce,bucket-all-gather";

/// The one graph of a file in `tests/found`.
fn found(name: &str) -> Graph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/found").join(name);
    let document = Document::open(&path).unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
    document.graphs()[0].clone()
}

fn with_groups(name: &str, groups: &str) -> Graph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/found").join(groups);
    let groups = GroupsFile::parse(&std::fs::read(path).unwrap()).unwrap();
    let mut graph = found(name);
    assert_eq!(groups.apply(&mut graph).unwrap(), Vec::<String>::new());
    graph
}

fn faults(graphs: &[Graph]) -> Vec<String> {
    let faults = check_ranks(graphs, &RankOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    faults.iter().map(ToString::to_string).collect()
}

fn together(pipeline: &str, graphs: &mut [Graph]) -> Result<(), TogetherError> {
    let pipeline: Pipeline = pipeline.parse().unwrap();
    let mut graphs: Vec<&mut Graph> = graphs.iter_mut().collect();
    pipeline.run_together(&mut graphs, &mut |_| {}).map(|_| ())
}

/// What communicates, in order: names of launches and of calls.
fn order(graph: &Graph) -> Vec<&str> {
    let launches = bucketeer::ir::communication::Launches::of(graph);
    graph.order().iter().filter(|&&id| launches.get(id).is_some()).map(|&id| graph.name_of(id)).collect()
}

#[test]
fn g_order_rank0_keeps_one_order_of_all_communication() {
    let mut graphs =
        [with_groups("G-order_rank0.txt", "G-groups2.json"), with_groups("G-order_rank1.txt", "G-groups2.json")];
    assert_eq!(faults(&graphs), [""; 0]);
    together("bucket-all-gather{cap=none}", &mut graphs).unwrap();
    assert_eq!(order(&graphs[0]), ["g0", "y", "g1"]);
    assert_eq!(order(&graphs[1]), ["g0", "y", "g1"]);
    assert_eq!(faults(&graphs), [""; 0]);
}

#[test]
fn d_f48_an_exchange_and_a_gather_in_opposite_orders_are_seen() {
    let graphs = [found("D-F48.rank0.fx.txt"), found("D-F48.rank1.fx.txt")];
    let expected = "0 #0: rank 0 _dtensor.shard_dim_alltoall(f32 x 32, 1, 0, '0'), rank 1 all_gather dim 0 f32 x 8 \
                    (rank 0: `d`, rank 1: `s0`)";
    assert_eq!(faults(&graphs), [expected]);
    assert_eq!(faults(&[graphs[0].clone(), graphs[0].clone()]), [""; 0]);
    let error = together(DEFAULT, &mut graphs.clone()).unwrap_err();
    assert!(matches!(error, TogetherError::Differ { position: 0, .. }), "{error}");
}

#[test]
fn a_a2a_splits_what_one_rank_sends_the_other_takes() {
    let graphs = ["A-a2a_splits.rank0.txt", "A-a2a_splits.rank1.txt"].map(|name| with_groups(name, "A-groups_AB.json"));
    let expected = "A #0: rank 0 sends rank 1 3 elements, rank 1 takes 1 from rank 0 (rank 0: `s0`, rank 1: `s0`)";
    assert_eq!(faults(&graphs), [expected]);
    // Uneven, but each takes what the other sends.
    let of = |out: &str, input: &str| {
        let text = format!("x = input f32[4, 2]; s = all_to_all(x, {out}, {input}, G:2) : f32[4, 2]\noutput(wait(s))");
        parse(&text).unwrap_or_else(|error| panic!("{error}"))
    };
    assert_eq!(faults(&[of("[1, 3]", "[1, 3]"), of("[3, 1]", "[3, 1]")]), [""; 0]);
    assert_eq!(faults(&[of("[]", "[]"), of("[2, 2]", "[2, 2]")]), [""; 0]);
    assert_eq!(faults(&[of("[]", "[]"), of("[3, 1]", "[2, 2]")]).len(), 1);
}

#[test]
fn a_bcast_root_both_roots_are_shown() {
    let mut graphs =
        ["A-bcast_root.rank0.txt", "A-bcast_root.rank1.txt"].map(|name| with_groups(name, "A-groups_AB.json"));
    let seen = faults(&graphs).concat();
    assert!(seen.contains("broadcast from 0") && seen.contains("broadcast from 1"), "{seen}");
    let error = together("bucket-broadcast", &mut graphs).unwrap_err().to_string();
    assert!(error.contains("broadcast from 0") && error.contains("broadcast from 1"), "{error}");
}

/// Two gathers with a call between them.
fn around(call: &str, result: &str) -> String {
    format!(
        "a = input f32[4]; b = input f32[4]; m = input f32[4]
        s = all_gather(a, G:2); w = wait(s)
        c = {call} : {result}
        t = all_gather(b, G:2); v = wait(t)
        output(w, v, c)"
    )
}

#[test]
fn a_call_that_communicates_keeps_launches_apart() {
    for call in [
        "_dtensor.shard_dim_alltoall.default(m, 0, 0, 'tp')",
        "_c10d_functional_autograd.unheard_of.default(m, 'G')",
        "symm_mem.one_shot_all_reduce.default(m, 'sum', 'G')",
        "c10d.isend.default(m, 1)",
        "c10d.allreduce_.default(m)",
        "mylib.batch_p2p_ops.default(m)",
        "vllm.all_reduce.default(m, 'tp:0')",
    ] {
        let mut graph = parse(&around(call, "f32[4]")).unwrap_or_else(|error| panic!("{call}: {error}"));
        let before = graph.clone();
        let pipeline: Pipeline = "bucket-all-gather{cap=none}".parse().unwrap();
        pipeline.run(&mut graph).unwrap();
        assert_eq!(order(&graph), order(&before), "{call}");
        assert!(order(&graph).len() >= 3, "{call}");
    }
}

#[test]
fn of_a_call_whose_ranks_are_not_known_nothing_is_decided() {
    let texts = ["c10d.isend.default(m, 1)", "c10d.irecv.default(m, 0)"].map(|call| around(call, "f32[4]"));
    let mut graphs = texts.map(|text| parse(&text).unwrap());
    let undecided = check_ranks(&graphs, &RankOptions::default()).unwrap_err();
    assert_eq!(
        undecided,
        RanksError::Undecided { rank: 0, node: "c".to_owned(), kind: "c10d.isend".to_owned() },
        "{undecided}"
    );
    let error = together(DEFAULT, &mut graphs).unwrap_err();
    assert!(matches!(&error, TogetherError::UnknownCommunication { rank: 0, .. }), "{error}");
    // What is known to be wrong is told all the same.
    let wrong = parse(&around("c10d.irecv.default(m, 0)", "f32[4]").replace("all_gather(b", "all_gather(w")).unwrap();
    assert_eq!(faults(&[graphs[0].clone(), wrong]).len(), 1);
}

#[test]
fn what_keeps_order_is_a_fence_for_every_launch_of_its_rank() {
    let graph = parse(&around("c10d.barrier.default(m)", "f32[4]")).unwrap();
    verify(&graph).unwrap();
    let dependencies = Dependencies::of(&graph);
    let slot = |name: &str| {
        let id = graph.order().iter().find(|&&id| graph.name_of(id) == name).unwrap();
        dependencies.slot_of(*id)
    };
    assert!(dependencies.before(slot("t")).contains(&(slot("c") as u32)));
    assert!(dependencies.before(slot("c")).contains(&(slot("s") as u32)));
}
