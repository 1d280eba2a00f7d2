//! Timelines as SVG.

use bucketeer_draw::{TimedLane, TimedRun, TimedSpan, timeline_svg};

fn span(what: &'static str, name: &str, start_ns: u64, ns: u64, notes: &[&str]) -> TimedSpan {
    TimedSpan { name: name.into(), what, start_ns, ns, notes: notes.iter().map(|&note| note.into()).collect() }
}

fn lane(name: &str, spans: Vec<TimedSpan>) -> TimedLane {
    TimedLane { name: name.into(), spans }
}

fn run(name: &str, lanes: Vec<TimedLane>) -> TimedRun {
    let end = |span: &TimedSpan| span.start_ns + span.ns;
    let end_ns = lanes.iter().flat_map(|lane| &lane.spans).map(end).max().unwrap_or(0);
    TimedRun { name: name.into(), end_ns, lanes }
}

/// A step with two reductions: one that hides, and one that is waited for.
fn step() -> [TimedRun; 2] {
    let reduce = |name, start_ns| span("comm", name, start_ns, 2256, &["all_reduce, 256 B, group world"]);
    let came = vec![
        span("compute", "c", 0, 5000, &[]),
        span("wait", "w0", 5000, 2256, &["for `r0`"]),
        span("compute", "d", 7256, 9000, &[]),
    ];
    let planned = vec![
        span("compute", "c", 0, 5000, &[]),
        span("compute", "d", 5000, 9000, &[]),
        span("wait", "w1", 14000, 2256, &["for `r1`"]),
    ];
    [
        run(
            "as it came",
            vec![lane("compute", came), lane("group world", vec![reduce("r0", 5000), reduce("r1", 16256)])],
        ),
        run(
            "planned",
            vec![lane("compute", planned), lane("group world", vec![reduce("r0", 5000), reduce("r1", 14000)])],
        ),
    ]
}

#[test]
fn a_step_is_drawn_as_it_came_above_as_planned() {
    insta::assert_snapshot!(timeline_svg("step", &step()));
}

#[test]
fn a_picture_runs_no_script_and_loads_nothing() {
    let picture = timeline_svg("step", &step());
    for outside in ["<script", "href", "url(", "@import", "<foreignObject", "onload"] {
        assert!(!picture.contains(outside), "{outside}");
    }
}

#[test]
fn names_are_escaped_and_stay_on_their_line() {
    let name = "</text><script>\"&\n\u{1b}";
    let lanes = vec![lane(name, vec![span("comm", name, 0, 5, &[name])])];
    let picture = timeline_svg(name, &[run(name, lanes)]);
    assert!(!picture.contains("<script") && !picture.contains('\u{1b}'), "{picture}");
    assert!(picture.contains("&lt;/text&gt;&lt;script&gt;\"&amp;\\n\\u{1b}"), "{picture}");
}

#[test]
fn nothing_is_drawn_of_a_step_that_takes_no_time() {
    assert!(timeline_svg("step", &[]).ends_with("</svg>\n"));
    assert!(timeline_svg("step", &[run("as it came", Vec::new())]).contains(">as it came: 0 ns<"));
}

/// So many calls, each with a message that is waited for on the spot, in turn in so many groups.
fn long(nodes: u64, groups: u64) -> TimedRun {
    let mut lanes: Vec<TimedLane> = (0..groups).map(|group| lane(&format!("group {group}"), Vec::new())).collect();
    let mut computes = Vec::new();
    for node in 0..nodes {
        let at = node * 30;
        computes.push(span("compute", &format!("call_{node}"), at, 10, &[]));
        computes.push(span("wait", &format!("wait_{node}"), at + 10, 20, &["for a message"]));
        let message = span("comm", &format!("all_reduce_{node}"), at + 10, 20, &["all_reduce, 256 B", "hides nothing"]);
        lanes[(node % groups) as usize].spans.push(message);
    }
    lanes.insert(0, lane("compute", computes));
    run("as it came", lanes)
}

#[test]
fn the_size_of_a_picture_has_a_bound_and_what_is_left_out_is_said() {
    for (nodes, groups) in [(10_000, 1), (10_000, 100), (200_000, 3)] {
        let runs = [long(nodes, groups), long(nodes, groups)];
        let picture = timeline_svg("step", &runs);
        assert!(picture.len() < 1_500_000, "{nodes} nodes in {groups} groups: {} bytes", picture.len());
        assert!(picture.contains("too thin for bars of their own share"), "{nodes} nodes in {groups} groups");
        let lanes = picture.contains(">and 77 lanes more, with 7700 spans<");
        assert_eq!(lanes, groups == 100, "{nodes} nodes in {groups} groups");
        assert_eq!(picture, timeline_svg("step", &runs));
    }
}
