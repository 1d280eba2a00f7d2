//! `rewrite` end to end: what it writes where, and what it says.

use crate::support::{FX, Folder, REDUCES, gzip};

#[test]
fn the_graph_goes_to_stdout_and_the_summary_to_stderr() {
    let folder = Folder::with("g.txt", REDUCES);
    let ran =
        folder.run("rewrite g.txt --all-reduce 25MB").expect(0, &["graph `graph`: 16 nodes before", "all_reduce"]);
    assert!(ran.out().contains("members=[s0, s2, s3, s4]"), "{}", ran.out());
    assert!(ran.talk().contains("left alone: 1 oversize"), "{}", ran.talk());
    assert!(ran.talk().contains("no device data: taken as one device"), "{}", ran.talk());
}

#[test]
fn stdin_is_read_for_a_dash() {
    let folder = Folder::with("g.txt", REDUCES);
    let from_file = folder.run("rewrite g.txt --all-reduce 25MB");
    let from_stdin = folder.run_with("rewrite - --all-reduce 25MB", REDUCES.as_bytes()).expect(0, &[]);
    assert_eq!(from_file.out(), from_stdin.out());
    folder.run_with("rewrite -", b"dear diary").expect(1, &["<stdin>:1:1"]);
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let folder = Folder::with("g.txt", FX);
    for command in ["rewrite g.txt", "rewrite g.txt --json", "rewrite g.txt --to json", "inspect g.txt --json"] {
        let (first, second) = (folder.run(command), folder.run(command));
        assert_eq!(first.out(), second.out(), "{command}");
        assert_eq!(first.talk(), second.talk(), "{command}");
    }
}

#[test]
fn rewriting_the_result_again_changes_nothing() {
    for text in [REDUCES, FX] {
        let folder = Folder::with("g.txt", text);
        folder.run("rewrite g.txt -o once.txt").expect(0, &[]);
        folder.run("rewrite once.txt -o twice.txt").expect(0, &[]);
        assert_ne!(folder.read("once.txt"), text);
        assert_eq!(folder.read("once.txt"), folder.read("twice.txt"));
    }
}

#[test]
fn an_fx_text_without_anything_to_merge_comes_back_byte_for_byte() {
    let folder = Folder::with("g.txt", FX);
    let ran = folder.run("rewrite g.txt --all-reduce 25MB").expect(0, &[]);
    assert_eq!(ran.out(), FX);
}

#[test]
fn the_output_may_be_the_input() {
    let folder = Folder::with("g.txt", FX);
    let expected = folder.run("rewrite g.txt").out().to_owned();
    let ran = folder.run("rewrite g.txt -o g.txt").expect(0, &[]);
    assert_eq!(ran.out(), "");
    assert_eq!(folder.read("g.txt"), expected);
    assert_eq!(folder.files(), ["g.txt"]);
}

#[test]
fn gzip_is_read_and_plain_text_written() {
    let folder = Folder::with("g.txt.gz", gzip(FX.as_bytes()));
    folder.write("g.txt", FX);
    let plain = folder.run("rewrite g.txt");
    let packed = folder.run("rewrite g.txt.gz").expect(0, &[]);
    assert_eq!(plain.out(), packed.out());
}

#[test]
fn explain_says_of_every_collective_what_became_of_it() {
    let folder = Folder::with("g.txt", REDUCES);
    let ran = folder.run("rewrite g.txt --all-reduce 25MB --explain").expect(0, &[]);
    let line = |name: &str| ran.talk().lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned();
    assert!(line("s0 ").contains("9.5 MiB  bucket 1 of 1, offset 0"), "{}", line("s0 "));
    assert!(line("s2 ").contains("bucket 1 of 1, offset 10000000"), "{}", line("s2 "));
    assert!(line("s1 ").ends_with("28.6 MiB  alone: 28.6 MiB is more than the cap of 23.8 MiB"), "{}", line("s1 "));
}

#[test]
fn reasons_have_the_units_of_the_table_and_exact_bytes_where_those_would_look_alike() {
    let folder = Folder::with("g.txt", REDUCES);
    let explained = |options: &str| {
        let ran = folder.run(&format!("rewrite g.txt --explain {options}")).expect(0, &[]);
        ran.talk().lines().find(|line| line.trim_start().starts_with("s1 ")).unwrap().to_owned()
    };
    let line = explained("--all-reduce 29999999");
    assert!(line.ends_with("alone: 30000000 bytes are more than the cap of 29999999"), "{line}");
    let line = explained("--all-reduce none --max-member 20MB");
    assert!(line.ends_with("alone: 28.6 MiB is more than the 19.1 MiB that are worth copying"), "{line}");
    // Machines get exact bytes.
    let json = folder.run("rewrite g.txt --all-reduce 25MB --json").expect(0, &[]);
    let json: serde_json::Value = serde_json::from_str(json.out()).unwrap();
    let alone = serde_json::json!({
        "reason": "oversize", "because": "30000000 bytes are more than the cap of 25000000",
    });
    assert_eq!(json["graphs"][0]["remarks"][1]["alone"], alone);
}

#[test]
fn json_takes_the_place_of_the_graph_unless_that_goes_to_a_file() {
    let folder = Folder::with("g.txt", REDUCES);
    let ran = folder.run("rewrite g.txt --all-reduce 25MB --json").expect(0, &[]);
    let json: serde_json::Value = serde_json::from_str(ran.out()).unwrap();
    let graph = &json["graphs"][0];
    assert_eq!(json["pipeline"], "dedupe-waits,fold-trivial,bucket-all-reduce{cap=25MB}");
    assert_eq!(graph["collectives"][0]["before"]["count"], 5);
    assert_eq!(graph["collectives"][0]["after"]["count"], 2);
    assert_eq!(graph["collectives"][0]["biggest_bucket_bytes"], 25_000_000);
    assert_eq!(graph["buckets"][0]["members"][1]["offset"], 10_000_000);
    assert_eq!(graph["remarks"][1]["alone"]["reason"], "oversize");
    let with_file = folder.run("rewrite g.txt --all-reduce 25MB --json -o out.txt").expect(0, &[]);
    assert_eq!(with_file.out(), ran.out());
    assert!(folder.read("out.txt").contains("members=[s0, s2, s3, s4]"));
}

#[test]
fn each_graph_of_a_file_has_its_table() {
    let folder = Folder::with("g.txt", format!("{FX}\n{}", FX.replace("GraphModule", "Backward")));
    let ran = folder.run("rewrite g.txt").expect(0, &["graph `GraphModule`: ", "graph `Backward`: "]);
    assert_eq!(ran.out().matches("class ").count(), 2);
    folder.run("rewrite g.txt --to native").expect(1, &["it holds 2 graphs (GraphModule, Backward)"]);
}

#[test]
fn growing_memory_is_warned_of() {
    let folder = Folder::with("g.txt", REDUCES);
    folder.run("rewrite g.txt --all-reduce none").expect(0, &["warning: graph `graph`: peak live bytes grow from"]);
    let ran = folder.run("rewrite g.txt --all-reduce 1MB").expect(0, &[]);
    assert!(!ran.talk().contains("peak live bytes grow"));
}

#[test]
fn a_hint_gives_symbolic_sizes_a_value() {
    let text = "a = input f32[s0, 4]; b = input f32[s0, 4]
s = all_reduce(a, sum, G:2); w = wait(s)
t = all_reduce(b, sum, G:2); v = wait(t)
output(w, v)
";
    let folder = Folder::with("g.txt", text);
    folder.run("rewrite g.txt").expect(0, &["left alone: 2 size unknown"]);
    let ran = folder.run("rewrite g.txt --hint s0=16").expect(0, &[]);
    assert_eq!(ran.out().matches("= all_reduce(").count(), 1);
}

#[test]
fn coalesced_gathers_agree_on_their_dimension() {
    let text = "a = input f32[2, 3]; b = input f32[2, 3]
g = all_gather(a, G:2); w = wait(g)
h = all_gather(b, G:2, dim=1); v = wait(h)
output(w, v)
";
    let folder = Folder::with("g.txt", text);
    let ran = folder.run("rewrite g.txt --mode coalesced --explain").expect(0, &["reduce op, root or dimension"]);
    assert_eq!(ran.out().matches("= all_gather(").count(), 2);
    folder.write("g.txt", text.replace("G:2)", "G:2, dim=1)").replace(", dim=1, dim=1", ", dim=1"));
    let ran = folder.run("rewrite g.txt --mode coalesced").expect(0, &[]);
    assert!(ran.out().contains("all_gather_coalesced([a, b], G:2, dim=1)"), "{}", ran.out());
}

#[test]
fn c_spelled_rewrite_a_group_is_spelled_otherwise_in_what_is_written_and_is_the_same() {
    let folder = Folder::with("g.hlo", include_str!("../../../tests/found/C-spelled_rewrite.hlo"));
    folder.run("rewrite g.hlo -o out.hlo").expect(0, &["proven equal"]);
    let verified = folder.run("verify g.hlo out.hlo").expect(0, &[]);
    assert!(verified.out().starts_with("equal"), "{}", verified.out());
}

/// Gradients that are made, reduced and used right away.
fn reduced_at_once() -> String {
    let layer = |nth: usize| {
        format!(
            "g{nth} = aten.mul.Tensor(x, x) : f32[262144]\nr{nth} = all_reduce(g{nth}, sum, G0:2); w{nth} = wait(r{nth})\n\
             n{nth} = aten.sum.default(w{nth}) : f32[]\n"
        )
    };
    let layers: String = (0..6).map(layer).collect();
    format!("x = input f32[262144]\n{layers}output(n0, n1, n2, n3, n4, n5)\n")
}

#[test]
fn a_cap_on_memory_cuts_buckets_and_names_what_is_declined_and_why() {
    let folder = Folder::with("g.txt", reduced_at_once());
    let ran = folder.run("rewrite g.txt --memory 10MiB --explain").expect(
        0,
        &[
            "bucket 1 of 1, offset 4194304",
            "r5",
            "alone: declined: 12.0 MiB would be alive at once at `r0`; at most 10.0 MiB may be",
            "left alone: 1 memory cap",
            "cap on memory 10.0 MiB: 10.0 MiB alive at once; 1 bucket cut, 1 declined",
            "proven equal",
        ],
    );
    assert!(ran.out().contains("members=[r0, r1, r2, r3, r4]"), "{}", ran.out());
    assert!(!ran.talk().contains("warning"), "{}", ran.talk());
    let text = folder.run("rewrite g.txt --memory 10MiB --json").expect(0, &[]);
    let json: serde_json::Value = serde_json::from_str(text.out()).unwrap();
    let graph = &json["graphs"][0];
    assert_eq!(graph["memory"]["cap_bytes"], 10 << 20);
    assert_eq!((&graph["memory"]["buckets_cut"], &graph["memory"]["declined"]), (&1.into(), &1.into()));
    let because = "declined: 12582912 bytes would be alive at once at `r0`; at most 10485760 may be";
    assert_eq!(graph["remarks"][5]["alone"]["because"], because);
    assert!(json["pipeline"].as_str().unwrap().contains("bucket-all-reduce{cap=25MiB,memory=10MiB}"), "{json}");
}

#[test]
fn words_for_a_cap_on_memory_are_those_of_plan() {
    let folder = Folder::with("g.txt", reduced_at_once());
    let free = folder.run("rewrite g.txt").expect(0, &["a lower cap keeps less alive"]);
    let unlimited = folder.run("rewrite g.txt --memory none").expect(0, &[]);
    assert_eq!(unlimited.out(), free.out());
    let same = folder.run("rewrite g.txt --memory same").expect(0, &["cap on memory 2.0 MiB", "6 memory cap"]);
    assert!(!same.out().contains("members="), "{}", same.out());
    let more = folder.run("rewrite g.txt --memory +150%").expect(0, &["cap on memory 5.0 MiB"]);
    assert!(more.out().contains("members=[r0, r1]"), "{}", more.out());
    let normal = folder.run("rewrite g.txt --memory normal").expect(0, &["cap on memory 1.0 GiB"]);
    assert_eq!(normal.out(), free.out());
    folder.run("rewrite g.txt --memory much").expect(2, &["--memory `much`", "expected normal, same, none"]);
    folder.run("rewrite g.txt --memory +5").expect(2, &["--memory `+5`", "a share such as +5%"]);
    let text = "dedupe-waits,fold-trivial,bucket-all-reduce{cap=25MiB,memory=+150%}";
    let by_text = folder.run(&format!("rewrite g.txt --pipeline {text}")).expect(0, &[]);
    assert_eq!(by_text.out(), more.out());
}

#[test]
fn a_graph_above_its_cap_on_memory_and_values_of_unknown_size_are_warned_of() {
    let folder = Folder::with("g.txt", reduced_at_once());
    folder.run("rewrite g.txt --memory 1KiB").expect(
        0,
        &[
            "as it came, 2.0 MiB are alive at once at `r",
            "above the cap of 1.0 KiB; nothing was merged that makes it more",
        ],
    );
    let unknown = "a = input f32[s0]; b = input f32[s0]\nr = all_reduce(a, sum, G0:2); w = wait(r)\n\
                   s = all_reduce(b, sum, G0:2); v = wait(s)\noutput(w, v)\n";
    folder.write("u.txt", unknown);
    folder.run("rewrite u.txt --memory 80GB").expect(
        0,
        &[
            "left alone: 2 size unknown",
            "the size of 2 values is not known",
            "where it hangs on symbols, --hint gives them likely values",
        ],
    );
    folder.run("rewrite u.txt --memory 80GB --hint s0=8").expect(0, &["cap on memory 74.5 GiB", "proven equal"]);
}

#[test]
fn ranks_that_are_rewritten_together_keep_a_cap_on_memory() {
    let graph = format!("group G0:2 = [[0, 1]]\n{}", reduced_at_once());
    let folder = Folder::with("g0.txt", &graph);
    folder.write("g1.txt", graph.replace("n0 =", "big = aten.mul.Tensor(x, x) : f32[262144]\nn0 ="));
    folder.run("rewrite g0.txt g1.txt --memory 10MiB -o out{rank}.txt").expect(0, &["cap on memory 10.0 MiB"]);
    let members = |file: &str| folder.read(file).matches("members=[").count();
    assert_eq!((members("out0.txt"), members("out1.txt")), (1, 1));
}
