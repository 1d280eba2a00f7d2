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
