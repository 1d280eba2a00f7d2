//! Lowering of random graphs, as they came and bucketed: no panic, the plan keeps its rules, and the checker accepts.

use bucketeer::check::program::{ProgramVerdict, prove};
use bucketeer::ir::Graph;
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerError, LowerOptions, lower};
use bucketeer::program::Program;
use bucketeer::program::lives::lives;
use bucketeer_fuzzing::grow::GraphOptions;
use kit::random::graph_strategy_with;
use proptest::prelude::*;

fn plan_keeps_its_rules(program: &Program) {
    program.check_form().unwrap();
    let lives = lives(program);
    for (a, x) in program.buffers.iter().enumerate() {
        for (b, y) in program.buffers.iter().enumerate().skip(a + 1) {
            let (Some(p), Some(q), Some(m), Some(n)) = (x.place, y.place, lives[a], lives[b]) else { continue };
            let at_once = p.arena == q.arena && m.0 <= n.1 && n.0 <= m.1 && x.bytes > 0 && y.bytes > 0;
            let apart = p.offset + x.bytes <= q.offset || q.offset + y.bytes <= p.offset;
            assert!(!at_once || apart, "`{}` and `{}` overlap", x.name, y.name);
        }
    }
    for arena in &program.arenas {
        assert!(arena.live_bytes <= arena.bytes && arena.bytes <= arena.live_bytes * 3 / 2, "{arena:?}");
    }
}

fn lowers(graph: &Graph, options: &LowerOptions) {
    match lower(graph, options) {
        Ok((program, _)) => {
            plan_keeps_its_rules(&program);
            if let ProgramVerdict::Different(fault) = prove(graph, &program) {
                panic!("{fault}\n{}\n{program}", bucketeer::ir::text::print(graph));
            }
            let again = Program::parse(&program.to_string()).unwrap();
            assert_eq!(again.to_string(), program.to_string());
        }
        // Views of memory that is written, whose place is not known, and averages of bools.
        Err(LowerError::Node { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(192) })]

    #[test]
    fn random_graphs_are_lowered_and_proven(
        graph in graph_strategy_with(GraphOptions { regions: false, ..GraphOptions::default() }),
        align in 0u32..8,
        realise: bool,
        unpack_at_once: bool,
        one_shot_max_bytes in prop_oneof![Just(0u64), Just(16), Just(64)],
    ) {
        let options = LowerOptions { align_bytes: 1 << align, realise, unpack_at_once, one_shot_max_bytes, ..LowerOptions::default() };
        lowers(&graph, &options);
        let mut bucketed = graph;
        let pipeline = "bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none,mixed-dtype=bytes}";
        if pipeline.parse::<Pipeline>().unwrap().run(&mut bucketed).is_ok() {
            lowers(&bucketed, &options);
        }
    }
}

#[test]
fn random_graphs_are_mostly_lowered() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = graph_strategy_with(GraphOptions { regions: false, ..GraphOptions::default() });
    let (mut lowered, mut proven) = (0, 0);
    for _ in 0..100 {
        let graph = strategy.new_tree(&mut runner).unwrap().current();
        if let Ok((program, _)) = lower(&graph, &LowerOptions::default()) {
            lowered += 1;
            proven += u32::from(matches!(prove(&graph, &program), ProgramVerdict::Equal(_)));
        }
    }
    assert!(lowered >= 80 && proven * 10 >= lowered * 9, "{lowered} lowered, {proven} proven");
}
