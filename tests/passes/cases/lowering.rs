//! Stage `lower`: what of it the rewritten graph answers for; the rest is for the lowered program.

use super::{GATHER, beside, rewrite, rewrite_graph, rewrite_shapes};
use bucketeer_eval::{EvalOptions, RankOutputs};
use kit::rewrite::{ALL, evaluate, read, sketch};

#[test]
fn alias_1_the_input_of_a_reduce_is_not_overwritten() {
    let text = sketch("alias-1").replace(
        "output(add(d, w))",
        "b = input f32[4]\nt = all_reduce(b, sum, G0:2); v = wait(t)\noutput(add(d, w), v)",
    );
    let done = rewrite(&text, ALL, &[&["s", "t"]]);
    assert_eq!(done.count("all_reduce"), 1);
    let fresh = "a = input f32[4,4]; b = input f32[4]; z = all_reduce(a, sum, G0:2); w = wait(z); output(w)";
    let fresh = evaluate(&read(fresh), &EvalOptions::default());
    let inputs = |ranks: &[RankOutputs]| ranks.iter().map(|rank| rank.inputs.clone()).collect::<Vec<_>>();
    assert_eq!(inputs(&done.runs[0]), inputs(&fresh));
}

#[test]
fn alias_2_a_view_of_a_waited_gather_is_an_ordinary_result() {
    rewrite(&sketch("alias-2"), ALL, &[]);
    let text = "x = input f32[2,4]; y = input f32[3]\ng = all_gather(x, G0:2); w = wait(g)\n\
                h = all_gather(y, G0:2); v = wait(h)\noutput(reshape(w, [-1]), reshape(v, [-1]))";
    assert_eq!(rewrite(text, ALL, &[&["g", "h"]]).count("all_gather"), 1);
}

#[test]
fn alias_3_an_accumulator_is_not_touched_by_a_gather() {
    rewrite(&sketch("alias-3"), ALL, &[]);
    rewrite(&beside("alias-3", GATHER), ALL, &[&["g", "h"]]);
}

#[test]
fn alias_4_results_that_are_written_or_leave_the_graph_are_copied_out() {
    let done = rewrite(&sketch("alias-4"), ALL, &[&["s0", "s1"]]);
    assert_eq!((done.count("all_reduce"), done.copied()), (1, 2));
    kit::assert_snapshot!("alias_4", done.body());
}

#[test]
fn alias_4_views_are_handed_out_where_nobody_can_tell() {
    let text = "x = input f32[4]; y = input f32[4]\ns0 = all_reduce(x, sum, G0:2); s1 = all_reduce(y, sum, G0:2)\n\
                w0 = wait(s0); w1 = wait(s1)\noutput(neg(w0), neg(w1))";
    assert_eq!(rewrite(text, "bucket-all-reduce{cap=none}", &[&["s0", "s1"]]).copied(), 0);
    assert_eq!(rewrite(text, "bucket-all-reduce{cap=none,unpack=views}", &[&["s0", "s1"]]).copied(), 0);
    assert_eq!(rewrite(text, "bucket-all-reduce{cap=none,unpack=copies}", &[&["s0", "s1"]]).copied(), 2);
}

#[test]
fn pad_2_scatters_are_packed_rank_major() {
    let done = rewrite(&sketch("pad-2"), ALL, &[&["r0", "r1"]]);
    assert_eq!(done.count("reduce_scatter"), 1);
    kit::assert_snapshot!("pad_2", done.body());
}

#[test]
fn num_1_merged_sums_equal_unmerged_ones_bit_for_bit() {
    let done = rewrite(&sketch("num-1"), ALL, &[&["r0", "r1"]]);
    assert_eq!(done.count("reduce_scatter"), 1);
}

#[test]
fn ovf_1_sizes_past_4_gib_are_planned_without_allocating() {
    let done = rewrite_shapes(&sketch("ovf-1"), ALL, &[&["g0", "g1"]]);
    assert_eq!(done.count("all_gather"), 1);
    assert!(done.text().contains("bf16[6000000000]"), "{}", done.text());
    assert!(done.text().contains("[1500000000, 1500000000], 1"), "{}", done.text());
    assert_eq!(done.remark("g0").bytes, Some(6_000_000_000));
}

#[test]
fn str_1_a_strided_input_is_packed_in_logical_order() {
    rewrite(&sketch("str-1"), ALL, &[]);
    for kind in ["all_gather(t, G0:2)", "reduce_scatter(t, sum, G0:2)", "all_reduce(t, sum, G0:2)"] {
        let other = kind.replace("(t,", "(y,");
        let text = format!(
            "x = input f32[6,4]; y = input f32[2,3]; t = transpose(x)\n\
             g = {kind}; w = wait(g); h = {other}; v = wait(h)\noutput(w, v)"
        );
        rewrite(&text, ALL, &[&["g", "h"]]);
    }
}

#[test]
fn dt_3_narrow_floats_and_bools_are_gathered_bit_for_bit() {
    let text = "q = input f8e4m3[16]; m = input bool[16]; r = input f8e4m3[3]; n = input bool[5]\n\
                g = all_gather(q, G0:2); h = all_gather(m, G0:2); i = all_gather(r, G0:2); j = all_gather(n, G0:2)\n\
                output(wait(g), wait(h), wait(i), wait(j))";
    let raw = [EvalOptions { raw_inputs: true, ..EvalOptions::default() }, EvalOptions::default()];
    assert_eq!(rewrite_graph(read(text), ALL, &raw, &[&["g", "i"], &["h", "j"]]).count("all_gather"), 2);
    let bytes = "bucket-all-gather{cap=none,mixed-dtype=bytes}";
    assert_eq!(rewrite_graph(read(text), bytes, &raw, &[&["g", "h", "i", "j"]]).count("all_gather"), 1);
}
