//! What tests and benches share: where files lie, random graphs, laws for every rewrite, planted faults, plain references,
//! and the fake GPU.
//!
//! Everything here panics where something is not as it should be, since that is how a test fails.

pub mod collective;
pub mod fakegpu;
pub mod files;
pub mod filetests;
pub mod nccl_threads;
pub mod planted;
pub mod random;
pub mod rewrite;
pub mod stores;
pub mod stress;

pub use insta;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The project's root, with `fixtures`, `tests` and `docs`.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this is testing/kit")
}

/// A folder in the target folder for what tests write.
pub fn scratch() -> PathBuf {
    // A test is TARGET/PROFILE/deps/NAME.
    let test = std::env::current_exe().expect("a test knows where it is");
    let folder = test.ancestors().nth(3).expect("a test is in a target folder").join("tmp");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    folder
}

/// The test executable that runs, to be started again for one of its tests: `again(module_path!(), "child")`.
///
/// The test is also run if it is one of those that are usually left out, and what it prints is seen.
pub fn again(module: &str, test: &str) -> Command {
    // Tests are listed without the name of their executable, which is where the path of a module begins.
    let name = match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    };
    let mut command = Command::new(std::env::current_exe().expect("a test knows where it is"));
    command.args(["--exact", &name, "--nocapture", "--include-ignored"]);
    command
}

/// Where snapshots lie, whichever file asks.
pub fn snapshots() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(root().join("tests/snapshots"));
    settings
}

/// `insta::assert_snapshot!` on the files of `tests/snapshots`.
#[macro_export]
macro_rules! assert_snapshot {
    ($($arguments:tt)*) => {{
        let _bound = $crate::snapshots().bind_to_scope();
        $crate::insta::assert_snapshot!($($arguments)*);
    }};
}

/// `insta::assert_debug_snapshot!` on the files of `tests/snapshots`.
#[macro_export]
macro_rules! assert_debug_snapshot {
    ($($arguments:tt)*) => {{
        let _bound = $crate::snapshots().bind_to_scope();
        $crate::insta::assert_debug_snapshot!($($arguments)*);
    }};
}
