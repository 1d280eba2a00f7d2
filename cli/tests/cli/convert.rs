//! `convert` and `inspect`.

use crate::support::{FX, Folder, REDUCES, gzip};

#[test]
fn the_ending_of_the_output_decides_its_form() {
    let folder = Folder::with("g.txt", REDUCES);
    folder.run("convert g.txt a.json").expect(0, &[]);
    folder.run("convert a.json b.bkt").expect(0, &[]);
    folder.run("convert b.bkt c.py").expect(0, &[]);
    folder.run("convert c.py d.txt").expect(0, &[]);
    assert!(folder.read("a.json").starts_with('{'));
    assert!(folder.read("b.bkt").contains("s0 = all_reduce(x0, sum, G0:2)"));
    assert!(folder.read("c.py").contains("torch.ops._c10d_functional.all_reduce.default(x0, 'sum', 'G0')"));
    assert_eq!(folder.read("c.py"), folder.read("d.txt"));
}

#[test]
fn without_an_ending_the_form_has_to_be_said() {
    let folder = Folder::with("g.txt", FX);
    folder.run("convert g.txt -").expect(2, &["no form given", "--to"]);
    folder.run("convert g.txt out.xyz").expect(2, &["no form given", "out.xyz"]);
    let ran = folder.run("convert g.txt - --to native").expect(0, &[]);
    assert!(ran.out().contains("g = all_gather(a, 0:2)") || ran.out().contains("all_gather(a"), "{}", ran.out());
    let ran = folder.run_with("convert - - --to fx", &gzip(FX.as_bytes())).expect(0, &[]);
    assert_eq!(ran.out(), FX);
}

#[test]
fn what_fx_text_cannot_say_is_refused() {
    let text = "x = input f32[8, 2]\nregion loop(n=3) {\n s = all_reduce(x, sum, G:2); w = wait(s)\n}\n";
    let folder = Folder::with("g.txt", text);
    folder.run("convert g.txt out.py").expect(1, &["FX text has none", "g.txt"]);
    assert_eq!(folder.files(), ["g.txt"]);
}

#[test]
fn inspect_lists_collectives_with_their_depth_and_groups() {
    let text = "a = input f32[4]; b = input f32[4]
g = all_gather(a, G:2); w = wait(g)
s = reduce_scatter(relu(w), avg, G:2); v = wait(s)
output(v, b)
";
    let folder = Folder::with("g.txt", text);
    folder.write("groups.json", "{\"groups\": {\"G\": [[0, 2], [1, 3]]}}");
    let ran = folder.run("inspect g.txt --groups groups.json").expect(0, &["2 of 2 collectives move less than 30 MiB"]);
    for part in ["7 nodes, 2 collectives", "G: 2 ranks, [0, 2] [1, 3]", "below 64 KiB"] {
        assert!(ran.out().contains(part) || part.starts_with('7'), "no `{part}` in\n{}", ran.out());
    }
    let ran = folder.run("inspect g.txt --json").expect(0, &[]);
    let json: serde_json::Value = serde_json::from_str(ran.out()).unwrap();
    let found = &json["graphs"][0]["collectives"];
    assert_eq!((&found[0]["depth"], &found[1]["depth"]), (&0.into(), &1.into()));
    assert_eq!((&found[1]["op"], &found[1]["wait"], &found[1]["bytes"]), (&"avg".into(), &"v".into(), &32.into()));
}

#[test]
fn inspect_warns_of_collectives_in_branches() {
    let text = "f = input b8[]; x = input f32[8]\nregion if(f) {\n s = all_reduce(x, sum, G:2); w = wait(s)\n}\n";
    let folder = Folder::with("g.txt", text);
    folder.run("inspect g.txt").expect(0, &["region `if(f)` is a branch and holds collectives (s)"]);
}

#[test]
fn what_fx_text_leaves_out_is_said() {
    let text = "a = input f32[4] key=\"L1\"; b = input f32[4]
group P = [[0, 1], [2, 3]]
s = all_reduce(a, sum, P); w = wait(s)
g = all_gather(b, G:2); v = wait(g)
after(g, w)
output(v, w)
";
    let folder = Folder::with("g.txt", text);
    let ran = folder.run("convert g.txt out.py").expect(0, &["order edge (1)", "bucket boundary (1)"]);
    assert!(ran.talk().contains("group's size or members (1)"), "{}", ran.talk());
    let ran = folder.run("convert g.txt out.json").expect(0, &[]);
    assert_eq!(ran.talk(), "");
}
