//! Shapes of HLO as types of the graph.
//!
//! A type keeps dtype and sizes. Layouts say where elements lie, which changes no value, so they stay in the text. What
//! the graph has no word for (`s4`, `opaque`, bounded dynamic sizes) is [`Type::Unknown`]; collectives of such tensors
//! are left alone, and what makes a value of such a shape has the shape among its arguments, so that `s4` is not `u4`.

use super::error::Fault;
use super::lex::Cursor;
use bucketeer::ir::{DType, TensorType, Type};

/// Most tuples inside one another.
const MAX_DEPTH: usize = 64;

/// The dtype that HLO calls `word`, if the graph has it.
pub(super) fn dtype(word: &str) -> Option<DType> {
    Some(match word {
        "pred" => DType::Bool,
        "s8" => DType::I8,
        "s16" => DType::I16,
        "s32" => DType::I32,
        "s64" => DType::I64,
        "u8" => DType::U8,
        "u16" => DType::U16,
        "u32" => DType::U32,
        "u64" => DType::U64,
        "f16" => DType::F16,
        "bf16" => DType::Bf16,
        "f32" => DType::F32,
        "f64" => DType::F64,
        "c64" => DType::C64,
        "c128" => DType::C128,
        "f8e4m3fn" => DType::F8E4m3fn,
        "f8e5m2" => DType::F8E5m2,
        "f8e4m3fnuz" => DType::F8E4m3fnuz,
        "f8e5m2fnuz" => DType::F8E5m2fnuz,
        "f8e8m0fnu" => DType::F8E8m0fnu,
        _ => return None,
    })
}

/// The dtype of an array's shape, whatever its sizes, if the graph has it.
pub(super) fn scalar(shape: &str) -> Option<DType> {
    dtype(shape.split('[').next()?)
}

/// What HLO calls a dtype of the graph, if it has it.
pub(super) const fn word(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "pred",
        DType::I8 => "s8",
        DType::I16 => "s16",
        DType::I32 => "s32",
        DType::I64 => "s64",
        DType::U8 => "u8",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        DType::F16 => "f16",
        DType::Bf16 => "bf16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::C64 => "c64",
        DType::C128 => "c128",
        DType::F8E4m3fn => "f8e4m3fn",
        DType::F8E5m2 => "f8e5m2",
        DType::F8E4m3fnuz => "f8e4m3fnuz",
        DType::F8E5m2fnuz => "f8e5m2fnuz",
        DType::F8E8m0fnu => "f8e8m0fnu",
        DType::C32 | DType::F4E2m1fnX2 => return None,
    })
}

/// The type of a shape, whose brackets are known to match. Faults count from its first byte.
pub(super) fn parse(text: &str) -> Result<Type, Fault> {
    let mut cursor = Cursor::new(text);
    shape(&mut cursor, 0)
}

/// Whether a type says all that its shape does.
pub(super) fn is_known(ty: &Type) -> bool {
    match ty {
        Type::Tuple(parts) => parts.iter().all(is_known),
        Type::Unknown => false,
        Type::Tensor(_) | Type::SymInt(_) | Type::SymOther(_) | Type::Token => true,
    }
}

/// A shape without its layouts, comments and blanks.
pub(super) fn without_layouts(text: &str) -> String {
    let (mut out, mut rest, mut depth) = (String::new(), text, 0usize);
    while let Some(next) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.find("*/").map_or("", |end| &comment[end + 2..]);
            continue;
        }
        match next {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ if depth == 0 && !next.is_whitespace() => out.push(next),
            _ => {}
        }
        rest = &rest[next.len_utf8()..];
    }
    out
}

fn shape(cursor: &mut Cursor<'_>, depth: usize) -> Result<Type, Fault> {
    if cursor.peek() != Some(b'(') {
        return array(cursor);
    }
    if depth == MAX_DEPTH {
        return Err(Fault::new(cursor.at, format!("more than {MAX_DEPTH} tuples stand inside one another"), "fewer"));
    }
    cursor.at += 1;
    let mut parts = Vec::new();
    loop {
        cursor.skip_blank()?;
        if cursor.take(b')') {
            return Ok(Type::Tuple(parts));
        }
        parts.push(shape(cursor, depth + 1)?);
        cursor.skip_blank()?;
        if !cursor.take(b',') && cursor.peek() != Some(b')') {
            return Err(cursor.expected("`,` or `)`"));
        }
    }
}

fn array(cursor: &mut Cursor<'_>) -> Result<Type, Fault> {
    let start = cursor.at;
    let text = cursor.shape()?.of(cursor.text);
    let open = text.find('[').expect("a shape has brackets");
    let close = open + text[open..].find(']').expect("a shape's brackets match");
    if &text[..open] == "token" {
        return Ok(Type::Token);
    }
    let (mut sizes, mut known) = (smallvec::SmallVec::<[u64; 6]>::new(), true);
    let mut at = start + open + 1;
    for part in text[open + 1..close].split(',') {
        let size = part.trim();
        let bound = size.strip_prefix("<=");
        known &= bound.is_none() && size != "?";
        match bound.unwrap_or(size).trim().parse::<u64>() {
            Ok(size) => sizes.push(size),
            Err(_) if size == "?" || (size.is_empty() && close == open + 1) => {}
            Err(_) => return Err(Fault::new(at, format!("`{size}` is not a size"), "a whole number below 2^64")),
        }
        at += part.len() + 1;
    }
    let dtype = dtype(&text[..open]).filter(|_| known);
    let tensor = TensorType::dense(dtype.unwrap_or(DType::C128), &sizes);
    let bytes = tensor.bytes().and_then(|bytes| bytes.as_const());
    if bytes.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
        return Err(Fault::new(start, format!("`{text}` is larger than 2^63 bytes"), "a smaller shape"));
    }
    Ok(if dtype.is_some() { Type::Tensor(tensor) } else { Type::Unknown })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_become_types() {
        for (text, expected) in [
            ("f32[]", "f32[]"),
            ("bf16[8,128]{1,0}", "bf16[8, 128]"),
            ("pred[2,3]{1,0:T(8,128)S(1)}", "b8[2, 3]"),
            ("(f32[], (s32[4]{0}, token[]), /*index=2*/u8[0])", "(f32[], (i32[4], token), u8[0])"),
            ("()", "()"),
            ("f32[<=8,2]", "?"),
            ("s4[8]", "?"),
            ("opaque[]", "?"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn shapes_lose_layouts_and_nothing_else() {
        assert_eq!(without_layouts("(s4[8]{0:E(4)}, /*index=1*/f32[<=8,2]{1,0})"), "(s4[8],f32[<=8,2])");
        assert!(is_known(&parse("(f32[2], token[])").unwrap()) && !is_known(&parse("(f32[2], (u4[8]))").unwrap()));
    }

    #[test]
    fn shapes_that_cannot_be_are_faults() {
        let deep = format!("{}f32[]{}", "(".repeat(65), ")".repeat(65));
        for text in ["f32[-1]", "f32[2,,3]", "f32[99999999999999999999]", "f32[4611686018427387904]", "q", &deep] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("(f32[2], f32[x])").unwrap_err().at, 13);
    }

    #[test]
    fn words_are_those_that_were_read() {
        for dtype in DType::ALL {
            assert!(word(*dtype).is_none_or(|word| super::dtype(word) == Some(*dtype)));
        }
    }
}
