use super::*;
use crate::ir::text;

/// The count of the call `y` of a graph whose inputs are given as types.
fn count(inputs: &[&str], call: &str) -> Result<Option<Flops>, CostError> {
    let inputs: String = inputs.iter().zip('a'..).map(|(ty, name)| format!("{name} = input {ty}\n")).collect();
    let source = format!("{inputs}y = {call}\noutput(y)");
    let graph = text::parse(&source).unwrap_or_else(|error| panic!("{error}\nin:\n{source}"));
    let id = graph.order().iter().copied().find(|&id| graph.name_of(id) == "y").unwrap();
    of_call(&graph, id)
}

#[track_caller]
fn hold(inputs: &[&str], call: &str, expected: u64) {
    assert_eq!(count(inputs, call).map(|found| found.map(|(flops, _)| flops)), Ok(Some(expected)), "{call}");
}

// Numbers are those of `FlopCounterMode` of PyTorch 2.15 for the same shapes, or of its registered formulas on meta tensors.

#[test]
fn products_of_matrices_count_as_pytorch_counts_them() {
    hold(&["f32[128, 512]", "f32[512, 256]"], "aten.mm.default(a, b) : f32[128, 256]", 33_554_432);
    hold(&["f32[256]", "f32[128, 512]", "f32[512, 256]"], "aten.addmm.default(a, b, c) : f32[128, 256]", 33_554_432);
    hold(&["f32[4, 128, 64]", "f32[4, 64, 32]"], "aten.bmm.default(a, b) : f32[4, 128, 32]", 2_097_152);
    hold(
        &["f32[4, 128, 32]", "f32[4, 128, 64]", "f32[4, 64, 32]"],
        "aten.baddbmm.default(a, b, c) : f32[4, 128, 32]",
        2_097_152,
    );
    hold(
        &["f8e4m3fn[128, 512]", "f8e4m3fn[512, 256]", "f32[]", "f32[]"],
        "aten._scaled_mm.default(a, b, c, d, None, None, torch.bfloat16) : bf16[128, 256]",
        33_554_432,
    );
    hold(&["f32[4, 16, 64]", "f32[96, 64]", "f32[96]"], "aten.linear.default(a, b, c) : f32[4, 16, 96]", 786_432);
    hold(&["f32[4, 16, 64]", "f32[64, 32]"], "aten.matmul.default(a, b) : f32[4, 16, 32]", 262_144);
    hold(&["f32[4, 1, 16, 64]", "f32[2, 64, 32]"], "aten.matmul.default(a, b) : f32[4, 2, 16, 32]", 524_288);
}

#[test]
fn products_that_pytorch_leaves_out_count_by_the_same_rule() {
    hold(&["f32[16, 64]", "f32[64]"], "aten.mv.default(a, b) : f32[16]", 2048);
    hold(&["f32[64]", "f32[64]"], "aten.dot.default(a, b) : f32[]", 128);
    let offsets = "aten._grouped_mm.default(a, b, c)";
    // Groups of rows, of columns, of what is summed over, and batches.
    hold(&["bf16[300, 64]", "bf16[8, 64, 32]", "i32[8]"], &format!("{offsets} : bf16[300, 32]"), 2 * 300 * 64 * 32);
    hold(&["bf16[8, 30, 64]", "bf16[64, 320]", "i32[8]"], &format!("{offsets} : bf16[30, 320]"), 2 * 30 * 64 * 320);
    hold(&["bf16[30, 640]", "bf16[640, 32]", "i32[8]"], &format!("{offsets} : bf16[8, 30, 32]"), 2 * 30 * 640 * 32);
    hold(
        &["bf16[8, 30, 64]", "bf16[8, 64, 32]"],
        "aten._grouped_mm.default(a, b) : bf16[8, 30, 32]",
        2 * 8 * 30 * 64 * 32,
    );
}

#[test]
fn convolutions_count_as_pytorch_counts_them() {
    let plain = "aten.convolution.default(a, b, None, [2, 1], [1, 2], [1, 1], False, [0, 0], 1) : f32[8, 24, 16, 30]";
    hold(&["f32[8, 16, 32, 30]", "f32[24, 16, 3, 5]"], plain, 44_236_800);
    let groups = "aten.convolution.default(a, b, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 4) : f32[8, 24, 32, 30]";
    hold(&["f32[8, 16, 32, 30]", "f32[24, 4, 3, 3]"], groups, 13_271_040);
    let turned = "aten.convolution.default(a, b, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1) : f32[8, 24, 64, 60]";
    hold(&["f32[8, 16, 32, 30]", "f32[16, 24, 3, 3]"], turned, 53_084_160);
    let line = "aten.convolution.default(a, b, None, [1], [3], [1], False, [0], 1) : f32[8, 24, 100]";
    hold(&["f32[8, 16, 100]", "f32[24, 16, 7]"], line, 4_300_800);
    let space = "aten.convolution.default(a, b, None, [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1) : f32[2, 6, 8, 9, 10]";
    hold(&["f32[2, 4, 8, 9, 10]", "f32[6, 4, 3, 3, 3]"], space, 1_866_240);
}

#[test]
fn gradients_of_convolutions_count_as_pytorch_counts_them() {
    let plain = ["f32[8, 24, 16, 30]", "f32[8, 16, 32, 30]", "f32[24, 16, 3, 5]"];
    let turned = ["f32[8, 24, 64, 60]", "f32[8, 16, 32, 30]", "f32[16, 24, 3, 3]"];
    let groups = ["f32[8, 24, 32, 30]", "f32[8, 16, 32, 30]", "f32[24, 4, 3, 3]"];
    for (mask, expected) in [
        ("[True, True, False]", [88_473_600, 106_168_320, 66_355_200]),
        ("[True, False, False]", [44_236_800, 53_084_160, 13_271_040]),
        ("[False, True, True]", [44_236_800, 53_084_160, 53_084_160]),
    ] {
        let call = |rest: &str| format!("aten.convolution_backward.default(a, b, c, [24], {rest}, {mask})");
        hold(&plain, &call("[2, 1], [1, 2], [1, 1], False, [0, 0], 1"), expected[0]);
        hold(&turned, &call("[2, 2], [1, 1], [1, 1], True, [1, 1], 1"), expected[1]);
        hold(&groups, &call("[1, 1], [1, 1], [1, 1], False, [0, 0], 4"), expected[2]);
    }
}

#[test]
fn attention_counts_as_pytorch_counts_it() {
    let (query, key, value) = ("bf16[2, 8, 128, 64]", "bf16[2, 8, 96, 64]", "bf16[2, 8, 96, 32]");
    let grad = "bf16[2, 8, 128, 32]";
    for kind in ["efficient_attention", "flash_attention", "flash_attention_for_cpu", "cudnn_attention"] {
        hold(&[query, key, value], &format!("aten._scaled_dot_product_{kind}.default(a, b, c)"), 37_748_736);
        let backward = format!("aten._scaled_dot_product_{kind}_backward.default(a, b, c, d)");
        hold(&[grad, query, key, value], &backward, 100_663_296);
    }
    hold(&[query, key, value], "higher_order.flex_attention(a, b, c)", 37_748_736);
    hold(&[query, key, value], "aten.scaled_dot_product_attention.default(a, b, c)", 37_748_736);
    // Keys and values that several heads of queries share.
    let (key, value) = ("bf16[2, 2, 96, 64]", "bf16[2, 2, 96, 32]");
    hold(&[query, key, value], "aten._scaled_dot_product_flash_attention.default(a, b, c)", 37_748_736);
    hold(
        &[grad, query, key, value],
        "aten._scaled_dot_product_flash_attention_backward.default(a, b, c, d)",
        100_663_296,
    );
}

#[test]
fn attention_by_offsets_counts_the_longest_sequences() {
    let dense = ["bf16[2, 128, 8, 64]", "bf16[2, 96, 8, 64]", "bf16[2, 96, 8, 32]", "bf16[2, 128, 8, 32]"];
    hold(
        &dense[..3],
        "aten._flash_attention_forward.default(a, b, c, None, None, 128, 96, 0.0, True, False)",
        37_748_736,
    );
    hold(&dense, "aten._flash_attention_backward.default(d, a, b, c, None, None, None, None, 128, 96)", 100_663_296);
    let cut = ["f32[300, 8, 64]", "f32[280, 8, 64]", "f32[280, 8, 32]", "f32[300, 8, 32]", "i32[5]"];
    let forward = "aten._flash_attention_forward.default(a, b, c, e, e, 128, 96, 0.0, True, False)";
    hold(&cut, forward, 75_497_472);
    hold(&cut, "aten._flash_attention_backward.default(d, a, b, c, None, None, e, e, 128, 96)", 201_326_592);
    let cut = ["f32[1, 300, 8, 64]", "f32[1, 280, 8, 64]", "f32[1, 280, 8, 32]", "f32[1, 300, 8, 32]", "i32[5]"];
    hold(&cut, "aten._efficient_attention_forward.default(a, b, c, None, e, e, 128, 96)", 75_497_472);
    hold(&cut, "aten._efficient_attention_backward.default(d, a, b, c, None, None, e, e, 128, 96)", 201_326_592);
}

#[test]
fn a_count_has_the_type_of_what_is_multiplied_and_other_calls_have_none() {
    let found = count(&["f32[4]", "bf16[2, 3]", "bf16[3, 4]"], "aten.addmm.default(a, b, c) : bf16[2, 4]");
    assert_eq!(found, Ok(Some((48, DType::Bf16))));
    assert_eq!(count(&["f32[4]"], "aten.relu.default(a) : f32[4]"), Ok(None));
    assert_eq!(operator("torch._C._nn.linear"), "linear");
    assert_eq!(operator("aten.addmm_.default"), "addmm");
}

#[test]
fn shapes_that_do_not_fit_are_an_error_that_names_the_node() {
    let error = count(&["f32[2, 3]", "f32[4, 5]"], "aten.mm.default(a, b) : f32[2, 5]").unwrap_err();
    assert_eq!(error.to_string(), "`y`: found [2, 3] times [4, 5], expected matrices that can be multiplied");
    let error = count(&["f32[u0, 3]", "f32[3, 5]"], "aten.mm.default(a, b) : f32[u0, 5]").unwrap_err();
    assert_eq!(error, CostError::Size { node: "y".to_owned() });
    let error = count(&["f32[2, 3]"], "aten.mm.default(a) : f32[2, 5]").unwrap_err();
    assert!(matches!(error, CostError::Shapes { .. }), "{error}");
}
