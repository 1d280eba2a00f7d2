//! Tests of what the crate's own tests cannot reach through the command: values in memory.

use super::*;
use bucketeer_formats::Document;

const GRAPH_TEXT: &str = "x = input f32[4]; y = input f32[4]\na = all_reduce(x, sum, G:2); b = all_reduce(y, sum, G:2)\n\
                          output(wait(a), wait(b))\n";

fn graph() -> Graph {
    Document::read(GRAPH_TEXT.as_bytes().to_vec()).unwrap().graphs()[0].clone()
}

fn launches(graph: &Graph) -> usize {
    graph.order().iter().filter(|&&id| graph.collective(id).is_some()).count()
}

/// Costs of the graph, and a word more.
fn with_costs(word: &str) -> Flags {
    let costs = br#"{"schema": "bucketeer-costs-1", "groups": {"G": {"size": 2, "costs": {"all_reduce": [
        {"alpha_ns": 10, "ns_per_byte_num": 1, "ns_per_byte_den": 1}]}}}, "compute_ns": {}, "copy": {"fixed_ns": 0, "ns_per_byte_num": 0, "ns_per_byte_den": 1}}"#;
    Flags::from(["--costs", "costs", word]).with_file("costs", costs.to_vec())
}

#[test]
fn a_graph_in_memory_is_rewritten_and_told_of() {
    let mut one = graph();
    let told = rewrite_graph(&mut one, ["--all-reduce", "1KiB", "--verify=on"]).unwrap();
    assert_eq!(launches(&one), 1);
    assert!(told.report.contains("\"verdict\": \"equal\"") && told.summary.contains("proven equal"), "{told:?}");
    let [said] = &told.said[..] else { panic!("{:?}", told.said) };
    assert!(told.timeline.is_none() && said.contains("peak live bytes grow from 32 B to 64 B"), "{said}");
}

#[test]
fn a_graph_that_is_refused_stays_as_it_was() {
    let mut one = graph();
    let fault = rewrite_graph(&mut one, ["--permute", "1KiB"]).unwrap_err();
    assert_eq!((fault.kind, one == graph()), (FaultKind::Options, true), "{fault}");
    let fault = rewrite_graph(&mut one, ["--all-reduce", "1KiB", "-o", "x"]).unwrap_err();
    assert_eq!((fault.kind, one == graph()), (FaultKind::Options, true), "{fault}");
}

#[test]
fn flags_are_those_of_the_command_line_and_said_as_it_says_them() {
    let fault = rewrite(GRAPH_TEXT.as_bytes().to_vec(), ["--all-reduse", "1KiB"]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Options);
    assert!(fault.message.starts_with("unexpected argument '--all-reduse' found"), "{fault}");
    assert!(fault.message.contains("'--all-reduce'") && !fault.message.contains("Usage"), "{fault}");
    let fault = rewrite(GRAPH_TEXT.as_bytes().to_vec(), ["another.txt"]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Options, "{fault}");
    let fault = rewrite(GRAPH_TEXT.as_bytes().to_vec(), ["--groups", "-"]).unwrap_err();
    assert!(fault.message.contains("no standard input"), "{fault}");
}

#[test]
fn a_fault_of_the_input_has_its_place() {
    let fault = rewrite(b"x = input f32[4]\ny = nothing at all\n".to_vec(), Flags::default()).unwrap_err();
    assert_eq!((fault.kind, fault.line, fault.file.as_deref()), (FaultKind::Input, Some(2), None));
    assert_eq!(fault.source_line.as_deref(), Some("y = nothing at all"));
    assert!(fault.message.contains(&format!("<graph>:2:{}", fault.column.unwrap())), "{fault}");
    let flags = Flags::from(["--groups", "groups.json"]).with_file("groups.json", b"[".to_vec());
    let fault = rewrite(GRAPH_TEXT.as_bytes().to_vec(), flags).unwrap_err();
    assert_eq!((fault.kind, fault.file.as_deref()), (FaultKind::Input, Some("groups.json")));
}

#[test]
fn what_breaks_is_a_fault_and_the_caller_goes_on() {
    let broken =
        run::<RewriteArgs, ()>("rewrite", no_source(), Flags::default(), |_| panic!("{} on purpose", "broken"));
    let fault = broken.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Other);
    assert!(fault.message.starts_with("broken on purpose. That is a fault of bucketeer"), "{fault}");
    assert!(rewrite(GRAPH_TEXT.as_bytes().to_vec(), Flags::default()).is_ok());
}

#[test]
fn files_that_options_name_are_given_as_content() {
    let mut one = graph();
    let groups = Flags::from(["--groups", "g"]).with_file("g", br#"{"other": [0, 1]}"#.to_vec());
    let told = rewrite_graph(&mut one, groups).unwrap();
    assert!(told.said.iter().any(|line| line.contains("g lacks group `G`")), "{:?}", told.said);
    let groups = Flags::from(["--groups", "g"]).with_file("g", b"{".to_vec());
    assert_eq!(rewrite_graph(&mut one, groups).unwrap_err().kind, FaultKind::Input);
}

#[test]
fn a_planned_graph_has_a_timeline_and_one_that_is_only_looked_at_stays() {
    let mut one = graph();
    let told = plan_graph(&mut one, with_costs("--effort=low")).unwrap();
    assert!(told.timeline.is_some_and(|page| page.starts_with("<!doctype html>")));
    assert!(told.svg.is_some_and(|picture| picture.starts_with("<svg ") && picture.contains("<title>comm a")));
    assert!(told.spans.is_some_and(|spans| spans.contains("bucketeer-timeline")));
    let swept = plan(GRAPH_TEXT.as_bytes().to_vec(), with_costs("--sweep")).unwrap();
    assert_eq!((swept.timeline, swept.svg, swept.spans), (None, None, None));
    assert!(told.report.contains("bucketeer-plan"), "{}", told.report);
    let mut other = graph();
    plan_graph(&mut other, with_costs("--as-written")).unwrap();
    assert!(other == graph());
}

#[test]
fn options_are_listed_with_what_follows_them_and_without_those_of_files() {
    let known = options("rewrite");
    let takes = |name: &str| known.iter().find(|option| option.name == name).map(|option| option.takes);
    assert_eq!(takes("keep-schedule"), Some(Takes::Nothing));
    assert_eq!(takes("all-gather"), Some(Takes::Value));
    assert_eq!(takes("verify"), Some(Takes::Switch));
    assert_eq!(takes("hint"), Some(Takes::List));
    for option in ["out", "json", "dry-run", "help", "color"] {
        assert_eq!(takes(option), None, "{option}");
    }
    assert!(options("no-such-command").is_empty());
}
