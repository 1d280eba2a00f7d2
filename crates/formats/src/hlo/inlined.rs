//! XLA's canonical print: bodies that stand where a computation's name would.
//!
//! ```text
//! tmp_5 = f32[8]{0} all-reduce(f32[8]{0} tmp_4), to_apply=
//! {
//!   tmp_0 = f32[] parameter(0)
//!   ..
//! }
//! ```
//!
//! Each such body becomes a computation with a name, above the one that it stood in, which XLA reads as the same module.
//! Where nothing changes, the text as it was read is printed again.

use super::lex::Cursor;
use super::module::is_call;
use std::ops::Range;

/// A text without inlined bodies, and where its parts were.
pub(super) struct Hoisted {
    pub text: String,
    /// Where parts begin, here and in the text as it was read, in order.
    parts: Vec<(usize, usize)>,
}

impl Hoisted {
    /// Where a byte was in the text as it was read.
    pub(super) fn original(&self, at: usize) -> usize {
        let next = self.parts.partition_point(|&(here, _)| here <= at);
        let (here, there) = next.checked_sub(1).map_or((0, 0), |last| self.parts[last]);
        let limit = self.parts.get(next).map_or(usize::MAX, |&(_, there)| there);
        (there + (at - here)).min(limit.max(there))
    }
}

/// What the new text is made of.
enum Piece {
    /// A part of the text as it was read.
    Of(Range<usize>),
    /// What is new, and where it belongs.
    New(String, usize),
}

/// Gives inlined bodies names; `None` where there are none, or where a bracket does not close.
pub(super) fn hoisted(text: &str) -> Option<Hoisted> {
    next(text, 0..text.len())?;
    let mut prefix = "inlined".to_owned();
    while text.contains(&prefix) {
        prefix.push('_');
    }
    let mut hoist = Hoist { text, prefix, count: 0, bodies: Vec::new() };
    let mut pieces = Vec::new();
    for block in blocks(text) {
        let inner = hoist.pieces(block)?;
        pieces.extend(hoist.bodies.drain(..).flatten());
        pieces.extend(inner);
    }
    let mut made = Hoisted { text: String::with_capacity(text.len() + text.len() / 8), parts: Vec::new() };
    for piece in pieces {
        match piece {
            Piece::Of(range) => {
                made.parts.push((made.text.len(), range.start));
                made.text.push_str(&text[range]);
            }
            Piece::New(new, at) => {
                made.parts.push((made.text.len(), at));
                made.text.push_str(&new);
            }
        }
    }
    Some(made)
}

/// The text cut before each line that begins without a blank and not with a closing brace.
fn blocks(text: &str) -> Vec<Range<usize>> {
    let newlines = memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1);
    let begins = |&at: &usize| text[at..].bytes().next().is_some_and(|byte| !b" \t\r\n}".contains(&byte));
    let mut starts: Vec<usize> = std::iter::once(0).chain(newlines.filter(begins)).collect();
    starts.push(text.len());
    starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// The next `calls=` of a range with a line end and a brace behind it: the places behind the sign, and of the brace.
fn next(text: &str, range: Range<usize>) -> Option<(usize, usize)> {
    let bytes = &text.as_bytes()[..range.end];
    let mut from = range.start;
    loop {
        let newline = from + memchr::memchr(b'\n', bytes.get(from..)?)?;
        from = newline + 1;
        let before = text[range.start..newline].trim_end_matches([' ', '\t', '\r']);
        let Some(before) = before.strip_suffix('=') else { continue };
        let word = before.rsplit([' ', ',', '\t', '\n']).next().unwrap_or("");
        let brace = newline + bytes[newline..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if is_call(word) && bytes.get(brace) == Some(&b'{') {
            return Some((range.start + before.len() + 1, brace));
        }
    }
}

struct Hoist<'a> {
    text: &'a str,
    prefix: String,
    count: usize,
    /// Bodies of the block, inner ones first.
    bodies: Vec<Vec<Piece>>,
}

impl Hoist<'_> {
    /// A range with names instead of bodies.
    fn pieces(&mut self, range: Range<usize>) -> Option<Vec<Piece>> {
        let (mut pieces, mut at) = (Vec::new(), range.start);
        while let Some((sign, brace)) = next(self.text, at..range.end) {
            let mut cursor = Cursor::new(self.text);
            cursor.at = brace;
            cursor.brackets().ok()?;
            let end = cursor.at;
            let inside = self.pieces(brace + 1..end - 1)?;
            let name = format!("{}_{}", self.prefix, self.count);
            self.count += 1;
            let mut body = vec![Piece::New(format!("{name} {{"), brace)];
            body.extend(inside);
            body.push(Piece::New("}\n\n".to_owned(), end - 1));
            self.bodies.push(body);
            pieces.push(Piece::Of(at..sign));
            pieces.push(Piece::New(name, brace));
            at = end;
        }
        pieces.push(Piece::Of(at..range.end));
        Some(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_get_names_above_what_they_stood_in() {
        let text = "HloModule m\n\nENTRY e {\n  a = f32[] parameter(0)\n  b = f32[] fusion(a), kind=kLoop, calls=\n  {\n    \
                    c = f32[] parameter(0)\n    d = f32[] call(c), to_apply=\n    {\n      ROOT f = f32[] parameter(0)\n    \
                    }\n  }\n  ROOT g = f32[] negate(b)\n}\n";
        let made = hoisted(text).unwrap();
        assert_eq!(
            made.text,
            "HloModule m\n\ninlined_0 {\n      ROOT f = f32[] parameter(0)\n    }\n\ninlined_1 {\n    \
             c = f32[] parameter(0)\n    d = f32[] call(c), to_apply=inlined_0\n  }\n\nENTRY e {\n  \
             a = f32[] parameter(0)\n  b = f32[] fusion(a), kind=kLoop, calls=inlined_1\n  ROOT g = f32[] negate(b)\n}\n"
        );
        for word in ["f = f32", "c = f32", "a = f32", "g = f32"] {
            assert_eq!(made.original(made.text.find(word).unwrap()), text.find(word).unwrap(), "{word}");
        }
        assert!(hoisted("HloModule m\n\nENTRY e {\n  ROOT a = f32[] parameter(0)\n}\n").is_none());
    }
}
