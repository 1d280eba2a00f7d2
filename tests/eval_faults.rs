//! Faults of rewrites that change values, each found by running both graphs.

use bucketeer::check::eval::{EvalOptions, compare};
use bucketeer::ir::Graph;
use bucketeer::ir::text::{parse, print};
use bucketeer::passes::Pipeline;

const SOURCE: &str = "group G:2 = [[0, 1]]
group H:2 = [[1, 0]]
a = input f32[4, 2]; b = input f32[6]; c = input bf16[2, 2]; d = input bf16[2]; h = input f32[2]
ga = all_gather(a, G:2); wa = wait(ga)
gb = all_gather(b, G:2); wb = wait(gb)
ra = reduce_scatter(a, sum, G:2); va = wait(ra)
rb = reduce_scatter(b, sum, G:2); vb = wait(rb)
sc = all_reduce(c, sum, G:2); uc = wait(sc)
sd = all_reduce(d, sum, G:2); ud = wait(sd)
gh = all_gather(h, H:2); wh = wait(gh)
y = aten.add.Tensor(wa, 1) : f32[8, 2]
output(y, wb, va, vb, uc, ud, wh)";

fn read(text: &str) -> Graph {
    parse(text).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"))
}

fn differences(before: &Graph, after: &Graph) -> Vec<String> {
    let comparison = compare(before, after, &EvalOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    comparison.differences.iter().map(ToString::to_string).collect()
}

/// Plants a fault into the merged text; each is (what, text, text instead).
const FAULTS: &[(&str, &str, &str)] = &[
    ("members swapped in the pack", "cat.default([reshape_4, b])", "cat.default([b, reshape_4])"),
    ("members swapped in the unpack", "split_with_sizes, 1) : f32[3]", "split_with_sizes, 0) : f32[4]"),
    (
        "one element too far",
        "split_with_sizes.default(reshape_5, [8, 6], 1)",
        "split_with_sizes.default(reshape_5, [7, 7], 1)",
    ),
    ("a member packed twice", "cat.default([reshape_3, d])", "cat.default([reshape_3, reshape_3])"),
    (
        "scatter not rank-major",
        "cat.default([reshape, reshape_1], 1) : f32[2, 7]",
        "cat.default([aten.reshape.default(a, [8]), b]) : f32[14]",
    ),
    (
        "gather unpacked rank-minor",
        "reshape.default(bucketed_all_gather_wait, [2, 14])",
        "permute.default(aten.reshape.default(bucketed_all_gather_wait, [14, 2]), [1, 0])",
    ),
    ("ranks in another order", "all_gather(cat_2, G:2)", "all_gather(cat_2, H:2)"),
    ("another reduction", "all_reduce(cat_1, sum, G:2)", "all_reduce(cat_1, max, G:2)"),
    ("an average for a sum", "reduce_scatter(reshape_2, sum, G:2)", "reduce_scatter(reshape_2, avg, G:2)"),
    ("a wait dropped", "= wait(bucketed_all_reduce)", "= alias(bucketed_all_reduce)"),
    ("a reduction that is not done", "bucketed_all_reduce_wait, [4, 2])", "cat_1, [4, 2])"),
    (
        "a reduction done twice",
        "= wait(bucketed_all_reduce)",
        "= wait(all_reduce(wait(bucketed_all_reduce), sum, G:2))",
    ),
    (
        "rounded after the sum",
        "all_reduce(cat_1, sum, G:2) : bf16[6]",
        "cast(wait(all_reduce(cast(aten.mul.Tensor(cast(cat_1, f32), 1.001), f32), sum, G:2)), bf16) : bf16[6]",
    ),
    (
        "a shared buffer handed out",
        "output(y, wb, va, vb,",
        "output(y, wb, aten.reshape.default(getitem, [2, 2]), getitem_1,",
    ),
    ("results swapped", "output(y, wb, va, vb, uc, ud, wh)", "output(y, wb, va, vb, ud, uc, wh)"),
    ("a member's cast dropped", "y = aten.add.Tensor(wa, 1)", "y = aten.add.Tensor(cast(cast(wa, bf16), f32), 1)"),
    (
        "padding that shows",
        "cat_2 = aten.cat.default([reshape_4, b])",
        "cat_2 = aten.constant_pad_nd.default(aten.cat.default([reshape_4, aten.slice.Tensor(b, 0, 0, 5)]), [0, 1], 0.0)",
    ),
    ("a result of memory nobody wrote", "vb = aten.clone.default(getitem_1", "vb = aten.empty_like.default(getitem_1"),
];

#[test]
fn planted_faults_are_all_found() {
    let before = read(SOURCE);
    let mut merged = before.clone();
    let pipeline: Pipeline =
        "bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}".parse().unwrap();
    pipeline.run(&mut merged).unwrap();
    assert_eq!(differences(&before, &merged), Vec::<String>::new());
    let text = print(&merged);
    for (what, from, to) in FAULTS {
        assert!(text.contains(from), "`{from}` is not in\n{text}");
        let faulty = read(&text.replacen(from, to, 1));
        assert!(!differences(&before, &faulty).is_empty(), "{what} is not found");
    }
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
