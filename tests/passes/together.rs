//! Graphs of all ranks rewritten together: the ranks still launch the same, in no ring.

use bucketeer::check::ranks::{RankFault, RankOptions, check_ranks};
use bucketeer::check::{Options, Verdict, prove, prove_with};
use bucketeer::ir::text::{parse, print};
use bucketeer::ir::{ControlEdge, Dependencies, Graph, NodeId, Op, Strength};
use bucketeer::passes::bucketing::{Decision, Reason};
use bucketeer::passes::memory::Alive;
use bucketeer::passes::{PassReport, Pipeline, TogetherError};
use bucketeer_fuzzing::grow::{GraphOptions, RANKS};
use kit::random::graph_strategy_with;
use proptest::prelude::*;

fn graphs<T: AsRef<str>>(texts: &[T]) -> Vec<Graph> {
    let read = |text: &T| parse(text.as_ref()).unwrap_or_else(|error| panic!("{error}\nin:\n{}", text.as_ref()));
    texts.iter().map(read).collect()
}

fn run(pipeline: &str, graphs: &mut [Graph]) -> Result<Vec<Vec<PassReport>>, TogetherError> {
    let pipeline: Pipeline = pipeline.parse().unwrap();
    pipeline.run_together(&mut graphs.iter_mut().collect::<Vec<_>>(), &mut |_| {})
}

fn apart(pipeline: &str, graphs: &mut [Graph]) {
    let pipeline: Pipeline = pipeline.parse().unwrap();
    graphs.iter_mut().for_each(|graph| drop(pipeline.run(graph).unwrap()));
}

fn faults(graphs: &[Graph]) -> Vec<RankFault> {
    check_ranks(graphs, &RankOptions::default()).unwrap()
}

fn launches(graph: &Graph) -> Vec<&str> {
    graph.order().iter().filter(|&&id| graph.collective(id).is_some()).map(|&id| graph.name_of(id)).collect()
}

fn assert_proven(before: &[Graph], after: &[Graph]) {
    assert_eq!(faults(after), []);
    for (old, new) in before.iter().zip(after) {
        let verdict = prove(old, new);
        assert!(verdict.is_equal(), "{verdict}\n{}\nbecame\n{}", print(old), print(new));
    }
}

const REDUCES: &str = "bucket-all-reduce{cap=none}";

/// Two launches of `W` with one of `P` between them. Rank 0 has much that reads the first and little above the second,
/// rank 1 the other way round: by themselves they would launch the bucket at different places.
fn pulled_apart(early: bool) -> String {
    let head = "group W:2 = [[0, 1]]\ngroup P:2 = [[0, 1]]\na = input f32[8]; b = input f32[8]; c = input f32[8]\n";
    let (readers, makers) =
        ("r0 = relu(w); r1 = relu(r0); r2 = relu(r1)\n", "m0 = relu(b); m1 = relu(m0); m2 = relu(m1)\n");
    let first = "s = all_reduce(a, sum, W:2); w = wait(s)\n";
    let between = "p = all_reduce(c, max, P:2); q = wait(p)\n";
    if early {
        format!("{head}{first}{readers}{between}t = all_reduce(b, sum, W:2); v = wait(t)\noutput(r2, q, v)")
    } else {
        format!("{head}{first}{between}{makers}t = all_reduce(m2, sum, W:2); v = wait(t)\noutput(w, q, v)")
    }
}

#[test]
fn launches_that_each_rank_would_place_elsewhere_stand_in_one_order() {
    let before = graphs(&[pulled_apart(true), pulled_apart(false)]);
    assert_eq!(faults(&before), []);
    let mut by_themselves = before.clone();
    apart("bucket-all-reduce{cap=none,groups=W}", &mut by_themselves);
    assert!(matches!(faults(&by_themselves)[..], [RankFault::Ring(_)]), "{:?}", faults(&by_themselves));
    let mut together = before.clone();
    run("bucket-all-reduce{cap=none,groups=W}", &mut together).unwrap();
    assert_proven(&before, &together);
    assert_eq!(launches(&together[0]).len(), 2);
}

#[test]
fn a_merge_that_a_path_through_another_rank_forbids_is_not_made() {
    // On rank 0 nothing orders `s` and `t`; on rank 1 `t` needs `p`, and on rank 2 `p` needs `s`.
    let head = "group A:3 = [[0, 1, 2]]\ngroup B:2 = [[1, 2]]\na = input f32[8]; b = input f32[8]\n";
    let zero = "s = all_reduce(a, sum, A:3); w = wait(s)\nt = all_reduce(b, sum, A:3); v = wait(t)\noutput(w, v)";
    let one = "s = all_reduce(a, sum, A:3); w = wait(s)\np = all_reduce(b, max, B:2); q = wait(p)\n\
               t = all_reduce(q, sum, A:3); v = wait(t)\noutput(w, v)";
    let two = "s = all_reduce(a, sum, A:3); w = wait(s)\np = all_reduce(w, max, B:2); q = wait(p)\n\
               t = all_reduce(b, sum, A:3); v = wait(t)\noutput(q, v)";
    let before = graphs(&[zero, one, two].map(|text| format!("{head}{text}")));
    let mut by_themselves = before.clone();
    apart(REDUCES, &mut by_themselves);
    assert!(!faults(&by_themselves).is_empty());
    let mut together = before.clone();
    let reports = run(REDUCES, &mut together).unwrap();
    assert_eq!(together, before);
    let said: Vec<Vec<String>> = reports.iter().map(|passes| remarks(&passes[0])).collect();
    kit::assert_debug_snapshot!(said);
}

fn remarks(report: &PassReport) -> Vec<String> {
    let remarks = &report.plan.as_ref().unwrap().remarks;
    let one = |decision: &Decision| match decision {
        Decision::Merged { bucket } => format!("bucket {bucket}"),
        Decision::Alone(reason) => reason.to_string(),
    };
    remarks.iter().map(|remark| format!("{}: {}", remark.name, one(&remark.decision))).collect()
}

#[test]
fn a_collective_that_one_rank_cannot_merge_stays_alone_on_all() {
    let of = |more: &str, output: &str| {
        format!(
            "a = input f32[8]; b = input f32[8]; c = input f32[8]\ns = all_reduce(a, sum, G:2); w = wait(s)\n\
             t = all_reduce(b, sum, G:2); v = wait(t)\nu = all_reduce(c, sum, G:2); x = wait(u)\n{more}output({output})"
        )
    };
    let before = graphs(&[of("", "w, v, x"), of("y = wait(t)\n", "w, y, x")]);
    let mut together = before.clone();
    let reports = run(REDUCES, &mut together).unwrap();
    assert_proven(&before, &together);
    let decision = |rank: usize| reports[rank][0].plan.as_ref().unwrap().remarks[1].decision.clone();
    let here = Reason::WaitedTwice { waits: 2 };
    assert_eq!(decision(1), Decision::Alone(here.clone()));
    assert_eq!(decision(0), Decision::Alone(Reason::AtAnotherRank { rank: 1, because: Box::new(here) }));
    assert_eq!(launches(&together[0]).len(), 2);
    // Waits made one on every rank first, all three travel together.
    let mut together = before.clone();
    run("dedupe-waits,bucket-all-reduce{cap=none}", &mut together).unwrap();
    assert_proven(&before, &together);
    assert_eq!(launches(&together[1]).len(), 1);
}

#[test]
fn ranks_of_two_teams_of_one_name_are_planned_apart() {
    let of = |dependent: bool| {
        let input = if dependent { "w" } else { "b" };
        format!(
            "group G:2 = [[0, 1], [2, 3]]\na = input f32[8]; b = input f32[8]\ns = all_reduce(a, sum, G:2); w = wait(s)\n\
             t = all_reduce({input}, sum, G:2); v = wait(t)\noutput(w, v)"
        )
    };
    let before = graphs(&[of(false), of(false), of(false), of(true)]);
    let mut together = before.clone();
    run(REDUCES, &mut together).unwrap();
    assert_proven(&before, &together);
    let counts: Vec<usize> = together.iter().map(|graph| launches(graph).len()).collect();
    assert_eq!(counts, [1, 1, 2, 2]);
}

#[test]
fn a_rank_without_a_bucket_keeps_step_with_those_that_have_one() {
    // The bucket of ranks 2 and 3 has to wait for `c`, which rank 0 launches after `s`. Rank 1 launches `d` before `s`, rank
    // 3 after it.
    let head = "group P:2 = [[0, 1], [2, 3]]\ngroup Q:2 = [[0, 2], [1, 3]]\na = input f32[8]; b = input f32[8]\n";
    let (s, c, d) = (
        "s = all_gather(a, P:2); w = wait(s)\n",
        "c = all_reduce(b, sum, Q:2); x = wait(c)\n",
        "d = all_reduce(a, max, Q:2); y = wait(d)\n",
    );
    let t = "t = all_gather(x, P:2); v = wait(t)\n";
    let of = |parts: [&str; 4], held: &str| format!("{head}{}{held}output(w, x, y, v)", parts.concat());
    let before =
        graphs(&[of([s, c, d, t], "after(t, w)\n"), of([c, d, s, t], ""), of([s, c, d, t], ""), of([c, s, d, t], "")]);
    assert_eq!(faults(&before), []);
    let mut together = before.clone();
    run("bucket-all-gather{cap=none}", &mut together).unwrap();
    assert_eq!(faults(&together), []);
    assert_eq!(together.iter().map(|graph| launches(graph).len()).collect::<Vec<_>>(), [4, 4, 3, 3]);
}

#[test]
fn one_graph_for_every_rank_is_rewritten_as_it_is_alone() {
    let text = pulled_apart(true);
    let mut alone = graphs(&[&text]);
    apart(REDUCES, &mut alone);
    let mut together = graphs(&[&text, &text]);
    run(REDUCES, &mut together).unwrap();
    assert_eq!(print(&together[0]), print(&alone[0]));
    assert_eq!(print(&together[1]), print(&alone[0]));
}

#[test]
fn graphs_that_do_not_belong_together_are_refused_with_both_launches() {
    let of = |launch: &str| format!("x = input f32[8]; y = input f32[12]\ns = {launch}; w = wait(s)\noutput(w)");
    for (left, right) in [
        ("all_reduce(x, sum, G:2)", "all_reduce(y, sum, G:2)"),
        ("all_reduce(x, sum, G:2)", "all_reduce(x, max, G:2)"),
        ("all_reduce(x, sum, G:2)", "all_gather(x, G:2)"),
        ("all_reduce(x, sum, G:2)", "all_reduce(cast(x, bf16), sum, G:2)"),
        ("broadcast(x, 0, G:2)", "broadcast(x, 1, G:2)"),
    ] {
        let error = run(REDUCES, &mut graphs(&[of(left), of(right)])).unwrap_err();
        let TogetherError::Differ { position: 0, left, right, after: None, .. } = &error else { panic!("{error}") };
        assert_eq!((left.rank, right.rank), (0, 1));
    }
    let none = "x = input f32[8]\noutput(x)".to_owned();
    let error = run(REDUCES, &mut graphs(&[of("all_reduce(x, sum, G:2)"), none])).unwrap_err();
    assert!(matches!(&error, TogetherError::Stuck { rank: 0, missing: 1, .. }), "{error}");
}

#[test]
fn graphs_that_wait_in_a_ring_as_they_come_are_refused() {
    let head = "group A:2 = [[0, 1]]\ngroup B:2 = [[0, 1]]\nx = input f32[8]\n";
    let (a, b) = ("s = all_reduce(x, sum, A:2)\n", "t = all_reduce(x, sum, B:2)\n");
    let of = |first, second| format!("{head}{first}{second}output(wait(s), wait(t))");
    let error = run(REDUCES, &mut graphs(&[of(a, b), of(b, a)])).unwrap_err();
    assert!(matches!(&error, TogetherError::Stuck { after: None, .. }), "{error}");
}

#[test]
fn groups_must_be_known_and_have_all_their_ranks() {
    let text = "x = input f32[8]\ns = all_reduce(x, sum, G:2); w = wait(s)\noutput(w)";
    let error = run(REDUCES, &mut graphs(&[text; 4])).unwrap_err();
    assert_eq!(error.to_string(), "rank 0: the members of group `G` are not known; list them");
    let listed = |list: &str| format!("group G:2 = {list}\n{text}");
    let error = run(REDUCES, &mut graphs(&[listed("[[0, 1]]"), listed("[[0, 1]]"), listed("[[0, 1]]")])).unwrap_err();
    assert_eq!(error.to_string(), "rank 2 launches `s` in group `G`, but is in none of its lists");
    let error = run(REDUCES, &mut graphs(&[listed("[[0, 3]]")])).unwrap_err();
    assert_eq!(error.to_string(), "group `G` has rank 3, but there are graphs for 1 ranks");
}

#[test]
fn collectives_in_loops_and_the_rule_of_one_graph_are_refused() {
    let looped = "x = input f32[8]\nregion loop(n=2) {\ns = all_reduce(x, sum, G:2); w = wait(s)\n}\noutput(x)";
    let error = run(REDUCES, &mut graphs(&[looped; 2])).unwrap_err();
    assert!(matches!(&error, TogetherError::Region { rank: 0, .. }), "{error}");
    let plain = "x = input f32[8]\ns = all_reduce(x, sum, G:2); w = wait(s)\noutput(w)";
    let error = run("bucket-all-reduce{policy=adjacent}", &mut graphs(&[plain; 2])).unwrap_err();
    assert!(matches!(&error, TogetherError::Adjacent { .. }), "{error}");
}

#[test]
fn a_pass_that_takes_a_launch_from_one_rank_only_is_named() {
    let of = |second: &str| {
        format!(
            "x = input f32[8]; y = input f32[8]\ns = all_gather(x, G:2); w = wait(s)\n\
             t = all_gather({second}, G:2); v = wait(t)\noutput(relu(w), relu(v))"
        )
    };
    let error = run("dedupe-collectives", &mut graphs(&[of("x"), of("y")])).unwrap_err();
    assert!(matches!(&error, TogetherError::Stuck { after: Some("dedupe-collectives"), .. }), "{error}");
    run("dedupe-collectives", &mut graphs(&[of("x"), of("x")])).unwrap();
}

#[test]
fn many_ranks_and_launches_take_linear_time() {
    let mut text = String::from("x0 = input f32[4]\n");
    for k in 0..4000 {
        text += &format!("s{k} = all_reduce(x{k}, sum, G:4); w{k} = wait(s{k}); x{} = relu(x{k})\n", k + 1);
    }
    let outputs: Vec<String> = (0..4000).map(|k| format!("w{k}")).collect();
    text += &format!("output({})", outputs.join(", "));
    let mut together = graphs(&[&text; 4]);
    run("bucket-all-reduce{cap=1KiB}", &mut together).unwrap();
    assert_eq!(launches(&together[3]).len(), 4000 * 16 / 1024 + 1);
}

const PIPELINES: &[&str] = &[
    "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}",
    "bucket-all-gather{cap=none,mixed-dtype=bytes},bucket-broadcast{cap=none},bucket-all-reduce{cap=64}",
    "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-reduce{cap=none,mode=coalesced},\
     bucket-all-gather{cap=none,mode=coalesced},bucket-all-to-all{cap=none}",
];

/// A rank's own graph: the same launches in each group, but in an order of its own, and with edges of its own.
fn of_one_rank(graph: &Graph, choices: &[u16]) -> Graph {
    let mut own = graph.clone();
    let mut choices = choices.iter().copied().cycle().map(usize::from);
    let mut choose = |below: usize| choices.next().unwrap_or(0) % below.max(1);
    own.set_order(shuffled(graph, &mut choose));
    let inner: Vec<NodeId> =
        own.order().iter().copied().filter(|&id| !matches!(own.node(id).op, Op::Input | Op::Output)).collect();
    for _ in 0..choose(4) {
        let (a, b) = (choose(inner.len()), choose(inner.len()));
        if a != b {
            own.control.push(ControlEdge { before: inner[a.min(b)], after: inner[a.max(b)], strength: Strength::Hard });
        }
    }
    own
}

/// Nodes in another order that keeps all dependencies, inputs in front, and the order of each group's launches.
fn shuffled(graph: &Graph, choose: &mut dyn FnMut(usize) -> usize) -> Vec<NodeId> {
    let dependencies = Dependencies::of(graph);
    let count = dependencies.slots().len();
    let mut last_of_group = vec![None; graph.groups().len()];
    let mut before: Vec<Vec<usize>> =
        (0..count).map(|slot| dependencies.before(slot).iter().map(|&slot| slot as usize).collect()).collect();
    for (slot, before) in before.iter_mut().enumerate() {
        let collective = dependencies.node(slot).and_then(|id| graph.collective(id));
        if let Some(collective) = collective {
            before.extend(last_of_group[collective.group.index()].replace(slot));
        }
    }
    let mut open: Vec<usize> = (0..count).collect();
    let mut out = Vec::new();
    let mut done = vec![false; count];
    while !open.is_empty() {
        let ready: Vec<usize> =
            (0..open.len()).filter(|&at| before[open[at]].iter().all(|&slot| done[slot])).take(3).collect();
        let is_input =
            |at: &&usize| dependencies.node(open[**at]).is_some_and(|id| matches!(graph.node(id).op, Op::Input));
        let at = ready.iter().find(is_input).copied().unwrap_or_else(|| ready[choose(ready.len())]);
        let slot = open.remove(at);
        done[slot] = true;
        out.extend(dependencies.node(slot));
    }
    out
}

/// Gradients that are reduced and used at once; `big` more bytes are alive on this rank while the `at`th is.
fn reduced_beside(big: usize, at: usize) -> String {
    let mut text = "group G:2 = [[0, 1]]\nx = input f32[64]\n".to_owned();
    for nth in 0..6 {
        let held = if nth == at { format!("b = aten.mul.Tensor(x, x) : f32[{}]\n", big / 4) } else { String::new() };
        let used = if nth == at { "m = aten.norm.default(b) : f32[1]\n" } else { "" };
        text += &format!(
            "g{nth} = aten.mul.Tensor(x, x) : f32[64]\n{held}r{nth} = all_reduce(g{nth}, sum, G:2); w{nth} = wait(r{nth})\n\
             {used}n{nth} = aten.norm.default(w{nth}) : f32[1]\n"
        );
    }
    text + "output(m, n0, n1, n2, n3, n4, n5)"
}

fn peaks(graphs: &[Graph]) -> Vec<u64> {
    graphs.iter().map(|graph| Alive::of(graph).peak_bytes).collect()
}

#[test]
fn a_cap_on_memory_cuts_a_bucket_on_all_ranks_where_it_would_pass_that_of_one() {
    let before = graphs(&[reduced_beside(4, 1), reduced_beside(2048, 4)]);
    let pipeline = "bucket-all-reduce{cap=none,memory=3KiB}";
    let mut alone = before.clone();
    apart(pipeline, &mut alone);
    assert_eq!((launches(&alone[0]).len(), launches(&alone[1]).len() > 1), (1, true));
    let mut together = before.clone();
    let reports = run(pipeline, &mut together).unwrap();
    assert_proven(&before, &together);
    assert!(peaks(&together).iter().all(|&bytes| bytes <= 3 << 10), "{:?}", peaks(&together));
    assert_eq!(launches(&together[0]).len(), launches(&together[1]).len());
    kit::assert_snapshot!(
        "together_memory_cap",
        format!("{:#?}", reports.iter().map(|of| remarks(&of[0])).collect::<Vec<_>>())
    );
}

#[test]
fn ranks_of_one_graph_decide_alike_under_a_cap_on_memory() {
    let text = reduced_beside(512, 3);
    for cap in ["same", "+25%", "+50%", "+100%", "2KiB", "3KiB"] {
        let pipeline = format!("bucket-all-reduce{{cap=none,memory={cap}}}");
        let mut alone = graphs(&[&text]);
        apart(&pipeline, &mut alone);
        let mut together = graphs(&[&text, &text]);
        run(&pipeline, &mut together).unwrap();
        assert_eq!(print(&together[0]), print(&alone[0]), "{cap}");
        assert_eq!(print(&together[1]), print(&alone[0]), "{cap}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn no_rank_passes_its_cap_on_memory(
        graph in graph_strategy_with(GraphOptions { regions: false, effects: false, ..GraphOptions::default() }),
        choices in prop::collection::vec(prop::collection::vec(any::<u16>(), 1..60), RANKS as usize),
        which in 0..PIPELINES.len(),
        share in prop::sample::select(vec![0u64, 5, 20, 50, 100]),
    ) {
        let before: Vec<Graph> = choices.iter().map(|choices| of_one_rank(&graph, choices)).collect();
        let Ok(found) = check_ranks(&before, &RankOptions::default()) else { return Ok(()) };
        if !found.is_empty() || before.iter().any(|graph| bucketeer::ir::verify(graph).is_err()) {
            return Ok(());
        }
        let pipeline = PIPELINES[which].replace("cap=", &format!("memory=+{share}%,cap="));
        let mut after = before.clone();
        run(&pipeline, &mut after).unwrap();
        for (came, now) in peaks(&before).into_iter().zip(peaks(&after)) {
            prop_assert!(now <= came + came * share / 100, "{now} of {came}");
        }
        let found = faults(&after);
        prop_assert!(found.is_empty(), "{found:?}");
        for (old, new) in before.iter().zip(&after) {
            let verdict = prove_with(old, new, Options { launches_may_move: true, ..Options::default() });
            prop_assert!(!matches!(verdict, Verdict::Different(_)), "{verdict}");
        }
    }

    #[test]
    fn ranks_with_graphs_of_their_own_launch_the_same_after_every_pipeline(
        graph in graph_strategy_with(GraphOptions { regions: false, effects: false, ..GraphOptions::default() }),
        choices in prop::collection::vec(prop::collection::vec(any::<u16>(), 1..60), RANKS as usize),
        which in 0..PIPELINES.len(),
    ) {
        let before: Vec<Graph> = choices.iter().map(|choices| of_one_rank(&graph, choices)).collect();
        let Ok(found) = check_ranks(&before, &RankOptions::default()) else { return Ok(()) };
        if !found.is_empty() || before.iter().any(|graph| bucketeer::ir::verify(graph).is_err()) {
            return Ok(());
        }
        let mut after = before.clone();
        let reports = match run(PIPELINES[which], &mut after) {
            Ok(reports) => reports,
            Err(error) => {
                let all = before.iter().map(print).collect::<Vec<_>>().join("\n");
                return Err(TestCaseError::fail(format!("{error}\n{all}")));
            }
        };
        prop_assert_eq!(reports.len(), RANKS as usize);
        let all = || after.iter().map(print).collect::<Vec<_>>().join("\n");
        let found = faults(&after);
        prop_assert!(found.is_empty(), "{found:?}\n{}", all());
        for (rank, (old, new)) in before.iter().zip(&after).enumerate() {
            // What moves a launch may stand in another rank's graph; that all ranks moved it alike was seen above.
            let verdict = prove_with(old, new, Options { launches_may_move: true, ..Options::default() });
            prop_assert!(!matches!(verdict, Verdict::Different(_)), "{rank}: {verdict}\n{}\n{}", print(old), print(new));
        }
        let mut again = after.clone();
        run(PIPELINES[which], &mut again).unwrap();
        prop_assert!(again.iter().map(print).eq(after.iter().map(print)), "{}", all());
    }
}
