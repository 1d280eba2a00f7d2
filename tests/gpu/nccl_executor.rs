//! Programs on the fake GPU with NCCL give what they give on the host, bit for bit, whatever is late.

use bucketeer::ir::Graph;
use bucketeer::ir::text::parse;
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::Program;
use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::store::{MemoryStore, Store};
use bucketeer_cuda::nvrtc::{Cache, Nvrtc};
use bucketeer_exec::{DeviceExecutor, Executor, Reference, Run, RunError, seeded_inputs, world_size};
use kit::fakegpu::{Session, session};
use kit::files;
use std::sync::Arc;
use std::time::Duration;

const DEFAULT: &str = "dedupe-waits,fold-trivial,bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},\
                       bucket-all-gather{cap=none}";

fn program(graph: &Graph, pipeline: &str, lowering: &LowerOptions) -> Program {
    let mut graph = graph.clone();
    pipeline.parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
    lower(&graph, lowering).unwrap().0
}

/// What each rank does with a program.
fn on_nccl<T: Send>(
    session: &Session,
    program: &Program,
    body: impl Fn(&NcclRank) -> Result<T, RunError> + Sync,
) -> Result<Vec<T>, RunError> {
    let (nccl, driver, body) = (session.nccl(), session.driver(), &body);
    let options = NcclOptions {
        timeout: Duration::from_secs(30),
        poll: Duration::from_millis(2),
        store_poll: Duration::from_millis(5),
        ..NcclOptions::default()
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = MemoryStore::world(world_size(program).unwrap())
            .into_iter()
            .map(|store| {
                let context = driver.device(store.rank().0 % 8).unwrap().context().unwrap();
                let rank = NcclRank::new(&nccl, &context, Arc::new(store), options.clone()).unwrap();
                scope.spawn(move || {
                    let done = body(&rank)?;
                    rank.close()
                        .map_err(|error| RunError::Comm { node: "close".to_owned(), error: Box::new(error) })?;
                    Ok(done)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn on_host(program: &Program) -> Vec<Run> {
    let options = LocalOptions { timeout: Duration::from_secs(20), ..LocalOptions::default() };
    let ranks = run(world_size(program).unwrap(), options, |rank| {
        let mut executor = Executor::new(program, &rank)?;
        executor.run(&seeded_inputs(program, rank.rank(), 0)?, &mut Reference::new(rank.rank(), 0))
    });
    ranks.unwrap().into_iter().map(|rank| rank.unwrap().unwrap()).collect()
}

/// The fake compiler, which compiles each source once.
fn nvrtc(session: &Session) -> Nvrtc {
    let folder = format!("{}/nccl-executor-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    session.nvrtc().with_cache(Some(Cache::new(folder)))
}

fn same(a: &[Run], b: &[Run]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (&a.outputs, &a.inputs) == (&b.outputs, &b.inputs))
}

#[track_caller]
fn check(session: &Session, program: &Program) {
    let (nvrtc, expected) = (nvrtc(session), on_host(program));
    let on_device = on_nccl(session, program, |rank| {
        let mut executor = DeviceExecutor::new(program, rank, rank.context(), Ok(&nvrtc))?;
        let inputs = seeded_inputs(program, rank.rank(), 0)?;
        executor.run(&inputs, &mut Reference::new(rank.rank(), 0))?;
        // Memory and events that were used before change nothing.
        executor.run(&inputs, &mut Reference::new(rank.rank(), 0))
    });
    assert!(same(&on_device.unwrap_or_else(|error| panic!("{error}\n{program}")), &expected), "{program}");
    assert_eq!(session.violations(), Vec::<String>::new());
    let by_host = on_nccl(session, program, |rank| {
        let mut executor = Executor::new(program, rank)?;
        executor.run(&seeded_inputs(program, rank.rank(), 0)?, &mut Reference::new(rank.rank(), 0))
    });
    assert!(same(&by_host.unwrap_or_else(|error| panic!("{error}\n{program}")), &expected), "{program}");
    assert_eq!((session.live_comms(), session.violations()), (0, Vec::new()));
}

#[test]
fn every_kind_of_collective_runs_on_nccl_whatever_is_late() {
    let session = session();
    session.delay_us(300);
    let graph = files::every_kind();
    check(&session, &program(&graph, "", &LowerOptions::default()));
    let one_shot = LowerOptions { one_shot_max_bytes: 1 << 10, ..LowerOptions::default() };
    check(&session, &program(&graph, DEFAULT, &one_shot));
}

fn real_graphs_run_as_on_the_host(names: &[&str]) {
    let session = session();
    session.delay_us(100);
    for name in names {
        let graph = files::graphs(&files::fixtures().join(name)).remove(0);
        check(&session, &program(&graph, DEFAULT, &LowerOptions::default()));
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
        "tiny_hsdp_rsar_bf16_rsfp32.backward.txt",
        "tiny_moe_bf16_rsfp32.backward.txt",
    ]);
}

/// A program whose pack writes what the call before sends, so that every wait between streams counts.
const REUSE: &str = "a = input f32[4]; b = input f32[4]\n\
    x = all_reduce(a, sum, G:2) : f32[4]; y = all_reduce(b, sum, G:2) : f32[4]\n\
    wx = wait(x) : f32[4]; wy = wait(y) : f32[4]\n\
    z = all_reduce(wx, sum, G:2) : f32[4]; wz = wait(z) : f32[4]; output(wx, wy, wz)";

#[test]
fn leaving_out_any_event_wait_shows() {
    let session = session();
    let graph = parse(REUSE).unwrap();
    let program = program(&graph, DEFAULT, &LowerOptions::default());
    let (nvrtc, expected) = (nvrtc(&session), on_host(&program));
    let ran = |left_out: Option<usize>| {
        on_nccl(&session, &program, |rank| {
            let mut executor = DeviceExecutor::new(&program, rank, rank.context(), Ok(&nvrtc))?;
            let inputs = seeded_inputs(&program, rank.rank(), 0)?;
            executor.run(&inputs, &mut Reference::new(rank.rank(), 0))?;
            // What is late is the stream that is waited for.
            if let Some(wait) = left_out
                && rank.rank().0 == 0
            {
                session.delay_stream_us(executor.event_wait(wait).2, 3000);
            }
            executor.leave_out(left_out);
            let run = executor.run(&inputs, &mut Reference::new(rank.rank(), 0));
            session.delay_us(0);
            Ok((executor.event_waits(), run?))
        })
    };
    let whole = ran(None).unwrap();
    let waits = whole[0].0;
    assert!(waits >= 3, "{waits}\n{program}");
    assert!(same(&whole.into_iter().map(|(_, run)| run).collect::<Vec<_>>(), &expected));
    for wait in 0..waits {
        let seen = ran(Some(wait)).map(|runs| runs.into_iter().map(|(_, run)| run).collect::<Vec<_>>());
        assert!(!seen.is_ok_and(|runs| same(&runs, &expected)), "wait {wait} of {waits} is not missed\n{program}");
    }
}

#[test]
fn two_programs_run_on_one_backend_and_its_groups() {
    let session = session();
    let made = |text: &str| program(&parse(text).unwrap(), DEFAULT, &LowerOptions::default());
    let forward = made("x = input f32[4]\ng = all_gather(x, G:2); w = wait(g)\noutput(w)");
    let backward = made("x = input f32[4]\ns = all_reduce(x, sum, G:2); w = wait(s)\noutput(w)");
    let nvrtc = nvrtc(&session);
    let ran = on_nccl(&session, &forward, |rank| {
        let mut both = Vec::new();
        for program in [&forward, &backward] {
            both.push(DeviceExecutor::new(program, rank, rank.context(), Ok(&nvrtc))?);
        }
        let mut runs = Vec::new();
        for (executor, program) in both.iter_mut().zip([&forward, &backward]) {
            runs.push(executor.run(&seeded_inputs(program, rank.rank(), 0)?, &mut Reference::new(rank.rank(), 0))?);
        }
        Ok(runs)
    });
    let (first, second): (Vec<Run>, Vec<Run>) = ran
        .unwrap_or_else(|error| panic!("{error}"))
        .into_iter()
        .map(|mut runs| (runs.remove(0), runs.remove(0)))
        .unzip();
    assert!(same(&first, &on_host(&forward)) && same(&second, &on_host(&backward)));
    assert_eq!((session.live_comms(), session.violations()), (0, Vec::new()));
}
