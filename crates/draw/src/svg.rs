//! A drawing as a picture: SVG without scripts, fonts or anything else from outside.
//!
//! Collectives of one depth stand in one band, in issue order, and depths go down. A line leads down from what is needed
//! to what needs it; dots are joints. Whoever points at a box is told all about it.

use super::order::Item;
use super::text::cut;
use super::{Collective, Drawing, fill};
use std::fmt::Write;

/// Sizes in pixels.
const BOX_WIDTH: i64 = 208;
const BOX_HEIGHT: i64 = 48;
const GAP: i64 = 16;
pub(super) const MARGIN: i64 = 24;
/// Between two bands; each lane of joints between them adds one more.
const BAND_GAP: i64 = 56;
const LANE: i64 = 12;
const LINE: i64 = 18;

/// Most boxes side by side; what is more of a band goes into further rows.
const MOST_COLUMNS: usize = 8;

/// Columns of text that a box holds, and that a legend of that many boxes' width does.
const COLUMNS: usize = 32;

/// Writes drawings as one picture, beneath each other.
#[must_use]
pub fn svg(drawings: &[Drawing]) -> String {
    let layouts: Vec<Layout> = drawings.iter().map(Layout::of).collect();
    let widest = |drawing: &Drawing| drawing.legend().map(|(_, words)| words.chars().count() as i64 * 7 + 40).max();
    let words =
        drawings.iter().flat_map(widest).chain(drawings.iter().map(|one| one.title.chars().count() as i64 * 10));
    let width = layouts.iter().map(|layout| layout.width).chain(words.map(|words| words + 2 * MARGIN)).max();
    let width = width.unwrap_or(0).clamp(320, 4000);
    let mut body = String::new();
    let mut y = MARGIN;
    for (drawing, layout) in drawings.iter().zip(&layouts) {
        y = head(&mut body, &drawing.title, drawing.legend(), y);
        let _ = writeln!(body, "<g transform=\"translate({} {y})\">", (width - layout.width) / 2);
        picture(&mut body, drawing, layout);
        body.push_str("</g>\n");
        y += layout.height + MARGIN;
    }
    frame("bucketeer-boxes", width, y, STYLE, &body)
}

const STYLE: &str = "\
.bucketeer-boxes path { fill: none; stroke: #777777; stroke-opacity: 0.6 }
.bucketeer-boxes path:hover { stroke: #cc0000; stroke-opacity: 1; stroke-width: 2.5 }
.bucketeer-boxes g:hover > rect { stroke: #cc0000 }
";

/// A picture of this size. Its style rules name its class, because a notebook has many pictures on one page.
pub(super) fn frame(class: &str, width: i64, height: i64, style: &str, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{class}\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"10\">\n<style>\n{style}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// Title and legend; returns where the picture begins.
pub(super) fn head(
    out: &mut String,
    title: &str,
    legend: impl Iterator<Item = (&'static str, String)>,
    mut y: i64,
) -> i64 {
    y += 14;
    let title = escaped(title);
    let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{y}\" font-size=\"15\" font-weight=\"bold\">{title}</text>");
    y += 10;
    for (fill, words) in legend {
        let _ = writeln!(
            out,
            "<rect x=\"{MARGIN}\" y=\"{y}\" width=\"14\" height=\"12\" fill=\"{fill}\" stroke=\"#444444\"/>\
             <text x=\"{}\" y=\"{}\" font-size=\"11\">{}</text>",
            MARGIN + 22,
            y + 10,
            escaped(&words)
        );
        y += LINE;
    }
    y + 10
}

/// Where everything is.
struct Layout {
    width: i64,
    height: i64,
    /// By item: its middle, from side to side, its upper and its lower end.
    places: Vec<(i64, i64, i64)>,
    /// Upper end of each band, and how many collectives it holds.
    bands: Vec<(i64, usize)>,
}

impl Layout {
    fn of(drawing: &Drawing) -> Self {
        let (depths, lanes) = depths(drawing);
        let bands = depths.iter().max().map_or(0, |&deepest| deepest as usize + 1);
        let mut band: Vec<Vec<usize>> = vec![Vec::new(); bands];
        let mut joints: Vec<Vec<usize>> = vec![Vec::new(); bands];
        for (at, item) in drawing.items.iter().enumerate() {
            let list = if item.node.is_some() { &mut band } else { &mut joints };
            list[depths[at] as usize].push(at);
        }
        let columns = band.iter().map(Vec::len).max().unwrap_or(0).clamp(1, MOST_COLUMNS);
        let width = columns as i64 * (BOX_WIDTH + GAP) - GAP + 2 * MARGIN;
        let mut layout =
            Self { width, height: 0, places: vec![(0, 0, 0); drawing.items.len()], bands: Vec::with_capacity(bands) };
        let mut y = LINE;
        for (band, joints) in band.iter_mut().zip(&joints) {
            layout.bands.push((y, band.len()));
            if band.len() <= columns {
                band.sort_by_key(|&at| (layout.middle_of_sources(&drawing.items[at]), at));
            }
            y = layout.place_boxes(band, columns, y);
            let count = joints.iter().map(|&at| lanes[at] + 1).max().unwrap_or(0);
            for &at in joints {
                let x = layout.middle_of_sources(&drawing.items[at]).unwrap_or(width / 2);
                let middle = y + BAND_GAP / 2 - GAP + i64::from(lanes[at]) * LANE;
                layout.places[at] = (x, middle, middle);
            }
            y += BAND_GAP - GAP + i64::from(count) * LANE;
        }
        layout.height = y;
        layout
    }

    /// Puts the boxes of a band into rows, each in the middle; returns the end of the last with its gap.
    fn place_boxes(&mut self, band: &[usize], columns: usize, mut y: i64) -> i64 {
        for row in band.chunks(columns) {
            let row_width = row.len() as i64 * (BOX_WIDTH + GAP) - GAP;
            let left = (self.width - row_width) / 2;
            for (nth, &at) in row.iter().enumerate() {
                let middle = left + nth as i64 * (BOX_WIDTH + GAP) + BOX_WIDTH / 2;
                self.places[at] = (middle, y, y + BOX_HEIGHT);
            }
            y += BOX_HEIGHT + GAP;
        }
        y
    }

    fn middle_of_sources(&self, item: &Item) -> Option<i64> {
        let sum: i64 = item.sources.iter().map(|&source| self.places[source as usize].0).sum();
        (!item.sources.is_empty()).then(|| sum / item.sources.len() as i64)
    }
}

/// By item: its depth, of a joint that of the deepest collective above it, and of a joint its lane below that band.
fn depths(drawing: &Drawing) -> (Vec<u32>, Vec<u32>) {
    let (mut depths, mut lanes) = (vec![0u32; drawing.items.len()], vec![0u32; drawing.items.len()]);
    let mut boxes = drawing.boxes.iter();
    for (at, item) in drawing.items.iter().enumerate() {
        if item.node.is_some() {
            depths[at] = boxes.next().map_or(0, |one| one.depth);
            continue;
        }
        depths[at] = item.sources.iter().map(|&source| depths[source as usize]).max().unwrap_or(0);
        let above = item.sources.iter().map(|&source| source as usize);
        let above = above.filter(|&source| drawing.items[source].node.is_none() && depths[source] == depths[at]);
        lanes[at] = above.map(|source| lanes[source] + 1).max().unwrap_or(0);
    }
    (depths, lanes)
}

fn picture(out: &mut String, drawing: &Drawing, layout: &Layout) {
    for (depth, (y, count)) in layout.bands.iter().enumerate() {
        let _ = writeln!(out, "<text x=\"4\" y=\"{}\" fill=\"#888888\">depth {depth}: {count}</text>", y - 5);
    }
    for (at, item) in drawing.items.iter().enumerate() {
        for &source in &item.sources {
            let ((x, _, from), (to_x, to, _)) = (layout.places[source as usize], layout.places[at]);
            let bend = ((to - from) / 2).max(4);
            let _ = writeln!(out, "<path d=\"M{x} {from}C{x} {} {to_x} {} {to_x} {to}\"/>", from + bend, to - bend);
        }
    }
    let mut boxes = drawing.boxes.iter();
    for (item, &(x, y, _)) in drawing.items.iter().zip(&layout.places) {
        match item.node {
            None => {
                let _ = writeln!(out, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"#555555\"/>");
            }
            Some(_) => draw_box(out, boxes.next().expect("there is a box for each collective"), x - BOX_WIDTH / 2, y),
        }
    }
}

fn draw_box(out: &mut String, one: &Collective, x: i64, y: i64) {
    let frame = if one.merged { "stroke=\"#000000\" stroke-width=\"2.5\"" } else { "stroke=\"#444444\"" };
    let group = cut(&one.group, COLUMNS.saturating_sub(one.place.len() + 2));
    let _ = write!(
        out,
        "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"4\" \
         fill=\"{}\" {frame}/>",
        escaped(&one.details.join("\n")),
        fill(one.bucket)
    );
    let lines = [
        (cut(&one.name, COLUMNS), " font-weight=\"bold\""),
        (cut(&one.what, COLUMNS), ""),
        (format!("{group}, {}", one.place), ""),
    ];
    for (nth, (line, weight)) in lines.iter().enumerate() {
        let _ =
            write!(out, "<text x=\"{}\" y=\"{}\"{weight}>{}</text>", x + 7, y + 14 + 14 * nth as i64, escaped(line));
    }
    out.push_str("</g>\n");
}

/// A text between tags.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
