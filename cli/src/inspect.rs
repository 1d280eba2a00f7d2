//! `inspect`: what a graph communicates, and whether it is well-formed.

mod picture;
mod report;
mod stablehlo;

use crate::buckets::BucketArgs;
use crate::fault::{InputFault, OptionFault};
use crate::input::{FactsArgs, Files, Inspected};
use crate::table::{Align, Table};
use crate::talk::Warning;
use crate::units::{count, human, human_or_unknown};
use crate::{ExitStatus, advice, input, output, talk};
use anyhow::{Result, bail};
use bucketeer::ir::VerifyErrors;
use bucketeer_formats::stablehlo::StableCollective;
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
    let (prints_json, out) = (arguments.json, arguments.out.clone());
    let found = look(arguments, &Files::on_disk())?;
    if let Found::Picture(text) = &found {
        output::write(out.as_deref(), text.as_bytes())?;
        return Ok(ExitStatus::Accepted);
    }
    if prints_json {
        output::to_stdout(found.json()?.as_bytes())?;
    } else {
        found.say_faults();
        output::to_stdout(found.text().as_bytes())?;
        found.say_rest();
    }
    Ok(if found.is_well_formed() { ExitStatus::Accepted } else { ExitStatus::Rejected })
}

/// What was found in a file, or drawn of it.
pub enum Found {
    /// The drawing that was asked for.
    Picture(String),
    /// The collectives of a module of StableHLO.
    StableHlo(Vec<StableCollective>),
    /// What is in each graph, and what is wrong with those that are not well-formed.
    Graphs { format: &'static str, reports: Vec<GraphReport>, faults: Vec<InputFault> },
}

/// Looks at a file.
pub fn look(arguments: InspectArgs, files: &Files) -> Result<Found> {
    arguments.check().map_err(OptionFault::of)?;
    let passes = arguments.buckets.validate().map_err(OptionFault::of)?;
    let facts = arguments.facts.validate().map_err(OptionFault::of)?;
    let label = input::label(&arguments.graph);
    let mut document = match input::read_inspected(&arguments.graph, files)? {
        Inspected::StableHlo(_) if arguments.dot || arguments.svg => {
            return Err(InputFault::of_file(&label, "StableHLO is listed only; draw the HLO text of the module").into());
        }
        Inspected::StableHlo(bytes) => return stablehlo::find(&label, &bytes).map(Found::StableHlo),
        Inspected::Document(document) => *document,
    };
    facts.apply(&mut document, files)?;
    advice::notes(&document).iter().for_each(|note| talk::say(note));
    if arguments.dot || arguments.svg {
        let form = match (arguments.svg, arguments.lanes) {
            (false, _) => picture::Form::Dot,
            (true, false) => picture::Form::Svg,
            (true, true) => picture::Form::Lanes,
        };
        return picture::draw(&label, &document, passes, form).map(Found::Picture);
    }
    let (mut reports, mut faults) = (Vec::new(), Vec::new());
    for (index, graph) in document.graphs().iter().enumerate() {
        let errors = bucketeer::ir::verify(graph).err().map_or_else(Vec::new, |VerifyErrors(errors)| errors);
        reports.push(GraphReport::of(graph, errors.iter().map(ToString::to_string).collect()));
        if !errors.is_empty() {
            faults.push(InputFault::of_verify(&label, &document, index, &VerifyErrors(errors)));
        }
    }
    Ok(Found::Graphs { format: document.format().name(), reports, faults })
}

impl Found {
    /// Whether all graphs are well-formed.
    pub fn is_well_formed(&self) -> bool {
        !matches!(self, Self::Graphs { faults, .. } if !faults.is_empty())
    }

    /// As JSON text; empty for a drawing.
    pub fn json(&self) -> Result<String> {
        match self {
            Self::Picture(_) => Ok(String::new()),
            Self::StableHlo(found) => stablehlo::json(found),
            Self::Graphs { format, reports, .. } => output::json(&report::document(format, reports)),
        }
    }

    /// For people: a listing, or the drawing.
    pub fn text(&self) -> String {
        let mut lines = match self {
            Self::Picture(text) => return text.clone(),
            Self::StableHlo(found) => stablehlo::listing(found),
            Self::Graphs { reports, .. } => {
                reports.iter().filter(|report| report.errors.is_empty()).flat_map(listing).collect()
            }
        };
        lines.iter_mut().for_each(|line| line.push('\n'));
        lines.concat()
    }

    /// Says what is wrong with graphs that are not well-formed.
    pub fn say_faults(&self) {
        if let Self::Graphs { faults, .. } = self {
            faults.iter().for_each(|fault| talk::insist(&format!("error: {fault}")));
        }
    }

    /// Says what goes with the listing.
    pub fn say_rest(&self) {
        match self {
            Self::Picture(_) => {}
            Self::StableHlo(_) => talk::say(stablehlo::ONLY_LOOKED_AT),
            Self::Graphs { reports, .. } => reports.iter().flat_map(|report| &report.warnings).for_each(Warning::say),
        }
    }
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
