//! Faults of this library that were found and mended, most by `tests/passes/properties.rs`, each as its smallest graph.

use bucketeer::ir::Op;
use bucketeer::passes::bucketing::Reason;
use kit::rewrite::{ALL, depends, read, rewrite, rewrite_graph, with_symbols};

#[test]
fn inputs_keep_their_order_for_it_is_the_signature() {
    let text = "p = input f32[4]; g = all_gather(p, G0:2); w = wait(g); q = input bf16[4]\n\
                r = input f32[4]; h = all_gather(r, G0:2); v = wait(h)\noutput(w, q, v)";
    let done = rewrite(text, ALL);
    assert_eq!(done.buckets(), [["g", "h"]]);
    assert_eq!(done.names()[..3], ["p", "q", "r"]);
}

#[test]
fn a_wait_below_an_in_place_collective_waits_for_that_one() {
    let text = "p = input f32[4]; g = all_gather(p, G0:2); w = wait(g)\n\
                b = broadcast_(w, 1, G0:2); v = wait(w); u = wait(v)\noutput(add(v, 1.0), add(u, 2.0))";
    let done = rewrite(text, "dedupe-waits");
    let waits = done.graph.order().iter().filter(|&&id| done.graph.node(id).op == Op::Wait).count();
    assert_eq!(waits, 2, "{}", done.text());
}

#[test]
fn adjacent_sees_that_a_member_needs_a_candidate_that_was_issued_before_it() {
    // g is waited for last, though h stands below the barrier that g stands above.
    let text = "p = input f32[4]; q = input f32[4]\ng = all_gather(p, G0:2)\nopaque_comm barrier()\n\
                h = all_gather(q, G0:2); v = wait(h); w = wait(g)\noutput(v, w)";
    let done = rewrite(text, "bucket-all-gather{cap=none,policy=adjacent}");
    assert!(done.buckets().is_empty());
    assert_eq!(done.reason("g").label(), "fence");
}

#[test]
fn adjacent_sees_a_need_that_leads_through_the_wait_of_another() {
    // The second wait for the in-place reduce has to follow h, which reads x, and k has to follow that wait.
    let text = "x = input f32[4]; s = all_reduce_(x, sum, G0:2); u = wait(x); h = all_reduce(u, sum, G0:2)\n\
                t = wait(s); k = all_reduce(x, sum, G0:2); w = wait(h); z = wait(k)\noutput(w, z)";
    for policy in ["adjacent", "greedy"] {
        let done = rewrite(text, &format!("bucket-all-reduce{{cap=none,policy={policy}}}"));
        assert!(done.buckets().is_empty());
        assert_eq!(done.reason("k").label(), "written between");
    }
}

#[test]
fn of_two_waits_for_the_same_gather_the_first_in_the_listing_serves() {
    let text = "p = input f32[4]; g = all_gather(p, G0:2); h = all_gather(p, G0:2)\n\
                v = wait(h); y = relu(v); w = wait(g)\noutput(y, add(w, 1.0))";
    let done = rewrite(text, "dedupe-collectives");
    assert_eq!(done.names(), ["p", "g", "v", "y", "add", "output"]);
}

#[test]
fn three_gathers_of_one_tensor_leave_no_output_shared() {
    let text = "p = input f32[4]; g = all_gather(p, G0:2); h = all_gather(p, G0:2); k = all_gather(p, G0:2)\n\
                w = wait(g); y = relu(w); v = wait(h); u = wait(k)\noutput(y, v, u)";
    assert_eq!(rewrite(text, "dedupe-collectives").count("all_gather"), 2);
}

#[test]
fn a_member_may_send_what_it_names_by_another_members_start() {
    let text = "p = input f32[4]; q = input f32[4]; g = all_gather(p, G0:2); h = all_gather(q, G0:2)\n\
                w = wait(g); v = wait(h); k = all_gather(g, G0:2); l = all_gather(h, G0:2)\n\
                output(wait(k), wait(l), w, v)";
    let done = rewrite(text, "bucket-all-gather{cap=none}");
    assert_eq!(done.buckets(), [["g", "h"], ["k", "l"]]);
}

#[test]
fn a_size_may_follow_from_another_members_result() {
    let text = "s = symbol hint=2; p = input f32[s]; q = input f32[4]; g = all_gather(p, G0:2); w = wait(g)\n\
                k = all_gather(g, G0:2); n = aten.sym_size.int(k, 0) : Sym(4*s); u = wait(k)\n\
                h = all_gather(q, G0:2); v = wait(h); l = all_gather(v, G0:2)\n\
                output(w, v, u, wait(l), n)";
    for mode in ["concat", "coalesced"] {
        let done = rewrite(text, &format!("bucket-all-gather{{cap=none,mode={mode}}}"));
        assert_eq!(done.buckets(), [["g", "h"], ["k", "l"]]);
    }
}

#[test]
fn an_in_place_reduce_that_is_waited_for_under_another_name_is_left_alone() {
    let text = "x = input f32[4]; y = input f32[4]; g = all_reduce_(x, sum, G0:2); w = wait(x)\n\
                b = broadcast_(x, 1, G0:2); u = wait(g); h = all_reduce_(y, sum, G0:2); v = wait(h)\n\
                output(add(u, 1.0), v, w)";
    let done = rewrite(text, "bucket-all-reduce{cap=none}");
    assert_eq!(done.reason("g"), &Reason::ReadBeforeWait { by: "w".to_owned() });
}

#[test]
fn a_trivial_collective_may_send_what_another_one_makes() {
    let text = "x = input f32[0]; g = all_gather(x, G0:2); w = wait(g); b = broadcast_(g, 1, G0:2); v = wait(b)\n\
                y = input f32[4]; h = all_gather(y, G1:1); u = wait(h); k = all_gather(h, G1:1); t = wait(k)\n\
                output(w, v, u, t)";
    assert_eq!(rewrite(text, "fold-trivial").count("all_gather"), 0);
}

#[test]
fn a_coalesced_list_travels_along_one_dimension() {
    let text = "p = input f32[2,4]; q = input f32[2,4]; r = input f32[2,4]\ng = reduce_scatter(p, sum, G0:2)\n\
                h = reduce_scatter(q, sum, G0:2, dim=1); k = reduce_scatter(r, sum, G0:2, dim=1)\n\
                output(wait(g), wait(h), wait(k))";
    let done = rewrite(text, "bucket-reduce-scatter{cap=none,mode=coalesced}");
    assert_eq!(done.buckets(), [["h", "k"]]);
    assert_eq!(
        done.reason("g"),
        &Reason::KeyDiffers { from: "h".to_owned(), fields: vec!["reduce op, root or dimension"] }
    );
}

#[test]
fn members_of_symbolic_size_keep_their_dtype_where_others_travel_as_bytes() {
    let text = "s = symbol hint=2; p = input f32[s]; q = input f32[2,s]; r = input bf16[3]; t = input i64[1]\n\
                g = all_gather(p, G0:2); h = all_gather(q, G0:2); k = all_gather(r, G0:2); l = all_gather(t, G0:2)\n\
                output(wait(g), wait(h), wait(k), wait(l))";
    let options = [2, 5, 0].map(|s| with_symbols([("s", s)]));
    let done = rewrite_graph(read(text), "bucket-all-gather{cap=none,mixed-dtype=bytes}", &options);
    assert_eq!(done.buckets(), [["g", "h"], ["k", "l"]]);
}

#[test]
fn a_view_made_before_the_wait_is_read_below_it() {
    let text = "p = input f32[4]; q = input f32[4]; g = all_gather(p, G0:2); x = reshape(g, [2, 4]); w = wait(g)\n\
                y = relu(x); h = all_gather(q, G0:2); v = wait(h); k = all_gather(y, G0:2); u = wait(k)\n\
                output(w, v, u)";
    let done = rewrite(text, ALL);
    assert!(depends(&done.graph, "y", "w"));
    // An element of a list, read by its own name.
    let text = "p = input f32[4]; q = input f32[4]; l = all_gather_coalesced([p, q], G0:2)\n\
                a = getitem(l, 0); b = getitem(l, 1); w = wait(a); v = wait(b); y = relu(b)\noutput(w, v, y)";
    assert!(depends(&rewrite(text, ALL).graph, "y", "v"));
}

#[test]
fn an_empty_member_of_symbolic_width_keeps_its_shape() {
    let text = "s = symbol hint=2; p = input f32[0,s]; q = input f32[4]\n\
                g = all_gather(p, G0:2, dim=1); w = wait(g); h = all_gather(q, G0:2); v = wait(h)\noutput(w, v)";
    for pipeline in [ALL, "bucket-all-gather{cap=none}"] {
        assert_eq!(rewrite(text, pipeline).buckets(), [["g", "h"]]);
    }
}

#[test]
fn what_is_sent_is_not_written_before_the_wait() {
    let text = "p = input f32[4]; q = input f32[4]; g = all_gather(p, G0:2); w = wait(g); mul_(p, 3)\n\
                h = all_gather(q, G0:2); v = wait(h)\noutput(w, v)";
    let done = rewrite(text, "dedupe-waits");
    assert!(depends(&done.graph, "mul_", "w"));
}

#[test]
fn a_write_in_flight_to_one_result_does_not_hold_up_its_neighbour() {
    let text = "p = input f32[4]; q = input f32[4]; g = all_gather(p, G0:2); h = all_gather(q, G0:2)\n\
                w = wait(g); v = wait(h); b = broadcast_(w, 1, G0:2); y = relu(v); u = wait(w)\noutput(y, u)";
    let done = rewrite(text, "bucket-all-gather{cap=none}");
    assert_eq!(done.buckets(), [["g", "h"]]);
}

#[test]
fn a_collective_in_a_region_is_no_duplicate_of_one_around_it() {
    let text = "p = input f32[4]; g = all_reduce(p, sum, G0:2); w = wait(g)\n\
                region call { h = all_reduce(p, sum, G0:2); v = wait(h) }\noutput(w)";
    assert_eq!(rewrite(text, "dedupe-collectives").count("all_reduce"), 2);
}

#[test]
fn what_a_hard_edge_puts_below_the_first_of_two_does_not_give_way_to_it() {
    let text = "p = input f32[4]; g = all_reduce(p, sum, G0:2); w = wait(g); y = neg(p); v = wait(g)\n\
                after(v, y)\noutput(w, y, add(v, 1.0))";
    let waits =
        |graph: &bucketeer::ir::Graph| graph.order().iter().filter(|&&id| graph.node(id).op == Op::Wait).count();
    assert_eq!(waits(&rewrite(text, "dedupe-waits").graph), 2);
    let text = "p = input f32[4]; g = all_reduce(p, sum, G0:2); w = wait(g); y = neg(p)\n\
                h = all_reduce(p, sum, G0:2); v = wait(h)\nafter(h, y)\noutput(w, y, add(v, 1.0))";
    assert_eq!(rewrite(text, "dedupe-collectives").count("all_reduce"), 2);
}

#[test]
fn a_reader_of_a_members_size_keeps_its_hard_edge() {
    let text = "x = input f32[4]; y = input f32[4]; g = all_gather(x, G0:2); n = aten.sym_size.int(g, 0) : Sym(8)\n\
                z = neg(neg(neg(neg(neg(neg(y)))))); h = all_gather(z, G0:2); w = wait(g); v = wait(h)\n\
                after(n, g)\noutput(w, v, n)";
    let done = rewrite(text, "bucket-all-gather{cap=none}");
    assert_eq!(done.buckets(), [["g", "h"]]);
    assert!(done.place("bucketed_all_gather") < done.place("n"), "{}", done.text());
}

#[test]
fn tensors_of_a_coalesced_result_have_memory_of_their_own() {
    // `g` sends one and moves down to `h`; the write to the other, and `i` with it, stay where they are.
    let text = "x = input f32[4]; y = input f32[4]; z = input f32[4]; c = all_gather_coalesced([x, x], G1:4)\n\
                a = getitem(c, 0); b = getitem(c, 1); v = wait(a); w = wait(b); g = all_gather(a, G0:2)\n\
                m = mul_(b, 3); i = all_reduce_(m, sum, G2:2); j = all_reduce(z, sum, G2:2)\n\
                n = neg(neg(neg(neg(neg(neg(neg(neg(y)))))))); h = all_gather(n, G0:2)\n\
                u = wait(b); t = wait(g); s = wait(j); r = wait(h)\noutput(v, u, t, s, r)";
    let done = rewrite(text, "bucket-all-gather{cap=none}");
    assert_eq!(done.buckets(), [["g", "h"]]);
    assert!(!depends(&done.graph, "m", "cat"), "{}", done.text());
    // Under another name it is the same tensor.
    let twice = text.replace("m = mul_(b, 3)", "e = getitem(c, 0); m = mul_(e, 3)");
    let done = rewrite(&twice, "bucket-all-gather{cap=none}");
    assert!(depends(&done.graph, "m", "cat"), "{}", done.text());
}

#[test]
fn a_view_made_before_the_wait_stays_above_it() {
    // The wait of `c` moves up with what the bucket needs. With the view below it, a second run would merge `c`, too.
    let text = "x = input f32[4]; y = input f32[4]; c = all_gather(x, G0:2); d = all_gather(y, G2:2); s = slice(c, 0, 4)\n\
                w = wait(c); v = wait(d); e = all_gather(y, G0:2); f = all_gather(w, G2:2); u = wait(e); t = wait(f)\n\
                output(s, w, v, u, t)";
    let done = rewrite(text, "bucket-all-gather{cap=200B}");
    assert_eq!(done.buckets(), [["d", "f"]]);
}

#[test]
fn tensors_that_are_waited_for_in_one_list_have_memory_of_their_own() {
    // `g` sends `c` and moves down to `h`; the write to `d`, and what follows it, stay where they are.
    let text = "x = input f32[4]; y = input f32[4]; c = all_gather(x, G0:2); d = all_gather(x, G0:2); w = wait([c, d])\n\
                a = getitem(w, 0); b = getitem(w, 1); g = all_gather(a, G1:4); m = mul_(b, 3)\n\
                n = neg(neg(neg(neg(neg(y))))); h = all_gather(n, G1:4); u = wait(g); t = wait(h); output(m, u, t)";
    let done = rewrite(text, "bucket-all-gather{cap=none}");
    assert_eq!(done.buckets(), [["g", "h"]]);
    assert!(!depends(&done.graph, "m", "cat"), "{}", done.text());
    let same = text.replace("mul_(b, 3)", "mul_(a, 3)");
    assert!(depends(&rewrite(&same, "bucket-all-gather{cap=none}").graph, "m", "cat"));
}

#[test]
fn a_later_pass_may_make_neighbours_that_an_earlier_one_would_have_merged() {
    // The gathers that are merged take `c7` to where `c14` is launched. Each pass leaves its own output alone.
    let text = r#"graph random {
group G0:2 = [[0, 1], [2, 3]]
group G1:4 = [[0, 1, 2, 3]]
group G2:2 = [[0, 2], [1, 3]]
group G3:1 = [[0], [1], [2], [3]]
  x0 = input f32[4]
  neg1 = neg(x0) : f32[4]
  c2 = all_gather(neg1, G1:4) : f32[16]
  c3 = broadcast_(x0, 1, G1:4) : f32[4]
  w4 = wait(x0) : f32[4]
  w5 = wait(c2) : f32[16]
  c6 = all_gather(w5, G0:2) : f32[32] key="L1" src="a.py:10"
  c7 = reduce_scatter(w4, sum, G0:2) : f32[2]
  w8 = wait(c7) : f32[2]
  c9 = all_gather(w8, G0:2) : f32[4] key="L1" src="a.py:10"
  c10 = all_gather(w8, G0:2) : f32[4] key="L1" src="a.py:10"
  c11 = all_reduce(c3, max, G2:2) : f32[4] key="L1" src="a.py:10"
  x12 = input f32[4]
  c13 = all_reduce(x12, max, G2:2) : f32[4] key="L1" src="a.py:10"
  c14 = reduce_scatter(x12, sum, G0:2) : f32[2]
  slice15 = slice(c9, 0, 2) : f32[2]
  region loop(n=2) {
    neg16 = neg(x12) : f32[4]
    c17 = reduce_scatter(neg16, max, G2:2) : f32[2] key="L1" src="a.py:10"
    w18 = wait(c17) : f32[2]
  }
  c19 = broadcast_(neg1, 1, G1:4) : f32[4]
  w20 = wait(c14) : f32[2]
  w21 = wait(c19) : f32[4]
  cast22 = cast(c14, f32) : f32[2]
  c23 = all_gather(cast22, G1:4) : f32[8]
  w24 = wait(c6) : f32[32]
  w25 = wait(c9) : f32[4]
  w26 = wait(c10) : f32[4]
  w27 = wait(c11) : f32[4]
  w28 = wait(c13) : f32[4]
  w29 = wait(c23) : f32[8]
  output(slice15, w20, w21, w24, w25, w26, w27, w28, w29)
}"#;
    rewrite(text, "bucket-reduce-scatter{cap=64,policy=adjacent},bucket-all-gather{cap=1KiB}");
}
