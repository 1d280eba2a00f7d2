//! `inspect --dot` and `--svg`.

use crate::support::{FX, Folder, REDUCES};

#[test]
fn colours_are_those_of_the_buckets_that_rewrite_would_make() {
    let folder = Folder::with("g.bkt", REDUCES);
    let ran = folder.run("inspect g.bkt --dot --all-reduce 25MB").expect(0, &[]);
    assert!(ran.out().starts_with("digraph"), "{}", ran.out());
    assert!(ran.out().contains("bucket 1: all_reduce, group G0, 4 members, 23.8 MiB"), "{}", ran.out());
    assert!(ran.out().contains("28.6 MiB\\ngroup G0, alone"), "{}", ran.out());
    assert_eq!(ran.out(), folder.run("inspect g.bkt --dot --all-reduce 25MB").out());
    let ran = folder.run("inspect g.bkt --dot --pipeline bucket-all-reduce{cap=15MB}").expect(0, &[]);
    assert!(ran.out().contains("5 collectives, 2 buckets"), "{}", ran.out());
    // As `rewrite` has it.
    folder.run("rewrite g.bkt --all-reduce 25MB -o merged.bkt").expect(0, &[]);
    let ran = folder.run("inspect merged.bkt --dot --all-reduce 25MB").expect(0, &[]);
    assert!(ran.out().contains("peripheries=2"), "{}", ran.out());
}

#[test]
fn a_picture_goes_to_a_file_or_to_stdout() {
    let folder = Folder::with("g.txt", FX);
    folder.run("inspect g.txt --svg -o out.svg").expect(0, &["no cap given"]);
    let ran = folder.run_with("inspect - --svg", FX.as_bytes()).expect(0, &[]);
    assert_eq!(ran.out(), folder.read("out.svg"));
    assert!(ran.out().starts_with("<svg xmlns"));
}

#[test]
fn options_of_a_picture_without_one_are_refused() {
    let folder = Folder::with("g.txt", FX);
    folder.run("inspect g.txt -o out.svg").expect(2, &["--dot or --svg"]);
    folder.run("inspect g.txt --all-gather 1MB").expect(2, &["--dot or --svg"]);
    folder.run("inspect g.txt --dot --svg").expect(2, &["cannot be used with"]);
    folder.run("inspect g.txt --lanes").expect(2, &["--svg"]);
    folder.run("inspect g.txt --dot --lanes").expect(2, &["cannot be used with"]);
    folder.run("inspect g.txt --json --lanes").expect(2, &["cannot be used with"]);
    folder.run("inspect g.txt --dot --permute 1MB").expect(2, &["no word for several permutes"]);
}

#[test]
fn lanes_are_drawn_of_what_is_drawn_as_boxes() {
    let folder = Folder::with("g.txt", FX);
    folder.run("inspect g.txt --svg --lanes -o out.svg").expect(0, &["no cap given"]);
    let ran = folder.run_with("inspect - --svg --lanes", FX.as_bytes()).expect(0, &[]);
    assert_eq!(ran.out(), folder.read("out.svg"));
    assert!(ran.out().starts_with("<svg xmlns") && ran.out().contains(">live bytes: peak "), "{}", ran.out());
    let merges = folder.run("inspect g.txt --svg --lanes --pipeline bucket-all-reduce").expect(0, &[]);
    assert!(!merges.out().is_empty() && merges.out() != ran.out());
}

#[test]
fn a_graph_that_is_not_well_formed_is_not_drawn() {
    let folder = Folder::with("g.bkt", "a = input f32[8]\ng = all_gather(a, G:2) : f32[9]\nw = wait(g)\noutput(w)\n");
    for form in ["--svg", "--svg --lanes"] {
        let ran = folder.run(&format!("inspect g.bkt {form}")).expect(1, &["g.bkt:2"]);
        assert_eq!(ran.out(), "", "{form}");
    }
}

/// Gathers and reduces in turn, so that the order of all buckets is not that of either kind.
const TWO_KINDS: &str = "\
a = input f32[1000]; b = input f32[1000]; c = input f32[1000]; d = input f32[1000]
s0 = all_reduce(a, sum, G:2); g0 = all_gather(a, G:2); g1 = all_gather(b, G:2)
s1 = all_reduce(b, sum, G:2); g2 = all_gather(c, G:2); g3 = all_gather(d, G:2)
s2 = all_reduce(c, sum, G:2); s3 = all_reduce(d, sum, G:2)
output(wait(s0), wait(s1), wait(s2), wait(s3), wait(g0), wait(g1), wait(g2), wait(g3))
";

#[test]
fn a_bucket_has_one_number_in_pictures_reports_and_json() {
    let folder = Folder::with("g.bkt", TWO_KINDS);
    let caps = "--all-gather 16000 --all-reduce 8000";
    let told = folder.run(&format!("rewrite g.bkt --explain --dry-run {caps}")).expect(0, &[]);
    let json = folder.run(&format!("rewrite g.bkt --json {caps}")).expect(0, &[]);
    let json: serde_json::Value = serde_json::from_str(json.out()).unwrap();
    let dot = folder.run(&format!("inspect g.bkt --dot {caps}")).expect(0, &[]);
    let svg = folder.run(&format!("inspect g.bkt --svg {caps}")).expect(0, &[]);
    let lanes = folder.run(&format!("inspect g.bkt --svg --lanes {caps}")).expect(0, &[]);
    let line = |text: &str, holds: &[&str]| {
        text.lines().find(|line| holds.iter().all(|part| line.contains(part))).unwrap_or_default().to_owned()
    };
    let remarks = json["graphs"][0]["remarks"].as_array().unwrap();
    assert_eq!(remarks.len(), 8);
    for remark in remarks {
        let (name, nth) = (remark["name"].as_str().unwrap(), &remark["merged"]["bucket"]);
        let words = format!("bucket {nth} of 2");
        let explained = line(told.talk(), &[&format!("  {name} ")]);
        assert!(explained.contains(&words), "{name}: {nth} in JSON, but {explained}");
        let drawn = line(dot.out(), &[&format!("[label=\"{name}\\n")]);
        assert!(drawn.contains(&format!("G, bucket {nth}\"")) && drawn.contains(&words), "{name}: {nth}, but {drawn}");
        let drawn = line(svg.out(), &[&format!(">{name}</text>")]);
        assert!(drawn.contains(&format!("G, bucket {nth}<")) && drawn.contains(&words), "{name}: {nth}, but {drawn}");
        let (_, told) = lanes.out().split_once(&format!("<title>{name}\n")).unwrap();
        let (told, _) = told.split_once("</g>").unwrap();
        assert!(told.contains(&words) && told.contains(&format!(">{nth} {name}</text>")), "{name}: {nth}, but {told}");
    }
}
