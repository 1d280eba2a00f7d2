//! What is said of a rewritten graph: a summary of one screen, a line for each collective, and statistics.

use super::report::{Change, Fate, GraphReport, KindReport, MemoryReport, ProofReport, Volume, growth_percent};
use crate::table::{Align, Table};
use crate::units::{count, human, human_or_unknown};

/// Rows of kinds and groups that are shown.
const MOST_ROWS: usize = 16;

/// One screen.
pub fn summary(report: &GraphReport) -> Vec<String> {
    let Change { before, after } = report.nodes;
    let mut lines = vec![format!("graph `{}`: {} before, {after} after", report.graph, count(before, "node"))];
    if report.collectives.is_empty() {
        lines.push("  no collectives".to_owned());
        return lines;
    }
    let mut table = Table::new(&[
        ("kind", Align::Left),
        ("group", Align::Left),
        ("ranks", Align::Right),
        ("before", Align::Right),
        ("after", Align::Right),
        ("bytes", Align::Right),
        ("buckets", Align::Right),
        ("biggest", Align::Right),
    ]);
    for row in &report.collectives {
        table.row([
            row.kind.to_owned(),
            row.group.clone(),
            row.group_size.map_or_else(|| "?".to_owned(), |size| size.to_string()),
            row.volume.before.count.to_string(),
            row.volume.after.count.to_string(),
            volume(row.volume.before),
            row.buckets.to_string(),
            row.biggest_bucket_bytes.map_or_else(|| if row.buckets > 0 { "?" } else { "-" }.to_owned(), human),
        ]);
    }
    lines.extend(table.lines(MOST_ROWS));
    if !report.left_alone.is_empty() {
        let reasons: Vec<String> =
            report.left_alone.iter().map(|row| format!("{} {}", row.count, row.reason)).collect();
        lines.push(format!("  left alone: {}", reasons.join(", ")));
    }
    let removed: Vec<String> = report
        .passes
        .iter()
        .filter(|pass| pass.removed > 0)
        .map(|pass| format!("{} removed {}", pass.pass, count(pass.removed, "node")))
        .collect();
    if !removed.is_empty() {
        lines.push(format!("  {}", removed.join(", ")));
    }
    lines.push(format!("  {} moved, {} added; {}", count(report.nodes_moved, "node"), copies(report), peak(report)));
    lines.extend(report.memory.as_ref().map(memory));
    if report.no_device_data {
        lines.push("  no device data: taken as one device".to_owned());
    }
    let buckets: usize = report.collectives.iter().map(|row| row.buckets).sum();
    let group = |row: &KindReport| row.group != report.collectives[0].group;
    if report.rank.is_none() && buckets > 0 && report.collectives.iter().any(group) {
        lines.push(
            "  launches of several groups: if ranks have graphs of their own, rewrite them in one command".to_owned(),
        );
    }
    lines.push(match &report.proof {
        ProofReport::Equal { assumptions } if assumptions.is_empty() => "  proven equal".to_owned(),
        ProofReport::Equal { assumptions } => format!("  proven equal, if {}", assumptions.join(" and ")),
        ProofReport::NotTried { because } => format!("  not proven: {because}"),
        // The warning has all of it.
        ProofReport::CannotDecide { .. } => "  not proven: cannot decide".to_owned(),
    });
    lines
}

fn copies(report: &GraphReport) -> String {
    match report.copies_added {
        1 => "1 copy".to_owned(),
        copies => format!("{copies} copies"),
    }
}

fn volume(volume: Volume) -> String {
    match (volume.bytes, volume.unknown_size) {
        (bytes, 0) => human(bytes),
        (0, _) => "?".to_owned(),
        (bytes, _) => format!("{} + ?", human(bytes)),
    }
}

fn peak(report: &GraphReport) -> String {
    let Change { before, after } = report.peak_live_bytes;
    let growth = if before > 0 { format!(" ({:+.1} %)", growth_percent(before, after)) } else { String::new() };
    let unknown = match report.peak_live_unknown.after {
        0 => String::new(),
        values => format!(", without {} of unknown size", count(values, "value")),
    };
    format!("peak live {} before, {} after{growth}{unknown}", human(before), human(after))
}

fn memory(memory: &MemoryReport) -> String {
    let MemoryReport { cap_bytes, alive_bytes: Change { after, .. }, buckets_cut, declined, .. } = memory;
    let kept = format!("  cap on memory {}: {} alive at once", human(*cap_bytes), human(*after));
    match (buckets_cut, declined) {
        (0, 0) => kept,
        (cut, declined) => format!("{kept}; {} cut, {declined} declined", count(*cut, "bucket")),
    }
}

/// A line for each collective.
pub fn explain(report: &GraphReport) -> Vec<String> {
    let mut table = Table::new(&[
        ("collective", Align::Left),
        ("kind", Align::Left),
        ("group", Align::Left),
        ("bytes", Align::Right),
        ("what became of it", Align::Left),
    ]);
    for remark in &report.remarks {
        let fate = match &remark.fate {
            Fate::Merged { bucket, of, offset: Some(offset) } => format!("bucket {bucket} of {of}, offset {offset}"),
            Fate::Merged { bucket, of, offset: None } => format!("bucket {bucket} of {of}"),
            Fate::Alone { told, .. } => format!("alone: {told}"),
            Fate::Folded => "folded: moves nothing, or is sent elsewhere already".to_owned(),
            Fate::NotAsked => "not asked for".to_owned(),
        };
        let bytes = human_or_unknown(remark.bytes);
        table.row([remark.name.clone(), remark.kind.to_owned(), remark.group.clone(), bytes, fate]);
    }
    let mut lines = vec![format!("graph `{}`, collective by collective:", report.graph)];
    lines.extend(table.lines(usize::MAX));
    lines
}

/// Sizes and times.
pub fn stats(report: &GraphReport) -> Vec<String> {
    let (nodes, edges) = (report.nodes, report.edges);
    let mut lines = vec![format!(
        "graph `{}`: nodes {} before, {} after; edges {} before, {} after",
        report.graph, nodes.before, nodes.after, edges.before, edges.after
    )];
    let mut table = Table::new(&[("pass", Align::Left), ("time", Align::Right)]);
    for pass in &report.passes {
        table.row([pass.pass.to_owned(), format!("{:.1?}", pass.time)]);
    }
    lines.extend(table.lines(usize::MAX));
    lines
}
