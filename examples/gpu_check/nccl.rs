//! Collectives of NCCL: right on one rank, and between processes that share the GPU where the library allows that; and what a
//! bucket saves.

use crate::speed::mixed;
use crate::told;
use bucketeer::ir::text::parse;
use bucketeer::ir::{DType, GlobalRank, Graph, GroupRank, ReduceOp};
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::Program;
use bucketeer_comm::local::{LocalOptions, LocalRank, run};
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::store::{MemoryStore, Store};
use bucketeer_comm::{Arena, Backend, Buffer, Call, CallOptions, Group, Op, Operands};
use bucketeer_cuda::nccl::Nccl;
use bucketeer_cuda::nvrtc::{Nvrtc, NvrtcError};
use bucketeer_cuda::{Context, DeviceBuffer};
use bucketeer_eval::Output;
use bucketeer_exec::{DeviceExecutor, Executor, Reference, Run, RunError, Times, seeded_inputs, world_size};
use bucketeer_formats::{Document, GroupsFile};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// A real graph: three sharded weights on two ranks.
const REAL_PAIR: [&str; 2] =
    [include_str!("../../fixtures/fx/live_static.backward.txt"), include_str!("../../fixtures/fx/live.groups.json")];

/// One of four ranks, with all-reduces of bf16 and f32.
const REAL_FOUR: [&str; 2] = [
    include_str!("../../fixtures/fx/tiny_ddp_bf16_arfp32.backward.txt"),
    include_str!("../../fixtures/fx/tiny_ddp_bf16_arfp32.groups.json"),
];

/// Elements of each rank's part.
const COUNT: usize = 4096;

/// How long a call may take before a rank gives up.
pub const TIMEOUT: Duration = Duration::from_secs(30);

type Compiler<'a> = Result<&'a Nvrtc, &'a NvrtcError>;

/// As it came, and bucketed.
fn both(graph: &Graph) -> Result<[Program; 2], Box<dyn Error>> {
    let mut bucketed = graph.clone();
    Pipeline::default_rewrite().run(&mut bucketed)?;
    let lowered = |graph: &Graph| lower(graph, &LowerOptions::default()).map(|(program, _)| program);
    Ok([lowered(graph)?, lowered(&bucketed)?])
}

fn real([graph, groups]: [&str; 2]) -> Result<[Program; 2], Box<dyn Error>> {
    let mut document = Document::read(graph.as_bytes().to_vec())?;
    let groups = GroupsFile::parse(groups.as_bytes())?;
    document.graphs_mut().iter_mut().try_for_each(|graph| groups.apply(graph).map(drop))?;
    both(document.graphs().first().ok_or("a fixture holds a graph")?)
}

/// What each of a program's ranks makes, as threads.
fn on_threads(
    program: &Program,
    body: impl Fn(&LocalRank) -> Result<Run, RunError> + Sync,
) -> Result<Vec<Run>, Box<dyn Error>> {
    let options = LocalOptions { timeout: TIMEOUT, ..LocalOptions::default() };
    let ranks = run(world_size(program)?, options, |rank| body(&rank))?;
    ranks.into_iter().map(|rank| Ok(rank.map_err(|_| "a rank panicked")??)).collect()
}

fn on_host(program: &Program) -> Result<Vec<Run>, Box<dyn Error>> {
    on_threads(program, |rank| {
        let inputs = seeded_inputs(program, rank.rank(), 0)?;
        Executor::new(program, rank)?.run(&inputs, &mut Reference::new(rank.rank(), 0))
    })
}

/// A real graph end to end, with kernels on the GPU and collectives over the host: all its ranks share the GPU.
pub fn real_graph(context: &Context, nvrtc: Compiler<'_>) -> Result<(), Box<dyn Error>> {
    for (name, program) in ["as it came", "bucketed"].into_iter().zip(&real(REAL_FOUR)?) {
        let found = on_threads(program, |rank| {
            let inputs = seeded_inputs(program, rank.rank(), 0)?;
            DeviceExecutor::new(program, rank, context, nvrtc)?.run(&inputs, &mut Reference::new(rank.rank(), 0))
        })?;
        let expected = on_host(program)?;
        if found.iter().zip(&expected).any(|(found, expected)| found.outputs != expected.outputs) {
            return Err(format!("the real graph {name} is not as on the host").into());
        }
    }
    println!("real graph on 4 ranks that share the GPU, collectives over the host: as on the host, bit for bit");
    Ok(())
}

/// A world of one, in this process. False where there is no NCCL.
pub fn alone(context: &Context, nvrtc: Compiler<'_>, quick: bool) -> Result<bool, Box<dyn Error>> {
    let nccl = match Nccl::load(None) {
        Ok(nccl) => nccl,
        Err(error) => {
            println!("NCCL: not checked, the library is not there: {}", told(&error));
            return Ok(false);
        }
    };
    println!("NCCL {} from {}", nccl.version(), nccl.path().display());
    let store = MemoryStore::world(1).pop().ok_or("a world of one has a rank")?;
    let rank = rank(&nccl, context, Arc::new(store), "alone")?;
    let calls = collectives(&rank)?;
    println!("NCCL, a world of one: {calls} kinds of collectives are right");
    buckets(&rank, nvrtc, quick)?;
    rank.close()?;
    Ok(true)
}

/// A rank on NCCL.
pub fn rank(nccl: &Nccl, context: &Context, store: Arc<dyn Store>, name: &str) -> Result<NcclRank, Box<dyn Error>> {
    let options = NcclOptions { timeout: TIMEOUT, name: name.to_owned(), ..NcclOptions::default() };
    Ok(NcclRank::new(nccl, context, store, options)?)
}

fn everyone(rank: &NcclRank) -> Vec<GlobalRank> {
    (0..rank.world_size()).map(GlobalRank).collect()
}

/// Memory of the device as a call takes it.
fn whole(memory: &DeviceBuffer) -> Result<Buffer, Box<dyn Error>> {
    Ok(Arena::on_device(memory.clone())?.buffer(0, memory.len() as u64)?)
}

/// One of each kind, on memory of the device; how many.
pub fn collectives(rank: &NcclRank) -> Result<usize, Box<dyn Error>> {
    let group = rank.new_group("collectives", &everyone(rank))?;
    let (size, own) = (group.size(), group.rank().0 as usize);
    // Small integers, so that sums in any order are the same.
    let value = |rank: usize, at: usize| (at % 100 + 7 * rank) as f32;
    let sum = |at: usize| (0..size).map(|rank| value(rank, at)).sum::<f32>();
    let (op, last) = (ReduceOp::Sum.into(), GroupRank(size as u32 - 1));
    let parts = || (0..size).flat_map(|rank| (0..COUNT).map(move |at| (rank, at)));
    let even = Op::AllToAll { send: Vec::new(), receive: Vec::new() };
    let cases: [(Op, usize, Vec<f32>); 5] = [
        (Op::AllReduce(op), COUNT, (0..COUNT).map(sum).collect()),
        (Op::ReduceScatter(op), size * COUNT, (own * COUNT..(own + 1) * COUNT).map(sum).collect()),
        (Op::AllGather, COUNT, parts().map(|(rank, at)| value(rank, at)).collect()),
        (Op::Broadcast { root: last }, COUNT, (0..COUNT).map(|at| value(last.0 as usize, at)).collect()),
        (even, size * COUNT, parts().map(|(rank, at)| value(rank, own * COUNT + at)).collect()),
    ];
    for (op, count, expected) in &cases {
        let input: Vec<f32> = (0..*count).map(|at| value(own, at)).collect();
        let found = on_device(rank, &group, op, &input, expected.len())?;
        if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
            let (name, found, expected) = (op.name(), found[at], expected[at]);
            return Err(format!("{name} on {size} ranks: element {at} is {found}, not {expected}").into());
        }
    }
    Ok(cases.len())
}

fn on_device(
    rank: &NcclRank,
    group: &Group,
    op: &Op,
    input: &[f32],
    elements: usize,
) -> Result<Vec<f32>, Box<dyn Error>> {
    let (from, to) = (rank.context().alloc(4 * input.len())?, rank.context().alloc(4 * elements)?);
    let stream = rank.stream(group).ok_or("a group has a stream")?;
    let bytes: Vec<u8> = input.iter().flat_map(|value| value.to_le_bytes()).collect();
    stream.upload(&bytes, &from, 0)?;
    let call = Call::collective(op.clone(), Operands::new(whole(&from)?, whole(&to)?, DType::F32));
    rank.launch(group, call, &CallOptions::blocking())?;
    let mut bytes = vec![0; 4 * elements];
    stream.download(&to, 0, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
}

/// 200 all-reduces of mixed sizes one by one, and in buckets.
pub fn buckets(rank: &NcclRank, nvrtc: Compiler<'_>, quick: bool) -> Result<(), Box<dyn Error>> {
    let (mut lines, mut outputs) = (String::new(), Vec::new());
    let (mut waits, mut bytes) = (String::new(), 0);
    for (index, elements) in mixed(if quick { 64 } else { 4 }).into_iter().enumerate() {
        bytes += 4 * elements;
        lines +=
            &format!("x{index} = input f32[{elements}]\nr{index} = all_reduce(x{index}, sum, G:2) : f32[{elements}]\n");
        waits += &format!("w{index} = wait(r{index}) : f32[{elements}]\n");
        outputs.push(format!("w{index}"));
    }
    let mut programs = both(&parse(&format!("{lines}{waits}output({})", outputs.join(", ")))?)?;
    let runs = if quick { 1 } else { 20 };
    let mut best = [Times { total: Duration::MAX, ..Times::default() }; 2];
    let mut values: Vec<Vec<Output>> = Vec::new();
    for (which, program) in programs.iter_mut().enumerate() {
        for group in &mut program.groups {
            // An all-reduce is the same for any number of ranks; a rank joins a name once.
            (group.size, group.members) = (rank.world_size(), vec![(0..rank.world_size()).collect()]);
            group.name = format!("{} {which}", group.name).into();
        }
        let inputs = seeded_inputs(program, rank.rank(), 0)?;
        let mut executor = DeviceExecutor::new(program, rank, rank.context(), nvrtc)?;
        for nth in 0..=runs {
            let run = executor.run(&inputs, &mut Reference::new(rank.rank(), 0))?;
            // The first connects, and makes ready.
            if nth > 0 && run.times.total < best[which].total {
                best[which] = run.times;
            }
            if nth == runs {
                values.push(run.outputs);
            }
        }
    }
    let rounded = difference(&values[0], &values[1]).ok_or("buckets of 200 all-reduces give other values")?;
    if rank.rank() == GlobalRank(0) {
        let (ranks, ms) = (rank.world_size(), |time: Duration| time.as_secs_f64() * 1e3);
        let (mib, of) = (bytes as f64 / f64::from(1 << 20), if ranks == 1 { "rank" } else { "ranks" });
        println!("NCCL, 200 all-reduces of mixed sizes, {mib:.1} MiB in all, on {ranks} {of}: {}", said(rounded));
        for (times, (program, name)) in best.iter().zip(programs.iter().zip(["as it came", "bucketed"])) {
            let (total, waited, calls) = (ms(times.total), ms(times.exposed), program.launches());
            println!("  {name:10} {calls:3} calls, {total:9.3} ms, of which {waited:.3} ms wait for calls");
        }
        println!("  as it came over bucketed: {:.2}", ms(best[0].total) / ms(best[1].total));
    }
    Ok(())
}

/// How values compare, in words.
fn said(rounded: f64) -> String {
    if rounded == 0.0 {
        return "equal bit for bit".to_owned();
    }
    format!("equal but for rounding, by at most {rounded:.1e} of a tensor's largest value")
}

/// By how much values differ, over the largest of each tensor; none where that is more than the order of sums explains.
fn difference(a: &[Output], b: &[Output]) -> Option<f64> {
    const MOST: f64 = 1e-5;
    let mut most = 0.0f64;
    for (a, b) in a.iter().zip(b) {
        match (a, b) {
            _ if a.same_elements(b) => {}
            (Output::Tensor(a), Output::Tensor(b)) if a.dtype == DType::F32 && a.sizes == b.sizes => {
                let values = |bytes: &[u8]| -> Vec<f64> {
                    bytes.as_chunks().0.iter().map(|value| f64::from(f32::from_le_bytes(*value))).collect()
                };
                let (a, b) = (values(&a.bytes), values(&b.bytes));
                let largest = a.iter().chain(&b).map(|value| value.abs()).fold(0.0, f64::max);
                let apart = a.iter().zip(&b).map(|(a, b)| (a - b).abs() / largest);
                most = apart.fold(most, |most, apart| if apart <= most { most } else { apart });
            }
            _ => return None,
        }
    }
    (a.len() == b.len() && most <= MOST).then_some(most)
}

/// A real graph of as many ranks as this world has, with kernels and collectives on the GPU.
pub fn real_graph_on(rank: &NcclRank, nvrtc: Compiler<'_>) -> Result<(), Box<dyn Error>> {
    let mut programs = real(REAL_PAIR)?;
    let mut most = 0.0f64;
    for (which, program) in programs.iter_mut().enumerate() {
        program.groups.iter_mut().for_each(|group| group.name = format!("{} {which}", group.name).into());
        let inputs = seeded_inputs(program, rank.rank(), 0)?;
        let mut executor = DeviceExecutor::new(program, rank, rank.context(), nvrtc)?;
        let found = executor.run(&inputs, &mut Reference::new(rank.rank(), 0))?;
        let expected = on_host(program)?;
        let rounded = difference(&found.outputs, &expected[rank.rank().0 as usize].outputs);
        most = most.max(rounded.ok_or("a real graph over NCCL is not as on the host")?);
    }
    if rank.rank() == GlobalRank(0) {
        println!("NCCL, real graph on {} ranks, against the host: {}", rank.world_size(), said(most));
    }
    Ok(())
}
