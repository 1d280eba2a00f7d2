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
    folder.run("inspect g.txt --dot --permute 1MB").expect(2, &["no word for several permutes"]);
}

#[test]
fn a_graph_that_is_not_well_formed_is_not_drawn() {
    let folder = Folder::with("g.bkt", "a = input f32[8]\ng = all_gather(a, G:2) : f32[9]\nw = wait(g)\noutput(w)\n");
    let ran = folder.run("inspect g.bkt --svg").expect(1, &["g.bkt:2"]);
    assert_eq!(ran.out(), "");
}
