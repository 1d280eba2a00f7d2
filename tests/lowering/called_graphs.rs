//! Graphs that a graph calls: `invoke_subgraph` and `cond`, whose bodies launch. A call that always launches is as a launch
//! to those around it, a branch is a fence; both are evaluated, lowered, proven and run.

use bucketeer::check::program::{ProgramVerdict, prove as prove_program};
use bucketeer::check::ranks::{RankOptions, RanksError, check_ranks};
use bucketeer::check::{Verdict, What, prove};
use bucketeer::ir::text::parse;
use bucketeer::ir::{Graph, Op};
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::passes::{Pipeline, TogetherError};
use bucketeer::program::{BufferKind, Operand, Program, Run, StepKind};
use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_eval::{EvalError, EvalOptions, Output, evaluate};
use bucketeer_exec::{Executor, Reference, seeded_inputs, world_size};
use bucketeer_formats::GroupsFile;

const REDUCES: &str =
    "a = input f32[4]\ns = all_reduce(a, sum, G:2)\nw = wait(s)\nd = aten.mul.Tensor(w, 2) : f32[4]\noutput(d)\n";
const DOUBLES: &str = "a = input f32[4]\nd = aten.mul.Tensor(a, 2) : f32[4]\noutput(d)\n";

fn with_bodies(text: &str, bodies: &[(&str, &str)]) -> Graph {
    let mut graph = parse(text).unwrap();
    for (name, body) in bodies {
        graph.bodies.insert(name, parse(body).unwrap());
    }
    graph
}

/// A gather on each side of a call of a graph that reduces.
fn invoked() -> Graph {
    with_bodies(
        "x = input f32[4]; y = input f32[4]; z = input f32[4]
        ga = all_gather(x, G:2) : f32[8]; wa = wait(ga)
        body = self.body()
        c = higher_order.invoke_subgraph(body, \"s\", y)
        r = operator.getitem(c, 0) : f32[4]
        gb = all_gather(z, G:2) : f32[8]; wb = wait(gb)
        output(wa, r, wb)",
        &[("body", REDUCES)],
    )
}

/// A gather on each side of a branch; by the sign of the sum over all ranks, so that these agree.
fn branched(yes: &str, no: &str) -> Graph {
    with_bodies(
        "x = input f32[4]; y = input f32[4]; z = input f32[4]
        ga = all_gather(x, G:2) : f32[8]; wa = wait(ga)
        t = aten.sum.default(wa) : f32[]
        p = aten.ge.Scalar(t, 0) : b8[]
        yes = self.yes()
        no = self.no()
        c = higher_order.cond(p, yes, no, (y,))
        r = operator.getitem(c, 0) : f32[4]
        gb = all_gather(z, G:2) : f32[8]; wb = wait(gb)
        output(wa, r, wb)",
        &[("yes", yes), ("no", no)],
    )
}

fn launches(graph: &Graph) -> usize {
    graph.order().iter().filter(|&&id| matches!(graph.node(id).op, Op::Collective(_))).count()
}

fn rewritten(graph: &Graph, pipeline: &str) -> Graph {
    let mut after = graph.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    after
}

fn lowered(graph: &Graph) -> Program {
    lower(graph, &LowerOptions::default()).unwrap_or_else(|error| panic!("{error}")).0
}

fn bytes(values: &[Output]) -> Vec<Vec<u8>> {
    let of = |value: &Output| match value {
        Output::Tensor(tensor) => tensor.bytes.clone(),
        other => panic!("{other:?}"),
    };
    values.iter().map(of).collect()
}

/// What each rank's program makes.
fn run_program(program: &Program) -> Vec<Vec<Vec<u8>>> {
    let ranks = run(world_size(program).unwrap(), LocalOptions::default(), |rank| {
        let mut executor = Executor::new(program, &rank).unwrap();
        let inputs = seeded_inputs(program, rank.rank(), 0).unwrap();
        let run = executor.run(&inputs, &mut Reference::new(rank.rank(), 0)).unwrap();
        assert!(run.unknown.is_empty(), "{:?}", run.unknown);
        bytes(&run.outputs)
    });
    ranks.unwrap().into_iter().map(|rank| rank.expect("no rank panics")).collect()
}

#[test]
fn a_merge_goes_past_a_call_that_always_launches_and_not_past_a_branch() {
    for policy in ["", "{policy=adjacent}", "{cap=none}"] {
        let pipeline = format!("bucket-all-gather{policy}");
        let before = invoked();
        let after = rewritten(&before, &pipeline);
        assert_eq!((launches(&before), launches(&after)), (2, 1), "{policy}");
        let verdict = prove(&before, &after);
        assert!(verdict.is_equal(), "{verdict}");
        let branch = branched(REDUCES, DOUBLES);
        assert_eq!(launches(&rewritten(&branch, &pipeline)), 2, "{policy}");
        // Where neither branch communicates there is nothing to keep in place.
        let quiet = branched(DOUBLES, DOUBLES);
        let after = rewritten(&quiet, &pipeline);
        assert_eq!(launches(&after), 1, "{policy}");
        assert!(prove(&quiet, &after).is_equal());
    }
}

#[test]
fn a_launch_that_no_merge_asks_for_keeps_its_side_of_a_call_that_launches() {
    let before = invoked();
    let moved = "x = input f32[4]; y = input f32[4]; z = input f32[4]
        body = self.body()
        c = higher_order.invoke_subgraph(body, \"s\", y)
        ga = all_gather(x, G:2) : f32[8]; wa = wait(ga)
        r = operator.getitem(c, 0) : f32[4]
        gb = all_gather(z, G:2) : f32[8]; wb = wait(gb)
        output(wa, r, wb)";
    let Verdict::Different(difference) = prove(&before, &with_bodies(moved, &[("body", REDUCES)])) else { panic!() };
    assert_eq!(difference.what, What::CalledLaunches, "{difference}");
    // A body without launches may be anywhere.
    let quiet = with_bodies(&bucketeer::ir::text::print(&before), &[("body", DOUBLES)]);
    assert!(prove(&quiet, &with_bodies(moved, &[("body", DOUBLES)])).is_equal());
}

#[test]
fn calls_that_launch_keep_their_order_and_none_is_dropped() {
    let text = |lines: &str| {
        format!("x = input f32[4]; y = input f32[4]\nbody = self.body()\nother = self.other()\n{lines}\noutput(r, q)")
    };
    let call = |name: &str, body: &str, of: &str, result: &str| {
        format!(
            "{name} = higher_order.invoke_subgraph({body}, \"s\", {of})\n{result} = operator.getitem({name}, 0) : f32[4]\n"
        )
    };
    let bodies = [("body", REDUCES), ("other", REDUCES)];
    let (one, two) = (call("c", "body", "x", "r"), call("d", "other", "y", "q"));
    let before = with_bodies(&text(&(one.clone() + &two)), &bodies);
    assert!(prove(&before, &before.clone()).is_equal());
    let swapped = with_bodies(&text(&(two.clone() + &one)), &bodies);
    let verdict = prove(&before, &swapped);
    assert!(matches!(&verdict, Verdict::Different(it) if it.what == What::CalledLaunches), "{verdict}");
    // Once more than before, with a result that nobody reads.
    let more = with_bodies(&text(&(one.clone() + &two + &call("e", "body", "x", "u"))), &bodies);
    for (old, new) in [(&before, &more), (&more, &before)] {
        let verdict = prove(old, new);
        assert!(matches!(&verdict, Verdict::Different(it) if it.what == What::CalledLaunches), "{verdict}");
    }
}

#[test]
fn programs_with_bodies_are_proven_run_as_evaluated_and_come_back_from_text_and_json() {
    for graph in [invoked(), branched(REDUCES, DOUBLES), branched(DOUBLES, REDUCES), branched(DOUBLES, DOUBLES)] {
        for pipeline in ["dedupe-waits", "bucket-all-gather{cap=none}"] {
            let after = rewritten(&graph, pipeline);
            let program = lowered(&after);
            assert!(matches!(prove_program(&after, &program), ProgramVerdict::Equal(_)));
            assert!(program.steps.iter().any(|step| matches!(step.kind, StepKind::Run(_))), "{program}");
            assert_eq!(Program::parse(&program.to_string()).unwrap().to_string(), program.to_string());
            assert_eq!(Program::from_json(&program.to_json()).unwrap(), program);
            let expected: Vec<_> = evaluate(&graph, &EvalOptions::default()).unwrap();
            let expected: Vec<_> = expected.iter().map(|rank| bytes(&rank.outputs)).collect();
            assert_eq!(run_program(&program), expected, "{program}");
        }
    }
}

#[test]
fn memory_of_bodies_counts() {
    let program = lowered(&invoked());
    let own: u64 = program.arenas.iter().map(|arena| arena.bytes).sum();
    assert_eq!(program.bodies.len(), 1);
    assert_eq!(program.peak_bytes(), own + program.bodies[0].program.peak_bytes());
    assert!(program.bodies[0].program.peak_bytes() > 0);
}

#[test]
fn one_graph_that_is_called_often_is_lowered_once() {
    let graph = with_bodies(
        "x = input f32[4]
        body = self.body()
        c = higher_order.invoke_subgraph(body, \"s\", x); r = operator.getitem(c, 0) : f32[4]
        again = self.body()
        d = higher_order.invoke_subgraph(again, \"s\", r); q = operator.getitem(d, 0) : f32[4]
        output(q)",
        &[("body", REDUCES)],
    );
    let program = lowered(&graph);
    assert_eq!(program.bodies.len(), 1, "{program}");
    assert!(matches!(prove_program(&graph, &program), ProgramVerdict::Equal(_)));
    let evaluated = evaluate(&graph, &EvalOptions::default()).unwrap();
    assert_eq!(run_program(&program), evaluated.iter().map(|rank| bytes(&rank.outputs)).collect::<Vec<_>>());
}

/// What is damaged, and how.
type Damage = (&'static str, fn(&mut Program));

fn run_step(program: &mut Program) -> &mut Run {
    let found = program.steps.iter_mut().find_map(|step| match &mut step.kind {
        StepKind::Run(run) => Some(run),
        _ => None,
    });
    found.expect("there is a run")
}

#[test]
fn a_damaged_run_is_not_called_equal() {
    let graph = branched(REDUCES, DOUBLES);
    let damage: &[Damage] = &[
        ("the branches are swapped", |program| run_step(program).bodies.reverse()),
        ("one branch runs always", |program| {
            let run = run_step(program);
            run.pick = None;
            run.bodies.truncate(1);
        }),
        ("both are one", |program| run_step(program).bodies[1] = 0),
        ("it is given something else", |program| {
            let (x, run) = (program.inputs[0].value.clone(), run_step(program));
            assert_ne!(run.given[0], x);
            run.given[0] = x;
        }),
        ("something else decides", |program| {
            let zero = Operand::Int(0);
            run_step(program).pick = Some(zero);
        }),
        ("a body is another program", |program| {
            let of_first = program.bodies[0].program.clone();
            program.bodies[1].program = of_first;
        }),
        ("a body launches nothing", |program| {
            program.bodies[0].program.steps.retain(|step| matches!(step.kind, StepKind::Compute(_)));
        }),
        ("a body is named otherwise", |program| program.bodies[0].target = "self.other".into()),
        ("it does not run", |program| {
            program.steps.retain(|step| !matches!(step.kind, StepKind::Run(_)));
        }),
        ("it runs twice", |program| {
            let at = program.steps.iter().position(|step| matches!(step.kind, StepKind::Run(_))).unwrap();
            let step = program.steps[at].clone();
            program.steps.push(step);
        }),
    ];
    let right = lowered(&graph);
    assert!(matches!(prove_program(&graph, &right), ProgramVerdict::Equal(_)));
    for (what, change) in damage {
        let mut program = right.clone();
        change(&mut program);
        assert_ne!(program, right, "{what}");
        let verdict = prove_program(&graph, &program);
        assert!(!matches!(verdict, ProgramVerdict::Equal(_)), "{what}\n{program}");
    }
}

#[test]
fn a_program_whose_run_does_not_fit_its_bodies_is_refused_with_the_body_and_why() {
    let damage: &[Damage] = &[
        ("it is given another number of values", |program| run_step(program).given.clear()),
        ("its input `a` is of another type", |program| {
            let wide = program.buffers.iter().position(|buffer| buffer.bytes == 32 && buffer.kind != BufferKind::Input);
            let Operand::Tensor(view) = &mut run_step(program).given[0] else { panic!() };
            view.buffer.0 = wide.unwrap() as u32;
            program.layouts.push(bucketeer::program::Layout::dense(bucketeer::ir::DType::F32, &[8]).unwrap());
            let last = program.layouts.len() as u32 - 1;
            let Operand::Tensor(view) = &mut run_step(program).given[0] else { panic!() };
            view.layout.0 = last;
        }),
        ("it runs a body that is not there", |program| run_step(program).bodies[0] = 9),
        ("another number of bodies", |program| run_step(program).bodies.push(0)),
    ];
    for (reason, change) in damage {
        let mut program = lowered(&invoked());
        change(&mut program);
        let error = program.check_form().unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("(c)"), "{reason}: {error}");
    }
}

#[test]
fn bodies_that_no_program_can_hold_are_refused_by_name() {
    let cases = [
        // What it is given is written, and a body has a copy of it.
        (
            "a = input f32[4]\ns = all_reduce_(a, sum, G:2)\nw = wait(s)\nd = aten.clone.default(w) : f32[4]\noutput(d)\n",
            "writes",
        ),
        // What the module holds is its caller's.
        (
            "a = input f32[4]\nh = self.held() : f32[4]\ns = all_reduce(h, sum, G:2)\nw = wait(s)\nd = aten.mul.Tensor(w, a) : f32[4]\noutput(d)\n",
            "`self.held`",
        ),
        // It leaves a launch in flight.
        ("a = input f32[4]\ns = all_reduce(a, sum, G:2)\noutput(s)\n", "body"),
    ];
    for (body, reason) in cases {
        let mut graph = invoked();
        graph.bodies = Default::default();
        graph.bodies.insert("body", parse(body).unwrap());
        match lower(&graph, &LowerOptions::default()) {
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("`c`") && error.contains(reason), "{error}");
            }
            // A launch that nobody waits for in the graph is waited for at the end of the program.
            Ok((program, _)) => {
                assert!(matches!(prove_program(&graph, &program), ProgramVerdict::Equal(_)), "{program}")
            }
        }
    }
}

#[test]
fn graphs_of_several_ranks_are_not_said_to_agree_where_one_calls_a_graph_that_launches() {
    let (calls, does_not) = (invoked(), {
        let mut other = invoked();
        other.bodies = Default::default();
        other.bodies.insert("body", parse(DOUBLES).unwrap());
        other
    });
    for ranks in [[&calls, &does_not], [&calls, &calls]] {
        let found = check_ranks(&ranks, &RankOptions::default());
        let Err(RanksError::Undecided { node, kind, .. }) = found else { panic!("{found:?}") };
        assert_eq!((&*node, &*kind), ("c", "higher_order.invoke_subgraph"));
        let [mut one, mut other] = ranks.map(Graph::clone);
        let pipeline: Pipeline = "bucket-all-gather".parse().unwrap();
        let found = pipeline.run_together(&mut [&mut one, &mut other], &mut |_| {});
        assert!(matches!(found, Err(TogetherError::UnknownCommunication { .. })), "{found:?}");
    }
    assert_eq!(check_ranks(&[&does_not, &does_not], &RankOptions::default()), Ok(Vec::new()));
}

#[test]
fn ranks_that_take_different_branches_are_evaluated_where_none_launches_and_refused_where_one_does() {
    let by_rank = |yes: &str, no: &str| {
        let mut graph = branched(yes, no);
        // The sign of a rank's own numbers.
        let text = bucketeer::ir::text::print(&graph).replace("aten.sum.default(wa)", "aten.sum.default(x)");
        let bodies = std::mem::take(&mut graph.bodies);
        let mut graph = parse(&text.replace("aten.ge.Scalar(t, 0)", "aten.ge.Scalar(t, 4)")).unwrap();
        graph.bodies = bodies;
        graph
    };
    let options = |seed| EvalOptions { seed, ..EvalOptions::default() };
    let halves = "a = input f32[4]\nd = aten.mul.Tensor(a, 3) : f32[4]\noutput(d)\n";
    let (quiet, loud) = (by_rank(DOUBLES, halves), by_rank(REDUCES, DOUBLES));
    let mut refused = 0;
    for seed in 0..20 {
        let ranks = evaluate(&quiet, &options(seed)).unwrap();
        let program = lowered(&quiet);
        if seed == 0 {
            assert_eq!(run_program(&program), ranks.iter().map(|rank| bytes(&rank.outputs)).collect::<Vec<_>>());
        }
        match evaluate(&loud, &options(seed)) {
            Err(EvalError::Undefined { node, reason, .. }) => {
                assert_eq!(node, "c");
                assert!(reason.contains("different branches"), "{reason}");
                refused += 1;
            }
            found => assert!(found.is_ok(), "{found:?}"),
        }
    }
    assert!((1..20).contains(&refused), "{refused} of 20 seeds");
}

#[test]
fn groups_that_a_file_lists_are_those_of_called_graphs_too() {
    let mut graph = with_bodies(
        "x = input f32[4]\nbody = self.body()\nc = higher_order.invoke_subgraph(body, \"s\", x)\nr = operator.getitem(c, 0) : f32[4]\noutput(r)",
        &[("body", &REDUCES.replace("G:2", "W"))],
    );
    let groups = GroupsFile::parse(br#"{"W": [[0, 1, 2]]}"#).unwrap();
    assert!(groups.apply(&mut graph).unwrap().is_empty());
    let program = lowered(&graph);
    assert_eq!(world_size(&program).unwrap(), 3);
    let evaluated = evaluate(&graph, &EvalOptions::default()).unwrap();
    assert_eq!(run_program(&program), evaluated.iter().map(|rank| bytes(&rank.outputs)).collect::<Vec<_>>());
    assert_eq!(groups.apply(&mut invoked()).unwrap(), ["G"]);
}

#[test]
fn a_pipeline_rewrites_called_graphs_where_it_is_asked_to() {
    let twice = "a = input f32[4]; b = input f32[4]\ns = all_reduce(a, sum, G:2); w = wait(s)\nt = all_reduce(b, sum, G:2); v = wait(t)\nd = aten.add.Tensor(w, v) : f32[4]\noutput(d)\n";
    let graph = with_bodies(
        "x = input f32[4]; y = input f32[4]\nbody = self.body()\nc = higher_order.invoke_subgraph(body, \"s\", x, y)\nr = operator.getitem(c, 0) : f32[4]\noutput(r)",
        &[("body", twice)],
    );
    let pipeline: Pipeline = "bucket-all-reduce".parse().unwrap();
    let mut after = graph.clone();
    pipeline.run(&mut after).unwrap();
    assert_eq!(launches(after.bodies.get("self.body").unwrap()), 2);
    pipeline.run_in_bodies(&mut after).unwrap();
    assert_eq!(launches(after.bodies.get("self.body").unwrap()), 1);
    let verdict = prove(&graph, &after);
    assert!(verdict.is_equal(), "{verdict}");
    assert_eq!(run_program(&lowered(&after)), run_program(&lowered(&graph)));
}
