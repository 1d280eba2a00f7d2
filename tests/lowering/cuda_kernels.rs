//! The emitted kernels, run on the host, against copies by the executor: bit for bit, and nothing else is touched.

use crate::host::Host;
use bucketeer::codegen::cuda::{CudaModule, CudaOptions};
use bucketeer::ir::DType;
use bucketeer::program::{
    Buffer, BufferId, BufferKind, Layout, LayoutId, Moves, Program, Range, Segment, Step, StepKind, Stream, View,
};
use bucketeer_exec::copy_elements;
use bucketeer_types::num;
use kit::collective::Random;
use proptest::prelude::*;

const DTYPES: [DType; 20] = [
    DType::F32,
    DType::Bf16,
    DType::F16,
    DType::F64,
    DType::F8E4m3fn,
    DType::F8E5m2,
    DType::F8E4m3fnuz,
    DType::F8E5m2fnuz,
    DType::F8E8m0fnu,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool,
    DType::C64,
    DType::C128,
];

/// A program of packs, and the memory that it runs on.
struct Buckets {
    program: Program,
    /// Where each buffer begins.
    bases: Vec<u64>,
    memory: Vec<u8>,
    random: Random,
}

/// Bytes around buffers that nothing may touch.
const GUARD_BYTES: u64 = 64;

impl Buckets {
    fn new(seed: u64) -> Self {
        let program = Program { name: "random".to_owned(), align_bytes: 16, ..Program::default() };
        Self { program, bases: Vec::new(), memory: Vec::new(), random: Random::new(seed) }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    /// A buffer that is aligned as it says, and no better.
    fn buffer(&mut self, bytes: u64, align: u64) -> BufferId {
        let id = BufferId(self.program.buffers.len() as u32);
        let mut base = (self.memory.len() as u64 + GUARD_BYTES).next_multiple_of(align);
        if base.is_multiple_of(2 * align) {
            base += align;
        }
        let end = (base + bytes + GUARD_BYTES) as usize;
        while self.memory.len() < end {
            let bits = self.element_bits();
            self.memory.extend(bits.to_le_bytes());
        }
        self.bases.push(base);
        self.program.buffers.push(Buffer {
            name: format!("b{}", id.0).into(),
            bytes,
            align,
            kind: BufferKind::Device,
            device: None,
            group: None,
            place: None,
        });
        id
    }

    /// Any bits, and often what is hard to convert: ties, subnormals, infinities, NaNs with payloads.
    fn element_bits(&mut self) -> u64 {
        const HARD: [u64; 16] = [
            0x7fc0_0001_7fc0_0001,
            0xff80_0001_7f80_0000,
            0xff80_0000_3f80_8000,
            0x3f81_8000_8000_0000,
            0x0000_8000_0001_8000,
            0x3f80_1000_3f80_3000,
            0x477f_efff_477f_f000,
            0x3300_0000_3300_0001,
            0x7f7f_ffff_0000_0001,
            0x7ff8_0000_0000_0001,
            0x43e0_0000_0000_0000,
            0xc7e0_0000_0000_0001,
            0x3fe0_0000_0000_0000,
            0x3a80_0000_3a80_0001,
            0x43e0_0000_43e8_0000,
            0x7c00_7e01_fc00_0001,
        ];
        match self.below(3) {
            0 => HARD[self.below(16) as usize],
            _ => (0..4).fold(0, |bits, _| bits << 16 | self.below(1 << 16)),
        }
    }

    fn layout(&mut self, dtype: DType, shape: &[u64], strides: &[u64]) -> LayoutId {
        self.program.layouts.push(Layout { dtype, shape: shape.into(), strides: strides.into() });
        LayoutId(self.program.layouts.len() as u32 - 1)
    }

    /// Strides of a tensor in any order of its dimensions, with gaps; a source may repeat or overlap.
    fn strides(&mut self, shape: &[u64], source: bool) -> Vec<u64> {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if self.below(3) == 0 {
            order.sort_by_cached_key(|_| self.random.below(1 << 30));
        }
        let mut strides = vec![0; shape.len()];
        let mut step = 1;
        for &dim in order.iter().rev() {
            let gap = if self.below(3) == 0 { self.below(4) } else { 0 };
            strides[dim] = step + gap;
            step = strides[dim] * shape[dim].max(1);
        }
        if source
            && self.below(8) == 0
            && let Some(last) = strides.last_mut()
        {
            *last = self.random.below(3);
        }
        strides
    }

    fn shape(&mut self) -> Vec<u64> {
        match self.below(8) {
            // Long runs, around the sizes of units and tiles.
            0..3 => vec![self.below(3000)],
            3 => vec![1 + self.below(4), 1 + self.below(700)],
            4 => vec![2048 + self.below(20)],
            5 => vec![],
            _ => (0..1 + self.below(4)).map(|_| self.random.below(9)).collect(),
        }
    }

    /// A view in a new buffer, at any offset that the element's size allows; so large a part of it.
    fn view(&mut self, dtype: DType, shape: &[u64], converts: bool, source: bool) -> View {
        let strides = self.strides(shape, source);
        let layout = self.layout(dtype, shape, &strides);
        let span = self.program.layout(layout).span_bytes().unwrap();
        // Bytes that are only moved may lie anywhere.
        let step = if converts || self.below(2) == 0 { dtype.bytes() } else { 1 };
        let offset = step * self.below(40);
        let align = [16, 16, 64, 256, 1, 8][self.below(6) as usize];
        let align = if converts { align.max(dtype.bytes()) } else { align };
        let tail = self.below(20);
        let buffer = self.buffer(offset + span + tail, align);
        View { buffer, layout, offset, rank_bytes: 0 }
    }

    fn segment(&mut self) -> Segment {
        let shape = self.shape();
        let (from, to) = loop {
            let pick = |random: &mut Random| DTYPES[(random.below(20) * random.below(20) / 20) as usize];
            let from = pick(&mut self.random);
            let to = if self.below(2) == 0 { from } else { pick(&mut self.random) };
            if num::convert(from, to, &[]).is_some() {
                break (from, to);
            }
        };
        let from_view = self.view(from, &shape, from != to, true);
        Segment { from: from_view, to: self.view(to, &shape, from != to, false) }
    }

    fn step(&mut self) {
        let segments = (0..self.below(6)).map(|_| self.segment()).collect();
        let mut zeros = Vec::new();
        for _ in 0..self.below(3) {
            let (offset, bytes) = (self.below(40), self.below(90));
            let buffer = self.buffer(offset + bytes, 16);
            zeros.push(Range { buffer, offset, bytes, rank_bytes: 0 });
        }
        let kind = StepKind::Pack(Moves { segments, zeros });
        let node = format!("bucket.{}", self.program.steps.len()).into();
        self.program.steps.push(Step { node, stream: Stream::Compute, after: Default::default(), kind });
    }

    /// What the memory should be after a step.
    fn expect(&self, step: usize, memory: &mut [u8]) {
        let StepKind::Pack(moves) = &self.program.steps[step].kind else { unreachable!() };
        let at = |view: View| (self.bases[view.buffer.0 as usize] + view.offset) as usize;
        for Segment { from, to } in &moves.segments {
            let source = memory[at(*from)..].to_vec();
            let (from, to_layout) = (self.program.layout(from.layout), self.program.layout(to.layout));
            copy_elements(&source, from, &mut memory[at(*to)..], to_layout).unwrap();
        }
        for zeros in &moves.zeros {
            let first = (self.bases[zeros.buffer.0 as usize] + zeros.offset) as usize;
            memory[first..first + zeros.bytes as usize].fill(0);
        }
    }

    /// The kernels of all steps against the executor's copies.
    fn check(&self) {
        let module = CudaModule::of(&self.program, &CudaOptions::default()).unwrap();
        assert_eq!(module, CudaModule::of(&self.program, &CudaOptions::default()).unwrap());
        let anchors: Vec<u64> = module.anchors().iter().map(|anchor| self.bases[anchor.buffer.0 as usize]).collect();
        let mut expected = self.memory.clone();
        (0..self.program.steps.len()).for_each(|step| self.expect(step, &mut expected));
        let mut memory = self.memory.clone();
        let all: Vec<usize> = (0..module.launches().len()).collect();
        Host::new(&module).run(&mut memory, &anchors, &all);
        if memory != expected {
            let at = memory.iter().zip(&expected).position(|(found, expected)| found != expected).unwrap() as u64;
            let buffer = self.bases.iter().rposition(|base| base + GUARD_BYTES <= at + GUARD_BYTES && *base <= at);
            panic!(
                "byte {at} is {:#x}, not {:#x}; in or behind {:?}\n{}",
                memory[at as usize],
                expected[at as usize],
                buffer.map(|buffer| (&self.program.buffers[buffer].name, at - self.bases[buffer])),
                self.program
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 25, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    /// 1,000 buckets, 40 of which are one module.
    #[test]
    fn random_buckets_are_moved_as_the_executor_moves_them_and_nothing_else_is_touched(seed in any::<u64>()) {
        let mut buckets = Buckets::new(seed);
        (0..40).for_each(|_| buckets.step());
        buckets.check();
    }
}
