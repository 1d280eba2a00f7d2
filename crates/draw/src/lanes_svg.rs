//! Lanes as SVG: a picture that needs no fonts or anything else from outside.

use super::lanes::{BytesAlive, Lane, Lanes, Mark, WIDTH};
use super::svg::{MARGIN, escaped, frame, head};
use super::text::cut;
use std::fmt::Write;

/// Sizes in pixels.
pub(super) const LABEL: i64 = 176;
pub(super) const ROW: i64 = 15;
pub(super) const BAR: i64 = 13;
pub(super) const GAP: i64 = 14;
pub(super) const LINE: i64 = 13;
const MEMORY: i64 = 160;
/// A letter of the texts in bars and labels.
pub(super) const LETTER: i64 = 6;
/// The picture as a whole.
pub(super) const WIDE: i64 = 2 * MARGIN + LABEL + WIDTH as i64;

/// Parts into which the program is ruled.
const PARTS: usize = 4;

/// Writes lanes of graphs as one picture, beneath each other. A graph takes about 1 MB at most, however large
/// it is; more only where its names are long and hold what has to be escaped.
#[must_use]
pub fn lanes_svg(graphs: &[Lanes]) -> String {
    let mut body = String::new();
    let mut y = MARGIN;
    for graph in graphs {
        y = head(&mut body, &graph.title, graph.legend.iter().cloned(), y);
        let top = y;
        for one in &graph.lanes {
            y = lane(&mut body, one, graph.nodes, y);
        }
        if let Some(words) = &graph.left_out {
            let _ = writeln!(body, "<text x=\"{MARGIN}\" y=\"{}\">{}</text>", y + LINE, escaped(words));
            y += LINE + GAP;
        }
        y = memory(&mut body, &graph.memory, y);
        let place = |part: usize| (tenths(part as u64, PARTS as u64), (graph.nodes * part / PARTS).to_string());
        y = rules(&mut body, (0..=PARTS).map(place), top, y) + MARGIN;
    }
    frame("bucketeer-lanes", WIDE, y, STYLE, &body)
}

/// How marks look.
pub(super) const STYLE: &str = "\
.bucketeer-lanes rect.b { stroke: #444444; stroke-width: 0.5 }
.bucketeer-lanes rect.m { stroke: #000000; stroke-width: 2 }
.bucketeer-lanes g:hover > rect { stroke: #cc0000 }
.bucketeer-lanes text, .bucketeer-lanes path.r { pointer-events: none }
";

/// Where something begins from side to side: `part` of `whole`, in tenths of a pixel.
pub(super) fn tenths(part: u64, whole: u64) -> u64 {
    let along = u128::from(part) * u128::from(WIDTH) * 10 / u128::from(whole.max(1));
    (MARGIN + LABEL) as u64 * 10 + along as u64
}

/// Pixels, of tenths.
pub(super) fn px(tenths: u64) -> String {
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        rest => format!("{}.{rest}", tenths / 10),
    }
}

/// A lane; returns where the next begins.
fn lane(out: &mut String, lane: &Lane, nodes: usize, y: i64) -> i64 {
    let _ = write!(out, "<g><title>{}</title>", escaped(&lane.details));
    let name = cut(&lane.name, (LABEL / LETTER) as usize - 1);
    let height = (lane.rows as i64 * ROW).max(LINE * 4);
    let _ = write!(
        out,
        "<rect x=\"{MARGIN}\" y=\"{y}\" width=\"{}\" height=\"{height}\" fill=\"#f7f7f7\"/>\
         <text x=\"{MARGIN}\" y=\"{}\" font-weight=\"bold\">{}</text>",
        LABEL + WIDTH as i64,
        y + 10,
        escaped(&name)
    );
    for (nth, fact) in (1..).zip(&lane.facts) {
        let _ = write!(out, "<text x=\"{MARGIN}\" y=\"{}\">{}</text>", y + 10 + LINE * nth, escaped(fact));
    }
    out.push_str("</g>\n");
    for (nth, mark) in lane.marks.iter().enumerate() {
        let next = lane.marks.get(nth + 1).filter(|next| next.row == mark.row);
        let free = [mark.start, mark.end, next.map_or(nodes, |next| next.start)]
            .map(|place| tenths(place as u64, nodes as u64));
        draw_mark(out, mark, free, y + mark.row as i64 * ROW + 1);
    }
    let mut end = y + height;
    if lane.more > 0 {
        let words = format!("and {} more at once than there are rows for", lane.more);
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\" fill=\"#555555\">{words}</text>", MARGIN + LABEL, end + LINE);
        end += LINE;
    }
    end + GAP
}

/// A mark from `start` to `end`, in tenths of a pixel, with its number behind it if it is too narrow and the row is free so
/// far.
pub(super) fn draw_mark(out: &mut String, mark: &Mark, [start, end, next]: [u64; 3], y: i64) {
    // What is thinner is not seen.
    let end = end.max(start + 15);
    let class = if mark.merged { "m" } else { "b" };
    let _ = write!(
        out,
        "<g><title>{}</title><rect class=\"{class}\" x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{BAR}\" fill=\"{}\"/>",
        escaped(&mark.details.join("\n")),
        px(start),
        px(end - start),
        mark.fill
    );
    let room = |from: u64, to: u64| (to.saturating_sub(from + 40) / 10) as usize / LETTER as usize;
    let (within, behind) = (room(start, end), room(end, next));
    let number = &mark.number;
    let (x, words) = if within >= number.len() + 6 {
        (start, cut(format!("{number} {}", mark.name).trim_start(), within))
    } else {
        (if within >= number.len() { start } else { end }, number.clone())
    };
    if !words.is_empty() && (x == start || behind >= number.len()) {
        let _ = write!(out, "<text x=\"{}\" y=\"{}\">{}</text>", px(x + 20), y + 10, escaped(&words));
    }
    out.push_str("</g>\n");
}

/// The bytes alive, with a caption above; returns where what comes next begins.
fn memory(out: &mut String, memory: &BytesAlive, y: i64) -> i64 {
    let _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{}</text>", MARGIN + LABEL, y + 10, escaped(&memory.caption));
    let (top, bottom) = (y + LINE + 4, y + LINE + 4 + MEMORY);
    let most = memory.columns.iter().copied().max().unwrap_or(0).max(1);
    let height = |bytes: u64| bottom - (u128::from(bytes) * MEMORY as u128 / u128::from(most)) as i64;
    let mut path = format!("M{} {bottom}", px(tenths(0, 1)));
    let mut last = bottom;
    let columns = memory.columns.len() as u64;
    for (column, &bytes) in memory.columns.iter().enumerate() {
        let here = height(bytes);
        if here != last {
            let _ = write!(path, "H{}V{here}", px(tenths(column as u64, columns)));
            last = here;
        }
    }
    let _ = writeln!(
        out,
        "<g><title>{}</title><path d=\"{path}H{}V{bottom}Z\" fill=\"#c9daf8\" stroke=\"#3d6fb4\"/></g>",
        escaped(&memory.caption),
        px(tenths(1, 1))
    );
    if let Some((column, words)) = &memory.peak {
        let _ = writeln!(
            out,
            "<g><title>{}</title><circle cx=\"{}\" cy=\"{top}\" r=\"3\" fill=\"#cc0000\"/></g>",
            escaped(words),
            px(tenths(*column as u64, columns))
        );
    }
    bottom
}

/// Lines at places from side to side, each with its words below; returns where they end.
pub(super) fn rules(out: &mut String, places: impl Iterator<Item = (u64, String)>, top: i64, bottom: i64) -> i64 {
    for (x, words) in places {
        let x = px(x);
        let _ = writeln!(
            out,
            "<path class=\"r\" d=\"M{x} {top}V{bottom}\" stroke=\"#000000\" stroke-opacity=\"0.15\"/>\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">{words}</text>",
            bottom + LINE
        );
    }
    bottom + LINE
}
