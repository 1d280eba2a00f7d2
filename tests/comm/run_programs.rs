//! Programs run on ranks as threads make what the evaluator makes of their graphs, bit for bit.

use bucketeer::ir::text::{parse, print};
use bucketeer::ir::{GlobalRank, Graph};
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerError, LowerOptions, lower};
use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_eval::{EvalOptions, Output, RankOutputs, evaluate, shrink};
use bucketeer_exec::{Executor, Reference, Run, RunError, seeded_inputs, world_size};
use bucketeer_fuzzing::grow::GraphOptions;
use kit::files;
use kit::random::graph_strategy_with;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn options() -> LocalOptions {
    LocalOptions { timeout: Duration::from_secs(20), ..LocalOptions::default() }
}

/// What every rank makes.
fn run_graph(graph: &Graph, lowering: &LowerOptions) -> Result<Vec<Run>, RunError> {
    let (program, _) = lower(graph, lowering).unwrap_or_else(|error| panic!("{error}\n{}", print(graph)));
    let ranks = run(world_size(&program)?, options(), |rank| {
        let mut executor = Executor::new(&program, &rank)?;
        let inputs = seeded_inputs(&program, rank.rank(), 0)?;
        let first = executor.run(&inputs, &mut Reference::new(rank.rank(), 0))?;
        // Memory that was used before changes nothing.
        let second = executor.run(&inputs, &mut Reference::new(rank.rank(), 0))?;
        assert_eq!((&first.outputs, &first.inputs), (&second.outputs, &second.inputs));
        Ok(second)
    });
    let ranks = ranks.unwrap_or_else(|error| panic!("{error}"));
    let mut all = Vec::new();
    let mut failed: Vec<RunError> = Vec::new();
    for rank in ranks {
        match rank.unwrap_or_else(|_| panic!("a rank panicked\n{}", print(graph))) {
            Ok(run) => all.push(run),
            Err(error) => failed.push(error),
        }
    }
    // The error that others only followed.
    let first = failed.iter().position(|error| !error.to_string().contains("dropped its handle"));
    match failed.is_empty() {
        true => Ok(all),
        false => Err(failed.swap_remove(first.unwrap_or(0))),
    }
}

/// A value without what an evaluator and a program may differ in: where it lies, and whether it is on its way.
fn plain(value: &Output) -> Output {
    match value {
        Output::Tensor(tensor) => {
            let mut tensor = tensor.clone();
            tensor.strides.clear();
            tensor.device = None;
            tensor.pending = false;
            Output::Tensor(tensor)
        }
        Output::Tuple(values) => Output::Tuple(values.iter().map(plain).collect()),
        other => other.clone(),
    }
}

fn assert_same(graph: &Graph, ran: &[Run], evaluated: &[RankOutputs]) {
    assert_eq!(ran.len(), evaluated.len());
    for (rank, (ran, evaluated)) in ran.iter().zip(evaluated).enumerate() {
        let outputs = |list: &[Output]| list.iter().map(plain).collect::<Vec<_>>();
        let (ran_outputs, expected) = (outputs(&ran.outputs), outputs(&evaluated.outputs));
        let differs = (0..expected.len()).find(|&at| ran_outputs[at] != expected[at]);
        assert_eq!((rank, ran_outputs.len(), differs), (rank, expected.len(), None), "{}", print(graph));
        let after: Vec<Output> = evaluated.inputs.iter().map(|(_, value)| plain(value)).collect();
        assert!(outputs(&ran.inputs) == after, "inputs of rank {rank}\n{}", print(graph));
    }
}

fn check(graph: &Graph, lowering: &LowerOptions) {
    let ran = run_graph(graph, lowering).unwrap_or_else(|error| panic!("{error}\n{}", print(graph)));
    let options = EvalOptions { ranks: Some(ran.len() as u32), ..EvalOptions::default() };
    assert_same(graph, &ran, &evaluate(graph, &options).unwrap());
}

const DEFAULT: &str =
    "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}";
const COALESCED: &str = "bucket-reduce-scatter{cap=none,mode=coalesced},bucket-all-reduce{cap=none,mode=coalesced},\
                         bucket-all-gather{cap=none,mode=coalesced}";

fn rewritten(graph: &Graph, pipeline: &str) -> Graph {
    let mut after = graph.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut after).unwrap();
    after
}

#[test]
fn every_kind_of_collective_runs() {
    check(&files::every_kind(), &LowerOptions::default());
}

/// Runs the graphs of a file before and after rewrites; returns how many runs there were.
fn run_file(path: &Path, pipelines: &[&str]) -> usize {
    let mut runs = 0;
    for graph in &files::graphs(path) {
        for pipeline in pipelines {
            let graph = rewritten(graph, pipeline);
            let program = match lower(&graph, &LowerOptions::default()) {
                Ok((program, _)) => program,
                // The evaluator takes any value for a size without a hint.
                Err(LowerError::Size(_)) => continue,
                Err(error) => panic!("{}: {error}", path.display()),
            };
            let ranks = world_size(&program).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let options = EvalOptions { ranks: Some(ranks), ..EvalOptions::default() };
            let evaluated = evaluate(&graph, &options).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let ran = run_graph(&graph, &LowerOptions::default());
            assert_same(&graph, &ran.unwrap_or_else(|error| panic!("{}: {error}", path.display())), &evaluated);
            runs += 1;
        }
    }
    runs
}

#[test]
fn tiny_graphs_of_pytorch_run_before_and_after_a_rewrite() {
    let tiny = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tiny_fsdp"));
    let runs: usize = files::fx().iter().filter(|path| tiny(path)).map(|path| run_file(path, &["", DEFAULT])).sum();
    assert!(runs > 3, "{runs}");
}

#[test]
#[ignore = "needs BUCKETEER_SHARED"]
fn every_shared_tiny_graph_runs_before_and_after_rewrites() {
    let mut runs = 0;
    for path in files::texts(&files::shared().join("torch/tiny")) {
        if !path.to_string_lossy().contains("merged") {
            runs += run_file(&path, &["", DEFAULT, COALESCED]);
        }
    }
    assert!(runs > 50, "{runs}");
}

#[test]
fn a_graph_of_real_size_runs_scaled_down_before_and_after_bucketing() {
    let path = files::fixtures().join("fsdp_l2_ws8_bf16.backward.txt");
    let before = &files::graphs(&path)[0];
    let mut after = before.clone();
    Pipeline::default_rewrite().run(&mut after).unwrap();
    let shrunk = shrink(&[before, &after], &EvalOptions::default()).unwrap();
    let scaling = shrunk.scaling.expect("it is too large as it is");
    assert!(scaling.bytes_before > 100 * scaling.bytes_after, "{scaling:?}");
    let [before, after] = &shrunk.graphs[..] else { panic!("two graphs are asked for") };
    let launches = |graph: &Graph| lower(graph, &LowerOptions::default()).unwrap().0.launches();
    assert!(2 * launches(after) < launches(before), "{} of {}", launches(after), launches(before));
    let [before, after] = [before, after].map(|graph| run_graph(graph, &LowerOptions::default()).unwrap());
    assert_eq!((before.len(), after.len()), (8, 8));
    for (rank, (before, after)) in before.iter().zip(&after).enumerate() {
        let differs = before.outputs.iter().zip(&after.outputs).position(|(a, b)| !a.same_elements(b));
        assert_eq!((rank, before.outputs.len(), differs), (rank, after.outputs.len(), None));
    }
}

#[test]
fn a_rank_that_stops_ends_the_run_of_all_with_its_name() {
    let graph =
        parse("x = input f32[4]\ns = all_reduce(x, sum, G:2) : f32[4]; w = wait(s) : f32[4]\noutput(w)").unwrap();
    let (program, _) = lower(&graph, &LowerOptions::default()).unwrap();
    let results = run(2, options(), |rank| {
        let mut executor = Executor::new(&program, &rank).unwrap();
        if rank.rank() == GlobalRank(1) {
            return None;
        }
        let inputs = seeded_inputs(&program, rank.rank(), 0).unwrap();
        Some(executor.run(&inputs, &mut Reference::new(rank.rank(), 0)).unwrap_err().to_string())
    });
    let said = results.unwrap().remove(0).unwrap().unwrap();
    assert!(said.starts_with("`s`: group G, all_reduce") && said.contains("rank 1"), "{said}");
}

#[test]
fn values_that_do_not_fit_are_named() {
    let graph = parse("x = input f32[4]; y = input i64[2]\noutput(x, y)").unwrap();
    let (program, _) = lower(&graph, &LowerOptions::default()).unwrap();
    let results = run(1, options(), |rank| {
        let mut executor = Executor::new(&program, &rank).unwrap();
        let mut inputs = seeded_inputs(&program, rank.rank(), 0).unwrap();
        let mut kernels = Reference::new(rank.rank(), 0);
        let few = executor.run(&inputs[..1], &mut kernels).unwrap_err().to_string();
        inputs.swap(0, 1);
        (few, executor.run(&inputs, &mut kernels).unwrap_err().to_string())
    });
    let (few, swapped) = results.unwrap().remove(0).unwrap();
    assert_eq!(few, "input `y`: 1 values are given for 2 inputs");
    assert_eq!(swapped, "input `x`: is i64[2], but f32[4] is expected");
}

#[test]
fn ranks_that_are_in_no_group_are_refused() {
    let of = |lists: &str| {
        let text =
            format!("group G:2 = {lists}\nx = input f32[4]\ns = all_reduce(x, sum, G:2) : f32[4]\noutput(wait(s))");
        let (program, _) = lower(&parse(&text).unwrap(), &LowerOptions::default()).unwrap();
        world_size(&program)
    };
    assert_eq!(of("[[0, 1], [2, 3]]"), Ok(4));
    let error = of("[[0, 2]]").unwrap_err().to_string();
    assert_eq!(error, "group `G`: ranks are numbered from 0, and rank 1 is in no group");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn random_graphs_run_as_they_are_evaluated(
        graph in graph_strategy_with(GraphOptions { regions: false, ..GraphOptions::default() }),
        pipeline in prop::sample::select(vec!["", DEFAULT, COALESCED]),
        realise in any::<bool>(),
        unpack_at_once in any::<bool>(),
        align_bytes in prop::sample::select(vec![1u64, 16, 64]),
        one_shot_max_bytes in prop::sample::select(vec![0u64, 32, 1 << 20]),
    ) {
        let graph = rewritten(&graph, pipeline);
        let options = LowerOptions { realise, unpack_at_once, align_bytes, one_shot_max_bytes, ..LowerOptions::default() };
        check(&graph, &options);
    }
}

#[test]
fn one_backend_runs_a_forward_and_a_backward_program_on_one_group() {
    let programs = ["x = input f32[4]\ng = all_gather(x, G:2); w = wait(g)\noutput(neg(w))",
        "x = input f32[4]\ns = all_reduce(x, sum, G:2); w = wait(s)\nb = all_reduce(w, max, H:2); v = wait(b)\noutput(v)"]
    .map(|text| lower(&parse(text).unwrap(), &LowerOptions::default()).unwrap().0);
    let mut programs = programs;
    for group in programs.iter_mut().flat_map(|program| &mut program.groups) {
        group.members = vec![vec![0, 1]];
    }
    let once = |program: &bucketeer::program::Program, rank: &dyn Backend| {
        let inputs = seeded_inputs(program, rank.rank(), 0)?;
        Executor::new(program, rank)?.run(&inputs, &mut Reference::new(rank.rank(), 0))
    };
    let alone = |program| run(2, options(), |rank| once(program, &rank)).unwrap();
    let alone = programs
        .each_ref()
        .map(|program| alone(program).into_iter().map(|run| run.unwrap().unwrap().outputs).collect::<Vec<_>>());
    let together = run(2, options(), |rank| {
        let [mut forward, mut backward] = [Executor::new(&programs[0], &rank)?, Executor::new(&programs[1], &rank)?];
        let inputs = [seeded_inputs(&programs[0], rank.rank(), 0)?, seeded_inputs(&programs[1], rank.rank(), 0)?];
        let mut made = Vec::new();
        for _ in 0..2 {
            made.push(forward.run(&inputs[0], &mut Reference::new(rank.rank(), 0))?.outputs);
            made.push(backward.run(&inputs[1], &mut Reference::new(rank.rank(), 0))?.outputs);
        }
        Ok::<_, RunError>(made)
    });
    for (rank, made) in together.unwrap().into_iter().enumerate() {
        let made = made.unwrap().unwrap_or_else(|error| panic!("{error}"));
        let [forward, backward] = [&alone[0][rank], &alone[1][rank]];
        assert_eq!(made.iter().collect::<Vec<_>>(), [forward, backward, forward, backward]);
    }
}
