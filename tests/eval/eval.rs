//! The reference evaluator against values made by hand and by PyTorch 2.15.

use bucketeer::ir::Graph;
use bucketeer::ir::text::parse;
use bucketeer_eval::{
    Difference, EvalError, EvalOptions, Output, OutputTensor, RankOutputs, Scalar, Sharer, compare, evaluate,
};
use bucketeer_types::class::{Class, class};
use bucketeer_types::num::{load_float, load_int};

fn read(text: &str) -> Graph {
    parse(text).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"))
}

fn run(text: &str) -> Vec<RankOutputs> {
    evaluate(&read(text), &EvalOptions::default()).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"))
}

fn fails(text: &str) -> String {
    match evaluate(&read(text), &EvalOptions::default()) {
        Ok(_) => panic!("no error in:\n{text}"),
        Err(error) => error.to_string(),
    }
}

fn tensor(output: &Output) -> &OutputTensor {
    match output {
        Output::Tensor(tensor) => tensor,
        other => panic!("no tensor: {other:?}"),
    }
}

fn numbers(tensor: &OutputTensor) -> Vec<f64> {
    let elements = tensor.bytes.chunks(tensor.dtype.bytes() as usize);
    match class(tensor.dtype) {
        Class::Float => elements.map(|element| load_float(tensor.dtype, element)).collect(),
        _ => elements.map(|element| load_int(tensor.dtype, element) as f64).collect(),
    }
}

/// Sizes, strides and elements of a value on the first rank.
fn value(text: &str, name: &str) -> (Vec<usize>, Vec<usize>, Vec<f64>) {
    let ranks = run(&format!("{text}\noutput({name})"));
    let tensor = tensor(&ranks[0].outputs[0]);
    (tensor.sizes.clone(), tensor.strides.clone(), numbers(tensor))
}

fn elements(text: &str, name: &str) -> Vec<f64> {
    value(text, name).2
}

fn close(found: &[f64], expected: &[f64]) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 2e-6 * b.abs();
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(near), "{found:?} is not {expected:?}");
}

/// `r`: 12 floats from -1.6 in steps of 0.37; `x`: the first six as two rows; `n`: integers from 0.
const BASE: &str = "i = aten.arange.default(12)
r = aten.sub.Tensor(aten.mul.Tensor(aten.convert_element_type(i, f32), 0.37), 1.6)
x = aten.view.default(aten.slice.Tensor(r, 0, 0, 6), [2, 3])
n = aten.view.default(i, [3, 4])
";

fn base(rest: &str) -> String {
    format!("{BASE}{rest}")
}

#[test]
fn arithmetic_has_pytorchs_values_and_dtypes() {
    for (call, expected) in [
        (
            "aten.pow.Tensor_Scalar(x, 3)",
            [-4.0960001945, -1.860867023, -0.636056006, -0.1176490113, -0.00172800012, 0.015625],
        ),
        (
            "aten.rsqrt.default(aten.abs.default(x))",
            [0.7905694246, 0.901669681, 1.078327775, 1.42857146, 2.88675141, 2.0],
        ),
        ("aten.sigmoid.default(x)", [0.16798161, 0.226181433, 0.29733935, 0.379893571, 0.47003597, 0.562176526]),
        ("aten.exp.default(x)", [0.201896518, 0.292292565, 0.423162073, 0.612626374, 0.886920452, 1.284025431]),
        ("aten.where.self(aten.gt.Scalar(x, 0), x, aten.scalar_tensor.default(7))", [7.0, 7.0, 7.0, 7.0, 7.0, 0.25]),
        ("aten.slice_scatter.default(x, aten.ones.default([2, 1]), 1, 2, 3)", [-1.6, -1.23, 1.0, -0.49, -0.12, 1.0]),
        ("aten.maximum.default(x, aten.neg.default(x))", [1.6, 1.23, 0.86, 0.49, 0.12, 0.25]),
        (
            "aten.convert_element_type(x, f16)",
            [-1.599609375, -1.23046875, -0.85986328125, -0.489990234375, -0.1199951171875, 0.25],
        ),
        ("aten.convert_element_type(x, i32)", [-1.0, -1.0, 0.0, 0.0, 0.0, 0.0]),
    ] {
        close(&elements(&base(&format!("y = {call}")), "y"), &expected);
    }
    // Rounded to bf16 exactly as PyTorch does.
    let bf =
        base("h = aten.convert_element_type(x, bf16)\nm = aten.mul.Tensor(h, h)\na = aten.add.Tensor(h, h, alpha=3)");
    assert_eq!(elements(&bf, "m"), [2.5625, 1.5078125, 0.73828125, 0.240234375, 0.014404296875, 0.0625]);
    assert_eq!(elements(&bf, "a"), [-6.40625, -4.90625, -3.4375, -1.9609375, -0.48046875, 1.0]);
}

#[test]
fn integers_divide_as_in_pytorch() {
    let s = "s = aten.arange.default(-3, 3)\n";
    for (call, expected) in [
        ("aten.div.Tensor_mode(s, 2, rounding_mode='floor')", [-2.0, -1.0, -1.0, 0.0, 0.0, 1.0]),
        ("aten.div.Tensor_mode(s, 2, rounding_mode='trunc')", [-1.0, -1.0, 0.0, 0.0, 0.0, 1.0]),
        ("aten.div.Tensor(s, 2)", [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0]),
        ("aten.remainder.Scalar(s, 2)", [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]),
        ("aten.rsub.Scalar(s, 1)", [4.0, 3.0, 2.0, 1.0, 0.0, -1.0]),
    ] {
        assert_eq!(elements(&format!("{s}y = {call}"), "y"), expected, "{call}");
    }
    assert!(
        fails("s = aten.arange.default(3)\ny = aten.floor_divide.default(s, 0)\noutput(y)").contains("divided by zero")
    );
}

#[test]
fn single_elements_and_numbers_do_not_widen_tensors() {
    let promoted = |call: &str| tensor(&run(&base(&format!("y = {call}\noutput(y)")))[0].outputs[0]).dtype.short_name();
    assert_eq!(
        promoted("aten.mul.Tensor(aten.convert_element_type(x, bf16), aten.scalar_tensor.default(2.5))"),
        "bf16"
    );
    assert_eq!(promoted("aten.mul.Tensor(n, aten.scalar_tensor.default(2.5))"), "f32");
    assert_eq!(promoted("aten.mul.Tensor(aten.convert_element_type(n, i32), 2)"), "i32");
    assert_eq!(promoted("aten.cat.default([i, r])"), "f32");
    assert_eq!(promoted("aten.lt.Scalar(x, 0)"), "b8");
    assert_eq!(promoted("aten.sum.default(aten.lt.Scalar(x, 0))"), "i64");
}

#[test]
fn sums_and_products_of_matrices_have_pytorchs_values() {
    for (call, sizes, expected) in [
        ("aten.sum.dim_IntList(x, [1], True)", vec![2, 1], vec![-3.69, -0.36]),
        ("aten.mean.dim(x, [0])", vec![3], vec![-1.045, -0.675, -0.305]),
        ("aten.amax.default(x, [1])", vec![2], vec![-0.86, 0.25]),
        ("aten.sum.default(x)", vec![], vec![-4.05]),
        ("aten.mm.default(x, aten.permute.default(x, [1, 0]))", vec![2, 2], vec![4.8125, 0.7166, 0.7166, 0.317]),
        (
            "aten.matmul.default(aten.view.default(r, [2, 2, 3]), aten.slice.Tensor(r, 0, 0, 3))",
            vec![2, 2],
            vec![4.8125, 0.7166, -3.3793, -7.4752],
        ),
    ] {
        let (found_sizes, _, found) = value(&base(&format!("y = {call}")), "y");
        assert_eq!(found_sizes, sizes, "{call}");
        close(&found, &expected);
    }
}

#[test]
fn views_have_pytorchs_sizes_strides_and_elements() {
    for (call, sizes, strides, expected) in [
        (
            "aten.permute.default(n, [1, 0])",
            vec![4, 3],
            vec![1, 4],
            vec![0., 4., 8., 1., 5., 9., 2., 6., 10., 3., 7., 11.],
        ),
        ("aten.slice.Tensor(n, 1, 1, 9223372036854775807, 2)", vec![3, 2], vec![4, 2], vec![1., 3., 5., 7., 9., 11.]),
        ("aten.slice.Tensor(n, 0, -2, -1)", vec![1, 4], vec![4, 1], vec![4., 5., 6., 7.]),
        ("aten.select.int(n, 1, -1)", vec![3], vec![4], vec![3., 7., 11.]),
        ("aten.as_strided.default(n, [2, 3], [1, 4], 1)", vec![2, 3], vec![1, 4], vec![1., 5., 9., 2., 6., 10.]),
        (
            "aten.expand.default(aten.select.int(n, 1, 0), [2, -1])",
            vec![2, 3],
            vec![0, 4],
            vec![0., 4., 8., 0., 4., 8.],
        ),
        ("aten.unsqueeze.default(aten.select.int(n, 0, 2), -1)", vec![4, 1], vec![1, 1], vec![8., 9., 10., 11.]),
        ("getitem(aten.split.Tensor(n, 3, 1), 1)", vec![3, 1], vec![4, 1], vec![3., 7., 11.]),
        ("getitem(aten.chunk.default(n, 2, 0), 1)", vec![1, 4], vec![4, 1], vec![8., 9., 10., 11.]),
        ("aten.narrow.default(n, 0, 1, 1)", vec![1, 4], vec![4, 1], vec![4., 5., 6., 7.]),
        ("getitem(aten.unbind.int(n, 1), 2)", vec![3], vec![4], vec![2., 6., 10.]),
        ("aten.squeeze.dim(aten.slice.Tensor(n, 0, 0, 1), 0)", vec![4], vec![1], vec![0., 1., 2., 3.]),
    ] {
        assert_eq!(value(&base(&format!("y = {call}")), "y"), (sizes, strides, expected), "{call}");
    }
}

#[test]
fn a_view_of_strided_memory_is_refused_where_pytorch_refuses_it_and_a_reshape_copies() {
    let turned = base("t = aten.permute.default(n, [1, 0])\n");
    assert!(fails(&format!("{turned}y = aten.view.default(t, [12])\noutput(y)")).contains("without a copy"));
    assert_eq!(value(&format!("{turned}y = aten.reshape.default(t, [2, 6])"), "y").1, [6, 1]);
    // Rows that keep their stride can be split.
    let halves = base("h = aten.slice.Tensor(n, 1, 0, 2)\ny = aten.view.default(h, [3, 2, 1])\n");
    assert_eq!(value(&halves, "y").1, [4, 1, 1]);
    assert!(fails(&base("y = aten.as_strided.default(n, [12], [1], 1)\noutput(y)")).contains("reaches beyond 12"));
}

#[test]
fn bytes_seen_under_another_dtype_keep_their_bits() {
    let text = "f = aten.full.default([2, 2], 1.0)\nb = aten.view.dtype(f, u8)\nh = aten.view.dtype(b, bf16)";
    assert_eq!(value(text, "b"), (vec![2, 8], vec![8, 1], [0., 0., 128., 63.].repeat(4)));
    assert_eq!(elements(text, "h"), [0.0, 1.0].repeat(4));
    let odd = "f = aten.full.default([3], 1, dtype=bf16)\ny = aten.view.dtype(f, f32)\noutput(y)";
    assert!(fails(odd).contains("divisible"));
}

#[test]
fn copies_have_pytorchs_values() {
    let pad = value(&base("y = aten.constant_pad_nd.default(x, [1, -1, 0, 1], 5.0)"), "y");
    assert_eq!(pad.0, [3, 3]);
    close(&pad.2, &[5.0, -1.6, -1.23, 5.0, -0.49, -0.12, 5.0, 5.0, 5.0]);
    let parts =
        base("p = aten.view.default(aten.slice.Tensor(r, 0, 0, 6), [3, 2])\nq = aten.slice.Tensor(r, 0, 0, 2)\n");
    let chunks = value(&format!("{parts}y = bucketing._pre_bucket_reduce_scatter.default([p, q], 2, [0, 1])"), "y");
    assert_eq!(chunks.0, [10]);
    close(&chunks.2, &[-1.6, -1.23, -0.86, -0.49, -1.6, -0.12, 0.25, 0.0, 0.0, -1.23]);
    assert_eq!(elements(&base("y = aten.stack.default([i, i], 1)\nz = aten.select.int(y, 0, 3)"), "z"), [3.0, 3.0]);
    let rows = base("k = aten.arange.default(2, 0, -1)\ny = aten.index_select.default(n, 0, k)");
    assert_eq!(elements(&rows, "y"), [8., 9., 10., 11., 4., 5., 6., 7.]);
    let cat =
        base("t = aten.permute.default(n, [1, 0])\ny = aten.cat.default([t, t], 1)\nz = aten.select.int(y, 0, 1)");
    assert_eq!(elements(&cat, "z"), [1., 5., 9., 1., 5., 9.]);
    // Operators element by element keep the order of the strides.
    let added = base("t = aten.permute.default(n, [1, 0])\ny = aten.add.Tensor(t, 1)\nz = aten.clone.default(t)");
    assert_eq!(value(&added, "y").1, [1, 4]);
    assert_eq!(value(&added, "z").1, [1, 4]);
    assert_eq!(
        value(&format!("{added}\nc = aten.clone.default(t, memory_format=torch.contiguous_format)"), "c").1,
        [3, 1]
    );
}

#[test]
fn gathers_are_packed_as_pytorchs_own_operator_packs_them() {
    // Dtype numbers as PyTorch counts them: 1 is bf16, 16 is f32. The bucket holds bytes.
    let text = base(
        "h = aten.slice.Tensor(r, 0, 0, 2)\nb = bucketing._pre_bucket_all_gather.default([h, x], 2, bf16, [1, 16], 1)\n\
         f = aten.view.dtype(aten.slice.Tensor(b, 0, 16, 28), f32)\ng = aten.slice.Tensor(b, 0, 14, 16)",
    );
    assert_eq!(value(&text, "b").0, [28]);
    close(&elements(&text, "f"), &[-1.6, -1.23, -0.86, -0.49, -0.12, 0.25]);
    assert_eq!(elements(&text, "g"), [-1.6015625, -1.2265625]);
}

#[test]
fn writes_show_in_every_view_of_the_memory() {
    let text = base(
        "v = aten.view.default(n, [12])\nc = aten.clone.default(n)\nw = aten.slice.Tensor(v, 0, 2, 4)\n\
         m = aten.mul_.Tensor(w, 10)\nt = aten.permute.default(n, [1, 0])\nrow = aten.select.int(t, 0, 1)\n\
         z = aten.copy_.default(row, aten.full.default([3], 7))\n",
    );
    assert_eq!(elements(&text, "n"), [0., 7., 20., 30., 4., 7., 6., 7., 8., 7., 10., 11.]);
    assert_eq!(elements(&text, "w"), [20., 30.]);
    assert_eq!(elements(&text, "c"), (0..12).map(f64::from).collect::<Vec<_>>());
    let out = "a = aten.zeros.default([2, 2])\nb = aten.zeros.default([2, 1])\ns = aten.ones.default([2, 3])\n\
               o = aten.split_with_sizes_copy.out(s, [2, 1], 1, out=[a, b])\n";
    assert_eq!(elements(out, "a"), [1.0; 4]);
    assert_eq!(elements(out, "b"), [1.0; 2]);
}

#[test]
fn a_write_converts_to_the_dtype_of_what_it_overwrites_and_must_fit() {
    let text = "y = aten.zeros.default([2], dtype=i32)\nz = aten.copy_.default(y, aten.full.default([1], 2.9))";
    assert_eq!(elements(text, "y"), [2.0, 2.0]);
    let bad = "y = aten.zeros.default([2])\nz = aten.add_.Tensor(y, aten.zeros.default([3, 2]))\noutput(y)";
    assert!(fails(bad).contains("does not fit in place"));
}

#[test]
fn memory_that_nobody_wrote_is_nan_and_minus_one() {
    let text = "e = aten.empty.memory_format([1])\nf = aten.empty.memory_format([1], dtype=i16)";
    assert!(elements(text, "e")[0].is_nan());
    assert_eq!(elements(text, "f"), [-1.0]);
}

#[test]
fn sizes_are_numbers_to_compute_with() {
    let text = "s = symbol hint=6\nx = input f32[2*s, 3]\na = aten.sym_size.int(x, 0)\nb = operator.floordiv(a, 4)\n\
                c = torch.sym_max(operator.add(b, 1), 2)\ny = aten.view.default(x, [c, -1])\nk = aten.sym_numel.default(x)";
    let ranks = run(&format!("{text}\noutput(y, k)"));
    assert_eq!(tensor(&ranks[0].outputs[0]).sizes, [4, 9]);
    assert_eq!(ranks[0].outputs[1], Output::Number(Scalar::Int(36)));
    let given = EvalOptions { symbols: [("s".to_owned(), 4)].into_iter().collect(), ..EvalOptions::default() };
    let ranks = evaluate(&read("s = symbol hint=6\nx = input f32[2*s]\noutput(x)"), &given).unwrap();
    assert_eq!(tensor(&ranks[0].outputs[0]).sizes, [8]);
}

#[test]
fn results_are_held_against_their_stated_types() {
    for (line, expected) in [
        ("y = aten.view.default(n, [4, 3]) : i64[3, 4]", "is i64[4, 3][3, 1], but is stated as i64[3, 4]"),
        (
            "y = aten.permute.default(n, [1, 0]) : i64[4, 3][3, 1]",
            "is i64[4, 3][1, 4], but is stated as i64[4, 3][3, 1]",
        ),
        ("y = aten.sum.default(n) : f32[]", "is i64[][], but is stated as f32[]"),
    ] {
        let error = fails(&base(&format!("{line}\noutput(y)")));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn operators_of_unknown_meaning_depend_on_all_they_take_and_on_nothing_else() {
    let text = |op: &str| {
        format!(
            "p = input f32[2]; q = input f32[2]\na = {op}(p, q, 3) : f32[2, 2]\nb = {op}(p, q, 3) : f32[2, 2]\n\
             c = {op}(p, q, 4) : f32[2, 2]\nd = {op}(p, p, 3) : f32[2, 2]\noutput(a, b, c, d)"
        )
    };
    let outputs = &run(&text("aten.cdist.default"))[0].outputs;
    assert_eq!(outputs[0], outputs[1]);
    assert!(outputs[0] != outputs[2] && outputs[0] != outputs[3]);
    // What nothing describes may also draw random numbers, and write what it is given.
    let outputs = &run(&text("mylib.op.default"))[0].outputs;
    assert!(outputs[0] != outputs[1] && outputs[0] != outputs[2] && outputs[0] != outputs[3]);
    let written = run("p = input f32[2]\nq = neg(p)\nr = clone(q)\na = mylib.op.default(q) : f32[2]\noutput(q, r)");
    assert_ne!(written[0].outputs[0], written[0].outputs[1]);
    let parts = "p = input f32[2]\nt = mylib.two.default(p)\na = getitem(t, 0) : f32[2]\nb = getitem(t, 1) : i64[3]\noutput(a, b)";
    let outputs = &run(parts)[0].outputs;
    assert!(numbers(tensor(&outputs[1])).iter().all(|value| (0.0..4.0).contains(value)));
    let lost = "p = input f32[2]\nt = mylib.one.default(p)\na = aten.add.Tensor(t, 1) : f32[2]\noutput(a)";
    assert_eq!(fails(lost), "`a` reads `t` as a tensor, but its type is not known");
    let draws = "a = aten.rand.default([2]) : f32[2]\nb = aten.rand.default([2]) : f32[2]\noutput(a, b)";
    let outputs = &run(draws)[0].outputs;
    assert_ne!(outputs[0], outputs[1]);
    let writes = "p = input f32[2]\nv = aten.view.default(p, [2])\nw = aten.strange_.default(p)\noutput(v)";
    let outputs = run(writes);
    assert_eq!(outputs[0].outputs[0], outputs[0].inputs[0].1);
}

// Collectives.

/// On rank r: r + 1, as elements of a dtype.
fn by_rank(n: u32, dtype: &str) -> String {
    // The gather of a broadcast counts ranks: a scatter of ones with its own index is built from an average.
    let sum = (0..n).map(|r| (r + 1).to_string()).collect::<Vec<_>>().join(", ");
    let ones = (0..n).map(|r| format!("o{r} = aten.full.default([1], {}.0)\n", r + 1)).collect::<String>();
    let list = (0..n).map(|r| format!("o{r}")).collect::<Vec<_>>().join(", ");
    format!(
        "# {sum}\n{ones}all = aten.cat.default([{list}])\nmine = wait(reduce_scatter(all, avg, G:{n}))\n\
         x = aten.convert_element_type(mine, {dtype})\n"
    )
}

fn on_ranks(n: u32, dtype: &str, rest: &str) -> Vec<Vec<f64>> {
    let ranks = run(&format!("{}{rest}\noutput(y)", by_rank(n, dtype)));
    ranks.iter().map(|rank| numbers(tensor(&rank.outputs[0]))).collect()
}

#[test]
fn collectives_move_what_they_should() {
    for (call, expected) in [
        ("all_gather(x, G:3)", [[1., 2., 3.].as_slice(), &[1., 2., 3.], &[1., 2., 3.]]),
        ("all_reduce(x, sum, G:3)", [&[6.], &[6.], &[6.]]),
        ("all_reduce(x, avg, G:3)", [&[2.], &[2.], &[2.]]),
        ("all_reduce(x, product, G:3)", [&[6.], &[6.], &[6.]]),
        ("all_reduce(x, max, G:3)", [&[3.], &[3.], &[3.]]),
        ("all_reduce(x, min, G:3)", [&[1.], &[1.], &[1.]]),
        ("broadcast(x, 1, G:3)", [&[2.], &[2.], &[2.]]),
        ("reduce(x, sum, 2, G:3)", [&[1.], &[2.], &[6.]]),
        ("permute(x, [[0, 1], [1, 2]], G:3)", [&[0.], &[1.], &[2.]]),
        ("all_reduce_(x, sum, G:3)", [&[6.], &[6.], &[6.]]),
    ] {
        assert_eq!(on_ranks(3, "f32", &format!("y = wait({call})")), expected, "{call}");
    }
    let wide = "w = aten.add.Tensor(aten.mul.Tensor(x, 10), aten.arange.default(4))\n";
    let scatter = on_ranks(2, "f32", &format!("{wide}y = wait(reduce_scatter(w, sum, G:2))"));
    assert_eq!(scatter, [[30., 32.], [34., 36.]]);
    let inner = "v = aten.view.default(w, [2, 2])\n";
    assert_eq!(
        on_ranks(2, "f32", &format!("{wide}{inner}y = wait(reduce_scatter(v, sum, G:2, dim=1))")),
        [[30., 34.], [32., 36.]]
    );
    assert_eq!(
        on_ranks(2, "f32", &format!("{wide}{inner}y = wait(all_gather(v, G:2, dim=1))"))[0],
        [10., 11., 20., 21., 12., 13., 22., 23.]
    );
    assert_eq!(
        on_ranks(2, "f32", &format!("{wide}y = wait(all_to_all(w, G:2))")),
        [[10., 11., 20., 21.], [12., 13., 22., 23.]]
    );
}

#[test]
fn sums_round_at_each_rank_in_order() {
    // 256 + 1 + 1 in bf16: each one is lost.
    let text = "big = aten.full.default([3], 256, dtype=bf16)\none = aten.full.default([3], 1, dtype=bf16)\n\
                z = aten.full.default([1], 1.0)\nk = aten.cat.default([z, aten.zeros.default([2])])\n\
                first = wait(reduce_scatter(k, avg, G:3))\nb = aten.where.self(aten.gt.Scalar(first, 0), big, one)\n\
                y = wait(all_reduce(b, sum, G:3))\noutput(y)";
    assert!(run(text).iter().all(|rank| numbers(tensor(&rank.outputs[0])) == [256.0; 3]));
}

#[test]
fn bools_are_ored_integers_wrap_and_floats_of_one_byte_are_not_reduced() {
    let bools = on_ranks(2, "f32", "t = aten.gt.Scalar(x, 1)\ny = wait(all_reduce(t, sum, G:2))");
    assert_eq!(bools, [[1.0], [1.0]]);
    let wrapped = on_ranks(2, "u8", "t = aten.mul.Tensor(x, 100)\ny = wait(all_reduce(t, sum, G:2))");
    assert_eq!(wrapped, [[44.0], [44.0]]);
    let fp8 = "x = input f8e4m3fn[4]\ny = wait(all_reduce(x, sum, G:2))\noutput(y)";
    assert!(fails(fp8).contains("float8_e4m3fn is not reduced by any backend"));
    let gathered = "x = input f8e5m2[4]\ny = wait(all_gather(x, G:2))\noutput(y)";
    assert_eq!(tensor(&run(gathered)[0].outputs[0]).sizes, [8]);
}

#[test]
fn two_teams_of_one_name_are_apart() {
    let text = "group P:2 = [[0, 2], [3, 1]]\nx = input f32[1]\ny = wait(all_gather(x, P:2))\noutput(x, y)";
    let ranks = run(text);
    let one = |rank: usize, output: usize| numbers(tensor(&ranks[rank].outputs[output]));
    assert_eq!(one(1, 1), [one(3, 0), one(1, 0)].concat());
    assert_eq!(one(3, 1), one(1, 1));
    assert_eq!(one(0, 1), [one(0, 0), one(2, 0)].concat());
}

#[test]
fn groups_that_nobody_lists_are_errors_unless_there_is_only_one() {
    let two = "x = input f32[2]\ny = wait(all_gather(x, A:2)); z = wait(all_gather(x, B:4))\noutput(y, z)";
    assert_eq!(fails(two), "group `A`: its members are not known, and it is not the only group; list them");
    let size = "x = input f32[2]\ny = wait(all_reduce(x, sum, A))\noutput(y)";
    assert_eq!(fails(size), "group `A`: its size is not known; list its members");
    let given = EvalOptions { ranks: Some(3), ..EvalOptions::default() };
    assert_eq!(evaluate(&read(size), &given).unwrap().len(), 3);
    let outside = "group A:2 = [[0, 1]]\ngroup B:2 = [[1, 2]]\nx = input f32[2]\ny = wait(all_gather(x, A:2))\nz = wait(all_gather(x, B:2))\noutput(y, z)";
    assert_eq!(fails(outside), "group `A`: rank 2 is in none of its teams");
}

#[test]
fn a_result_is_poison_until_it_is_waited_for() {
    let text =
        "x = input f32[2]\ng = all_gather(x, G:2)\nv = aten.view.default(g, [4])\nk = aten.sym_numel.default(g)\n";
    assert_eq!(
        fails(&format!("{text}y = aten.neg.default(v)\noutput(y)")),
        "`y` reads `g`, which is in flight: it is not waited for"
    );
    assert_eq!(
        fails(&format!("{text}y = aten.zero_.default(v)\noutput(y)")),
        "`y` writes to the result of `g`, which is in flight"
    );
    // A wait on one view makes all valid; the result may leave without one.
    run(&format!("{text}w = wait(v)\ny = aten.neg.default(g)\noutput(y)"));
    let left = run(&format!("{text}output(g)"));
    assert!(tensor(&left[0].outputs[0]).pending);
    let entered = "g = input f32[2] pending\ny = aten.neg.default(g)\noutput(y)";
    assert_eq!(fails(entered), "`y` reads `g`, which is in flight: it is not waited for");
}

#[test]
fn gathers_into_parts_of_one_buffer_are_waited_for_together_and_read_apart() {
    let text = "p = input f32[1]; q = input f32[1]\nbuf = aten.empty.memory_format([4])\na = aten.slice.Tensor(buf, 0, 0, 2)\n\
                b = aten.slice.Tensor(buf, 0, 2, 4)\ng = all_gather(p, out=a, G:2)\n";
    // The other half is nobody's.
    run(&format!("{text}y = aten.zero_.default(b)\nw = wait(g)\noutput(buf)"));
    let ranks = run(&format!("{text}h = all_gather(q, out=b, G:2)\nw = wait(g)\noutput(buf, p, q)"));
    let one = |rank: usize, output: usize| numbers(tensor(&ranks[rank].outputs[output]));
    assert_eq!(one(0, 0), [one(0, 1), one(1, 1), one(0, 2), one(1, 2)].concat());
}

#[test]
fn a_write_to_what_is_being_sent_is_a_race() {
    let text = "x = input f32[2]\ng = all_gather(x, G:2)\nm = aten.mul_.Tensor(x, 2)\nw = wait(g)\noutput(w)";
    assert_eq!(run(text)[0].races, ["g".into()]);
}

#[test]
fn all_to_all_sizes_must_agree_between_ranks() {
    let even = "x = input f32[4]\ny = wait(all_to_all(x, [3, 1], [3, 1], G:2))\noutput(y)";
    assert!(fails(even).contains("group rank 1 sends 3 rows to group rank 0, which wants 1"));
    let short = "x = input f32[4]\ny = wait(all_to_all(x, [2, 1], [2, 1], G:2))\noutput(y)";
    assert!(fails(short).contains("are not parts of 4 rows"));
}

#[test]
fn graphs_that_are_too_large_are_refused_before_they_run() {
    let error = fails("x = input f32[1000000, 1000000]\noutput(x)");
    assert!(error.contains("4000000000000 bytes on all ranks, more than the 1073741824 allowed"), "{error}");
    let found = fails(
        "x = aten.zeros.default([4])\ny = aten.expand.default(x, [1000000000, 4])\nz = aten.clone.default(y)\noutput(z)",
    );
    assert!(found.contains("`z`: more than"), "{found}");
}

// Two graphs.

fn differences(before: &str, after: &str) -> Vec<String> {
    let comparison = compare(&read(before), &read(after), &EvalOptions::default());
    comparison.unwrap_or_else(|error| panic!("{error}")).differences.iter().map(ToString::to_string).collect()
}

#[test]
fn a_difference_names_output_rank_element_and_both_values() {
    let before = "x = input f32[2]\none = aten.ones.default([2])\ny = aten.mul.Tensor(one, 2)\noutput(x, y)";
    let after = "x = input f32[2]\none = aten.ones.default([2])\ny = aten.mul.Tensor(one, 3)\noutput(x, y)";
    assert_eq!(differences(before, after), ["output 1 (`y`) differs on rank 0 in element 0: 2 before, 3 after"]);
}

#[test]
fn inputs_must_be_changed_in_the_same_way() {
    let before = "x = input f32[2]\ny = aten.zero_.default(x)\nz = aten.ones.default([2])\noutput(z)";
    let after = "x = input f32[2]\nz = aten.ones.default([2])\noutput(z)";
    assert!(differences(before, after)[0].starts_with("input `x` after the run differs on rank 0"));
}

#[test]
fn outputs_may_not_share_memory_that_they_did_not_share() {
    let before = "x = input f32[4]\na = aten.clone.default(x)\nb = aten.clone.default(x)\noutput(a, b)";
    let after = "x = input f32[4]\na = aten.clone.default(x)\noutput(a, a)";
    assert_eq!(differences(before, after), ["output 0 shares memory with output 1, and did not before"]);
    assert_eq!(differences(after, before), Vec::<String>::new());
    let comparison = compare(
        &read(before),
        &read("x = input f32[4]\na = aten.clone.default(x)\noutput(a, x)"),
        &EvalOptions::default(),
    );
    let expected = Difference::Sharing { output: 1, with: Sharer::Input("x".into()) };
    assert_eq!(comparison.unwrap().differences, [expected]);
}

#[test]
fn graphs_that_do_not_belong_together_are_told_apart_from_wrong_ones() {
    let compare = |before: &str, after: &str| compare(&read(before), &read(after), &EvalOptions::default());
    let x = "x = input f32[4]\noutput(x)";
    let error = compare(x, "y = input f32[4]\noutput(y)").unwrap_err().to_string();
    assert_eq!(error, "the graphs do not belong together: the first has an input `x`: f32[4], the second has not");
    let error = compare(x, "x = input f32[4]\noutput(x, x)").unwrap_err().to_string();
    assert_eq!(error, "the graphs do not belong together: the first has 1 outputs, the second 2");
    let broken = "x = input f32[4]\ny = aten.view.default(x, [3])\noutput(y)";
    assert!(matches!(compare(broken, x), Err(EvalError::Side { .. })));
    assert!(!compare(x, broken).unwrap().is_equal());
}

#[test]
fn windows_without_elements_may_have_any_sizes() {
    let text = "z = aten.zeros.default([0, 1000000000000, 1000000000000])\n";
    for call in [
        "aten.slice.Tensor(z, 1, 500000000000, 600000000000)",
        "aten.view.dtype(aten.permute.default(z, [0, 2, 1]), f32)",
        "aten.unsqueeze.default(z, 0)",
        "aten.reshape.default(z, [0])",
        "aten.clone.default(aten.select.int(z, 2, 999999999999))",
        "aten.add.Tensor(z, 1)",
        "aten.cat.default([z, z], 2)",
    ] {
        assert_eq!(elements(&format!("{text}y = {call}"), "y"), Vec::<f64>::new(), "{call}");
    }
    for call in ["aten.index_select.default(s, 0, i)", "aten.slice.Tensor(s, 0, 0, 1)", "aten.split.Tensor(s, 1)"] {
        let text = format!("s = aten.scalar_tensor.default(1)\ni = aten.arange.default(1)\ny = {call}\noutput(y)");
        assert!(fails(&text).contains("a single element has no dimensions"), "{call}");
    }
}
