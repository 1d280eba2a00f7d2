//! What a warp does with a tile, as text: a function for each kind of unit, and the walk over the table that calls them.

use super::numbers::expression;
use super::{Conversion, EACH, LANES, TILE_UNITS, Unit};
use crate::ir::DType;
use indexmap::IndexSet;
use std::fmt::Write as _;

/// The function for tiles of one kind of unit. All is read before anything is written, so that reads are in flight together.
pub(super) fn write(text: &mut String, kind: usize, unit: &Unit) {
    match unit {
        Unit::Move(bytes) => {
            let ty = bytes_type(*bytes);
            let what = format!("{} as they are", count(*bytes, "byte"));
            tile(
                text,
                kind,
                &what,
                ty,
                &format!("held[each] = *(const {ty} *)source;"),
                &format!("*({ty} *)target = held[each];"),
            );
        }
        Unit::Zero(bytes) => {
            let ty = bytes_type(*bytes);
            let zero = if *bytes == 16 {
                "zero.word[0] = zero.word[1] = zero.word[2] = zero.word[3] = 0;"
            } else {
                "zero = 0;"
            };
            let _ = write!(
                text,
                "// Kind {kind}: {} of zeros.\n\
                 INLINE void tile_{kind}(u8 *to, const Segment *segment, const Loop *loops, u64 first) {{\n    \
                 {ty} zero;\n    u32 each;\n    {zero}\n    UNROLL\n    \
                 for (each = 0; each < {EACH}; each++) {{\n        \
                 if (first + each * {LANES} < segment->units) {{\n            \
                 *({ty} *)(to + place_of(segment, loops, first + each * {LANES}).to) = zero;\n        }}\n    }}\n}}\n\n",
                count(*bytes, "byte")
            );
        }
        Unit::Convert(unit) if unit.elements == 1 => {
            let what = words(unit);
            let (from, to) = (element_type(unit.from), element_type(unit.to));
            let converted = expression(unit, &format!("(u64)*(const {from} *)source"));
            tile(
                text,
                kind,
                &what,
                to,
                &format!("held[each] = ({to})({converted});"),
                &format!("*({to} *)target = held[each];"),
            );
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
         for (at = 0; at < {elements}; at++) {{\n        u64 raw = {};\n        {}\n    }}\n}}\n\n",
        take(from),
        put(to, &expression(unit, "raw"))
    );
    let load = |words: u64, name: &str| -> String {
        (0..words).map(|nth| format!("{name}[{nth}] = ((const Words *)source)[{nth}]; ")).collect()
    };
    let clear = |words: u64, name: &str| -> String {
        let word = |nth: u64| (0..4).map(move |at| format!("{name}[{nth}].word[{at}] = ")).collect::<String>();
        (0..words).map(|nth| format!("{}0; ", word(nth))).collect()
    };
    let store = |words: u64, name: &str| -> String {
        (0..words).map(|nth| format!("((Words *)target)[{nth}] = {name}[{nth}]; ")).collect()
    };
    let (reads, writes) = if read >= written {
        let reads = format!(
            "Words in[{read}]; {}{}convert_{kind}(in, held + each, segment->divisor);",
            load(read, "in"),
            clear(1, "(held + each)")
        );
        (reads, "*(Words *)target = held[each];".to_owned())
    } else {
        let writes = format!(
            "Words out[{written}]; {}convert_{kind}(held + each, out, segment->divisor); {}",
            clear(written, "out"),
            store(written, "out")
        );
        ("held[each] = *(const Words *)source;".to_owned(), writes.trim_end().to_owned())
    };
    tile(text, kind, &words(unit), "Words", &reads, &writes);
}

/// The function around what is read from `source` and written to `target`.
fn tile(text: &mut String, kind: usize, what: &str, held: &str, read: &str, write: &str) {
    let divisor = if read.contains("divisor)") && !read.contains("segment->divisor") {
        "    u64 divisor = segment->divisor;\n"
    } else {
        ""
    };
    let _ = write!(
        text,
        "// Kind {kind}: {what}.\n\
         INLINE void tile_{kind}(const u8 *from, u8 *to, const Segment *segment, const Loop *loops, u64 first) {{\n    \
         {held} held[{EACH}];\n    u64 into[{EACH}];\n    u32 each;\n{divisor}    UNROLL\n    \
         for (each = 0; each < {EACH}; each++) {{\n        \
         if (first + each * {LANES} < segment->units) {{\n            \
         Place place = place_of(segment, loops, first + each * {LANES});\n            \
         const u8 *source = from + place.from;\n            \
         into[each] = place.to;\n            {read}\n        }}\n    }}\n    UNROLL\n    \
         for (each = 0; each < {EACH}; each++) {{\n        \
         if (first + each * {LANES} < segment->units) {{\n            \
         u8 *target = to + into[each];\n            {write}\n        }}\n    }}\n}}\n\n"
    );
}

/// What comes before the functions for tiles, and after the declarations of the tables.
pub(super) const PLACES: &str = "\
typedef struct ALIGNED(16) { u32 word[4]; } Words;

typedef struct { u64 from, to; } Place;

// Division is slow for 64 bits, and nearly always 32 suffice.
INLINE u64 over(u64 number, u64 size) {
    return (number | size) >> 32 ? number / size : (u64)((u32)number / (u32)size);
}

// Where a unit is, from the segment's first.
INLINE Place place_of(const Segment *segment, const Loop *loops, u64 unit) {
    const Loop *outermost = loops + segment->loop;
    const Loop *each = outermost + segment->loops - 1;
    Place place = {0, 0};
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

";

/// The walk of a warp over its tiles.
pub(super) fn walk(units: &IndexSet<Unit>) -> String {
    let mut text = format!(
        "\
// The segment of a tile, not before `at`.
INLINE u32 segment_of(const Segment *segments, u32 count, u32 at, u64 tile) {{
    u32 end = count;
    if (at + 1 == count || tile < segments[at + 1].tile) return at;
    while (end - at > 1) {{
        u32 middle = at + (end - at) / 2;
        if (segments[middle].tile <= tile) at = middle;
        else end = middle;
    }}
    return at;
}}

// Each warp takes every so many tiles, from its own number on.
CALLED void move_all(u8 *const *anchors, const Segment *segments, const Loop *loops, u32 count, u64 tiles) {{
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
        switch (segment->kind) {{
"
    );
    for (kind, unit) in units.iter().enumerate() {
        let from = if matches!(unit, Unit::Zero(_)) { "" } else { "from, " };
        let _ = writeln!(text, "        case {kind}: tile_{kind}({from}to, segment, loops, first); break;");
    }
    text.push_str("        }\n        (void)from;\n    }\n}\n");
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

const fn element_type(dtype: DType) -> &'static str {
    bytes_type(dtype.bytes())
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
            "u64 value = {value}; out[at / 2].word[at % 2 * 2] = (u32)value; out[at / 2].word[at % 2 * 2 + 1] = (u32)(value >> 32);"
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
