//! Communication that the graph has no word for: it keeps its order, and ranks are held to it.

use bucketeer::check::ranks::{RankOptions, RanksError, check_ranks};
use bucketeer::check::{Verdict, prove};
use bucketeer::ir::text::parse;
use bucketeer::ir::{Dependencies, Graph, verify};
use bucketeer::passes::bucketing::{BucketKind, BucketOptions, Decision, Reason, plan};
use bucketeer::passes::select::Caps;
use bucketeer::passes::{Pipeline, TogetherError};
use bucketeer_formats::{Document, GroupsFile};

const DEFAULT: &str = "bucket-reduce-scatter,bucket-all-reduce,bucket-all-gather";

/// The one graph of a file in `tests/found`.
fn found(name: &str) -> Graph {
    let path = kit::root().join("tests/found").join(name);
    let document = Document::open(&path).unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
    document.graphs()[0].clone()
}

fn with_groups(name: &str, groups: &str) -> Graph {
    let path = kit::root().join("tests/found").join(groups);
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
fn d_f48_a_call_that_communicates_keeps_launches_apart() {
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
fn d_f48_of_a_call_whose_ranks_are_not_known_nothing_is_decided() {
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
fn g_order_rank0_what_keeps_order_is_a_fence_for_every_launch_of_its_rank() {
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

/// What communicates and is not a collective: name, kind, group.
fn others(graph: &Graph) -> Vec<(String, String, Option<String>)> {
    let one = |&id| {
        let found = bucketeer::ir::communication::of(graph, id)?;
        Some((graph.name_of(id).to_owned(), found.kind.to_owned(), found.group.map(ToOwned::to_owned)))
    };
    graph.order().iter().filter_map(one).collect()
}

fn other(name: &str, kind: &str, group: &str) -> (String, String, Option<String>) {
    (name.to_owned(), kind.to_owned(), Some(group.to_owned()))
}

fn merged(name: &str, pipeline: &str) -> Graph {
    let before = found(name);
    let mut after = before.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    assert_eq!(verdict(&before, &after), "equal", "{name}");
    after
}

fn collectives(graph: &Graph) -> usize {
    graph.order().iter().filter(|&&id| graph.collective(id).is_some()).count()
}

const TUPLE: &str = "bucket-all-reduce{cap=none,mode=coalesced}";

#[test]
fn d_h01_reducers_with_converts_travel_together_and_not_with_plain_ones() {
    assert_eq!(collectives(&found("D-H01.hlo")), 3);
    assert_eq!(collectives(&merged("D-H01.hlo", TUPLE)), 2);
    // XLA's combiners take only reducers of one instruction.
    assert_eq!(collectives(&merged("D-H01.hlo", "bucket-all-reduce{cap=none,policy=xla,mode=coalesced}")), 3);
}

#[test]
fn g_toap_reducers_of_two_types_are_not_merged_and_not_equal() {
    assert_eq!(collectives(&merged("G-toap.hlo", TUPLE)), 2);
    assert_ne!(
        verdict(
            &hlo("all-reduce(p), replica_groups={}, to_apply=addb"),
            &hlo("all-reduce(p), replica_groups={}, to_apply=addf")
        ),
        "equal"
    );
}

fn verdict(before: &Graph, after: &Graph) -> &'static str {
    match prove(before, after) {
        Verdict::Equal(_) => "equal",
        Verdict::Different(_) => "different",
        Verdict::CannotDecide(_) => "undecided",
    }
}

/// A module of two replicas with reducers, and one line on `p`, of bf16.
fn hlo(line: &str) -> Graph {
    let text = format!(
        "HloModule m, replica_count=2\n\n\
         addb {{\n  a = bf16[] parameter(0)\n  b = bf16[] parameter(1)\n  ROOT c = bf16[] add(a, b)\n}}\n\n\
         addf {{\n  a.1 = f32[] parameter(0)\n  b.1 = f32[] parameter(1)\n  ROOT c.1 = f32[] add(a.1, b.1)\n}}\n\n\
         called {{\n  a.2 = bf16[] parameter(0)\n  b.2 = bf16[] parameter(1)\n  \
         ROOT c.2 = bf16[] call(b.2, a.2), to_apply=addb\n}}\n\n\
         odd {{\n  a.3 = bf16[] parameter(0)\n  b.3 = bf16[] parameter(1)\n  d.3 = bf16[] add(a.3, b.3)\n  \
         ROOT c.3 = bf16[] negate(d.3)\n}}\n\n\
         ENTRY e {{\n  p = bf16[64]{{0}} parameter(0)\n  ROOT r = bf16[64]{{0}} {line}\n}}\n"
    );
    let document = Document::read(text.into_bytes()).unwrap_or_else(|error| panic!("{error}"));
    document.graphs()[0].clone()
}

#[test]
fn d_h01_a_reducer_that_calls_another_is_known_and_one_of_two_operations_is_not() {
    let called = hlo("all-reduce(p), replica_groups={}, to_apply=called");
    assert_eq!((collectives(&called), others(&called)), (1, vec![]));
    let odd = hlo("all-reduce(p), replica_groups={}, to_apply=odd");
    assert_eq!((collectives(&odd), others(&odd)), (0, vec![other("r", "all-reduce with a reducer of its own", "all")]));
}

#[test]
fn d_h05_an_all_reduce_in_a_fusion_that_runs_beside_is_seen() {
    let graph = found("D-H05.hlo");
    assert_eq!(collectives(&graph), 1);
    assert_eq!(others(&graph), [other("fs", "async-start with all-reduce inside", "{{0,1}}")]);
    merged("D-H05.hlo", TUPLE);
}

#[test]
fn d_h26_collective_broadcasts_are_listed_with_their_groups() {
    let graph = found("D-H26.hlo");
    let of = |name| other(name, "collective-broadcast", "{{2,0}}");
    assert_eq!(others(&graph), [of("b0"), of("b1")]);
}

#[test]
fn d_h27_groups_of_unequal_size_keep_their_members() {
    let graph = merged("D-H27.hlo", TUPLE);
    assert_eq!(collectives(&graph), 1);
    let group = &graph.groups()[0];
    let members: Vec<Vec<u32>> = group.members.iter().map(|list| list.iter().map(|rank| rank.0).collect()).collect();
    assert_eq!((group.size, members), (None, vec![vec![0, 3, 1], vec![4, 2]]));
    let refused = check_ranks(&[graph.clone(), graph], &RankOptions::default()).unwrap_err();
    assert!(matches!(refused, RanksError::NoGraphOfRank { rank: 3, .. }), "{refused}");
}

#[test]
fn d_h50_launches_without_a_word_in_opposite_orders_are_not_agreed() {
    let graphs = [found("D-H50.rank0.hlo"), found("D-H50.rank1.hlo")];
    assert_eq!(collectives(&graphs[0]) + others(&graphs[0]).len(), 4);
    assert_eq!(faults(&graphs).len(), 1);
    assert_eq!(faults(&[graphs[0].clone(), graphs[0].clone()]), [""; 0]);
}

#[test]
fn a_a0_a_launch_that_only_one_rank_has_is_seen_whatever_it_is() {
    for name in ["A-a0.hlo", "A-c0.hlo", "A-e0.hlo"] {
        assert_eq!(faults(&[found(name), found("A-n.hlo")]).len(), 1, "{name}");
        assert_eq!(faults(&[found(name), found(name)]), [""; 0], "{name}");
    }
}

#[test]
fn d_h50_what_acts_on_the_world_or_is_not_known_keeps_its_order_in_hlo() {
    for (line, kind) in [
        (
            "bf16[64]{0} custom-call(p), custom_call_target=\"x\", custom_call_has_side_effect=true",
            "custom-call of \"x\" with side effects",
        ),
        ("bf16[64]{0} brand-new(p)", "`brand-new`, which is not known"),
    ] {
        let text = format!(
            "HloModule m, replica_count=2\n\n\
             add {{\n  a = bf16[] parameter(0)\n  b = bf16[] parameter(1)\n  ROOT c = bf16[] add(a, b)\n}}\n\n\
             ENTRY e {{\n  p = bf16[64]{{0}} parameter(0)\n  \
             r = bf16[64]{{0}} all-reduce(p), replica_groups={{}}, to_apply=add\n  x = {line}\n  \
             s = bf16[64]{{0}} all-reduce(p), replica_groups={{}}, to_apply=add\n  \
             ROOT t = (bf16[64]{{0}}, bf16[64]{{0}}) tuple(r, s)\n}}\n"
        );
        let document = Document::read(text.into_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let mut graph = document.graphs()[0].clone();
        assert_eq!(others(&graph), [("x".to_owned(), kind.to_owned(), None)]);
        TUPLE.parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
        assert_eq!(order(&graph), ["r", "x", "s"]);
        let undecided = check_ranks(&[graph.clone(), graph], &RankOptions::default()).unwrap_err();
        assert!(matches!(&undecided, RanksError::Undecided { .. }), "{undecided}");
    }
}

#[test]
fn c_spellings_groups_are_who_is_in_them() {
    assert_eq!(verdict(&found("C-spellings.hlo"), &found("C-spellings2.hlo")), "equal");
    let other = |list: &str| {
        let path = kit::root().join("tests/found/C-spellings2.hlo");
        let text = std::fs::read_to_string(path).unwrap().replacen("{{0,1,2,3},{4,5,6,7}}", list, 1);
        Document::read(text.into_bytes()).unwrap().graphs()[0].clone()
    };
    assert_eq!(verdict(&found("C-spellings.hlo"), &other("{{0,1,2,4},{3,5,6,7}}")), "different");
    assert_eq!(verdict(&found("C-spellings.hlo"), &other("[2,4]<=[8]")), "equal");
}

#[test]
fn d_f48_collectives_with_gradients_mean_what_others_do_and_stay_alone() {
    let text = "class GraphModule(torch.nn.Module):
    def forward(self, a: \"f32[4][1]cpu\", b: \"f32[4][1]cpu\"):
        s: \"f32[8][1]cpu\" = torch.ops._c10d_functional_autograd.all_gather_into_tensor.default(a, 2, '0')
        w: \"f32[8][1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(s)
        t: \"f32[8][1]cpu\" = torch.ops._c10d_functional_autograd.all_gather_into_tensor.default(b, 2, '0')
        v: \"f32[8][1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(t)
        return (w, v)
";
    let mut document = Document::read(text.into()).unwrap();
    assert_eq!(collectives(&document.graphs()[0]), 2);
    let pipeline: Pipeline = "bucket-all-gather{cap=none}".parse().unwrap();
    pipeline.run(&mut document.graphs_mut()[0]).unwrap();
    assert_eq!(String::from_utf8(document.print()).unwrap(), text);
    let native = document.convert(bucketeer_formats::Format::Native).unwrap();
    let again = Document::read(native.print()).unwrap().convert(bucketeer_formats::Format::Fx).unwrap();
    let again = String::from_utf8(again.print()).unwrap();
    assert_eq!(again.matches("_c10d_functional_autograd.all_gather_into_tensor.default").count(), 2, "{again}");
}

#[test]
fn g_s4_types_that_the_graph_lacks_are_told_apart() {
    assert_eq!(verdict(&found("G-s4.a.hlo"), &found("G-s4.b.hlo")), "different");
    assert_eq!(verdict(&found("G-s4.a.hlo"), &found("G-s4.a.hlo")), "equal");
    let of = |word: &str| {
        let text = format!(
            "HloModule m\n\nENTRY e {{\n  p = {word}[8]{{0}} parameter(0)\n  ROOT r = s32[8]{{0}} convert(p)\n}}\n"
        );
        Document::read(text.into_bytes()).unwrap().graphs()[0].clone()
    };
    let words = "pred s1 s2 s4 s8 s16 s32 s64 u1 u2 u4 u8 u16 u32 u64 f16 bf16 f32 f64 c64 c128 f4e2m1fn f8e3m4 f8e4m3 \
                 f8e4m3fn f8e4m3b11fnuz f8e4m3fnuz f8e5m2 f8e5m2fnuz f8e8m0fnu";
    let graphs: Vec<Graph> = words.split_whitespace().map(of).collect();
    for (a, one) in graphs.iter().enumerate() {
        for (b, other) in graphs.iter().enumerate() {
            assert_eq!(verdict(one, other), if a == b { "equal" } else { "different" }, "{a} {b}");
        }
    }
}

#[test]
fn g_rng_two_draws_are_not_one() {
    assert_ne!(verdict(&found("G-rng.a.hlo"), &found("G-rng.b.hlo")), "equal");
    assert_eq!(verdict(&found("G-rng.a.hlo"), &found("G-rng.a.hlo")), "equal");
}

fn path(name: &str) -> std::path::PathBuf {
    kit::root().join("tests/found").join(name)
}

/// What became of a collective, in words.
fn remark(name: &str, node: &str, options: &BucketOptions) -> String {
    let graph = found(name);
    let plan = plan(&graph, &Dependencies::keeping_schedule(&graph), options);
    let remark = plan.remarks.iter().find(|remark| remark.name == node).unwrap_or_else(|| panic!("no `{node}`"));
    match &remark.decision {
        Decision::Merged { bucket } => format!("bucket {bucket}"),
        Decision::Alone(reason) => reason.to_string(),
    }
}

#[test]
fn c_gpu_sched_two_scheduling_groups_are_never_joined_under_any_policy() {
    for policy in ["greedy", "xla"] {
        for boundaries in ["on", "off"] {
            let options = format!("{{cap=none,mode=coalesced,policy={policy},boundaries={boundaries}}}");
            assert_eq!(collectives(&merged("C-gpu_sched_two.hlo", &format!("bucket-all-reduce{options}"))), 2);
            let graph = merged("C-cpu_sched_group.hlo", &format!("bucket-all-gather{options}"));
            for &id in graph.order() {
                let same = |key: &str| graph.args_of(id).get(key).is_some();
                let members = &graph.meta_of(id).members;
                assert!(members.is_empty() || same("scheduling_group") || members.len() < 4, "{members:?}");
            }
        }
    }
}

#[test]
fn c_gpu_combiner_key_keeps_apart_under_policy_xla_and_not_where_boundaries_are_off() {
    let graph = found("C-gpu_combiner_key.hlo");
    let plan_of = |combiner_keys: bool| {
        let options = BucketOptions { combiner_keys, ..BucketOptions::xla(BucketKind::AllGather) };
        plan(&graph, &Dependencies::of(&graph), &options).buckets.iter().map(|b| b.members.len()).collect::<Vec<_>>()
    };
    assert!(BucketOptions::xla(BucketKind::AllGather).combiner_keys);
    assert_eq!(plan_of(true), [2]);
    assert_eq!(plan_of(false), [4]);
}

#[test]
fn c_xla_chain_one_that_depends_on_the_bucket_before_it_is_told_so() {
    let options = BucketOptions::xla(BucketKind::AllReduce);
    assert_eq!(remark("C-xla_chain.hlo", "b", &options), "dependent: cannot travel with `a` (a > a.wait > b)");
}

#[test]
fn a_near_one_whose_only_partner_is_too_large_is_told_so() {
    let options = BucketOptions { caps: Caps::bytes(100), ..BucketOptions::xla(BucketKind::AllReduce) };
    assert_eq!(remark("A-near.txt", "s1", &options), "cap reached: does not fit with `s2`");
    // The large one may stand above.
    let text = "z = input f32[400]; y = input f32[2]
        s2 = all_reduce(z, sum, G:2); w2 = wait(s2); s1 = all_reduce(y, sum, G:2); w1 = wait(s1)
        output(w1, w2)";
    let graph = parse(text).unwrap();
    for options in [options, BucketOptions { caps: Caps::bytes(100), ..BucketOptions::new(BucketKind::AllReduce) }] {
        let plan = plan(&graph, &Dependencies::of(&graph), &options);
        assert_eq!(plan.remarks[1].decision, Decision::Alone(Reason::CapReached { other: "s2".to_owned() }));
    }
}

#[test]
fn c_sched_ar_ar_collectives_side_by_side_in_a_schedule_are_merged() {
    let mut document = Document::open(&path("C-sched_ar_ar.hlo")).unwrap().unwrap();
    let before = document.graphs()[0].clone();
    TUPLE.parse::<Pipeline>().unwrap().run(&mut document.graphs_mut()[0]).unwrap();
    assert_eq!(collectives(&document.graphs()[0]), 2);
    assert_eq!(verdict(&before, &document.graphs()[0]), "equal");
    let again = Document::read(document.print()).unwrap();
    assert_eq!(verdict(&before, &again.graphs()[0]), "equal");
}

#[test]
fn c_sched_ar_ar_of_a_schedule_no_instruction_moves_though_collectives_stand_side_by_side() {
    // `e` reads what `c` makes, so that `d` may not take `c` past it; `f` stands behind a computation.
    let text = "HloModule m, is_scheduled=true, replica_count=2\n\n\
        add {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT s = f32[] add(x, y)\n}\n\n\
        ENTRY main {\n  p = f32[4]{0} parameter(0)\n  b = f32[8]{0} all-gather(p), replica_groups={}, dimensions={0}\n  \
        c = f32[8]{0} all-reduce(b), replica_groups={}, to_apply=add\n  \
        e = f32[16]{0} all-gather(c), replica_groups={}, dimensions={0}\n  \
        d = f32[8]{0} all-reduce(b), replica_groups={}, to_apply=add\n  g = f32[4]{0} negate(p)\n  \
        f = f32[8]{0} all-reduce(b), replica_groups={}, to_apply=add\n  \
        ROOT t = (f32[16]{0}, f32[8]{0}, f32[4]{0}, f32[8]{0}) tuple(e, d, g, f)\n}\n";
    let mut document = Document::read(text.into()).unwrap();
    TUPLE.parse::<Pipeline>().unwrap().run(&mut document.graphs_mut()[0]).unwrap();
    assert_eq!(String::from_utf8(document.print()).unwrap(), text);
}

#[test]
fn c_canonical_inline_bodies_in_place_of_names_are_read() {
    let text = std::fs::read_to_string(path("C-canonical_inline.hlo")).unwrap();
    let mut document = Document::read(text.clone().into_bytes()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(String::from_utf8(document.print()).unwrap(), text);
    let before = document.graphs()[0].clone();
    assert!(collectives(&before) > 1);
    "bucket-all-gather{cap=none,mode=coalesced},bucket-all-reduce{cap=none,mode=coalesced}"
        .parse::<Pipeline>()
        .unwrap()
        .run(&mut document.graphs_mut()[0])
        .unwrap();
    let again = Document::read(document.print()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(verdict(&before, &again.graphs()[0]), "equal");
    // A fault is told where it stands in the text as it is.
    let broken = text.replacen(
        "tmp_1 = f32[] parameter(1)\n    ROOT tmp_2 = f32[] add(f32[] tmp_0",
        "tmp_1 = f32[] parameter(1)\n    ROOT tmp_2 = f32[] add(f32[] gone",
        1,
    );
    let line = broken.lines().position(|line| line.contains("gone")).unwrap() + 1;
    let error = Document::read(broken.into_bytes()).unwrap_err();
    assert_eq!(error.place().map(|place| place.line), Some(line));
}

#[test]
fn c_mesh_groups_by_axes_of_a_mesh_are_the_ranks_that_they_stand_for() {
    use bucketeer_formats::stablehlo::collectives;
    let text = std::fs::read_to_string(path("C-mesh.mlir")).unwrap();
    let groups = |text: &str| {
        let found = collectives(text).unwrap();
        (found[0].groups.clone(), found[0].group_size)
    };
    assert_eq!(groups(&text), ("[[0, 1, 2, 3], [4, 5, 6, 7]]".to_owned(), Some(4)));
    let part = "axis_ref<name = \"y\", sub_axis_info = #stablehlo.sub_axis_info<pre_size = 1, size = 2>>";
    assert_eq!(
        groups(&text.replace("axis_ref<name = \"y\">", part)),
        ("[[0, 2], [1, 3], [4, 6], [5, 7]]".to_owned(), Some(2))
    );
    // A mesh that is not there leaves them unknown.
    assert_eq!(groups(&text.replace("sdy.mesh @mesh", "sdy.mesh @other")), (String::new(), None));
}

#[test]
fn c_generic_the_generic_form_is_read() {
    use bucketeer_formats::stablehlo::{collectives, is_stablehlo};
    let text = std::fs::read_to_string(path("C-generic.mlir")).unwrap();
    assert!(is_stablehlo(text.as_bytes()));
    let found = collectives(&text).unwrap();
    assert_eq!(
        found.iter().filter(|one| one.kind == "all_to_all").count(),
        text.matches("\"stablehlo.all_to_all\"").count()
    );
    assert!(found.iter().all(|one| one.function == "main" && one.group_size == Some(8)), "{found:?}");
}

#[test]
fn c_spellings_ranks_that_spell_one_group_otherwise_launch_together() {
    let of = |groups: &str| {
        let text = format!(
            "HloModule m, num_partitions=2\n\nadd {{\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  \
             ROOT s = f32[] add(x, y)\n}}\n\nENTRY main {{\n  p = f32[4]{{0}} parameter(0)\n  \
             q = f32[4]{{0}} parameter(1)\n  \
             a = f32[4]{{0}} all-reduce(p), channel_id=1, replica_groups={groups}, use_global_device_ids=true, to_apply=add\n  \
             b = f32[4]{{0}} all-reduce(q), channel_id=2, replica_groups={groups}, use_global_device_ids=true, to_apply=add\n  \
             ROOT t = (f32[4]{{0}}, f32[4]{{0}}) tuple(a, b)\n}}\n"
        );
        Document::read(text.into_bytes()).unwrap_or_else(|error| panic!("{error}")).graphs()[0].clone()
    };
    let mut graphs = [of("[1,2]<=[2]"), of("{{0,1}}")];
    assert_eq!(faults(&graphs), [""; 0]);
    together(TUPLE, &mut graphs).unwrap();
    assert_eq!((collectives(&graphs[0]), collectives(&graphs[1])), (1, 1));
    assert_eq!(faults(&graphs), [""; 0]);
    assert!(check_ranks(&[of("{{0,1}}"), of("{{1,0}}")], &RankOptions::default()).is_ok_and(|found| !found.is_empty()));
}

#[test]
fn a_a0_of_reducers_that_are_written_otherwise_nothing_is_decided() {
    let text = std::fs::read_to_string(path("A-a0.hlo")).unwrap();
    let other = text.replace("s.3", "sum.3");
    let [one, other] = [text, other].map(|text| Document::read(text.into_bytes()).unwrap().graphs()[0].clone());
    let undecided = check_ranks(&[one.clone(), other], &RankOptions::default()).unwrap_err();
    assert!(matches!(&undecided, RanksError::Bodies { rank: 1, other_rank: 0, .. }), "{undecided}");
    assert_eq!(faults(&[one.clone(), one]), [""; 0]);
}

#[test]
fn what_other_ranks_may_wait_for_keeps_its_place_among_collectives_and_so_does_what_runs_backward() {
    let text = |call: &str, at: usize| {
        let mut lines = vec![
            "a = input f32[4]; b = input f32[4]; s = input i32[4]",
            "g0 = all_gather(a, G0:2); w0 = wait(g0)",
            "g1 = all_gather(b, G0:2); w1 = wait(g1)",
            "output(w0, w1)",
        ];
        lines.insert(at, call);
        bucketeer::ir::text::parse(&lines.join("\n")).unwrap()
    };
    for call in [
        "z = symm_mem.stream_write_value32_.default(s, 0, 1) : i32[4]",
        "z = symm_mem.memset32_.default(s, 0, 1, 4) : i32[4]",
        "z = aten.backward.default(s)",
        "z = aten._backward.default(s, [s])",
        "z = method.backward(s)",
        "z = getattr.grad(s) : i32[4]",
    ] {
        let before = text(call, 2);
        let mut after = before.clone();
        "bucket-all-gather{cap=none}".parse::<bucketeer::passes::Pipeline>().unwrap().run(&mut after).unwrap();
        assert!(after == before, "{call}: merged across it");
        for at in [1, 3] {
            let moved = text(call, at);
            assert!(!bucketeer::check::prove(&before, &moved).is_equal(), "{call}: moved past a collective");
        }
        assert!(bucketeer::check::prove(&before, &before).is_equal(), "{call}");
    }
    // A gradient that is read before it is made is another one.
    let order = |first: &str, second: &str| {
        let text = format!("s = input f32[4]; l = input f32[]\n{first}\n{second}\noutput(z)");
        bucketeer::ir::text::parse(&text).unwrap()
    };
    let (runs, reads) = ("b = method.backward(l)", "z = getattr.grad(s) : f32[4]");
    assert!(!bucketeer::check::prove(&order(runs, reads), &order(reads, runs)).is_equal());
}
