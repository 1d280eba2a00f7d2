//! The six ways in which PyTorch 2.15 merges gathers and reductions to wrong values (W1 to W6 of its weaknesses), as it
//! merges them: each is refused, with the value named. Group of two ranks, rank 0.

use bucketeer::check::{Verdict, What, prove};
use bucketeer::ir::Graph;
use bucketeer_formats::fx::FxText;

fn graph(inputs: &str, body: &str) -> Graph {
    let text = format!("class GraphModule(torch.nn.Module):\n    def forward(self, {inputs}):\n{body}");
    FxText::parse(text.into_bytes()).unwrap_or_else(|error| panic!("{error}")).graphs()[0].clone()
}

/// PyTorch's merge of the gathers of `a` and `b`, `n` elements each, in its default mode; `cat` is the dtype that the
/// two have in common.
fn merged_gathers(a: &str, b: &str, n: usize, cat: &str, dtype: (&str, &str), device: &str) -> String {
    let (short, long) = dtype;
    let (half, all) = (2 * n, 4 * n);
    let kind = if device == "cpu" { "device(type='cpu')" } else { "device(type='cuda', index=0)" };
    format!(
        r#"        empty: "{short}[{all}][1]{device}" = torch.ops.aten.empty.memory_format([{all}], dtype = torch.{long}, device = {kind}, pin_memory = False)
        slice_1: "{short}[{half}][1]{device}" = torch.ops.aten.slice.Tensor(empty, 0, 0, {half})
        cat: "{cat}[{half}][1]{device}" = torch.ops.aten.cat.default([{a}, {b}])
        copy_: "{short}[{half}][1]{device}" = torch.ops.aten.copy_.default(slice_1, cat)
        gather: "{short}[{all}][1]{device}" = torch.ops._c10d_functional.all_gather_into_tensor_out.default(copy_, 2, '0', out = empty)
        wait: "{short}[{all}][1]{device}" = torch.ops._c10d_functional.wait_tensor.default(gather)
        view: "{short}[2, {half}][{half}, 1]{device}" = torch.ops.aten.view.default(wait, [2, {half}])
        split_with_sizes = torch.ops.aten.split_with_sizes.default(view, [{n}, {n}], 1)
        getitem: "{short}[2, {n}][{half}, 1]{device}" = split_with_sizes[0]
        getitem_1: "{short}[2, {n}][{half}, 1]{device}" = split_with_sizes[1]
        clone: "{short}[2, {n}][{n}, 1]{device}" = torch.ops.aten.clone.default(getitem, memory_format = torch.contiguous_format)
        wait_a: "{short}[{half}][1]{device}" = torch.ops.aten._unsafe_view.default(clone, [{half}])
        clone_1: "{short}[2, {n}][{n}, 1]{device}" = torch.ops.aten.clone.default(getitem_1, memory_format = torch.contiguous_format)
        wait_b: "{short}[{half}][1]{device}" = torch.ops.aten._unsafe_view.default(clone_1, [{half}])
"#
    )
}

fn gather(name: &str, of: &str, ty: &str) -> String {
    format!(
        r#"        gather_{name}: "{ty}" = torch.ops._c10d_functional.all_gather_into_tensor.default({of}, 2, '0')
        wait_{name}: "{ty}" = torch.ops._c10d_functional.wait_tensor.default(gather_{name})
"#
    )
}

const F32: (&str, &str) = ("f32", "float32");
const PQ: &str = r#"p: "f32[4][1]cpu", q: "f32[4][1]cpu""#;
const FULL: &str = "f32[8][1]cpu";
const BOTH: &str = "        return (wait_a, wait_b)\n";

/// The message of a refusal; which value it is about is checked by the caller.
fn refused(before: &Graph, after: &Graph) -> (What, String) {
    let verdict = prove(before, after);
    let text = verdict.to_string();
    println!("{text}");
    match verdict {
        Verdict::Different(difference) => (difference.what, text),
        _ => panic!("{text}"),
    }
}

fn output(name: &str, index: usize) -> What {
    What::Output { index, names: [name.to_owned(), name.to_owned()] }
}

#[test]
fn the_merge_alone_is_accepted() {
    let before = graph(PQ, &(gather("a", "p", FULL) + &gather("b", "q", FULL) + BOTH));
    let after = graph(PQ, &(merged_gathers("p", "q", 4, "f32", F32, "cpu") + BOTH));
    let verdict = prove(&before, &after);
    let Verdict::Equal(proof) = verdict else { panic!("{verdict}") };
    assert_eq!((proof.ranks.len(), proof.ranks[0].rank), (1, 0));
}

const TIMES_TEN: &str = "        mul_: \"f32[4][1]cpu\" = torch.ops.aten.mul_.Tensor(p, 10.0)\n";

#[test]
fn w1_an_input_that_is_changed_before_the_last_member() {
    let before = graph(PQ, &(gather("a", "p", FULL) + TIMES_TEN + &gather("b", "q", FULL) + BOTH));
    let after = graph(PQ, &(TIMES_TEN.to_owned() + &merged_gathers("p", "q", 4, "f32", F32, "cpu") + BOTH));
    let (what, text) = refused(&before, &after);
    assert_eq!(what, output("wait_a", 0));
    assert!(text.contains("mul_"), "{text}");
}

#[test]
fn w1_for_reductions() {
    let reduce = |name: &str, of: &str| {
        format!(
            "        reduce_{name}: \"f32[4][1]cpu\" = torch.ops._c10d_functional.all_reduce.default({of}, 'sum', '0')\n        wait_{name}: \"f32[4][1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(reduce_{name})\n"
        )
    };
    let before = graph(PQ, &(reduce("a", "p") + TIMES_TEN + &reduce("b", "q") + BOTH));
    let merged = r#"        cat: "f32[8][1]cpu" = torch.ops.aten.cat.default([p, q])
        reduce: "f32[8][1]cpu" = torch.ops._c10d_functional.all_reduce.default(cat, 'sum', '0')
        wait: "f32[8][1]cpu" = torch.ops._c10d_functional.wait_tensor.default(reduce)
        split = torch.ops.aten.split_with_sizes.default(wait, [4, 4])
        wait_a: "f32[4][1]cpu" = split[0]
        wait_b: "f32[4][1]cpu" = split[1]
"#;
    let after = graph(PQ, &(TIMES_TEN.to_owned() + merged + BOTH));
    assert_eq!(refused(&before, &after).0, output("wait_a", 0));
}

#[test]
fn w2_a_dependency_through_memory() {
    let copy = "        copy_q: \"f32[4][1]cpu\" = torch.ops.aten.copy_.default(q, wait_a)\n";
    let square = PQ.to_owned() + r#", r: "f32[8][1]cpu""#;
    let part = "        part: \"f32[4][1]cpu\" = torch.ops.aten.slice.Tensor(wait_a, 0, 0, 4)\n";
    let copy = copy.replace("(q, wait_a)", "(q, part)");
    let before = graph(&square, &(gather("a", "p", FULL) + part + &copy + &gather("b", "q", FULL) + BOTH));
    let after = graph(&square, &(merged_gathers("p", "q", 4, "f32", F32, "cpu") + part + &copy + BOTH));
    assert_eq!(refused(&before, &after).0, output("wait_b", 1));
}

#[test]
fn w3_a_read_that_the_sort_moved_before_a_write() {
    let inputs = PQ.to_owned() + r#", s: "f32[8][1]cpu""#;
    let copy = "        copy_s: \"f32[8][1]cpu\" = torch.ops.aten.copy_.default(s, wait_a)\n";
    let read = "        r: \"f32[8][1]cpu\" = torch.ops.aten.add.Tensor(s, 1.0)\n";
    let end = "        return (r, wait_b)\n";
    let before = graph(&inputs, &(gather("a", "p", FULL) + copy + read + &gather("b", "q", FULL) + end));
    let after = graph(&inputs, &(read.to_owned() + &merged_gathers("p", "q", 4, "f32", F32, "cpu") + copy + end));
    let (what, text) = refused(&before, &after);
    assert_eq!(what, output("r", 0));
    assert!(text.contains("all_gather"), "{text}");
}

#[test]
fn w4_integers_that_pass_through_floats() {
    let inputs = r#"p: "i64[4][1]cpu", q: "f32[4][1]cpu""#;
    let cast = |name: &str| {
        format!(
            "        cast_{name}: \"i32[4][1]cpu\" = torch.ops.prims.convert_element_type.default({name}, torch.int32)\n"
        )
    };
    let full = "i32[8][1]cpu";
    let before =
        graph(inputs, &(cast("p") + &gather("a", "cast_p", full) + &cast("q") + &gather("b", "cast_q", full) + BOTH));
    let after = graph(inputs, &(merged_gathers("p", "q", 4, "f32", ("i32", "int32"), "cpu") + BOTH));
    let (what, text) = refused(&before, &after);
    assert_eq!(what, output("wait_a", 0));
    assert!(text.contains("i32(f32("), "{text}");
}

#[test]
fn w5_a_buffer_that_is_no_longer_written() {
    let full = |name: &str| {
        format!("        {name}: \"f32[8][1]cpu\" = torch.ops.aten.full.default([8], 7.0, dtype = torch.float32)\n")
    };
    let gather_out = |name: &str, of: &str| {
        format!(
            "        gather_{name}: \"f32[8][1]cpu\" = torch.ops._c10d_functional.all_gather_into_tensor_out.default({of}, 2, '0', out = buf_{name})\n        wait_{name}: \"f32[8][1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(gather_{name})\n"
        )
    };
    let end = "        return (buf_a, buf_b)\n";
    let before = graph(PQ, &(full("buf_a") + &gather_out("a", "p") + &full("buf_b") + &gather_out("b", "q") + end));
    let after = graph(PQ, &(full("buf_a") + &full("buf_b") + &merged_gathers("p", "q", 4, "f32", F32, "cpu") + end));
    let (what, text) = refused(&before, &after);
    assert_eq!(what, output("buf_a", 0));
    assert!(text.contains("after   `buf_a`: 7"), "{text}");
}

#[test]
fn w6_a_copy_to_another_device_taken_for_a_cast() {
    let to_copy = |name: &str| {
        format!(
            "        copy_{name}: \"bf16[4][1]cuda:0\" = torch.ops.aten._to_copy.default({name}, dtype = torch.bfloat16, device = device(type='cuda', index=0))\n"
        )
    };
    let full = "bf16[8][1]cuda:0";
    let before =
        graph(PQ, &(to_copy("p") + &gather("a", "copy_p", full) + &to_copy("q") + &gather("b", "copy_q", full) + BOTH));
    let after = graph(PQ, &(merged_gathers("p", "q", 4, "f32", ("bf16", "bfloat16"), "cpu") + BOTH));
    let (what, text) = refused(&before, &after);
    assert_eq!(what, output("wait_a", 0));
    assert!(text.contains("_to_copy"), "{text}");
}

#[test]
fn what_is_sent_is_not_written_while_in_flight() {
    let started =
        "        gather_a: \"f32[8][1]cpu\" = torch.ops._c10d_functional.all_gather_into_tensor.default(p, 2, '0')\n";
    let wait = "        wait_a: \"f32[8][1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(gather_a)\n";
    let end = "        return (wait_a,)\n";
    let before = graph(PQ, &[started, wait, TIMES_TEN, end].concat());
    let after = graph(PQ, &[started, TIMES_TEN, wait, end].concat());
    assert_eq!(refused(&before, &after).0, What::Race);
    assert!(prove(&after, &after).is_equal());
}
