//! Files that hold several graphs, logs, and what is said where there is nothing to work on.

use crate::support::{FX, Folder};

const BAD: &str = "class Bad(torch.nn.Module):\n    def forward(self, a: \"f32[8]\"):\n        return (missing,)\n";

/// Two graphs, named by the headings above them.
fn two_graphs() -> String {
    format!("===== Forward graph 0 =====\n{FX}\n===== Backward graph 0 =====\n{FX}")
}

#[test]
fn a_graph_that_cannot_be_read_is_said_and_the_others_are_worked_on() {
    let folder = Folder::with("g.txt", format!("{FX}{BAD}{FX}"));
    let line = FX.lines().count() + 3;
    let place = format!("g.txt:{line}:17");
    for command in ["rewrite g.txt -o out.txt", "inspect g.txt", "convert g.txt copy.txt", "lower g.txt --graph 1"] {
        folder.run(command).expect(1, &["error: use of `missing`, which is not defined before this line", &place]);
    }
    assert_eq!(folder.read("copy.txt"), folder.read("g.txt"));
    assert!(folder.read("out.txt").contains(BAD));
    // Graphs that belong together by their place have to be there.
    folder.run("verify g.txt g.txt").expect(1, &["use of `missing`", &place]);
    folder.run("check-ranks g.txt g.txt").expect(1, &["use of `missing`", &place]);
}

#[test]
fn one_graph_of_a_file_is_worked_on_and_the_others_stay() {
    let folder = Folder::with("g.txt", two_graphs());
    let ran = folder.run("inspect g.txt --graph backward_graph_0").expect(0, &[]);
    assert!(ran.out().contains("backward_graph_0") && !ran.out().contains("forward_graph_0:"), "{}", ran.out());
    let ran = folder
        .run("rewrite g.txt -o out.txt --graph 2 --verify")
        .expect(0, &["graph `backward_graph_0`", "proven equal"]);
    assert!(!ran.talk().contains("`forward_graph_0`"), "{}", ran.talk());
    assert!(folder.read("out.txt").starts_with(&format!("===== Forward graph 0 =====\n{FX}")));
    folder.run("verify g.txt out.txt --graph 2").expect(0, &[]);
    folder.run("lower g.txt --graph 1").expect(0, &[]);
    folder.run("lower g.txt").expect(2, &["holds 2 graphs; lower one at a time, with --graph N"]);
    folder.run("check-ranks g.txt g.txt --graph forward_graph_0").expect(0, &[]);
    folder.run("convert g.txt one.bkt --graph 1").expect(0, &[]);
    folder.run("convert g.txt one.txt --graph 1").expect(0, &[]);
    assert_eq!(folder.read("one.txt"), FX);
    for wanted in ["3", "0", "nothing"] {
        let list = ["no graph has that number or name; there are", "  1 `forward_graph_0`", "  2 `backward_graph_0`"];
        folder.run(&format!("inspect g.txt --graph {wanted}")).expect(2, &list);
    }
    let same = Folder::with("g.txt", format!("{FX}{FX}"));
    same.run("inspect g.txt --graph GraphModule").expect(2, &["several have that name", "  2 `GraphModule`"]);
    same.run("inspect g.txt --graph 2").expect(0, &[]);
}

fn log(rank: u32, text: &str) -> Vec<String> {
    let line = |line: &str| {
        let line = if line.starts_with("class") { format!(" some/path.py {line}") } else { line.to_owned() };
        format!("[rank{rank}]:V1128 18:39:17.501000 16760 a/b.py:1703] [0/0] [__post_grad_graphs] {line}\n")
    };
    text.lines().map(line).collect()
}

/// What both ranks wrote, line by line.
fn mixed_log() -> String {
    let (first, second) = (log(0, FX), log(1, FX));
    let lines = first.iter().zip(&second).map(|(first, second)| format!("{second}{first}"));
    format!("a warning\n{}", lines.collect::<String>())
}

#[test]
fn h_inter_a_log_of_two_ranks_is_rewritten_rank_by_rank() {
    let folder = Folder::with("both.log", mixed_log());
    folder.run("rewrite both.log").expect(2, &["several graphs are rewritten to several files"]);
    folder.write("groups.json", r#"{"0": [0, 1]}"#);
    folder.run("rewrite both.log -o o{rank}.log --groups groups.json").expect(0, &["ranks 0-1:", "proven equal"]);
    assert!(folder.read("o0.log").lines().all(|line| line.starts_with("[rank0]:V1128")));
    assert!(folder.read("o1.log").lines().all(|line| line.starts_with("[rank1]:V1128")));
    folder.run("check-ranks o{rank}.log --groups groups.json").expect(0, &[]);
    folder.run("check-ranks both.log --groups groups.json").expect(0, &[]);
    folder.run("convert both.log clean.txt --clean --graph 2").expect(0, &[]);
    assert_eq!(folder.read("clean.txt"), FX);
    folder.run("convert both.log clean.txt --clean").expect(0, &[]);
    assert_eq!(folder.read("clean.txt"), format!("{FX}{FX}"));
    folder.run("convert both.log clean.bkt --clean").expect(2, &["--clean: logs hold FX text"]);
    folder.write("of2.log", mixed_log().replace("[rank1]", "[rank2]"));
    folder
        .run("check-ranks of2.log")
        .expect(1, &["it is the log of ranks 0, 2; expected those of all ranks, from 0 on"]);
}

#[test]
fn the_log_of_a_rank_in_the_place_of_another_is_refused() {
    let folder = Folder::with("rank0.txt", log(0, FX).concat());
    folder.write("rank1.txt", log(1, FX).concat());
    folder.write("groups.json", r#"{"0": [0, 1]}"#);
    folder.run("check-ranks rank{rank}.txt --groups groups.json").expect(0, &[]);
    folder
        .run("check-ranks rank1.txt rank0.txt")
        .expect(1, &["its lines begin with `[rank1]`", "in the place of rank 0", "rank1.txt"]);
    folder.run("rewrite rank1.txt rank0.txt -o o{rank}.txt").expect(1, &["in the place of rank 0"]);
    folder.write("both.log", mixed_log());
    folder.run("check-ranks both.log rank1.txt").expect(1, &["it is the log of several ranks; give it alone"]);
}

#[test]
fn files_of_ranks_are_taken_in_the_order_of_their_numbers() {
    let folder = Folder::with("groups.json", format!(r#"{{"0": {:?}}}"#, (0..11).collect::<Vec<_>>()));
    let text = FX.replace(", 2, '0'", ", 11, '0'").replace("f32[8]", "f32[44]");
    for rank in 0..11 {
        folder.write(&format!("rank{rank}.txt"), &text);
    }
    folder.write("rank07.txt", "not one of them");
    folder.write("rank.txt", "nor this");
    folder.run("check-ranks rank{rank}.txt --groups groups.json").expect(0, &[]);
    std::fs::remove_file(folder.path("rank9.txt")).unwrap();
    folder.run("check-ranks rank{rank}.txt").expect(2, &["rank{rank}.txt: there are 10 files, but none for rank 9"]);
    folder.run("check-ranks none{rank}.txt").expect(2, &["none{rank}.txt: there is no such file for any rank"]);
}

#[test]
fn a_graph_without_types_says_what_to_print_instead() {
    let text = "def forward(self, a):\n    g = torch.ops._c10d_functional.all_reduce.default(a, 'sum', '0')\n    w = torch.ops._c10d_functional.wait_tensor.default(g)\n    return (w,)\n";
    let folder = Folder::with("code.txt", text);
    for command in ["rewrite code.txt", "inspect code.txt"] {
        let parts = ["note: graph `forward` has no types, as in `gm.code`", "gm.print_readable(print_output=False"];
        folder.run(command).expect(0, &parts);
    }
    let typed = Folder::with("g.txt", FX);
    assert!(!typed.run("rewrite g.txt").expect(0, &[]).talk().contains("note: graph"));
}

#[test]
fn h_dynamo_dtensor_graphs_without_collectives_say_why() {
    let plain = "class G(torch.nn.Module):\n    def forward(self, a: \"f32[4]\"):\n        b: \"f32[4]\" = torch.ops.aten.neg.default(a)\n        return (b,)\n";
    let folder = Folder::with("g.txt", plain);
    folder
        .run("rewrite g.txt")
        .expect(0, &["note: no collectives: those of FSDP2 and DDP run outside", "python_reducer"]);
    let found = format!("{}/tests/found/H-dynamo_dtensor.txt", kit::root().display());
    folder.run(&format!("inspect {found}")).expect(0, &["works on DTensors", "TORCH_LOGS=aot_graphs"]);
}

#[test]
fn all_reduce_8kib_none_has_no_limit_from_the_second_bucket_on() {
    let folder = Folder::with("g.txt", FX);
    folder.run("rewrite g.txt --all-gather 8KiB,none").expect(0, &[]);
    folder
        .run("rewrite g.txt --all-gather none,8KiB")
        .expect(2, &["`none` goes for all further buckets, so it comes last"]);
}

#[test]
fn c_gloo_mixed_gathers_of_several_dtypes_are_kept_apart_in_fx_text() {
    let mixed = FX
        .replace("b: \"f32[4]", "b: \"bf16[4]")
        .replace("h: \"f32[8]", "h: \"bf16[8]")
        .replace("v: \"f32[8]", "v: \"bf16[8]");
    let folder = Folder::with("g.txt", &mixed);
    let ran = folder
        .run("rewrite g.txt --all-gather none --mode coalesced --mixed-dtype bytes")
        .expect(0, &["note: gathers of several dtypes are not merged", "--mode concat sends them as bytes"]);
    assert_eq!(ran.out(), mixed);
    let ran = folder.run("rewrite g.txt --all-gather none --mixed-dtype bytes").expect(0, &["proven equal"]);
    assert!(ran.out().contains("torch.uint8") && !ran.talk().contains("note: gathers"), "{}", ran.out());
}

#[test]
fn b_mesh_groups_are_merged_proven_and_run() {
    let found = format!("{}/tests/found/B-mesh_groups.txt", kit::root().display());
    let folder = Folder::new();
    let ran = folder.run(&format!("rewrite {found} --verify -o out.txt")).expect(0, &["proven equal"]);
    assert!(ran.talk().contains("all_gather  %g0        4       2      1"), "{}", ran.talk());
    folder.run(&format!("verify {found} out.txt --eval")).expect(0, &[]);
    folder.run(&format!("run {found} --repeat 1")).expect(0, &[]);
}

/// A call of a graph between two gathers.
fn called(operator: &str, body: &str) -> String {
    let call = if operator == "control_deps" { "(x,), body, x, b" } else { "body, 's', x, b" };
    format!(
        "class G(torch.nn.Module):
    def forward(self, a: \"f32[4][1]cpu\", b: \"f32[4][1]cpu\", x: \"f32[4][1]cpu\"):
        g0: \"f32[8][1]cpu\" = torch.ops._c10d_functional.all_gather_into_tensor.default(a, 2, '0')
        w0: \"f32[8][1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(g0)
        body = self.body
        c = torch.ops.higher_order.{operator}({call})
        y: \"f32[4][1]cpu\" = c[0]
        g1: \"f32[8][1]cpu\" = torch.ops._c10d_functional.all_gather_into_tensor.default(b, 2, '0')
        w1: \"f32[8][1]cpu\" = torch.ops._c10d_functional.wait_tensor.default(g1)
        return (w0, w1, y)

    class body(torch.nn.Module):
        def forward(self, x: \"f32[4][1]cpu\", b: \"f32[4][1]cpu\"):
            r: \"f32[4][1]cpu\" = torch.ops.{body}
            return (r,)
"
    )
}

#[test]
fn control_deps_and_invoke_subgraph_keep_collectives_apart_only_where_their_graph_communicates() {
    for operator in ["control_deps", "invoke_subgraph"] {
        let folder = Folder::with("g.txt", called(operator, "aten.mul.Tensor(x, b)"));
        let ran = folder.run("rewrite g.txt --graph G --verify -o out.txt").expect(0, &["proven equal"]);
        assert!(ran.talk().contains("all_gather  0          2       2      1"), "{}", ran.talk());
        folder.run("verify g.txt out.txt").expect(0, &[]);
        folder.run("lower g.txt --graph G --verify=on").expect(0, &[]);
        let folder = Folder::with("g.txt", called(operator, "_c10d_functional.all_reduce.default(x, 'sum', '0')"));
        let ran = folder.run("rewrite g.txt --graph G --verify -o out.txt").expect(0, &["left alone: 2 fence"]);
        assert!(ran.talk().contains("all_gather  0          2       2      2"), "{}", ran.talk());
    }
}
