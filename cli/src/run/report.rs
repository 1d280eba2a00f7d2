//! What `run` says.

use super::{Job, NAMES};
use crate::ExitStatus;
use crate::fault::clean;
use crate::table::{Align, Table};
use crate::units::{count, human};
use bucketeer::ir::Graph;
use bucketeer::passes::PassReport;
use bucketeer::passes::bucketing::{Decision, Reason, Remark};
use bucketeer::program::Program;
use bucketeer_eval::Scaling;
use bucketeer_exec::{Times, UnknownOperator};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Runs of each from which on a loss is more than noise.
const MIN_REPEATS: u32 = 3;

/// How much longer communication may take bucketed before we say so.
const LOSS: f64 = 1.05;

/// The times of the rank that took longest.
pub fn slowest(times: &[Times]) -> Times {
    times.iter().copied().max_by_key(|times| times.total).unwrap_or_default()
}

/// What to say of collectives that were left alone since copying them takes longer than launching them.
pub fn declined(reports: &[PassReport]) -> Option<String> {
    let remarks = reports.iter().filter_map(|report| report.plan.as_ref()).flat_map(|plan| &plan.remarks);
    let most = |remark: &Remark| match &remark.decision {
        Decision::Alone(Reason::LargeMember { max_member_bytes, .. }) => Some(*max_member_bytes),
        _ => None,
    };
    let large: Vec<u64> = remarks.filter_map(most).collect();
    let most = human(*large.first()?);
    Some(format!(
        "  left alone: {} of more than {most}, as copying them would take longer than launching them between these ranks; \
         --pipeline buckets what it says\n",
        count(large.len(), "collective")
    ))
}

/// What to say where bucketing made communication slower: waiting for calls, packs, unpacks and other copies.
fn loss(before: Times, after: Times) -> Option<String> {
    let moving = |times: Times| times.exposed + times.pack.time + times.unpack.time + times.copy.time;
    let [before, after] = [before, after].map(|times| moving(times).as_secs_f64() * 1000.0);
    (after > before * LOSS).then(|| {
        format!(
            "  bucketing does not pay here: waits and copies take {after:.2} ms, {before:.2} ms as it came. Between these \
             ranks a call costs less than copying its members; --pipeline with mode=coalesced packs nothing, smaller \
             caps copy within the cache, and --link plays a network"
        )
    })
}

/// How much longer the graph as it came took, by the ranks that the table shows.
fn ratios(programs: &[Program], slowest: &[Times], which: usize) -> String {
    if programs[0] == programs[which] {
        let done = NAMES[which];
        return format!("  both are the same program: nothing was {done}, and their times differ by chance");
    }
    let (before, after) = (slowest[0], slowest[which]);
    let ratio = |of: fn(&Times) -> Duration| {
        let (before, after) = (of(&before).as_secs_f64(), of(&after).as_secs_f64());
        if after > 0.0 { format!("{:.2}", before / after) } else { "-".to_owned() }
    };
    format!(
        "  as it came over {}: comm {}, exposed {}, total {}",
        NAMES[which],
        ratio(|times| times.comm.time),
        ratio(|times| times.exposed),
        ratio(|times| times.total)
    )
}

/// Operators that a line names.
const MOST_UNKNOWN: usize = 5;

/// What the evaluator does not know, by name.
pub fn unknown_names(unknown: &[UnknownOperator]) -> String {
    let name = |one: &UnknownOperator| match one.target == one.node {
        true => format!("`{}`, a constant that the graph does not hold", clean(&one.target)),
        false => format!("{} (`{}`)", clean(&one.target), clean(&one.node)),
    };
    let names: Vec<String> = unknown.iter().take(MOST_UNKNOWN).map(name).collect();
    let more = unknown.len().saturating_sub(MOST_UNKNOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("the evaluator does not know {}{more}, so the outputs are not those of the graph", names.join(", "))
}

/// How much of what ran was made up.
pub fn made_up(unknown: &[UnknownOperator]) -> Option<String> {
    if unknown.is_empty() {
        return None;
    }
    let calls = unknown.iter().map(|one| one.calls).fold(0, u64::saturating_add);
    let calls = count(usize::try_from(calls).unwrap_or(usize::MAX), "call");
    Some(format!("  numbers made up in {calls} of each run: {}\n", unknown_names(unknown)))
}

/// What came of the runs.
pub struct Outcome {
    /// Of the fastest run of each, by rank.
    pub times: Vec<Vec<Times>>,
    pub equality: Equality,
    /// Number of outputs of a rank.
    pub outputs: usize,
}

/// How the outputs of both compare, on all ranks.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Equality {
    NotCompared,
    Bits,
    /// By at most so much of a tensor's largest value.
    Rounded(f64),
    /// First in this run, at this rank and output.
    Differs {
        run: usize,
        rank: usize,
        place: usize,
    },
}

/// What to print, and whether the outputs are the same.
pub fn report(
    job: &Job,
    graph: &Graph,
    programs: &[Program],
    outcome: &Outcome,
    scaling: Option<&Scaling>,
) -> (String, ExitStatus) {
    let slowest: Vec<Times> = outcome.times.iter().map(|times| slowest(times)).collect();
    let mut table = Table::new(&[
        ("", Align::Left),
        ("calls", Align::Right),
        ("sent", Align::Right),
        ("pack", Align::Right),
        ("comm", Align::Right),
        ("unpack", Align::Right),
        ("compute", Align::Right),
        ("exposed", Align::Right),
        ("total", Align::Right),
        ("memory", Align::Right),
    ]);
    for ((name, slowest), program) in NAMES.into_iter().zip(&slowest).zip(programs) {
        let time = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1000.0);
        table.row([
            name.to_owned(),
            calls(program, slowest).to_string(),
            human(slowest.sent_bytes),
            time(slowest.pack.time),
            time(slowest.comm.time),
            time(slowest.unpack.time),
            time(slowest.compute.time + slowest.copy.time),
            time(slowest.exposed),
            time(slowest.total),
            human(program.peak_bytes()),
        ]);
    }
    let ranks = count(outcome.times.first().map_or(0, Vec::len), "rank");
    let mut lines = vec![format!(
        "graph `{}` on {ranks}, the slowest rank of the fastest of {}:",
        graph.name,
        count(job.repeat as usize, "run")
    )];
    lines.extend(table.lines(usize::MAX));
    for which in 1..slowest.len() {
        lines.push(ratios(programs, &slowest, which));
    }
    if job.repeat >= MIN_REPEATS
        && let Some(line) = loss(slowest[0], slowest[1])
    {
        lines.push(line);
    }
    if let Some(scaling) = scaling {
        lines.push(format!("  at 1/{} of the bytes", scaling.bytes_before / scaling.bytes_after.max(1)));
    }
    let outputs = count(outcome.outputs, "output");
    let (line, verdict) = match outcome.equality {
        Equality::NotCompared => ("not compared: nothing was moved".to_owned(), ExitStatus::Accepted),
        Equality::Bits => (format!("outputs: {outputs} on each rank, equal bit for bit"), ExitStatus::Accepted),
        Equality::Rounded(most) => {
            let line = format!(
                "outputs: {outputs} on each rank, equal but for rounding: they differ by {most:.1e} of a tensor's largest \
                 value at most, as NCCL sums in an order of its own"
            );
            (line, ExitStatus::Accepted)
        }
        Equality::Differs { run, rank, place } => {
            (format!("outputs differ {}: output {place} on rank {rank} first", NAMES[run]), ExitStatus::Rejected)
        }
    };
    lines.push(format!("  {line}"));
    (lines.join("\n") + "\n", verdict)
}

/// Collectives that a rank launched; of a program that runs others, as many as there were, for a branch may not run.
fn calls(program: &Program, times: &Times) -> usize {
    if program.bodies.is_empty() { program.launches() } else { times.comm.steps }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bucketeer_exec::StepKindTimes;

    #[test]
    fn a_loss_of_more_than_five_in_a_hundred_is_said() {
        let times = |exposed: u64, copies: u64| {
            let each = StepKindTimes { steps: 1, time: Duration::from_micros(copies) };
            Times { exposed: Duration::from_micros(exposed), pack: each, unpack: each, copy: each, ..Times::default() }
        };
        assert_eq!(loss(times(700, 100), times(750, 100)), None);
        assert_eq!(loss(times(700, 100), times(0, 0)), None);
        let said = loss(times(700, 100), times(451, 200)).unwrap_or_default();
        assert!(said.contains("does not pay here: waits and copies take 1.05 ms, 1.00 ms as it came"), "{said}");
    }
}
