//! Lowering of inputs that were found by trying; see `tests/found`. Every program here is proven unless its test says
//! otherwise, and makes what the evaluator makes of its graph.

use bucketeer::check::program::{ProgramVerdict, prove};
use bucketeer::ir::{GlobalRank, Graph, GroupId};
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, LowerReport, lower};
use bucketeer::program::{Program, StepKind};
use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_eval::{EvalOptions, Output, evaluate};
use bucketeer_exec::{Executor, Reference, RunError, seeded_inputs, world_size};
use bucketeer_formats::fx::FxText;
use std::time::Duration;

/// A graph of FX text in `tests/found`, on groups of two ranks.
fn found(name: &str) -> Graph {
    let path = format!("{}/tests/found/{name}.txt", kit::root().display());
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut graph = FxText::parse(text).unwrap_or_else(|error| panic!("{path}: {error}")).graphs()[0].clone();
    for index in 0..graph.groups().len() {
        let group = graph.group_mut(GroupId::from_index(index));
        group.size = Some(2);
        group.members = vec![vec![GlobalRank(0), GlobalRank(1)]];
    }
    graph
}

fn native(text: &str) -> Graph {
    bucketeer::ir::text::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn with_hints(hints: &[(&str, u64)]) -> LowerOptions {
    let symbols = hints.iter().map(|&(name, value)| (name.into(), value)).collect();
    LowerOptions { symbols, ..LowerOptions::default() }
}

#[track_caller]
fn proven(graph: &Graph, options: &LowerOptions) -> (Program, LowerReport) {
    let (program, report) = lower(graph, options).unwrap_or_else(|error| panic!("{error}"));
    match prove(graph, &program) {
        ProgramVerdict::Equal(_) => {}
        ProgramVerdict::Different(fault) | ProgramVerdict::CannotDecide(fault) => panic!("{fault}\n{program}"),
    }
    (program, report)
}

fn outputs(program: &Program) -> Vec<Vec<Output>> {
    let options = LocalOptions { timeout: Duration::from_secs(20), ..LocalOptions::default() };
    let ranks = run(world_size(program).unwrap(), options, |rank| {
        let mut executor = Executor::new(program, &rank)?;
        let inputs = seeded_inputs(program, rank.rank(), 0)?;
        Ok::<_, RunError>(executor.run(&inputs, &mut Reference::new(rank.rank(), 0))?.outputs)
    });
    ranks.unwrap().into_iter().map(|rank| rank.unwrap().unwrap_or_else(|error| panic!("{error}\n{program}"))).collect()
}

/// Proves the program of a graph and runs it against the evaluator.
#[track_caller]
fn holds(graph: &Graph, options: &LowerOptions) -> Program {
    let (program, _) = proven(graph, options);
    let symbols = options.symbols.iter().map(|(name, &value)| (name.to_string(), value as i64)).collect();
    let expected = evaluate(graph, &EvalOptions { symbols, ..EvalOptions::default() });
    let expected = expected.unwrap_or_else(|error| panic!("{error}"));
    for (made, expected) in outputs(&program).iter().zip(&expected) {
        assert_eq!(made.len(), expected.outputs.len());
        for (made, expected) in made.iter().zip(&expected.outputs) {
            assert!(made.same_elements(expected), "{made:?}\nis not\n{expected:?}\n{program}");
        }
    }
    program
}

/// Whether a program packs what the collective `g` sends.
fn packs(program: &Program) -> bool {
    program.steps.iter().any(|step| &*step.node == "g" && matches!(step.kind, StepKind::Pack(_)))
}

#[test]
fn a_alias_inflight_what_is_written_before_the_wait_is_sent_as_it_was_at_the_launch() {
    let program = holds(&found("A-alias_inflight"), &LowerOptions::default());
    assert!(packs(&program), "{program}");
    for start in [
        "all_gather(c, G0:2)",
        "reduce_scatter(c, sum, G0:2)",
        "all_to_all(c, [], [], G0:2) : f32[4]",
        "permute(c, [[0, 1], [1, 0]], G0:2)",
    ] {
        let text = |write: &str, late: &str| {
            format!(
                "t = input f32[4]\nc = clone(t)\nd = view(c, [2, 2])\ng = {start}\n{write}\nw = wait(g)\n{late}\noutput(w, c)"
            )
        };
        for write in ["add_(c, 5.0)", "add_(d, 5.0)", "copy_(c, t)", "fill_(c, 1.0)"] {
            let early = native(&text(write, ""));
            assert!(packs(&holds(&early, &LowerOptions::default())), "{start}, {write}");
            let late = native(&text("", write));
            assert!(!packs(&holds(&late, &LowerOptions::default())), "{start}, {write} behind the wait");
        }
    }
}

#[test]
fn a_alias_inflight_a_program_that_sends_what_is_written_meanwhile_is_refused() {
    let graph = found("A-alias_inflight");
    let (program, _) = proven(&graph, &LowerOptions::default());
    let text = program.to_string();
    let wrong = text.replace("    4 g.pack0 for 16 -> g for 32", "    4 clone for 16 -> g for 32");
    assert_ne!(text, wrong);
    let wrong = Program::parse(&wrong).unwrap();
    let ProgramVerdict::Different(fault) = prove(&graph, &wrong) else { panic!("it is not refused\n{wrong}") };
    assert!(fault.reason.contains("writes `clone`, and nothing orders that behind s2 (`g`)"), "{fault}");
}

#[test]
fn a_alias_inflight_a_collective_in_place_on_another_group_counts_as_a_write() {
    let text = "t = input f32[4]\nc = clone(t)\ng = all_gather(c, G0:2)\nb = all_reduce_(c, sum, G1:2)\nv = wait(b)\n\
                w = wait(g)\noutput(w, v)";
    let mut graph = native(text);
    for index in 0..graph.groups().len() {
        graph.group_mut(GroupId::from_index(index)).members = vec![vec![GlobalRank(0), GlobalRank(1)]];
    }
    assert!(packs(&holds(&graph, &LowerOptions::default())));
}

#[test]
fn g_cast_absorbed_an_operator_of_another_namespace_is_called_and_not_taken_for_its_name() {
    let mut graph = found("G-cast_absorbed");
    let pipeline: Pipeline = "bucket-all-gather{cap=none}".parse().unwrap();
    pipeline.run(&mut graph).unwrap();
    let (program, report) = lower(&graph, &LowerOptions::default()).unwrap();
    let calls = |program: &Program, target: &str| program.calls.iter().any(|call| &*call.target == target);
    assert!(calls(&program, "mylib.cast.default") && report.absorbed == 0, "{program}");
    for (name, args) in [("clone", "x"), ("cat", "[x, x]"), ("view", "x, [4]"), ("copy_", "c, x"), ("contiguous", "x")]
    {
        let size = if name == "cat" { 8 } else { 4 };
        let text =
            format!("x = input f32[4]\nc = neg(x)\ny = mylib.{name}.default({args}) : f32[{size}]\noutput(neg(y))");
        let (program, _) = lower(&native(&text), &LowerOptions::default()).unwrap();
        assert!(calls(&program, &format!("mylib.{name}.default")), "{program}");
        let text = text.replace("mylib", "aten");
        let (program, _) = lower(&native(&text), &LowerOptions::default()).unwrap();
        assert!(!calls(&program, &format!("aten.{name}.default")), "{program}");
    }
}

#[test]
fn a_a2a_symbolic_parts_that_are_equal_by_their_hints_are_followed() {
    holds(&found("A-a2a_symbolic"), &with_hints(&[("u1", 3)]));
    // What comes out of data is another number when it runs.
    let graph = found("B-a2a_sym");
    proven(&graph, &with_hints(&[("u0", 8), ("u1", 8)]));
    let (program, _) = proven(&graph, &with_hints(&[("u0", 10), ("u1", 6)]));
    let wrong = program.to_string().replace("all_to_all [10, 6] [10, 6]", "all_to_all [6, 10] [6, 10]");
    assert_ne!(wrong, program.to_string());
    let ProgramVerdict::Different(fault) = prove(&graph, &Program::parse(&wrong).unwrap()) else { panic!("{wrong}") };
    assert!(fault.reason.contains("it exchanges other amounts than its node"), "{fault}");
}

#[test]
fn a_strided_broadcast_keeps_the_elements_in_their_logical_order() {
    holds(&found("A-strided_broadcast"), &LowerOptions::default());
}

#[test]
fn a_two_devices_one_launch_is_refused_with_both_tensors_and_devices() {
    let error = lower(&found("A-two_devices_one_launch"), &LowerOptions::default()).unwrap_err().to_string();
    let expected = "`a` and `b` lie on cuda:0 and cuda:1; one launch takes tensors of one device";
    assert!(error.contains(expected), "{error}");
    // A program of another hand is refused, too.
    let text = "program p align 16 {\n  group G: 2\n  buffer a: input 16 align 16 on \"cuda:0\"\n  \
                buffer b: input 16 align 16 on \"cuda:1\"\n  input a = f32[4] a\n  input b = f32[4] b\n  \
                s0 r on G: all_reduce sum group G f32 normal {\n    4 a for 16 -> a for 16\n    4 b for 16 -> b for 16\n  }\n  \
                s1 w after s0: wait s0\n  output ($0, $1) (f32[4] a, f32[4] b)\n}\n";
    let error = Program::parse(text).unwrap_err().to_string();
    assert!(error.contains("its tensors 0 and 1 lie on cuda:0 and cuda:1"), "{error}");
    assert!(Program::parse(&text.replace("cuda:1", "cuda:0")).is_ok());
}

#[test]
fn a_two_devices_one_launch_members_that_overlap_are_refused_by_name() {
    let text = |a: &str, b: &str| {
        format!(
            "x = input f32[8]\na = slice(x, {a})\nb = slice(x, {b})\nr = all_reduce_coalesced_([a, b], sum, G0:2)\nw = wait(r)\noutput(x)"
        )
    };
    let error = lower(&native(&text("0, 5", "4, 8")), &LowerOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`a` and `b` overlap in `x`, and it writes one of them"), "{error}");
    lower(&native(&text("0, 4", "4, 8")), &LowerOptions::default()).unwrap();
    // To send the same twice is fine.
    let sends =
        "x = input f32[4]\nr = all_gather_coalesced([x, x], G0:2)\na = getitem(r, 0) : f32[8]\ns = wait(a)\noutput(s)";
    lower(&native(sends), &LowerOptions::default()).unwrap();
}

#[test]
fn g_huge_group_an_exchange_of_more_ranks_than_can_be_listed_is_refused() {
    let text =
        "x = input f32[4000000000]\na = all_to_all(x, [], [], G:4000000000) : f32[4000000000]\nw = wait(a)\noutput(w)";
    let error = lower(&native(text), &LowerOptions::default()).unwrap_err().to_string();
    assert!(error.contains("its group has 4000000000 ranks; exchanges are lowered for at most 65536"), "{error}");
}

/// Views of `x`, `y`, `z` and `q` in ATen's words, with the type of the result.
const VIEWS: &[(&str, &str)] = &[
    ("view.default(x, [24])", "f32[24]"),
    ("view.default(x, [3, -1])", "f32[3, 8]"),
    ("view.dtype(x, i32)", "i32[4, 6]"),
    ("view.dtype(x, bf16)", "bf16[4, 12]"),
    ("reshape.default(x, [3, 8])", "f32[3, 8]"),
    ("_unsafe_view.default(x, [24])", "f32[24]"),
    ("view_as.default(x, z)", "f32[24]"),
    ("reshape_as.default(x, z)", "f32[24]"),
    ("flatten.using_ints(x)", "f32[24]"),
    ("flatten.using_ints(q, 1, 2)", "f32[2, 12]"),
    ("ravel.default(q)", "f32[24]"),
    ("unflatten.int(x, 1, [2, 3])", "f32[4, 2, 3]"),
    ("unflatten.int(x, -1, [-1, 3])", "f32[4, 2, 3]"),
    ("permute.default(q, [2, 0, 1])", "f32[4, 2, 3]"),
    ("transpose.int(x, 0, 1)", "f32[6, 4]"),
    ("t.default(x)", "f32[6, 4]"),
    ("swapaxes.default(q, 0, 2)", "f32[4, 3, 2]"),
    ("swapdims.default(q, 0, -1)", "f32[4, 3, 2]"),
    ("movedim.int(q, 0, 2)", "f32[3, 4, 2]"),
    ("moveaxis.int(q, 0, 2)", "f32[3, 4, 2]"),
    ("expand.default(y, [4, 3, 6])", "f32[4, 3, 6]"),
    ("broadcast_to.default(y, [4, 3, 6])", "f32[4, 3, 6]"),
    ("expand_as.default(y, w)", "f32[4, 3, 6]"),
    ("slice.Tensor(x, 0, 1, 3)", "f32[2, 6]"),
    ("slice.Tensor(x, 1, -4, 9223372036854775807, 2)", "f32[4, 2]"),
    ("narrow.default(x, 1, 2, 3)", "f32[4, 3]"),
    ("narrow.default(x, 1, -3, 3)", "f32[4, 3]"),
    ("select.int(x, 0, -1)", "f32[6]"),
    ("squeeze.default(y)", "f32[4, 6]"),
    ("squeeze.dim(y, 1)", "f32[4, 6]"),
    ("squeeze.dims(y, [1])", "f32[4, 6]"),
    ("unsqueeze.default(x, -1)", "f32[4, 6, 1]"),
    ("alias.default(x)", "f32[4, 6]"),
    ("detach.default(x)", "f32[4, 6]"),
    ("lift_fresh.default(x)", "f32[4, 6]"),
    ("contiguous.default(x)", "f32[4, 6]"),
    ("positive.default(x)", "f32[4, 6]"),
    ("resolve_conj.default(x)", "f32[4, 6]"),
    ("resolve_neg.default(x)", "f32[4, 6]"),
    ("to.dtype(x, f32)", "f32[4, 6]"),
    ("to.dtype_layout(x)", "f32[4, 6]"),
    ("type_as.default(x, z)", "f32[4, 6]"),
    ("diagonal.default(x)", "f32[4]"),
    ("unfold.default(z, 0, 4, 4)", "f32[6, 4]"),
];

#[test]
fn b_flatten_every_view_that_lowering_places_is_followed_by_its_proof() {
    let inputs = "x = input f32[4, 6]; y = input f32[4, 1, 6]; z = input f32[24]; q = input f32[2, 3, 4]\nw = input f32[4, 3, 6]";
    for (view, ty) in VIEWS {
        // A sum keeps its elements; what is read beside it shows where they lie.
        let kind = if ty.starts_with('i') || ty.starts_with("bf") { "max" } else { "sum" };
        let text = format!(
            "{inputs}\nv = aten.{view} : {ty}\ng = all_reduce(v, {kind}, G0:2) : {ty}\nr = wait(g) : {ty}\n\
             u = aten.neg.default(v) : {ty}\noutput(r, u, v, w, y, z, q)"
        );
        let graph = native(&text);
        let (program, _) = lower(&graph, &LowerOptions::default()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        match prove(&graph, &program) {
            ProgramVerdict::Equal(_) => {}
            ProgramVerdict::Different(fault) | ProgramVerdict::CannotDecide(fault) => {
                panic!("{view}: {fault}\n{program}")
            }
        }
    }
    for split in ["split.Tensor(x, 2)", "split_with_sizes.default(x, [2, 2])", "chunk.default(x, 2)"] {
        let text = format!(
            "{inputs}\ns = aten.{split} : (f32[2, 6], f32[2, 6])\na = operator.getitem(s, 0) : f32[2, 6]\n\
             b = operator.getitem(s, 1) : f32[2, 6]\ng = all_reduce(b, sum, G0:2)\nr = wait(g)\noutput(a, r)"
        );
        holds(&native(&text), &LowerOptions::default());
    }
    holds(&found("B-flatten"), &LowerOptions::default());
}

#[test]
fn h_mut2_an_operator_that_nothing_describes_is_called_with_all_that_it_may_write() {
    let text = "x = input f32[4]\na = neg(x); b = neg(x)\ny = mylib.scale.default(a, b) : f32[4]\noutput(y, a)";
    let (program, _) = lower(&native(text), &LowerOptions::default()).unwrap();
    let calls = program.steps.iter().find_map(|step| match &step.kind {
        StepKind::Compute(compute) if &*step.node == "y" => Some(compute),
        _ => None,
    });
    let compute = calls.unwrap();
    assert_eq!(compute.writes.as_slice(), [0, 1]);
    assert!(matches!(compute.made, bucketeer::program::Made::Tensor(_)), "{program}");
    // A later write would have to show in a result that is a view.
    let later = text.replace("output", "add_(a, 1.0)\noutput");
    let error = lower(&native(&later), &LowerOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`y` (mylib.scale.default): its result may be memory of what it is given"), "{error}");
}

#[test]
fn a_strided_result_lower_what_sees_strides_is_called_where_they_are_the_stated_ones_and_else_refused() {
    // A collective of PyTorch makes a dense result, whatever its type states, and compiled code one as stated: no program
    // is right for both.
    let error = lower(&found("A-strided_result_lower"), &LowerOptions::default()).unwrap_err().to_string();
    let expected = "`as_strided` (aten.as_strided.default): it sees how `w1` lies in memory, and in the program that lies otherwise";
    assert_eq!(error, expected);
    let text = |of: &str| {
        format!(
            "x = input f32[4, 6]\ng = all_reduce(x, sum, G0:2) : f32[4, 6]; w = wait(g) : f32[4, 6]; s = slice(w, 1, 3)\n\
                 y = aten.as_strided.default({of}, [2, 3], [1, 4], 1) : f32[2, 3][1, 4]\noutput(y)"
        )
    };
    holds(&native(&text("w")), &LowerOptions::default());
    let error = lower(&native(&text("s")), &LowerOptions::default()).unwrap_err().to_string();
    assert!(error.contains("it sees how `s` lies in memory"), "{error}");
}

/// The program with some of its text replaced.
fn edited(program: &Program, edits: &[(&str, &str)]) -> Program {
    let mut text = program.to_string();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}\n{text}");
        text = text.replace(from, to);
    }
    Program::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn h_mut2_programs_of_operators_that_nothing_describes_are_proven() {
    for name in ["H-mut2", "H-muth", "G-custom_mutates"] {
        proven(&found(name), &LowerOptions::default());
    }
    // Sizes and tokens among the operands, that nothing can write; views; one tensor twice; lists; no tensor.
    for call in [
        "z = mylib.foo.default(a, n) : f32[4]",
        "z = mylib.foo.default(m, a) : f32[4]",
        "v = aten.permute.default(m, [1, 0]); z = mylib.foo.default(v, a, 2.0) : f32[4]",
        "v = aten.slice.Tensor(m, 0, 0, 2); z = mylib.foo.default([v, a], m) : f32[4]",
        "z = mylib.foo.default(a, a) : f32[4]",
        "t = mylib.two.default(a, m) : (f32[4], f32[4]); z = getitem(t, 1)",
        "z = mylib.make.default(3) : f32[4]",
        "p = self.obj(); z = mylib.foo.default(a, p) : f32[4]",
    ] {
        let text = format!(
            "a = input f32[4]; m = input f32[4, 4]; n = aten.sym_numel.default(a) : Sym(4); {call}\n\
             g = all_gather(a, G0:2); w = wait(g); output(w, z, m)"
        );
        let graph = native(&text);
        let (program, _) = proven(&graph, &LowerOptions::default());
        // A program that does not say what is written is another one.
        let text = program.to_string();
        if let Some((head, tail)) = text.split_once(" writes [") {
            let wrong = Program::parse(&format!("{head}{}", tail.split_once(']').unwrap().1)).unwrap();
            assert!(matches!(prove(&graph, &wrong), ProgramVerdict::Different(_)), "{wrong}");
        }
    }
}

#[test]
fn g_get_attr_twice_two_reads_of_an_attribute_are_of_one_buffer_and_what_is_left_in_it_is_checked() {
    let graph = found("G-get_attr_twice");
    let (program, _) = proven(&graph, &LowerOptions::default());
    let sent = edited(&program, &[("4 self.buf for 16 -> g1", "4 a for 16 -> g1")]);
    assert!(matches!(prove(&graph, &sent), ProgramVerdict::Different(_)));
    // The same without the second gather, so that only what is left in the attribute tells.
    let text = "a = input f32[4]\np = self.buf() : f32[4]\nz = add_(p, 1.0)\nq = self.buf() : f32[4]\noutput(a)";
    let graph = native(text);
    let (program, _) = proven(&graph, &LowerOptions::default());
    let kept = native("a = input f32[4]\np = self.buf() : f32[4]\nz = add(p, 1.0)\nq = self.buf() : f32[4]\noutput(a)");
    let (other, _) = lower(&kept, &LowerOptions::default()).unwrap();
    assert!(matches!(prove(&kept, &other), ProgramVerdict::Equal(_)));
    assert!(!matches!(prove(&graph, &other), ProgramVerdict::Equal(_)), "{other}");
    assert!(!matches!(prove(&kept, &program), ProgramVerdict::Equal(_)), "{program}");
}

#[test]
fn an_attribute_that_is_no_tensor_holds_what_the_graph_says_when_it_is_read() {
    let text = "b = input f32[4]\np = self.obj()\ny = aten.mul.Tensor(b, p) : f32[4]\n\
                z = mylib.foo.default(p) : f32[4]\nq = self.obj()\nx = aten.mul.Tensor(b, q) : f32[4]\noutput(x, y, z)";
    let graph = native(text);
    let (program, _) = proven(&graph, &LowerOptions::default());
    // The two products read the attribute before and after something may write it.
    let text = program.to_string();
    let step = |name: &str| {
        let line = text.lines().find(|line| line.contains(&format!(" {name}: compute ")));
        line.unwrap_or_else(|| panic!("{name}\n{text}")).to_owned()
    };
    let (y, z, x) = (step("y"), step("z"), step("x"));
    let body = |line: &str| line.trim_start().split_once(' ').unwrap().1.to_owned();
    for order in [[&z, &y, &x], [&y, &x, &z], [&x, &y, &z], [&z, &x, &y]] {
        let lines = order.iter().enumerate().map(|(at, line)| format!("  s{at} {}\n", body(line))).collect::<String>();
        let wrong = text.replace(&format!("{y}\n{z}\n{x}\n"), &lines);
        assert_ne!(wrong, text);
        let wrong = Program::parse(&wrong).unwrap_or_else(|error| panic!("{error}\n{wrong}"));
        assert!(!matches!(prove(&graph, &wrong), ProgramVerdict::Equal(_)), "{wrong}");
    }
}

#[test]
fn an_operator_that_may_write_what_shares_memory_with_itself_is_not_decided() {
    let text = "b = input f32[4]\nv = aten.expand.default(b, [4, 4]) : f32[4, 4]\nz = mylib.foo.default(v) : f32[4]\noutput(z)";
    let graph = native(text);
    let (program, _) = lower(&graph, &LowerOptions::default()).unwrap();
    let verdict = prove(&graph, &program);
    assert!(
        matches!(&verdict, ProgramVerdict::CannotDecide(fault) if fault.reason.contains("share memory")),
        "{verdict:?}"
    );
}
