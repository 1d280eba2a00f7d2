//! `exec`: a program of one's own in the place of bucketeer.

use crate::ExitStatus;
use anyhow::{Context, Result, anyhow};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Runs another program in the place of bucketeer: under `launch`, as one of its ranks
///
/// `bucketeer launch --nproc 4 -- exec ./train --steps 100` starts four processes of `./train`. Each finds its rank in RANK,
/// WORLD_SIZE and so on, as `launch` says, and ends when the launcher does. The program should end with a code other than 0 and 1
/// when it fails, so that the others are ended, too.
#[derive(Debug, clap::Args)]
pub struct ExecArgs {
    /// The program, and all of its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the command, and comes back only if it cannot be run.
pub fn run(arguments: &ExecArgs) -> Result<ExitStatus> {
    let (program, words) = arguments.command.split_first().ok_or_else(|| anyhow!("no program is named"))?;
    // What `launch` asked of the system for this process holds on.
    let error = Command::new(program).args(words).exec();
    Err(error).with_context(|| format!("`{}` cannot be run", program.to_string_lossy()))
}
