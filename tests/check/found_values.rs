//! What the checker calls equal, and what it must not: values, dtypes, arguments and groups. Each input was found by
//! trying, and its right answer comes from PyTorch or XLA.

use bucketeer::check::{Verdict, prove};
use bucketeer::ir::Graph;
use bucketeer::ir::text::parse;
use bucketeer::passes::Pipeline;
use bucketeer_formats::Document;

fn document(file: &str) -> Document {
    let path = kit::root().join("tests/found").join(file);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Document::read(bytes).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn found(file: &str) -> Graph {
    document(file).graphs()[0].clone()
}

fn read(text: &str) -> Graph {
    parse(text).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"))
}

/// A pair of which the two are not equal, though each is equal to itself.
#[track_caller]
fn pair_is_refused(a: &str, b: &str) {
    pair_of_graphs_is_refused(&found(a), &found(b));
}

#[track_caller]
fn pair_of_graphs_is_refused(a: &Graph, b: &Graph) {
    for (before, after) in [(a, b), (b, a)] {
        let verdict = prove(before, after);
        assert!(!verdict.is_equal(), "{verdict}");
    }
}

#[track_caller]
fn is_itself(graph: &Graph) {
    let verdict = prove(graph, graph);
    assert!(verdict.is_equal(), "{verdict}");
}

/// Rewritten by a pipeline that merges something, and proven.
#[track_caller]
fn is_merged(before: &Graph, pipeline: &str) -> Graph {
    let mut after = before.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap_or_else(|error| panic!("{error}"));
    assert!(after != *before, "nothing is merged");
    let verdict = prove(before, &after);
    assert!(verdict.is_equal(), "{verdict}");
    after
}

/// Two calls in place of `CALL` in the same graph: whether they are proven equal.
fn calls(inputs: &str, before: &str, after: &str) -> Verdict {
    let graph = |call: &str| read(&format!("{inputs}\nr = {call}\noutput(r)"));
    prove(&graph(before), &graph(after))
}

#[track_caller]
fn calls_differ(inputs: &str, before: &str, after: &str) {
    let verdict = calls(inputs, before, after);
    assert!(!verdict.is_equal(), "{before} and {after}: {verdict}");
    let verdict = calls(inputs, after, before);
    assert!(!verdict.is_equal(), "{after} and {before}: {verdict}");
}

#[track_caller]
fn calls_agree(inputs: &str, before: &str, after: &str) {
    let verdict = calls(inputs, before, after);
    assert!(verdict.is_equal(), "{before} and {after}: {verdict}");
}

#[test]
fn g_v_n_cat_an_operator_of_another_namespace_is_another_operator() {
    pair_is_refused("G-v_n_cat.a.txt", "G-v_n_cat.b.txt");
    pair_is_refused("G-v_n_cast.a.txt", "G-v_n_cast.b.txt");
    for (aten, own) in [
        ("aten.view.default(x, [8]) : f32[8]", "mylib.view.default(x, [8]) : f32[8]"),
        ("aten.view.default(x, [8]) : f32[8]", "prims.view.default(x, [8]) : f32[8]"),
        ("aten.permute.default(x, [1, 0]) : f32[2, 4]", "mylib.permute.default(x, [1, 0]) : f32[2, 4]"),
        ("aten.clone.default(x) : f32[4, 2]", "mylib.clone.default(x) : f32[4, 2]"),
        ("aten.slice.Tensor(x, 0, 0, 2) : f32[2, 2]", "mylib.slice.Tensor(x, 0, 0, 2) : f32[2, 2]"),
        ("aten.zeros_like.default(x) : f32[4, 2]", "mylib.zeros_like.default(x) : f32[4, 2]"),
        ("aten.sym_numel.default(x) : Sym(8)", "mylib.sym_numel.default(x) : Sym(8)"),
        ("aten.select.int(x, 0, 0) : f32[2]", "aten.select.t(x, 0, 0) : f32[2]"),
    ] {
        calls_differ("x = input f32[4, 2]", aten, own);
    }
}

#[test]
fn g_v_narrow_a_start_before_zero_counts_from_the_end() {
    pair_is_refused("G-v_narrow.a.txt", "G-v_narrow.b.txt");
    let x = "x = input f32[4]";
    calls_agree(x, "aten.narrow.default(x, 0, -2, 2) : f32[2]", "aten.slice.Tensor(x, 0, 2, 4) : f32[2]");
    calls_agree(x, "aten.select.int(x, 0, -1) : f32[]", "aten.select.int(x, -1, 3) : f32[]");
    calls_agree(x, "aten.slice.Tensor(x, 0, -9, -1) : f32[3]", "aten.slice.Tensor(x, 0, 0, 3) : f32[3]");
    // PyTorch refuses to run these.
    calls_differ(x, "aten.narrow.default(x, 0, 3, 2) : f32[1]", "aten.slice.Tensor(x, 0, 3, 4) : f32[1]");
    calls_differ(x, "aten.narrow.default(x, 0, -2, 3) : f32[2]", "aten.slice.Tensor(x, 0, 2, 4) : f32[2]");
    calls_differ(x, "aten.select.int(x, 0, -6) : f32[]", "aten.select.int(x, 0, 2) : f32[]");
}

#[test]
fn g_v_sy5_a_start_of_unknown_sign_is_not_followed() {
    pair_is_refused("G-v_sy5.a.txt", "G-v_sy5.b.txt");
    let inputs = "s = symbol hint=2; x = input f32[2*s + 4]; m = input Sym(s - 3); n = input Sym(s)";
    let start = "aten.sym_numel.default(aten.slice.Tensor(x, 0, m))";
    let length = "add(aten.sym_numel.default(x), mul(-1, m))";
    calls_differ(inputs, start, length);
    let start = "aten.sym_numel.default(aten.slice.Tensor(x, 0, n))";
    let length = "add(aten.sym_numel.default(x), mul(-1, n))";
    calls_agree(inputs, start, length);
}

#[test]
fn g_v_contcl_a_memory_format_is_not_ignored() {
    pair_is_refused("G-v_contcl.a.txt", "G-v_contcl.b.txt");
    let x = "x = input f32[2, 3, 2, 2]";
    for call in ["aten.contiguous.default", "aten.clone.default", "aten._to_copy.default", "aten.zeros_like.default"] {
        let plain = format!("{call}(x) : f32[2, 3, 2, 2]");
        let last = format!("{call}(x, memory_format=torch.channels_last) : f32[2, 3, 2, 2][12, 1, 6, 3]");
        calls_differ(x, &plain, &last);
        calls_agree(x, &last, &last);
    }
    let formatted = "aten.clone.default(x, memory_format=torch.contiguous_format) : f32[2, 3, 2, 2]";
    calls_agree(x, "aten.clone.default(x) : f32[2, 3, 2, 2]", formatted);
}

#[test]
fn g_v_contcl_an_argument_that_is_not_understood_makes_a_value_of_its_own() {
    let x = "x = input f32[4, 2]; o = input f32[8, 2]";
    for (plain, with) in [
        ("aten.cat.default([x, x]) : f32[8, 2]", "aten.cat.default([x, x], names=3) : f32[8, 2]"),
        ("aten.cat.default([x, x]) : f32[8, 2]", "aten.cat.default([x, x], 0, 1) : f32[8, 2]"),
        ("aten.cat.default([x, x], 0) : f32[8, 2]", "aten.cat.default([x, x], 0, dim=0) : f32[8, 2]"),
        ("aten.clone.default(x) : f32[4, 2]", "aten.clone.default(x, deep=True) : f32[4, 2]"),
        ("aten.zeros_like.default(x) : f32[4, 2]", "aten.zeros_like.default(x, layout=torch.sparse_coo) : f32[4, 2]"),
        ("aten.zeros_like.default(x) : f32[4, 2]", "aten.zeros_like.default(x, pin_memory=True) : f32[4, 2]"),
        ("aten.zeros_like.default(x) : f32[4, 2]", "aten.zeros_like.default(x, device='meta') : f32[4, 2]"),
        (
            "aten.full.default([2], 1, dtype=f32) : f32[2]",
            "aten.full.default([2], 1, dtype=f32, device='cuda') : f32[2]",
        ),
        ("aten.to.dtype(x, bf16) : bf16[4, 2]", "aten.to.dtype(x, bf16, True) : bf16[4, 2]"),
        (
            "aten._to_copy.default(x, dtype=bf16) : bf16[4, 2]",
            "aten._to_copy.default(x, dtype=bf16, non_blocking=True) : bf16[4, 2]",
        ),
        ("aten.expand.default(x, [4, 2]) : f32[4, 2]", "aten.expand.default(x, [4, 2], implicit=True) : f32[4, 2]"),
        ("aten.slice.Tensor(x, 0, 0, 4) : f32[4, 2]", "aten.slice.Tensor(x, 0, 0, 4, 1, 1) : f32[4, 2]"),
        ("aten.view.default(x, [8]) : f32[8]", "aten.view.default(x, [8], 1) : f32[8]"),
        ("aten.view.default(x, [8]) : f32[8]", "aten._reshape_alias.default(x, [8], [1]) : f32[8]"),
        (
            "aten.constant_pad_nd.default(x, [0, 0]) : f32[4, 2]",
            "aten.constant_pad_nd.default(x, [0, 0, 1]) : f32[4, 2]",
        ),
        ("aten.permute.default(x, [0, 1]) : f32[4, 2]", "aten.permute.default(x, [0, 0]) : f32[4, 2]"),
        ("aten.view.default(x, [-2, -4]) : f32[4, 2]", "aten.alias.default(x) : f32[4, 2]"),
        ("aten.view.default(x, [-1, -8]) : f32[4, 2]", "aten.alias.default(x) : f32[4, 2]"),
    ] {
        calls_differ(x, plain, with);
    }
}

#[test]
fn g_v_contcl_arguments_that_are_the_default_change_nothing() {
    let x = "x = input f32[4, 2]";
    for (one, other) in [
        ("aten.cat.default([x, x]) : f32[8, 2]", "aten.cat.default(tensors=[x, x], dim=-2) : f32[8, 2]"),
        (
            "aten.zeros_like.default(x) : f32[4, 2]",
            "aten.zeros_like.default(x, dtype=f32, layout=torch.strided, pin_memory=False) : f32[4, 2]",
        ),
        ("aten.to.dtype(x, bf16) : bf16[4, 2]", "aten.to.dtype(x, bf16, False, False, None) : bf16[4, 2]"),
        ("aten.to.dtype(x, bf16) : bf16[4, 2]", "prims.convert_element_type.default(x, bf16) : bf16[4, 2]"),
        ("aten.transpose.int(x, 0, 1) : f32[2, 4]", "aten.permute.default(x, [-1, 0]) : f32[2, 4]"),
        ("aten.transpose.int(x, 0, 1) : f32[2, 4]", "method.swapaxes(x, 0, 1) : f32[2, 4]"),
        ("aten.transpose.int(x, 0, 1) : f32[2, 4]", "aten.movedim.int(x, 0, 1) : f32[2, 4]"),
        ("aten.view.default(x, [8]) : f32[8]", "aten.flatten.using_ints(x) : f32[8]"),
        ("aten.view.default(x, [8]) : f32[8]", "method.view(x, -1) : f32[8]"),
        ("aten.view.default(x, [2, 2, 2]) : f32[2, 2, 2]", "method.view(x, 2, -1, 2) : f32[2, 2, 2]"),
        ("aten.view.default(x, [2, 2, 2]) : f32[2, 2, 2]", "aten.unflatten.int(x, 0, [2, -1]) : f32[2, 2, 2]"),
        ("aten.slice.Tensor(x, 0, 3, 1) : f32[0, 2]", "aten.zeros.default([0, 2], dtype=f32) : f32[0, 2]"),
        ("getitem(aten.split.Tensor(x, 2), 1) : f32[2, 2]", "getitem(torch.chunk(x, 2), -1) : f32[2, 2]"),
        ("getitem(aten.chunk.default(x, 3, 1), 1) : f32[4, 1]", "aten.slice.Tensor(x, 1, 1) : f32[4, 1]"),
    ] {
        calls_agree(x, one, other);
    }
}

#[test]
fn a_chunk_of_nothing_has_as_many_parts_as_are_asked_for() {
    let x = "x = input f32[0, 2]";
    calls_agree(x, "getitem(aten.chunk.default(x, 3), 2) : f32[0, 2]", "aten.clone.default(x) : f32[0, 2]");
    // A split has one part; PyTorch refuses to run this.
    let verdict = calls(x, "aten.clone.default(x) : f32[0, 2]", "getitem(aten.split.Tensor(x, 3), 2) : f32[0, 2]");
    assert!(!verdict.is_equal(), "{verdict}");
}

#[test]
fn g_v_narrow_numbers_that_no_operator_takes_are_no_panic() {
    let x = "x = input f32[4, 2]; y = input f32[]";
    for call in [
        "aten._chunk_cat.default([x], 0, 0) : f32[4, 2]",
        "aten._chunk_cat.default([x], 0, -2) : f32[4, 2]",
        "aten.stack.default([x, y], 2) : f32[4, 2]",
        "getitem(aten.split.Tensor(x, 0), 0) : f32[4, 2]",
        "getitem(aten.chunk.default(x, -1), 0) : f32[4, 2]",
        "getitem(aten.chunk.default(x, 9223372036854775807), 0) : f32[4, 2]",
        "getitem(aten.split_with_sizes.default(x, [5, -1]), 0) : f32[4, 2]",
        "aten.expand.default(x, [-1, -1, -1]) : f32[4, 2]",
        "aten.slice.Tensor(x, 0, 0, 4, 9223372036854775807) : f32[1, 2]",
        "aten.slice.Tensor(x, 0, -9223372036854775808, 4) : f32[4, 2]",
        "aten.select.int(x, 0, 9223372036854775807) : f32[2]",
        "aten.constant_pad_nd.default(x, [0, 0, 0, 0, 0, 0]) : f32[4, 2]",
        "aten.unsqueeze.default(x, 5) : f32[4, 2]",
        "aten.movedim.intlist(x, [0, 1], [1]) : f32[4, 2]",
        "aten.full.default([-1], 1, dtype=f32) : f32[4, 2]",
    ] {
        let _ = calls(x, call, "aten.alias.default(x) : f32[4, 2]");
    }
    let big = "x = input f32[1099511627776]";
    let _ = calls(big, "getitem(aten.split.Tensor(x, 1), 0) : f32[1]", "neg(x)");
    let _ = calls(big, "getitem(aten.unbind.int(x), 0) : f32[]", "neg(x)");
}

#[test]
fn g_v_hashcons_bytes_as_elements_of_two_dtypes_are_two_values() {
    pair_is_refused("G-v_hashcons.a.txt", "G-v_hashcons.b.txt");
}

#[test]
fn g_v_catdt_a_cat_is_of_the_dtype_that_its_tensors_are_promoted_to() {
    pair_is_refused("G-v_catdt.a.txt", "G-v_catdt.b.txt");
    let inputs = "x = input bf16[2]; y = input f16[2]; n = input i64[2]; u = input u8[2]; e = input f8e5m2[2]";
    let cast = |name: &str, dtype: &str| format!("cast({name}, {dtype})");
    for (a, b, dtype) in [("x", "y", "f32"), ("x", "n", "bf16"), ("u", "n", "i64"), ("n", "y", "f16")] {
        let mixed = format!("aten.cat.default([{a}, {b}]) : {dtype}[4]");
        let (a, b) = (cast(a, dtype), cast(b, dtype));
        calls_agree(inputs, &mixed, &format!("aten.cat.default([{a}, {b}]) : {dtype}[4]"));
    }
    // PyTorch refuses to join these.
    calls_differ(inputs, "aten.cat.default([x, e]) : bf16[4]", "aten.cat.default([x, cast(e, bf16)]) : bf16[4]");
}

#[test]
fn g_v_pg2_a_group_that_is_a_value_is_what_it_is_and_not_what_its_node_is_called() {
    pair_is_refused("G-v_pg2.a.txt", "G-v_pg2.b.txt");
    let renamed = |file: &str| {
        let text = std::fs::read_to_string(kit::root().join("tests/found").join(file)).unwrap();
        let text = text.replace("p1", "first").replace("p2", "second");
        Document::read(text.into_bytes()).unwrap().graphs()[0].clone()
    };
    for file in ["G-v_pg2.a.txt", "G-v_pg2.b.txt"] {
        let verdict = prove(&found(file), &renamed(file));
        assert!(verdict.is_equal(), "{verdict}");
    }
}

#[test]
fn b_mesh_groups_two_groups_that_are_one_value_are_one() {
    is_itself(&found("B-mesh_groups.txt"));
    let path = kit::root().join("tests/found/B-mesh_groups.txt");
    // An attribute, since whether the call for a mesh's group has effects is a matter of the table of operators.
    let text = std::fs::read_to_string(path)
        .unwrap()
        .replace("torch.ops._dtensor.mesh_get_process_group.default(m, 0)", "self.group");
    let graph = |text: &str| Document::read(text.as_bytes().to_vec()).unwrap().graphs()[0].clone();
    let before = graph(&text);
    let verdict = prove(&before, &graph(&text.replace("default(b, 4, g1)", "default(b, 4, g0)")));
    assert!(verdict.is_equal(), "{verdict}");
    pair_of_graphs_is_refused(&before, &graph(&text.replace("g1 = self.group", "g1 = self.other")));
}

#[test]
fn g_v_pg2_what_a_collective_is_asked_for_beside_its_kind_is_part_of_it() {
    let text = "x = input f32[4]; y = input f32[2]; a = all_reduce(x, sum, G0:2) impl=one; b = all_reduce(y, sum, G0:2)\n\
                output(neg(wait(a)), neg(wait(b)))";
    is_itself(&read(text));
    pair_of_graphs_is_refused(&read(text), &read(&text.replace("impl=one", "impl=two")));
    pair_of_graphs_is_refused(&read(text), &read(&text.replace(" impl=one", "")));
    let merged = "x = input f32[4]; y = input f32[2]; k = cat([x, y]) : f32[6]; a = all_reduce(k, sum, G0:2); w = wait(a)\n\
                  output(neg(slice(w, 0, 4)), neg(slice(w, 4, 6)))";
    pair_of_graphs_is_refused(&read(text), &read(merged));
    let plain = read(&text.replace(" impl=one", ""));
    let verdict = prove(&plain, &read(merged));
    assert!(verdict.is_equal(), "{verdict}");
}

#[test]
fn c_spellings_a_group_is_its_ranks_and_not_its_spelling() {
    for file in ["C-spellings.hlo", "C-spellings2.hlo", "C-spelled_rewrite.hlo"] {
        let before = document(file);
        let mut after = Document::read(before.print()).unwrap();
        let pipeline: Pipeline = "bucket-all-reduce{cap=none}".parse().unwrap();
        pipeline.run(&mut after.graphs_mut()[0]).unwrap();
        let after = Document::read(after.print()).unwrap();
        let verdict = prove(&before.graphs()[0], &after.graphs()[0]);
        assert!(verdict.is_equal(), "{file}: {verdict}");
    }
    let text = "group G:2 = [[0, 1], [2, 3]]; group H:2 = [[2, 3], [0, 1]]; group I:2 = [[0, 2], [1, 3]]\n\
                x = input f32[4]; output(wait(all_gather(x, G)))";
    let verdict = prove(&read(text), &read(&text.replace("(x, G)", "(x, H)")));
    assert!(!verdict.is_equal(), "both graphs have both names, which are two groups: {verdict}");
    let alone =
        |group: &str| read(&format!("group {group}\nx = input f32[4]; output(wait(all_gather(x, {})))", &group[..1]));
    let verdict = prove(&alone("G:2 = [[0, 1], [2, 3]]"), &alone("H:2 = [[2, 3], [0, 1]]"));
    assert!(verdict.is_equal(), "{verdict}");
    pair_of_graphs_is_refused(&alone("G:2 = [[0, 1], [2, 3]]"), &alone("H:2 = [[0, 2], [1, 3]]"));
    pair_of_graphs_is_refused(&alone("G:2 = [[0, 1], [2, 3]]"), &alone("H:2 = [[1, 0], [2, 3]]"));
    pair_of_graphs_is_refused(&alone("G:2 = [[0, 1], [2, 3]]"), &alone("G:2 = [[0, 2], [1, 3]]"));
}

#[test]
fn c_rs_sym_a_scatter_of_a_cat_of_symbolic_sizes_is_followed() {
    let before = found("C-rs_sym.txt");
    let mut after = before.clone();
    "bucket-reduce-scatter{cap=none}".parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    let verdict = prove(&before, &after);
    assert!(verdict.is_equal(), "{verdict}");
    let text = "s = symbol hint=3; a = input f32[4, s]; b = input f32[4, s]; c = input f32[4, s]; d = input f32[4, s]\n\
                k = cat([a, b]) : f32[8, s]; l = cat([c, d]) : f32[8, s]\n\
                r = reduce_scatter(k, sum, G0:2); t = reduce_scatter(l, sum, G0:2); output(wait(r), wait(t))";
    let merged = |second: &str| {
        format!(
            "s = symbol hint=3; a = input f32[4, s]; b = input f32[4, s]; c = input f32[4, s]; d = input f32[4, s]\n\
             p = aten.cat.default([a, c, {second}]) : f32[16, s]; r = reduce_scatter(p, sum, G0:2); w = wait(r)\n\
             u = slice(w, 0, 4) : f32[4, s]; v = slice(w, 4, 8) : f32[4, s]\n\
             output(aten.clone.default(u), aten.clone.default(v))"
        )
    };
    let verdict = prove(&read(text), &read(&merged("b, d")));
    assert!(verdict.is_equal(), "{verdict}");
    pair_of_graphs_is_refused(&read(text), &read(&merged("d, b")));
}

#[test]
fn g_ref_empty_step_slice_a_strided_slice_of_nothing_is_followed() {
    is_merged(&found("G-ref_empty_step_slice.txt"), "bucket-all-gather{cap=none}");
    let x = "x = input f32[5]";
    calls_agree(x, "aten.slice.Tensor(x, 0, 2, 4, 2) : f32[1]", "aten.slice.Tensor(x, 0, 2, 3) : f32[1]");
    calls_differ(x, "aten.slice.Tensor(x, 0, 0, 4, 2) : f32[2]", "aten.slice.Tensor(x, 0, 0, 4, 3) : f32[2]");
}

#[test]
fn g_ref_view_dtype_reduce_members_seen_through_another_dtype_are_followed() {
    for file in ["G-ref_view_dtype_reduce.txt", "B-view_dtype.txt"] {
        is_merged(&found(file), "bucket-all-reduce{cap=none}");
    }
    // A sum of numbers is no sum of their bits.
    let text = "x = input i32[4]; v = aten.view.dtype(x, f32) : f32[4]; r = all_reduce(v, sum, G0:2); output(wait(r))";
    let bits =
        "x = input i32[4]; r = all_reduce(x, sum, G0:2); w = wait(r); u = aten.view.dtype(w, f32) : f32[4]; output(u)";
    pair_of_graphs_is_refused(&read(text), &read(bits));
    let gathered = |text: &str| {
        text.replace("all_reduce", "all_gather").replace(", sum", "").replace("(w, f32) : f32[4]", "(w, f32) : f32[8]")
    };
    let verdict = prove(&read(&gathered(text)), &read(&gathered(bits)));
    assert!(verdict.is_equal(), "{verdict}");
}

#[test]
fn g_ref_to_dtype_inplace_a_conversion_to_another_dtype_is_no_view() {
    let before = found("G-ref_to_dtype_inplace.txt");
    is_itself(&before);
    // The conversion is memory of its own: what reads the source may stand above the reduction in place, or below it.
    let text = std::fs::read_to_string(kit::root().join("tests/found/G-ref_to_dtype_inplace.txt"));
    let text = text.unwrap();
    let reader = text.lines().find(|line| line.trim_start().starts_with("r:")).unwrap();
    let above = text.replace(&format!("{reader}\n"), "").replace("        g0:", &format!("{reader}\n        g0:"));
    let fx = |text: &str| Document::read(text.into()).unwrap_or_else(|error| panic!("{error}")).graphs()[0].clone();
    let verdict = prove(&before, &fx(&above));
    assert!(verdict.is_equal(), "{verdict}");
    // To the dtype that it has, it may be a view.
    let same = |text: &str| fx(&text.replace("bf16", "f32").replace("bfloat16", "float32"));
    pair_of_graphs_is_refused(&same(&text), &same(&above));
}

#[test]
fn a_a2a_symbolic_parts_of_one_symbolic_size_are_even() {
    let before = found("A-a2a_symbolic.txt");
    is_itself(&before);
    let path = kit::root().join("tests/found/A-a2a_symbolic.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let plain = Document::read(text.replace("[u1, u1], [u1, u1]", "[], []").into_bytes()).unwrap();
    let (plain, before) = (&plain.graphs()[0], &before);
    let verdict = prove(before, plain);
    assert!(verdict.is_equal(), "{verdict}");
    is_itself(&found("B-a2a_sym.txt"));
}

#[test]
fn g_v_sy5_what_cannot_be_followed_in_one_graph_alone_is_no_difference() {
    let text = |value: &str, rest: &str| {
        read(&format!(
            "s = symbol hint=4; x = input f32[2*s + 4]; m = input Sym(s - 3)\ny = {value}\n{}",
            rest.replace("; ", "\n")
        ))
    };
    let unknown = "aten.slice.Tensor(x, 0, m)";
    let cannot = |before: &Graph, after: &Graph, node: &str| {
        let verdict = prove(before, after);
        let Verdict::CannotDecide(found) = &verdict else { panic!("{verdict}") };
        assert_eq!(found.node, node, "{verdict}");
    };
    for rest in
        ["output(y)", "z = aten.cumsum.default(y, 0); output(z)", "g = all_gather(y, G0:2); w = wait(g); output(w)"]
    {
        cannot(&text(unknown, rest), &text("aten.slice.Tensor(x, 0, 1)", rest), "y");
        cannot(&text("aten.slice.Tensor(x, 0, 1)", rest), &text(unknown, rest), "y");
        is_itself(&text(unknown, rest));
    }
    // What both graphs have is not a gap.
    let verdict = prove(&text(unknown, "output(neg(y))"), &text(unknown, "output(sin(y))"));
    assert!(matches!(verdict, Verdict::Different(_)), "{verdict}");
    let gathers = "g = all_gather(y, G0:2); w = wait(g); h = all_gather(x, G0:2); v = wait(h); output(w)";
    let one = "g = all_gather(y, G0:2); w = wait(g); output(w)";
    let verdict = prove(&text(unknown, gathers), &text(unknown, one));
    assert!(matches!(verdict, Verdict::Different(_)), "{verdict}");
}

#[test]
fn g_s4_a_type_that_the_graph_lacks_is_told_from_another() {
    pair_is_refused("G-s4.a.hlo", "G-s4.b.hlo");
    let said = prove(&found("G-s4.a.hlo"), &found("G-s4.b.hlo")).to_string();
    let [before, after] =
        ["before", "after"].map(|side| said.lines().find(|line| line.trim().starts_with(side)).unwrap());
    assert_ne!(
        before.trim().trim_start_matches("before").trim(),
        after.trim().trim_start_matches("after").trim(),
        "{said}"
    );
}

#[test]
fn g_toap_reducers_of_other_precision_are_not_one() {
    let path = kit::root().join("tests/found/G-toap.hlo");
    let text = std::fs::read_to_string(path).unwrap();
    let graph = |text: &str| Document::read(text.as_bytes().to_vec()).unwrap().graphs()[0].clone();
    is_itself(&graph(&text));
    // Both by one reducer, apart and in one launch.
    for reducer in ["addb", "addf"] {
        let apart = text
            .replace("to_apply=addb", &format!("to_apply={reducer}"))
            .replace("to_apply=addf", &format!("to_apply={reducer}"));
        let (start, rest) = text.split_once("  r = bf16").unwrap();
        let end = &rest[rest.find("  ROOT t").unwrap()..];
        let merged = format!(
            "{start}  m = (bf16[64]{{0}}, bf16[64]{{0}}) all-reduce(p, q), replica_groups={{{{0,1,2,3}}}}, to_apply={reducer}\n  \
             r = bf16[64]{{0}} get-tuple-element(m), index=0\n  s = bf16[64]{{0}} get-tuple-element(m), index=1\n{end}"
        );
        pair_of_graphs_is_refused(&graph(&text), &graph(&merged));
        pair_of_graphs_is_refused(&graph(&text), &graph(&apart));
        let verdict = prove(&graph(&apart), &graph(&merged));
        assert!(verdict.is_equal(), "{verdict}");
    }
}

#[test]
fn d_h27_groups_of_unequal_size_are_their_members() {
    is_merged(&found("D-H27.hlo"), "bucket-all-reduce{cap=none}");
    let text = std::fs::read_to_string(kit::root().join("tests/found/D-H27.hlo")).unwrap();
    let graph = |text: &str| Document::read(text.as_bytes().to_vec()).unwrap().graphs()[0].clone();
    let other = graph(&text.replace("{{0,3,1},{4,2}}", "{{0,3,2},{4,1}}"));
    pair_of_graphs_is_refused(&graph(&text), &other);
    let turned = graph(&text.replace("{{0,3,1},{4,2}}", "{{4,2},{0,3,1}}"));
    let verdict = prove(&graph(&text), &turned);
    assert!(verdict.is_equal(), "{verdict}");
}

#[test]
fn c_inplace_sched_collectives_in_place_in_hlo_are_followed() {
    let mut before = found("C-inplace_sched.hlo");
    before.scheduled = true;
    is_merged(&before, "bucket-all-reduce{cap=none}");
}
