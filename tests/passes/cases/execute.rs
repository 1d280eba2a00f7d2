//! Stage `execute`: programs of the sketches on ranks as threads.

use bucketeer::ir::{GlobalRank, Graph};
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::Program;
use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_eval::Output;
use bucketeer_exec::{Executor, Reference, Run, RunError, seeded_inputs, world_size};
use kit::rewrite::{read, sketch};
use std::time::{Duration, Instant};

/// Far above what any of these takes.
const TIMEOUT: Duration = Duration::from_secs(20);

fn program(graph: &Graph) -> Program {
    lower(graph, &LowerOptions::default()).unwrap_or_else(|error| panic!("{error}")).0
}

/// The program of RDY-1 or a text like it, with one bucket.
#[track_caller]
fn bucketed(text: &str) -> Program {
    let program = program(&super::bucketed(text, &[&["s0", "s1"]]));
    assert_eq!(program.launches(), 1);
    program
}

/// What each rank makes, or why it does not, of as many inputs as it is given.
fn run_with(program: &Program, given: impl Fn(u32) -> usize + Sync) -> Vec<Result<Run, RunError>> {
    let options = LocalOptions { timeout: TIMEOUT, ..LocalOptions::default() };
    let ranks = run(world_size(program).unwrap(), options, |rank| {
        let inputs = seeded_inputs(program, rank.rank(), 0)?;
        let inputs = &inputs[..given(rank.rank().0).min(inputs.len())];
        Executor::new(program, &rank)?.run(inputs, &mut Reference::new(rank.rank(), 0))
    });
    ranks.unwrap().into_iter().map(|rank| rank.expect("no rank panics")).collect()
}

fn errors(results: Vec<Result<Run, RunError>>) -> Vec<String> {
    results.into_iter().map(|result| result.map_or_else(|error| error.to_string(), |_| "no error".to_owned())).collect()
}

#[test]
fn rdy_1_a_bucket_whose_member_is_not_there_is_refused_before_launch_with_both_names() {
    let program = bucketed(&sketch("rdy-1"));
    let start = Instant::now();
    let refused = "input `b`: 1 values are given for 2 inputs; `bucketed_all_reduce` (of `s0`, `s1`) is not launched \
                   without it";
    assert_eq!(errors(run_with(&program, |_| 1)), [refused, refused]);
    // One rank knows before it launches; the other learns who was missing, without waiting until the time is up.
    let [ready, other] = &errors(run_with(&program, |rank| 2 - rank as usize))[..] else { panic!("two ranks") };
    assert_eq!(other, refused);
    assert!(ready.starts_with("`bucketed_all_reduce`: group G0, all_reduce") && ready.contains("rank 1"), "{ready}");
    assert!(start.elapsed() < TIMEOUT, "{:?}", start.elapsed());
}

#[test]
fn rdy_1_a_partial_run_runs_the_whole_bucket() {
    let text = sketch("rdy-1");
    let outputs = |program: &Program| -> Vec<Vec<Output>> {
        run_with(program, |_| usize::MAX).into_iter().map(|run| run.unwrap().outputs).collect()
    };
    let whole = outputs(&bucketed(&text));
    let partial = outputs(&bucketed(&text.replace("output(w0, w1)", "output(w0)")));
    for (whole, partial) in whole.iter().zip(&partial) {
        assert!(partial.len() == 1 && partial[0].same_elements(&whole[0]));
    }
    // The member that nobody asked for travels, too: what it needs is asked for.
    let asked = bucketed(&text.replace("output(w0, w1)", "output(w0)"));
    assert!(errors(run_with(&asked, |_| 1))[0].starts_with("input `b`: "));
}

#[test]
fn dt_3_a_sum_of_narrow_floats_is_refused_by_name_and_never_one_of_bytes() {
    let text = sketch("dt-3");
    let refused = "`r`: group G0, reduce_scatter: float8_e4m3fn is not reduced by any backend; convert it first";
    assert_eq!(errors(run_with(&program(&read(&text)), |_| usize::MAX)), [refused, refused]);
    // The rest runs: the gather bit for bit, the sum of bools as a logical or.
    let rest = program(&read(
        "q = input f8e4m3[16]; m = input bool[16]\ng = all_gather(q, G0:2); wg = wait(g)\n\
                              s = all_reduce(m, sum, G0:2); ws = wait(s)\noutput(wg, ws)",
    ));
    let bytes = |value: &Output| match value {
        Output::Tensor(tensor) => tensor.bytes.clone(),
        other => panic!("{other:?}"),
    };
    let given = [0, 1].map(|rank| seeded_inputs(&rest, GlobalRank(rank), 0).unwrap());
    let gathered = [bytes(&given[0][0]), bytes(&given[1][0])].concat();
    let either: Vec<u8> = bytes(&given[0][1]).iter().zip(bytes(&given[1][1])).map(|(a, b)| a | b).collect();
    assert!(either.contains(&1) && either != bytes(&given[0][1]), "the inputs tell or from nothing");
    for run in run_with(&rest, |_| usize::MAX) {
        let outputs: Vec<Vec<u8>> = run.unwrap().outputs.iter().map(bytes).collect();
        assert_eq!(outputs, [gathered.clone(), either.clone()]);
    }
}
