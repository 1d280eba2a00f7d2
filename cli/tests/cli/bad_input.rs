//! Input at fault: exit code 1, with the place, the line and what was expected. Nothing is written.

use crate::support::{FX, Folder, REDUCES, gzip};

/// Every line of an error fits a wide terminal.
#[track_caller]
fn assert_short(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() < 240, "{} columns", line.chars().count());
    }
}

#[track_caller]
fn refuse(content: impl AsRef<[u8]>, parts: &[&str]) {
    let folder = Folder::with("g.txt", content);
    for command in ["rewrite g.txt -o out.txt", "inspect g.txt", "convert g.txt out.json"] {
        let ran = folder.run(command).expect(1, &["error: ", "g.txt"]).expect(1, parts);
        assert_eq!(ran.out(), "");
        assert_short(ran.talk());
    }
    assert_eq!(folder.files(), ["g.txt"]);
}

#[test]
fn a_truncated_file_is_refused_where_it_ends() {
    let cut = FX.find("  h = None").unwrap();
    refuse(&FX[..cut - 40], &["g.txt:6:", "^ expected"]);
    refuse("x = input f32[8]\ny = relu(x", &["g.txt:2:11", "^ expected"]);
}

#[test]
fn what_is_no_graph_at_all_is_refused() {
    refuse(
        "dear diary,\ntoday I\n",
        &["neither FX text, HLO text, a program of torch.export, native text nor JSON", "g.txt:1:1", "dear diary,"],
    );
    refuse([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0xff, 0xfe], &["not UTF-8"]);
}

#[test]
fn an_empty_file_is_refused() {
    refuse("", &["it is empty"]);
    refuse("\n \n", &["it is empty"]);
}

#[test]
fn a_use_before_the_definition_is_refused() {
    refuse("x = input f32[8]\ns = all_reduce(z, sum, G:2)\nz = relu(x)\n", &["g.txt:2:16", "a value defined before"]);
    let fx = FX.replace("aten.add.Tensor(w, v)", "aten.add.Tensor(w, later)");
    refuse(fx, &["g.txt:7:", "later"]);
}

#[test]
fn a_name_given_twice_is_refused() {
    refuse("x = input f32[8]\nx = relu(x)\n", &["g.txt:2:1", "x"]);
}

#[test]
fn a_type_that_does_not_parse_is_refused() {
    refuse("x = input q32[8]\n", &["g.txt:1:", "q32"]);
    refuse(FX.replace("a: \"f32[4][1]cuda:0\"", "a: \"f32[4\""), &["g.txt:2:"]);
}

#[test]
fn a_size_that_overflows_is_refused() {
    refuse("x = input f32[9223372036854775807, 16]\n", &["g.txt:1:"]);
    refuse(FX.replace("a: \"f32[4]", "a: \"f32[99999999999999999999]"), &["g.txt:2:"]);
}

#[test]
fn nesting_a_hundred_thousand_deep_is_refused() {
    let deep = "(".repeat(100_000);
    refuse(format!("x = input f32[8]\ny = relu{deep}\n"), &["g.txt:2:"]);
    refuse(FX.replace("aten.add.Tensor(", &format!("aten.add.Tensor({}", "[".repeat(100_000))), &["g.txt:7:"]);
    refuse("{\"format\":".to_owned() + &"[".repeat(100_000), &["g.txt:1:"]);
    refuse("region a {\n".repeat(100_000), &["g.txt:"]);
}

#[test]
fn of_a_long_line_with_a_fault_only_a_part_is_shown() {
    let list = "x, ".repeat(20_000);
    refuse(format!("x = input f32[8]\ny = f({list}%, {list}x)\n"), &["g.txt:2:60007", "...", "^ expected"]);
    let fx = FX.replace("aten.add.Tensor(w, v)", &format!("aten.add.Tensor([{}%])", "1, ".repeat(20_000)));
    refuse(fx, &["g.txt:7:", "^ expected"]);
}

#[test]
fn bytes_that_are_not_utf8_are_refused_where_they_stand() {
    refuse(b"x = input f32[8]\ny = relu(\xff)\n", &["g.txt:2:10", "UTF-8"]);
    let mut fx = FX.as_bytes().to_vec();
    fx[200] = 0xc0;
    refuse(fx, &["g.txt:3:", "UTF-8"]);
}

#[test]
fn gzip_that_is_cut_or_a_bomb_is_refused() {
    let mut cut = gzip(REDUCES.as_bytes());
    cut.truncate(cut.len() - 12);
    refuse(cut, &["does not decompress"]);
    refuse(gzip(&vec![b' '; 80 << 20]), &["decompress to more than"]);
}

#[test]
fn a_pending_input_of_a_collective_is_refused_with_both_names() {
    let text = "x = input f32[8]\ns = all_reduce(x, sum, G:2)\nr = all_reduce(s, sum, G:2)\nw = wait(r)\noutput(w)\n";
    let folder = Folder::with("g.txt", text);
    for command in ["rewrite g.txt", "inspect g.txt"] {
        let ran = folder.run(command).expect(1, &["`r` reads `s`", "pending", "g.txt:"]);
        assert_eq!(ran.out(), "");
    }
    folder.run("inspect g.txt --json").expect(1, &[]);
}

#[test]
fn a_graph_that_is_not_well_formed_is_shown_at_its_line() {
    // In the second graph of the file, though names are the same in the first, which has been rewritten by then.
    let fx = FX.replace("default(b, 2, '0')", "default(w, 2, '0')").replace("Tensor(w, v)", "Tensor(w, h)");
    let folder =
        Folder::with("g.txt", format!("{FX}{}", fx.replace("wait_tensor.default(h)", "wait_tensor.default(w)")));
    folder.run("rewrite g.txt").expect(1, &["graph `GraphModule`", "g.txt:13:9", "\n  13 |", "^"]);
    folder.write("g.txt", "# said first\nx = input f32[8]; y = relu(x)\nz = neg(y)\nafter(y, z)\noutput(z)\n");
    let expected = ["`y` has to run after `z`", "g.txt:2:19", "x = input f32[8]; y = relu(x)"];
    folder.run("rewrite g.txt").expect(1, &expected);
    folder.write("g.txt", "x = input f32[8]; w = wait(s)\ns = all_reduce(x, sum, G:2)\n");
    folder.run("rewrite g.txt").expect(1, &["found `s`", "g.txt:1:28", "expected a value defined before"]);
}

#[test]
fn faults_of_a_groups_file_name_it() {
    let folder = Folder::with("g.txt", REDUCES);
    for (groups, part) in [
        ("{\"G0\": [0, 1, 2]}", "group `G0` has 3 ranks, but operators of graph `graph` state 2"),
        ("{\"G0\": [0, 0]}", "holds rank 0 twice"),
        ("{\"G0\": [[0, 1], [2]]}", "expected as many"),
        ("{\"G0\": [0, -1]}", "found `-1`"),
        ("{", "not JSON"),
    ] {
        folder.write("groups.json", groups);
        folder.run("rewrite g.txt --groups groups.json").expect(1, &[part, "groups.json"]);
    }
    folder.write("groups.json", "{\"other\": [0]}");
    folder.run("inspect g.txt --groups groups.json").expect(0, &["lacks group `G0`"]);
    folder.run("inspect g.txt --groups no.json").expect(2, &["cannot read no.json"]);
}
