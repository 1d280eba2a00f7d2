//! What PyTorch's operators were seen to do is known, to the passes and to the checker.
//!
//! `tests/data/torch-effects.tsv` is written by `scripts/probe_operators.py`: inputs, a call, inputs that it wrote, inputs
//! whose storage a result has, and whether it drew random numbers. No schema was asked, so that this holds our two readings
//! of the schemas, and the lists of what schemas leave out, to what happens.

use bucketeer::check::prove;
use bucketeer::ir::operators::{self, Alias, Fence, Placement};
use bucketeer::ir::{Graph, NodeId};
use bucketeer_formats::fx::FxText;

const SEEN: &str = include_str!("../data/torch-effects.tsv");

/// One line: a call and what it did, inputs by number.
struct Seen<'a> {
    inputs: &'a str,
    call: &'a str,
    written: Vec<usize>,
    aliased: Vec<usize>,
    random: bool,
}

fn seen() -> impl Iterator<Item = Seen<'static>> {
    SEEN.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let numbers = |text: &str| text.split_whitespace().map(|number| number.parse().unwrap()).collect();
        Seen {
            inputs: fields[0],
            call: fields[1],
            written: numbers(fields[2]),
            aliased: numbers(fields[3]),
            random: fields[4] == "random",
        }
    })
}

/// A graph of these statements. Some calls have no form that FX text is read in, such as numbers without an end.
fn graph(inputs: &str, body: &[&str]) -> Option<Graph> {
    let comma = if inputs.is_empty() { "" } else { ", " };
    let mut text = format!("def forward(self{comma}{inputs}):\n");
    for line in body {
        text += &format!("    {line}\n");
    }
    FxText::parse(text.into_bytes()).ok().map(|text| text.graphs()[0].clone())
}

fn called(graph: &Graph, name: &str) -> Option<NodeId> {
    graph.order().iter().copied().find(|&id| graph.name_of(id) == name)
}

/// What the passes do not know of what was seen.
fn unknown_to_passes(seen: &Seen<'_>) -> Option<Vec<String>> {
    let graph = graph(seen.inputs, &[&format!("r = {}", seen.call), "return (r,)"])?;
    let id = called(&graph, "r")?;
    let effects = operators::effects(&graph, id);
    let operands: Vec<&str> = graph.operands(id).iter().map(|&operand| graph.name_of(operand)).collect();
    let place = |number: usize| operands.iter().position(|name| *name == format!("t{number}"));
    let mut problems = Vec::new();
    for &number in &seen.written {
        let known = place(number).is_some_and(|at| effects.writes.contains(&(at as u32)));
        if !known && !effects.may_write_operands() {
            problems.push(format!("writes t{number}"));
        }
    }
    for &number in &seen.aliased {
        let at = place(number).map(|at| at as u32);
        let known = match effects.alias {
            Alias::Fresh => false,
            Alias::Of(of) => Some(of) == at,
            Alias::Written => at.is_some_and(|at| effects.writes.contains(&at)),
            Alias::Any => true,
        };
        if !known {
            problems.push(format!("aliases t{number}"));
        }
    }
    if seen.random && effects.fence == Fence::Free {
        problems.push("draws".into());
    }
    Some(problems)
}

/// What the checker does not see of it: a pair of graphs that the effect tells apart and that it calls equal.
fn unseen_by_checker(seen: &Seen<'_>) -> Option<Vec<String>> {
    let call = format!("r = {}", seen.call);
    let mut problems = Vec::new();
    for &number in &seen.written {
        let copy = format!("c = torch.ops.aten.clone.default(t{number})");
        let before = graph(seen.inputs, &[&call, &copy, "return (c,)"])?;
        let after = graph(seen.inputs, &[&copy, &call, "return (c,)"])?;
        if prove(&before, &after).is_equal() {
            problems.push(format!("writes t{number}"));
        }
    }
    if seen.random {
        let other = "d = torch.ops.aten.rand.default([4], dtype = torch.float32, device = device(type='cpu'))";
        let before = graph(seen.inputs, &[&call, other, "return (d,)"])?;
        let after = graph(seen.inputs, &[other, &call, "return (d,)"])?;
        if prove(&before, &after).is_equal() {
            problems.push("draws".into());
        }
    }
    Some(problems)
}

/// Calls with problems, and how many were looked at.
fn problems(of: impl Fn(&Seen<'_>) -> Option<Vec<String>>) -> (Vec<String>, usize, usize) {
    let (mut found, mut looked, mut unread) = (Vec::new(), 0, Vec::new());
    for seen in seen() {
        match of(&seen) {
            Some(problems) => {
                looked += 1;
                if !problems.is_empty() {
                    found.push(format!("{}: {}", seen.call, problems.join(", ")));
                }
            }
            None => unread.push(seen.call),
        }
    }
    (found, looked, unread.len())
}

#[test]
fn what_operators_were_seen_to_do_is_known_to_the_passes() {
    let (found, looked, unread) = problems(unknown_to_passes);
    assert!(looked > 3000 && unread * 20 < looked, "looked at {looked}, could not read {unread}");
    assert!(found.is_empty(), "{} calls do what the passes do not know:\n{}", found.len(), found.join("\n"));
}

#[test]
fn operators_whose_values_were_seen_to_depend_on_where_an_argument_begins_see_its_storage() {
    let rows = include_str!("../data/torch-observed.tsv").lines().map(|line| line.split('\t').collect::<Vec<_>>());
    // What is true of an operator is true of its form with an `out`.
    let begins = |row: &&[&str]| {
        row[0].starts_with("aten.") && !row[0].ends_with("out") && row[5].split(' ').any(|place| place == "offset")
    };
    let rows: Vec<Vec<&str>> = rows.collect();
    let found: Vec<&str> = rows.iter().map(|row| &row[..]).filter(begins).map(|row| row[0]).collect();
    assert!(found.len() > 8, "{found:?}");
    let unknown = found.iter().filter(|name| {
        let graph = graph("t0: \"f32[4][1]cpu\"", &[&format!("r = torch.ops.{name}(t0)"), "return (r,)"]).unwrap();
        operators::effects(&graph, called(&graph, "r").unwrap()).sees != Placement::Storage
    });
    assert_eq!(unknown.collect::<Vec<_>>(), Vec::<&&str>::new());
}

#[test]
fn what_operators_were_seen_to_do_tells_graphs_apart_for_the_checker() {
    let (found, looked, unread) = problems(unseen_by_checker);
    assert!(looked > 3000 && unread * 20 < looked, "looked at {looked}, could not read {unread}");
    assert!(found.is_empty(), "{} calls do what the checker does not see:\n{}", found.len(), found.join("\n"));
}
