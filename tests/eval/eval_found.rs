//! The evaluator on inputs that were found by trying: what it must not take for something else.

use bucketeer::ir::text::parse;
use bucketeer::ir::{Arg, Args, Type};
use bucketeer_eval::step::{Counters, OperatorCall};
use bucketeer_eval::{EvalOptions, Output, OutputTensor, evaluate};

fn outputs(text: &str) -> Vec<Output> {
    let graph = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let ranks = evaluate(&graph, &EvalOptions::default()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    ranks[0].outputs.clone()
}

/// Whether both outputs of a text have the same elements.
fn same(text: &str) -> bool {
    let found = outputs(text);
    found[0].same_elements(&found[1])
}

#[test]
fn g_v_n_cat_operators_are_known_by_their_namespace() {
    let pairs = [
        ("cat", "[x, x], 0", "f32[8, 3]"),
        ("view", "x, [12]", "f32[12]"),
        ("clone", "x", "f32[4, 3]"),
        ("add", "x, x", "f32[4, 3]"),
        ("neg", "x", "f32[4, 3]"),
        ("mm", "x, y", "f32[4, 4]"),
        ("sum", "x", "f32[]"),
        ("zeros_like", "x", "f32[4, 3]"),
        ("slice", "x, 0, 0, 2", "f32[2, 3]"),
        ("cast", "x, bf16", "bf16[4, 3]"),
        ("split_with_sizes_copy", "x, [1, 3]", "(f32[1, 3], f32[3, 3])"),
    ];
    for (name, args, ty) in pairs {
        for (namespace, known) in [("aten", true), ("mylib", false), ("fsdp", name == "split_with_sizes_copy")] {
            if name == "cast" && namespace == "aten" {
                continue;
            }
            let text = format!(
                "x = input f32[4, 3]; y = input f32[3, 4]\na = torch.{name}.default({args}) : {ty}\n\
                 b = {namespace}.{name}.default({args}) : {ty}\noutput(a, b)"
            );
            assert_eq!(same(&text), known, "{text}");
        }
    }
    // An operator in place is known as little.
    let text = |namespace: &str| {
        format!(
            "x = input f32[4]\na = clone(x); b = clone(x)\naten.neg_.default(a); {namespace}.neg_.default(b)\noutput(a, b)"
        )
    };
    assert!(same(&text("aten")) && !same(&text("mylib")));
    // Python's `float` makes a number of a tensor, PyTorch's method another tensor.
    let text = "x = input f64[4]\na = method.float(x) : f32[4]\nb = builtins.float(x) : f32[4]\noutput(a, b)";
    assert!(!same(text));
}

#[test]
fn h_mut2_what_an_operator_of_unknown_meaning_writes_depends_on_all_it_takes_in_every_tensor() {
    let written = |scale: &str| {
        outputs(&format!(
            "x = input f32[4]; y = input f32[4]\na = clone(x); b = clone(x); s = mul(y, {scale})\n\
             aten._foreach_mystery_.List([a, b], [s, s])\noutput(a, b)"
        ))
    };
    let (one, two) = (written("1.0"), written("2.0"));
    assert!(!one[0].same_elements(&one[1]));
    assert!(!one[0].same_elements(&two[0]) && !one[1].same_elements(&two[1]));
}

#[test]
fn g_random_order_draws_differ_from_one_another() {
    for draw in [
        "aten.rand.default([4]) : f32[4]",
        "aten.native_dropout.default(x, 0.5, True) : f32[4]",
        "aten.randn_like.default(x) : f32[4]",
    ] {
        assert!(!same(&format!("x = input f32[4]\na = {draw}\nb = {draw}\noutput(a, b)")), "{draw}");
    }
    let text =
        "x = input f32[4]\na = clone(x); b = clone(x)\naten.normal_.default(a); aten.normal_.default(b)\noutput(a, b)";
    assert!(!same(text));
}

#[test]
fn d_h10_a_tuple_of_hlo_is_what_is_in_it() {
    let text = "x = input f32[4]; y = input f32[2]\nt = @\"hlo-tuple\"(x, y) : (f32[4], f32[2])\noutput(t)";
    let Output::Tuple(parts) = &outputs(text)[0] else { panic!("no tuple") };
    let plain = outputs("x = input f32[4]; y = input f32[2]\noutput(x, y)");
    assert!(parts[0].same_elements(&plain[0]) && parts[1].same_elements(&plain[1]));
}

/// How many calls a step counts as made up.
fn made_up(target: &str, made: &str) -> u64 {
    let ty = parse(&format!("x = input {made}\noutput(x)")).unwrap();
    let ty = ty.type_of(ty.order()[0]).clone();
    let sizes = vec![2];
    let x = Output::Tensor(OutputTensor {
        dtype: bucketeer::ir::DType::F32,
        strides: vec![1],
        bytes: vec![0; 8],
        sizes,
        device: None,
        pending: false,
    });
    let operand =
        Type::Tensor(parse("x = input f32[2]\noutput(x)").map(|g| g.tensor(g.order()[0]).unwrap().clone()).unwrap());
    let step = OperatorCall::new("y", target, &Args::positional(vec![Arg::Operand(0)]), &[operand], ty);
    let mut counters = Counters::default();
    step.run(&[x], &mut counters, &EvalOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    counters.unknown
}

#[test]
fn d_h10_numbers_that_are_made_up_are_counted() {
    assert_eq!([made_up("aten.neg.default", "f32[2]"), made_up("aten.sum.default", "f32[]")], [0, 0]);
    assert_eq!(made_up("aten.erfinv.default", "f32[2]"), 1);
    assert_eq!(made_up("mylib.neg.default", "f32[2]"), 1);
    assert_eq!(made_up("aten.mystery_.default", "f32[2]"), 1);
    assert_eq!(made_up("aten.rand_like.default", "f32[2]"), 1);
}
