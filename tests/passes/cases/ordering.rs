//! Stage `bucketing`: where launches go, and what moves for them.

use super::{rewrite, rewrite_shapes};
use bucketeer::ir::Op;
use kit::rewrite::{ALL, names, sketch};
use std::fmt::Write as _;

#[test]
fn ord_1_only_what_must_move_moves() {
    let done = rewrite(&sketch("ord-1"), ALL, &[&["g0", "g1"]]);
    assert_eq!(done.count("all_gather"), 1);
    assert!(done.place("pre") < done.place("bucketed_all_gather"));
    let rest = |names: Vec<&str>| -> Vec<String> {
        let kept = |name: &&str| !matches!(*name, "pre" | "y0" | "g0" | "g1");
        names
            .into_iter()
            .filter(kept)
            .filter(|name| done.before.names().find(name).is_some())
            .map(str::to_owned)
            .collect()
    };
    let old = names(&done.before);
    let new: Vec<&str> = done.names().into_iter().filter(|name| old.contains(name)).collect();
    assert_eq!(rest(new), rest(old));
    kit::assert_snapshot!("ord_1", done.body());
}

#[test]
fn ord_2_a_bucket_is_placed_by_what_it_consumes() {
    let done = rewrite(&sketch("ord-2"), ALL, &[&["g1", "g0"]]);
    assert_eq!(done.count("all_gather"), 1);
    let launch = done.graph.order().iter().find(|&&id| matches!(done.graph.node(id).op, Op::Collective(_))).unwrap();
    assert_eq!(done.graph.tensor(*launch).unwrap().to_string(), "bf16[32]");
    kit::assert_snapshot!("ord_2", done.body());
}

#[test]
fn ord_3_without_a_request_the_launch_goes_where_the_fewest_nodes_move() {
    let done = rewrite(&sketch("ord-3"), ALL, &[&["g0", "g1"]]);
    assert_eq!((done.count("all_gather"), done.moved()), (1, 0));
    // Where the first result is read at once, the later input is hoisted.
    let text = sketch("ord-3").replace("m  = matmul_like(a)", "w0 = wait(g0); m = layer(w0); n = layer(m)");
    let text = text.replace("w0 = wait(g0); w1", "w1").replace("output(m,", "output(n,");
    let done = rewrite(&text, ALL, &[&["g0", "g1"]]);
    assert!(done.place("pb") < done.place("bucketed_all_gather"));
    assert!(done.place("bucketed_all_gather") < done.place("m"));
    assert_eq!(done.moved(), 1);
}

#[test]
fn ord_3_where_an_input_needs_what_stands_below_that_comes_along() {
    let text = sketch("ord-3").replace("pb = neg(b)", "pb = layer(b, m) : f32[4]");
    let done = rewrite(&text, ALL, &[&["g0", "g1"]]);
    assert_eq!(done.count("all_gather"), 1);
    assert!(done.place("m") < done.place("pb") && done.place("pb") < done.place("bucketed_all_gather"));
}

#[test]
fn wait_1_two_waits_become_one_above_all_readers() {
    let done = rewrite(&sketch("wait-1"), ALL, &[]);
    let waits = done.graph.order().iter().filter(|&&id| done.graph.node(id).op == Op::Wait).count();
    assert_eq!(waits, 1);
    // z listed first, and the users of the second wait before those of the first.
    let text = "x = input f32[4]\ng = all_gather(x, G0:2)\nw1 = wait(g); z = neg(w1)\nw0 = wait(g); y = relu(w0)\n\
                output(z, y)";
    let done = rewrite(text, ALL, &[]);
    assert_eq!(done.names(), ["x", "g", "w1", "z", "y", "output"]);
}

#[test]
fn dt_2_a_gather_is_never_narrowed_where_it_is_read_at_full_width() {
    let done = rewrite(&sketch("dt-2"), ALL, &[&["g0", "g1"]]);
    assert_eq!(done.count("all_gather"), 1);
    assert!(done.text().contains("f32[16]"), "both travel as f32:\n{}", done.text());
}

/// The graph of TIME-1: `n` layers, each behind its own gather, and a chain of readers behind the first wait.
fn layers(n: usize, chain: usize) -> String {
    let mut text = "y0 = input f32[8]\n".to_owned();
    for at in 0..n {
        writeln!(text, "p{at} = input f32[8]").unwrap();
    }
    for at in 0..n {
        let next = at + 1;
        writeln!(text, "g{at} = all_gather(p{at}, G0:8); w{at} = wait(g{at}); y{next} = layer(y{at}, w{at}) : f32[8]")
            .unwrap();
        for link in 0..if at == 0 { chain } else { 0 } {
            let from = if link == 0 { "w0".to_owned() } else { format!("c{}", link - 1) };
            writeln!(text, "c{link} = neg({from})").unwrap();
        }
    }
    writeln!(text, "output(y{n})").unwrap();
    text
}

#[test]
fn time_1_edits_are_local() {
    // 256 bytes gathered each: 256 to a bucket.
    let names: Vec<String> = (0..1200).map(|at| format!("g{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let buckets: Vec<&[&str]> = names.chunks(256).collect();
    let done = rewrite_shapes(&layers(1200, 5000), "bucket-all-gather{cap=64KiB}", &buckets);
    assert_eq!(done.count("all_gather"), 5);
    // Inputs stand first, so no launch needs anything to move.
    assert_eq!(done.moved(), 0);
    let done =
        rewrite(&layers(12, 20), ALL, &[&["g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7", "g8", "g9", "g10", "g11"]]);
    assert_eq!(done.count("all_gather"), 1);
}
