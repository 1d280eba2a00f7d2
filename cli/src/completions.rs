//! `completions`: what a shell needs to complete commands and options.

use crate::{ExitStatus, output};
use anyhow::Result;
use clap::Command;
use clap_complete::Shell;

/// Prints a script that completes commands and options in a shell
///
/// For bash: `bucketeer completions bash > ~/.local/share/bash-completion/completions/bucketeer`; for fish: `bucketeer
/// completions fish > ~/.config/fish/completions/bucketeer.fish`; for zsh: into a file `_bucketeer` in a folder of
/// `$fpath`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Runs the command; `tool` is the whole command line.
pub fn run(arguments: &CompletionsArgs, mut tool: Command) -> Result<ExitStatus> {
    let name = tool.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut tool, name, &mut script);
    output::to_stdout(&script)?;
    Ok(ExitStatus::Accepted)
}
