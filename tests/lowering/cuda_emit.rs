//! What is emitted for a program, and what is refused.

use crate::host::{Host, SHIM, Scratch, compile};
use bucketeer::codegen::TransferError;
use bucketeer::codegen::average::Average;
use bucketeer::codegen::cuda::{
    CudaModule, CudaOptions, FIXED_KERNEL, FIXED_PTX, KERNEL, digest, fixed_module, fixed_units,
};
use bucketeer::codegen::plan::LaunchPlan;
use bucketeer::codegen::transfer::Unit;
use bucketeer::ir::DType;
use bucketeer::passes::Pipeline;
use bucketeer::passes::lowering::{LowerOptions, lower};
use bucketeer::program::{Program, StepKind};
use kit::files;
use std::process::Command;

fn bucketed(text: &str, realise: bool) -> Program {
    let mut graph = bucketeer::ir::text::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let pipeline = "bucket-reduce-scatter{cap=none},bucket-all-reduce{cap=none},bucket-all-gather{cap=none}";
    pipeline.parse::<Pipeline>().unwrap().run(&mut graph).unwrap();
    lower(&graph, &LowerOptions { realise, ..LowerOptions::default() }).unwrap().0
}

fn module(program: &Program) -> CudaModule {
    CudaModule::of(program, &CudaOptions::default()).unwrap_or_else(|error| panic!("{error}\n{program}"))
}

/// A pack of one segment, written as in a program's text.
fn pack(segment: &str, buffers: &str) -> Program {
    let text = format!(
        "program p align 16 {{\n  group G0: 2\n{buffers}\n  s0 cat: pack {{\n    {segment}\n  }}\n  output () ()\n}}\n"
    );
    Program::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

const GATHERS: &str = "x = input f32[5]; y = input bf16[3, 4]\na = aten.to.dtype(x, torch.bfloat16) : bf16[5]\n\
     g = all_gather(a, G0:2); h = all_gather(y, G0:2, dim=1)\nw = wait(g); v = wait(h)\noutput(w, v)";

const SCATTERS: &str = "x = input f32[4, 2]; y = input f32[2, 3]\n\
     g = reduce_scatter(x, avg, G0:2); h = reduce_scatter(y, avg, G0:2)\nw = wait(g); v = wait(h)\noutput(w, v)";

#[test]
fn a_bucket_of_gathers_with_a_cast_and_columns_is_a_table_and_a_kernel() {
    let program = bucketed(GATHERS, true);
    kit::assert_snapshot!(module(&program).source());
}

#[test]
fn the_plan_says_what_a_host_does() {
    let program = bucketed(SCATTERS, true);
    let module = module(&program);
    kit::assert_snapshot!(LaunchPlan::of(&program, &module).to_json());
}

#[test]
fn a_step_without_bytes_is_no_launch_and_a_program_without_moves_has_no_kernel() {
    let none = module(&bucketed("x = input f32[5]\noutput(neg(x))", true));
    assert_eq!(none.launches(), []);
    assert!(!none.source().contains(KERNEL), "{}", none.source());
    let buffers = "  arena device 16 live 16\n  buffer a: input 0 align 16\n  buffer b: output 0 align 16 at 0:0\n  \
                   input a = f32[0] a";
    assert_eq!(module(&pack("f32[0] a -> f32[0] b", buffers)).launches(), []);
}

#[test]
fn units_are_as_wide_as_addresses_and_lengths_allow() {
    let units = |from: u64, to: u64, bytes: u64, align: u64| -> Vec<(Unit, u64)> {
        let buffers = format!(
            "  arena device 4096 live 4096\n  buffer a: input 1024 align {align}\n  buffer b: output 1024 align 16 at 0:0\n  \
             input a = u8[1024] a"
        );
        let program = pack(&format!("u8[{bytes}] a+{from} -> u8[{bytes}] b+{to}"), &buffers);
        module(&program).launches()[0].transfers.iter().map(|each| (each.unit, each.units())).collect()
    };
    let moved = |list: &[(u64, u64)]| -> Vec<(Unit, u64)> {
        list.iter().map(|&(bytes, units)| (Unit::Move(bytes), units)).collect()
    };
    assert_eq!(units(0, 0, 64, 16), moved(&[(16, 4)]));
    assert_eq!(units(0, 0, 63, 16), moved(&[(16, 3), (8, 1), (4, 1), (2, 1), (1, 1)]));
    // Both begin as far from a boundary: up to it first.
    assert_eq!(units(4, 20, 60, 16), moved(&[(4, 3), (16, 3)]));
    assert_eq!(units(4, 0, 60, 16), moved(&[(4, 15)]));
    assert_eq!(units(1, 0, 3, 16), moved(&[(1, 3)]));
    assert_eq!(units(0, 0, 64, 8), moved(&[(8, 8)]));
    assert_eq!(units(0, 0, 1, 16), moved(&[(1, 1)]));
}

#[test]
fn what_cannot_be_a_kernel_is_refused_by_name() {
    let buffers = "  arena device 4096 live 4096\n  buffer a: input 1024 align 16\n  buffer b: output 1024 align 16 at 0:0\n  \
                   input a = u8[1024] a";
    let refused = |segment: &str| CudaModule::of(&pack(segment, buffers), &CudaOptions::default()).unwrap_err();
    assert_eq!(refused("c64[4] a -> f32[4] b").to_string(), "`cat`: there is no conversion of complex64 to float32");
    // Nobody says that a's address is a multiple of four.
    let program =
        pack("f32[4] a -> bf16[4] b", &buffers.replace("1024 align 16\n  buffer b", "1024 align 2\n  buffer b"));
    assert_eq!(
        CudaModule::of(&program, &CudaOptions::default()).unwrap_err().to_string(),
        "`cat`: elements of 4 bytes in `a` lie at 2-byte boundaries; expected 4-byte ones"
    );
}

#[test]
fn averages_are_divided_by_packs_or_by_unpacks_and_then_summed() {
    let values = [3.0f32, -1.5, 0.1, f32::MAX, f32::NAN, 7.0, 1e-40, 5.0];
    let expected: Vec<u8> = values.iter().flat_map(|value| (value / 2.0).to_le_bytes()).collect();
    let unscaled: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let program = bucketed(SCATTERS, false);
    for (average, divided) in [(Average::Before, true), (Average::After, false), (Average::Collective, false)] {
        let module = CudaModule::of(&program, &CudaOptions { average }).unwrap();
        let plan = LaunchPlan::of(&program, &module).to_json();
        assert_eq!(module.summed().is_empty(), average == Average::Collective);
        assert_eq!(plan.contains("\"Avg\"") || plan.contains("\"avg\""), average == Average::Collective, "{plan}");
        // Only the pack runs, which is the first.
        let (mut bases, mut end) = (Vec::new(), 0u64);
        for buffer in &program.buffers {
            bases.push(end);
            end = (end + buffer.bytes).next_multiple_of(64);
        }
        let mut memory = vec![0; end as usize];
        let input = bases[program.buffers.iter().position(|buffer| &*buffer.name == "x").unwrap()] as usize;
        memory[input..input + 32].copy_from_slice(&unscaled);
        let anchors: Vec<u64> = module.anchors().iter().map(|anchor| bases[anchor.buffer.0 as usize]).collect();
        Host::new(&module).run(&mut memory, &anchors, &[0]);
        let comm = bases[program.buffers.iter().position(|buffer| buffer.name.contains("comm")).unwrap()] as usize;
        // Rank-major: rows of x for rank 0, then those for rank 1 one chunk further.
        let found = [&memory[comm..comm + 16], &memory[comm + 32..comm + 48]].concat();
        assert_eq!(found, if divided { expected.clone() } else { unscaled.clone() }, "{average:?}");
    }
}

#[test]
fn an_average_that_no_kernel_can_divide_is_refused_with_what_to_do() {
    // A producer writes into the bucket; the sum is read where it lies.
    let text = "x = input f32[4]; y = input f32[6]\na = relu(x); b = relu(y)\n\
                g = all_reduce(a, avg, G0:2); h = all_reduce(b, avg, G0:2)\noutput(neg(wait(g)), neg(wait(h)))";
    let of = |text: &str, realise, average| CudaModule::of(&bucketed(text, realise), &CudaOptions { average });
    let error = of(text, true, Average::Before).unwrap_err();
    assert!(matches!(error, TransferError::Average { .. }), "{error}");
    assert!(error.to_string().contains("written by packs; lower with realise off"), "{error}");
    assert!(of(text, false, Average::Before).is_ok());
    let error = of(text, false, Average::After).unwrap_err();
    assert!(error.to_string().contains("read where it lies, not only by unpacks; divide before"), "{error}");
    let integers = text.replace("f32", "i32");
    let error = of(&integers, false, Average::Before).unwrap_err();
    assert_eq!(
        error.to_string().split_once(": ").unwrap().1,
        "int32 is not divided by the number of ranks in a kernel; expected a float"
    );
}

/// Runs single blocks of a kernel on buffers of 2^33 elements that nobody touches elsewhere.
const SPARSE: &str = r#"
#include <stdio.h>
#include <sys/mman.h>

int main(void) {
    u64 bytes[2] = BYTES, at, checks[][4] = CHECKS;
    u8 *anchors[2];
    for (at = 0; at < 2; at++) {
        anchors[at] = mmap(0, bytes[at], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (anchors[at] == MAP_FAILED) return 77;
    }
    gridDim.x = BLOCKS;
    blockDim.x = 256;
    for (at = 0; at < sizeof checks / sizeof *checks; at++) {
        u64 *check = checks[at];
        anchors[0][check[1]] = (u8)check[3];
        blockIdx.x = (u32)check[0];
        for (threadIdx.x = 0; threadIdx.x < 256; threadIdx.x++) KERNEL(anchors, 0);
        if (anchors[1][check[2]] != check[3]) {
            printf("block %llu: byte %llu is %d\n", check[0], check[2], anchors[1][check[2]]);
            return 1;
        }
    }
    return 0;
}
"#;

/// For a segment from `a` to `b`, one block each: the number of the element that is followed, and where it is in both.
#[track_caller]
fn check_sparse(segment: &str, bytes: [u64; 2], per_tile: u64, elements: &[[u64; 3]]) {
    let buffers = format!(
        "  arena device {} live {}\n  buffer a: input {} align 16\n  buffer b: output {} align 16 at 0:0\n  \
         input a = u8[{}] a",
        bytes[1], bytes[1], bytes[0], bytes[1], bytes[0]
    );
    let program = pack(segment, &buffers);
    let module = module(&program);
    let checks: Vec<String> = elements
        .iter()
        .zip(1..)
        .map(|([element, from, to], mark)| format!("{{{}, {from}, {to}, {mark}}}", element / per_tile / 8))
        .collect();
    let blocks = module.launches()[0].tiles.div_ceil(8);
    let main = SPARSE
        .replace("BYTES", &format!("{{{}, {}}}", bytes[0], bytes[1]))
        .replace("CHECKS", &format!("{{{}}}", checks.join(", ")))
        .replace("BLOCKS", &blocks.to_string())
        .replace("KERNEL", KERNEL);
    let folder = Scratch::new();
    let ran = Command::new(compile(&folder, &format!("{SHIM}{}{main}", module.source()), &["-O1"])).output().unwrap();
    match ran.status.code() {
        Some(0) => {}
        Some(77) => eprintln!("skipped: there is no address space for 2^33 elements"),
        _ => panic!("{}", String::from_utf8_lossy(&ran.stdout)),
    }
}

#[test]
fn buckets_of_more_than_2_to_the_33_elements_are_indexed_rightly() {
    let n = (1 << 33) + 5u64;
    // A mark in the high byte of an f32 is one in the high byte of the bf16.
    check_sparse(
        &format!("f32[{n}] a -> bf16[{n}] b"),
        [4 * n, 2 * n],
        8 * 128,
        &[[0, 3, 1], [1 << 32, (4 << 32) + 3, (2 << 32) + 1], [n - 6, 4 * (n - 6) + 3, 2 * (n - 6) + 1]],
    );
    // Every second byte of two long rows: each unit is found by a division of 64 bits.
    let row = 2 * n + 7;
    check_sparse(
        &format!("u8[2, {n}][{row}, 2] a -> u8[2, {n}][{n}, 1] b"),
        [2 * row, 2 * n],
        128,
        &[[0, 0, 0], [n - 1, 2 * (n - 1), n - 1], [n, row, n], [2 * n - 1, row + 2 * (n - 1), 2 * n - 1]],
    );
}

#[test]
fn the_fixed_source_compiles_for_the_host_and_knows_the_common_units() {
    let folder = Scratch::new();
    compile(&folder, &format!("{SHIM}{}", fixed_module()), &["-O0", "-c"]);
    let program = bucketed(GATHERS, true);
    for launch in module(&program).launches() {
        let tables = CudaModule::fixed_tables(launch).expect("casts of f32 to bf16 are common");
        assert_eq!((tables.count, tables.tiles), (launch.transfers.len() as u64, launch.tiles));
    }
    let rare = bucketed(&GATHERS.replace("torch.bfloat16", "torch.float8_e5m2").replace("bf16[5]", "f8e5m2[5]"), true);
    let known = |unit: &Unit| fixed_units().contains(unit);
    let all = module(&rare).launches().iter().all(|launch| launch.transfers.iter().all(|each| known(&each.unit)));
    let any = module(&rare).launches().iter().any(|launch| CudaModule::fixed_tables(launch).is_none());
    assert_eq!(all, !any);
}

#[test]
fn every_pack_and_unpack_of_real_graphs_is_a_kernel_that_compiles() {
    let mut seen = 0;
    for path in files::fx() {
        for mut graph in files::graphs(&path) {
            Pipeline::default_rewrite().run(&mut graph).unwrap();
            // Some lack the sizes of groups or symbols.
            let Ok((program, _)) = lower(&graph, &LowerOptions::default()) else { continue };
            let module = module(&program);
            let moves = |kind: &StepKind| matches!(kind, StepKind::Pack(_) | StepKind::Unpack(_) | StepKind::Copy(_));
            assert_eq!(module.launches().len(), program.steps.iter().filter(|step| moves(&step.kind)).count());
            let folder = Scratch::new();
            compile(&folder, &format!("{SHIM}{}", module.source()), &["-O0", "-c"]);
            seen += 1;
        }
    }
    assert!(seen >= 12, "{seen}");
}

#[test]
fn every_dtype_moves_as_it_is() {
    let buffers = "  arena device 4096 live 4096\n  buffer a: input 1024 align 16\n  buffer b: output 1024 align 16 at 0:0\n  \
                   input a = u8[1024] a";
    for &dtype in DType::ALL {
        let word = dtype.short_name();
        let module = module(&pack(&format!("{word}[16] a -> {word}[16] b"), buffers));
        let launches = module.launches();
        let units: Vec<Unit> = launches[0].transfers.iter().map(|each| each.unit).collect();
        assert_eq!(units, [Unit::Move(16)], "{word}");
        assert_eq!(launches[0].moved_bytes, 32 * dtype.bytes(), "{word}");
    }
}

#[test]
fn the_ptx_that_is_shipped_is_of_the_source_and_of_a_version_that_old_drivers_know() {
    let first = FIXED_PTX.lines().next().unwrap();
    let expected = format!("// source {:016x}", digest(&fixed_module()));
    assert_eq!(first, expected, "run scripts/fixed-ptx");
    for line in [".version 8.1", ".target sm_80", ".address_size 64"] {
        assert!(FIXED_PTX.lines().any(|found| found == line), "{line}");
    }
    assert!(FIXED_PTX.contains(&format!(".visible .entry {FIXED_KERNEL}(")));
}
