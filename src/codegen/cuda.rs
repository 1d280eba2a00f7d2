//! Packs, unpacks and copies as CUDA C++.
//!
//! [`CudaModule::of`] writes one source for a program: a table of segments for each step, and a kernel that walks over the
//! table of the step that it is launched for. One kernel, since compiling takes as long for each.
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
//! [`CudaModule::table_source`] is the same with tables that the host gives: what the runtime compiles, once for all programs of the
//! same units. [`fixed_module`] is that for the most common units, compiled beforehand for machines without NVRTC.

mod numbers;
mod tables;
mod units;

use super::transfer::{Anchor, Anchors, Conversion, Cutter, Transfer, TransferError, Unit};
use crate::ir::DType;
use crate::program::{Program, StepId, StepKind};
use indexmap::IndexSet;
use std::fmt::Write as _;

pub use tables::{LOOP_BYTES, SEGMENT_BYTES, Tables};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Blocks that run on a multiprocessor at once, at least: enough reads in flight, and registers that suffice.
const BLOCKS: u32 = 3;
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

/// A launch of the kernel: one step of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaLaunch {
    /// The name of its tables in the source.
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

impl CudaLaunch {
    /// Blocks of it on a device that runs so many at once; more would find nothing to do.
    #[must_use]
    pub fn blocks(&self, most: u32) -> u32 {
        self.tiles.div_ceil(WARPS).min(u64::from(most.max(1))) as u32
    }
}

/// The source for one program. Source and launches belong together, so neither can be changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaModule {
    /// CUDA C++, with the kernel [`KERNEL`] if there is anything to launch.
    source: String,
    /// One for each pack, unpack and copy that moves anything, in step order: the kernel's parameter `launch` counts them.
    launches: Vec<CudaLaunch>,
    /// What the entries of the kernel's parameter `anchors` are.
    anchors: Vec<Anchor>,
    /// Averages that the kernels divide: these collectives sum.
    summed: Vec<StepId>,
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
        let mut launches = Vec::new();
        for (index, step) in program.steps.iter().enumerate() {
            let mut cutter = Cutter::new(program, &step.node, &mut anchors);
            let divisor = |nth: usize| divisors.of(index, nth);
            let word = match &step.kind {
                StepKind::Pack(_) => "pack",
                StepKind::Unpack(_) => "unpack",
                StepKind::Copy(_) => "copy",
                StepKind::Collective(_) | StepKind::Wait(_) | StepKind::Compute(_) => continue,
                StepKind::Run(_) => return Err(TransferError::Body { node: step.node.to_string() }),
            };
            match &step.kind {
                StepKind::Pack(moves) | StepKind::Unpack(moves) => {
                    for (nth, segment) in moves.segments.iter().enumerate() {
                        cutter.segment(segment, divisor(nth))?;
                    }
                    moves.zeros.iter().for_each(|&range| cutter.zero(range));
                }
                StepKind::Copy(segment) => cutter.segment(segment, divisor(0))?,
                StepKind::Collective(_) | StepKind::Wait(_) | StepKind::Compute(_) | StepKind::Run(_) => {}
            }
            let transfers = cutter.done();
            if transfers.is_empty() {
                continue;
            }
            launches.push(CudaLaunch {
                name: format!("{word}_{index}_{}", identifier(&step.node)),
                step: index as u32,
                tiles: transfers.iter().map(tables::tiles).sum(),
                moved_bytes: transfers.iter().map(moved_bytes).fold(0, u64::saturating_add),
                transfers,
            });
        }
        let units: IndexSet<Unit> =
            launches.iter().flat_map(|launch: &CudaLaunch| &launch.transfers).map(|each| each.unit).collect();
        let anchors = anchors.list();
        let source = source(program, &launches, &anchors, &units);
        Ok(Self { source, launches, anchors, summed: divisors.summed, units })
    }
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

fn source(program: &Program, launches: &[CudaLaunch], anchors: &[Anchor], units: &IndexSet<Unit>) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "// Packs, unpacks and copies of program `{}`.", comment(&program.name));
    if launches.is_empty() {
        text.push_str("// There are none.\n");
        return text;
    }
    let _ = writeln!(text, "//\n// {KERNEL} takes the number of a launch, and a table of addresses on the device:");
    for (index, anchor) in anchors.iter().enumerate() {
        let name = comment(&program.buffer(anchor.buffer).name);
        let rank = match anchor.rank_bytes {
            0 => String::new(),
            bytes => format!(" + {bytes} * the rank's place in its group"),
        };
        let _ = writeln!(text, "//   {index}: {name}{rank}");
    }
    head(&mut text, units);
    for launch in launches {
        tables::write(&mut text, program, anchors, units, launch);
    }
    let _ = writeln!(text, "\n{}\nstatic __device__ const Launch launches[] = {{", tables::LAUNCHES);
    for (number, launch) in launches.iter().enumerate() {
        let (name, count, tiles) = (&launch.name, launch.transfers.len(), launch.tiles);
        let _ = writeln!(text, "    {{{name}_segments, {name}_loops, {count}, {tiles}}}, // {number}");
    }
    text.push_str("};\n\n");
    kernel(
        &mut text,
        &format!("{KERNEL}(u8 *const *anchors, u64 launch)"),
        "launches[launch].segments, launches[launch].loops, (u32)launches[launch].count, launches[launch].tiles",
    );
    text
}

/// The kernel itself.
fn kernel(text: &mut String, signature: &str, tables: &str) {
    let _ = write!(
        text,
        "#ifdef __cplusplus\nextern \"C\"\n#endif\n__global__ void __launch_bounds__({THREADS}, {BLOCKS}) {signature} {{\n    \
         move_all(anchors, {tables});\n}}\n"
    );
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
#define ROLLED _Pragma(\"unroll 1\")
#else
#define INLINE static inline
#define CALLED static
#define ALIGNED(n) __attribute__((aligned(n)))
#define UNROLL
#define ROLLED
#endif

";

/// The source of [`FIXED_KERNEL`] for [`fixed_units`].
#[must_use]
pub fn fixed_module() -> String {
    with_tables_given(&fixed_units())
}

/// The source of a kernel that takes its tables as parameters.
fn with_tables_given(units: &IndexSet<Unit>) -> String {
    let mut text = "// Moves, zeros and conversions, by tables that the host gives.\n".to_owned();
    head(&mut text, units);
    text.push('\n');
    kernel(
        &mut text,
        &format!(
            "{FIXED_KERNEL}(\n    u8 *const *anchors, const Segment *segments, const Loop *loops, u64 count, u64 tiles)"
        ),
        "segments, loops, (u32)count, tiles",
    );
    text
}

/// [`fixed_module`] compiled to PTX by `scripts/fixed-ptx`, for drivers of CUDA 12.1 and later and all GPUs from Ampere
/// on. Its first line has the [`digest`] of the source.
pub const FIXED_PTX: &str = include_str!("cuda/fixed.ptx");

/// What tells one source from another: FNV-1a of its bytes, 64 bits.
#[must_use]
pub fn digest(source: &str) -> u64 {
    source.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The kernel of a [`CudaModule`]: the table of anchors, and the number of the launch.
pub const KERNEL: &str = "bucketeer_move";

/// The kernel of [`fixed_module`] and [`CudaModule::table_source`]: anchors, segments and loops as pointers, number of segments,
/// number of tiles.
pub const FIXED_KERNEL: &str = "bucketeer_move_tables";

/// The units that [`fixed_module`] knows: all that only move, and conversions from `f32` to floats of two bytes and back.
#[must_use]
pub fn fixed_units() -> IndexSet<Unit> {
    let mut units: IndexSet<Unit> =
        [16, 8, 4, 2, 1].into_iter().flat_map(|bytes| [Unit::Move(bytes), Unit::Zero(bytes)]).collect();
    for narrow in [DType::Bf16, DType::F16] {
        for (from, to) in [(DType::F32, narrow), (narrow, DType::F32)] {
            for elements in [Conversion::most_elements(from, to), 1] {
                units.insert(Unit::Convert(Conversion { from, to, elements, divides: false }));
            }
        }
    }
    units
}

impl CudaModule {
    /// The tables of a launch for [`fixed_module`]; none if that lacks one of its units.
    #[must_use]
    pub fn fixed_tables(launch: &CudaLaunch) -> Option<Tables> {
        Tables::new(&launch.transfers, &fixed_units())
    }

    /// The source of [`FIXED_KERNEL`] for this module's units: the same for all programs with the same, so that it is compiled once,
    /// and however many segments there are.
    #[must_use]
    pub fn table_source(&self) -> String {
        with_tables_given(&self.units)
    }

    /// The tables of a launch for [`table_source`](Self::table_source).
    ///
    /// # Panics
    /// When there are not so many launches.
    #[must_use]
    pub fn tables(&self, launch: usize) -> Tables {
        Tables::new(&self.launches[launch].transfers, &self.units).expect("the units are of these transfers")
    }

    /// CUDA C++, with the kernel [`KERNEL`] if there is anything to launch.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// One for each pack, unpack and copy that moves anything, in step order: the kernel's parameter `launch` counts them.
    #[must_use]
    pub fn launches(&self) -> &[CudaLaunch] {
        &self.launches
    }

    /// What the entries of the kernel's parameter `anchors` are.
    #[must_use]
    pub fn anchors(&self) -> &[Anchor] {
        &self.anchors
    }

    /// Averages that the kernel divides: these collectives sum.
    #[must_use]
    pub fn summed(&self) -> &[StepId] {
        &self.summed
    }

    /// Units that the source knows.
    #[must_use]
    pub fn units(&self) -> impl ExactSizeIterator<Item = &Unit> {
        self.units.iter()
    }
}
