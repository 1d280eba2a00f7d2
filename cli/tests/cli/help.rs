//! What the tool says of itself: its version and its help.

use crate::support::Folder;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The commit, where this is a checkout of the project.
fn commit() -> Option<String> {
    let ran = Command::new("git")
        .args(["rev-parse", "--show-prefix", "--short=12", "HEAD"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let told = String::from_utf8(ran.ok().filter(|ran| ran.status.success())?.stdout).unwrap();
    told.strip_prefix("cli/\n").map(|commit| commit.trim_end().to_owned())
}

#[test]
fn the_version_names_commit_and_features_and_its_short_form_does_not() {
    let folder = Folder::new();
    let version = env!("CARGO_PKG_VERSION");
    let features = if cfg!(feature = "mpi") { "mpi" } else { "none" };
    let commit = commit().map_or_else(String::new, |commit| format!("{commit}, "));
    let ran = folder.run("--version").expect(0, &[]);
    assert_eq!(ran.out(), format!("bucketeer {version} ({commit}features: {features})\n"));
    assert_eq!(folder.run("-V").expect(0, &[]).out(), format!("bucketeer {version}\n"));
}

#[test]
fn help_opens_with_what_the_tool_does() {
    let folder = Folder::new();
    for option in ["--help", "-h"] {
        let ran = folder.run(option).expect(0, &[]);
        assert!(ran.out().starts_with("Merges the collectives of distributed training graphs"), "{}", ran.out());
        let before_usage = ran.out().split("\nUsage:").next().unwrap();
        assert!(before_usage.lines().all(|line| line.len() <= 110), "{before_usage}");
    }
}

#[test]
fn the_examples_of_the_help_run_as_they_stand() {
    let folder = Folder::new();
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let help = folder.run("--help").expect(0, &[]);
    let (_, examples) = help.out().split_once("\nExamples:\n").expect("a section of examples");
    let commands: Vec<&str> = examples.lines().filter_map(|line| line.strip_prefix("    bucketeer ")).collect();
    assert_eq!(commands.len(), 3, "{examples}");
    for command in commands {
        let fixture = command.split(' ').find(|word| word.starts_with("fixtures/")).expect("a file of the project");
        let copy = folder.path(fixture);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(project.join(fixture), copy).unwrap();
        folder.run(command).expect(0, &[]);
    }
    assert_eq!(folder.files(), ["fixtures", "graph.svg", "merged.hlo", "merged.txt"]);
}
