//! The layer over the CUDA driver, on the fake GPU of `testing/fakegpu`.

#![expect(unsafe_code, reason = "launches and raw handles; each says why it may")]

use bucketeer_cuda::nvrtc::{Nvrtc, Request};
use bucketeer_cuda::{
    Arch, Arg, Context, CudaError, DeviceBuffer, Driver, Event, Function, Image, ImageKind, Launch, PinnedBuffer,
    Stream,
};
use kit::fakegpu;
use kit::fakegpu::adding::{SOURCE, add, bytes, download, error_of, kernel};
use kit::fakegpu::{Session, session};
use std::time::Duration;

#[test]
fn the_driver_tells_what_it_drives() {
    let session = session();
    let driver = session.driver();
    assert_eq!(driver.version().unwrap().to_string(), "13.0");
    assert_eq!(driver.device_count().unwrap(), 8);
    let device = driver.device(7).unwrap();
    assert_eq!((device.name().unwrap().as_str(), device.arch().unwrap()), ("Fake GPU 7", Arch(90)));
    assert_eq!(device.total_bytes().unwrap(), 4 << 30);
    for ordinal in [8, u32::MAX] {
        let error = driver.device(ordinal).err().unwrap().to_string();
        assert_eq!(error, format!("there is no GPU {ordinal}: the driver sees 8, counted from 0"));
    }
    session.set_devices(0);
    let error = Driver::load(Some(fakegpu::path())).err().unwrap().to_string();
    assert_eq!(error, "cuInit failed with CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected");
}

#[test]
fn bytes_go_to_the_device_within_it_and_back() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    let (a, b) = (context.alloc(16).unwrap(), context.alloc(16).unwrap());
    let mut pinned = context.alloc_pinned(20).unwrap();
    assert_eq!(pinned.bytes().unwrap(), [0; 20]);
    pinned.bytes().unwrap().copy_from_slice(&(0..20).collect::<Vec<u8>>());
    session.delay_us(20_000);
    stream.fill(&a, 0..16, 9).unwrap();
    stream.copy_to_device(&pinned, 2..10, &a, 4).unwrap();
    stream.copy(&a.slice(4..16).unwrap(), 1..9, &b, 8).unwrap();
    stream.copy_to_host(&b, 8..16, &mut pinned, 12).unwrap();
    assert!(!pinned.is_idle().unwrap());
    // Waits for the copy.
    assert_eq!(pinned.bytes().unwrap()[10..], [10, 11, 3, 4, 5, 6, 7, 8, 9, 9]);
    assert!(pinned.is_idle().unwrap());
    session.delay_us(0);
    assert_eq!(download(&stream, &a), [9, 9, 9, 9, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9]);
    assert_eq!(download(&stream, &b)[..8], [0xcd; 8], "what nothing was written to is poisoned");
    assert_eq!(session.violations(), [""; 0]);
}

#[test]
fn blocking_copies_go_in_parts() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    for len in [0, 1, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, (9 << 20) + 5] {
        let content: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let buffer = context.alloc(len + 3).unwrap();
        stream.upload(&content, &buffer, 3).unwrap();
        let mut back = vec![0; len];
        stream.download(&buffer, 3, &mut back).unwrap();
        assert!(back == content, "{len}");
    }
}

#[test]
fn a_handwritten_kernel_runs() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    let kernel = kernel(&session, &context);
    for len in [0, 1, 255, 256, 257, 5000] {
        let (from, to) = (context.alloc(len * 4).unwrap(), context.alloc(len * 4).unwrap());
        stream.upload(&bytes(0..len as u32), &from, 0).unwrap();
        add(&stream, &kernel, &to, &from, len).unwrap();
        assert_eq!(download(&stream, &to), bytes(100..100 + len as u32));
    }
    assert_eq!(session.violations(), [""; 0]);
}

/// Runs producer, event wait, consumer on two streams, the producer late; what the consumer saw.
fn produce_and_consume(session: &Session, waits: bool) -> Vec<u8> {
    let context = session.driver().device(0).unwrap().context().unwrap();
    let (producer, consumer) = (context.stream().unwrap(), context.stream().unwrap());
    let kernel = kernel(session, &context);
    let [from, middle, to] = [(); 3].map(|()| context.alloc(4000).unwrap());
    producer.upload(&bytes(0..1000), &from, 0).unwrap();
    producer.fill(&to, 0..4000, 0).unwrap();
    producer.synchronize().unwrap();
    session.delay_stream_us(&producer, 200_000);
    add(&producer, &kernel, &middle, &from, 1000).unwrap();
    let event = context.event().unwrap();
    producer.record(&event).unwrap();
    if waits {
        consumer.wait(&event).unwrap();
    }
    consumer.copy(&middle, 0..4000, &to, 0).unwrap();
    consumer.synchronize().unwrap();
    download(&consumer, &to)
}

#[test]
fn a_left_out_event_wait_shows_as_a_wrong_value_under_delay() {
    let session = session();
    assert_eq!(produce_and_consume(&session, true), bytes(100..1100));
    assert_eq!(produce_and_consume(&session, false), [0xcd; 4000], "the poison of a fresh allocation");
    // The same for code that cannot be asked to leave one out.
    session.inject("cuStreamWaitEvent:1=skip");
    assert_eq!(produce_and_consume(&session, true), [0xcd; 4000]);
    assert_eq!(session.violations(), [""; 0], "an order that is wrong is not a misuse of memory");
}

/// A bucket in small: pack on one stream, the transfer on another, unpack on the first. `late` is 0 or 1, the stream
/// that is delayed; what came out.
fn pack_move_unpack(session: &Session, kernel: &Function, late: usize) -> Vec<u8> {
    let context = kernel.context();
    let streams = [context.stream().unwrap(), context.stream().unwrap()];
    let [compute, comm] = &streams;
    let [from, packed, moved, to] = [(); 4].map(|()| context.alloc(400).unwrap());
    compute.upload(&bytes(0..100), &from, 0).unwrap();
    session.delay_stream_us(&streams[late], 100_000);
    let [is_packed, is_moved] = [(); 2].map(|()| context.event().unwrap());
    add(compute, kernel, &packed, &from, 100).unwrap();
    compute.record(&is_packed).unwrap();
    comm.wait(&is_packed).unwrap();
    comm.copy(&packed, 0..400, &moved, 0).unwrap();
    comm.record(&is_moved).unwrap();
    compute.wait(&is_moved).unwrap();
    compute.copy(&moved, 0..400, &to, 0).unwrap();
    context.synchronize().unwrap();
    session.delay_us(0);
    download(compute, &to)
}

#[test]
fn each_left_out_wait_is_found_by_delaying_one_stream_or_the_other() {
    let session = session();
    let kernel = kernel(&session, &session.driver().device(0).unwrap().context().unwrap());
    let run = |late| pack_move_unpack(&session, &kernel, late) == bytes(100..200);
    assert_eq!([0, 1].map(run), [true; 2], "with both waits");
    let mut right = Vec::new();
    for nth in [1, 2] {
        for late in [0, 1] {
            session.inject(&format!("cuStreamWaitEvent:{nth}=skip"));
            right.push(run(late));
        }
    }
    // Without the first wait a late pack is missed, without the second a late transfer.
    assert_eq!(right, [false, true, true, false]);
}

#[test]
fn events_tell_when_work_is_over_and_how_long_it_took() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    let (start, end) = (context.timing_event().unwrap(), context.timing_event().unwrap());
    assert!(end.is_done().unwrap(), "not recorded");
    session.delay_us(20_000);
    let buffer = context.alloc(4).unwrap();
    stream.record(&start).unwrap();
    stream.fill(&buffer, 0..4, 1).unwrap();
    stream.record(&end).unwrap();
    assert!(!end.is_done().unwrap() && !stream.is_idle().unwrap());
    assert!(!end.wait_timeout(Duration::from_millis(1)).unwrap());
    assert!(end.wait_timeout(Duration::from_secs(10)).unwrap());
    end.synchronize().unwrap();
    let took = end.since(&start).unwrap();
    assert!(took >= Duration::from_millis(20) && took < Duration::from_secs(10), "{took:?}");
    let order = context.event().unwrap();
    stream.record(&order).unwrap();
    assert!(order.since(&start).unwrap_err().to_string().contains("timing_event"));
}

#[test]
fn what_is_dropped_in_flight_is_freed_after_its_work() {
    let session = session();
    {
        let context = session.driver().device(0).unwrap().context().unwrap();
        let stream = context.stream().unwrap();
        let kernel = kernel(&session, &context);
        let [from, middle, to] = [(); 3].map(|()| context.alloc(400).unwrap());
        let mut pinned = context.alloc_pinned(400).unwrap();
        pinned.bytes().unwrap().copy_from_slice(&bytes(0..100));
        session.delay_us(50_000);
        stream.copy_to_device(&pinned, 0..400, &from, 0).unwrap();
        add(&stream, &kernel, &middle, &from, 100).unwrap();
        stream.copy(&middle, 0..400, &to, 0).unwrap();
        drop((pinned, from, middle, kernel));
        assert_eq!(context.waiting_to_be_freed(), 4);
        assert_eq!(download(&stream, &to), bytes(100..200));
        context.synchronize().unwrap();
        assert_eq!(context.waiting_to_be_freed(), 0);
        // And with the context gone before the work.
        stream.fill(&to, 0..400, 1).unwrap();
    }
    assert_eq!(session.live(), [0; 4]);
    assert_eq!(session.violations(), [""; 0]);
}

#[test]
fn wrong_ranges_are_refused_before_the_driver_is_asked() {
    let session = session();
    let driver = session.driver();
    let context = driver.device(0).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    let buffer = context.alloc(10).unwrap();
    let mut pinned = context.alloc_pinned(10).unwrap();
    let far = driver.device(1).unwrap().context().unwrap().alloc(10).unwrap();
    session.log();
    #[expect(clippy::reversed_empty_ranges, reason = "that is the mistake")]
    let mistakes = [
        stream.fill(&buffer, 0..11, 0),
        stream.fill(&buffer, 5..4, 0),
        stream.upload(&[0; 11], &buffer, 0),
        stream.upload(&[0], &buffer, usize::MAX),
        stream.download(&buffer, 9, &mut [0; 2]),
        stream.copy_to_device(&pinned, 1..11, &buffer, 0),
        stream.copy_to_device(&pinned, 0..2, &buffer, 9),
        stream.copy_to_host(&buffer, 0..2, &mut pinned, 9),
        stream.copy(&buffer, 0..4, &buffer, 3),
        stream.copy(&far, 0..4, &buffer, 0),
        buffer.slice(2..11).map(drop),
    ];
    for mistake in mistakes {
        let error = mistake.unwrap_err();
        assert!(matches!(error, CudaError::Invalid { .. }), "{error}");
    }
    assert!(session.log().is_empty());
    stream.copy(&buffer, 0..4, &buffer, 4).unwrap();
    stream.fill(&buffer, 10..10, 0).unwrap();
    let error = stream.copy(&far, 0..4, &buffer, 0).unwrap_err().to_string();
    assert_eq!(error, "Stream::copy: the buffer is of a context of GPU 1, the stream of GPU 0");
}

#[test]
fn launches_stay_within_the_limits() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    let kernel = kernel(&session, &context);
    let launch = |grid, block, shared_bytes| {
        let args = [Arg::U64(0), Arg::U64(0), Arg::U64(0), Arg::U64(0)];
        // SAFETY: four parameters, and no numbers to add.
        unsafe { stream.launch(&kernel, Launch { grid, block, shared_bytes }, &args) }
    };
    launch([1, 1, 1], [1024, 1, 1], 48 << 10).unwrap();
    launch([1, 65_535, 1], [16, 1, 1], 0).unwrap();
    for (grid, block, shared_bytes, why) in [
        ([0, 1, 1], [1, 1, 1], 0, "the grid is 0 in x, the device allows 1 to 2147483647"),
        ([1, 65_536, 1], [1, 1, 1], 0, "the grid is 65536 in y, the device allows 1 to 65535"),
        ([1, 1, 1], [1, 1, 65], 0, "the block is 65 in z, the device allows 1 to 64"),
        ([1, 1, 1], [512, 3, 1], 0, "a block has 1536 threads, the kernel can have 1024"),
        ([1, 1, 1], [1, 1, 1], 49_153, "a block asks for 49153 bytes of shared memory, the device has 49152"),
    ] {
        let error = launch(grid, block, shared_bytes).unwrap_err().to_string();
        assert_eq!(error, format!("Stream::launch: kernel add: {why}"));
    }
    for args in [&[Arg::U64(0); 3][..], &[Arg::U64(0); 5]] {
        // SAFETY: the kernel has four parameters, on purpose: the fake counts them.
        let error = error_of(unsafe { stream.launch(&kernel, Launch::linear(1, 1), args) });
        assert!(error.contains("cuLaunchKernel failed with CUDA_ERROR_INVALID_VALUE (1)"), "{error}");
    }
    let request = Request { source: SOURCE, name: "add.cu", arch: Arch(90), kind: ImageKind::Ptx, options: &[] };
    let module = context.load_module(&session.nvrtc().compile(&request).unwrap().image).unwrap();
    let error = error_of(module.function("sub"));
    assert!(error.contains("the module has no kernel `sub`"), "{error}");
}

#[test]
fn threads_share_a_stream() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    let kernel = kernel(&session, &context);
    let from = context.alloc(400).unwrap();
    stream.upload(&bytes(0..100), &from, 0).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let to = context.alloc(400).unwrap();
                    add(&stream, &kernel, &to, &from, 100).unwrap();
                    assert_eq!(download(&stream, &to), bytes(100..200));
                }
            });
        }
    });
    assert_eq!(session.violations(), [""; 0]);
}

#[test]
fn handles_are_safe_to_send_and_to_share() {
    fn check<T: Send + Sync>() {}
    check::<Driver>();
    check::<Context>();
    check::<Stream>();
    check::<Event>();
    check::<DeviceBuffer>();
    check::<PinnedBuffer>();
    check::<Function>();
    check::<Nvrtc>();
}

#[test]
fn handles_of_other_libraries_come_in_and_stay_theirs() {
    let session = session();
    let device = session.driver().device(0).unwrap();
    let theirs = device.context().unwrap();
    let their_stream = theirs.stream().unwrap();
    let their_buffer = theirs.alloc(8).unwrap();
    session.log();
    {
        // SAFETY: the context, the stream and the buffer outlive this block, which waits for its work.
        let context = unsafe { Context::from_raw(&device, theirs.as_raw()) }.unwrap();
        // SAFETY: as above.
        let stream = unsafe { Stream::from_raw(&context, their_stream.as_raw()) };
        // SAFETY: as above.
        let buffer = unsafe { DeviceBuffer::from_raw(&context, their_buffer.pointer(), 8, Box::new(())) };
        stream.fill(&buffer, 0..8, 7).unwrap();
        stream.synchronize().unwrap();
    }
    let calls: Vec<String> = session.log().iter().map(|line| line["call"].as_str().unwrap().to_owned()).collect();
    let of_work: Vec<&String> = calls.iter().filter(|call| *call != "cuDeviceGetAttribute").collect();
    assert_eq!(of_work, ["cuMemsetD8Async", "cuStreamSynchronize"], "nothing of theirs is destroyed");
    assert_eq!(download(&their_stream, &their_buffer), [7; 8]);
}

#[test]
fn ptx_runs_and_too_new_ptx_says_what_to_do() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let ptx = |version: &str| {
        let text =
            format!("// written by hand\n.version {version}\n.target sm_80\n.visible .entry add(\n)\n{{ ret; }}\n");
        Image::new(text.into_bytes()).unwrap()
    };
    session.register_ptx("add", SOURCE);
    session.set_driver_version(12_010);
    let kernel = context.load_module(&ptx("8.1")).unwrap().function("add").unwrap();
    let stream = context.stream().unwrap();
    let (from, to) = (context.alloc(40).unwrap(), context.alloc(40).unwrap());
    stream.upload(&bytes(0..10), &from, 0).unwrap();
    add(&stream, &kernel, &to, &from, 10).unwrap();
    assert_eq!(download(&stream, &to), bytes(100..110));
    let error = error_of(context.load_module(&ptx("8.2")));
    assert!(
        error.starts_with(
            "the PTX is of version 8.2, and the driver, for CUDA 12.1, is too old for it: update the driver"
        ),
        "{error}"
    );
    session.register_ptx("add", "__global__ void add(int n) {}");
    let error = error_of(context.load_module(&ptx("8.1")));
    assert!(error.contains("CUDA_ERROR_INVALID_PTX") && error.contains("\n  fakegpu:"), "{error}");
}
