//! `calibrate`: measures what messages and copies take between the ranks at hand, and writes it as a profile.

mod bench;
mod layout;
mod memory;
mod report;

use crate::input::Files;
use crate::units::{count, human};
use crate::{ExitStatus, machine, output, talk, world};
use anyhow::{Context as _, Result, anyhow, bail};
use bench::{Bench, Measured};
use bucketeer::passes::schedule::costs::Map;
use bucketeer::passes::schedule::profile::{ClassCosts, Rates};
use bucketeer::passes::schedule::{CopyCost, MessageCost, Profile};
use bucketeer_comm::local::{self, LocalOptions, MAX_RANKS};
use bucketeer_comm::nccl::NcclRank;
use bucketeer_comm::rendezvous::Rendezvous;
use bucketeer_comm::{Backend, CommError};
use bucketeer_types::sizes::parse_bytes;
use layout::RankLocation;
use std::path::PathBuf;
use std::time::Duration;

/// Measures what messages and copies take between the ranks at hand, and writes a profile for `plan --profile`
///
/// Ranks are threads of this process, or with --backend nccl or mpi the processes of a launcher: `bucketeer launch --nproc 8 --
/// calibrate --backend nccl -o FILE`, `mpirun -n 4 bucketeer calibrate --backend mpi -o FILE`. Each kind is called at sizes from 4 KiB to
/// --max-bytes, two in each octave, among all ranks; where the launcher says that they lie on several nodes, also among the
/// ranks of one node, and among one rank of each. A time is the median over --repeat calls of the slowest rank's. Each table
/// becomes the concave curve of at most eight lines that is closest to it; what is printed says how close that is.
#[derive(Debug, clap::Args)]
pub struct CalibrateArgs {
    /// What moves the data: ranks are threads on `local`, and processes on `nccl`, with a GPU each, and `mpi`
    #[arg(long, default_value = "local")]
    backend: BackendWord,
    /// How many ranks to start, with --backend local
    #[arg(long, value_name = "N")]
    ranks: Option<u32>,
    /// A network to play, as for `run`, such as alpha=20us,beta=10GB/s
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// Kinds to measure, with commas between [default: all]
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// The largest message; less where memory does not allow it
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    max_bytes: String,
    /// How often each size is called; large ones, of which all calls would take more than a second, at least three times
    #[arg(long, value_name = "K", default_value_t = 9)]
    repeat: u32,
    /// Take how fast the machine computes from a profile, which is not measured [default: nothing is said of it, and `plan` needs
    /// --times for graphs that compute]
    #[arg(long, value_name = "NAME|FILE")]
    rates: Option<String>,
    /// Seconds that a call may take before it fails, and that ranks wait for one another at the start
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Where to write the profile; `-` is stdout [default: nowhere]
    #[arg(short, long, value_name = "OUT")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum BackendWord {
    /// Ranks as threads of this process
    Local,
    /// Ranks as processes with a GPU each: under `bucketeer launch`, torchrun, mpirun or srun
    Nccl,
    /// Ranks as processes of MPI: under mpirun
    Mpi,
}

impl BackendWord {
    const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Nccl => "nccl",
            Self::Mpi => "mpi",
        }
    }
}

/// What is measured, by the names that profiles have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Kind {
    AllGather,
    ReduceScatter,
    AllReduce,
    Broadcast,
    Reduce,
    AllToAll,
    Permute,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllReduce,
        Self::Broadcast,
        Self::Reduce,
        Self::AllToAll,
        Self::Permute,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "all_to_all",
            Self::Permute => "permute",
        }
    }
}

/// Runs the command.
pub fn run(arguments: CalibrateArgs) -> Result<ExitStatus> {
    let job = Job::of(arguments)?;
    let progress = talk::Progress::start();
    let (measured, speaks) = match job.backend {
        BackendWord::Local => (job.on_threads(&progress)?, true),
        BackendWord::Nccl => job.on_nccl(&progress)?,
        BackendWord::Mpi => job.on_mpi(&progress)?,
    };
    drop(progress);
    // One rank speaks for all.
    if speaks {
        job.show(&measured)?;
    }
    Ok(ExitStatus::Accepted)
}

/// What to do, as validated.
struct Job {
    backend: BackendWord,
    ranks: u32,
    kinds: Vec<Kind>,
    most_bytes: u64,
    repeat: u32,
    rates: Option<Rates>,
    local: LocalOptions,
    /// The network that is played, as it was written.
    link: Option<String>,
    out: Option<PathBuf>,
}

impl Job {
    fn of(arguments: CalibrateArgs) -> Result<Self> {
        let link = world::link(arguments.link.as_deref())?;
        let ranks = match (arguments.backend, arguments.ranks) {
            (BackendWord::Local, Some(ranks)) if (2..=MAX_RANKS).contains(&ranks) => ranks,
            (BackendWord::Local, Some(ranks)) => {
                bail!("--ranks {ranks}: expected 2 to {MAX_RANKS}; messages need at least two ranks")
            }
            (BackendWord::Local, None) => bail!("--backend local: say how many ranks to start, such as --ranks 4"),
            (_, Some(_)) => bail!(
                "--ranks: the launcher says how many ranks there are (bucketeer launch --nproc N, mpirun -n N); leave it out"
            ),
            (_, None) => 0,
        };
        if link.is_some() && arguments.backend != BackendWord::Local {
            bail!("--link: ranks that are processes have a network of their own; the backend `local` can play one");
        }
        if arguments.backend == BackendWord::Mpi && !cfg!(feature = "mpi") {
            bail!("--backend mpi: this bucketeer was built without MPI; build it with `--features mpi` (docs/mpi.md)");
        }
        if arguments.repeat == 0 || arguments.timeout == 0 {
            bail!("--repeat and --timeout: expected a whole number of at least 1");
        }
        let most_bytes = parse_bytes(&arguments.max_bytes)
            .map_err(|error| anyhow!("--max-bytes `{}`: {}", arguments.max_bytes, error.expected))?;
        if most_bytes < bench::LEAST_MOST_BYTES {
            let least = human(bench::LEAST_MOST_BYTES);
            bail!(
                "--max-bytes `{}`: expected at least {least}, as sizes begin at {}",
                arguments.max_bytes,
                human(bench::FIRST_BYTES)
            );
        }
        let rates = match &arguments.rates {
            None => None,
            Some(word) => match machine::profile("--rates", word, &Files::on_disk())?.rates {
                Some(rates) => Some(rates),
                None => bail!("--rates {word}: this profile has no rates; expected one that has"),
            },
        };
        let mut kinds = if arguments.kinds.is_empty() { Kind::ALL.to_vec() } else { arguments.kinds };
        kinds.sort_unstable();
        kinds.dedup();
        // Before the time is spent on measuring.
        output::rehearse(arguments.out.as_deref(), &Vec::new())?;
        let timeout = Duration::from_secs(arguments.timeout);
        Ok(Self {
            backend: arguments.backend,
            ranks,
            kinds,
            most_bytes,
            repeat: arguments.repeat,
            rates,
            local: LocalOptions { timeout, link, ..LocalOptions::default() },
            link: arguments.link,
            out: arguments.out,
        })
    }

    fn on_threads(&self, progress: &talk::Progress) -> Result<Measured> {
        let results = local::run(self.ranks, self.local.clone(), |rank| {
            let number = rank.rank().0;
            let place = RankLocation { local_rank: Some(number), per_node: Some(self.ranks) };
            Bench::new(self, &rank, None, place)?.measure((number == 0).then_some(progress))
        })?;
        let follows =
            |error: &anyhow::Error| matches!(error.downcast_ref::<CommError>(), Some(CommError::Remote { .. }));
        let measured = world::made_by_all(results, follows, |error| error)?;
        measured.into_iter().next().context("nothing was measured")
    }

    /// What all ranks measured, and whether this one speaks for them.
    fn on_nccl(&self, progress: &talk::Progress) -> Result<(Measured, bool)> {
        let check = |found: u32, says: &str| match found {
            1 => bail!(
                "{says}; messages need at least two ranks: bucketeer launch --nproc N -- calibrate --backend nccl"
            ),
            _ => Ok(()),
        };
        progress.set("waiting for all ranks".to_owned());
        let process = world::Process::join(self.local.timeout, None, check)?;
        let measured = process.recorded(|| {
            let (nccl, context) = process.gpu()?;
            let rank = NcclRank::new(&nccl, &context, process.store(), process.options("calibrate".to_owned()))?;
            let place = RankLocation::of(process.meeting());
            let measured = Bench::new(self, &rank, Some(&context), place)?.measure(Some(progress))?;
            rank.close()?;
            Ok(measured)
        })?;
        process.leave()?;
        Ok((measured, process.rank() == 0))
    }

    /// The same.
    #[cfg(feature = "mpi")]
    fn on_mpi(&self, progress: &talk::Progress) -> Result<(Measured, bool)> {
        use bucketeer_comm::mpi::{MpiOptions, MpiRank};
        // MPI finds the others; only who is on which node is asked of the launcher, which needs no address.
        let meeting = Rendezvous::from_variables(|name| match name {
            "MASTER_ADDR" => Some("127.0.0.1".into()),
            "MASTER_PORT" => Some("1".into()),
            name => std::env::var_os(name),
        })?;
        let rank = MpiRank::init(MpiOptions { timeout: self.local.timeout, ..MpiOptions::default() })?;
        if rank.world_size() == 1 {
            bail!("MPI has one rank; messages need at least two: mpirun -n N bucketeer calibrate --backend mpi");
        }
        let measured = Bench::new(self, &rank, None, RankLocation::of(meeting.as_ref()))?.measure(Some(progress))?;
        let speaks = rank.rank().0 == 0;
        rank.finish()?;
        Ok((measured, speaks))
    }

    #[cfg(not(feature = "mpi"))]
    #[expect(clippy::unused_self, reason = "stands for the one with MPI")]
    fn on_mpi(&self, _: &talk::Progress) -> Result<(Measured, bool)> {
        unreachable!("refused with the options")
    }

    /// Writes the profile, and says how close it is to what was measured.
    fn show(&self, measured: &Measured) -> Result<()> {
        let profile = self.profile(measured);
        let lines = report::lines(self, measured, &profile);
        if let Some(out) = &self.out {
            output::write(Some(out), profile.to_json().as_bytes())?;
        }
        // The profile may be what stdout is for.
        if self.out.as_ref().is_some_and(|out| out.as_os_str() == "-") {
            lines.iter().for_each(|line| talk::say(line));
        } else {
            output::to_stdout((lines.join("\n") + "\n").as_bytes())?;
        }
        report::notes(self, measured, &profile).iter().for_each(|note| talk::say(note));
        Ok(())
    }

    fn profile(&self, measured: &Measured) -> Profile {
        let mut classes: Vec<ClassCosts> = Vec::new();
        for table in &measured.tables {
            let cost = MessageCost::fit(&table.points);
            match classes.iter_mut().find(|row| row.class == table.class) {
                Some(row) => drop(row.costs.insert(table.kind.name().into(), cost)),
                None => {
                    let costs: Map<MessageCost> = [(table.kind.name().into(), cost)].into_iter().collect();
                    classes.push(ClassCosts { class: table.class, costs });
                }
            }
        }
        let (name, ranks) = (self.backend.name(), measured.ranks);
        let on = count(ranks.div_ceil(measured.per_node) as usize, "node");
        let link = self.link.as_ref().map_or_else(String::new, |link| format!(", playing {link}"));
        Profile {
            name: format!("{name}-{ranks}").into(),
            label: format!("{} on {on}, backend {name}{link}", count(ranks as usize, "rank")).into(),
            source: format!(
                "bucketeer calibrate {}: f32, {} to {}, medians of {} or fewer calls",
                env!("CARGO_PKG_VERSION"),
                human(bench::FIRST_BYTES),
                human(measured.most_bytes),
                self.repeat
            )
            .into(),
            gpus_per_node: measured.per_node,
            copy: CopyCost::fit(&measured.copies),
            rates: self.rates,
            nccl: None,
            classes,
        }
    }
}

impl RankLocation {
    /// Where a launcher says that this process is.
    fn of(meeting: Option<&Rendezvous>) -> Self {
        Self {
            local_rank: meeting.and_then(|meeting| meeting.local_rank),
            per_node: meeting.and_then(|meeting| meeting.local_world_size),
        }
    }
}
