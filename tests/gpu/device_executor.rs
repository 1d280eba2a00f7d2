//! Programs on the fake GPU give what they give on the host, bit for bit, whatever is late; and every event wait is needed.

use bucketeer::ir::Graph;
use bucketeer::ir::text::{parse, print};
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::Program;
use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, LocalRank, run};
use bucketeer_cuda::Context;
use bucketeer_cuda::nvrtc::{Cache, Nvrtc, NvrtcError};
use bucketeer_exec::{DeviceExecutor, Executor, Reference, Run, RunError, seeded_inputs, world_size};
use kit::fakegpu::{Session, session};
use kit::files;
use std::time::Duration;

const DEFAULT: &str = "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},\
                       bucket-all-gather{cap=none}";

fn options() -> LocalOptions {
    LocalOptions { timeout: Duration::from_secs(20), ..LocalOptions::default() }
}

fn program(graph: &Graph, pipeline: &str, lowering: &LowerOptions) -> Program {
    let mut graph = graph.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
    lower(&graph, lowering).unwrap_or_else(|error| panic!("{error}\n{}", print(&graph))).0
}

/// What each rank does with a program; the first error that others did not only follow.
fn on_ranks<T: Send>(
    program: &Program,
    body: impl Fn(&LocalRank) -> Result<T, RunError> + Sync,
) -> Result<Vec<T>, RunError> {
    let ranks = run(world_size(program).unwrap(), options(), |rank| body(&rank)).unwrap();
    let results: Vec<Result<T, RunError>> = ranks.into_iter().map(|rank| rank.expect("no rank panics")).collect();
    let follows =
        |error: &RunError| error.to_string().contains("dropped its handle") || error.to_string().contains("aborted");
    let errors: Vec<&RunError> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    let first = errors.iter().find(|error| !follows(error)).or(errors.first());
    if let Some(error) = first {
        return Err((*error).clone());
    }
    Ok(results.into_iter().filter_map(Result::ok).collect())
}

fn on_host(program: &Program) -> Vec<Run> {
    on_ranks(program, |rank| {
        let mut executor = Executor::new(program, rank)?;
        executor.run(&seeded_inputs(program, rank.rank(), 0)?, &mut Reference::new(rank.rank(), 0))
    })
    .unwrap()
}

/// The fake compiler, which compiles each source once.
fn nvrtc(session: &Session) -> Nvrtc {
    let folder = format!("{}/device-executor-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    session.nvrtc().with_cache(Some(Cache::new(folder)))
}

fn context(session: &Session) -> Context {
    session.driver().device(0).unwrap().context().unwrap()
}

fn on_device(program: &Program, context: &Context, nvrtc: Result<&Nvrtc, &NvrtcError>) -> Result<Vec<Run>, RunError> {
    on_ranks(program, |rank| {
        let mut executor = DeviceExecutor::new(program, rank, context, nvrtc)?;
        let inputs = seeded_inputs(program, rank.rank(), 0)?;
        let first = executor.run(&inputs, &mut Reference::new(rank.rank(), 0))?;
        // Memory and events that were used before change nothing.
        let second = executor.run(&inputs, &mut Reference::new(rank.rank(), 0))?;
        assert_eq!(first.outputs, second.outputs);
        Ok(second)
    })
}

fn same(a: &[Run], b: &[Run]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (&a.outputs, &a.inputs) == (&b.outputs, &b.inputs))
}

#[track_caller]
fn check(session: &Session, program: &Program) {
    let (context, nvrtc) = (context(session), nvrtc(session));
    let ran = on_device(program, &context, Ok(&nvrtc)).unwrap_or_else(|error| panic!("{error}\n{program}"));
    assert!(same(&ran, &on_host(program)), "{program}");
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn every_kind_of_collective_runs_on_a_device_whatever_is_late() {
    let session = session();
    session.delay_us(300);
    let graph = files::every_kind();
    check(&session, &program(&graph, "", &LowerOptions::default()));
    check(
        &session,
        &program(&graph, DEFAULT, &LowerOptions { one_shot_max_bytes: 1 << 10, ..LowerOptions::default() }),
    );
}

fn fixture(name: &str) -> Graph {
    files::graphs(&files::fixtures().join(name)).remove(0)
}

fn real_graphs_run_as_on_the_host(names: &[&str]) {
    let session = session();
    session.delay_us(100);
    for name in names {
        check(&session, &program(&fixture(name), DEFAULT, &LowerOptions::default()));
    }
}

#[test]
fn a_real_graph_runs_end_to_end_as_on_the_host() {
    real_graphs_run_as_on_the_host(&["live_static.backward.txt"]);
}

#[test]
#[ignore = "long without optimisation"]
fn graphs_of_every_parallelism_run_end_to_end_as_on_the_host() {
    real_graphs_run_as_on_the_host(&[
        "tiny_ddp_bf16_arfp32.backward.txt",
        "tiny_fsdp_bf16_rsfp32.backward.txt",
        "tiny_fsdp_tp_bf16_rsfp32.backward.txt",
        "tiny_fsdp_uneven_bf16.backward.txt",
        "tiny_hsdp_rsar_bf16_rsfp32.backward.txt",
        "tiny_moe_bf16_rsfp32.backward.txt",
    ]);
}

#[test]
fn without_a_compiler_the_kernel_that_comes_with_us_does_the_same() {
    let session = session();
    let missing = Nvrtc::load(Some(std::path::Path::new("/nowhere/libnvrtc.so"))).err().unwrap();
    session.register_ptx(bucketeer::codegen::cuda::FIXED_KERNEL, &bucketeer::codegen::cuda::fixed_module());
    let program = program(&fixture("live_static.backward.txt"), DEFAULT, &LowerOptions::default());
    let ran = on_device(&program, &context(&session), Err(&missing)).unwrap_or_else(|error| panic!("{error}"));
    assert!(same(&ran, &on_host(&program)));
    let rare = parse(
        "x = input f64[40]; y = input f64[40]\na = prims.convert_element_type.default(x, torch.bfloat16) : bf16[40]\n\
         b = prims.convert_element_type.default(y, torch.bfloat16) : bf16[40]\n\
         g = all_gather(a, G:2); h = all_gather(b, G:2)\noutput(wait(g), wait(h))",
    );
    let rare = self::program(&rare.unwrap(), DEFAULT, &LowerOptions { realise: false, ..LowerOptions::default() });
    let error = on_device(&rare, &context(&session), Err(&missing)).err().map(|error| error.to_string());
    let error = error.expect("it has no conversion of f64");
    assert!(error.contains("there is no compiler") && error.contains("/nowhere/libnvrtc.so"), "{error}");
}

/// Whether a result tells that a wait is left out, if what it waits for is so late; and the steps' names.
fn is_missed(session: &Session, program: &Program, expected: &[Run], wait: usize, delay_us: u64) -> (bool, String) {
    let (context, nvrtc) = (context(session), nvrtc(session));
    let names = std::sync::Mutex::new(String::new());
    let ran = on_ranks(program, |rank| {
        let mut executor = DeviceExecutor::new(program, rank, &context, Ok(&nvrtc))?;
        if rank.rank().0 == 0 {
            executor.leave_out(Some(wait));
            let (step, other, stream) = executor.event_wait(wait);
            session.delay_stream_us(stream, delay_us);
            *names.lock().unwrap() = format!("`{step}` does not wait for `{other}`");
        }
        executor.run(&seeded_inputs(program, rank.rank(), 0)?, &mut Reference::new(rank.rank(), 0))
    });
    session.reset();
    (ran.map_or(true, |ran| !same(&ran, expected)), names.into_inner().unwrap())
}

/// Leaves each wait out, with what it waits for late, and expects that the result tells; returns their number.
fn every_wait_is_needed(session: &Session, program: &Program) -> usize {
    let (context, nvrtc) = (context(session), nvrtc(session));
    let expected = on_host(program);
    let count = on_ranks(program, |rank| Ok(DeviceExecutor::new(program, rank, &context, Ok(&nvrtc))?.event_waits()));
    let count = count.unwrap()[0];
    for wait in 0..count {
        // On a machine with much else to do, the thread that should be early may be late, too.
        let missed = |delay_us| is_missed(session, program, &expected, wait, delay_us);
        let seen = [3_000, 30_000, 300_000].into_iter().any(|delay_us| missed(delay_us).0);
        assert!(seen, "{} and nobody sees it", missed(0).1);
    }
    count
}

#[test]
fn a_wait_that_is_left_out_is_seen_each_one() {
    let session = session();
    let small = parse(
        "x = input f32[64]; y = input f32[32]; z = input f32[16]\na = relu(x); b = neg(y)\n\
         g = all_reduce(a, sum, G:2); h = all_reduce(b, sum, G:2)\nv = wait(g); w = wait(h)\n\
         s = all_gather(z, G:2); t = all_gather(v, G:2)\noutput(v, w, wait(s), wait(t))",
    );
    let mut waits = every_wait_is_needed(&session, &program(&small.unwrap(), DEFAULT, &LowerOptions::default()));
    let live = fixture("live_static.backward.txt");
    waits += every_wait_is_needed(&session, &program(&live, DEFAULT, &LowerOptions::default()));
    waits += every_wait_is_needed(&session, &program(&live, "", &LowerOptions::default()));
    assert!(waits >= 6, "{waits}");
}

#[test]
#[ignore = "long without optimisation"]
fn a_wait_that_is_left_out_of_a_larger_graph_is_seen_each_one() {
    let session = session();
    for name in ["tiny_fsdp_bf16_rsfp32.backward.txt", "tiny_hsdp_rsar_bf16_rsfp32.backward.txt"] {
        let waits = every_wait_is_needed(&session, &program(&fixture(name), DEFAULT, &LowerOptions::default()));
        assert!(waits >= 4, "{waits}");
    }
}

#[test]
fn what_a_device_refuses_ends_the_run_and_names_the_step() {
    let session = session();
    let program = program(&fixture("live_static.backward.txt"), DEFAULT, &LowerOptions::default());
    let (context, nvrtc) = (context(&session), nvrtc(&session));
    session.inject("cuLaunchKernel:2=700");
    let error = on_device(&program, &context, Ok(&nvrtc)).err().map(|error| error.to_string());
    let error = error.expect("a launch failed");
    assert!(error.starts_with('`') && error.contains("cuLaunchKernel"), "{error}");
    session.reset();
    session.set_memory_bytes(1000);
    let error = on_device(&program, &context, Ok(&nvrtc)).err().map(|error| error.to_string());
    assert!(error.as_ref().is_some_and(|error| error.contains("cannot be allocated")), "{error:?}");
}
