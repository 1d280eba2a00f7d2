//! Runs of a step as lanes over time, one above the other, as SVG: for viewers that run no scripts.

use super::axis::ticks;
use super::counted;
use super::lanes::MOST_LANES;
use super::lanes_svg::{BAR, GAP, LABEL, LETTER, LINE, ROW, STYLE, WIDE, draw_mark, px, rules, tenths};
use super::svg::{MARGIN, escaped, frame, head};
use super::text::{cut, visible};
use super::timeline::{KINDS, TimedLane, TimedRun, WAIT, colour};
use super::timeline_marks::{Shown, marks};
use bucketeer_types::times::human;
use std::fmt::Write;

/// Between two lanes, in pixels.
const LANE_GAP: i64 = 3;

/// A picture that shows runs above one another at one scale, without scripts. A bar is from when something starts to when it ends;
/// pointing at it shows its name, its times and its notes. Spans that are too thin for bars of their own share some, and
/// lanes beyond 24 of a run are left out; the picture says how many. It takes about 1 MB at most, however long the runs are; more
/// only where names are long and hold what has to be escaped. Equal runs give equal bytes.
#[must_use]
pub fn timeline_svg(title: &str, runs: &[TimedRun]) -> String {
    let end_ns = runs.iter().map(|run| run.end_ns).max().unwrap_or(0);
    let lanes = runs.iter().flat_map(drawn);
    let mut shown = marks(lanes.clone(), end_ns).into_iter();
    let legend =
        KINDS.iter().filter(|(what, ..)| lanes.clone().flat_map(|lane| &lane.spans).any(|one| one.what == *what));
    let legend = legend.map(|&(what, colour, words)| (colour, format!("{what}: {words}")));
    let mut body = String::new();
    let mut y = head(&mut body, &cut(&visible(title), 120), legend, MARGIN);
    for run in runs {
        let marks: Vec<Vec<Shown>> = shown.by_ref().take(drawn(run).count()).collect();
        y = draw_run(&mut body, run, &marks, end_ns, y) + MARGIN;
    }
    frame("bucketeer-lanes", WIDE, y, STYLE, &body)
}

/// The lanes of a run that there is room for.
fn drawn(run: &TimedRun) -> impl Iterator<Item = &TimedLane> + Clone {
    run.lanes.iter().take(MOST_LANES)
}

/// A run with its axis; returns where they end.
fn draw_run(out: &mut String, run: &TimedRun, marks: &[Vec<Shown>], end_ns: u64, mut y: i64) -> i64 {
    let name = format!("{}: {}", cut(&visible(&run.name), 60), human(run.end_ns));
    let _ = writeln!(
        out,
        "<text x=\"{MARGIN}\" y=\"{}\" font-size=\"12\" font-weight=\"bold\">{}</text>",
        y + LINE,
        escaped(&name)
    );
    y += LINE + LANE_GAP * 2;
    let top = y;
    for (lane, marks) in drawn(run).zip(marks) {
        y = draw_lane(out, lane, marks, end_ns, y);
    }
    let end = px(tenths(run.end_ns, end_ns));
    let _ = writeln!(out, "<path class=\"r\" d=\"M{end} {top}V{y}\" stroke=\"#000000\"/>");
    let places = ticks(end_ns).into_iter().map(|(ns, words)| (tenths(ns, end_ns), words));
    y = rules(out, places, top, y);
    for words in left_out(run, marks) {
        y += LINE;
        let _ = writeln!(out, "<text x=\"{}\" y=\"{y}\" fill=\"#555555\">{words}</text>", MARGIN + LABEL);
    }
    y + GAP
}

/// A lane; returns where the next begins.
fn draw_lane(out: &mut String, lane: &TimedLane, marks: &[Shown], end_ns: u64, y: i64) -> i64 {
    let busy_ns = lane.spans.iter().fold(0, |sum: u64, span| sum.saturating_add(span.ns));
    let details =
        format!("{}\n{}, {}", cut(&visible(&lane.name), 120), counted(lane.spans.len(), "span"), human(busy_ns));
    let _ = writeln!(
        out,
        "<g><title>{}</title><rect x=\"{MARGIN}\" y=\"{y}\" width=\"{}\" height=\"{ROW}\" fill=\"#f7f7f7\"/>\
         <text x=\"{MARGIN}\" y=\"{}\" font-weight=\"bold\">{}</text></g>",
        escaped(&details),
        WIDE - 2 * MARGIN,
        y + 11,
        escaped(&cut(&visible(&lane.name), (LABEL / LETTER) as usize - 1))
    );
    for (nth, shown) in marks.iter().enumerate() {
        let next = marks.get(nth + 1).map_or(end_ns, |next| next.start_ns);
        let place = [shown.start_ns, shown.end_ns, next].map(|ns| tenths(ns, end_ns));
        draw_mark(out, &shown.mark, place, y + 1);
        draw_waiting(out, shown.waiting, place, y + 1 + BAR);
    }
    y + ROW + LANE_GAP
}

/// Marks the hundredths of a bar's time that are waiting, from its lower end.
fn draw_waiting(out: &mut String, hundredths: u64, [start, end, _]: [u64; 3], bottom: i64) {
    if hundredths == 0 {
        return;
    }
    let (x, width, height) = (px(start), px(end.saturating_sub(start)), px(BAR as u64 * hundredths / 10));
    let red = colour(WAIT);
    let _ = writeln!(out, "<path class=\"r\" d=\"M{x} {bottom}v-{height}h{width}v{height}z\" fill=\"{red}\"/>");
}

/// What a run has no bars of its own for, in words.
fn left_out(run: &TimedRun, marks: &[Vec<Shown>]) -> Vec<String> {
    let shared: Vec<usize> = marks.iter().flatten().map(|shown| shown.spans).filter(|&spans| spans > 1).collect();
    let lanes = &run.lanes[run.lanes.len().min(MOST_LANES)..];
    let mut words = Vec::new();
    if !shared.is_empty() {
        let spans = counted(shared.iter().sum(), "span");
        let bars = counted(shared.len(), "bar");
        words.push(format!(
            "{spans} too thin for bars of their own share {bars}, in the colour of what takes most of the time; the red part is waiting"
        ));
    }
    if !lanes.is_empty() {
        let spans = counted(lanes.iter().map(|lane| lane.spans.len()).sum(), "span");
        words.push(format!("and {} more, with {spans}", counted(lanes.len(), "lane")));
    }
    words
}
