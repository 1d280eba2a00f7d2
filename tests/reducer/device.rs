//! Reducers whose buckets are on a device: the fake GPU, with ranks as threads.

use bucketeer_comm::nccl::NcclRank;
use bucketeer_comm::{Backend, Buffer, Group};
use bucketeer_cuda::{DeviceBuffer, Event, Stream};
use bucketeer_reducer::{
    Caps, DeviceGradient, Divide, FirstStep, JoinDivide, JoinOptions, Param, Reduced, Reducer, ReducerError,
    ReducerOptions, Scale, Unused, Wire,
};
use bucketeer_types::DType;
use kit::collective::ranks;
use kit::fakegpu::{Session, session};
use kit::nccl_threads::{self, Meet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One rank, with streams of its own: `producer` for gradients, `loader` for what is to be there before.
struct Rank<'a> {
    backend: Arc<NcclRank>,
    group: &'a Group,
    producer: Stream,
    loader: Stream,
    session: &'a Session,
}

/// Runs `body` as each of `size` ranks. Nothing may be misused, or left behind.
fn on_ranks<T: Send>(session: &Session, size: u32, body: impl Fn(&Rank<'_>) -> T + Sync) -> Vec<T> {
    let options = nccl_threads::options(20_000);
    let results = nccl_threads::run(session, size, &options, |rank, group, _| {
        let (producer, loader) = (rank.context().stream().unwrap(), rank.context().stream().unwrap());
        body(&Rank { backend: Arc::new(rank), group, producer, loader, session })
    });
    assert_eq!(session.violations(), Vec::<String>::new());
    results
}

impl Rank<'_> {
    fn place(&self) -> usize {
        self.group.rank().0 as usize
    }

    fn reducer(&self, params: &[Param], options: &ReducerOptions) -> Reducer {
        Reducer::on_device(self.backend.clone(), self.group, params.to_vec(), options.clone()).unwrap()
    }

    fn alloc(&self, elements: usize) -> DeviceBuffer {
        self.backend.context().alloc(4 * elements).unwrap()
    }

    /// Memory that holds numbers.
    fn holding(&self, values: &[f32]) -> DeviceBuffer {
        let memory = self.alloc(values.len());
        self.loader.upload(&bytes(values), &memory, 0).unwrap();
        memory
    }

    /// Has numbers written by the producer, whenever it comes to that.
    fn produce(&self, to: &DeviceBuffer, values: &[f32]) -> Event {
        let from = self.holding(values);
        self.producer.copy(&from, 0..from.len(), to, 0).unwrap();
        let event = self.backend.context().event().unwrap();
        self.producer.record(&event).unwrap();
        event
    }

    /// What a stream of a consumer's finds, without the host's waiting before.
    fn consume(&self, reduced: &Reduced<'_>, param: usize) -> Option<Vec<f32>> {
        let memory = reduced.device(param).unwrap()?;
        self.loader.wait(&reduced.event().unwrap()).unwrap();
        Some(self.read(&memory))
    }

    fn read(&self, memory: &DeviceBuffer) -> Vec<f32> {
        let mut found = vec![0; memory.len()];
        self.loader.download(memory, 0, &mut found).unwrap();
        floats(&found)
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Vectors of so many elements.
fn vectors(sizes: &[u64]) -> Vec<Param> {
    let one = |(index, size): (usize, &u64)| Param::new(format!("p{index}"), &[*size], DType::F32);
    sizes.iter().enumerate().map(one).collect()
}

/// Numbers that differ by rank, step and parameter, and whose means are exact.
fn gradient(rank: usize, step: usize, param: usize, elements: u64) -> Vec<f32> {
    (0..elements).map(|at| (4 * (rank * 7 + step * 100 + param * 1000) + 4 * at as usize) as f32).collect()
}

/// What all ranks together have.
fn reduced(size: usize, step: usize, param: usize, elements: u64, scale: Scale) -> Vec<f32> {
    let all: Vec<Vec<f32>> = (0..size).map(|rank| gradient(rank, step, param, elements)).collect();
    let divisor = if scale == Scale::Sum { 1.0 } else { size as f32 };
    (0..elements as usize).map(|at| all.iter().map(|one| one[at]).sum::<f32>() / divisor).collect()
}

/// Three buckets, a rebuild after the first step.
fn in_buckets(scale: Scale) -> ReducerOptions {
    ReducerOptions { caps: Caps::List(vec![200]), scale, first_step: FirstStep::Buckets, ..ReducerOptions::default() }
}

const SIZES: [u64; 6] = [30, 1, 17, 0, 64, 5];

#[test]
fn gradients_on_the_device_come_to_the_sum_or_mean_before_and_after_the_rebuild() {
    let session = session();
    for (size, scale, on_stream) in [(2, Scale::Mean, false), (4, Scale::Mean, true), (4, Scale::Sum, false)] {
        on_ranks(&session, size, |rank| {
            let params = vectors(&SIZES);
            let mut reducer = rank.reducer(&params, &in_buckets(scale));
            for step in 0..4 {
                let running = reducer.step().unwrap();
                // In another order than that of definition, so that the rebuild changes something.
                for param in [1, 5, 3, 0, 2, 4] {
                    let values = gradient(rank.place(), step, param, SIZES[param]);
                    let memory = rank.alloc(values.len());
                    let event = rank.produce(&memory, &values);
                    // Dropped right away: it is freed when it was copied.
                    assert!(!running.ready_device(param, &DeviceGradient::new(&memory).after(&event)).unwrap());
                }
                let done = if on_stream { running.finish_on_stream().unwrap() } else { running.finish().unwrap() };
                for (param, elements) in SIZES.into_iter().enumerate() {
                    let wanted = reduced(size as usize, step, param, elements, scale);
                    assert_eq!(rank.consume(&done, param).unwrap(), wanted, "step {step}, parameter {param}");
                    let mut copy = vec![0; wanted.len() * 4];
                    assert!(done.copy_to(param, &mut copy).unwrap());
                    assert_eq!(floats(&copy), wanted);
                }
                done.wait().unwrap();
            }
            assert_eq!(reducer.generation(), 1);
            assert_ne!(reducer.buckets()[0].params, vec![5, 4]);
            assert!(reducer.buckets().len() > 1);
        });
    }
}

#[test]
fn a_mark_waits_on_its_stream_for_the_producer_and_the_host_does_not() {
    let session = session();
    on_ranks(&session, 2, |rank| {
        let mut reducer = rank.reducer(&vectors(&[8]), &ReducerOptions::default());
        let (memory, slot) = (rank.holding(&[0.0; 8]), reducer.slot(0).unwrap().device().unwrap());
        for (step, in_place) in [(0, false), (1, true), (2, false)] {
            if rank.place() == 0 {
                rank.session.delay_stream_us(&rank.producer, 300_000);
            }
            let start = Instant::now();
            let running = reducer.step().unwrap();
            let to = if in_place { &slot } else { &memory };
            let event = rank.produce(to, &gradient(rank.place(), step, 0, 8));
            match in_place {
                true => running.ready_in_place_after(0, &event).unwrap(),
                false => drop(running.ready_device(0, &DeviceGradient::new(to).after(&event)).unwrap()),
            }
            let done = running.finish_on_stream().unwrap();
            // A machine that is busy may have taken as long.
            let is_over = event.is_done().unwrap() && start.elapsed() < Duration::from_millis(300);
            assert!(rank.place() == 1 || !is_over, "the producer was not late");
            assert_eq!(rank.consume(&done, 0).unwrap(), reduced(2, step, 0, 8, Scale::Mean), "step {step}");
            done.wait().unwrap();
        }
    });
}

#[test]
fn a_gradient_may_be_written_again_once_its_event_says_that_it_was_copied() {
    let session = session();
    on_ranks(&session, 2, |rank| {
        let mut reducer = rank.reducer(&vectors(&[8, 8]), &ReducerOptions::default());
        let stream = reducer.stream().unwrap().clone();
        let memory = rank.alloc(8);
        if rank.place() == 0 {
            rank.session.delay_stream_us(&stream, 200_000);
        }
        let running = reducer.step().unwrap();
        for param in [1, 0] {
            let copied = rank.backend.context().event().unwrap();
            let event = rank.produce(&memory, &gradient(rank.place(), 0, param, 8));
            let given = DeviceGradient::new(&memory).after(&event).copied(&copied);
            running.ready_device(param, &given).unwrap();
            // The next gradient comes into the same memory.
            rank.producer.wait(&copied).unwrap();
        }
        rank.producer.fill(&memory, 0..32, 0xff).unwrap();
        let done = running.finish().unwrap();
        for param in 0..2 {
            assert_eq!(rank.consume(&done, param).unwrap(), reduced(2, 0, param, 8, Scale::Mean));
        }
    });
}

#[test]
fn marks_of_several_threads_meet_in_one_order_of_launches() {
    let session = session();
    on_ranks(&session, 4, |rank| {
        let mut reducer = rank.reducer(&vectors(&SIZES), &in_buckets(Scale::Mean));
        for step in 0..3 {
            let running = reducer.step().unwrap();
            std::thread::scope(|scope| {
                for first in 0..3 {
                    let marker = running.marker();
                    scope.spawn(move || {
                        for param in [first + 3, first] {
                            let values = gradient(rank.place(), step, param, SIZES[param]);
                            let memory = rank.alloc(values.len());
                            let event = rank.produce(&memory, &values);
                            marker.ready_device(param, &DeviceGradient::new(&memory).after(&event)).unwrap();
                        }
                    });
                }
            });
            let done = running.finish_on_stream().unwrap();
            for (param, elements) in SIZES.into_iter().enumerate() {
                assert_eq!(rank.consume(&done, param).unwrap(), reduced(4, step, param, elements, Scale::Mean));
            }
            done.wait().unwrap();
        }
    });
}

#[test]
fn a_wait_that_is_left_out_is_seen_in_the_values() {
    let session = session();
    // On one rank, so that the wait that is left out is the next one. What is late is late for longer than a busy machine.
    for (left_out, expected) in [(None, [8.0, 8.0]), (Some("producer"), [0.0, 8.0]), (Some("copied"), [9.0, 9.0])] {
        on_ranks(&session, 1, |rank| {
            let mut reducer = rank.reducer(&vectors(&[1]), &ReducerOptions::default());
            let (memory, first, second) = (rank.holding(&[0.0]), rank.holding(&[8.0]), rank.holding(&[9.0]));
            let (written, copied) = [(); 2].map(|()| rank.backend.context().event().unwrap()).into();
            let late =
                if left_out == Some("copied") { reducer.stream().unwrap().clone() } else { rank.producer.clone() };
            session.delay_stream_us(&late, if left_out.is_some() { 1_500_000 } else { 50_000 });
            let running = reducer.step().unwrap();
            rank.producer.copy(&first, 0..4, &memory, 0).unwrap();
            rank.producer.record(&written).unwrap();
            if left_out == Some("producer") {
                session.inject("cuStreamWaitEvent:1=skip");
            }
            running.ready_device(0, &DeviceGradient::new(&memory).after(&written).copied(&copied)).unwrap();
            if left_out == Some("copied") {
                session.inject("cuStreamWaitEvent:1=skip");
            }
            rank.producer.wait(&copied).unwrap();
            if left_out == Some("copied") {
                rank.producer.copy(&second, 0..4, &memory, 0).unwrap();
            }
            let done = running.finish_on_stream().unwrap();
            let result = rank.consume(&done, 0).unwrap()[0];
            done.wait().unwrap();
            rank.producer.synchronize().unwrap();
            assert_eq!([result, rank.read(&memory)[0]], expected, "{left_out:?}");
        });
    }
}

#[test]
fn what_the_driver_refuses_is_told_with_the_parameter() {
    let session = session();
    on_ranks(&session, 1, |rank| {
        let mut reducer = rank.reducer(&vectors(&[4]), &ReducerOptions::default());
        let memory = rank.holding(&[2.0; 4]);
        let running = reducer.step().unwrap();
        for call in ["cuMemcpyDtoDAsync_v2", "cuEventRecord"] {
            session.inject(&format!("{call}:1=2"));
            let event = rank.backend.context().event().unwrap();
            let refused =
                running.ready_device(0, &DeviceGradient::new(&memory).copied(&event)).unwrap_err().to_string();
            let expected = format!("rank 0, step 0, parameter 0 (p0): {call} failed with CUDA_ERROR_OUT_OF_MEMORY");
            assert!(refused.starts_with(&expected), "{refused}");
        }
        // The mark was given back.
        running.ready_device(0, &DeviceGradient::new(&memory)).unwrap();
        assert_eq!(rank.consume(&running.finish().unwrap(), 0).unwrap(), [2.0; 4]);
    });
    let told = on_ranks(&session, 2, |rank| {
        let options = ReducerOptions { unused: Unused::Average, ..ReducerOptions::default() };
        let mut reducer = rank.reducer(&vectors(&[4]), &options);
        let memory = rank.holding(&[2.0; 4]);
        let running = reducer.step().unwrap();
        if rank.place() == 1 {
            session.inject("cuMemsetD8Async:1=2");
        } else if let Err(error) = running.ready_device(0, &DeviceGradient::new(&memory)) {
            // The other rank may have failed before.
            return error.to_string();
        }
        running.finish().map(drop).unwrap_err().to_string()
    });
    let expected = "rank 1: step 0, parameter 0 (p0): cuMemsetD8Async failed with CUDA_ERROR_OUT_OF_MEMORY";
    assert!(told[1].starts_with(expected), "{}", told[1]);
    assert!(told[0].starts_with(&format!("step 0: rank 1 failed: {expected}")), "{}", told[0]);
}

#[test]
fn gradients_in_their_slots_are_not_copied_and_slots_keep_what_they_hold_through_the_rebuild() {
    let session = session();
    on_ranks(&session, 2, |rank| {
        let mut reducer = rank.reducer(&vectors(&SIZES), &in_buckets(Scale::Mean));
        let slot = |reducer: &Reducer, param| reducer.slot(param).unwrap().device().unwrap();
        for (param, elements) in SIZES.into_iter().enumerate() {
            assert_eq!(rank.read(&slot(&reducer, param)), vec![0.0; elements as usize]);
        }
        for step in 0..3 {
            let running = reducer.step().unwrap();
            if step == 1 {
                // It was rebuilt. The gradients of the step before lie in their new places.
                for (param, elements) in SIZES.into_iter().enumerate() {
                    let memory = running.slot(param).unwrap().device().unwrap();
                    assert_eq!(rank.read(&memory), reduced(2, 0, param, elements, Scale::Mean));
                }
            }
            for param in [1, 5, 3, 0, 2, 4] {
                let memory = running.slot(param).unwrap().device().unwrap();
                let event = rank.produce(&memory, &gradient(rank.place(), step, param, SIZES[param]));
                match param % 3 {
                    0 => running.ready_in_place_after(param, &event).unwrap(),
                    1 => assert!(running.ready_device(param, &DeviceGradient::new(&memory).after(&event)).unwrap()),
                    _ => {
                        running.stream().unwrap().wait(&event).unwrap();
                        assert!(running.ready_from(param, &running.slot(param).unwrap()).unwrap());
                    }
                }
            }
            let slots: Vec<Buffer> = (0..SIZES.len()).map(|param| running.slot(param).unwrap()).collect();
            let done = running.finish().unwrap();
            for (param, elements) in SIZES.into_iter().enumerate() {
                done.expect_slot(param, &slots[param]).unwrap();
                assert_eq!(rank.consume(&done, param).unwrap(), reduced(2, step, param, elements, Scale::Mean));
            }
        }
        assert_eq!(reducer.generation(), 1);
    });
}

#[test]
fn no_gradient_goes_by_the_host_and_nothing_is_waited_for() {
    let session = session();
    let (before, started, ended) = (Meet::new(2), Meet::new(2), Meet::new(2));
    on_ranks(&session, 2, |rank| {
        let mut reducer = rank.reducer(&vectors(&SIZES), &in_buckets(Scale::Mean));
        let memories: Vec<DeviceBuffer> =
            (0..SIZES.len()).map(|param| rank.holding(&gradient(rank.place(), 0, param, SIZES[param]))).collect();
        let event = rank.backend.context().event().unwrap();
        rank.producer.record(&event).unwrap();
        for step in 0..3 {
            if step == 2 {
                before.wait();
                if rank.place() == 0 {
                    rank.session.log();
                }
                started.wait();
            }
            let running = reducer.step().unwrap();
            for (param, memory) in memories.iter().enumerate() {
                running.ready_device(param, &DeviceGradient::new(memory).after(&event)).unwrap();
            }
            let done = running.finish_on_stream().unwrap();
            done.wait().unwrap();
            if step == 2 {
                ended.wait();
                if rank.place() == 0 {
                    let log = rank.session.log();
                    let count = |name: &str| log.iter().filter(|line| line["call"].as_str() == Some(name)).count();
                    assert_eq!(log.iter().find(|line| !line["violation"].is_null()), None);
                    // An empty gradient is not copied.
                    assert_eq!(count("cuMemcpyDtoDAsync_v2"), 2 * (SIZES.len() - 1), "{log:#?}");
                    assert_eq!(count("cuStreamWaitEvent"), 2 * SIZES.len());
                    for absent in [
                        "cuMemcpyDtoHAsync_v2",
                        "cuMemcpyHtoDAsync_v2",
                        "cuStreamSynchronize",
                        "cuEventSynchronize",
                        "cuCtxSynchronize",
                        "cuMemAlloc_v2",
                        "cuMemHostAlloc",
                    ] {
                        assert_eq!(count(absent), 0, "{absent}");
                    }
                }
            }
        }
    });
}

#[test]
fn what_some_ranks_did_not_use_is_averaged_with_zeros_and_what_none_used_is_kept() {
    let session = session();
    for unused in [Unused::Average, Unused::KeepMine, Unused::Skip] {
        for in_place in [false, true] {
            on_ranks(&session, 2, |rank| {
                let options = ReducerOptions { unused, caps: Caps::List(vec![1]), ..ReducerOptions::default() };
                let mut reducer = rank.reducer(&vectors(&[4, 4, 4]), &options);
                for step in 0..3 {
                    let running = reducer.step().unwrap();
                    // All use 0, the first rank alone uses 1, and nobody uses 2 but in step 0.
                    let uses = |rank: usize, param: usize| match param {
                        1 => rank == 0 || step == 0 || unused == Unused::Skip,
                        2 => step == 0,
                        _ => true,
                    };
                    for param in (0..3).filter(|param| uses(rank.place(), *param)) {
                        let memory = match in_place {
                            true => running.slot(param).unwrap().device().unwrap(),
                            false => rank.alloc(4),
                        };
                        let event = rank.produce(&memory, &gradient(rank.place(), step, param, 4));
                        let given = DeviceGradient::new(&memory).after(&event);
                        assert_eq!(running.ready_device(param, &given).unwrap(), in_place);
                    }
                    if step == 1 && unused != Unused::Skip {
                        running.unused(2).unwrap();
                    }
                    let slots = [0, 1, 2].map(|param| running.slot(param).unwrap().device().unwrap());
                    let done = running.finish_on_stream().unwrap();
                    let mean = |step: usize, param: usize| -> Vec<f32> {
                        let given = (0..2).filter(|rank| uses(*rank, param)).map(|rank| gradient(rank, step, param, 4));
                        given.fold(vec![0.0; 4], |sum, one| sum.iter().zip(&one).map(|(a, b)| a + b / 2.0).collect())
                    };
                    assert_eq!(rank.consume(&done, 0).unwrap(), mean(step, 0));
                    let keeps = unused == Unused::KeepMine && !uses(rank.place(), 1);
                    assert_eq!(done.is_kept(1), keeps);
                    assert_eq!(rank.consume(&done, 1), (!keeps).then(|| mean(step, 1)), "{unused:?}, step {step}");
                    assert_eq!(rank.consume(&done, 2), (step == 0).then(|| mean(0, 2)));
                    if in_place {
                        // What is kept is what was there.
                        rank.loader.wait(&done.event().unwrap()).unwrap();
                        let first = reduced(2, 0, 2, 4, Scale::Mean);
                        assert_eq!(rank.read(&slots[2]), first, "{unused:?}, step {step}");
                        if keeps {
                            let first = reduced(2, 0, 1, 4, Scale::Mean);
                            assert_eq!(rank.read(&slots[1]), first);
                        }
                    }
                    done.wait().unwrap();
                }
            });
        }
    }
}

#[test]
fn buckets_are_handed_over_one_by_one_where_they_lie() {
    let session = session();
    on_ranks(&session, 2, |rank| {
        let mut reducer = rank.reducer(&vectors(&SIZES), &in_buckets(Scale::Mean));
        let running = reducer.step().unwrap();
        for (param, elements) in SIZES.into_iter().enumerate().rev() {
            let memory = rank.holding(&gradient(rank.place(), 0, param, elements));
            running.ready_device(param, &DeviceGradient::new(&memory)).unwrap();
        }
        let mut seen = Vec::new();
        let done = running.finish_each(|bucket| {
            let other = (0..SIZES.len()).find(|param| bucket.params().all(|own| own != *param)).unwrap();
            let told = format!("rank {}: parameter {other} is not in bucket {}", rank.place(), bucket.index());
            assert_eq!(bucket.device(other).unwrap_err().to_string(), told);
            for param in bucket.params() {
                let wanted = reduced(2, 0, param, SIZES[param], Scale::Mean);
                // The host has waited for it.
                assert_eq!(rank.read(&bucket.device(param).unwrap()), wanted);
                let mut copy = vec![0; 4 * wanted.len()];
                bucket.copy_to(param, &mut copy).unwrap();
                assert_eq!(floats(&copy), wanted);
                seen.push(param);
            }
        });
        done.unwrap();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn a_static_graph_copies_at_the_last_of_its_marks() {
    let session = session();
    on_ranks(&session, 2, |rank| {
        let options = ReducerOptions { static_graph: true, ..ReducerOptions::default() };
        let mut reducer = rank.reducer(&vectors(&[4, 4]), &options);
        for step in 0..4 {
            let running = reducer.step().unwrap();
            // The second rank does not use parameter 1.
            for param in [0, 1].into_iter().take(if rank.place() == 0 { 2 } else { 1 }) {
                let memory = rank.holding(&[-1.0; 4]);
                running.ready_device(param, &DeviceGradient::new(&memory)).unwrap();
                let event = rank.produce(&memory, &gradient(rank.place(), step, param, 4));
                running.ready_device(param, &DeviceGradient::new(&memory).after(&event)).unwrap();
            }
            let done = running.finish().unwrap();
            assert_eq!(rank.consume(&done, 0).unwrap(), reduced(2, step, 0, 4, Scale::Mean), "step {step}");
            let half: Vec<f32> = gradient(0, step, 1, 4).iter().map(|value| value / 2.0).collect();
            assert_eq!(rank.consume(&done, 1).unwrap(), half, "step {step}");
        }
    });
}

#[test]
fn ranks_without_data_give_zeros_on_the_device() {
    let session = session();
    on_ranks(&session, 2, |rank| {
        let mut reducer = rank.reducer(&vectors(&[4]), &in_buckets(Scale::Mean));
        let mut join = reducer.join(JoinOptions { divide: JoinDivide::ByLive, ..JoinOptions::default() }).unwrap();
        for step in 0..=2 * (1 - rank.place()) {
            let running = join.step(&mut []).unwrap();
            let memory = rank.holding(&gradient(rank.place(), step, 0, 4));
            running.ready_device(0, &DeviceGradient::new(&memory)).unwrap();
            let done = running.finish().unwrap();
            let wanted = if step == 0 { reduced(2, 0, 0, 4, Scale::Mean) } else { gradient(0, step, 0, 4) };
            assert_eq!(rank.consume(&done, 0).unwrap(), wanted);
        }
        join.end(&mut [], &mut []).unwrap();
    });
}

#[test]
fn local_steps_add_up_in_slots_alone() {
    let session = session();
    on_ranks(&session, 2, |rank| {
        let mut reducer = rank.reducer(&vectors(&[4, 4]), &ReducerOptions::default());
        let slots: Vec<DeviceBuffer> = (0..2).map(|param| reducer.slot(param).unwrap().device().unwrap()).collect();
        let local = reducer.local_step().unwrap();
        let refused = local.ready(0, &[0; 16]).unwrap_err().to_string();
        let expected = format!(
            "rank {0}, step 0, parameter 0 (p0): its bucket is memory of GPU {0}, where nothing adds gradients up: add to its \
             slot, and mark it in place",
            rank.place()
        );
        assert_eq!(refused, expected);
        rank.loader.wait(&rank.produce(&slots[0], &[1.0; 4])).unwrap();
        local.ready_in_place(0).unwrap();
        let running = reducer.step().unwrap();
        let elsewhere = rank.holding(&[5.0; 4]);
        let refused = running.ready_device(0, &DeviceGradient::new(&elsewhere)).unwrap_err().to_string();
        assert!(refused.contains("parameter 0 (p0): local steps left a gradient in its slot"), "{refused}");
        // The framework adds.
        let event = rank.produce(&slots[0], &[3.0 + rank.place() as f32; 4]);
        running.ready_in_place_after(0, &event).unwrap();
        running.ready_device(1, &DeviceGradient::new(&elsewhere)).unwrap();
        let done = running.finish().unwrap();
        assert_eq!([0, 1].map(|param| rank.consume(&done, param).unwrap()[0]), [3.5, 5.0]);
    });
}

#[test]
fn another_group_and_memory_that_was_given_back_go_on_on_the_device() {
    let session = session();
    on_ranks(&session, 2, |rank| {
        let mut reducer = rank.reducer(&vectors(&[4, 4]), &ReducerOptions::default());
        let step = |reducer: &mut Reducer, number: usize| {
            let running = reducer.step().unwrap();
            for param in 0..2 {
                let memory = rank.holding(&gradient(rank.place(), number, param, 4));
                running.ready_device(param, &DeviceGradient::new(&memory)).unwrap();
            }
            let done = running.finish_on_stream().unwrap();
            for param in 0..2 {
                assert_eq!(rank.consume(&done, param).unwrap(), reduced(2, number, param, 4, Scale::Mean));
            }
        };
        step(&mut reducer, 0);
        let first = reducer.stream().unwrap().as_raw();
        reducer.change_group(&rank.backend.new_group("another", &ranks(2)).unwrap()).unwrap();
        assert_ne!(reducer.stream().unwrap().as_raw(), first);
        step(&mut reducer, 1);
        reducer.release_memory().unwrap();
        step(&mut reducer, 2);
        step(&mut reducer, 3);
    });
}

#[test]
fn a_collective_that_fails_behind_a_step_that_did_not_wait_is_told_with_step_and_bucket() {
    let session = session();
    let meet = Meet::new(2);
    let errors = on_ranks(&session, 2, |rank| {
        let mut reducer = rank.reducer(&vectors(&[4]), &ReducerOptions::default());
        let memory = rank.holding(&[1.0; 4]);
        let running = reducer.step().unwrap();
        running.ready_device(0, &DeviceGradient::new(&memory)).unwrap();
        running.finish().unwrap();
        // The rebuild is behind it.
        let running = reducer.step().unwrap();
        meet.wait();
        if rank.place() == 1 {
            return String::new();
        }
        running.ready_device(0, &DeviceGradient::new(&memory)).unwrap();
        let told = match running.finish_on_stream() {
            Ok(done) => done.wait().unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(told.culprits(), [bucketeer_types::GlobalRank(1)], "{told}");
        assert!(matches!(reducer.step().err(), Some(ReducerError::Broken { .. })));
        told.to_string()
    });
    assert!(errors[0].starts_with("rank 0, step 1, bucket 0 (from parameter 0 (p0)): "), "{}", errors[0]);
}

#[test]
fn gradients_that_are_not_where_their_bucket_is_are_refused_by_name() {
    let session = session();
    let told = on_ranks(&session, 1, |rank| {
        let mut on_device = rank.reducer(&vectors(&[4, 4]), &ReducerOptions::default());
        let backend: Arc<dyn Backend> = rank.backend.clone();
        let mut of_host = Reducer::new(backend, rank.group, vectors(&[4, 4]), ReducerOptions::default()).unwrap();
        let other = session.driver().device(3).unwrap().context().unwrap();
        let (memory, elsewhere, short) = (rank.holding(&[1.0; 4]), other.alloc(16).unwrap(), rank.alloc(3));
        let foreign = other.event().unwrap();
        let mut told = Vec::new();
        let step = of_host.step().unwrap();
        told.push(step.ready_device(1, &DeviceGradient::new(&memory)).unwrap_err());
        told.push(step.ready_in_place_after(1, &foreign).unwrap_err());
        step.ready(0, &[0; 16]).unwrap();
        step.ready(1, &[0; 16]).unwrap();
        step.finish().unwrap();
        told.push(on_device.reduce_all(&mut [None, None]).map(drop).unwrap_err());
        let step = on_device.step().unwrap();
        told.push(step.ready(1, &[0; 16]).unwrap_err());
        told.push(step.ready_device(1, &DeviceGradient::new(&elsewhere)).unwrap_err());
        told.push(step.ready_device(1, &DeviceGradient::new(&short)).unwrap_err());
        told.push(step.ready_device(1, &DeviceGradient::new(&memory).strides(&[2])).unwrap_err());
        told.push(step.ready_device(1, &DeviceGradient::new(&memory).copied(&foreign)).unwrap_err());
        // A mark that is refused changes nothing.
        step.ready_device(1, &DeviceGradient::new(&memory).strides(&[1]).after(&foreign)).unwrap();
        told.push(step.ready_device(1, &DeviceGradient::new(&memory)).unwrap_err());
        told.push(step.ready_device(2, &DeviceGradient::new(&memory)).unwrap_err());
        step.ready_device(0, &DeviceGradient::new(&memory)).unwrap();
        let marker = step.marker();
        let done = step.finish().unwrap();
        assert_eq!(rank.consume(&done, 1).unwrap(), [1.0; 4]);
        told.push(done.device(7).unwrap_err());
        told.push(marker.ready_device(1, &DeviceGradient::new(&memory)).unwrap_err());
        told.iter().map(ToString::to_string).collect::<Vec<_>>()
    });
    let expected = [
        "rank 0, step 0, parameter 1 (p1): its gradient is memory of GPU 0, and its bucket the host's: a parameter that moved to \
         a device needs a reducer that was made by `on_device`",
        "rank 0, step 0, parameter 1 (p1): its bucket is memory of the host, which no event of a device is about",
        "rank 0: gradients are memory of the host, and buckets that of GPU 0: mark them there",
        "rank 0, step 0, parameter 1 (p1): its gradient is memory of the host, and its bucket that of GPU 0: give it by \
         `ready_device`; a parameter that moved to the host needs another reducer",
        "rank 0, step 0, parameter 1 (p1): its gradient is memory of a context of GPU 3, and its bucket that of GPU 0: a \
         parameter that moved to another device needs another reducer",
        "rank 0, step 0, parameter 1 (p1): its gradient has 12 bytes; f32 [4] has 16",
        "rank 0, step 0, parameter 1 (p1): its gradient has strides [2], and its place in the bucket [1]; nothing reorders \
         elements on the device: give it in that order, or write it to its slot and mark it in place",
        "rank 0, step 0, parameter 1 (p1): the event to record behind its copy is of GPU 3, and the copy runs on GPU 0",
    ];
    assert_eq!(told[0][..expected.len()], expected);
    let rest: Vec<&str> = told[0][expected.len()..].iter().map(String::as_str).collect();
    assert!(rest[0].starts_with("rank 0, step 0, parameter 1 (p1): it is marked a second time"), "{rest:?}");
    assert_eq!(rest[1], "rank 0, step 0, parameter 2: there are 2 parameters, from 0");
    assert_eq!(rest[2], "rank 0: there is no parameter 7");
    assert!(rest[3].contains("parameter 1 (p1): the step is over"), "{rest:?}");
}

#[test]
fn what_would_have_to_be_computed_on_the_device_is_refused_when_a_reducer_is_made() {
    let session = session();
    let told = on_ranks(&session, 1, |rank| {
        let made = |params: Vec<Param>, options: ReducerOptions| {
            Reducer::on_device(rank.backend.clone(), rank.group, params, options).map(drop).unwrap_err().to_string()
        };
        let wire = Some(Wire { dtype: DType::Bf16, divide: Divide::OnWire });
        let sparse = vec![Param::new("w", &[4], DType::F32), Param::new("e", &[8, 2], DType::F32).sparse()];
        let mut reducer = rank.reducer(&vectors(&[1]), &ReducerOptions::default());
        [
            made(vectors(&[1]), ReducerOptions { wire, ..ReducerOptions::default() }),
            made(vectors(&[1]), ReducerOptions { scale: Scale::Weighted, ..ReducerOptions::default() }),
            made(sparse, ReducerOptions::default()),
            reducer.set_wire(wire).unwrap_err().to_string(),
        ]
    });
    let wire =
        "rank 0: gradients on a device are sent in their own dtype, as nothing converts them there; bfloat16 is given";
    let expected = [
        wire,
        "rank 0: gradients on a device are not multiplied by weights there: give the sum or mean over ranks",
        "rank 0: parameter 1 (e): gradients on a device are dense, and it was declared sparse",
        wire,
    ];
    assert_eq!(told[0], expected);
    let local = bucketeer_comm::local::run(1, bucketeer_comm::local::LocalOptions::default(), |rank| {
        let group = rank.new_group("g", &ranks(1)).unwrap();
        let made = Reducer::on_device(Arc::new(rank), &group, vectors(&[1]), ReducerOptions::default());
        made.map(drop).unwrap_err().to_string()
    });
    let expected = "rank 0: calls of backend local run on no device, so buckets cannot be there";
    assert_eq!(local.unwrap()[0].as_ref().unwrap(), expected);
}

#[test]
fn memory_that_the_device_does_not_have_is_an_error_of_the_reducer() {
    let session = session();
    session.set_memory_bytes(1 << 20);
    let told = on_ranks(&session, 1, |rank| {
        let made = Reducer::on_device(rank.backend.clone(), rank.group, vectors(&[1 << 20]), ReducerOptions::default());
        made.map(drop).unwrap_err()
    });
    session.set_memory_bytes(4 << 30);
    assert!(matches!(&told[0], ReducerError::Device { .. }), "{}", told[0]);
    assert!(told[0].to_string().starts_with("rank 0: 4194368 bytes for the buckets: "), "{}", told[0]);
}
