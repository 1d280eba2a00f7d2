//! Graphs as files, each with its program or why it has none: `tests/filetests/lower`.
//!
//! With `passes=PIPELINE` it is what the passes make of the graph that is lowered. Every program is held against its
//! graph, and read back from its text and its JSON.

use bucketeer::check::program::{ProgramVerdict, prove};
use bucketeer::passes::lowering::{LowerOptions, LowerReport, lower};
use bucketeer::program::Program;
use kit::filetests::{Case, Run, hold};

fn options(run: &Run) -> LowerOptions {
    let default = LowerOptions::default();
    let symbol = |text: &str| {
        let (name, value) = text.split_once(':').expect("symbol=NAME:VALUE");
        (name.into(), value.parse().expect("a symbol's value is a number"))
    };
    LowerOptions {
        symbols: run.values("symbol").map(symbol).collect(),
        align_bytes: run.number("align").unwrap_or(default.align_bytes),
        one_shot_max_bytes: run.number("one-shot").unwrap_or(default.one_shot_max_bytes),
        realise: !run.has("realise=off"),
        unpack_at_once: !run.has("unpack-at-once=off"),
    }
}

/// What a report counts, without zeros.
fn counted(report: &LowerReport) -> String {
    let LowerReport { packed, realised, absorbed, padding_bytes, in_place, one_shot, waits_dropped } = *report;
    let counters = [
        ("packed", packed as u64),
        ("realised", realised as u64),
        ("absorbed", absorbed as u64),
        ("padding bytes", padding_bytes),
        ("in place", in_place as u64),
        ("one-shot", one_shot as u64),
        ("waits dropped", waits_dropped as u64),
    ];
    counters.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!(", {count} {what}")).collect()
}

fn lowered(case: &Case, run: &Run) -> String {
    let [source] = &case.graphs[..] else { panic!("one graph is lowered") };
    let rewritten = run.rewritten(source);
    let graph = rewritten.as_ref().unwrap_or(source);
    let (program, report) = match lower(graph, &options(run)) {
        Ok(lowered) => lowered,
        Err(error) => return format!("refused: {error}"),
    };
    let text = program.to_string();
    let again = Program::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again.to_string(), text);
    assert_eq!(Program::from_json(&program.to_json()).unwrap(), program);
    let verdict = match prove(graph, &program) {
        ProgramVerdict::Equal(proof) => format!("proven: {} steps, {} launches", proof.steps, proof.launches),
        ProgramVerdict::Different(fault) => format!("different: {fault}"),
        ProgramVerdict::CannotDecide(fault) => format!("cannot decide: {fault}"),
    };
    format!("{verdict}{}\n{text}", counted(&report))
}

#[test]
fn files_of_graphs_become_the_programs_that_stand_below_them() {
    let options = ["passes=", "align=", "one-shot=", "symbol=", "realise=off", "unpack-at-once=off"];
    hold("lower", 36, &options, lowered);
}
