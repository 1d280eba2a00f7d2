//! The command line of bucketeer: one file for each subcommand.
//!
//! Results go to stdout or a file, talk goes to stderr. Exit codes: 0 fine; 1 the input is at fault, or a check said
//! no; 2 the work could not be done: a file that cannot be read or written, options that make no sense, a check that
//! cannot decide.
//!
//! [`main`] is the whole command line, for whatever program starts it; [`api`] does what commands do on values in memory.

mod advice;
pub mod api;
mod buckets;
mod calibrate;
mod check_ranks;
mod completions;
mod convert;
#[cfg(unix)]
mod doctor;
#[cfg(unix)]
mod exec;
mod fault;
mod input;
mod inspect;
#[cfg(unix)]
mod launch;
mod lower;
mod machine;
mod man;
mod output;
mod plan;
mod proof;
mod rewrite;
mod run;
mod table;
mod talk;
mod units;
mod verify;
mod world;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;

/// Merges the collectives of distributed training graphs into buckets, and says why
///
/// Reads the graph of a training step as PyTorch (FX text, torch.export) or JAX (XLA HLO text) wrote it,
/// merges its all-gathers, reduce-scatters and all-reduces by size, proves that the result computes the same,
/// says of each collective what became of it, and writes the graph back in the form it came in.
#[derive(Debug, Parser)]
#[command(
    name = "bucketeer",
    version,
    long_version = env!("BUCKETEER_LONG_VERSION"),
    max_term_width = 100,
    verbatim_doc_comment,
    after_long_help = EXAMPLES
)]
struct Arguments {
    #[command(flatten)]
    talk: talk::TalkArgs,
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
    Plan(plan::PlanArgs),
    Calibrate(calibrate::CalibrateArgs),
    #[cfg(unix)]
    Launch(launch::LaunchArgs),
    #[cfg(unix)]
    Doctor(doctor::DoctorArgs),
    #[cfg(unix)]
    Exec(exec::ExecArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// Each command stands in a line of its own, and runs in the project's folder.
const EXAMPLES: &str = "\
Examples:
  Merge the collectives of a PyTorch graph, and say of each what became of it:
    bucketeer rewrite fixtures/fx/fsdp_l2_ws8_bf16.backward.txt --explain -o merged.txt
  Merge those of an XLA module, with a cap:
    bucketeer rewrite fixtures/hlo/ar_five_sizes.hlo --all-reduce 12KiB -o merged.hlo
  Draw what depends on what, in the colours of the buckets:
    bucketeer inspect fixtures/fx/fsdp_l2_ws8_bf16.backward.txt --svg -o graph.svg

`bucketeer COMMAND --help` says what a command does, and all of its options.";

/// How a command that did its work ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExitStatus {
    /// Nothing was wrong.
    Accepted,
    /// A check said no; what it found was printed.
    Rejected,
    /// A check could not decide; why was printed.
    Undecided,
}

/// Runs the command line, and says with which exit code the program is to end. `arguments` begin with the program's name.
///
/// `program` starts this command line again, for processes that `launch` starts: a program, and the words that come before
/// those of the command line.
pub fn main(arguments: impl IntoIterator<Item = OsString>, program: &[OsString]) -> u8 {
    #[cfg(unix)]
    if let Err(reason) = launch::child::bind_to_launcher() {
        talk::insist(&format!("error: {reason}"));
        return 2;
    }
    let words: Vec<OsString> = arguments.into_iter().collect();
    let tool = Arguments::command().color(talk::color_choice(words.iter().cloned()));
    let read = tool.try_get_matches_from(words).and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match read {
        Ok(arguments) => arguments,
        Err(error) => {
            // If nobody listens any more, there is nobody to tell.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    arguments.talk.apply();
    match dispatch(arguments, program) {
        // A part of the input was left out, for it is at fault.
        Ok(ExitStatus::Accepted) if talk::had_error() => 1,
        Ok(ExitStatus::Accepted) => 0,
        Ok(ExitStatus::Rejected) => 1,
        Ok(ExitStatus::Undecided) => 2,
        Err(error) if output::is_closed_pipe(&error) => 0,
        Err(error) => match error.downcast_ref::<fault::InputFault>() {
            Some(fault) => {
                talk::insist(&format!("error: {fault}"));
                1
            }
            None => {
                talk::insist(&format!("error: {error:#}"));
                2
            }
        },
    }
}

#[cfg_attr(not(unix), expect(unused_variables, reason = "only `launch` starts programs"))]
fn dispatch(arguments: Arguments, program: &[OsString]) -> anyhow::Result<ExitStatus> {
    match arguments.command {
        Command::Rewrite(arguments) => rewrite::run(*arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Convert(arguments) => convert::run(&arguments),
        Command::Verify(arguments) => verify::run(arguments),
        Command::CheckRanks(arguments) => check_ranks::run(arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Lower(arguments) => lower::run(arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Calibrate(arguments) => calibrate::run(arguments),
        #[cfg(unix)]
        Command::Launch(launched) => launch::run(&launched, &arguments.talk, program),
        #[cfg(unix)]
        Command::Doctor(arguments) => doctor::run(&arguments),
        #[cfg(unix)]
        Command::Exec(arguments) => exec::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments, Arguments::command()),
        Command::Man(arguments) => man::run(&arguments, Arguments::command()),
    }
}
