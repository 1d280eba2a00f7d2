//! `launch`: several processes of bucketeer on this machine, as the ranks of one world.

pub mod child;
mod lines;
mod ranks;

use crate::talk::TalkArgs;
use crate::{ExitStatus, talk};
use anyhow::{Context, Result, anyhow, bail};
use bucketeer_comm::rendezvous::LAUNCHER_VARIABLE;
use bucketeer_comm::store::{SECRET_VARIABLE, Secret, ServerOptions, StoreServer};
use ranks::{Ending, Ranks};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Most processes of a launch.
const MAX_PROCESSES: i64 = 1024;

/// File descriptors that a rank takes here: two pipes and a connection.
const DESCRIPTORS: u64 = 3;

/// Starts several processes of bucketeer on this machine, as the ranks of one world
///
/// COMMAND is a subcommand with its arguments: `bucketeer launch --nproc 4 -- doctor`. Each process finds its rank in
/// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as under torchrun; the launcher holds
/// the store where they meet, and makes up a secret for it unless BUCKETEER_SECRET is set. Rank 0's standard output is
/// passed on as it is, so that pipes work; all else that ranks print comes on standard error, line by line, behind
/// `[rank 2]`. Only rank 0 gets the standard input.
///
/// If a process fails, all others are ended, after 3 s in which they may end by themselves and say what they did last. Exit code 0 if all end with 0, 1 if some end with 1, 2 if one fails
/// (another code, or a signal), which is said then.
#[derive(Debug, clap::Args)]
pub struct LaunchArgs {
    /// Number of processes, 1 to 1024
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_PROCESSES))]
    nproc: u32,
    /// Name or address of this machine where the store listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    master_addr: String,
    /// Port where the store listens [default: a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    master_port: Option<u16>,
    /// End all processes that are not done after so many seconds; exit code 2 [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    timeout: Option<u64>,
    /// What each process is to do: a subcommand and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command. `program` is what starts this command line again.
pub fn run(arguments: &LaunchArgs, talk: &TalkArgs, program: &[OsString]) -> Result<ExitStatus> {
    if arguments.command.first().is_some_and(|word| word == "launch") {
        bail!("launch cannot be launched; name what each process is to do");
    }
    // Before anything that may end, so that no signal is missed.
    let mut signals = Signals::new([SIGCHLD, SIGINT, SIGTERM]).context("signals cannot be received")?;
    let (sender, events) = channel();
    let handle = signals.handle();
    let receiving = std::thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(signal)));
    allow_descriptors(arguments.nproc);
    let ended = start(arguments, talk, program).map(|mut ranks| {
        let ending = ranks.watch(&events, arguments.timeout.map(Duration::from_secs));
        ranks.finish();
        (ending, ranks.refused())
    });
    handle.close();
    // It ends with the handle.
    let _ = receiving.join();
    let (ending, refused) = ended?;
    for refusal in refused {
        talk::warn(&format!("the store did not let in: {refusal}"));
    }
    verdict(ending)
}

fn verdict(ending: Ending) -> Result<ExitStatus> {
    match ending {
        Ending::Done { rejected: false } => Ok(ExitStatus::Accepted),
        Ending::Done { rejected: true } => Ok(ExitStatus::Rejected),
        Ending::Failed { rank, how, others } => {
            let others = match others {
                0 => String::new(),
                _ => format!("; {} that still ran {} ended", crate::units::count(others, "other"), was(others)),
            };
            Err(anyhow!("rank {rank} failed first: {how}{others}"))
        }
        Ending::Late { limit, running } => {
            let ranks = crate::units::count(running, "rank");
            Err(anyhow!("{ranks} not done after {limit:?} {} ended", was(running)))
        }
        Ending::Stopped { signal } => Err(anyhow!("stopped by {signal}; all processes were ended")),
    }
}

fn was(number: usize) -> &'static str {
    if number == 1 { "was" } else { "were" }
}

/// Opens the store and starts all processes; if one cannot be started, none stays.
fn start(arguments: &LaunchArgs, talk: &TalkArgs, program: &[OsString]) -> Result<Ranks> {
    let (program, words) = program.split_first().context("where this program is cannot be found out")?;
    let secret = match Secret::from_env()? {
        Some(secret) => secret,
        None => Secret::random()?,
    };
    let options = ServerOptions { secret: Some(secret.clone()), ..ServerOptions::new(arguments.nproc) };
    let server = StoreServer::open(listen_at(arguments)?, options)?;
    let address = server.address();
    let mut ranks = Ranks::new(server);
    for rank in 0..arguments.nproc {
        let mut command = Command::new(program);
        command
            .args(words)
            .args(talk.words())
            .args(&arguments.command)
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", arguments.nproc.to_string())
            .env("LOCAL_WORLD_SIZE", arguments.nproc.to_string())
            .env("MASTER_ADDR", address.ip().to_string())
            .env("MASTER_PORT", address.port().to_string())
            .env(SECRET_VARIABLE, secret.text())
            .env(LAUNCHER_VARIABLE, std::process::id().to_string())
            // These would be for another launcher's ranks.
            .env_remove("BUCKETEER_STORE_PORT")
            .env_remove("TORCHELASTIC_USE_AGENT_STORE")
            .stdin(if rank == 0 { Stdio::inherit() } else { Stdio::null() });
        ranks.start(rank, &mut command).with_context(|| format!("the process of rank {rank} cannot be started"))?;
    }
    Ok(ranks)
}

fn listen_at(arguments: &LaunchArgs) -> Result<SocketAddr> {
    let LaunchArgs { master_addr, master_port, .. } = arguments;
    let addresses = (master_addr.as_str(), master_port.unwrap_or(0)).to_socket_addrs();
    let mut addresses = addresses.with_context(|| format!("--master-addr `{master_addr}` is not an address"))?;
    let address = addresses.next().ok_or_else(|| anyhow!("--master-addr `{master_addr}` stands for no address"))?;
    if address.ip().is_unspecified() {
        bail!("--master-addr `{master_addr}` is not an address to connect to; give one of this machine's");
    }
    Ok(address)
}

/// Many ranks need more descriptors than a process may open by default. What cannot be had is noticed later.
fn allow_descriptors(processes: u32) {
    let need = 256 + DESCRIPTORS * u64::from(processes);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < need) {
        let current = Some(maximum.map_or(need, |maximum| need.min(maximum)));
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
}
