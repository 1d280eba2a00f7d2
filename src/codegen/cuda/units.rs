//! What a warp does with a tile, as text: a function for each kind of unit, and the walk over the table that calls them.

use super::numbers::expression;
use super::{Conversion, EACH, LANES, TILE_UNITS, Unit};
use crate::ir::DType;
use indexmap::IndexSet;
use std::fmt::Write as _;

/// The functions for one kind of unit.
pub(super) fn write(text: &mut String, kind: usize, unit: &Unit) {
    match unit {
        Unit::Move(bytes) => {
            let ty = bytes_type(*bytes);
            let what = format!("{} as they are", count(*bytes, "byte"));
            let read = format!("held = *(const {ty} *)source;");
            tile(text, kind, &what, Some((ty, &read)), &format!("*({ty} *)target = held;"));
        }
        Unit::Zero(bytes) => {
            let ty = bytes_type(*bytes);
            let zero = if *bytes == 16 {
                "zero.word[0] = zero.word[1] = zero.word[2] = zero.word[3] = 0;"
            } else {
                "zero = 0;"
            };
            let what = format!("{} of zeros", count(*bytes, "byte"));
            let write = format!("{ty} zero;\n{zero}\n*({ty} *)target = zero;");
            tile(text, kind, &what, None, &write);
        }
        Unit::Convert(unit) if unit.elements == 1 => {
            let (from, to) = (bytes_type(unit.from.bytes()), bytes_type(unit.to.bytes()));
            let converted = expression(unit, &format!("(u64)*(const {from} *)source"));
            let read = format!("held = ({to})({converted});");
            tile(text, kind, &words(unit), Some((to, &read)), &format!("*({to} *)target = held;"));
        }
        Unit::Convert(unit) => wide(text, kind, unit),
    }
}

/// Tiles of several elements at once: the narrower side is one access of 16 bytes, and held.
fn wide(text: &mut String, kind: usize, unit: &Conversion) {
    let Conversion { from, to, elements, .. } = *unit;
    let (read, written) = (elements * from.bytes() / 16, elements * to.bytes() / 16);
    let _ = write!(
        text,
        "INLINE void convert_{kind}(const Words *in, Words *out, u64 divisor) {{\n    int at;\n    (void)divisor;\n    UNROLL\n    \
         for (at = 0; at < {}; at++) out[at / 4].word[at % 4] = 0;\n    UNROLL\n    \
         for (at = 0; at < {elements}; at++) {{\n        u64 raw = {};\n        {}\n    }}\n}}\n\n",
        4 * written,
        take(from),
        put(to, &expression(unit, "raw"))
    );
    // Several words lie side by side.
    let copies = |words: u64, line: fn(u64) -> String| (0..words).map(line).collect::<String>();
    let (reads, writes) = if read >= written {
        let loads = copies(read, |nth| format!("in[{nth}] = ((const Words *)source)[{nth}];\n"));
        let reads = format!("Words in[{read}];\n{loads}convert_{kind}(in, &held, divisor);");
        (reads, "*(Words *)target = held;".to_owned())
    } else {
        let stores = copies(written, |nth| format!("\n((Words *)target)[{nth}] = out[{nth}];"));
        let writes = format!("Words out[{written}];\nconvert_{kind}(&held, out, divisor);{stores}");
        ("held = *(const Words *)source;".to_owned(), writes)
    };
    tile(text, kind, &words(unit), Some(("Words", &reads)), &writes);
}

/// What is read from `source` into `held`, of a type, and written to `target`: for one unit, and for a thread's units of a
/// whole tile.
fn tile(text: &mut String, kind: usize, what: &str, read: Option<(&str, &str)>, write: &str) {
    let (held, read) = read.unwrap_or(("u32", "held = 0;"));
    let indented = |lines: &str| lines.replace('\n', "\n    ");
    let _ = write!(
        text,
        "// Kind {kind}: {what}.\n\
         INLINE {held} read_{kind}(const u8 *source, u64 divisor) {{\n    {held} held;\n    (void)source;\n    \
         (void)divisor;\n    {}\n    return held;\n}}\n\
         INLINE void write_{kind}(u8 *target, {held} held, u64 divisor) {{\n    (void)held;\n    (void)divisor;\n    {}\n}}\n\
         INLINE void tile_{kind}(const u8 *const *sources, u8 *const *targets, u64 divisor) {{\n    \
         {held} held[{EACH}];\n    u32 each;\n    \
         UNROLL\n    for (each = 0; each < {EACH}; each++) held[each] = read_{kind}(sources[each], divisor);\n    \
         UNROLL\n    for (each = 0; each < {EACH}; each++) write_{kind}(targets[each], held[each], divisor);\n}}\n\n",
        indented(read),
        indented(write)
    );
}

/// What comes before the functions for tiles, and after the declarations of the tables.
pub(super) const PLACES: &str = "\
typedef struct ALIGNED(16) { u32 word[4]; } Words;

typedef struct { u64 from, to; } Place;

// Nearly always 32 bits suffice. Else digit by digit, which is as slow as the device's own division and compiles faster.
INLINE u64 over(u64 number, u64 size) {
    u64 turn = 0, rest = 0;
    int bit;
    if ((number | size) >> 32 == 0) return (u32)number / (u32)size;
    ROLLED
    for (bit = 63; bit >= 0; bit--) {
        rest = rest << 1 | (number >> bit & 1);
        turn <<= 1;
        if (rest >= size) {
            rest -= size;
            turn |= 1;
        }
    }
    return turn;
}

CALLED Place place_in(const Segment *segment, const Loop *loops, u64 unit) {
    const Loop *outermost = loops + segment->loop;
    const Loop *each = outermost + segment->loops - 1;
    Place place = {0, 0};
    ROLLED
    for (; each != outermost; each--) {
        u64 turn = over(unit, each->size);
        u64 index = unit - turn * each->size;
        place.from += index * each->from;
        place.to += index * each->to;
        unit = turn;
    }
    place.from += unit * each->from;
    place.to += unit * each->to;
    return place;
}

// Where a unit is, from the segment's first.
INLINE Place place_of(const Segment *segment, const Loop *loops, u64 unit) {
    Place place;
    if (segment->loops > 1) return place_in(segment, loops, unit);
    place.from = unit * loops[segment->loop].from;
    place.to = unit * loops[segment->loop].to;
    return place;
}

";

/// The walk of a warp over its tiles.
pub(super) fn walk(units: &IndexSet<Unit>) -> String {
    let mut text = format!(
        "\
// The segment of a tile, not before `at`.
INLINE u32 segment_of(const Segment *segments, u32 count, u32 at, u64 tile) {{
    u32 end = count;
    if (at + 1 == count || tile < segments[at + 1].tile) return at;
    ROLLED
    while (end - at > 1) {{
        u32 middle = at + (end - at) / 2;
        if (segments[middle].tile <= tile) at = middle;
        else end = middle;
    }}
    return at;
}}

// Each warp takes every so many tiles, from its own number on.
INLINE void move_all(u8 *const *anchors, const Segment *segments, const Loop *loops, u32 count, u64 tiles) {{
    u32 lane = threadIdx.x % {LANES}, at = 0;
    u64 warps = (u64)gridDim.x * (blockDim.x / {LANES});
    u64 tile = (u64)blockIdx.x * (blockDim.x / {LANES}) + threadIdx.x / {LANES};
    for (; tile < tiles; tile += warps) {{
        const Segment *segment;
        const u8 *from;
        u8 *to;
        u64 first;
        at = segment_of(segments, count, at, tile);
        segment = segments + at;
        from = anchors[segment->from_anchor] + segment->from;
        to = anchors[segment->to_anchor] + segment->to;
        first = (tile - segment->tile) * {TILE_UNITS} + lane;
        if ((tile - segment->tile + 1) * {TILE_UNITS} <= segment->units) {{
            // A whole tile: all is read before anything is written, so that reads are in flight together.
            const u8 *sources[{EACH}];
            u8 *targets[{EACH}];
            u32 each;
            UNROLL
            for (each = 0; each < {EACH}; each++) {{
                Place place = place_of(segment, loops, first + each * {LANES});
                sources[each] = from + place.from;
                targets[each] = to + place.to;
            }}
            switch (segment->kind) {{
"
    );
    for kind in 0..units.len() {
        let _ = writeln!(text, "            case {kind}: tile_{kind}(sources, targets, segment->divisor); break;");
    }
    let _ = write!(
        text,
        "            }}\n            continue;\n        }}\n        \
         ROLLED\n        for (; first < segment->units; first += {LANES}) {{\n            \
         Place place = place_of(segment, loops, first);\n            \
         const u8 *source = from + place.from;\n            u8 *target = to + place.to;\n            \
         u64 divisor = segment->divisor;\n            switch (segment->kind) {{\n"
    );
    for kind in 0..units.len() {
        let _ = writeln!(
            text,
            "            case {kind}: write_{kind}(target, read_{kind}(source, divisor), divisor); break;"
        );
    }
    text.push_str("            }\n        }\n    }\n}\n");
    text
}

/// The type that is as many bytes wide.
const fn bytes_type(bytes: u64) -> &'static str {
    match bytes {
        16 => "Words",
        8 => "u64",
        4 => "u32",
        2 => "u16",
        _ => "u8",
    }
}

/// The element `at` of `in`, zero-extended.
fn take(dtype: DType) -> &'static str {
    match dtype.bytes() {
        8 => "in[at / 2].word[at % 2 * 2] | (u64)in[at / 2].word[at % 2 * 2 + 1] << 32",
        4 => "in[at / 4].word[at % 4]",
        2 => "in[at / 8].word[at / 2 % 4] >> at % 2 * 16 & 0xffff",
        _ => "in[at / 16].word[at / 4 % 4] >> at % 4 * 8 & 0xff",
    }
}

/// Puts an element into `out`, which holds zeros there.
fn put(dtype: DType, value: &str) -> String {
    match dtype.bytes() {
        8 => format!(
            "u64 value = {value};\n        out[at / 2].word[at % 2 * 2] = (u32)value;\n        \
             out[at / 2].word[at % 2 * 2 + 1] = (u32)(value >> 32);"
        ),
        4 => format!("out[at / 4].word[at % 4] = (u32)({value});"),
        2 => format!("out[at / 8].word[at / 2 % 4] |= (u32)(({value}) & 0xffff) << at % 2 * 16;"),
        _ => format!("out[at / 16].word[at / 4 % 4] |= (u32)(({value}) & 0xff) << at % 4 * 8;"),
    }
}

fn words(unit: &Conversion) -> String {
    let Conversion { from, to, elements, divides } = *unit;
    let divided = if divides { ", divided" } else { "" };
    format!("{} to {}{divided}, {}", from.short_name(), to.short_name(), count(elements, "element"))
}

fn count(number: u64, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}
