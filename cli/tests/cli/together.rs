//! `rewrite` of the graphs of several ranks.

use crate::support::{FX, Folder};

/// Two launches of `W` and one of `P` between them, with much work below the first or above the last.
fn graph(early: bool) -> String {
    let head = "group W:2 = [[0, 1]]\ngroup P:2 = [[0, 1]]\na = input f32[8]; b = input f32[8]; c = input f32[8]\n\
                s = all_reduce(a, sum, W:2); w = wait(s)\n";
    let between = "p = all_gather(c, P:2); q = wait(p)\n";
    if early {
        format!(
            "{head}r0 = relu(w); r1 = relu(r0); r2 = relu(r1)\n{between}\
             t = all_reduce(b, sum, W:2); v = wait(t)\noutput(r2, q, v)\n"
        )
    } else {
        format!(
            "{head}{between}m0 = relu(b); m1 = relu(m0); m2 = relu(m1)\n\
             t = all_reduce(m2, sum, W:2); v = wait(t)\noutput(w, q, v)\n"
        )
    }
}

fn folder() -> Folder {
    let folder = Folder::with("early.bkt", graph(true));
    folder.write("late.bkt", graph(false));
    folder
}

#[test]
fn graphs_rewritten_together_agree_where_graphs_rewritten_apart_do_not() {
    let folder = folder();
    for (graph, out) in [("early.bkt", "apart0.bkt"), ("late.bkt", "apart1.bkt")] {
        folder
            .run(&format!("rewrite {graph} --all-reduce none -o {out}"))
            .expect(0, &["ranks have graphs of their own"]);
    }
    folder.run("check-ranks apart0.bkt apart1.bkt").expect(1, &[]);
    let ran = folder.run("rewrite early.bkt late.bkt --all-reduce none -o rank{rank}.bkt");
    let ran = ran.expect(0, &["rank 0:", "rank 1:", "proven equal"]);
    assert_eq!(ran.out(), "");
    folder.run("check-ranks rank0.bkt rank1.bkt").expect(0, &[]);
    folder.run("verify early.bkt rank0.bkt --launches-may-move --eval").expect(0, &[]);
    assert!(folder.read("rank1.bkt").contains("members=[s, t]"));
}

#[test]
fn ranks_of_which_the_same_is_to_be_said_are_named_together() {
    let folder = folder();
    let ran = folder.run("rewrite early.bkt early.bkt --all-reduce none -o r{rank}.bkt").expect(0, &["ranks 0-1:"]);
    assert_eq!(ran.talk().matches("nodes before").count(), 1, "{}", ran.talk());
    let alone = folder.run("rewrite early.bkt --all-reduce none");
    assert_eq!(folder.read("r0.bkt"), alone.out());
    assert_eq!(folder.read("r1.bkt"), alone.out());
}

#[test]
fn the_report_of_all_ranks_is_json_with_a_rank_for_each_graph() {
    let folder = folder();
    let ran = folder.run("rewrite early.bkt late.bkt --all-reduce none --json").expect(0, &[]);
    let json: serde_json::Value = serde_json::from_str(ran.out()).unwrap();
    let ranks: Vec<_> = json["graphs"].as_array().unwrap().iter().map(|graph| graph["rank"].as_u64()).collect();
    assert_eq!(ranks, [Some(0), Some(1)]);
    let alone = folder.run("rewrite early.bkt --json");
    let json: serde_json::Value = serde_json::from_str(alone.out()).unwrap();
    assert!(json["graphs"][0].get("rank").is_none());
}

#[test]
fn where_the_graphs_of_several_ranks_go_must_be_said() {
    let folder = folder();
    folder.run("rewrite early.bkt late.bkt").expect(2, &["{rank}"]);
    folder.run("rewrite early.bkt late.bkt -o out.bkt").expect(2, &["-o out.bkt", "`{rank}`"]);
    folder.run("rewrite - -").expect(2, &[]);
    assert!(!folder.path("out.bkt").exists());
}

#[test]
fn graphs_that_do_not_belong_together_leave_all_files_as_they_were() {
    let folder = folder();
    folder.write("other.bkt", graph(true).replace("b = input f32[8]", "b = input f32[9]"));
    folder.write("rank0.bkt", "old");
    let ran = folder.run("rewrite early.bkt other.bkt -o rank{rank}.bkt");
    ran.expect(1, &["W #1", "rank 0 launches `t`", "32 bytes", "rank 1", "36 bytes", "early.bkt", "other.bkt"]);
    let two = format!("{}\n{}", FX, FX);
    folder.write("two.txt", two);
    folder.write("one.txt", FX);
    folder.run("rewrite one.txt two.txt -o rank{rank}.bkt").expect(1, &["rank 0 has 1 graph, this one has 2"]);
    // One of the places cannot be written.
    folder.write("rank1.bkt", "old");
    std::fs::create_dir(folder.path("x1.bkt")).unwrap();
    folder.write("x0.bkt", "old");
    folder.run("rewrite early.bkt late.bkt -o x{rank}.bkt").expect(2, &["cannot write x1.bkt"]);
    assert_eq!(folder.read("rank0.bkt"), "old");
    assert_eq!(folder.read("x0.bkt"), "old");
}

#[test]
fn a_group_of_unknown_members_is_asked_for() {
    let text = "x = input f32[8]; y = input f32[8]\ns = all_reduce(x, sum, G:2); w = wait(s)\noutput(w)\n";
    let folder = Folder::with("g.bkt", text);
    folder.write("groups.json", r#"{"G": [[0, 1], [2, 3]]}"#);
    let files = "g.bkt g.bkt g.bkt g.bkt -o r{rank}.bkt";
    folder.run(&format!("rewrite {files}")).expect(2, &["members of group `G`", "--groups"]);
    folder.run(&format!("rewrite {files} --groups groups.json")).expect(0, &["ranks 0-3:"]);
}
