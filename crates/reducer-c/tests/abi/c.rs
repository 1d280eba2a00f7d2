//! A program in C, compiled with the system's compiler and linked with the library as it is built for this test.
//!
//! Cargo builds the library of a package, with all its crate types, before the tests of that package, and leaves it beside
//! them: so the test's own folder has it, of the same profile and features, and never an old one.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of this test, with the libraries.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Whether there is a compiler; says so if there is none.
fn has(compiler: &str) -> bool {
    let found = Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: there is no `{compiler}`, so nothing was compiled with it");
    }
    found
}

/// Compiles the program with flags for the linker, runs it, and returns what it prints.
fn run(name: &str, link: &[String]) -> String {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread", "-o"]).arg(&program);
    compile.arg("-I").arg(root().join("include")).arg(root().join("tests/c/reduce.c")).args(link);
    let compiled = compile.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn agree() -> String {
    format!("2 ranks of bucketeer {} agree\n", env!("CARGO_PKG_VERSION"))
}

#[cfg(unix)]
#[test]
fn a_program_in_c_reduces_with_the_shared_library() {
    let folder = libraries();
    let name = format!("{}bucketeer_reducer_c{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let library = folder.join(name);
    assert!(library.exists(), "{} is not beside this test", library.display());
    if has("cc") {
        let run_path = format!("-Wl,-rpath,{}", folder.display());
        let link = ["-L".to_owned(), folder.display().to_string(), "-lbucketeer_reducer_c".to_owned(), run_path];
        assert_eq!(run("reduce-shared", &link), agree());
    }
}

/// What Rust's own library needs elsewhere is another list.
#[cfg(target_os = "linux")]
#[test]
fn a_program_in_c_reduces_with_the_static_library() {
    let library = libraries().join("libbucketeer_reducer_c.a");
    assert!(library.exists(), "{} is not beside this test", library.display());
    if has("cc") {
        let mut link = vec![library.display().to_string()];
        link.extend(["-lgcc_s", "-lutil", "-lrt", "-lm", "-ldl"].map(str::to_owned));
        assert_eq!(run("reduce-static", &link), agree());
    }
}

#[test]
fn the_header_is_also_one_of_cpp() {
    let header = root().join("include/bucketeer_reducer.h");
    assert!(header.exists());
    if has("c++") {
        let mut compile = Command::new("c++");
        compile.args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"]).arg(&header);
        let compiled = compile.output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    }
}

#[test]
fn the_readme_shows_the_program_that_is_tested() {
    let program = std::fs::read_to_string(root().join("tests/c/reduce.c")).unwrap();
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let mut shown = 0;
    for part in program.split("// [README\n").skip(1) {
        let (part, _) = part.split_once("    // README]").unwrap();
        let lines: Vec<&str> = part.lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
        assert!(readme.contains(&lines.join("\n")), "README.md does not show:\n{}", lines.join("\n"));
        shown += 1;
    }
    assert_eq!(shown, 2);
}
