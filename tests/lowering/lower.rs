//! Lowering: rules with both sides of their boundaries, where `tests/filetests/lower` does not have them as files. Every program
//! here is proven, and read back from its text.

use bucketeer::check::program::{ProgramVerdict, prove};
use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, LowerReport, all_reduce_path, lower};
use bucketeer::program::{Path, Program, StepKind};

fn graph(text: &str) -> Graph {
    bucketeer::ir::text::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn bucketed(text: &str) -> Graph {
    let mut graph = graph(text);
    let pipeline = "bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}";
    pipeline.parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
    graph
}

fn checked(graph: &Graph, options: &LowerOptions) -> (Program, LowerReport) {
    let (program, report) = lower(graph, options).unwrap_or_else(|error| panic!("{error}"));
    match prove(graph, &program) {
        ProgramVerdict::Equal(_) => {}
        other => panic!("{other:?}\n{program}"),
    }
    let again = Program::parse(&program.to_string()).unwrap_or_else(|error| panic!("{error}\n{program}"));
    assert_eq!(again.to_string(), program.to_string());
    assert_eq!(Program::from_json(&program.to_json()).unwrap(), program);
    (program, report)
}

fn lowered(text: &str) -> (Program, LowerReport) {
    checked(&graph(text), &LowerOptions::default())
}

fn steps(program: &Program, wanted: fn(&StepKind) -> bool) -> usize {
    program.steps.iter().filter(|step| wanted(&step.kind)).count()
}

#[test]
fn a_value_is_written_into_its_slot_only_where_nobody_can_tell() {
    let base = |more: &str, outputs: &str| {
        format!(
            "x = input f32[4]; y = input f32[4]\na = relu(x); b = relu(y)\n{more}\n\
             s = all_reduce(a, sum, G0:2); t = all_reduce(b, sum, G0:2)\nw = wait(s); v = wait(t)\noutput(neg(w), neg(v){outputs})"
        )
    };
    let realised = |text: &str| checked(&bucketed(text), &LowerOptions::default()).1.realised;
    assert_eq!(realised(&base("", "")), 2);
    assert_eq!(realised(&base("early = neg(a)", ", early")), 2, "a reader above the launch");
    assert_eq!(realised(&base("", ", neg(a)")), 1, "a reader below the launch");
    assert_eq!(realised(&base("", ", a")), 1, "it leaves the graph");
    let input = "x = input f32[4]; y = input f32[4]\ns = all_reduce(x, sum, G0:2); t = all_reduce(y, sum, G0:2)\n\
                 w = wait(s); v = wait(t)\noutput(neg(w), neg(v))";
    assert_eq!(realised(input), 0, "inputs are the caller's");
    assert_eq!(realised(&base("mul_(a, 2)", "")), 1, "it is written later");
    assert_eq!(realised(&base("", "").replace("t = all_reduce(b", "t = all_reduce(a")), 0, "it is packed twice");
}

#[test]
fn a_value_and_a_view_of_it_in_one_bucket_are_both_packed() {
    let text = "x = input f32[4]; r = relu(x); s = slice(r, 0, 2); cat = aten.cat.default([s, r]) : f32[6]\n\
                h = all_gather(cat, G1:4); w = wait(h); output(w)";
    assert_eq!(checked(&graph(text), &LowerOptions::default()).1.realised, 0);
    // Read by nobody else, the same value is made in its slot.
    let apart = text.replace("s = slice(r, 0, 2)", "s = slice(neg(x), 0, 2)");
    assert_eq!(checked(&graph(&apart), &LowerOptions::default()).1.realised, 1);
}

#[test]
fn each_size_of_an_all_reduce_has_one_path() {
    for max in [0, 1, 1024] {
        for bytes in 0..4097 {
            let wanted = match bytes {
                0 => None,
                _ if bytes <= max => Some(Path::OneShot),
                _ => Some(Path::Normal),
            };
            assert_eq!(all_reduce_path(bytes, max), wanted, "{bytes} of {max}");
        }
    }
    let path = |bytes: u64| {
        let text = format!("x = input u8[{bytes}]\ns = all_reduce(x, sum, G0:2); w = wait(s)\noutput(neg(w))");
        let options = LowerOptions { one_shot_max_bytes: 1024, ..LowerOptions::default() };
        let (program, _) = checked(&graph(&text), &options);
        program.steps.iter().find_map(|step| match &step.kind {
            StepKind::Collective(collective) => Some(collective.path),
            _ => None,
        })
    };
    let found = [0, 1, 1000, 1023, 1024, 1025, 1040].map(path);
    let (one, normal) = (Some(Path::OneShot), Some(Path::Normal));
    assert_eq!(found, [None, one, one, one, one, normal, normal]);
}

#[test]
fn an_in_place_reduction_that_goes_in_one_shot_is_put_back_where_it_lies() {
    // The view is packed, so that what is reduced lies elsewhere than what is read.
    let text = "x = input f32[8, 3]; y = mul_(x, 3) : f32[8, 3]; t = transpose(y) : f32[3, 8][1, 3]\n\
                s = all_reduce_(t, sum, G0:2) : f32[3, 8][1, 3]; w = wait(s) : f32[3, 8][1, 3]\noutput(neg(w))";
    for one_shot_max_bytes in [95, 96] {
        let (program, _) = checked(&graph(text), &LowerOptions { one_shot_max_bytes, ..LowerOptions::default() });
        let unpacks = program.steps.iter().filter(|step| matches!(step.kind, StepKind::Unpack(_))).count();
        assert_eq!(unpacks, 1, "{program}");
    }
}

#[test]
fn writes_go_where_the_graph_writes() {
    lowered(
        "p = input f32[4]; grad = input f32[8]\nacc = zeros_like(grad)\ng = all_gather(p, G0:2); w = wait(g)\n\
             q = copy(w)\nadd_(acc, grad)\noutput(q, acc)",
    );
    lowered("x = input f32[4,4]\nr = slice(x, 0, 2)\nmul_(r, 2)\noutput(neg(x))");
    lowered("x = input f32[4,4]; y = input f32[2,4]\nr = slice(x, 0, 2)\ncopy_(r, y)\noutput(neg(x))");
}

#[test]
fn programs_that_are_out_of_shape_are_refused_with_their_place() {
    let (program, _) = lowered("x = input f32[4]\ns = all_reduce(relu(x), sum, G0:2); w = wait(s)\noutput(neg(w))");
    let text = program.to_string();
    for (from, to, wanted) in [
        ("wait s1", "wait s9", "not before it"),
        ("4 relu for 16", "5 relu for 16", "count"),
        ("f32[4] relu", "f32[40] relu", "beyond its buffer"),
        ("f32[4] relu", "f32[2, 3][1, 1] relu", "it writes a place twice"),
        ("at 0:0", "at 7:0", "arena"),
        ("all_reduce sum", "all_reduce most", "a reduce op"),
        ("relu($0)", "relu($3)", "operand that is not there"),
        ("program graph align", "program align", "`align`"),
        ("group G0: 2", "group G0: 0", "no ranks"),
    ] {
        assert!(text.contains(from), "{from}\n{text}");
        let error = Program::parse(&text.replace(from, to)).expect_err(to).to_string();
        assert!(error.contains(wanted), "{error}");
    }
    for end in 0..text.len() {
        let _ = Program::parse(&text[..end]);
    }
    assert!(Program::from_json("{}").is_err());
}

#[test]
fn the_example_of_the_manual_is_a_program_and_is_what_its_graph_becomes() {
    let page = include_str!("../../docs/program.md");
    let example = page.split("```program\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let program = Program::parse(example).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(program.to_string(), example);
}

#[test]
fn what_a_later_launch_makes_of_a_bucket_in_place_is_copied_behind_that_launch() {
    let text = "x = input f32[4]; y = input f32[4]\ng = all_gather(x, G0:2); h = all_gather(y, G0:2)\n\
                w = wait(g); v = wait(h)\nc = clone(w)\noutput(c, neg(v))";
    lowered(text);
    let text = "x = input f32[8]\np = cat([relu(x), neg(x)])\ns = all_reduce(p, sum, G0:2); w = wait(s)\n\
                a = slice(w, 0, 8); b = slice(w, 8, 16)\nc = clone(a)\nt = all_reduce(b, max, G0:2); u = wait(t)\n\
                d = clone(u)\noutput(c, d)";
    let text = text.replace("p = cat([relu(x), neg(x)])", "p = cat([relu(x), neg(x)]) : f32[16]");
    let (program, report) = lowered(&text);
    assert_eq!(report.in_place, 1);
    assert_eq!(steps(&program, |kind| matches!(kind, StepKind::Unpack(_))), 2);
}

#[test]
fn parts_that_autograd_does_not_track_are_placements_and_evaluated() {
    for (split, parts) in [
        ("aten.unsafe_split.Tensor(y, 3, 0)", [3, 3, 2]),
        ("aten.unsafe_split_with_sizes.default(y, [3, 3, 2], 0)", [3, 3, 2]),
        ("aten.unsafe_chunk.default(y, 3, 0)", [3, 3, 2]),
    ] {
        let part = |at: usize| format!("p{at} = operator.getitem(s, {at}) : f32[{}]", parts[at]);
        let text = format!(
            "x = input f32[8]\ny = neg(x) : f32[8]\ns = {split}\n{}\n{}\n{}\n\
             r = all_reduce(p2, sum, G:2) : f32[2]\nw = wait(r) : f32[2]\nz = relu(p1) : f32[3]\noutput(w, z, p0)",
            part(0),
            part(1),
            part(2)
        );
        let (program, _) = lowered(&text);
        assert_eq!(steps(&program, |kind| matches!(kind, StepKind::Compute(_))), 2, "{split}\n{program}");
        let whole = text.replace(split, "aten.split_with_sizes.default(y, [3, 3, 2], 0)");
        let outputs = |text: &str| bucketeer_eval::evaluate(&graph(text), &Default::default()).unwrap();
        assert_eq!(outputs(&text), outputs(&whole), "{split}");
    }
}
