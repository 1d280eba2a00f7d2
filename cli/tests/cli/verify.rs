//! `verify`, `check-ranks` and `rewrite --verify`: what is proven, what is refused and where, and exit codes.

use crate::support::{FX, Folder, REDUCES};

/// Two reduces of different inputs.
const PAIR: &str = "\
x = input f32[4]
y = input f32[4]
s = all_reduce(x, sum, G0:2); w = wait(s)
t = all_reduce(y, sum, G0:2); v = wait(t)
output(w, v)
";

/// A fixture of the library.
fn fixture(name: &str) -> String {
    format!("{}/fixtures/fx/{name}", kit::root().display())
}

/// A folder with a graph and what it was rewritten to.
fn rewritten(text: &str) -> Folder {
    let folder = Folder::with("before.txt", text);
    folder.run("rewrite before.txt -o after.txt").expect(0, &["proven equal"]);
    folder
}

/// The folder's result with each `from` made `to`.
#[track_caller]
fn spoil(folder: &Folder, edits: &[(&str, &str)]) {
    let mut text = folder.read("after.txt");
    for (from, to) in edits {
        assert!(text.contains(from), "no `{from}` in:\n{text}");
        text = text.replace(from, to);
    }
    folder.write("after.txt", text);
}

#[test]
fn a_rewrite_is_proven_and_evaluated() {
    for text in [PAIR, FX] {
        let folder = rewritten(text);
        let ran = folder.run("verify before.txt after.txt --eval --seed 7").expect(0, &[]);
        assert!(ran.out().starts_with("equal: 2 collectives before, 1 after, "), "{}", ran.out());
        assert!(ran.out().contains("\nevaluated: the same on 2 ranks, "), "{}", ran.out());
        folder.run("verify after.txt before.txt").expect(1, &[]);
    }
}

#[test]
fn forms_may_differ() {
    let folder = rewritten(FX);
    folder.run("convert after.txt after.json").expect(0, &[]);
    let ran = folder.run("verify before.txt after.json").expect(0, &[]);
    assert!(ran.out().starts_with("equal: "), "{}", ran.out());
    let ran = folder.run_with("verify - after.json", FX.as_bytes()).expect(0, &[]);
    assert!(ran.out().starts_with("equal: "), "{}", ran.out());
    folder.run("verify - -").expect(2, &["only once"]);
}

#[test]
fn swapped_results_are_shown_with_both_terms_and_both_lines() {
    let folder = rewritten(PAIR);
    spoil(&folder, &[("output(w, v)", "output(v, w)")]);
    let ran = folder.run("verify before.txt after.txt --eval").expect(1, &[]);
    for part in [
        "different: output 0, `w` and now `v`, has another value\n",
        "\n  before  `s`: all_reduce sum in G0(x)\n",
        "\n  after   `",
        "all_reduce sum in G0(y)\n",
        "\n  before.txt:3:1\n  3 | s = all_reduce(x, sum, G0:2); w = wait(s)\n    | ^\n",
        "\n  after.txt:",
        "\nevaluated: different on 2 ranks, 2 outputs\n  output 0 (`w`) differs on rank 0 in element 0: ",
    ] {
        assert!(ran.out().contains(part), "no `{part}` in:\n{}", ran.out());
    }
    assert_eq!(ran.talk(), "");
}

#[test]
fn what_a_proof_assumes_of_an_unknown_operator_is_said() {
    let text = format!("{}u = mylib.two.default(x) : f32[4]\noutput(w, v, u)\n", PAIR.replace("output(w, v)\n", ""));
    let folder = Folder::with("before.txt", &text);
    folder.run("rewrite before.txt -o after.txt").expect(0, &["proven equal, if `mylib.two` does not communicate"]);
    let verify = "verify before.txt after.txt";
    assert!(folder.run(verify).expect(0, &[]).out().contains("\n  if `mylib.two` does not communicate"));
    let ran = folder.run(&format!("{verify} --json")).expect(0, &[]);
    let json: serde_json::Value = serde_json::from_str(ran.out()).unwrap();
    let assumed = &json["graphs"][0]["proof"]["assumptions"][0];
    assert_eq!((&assumed["operator"], &assumed["assumed"]), (&"mylib.two".into(), &"does not communicate".into()));
}

#[test]
fn json_holds_the_verdicts() {
    let folder = rewritten(PAIR);
    let json = |code| -> serde_json::Value {
        let ran = folder.run("verify before.txt after.txt --eval --json").expect(code, &[]);
        serde_json::from_str(ran.out()).unwrap()
    };
    let equal = json(0);
    assert_eq!(equal["format"], "bucketeer-verify");
    let graph = &equal["graphs"][0];
    assert_eq!(graph["proof"]["verdict"], "equal");
    assert_eq!(graph["proof"]["collectives_after"], 1);
    assert_eq!(graph["evaluation"]["verdict"], "equal");
    spoil(&folder, &[("output(w, v)", "output(v, w)")]);
    let different = json(1);
    let graph = &different["graphs"][0];
    assert_eq!(graph["proof"]["verdict"], "different");
    assert_eq!(graph["proof"]["before"]["term"], "all_reduce sum in G0(x)");
    assert_eq!(graph["evaluation"]["verdict"], "different");
}

#[test]
fn what_writes_inside_a_loop_is_not_decided() {
    let text = "x = input f32[4]
region loop {
  s = all_reduce_(x, sum, G0:2); w = wait(s)
}
output(w)
";
    let folder = Folder::with("g.txt", text);
    let ran = folder.run("verify g.txt g.txt").expect(2, &[]);
    assert!(ran.out().starts_with("cannot decide: source, `s`: "), "{}", ran.out());
    assert!(ran.out().contains("\n  g.txt:3:3\n"), "{}", ran.out());
    folder.run("rewrite g.txt -o out.txt --verify").expect(2, &["is not proven; nothing is written", "cannot decide"]);
    assert_eq!(folder.files(), ["g.txt"]);
    let expected = ["warning: graph `graph`: the result is not proven: cannot decide: source, `s`"];
    folder.run("rewrite g.txt -o out.txt").expect(0, &expected).expect(0, &["  not proven: cannot decide"]);
    folder.run("rewrite g.txt -o out.txt --verify=off").expect(0, &["  not proven: not asked for"]);
}

#[test]
fn a_source_that_contradicts_its_types_is_no_fault_of_the_rewrite() {
    let view = "\n        r: \"f32[4][1]cuda:0\" = torch.ops.aten.view.default(a, [2, 2])\n        g: ";
    let folder = Folder::with("g.txt", FX.replace("\n        g: ", view));
    let wrong = "`r`: is stated to be f32[4][1]cuda:0, but makes f32[2, 2]";
    folder
        .run("rewrite g.txt -o out.txt")
        .expect(0, &["warning: graph `GraphModule`: the result is not proven", wrong]);
    folder
        .run("rewrite g.txt --verify")
        .expect(1, &["graph `GraphModule` is not well-formed: ", wrong, "  g.txt:3:9\n"]);
    let ran = folder.run("verify g.txt out.txt").expect(1, &[]);
    assert!(ran.out().contains("different: the source is not well-formed\n"), "{}", ran.out());
}

#[test]
fn what_cannot_be_evaluated_is_exit_code_2_though_it_is_proven() {
    let text = PAIR.replace("G0:2); v", "G1:3); v");
    let folder = Folder::with("g.txt", text);
    let ran = folder.run("verify g.txt g.txt --eval").expect(2, &[]);
    assert!(ran.out().contains("equal: ") && ran.out().contains("\ncannot evaluate: "), "{}", ran.out());
    folder.write("groups.json", "{\"G0\": [[0, 1], [2, 3], [4, 5]], \"G1\": [[0, 1, 2], [3, 4, 5]]}");
    let ran = folder.run("verify g.txt g.txt --eval --groups groups.json").expect(0, &[]);
    assert!(ran.out().contains("\nevaluated: the same on 6 ranks"), "{}", ran.out());
}

#[test]
fn a_hint_gives_symbols_their_value() {
    let text = "x = input f32[s0]\ns = all_reduce(x, sum, G0:2); w = wait(s)\noutput(w)\n";
    let folder = Folder::with("g.txt", text);
    folder.run("verify g.txt g.txt --eval --hint s0=6").expect(0, &[]);
    let ran = folder.run("verify g.txt g.txt --eval --hint s0=1000000000000").expect(2, &[]);
    assert!(ran.out().contains("cannot evaluate: "), "{}", ran.out());
    folder.run("verify g.txt g.txt --seed 3").expect(2, &["--eval"]);
}

#[test]
fn outputs_that_newly_share_memory_are_accepted_only_if_asked_for() {
    let folder = Folder::with("before.txt", PAIR);
    folder.run("rewrite before.txt --unpack views -o after.txt").expect(0, &["proven equal"]);
    let ran = folder.run("verify before.txt after.txt").expect(1, &[]);
    assert!(ran.out().contains("an output shares memory that it did not share"), "{}", ran.out());
    let ran = folder.run("verify before.txt after.txt --outputs-may-share").expect(0, &[]);
    assert!(ran.out().contains("\n  memory newly shared: output `"), "{}", ran.out());
}

#[test]
fn launches_in_another_order_are_accepted_only_if_asked_for() {
    let folder = Folder::with("before.txt", PAIR);
    let lines: Vec<&str> = PAIR.lines().collect();
    folder.write("after.txt", [lines[0], lines[1], lines[3], lines[2], lines[4]].join("\n"));
    let ran = folder.run("verify before.txt after.txt").expect(1, &[]);
    assert!(ran.out().contains("the launches of a group stand in another order"), "{}", ran.out());
    folder.run("verify before.txt after.txt --launches-may-move").expect(0, &[]);
}

#[test]
fn graphs_that_do_not_belong_together_are_refused() {
    let folder = Folder::with("a.txt", FX);
    folder.write("b.txt", format!("{FX}\n{}", FX.replace("GraphModule", "Backward")));
    folder.run("verify a.txt b.txt").expect(1, &["the source holds 1 graph, the result 2 graphs", "a.txt", "b.txt"]);
    let ran = folder.run("verify b.txt b.txt").expect(0, &[]);
    assert!(ran.out().contains("graph `GraphModule`: equal: ") && ran.out().contains("graph `Backward`: equal: "));
    folder.write("c.txt", FX.replace("b: \"f32[4][1]cuda:0", "b: \"f32[4][1]cuda:1"));
    let ran = folder.run("verify a.txt c.txt").expect(1, &[]);
    for part in ["different: the inputs differ", "before  `b`: ", "after   `b`: ", "a.txt:2:", "c.txt:2:"] {
        assert!(ran.out().contains(part), "no `{part}` in:\n{}", ran.out());
    }
    folder.run("verify a.txt no.txt").expect(2, &["cannot read no.txt"]);
    let unwaited = FX.replace("wait_tensor.default(h)", "wait_tensor.default(w)");
    folder.write("d.txt", unwaited.replace("Tensor(w, v)", "Tensor(w, h)"));
    folder.run("verify a.txt d.txt").expect(1, &["not well-formed", "d.txt:7:9"]);
}

#[test]
fn rewrites_of_real_graphs_are_proven() {
    let folder = Folder::new();
    for name in ["fsdp_l2_ws8_bf16.backward", "tiny_moe_bf16_rsfp32.backward", "live_dynamic.forward"] {
        for options in ["", " --mode coalesced", " --policy adjacent --unpack views"] {
            let ran = folder.run(&format!("rewrite {} --verify{options} -o out.txt", fixture(&format!("{name}.txt"))));
            ran.expect(0, &["\n  proven equal\n"]);
        }
    }
    let ran = folder.run(&format!("rewrite {} --json", fixture("live_static.forward.txt"))).expect(0, &[]);
    let json: serde_json::Value = serde_json::from_str(ran.out()).unwrap();
    assert_eq!(json["graphs"][0]["proof"]["verdict"], "equal");
}

#[test]
fn ranks_that_agree_are_listed_by_group() {
    let folder = Folder::with("g.txt", REDUCES);
    let ran = folder.run("check-ranks g.txt").expect(0, &[]);
    assert_eq!(ran.out(), "agreed: one graph for all ranks\n  G0: 5 launches\n");
    let ran = folder.run("check-ranks g.txt g.txt").expect(0, &[]);
    assert_eq!(ran.out(), "agreed\n  G0: 5 launches\n");
}

#[test]
fn ranks_that_send_different_counts_are_shown() {
    let of = |n: u32| format!("x = input f32[{n}]; s = all_reduce(x, sum, G0:2)\noutput(wait(s))\n");
    let folder = Folder::with("r0.txt", of(8));
    folder.write("r1.txt", of(12));
    let ran = folder.run("check-ranks r0.txt r1.txt").expect(1, &[]);
    for part in ["not agreed\n  G0 #0: rank 0 f32 x 8, rank 1 f32 x 12", "\n  r0.txt:1:19\n", "\n  r1.txt:1:20\n"] {
        assert!(ran.out().contains(part), "no `{part}` in:\n{}", ran.out());
    }
    let ran = folder.run("check-ranks r0.txt r1.txt --json").expect(1, &[]);
    let json: serde_json::Value = serde_json::from_str(ran.out()).unwrap();
    assert_eq!(json["graphs"][0]["agree"], false);
}

#[test]
fn a_ring_is_shown_with_its_ranks_groups_and_nodes() {
    let head = "a = input f32[8]; b = input f32[8]\n";
    let (w, p) = ("s0 = all_reduce(a, sum, W:4)\n", "s1 = all_reduce(b, sum, P:2)\n");
    let folder = Folder::with("one.txt", format!("{head}{w}{p}output(wait(s0), wait(s1))\n"));
    folder.write("other.txt", format!("{head}{p}{w}output(wait(s0), wait(s1))\n"));
    folder.run("check-ranks one.txt other.txt one.txt one.txt").expect(2, &["group `P`", "--groups"]);
    folder.write("groups.json", "{\"W\": [0, 1, 2, 3], \"P\": [[0, 1], [2, 3]]}");
    let ran = folder.run("check-ranks one.txt other.txt one.txt one.txt --groups groups.json").expect(1, &[]);
    let ring = "deadlock: rank 0 is in `s0` (W) and waits for rank 1; rank 1 is in `s1` (P{0, 1}) and waits for rank 0";
    for part in [ring, "one.txt:2:1", "other.txt:2:1"] {
        assert!(ran.out().contains(part), "no `{part}` in:\n{}", ran.out());
    }
    let ran = folder.run("check-ranks one.txt one.txt one.txt one.txt --groups groups.json").expect(0, &[]);
    assert_eq!(ran.out(), "agreed\n  P: 1 launch\n  W: 1 launch\n");
    folder.run("check-ranks one.txt one.txt --groups groups.json").expect(1, &["rank 2", "graphs for 2 ranks"]);
}

#[test]
fn files_of_several_graphs_are_checked_graph_by_graph() {
    let folder = Folder::with("a.txt", format!("{FX}\n{}", FX.replace("GraphModule", "Backward")));
    let ran = folder.run("check-ranks a.txt a.txt").expect(0, &[]);
    assert_eq!(ran.out(), "graph `GraphModule`: agreed\n  0: 2 launches\ngraph `Backward`: agreed\n  0: 2 launches\n");
    folder.write("b.txt", FX);
    folder.run("check-ranks a.txt b.txt").expect(1, &["rank 0 has 2 graphs, this one has 1 graph", "b.txt"]);
}

/// Two scatters of weights that no test could hold.
const LARGE: &str = "\
x = input f32[8000, 4096]
y = input f32[7168, 4096]
r = reduce_scatter(x, avg, G0:8); w = wait(r)
s = reduce_scatter(y, avg, G0:8); v = wait(s)
output(w, v)
";

#[test]
fn large_graphs_are_run_at_small_sizes() {
    let folder = rewritten(LARGE);
    let ran = folder.run("verify before.txt after.txt --eval").expect(2, &[]);
    let refused = "\ncannot evaluate: in the graph before: the graph's tensors have ";
    assert!(ran.out().contains(refused) && ran.out().contains("scale the graph down (--shrink)\n"), "{}", ran.out());
    let ran = folder.run("verify before.txt after.txt --eval --shrink").expect(0, &[]);
    assert!(ran.out().starts_with("equal: 2 collectives before, 1 after"), "{}", ran.out());
    for part in ["\nevaluated: the same on 8 ranks, 2 outputs\n  at 1/", ": 8000 -> 32, 7168 -> 32, 4096 -> 4\n"] {
        assert!(ran.out().contains(part), "no `{part}` in:\n{}", ran.out());
    }
    folder.run("verify before.txt after.txt --shrink").expect(2, &["--eval"]);
    spoil(&folder, &[("output(w, v)", "output(v, w)")]);
    let ran = folder.run("verify before.txt after.txt --eval --shrink").expect(1, &[]);
    assert!(ran.out().contains("\nevaluated: different on 8 ranks, 2 outputs\n  at 1/"), "{}", ran.out());
    let ran = folder.run("verify before.txt after.txt --eval --shrink --json").expect(1, &[]);
    let json: serde_json::Value = serde_json::from_str(ran.out()).unwrap();
    let graph = &json["graphs"][0];
    assert_eq!(graph["evaluation"]["verdict"], "different");
    assert_eq!(graph["scaling"]["sizes"][0], serde_json::json!([8000, 32]));
}

#[test]
fn graphs_that_fit_are_run_as_they_are() {
    let folder = rewritten(PAIR);
    let ran = folder.run("verify before.txt after.txt --eval --shrink").expect(0, &[]);
    assert!(ran.out().ends_with("\nevaluated: the same on 2 ranks, 2 outputs\n"), "{}", ran.out());
}
