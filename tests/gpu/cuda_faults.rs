//! What goes wrong on the way to a GPU, on the fake one: faults, misuse, libraries that are not there.

#![expect(unsafe_code, reason = "stale memory on purpose; says why it may")]

use bucketeer_cuda::nvrtc::{Nvrtc, Request};
use bucketeer_cuda::{CudaError, DeviceBuffer, Driver, ImageKind};
use kit::fakegpu;
use kit::fakegpu::adding::{SOURCE, add, bytes, error_of, kernel};
use kit::fakegpu::session;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn memory_that_is_used_up_is_an_error_with_numbers() {
    let session = session();
    session.set_memory_bytes(1000);
    let context = session.driver().device(0).unwrap().context().unwrap();
    let first = context.alloc(600).unwrap();
    let error = error_of(context.alloc(401));
    assert!(error.starts_with("401 bytes cannot be allocated, 400 of 1000 are free: cuMemAlloc_v2 failed"), "{error}");
    assert!(error_of(context.alloc(usize::MAX)).contains("CUDA_ERROR_OUT_OF_MEMORY (2)"));
    assert!(error_of(context.alloc_pinned(usize::MAX)).contains("cuMemAllocHost_v2"));
    // What was dropped in flight is waited for.
    let stream = context.stream().unwrap();
    session.delay_us(50_000);
    stream.fill(&first, 0..600, 1).unwrap();
    drop(first);
    context.alloc(1000).unwrap();
}

#[test]
fn use_after_free_is_found() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    let buffer = context.alloc(64).unwrap();
    let pointer = buffer.pointer();
    drop(buffer);
    // SAFETY: not kept, on purpose: the fake checks each copy against its allocations.
    let stale = unsafe { DeviceBuffer::from_raw(&context, pointer, 64, Box::new(())) };
    stream.fill(&stale, 0..64, 1).unwrap();
    let error = error_of(stream.synchronize());
    assert!(error.contains("cuStreamSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{error}");
    assert!(error_of(context.alloc(1)).contains("(700)"), "the context stays lost");
    let found = session.violations();
    assert!(found.len() == 1 && found[0].contains("which is freed"), "{found:?}");
}

#[test]
fn a_kernel_that_writes_beyond_its_buffer_is_found() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    let kernel = kernel(&session, &context);
    let (from, to) = (context.alloc(44).unwrap(), context.alloc(40).unwrap());
    add(&stream, &kernel, &to, &from, 10).unwrap();
    stream.synchronize().unwrap();
    add(&stream, &kernel, &to, &from, 11).unwrap();
    assert!(error_of(stream.synchronize()).contains("(700)"));
    let found = session.violations();
    assert!(found.len() == 1 && found[0].contains("kernel add: bytes behind memory"), "{found:?}");
}

/// All calls once, through everything that may fail.
fn everything(nvrtc: &Nvrtc) -> Result<(), Box<dyn Error>> {
    let driver = Driver::load(Some(fakegpu::path()))?;
    driver.version()?;
    driver.device_count()?;
    let device = driver.device(3)?;
    device.name()?;
    device.total_bytes()?;
    let context = device.context()?;
    context.memory()?;
    let (one, two) = (context.stream()?, context.stream()?);
    let arch = device.arch()?;
    let image =
        nvrtc.compile(&Request { source: SOURCE, name: "a.cu", arch, kind: ImageKind::Cubin, options: &[] })?.image;
    let kernel = context.load_module(&image)?.function("add")?;
    let (from, to) = (context.alloc(400)?, context.alloc(400)?);
    let mut pinned = context.alloc_pinned(400)?;
    pinned.bytes()?.copy_from_slice(&bytes(0..100));
    let [start, end] = [context.timing_event()?, context.timing_event()?];
    one.record(&start)?;
    one.copy_to_device(&pinned, 0..400, &from, 0)?;
    one.fill(&to, 0..400, 0)?;
    add(&one, &kernel, &to, &from, 100)?;
    one.record(&end)?;
    two.wait(&end)?;
    two.copy(&to, 0..400, &from, 0)?;
    two.copy_to_host(&from, 0..400, &mut pinned, 0)?;
    let right = pinned.bytes()? == bytes(100..200);
    end.synchronize()?;
    end.is_done()?;
    end.since(&start)?;
    one.is_idle()?;
    two.synchronize()?;
    context.synchronize()?;
    assert!(right, "no error, so the values are right");
    Ok(())
}

/// The functions of a table in `sys`, in its order.
fn symbols(table: &'static str) -> impl Iterator<Item = &'static str> {
    let lines = table.lines().filter(|line| line.starts_with("        cu") || line.starts_with("        nvrtc"));
    lines.filter_map(|line| line.trim().split_once('(').map(|(name, _)| name))
}

const DRIVER_TABLE: &str = include_str!("../../crates/cuda/src/sys/driver.rs");
const NVRTC_TABLE: &str = include_str!("../../crates/cuda/src/sys/nvrtc.rs");

#[test]
fn a_fault_of_any_call_is_an_error_that_names_it_and_leaks_nothing() {
    let session = session();
    let nvrtc = session.nvrtc();
    everything(&nvrtc).unwrap();
    let unlogged = ["cuGetErrorName", "cuGetErrorString"];
    // These run in drops, which have nobody to tell.
    let in_drops = [
        "cuDevicePrimaryCtxRelease_v2",
        "cuMemFree_v2",
        "cuMemFreeHost",
        "cuStreamDestroy_v2",
        "cuEventDestroy_v2",
        "cuModuleUnload",
    ];
    let mut struck = 0;
    for symbol in symbols(DRIVER_TABLE).filter(|symbol| !unlogged.contains(symbol)) {
        let before = session.live(); // what a failed drop left stays
        session.inject(&format!("{symbol}:1=999"));
        match everything(&nvrtc) {
            Ok(()) => assert!(in_drops.contains(&symbol), "{symbol} failed and nobody said so"),
            Err(error) => {
                let expected = format!("{symbol} failed with CUDA_ERROR_UNKNOWN (999): unknown error");
                assert!(error.to_string().contains(&expected), "{symbol}: {error}");
                struck += 1;
            }
        }
        session.reset();
        if !in_drops.contains(&symbol) {
            assert_eq!(session.live(), before, "{symbol} leaves something behind");
        }
        everything(&nvrtc).unwrap_or_else(|error| panic!("after {symbol}: {error}"));
    }
    assert_eq!(struck, symbols(DRIVER_TABLE).count() - unlogged.len() - in_drops.len());
}

#[cfg(target_os = "linux")]
#[test]
fn a_hundred_starts_and_stops_leave_nothing_behind() {
    fn held() -> [usize; 2] {
        ["fd", "task"].map(|what| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count())
    }
    let session = session();
    let nvrtc = session.nvrtc();
    everything(&nvrtc).unwrap();
    let before = held();
    for _ in 0..100 {
        everything(&nvrtc).unwrap();
    }
    assert_eq!(session.live(), [0; 4]);
    // The fake's threads end a little after their streams; other tests' threads and files come and go.
    let start = Instant::now();
    while held().iter().zip(before).any(|(now, before)| *now > before + 8) {
        assert!(start.elapsed() < Duration::from_secs(20), "{before:?} before, {:?} after", held());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_code_that_the_driver_does_not_know_is_an_error_too() {
    let session = session();
    session.inject("cuMemAlloc_v2:1=12345");
    let context = session.driver().device(0).unwrap().context().unwrap();
    let error = error_of(context.alloc(1));
    assert_eq!(error, "cuMemAlloc_v2 failed with unknown code (12345): the driver has no words for it");
}

#[test]
fn work_that_fails_in_the_stream_fails_the_wait() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    let buffer = context.alloc(4).unwrap();
    let mut pinned = context.alloc_pinned(4).unwrap();
    session.inject("cuMemcpyDtoHAsync_v2:1=late:719");
    session.delay_us(100_000); // it fails after the call
    stream.copy_to_host(&buffer, 0..4, &mut pinned, 0).unwrap();
    let error = error_of(pinned.bytes());
    assert!(error.contains("cuEventSynchronize failed with CUDA_ERROR_LAUNCH_FAILED (719)"), "{error}");
}

#[test]
fn a_device_that_hangs_hangs_neither_waits_with_a_limit_nor_drops() {
    let session = session();
    let context = session.driver().device(6).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    let buffer = context.alloc(4).unwrap();
    session.inject("cuMemsetD8Async:1=hang");
    stream.fill(&buffer, 0..4, 1).unwrap();
    let event = context.event().unwrap();
    stream.record(&event).unwrap();
    assert!(!event.wait_timeout(Duration::from_millis(20)).unwrap());
    let start = Instant::now();
    drop((buffer, stream, event, context));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// A library that has functions of these names, which do nothing.
fn stub(folder: &Path, name: &str, symbols: impl Iterator<Item = &'static str>) -> PathBuf {
    let source = folder.join(format!("{name}.c"));
    std::fs::write(&source, symbols.map(|symbol| format!("void {symbol}(void) {{}}\n")).collect::<String>()).unwrap();
    let library = folder.join(format!("{name}.so"));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let done = Command::new(compiler).args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(done.unwrap().success());
    library
}

#[test]
fn a_missing_function_is_an_error_that_names_it() {
    let folder = std::env::temp_dir().join(format!("bucketeer-stubs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for missing in symbols(DRIVER_TABLE) {
        let library = stub(&folder, missing, symbols(DRIVER_TABLE).filter(|symbol| *symbol != missing));
        let error = Driver::load(Some(&library)).err().expect("one is missing");
        let expected = format!("the CUDA driver library at {} has no function {missing}: ", library.display());
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert!(error.to_string().contains("undefined symbol"), "the loader's reason: {error}");
    }
    for missing in symbols(NVRTC_TABLE) {
        let library = stub(&folder, missing, symbols(NVRTC_TABLE).filter(|symbol| *symbol != missing));
        let error = Nvrtc::load(Some(&library)).err().expect("one is missing");
        assert!(error.to_string().contains(&format!("has no function {missing}: ")), "{error}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_missing_library_is_an_error_with_the_places_tried() {
    let nowhere = std::env::temp_dir().join("no-such-folder/libcuda.so.1");
    let error = Driver::load(Some(&nowhere)).err().expect("it is not there");
    assert!(error.to_string().contains(&format!("{}: ", nowhere.display())), "{error}");
    let CudaError::Load(load) = error else { panic!("{error}") };
    assert!(load.source().is_some(), "the loader's reason");
    let text = std::env::temp_dir().join(format!("bucketeer-not-a-library-{}", std::process::id()));
    std::fs::write(&text, "text").unwrap();
    let error = Driver::load(Some(&text)).err().expect("it is not a library").to_string();
    std::fs::remove_file(&text).unwrap();
    assert!(error.contains("tried\n  ") && error.contains("file too short"), "{error}");
}
