//! What a launch costs through our layers, above NCCL's own call.
//!
//! `cargo bench --bench nccl` takes the fake library, whose calls do nothing slow, and a world of one rank. Best and median
//! times of rounds that are taken in turn: `ncclAllReduce` alone, the C calls that our backend makes for a launch without our code
//! around them, the safe layer, and the backend; then 200 launches, one by one and as one group. The stream is held up
//! meanwhile, so that only the calling thread works. What the calls of the driver cost is the fake's, not a driver's: the
//! line "C calls" tells it apart.

#![expect(unsafe_code, reason = "calls C as our layers do, to compare with")]

use bucketeer::ir::{DType, GlobalRank, ReduceOp};
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::store::MemoryStore;
use bucketeer_comm::{Arena, Backend, Call, CallOptions, Group, Op, Operands, Work};
use bucketeer_cuda::nccl::{Comm, InitOptions};
use bucketeer_cuda::{Context, DeviceBuffer, Event, Stream};
use kit::fakegpu::{Session, session};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Instant;

/// Launches of a round.
const LAUNCHES: usize = 200;
const ROUNDS: usize = 60;
/// Longer than a round's launches take.
const HELD_US: u64 = 15_000;
const COUNT: usize = 256;
/// Of f32 and of a sum, as `nccl.h` has them.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

type Handle = *mut c_void;

/// C's own functions.
struct Raw {
    all_reduce: unsafe extern "C" fn(*const c_void, Handle, usize, c_int, c_int, Handle, Handle) -> c_int,
    async_error: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    set_current: unsafe extern "C" fn(Handle) -> c_int,
    event_record: unsafe extern "C" fn(Handle, Handle) -> c_int,
}

impl Raw {
    fn load() -> Self {
        // SAFETY: the library's start-up code is that of Rust's standard library; functions have the types of `nccl.h`
        // and `cuda.h`, and are used while the library is loaded: it is never unloaded.
        unsafe {
            let library = Box::leak(Box::new(libloading::Library::new(kit::fakegpu::path()).expect("the fake loads")));
            macro_rules! function {
                ($name:literal) => {
                    *library.get(concat!($name, "\0")).expect("the fake has it")
                };
            }
            Self {
                all_reduce: function!("ncclAllReduce"),
                async_error: function!("ncclCommGetAsyncError"),
                group_start: function!("ncclGroupStart"),
                group_end: function!("ncclGroupEnd"),
                set_current: function!("cuCtxSetCurrent"),
                event_record: function!("cuEventRecord"),
            }
        }
    }
}

/// What every way uses.
struct Bench {
    session: Session,
    context: Context,
    buffer: DeviceBuffer,
    raw: Raw,
    comm: Comm,
    stream: Stream,
    rank: NcclRank,
    group: Group,
    /// On the backend's own stream.
    operands: Operands,
}

impl Bench {
    fn new() -> Self {
        let session = session();
        let context = session.driver().device(0).expect("the fake has 8").context().expect("a context");
        let nccl = session.nccl();
        let id = nccl.unique_id().expect("an id");
        let comm = nccl.comm(&context, 0, 1, &id, &InitOptions::default()).expect("a world of one");
        let store = MemoryStore::world(1).pop().expect("one rank");
        let rank = NcclRank::new(&nccl, &context, Arc::new(store), NcclOptions::default()).expect("a rank");
        let group = rank.new_group("world", &[GlobalRank(0)]).expect("a group");
        let buffer = context.alloc(4 * COUNT).expect("there is memory");
        let arena = Arena::on_device(buffer.clone()).expect("there is memory");
        let operands = Operands::in_place(arena.buffer(0, arena.bytes()).expect("all of it"), DType::F32);
        let stream = context.stream().expect("a stream");
        Self { session, context, buffer, raw: Raw::load(), comm, stream, rank, group, operands }
    }

    /// Microseconds of `body` while `stream` is held up; waits for the stream afterwards.
    fn timed<T>(&self, stream: &Stream, body: impl FnOnce() -> T) -> (f64, T) {
        self.session.delay_stream_us(stream, HELD_US);
        stream.fill(&self.buffer, 0..4, 0).expect("a fill");
        let start = Instant::now();
        let result = body();
        let time = start.elapsed().as_secs_f64() * 1e6;
        // The stream's thread sleeps for the fill, which began with the delay.
        self.session.delay_stream_us(stream, 0);
        stream.synchronize().expect("the work ends");
        (time, result)
    }

    fn raw_all_reduce(&self, comm: Handle) {
        let (at, stream) = (self.buffer.pointer() as usize as Handle, self.stream.as_raw());
        // SAFETY: buffer, communicator and stream are live, and waited for before they go.
        let code = unsafe { (self.raw.all_reduce)(at, at, COUNT, FLOAT32, SUM, comm, stream) };
        assert_eq!(code, 0);
    }

    fn raw_loop(&self) -> f64 {
        let comm = self.comm.as_raw().expect("it is open");
        self.timed(&self.stream, || (0..LAUNCHES).for_each(|_| self.raw_all_reduce(comm))).0
    }

    fn raw_group(&self) -> f64 {
        let comm = self.comm.as_raw().expect("it is open");
        let body = || {
            // SAFETY: no arguments; this thread ends the group that it starts.
            assert_eq!(unsafe { (self.raw.group_start)() }, 0);
            (0..LAUNCHES).for_each(|_| self.raw_all_reduce(comm));
            // SAFETY: as above.
            assert_eq!(unsafe { (self.raw.group_end)() }, 0);
        };
        self.timed(&self.stream, body).0
    }

    /// All that the backend asks of C for a launch. Events are made once.
    fn c_calls(&self, events: &[Event]) -> f64 {
        let (comm, raw) = (self.comm.as_raw().expect("it is open"), &self.raw);
        let body = || {
            for event in events {
                let mut state = 0;
                // SAFETY: context, communicator, event and stream are live; one integer is written.
                unsafe {
                    assert_eq!((raw.set_current)(self.context.as_raw()), 0);
                    assert_eq!((raw.async_error)(comm, &raw mut state), 0);
                    self.raw_all_reduce(comm);
                    assert_eq!((raw.event_record)(event.as_raw(), self.stream.as_raw()), 0);
                }
            }
        };
        self.timed(&self.stream, body).0
    }

    fn safe_one(&self) {
        let (buffer, op) = (&self.buffer, ReduceOp::Sum.into());
        self.comm.all_reduce(&self.stream, buffer, buffer, DType::F32, op).expect("a launch");
    }

    fn safe_loop(&self) -> f64 {
        self.timed(&self.stream, || (0..LAUNCHES).for_each(|_| self.safe_one())).0
    }

    fn safe_group(&self) -> f64 {
        let body = || {
            let group = self.comm.nccl().group().expect("none is open");
            (0..LAUNCHES).for_each(|_| self.safe_one());
            group.end().expect("a launch");
        };
        self.timed(&self.stream, body).0
    }

    fn launch(&self) -> Work {
        let call = Call::collective(Op::AllReduce(ReduceOp::Sum.into()), self.operands.clone());
        self.rank.launch(&self.group, call, &CallOptions::default()).expect("a launch")
    }

    /// Time of the launches, and then of the waits for what is over.
    fn backend_loop(&self) -> (f64, f64) {
        let stream = self.rank.stream(&self.group).expect("a group has one");
        let (time, works) = self.timed(&stream, || (0..LAUNCHES).map(|_| self.launch()).collect::<Vec<_>>());
        let start = Instant::now();
        works.iter().for_each(|work| work.wait(None).expect("it is over"));
        (time, start.elapsed().as_secs_f64() * 1e6)
    }

    fn backend_block(&self) -> f64 {
        let stream = self.rank.stream(&self.group).expect("a group has one");
        let (time, work) = self.timed(&stream, || {
            self.rank.start_coalescing(&self.group).expect("none is open");
            (0..LAUNCHES).for_each(|_| drop(self.launch()));
            self.rank.end_coalescing(&self.group, &CallOptions::default()).expect("a launch")
        });
        work.wait(None).expect("it ends");
        time
    }
}

/// Best and median.
fn typical(mut times: Vec<f64>) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [times[0], times[times.len() / 2]]
}

fn main() {
    let bench = Bench::new();
    bench.launch().wait(None).expect("the group connects");
    let events: Vec<Event> = (0..LAUNCHES).map(|_| bench.context.event().expect("an event")).collect();
    let mut times: [Vec<f64>; 8] = Default::default();
    for _ in 0..ROUNDS {
        let (backend, waits) = bench.backend_loop();
        let round = [
            bench.raw_loop(),
            bench.c_calls(&events),
            bench.safe_loop(),
            backend,
            waits,
            bench.raw_group(),
            bench.safe_group(),
            bench.backend_block(),
        ];
        times.iter_mut().zip(round).for_each(|(times, time)| times.push(time));
        // The fake keeps what it is asked for.
        drop(bench.session.log());
    }
    let times = times.map(typical);
    for (which, name) in ["best", "median"].into_iter().enumerate() {
        report(name, times.map(|time| time[which]));
    }
}

fn report(name: &str, [raw, c, safe, backend, waits, raw_group, safe_group, block]: [f64; 8]) {
    let each = |time: f64| time / LAUNCHES as f64;
    println!("one launch of 1 KiB, {name} of {ROUNDS} rounds of {LAUNCHES}, on the fake library:");
    for (name, time) in [
        ("ncclAllReduce", raw),
        ("the C calls of a launch", c),
        ("Comm::all_reduce", safe),
        ("NcclRank::launch", backend),
    ] {
        println!("  {name:24} {:6.2} us, {:+5.2} us", each(time), each(time - raw));
    }
    let (ours, wait) = (each(backend - c), each(waits));
    println!("  of NcclRank::launch our code, without C: {ours:+.2} us; a wait for what is over: {wait:.2} us");
    println!("{LAUNCHES} launches over {LAUNCHES} of ncclAllReduce one by one ({raw:.0} us):");
    for (name, time) in [("group, C", raw_group), ("group, safe layer", safe_group), ("block, NcclRank", block)] {
        println!("  {name:24} {:6.2} x, {:6.2} x of the group in C", time / raw, time / raw_group);
    }
}
