//! The emitted source under NVIDIA's own compiler, which needs no GPU: for three architectures, without spills or local memory.
//!
//! Ignored as a rule: `scripts/with-nvrtc cargo test --test gpu nvrtc:: -- --ignored` gets the compiler and runs these.

use bucketeer::codegen::cuda::{CudaModule, CudaOptions, FIXED_KERNEL, KERNEL, fixed_module};
use bucketeer::ir::DType;
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::Program;
use bucketeer_cuda::nvrtc::{Nvrtc, Request};
use bucketeer_cuda::{Arch, ImageKind};
use kit::files;

const ARCHS: [u32; 3] = [80, 90, 100];

#[track_caller]
fn nvrtc() -> Nvrtc {
    let nvrtc = Nvrtc::load(None).unwrap_or_else(|error| panic!("{error}\nscripts/with-nvrtc gets it"));
    nvrtc.with_cache(None)
}

/// Compiles a source, and holds its one kernel against what it may cost.
#[track_caller]
fn check(nvrtc: &Nvrtc, source: &str, kernel: &str, archs: &[u32]) {
    for &arch in archs {
        for kind in [ImageKind::Ptx, ImageKind::Cubin] {
            let request = Request { source, name: "move.cu", arch: Arch(arch), kind, options: &[] };
            let compiled = nvrtc.compile(&request).unwrap_or_else(|error| panic!("sm_{arch}: {error}"));
            if kind == ImageKind::Ptx {
                let text = String::from_utf8_lossy(compiled.image.bytes()).into_owned();
                assert!(text.contains(&format!(".visible .entry {kernel}(")), "sm_{arch}");
                continue;
            }
            let costs = compiled.kernels();
            assert!(!costs.is_empty(), "sm_{arch}: {}", compiled.log);
            for cost in costs {
                let spilled = cost.spill_store_bytes + cost.spill_load_bytes;
                assert_eq!((cost.stack_bytes, spilled), (0, 0), "sm_{arch}: {cost:?}");
                // Three blocks of 256 threads on a multiprocessor, which has 65,536 registers.
                assert!(cost.registers <= 85, "sm_{arch}: {cost:?}");
            }
        }
    }
}

fn module(program: &Program) -> CudaModule {
    CudaModule::of(program, &CudaOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
#[ignore = "needs NVIDIA's compiler: scripts/with-nvrtc"]
fn kernels_of_real_graphs_compile_without_spills_and_local_memory() {
    let nvrtc = nvrtc();
    let names =
        ["fsdp_l2_ws8_bf16.backward.txt", "tiny_fsdp_uneven_bf16.backward.txt", "tiny_ddp_bf16_arfp32.backward.txt"];
    for name in names {
        let mut graph = files::graphs(&files::fixtures().join(name)).remove(0);
        Pipeline::default_rewrite().run(&mut graph).unwrap();
        let (program, _) = lower(&graph, &LowerOptions::default()).unwrap();
        check(&nvrtc, module(&program).source(), KERNEL, &ARCHS);
        check(&nvrtc, &module(&program).table_source(), FIXED_KERNEL, &ARCHS);
    }
}

#[test]
#[ignore = "needs NVIDIA's compiler: scripts/with-nvrtc"]
fn the_fixed_kernel_compiles_without_spills_and_local_memory() {
    let nvrtc = nvrtc();
    check(&nvrtc, &fixed_module(), FIXED_KERNEL, &ARCHS);
}

/// A pack with each conversion from one dtype, as a program's text.
fn conversions_from(from: DType) -> Program {
    let to = DType::ALL.iter().filter(|to| bucketeer_types::num::convert(from, **to, &[]).is_some());
    let (mut segments, mut at) = (String::new(), 0);
    for to in to {
        segments += &format!("    {}[64] a -> {}[64] b+{at}\n", from.short_name(), to.short_name());
        segments += &format!("    {}[4][2] a -> {}[4] b+{}\n", from.short_name(), to.short_name(), at + 512);
        at += 1024;
    }
    let text = format!(
        "program p align 16 {{\n  arena device {at} live {at}\n  buffer a: input 512 align 16\n  \
         buffer b: output {at} align 16 at 0:0\n  input a = u8[512] a\n  s0 cat: pack {{\n{segments}  }}\n  output () ()\n}}\n"
    );
    Program::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
#[ignore = "needs NVIDIA's compiler: scripts/with-nvrtc"]
fn every_conversion_compiles() {
    let nvrtc = nvrtc();
    for from in [DType::F64, DType::F32, DType::Bf16, DType::F8E4m3fn, DType::I64, DType::Bool] {
        let module = module(&conversions_from(from));
        let request =
            Request { source: module.source(), name: "move.cu", arch: Arch(90), kind: ImageKind::Ptx, options: &[] };
        nvrtc.compile(&request).unwrap_or_else(|error| panic!("{from:?}: {error}"));
    }
}
