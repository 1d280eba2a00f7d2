//! Cases of collectives as data, written once for every backend, with a plain reference of what they give.

use bucketeer::ir::{DType, GlobalRank, GroupRank, ReduceOp};
use bucketeer_comm::{Arena, Backend, Buffer, Call, CallOptions, CommError, Group, Op, Operands, Reduction, Work};
use bucketeer_types::{class, num};

const COUNTS: [usize; 4] = [0, 1, 5, 67];

/// What is called; ranks and parts follow from the group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Every rank gets the reduction of all inputs.
    AllReduce(Reduction),
    /// Every rank gets all inputs, by rank.
    AllGather,
    /// Each rank gets its part of the reduction.
    ReduceScatter(Reduction),
    /// All get what one has.
    Broadcast {
        /// Who has it.
        root: usize,
    },
    /// One gets the reduction.
    Reduce {
        /// How.
        op: Reduction,
        /// Who gets it.
        root: usize,
    },
    /// Equal parts of `count` elements.
    AllToAll,
    /// Rank r sends `(r + 2 s) mod 4` times `count` elements to rank s, so that some parts are empty.
    UnevenAllToAll,
}

/// One call, the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What is called.
    pub kind: Kind,
    /// Of all elements.
    pub dtype: DType,
    /// Elements that each rank gives; for a scatter, that each gets; for an all-to-all, of a part.
    pub count: usize,
    /// Whether the output is where the input was.
    pub in_place: bool,
}

/// All reductions that a dtype has.
pub fn reductions(dtype: DType) -> Vec<Reduction> {
    let basic = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max];
    let bits = [ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor];
    let list = |ops: &[ReduceOp]| ops.iter().map(|op| Reduction::Op(*op)).collect::<Vec<_>>();
    match class::class(dtype) {
        _ if class::is_fp8(dtype) => Vec::new(),
        class::Class::Opaque => Vec::new(),
        class::Class::Float => [list(&basic), vec![Reduction::PreMulSum { factor: 0.3 }]].concat(),
        class::Class::Int | class::Class::Bool => [list(&basic), list(&bits)].concat(),
    }
}

/// Whether NCCL has a word for a reduction of a dtype.
fn is_reduced(dtype: DType, op: Reduction) -> bool {
    let bitwise = matches!(op, Reduction::Op(ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor));
    match dtype {
        DType::Bool => op != Reduction::Op(ReduceOp::BitXor),
        DType::I16 | DType::U16 => false,
        _ => !bitwise,
    }
}

/// All kinds of collectives, with the reductions of a dtype that a backend has.
fn kinds(dtype: DType, size: usize, has: impl Fn(Reduction) -> bool) -> Vec<Kind> {
    let mut kinds = vec![Kind::AllGather, Kind::Broadcast { root: size - 1 }, Kind::AllToAll, Kind::UnevenAllToAll];
    for op in reductions(dtype).into_iter().filter(|op| has(*op)) {
        kinds.extend([Kind::AllReduce(op), Kind::ReduceScatter(op), Kind::Reduce { op, root: size / 2 }]);
    }
    kinds
}

/// The same for NCCL.
pub fn nccl_kinds(dtype: DType, size: usize) -> Vec<Kind> {
    kinds(dtype, size, |op| is_reduced(dtype, op))
}

/// These kinds with these lengths, in and out of place.
pub fn cases_of(dtype: DType, kinds: Vec<Kind>, counts: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in kinds {
        for &count in counts {
            for in_place in [false, true] {
                if !in_place || Case::can_be_in_place(kind) {
                    cases.push(Case { kind, dtype, count, in_place });
                }
            }
        }
    }
    cases
}

fn rows(from: usize, to: usize) -> usize {
    (from + 2 * to) % 4
}

impl Case {
    fn width(&self) -> usize {
        self.dtype.bytes() as usize
    }

    /// Elements that each rank sends to each.
    fn parts(&self, from: usize, size: usize) -> Vec<usize> {
        let part = |to| if self.kind == Kind::UnevenAllToAll { rows(from, to) * self.count } else { self.count };
        (0..size).map(part).collect()
    }

    /// Elements of a rank's input and output.
    fn lengths(&self, place: usize, size: usize) -> (usize, usize) {
        match self.kind {
            Kind::AllGather => (self.count, self.count * size),
            Kind::ReduceScatter(_) => (self.count * size, self.count),
            Kind::AllToAll | Kind::UnevenAllToAll => {
                let received = (0..size).map(|from| self.parts(from, size)[place]).sum();
                (self.parts(place, size).iter().sum(), received)
            }
            _ => (self.count, self.count),
        }
    }

    /// A rank's input: any bits, NaNs and all. `tame` data has no NaN and is small.
    pub fn input(&self, seed: u64, place: usize, size: usize, tame: bool) -> Vec<u8> {
        let elements = self.lengths(place, size).0;
        let mut random = Random::new(seed ^ (place as u64) << 32 ^ (self.dtype as u64) << 16 ^ self.count as u64);
        let mut bytes = Vec::with_capacity(elements * self.width());
        for _ in 0..elements {
            if !tame && random.below(4) == 0 {
                bytes.extend((0..self.width()).map(|_| random.below(256) as u8));
            } else if self.dtype == DType::Bool {
                bytes.push(random.below(2) as u8);
            } else if class::class(self.dtype) == class::Class::Float {
                num::store_float(self.dtype, (random.below(2000) as f64 - 1000.0) / 64.0, &mut bytes);
            } else {
                bytes.extend((0..self.width()).map(|at| if at == 0 { random.below(100) as u8 } else { 0 }));
            }
        }
        bytes
    }

    /// What the rank at `place` has in its output afterwards.
    pub fn expected(&self, inputs: &[Vec<u8>], place: usize) -> Vec<u8> {
        let size = inputs.len();
        match self.kind {
            Kind::AllReduce(op) => reduce(op, self.dtype, inputs),
            Kind::AllGather => inputs.concat(),
            Kind::ReduceScatter(op) => {
                let part = self.count * self.width();
                reduce(op, self.dtype, inputs)[place * part..(place + 1) * part].to_vec()
            }
            Kind::Broadcast { root } => inputs[root].clone(),
            Kind::Reduce { op, root } if root == place => reduce(op, self.dtype, inputs),
            Kind::Reduce { .. } => inputs[place].clone(),
            Kind::AllToAll | Kind::UnevenAllToAll => {
                let part = |from: usize| {
                    let parts = self.parts(from, size);
                    let start: usize = parts[..place].iter().sum();
                    &inputs[from][start * self.width()..(start + parts[place]) * self.width()]
                };
                (0..size).map(part).collect::<Vec<_>>().concat()
            }
        }
    }

    /// Whether the case exists in place.
    pub fn can_be_in_place(kind: Kind) -> bool {
        !matches!(kind, Kind::AllToAll | Kind::UnevenAllToAll)
    }

    /// Bytes of memory that [`buffers`](Self::buffers) takes.
    pub fn memory(&self, size: usize) -> u64 {
        let most = (0..size).map(|place| self.lengths(place, size)).map(|(i, o)| i + o).max().unwrap_or(0);
        (most * self.width()) as u64 + 3
    }

    /// The input, filled, and the output. The output begins at an odd byte, as nothing asks for alignment.
    pub fn buffers(&self, arena: &Arena, offset: u64, input: &[u8], place: usize, size: usize) -> (Buffer, Buffer) {
        let (from, to) = self.lengths(place, size);
        let (from, to) = ((from * self.width()) as u64, (to * self.width()) as u64);
        let (source, target) = match self.kind {
            _ if !self.in_place => (arena.buffer(offset, from).unwrap(), arena.buffer(offset + from + 3, to).unwrap()),
            Kind::AllGather => {
                let target = arena.buffer(offset + 3, to).unwrap();
                (target.part(from * place as u64, from).unwrap(), target)
            }
            Kind::ReduceScatter(_) => {
                let source = arena.buffer(offset, from).unwrap();
                let target = source.part(to * place as u64, to).unwrap();
                (source, target)
            }
            _ => {
                let both = arena.buffer(offset, from).unwrap();
                (both.clone(), both)
            }
        };
        source.write().unwrap().copy_from_slice(input);
        (source, target)
    }

    /// The call of the rank at `place`.
    pub fn call(&self, input: Buffer, output: Buffer, place: usize, size: usize) -> Call {
        let elements = |parts: Vec<usize>| parts.into_iter().map(|part| part as u64).collect::<Vec<_>>();
        let op = match self.kind {
            Kind::AllReduce(op) => Op::AllReduce(op),
            Kind::AllGather => Op::AllGather,
            Kind::ReduceScatter(op) => Op::ReduceScatter(op),
            Kind::Broadcast { root } => Op::Broadcast { root: GroupRank(root as u32) },
            Kind::Reduce { op, root } => Op::Reduce { op, root: GroupRank(root as u32) },
            Kind::AllToAll => Op::AllToAll { send: Vec::new(), receive: Vec::new() },
            Kind::UnevenAllToAll => Op::AllToAll {
                send: elements(self.parts(place, size)),
                receive: elements((0..size).map(|from| self.parts(from, size)[place]).collect()),
            },
        };
        Call::collective(op, Operands::new(input, output, self.dtype))
    }
}

/// Reduces in rank order with the reference evaluator's arithmetic.
fn reduce(op: Reduction, dtype: DType, inputs: &[Vec<u8>]) -> Vec<u8> {
    let width = dtype.bytes() as usize;
    let plain = match op {
        Reduction::Op(op) => op,
        Reduction::PreMulSum { .. } => ReduceOp::Sum,
    };
    let scaled: Vec<Vec<u8>> = inputs.iter().map(|input| scale(op, dtype, input)).collect();
    let mut total = scaled[0].clone();
    for input in &scaled[1..] {
        let mut next = Vec::new();
        for (left, right) in total.chunks_exact(width).zip(input.chunks_exact(width)) {
            num::combine(plain, dtype, left, right, &mut next);
        }
        total = next;
    }
    if op == Reduction::Op(ReduceOp::Avg) && dtype != DType::Bool {
        let mut out = Vec::new();
        for element in total.chunks_exact(width) {
            match class::class(dtype) {
                class::Class::Float => {
                    num::store_float(dtype, num::load_float(dtype, element) / inputs.len() as f64, &mut out);
                }
                _ => num::store_int(dtype, num::load_int(dtype, element) / inputs.len() as i128, &mut out),
            }
        }
        total = out;
    }
    total
}

fn scale(op: Reduction, dtype: DType, input: &[u8]) -> Vec<u8> {
    let Reduction::PreMulSum { factor } = op else { return input.to_vec() };
    let mut rounded = Vec::new();
    num::store_float(dtype, factor, &mut rounded);
    let mut out = Vec::new();
    for element in input.chunks_exact(dtype.bytes() as usize) {
        num::combine(ReduceOp::Product, dtype, element, &rounded, &mut out);
    }
    out
}

/// All kinds and reductions of a dtype, in and out of place.
pub fn cases(dtype: DType, size: usize) -> Vec<Case> {
    cases_of(dtype, kinds(dtype, size, |_| true), &COUNTS)
}

/// Launches cases one after another, waits for all, and returns the outputs. `coalesced`: all in one block.
pub fn run_cases(
    backend: &dyn Backend,
    group: &Group,
    cases: &[Case],
    inputs: impl Fn(usize, &Case) -> Vec<u8>,
    coalesced: bool,
) -> Result<Vec<Vec<u8>>, CommError> {
    let (place, size) = (group.rank().0 as usize, group.size());
    let arena = backend.arena(cases.iter().map(|case| case.memory(size)).sum()).expect("the cases are small");
    let options = CallOptions::default();
    let (mut offset, mut works, mut outputs) = (0, Vec::<Work>::new(), Vec::new());
    if coalesced {
        backend.start_coalescing(group)?;
    }
    for (index, case) in cases.iter().enumerate() {
        let (input, output) = case.buffers(&arena, offset, &inputs(index, case), place, size);
        offset += case.memory(size);
        works.push(backend.launch(group, case.call(input, output.clone(), place, size), &options)?);
        outputs.push(output);
    }
    if coalesced {
        works = vec![backend.end_coalescing(group, &options)?];
    }
    for work in works {
        work.wait(None)?;
        assert!(work.is_done());
    }
    Ok(outputs.iter().map(|output| output.read().expect("all calls are done").to_vec()).collect())
}

/// The first ranks of the world.
pub fn ranks(size: usize) -> Vec<GlobalRank> {
    (0..size as u32).map(GlobalRank).collect()
}

/// Numbers from a seed (PCG's constants).
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1))
    }

    /// The next number, below a bound.
    pub fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}
