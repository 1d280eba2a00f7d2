//! `check-ranks`: whether all ranks launch the same, and none waits for another in a ring.

use crate::advice::Answered as _;
use crate::fault::{InputFault, OptionFault, Refusal};
use crate::input::{FactsArgs, File, Files};
use crate::{ExitStatus, input, output};
use anyhow::{Result, anyhow};
use bucketeer::check::ranks::{Launch, RankFault, RankOptions, RanksError, Stuck, check_ranks};
use bucketeer::ir::Graph;
use bucketeer::ir::communication::{Launch as Communicates, Launches};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Checks that all ranks launch the same collectives in each group, and that none wait for one another in a ring
///
/// One file is for all ranks; of several, the first is rank 0's, the second rank 1's, and so on. Files of several
/// graphs, such as forward and backward, are checked graph by graph. Exit code 1 if ranks disagree, 2 if it is not known
/// who is in a group, or with whom a call such as a send communicates.
#[derive(Debug, clap::Args)]
pub struct CheckRanksArgs {
    /// The file of all ranks, or that of each ('rank{rank}.txt' is one for each rank): FX text, HLO text, a .pt2 archive or its model.json,
    /// native text or JSON, plain or gzip; `-` is stdin
    #[arg(value_name = "GRAPH", required = true)]
    graphs: Vec<PathBuf>,
    #[command(flatten)]
    facts: FactsArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: CheckRanksArgs) -> Result<ExitStatus> {
    let prints_json = arguments.json;
    let checked = check(arguments, &Files::on_disk())?;
    let text = if prints_json { checked.json()? } else { checked.text() };
    output::to_stdout(text.as_bytes())?;
    Ok(checked.exit_status())
}

/// The files of all ranks, and what was found in them.
pub struct Checked {
    files: Vec<File>,
    reports: Vec<GraphReport>,
}

/// Reads the files and checks them.
pub fn check(arguments: CheckRanksArgs, from: &Files) -> Result<Checked> {
    let facts = arguments.facts.validate().map_err(OptionFault::of)?;
    let files = input::read_ranks(&input::expand(arguments.graphs)?, &facts, from)?;
    let reports = of_each_graph(&files)?;
    Ok(Checked { files, reports })
}

impl Checked {
    /// Whether all ranks agree.
    pub fn exit_status(&self) -> ExitStatus {
        let agree = self.reports.iter().all(|report| report.found.is_empty());
        if agree { ExitStatus::Accepted } else { ExitStatus::Rejected }
    }

    /// What was found, as JSON text.
    pub fn json(&self) -> Result<String> {
        output::json(&Report { format: "bucketeer-check-ranks", version: 1, graphs: &self.reports })
    }

    /// What was found, for people.
    pub fn text(&self) -> String {
        let Self { files, reports } = self;
        reports.iter().map(|report| report.text(reports.len() > 1, files.len(), files)).collect()
    }
}

/// Checks the first graphs of all files, the second ones, and so on.
fn of_each_graph(files: &[File]) -> Result<Vec<GraphReport>> {
    let first = files.first().map_or(0, |file| file.document.graphs().len());
    (0..first)
        .map(|index| {
            let graphs: Vec<&Graph> = files.iter().map(|file| &file.document.graphs()[index]).collect();
            let found = check_ranks(&graphs, &RankOptions::default()).map_err(|error| refused(files, error))?;
            Ok(GraphReport::of(index, &graphs, found))
        })
        .collect()
}

/// Who is in a group is not known, which is beyond us; or the files do not fit each other.
pub fn refused(files: &[File], error: RanksError) -> anyhow::Error {
    match error {
        RanksError::UnknownMembers { .. } | RanksError::NoGraph => anyhow!(Refusal(error.advised())),
        RanksError::Undecided { rank, ref node, .. } | RanksError::Bodies { rank, ref node, .. } => {
            let file = files.get(rank as usize);
            let place = file.and_then(|file| crate::fault::point_at(&file.label, &file.document, 0, node));
            anyhow!(Refusal(place.map_or_else(|| error.to_string(), |place| format!("{error}\n{place}"))))
        }
        RanksError::Disagree { rank, .. } => match files.get(rank as usize) {
            Some(file) => InputFault::of_file(&file.label, error).into(),
            None => anyhow!(error),
        },
        RanksError::TooManyRanks { .. } => anyhow!(error),
        RanksError::NoGraphOfRank { .. } | RanksError::RankTwice { .. } => {
            let labels: Vec<&str> = files.iter().map(|file| &*file.label).collect();
            InputFault::of_file(&labels.join(", "), error).into()
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    format: &'static str,
    version: u32,
    graphs: &'a [GraphReport],
}

#[derive(Serialize)]
struct GraphReport {
    graph: String,
    #[serde(skip)]
    index: usize,
    agree: bool,
    groups: Vec<GroupReport>,
    faults: Vec<String>,
    #[serde(skip)]
    found: Vec<RankFault>,
}

/// How often ranks launch in a group; replica groups of one name may differ.
#[derive(Serialize)]
struct GroupReport {
    group: String,
    fewest_launches: usize,
    most_launches: usize,
}

impl GraphReport {
    fn of(index: usize, graphs: &[&Graph], found: Vec<RankFault>) -> Self {
        let mut groups: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for graph in graphs {
            let (mut launches, known) = (vec![0; graph.groups().len()], Launches::of(graph));
            for launch in graph.order().iter().filter_map(|&id| known.get(id)) {
                if let Communicates::In(group) = launch {
                    launches[group.index()] += 1;
                }
            }
            for (group, &number) in graph.groups().iter().zip(&launches).filter(|(_, number)| **number > 0) {
                let (fewest, most) = groups.entry(&group.name).or_insert((number, number));
                (*fewest, *most) = (number.min(*fewest), number.max(*most));
            }
        }
        Self {
            graph: graphs.first().map_or_else(String::new, |graph| graph.name.clone()),
            index,
            agree: found.is_empty(),
            groups: groups
                .into_iter()
                .map(|(group, (fewest_launches, most_launches))| GroupReport {
                    group: group.to_owned(),
                    fewest_launches,
                    most_launches,
                })
                .collect(),
            faults: found.iter().map(ToString::to_string).collect(),
            found,
        }
    }

    fn text(&self, named: bool, ranks: usize, files: &[File]) -> String {
        let mut text = if named { format!("graph `{}`: ", self.graph) } else { String::new() };
        text.push_str(match (self.agree, ranks) {
            (true, 1) => "agreed: one graph for all ranks\n",
            (true, _) => "agreed\n",
            (false, _) => "not agreed\n",
        });
        for (fault, line) in self.found.iter().zip(&self.faults) {
            text.push_str(&format!("  {line}\n"));
            for (rank, node) in nodes(fault) {
                // One file is for all ranks.
                let file = if ranks == 1 { files.first() } else { files.get(rank as usize) };
                let place = file.and_then(|file| crate::fault::point_at(&file.label, &file.document, self.index, node));
                text.extend(place.map(|place| format!("{place}\n")));
            }
        }
        for GroupReport { group, fewest_launches, most_launches } in &self.groups {
            if self.found.iter().any(|fault| is_of(fault, group)) {
                continue;
            }
            let number = match fewest_launches == most_launches {
                true if *most_launches == 1 => "1 launch".to_owned(),
                true => format!("{most_launches} launches"),
                false => format!("{fewest_launches} to {most_launches} launches, by replica group"),
            };
            text.push_str(&format!("  {group}: {number}\n"));
        }
        text
    }
}

/// The launches that a fault names.
fn nodes(fault: &RankFault) -> Vec<(u32, &str)> {
    let launch = |launch: &'_ Launch| launch.rank;
    match fault {
        RankFault::Mismatch { left, right, .. } => {
            [left, right].iter().filter_map(|one| Some((launch(one), one.node.as_deref()?))).collect()
        }
        RankFault::Ring(ring) => ring.iter().map(|Stuck { rank, node, .. }| (*rank, &**node)).collect(),
        RankFault::NotAMember { rank, node, .. } => vec![(*rank, node)],
    }
}

/// Whether a fault is one of a group, whose replica groups are called `G` or `G{0, 1}`.
fn is_of(fault: &RankFault, group: &str) -> bool {
    let is_team = |replica_group: &str| {
        replica_group.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
    };
    match fault {
        RankFault::Mismatch { replica_group, .. } => is_team(replica_group),
        RankFault::Ring(ring) => ring.iter().any(|stuck| is_team(&stuck.replica_group)),
        RankFault::NotAMember { group: name, .. } => name == group,
    }
}
