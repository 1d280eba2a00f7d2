//! How much is said, and in which colours: `--quiet`, `--color` and `rewrite --dry-run`.

use crate::support::{FX, Folder, REDUCES, Ran};
use std::path::Path;

#[test]
fn quiet_says_nothing_of_what_went_well_and_changes_no_output() {
    let folder = Folder::with("g.bkt", REDUCES);
    let loud = folder.run("rewrite g.bkt --explain --stats").expect(0, &["no cap given", "proven equal", "time:"]);
    for line in ["rewrite g.bkt --explain --stats -q", "--quiet rewrite g.bkt", "rewrite -q g.bkt --all-reduce 12TiB"] {
        assert_eq!(folder.run(line).expect(0, &[]).talk(), "", "{line}");
    }
    assert_eq!(folder.run("rewrite g.bkt -q").out(), loud.out());
    folder.run("inspect g.bkt").expect(0, &["warning: graph"]);
    assert_eq!(folder.run("inspect g.bkt -q").talk(), "");
    assert_eq!(folder.run("lower g.bkt -q").expect(0, &[]).talk(), "");
    // Given twice, as by an alias and by hand.
    assert_eq!(folder.run("-q -q rewrite g.bkt").expect(0, &[]).talk(), "");
}

#[test]
fn quiet_still_says_errors_and_what_is_wrong_with_a_result() {
    let folder = Folder::with("g.bkt", REDUCES);
    folder.run("-q rewrite missing.bkt").expect(2, &["error: cannot read missing.bkt"]);
    folder.run("rewrite g.bkt -q --all-reduce 0").expect(2, &["error: --all-reduce `0`"]);
    folder.write("lost.bkt", "a = input f32[8]\ng = all_gather(a, G:2)\noutput(a)\n");
    folder.run("inspect lost.bkt -q").expect(0, &["warning: graph `", "never waited for"]);
    folder.write("wrong.bkt", "a = input f32[8]\ng = all_gather(a, G:2) : f32[9]\nw = wait(g)\noutput(w)\n");
    folder.run("inspect wrong.bkt -q").expect(1, &["error: graph `"]);
}

#[cfg(unix)]
#[test]
fn quiet_goes_for_the_ranks_of_a_launch_too() {
    let folder = Folder::with("g.bkt", REDUCES);
    let line = "launch --nproc 2 -- rewrite g.bkt --dry-run";
    let run = |line: &str| folder.run_in([], line).expect(0, &[]);
    assert!(run(line).talk().contains("[rank 1] graph `"));
    assert_eq!(run(&format!("-q {line}")).talk(), "");
    assert_eq!(run(&format!("{line} -q")).talk(), "");
    assert_eq!(run("-q launch --nproc 2 -- -q rewrite g.bkt --dry-run").talk(), "");
}

const PAINT: &str = "\u{1b}[";

/// Runs with NO_COLOR and CLICOLOR_FORCE; empty is as good as not set.
fn run_with(folder: &Folder, no_color: &str, force: &str, line: &str) -> Ran {
    folder.run_in([("NO_COLOR", Path::new(no_color)), ("CLICOLOR_FORCE", Path::new(force))], line)
}

#[test]
fn colours_are_on_and_off_as_asked_for_whatever_the_environment_says() {
    let folder = Folder::with("g.bkt", REDUCES);
    for line in ["rewrite missing.bkt", "rewrite --no-such-option", "rewrite g.bkt --all-reduce 0"] {
        let always = run_with(&folder, "1", "", &format!("--color always {line}"));
        assert!(always.talk().starts_with(PAINT) && always.talk().contains("error:"), "{}", always.talk());
        let never = run_with(&folder, "", "1", &format!("--color=never {line}"));
        assert!(!never.talk().contains(PAINT) && never.talk().starts_with("error: "), "{}", never.talk());
    }
    assert!(run_with(&folder, "", "", "--color always --help").out().contains(PAINT));
    assert!(!run_with(&folder, "", "1", "--color never --help").out().contains(PAINT));
    run_with(&folder, "", "", "--color blue rewrite g.bkt").expect(2, &["invalid value 'blue'", "auto, always, never"]);
}

#[test]
fn unasked_colours_follow_the_terminal_and_the_environment() {
    let folder = Folder::new();
    // What is said here goes to a pipe.
    for (no_color, force, painted) in [("", "", false), ("", "1", true), ("1", "", false), ("1", "1", false)] {
        for line in ["rewrite missing.bkt", "rewrite --no-such-option"] {
            let ran = run_with(&folder, no_color, force, line);
            assert_eq!(ran.talk().contains(PAINT), painted, "{no_color:?} {force:?} {}", ran.talk());
        }
    }
}

#[test]
fn machines_get_no_colours_though_people_do() {
    let folder = Folder::with("g.bkt", REDUCES);
    let ran = folder.run("rewrite g.bkt --all-reduce 12TiB --color always").expect(0, &[PAINT, "warning:"]);
    assert_eq!(ran.out(), folder.run("rewrite g.bkt --all-reduce 12TiB").out());
}

#[test]
fn a_dry_run_says_all_and_writes_nothing() {
    let folder = Folder::with("g.txt", FX);
    let real = folder.run("rewrite g.txt --explain -o real.txt").expect(0, &["proven equal"]);
    let dry = folder.run("rewrite g.txt --explain -o dry.txt --dry-run").expect(0, &[]);
    assert_eq!(dry.talk(), format!("{}dry run: nothing was written to dry.txt\n", real.talk()));
    let dry = folder.run("rewrite g.txt --dry-run").expect(0, &["dry run: nothing was written to standard output"]);
    assert_eq!(dry.out(), "");
    let before = folder.read("g.txt");
    folder.run("rewrite g.txt -o g.txt --to native --dry-run").expect(0, &[]);
    assert_eq!((folder.read("g.txt"), folder.files()), (before, vec!["g.txt".to_owned(), "real.txt".to_owned()]));
}

#[test]
fn a_dry_run_of_several_ranks_writes_none_of_their_files() {
    let folder = Folder::with("0.txt", FX);
    folder.write("1.txt", FX);
    let line = "rewrite 0.txt 1.txt --groups groups.json -o out{rank}.txt";
    folder.write("groups.json", r#"{"0": [[0, 1]]}"#);
    folder
        .run(&format!("{line} --dry-run"))
        .expect(0, &["proven equal", "dry run: nothing was written to out{rank}.txt"]);
    assert_eq!(folder.files(), ["0.txt", "1.txt", "groups.json"]);
    folder.run(line).expect(0, &[]);
    assert_eq!(folder.files().len(), 5);
}

#[test]
fn a_dry_run_ends_as_the_run_would() {
    let folder = Folder::with("g.bkt", REDUCES);
    folder.write("broken.bkt", "a = input f32[8]\nb = nothing(c)\n");
    for line in ["broken.bkt", "missing.bkt", "g.bkt -o no/such/folder.bkt", "g.bkt -o .", "g.bkt --to hlo -o g.hlo"] {
        let (real, dry) = (folder.run(&format!("rewrite {line}")), folder.run(&format!("rewrite {line} --dry-run")));
        assert!(real.code() != 0, "{line}");
        assert_eq!((dry.code(), dry.talk()), (real.code(), real.talk()), "{line}");
    }
    folder.run("rewrite g.bkt --dry-run --json").expect(2, &["cannot be used with"]);
}
