//! Bytes of code: words, strings, and the right side of a statement.
//!
//! Graphs repeat few right sides a great many times, but for the names of their operands. So a right side is copied
//! to a key in which [`HOLE`] stands for each operand; keys are looked up, and parsed only when new.

use super::error::Fault;

/// Stands for an operand in a key. It cannot occur in code.
pub(super) const HOLE: u8 = 1;

/// What a byte can begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Other,
    Letter,
    Digit,
    Quote,
    Open,
    Close,
    /// Ends a right side outside brackets.
    Break,
    Angle,
    Control,
}

const CLASSES: [Class; 256] = {
    let mut classes = [Class::Other; 256];
    let mut byte = 0;
    while byte < 128 {
        let b = byte as u8;
        classes[byte] = match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => Class::Letter,
            b'0'..=b'9' => Class::Digit,
            b'\'' | b'"' => Class::Quote,
            b'(' | b'[' | b'{' => Class::Open,
            b')' | b']' | b'}' => Class::Close,
            b'\n' | b';' | b'#' => Class::Break,
            b'<' => Class::Angle,
            b'\t' => Class::Other,
            0..=31 | 127 => Class::Control,
            _ => Class::Other,
        };
        byte += 1;
    }
    classes
};

/// Whether a byte can stand in an identifier.
pub(super) const fn is_word(byte: u8) -> bool {
    matches!(CLASSES[byte as usize], Class::Letter | Class::Digit)
}

/// Whether a byte can begin an identifier.
pub(super) const fn is_letter(byte: u8) -> bool {
    matches!(CLASSES[byte as usize], Class::Letter)
}

/// Python's keywords: words that cannot be names.
pub(super) fn is_keyword(word: &str) -> bool {
    matches!(
        word,
        "False"
            | "None"
            | "True"
            | "and"
            | "as"
            | "assert"
            | "async"
            | "await"
            | "break"
            | "class"
            | "continue"
            | "def"
            | "del"
            | "elif"
            | "else"
            | "except"
            | "finally"
            | "for"
            | "from"
            | "global"
            | "if"
            | "import"
            | "in"
            | "is"
            | "lambda"
            | "nonlocal"
            | "not"
            | "or"
            | "pass"
            | "raise"
            | "return"
            | "try"
            | "while"
            | "with"
            | "yield"
    )
}

/// The end of the identifier at `at`.
#[inline]
pub(super) fn word_end(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(|&byte| is_word(byte)) {
        at += 1;
    }
    at
}

/// The end of the dotted name at `at`.
#[inline]
pub(super) fn dotted_end(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(|&byte| is_word(byte) || byte == b'.') {
        at += 1;
    }
    at
}

/// The first byte from `at` on that is not a blank.
#[inline]
pub(super) fn skip_blanks(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t')) {
        at += 1;
    }
    at
}

/// The first byte from `at` on that is not a blank, a line end or in a comment.
pub(super) fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    loop {
        match bytes.get(at) {
            Some(b' ' | b'\t' | b'\n') => at += 1,
            Some(b'#') => at = line_end(bytes, at),
            _ => return at,
        }
    }
}

/// Where the line of `at` ends: its `\n`, or the end of the text.
pub(super) fn line_end(bytes: &[u8], at: usize) -> usize {
    memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |found| at + found)
}

/// The end of the string that starts at `at`, behind its closing quote.
pub(super) fn string_end(bytes: &[u8], at: usize) -> Result<usize, Fault> {
    let quote = bytes[at];
    let mut end = at + 1;
    loop {
        match bytes.get(end) {
            Some(&byte) if byte == quote => return Ok(end + 1),
            Some(b'\\') => end += 2,
            Some(0..=31) | None => return Err(Fault::expected(end.min(bytes.len()), "the closing quote of a string")),
            Some(_) => end += 1,
        }
    }
}

/// Whether the word that ends at `end` is the name of a keyword argument.
#[inline]
fn names_argument(bytes: &[u8], end: usize) -> bool {
    let at = skip_blanks(bytes, end);
    bytes.get(at) == Some(&b'=') && bytes.get(at + 1) != Some(&b'=')
}

/// The word at `at`: the end of its first part, its end, and whether the first part may name an operand. Names of
/// functions and of keyword arguments (which only brackets hold) do not, nor do the parts of `torch` and `self`.
#[inline]
fn word(bytes: &[u8], at: usize, in_brackets: bool) -> (usize, usize, bool) {
    let head = word_end(bytes, at);
    match bytes.get(head) {
        Some(b'.') => (head, dotted_end(bytes, head), !matches!(&bytes[at..head], b"torch" | b"self")),
        Some(b'(') => (head, head, false),
        Some(b' ' | b'=') => (head, head, !(in_brackets && names_argument(bytes, head))),
        _ => (head, head, true),
    }
}

/// Copies the right side that starts at `start` to `key`, with a hole for each word that `operand` accepts. `operand`
/// gets the word's place and text, in order of appearance. Gives the end, without the blanks behind the right side.
pub(super) fn scan_right_side(
    text: &str,
    start: usize,
    key: &mut Vec<u8>,
    mut operand: impl FnMut(usize, &str) -> bool,
) -> Result<usize, Fault> {
    let bytes = text.as_bytes();
    let (mut at, mut copied, mut depth) = (start, start, 0u32);
    let mut outermost = start;
    key.clear();
    while let Some(&byte) = bytes.get(at) {
        match CLASSES[byte as usize] {
            Class::Other => at += 1,
            Class::Letter => {
                let (head, end, may_be_operand) = word(bytes, at, depth > 0);
                if may_be_operand && operand(at, &text[at..head]) {
                    key.extend_from_slice(&bytes[copied..at]);
                    key.push(HOLE);
                    copied = head;
                }
                at = end;
            }
            Class::Digit => at = dotted_end(bytes, at),
            Class::Quote => at = string_end(bytes, at)?,
            Class::Open => {
                if depth == 0 {
                    outermost = at;
                }
                depth += 1;
                at += 1;
            }
            Class::Close => {
                let Some(outer) = depth.checked_sub(1) else {
                    return Err(Fault::expected(at, "an opening bracket before this one"));
                };
                depth = outer;
                at += 1;
            }
            Class::Break if depth == 0 => break,
            Class::Break if byte == b'#' => {
                key.extend_from_slice(&bytes[copied..at]);
                at = line_end(bytes, at);
                copied = at;
            }
            Class::Break if byte == b';' => return Err(Fault::expected(at, "a closing bracket before `;`")),
            Class::Break => at += 1,
            Class::Angle => at = repr_end(bytes, at),
            Class::Control => return Err(Fault::expected(at, "code")),
        }
    }
    if depth > 0 {
        return Err(Fault::problem(outermost, 1, "this bracket is not closed".into(), "its closing bracket"));
    }
    while at > start && matches!(bytes[at - 1], b' ' | b'\t') {
        at -= 1;
    }
    key.extend_from_slice(&bytes[copied.min(at)..at]);
    Ok(at)
}

/// Longer texts between `<` and `>` are not read as one; without a limit, unclosed ones would take quadratic time.
const LONGEST_REPR: usize = 1000;

/// The end of `<function f at 0x7f>`, as Python prints objects that have no other form; or of a lone `<`.
pub(super) fn repr_end(bytes: &[u8], at: usize) -> usize {
    if !bytes.get(at + 1).is_some_and(|&byte| is_letter(byte)) {
        return at + 1;
    }
    let (mut end, mut depth) = (at, 0usize);
    let limit = bytes.len().min(at + LONGEST_REPR);
    while let Some(&byte) = bytes[..limit].get(end) {
        end += 1;
        match byte {
            b'<' => depth += 1,
            b'>' if depth == 1 => return end,
            b'>' => depth -= 1,
            0..=31 => break,
            _ => {}
        }
    }
    at + 1
}
