//! Large graphs scaled down: what sizes become, what is refused, and that faults still show.

use bucketeer::ir::Graph;
use bucketeer::ir::text::{parse, print};
use bucketeer::passes::Pipeline;
use bucketeer_eval::{Difference, EvalOptions, ShrinkError, Shrunk, compare, evaluate, shrink};
use bucketeer_formats::fx::FxText;
use bucketeer_fuzzing::grow::GraphOptions;
use kit::files;
use kit::planted;
use proptest::prelude::*;

const MERGE: &str = "bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}";

fn read(text: &str) -> Graph {
    parse(text).unwrap_or_else(|error| panic!("{error}\nin:\n{text}"))
}

fn merged(before: &Graph, pipeline: &str) -> Graph {
    let mut after = before.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    after
}

fn at_most(max_bytes: u64) -> EvalOptions {
    EvalOptions { max_bytes, ..EvalOptions::default() }
}

/// The graph at its small sizes, which are found to run.
#[track_caller]
fn small(text: &str) -> String {
    let options = EvalOptions::default();
    let scaled = shrink(&[&read(text)], &options).unwrap_or_else(|error| panic!("{error}"));
    assert!(scaled.scaling.is_some(), "nothing was scaled");
    if let Err(error) = evaluate(&scaled.graphs[0], &options) {
        panic!("{error}\nin:\n{}", print(&scaled.graphs[0]));
    }
    print(&scaled.graphs[0])
}

/// What two graphs differ in at small sizes.
#[track_caller]
fn differences(before: &Graph, after: &Graph, options: &EvalOptions) -> Vec<Difference> {
    let Shrunk { graphs, .. } = shrink(&[before, after], options).unwrap_or_else(|error| panic!("{error}"));
    compare(&graphs[0], &graphs[1], options).unwrap_or_else(|error| panic!("{error}")).differences
}

#[test]
fn sizes_become_small_and_keep_their_relations() {
    let scaled = small(
        "tokens = input f32[2048, 4096]; shard = input bf16[512, 4096]; norm = input f32[512]
w = wait(all_gather(cast(shard, f32), G:8)) : f32[4096, 4096]
n = wait(all_gather(norm, G:8))
scaled = aten.mul.Tensor(tokens, n) : f32[2048, 4096]
h = aten.mm.default(scaled, w) : f32[2048, 4096]
heads = aten.view.default(h, [1, 2048, 32, 128]) : f32[1, 2048, 32, 128]
half = aten.slice.Tensor(heads, 3, 64, 128) : f32[1, 2048, 32, 64][8388608, 4096, 128, 1]
turned = aten.cat.default([half, aten.slice.Tensor(heads, -1, 0, 64)], -1) : f32[1, 2048, 32, 128]
odd = foreign.attention.default(turned) : (f32[1, 32, 2048, 128], f32[1, 32, 2048])
total = aten.sum.dim_IntList(getitem(odd, 0), [2], True) : f32[1, 32, 1, 128]
output(total, aten.view.default(turned, [2048, -1]))",
    );
    kit::assert_snapshot!(scaled);
}

#[test]
fn a_merged_graph_is_scaled_with_its_source() {
    let text = "a = input f32[40000, 4096]; b = input f32[4096]; c = input f32[8, 14336]
ra = wait(reduce_scatter(a, sum, G:8)); rb = wait(reduce_scatter(b, sum, G:8)); rc = wait(reduce_scatter(c, sum, G:8))
output(ra, rb, rc)";
    let before = read(text);
    let after = merged(&before, MERGE);
    let options = EvalOptions::default();
    let scaled = shrink(&[&before, &after], &options).unwrap();
    assert!(compare(&scaled.graphs[0], &scaled.graphs[1], &options).unwrap().is_equal());
    let scaling = scaled.scaling.unwrap();
    let text: String = scaled.graphs.iter().map(print).collect();
    let scaled = format!("{text}{:?}\n", scaling.sizes);
    kit::assert_snapshot!(scaled);
}

#[test]
fn what_is_padded_stays_padded() {
    let scaled = small(
        "full = input f32[5003, 102000]
x = aten.split.Tensor(full, 626)
tail = aten.constant_pad_nd.default(getitem(x, 7), [0, 0, 0, 5], 0.0) : f32[626, 102000]
even = aten.cat.default([getitem(x, 0), getitem(x, 1), getitem(x, 2), getitem(x, 3), getitem(x, 4), getitem(x, 5), \
         getitem(x, 6), tail]) : f32[5008, 102000]
r = wait(reduce_scatter(even, avg, G:8))
back = aten.slice.Tensor(wait(all_gather(r, G:8)), 0, 0, 5003) : f32[5003, 102000]
output(r, aten.view.default(back, [5003, 1000, 102]))",
    );
    kit::assert_snapshot!(scaled);
}

#[test]
fn sizes_known_at_run_time_have_small_values() {
    let scaled = small(
        "hint s0 = 4096
x = input f32[s0, 2048, 1792]
n = aten.sym_size.int(x, 0) : Sym(s0)
rows = operator.mul(n, 2048) : Sym(2048*s0)
flat = aten.view.default(x, [rows, 1792]) : f32[2048*s0, 1792]
g = wait(all_gather(flat, G:8)) : f32[16384*s0, 1792]
all = aten.sym_size.int(g, 0) : Sym(16384*s0)
more = operator.add(all, 7) : Sym(16384*s0 + 7)
part = operator.floordiv(more, 8) : Sym(2048*s0)
own = aten.slice.Tensor(g, 0, 0, part) : f32[2048*s0, 1792]
output(own, rows)",
    );
    kit::assert_snapshot!(scaled);
}

#[test]
fn a_graph_that_fits_is_left_alone() {
    let graph = read("x = input f32[1024]\noutput(wait(all_reduce(x, sum, G:2)))");
    // The input, the collective and the wait, on two ranks.
    let bytes = 3 * 4 * 1024 * 2;
    let fits = shrink(&[&graph], &at_most(bytes)).unwrap();
    assert_eq!((fits.scaling, &fits.graphs[0]), (None, &graph));
    let scaled = shrink(&[&graph], &at_most(bytes - 1)).unwrap();
    let scaling = scaled.scaling.unwrap();
    assert_eq!((scaling.bytes_before, scaling.sizes), (bytes, vec![(1024, 4)]));
    assert_eq!(scaling.bytes_after, 3 * 4 * 4 * 2);
}

#[test]
fn sizes_that_cannot_be_followed_are_kept_and_named() {
    let text = "x = input f32[4096, 4096]
d = aten.as_strided.default(x, [4096], [4097]) : f32[4096][4097]
output(wait(all_reduce(d, sum, G:8)))";
    let error = shrink(&[&read(text)], &at_most(1 << 28)).unwrap_err().to_string();
    let expected = "the graph's tensors have 537264128 bytes on all ranks and still 537264128 when scaled down, more than \
                    the 268435456 allowed; `d` (aten.as_strided.default) keeps size 4096";
    assert_eq!(error, expected);
}

#[test]
fn graphs_that_cannot_run_at_any_size_are_refused() {
    let text =
        "x = input f32[1000000000]\ns = all_reduce(x, sum, A:2)\nt = all_reduce(x, sum, B:2)\noutput(wait(s), wait(t))";
    let error = shrink(&[&read(text)], &EvalOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("group `A`: its members are not known"), "{error}");
}

#[test]
fn many_slices_of_slices_do_not_overflow_the_stack() {
    let mut text = "x0 = input f32[4000000000]\n".to_owned();
    for at in 0..20_000 {
        text += &format!("x{} = aten.slice.Tensor(x{at}, 0, 1, {})\n", at + 1, 4_000_000_000u64 - at);
    }
    text += "output(x20000)";
    let _ = shrink(&[&read(&text)], &EvalOptions::default());
}

/// The options for a graph of real size.
fn options_of(name: &str) -> EvalOptions {
    EvalOptions { groups: files::groups(name).into_iter().collect(), ..EvalOptions::default() }
}

#[test]
fn faults_planted_into_a_large_merged_graph_show_at_small_sizes() {
    // All of them, into more graphs: tests/eval/eval_fixtures.rs.
    let some = [
        "members swapped in the pack",
        "members swapped in the unpack",
        "member read one element late",
        "scatter packed member by member",
        "gather unpacked member by member",
        "rounded twice",
    ];
    let pairs = planted::pairs();
    let pair = pairs.iter().find(|pair| pair.name == "fsdp_l2_ws8_bf16.backward.txt").unwrap();
    assert_eq!(planted::small::planted_at_small_sizes(pair, |name| some.contains(&name)), (some.len(), Vec::new()));
}

#[test]
fn the_large_fixtures_compute_the_same_after_a_rewrite() {
    for (name, pipeline) in [
        ("fsdp_l2_ws8_bf16.backward.txt", "bucket-reduce-scatter{cap=100MiB},bucket-all-gather{cap=100MiB}"),
        ("fsdp_l2_ws8_bf16.backward.txt", "bucket-reduce-scatter{mode=coalesced},bucket-all-gather{mode=coalesced}"),
        ("hsdp_rsar_l2_ws8_bf16_rsfp32.backward.txt", MERGE),
    ] {
        let text = FxText::parse(files::read(&files::fixtures().join(name))).unwrap();
        let before = &text.graphs()[0];
        let found = differences(before, &merged(before, pipeline), &options_of(name));
        assert!(found.is_empty(), "{name}: {}", found[0]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn random_graphs_run_at_small_sizes_and_rewrites_change_nothing(
        graph in kit::random::graph_strategy_with(GraphOptions { regions: false, ..GraphOptions::default() }),
    ) {
        let after = merged(&graph, MERGE);
        // As many bytes as it comes down to: then it is scaled, and fits.
        let Err(ShrinkError::TooLarge { bytes, scaled, .. }) = shrink(&[&graph, &after], &at_most(1)) else {
            return Ok(());
        };
        if scaled == bytes {
            return Ok(());
        }
        let graphs = shrink(&[&graph, &after], &at_most(scaled)).unwrap().graphs;
        let say = || format!("{}\nscaled:\n{}\n{}", print(&graph), print(&graphs[0]), print(&graphs[1]));
        match compare(&graphs[0], &graphs[1], &EvalOptions::default()) {
            Ok(comparison) => prop_assert!(comparison.is_equal(), "{}\n{}", comparison.differences[0], say()),
            Err(error) => prop_assert!(false, "{error}\n{}", say()),
        }
    }

    #[test]
    fn graphs_with_loops_and_branches_are_scaled_or_refused(graph in kit::random::graph_strategy()) {
        if let Err(error) = shrink(&[&graph], &at_most(1)) {
            prop_assert!(matches!(error, ShrinkError::TooLarge { .. }), "{error}\n{}", print(&graph));
        }
    }
}
