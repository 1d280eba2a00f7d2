//! Files that cannot be read or written: exit code 2, with the path and the reason; what stood there stays.

use crate::support::{Folder, REDUCES};
use std::io::Read;
use std::process::{Command, Stdio};

#[test]
fn a_missing_file_and_a_folder_cannot_be_read() {
    let folder = Folder::new();
    for command in ["rewrite no.txt", "inspect no.txt", "convert no.txt out.json"] {
        folder.run(command).expect(2, &["error: cannot read no.txt: No such file"]);
    }
    folder.run("rewrite .").expect(2, &["error: cannot read .: Is a directory"]);
    assert!(folder.files().is_empty());
}

#[test]
fn an_output_that_cannot_be_written_is_said_and_the_old_file_stays() {
    let folder = Folder::with("g.txt", REDUCES);
    folder.run("rewrite g.txt -o no/such/out.txt").expect(2, &["error: cannot write no/such/out.txt: No such file"]);
    folder.run("rewrite g.txt -o .").expect(2, &["error: cannot write ."]);
    folder.write("file", "old");
    folder.run("rewrite g.txt -o file/out.txt").expect(2, &["cannot write file/out.txt", "Not a directory"]);
    assert_eq!(folder.read("file"), "old");
    assert_eq!(folder.files(), ["file", "g.txt"]);
}

#[test]
fn a_fault_of_the_input_leaves_the_old_output() {
    let folder = Folder::with("g.txt", "x = relu(");
    folder.write("out.txt", "old");
    folder.run("rewrite g.txt -o out.txt").expect(1, &["g.txt:1:"]);
    folder.run("convert g.txt out.txt").expect(1, &["g.txt:1:"]);
    assert_eq!(folder.read("out.txt"), "old");
    assert_eq!(folder.files(), ["g.txt", "out.txt"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said() {
    let folder = Folder::with("g.txt", REDUCES);
    folder.run("rewrite g.txt -o /dev/full").expect(2, &["error: cannot write /dev/full: No space left"]);
    folder.run("rewrite g.txt -o /dev/null").expect(0, &[]);
}

#[cfg(unix)]
#[test]
fn links_stay_links_and_modes_stay_modes() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = Folder::with("g.txt", REDUCES);
    folder.write("out.txt", "old");
    std::fs::set_permissions(folder.path("out.txt"), std::fs::Permissions::from_mode(0o640)).unwrap();
    symlink("out.txt", folder.path("link.txt")).unwrap();
    folder.run("rewrite g.txt -o link.txt").expect(0, &[]);
    assert!(std::fs::symlink_metadata(folder.path("link.txt")).unwrap().is_symlink());
    assert!(folder.read("out.txt").contains("output("));
    assert_eq!(std::fs::metadata(folder.path("out.txt")).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    // More than a pipe holds, so that writing has to fail.
    let many: String = (0..5000).map(|n| format!("value_number_{n} = input f32[8]\n")).collect();
    let folder = Folder::with("g.txt", many);
    for arguments in [&["rewrite", "g.txt"][..], &["convert", "g.txt", "-", "--to", "json"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_bucketeer"))
            .args(arguments)
            .current_dir(folder.path(""))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 8];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(!String::from_utf8_lossy(&output.stderr).contains("error"));
    }
}
