//! Programs of torch.export through the commands.

use crate::support::Folder;

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(kit::root().join("fixtures/export").join(name)).unwrap()
}

#[test]
fn an_archive_is_rewritten_in_its_place_and_proven() {
    let archive = fixture("tiny.pt2");
    let folder = Folder::with("m.pt2", &archive);
    folder.run("inspect m.pt2").expect(0, &[]);
    folder.run("convert m.pt2 same.pt2").expect(0, &[]);
    assert!(std::fs::read(folder.path("same.pt2")).unwrap() == archive);
    folder.run("rewrite m.pt2 -o m.pt2").expect(0, &["proven equal"]);
    let ran = folder.run("verify same.pt2 m.pt2").expect(0, &[]);
    assert!(ran.out().contains("4 collectives before, 2 after"), "{}", ran.out());
    let ran = folder.run_with("inspect - --json", &std::fs::read(folder.path("m.pt2")).unwrap()).expect(0, &[]);
    assert!(ran.out().contains("bucketed_all_gather"), "{}", ran.out());
    assert_eq!(folder.files(), ["m.pt2", "same.pt2"]);
}

#[test]
fn a_model_json_goes_through_all_commands() {
    let folder = Folder::with("model.json", fixture("small_ws4.model.json"));
    folder.run("rewrite model.json -o merged.json").expect(0, &["proven equal"]);
    folder.run("verify model.json merged.json").expect(0, &[]);
    folder.run("convert merged.json merged.bkt").expect(0, &["weights, signature"]);
    folder.run("verify model.json merged.bkt").expect(0, &[]);
    folder.run("lower merged.json -o program.txt").expect(0, &[]);
    folder.run("run model.json").expect(0, &[]);
    folder.run("convert merged.bkt merged.pt2").expect(1, &["a program of torch.export is made from one only"]);
    folder.run("rewrite model.json --permute none").expect(2, &["no operator for several permutes"]);
}

#[test]
fn a_schema_that_is_not_known_is_told_with_its_place() {
    let text = String::from_utf8(fixture("small_ws4.model.json")).unwrap().replace("\"major\": 8", "\"major\": 9");
    let folder = Folder::with("model.json", text);
    folder
        .run("inspect model.json")
        .expect(1, &["schema version 9.20 is not supported; version 8 is", "model.json:1:"]);
    let mut archive = fixture("tiny.pt2");
    archive.truncate(9000);
    folder.write("m.pt2", archive);
    folder.run("inspect m.pt2").expect(1, &["no end record; is the file cut off?", "m.pt2"]);
}

#[test]
fn names_of_members_are_never_paths() {
    let swapped = |bytes: Vec<u8>, from: &[u8], to: &[u8]| {
        assert_eq!(from.len(), to.len());
        let mut out = bytes;
        let mut at = 0;
        while let Some(found) = out[at..].windows(from.len()).position(|window| window == from) {
            at += found;
            out[at..at + to.len()].copy_from_slice(to);
        }
        out
    };
    let archive = swapped(fixture("tiny.pt2"), b"tiny/byteorder", b"../../evil.txt");
    let archive = swapped(archive, b"tiny/archive_version", b"/bucketeer/evil.file");
    let folder = Folder::with("m.pt2", &archive);
    folder.run("rewrite m.pt2 -o out.pt2").expect(0, &["proven equal"]);
    // Members are copied under the names that they have, and nothing is written beside the output.
    assert_eq!(folder.files(), ["m.pt2", "out.pt2"]);
    assert!(!folder.path("../../evil.txt").exists() && !std::path::Path::new("/bucketeer/evil.file").exists());
    let out = std::fs::read(folder.path("out.pt2")).unwrap();
    assert!(out.windows(14).any(|window| window == b"../../evil.txt"));
}
