//! The compiler layer: on the fake GPU's compiler everywhere, and on NVIDIA's own.
//!
//! Tests on NVIDIA's are ignored as a rule: `scripts/with-nvrtc cargo test --test gpu nvrtc:: -- --ignored` gets it and runs
//! them.

#![expect(unsafe_code, reason = "launches; each says why it may")]

use bucketeer_cuda::nvrtc::{Cache, Compiled, Nvrtc, NvrtcError, Request};
use bucketeer_cuda::{Arch, Arg, CudaError, ImageKind, Launch};
use kit::fakegpu::{self, session};
use std::path::PathBuf;

/// Adds `offset` to each of `len` numbers.
const SOURCE: &str = r#"
typedef unsigned long long u64;
typedef unsigned int u32;
#ifdef __cplusplus
extern "C" {
#endif
__global__ void __launch_bounds__(256) add(u32 *numbers, u64 len, u64 offset) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < len; at += step) numbers[at] += (u32)offset;
}
#ifdef __cplusplus
}
#endif
"#;

/// An array that is indexed by what only the running kernel knows, so cannot be in registers.
const LOCAL: &str = r#"
extern "C" __global__ void local(unsigned *numbers, unsigned long long len) {
    volatile unsigned kept[64];
    for (unsigned long long at = 0; at < len; at++) kept[at & 63] = numbers[at];
    numbers[0] = kept[len & 63];
}
"#;

fn request(source: &str, arch: u32, kind: ImageKind) -> Request<'_> {
    Request { source, name: "test.cu", arch: Arch(arch), kind, options: &[] }
}

/// NVIDIA's compiler.
#[track_caller]
fn real() -> Nvrtc {
    let nvrtc = Nvrtc::load(None).unwrap_or_else(|error| panic!("{error}\nscripts/with-nvrtc gets it"));
    nvrtc.with_cache(None)
}

/// A folder of its own for a test, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bucketeer-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_source_runs_as_ptx_and_as_cubin() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let stream = context.stream().unwrap();
    for kind in [ImageKind::Ptx, ImageKind::Cubin] {
        let compiled = session.nvrtc().compile(&request(SOURCE, 90, kind)).unwrap();
        assert_eq!(compiled.image.kind(), kind);
        let kernel = context.load_module(&compiled.image).unwrap().function("add").unwrap();
        let buffer = context.alloc(8).unwrap();
        stream.upload(&[1, 0, 0, 0, 2, 0, 0, 0], &buffer, 0).unwrap();
        // SAFETY: three parameters; two numbers are in the buffer.
        unsafe { stream.launch(&kernel, Launch::linear(1, 32), &[Arg::Buffer(&buffer), Arg::U64(2), Arg::U64(5)]) }
            .unwrap();
        let mut back = [0; 8];
        stream.download(&buffer, 0, &mut back).unwrap();
        assert_eq!(back, [6, 0, 0, 0, 7, 0, 0, 0]);
    }
}

#[test]
fn a_cubin_for_another_architecture_is_refused() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let compiled = session.nvrtc().compile(&request(SOURCE, 80, ImageKind::Cubin)).unwrap();
    let error = context.load_module(&compiled.image).err().unwrap();
    assert!(matches!(error, CudaError::Module { kind: ImageKind::Cubin, .. }));
    let text = error.to_string();
    assert!(text.contains("CUDA_ERROR_NO_BINARY_FOR_GPU") && text.contains("made for sm_80"), "{text}");
}

fn shows_the_source_line(nvrtc: &Nvrtc) {
    let source = SOURCE.replace("numbers[at] +=", "nombres[at] +=");
    for kind in [ImageKind::Ptx, ImageKind::Cubin] {
        let error = nvrtc.compile(&request(&source, 90, kind)).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("the kernel does not compile:\n") && text.contains("nombres"), "{text}");
        assert!(text.contains("\n    9 |     for (u64 at = "), "{text}");
        let NvrtcError::Compile { lines, .. } = error else { panic!("{error}") };
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].1.trim(), source.lines().nth(8).unwrap().trim());
    }
}

#[test]
fn a_failure_to_compile_shows_the_source_line() {
    shows_the_source_line(&session().nvrtc());
}

fn refuses(nvrtc: &Nvrtc) {
    let unknown = nvrtc.compile(&request(SOURCE, 20, ImageKind::Cubin)).unwrap_err();
    let text = unknown.to_string();
    assert!(matches!(unknown, NvrtcError::Option { arch: Arch(20), .. }), "{text}");
    assert!(text.contains("sm_80") && text.contains("sm_90"), "what it can do: {text}");
    let option = Request { options: &["--no-such-option"], ..request(SOURCE, 90, ImageKind::Ptx) };
    assert!(nvrtc.compile(&option).unwrap_err().to_string().contains("--no-such-option"));
    for (request, what) in [
        (request("a\0b", 90, ImageKind::Ptx), "the source has a zero byte at 1"),
        (Request { name: "ab\0", ..request("", 90, ImageKind::Ptx) }, "the name has a zero byte at 2"),
        (Request { options: &["\0"], ..request("", 90, ImageKind::Ptx) }, "the option has a zero byte at 0"),
        (request("", 90, ImageKind::FatBinary), "NVRTC makes PTX and CUBINs, no fat binaries"),
    ] {
        assert_eq!(nvrtc.compile(&request).unwrap_err().to_string(), what);
    }
}

#[test]
fn requests_that_cannot_be_met_say_why() {
    refuses(&session().nvrtc());
}

#[test]
fn a_fault_of_any_call_names_it() {
    let session = session();
    let nvrtc = session.nvrtc();
    let table = include_str!("../../crates/cuda/src/sys/nvrtc.rs");
    let symbols: Vec<&str> =
        table.lines().filter_map(|line| line.strip_prefix("        nvrtc")?.split('(').next()).collect();
    for symbol in symbols.iter().filter(|symbol| **symbol != "GetErrorString") {
        session.inject(&format!("nvrtc{symbol}:1=11"));
        let all = || -> Result<(), NvrtcError> {
            Nvrtc::load(Some(fakegpu::path()))?.archs()?;
            nvrtc.compile(&request(SOURCE, 90, ImageKind::Ptx))?;
            nvrtc.compile(&request(SOURCE, 90, ImageKind::Cubin)).map(drop)
        };
        match all() {
            Ok(()) => assert_eq!(*symbol, "DestroyProgram", "a drop has nobody to tell"),
            Err(error) => {
                let expected = format!("nvrtc{symbol} failed with NVRTC_ERROR_INTERNAL_ERROR (11)");
                assert_eq!(error.to_string(), expected);
            }
        }
    }
    assert_eq!(symbols.len(), 13);
}

#[test]
fn the_cache_answers_what_was_asked_before_and_nothing_else() {
    let session = session();
    let folder = Folder::new("cache");
    let nvrtc = session.nvrtc().with_cache(Some(Cache::new(&folder.0)));
    let ask = |request: &Request<'_>| nvrtc.compile(request).unwrap();
    let compiles = || session.log().iter().filter(|line| line["call"] == "nvrtcCompileProgram").count();
    let first = request(SOURCE, 90, ImageKind::Cubin);
    let miss = ask(&first);
    assert!(!miss.cached && compiles() == 1 && folder.files().len() == 1);
    let hit = ask(&first);
    assert_eq!((hit.cached, compiles()), (true, 0));
    assert_eq!(hit, Compiled { cached: true, ..miss });
    let source = format!("{SOURCE}\n");
    for other in [
        request(&source, 90, ImageKind::Cubin),
        request(SOURCE, 80, ImageKind::Cubin),
        request(SOURCE, 90, ImageKind::Ptx),
        Request { name: "other.cu", ..first.clone() },
        Request { options: &["-DX"], ..first.clone() },
    ] {
        assert!(!ask(&other).cached, "{other:?}");
    }
    assert_eq!(folder.files().len(), 6);
}

#[test]
fn a_damaged_entry_is_compiled_again_and_mended() {
    let session = session();
    let folder = Folder::new("damaged");
    let nvrtc = session.nvrtc().with_cache(Some(Cache::new(&folder.0)));
    let request = request(SOURCE, 90, ImageKind::Cubin);
    let whole = nvrtc.compile(&request).unwrap().image;
    let entry = folder.files().remove(0);
    let content = std::fs::read(&entry).unwrap();
    let mut turned = content.clone();
    turned[content.len() / 2] ^= 1;
    for damaged in [&content[..content.len() / 2], &turned, b""] {
        std::fs::write(&entry, damaged).unwrap();
        let again = nvrtc.compile(&request).unwrap();
        assert!(!again.cached && again.image == whole);
        assert!(nvrtc.compile(&request).unwrap().cached, "it is whole again");
    }
    assert_eq!(folder.files(), [entry], "nothing is left beside it");
}

#[test]
fn a_cache_that_cannot_be_written_is_no_cache() {
    let session = session();
    let file = Folder::new("no-folder");
    std::fs::write(&file.0, "a file").unwrap();
    let nvrtc = session.nvrtc().with_cache(Some(Cache::new(file.0.join("below"))));
    assert!(!nvrtc.compile(&request(SOURCE, 90, ImageKind::Ptx)).unwrap().cached);
    assert!(!nvrtc.compile(&request(SOURCE, 90, ImageKind::Ptx)).unwrap().cached);
    std::fs::remove_file(&file.0).unwrap();
}

#[test]
fn several_threads_fill_one_cache() {
    let session = session();
    let folder = Folder::new("threads");
    let nvrtc = session.nvrtc().with_cache(Some(Cache::new(&folder.0)));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| nvrtc.compile(&request(SOURCE, 90, ImageKind::Cubin)).unwrap());
        }
    });
    assert_eq!(folder.files().len(), 1);
    assert!(nvrtc.compile(&request(SOURCE, 90, ImageKind::Cubin)).unwrap().cached);
}

#[test]
#[ignore = "needs NVIDIA's compiler: scripts/with-nvrtc"]
fn the_real_compiler_makes_ptx_and_cubins_without_a_gpu() {
    let nvrtc = real();
    let archs = nvrtc.archs().unwrap();
    // sm_100 came with 12.8.
    let wanted = [80, 90, 100].into_iter().filter(|arch| archs.contains(&Arch(*arch)));
    let wanted: Vec<u32> = wanted.collect();
    assert!(wanted.len() >= 2, "{archs:?}");
    for arch in wanted {
        let ptx = nvrtc.compile(&request(SOURCE, arch, ImageKind::Ptx)).unwrap();
        let text = String::from_utf8(ptx.image.bytes().to_vec()).unwrap();
        assert!(text.contains(&format!(".target sm_{arch}")) && text.contains(".entry add("), "{text}");
        assert!(ptx.kernels().is_empty() && ptx.image.ptx_version().is_some());
        let cubin = nvrtc.compile(&request(SOURCE, arch, ImageKind::Cubin)).unwrap();
        assert_eq!(cubin.image.kind(), ImageKind::Cubin);
        let kernels = cubin.kernels();
        assert_eq!(kernels.len(), 1, "{}", cubin.log);
        assert_eq!(kernels[0].name, "add");
        assert!(kernels[0].is_all_in_registers() && (1..=255).contains(&kernels[0].registers), "{kernels:?}");
        assert_eq!(nvrtc.compile(&request(SOURCE, arch, ImageKind::Cubin)).unwrap(), cubin, "the same each time");
    }
}

#[test]
#[ignore = "needs NVIDIA's compiler: scripts/with-nvrtc"]
fn the_real_compiler_reports_local_memory() {
    let nvrtc = real();
    let cubin = nvrtc.compile(&request(LOCAL, 90, ImageKind::Cubin)).unwrap();
    let kernels = cubin.kernels();
    assert_eq!((kernels.len(), kernels[0].stack_bytes), (1, 256), "{}", cubin.log);
    assert!(!kernels[0].is_all_in_registers());
    // With 24 registers for its 64 values it spills.
    let source = format!(
        "extern \"C\" __global__ void spill(float *p) {{ float {}; {} __syncthreads(); {} }}",
        (0..64).map(|at| format!("v{at} = p[{at}]")).collect::<Vec<_>>().join(", "),
        (0..64).map(|at| format!("v{at} = v{at} * v{} + 1;", (at + 7) % 64)).collect::<String>(),
        (0..64).map(|at| format!("p[{at}] = v{at};")).collect::<String>(),
    );
    let tight = Request { options: &["--maxrregcount=24"], ..request(&source, 90, ImageKind::Cubin) };
    let kernels = nvrtc.compile(&tight).unwrap().kernels();
    assert!(kernels[0].spill_store_bytes > 0 && kernels[0].spill_load_bytes > 0, "{kernels:?}");
}

#[test]
#[ignore = "needs NVIDIA's compiler: scripts/with-nvrtc"]
fn the_real_compiler_shows_the_source_line_and_refuses_as_the_fake_does() {
    let nvrtc = real();
    shows_the_source_line(&nvrtc);
    refuses(&nvrtc);
}

#[test]
#[ignore = "needs NVIDIA's compiler: scripts/with-nvrtc"]
fn the_fake_driver_refuses_ptx_of_a_newer_compiler() {
    let nvrtc = real();
    let session = session();
    session.set_driver_version(12_000);
    let context = session.driver().device(0).unwrap().context().unwrap();
    let ptx = nvrtc.compile(&request(SOURCE, 90, ImageKind::Ptx)).unwrap();
    let error = context.load_module(&ptx.image).err().unwrap();
    assert!(matches!(&error, CudaError::OldDriver { ptx: version, .. } if Some(&**version) == ptx.image.ptx_version()));
}
