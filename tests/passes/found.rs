//! Faults that random and damaged graphs found, each with the smallest graph that showed it.

use bucketeer::ir::text::{parse, print};
use bucketeer::ir::verify;
use bucketeer::passes::Pipeline;

/// Runs a pipeline, whose passes verify what they make, and prints the result.
#[track_caller]
fn rewrite(pipeline: &str, text: &str) -> String {
    let mut graph = parse(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(verify(&graph), Ok(()));
    let pipeline: Pipeline = pipeline.parse().unwrap();
    pipeline.run(&mut graph).unwrap_or_else(|error| panic!("{error}"));
    print(&graph)
}

#[test]
fn a_wait_below_a_start_in_place_is_another_wait() {
    let text = "x = input f32[4]
        a = all_reduce(x, sum, G0:2)
        w = wait(a)
        b = all_reduce_(w, sum, G0:2)
        again = wait(a)
        y = neg(w)
        output(y)";
    assert!(rewrite("dedupe-waits", text).contains("again = wait(a)"));
    let plain = text.replace("b = all_reduce_(w, sum, G0:2)", "");
    assert!(!rewrite("dedupe-waits", &plain).contains("again"));
}

#[test]
fn of_the_waits_of_two_duplicates_the_one_that_stands_first_serves_the_readers_of_both() {
    let text = "x = input f32[4]
        a = all_reduce(x, sum, G0:2)
        b = all_reduce(x, sum, G0:2)
        wb = wait(b)
        y = neg(wb)
        wa = wait(a)
        z = neg(wa)
        output(y, z)";
    let found = rewrite("dedupe-collectives", text);
    for part in ["wb = wait(a)", "y = neg(wb)", "z = neg(wb)"] {
        assert!(found.contains(part) && !found.contains("b = all_reduce"), "{found}");
    }
}

#[test]
fn of_three_duplicates_two_outputs_do_not_come_to_share_memory() {
    let text = "x = input f32[4]
        a = all_reduce(x, sum, G0:2)
        wa = wait(a)
        y = neg(wa)
        b = all_reduce(x, sum, G0:2)
        wb = wait(b)
        c = all_reduce(x, sum, G0:2)
        wc = wait(c)
        output(y, wb, wc)";
    assert!(rewrite("dedupe-collectives", text).contains("output(y, wa, wc)"));
}

#[test]
fn duplicates_of_duplicates_are_found_in_one_run() {
    let text = "x = input f32[4]
        a = all_reduce(x, sum, G0:2)
        wa = wait(a)
        b = all_reduce(x, sum, G0:2)
        wb = wait(b)
        ga = all_gather(wa, G1:2)
        wga = wait(ga)
        gb = all_gather(wb, G1:2)
        wgb = wait(gb)
        y = add(wga, wgb)
        output(y)";
    assert!(rewrite("dedupe-collectives", text).contains("y = add(wga, wga)"));
}

#[test]
fn a_member_may_send_another_member_that_is_named_below_its_wait() {
    // `c` sends `a` itself, in a bucket of its own with `d`.
    let text = "x = input f32[4]
        a = all_gather(x, G0:2)
        b = all_gather(x, G0:2)
        wa = wait(a)
        wb = wait(b)
        c = all_gather(a, G1:2)
        d = all_gather(b, G1:2)
        rows = aten.sym_size.int(c, 0)
        wc = wait(c)
        wd = wait(d)
        output(wa, wb, wc, wd, rows)";
    for mode in ["concat", "coalesced"] {
        let printed = rewrite(&format!("bucket-all-gather{{cap=none,mode={mode}}}"), text);
        assert!(printed.contains("members=[a, b]") && printed.contains("members=[c, d]"), "{printed}");
    }
}

#[test]
fn gathers_along_different_dimensions_are_not_coalesced() {
    let text = "x = input f32[4, 2]
        a = all_gather(x, G0:2)
        b = all_gather(x, G0:2, dim=1)
        c = all_gather(x, G0:2, dim=1)
        wa = wait(a)
        wb = wait(b)
        wc = wait(c)
        output(wa, wb, wc)";
    let printed = rewrite("bucket-all-gather{cap=none,mode=coalesced}", text);
    assert!(printed.contains("members=[b, c]"), "{printed}");
}

#[test]
fn neighbours_that_would_close_a_loop_are_not_merged() {
    // `a` and `c` are gathers, `b` and `d` too but of another dtype; `c` needs `b`, and `d` needs `a`.
    let text = "x = input f32[4]
        y = input i64[4]
        a = all_gather(x, G0:2)
        b = all_gather(y, G0:2)
        c = all_gather(x, G0:2)
        d = all_gather(y, G0:2)
        wa = wait(a)
        wc = wait(c)
        wb = wait(b)
        wd = wait(d)
        after(c, b)
        after(d, a)
        output(wa, wb, wc, wd)";
    let printed = rewrite("bucket-all-gather{cap=none,policy=adjacent}", text);
    assert_eq!(printed.matches("members=").count(), 1, "{printed}");
}

#[test]
fn a_reader_of_an_element_stays_below_the_wait_for_it() {
    // `d` sends an element itself. Were it launched at `c`, it would send what has not arrived.
    let text = "x = input f32[4]
        c = all_gather(x, G1:2)
        pair = all_reduce_coalesced([x, x], sum, G0:2)
        first = getitem(pair, 0)
        second = getitem(pair, 1)
        w = wait(second)
        d = all_gather(second, G1:2)
        wc = wait(c)
        wd = wait(d)
        wf = wait(first)
        output(w, wc, wd, wf)";
    let printed = rewrite("bucket-all-gather{cap=none}", text);
    assert!(printed.contains("members=[c, d]"), "{printed}");
    let at = |part: &str| printed.find(part).unwrap_or_else(|| panic!("no {part} in {printed}"));
    assert!(at("w = wait(second)") < at("aten.cat"), "{printed}");
}

#[test]
fn gathers_of_sizes_known_at_run_time_do_not_travel_as_bytes() {
    let text = "x = input f32[u0]
        y = input i64[4]
        z = input f64[4]
        a = all_gather(x, G0:2)
        b = all_gather(y, G0:2)
        c = all_gather(z, G0:2)
        wa = wait(a)
        wb = wait(b)
        wc = wait(c)
        output(wa, wb, wc)";
    let printed = rewrite("bucket-all-gather{cap=none,mixed-dtype=bytes}", text);
    assert!(printed.contains("members=[b, c]"), "{printed}");
}

#[test]
fn a_wait_of_unknown_type_is_left_alone() {
    let text = "def forward(self, a: \"f32[4][1]cpu\", b: \"f32[4][1]cpu\"):
    r: \"f32[4][1]cpu\" = torch.ops._c10d_functional.all_reduce.default(a, 'sum', '0')
    w: \"f32= 4\" = torch.ops._c10d_functional.wait_tensor.default(r)
    s: \"f32[4][1]cpu\" = torch.ops._c10d_functional.all_reduce.default(b, 'sum', '0')
    v: \"f32[4][1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(s)
    return (w, v)
";
    let mut module = bucketeer_formats::fx::FxText::parse(text.as_bytes().to_vec()).unwrap();
    let pipeline: Pipeline = "bucket-all-reduce{cap=none}".parse().unwrap();
    pipeline.run(&mut module.graphs_mut()[0]).unwrap();
    assert_eq!(module.print(), text.as_bytes());
}

#[test]
fn order_edges_below_an_early_output_name_what_stands_above_them() {
    let text = "a = input f32[4]; output(a); b = neg(a); c = neg(b); soft_after(c, b); output(c)";
    let graph = parse(text).unwrap();
    assert_eq!(parse(&print(&graph)), Ok(graph));
}

#[test]
fn a_collective_that_moves_nothing_may_send_another_one() {
    let text = "x = input f32[0]
        a = all_gather(x, G0:2)
        wa = wait(a)
        b = all_reduce_(a, sum, G0:2)
        wb = wait(b)
        output(wa, wb)";
    assert!(rewrite("fold-trivial", text).contains("wb = aten.alias.default(wa)"));
}

#[test]
fn numbers_of_dimensions_agree_even_where_sizes_are_not_known() {
    for (input, call, result) in [
        ("f32[]", "reduce_scatter(x, sum, G0:2)", "f32[u0, u1]"),
        ("f32[4]", "all_gather(x, G0)", "f32[u0, u1]"),
        ("f32[]", "all_gather(x, G0:2)", "f32[3]"),
    ] {
        let text = format!("x = input {input}\nc = {call} : {result}\nw = wait(c) : {result}\noutput(w)");
        assert!(verify(&parse(&text).unwrap()).is_err(), "{text}");
    }
    let text = "x = input f32[4]\nc = all_gather(x, G0:2)\nw = wait(c) : f32[4, u0]\noutput(w)";
    let error = verify(&parse(text).unwrap()).unwrap_err().to_string();
    assert_eq!(error, "wait `w` makes f32[4, u0] of `c`, which is f32[8]; expected the same");
}

#[test]
fn no_new_name_hides_the_target_of_a_call() {
    let text = "def forward(self, a: \"f32[4, 2][2, 1]cpu\", b: \"f32[4, 2][2, 1]cpu\"):
    r: \"f32[8, 2][2, 1]cpu\" = torch.ops._c10d_functional.all_gather_into_tensor.default(a, 2, '0')
    w: \"f32[8, 2][2, 1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(r)
    s: \"f32[8, 2][2, 1]cpu\" = torch.ops._c10d_functional.all_gather_into_tensor.default(b, 2, '0')
    v: \"f32[8, 2][2, 1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(s)
    m: \"f32[8, 2][2, 1]cpu\" = cat.forward(w, v, getitem.first)
    return (m,)
";
    let mut module = bucketeer_formats::fx::FxText::parse(text.as_bytes().to_vec()).unwrap();
    let pipeline: Pipeline = "bucket-all-gather{cap=none}".parse().unwrap();
    pipeline.run(&mut module.graphs_mut()[0]).unwrap();
    let printed = String::from_utf8(module.print()).unwrap();
    assert!(printed.contains("cat_1: ") && !printed.contains(" getitem: "), "{printed}");
    assert!(bucketeer_formats::fx::FxText::parse(printed.into_bytes()).is_ok());
}

/// Found by random graphs under PyTorch: the schema marks no write, and small numbers show none.
#[test]
fn weights_that_are_saturated_or_packed_as_halves_are_written() {
    let writers = [
        "aten._saturate_weight_to_fp16.default",
        "aten.fbgemm_pack_gemm_matrix_fp16.default",
        "quantized.linear_prepack_fp16.default",
        "_quantized.wrapped_fbgemm_pack_gemm_matrix_fp16.default",
    ];
    for writer in writers {
        // Two gathers of one tensor, which is written between them; and the same with the write before both.
        let graph = |before: &str, between: &str| {
            let text = format!(
                "x = input f32[16, 16]\n{before}g = all_gather(x, G0:2)\nw = wait(g)\n{between}h = all_gather(x, G0:2)\nv = wait(h)\n\
                 output(w, v)"
            );
            bucketeer::ir::text::parse(&text).unwrap()
        };
        let write = format!("s = {writer}(x) : f32[16, 16]\n");
        let (before, moved) = (graph("", &write), graph(&write, ""));
        assert!(!bucketeer::prove(&before, &moved).is_equal(), "{writer}");
        let mut after = before.clone();
        bucketeer::Pipeline::default_rewrite().run(&mut after).unwrap();
        assert!(bucketeer::prove(&before, &after).is_equal(), "{writer}");
        let launches = after.order().iter().filter(|&&id| after.collective(id).is_some()).count();
        assert_eq!(launches, 2, "{writer}");
    }
}

#[test]
fn results_whose_place_is_seen_are_copied_out_of_the_bucket_however_it_is_unpacked() {
    let readers = [
        "r = aten.slice_inverse.default(z, v) : f32[2]",
        "r = aten.as_strided.default(v, [3], [2], 0) : f32[3][2]",
        "r = aten.as_strided_copy.default(v, [3], [2], 0) : f32[3]",
        "r = aten._version.default(v)",
        "r = aten._reshape_alias.default(v, [8], [1]) : f32[8]",
    ];
    for reader in readers {
        let text = format!(
            "x = input f32[4]; y = input f32[2, 4]; z = input f32[2]\ns = all_reduce(x, sum, G:2)\nw = wait(s)\n\
             t = all_reduce(y, sum, G:2)\nv = wait(t)\n{reader}\noutput(w, r)"
        );
        let before = bucketeer::ir::text::parse(&text).unwrap();
        for unpack in ["auto", "views", "copies"] {
            let pipeline: bucketeer::Pipeline = format!("bucket-all-reduce{{unpack={unpack}}}").parse().unwrap();
            let mut after = before.clone();
            let reports = pipeline.run(&mut after).unwrap();
            let buckets = reports[0].plan.as_ref().unwrap().buckets.len();
            assert_eq!(buckets, 1, "{reader}");
            let verdict = bucketeer::prove(&before, &after);
            assert!(verdict.is_equal(), "{reader}, {unpack}: {verdict}");
            let read = after.order().iter().find(|&&id| after.name_of(id) == "r").unwrap();
            let seen = *after.operands(*read).last().unwrap();
            assert!(!shows_the_bucket(&after, seen), "{reader}, {unpack}");
        }
    }
}

/// Whether a value is a view of what a launch made.
fn shows_the_bucket(graph: &bucketeer::Graph, value: bucketeer::ir::NodeId) -> bool {
    use bucketeer::ir::operators::{Alias, effects, element_index};
    let mut at = value;
    loop {
        let from = match effects(graph, at).alias {
            _ if graph.collective(at).is_some() => return true,
            Alias::Of(index) => graph.operands(at).get(index as usize),
            _ if element_index(graph, at).is_some() || graph.node(at).op == bucketeer::ir::Op::Wait => {
                graph.operands(at).first()
            }
            _ => return false,
        };
        match from {
            Some(&from) => at = from,
            None => return false,
        }
    }
}

#[test]
fn what_sorts_a_list_in_place_is_not_what_sorts_a_tensor() {
    // `aten::sort.int(int[](a!) self)` has the name of what makes a sorted tensor.
    for (sort, writes) in [("torch.sort(y)", false), ("method.sort(y)", false), ("torch.sort([y, x])", true)] {
        let text = format!(
            "x = input f32[4]; y = input f32[4]\ng = all_gather(x, G0:2) : f32[8]\nw = wait(g) : f32[8]\nr = {sort}\n\
             h = all_gather(y, G0:2) : f32[8]\nv = wait(h) : f32[8]\noutput(w, v, r)"
        );
        let before = bucketeer::ir::text::parse(&text).unwrap();
        if !writes {
            let mut after = before.clone();
            bucketeer::Pipeline::default_rewrite().run(&mut after).unwrap();
            assert!(bucketeer::prove(&before, &after).is_equal(), "{sort}");
        }
        let moved = text.replace(&format!("r = {sort}\n"), "").replace("output", &format!("r = {sort}\noutput"));
        let moved = bucketeer::ir::text::parse(&moved).unwrap();
        assert_eq!(bucketeer::prove(&before, &moved).is_equal(), !writes, "{sort}");
    }
}
