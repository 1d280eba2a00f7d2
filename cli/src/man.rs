//! `man`: manual pages.

use crate::{ExitStatus, output};
use anyhow::{Context, Result, bail};
use clap::Command;
use clap_mangen::Man;

/// Prints the manual page of the tool, or of one of its commands
///
/// To read one: `bucketeer man rewrite | man -l -`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// The command that the page is about [default: the tool as a whole]
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// Runs the command; `tool` is the whole command line.
pub fn run(arguments: &ManArgs, tool: Command) -> Result<ExitStatus> {
    // Pages are for one version, whatever the commit, so that they can be built again to the same bytes.
    let mut tool = tool.long_version(None);
    // Gives commands their full names, and the options that all have.
    tool.build();
    let about = match &arguments.command {
        None => tool,
        Some(name) => match tool.find_subcommand(name) {
            Some(command) => command.clone(),
            None => {
                let names = tool.get_subcommands().map(Command::get_name).filter(|&name| name != "help");
                let names: Vec<&str> = names.collect();
                bail!("man `{name}`: there is no such command; there are {}", names.join(", "));
            }
        },
    };
    let mut page = Vec::new();
    let source = concat!("bucketeer ", env!("CARGO_PKG_VERSION"));
    Man::new(about).source(source).render(&mut page).context("cannot write the page")?;
    let page = String::from_utf8(page).context("the page is not text")?;
    // What stands after the help is headed as manual pages have it.
    let page = page.replacen(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n", 1);
    output::to_stdout(page.as_bytes())?;
    Ok(ExitStatus::Accepted)
}
