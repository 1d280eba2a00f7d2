//! `doctor`: whether the ranks of a world find one another, and who is where.

use crate::table::{Align, Table};
use crate::{ExitStatus, output, talk};
use anyhow::{Context, Result};
use bucketeer::ir::GlobalRank;
use bucketeer_comm::Fate;
use bucketeer_comm::rendezvous::{Launcher, Rendezvous};
use bucketeer_comm::store::{Store, TcpStore};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Ranks that are listed; of more, the first.
const MOST_ROWS: usize = 1024;

/// Barriers that are timed.
const BARRIERS: u32 = 50;

/// Time between two looks at who is gone.
const LOOK: Duration = Duration::from_millis(50);

/// Checks that the ranks of a world find one another, says who is where, and times a barrier over their store
///
/// Run it as the ranks will be run: `bucketeer launch --nproc 4 -- doctor`, `srun bucketeer doctor`, `torchrun
/// --nproc-per-node 4 --no-python bucketeer doctor`. Rank 0 reports. Exit code 1 if two ranks of a machine have the
/// same local rank, so that they would share a GPU, or if a rank is lost; 2 if the ranks do not find one another.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Seconds to wait for all ranks
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Stay for so many seconds after the report, and say who is lost meanwhile
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    hold: u64,
}

/// What a rank says of itself.
#[derive(Serialize, Deserialize)]
struct RankInfo {
    host: String,
    pid: u32,
    local_rank: Option<u32>,
    local_world_size: Option<u32>,
}

/// Runs the command.
pub fn run(arguments: &DoctorArgs) -> Result<ExitStatus> {
    let Some(meeting) = Rendezvous::from_env()? else {
        output::to_stdout(b"no launcher says which rank this is: a world of one\n")?;
        return Ok(ExitStatus::Accepted);
    };
    let timeout = Duration::from_secs(arguments.timeout);
    let start = Instant::now();
    let store = meeting.join(timeout)?;
    let joined = start.elapsed();
    let places = exchange(&store, &meeting, timeout)?;
    let times = (0..BARRIERS).map(|round| barrier(&store, round, timeout)).collect::<Result<Vec<_>>>()?;
    let clashes = clashes(&places);
    if meeting.rank == GlobalRank(0) {
        let text = report(&meeting, &places, joined, times);
        output::to_stdout(text.as_bytes())?;
        clashes.iter().for_each(|clash| talk::warn(clash));
        store.refused().iter().for_each(|refusal| talk::warn(&format!("the store did not let in: {refusal}")));
    }
    let lost = hold(&store, Duration::from_secs(arguments.hold));
    Ok(if clashes.is_empty() && !lost { ExitStatus::Accepted } else { ExitStatus::Rejected })
}

/// Tells all ranks where this one is, and learns where they are, in order.
fn exchange(store: &TcpStore, meeting: &Rendezvous, timeout: Duration) -> Result<Vec<RankInfo>> {
    let key = |rank: u32| format!("doctor/place/{rank}");
    let place = RankInfo {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        local_rank: meeting.local_rank,
        local_world_size: meeting.local_world_size,
    };
    store.set(&key(meeting.rank.0), &serde_json::to_vec(&place).context("cannot write JSON")?)?;
    let keys: Vec<String> = (0..meeting.world_size).map(key).collect();
    let values = store.wait(&keys, timeout)?;
    let read = |(rank, value): (usize, &Vec<u8>)| {
        serde_json::from_slice(value).with_context(|| format!("rank {rank} says where it is in other words"))
    };
    values.iter().enumerate().map(read).collect()
}

/// Waits until all ranks are here; how long that took.
fn barrier(store: &TcpStore, round: u32, timeout: Duration) -> Result<Duration> {
    let start = Instant::now();
    let open = format!("doctor/open/{round}");
    let here = store.add(&format!("doctor/here/{round}"), 1)?;
    if here == i64::from(store.world_size()) {
        store.set(&open, b"")?;
    }
    store.wait(&[open], timeout)?;
    Ok(start.elapsed())
}

/// Ranks of one machine that have the same local rank, in words.
fn clashes(places: &[RankInfo]) -> Vec<String> {
    let mut by_place: BTreeMap<(&str, u32), usize> = BTreeMap::new();
    let mut clashes = Vec::new();
    for (rank, place) in places.iter().enumerate() {
        let Some(local) = place.local_rank else { continue };
        if let Some(other) = by_place.insert((&place.host, local), rank) {
            clashes.push(format!("ranks {other} and {rank} are both local rank {local} on {}", place.host));
        }
    }
    clashes
}

fn report(meeting: &Rendezvous, places: &[RankInfo], joined: Duration, mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let holder = match meeting.launcher {
        Launcher::Bucketeer => "the launcher",
        _ => "rank 0",
    };
    let mut text = format!(
        "{} from {}\nstore at {}, held by {holder}; all joined after {:.0} ms\n",
        crate::units::count(places.len(), "rank"),
        meeting.launcher,
        meeting.address(),
        joined.as_secs_f64() * 1e3,
    );
    if let (Some(median), Some(slowest)) = (times.get(times.len() / 2), times.last()) {
        let (median, slowest) = (micros(*median), micros(*slowest));
        text += &format!("barrier over the store: median {median:.0} us, slowest {slowest:.0} us of {BARRIERS}\n");
    }
    let columns =
        [("rank", Align::Right), ("machine", Align::Left), ("local rank", Align::Left), ("process", Align::Right)];
    let mut table = Table::new(&columns);
    for (rank, place) in places.iter().enumerate() {
        let local = match (place.local_rank, place.local_world_size) {
            (None, _) => "not said".to_owned(),
            (Some(local), None) => local.to_string(),
            (Some(local), Some(of)) => format!("{local} of {of}"),
        };
        table.row([rank.to_string(), crate::fault::clean(&place.host), local, place.pid.to_string()]);
    }
    for line in table.lines(MOST_ROWS) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Stays for a time, or until the store is lost; whether a rank was.
fn hold(store: &TcpStore, time: Duration) -> bool {
    let start = Instant::now();
    let mut known: Vec<GlobalRank> = Vec::new();
    let mut lost = false;
    loop {
        for (rank, fate) in store.gone() {
            if fate != Fate::Left && !known.contains(&rank) {
                talk::insist(&format!("rank {} {fate}", rank.0));
                known.push(rank);
                lost = true;
            }
        }
        if let Err(error) = store.get(&[]) {
            talk::insist(&error.to_string());
            return true;
        }
        let left = time.saturating_sub(start.elapsed());
        if left.is_zero() {
            return lost;
        }
        std::thread::sleep(left.min(LOOK));
    }
}
