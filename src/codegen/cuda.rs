//! Packs, unpacks and copies as CUDA C++.
//!
//! [`CudaModule::of`] writes one source for a program: a table of segments for each step, and a kernel that walks over it.
//!
//! - **One launch for each step**, whatever the number and sizes of its segments. A warp takes a tile of one segment: up to
//!   128 units of up to 16 bytes. Small segments take a tile each, so a block of eight warps moves eight of them; warps go
//!   on to tiles further on (grid stride) until none is left. All indices of units and bytes have 64 bits.
//! - **Addresses** are bases from a table on the device, `anchors`, plus offsets that are the same on every rank; so is the
//!   source.
//! - **No header** is included, and what is common to C and C++ suffices: NVRTC compiles it by itself, and a C compiler
//!   compiles it for the host, where tests run it (threads and blocks as loops).
//! - **Conversions** are done on bits, so that they are the same everywhere: to nearest, ties to even, every NaN the canonical
//!   one; to two bytes and less by way of `f32`. As the evaluator does.
//!
//! [`fixed_module`] is the same for a table that is given to the kernel, with the most common units: for machines without
//! NVRTC it is compiled beforehand.

mod numbers;
mod tables;
mod units;

use super::transfer::{Anchor, Anchors, Conversion, Cutter, Transfer, TransferError, Unit};
use crate::ir::DType;
use crate::program::{Moves, Program, StepId, StepKind};
use indexmap::IndexSet;
use std::fmt::Write as _;

pub use tables::{LOOP_BYTES, SEGMENT_BYTES, Tables};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Threads of a warp.
const LANES: u32 = 32;
/// Units that a thread moves of a tile.
const EACH: u32 = 4;
/// Units of a tile.
pub const TILE_UNITS: u64 = (LANES * EACH) as u64;
/// Warps of a block: tiles that it moves at once.
pub const WARPS: u64 = (THREADS / LANES) as u64;

/// How kernels are written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CudaOptions {
    /// Who divides averages.
    pub average: super::average::Average,
}

/// A kernel: one step of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaKernel {
    /// Its name in the source.
    pub name: String,
    /// Index of the step.
    pub step: u32,
    /// What it moves, in the order of the table.
    pub transfers: Vec<Transfer>,
    /// Tiles: warps that have something to do.
    pub tiles: u64,
    /// Bytes read and written.
    pub moved_bytes: u64,
}

impl CudaKernel {
    /// Blocks for a launch on a device that runs so many at once; more would find nothing to do.
    #[must_use]
    pub fn blocks(&self, most: u32) -> u32 {
        self.tiles.div_ceil(WARPS).min(u64::from(most.max(1))) as u32
    }
}

/// The source for one program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaModule {
    /// CUDA C++.
    pub source: String,
    /// One for each pack, unpack and copy that moves anything, in step order.
    pub kernels: Vec<CudaKernel>,
    /// What the entries of the kernels' parameter `anchors` are.
    pub anchors: Vec<Anchor>,
    /// Averages that the kernels divide: these collectives sum.
    pub summed: Vec<StepId>,
    /// Units of the source, by the number that the tables use.
    units: IndexSet<Unit>,
}

impl CudaModule {
    /// Writes the source for all packs, unpacks and copies of a program. The same program gives the same bytes.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn of(program: &Program, options: &CudaOptions) -> Result<Self, TransferError> {
        let divisors = options.average.divisors(program)?;
        let mut anchors = Anchors::default();
        let mut kernels = Vec::new();
        for (index, step) in program.steps.iter().enumerate() {
            let mut cutter = Cutter::new(program, &step.node, &mut anchors);
            let divisor = |nth: usize| divisors.of(index, nth);
            let word = match &step.kind {
                StepKind::Pack(moves) => cut_moves(&mut cutter, moves, divisor, "pack")?,
                StepKind::Unpack(moves) => cut_moves(&mut cutter, moves, divisor, "unpack")?,
                StepKind::Copy(segment) => {
                    cutter.segment(segment, divisor(0))?;
                    "copy"
                }
                StepKind::Collective(_) | StepKind::Wait(_) | StepKind::Compute(_) => continue,
            };
            let transfers = cutter.done();
            if transfers.is_empty() {
                continue;
            }
            kernels.push(CudaKernel {
                name: format!("{word}_{index}_{}", identifier(&step.node)),
                step: index as u32,
                tiles: transfers.iter().map(tables::tiles).sum(),
                moved_bytes: transfers.iter().map(moved_bytes).sum(),
                transfers,
            });
        }
        let units: IndexSet<Unit> = kernels.iter().flat_map(|kernel| &kernel.transfers).map(|each| each.unit).collect();
        let anchors = anchors.list();
        let source = source(program, &kernels, &anchors, &units);
        Ok(Self { source, kernels, anchors, summed: divisors.summed, units })
    }
}

fn cut_moves(
    cutter: &mut Cutter<'_>,
    moves: &Moves,
    divisor: impl Fn(usize) -> u32,
    word: &'static str,
) -> Result<&'static str, TransferError> {
    for (nth, segment) in moves.segments.iter().enumerate() {
        cutter.segment(segment, divisor(nth))?;
    }
    moves.zeros.iter().for_each(|&range| cutter.zero(range));
    Ok(word)
}

/// Bytes that a transfer reads and writes.
fn moved_bytes(transfer: &Transfer) -> u64 {
    let each = match transfer.unit {
        Unit::Move(bytes) => 2 * bytes,
        Unit::Zero(bytes) => bytes,
        Unit::Convert(unit) => unit.elements * (unit.from.bytes() + unit.to.bytes()),
    };
    each.saturating_mul(transfer.units())
}

/// A name as far as C knows it.
fn identifier(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// A text that is safe in a comment.
fn comment(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_ascii_graphic() && !matches!(c, '*' | '/' | '\\') || c == ' ' { c } else { '?' })
        .collect()
}

fn source(program: &Program, kernels: &[CudaKernel], anchors: &[Anchor], units: &IndexSet<Unit>) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "// Packs, unpacks and copies of program `{}`.", comment(&program.name));
    text.push_str("//\n// Every kernel takes `anchors`, a table of addresses on the device:\n");
    for (index, anchor) in anchors.iter().enumerate() {
        let name = comment(&program.buffer(anchor.buffer).name);
        let rank = match anchor.rank_bytes {
            0 => String::new(),
            bytes => format!(" + {bytes} * the rank's place in its group"),
        };
        let _ = writeln!(text, "//   {index}: {name}{rank}");
    }
    head(&mut text, units);
    for kernel in kernels {
        tables::write(&mut text, program, anchors, units, kernel);
    }
    text.push_str("#ifdef __cplusplus\nextern \"C\" {\n#endif\n");
    for kernel in kernels {
        let (name, count) = (&kernel.name, kernel.transfers.len());
        let _ = write!(
            text,
            "\n// {} bytes read and written in {count} pieces, {} tiles.\n__global__ void __launch_bounds__({THREADS}) {name}(u8 *const *anchors) {{\n    \
             move_all(anchors, {name}_segments, {name}_loops, {count}, {});\n}}\n",
            kernel.moved_bytes, kernel.tiles, kernel.tiles
        );
    }
    text.push_str("\n#ifdef __cplusplus\n}\n#endif\n");
    text
}

/// All that comes before the tables.
fn head(text: &mut String, units: &IndexSet<Unit>) {
    text.push_str(PRELUDE);
    text.push_str(tables::DECLARATIONS);
    text.push_str(units::PLACES);
    text.push_str(&numbers::functions(units));
    for (kind, unit) in units.iter().enumerate() {
        units::write(text, kind, unit);
    }
    text.push_str(&units::walk(units));
}

/// Types and words for both worlds.
const PRELUDE: &str = "\
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__
#define INLINE static __device__ __forceinline__
#define CALLED static __device__ __noinline__
#define ALIGNED(n) __align__(n)
#define UNROLL _Pragma(\"unroll\")
#else
#define INLINE static inline
#define CALLED static
#define ALIGNED(n) __attribute__((aligned(n)))
#define UNROLL
#endif

";

/// The source of a kernel that takes its tables as parameters, and its name: [`FIXED_KERNEL`].
#[must_use]
pub fn fixed_module() -> String {
    let units = fixed_units();
    let mut text =
        "// Moves, zeros and the conversions between f64, f32, bf16 and f16, by tables that the host gives.\n"
            .to_owned();
    head(&mut text, &units);
    let _ = write!(
        text,
        "#ifdef __cplusplus\nextern \"C\" {{\n#endif\n\n__global__ void __launch_bounds__({THREADS}) {FIXED_KERNEL}(\n    \
         u8 *const *anchors, const Segment *segments, const Loop *loops, u64 count, u64 tiles) {{\n    \
         move_all(anchors, segments, loops, (u32)count, tiles);\n}}\n\n#ifdef __cplusplus\n}}\n#endif\n"
    );
    text
}

/// The kernel of [`fixed_module`]: anchors, segments and loops as pointers, number of segments, number of tiles.
pub const FIXED_KERNEL: &str = "bucketeer_move";

/// The units that [`fixed_module`] knows.
#[must_use]
pub fn fixed_units() -> IndexSet<Unit> {
    const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::Bf16, DType::F16];
    let mut units: IndexSet<Unit> =
        [16, 8, 4, 2, 1].into_iter().flat_map(|bytes| [Unit::Move(bytes), Unit::Zero(bytes)]).collect();
    for from in FLOATS {
        for to in FLOATS {
            for divides in [false, true] {
                if from != to || divides {
                    for elements in [Conversion::most_elements(from, to), 1] {
                        units.insert(Unit::Convert(Conversion { from, to, elements, divides }));
                    }
                }
            }
        }
    }
    units
}

impl CudaModule {
    /// The tables of a kernel for [`fixed_module`]; none if that lacks one of its units.
    #[must_use]
    pub fn fixed_tables(kernel: &CudaKernel) -> Option<Tables> {
        Tables::new(&kernel.transfers, &fixed_units())
    }

    /// Units that the source knows.
    #[must_use]
    pub fn units(&self) -> impl ExactSizeIterator<Item = &Unit> {
        self.units.iter()
    }
}
