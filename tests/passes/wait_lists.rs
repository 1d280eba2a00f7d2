//! Waits for lists, as `wait_tensors` makes them: each value is waited for, and is what it was.

use bucketeer::check::program::{ProgramVerdict, prove as prove_program};
use bucketeer::check::{Verdict, prove};
use bucketeer::ir::text::{parse, print};
use bucketeer::ir::{Graph, Op, verify};
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_eval::{EvalOptions, Output, evaluate, shrink};
use bucketeer_exec::{Executor, Reference, seeded_inputs, world_size};
use bucketeer_formats::fx::{FxText, print_fresh};

/// Two reduces and a gather, waited for at once.
const FX: &str = r#"class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[8][1]cpu", y: "bf16[4][1]cpu"):
        s: "f32[8][1]cpu" = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '0')
        r: "f32[4][1]cpu" = torch.ops._c10d_functional.reduce_scatter_tensor.default(x, 'avg', 2, '0')
        g: "bf16[8][1]cpu" = torch.ops._c10d_functional.all_gather_into_tensor.default(y, 2, '0')
        wait_tensors = torch.ops._c10d_functional.wait_tensors.default([s, r, g]);  s = r = g = None
        a: "f32[8][1]cpu" = wait_tensors[0]
        b: "f32[4][1]cpu" = wait_tensors[1]
        c: "bf16[8][1]cpu" = wait_tensors[2];  wait_tensors = None
        d: "f32[8][1]cpu" = torch.ops.aten.add.Tensor(a, x);  a = x = None
        return (d, b, c)
"#;

const NATIVE: &str = "\
x = input f32[8]; y = input bf16[4]
s = all_reduce(x, sum, G:2) : f32[8]; r = reduce_scatter(x, avg, G:2) : f32[4]; g = all_gather(y, G:2) : bf16[8]
w = wait([s, r, g]) : (f32[8], f32[4], bf16[8])
a = getitem(w, 0) : f32[8]; b = getitem(w, 1) : f32[4]; c = getitem(w, 2) : bf16[8]
d = add(a, x) : f32[8]
output(d, b, c)
";

fn read_fx(text: &str) -> FxText {
    FxText::parse(text.as_bytes().to_vec()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn wait_of(graph: &Graph) -> bucketeer::ir::NodeId {
    let mut waits = graph.order().iter().copied().filter(|&id| graph.node(id).op == Op::Wait);
    let wait = waits.next().unwrap();
    assert!(waits.next().is_none());
    wait
}

/// Elements of all outputs, by rank: as evaluated, and as the lowered and proven program makes them.
fn outputs(graph: &Graph) -> [Vec<Vec<Output>>; 2] {
    let options = EvalOptions { ranks: Some(2), ..EvalOptions::default() };
    let evaluated = evaluate(graph, &options).unwrap_or_else(|error| panic!("{error}\n{}", print(graph)));
    let (program, _) = lower(graph, &LowerOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(prove_program(graph, &program), ProgramVerdict::Equal(_)), "{:?}", prove_program(graph, &program));
    let ran = run(world_size(&program).unwrap(), LocalOptions::default(), |rank| {
        let inputs = seeded_inputs(&program, rank.rank(), 0).unwrap();
        Executor::new(&program, &rank).unwrap().run(&inputs, &mut Reference::new(rank.rank(), 0)).unwrap().outputs
    });
    let ran = ran.unwrap().into_iter().map(|rank| rank.expect("no rank panics")).collect();
    [evaluated.into_iter().map(|rank| rank.outputs).collect(), ran]
}

#[track_caller]
fn assert_same(left: &[Vec<Output>], right: &[Vec<Output>]) {
    assert_eq!(left.len(), right.len());
    for (rank, (left, right)) in left.iter().zip(right).enumerate() {
        let differs = left.iter().zip(right).position(|(a, b)| !a.same_elements(b));
        assert_eq!((rank, left.len(), differs), (rank, right.len(), None));
    }
}

#[test]
fn a_wait_for_a_list_is_read_and_written_back() {
    let text = read_fx(FX);
    let graph = &text.graphs()[0];
    verify(graph).unwrap();
    let wait = wait_of(graph);
    assert_eq!((graph.operands(wait).len(), graph.waits_for_list(wait)), (3, true));
    assert_eq!(String::from_utf8(text.print()).unwrap(), FX);
    assert!(print_fresh(graph).unwrap().contains("torch.ops._c10d_functional.wait_tensors.default([s, r, g])"));
    // A list that is one value.
    let one = read_fx(&FX.replace("wait_tensors.default([s, r, g])", "wait_tensors.default(s)"));
    assert!(!one.graphs()[0].waits_for_list(wait_of(&one.graphs()[0])));
    // An empty one waits for nothing that is known.
    let none = read_fx(&FX.replace("[s, r, g]", "[]"));
    assert!(none.graphs()[0].order().iter().all(|&id| none.graphs()[0].node(id).op != Op::Wait));
    let native = parse(NATIVE).unwrap();
    verify(&native).unwrap();
    assert_eq!(print(&parse(&print(&native)).unwrap()), print(&native));
}

#[test]
fn a_wait_for_a_list_is_evaluated_lowered_and_run_as_single_waits_are() {
    let single = NATIVE
        .replace("w = wait([s, r, g]) : (f32[8], f32[4], bf16[8])", "")
        .replace("getitem(w, 0)", "wait(s)")
        .replace("getitem(w, 1)", "wait(r)")
        .replace("getitem(w, 2)", "wait(g)");
    let [expected, ran] = outputs(&parse(&single).unwrap());
    assert_same(&expected, &ran);
    for graph in [parse(NATIVE).unwrap(), read_fx(FX).graphs()[0].clone()] {
        let [evaluated, ran] = outputs(&graph);
        assert_same(&expected, &evaluated);
        assert_same(&expected, &ran);
    }
}

#[test]
fn lists_of_results_that_overwrite_their_inputs_are_followed() {
    let text = "x = input f32[8]; y = input f32[4]\n\
                p = neg(x) : f32[8]; q = neg(y) : f32[4]\n\
                s = all_reduce_(p, sum, G:2) : f32[8]; r = all_reduce_(q, max, G:2) : f32[4]\n\
                w = wait([s, r]) : (f32[8], f32[4])\n\
                a = getitem(w, 0) : f32[8]; b = getitem(w, 1) : f32[4]\n\
                c = relu(p) : f32[8]\n\
                output(a, b, c)";
    let [evaluated, ran] = outputs(&parse(text).unwrap());
    assert_same(&evaluated, &ran);
}

#[test]
fn the_list_of_a_coalesced_collective_is_waited_for_whole() {
    let of = |wait: &str| {
        format!(
            "x = input f32[8]; y = input f32[4]\n\
             l = all_reduce_coalesced([x, y], sum, G:2) : (f32[8], f32[4])\n{wait}\noutput(a, b)"
        )
    };
    let single =
        of("i = getitem(l, 0) : f32[8]; j = getitem(l, 1) : f32[4]; a = wait(i) : f32[8]; b = wait(j) : f32[4]");
    let listed = of("i = getitem(l, 0) : f32[8]; j = getitem(l, 1) : f32[4]; w = wait([i, j]) : (f32[8], f32[4])\n\
                     a = getitem(w, 0) : f32[8]; b = getitem(w, 1) : f32[4]");
    let whole = of("w = wait(l) : (f32[8], f32[4]); a = getitem(w, 0) : f32[8]; b = getitem(w, 1) : f32[4]");
    let [expected, _] = outputs(&parse(&single).unwrap());
    for text in [single, listed, whole] {
        let [evaluated, ran] = outputs(&parse(&text).unwrap());
        assert_same(&expected, &evaluated);
        assert_same(&expected, &ran);
    }
    let whole = "x = input f32[8]\nl = all_reduce_coalesced([x], sum, G:2) : (f32[8],)\nw = wait(l) : (f32[8],)\noutput(getitem(w, 0))";
    assert!(print_fresh(&parse(whole).unwrap()).unwrap().contains("wait_tensors.default(l)"));
}

#[test]
fn collectives_that_are_waited_for_in_a_list_are_left_alone_and_say_so() {
    let text = "x = input f32[8]; y = input f32[4]; z = input f32[2]; u = input f32[2]\n\
                s = all_reduce(x, sum, G:2) : f32[8]; r = all_reduce(y, sum, G:2) : f32[4]\n\
                t = all_reduce(z, sum, G:2) : f32[2]; v = all_reduce(u, sum, G:2) : f32[2]\n\
                w = wait([s, r]) : (f32[8], f32[4]); wt = wait(t) : f32[2]; wv = wait(v) : f32[2]\n\
                again = wait(s) : f32[8]\n\
                a = getitem(w, 0) : f32[8]; b = getitem(w, 1) : f32[4]\n\
                output(a, b, wt, wv, again)";
    let before = parse(text).unwrap();
    let mut after = before.clone();
    let pipeline: Pipeline = "dedupe-waits,fold-trivial,bucket-all-reduce{cap=none}".parse().unwrap();
    let reports = pipeline.run(&mut after).unwrap();
    verify(&after).unwrap();
    let collectives = after.order().iter().filter(|&&id| after.collective(id).is_some()).count();
    assert_eq!(collectives, 3, "{}", print(&after));
    assert!(format!("{reports:?}").contains("WaitedInList { wait: \"w\" }"), "{reports:?}");
    assert!(print(&after).contains("again = wait(s)"), "the wait for the list is not the wait for one");
    assert!(matches!(prove(&before, &after), Verdict::Equal(_)), "{:?}", prove(&before, &after));
    let [expected, _] = outputs(&before);
    let [evaluated, ran] = outputs(&after);
    assert_same(&expected, &evaluated);
    assert_same(&expected, &ran);
}

#[test]
fn a_collective_that_is_waited_for_in_a_list_does_not_stand_for_its_twin() {
    let text = "x = input f32[4]\ng = all_gather(x, G:2) : f32[8]; w = wait([g]) : (f32[8],)\n\
                h = all_gather(x, G:2) : f32[8]; v = wait(h) : f32[8]\noutput(getitem(w, 0), v)";
    let before = parse(text).unwrap();
    let mut after = before.clone();
    "dedupe-collectives".parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    assert_eq!(print(&after), print(&before));
}

#[test]
fn a_wait_for_a_list_of_another_type_or_below_a_reader_is_an_error() {
    let errors = |text: &str| verify(&parse(text).unwrap()).unwrap_err().to_string();
    let wrong = NATIVE.replace("(f32[8], f32[4], bf16[8])\n", "(f32[8], f32[5], bf16[8])\n");
    assert!(errors(&wrong).contains("`w`"), "{}", errors(&wrong));
    let few = NATIVE.replace("(f32[8], f32[4], bf16[8])\n", "(f32[8], f32[4])\n");
    assert!(
        errors(&few).contains("waits for a list and is (f32[8], f32[4]); expected a list of 3"),
        "{}",
        errors(&few)
    );
    let one = NATIVE.replace(": (f32[8], f32[4], bf16[8])\n", ": f32[8]\n");
    assert!(errors(&one).contains("expected a list of 3"), "{}", errors(&one));
    let early = NATIVE.replace("w = wait([s, r, g])", "e = neg(r) : f32[4]\nw = wait([s, r, g])");
    assert!(errors(&early).contains("`r`") && errors(&early).contains("`e`"), "{}", errors(&early));
    let left = NATIVE.replace("[s, r, g]) : (f32[8], f32[4], bf16[8])", "[s, r]) : (f32[8], f32[4])");
    let left = left.replace("getitem(w, 2)", "neg(g)");
    assert!(errors(&left).contains("`g`"), "{}", errors(&left));
}

#[test]
fn a_graph_with_a_wait_for_a_list_is_scaled_down() {
    let text = NATIVE.replace('8', "8000000000").replace("[4]", "[4000000000]");
    let graph = parse(&text).unwrap();
    let small = shrink(&[&graph], &EvalOptions::default()).unwrap();
    assert!(small.scaling.is_some());
    let [evaluated, ran] = outputs(&small.graphs[0]);
    assert_same(&evaluated, &ran);
}
