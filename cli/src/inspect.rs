//! `inspect`: what a graph communicates, and whether it is well-formed.

mod picture;
mod report;
mod stablehlo;

use crate::buckets::BucketArgs;
use crate::fault::InputFault;
use crate::input::{FactsArgs, Inspected};
use crate::table::{Align, Table};
use crate::talk::Warning;
use crate::units::{count, human, human_or_unknown};
use crate::{ExitStatus, advice, input, output, talk};
use anyhow::{Context, Result, bail};
use bucketeer::ir::VerifyErrors;
use report::GraphReport;
use std::path::PathBuf;

/// Lists the collectives of a graph, in issue order, and checks that it is well-formed
///
/// The depth of a collective is the most collectives on a path that leads to it. Exit code 1 if a graph is not
/// well-formed.
///
/// With --dot or --svg they are drawn: which depends on which, directly or through others, and in colours which ones
/// `rewrite` would merge with the same options (CAP is as there); merged ones that stand there already have a thick or
/// double frame. Dots are joints: they stand for many collectives that many others depend on.
///
/// With --svg --lanes a graph of any size is drawn by program order: a lane for each group, a bar for each collective from
/// its launch to its last wait, and below them the bytes alive. What is too close to be told apart is one bar.
#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// The file to look at: FX text, HLO text, StableHLO, a .pt2 archive or its model.json,
    /// native text or JSON, plain or gzip; `-` is stdin
    #[arg(value_name = "GRAPH")]
    graph: PathBuf,
    #[command(flatten)]
    facts: FactsArgs,
    /// Print JSON
    #[arg(long, conflicts_with_all = ["dot", "svg"])]
    json: bool,
    /// Draw the collectives' dependencies, as text for Graphviz
    #[arg(long, conflicts_with = "svg")]
    dot: bool,
    /// Draw the collectives' dependencies, as SVG
    #[arg(long)]
    svg: bool,
    /// Draw by program order instead: a lane for each group, and the bytes alive
    #[arg(long, requires = "svg", conflicts_with_all = ["dot", "json"])]
    lanes: bool,
    /// Where to write the drawing [default: stdout]
    #[arg(short, long, value_name = "OUT")]
    out: Option<PathBuf>,
    #[command(flatten)]
    buckets: BucketArgs,
}

impl InspectArgs {
    /// Options that go with a drawing only.
    fn check(&self) -> Result<()> {
        if self.dot || self.svg {
            return Ok(());
        }
        if self.out.is_some() {
            bail!("-o: where to write what is drawn with --dot or --svg, and neither is asked for");
        }
        if self.buckets != BucketArgs::default() {
            bail!("options that say what to merge colour what is drawn with --dot or --svg, and neither is asked for");
        }
        Ok(())
    }
}

/// Runs the command.
pub fn run(arguments: InspectArgs) -> Result<ExitStatus> {
    arguments.check()?;
    let passes = arguments.buckets.validate()?;
    let facts = arguments.facts.validate()?;
    let label = input::label(&arguments.graph);
    let mut document = match input::read_inspected(&arguments.graph)? {
        Inspected::StableHlo(_) if arguments.dot || arguments.svg => {
            return Err(InputFault::of_file(&label, "StableHLO is listed only; draw the HLO text of the module").into());
        }
        Inspected::StableHlo(bytes) => return stablehlo::run(&label, &bytes, arguments.json),
        Inspected::Document(document) => *document,
    };
    facts.apply(&mut document)?;
    advice::notes(&document).iter().for_each(|note| talk::say(note));
    if arguments.dot || arguments.svg {
        let form = match (arguments.svg, arguments.lanes) {
            (false, _) => picture::Form::Dot,
            (true, false) => picture::Form::Svg,
            (true, true) => picture::Form::Lanes,
        };
        return picture::run(&label, &document, passes, form, arguments.out.as_deref());
    }
    let mut reports = Vec::new();
    let mut verdict = ExitStatus::Accepted;
    for (index, graph) in document.graphs().iter().enumerate() {
        let errors = bucketeer::ir::verify(graph).err().map_or_else(Vec::new, |VerifyErrors(errors)| errors);
        let texts = errors.iter().map(ToString::to_string).collect();
        if !errors.is_empty() {
            verdict = ExitStatus::Rejected;
            if !arguments.json {
                talk::insist(&format!(
                    "error: {}",
                    InputFault::of_verify(&label, &document, index, &VerifyErrors(errors))
                ));
            }
        }
        reports.push(GraphReport::of(graph, texts));
    }
    if arguments.json {
        let json = report::document(document.format().name(), &reports);
        let json = serde_json::to_string_pretty(&json).context("cannot write JSON")?;
        output::to_stdout((json + "\n").as_bytes())?;
        return Ok(verdict);
    }
    let mut lines = Vec::new();
    for report in reports.iter().filter(|report| report.errors.is_empty()) {
        lines.extend(listing(report));
    }
    lines.iter_mut().for_each(|line| line.push('\n'));
    output::to_stdout(lines.concat().as_bytes())?;
    reports.iter().flat_map(|report| &report.warnings).for_each(Warning::say);
    Ok(verdict)
}

/// All lines about a graph.
fn listing(report: &GraphReport) -> Vec<String> {
    let others = report.other_communication.iter().filter(|other| other.group.is_some()).count();
    let size = format!("{}, {}", count(report.nodes, "node"), count(report.collectives.len() + others, "collective"));
    let followed = if others > 0 { format!(", {others} of them not followed") } else { String::new() };
    let mut lines = vec![format!("graph `{}`: {size}{followed}", report.graph)];
    if !report.collectives.is_empty() {
        tables(report, &mut lines);
    }
    if !report.other_communication.is_empty() {
        lines.push("other communication:".to_owned());
        lines.extend(others_table(report));
    }
    if !report.collectives.is_empty() || others > 0 {
        lines.push("groups:".to_owned());
        for group in &report.groups {
            let size = match group.size {
                Some(size) => count(size as usize, "rank"),
                None if group.members.is_empty() => "size unknown".to_owned(),
                None => "of several sizes".to_owned(),
            };
            let members = if group.members.is_empty() { "members unknown".to_owned() } else { members(&group.members) };
            lines.push(format!("  {}: {size}, {members}", group.name));
        }
    }
    if !report.collectives.is_empty() {
        lines.push(format!("peak live: {}", human(report.peak_live_bytes)));
    }
    lines
}

/// What communicates and is not a collective: what it is, between whom, and where.
fn others_table(report: &GraphReport) -> Vec<String> {
    let mut table = Table::new(&[
        ("call", Align::Left),
        ("what", Align::Left),
        ("group", Align::Left),
        ("where", Align::Left),
        ("order", Align::Left),
    ]);
    for other in &report.other_communication {
        table.row([
            other.name.clone(),
            other.kind.clone(),
            other.group.clone().unwrap_or_else(|| "?".to_owned()),
            other.region.as_ref().map_or_else(|| "-".to_owned(), |region| format!("in `{region}`")),
            if other.keeps_order { "kept" } else { "by data" }.to_owned(),
        ]);
    }
    table.lines(usize::MAX)
}

/// The collectives one by one, and in sum.
fn tables(report: &GraphReport, lines: &mut Vec<String>) {
    let mut table = Table::new(&[
        ("collective", Align::Left),
        ("kind", Align::Left),
        ("op", Align::Left),
        ("group", Align::Left),
        ("ranks", Align::Right),
        ("dtype", Align::Left),
        ("bytes", Align::Right),
        ("wait", Align::Left),
        ("depth", Align::Right),
    ]);
    let dash = || "-".to_owned();
    for one in &report.collectives {
        table.row([
            one.name.clone(),
            one.kind.to_owned(),
            one.op.map_or_else(dash, ToOwned::to_owned),
            one.group.clone(),
            one.group_size.map_or_else(|| "?".to_owned(), |size| size.to_string()),
            one.dtype.map_or_else(dash, ToOwned::to_owned),
            human_or_unknown(one.bytes),
            one.wait.clone().unwrap_or_else(dash),
            one.depth.to_string(),
        ]);
    }
    lines.extend(table.lines(usize::MAX));
    lines.push("totals:".to_owned());
    let mut table = Table::new(&[
        ("kind", Align::Left),
        ("group", Align::Left),
        ("size", Align::Left),
        ("count", Align::Right),
        ("bytes", Align::Right),
    ]);
    for row in &report.totals {
        let bytes = human(row.bytes);
        table.row([row.kind.to_owned(), row.group.clone(), row.size.to_owned(), row.count.to_string(), bytes]);
    }
    lines.extend(table.lines(usize::MAX));
}

/// Lists of ranks, cut if they are long.
fn members(lists: &[Vec<u32>]) -> String {
    const MOST_LISTS: usize = 8;
    const MOST_RANKS: usize = 16;
    let one = |list: &Vec<u32>| {
        let shown: Vec<String> = list.iter().take(MOST_RANKS).map(u32::to_string).collect();
        let more = if list.len() > MOST_RANKS { ", ..." } else { "" };
        format!("[{}{more}]", shown.join(", "))
    };
    let shown: Vec<String> = lists.iter().take(MOST_LISTS).map(one).collect();
    let more = lists.len().saturating_sub(MOST_LISTS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(" "))
}
