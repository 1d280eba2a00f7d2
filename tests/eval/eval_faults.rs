//! W1 to W6, merges of PyTorch's that change values: each is found by running both graphs. Faults of all other kinds are
//! in `planted_faults.rs`.

use bucketeer::ir::Graph;
use bucketeer::ir::text::parse;
use bucketeer_eval::{EvalOptions, compare};

fn read(text: &str) -> Graph {
    parse(text).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"))
}

fn differences(before: &Graph, after: &Graph) -> Vec<String> {
    let comparison = compare(before, after, &EvalOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    comparison.differences.iter().map(ToString::to_string).collect()
}

/// A merged gather of `p` and `q`, each of four elements, over two ranks.
const MERGED: &str = "m = aten.cat.default([p, q])\ng = all_gather(m, G:2); w = wait(g)\n\
                      s = aten.split_with_sizes.default(aten.view.default(w, [2, 8]), [4, 4], 1)\n\
                      w0 = aten.reshape.default(getitem(s, 0), [8])\nw1 = aten.reshape.default(getitem(s, 1), [8])\n";

#[test]
fn an_input_that_is_overwritten_between_its_gather_and_the_merged_one_is_found() {
    // W1 of PyTorch's faults.
    let inputs = "p = input f32[4]; q = input f32[4]\n";
    let before = format!(
        "{inputs}g0 = all_gather(p, G:2); w0 = wait(g0)\nk = aten.mul_.Tensor(p, 10.0)\n\
         g1 = all_gather(q, G:2); w1 = wait(g1)\noutput(w0, w1)"
    );
    let after = format!("{inputs}k = aten.mul_.Tensor(p, 10.0)\n{MERGED}output(w0, w1)");
    let found = differences(&read(&before), &read(&after));
    assert!(found[0].starts_with("output 0 (`w0`) differs on rank 0 in element 0"), "{found:?}");
}

#[test]
fn a_gather_of_what_the_other_gather_writes_is_found() {
    // W2.
    let inputs = "p = input f32[4]; q = input f32[8]\n";
    let before = format!(
        "{inputs}g0 = all_gather(p, G:2); w0 = wait(g0)\nk = aten.copy_.default(q, w0)\n\
         g1 = all_gather(q, G:2); w1 = wait(g1)\noutput(w0, w1)"
    );
    let after = format!(
        "{inputs}m = aten.cat.default([p, q])\ng = all_gather(m, G:2); w = wait(g)\n\
         s = aten.split_with_sizes.default(aten.view.default(w, [2, 12]), [4, 8], 1)\n\
         w0 = aten.reshape.default(getitem(s, 0), [8])\nw1 = aten.reshape.default(getitem(s, 1), [16])\n\
         k = aten.copy_.default(q, w0)\noutput(w0, w1)"
    );
    let found = differences(&read(&before), &read(&after));
    assert!(found[0].starts_with("output 1 (`w1`) differs"), "{found:?}");
}

#[test]
fn a_reader_that_moves_before_the_write_it_should_see_is_found() {
    // W3.
    let inputs = "p = input f32[4]; q = input f32[4]; s0 = input f32[8]\n";
    let before = format!(
        "{inputs}g0 = all_gather(p, G:2); w0 = wait(g0)\nk = aten.copy_.default(s0, w0)\n\
         r = aten.add.Tensor(s0, 1.0)\ng1 = all_gather(q, G:2); w1 = wait(g1)\noutput(r, w1)"
    );
    let after = format!("{inputs}r = aten.add.Tensor(s0, 1.0)\n{MERGED}k = aten.copy_.default(s0, w0)\noutput(r, w1)");
    let found = differences(&read(&before), &read(&after));
    assert!(found[0].starts_with("output 0 (`r`) differs"), "{found:?}");
}

#[test]
fn integers_that_take_a_detour_over_a_float_are_found() {
    // W4: shows with large integers alone.
    let inputs = "p = input i64[4]; q = input f32[4]\n";
    let before = format!(
        "{inputs}c0 = prims.convert_element_type.default(p, i32)\nc1 = prims.convert_element_type.default(q, i32)\n\
         g0 = all_gather(c0, G:2); w0 = wait(g0)\ng1 = all_gather(c1, G:2); w1 = wait(g1)\noutput(w0, w1)"
    );
    let after = format!(
        "{inputs}{}output(w0, w1)",
        MERGED.replace("all_gather(m,", "all_gather(prims.convert_element_type.default(m, i32),")
    );
    let found = differences(&read(&before), &read(&after));
    assert!(found[0].starts_with("output 0 (`w0`) differs"), "{found:?}");
}

#[test]
fn a_buffer_that_is_no_longer_written_is_found() {
    // W5.
    let inputs =
        "p = input f32[4]; q = input f32[4]\nf0 = aten.full.default([8], 7.0); f1 = aten.full.default([8], 7.0)\n";
    let before = format!(
        "{inputs}g0 = all_gather(p, out=f0, G:2); w0 = wait(g0)\ng1 = all_gather(q, out=f1, G:2); w1 = wait(g1)\n\
         output(f0, f1)"
    );
    let after = format!("{inputs}{MERGED}output(f0, f1)");
    let found = differences(&read(&before), &read(&after));
    assert!(found[0].starts_with("output 0 (`f0`) differs on rank 0"), "{found:?}");
    assert!(found[0].ends_with("7 after"), "{found:?}");
}

#[test]
fn a_gather_that_moved_to_another_device_is_found() {
    // W6: the move to the device was taken for a cast.
    let inputs = "p = input f32[4][1]cpu\nq = input f32[4][1]cpu\n";
    let copy = |from: &str| {
        format!("aten._to_copy.default({from}, dtype=bf16, device=@device(type='cuda', index=0)) : bf16[4][1]cuda:0")
    };
    let before = format!(
        "{inputs}c0 = {}\nc1 = {}\ng0 = all_gather(c0, G:2); w0 = wait(g0)\ng1 = all_gather(c1, G:2); w1 = wait(g1)\n\
         output(w0, w1)",
        copy("p"),
        copy("q")
    );
    let after = format!("{inputs}{}output(w0, w1)", MERGED.replace("all_gather(m,", "all_gather(cast(m, bf16),"));
    let found = differences(&read(&before), &read(&after));
    assert!(found[0].contains("differs on rank 0 in device: cuda:0 before, cpu after"), "{found:?}");
}
