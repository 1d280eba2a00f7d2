//! Stage `bucketing`: what travels together, and what must not.

use super::{Buckets, rewrite, rewrite_graph};
use bucketeer::ir::Order;
use bucketeer::passes::bucketing::Reason;
use bucketeer_eval::EvalOptions;
use kit::rewrite::{ALL, read, sketch, with_symbols};

const BYTES: &str = "bucket-all-gather{cap=none,mixed-dtype=bytes}";

#[test]
fn cyc_1_reachability_is_decided_on_the_whole_graph() {
    let done = rewrite(&sketch("cyc-1"), ALL, &[]);
    assert_eq!(done.count("all_gather"), 2);
    assert!(done.place("g0") < done.place("g1"));
    let path = ["g0", "w0", "t", "u", "g1"].map(str::to_owned).to_vec();
    assert_eq!(
        done.reason("g1"),
        &Reason::Dependent { other: "g0".to_owned(), path, because: Order::Data, unknown: Vec::new() }
    );
    assert_eq!(done.text(), bucketeer::ir::text::print(&done.before));
}

#[test]
fn cyc_2_a_soft_edge_between_members_is_dropped_and_reported() {
    let done = rewrite(&sketch("cyc-2"), ALL, &[&["g0", "g1"]]);
    assert_eq!(done.count("all_gather"), 1);
    assert!(done.graph.control.is_empty());
    assert_eq!(done.dropped_wishes(), [("g0".to_owned(), "cb".to_owned())]);
    kit::assert_snapshot!("cyc_2", done.body());
}

#[test]
fn cyc_2_a_hard_edge_between_members_forbids_the_merge() {
    // A hard edge holds in the listing too, so cb stands below g0.
    let text = "a = input f32[4]; b = input f32[4]\nca = cast(a, bf16); g0 = all_gather(ca, G0:2)\n\
                cb = cast(b, bf16); g1 = all_gather(cb, G0:2); after(cb, g0)\n\
                w0 = wait(g0); w1 = wait(g1)\noutput(w0, w1)";
    assert_eq!(rewrite(&text.replace("after", "soft_after"), ALL, &[&["g0", "g1"]]).count("all_gather"), 1);
    let done = rewrite(text, ALL, &[]);
    assert_eq!(done.count("all_gather"), 2);
    assert_eq!(done.graph.control, done.before.control);
    let Reason::Dependent { path, because, .. } = done.reason("g1") else { panic!("{:?}", done.reason("g1")) };
    assert_eq!((path.join(" > ").as_str(), *because), ("g0 > cb > g1", Order::Control));
}

#[test]
fn miss_1_a_dependent_candidate_is_skipped_not_a_reason_to_stop() {
    let done = rewrite(&sketch("miss-1"), ALL, &[&["a1", "b1"], &["a2", "b2"]]);
    assert_eq!(done.count("all_reduce"), 2);
    kit::assert_snapshot!("miss_1", done.body());
}

#[test]
fn key_1_kinds_never_share_a_bucket() {
    let done = rewrite(&sketch("key-1"), ALL, &[]);
    assert_eq!((done.count("reduce_scatter"), done.count("all_reduce")), (1, 1));
}

#[test]
fn key_1_members_that_differ_in_any_field_of_the_key_stay_apart() {
    let start = "x = input f32[8]; y = input f32[8]\n";
    let end = "\nwx = wait(cx); wy = wait(cy)\noutput(wx, wy)";
    for (field, first, second) in [
        ("group", "cx = all_reduce(x, sum, G0:2)", "cy = all_reduce(y, sum, G1:2)"),
        ("reduce op, root or dimension", "cx = all_reduce(x, sum, G0:2)", "cy = all_reduce(y, max, G0:2)"),
        ("user boundary", "cx = all_reduce(x, sum, G0:2) key=\"a\"", "cy = all_reduce(y, sum, G0:2)"),
        ("options", "cx = all_reduce(x, sum, G0:2) impl=registered", "cy = all_reduce(y, sum, G0:2)"),
        ("options", "cx = all_reduce(x, sum, G0:2) impl=registered", "cy = all_reduce(y, sum, G0:2) impl=plain"),
        (
            "options",
            "n = input Sym(n); m = input Sym(m); cx = all_reduce(x, sum, G0:2) impl=n",
            "cy = all_reduce(y, sum, G0:2) impl=m",
        ),
        ("in-place form", "z = clone(x); cx = all_reduce_(z, sum, G0:2)", "cy = all_reduce(y, sum, G0:2)"),
        ("reduce op, root or dimension", "cx = broadcast(x, 0, G0:2)", "cy = broadcast(y, 1, G0:2)"),
        ("dtype", "z = cast(x, bf16); cx = all_reduce(z, sum, G0:2)", "cy = all_reduce(y, sum, G0:2)"),
        ("reduce op, root or dimension", "cx = reduce_scatter(x, sum, G0:2)", "cy = reduce_scatter(y, avg, G0:2)"),
        ("group", "cx = all_gather(x, G0:2)", "cy = all_gather(y, G1:4)"),
    ] {
        let done = rewrite(&format!("{start}{first}\n{second}{end}"), ALL, &[]);
        let expected = Reason::KeyDiffers { from: "cx".to_owned(), fields: vec![field] };
        assert_eq!(done.reason("cy"), &expected, "{first} and {second}");
    }
}

#[test]
fn dt_1_split_keeps_dtypes_apart() {
    let done = rewrite(&sketch("dt-1"), ALL, &[]);
    assert_eq!(done.count("all_gather"), 3);
}

#[test]
fn dt_1_bytes_travel_together_each_member_at_a_multiple_of_its_element_size() {
    let raw = EvalOptions { raw_inputs: true, ..EvalOptions::default() };
    let done = rewrite_graph(read(&sketch("dt-1")), BYTES, &[EvalOptions::default(), raw], &[&["g0", "g1", "g2"]]);
    assert_eq!(done.count("all_gather"), 1);
    // 10 bytes of bf16, 2 of padding, 12 of f32, 16 of i64: offsets 0, 12 and 24.
    assert!(done.text().contains("[10, 2, 12, 16], 1)"), "{}", done.text());
    kit::assert_snapshot!("dt_1", done.body());
}

#[test]
fn dt_1_gathers_of_one_dtype_travel_as_that_dtype_in_bytes_mode_too() {
    let text = sketch("dt-1").replace("f32[3]", "bf16[3]").replace("i64[2]", "bf16[2]");
    let done = rewrite(&text, BYTES, &[&["g0", "g1", "g2"]]);
    assert_eq!(done.count("all_gather"), 1);
    assert!(!done.text().contains("u8"));
}

#[test]
fn zero_1_empty_members_take_no_bytes_and_empty_buckets_no_launch() {
    let done = rewrite(&sketch("zero-1"), ALL, &[]);
    assert_eq!((done.count("all_gather"), done.count("all_reduce")), (1, 0));
    let merged_too = "bucket-all-gather{cap=none},bucket-all-reduce{cap=none}";
    let done = rewrite(&sketch("zero-1"), merged_too, &[&["g0", "g1"]]);
    assert_eq!(done.count("all_gather"), 1);
    let empty = "a = input f32[0,4]; b = input f32[0]\n\
                 g0 = all_gather(a, G0:2); g1 = all_gather(b, G0:2)\n\
                 w0 = wait(g0); w1 = wait(g1)\noutput(w0, w1)";
    assert_eq!(rewrite(empty, merged_too, &[&["g0", "g1"]]).count("all_gather"), 0);
}

#[test]
fn dyn_1_hints_serve_policy_and_sizes_stay_symbolic() {
    let options = [8, 6, 0].map(|size| with_symbols([("u0", size)]));
    let done = rewrite_graph(read(&sketch("dyn-1")), ALL, &options, &[&["g0", "g1"]]);
    assert_eq!(done.count("all_gather"), 1);
    // A literal 8 would be the hint burnt in; `8` is also the size of the gathered b, f32[8], so look at arguments.
    let literal = done.graph.order().iter().any(|&id| {
        let mut text = String::new();
        let args = done.graph.args_of(id);
        args.write(&mut text, bucketeer::ir::Spacing::Tight, &|_| "x".to_owned()).unwrap();
        text.contains('8') && done.graph.name_of(id) != "w1"
    });
    assert!(!literal, "{}", done.text());
    kit::assert_snapshot!("dyn_1", done.body());
}

#[test]
fn dyn_1_a_hint_decides_whether_a_member_fits_under_the_cap() {
    let one: Buckets<'_> = &[&["g0", "g1"]];
    for (hint, buckets) in [(8, one), (9, &[])] {
        let text = sketch("dyn-1").replace("hint=8", &format!("hint={hint}"));
        // (u0 + 4) * 4 bytes * 2 ranks
        let done = rewrite(&text, "bucket-all-gather{cap=96}", buckets);
        assert_eq!(done.count("all_gather"), 2 - buckets.len(), "{hint}");
    }
}

#[test]
fn gs1_1_collectives_over_one_rank_are_their_input() {
    let done = rewrite(&sketch("gs1-1"), ALL, &[]);
    assert_eq!((done.count("all_gather"), done.count("reduce_scatter")), (0, 0));
    kit::assert_snapshot!("gs1_1", done.body());
}

#[test]
fn gs1_1_every_kind_over_one_rank_folds_where_the_result_is_written_too() {
    let text = "a = input f32[4]\n\
                g = all_gather(a, G9:1); w = wait(g); mul_(w, 3.0)\n\
                s = all_reduce(a, max, G9:1); v = wait(s); y = add(v, w)\n\
                b = broadcast(y, 0, G9:1); u = wait(b)\n\
                r = reduce(u, sum, 0, G9:1); t = wait(r)\n\
                output(w, t)";
    let done = rewrite(text, ALL, &[]);
    let left = ["all_gather", "all_reduce", "broadcast", "reduce"].map(|kind| done.count(kind));
    assert_eq!(left, [0, 0, 0, 0]);
}

#[test]
fn pg_1_groups_travel_apart_and_offsets_use_the_index_inside_the_group() {
    let groups = "group D:4 = [[0, 2, 4, 6], [1, 3, 5, 7]]\n\
                  group T:2 = [[0, 1], [2, 3], [4, 5], [6, 7]]\n";
    let done = rewrite(&(groups.to_owned() + &sketch("pg-1")), ALL, &[&["g0", "g2"]]);
    assert_eq!(done.count("all_gather"), 2);
    assert_eq!(done.runs[0].len(), 8);
}

#[test]
fn rank_1_a_hundred_runs_make_one_plan() {
    const TEN: Buckets<'_> = &[&["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"]];
    let first = rewrite(&sketch("rank-1"), ALL, TEN);
    assert_eq!(first.count("all_reduce"), 1);
    let plan = |done: &kit::rewrite::Rewritten| format!("{:?}", done.plans().collect::<Vec<_>>());
    let expected = (plan(&first), first.text());
    let runs: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                (0..25)
                    .map(|_| {
                        let done = super::rewrite_shapes(&sketch("rank-1"), ALL, TEN);
                        (format!("{:?}", done.plans().collect::<Vec<_>>()), done.text())
                    })
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    for run in runs {
        assert!(run.join().unwrap().iter().all(|found| *found == expected));
    }
}

#[test]
fn nowait_2_a_start_without_its_wait_in_sight_is_left_alone() {
    let done = rewrite(&sketch("nowait-2"), ALL, &[]);
    assert_eq!(done.count("all_gather"), 2);
    assert_eq!(done.reason("g0"), &Reason::NoWait);
    assert_eq!(done.text(), bucketeer::ir::text::print(&done.before));
}

#[test]
fn chain_1_levels_are_bucketed_one_after_the_other() {
    let groups = "group S:2 = [[0, 1], [2, 3]]\ngroup R:2 = [[0, 2], [1, 3]]\n";
    let done = rewrite(&(groups.to_owned() + &sketch("chain-1")), ALL, &[&["r0", "r1"], &["s0", "s1"]]);
    assert_eq!(done.count("reduce_scatter") + done.count("all_reduce"), 2);
    assert!(done.place("bucketed_reduce_scatter_wait") < done.place("bucketed_all_reduce"));
    kit::assert_snapshot!("chain_1", done.body());
}

#[test]
fn loop_1_members_of_one_body_merge_and_never_across_its_border() {
    let done = rewrite(&sketch("loop-1"), ALL, &[&["g1", "g2"]]);
    kit::assert_snapshot!("loop_1", done.text());
    let off = rewrite(&sketch("loop-1"), "bucket-all-gather{cap=none,in-loops=off}", &[]);
    assert_eq!(off.count("all_gather"), 3);
    assert_eq!(off.reason("g1"), &Reason::InLoop);
}

#[test]
fn loop_2_a_branch_body_is_a_region_of_its_own() {
    let done = rewrite(&sketch("loop-2"), ALL, &[]);
    assert_eq!(done.count("all_reduce"), 2);
    let expected = Reason::KeyDiffers { from: "s0".to_owned(), fields: vec!["region"] };
    assert_eq!(done.reason("s1"), &expected);
}

#[test]
fn dev_1_devices_never_meet_in_one_buffer() {
    let done = rewrite(&sketch("dev-1"), ALL, &[]);
    assert_eq!(done.count("all_reduce"), 3);
    let expected = Reason::KeyDiffers { from: "s0".to_owned(), fields: vec!["device"] };
    assert_eq!(done.reason("s1"), &expected);
    assert_eq!(done.text(), bucketeer::ir::text::print(&done.before));
}

#[test]
fn tup_1_edges_and_uses_of_tuple_elements_follow_the_merge() {
    let done = rewrite(&sketch("tup-1"), ALL, &[&["g0", "g1"]]);
    assert_eq!(done.count("all_gather"), 1);
    // `verify` refuses an edge to a node that is gone; the edge from g1 leads from the launch now.
    let edges: Vec<_> =
        done.graph.control.iter().map(|e| (done.graph.name_of(e.before), done.graph.name_of(e.after))).collect();
    assert_eq!(edges, [("bucketed_all_gather", "p1")]);
}

#[test]
fn keyb_1_a_user_boundary_is_kept_and_sources_are_carried_along() {
    let done = rewrite(&sketch("keyb-1"), ALL, &[&["s0", "s1"]]);
    assert_eq!(done.count("all_reduce"), 3);
    let launch = done.graph.order().iter().find(|&&id| !done.graph.meta_of(id).members.is_empty()).unwrap();
    let meta = done.graph.meta_of(*launch);
    assert_eq!(meta.members.iter().map(|m| &**m).collect::<Vec<_>>(), ["s0", "s1"]);
    assert_eq!(meta.sources.iter().map(|s| &**s).collect::<Vec<_>>(), ["a.py:10", "a.py:11"]);
    assert_eq!(meta.key.as_deref(), Some("L1"));
}

#[test]
fn dim_1_gathers_along_any_dimension_travel_flat() {
    let done = rewrite(&sketch("dim-1"), ALL, &[&["g0", "g1"]]);
    assert_eq!(done.count("all_gather"), 1);
    kit::assert_snapshot!("dim_1", done.body());
    // Single rows and columns, where views are possible that share the buffer.
    let text = "a = input f32[1,3]; b = input f32[3,1]; c = input f32[1,1,2]; t = transpose(b)\n\
                g0 = all_gather(a, G0:2); g1 = all_gather(a, G0:2, dim=1); g2 = all_gather(b, G0:2, dim=1)\n\
                g3 = all_gather(c, G0:2, dim=2); g4 = all_gather(t, G0:2, dim=1); g5 = all_gather(t, G0:2)\n\
                output(wait(g0), wait(g1), wait(g2), wait(g3), wait(g4), wait(g5))";
    assert_eq!(rewrite(text, ALL, &[&["g0", "g1", "g2", "g3", "g4", "g5"]]).count("all_gather"), 1);
}

#[test]
fn dim_1_scatters_along_any_dimension_travel_rank_major() {
    let text = "a = input f32[4,3]; b = input f32[3,4]; c = input f32[2,2,6]\n\
                r0 = reduce_scatter(a, sum, G0:2); r1 = reduce_scatter(b, sum, G0:2, dim=1)\n\
                r2 = reduce_scatter(c, sum, G0:2, dim=2)\n\
                w0 = wait(r0); w1 = wait(r1); w2 = wait(r2)\noutput(w0, w1, w2)";
    assert_eq!(rewrite(text, ALL, &[&["r0", "r1", "r2"]]).count("reduce_scatter"), 1);
    let text = "a = input f32[6,4]; b = input f32[4,1]; t = transpose(a); u = transpose(b)\n\
                r0 = reduce_scatter(t, sum, G0:2, dim=1); r1 = reduce_scatter(u, sum, G0:2, dim=1)\n\
                w0 = wait(r0); w1 = wait(r1)\noutput(w0, w1)";
    assert_eq!(rewrite(text, ALL, &[&["r0", "r1"]]).count("reduce_scatter"), 1);
}

#[test]
fn cse_1_a_shard_gathered_twice_is_left_or_folded_on_request() {
    let apart = rewrite(&sketch("cse-1"), "dedupe-waits,fold-trivial", &[]);
    assert_eq!(apart.count("all_gather"), 2);
    let done = rewrite(&sketch("cse-1"), "dedupe-collectives", &[]);
    assert_eq!(done.count("all_gather"), 1);
    let stats = done.reports[0].duplicates.unwrap();
    assert_eq!((stats.folded, stats.kept_bytes), (1, 32));
}
