//! Runs the real binary in a folder of its own.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Five all-reduces of 10, 30, 5, 5 and 5 MB.
pub const REDUCES: &str = "\
x0 = input f32[2500000]
x1 = input f32[7500000]
x2 = input f32[1250000]
x3 = input f32[1250000]
x4 = input f32[1250000]
s0 = all_reduce(x0, sum, G0:2); w0 = wait(s0)
s1 = all_reduce(x1, sum, G0:2); w1 = wait(s1)
s2 = all_reduce(x2, sum, G0:2); w2 = wait(s2)
s3 = all_reduce(x3, sum, G0:2); w3 = wait(s3)
s4 = all_reduce(x4, sum, G0:2); w4 = wait(s4)
output(w0, w1, w2, w3, w4)
";

/// Two gathers, as PyTorch prints them.
pub const FX: &str = "\
class GraphModule(torch.nn.Module):
    def forward(self, a: \"f32[4][1]cuda:0\", b: \"f32[4][1]cuda:0\"):
        g: \"f32[8][1]cuda:0\" = torch.ops._c10d_functional.all_gather_into_tensor.default(a, 2, '0');  a = None
        w: \"f32[8][1]cuda:0\" = torch.ops._c10d_functional.wait_tensor.default(g);  g = None
        h: \"f32[8][1]cuda:0\" = torch.ops._c10d_functional.all_gather_into_tensor.default(b, 2, '0');  b = None
        v: \"f32[8][1]cuda:0\" = torch.ops._c10d_functional.wait_tensor.default(h);  h = None
        s: \"f32[8][1]cuda:0\" = torch.ops.aten.add.Tensor(w, v);  w = v = None
        return (s,)
";

/// What a launcher tells a rank.
pub const LAUNCHER_VARIABLES: [&str; 7] =
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "BUCKETEER_SECRET"];

/// A folder that goes with its test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A folder with one file.
    pub fn with(name: &str, content: impl AsRef<[u8]>) -> Self {
        let folder = Self::new();
        folder.write(name, content);
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Names of the files in it.
    pub fn files(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(&self.0).unwrap().map(name).collect();
        names.sort();
        names
    }

    /// `bucketeer` in the folder; words are split at spaces.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bucketeer"));
        command.args(line.split_whitespace()).current_dir(&self.0);
        command
    }

    /// Runs `bucketeer` with variables, and without those that a launcher around the tests may have set.
    pub fn run_in<'a>(&self, variables: impl IntoIterator<Item = (&'a str, &'a Path)>, line: &str) -> Ran {
        let mut command = self.command(line);
        for name in LAUNCHER_VARIABLES {
            command.env_remove(name);
        }
        Ran(command.envs(variables).output().unwrap())
    }

    /// Runs `bucketeer` in the folder; words are split at spaces.
    pub fn run(&self, line: &str) -> Ran {
        self.run_with(line, b"")
    }

    pub fn run_with(&self, line: &str, stdin: &[u8]) -> Ran {
        let mut child =
            self.command(line).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A command that fails early does not read its input.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        Ran(child.wait_with_output().unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a run left.
pub struct Ran(Output);

impl Ran {
    pub fn code(&self) -> i32 {
        self.0.status.code().unwrap()
    }

    pub fn out(&self) -> &str {
        std::str::from_utf8(&self.0.stdout).unwrap()
    }

    pub fn talk(&self) -> &str {
        std::str::from_utf8(&self.0.stderr).unwrap()
    }

    /// Asserts the exit code and that stderr holds each of the parts.
    #[track_caller]
    pub fn expect(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code(), code, "{}", self.talk());
        for part in parts {
            assert!(self.talk().contains(part), "no `{part}` in:\n{}", self.talk());
        }
        self
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
