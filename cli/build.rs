//! What `bucketeer --version` says: the version, the commit that is built, and the features.
//!
//! The commit is left out where it is not to be had: without git, and of sources that were packaged or copied into
//! another repository.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where this package lies in its own repository. Anywhere else, the commit around it is another project's.
const OWN_FOLDER: &str = "cli/";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let mut parts: Vec<String> = commit().into_iter().collect();
    parts.push(format!("features: {}", features()));
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo:rustc-env=BUCKETEER_LONG_VERSION={version} ({})", parts.join(", "));
}

/// The features that are on, as Cargo tells build scripts.
fn features() -> String {
    let name = |(name, _): (String, String)| {
        let feature = name.strip_prefix("CARGO_FEATURE_")?.to_lowercase().replace('_', "-");
        (feature != "default").then_some(feature)
    };
    let mut features: Vec<String> = std::env::vars().filter_map(name).collect();
    features.sort();
    if features.is_empty() { "none".to_owned() } else { features.join(", ") }
}

/// The commit, if this is a checkout of it; Cargo is told to ask again when that changes.
fn commit() -> Option<String> {
    let told = git(&["rev-parse", "--show-prefix", "--short=12", "HEAD"])?;
    let (folder, commit) = told.split_once('\n')?;
    if folder != OWN_FOLDER {
        return None;
    }
    watch("HEAD");
    // On a branch the commit stands in the branch's own file, or in one for many.
    if let Some(branch) = git(&["symbolic-ref", "-q", "HEAD"])
        && !watch(&branch)
    {
        watch("packed-refs");
    }
    Some(commit.to_owned())
}

/// Tells Cargo to run this again when a file of the repository changes, or appears; whether it is there.
fn watch(name: &str) -> bool {
    let Some(path) = git(&["rev-parse", "--git-path", name]).map(PathBuf::from) else { return false };
    // What is not there would count as changed at every build; a folder changes when a file appears in it.
    if let Some(nearest) = path.ancestors().find(|nearest| nearest.exists()) {
        println!("cargo:rerun-if-changed={}", nearest.display());
    }
    path.exists()
}

/// What git says, run in this package's folder; none if it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR")?;
    let mut command = Command::new("git");
    command.args(arguments).current_dir(Path::new(&folder));
    // Hooks of git set these for their own work; the folder alone says which repository is meant.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(variable);
    }
    let ran = command.output().ok().filter(|ran| ran.status.success())?;
    Some(String::from_utf8(ran.stdout).ok()?.trim_end().to_owned())
}
