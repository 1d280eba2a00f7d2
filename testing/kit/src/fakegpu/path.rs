//! Where `libfakegpu.so` is; also for tests and benches elsewhere in the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where the library is. The first call in a process builds it, which takes no time when it is built.
pub fn path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // This test is TARGET/PROFILE/deps/NAME.
        let test = std::env::current_exe().expect("a test knows where it is");
        let target = test.ancestors().nth(3).expect("a test is in a target folder");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--quiet", "-p", "fakegpu", "--target-dir"])
            .arg(target)
            .current_dir(crate::root())
            .env_remove("CARGO_BUILD_TARGET")
            .output();
        let library = target.join("debug/libfakegpu.so");
        match built {
            Ok(output) if output.status.success() => {}
            Ok(output) => panic!("fakegpu does not build:\n{}", String::from_utf8_lossy(&output.stderr)),
            // No cargo where the tests run: what was built before is used.
            Err(error) => {
                assert!(library.exists(), "{} is not there, and cargo cannot run: {error}", library.display())
            }
        }
        library
    })
}
