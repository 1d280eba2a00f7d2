//! What operators do beside making a value, by the checker's own reading: cases that once were called equal and are not,
//! and right rewrites around operators that nothing describes.

use bucketeer::check::{Assumption, Verdict, prove};
use bucketeer::ir::{Graph, verify};
use bucketeer::passes::Pipeline;
use bucketeer_formats::fx::FxText;
use bucketeer_formats::hlo;
use std::path::PathBuf;

fn path(name: &str) -> PathBuf {
    kit::root().join("tests/found").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn fx(text: String) -> Graph {
    let module = FxText::parse(text.clone().into_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let [graph] = module.graphs() else { panic!("one graph") };
    graph.clone()
}

fn graph(name: &str) -> Graph {
    fx(text(name))
}

/// Both files are equal to themselves, and not to each other.
fn assert_told_apart(id: &str) -> String {
    let (a, b) = (graph(&format!("{id}.a.txt")), graph(&format!("{id}.b.txt")));
    for same in [&a, &b] {
        let verdict = prove(same, same);
        assert!(verdict.is_equal(), "{id} and itself: {verdict}");
    }
    let verdict = prove(&a, &b);
    assert!(!verdict.is_equal() && !prove(&b, &a).is_equal(), "{id}: {verdict}");
    verdict.to_string()
}

/// The graph with one line moved to its end is another.
fn assert_keeps_order(name: &str, begins: &str) {
    let text = text(name);
    let mut lines: Vec<&str> = text.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.trim_start().starts_with(begins))
        .unwrap_or_else(|| panic!("{name}: {begins}"));
    let line = lines.remove(at);
    let end = lines.iter().position(|line| line.trim_start().starts_with("return")).unwrap();
    lines.insert(end, line);
    let (before, after) = (fx(text.clone()), fx(lines.join("\n") + "\n"));
    let verdict = prove(&before, &before);
    assert!(verdict.is_equal(), "{name} and itself: {verdict}");
    let verdict = prove(&before, &after);
    assert!(!verdict.is_equal(), "{name}: {verdict}");
}

/// Runs a pipeline and proves what it made.
fn rewritten(before: &Graph, pipeline: &str) -> (Graph, Verdict) {
    let mut after = before.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap_or_else(|error| panic!("{error}"));
    let verdict = prove(before, &after);
    (after, verdict)
}

const ALL: &str = "bucket-all-gather{cap=none},bucket-all-reduce{cap=none}";

fn launches(graph: &Graph) -> usize {
    graph.order().iter().filter(|&&id| graph.collective(id).is_some()).count()
}

#[test]
fn g_v_un1_a_write_to_a_value_without_a_type_keeps_its_place() {
    assert_told_apart("G-v_un1");
}

#[test]
fn g_v_r_fdrop_two_dropouts_are_not_one() {
    assert_told_apart("G-v_r_fdrop");
}

#[test]
fn g_v_r_normal_two_draws_are_not_one() {
    assert_told_apart("G-v_r_normal");
}

#[test]
fn g_rng_two_draws_of_hlo_are_not_one() {
    let graph =
        |name: &str| hlo::HloText::parse(text(name)).unwrap_or_else(|error| panic!("{error}")).graphs()[0].clone();
    let (a, b) = (graph("G-rng.a.hlo"), graph("G-rng.b.hlo"));
    assert!(prove(&a, &a).is_equal());
    assert!(!prove(&a, &b).is_equal());
}

#[test]
fn g_v_attr_a_dropped_update_of_a_buffer_is_seen() {
    let said = assert_told_apart("G-v_attr");
    assert!(said.contains("another value is left in `self.buf`"), "{said}");
}

#[test]
fn g_v_fecopy_copies_that_read_what_they_write_are_no_swap() {
    assert_told_apart("G-v_fecopy");
}

#[test]
fn g_v_asst_strides_of_the_operand_count_for_as_strided() {
    assert_told_apart("G-v_asst");
}

#[test]
fn g_v_stoff_the_offset_of_a_copy_is_another() {
    assert_told_apart("G-v_stoff");
}

#[test]
fn g_v_rsal_reshape_alias_takes_its_strides() {
    assert_told_apart("G-v_rsal");
}

/// One test for each input: where the statement that begins so is moved to the end, the graph is another.
macro_rules! writes_keep_their_place {
    ($($name:ident: $file:literal, $begins:literal;)*) => {
        $(#[test]
        fn $name() {
            assert_keeps_order($file, $begins);
        })*
    };
}

writes_keep_their_place! {
    g_native_batch_norm_what_it_writes_is_not_read_before: "G-native_batch_norm.txt", "z =";
    g_fused_adam_what_it_writes_is_not_read_before: "G-fused_adam.txt", "z =";
    g_sort_values_out_what_it_writes_is_not_read_before: "G-sort_values_out.txt", "z =";
    g_nn_relu_inplace_what_it_writes_is_not_read_before: "G-nn_relu_inplace.txt", "z:";
    g_x_hardtanh_what_it_writes_is_not_read_before: "G-x_hardtanh.txt", "z =";
    g_x_unsafe_what_it_writes_is_not_read_before: "G-x_unsafe.txt", "z:";
    g_view_data_attr_what_it_writes_is_not_read_before: "G-view_data_attr.txt", "z:";
    g_view_atleast_2d_what_it_writes_is_not_read_before: "G-view_atleast_2d.txt", "z:";
    g_view_method_type_what_it_writes_is_not_read_before: "G-view_method_type.txt", "z:";
    g_operator_setitem_what_it_writes_is_not_read_before: "G-operator_setitem.txt", "setitem =";
    g_operator_iadd_what_it_writes_is_not_read_before: "G-operator_iadd.txt", "iadd:";
    g_set_source_what_it_writes_is_not_read_before: "G-set_source.txt", "z2:";
    g_get_attr_twice_what_it_writes_is_not_read_before: "G-get_attr_twice.txt", "z:";
    g_unsqueeze_inplace_what_it_writes_is_not_read_before: "G-unsqueeze_inplace.txt", "z:";
    d_f40_what_it_writes_is_not_read_before: "D-F40.fx.txt", "u1 =";
    d_f42_what_it_writes_is_not_read_before: "D-F42.fx.txt", "c:";
    d_f43_what_it_writes_is_not_read_before: "D-F43.fx.txt", "m =";
    d_f44_what_it_writes_is_not_read_before: "D-F44.fx.txt", "m =";
    d_f44c_what_it_writes_is_not_read_before: "D-F44c.fx.txt", "m =";
    g_custom_mutates_what_it_writes_is_not_read_before: "G-custom_mutates.txt", "z:";
    h_mut2_what_it_writes_is_not_read_before: "H-mut2.txt", "scale_by_default:";
}

#[test]
fn g_random_order_and_g_nn_dropout_order_draws_are_not_swapped() {
    assert_keeps_order("G-random_order.txt", "n1:");
    assert_keeps_order("G-nn_dropout_order.txt", "n1:");
}

/// What the checker says where a graph is merged by hand: launches of `a` and `b` in one, seen through `unpack`.
fn merged_by_hand(name: &str, unpack: [&str; 2]) -> Verdict {
    let before = text(name);
    let mut lines: Vec<String> = Vec::new();
    for line in before.lines() {
        let start = line.trim_start();
        if start.starts_with("g0:") {
            lines.extend([
                "        p: \"f32[8][1]cpu\" = torch.ops.aten.cat.default([a, b])".to_owned(),
                "        g: \"f32[8][1]cpu\" = torch.ops._c10d_functional.all_reduce.default(p, 'sum', '0')".to_owned(),
                "        w: \"f32[8][1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(g)".to_owned(),
                "        x0: \"f32[4][1]cpu\" = torch.ops.aten.slice.Tensor(w, 0, 0, 4)".to_owned(),
                "        x1: \"f32[4][1]cpu\" = torch.ops.aten.slice.Tensor(w, 0, 4, 8)".to_owned(),
                format!("        w0: \"f32[4][1]cpu\" = torch.ops.aten.{}", unpack[0]),
                format!("        w1: \"f32[4][1]cpu\" = torch.ops.aten.{}", unpack[1]),
            ]);
        } else if !["g1:", "w0:", "w1:"].iter().any(|merged| start.starts_with(merged)) {
            lines.push(line.to_owned());
        }
    }
    prove(&fx(before), &fx(lines.join("\n") + "\n"))
}

#[test]
fn g_as_strided_reduce_and_g_sym_storage_offset_see_that_they_lie_in_a_bucket() {
    for name in ["G-as_strided_reduce.txt", "G-sym_storage_offset.txt"] {
        let views = merged_by_hand(name, ["alias.default(x0)", "alias.default(x1)"]);
        assert!(!views.is_equal(), "{name}: {views}");
        let copies = merged_by_hand(name, ["clone.default(x0)", "clone.default(x1)"]);
        assert!(copies.is_equal(), "{name}: {copies}");
    }
}

#[test]
fn d_f47_two_gathers_are_in_flight_in_halves_of_one_buffer() {
    let graph = graph("D-F47.fx.txt");
    assert_eq!(verify(&graph), Ok(()));
    let verdict = prove(&graph, &graph);
    assert!(verdict.is_equal(), "{verdict}");
}

#[test]
fn d_f47_a_half_of_a_buffer_is_read_while_the_other_is_in_flight() {
    let said = |wait: &str, read: &str| {
        let mut lines: Vec<String> = text("D-F47.fx.txt").lines().map(|line| line.replace(";  B = None", "")).collect();
        lines.truncate(lines.len() - 3);
        lines.push(format!("        w: \"f32[8][1]cpu\" = torch.ops._c10d_functional.wait_tensor.default({wait})"));
        lines.push(format!("        r: \"f32[8][1]cpu\" = torch.ops.aten.slice.Tensor(B, 0, {read})"));
        lines.push("        n: \"f32[8][1]cpu\" = torch.ops.aten.neg.default(r)".to_owned());
        lines.push("        return (n,)".to_owned());
        let graph = fx(lines.join("\n") + "\n");
        prove(&graph, &graph).to_string()
    };
    assert!(said("g0", "0, 8").starts_with("equal"), "{}", said("g0", "0, 8"));
    assert!(said("g1", "8, 16").starts_with("equal"), "{}", said("g1", "8, 16"));
    assert!(
        said("g0", "8, 16").contains("`n`: reads the result of `g1` before it is waited for"),
        "{}",
        said("g0", "8, 16")
    );
}

#[test]
fn d_f19b_a_write_to_a_buffer_in_flight_is_named() {
    let graph = graph("D-F19b.fx.txt");
    let said = prove(&graph, &graph).to_string();
    assert!(said.contains("`zero_`: writes the result of `g0` before it is waited for"), "{said}");
}

#[test]
fn h_muth_h_custom2_and_h_custom4_are_no_wall_and_what_is_assumed_of_them_is_said() {
    for (name, operators, merged) in [
        ("H-muth.txt", &["mylib.two"][..], Some(1)),
        ("H-mut2.txt", &["mylib.scale_by"], None),
        ("G-custom_mutates.txt", &["mylib.bump"], None),
        ("H-custom2.fx.txt", &["flash_attn._flash_attn_forward"], Some(1)),
        ("H-custom4.fx.txt", &[], Some(1)),
    ] {
        let before = graph(name);
        let (after, verdict) = rewritten(&before, ALL);
        let Verdict::Equal(proof) = &verdict else { panic!("{name}: {verdict}") };
        let assumed = |operator: &&str| Assumption {
            operator: (*operator).to_owned(),
            assumed: "does not communicate".to_owned(),
        };
        assert_eq!(proof.assumptions, operators.iter().map(assumed).collect::<Vec<_>>(), "{name}");
        for operator in operators {
            assert!(
                verdict.to_string().starts_with(&format!("equal, if `{operator}` does not communicate: ")),
                "{verdict}"
            );
        }
        if let Some(merged) = merged {
            assert_eq!(launches(&after), merged, "{name}");
        }
    }
}

#[test]
fn h_mut2_what_is_equal_only_if_an_unknown_operator_writes_nothing_is_said_to_be_so() {
    let moved = |operator: &str| {
        format!(
            "graph g {{ a = input f32[4]; b = input f32[4]; x = {operator}(a) : f32[]; y = neg(a) : f32[4]; output(x, y) }}"
        )
    };
    let first = moved("mylib.sum_of.default");
    let second = "graph g { a = input f32[4]; b = input f32[4]; y = neg(a) : f32[4]; x = mylib.sum_of.default(a) : f32[]; output(x, y) }";
    let read = |text: &str| bucketeer::ir::text::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let said = prove(&read(&first), &read(second)).to_string();
    assert_eq!(
        said,
        "cannot decide: source, `x`: equal if `mylib.sum_of` writes nothing, shares no memory with what it is given and \
         draws no random numbers; declare it"
    );
    let mut declared = [read(&first), read(second)];
    for graph in &mut declared {
        graph.operators = bucketeer::ir::Operators::parse("mylib::sum_of(Tensor x) -> Tensor").unwrap();
    }
    assert!(prove(&declared[0], &declared[1]).is_equal());
    for graph in &mut declared {
        graph.operators = bucketeer::ir::Operators::parse("mylib::sum_of(Tensor(a!) x) -> Tensor").unwrap();
    }
    assert!(prove(&declared[0], &declared[1]).to_string().starts_with("different"));
}

#[test]
fn h_mut2_what_an_unknown_operator_made_may_change_with_what_it_was_given() {
    let text = |last: &str| format!("graph g {{ a = input f32[4]; r = mylib.f.default(a) : f32[4]; {last} }}");
    let read = |text: &str| bucketeer::ir::text::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let before = text("n = neg(r) : f32[4]; w = aten.add_.Tensor(a, 1) : f32[4]; output(n)");
    let after = text("w = aten.add_.Tensor(a, 1) : f32[4]; n = neg(r) : f32[4]; output(n)");
    assert!(prove(&read(&before), &read(&before)).is_equal());
    let said = prove(&read(&before), &read(&after)).to_string();
    assert!(said.starts_with("cannot decide") && said.contains("equal if `mylib.f` writes nothing"), "{said}");
    // Copies are others, and stay.
    let copied = text("c = clone(r) : f32[4]; w = aten.add_.Tensor(a, 1) : f32[4]; n = neg(c) : f32[4]; output(n)");
    let verdict = prove(&read(&before), &read(&copied));
    assert!(verdict.is_equal(), "{verdict}");
}

#[test]
fn g_v_fecopy_operands_that_share_memory_are_not_operands_that_hold_the_same() {
    let text = |second: &str| {
        format!(
            "graph g {{ a = input f32[4]; x = clone(a) : f32[4]; y = clone(a) : f32[4]; r = mylib.f.default(x, {second}) : f32[]; output(r, x) }}"
        )
    };
    let read = |text: &str| bucketeer::ir::text::parse(text).unwrap_or_else(|error| panic!("{error}"));
    assert!(prove(&read(&text("x")), &read(&text("x"))).is_equal());
    assert!(!prove(&read(&text("x")), &read(&text("y"))).is_equal());
    assert!(!prove(&read(&text("y")), &read(&text("x"))).is_equal());
}

#[test]
fn an_out_that_is_given_another_size_is_not_followed() {
    let made = "a = input i64[0]\nr = aten.arange.start_out(29, -1, -1, out=a) : i64[30]\noutput(r)";
    let left = "a = input i64[0]\noutput(a)";
    let [made, left] = [made, left].map(|text| bucketeer::ir::text::parse(text).unwrap());
    assert!(matches!(bucketeer::check::prove(&made, &left), bucketeer::check::Verdict::CannotDecide(_)));
}
