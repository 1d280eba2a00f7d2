//! The tables that kernels walk over, as text and as bytes.

use super::{Anchor, CudaLaunch, Program, TILE_UNITS, Transfer, Unit, comment};
use indexmap::IndexSet;
use std::fmt::Write as _;

/// Bytes of a `Segment` on the device.
pub const SEGMENT_BYTES: usize = 64;
/// Bytes of a `Loop` on the device.
pub const LOOP_BYTES: usize = 24;

/// Tiles of a transfer.
pub(super) fn tiles(transfer: &Transfer) -> u64 {
    transfer.units().div_ceil(TILE_UNITS)
}

/// The structs of the tables.
pub(super) const DECLARATIONS: &str = "\
// How often, and how many bytes further each time.
typedef struct { u64 size, from, to; } Loop;

// Units that move alike. `tile` counts the tiles of all segments before; offsets are from the anchors; `kind` is the number
// of the unit; `loop` is the index of the outermost of `loops` loops.
typedef struct {
    u64 tile, units, from, to, divisor;
    u32 from_anchor, to_anchor, kind, loop, loops, unused;
} Segment;

";

/// What [`write`]'s tables are found by.
pub(super) const LAUNCHES: &str = "\
typedef struct {
    const Segment *segments;
    const Loop *loops;
    u64 count, tiles;
} Launch;
";

/// The rows of both tables.
struct Rows<'a> {
    /// Tile, number of the unit, first loop.
    segments: Vec<(u64, usize, usize, &'a Transfer)>,
    loops: Vec<super::super::transfer::Loop>,
}

fn rows<'a>(transfers: &'a [Transfer], units: &IndexSet<Unit>) -> Option<Rows<'a>> {
    let mut rows = Rows { segments: Vec::with_capacity(transfers.len()), loops: Vec::new() };
    let mut tile = 0;
    for transfer in transfers {
        rows.segments.push((tile, units.get_index_of(&transfer.unit)?, rows.loops.len(), transfer));
        rows.loops.extend(&transfer.loops);
        tile += tiles(transfer);
    }
    Some(rows)
}

/// Writes the tables of a launch.
pub(super) fn write(
    text: &mut String,
    program: &Program,
    anchors: &[Anchor],
    units: &IndexSet<Unit>,
    launch: &CudaLaunch,
) {
    let Some(rows) = rows(&launch.transfers, units) else { return };
    let name = &launch.name;
    let (bytes, count, tiles) = (launch.moved_bytes, launch.transfers.len(), launch.tiles);
    let _ = writeln!(text, "\n// {name}: {bytes} bytes read and written in {count} pieces, {tiles} tiles.");
    let _ = writeln!(text, "static __device__ const Segment {name}_segments[] = {{");
    for (tile, kind, first, transfer) in &rows.segments {
        let Transfer { from, to, loops, divisor, .. } = transfer;
        let buffer = |anchor: u32| comment(&program.buffer(anchors[anchor as usize].buffer).name);
        let source = match transfer.unit {
            Unit::Zero(_) => "zeros".to_owned(),
            Unit::Move(_) | Unit::Convert(_) => buffer(from.anchor),
        };
        let _ = writeln!(
            text,
            "    {{{tile}, {}, {}, {}, {divisor}, {}, {}, {kind}, {first}, {}, 0}}, // {source} -> {}",
            transfer.units(),
            from.offset,
            to.offset,
            from.anchor,
            to.anchor,
            loops.len(),
            buffer(to.anchor),
        );
    }
    let _ = writeln!(text, "}};\nstatic __device__ const Loop {name}_loops[] = {{");
    for each in &rows.loops {
        let _ = writeln!(text, "    {{{}, {}, {}}},", each.size, each.from, each.to);
    }
    text.push_str("};\n");
}

/// The tables of a step as the device reads them, little-endian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tables {
    /// [`SEGMENT_BYTES`] for each.
    pub segments: Vec<u8>,
    /// [`LOOP_BYTES`] for each.
    pub loops: Vec<u8>,
    /// Number of segments.
    pub count: u64,
    /// Number of tiles.
    pub tiles: u64,
}

impl Tables {
    /// For a module that knows `units`; none if one is missing.
    pub(super) fn new(transfers: &[Transfer], units: &IndexSet<Unit>) -> Option<Self> {
        let rows = rows(transfers, units)?;
        let mut segments = Vec::with_capacity(rows.segments.len() * SEGMENT_BYTES);
        for (tile, kind, first, transfer) in &rows.segments {
            let Transfer { from, to, divisor, .. } = transfer;
            for wide in [*tile, transfer.units(), from.offset, to.offset, u64::from(*divisor)] {
                segments.extend(wide.to_le_bytes());
            }
            for narrow in [from.anchor, to.anchor, *kind as u32, *first as u32, transfer.loops.len() as u32, 0] {
                segments.extend(narrow.to_le_bytes());
            }
        }
        let loops =
            rows.loops.iter().flat_map(|each| [each.size, each.from, each.to]).flat_map(u64::to_le_bytes).collect();
        let tiles = transfers.iter().map(tiles).sum();
        Some(Self { segments, loops, count: transfers.len() as u64, tiles })
    }
}
