//! Starts this test again, under `mpirun`.

use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Set in the processes that tests start: what a rank does.
const TASK: &str = "BUCKETEER_MPI_TASK";

/// How a run ended.
pub struct Run {
    pub success: bool,
    pub text: String,
}

impl Run {
    pub fn assert_success(self) {
        assert!(self.success, "{}", self.text);
    }
}

/// What this process is to do, if a test started it.
pub fn task() -> Option<String> {
    std::env::var(TASK).ok()
}

/// The command and its options.
fn mpirun() -> (String, &'static [&'static str]) {
    static FOUND: OnceLock<(String, &'static [&'static str])> = OnceLock::new();
    let find = || {
        let name = std::env::var("BUCKETEER_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned());
        let version = Command::new(&name).arg("--version").output();
        let version = version.unwrap_or_else(|error| panic!("{name}: {error}; name another in BUCKETEER_MPIRUN"));
        let is_open_mpi = text(&version).contains("Open MPI");
        (name, if is_open_mpi { &["--allow-run-as-root", "--oversubscribe", "--timeout", "120"][..] } else { &[] })
    };
    FOUND.get_or_init(find).clone()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn run(mut command: Command, task: &str) -> Run {
    // One at a time: there may be two processors.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    command.env(TASK, task).env("MPIEXEC_TIMEOUT", "120");
    let output = command.output().expect("the command was found before");
    Run { success: output.status.success(), text: text(&output) }
}

/// The task on so many ranks.
pub fn under_mpirun(task: &str, ranks: u32) -> Run {
    let (name, options) = mpirun();
    let mut command = Command::new(name);
    command.args(options).args(["-n", &ranks.to_string()]);
    let again = kit::again("mpi", "rank");
    command.arg(again.get_program()).args(again.get_args());
    run(command, task)
}

/// The task in a process that `mpirun` does not start.
pub fn alone(task: &str) -> Run {
    let command = kit::again("mpi", "rank");
    run(command, task)
}
