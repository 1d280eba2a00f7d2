//! What converts one element, as text: functions on bits, and the expression that joins them.
//!
//! A float of one or two bytes goes by way of `f32`, an integer that becomes a float by way of `f64`, as the evaluator does
//! ([`bucketeer_types::num`]).

use super::{Conversion, Unit};
use crate::ir::DType;
use bucketeer_types::class::{self, Class};
use indexmap::IndexSet;
use std::fmt::Write as _;

/// How a float of one or two bytes is laid out, below its sign.
struct Small {
    /// Bits of the mantissa.
    mantissa: u32,
    bias: u32,
    /// The largest finite value.
    largest: u32,
    /// What a value above it becomes.
    above: u32,
    nan: u32,
    /// Whether there is no minus zero: its bits are the NaN.
    one_zero: bool,
}

const fn small(dtype: DType) -> Option<Small> {
    Some(match dtype {
        DType::F16 => Small { mantissa: 10, bias: 15, largest: 0x7bff, above: 0x7c00, nan: 0x7e00, one_zero: false },
        // PyTorch saturates here.
        DType::F8E4m3fn => Small { mantissa: 3, bias: 7, largest: 0x7e, above: 0x7e, nan: 0x7f, one_zero: false },
        DType::F8E5m2 => Small { mantissa: 2, bias: 15, largest: 0x7b, above: 0x7c, nan: 0x7f, one_zero: false },
        DType::F8E4m3fnuz => Small { mantissa: 3, bias: 8, largest: 0x7f, above: 0x80, nan: 0x80, one_zero: true },
        DType::F8E5m2fnuz => Small { mantissa: 2, bias: 16, largest: 0x7f, above: 0x80, nan: 0x80, one_zero: true },
        _ => return None,
    })
}

/// The functions that conversions need, each before those that call it.
pub(super) fn functions(units: &IndexSet<Unit>) -> String {
    let conversions = || units.iter().filter_map(|unit| if let Unit::Convert(unit) = unit { Some(unit) } else { None });
    let mut text = String::new();
    for &dtype in DType::ALL {
        let read = conversions().any(|unit| unit.from == dtype);
        let written = conversions().any(|unit| unit.to == dtype);
        if let Some(layout) = small(dtype) {
            if read {
                read_small(&mut text, dtype, &layout);
            }
            if written {
                write_small(&mut text, dtype, &layout);
            }
        }
    }
    let mut calls: String = conversions().map(|unit| expression(unit, "raw")).collect();
    calls.push_str(&text);
    // Those further down call those further up.
    let mut needed: Vec<&str> = Vec::new();
    for function in COMMON.split("\n\n").collect::<Vec<_>>().into_iter().rev() {
        if calls.contains(&format!("{}(", name_of(function))) {
            calls.push_str(function);
            needed.push(function);
        }
    }
    let common: String = needed.into_iter().rev().map(|function| format!("{function}\n\n")).collect();
    common + &text
}

/// The name of a function of [`COMMON`].
fn name_of(function: &str) -> &str {
    let head = function.find("INLINE").map_or("", |at| &function[at..]);
    let end = head.find('(').unwrap_or(0);
    head[..end].rsplit(' ').next().unwrap_or_default()
}

/// On bits of `f32`, `bf16`, `f64` and integers.
const COMMON: &str = "\
INLINE float number(u32 bits) {
    union { u32 bits; float number; } both;
    both.bits = bits;
    return both.number;
}

INLINE u32 bits_of(float number) {
    union { u32 bits; float number; } both;
    both.number = number;
    return both.bits;
}

INLINE double wide_number(u64 bits) {
    union { u64 bits; double number; } both;
    both.bits = bits;
    return both.number;
}

INLINE u64 wide_bits_of(double number) {
    union { u64 bits; double number; } both;
    both.number = number;
    return both.bits;
}

// Every NaN is the canonical one.
INLINE u32 plain(u32 bits) { return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : bits; }

INLINE u64 wide_plain(u64 bits) {
    return (bits & 0x7fffffffffffffffULL) > 0x7ff0000000000000ULL ? 0x7ff8000000000000ULL : bits;
}

INLINE u32 f32_of_f64(u64 bits) { return plain(bits_of((float)wide_number(bits))); }

INLINE u64 f64_of_f32(u32 bits) { return wide_plain(wide_bits_of((double)number(bits))); }

INLINE u32 f32_of_bf16(u32 bits) { return plain(bits << 16); }

INLINE u32 bf16_of_f32(u32 bits) {
    u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
}

INLINE u32 f32_over(u32 bits, u64 divisor) { return plain(bits_of(number(bits) / (float)divisor)); }

INLINE u64 f64_over(u64 bits, u64 divisor) { return wide_plain(wide_bits_of(wide_number(bits) / (double)divisor)); }

INLINE u64 f64_of_signed(u64 value) { return wide_bits_of((double)(long long)value); }

INLINE u64 f64_of_unsigned(u64 value) { return wide_bits_of((double)value); }

// The low bits of the number without its fraction; NaN is zero, and so large numbers stay at the ends of 128 bits.
INLINE u64 integer_of_f64(u64 bits) {
    u32 power = (u32)(bits >> 52) & 0x7ff;
    u64 digits = (bits & 0xfffffffffffffULL) | 0x10000000000000ULL;
    u64 low = 0;
    if (power < 1023 || (bits & 0x7fffffffffffffffULL) > 0x7ff0000000000000ULL) return 0;
    if (power >= 1023 + 127) return bits >> 63 ? 0 : ~0ULL;
    if (power < 1075) low = digits >> (1075 - power);
    else if (power - 1075 < 64) low = digits << (power - 1075);
    return bits >> 63 ? 0 - low : low;
}";

fn read_small(text: &mut String, dtype: DType, layout: &Small) {
    let Small { mantissa, bias, largest, above, nan, one_zero } = *layout;
    let (name, sign, up) = (dtype.short_name(), sign_of(dtype), 32 - 8 * dtype.bytes() as u32);
    // The smallest number, 2^(1 - bias - mantissa), as f32.
    let smallest = (128 - bias - mantissa) << 23;
    let is_nan = match (one_zero, above > largest) {
        (true, _) => format!("bits == {nan:#x}"),
        (false, true) => format!("magnitude > {above:#x}"),
        (false, false) => format!("magnitude > {largest:#x}"),
    };
    let _ = write!(
        text,
        "INLINE u32 f32_of_{name}(u32 bits) {{\n    \
         u32 magnitude = bits & {:#x};\n    \
         u32 small = bits_of((float)(int)magnitude * number({smallest:#x}));\n    \
         u32 normal = (magnitude << {}) + {:#x};\n    \
         u32 value = magnitude < {:#x} ? small : normal;\n",
        sign - 1,
        23 - mantissa,
        (127 - bias) << 23,
        1 << mantissa,
    );
    if !one_zero && above > largest {
        let _ = writeln!(text, "    if (magnitude == {above:#x}) value = 0x7f800000;");
    }
    let _ = write!(text, "    return {is_nan} ? 0x7fc00000 : value | (bits & {sign:#x}) << {up};\n}}\n\n");
}

fn write_small(text: &mut String, dtype: DType, layout: &Small) {
    let Small { mantissa, bias, largest, above, nan, one_zero } = *layout;
    let (name, sign, down) = (dtype.short_name(), sign_of(dtype), 32 - 8 * dtype.bytes() as u32);
    let cut = 23 - mantissa;
    // Adding 2^23 times the smallest number lets the hardware round at the place of the last bit.
    let shifter = (151 - bias - mantissa) << 23;
    let _ = write!(
        text,
        "INLINE u32 {name}_of_f32(u32 bits) {{\n    \
         u32 magnitude = bits & 0x7fffffff;\n    \
         u32 normal = (magnitude - {:#x} + {:#x} + (magnitude >> {cut} & 1)) >> {cut};\n    \
         u32 small = bits_of(number(magnitude) + number({shifter:#x})) - {shifter:#x};\n    \
         u32 value = magnitude < {:#x} ? small : normal;\n    \
         if (magnitude > 0x7f800000) return {nan:#x};\n",
        (127 - bias) << 23,
        (1u32 << (cut - 1)) - 1,
        (128 - bias) << 23,
    );
    if one_zero {
        let _ = write!(
            text,
            "    if (value > {largest:#x}) return {nan:#x};\n    return value ? value | (bits >> {down} & {sign:#x}) : 0;\n}}\n\n"
        );
    } else {
        let _ = write!(
            text,
            "    if (value > {largest:#x}) value = {above:#x};\n    return value | (bits >> {down} & {sign:#x});\n}}\n\n"
        );
    }
}

/// The sign's bit.
const fn sign_of(dtype: DType) -> u32 {
    1 << (8 * dtype.bytes() - 1)
}

/// The element `raw`, zero-extended bits of the source's dtype, as bits of the target's; what is above its width is cut
/// off by whoever stores it.
pub(super) fn expression(unit: &Conversion, raw: &str) -> String {
    let Conversion { from, to, divides, .. } = *unit;
    match (class::class(from), class::class(to)) {
        (Class::Float, Class::Float) if from == DType::F64 || to == DType::F64 => {
            let wide = wide(from, raw);
            narrow_wide(to, if divides { format!("f64_over({wide}, divisor)") } else { wide })
        }
        (Class::Float, Class::Float) => {
            let single = single(from, raw);
            of_single(to, if divides { format!("f32_over({single}, divisor)") } else { single })
        }
        (Class::Float, Class::Bool) if from == DType::F64 => format!("({raw} << 1) != 0"),
        (Class::Float, Class::Bool) => format!("(u32)({} << 1) != 0", single(from, raw)),
        (Class::Float, _) => format!("integer_of_f64({})", wide(from, raw)),
        (_, Class::Float) => {
            let signed = if is_signed(from) { "signed" } else { "unsigned" };
            narrow_wide(to, format!("f64_of_{signed}({})", integer(from, raw)))
        }
        (_, Class::Bool) => format!("({raw}) != 0"),
        _ => integer(from, raw),
    }
}

/// A float as bits of `f32`.
fn single(dtype: DType, raw: &str) -> String {
    match dtype {
        DType::F32 => format!("(u32)({raw})"),
        _ => format!("f32_of_{}({raw})", dtype.short_name()),
    }
}

/// A float as bits of `f64`.
fn wide(dtype: DType, raw: &str) -> String {
    match dtype {
        DType::F64 => raw.to_owned(),
        _ => format!("f64_of_f32({})", single(dtype, raw)),
    }
}

/// Bits of `f32` as a float.
fn of_single(dtype: DType, single: String) -> String {
    match dtype {
        DType::F32 => single,
        _ => format!("{}_of_f32({single})", dtype.short_name()),
    }
}

/// Bits of `f64` as a float.
fn narrow_wide(dtype: DType, wide: String) -> String {
    match dtype {
        DType::F64 => wide,
        _ => of_single(dtype, format!("f32_of_f64({wide})")),
    }
}

const fn is_signed(dtype: DType) -> bool {
    matches!(dtype, DType::I64 | DType::I32 | DType::I16 | DType::I8)
}

/// An integer or a bool, extended to 64 bits.
fn integer(dtype: DType, raw: &str) -> String {
    match dtype {
        DType::Bool => format!("(u64)(({raw}) != 0)"),
        _ if is_signed(dtype) && dtype.bytes() < 8 => {
            let sign = 1u64 << (8 * dtype.bytes() - 1);
            format!("(((u64)({raw}) ^ {sign:#x}ULL) - {sign:#x}ULL)")
        }
        _ => format!("(u64)({raw})"),
    }
}
