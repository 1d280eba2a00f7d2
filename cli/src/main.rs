//! The command line of bucketeer: one file for each subcommand.
//!
//! Results go to stdout or a file, talk goes to stderr. Exit codes: 0 fine; 1 the input is at fault, or a check said
//! no; 2 the work could not be done: a file that cannot be read or written, options that make no sense, a check that
//! cannot decide.

mod advice;
mod buckets;
mod check_ranks;
mod convert;
#[cfg(unix)]
mod doctor;
mod fault;
mod input;
mod inspect;
#[cfg(unix)]
mod launch;
mod lower;
mod output;
mod proof;
mod rewrite;
mod run;
mod table;
mod talk;
mod units;
mod verify;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Merges the collectives of distributed training graphs into buckets, and says why.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Rewrite(Box<rewrite::RewriteArgs>),
    Inspect(inspect::InspectArgs),
    Convert(convert::ConvertArgs),
    Verify(verify::VerifyArgs),
    CheckRanks(check_ranks::CheckRanksArgs),
    Run(run::RunArgs),
    Lower(lower::LowerArgs),
    #[cfg(unix)]
    Launch(launch::LaunchArgs),
    #[cfg(unix)]
    Doctor(doctor::DoctorArgs),
}

/// How a command that did its work ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// Nothing was wrong.
    Accepted,
    /// A check said no; what it found was printed.
    Rejected,
    /// A check could not decide; why was printed.
    Undecided,
}

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Err(reason) = launch::child::bind_to_launcher() {
        talk::say(&format!("error: {reason}"));
        return ExitCode::from(2);
    }
    let verdict = match Arguments::parse().command {
        Command::Rewrite(arguments) => rewrite::run(*arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Convert(arguments) => convert::run(&arguments),
        Command::Verify(arguments) => verify::run(arguments),
        Command::CheckRanks(arguments) => check_ranks::run(arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Lower(arguments) => lower::run(arguments),
        #[cfg(unix)]
        Command::Launch(arguments) => launch::run(&arguments),
        #[cfg(unix)]
        Command::Doctor(arguments) => doctor::run(&arguments),
    };
    match verdict {
        // A part of the input was left out, for it is at fault.
        Ok(Verdict::Accepted) if talk::had_error() => ExitCode::from(1),
        Ok(Verdict::Accepted) => ExitCode::SUCCESS,
        Ok(Verdict::Rejected) => ExitCode::from(1),
        Ok(Verdict::Undecided) => ExitCode::from(2),
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref::<fault::InputFault>() {
            Some(fault) => {
                talk::say(&format!("error: {fault}"));
                ExitCode::from(1)
            }
            None => {
                talk::say(&format!("error: {error:#}"));
                ExitCode::from(2)
            }
        },
    }
}
