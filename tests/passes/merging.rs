//! How a plan is applied: where launches go, what stays where it was, what is refused.

use bucketeer::ir::Dependencies;
use bucketeer::passes::bucketing::{BucketKind, BucketOptions, plan};
use bucketeer::passes::merge::{MergeError, merge};
use bucketeer::passes::select::Caps;
use kit::rewrite::{ALL, read, rewrite, rewrite_graph, rewrite_shapes, with_symbols};

/// A collective whose result a long chain reads, and one whose input another long chain makes: it costs too much to
/// find out which of the two chains is shorter. Between them stands `x`, which needs neither.
fn two_long_chains(kind: &str) -> String {
    let chain = |name: &str, first: &str| -> String {
        let link = |at: usize| format!("{name}{} = neg({name}{at})\n", at + 1);
        format!("{name}0 = neg({first})\n{}", (0..1500).map(link).collect::<String>())
    };
    let start = |of: &str| kind.replace('X', of);
    format!(
        "p = input f32[4]; q = input f32[4]\ng = {}; w = wait(g)\n{}x = neg(q)\n{}h = {}; v = wait(h)\n\
         output(b1500, x, v)",
        start("p"),
        chain("b", "w"),
        chain("a", "q"),
        start("a1500"),
    )
}

#[test]
fn where_the_better_place_is_not_found_gathers_are_launched_first_and_reductions_last() {
    for (kind, first) in [
        ("all_gather(X, G0:2)", true),
        ("broadcast(X, 0, G0:2)", true),
        ("all_reduce(X, sum, G0:2)", false),
        ("reduce_scatter(X, sum, G0:2)", false),
        ("all_to_all(X, [], [], G0:2) : f32[4]", false),
    ] {
        let done = rewrite_shapes(&two_long_chains(kind), ALL);
        assert_eq!(done.buckets(), [["g", "h"]]);
        let launch = done.graph.order().iter().position(|&id| done.graph.collective(id).is_some()).unwrap();
        assert_eq!(launch < done.place("x"), first, "{kind}");
    }
}

#[test]
fn a_reader_of_a_members_size_does_not_move_below_the_launch() {
    // The launch takes the place of h: one reader of g stands in the way, and h needs two nodes.
    let text = "s = symbol hint=4; p = input f32[s]; q = input f32[4]\ng = all_reduce(p, sum, G0:2)\n\
                n = aten.sym_size.int(g, 0) : Sym(s); a = neg(q); b = neg(a); h = all_reduce(b, sum, G0:2)\n\
                w = wait(g); v = wait(h)\noutput(w, v, n)";
    let options = [4, 0].map(|s| with_symbols([("s", s)]));
    let done = rewrite_graph(read(text), ALL, &options);
    assert_eq!(done.buckets(), [["g", "h"]]);
    assert_eq!(done.names()[3..7], ["n", "a", "b", "cat"]);
    assert_eq!(done.moved(), 0);
}

#[test]
fn members_whose_symbolic_sizes_have_no_sum_are_refused() {
    let merged = |size: u64| {
        let text = format!(
            "s = symbol; p = input u8[{size}*s]; q = input u8[{size}*s]\n\
             g = all_reduce(p, sum, G0:2); h = all_reduce(q, sum, G0:2)\noutput(wait(g), wait(h))"
        );
        let mut graph = read(&text);
        let before = graph.clone();
        let dependencies = Dependencies::of(&graph);
        let options = BucketOptions { caps: Caps::default(), ..BucketOptions::new(BucketKind::AllReduce) };
        let plan = plan(&graph, &dependencies, &options);
        assert_eq!(plan.names(&graph), [["g", "h"]]);
        let merged = merge(&mut graph, &dependencies, &plan);
        assert_eq!(merged.is_err(), graph == before);
        merged
    };
    let members = ["g", "h"].map(str::to_owned).to_vec();
    assert_eq!(merged(1 << 62), Err(MergeError::Size { members }));
    assert!(merged(1 << 60).is_ok());
}

#[test]
fn what_goes_to_one_rank_only_is_left_alone_as_a_bucket_of_it_would_move_its_readers_for_nothing() {
    // With g and h in one bucket, s would come after t.
    let text = "p = input f32[4]; q = input f32[6]; r = input f32[8]\ng = all_gather(p, G1:1)\n\
                x = wait(g); s = reduce_scatter(x, sum, G0:2)\nt = all_gather(r, G0:2); w = wait(t)\n\
                h = all_gather(q, G1:1)\noutput(x, wait(h), wait(s), w)";
    let done = rewrite_shapes(text, "bucket-all-gather{cap=none}");
    assert!(done.buckets().is_empty());
    for name in ["g", "h"] {
        assert_eq!(done.reason(name).label(), "one rank");
    }
    assert_eq!(rewrite_shapes(text, "bucket-all-gather{cap=none},fold-trivial").count("all_gather"), 1);
    let two = "p = input f32[4]; q = input f32[6]\ng = all_gather(p, G:2); h = all_gather(q, G:2)\n\
               output(wait(g), wait(h))";
    assert_eq!(rewrite(two, "bucket-all-gather{cap=none}").buckets(), [["g", "h"]]);
}

#[test]
fn scatters_along_inner_dimensions_read_several_unknown_sizes_each_from_its_own() {
    let text = "s = symbol hint=2; t = symbol hint=3; u = symbol hint=1\n\
                a = input f32[s, 2*t, u]; b = input f32[t, u, 2*s]; c = input f32[2*u, s, t]\n\
                g = reduce_scatter(a, sum, G0:2, dim=1); h = reduce_scatter(b, sum, G0:2, dim=2)\n\
                i = reduce_scatter(c, sum, G0:2)\noutput(wait(g), wait(h), wait(i))";
    let options =
        [[2, 3, 1], [1, 2, 5], [3, 0, 2], [0, 1, 4]].map(|[s, t, u]| with_symbols([("s", s), ("t", t), ("u", u)]));
    let done = rewrite_graph(read(text), ALL, &options);
    assert_eq!(done.buckets(), [["g", "h", "i"]]);
}

#[test]
fn values_among_the_options_of_coalesced_members_stay_what_they_were() {
    let text = "n = input Sym(n); m = input Sym(m); p = input f32[4]; q = input f32[4]; r = input f32[2]\n\
                g = all_reduce(p, sum, G0:2) impl=[n, m]; h = all_reduce(q, sum, G0:2) impl=[n, m]\n\
                i = all_reduce(r, sum, G0:2) impl=[n, m]\noutput(wait(g), wait(h), wait(i))";
    for (mode, launch) in [
        ("concat", "all_reduce(cat, sum, G0:2, impl=[n, m])"),
        ("coalesced", "all_reduce_coalesced([p, q, r], sum, G0:2, impl=[n, m])"),
    ] {
        let done = rewrite_shapes(text, &format!("bucket-all-reduce{{cap=none,mode={mode}}}"));
        assert!(done.text().contains(launch), "{}", done.text());
    }
}
