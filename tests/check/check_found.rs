//! What the checker got wrong and `tests/check/fuzz_prove.rs` found, each as its smallest pair of graphs.

use bucketeer::check::{Verdict, prove};
use bucketeer::ir::Graph;
use bucketeer::ir::text::parse;
use bucketeer::passes::Pipeline;

fn read(text: &str) -> Graph {
    parse(text).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"))
}

/// What is said of `before` with `from` replaced by `to`.
fn changed(before: &str, from: &str, to: &str) -> Verdict {
    assert!(before.contains(from), "{from}");
    prove(&read(before), &read(&before.replacen(from, to, 1)))
}

fn refused(before: &str, from: &str, to: &str, because: &str) {
    let verdict = changed(before, from, to);
    assert!(!verdict.is_equal() && verdict.to_string().contains(because), "{verdict}");
}

#[test]
fn a_filled_tensor_has_the_sizes_and_the_device_that_are_asked_for() {
    let full = "x = input f32[0]cuda:0\nf = aten.full.default([0], 0, dtype=f32, device=@device(type='cuda', index=0)) : \
                f32[0]cuda:0\noutput(x, f)";
    assert!(prove(&read(full), &read(full)).is_equal());
    refused(full, "[0], 0,", "[2], 0,", "is stated to be f32[0]cuda:0, but makes f32[2]");
    refused(full, "index=0", "index=1", "the source does not call `aten.full.default` so");
    let moved = full.replace("index=0", "index=1").replace(": f32[0]cuda:0", ": f32[0]cuda:1");
    let verdict = prove(&read(full), &read(&moved)).to_string();
    assert!(verdict.contains("`f`: is on cuda:0") && verdict.contains("`f`: is on cuda:1"), "{verdict}");
}

#[test]
fn sizes_that_clash_are_refused() {
    let text = "s = symbol hint=2; x = input f32[s, s]; c = all_gather(x, G0:2); w = wait(c); output(x)";
    let stated = text.replace("all_gather(x, G0:2)", "all_gather(x, G0:2) : f32[2*s, s]");
    refused(&stated, "G0:2)", "G0:2, dim=1)", "is stated to be f32[2*s, s], but makes f32[s, 2*s]");
    let text = "x = input f32[8, 3]; n = aten.sym_size.int(x, 1) : Sym(3); output(x)";
    refused(text, "(x, 1)", "(x, 0)", "`n`: is stated to be Sym(3), but makes Sym(8)");
    let text = text.replace("f32[8, 3]", "f32[4*s, 3]");
    refused(&text, "(x, 1)", "(x, 0)", "`n`: the source does not call");
    let parts = "x = input f32[8]; s = aten.split_with_sizes.default(x, [3, 5]) : (f32[3], f32[5]); output(x)";
    refused(parts, "[3, 5]", "[5, 3]", "but makes f32[5]");
}

/// Merged by a pipeline, and proven.
fn proven(text: &str, pipeline: &str) {
    let before = read(text);
    let mut after = before.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    assert!(after != before);
    let verdict = prove(&before, &after);
    assert!(verdict.is_equal(), "{verdict}");
}

#[test]
fn merged_all_to_alls_are_followed() {
    let text = "x = input f32[4]; y = input f32[4, 3]\nc = all_to_all(x, [2, 2], [], G0:2) : f32[4]\n\
                d = all_to_all(y, [], [], G0:2) : f32[4, 3]\n\
                w = wait(c); v = wait(d); output(w, v)";
    proven(text, "bucket-all-to-all{cap=none}");
    // Swapped chunks are not the same, nor is what all ranks send instead.
    for (from, to) in [("output(w, v)", "output(wait(all_to_all(w, G0:2)), v)"), ("[2, 2], []", "[1, 3], [3, 1]")] {
        assert!(!changed(text, from, to).is_equal(), "{to}");
    }
    let mut after = read(text);
    "bucket-all-to-all{cap=none}".parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    let merged = bucketeer::ir::text::print(&after);
    let minor = merged.replacen("cat.default([reshape, reshape_1], 1)", "cat.default([reshape_1, reshape], 1)", 1);
    assert!(minor != merged && !prove(&read(text), &read(&minor)).is_equal());
}

#[test]
fn rows_that_repeat_are_the_same_written_out() {
    // A row of `x` is replaced, so a gather along the columns makes rows of several runs; the buffer writes them out.
    let text = "x = input f16[3, 4]; y = input f16[4]; r = slice(x, 0, 1); s = all_reduce_(r, sum, G1:4); w = wait(x)\n\
                g = all_gather(w, G1:4, dim=1); h = wait(g); a = all_reduce(y, sum, G0:2); b = all_reduce(h, sum, G0:2)\n\
                output(wait(a), wait(b))";
    proven(text, "bucket-all-reduce{cap=none}");
}

#[test]
fn an_edge_moves_with_the_wait_of_a_collective_that_another_serves_for() {
    let text = "x = input f32[4]; y = input f32[4]; g = all_reduce(x, sum, G0:2); h = all_reduce(x, sum, G0:2)\n\
                v = wait(g); w = wait(h); k = all_gather(y, G0:2); u = wait(k)\nafter(k, w)\n\
                output(add(v, 1.0), add(w, 2.0), u)";
    proven(text, "dedupe-collectives");
}

#[test]
fn a_write_to_what_was_sent_follows_the_merged_launch() {
    // `i` has to follow `g`, which moves below `j`: so `i` does, too.
    let text = "x = input f32[4]; y = input f32[4]; z = input f32[4]; g = all_reduce(x, sum, G1:4); v = wait(g)\n\
                i = all_reduce_(x, sum, G2:2); u = wait(i); j = all_reduce_(z, sum, G2:2); t = wait(j)\n\
                n = neg(neg(neg(neg(neg(neg(y)))))); h = all_reduce(n, sum, G1:4); w = wait(h); output(v, u, t, w)";
    proven(text, "bucket-all-reduce{cap=none,groups=G1}");
}

#[test]
fn a_region_moves_as_a_whole() {
    // The body needs `v`, which moves below `j`; `i` does not, and moves with it.
    let text = "x = input f32[4]; y = input f32[4]; z = input f32[4]; g = all_reduce(x, sum, G1:4); v = wait(g)\n\
                region call { i = all_reduce(x, max, G2:2); u = wait(i); r = relu(v) }\n\
                j = all_reduce(z, sum, G2:2); t = wait(j); n = neg(neg(neg(neg(neg(neg(neg(neg(y))))))))\n\
                h = all_reduce(n, sum, G1:4); w = wait(h); output(v, t, w)";
    proven(text, "bucket-all-reduce{cap=none,groups=G1}");
    // Its own order stays.
    let inner = "x = input f32[4]; y = input f32[4]\n\
                 region call { i = all_reduce(x, max, G2:2); u = wait(i); j = all_reduce(y, max, G2:2); t = wait(j) }\n\
                 output(x)";
    refused(
        inner,
        "i = all_reduce(x, max, G2:2); u = wait(i); j = all_reduce(y, max, G2:2); t = wait(j)",
        "j = all_reduce(y, max, G2:2); t = wait(j); i = all_reduce(x, max, G2:2); u = wait(i)",
        "the launches of a group stand in another order",
    );
}

#[test]
fn a_second_wait_on_what_was_sent_follows_the_merged_launch() {
    // `u` waits for the memory that `g` sends, so it stays below `g`, and with it `i`.
    let text = "x = input f32[4]; y = input f32[4]; z = input f32[4]; a = all_reduce_(x, sum, G0:2); v = wait(x)\n\
                g = all_gather(v, G1:4); w = wait(g); u = wait(a); i = all_reduce(u, max, G2:2); s = wait(i)\n\
                j = all_reduce(z, max, G2:2); t = wait(j); n = neg(neg(neg(neg(neg(neg(neg(neg(y))))))))\n\
                h = all_gather(n, G1:4); r = wait(h); output(w, s, t, r)";
    proven(text, "bucket-all-gather{cap=none}");
}

#[test]
fn a_reshape_of_a_value_whose_dimensions_lie_in_another_order_is_a_copy() {
    // What is sent in place is the copy, so its source may be read before the wait.
    let text = "x = input f64[3, 4][4, 1]\nt = transpose(x) : f64[4, 3][1, 4]; r = relu(t) : f64[4, 3][1, 4]\n\
                s = reshape(r, [-1]) : f64[12][1]; c = all_reduce_(s, sum, G:2) : f64[12][1]\n\
                d = all_reduce(r, sum, G:2) : f64[4, 3]; w = wait(s) : f64[12][1]; v = wait(d) : f64[4, 3]\noutput(w, v)";
    assert!(prove(&read(text), &read(text)).is_equal());
    // Of one that lies dense it is a view.
    let dense = text.replace("r = relu(t) : f64[4, 3][1, 4]", "r = relu(t) : f64[4, 3][3, 1]");
    assert!(!prove(&read(&dense), &read(&dense)).is_equal());
}

#[test]
fn a_view_of_a_reshape_that_copies_is_a_view_of_the_copy() {
    let text = "x = input f16[8, 3][3, 1]; t = transpose(x) : f16[3, 8][1, 3]; r = relu(t) : f16[3, 8][1, 3]\n\
                s = reshape(r, [-1]) : f16[24][1]; y = input f16[24]\n\
                c = reduce_scatter(s, sum, G:2) : f16[12]; d = reduce_scatter(y, sum, G:2) : f16[12]\n\
                w = wait(c) : f16[12]; v = wait(d) : f16[12]\noutput(w, v)";
    proven(text, "bucket-reduce-scatter{cap=none}");
}

#[test]
fn an_edge_may_move_to_any_of_several_that_send_the_same() {
    // `g` is read before its wait and stays, so `k` gives way to `h`.
    let text = "x = input f32[4]; y = input f32[4]; g = all_reduce(x, sum, G0:2); s = slice(g, 0, 2)\n\
                h = all_reduce(x, sum, G0:2); k = all_reduce(x, sum, G0:2); l = all_gather(y, G0:2); v = wait(g)\n\
                w = wait(h); u = wait(k); t = wait(l)\nafter(l, k)\n\
                output(s, v, add(w, 1.0), add(u, 2.0), t)";
    proven(text, "dedupe-collectives");
}

#[test]
fn a_reshape_of_a_tensor_with_strides_is_a_copy() {
    // `y` is made before the reduce and is not a view of what that overwrites.
    let text = "x = input f32[4, 2]; t = transpose(x); n = neg(t); y = reshape(n, [8]); s = all_reduce_(n, sum, G0:2)\n\
                r = relu(y); w = wait(s); output(r, w)";
    assert!(prove(&read(text), &read(text)).is_equal());
    refused(&text.replace("neg(t)", "neg(x)"), "reshape(n, [8])", "reshape(n, [8])", "before it is waited for");
}

#[test]
fn a_wait_that_is_also_for_another_collective_is_not_folded() {
    // The wait of `c`, over one rank, is the only one for `d`, which works on the same memory.
    let text = "x = input f32[4]; y = neg(x)\nc = all_reduce_(y, sum, G3:1); v = wait(y); d = all_reduce_(v, sum, G0:2)\n\
                w = wait(c)\noutput(d, w)";
    let mut graph = read(text);
    "fold-trivial".parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
    assert_eq!(graph, read(text));
    let apart = text.replace("w = wait(c)", "u = wait(d); w = wait(c)").replace("output(d, w)", "output(u, w)");
    proven(&apart, "fold-trivial");
}

#[test]
fn a_wait_for_an_empty_part_is_for_all_of_its_memory() {
    let text = "x = input f16[1]; s = slice(x, 0, 0)\nc = all_reduce_(s, sum, G0:2); v = wait(x); d = all_reduce_(v, sum, G2:2)\n\
                w = wait(c)\noutput(d)";
    refused(text, "w = wait(c)\n", "", "a wait is dropped");
}

#[test]
fn writes_through_columns_and_turned_views_are_followed_for_all_sizes() {
    for text in [
        "x = input i64[4, s]; y = neg(x); p = slice(y, 0, 2) : i64[2, s]; t = transpose(p) : i64[s, 2][1, s]\n\
         m = mul_(t, 3) : i64[s, 2][1, s]\noutput(m, neg(y))",
        "x = input u8[4*s, 3]; y = neg(x); t = transpose(y) : u8[3, 4*s][1, 3]; n = sin(t) : u8[3, 4*s][1, 3]\n\
         p = slice(t, 0, 1) : u8[1, 4*s][1, 3]\nm = mul_(p, 3) : u8[1, 4*s][1, 3]\noutput(m, n, neg(y))",
    ] {
        let text = format!("hint s = 2; {text}");
        assert!(prove(&read(&text), &read(&text)).is_equal());
        refused(&text, ", 3)", ", 2)", "another value");
    }
}

#[test]
fn a_gather_along_columns_of_rows_that_were_written_apart_is_proven() {
    let text = "x = input u8[3, 4]; y = neg(x); c = all_reduce_(y, sum, G1:4); s = slice(y, 0, 1); w = wait(c)\n\
                d = broadcast_(s, 1, G1:4); v = wait(c)\ne = all_gather(v, G0:2, dim=1) : u8[3, 8]\n\
                f = all_gather(v, G0:2, dim=1) : u8[3, 8]; u = wait(e); t = wait(f)\noutput(u, t, w)";
    proven(text, "bucket-all-gather{cap=none}");
}

#[test]
fn what_follows_a_launch_through_a_wait_that_went_still_follows_it() {
    // The second wait for `c` moves below the bucket, with `e`; the first then stands for it.
    let text = "x = input f32[4]; z = input f32[8]; y = neg(x); c = all_reduce_(y, sum, G1:4); w = wait(c)\n\
                d = all_reduce(w, sum, G1:4)\nv = wait(c); r = relu(v); e = reduce_scatter(r, sum, G2:2)\n\
                g = all_gather(z, G2:2); a = neg(neg(neg(neg(z)))); f = all_reduce(a, sum, G1:4)\n\
                t = wait(d); s = wait(e); q = wait(g); p = wait(f)\noutput(t, s, q, p)";
    proven(text, "bucket-all-reduce{cap=none,mode=coalesced},dedupe-waits");
}

#[test]
fn an_edge_at_one_of_several_empty_collectives_is_kept() {
    let text = "x = input f32[4]; n = input f64[0, 4]; y = input f32[1]; c = all_gather(n, G0:2); d = all_gather(n, G0:2)\n\
                v = wait(d); s = sin(v); w = wait(c)\nafter(w, y)\noutput(w, s, neg(y), x)";
    proven(text, "dedupe-collectives");
}

#[test]
fn what_names_a_result_below_the_list_that_waited_for_it_follows_all_of_the_list() {
    // `s` needs the wait of `c`, which is one for `e`, too; so `e` moves up with it, above `d`.
    let text = "x = input f32[4]; y = input f64[4]; m = mul(x, 2.0); a = all_reduce(m, sum, G1:4); z = wait(a)\n\
                d = all_reduce(x, sum, G2:2); n = neg(z); o = neg(n); p = neg(o); q = neg(p); r = neg(q); i = neg(r)\n\
                v = wait(d); c = all_reduce(x, max, G0:2); e = all_reduce(y, sum, G2:2); w = wait([c, e])\n\
                s = slice(c, 0, 1); b = all_reduce(s, sum, G1:4); u = wait(b); f = getitem(w, 0); g = getitem(w, 1)\n\
                output(i, v, u, f, g)";
    proven(text, "bucket-all-reduce{cap=none,groups=G1}");
}

#[test]
fn a_bucket_of_members_without_elements_moves_nothing() {
    let text = "x = input f32[4]; n = input u8[0]; a = all_gather(n, G2:2); v = wait(a); c = all_reduce(x, sum, G0:2)\n\
                d = all_reduce_coalesced([x, n], sum, G0:2); e = getitem(d, 0); f = getitem(d, 1); w = wait(f)\n\
                b = all_gather(w, G2:2); u = wait(b); t = wait(c); s = wait(e); output(v, u, t, s)";
    let mut graph = read(text);
    "bucket-all-gather{cap=none}".parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
    let place = |name| graph.order().iter().position(|&id| graph.name_of(id) == name);
    assert!(place("c") < place("d") && place("a").is_none() && prove(&read(text), &graph).is_equal());
}

#[test]
fn a_collective_over_one_rank_that_is_waited_for_alone_and_in_a_list_is_not_folded() {
    let text = "x = input f32[4]; c = reduce_scatter(x, sum, G3:1); w = wait([c]); a = getitem(w, 0); v = wait(c)\n\
                output(a, v)";
    let mut graph = read(text);
    "fold-trivial".parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
    assert_eq!(graph, read(text));
}

#[test]
fn of_members_that_begin_alike_the_one_that_reaches_further_is_taken() {
    // Three rows of a scatter's result, and the first three of their elements, which are more pieces but fewer bytes.
    proven(
        "x = input f32[3, 4]; c = reduce_scatter(x, sum, G0:2, dim=1); w = wait(c)\n\
         r = reshape(w, [-1]); s = slice(r, 0, 3)\ng = all_gather(w, G1:4); h = all_gather(s, G1:4)\n\
         output(wait(g), wait(h))",
        "bucket-all-gather{cap=none,mode=coalesced}",
    );
}

#[test]
fn a_draw_that_reads_a_result_copied_out_of_a_bucket_is_the_same_draw() {
    // Such a draw sees strides: those of a collective's result and of a dense copy of it are alike.
    for draw in ["rand_like(w) : f32[2]", "aten.rand_like.default(w) : f32[2]", "aten.bernoulli.default(w) : f32[2]"] {
        let text = format!(
            "x = input f32[4]\nc = reduce_scatter(x, sum, G:2); d = reduce_scatter(x, sum, G:2)\n\
             w = wait(c); v = wait(d)\nr = {draw}\noutput(w, v, r)"
        );
        let before = bucketeer::ir::text::parse(&text).unwrap();
        let mut after = before.clone();
        let pipeline: bucketeer::passes::Pipeline = "bucket-reduce-scatter".parse().unwrap();
        pipeline.run(&mut after).unwrap();
        assert_eq!(after.order().iter().filter(|&&id| after.collective(id).is_some()).count(), 1, "{draw}");
        let verdict = bucketeer::check::prove(&before, &after);
        assert!(verdict.is_equal(), "{draw}: {verdict}");
    }
}
