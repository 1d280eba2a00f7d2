//! What a run may be asked for beside a graph: inputs of any bits, memory as operators lay it, sizes that are told.

use bucketeer::ir::DType;
use bucketeer::ir::text::parse;
use bucketeer_eval::{Difference, EvalError, EvalOptions, Output, compare, evaluate};
use bucketeer_types::num::load_float;
use indexmap::IndexMap;

fn fault(text: &str, options: &EvalOptions) -> Option<String> {
    evaluate(&parse(text).unwrap(), options).err().map(|error| error.to_string())
}

fn laid_out(names: &[&str]) -> EvalOptions {
    EvalOptions { laid_out: names.iter().map(|&name| name.to_owned()).collect(), ..EvalOptions::default() }
}

#[test]
fn inputs_of_raw_bits_hold_nans_and_arrive_bit_for_bit() {
    let graph = parse("p = input f16[256]; q = input bool[256]; g = all_gather(p, G:2); output(wait(g), q)").unwrap();
    let options = EvalOptions { raw_inputs: true, ..EvalOptions::default() };
    let ranks = evaluate(&graph, &options).unwrap();
    let bytes = |output: &Output| match output {
        Output::Tensor(tensor) => tensor.bytes.clone(),
        other => panic!("no tensor: {other:?}"),
    };
    let sent: Vec<Vec<u8>> = ranks.iter().map(|rank| bytes(&rank.inputs[0].1)).collect();
    assert_ne!(sent[0], sent[1]);
    assert_eq!(bytes(&ranks[0].outputs[0]), sent.concat());
    let nan = |bytes: &[u8]| load_float(DType::F16, bytes).is_nan();
    assert!(sent[0].chunks(2).any(nan) && bytes(&ranks[0].outputs[1]).iter().any(|&byte| byte > 1));
}

#[test]
fn inputs_of_raw_bits_are_compared_bit_for_bit() {
    let read = |rest: &str| parse(&format!("p = input f16[64]\n{rest}output(p, x)")).unwrap();
    let before = read("x = aten.clone.default(p)\n");
    let after = read("y = aten.mul.Tensor(p, 1.0); x = aten.clone.default(y)\n");
    let differs = |raw_inputs| {
        let options = EvalOptions { raw_inputs, ..EvalOptions::default() };
        !compare(&before, &after, &options).unwrap().is_equal()
    };
    // A product of a NaN is a NaN without its payload.
    assert_eq!([false, true].map(differs), [false, true]);
}

#[test]
fn a_call_follows_the_strides_that_its_type_states_unless_it_is_to_be_laid_out() {
    let text = "p = input f32[2,3]; q = input f32[2,3]\nx = aten.cat.default([p, q]) : f32[4,3][1,4]\noutput(x)";
    assert_eq!(fault(text, &laid_out(&["q"])), None);
    let found = fault(text, &laid_out(&["x"])).unwrap();
    assert_eq!(found, "`x` is f32[4, 3][3, 1], but is stated as f32[4, 3][1, 4]");
    assert_eq!(fault(&text.replace("[1,4]", "[3,1]"), &laid_out(&["x"])), None);
}

#[test]
fn a_call_that_is_laid_out_is_dense_where_its_type_states_no_strides() {
    let text = "p = input f32[2,3]\nx = aten.view.default(p, [6]); y = aten.permute.default(p, [1, 0]) : f32[3,2]\noutput(x, y)";
    assert_eq!(fault(text, &laid_out(&["x"])), None);
    let found = fault(text, &laid_out(&["x", "y"])).unwrap();
    assert_eq!(found, "`y` is f32[3, 2][1, 3], but is stated as f32[3, 2], dense");
    assert_eq!(fault(&text.replace("f32[3,2]", "f32[3,2][1,3]"), &laid_out(&["y"])), None);
    // Where there are no elements, there is nothing to lie.
    assert_eq!(
        fault(&text.replace("[2,3]", "[0,3]").replace("[6]", "[0]").replace("[3,2]", "[3,0]"), &laid_out(&["y"])),
        None
    );
}

#[test]
fn strides_that_a_rewrite_states_wrongly_are_a_difference() {
    let read = |rest: &str| parse(&format!("p = input f32[2,3]\n{rest}output(x)")).unwrap();
    let (before, after) = (read("x = neg(p)\n"), read("y = neg(p) : f32[2,3][1,2]; x = aten.clone.default(y)\n"));
    assert!(compare(&before, &after, &EvalOptions::default()).unwrap().is_equal());
    let found = compare(&before, &after, &laid_out(&["y"])).unwrap().differences;
    assert!(matches!(&found[..], [Difference::Faulty(EvalError::Type { only_strides: true, .. })]), "{found:?}");
}

#[test]
fn a_size_that_comes_out_of_data_is_held_against_what_was_told_of_it() {
    let text = "p = input f32[4]\nn = aten.sym_size.int(p, 0) : Sym(u0)\noutput(n)";
    assert_eq!(fault(text, &EvalOptions::default()), None);
    let told = |value| EvalOptions { symbols: IndexMap::from([("u0".to_owned(), value)]), ..EvalOptions::default() };
    assert_eq!(fault(text, &told(4)), None);
    assert_eq!(fault(text, &told(5)).unwrap(), "`n` is 4, but is stated as Sym(u0), which is 5");
    // A name that only begins alike is a size as any other.
    let found =
        fault(&text.replace("u0", "units"), &EvalOptions { symbols: [("units".to_owned(), 5)].into(), ..told(4) });
    assert_eq!(found.unwrap(), "`n` is 4, but is stated as Sym(units), which is 5");
}

#[test]
fn large_integers_are_tried_whatever_their_width() {
    let read = |rest: &str| parse(&format!("p = input u8[64]\n{rest}output(x)")).unwrap();
    let before = read("x = aten.clone.default(p)\n");
    let after = read("y = aten.bitwise_and.Scalar(p, 3); x = aten.clone.default(y)\n");
    assert!(!compare(&before, &after, &EvalOptions::default()).unwrap().is_equal());
}
