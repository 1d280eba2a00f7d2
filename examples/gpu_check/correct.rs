//! Buckets of odd layouts and all dtypes, on the device and on the host.

use crate::bound::{Bound, Numbers};
use bucketeer::codegen::cuda::{CudaModule, CudaOptions, fixed_units};
use bucketeer::ir::DType;
use bucketeer::program::{Program, Segment, StepKind, View};
use bucketeer_cuda::Context;
use bucketeer_cuda::nvrtc::{Nvrtc, NvrtcError};
use bucketeer_exec::copy_elements;
use bucketeer_types::num;
use std::error::Error;

/// Bytes of both buffers of a bucket.
const BYTES: u64 = 1 << 20;

/// A pack of one buffer into another, as a program's text: segments lie behind each other in the target.
fn bucket(numbers: &mut Numbers, dtypes: &[(DType, DType)]) -> String {
    let (mut segments, mut at) = (String::new(), 0u64);
    for &(from, to) in dtypes {
        let (width, to_width) = (from.bytes(), to.bytes());
        let shape: Vec<u64> = match numbers.below(4) {
            0 => vec![1 + numbers.below(9000)],
            1 => vec![1 + numbers.below(8), 1 + numbers.below(600)],
            2 => vec![1 + numbers.below(5), 1 + numbers.below(9), 1 + numbers.below(40)],
            _ => vec![2048 + numbers.below(5)],
        };
        // Rows with gaps, in the source from the last dimension or from the first.
        let mut strides = vec![0; shape.len()];
        let mut step = 1 + numbers.below(2) * numbers.below(3);
        let turned = numbers.below(3) == 0;
        for nth in 0..shape.len() {
            let dim = if turned { nth } else { shape.len() - 1 - nth };
            strides[dim] = step;
            step = step * shape[dim] + numbers.below(3);
        }
        let offset = width * numbers.below(40);
        at = at.next_multiple_of(if numbers.below(2) == 0 { 16 } else { to_width });
        if at + shape.iter().product::<u64>() * to_width > BYTES || offset + step * width > BYTES {
            continue;
        }
        segments += &format!(
            "    {}{shape:?}{strides:?} a+{offset} -> {}{shape:?} b+{at}\n",
            from.short_name(),
            to.short_name()
        );
        at += shape.iter().product::<u64>() * to_width + numbers.below(30);
    }
    let zeros = at.next_multiple_of(4);
    format!(
        "program check align 16 {{\n  arena device {BYTES} live {BYTES}\n  buffer a: input {BYTES} align 16\n  \
         buffer b: output {BYTES} align 16 at 0:0\n  input a = u8[{BYTES}] a\n  s0 cat: pack {{\n{segments}    \
         zero b+{zeros} for {}\n  }}\n  output () ()\n}}\n",
        (BYTES - zeros).min(77)
    )
}

/// Runs so many buckets; returns how many could be run. The fixed kernel cannot run all.
pub fn check(context: &Context, nvrtc: Result<&Nvrtc, &NvrtcError>, count: u64) -> Result<usize, Box<dyn Error>> {
    let pairs: Vec<(DType, DType)> = DType::ALL
        .iter()
        .flat_map(|from| DType::ALL.iter().map(move |to| (*from, *to)))
        .filter(|(from, to)| num::convert(*from, *to, &[]).is_some())
        .collect();
    let mut run = 0;
    for seed in 0..count {
        let mut numbers = Numbers::new(seed);
        let common = [DType::F32, DType::Bf16, DType::F16];
        let dtypes: Vec<(DType, DType)> = (0..12)
            .map(|_| match seed % 2 {
                // Pairs that the fixed kernel knows as well.
                0 => {
                    let other = common[numbers.below(3) as usize];
                    let swap = numbers.below(2) == 0;
                    if swap { (DType::F32, other) } else { (other, DType::F32) }
                }
                _ => pairs[numbers.below(pairs.len() as u64) as usize],
            })
            .collect();
        let text = bucket(&mut numbers, &dtypes);
        let program = Program::parse(&text).map_err(|error| format!("{error}\n{text}"))?;
        let module = CudaModule::of(&program, &CudaOptions::default())?;
        let known = fixed_units();
        if nvrtc.is_err() && module.units().any(|unit| !known.contains(unit)) {
            continue;
        }
        let bound = Bound::new(context, &text, nvrtc)?;
        let bytes = |numbers: &mut Numbers| -> Vec<u8> { (0..BYTES).map(|_| numbers.below(256) as u8).collect() };
        let (source, mut expected) = (bytes(&mut numbers), bytes(&mut numbers));
        bound.stream.upload(&source, &bound.buffers[0], 0)?;
        bound.stream.upload(&expected, &bound.buffers[1], 0)?;
        (0..bound.launches).try_for_each(|launch| bound.launch(launch))?;
        let mut found = vec![0; BYTES as usize];
        bound.stream.download(&bound.buffers[1], 0, &mut found)?;
        on_host(&program, &source, &mut expected)?;
        if let Some(at) = found.iter().zip(&expected).position(|(found, expected)| found != expected) {
            return Err(format!("seed {seed}: byte {at} is {:#x}, not {:#x}\n{text}", found[at], expected[at]).into());
        }
        run += 1;
    }
    Ok(run)
}

fn on_host(program: &Program, source: &[u8], target: &mut [u8]) -> Result<(), Box<dyn Error>> {
    let StepKind::Pack(moves) = &program.steps[0].kind else { return Err("the first step is a pack".into()) };
    let layout = |view: View| program.layout(view.layout);
    for Segment { from, to } in &moves.segments {
        copy_elements(&source[from.offset as usize..], layout(*from), &mut target[to.offset as usize..], layout(*to))?;
    }
    for zeros in &moves.zeros {
        target[zeros.offset as usize..(zeros.offset + zeros.bytes) as usize].fill(0);
    }
    Ok(())
}
