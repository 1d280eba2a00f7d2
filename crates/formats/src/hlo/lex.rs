//! Words of HLO text: names, shapes, strings, brackets and comments.
//!
//! Nothing here recurses, and brackets nest to [`MAX_NESTING`] levels at most.

use super::error::Fault;
use smallvec::SmallVec;

/// A range of bytes of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// The range between two places of a text that is shorter than 2^32 bytes.
    pub(super) const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    pub(super) fn of(self, text: &str) -> &str {
        &text[self.start as usize..self.end as usize]
    }

    pub(super) const fn at(self) -> usize {
        self.start as usize
    }
}

/// Most brackets that may stand inside one another.
pub(super) const MAX_NESTING: usize = 256;

/// Bytes that end a run of plain ones inside a value.
const SPECIAL: [bool; 256] = {
    let mut table = [false; 256];
    let bytes = b"\"'(){}[],/\n";
    let mut at = 0;
    while at < bytes.len() {
        table[bytes[at] as usize] = true;
        at += 1;
    }
    table
};

/// Bytes of names: letters, digits, `_`, `.` and `-`.
const NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        table[at] = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.' || byte == b'-';
        at += 1;
    }
    table
};

/// A place in the text.
pub(super) struct Cursor<'a> {
    pub text: &'a str,
    bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, bytes: text.as_bytes(), at: 0 }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// A fault here; what is found is the start of what stands here.
    pub(super) fn expected(&self, expected: impl Into<String>) -> Fault {
        Fault::new(self.at, format!("found {}", self.found()), expected)
    }

    fn found(&self) -> String {
        match self.text[self.at..].chars().next() {
            None => "the end of the text".to_owned(),
            Some('\n' | '\r') => "the end of the line".to_owned(),
            Some(first) => {
                let end = self.rest().iter().take(40).position(|&byte| !NAME[byte as usize] && byte != b'%');
                let word = end.filter(|&end| end > 0).map_or("", |end| &self.text[self.at..self.at + end]);
                if word.is_empty() { format!("`{first}`") } else { format!("`{word}`") }
            }
        }
    }

    /// Goes over blanks, line ends and comments.
    pub(super) fn skip_blank(&mut self) -> Result<(), Fault> {
        loop {
            match self.peek() {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                Some(b'/') if self.comment()? => {}
                _ => return Ok(()),
            }
        }
    }

    /// Goes over blanks and comments up to the end of the line.
    pub(super) fn skip_spaces(&mut self) -> Result<(), Fault> {
        loop {
            match self.peek() {
                Some(b' ' | b'\t' | b'\r') => self.at += 1,
                Some(b'/') if self.comment()? => {}
                _ => return Ok(()),
            }
        }
    }

    /// Goes over a comment, if one stands here; not over the line end behind a `//`.
    fn comment(&mut self) -> Result<bool, Fault> {
        match self.bytes.get(self.at + 1) {
            Some(b'/') => {
                self.at = memchr::memchr(b'\n', self.rest()).map_or(self.bytes.len(), |end| self.at + end);
                Ok(true)
            }
            Some(b'*') => {
                let end = memchr::memmem::find(&self.rest()[2..], b"*/");
                let end = end.ok_or_else(|| Fault::new(self.at, "the comment does not end", "`*/` behind it"))?;
                self.at += end + 4;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Takes the byte if it stands here.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let here = self.peek() == Some(byte);
        self.at += usize::from(here);
        here
    }

    pub(super) fn expect(&mut self, byte: u8, expected: &str) -> Result<(), Fault> {
        if self.take(byte) { Ok(()) } else { Err(self.expected(expected)) }
    }

    /// Takes the word if it stands here by itself.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let after = self.rest().get(word.len()).is_none_or(|&byte| !NAME[byte as usize]);
        let here = self.rest().starts_with(word.as_bytes()) && after;
        self.at += if here { word.len() } else { 0 };
        here
    }

    /// A name, with or without `%` before it; the span is without.
    pub(super) fn name(&mut self, expected: &str) -> Result<Span, Fault> {
        let begin = self.at;
        self.take(b'%');
        let start = self.at;
        while self.peek().is_some_and(|byte| NAME[byte as usize]) {
            self.at += 1;
        }
        let first = self.bytes.get(start).copied();
        if first.is_none_or(|byte| !(byte.is_ascii_alphabetic() || byte == b'_')) {
            self.at = begin;
            return Err(self.expected(expected));
        }
        Ok(Span::new(start, self.at))
    }

    /// Goes over a string that begins here.
    fn string(&mut self) -> Result<(), Fault> {
        let (start, quote) = (self.at, self.bytes[self.at]);
        self.at += 1;
        loop {
            let Some(step) = memchr::memchr2(quote, b'\\', self.rest()) else {
                return Err(Fault::new(start, "the string does not end", format!("`{}` behind it", quote as char)));
            };
            self.at += step + 1;
            if self.bytes[self.at - 1] == quote {
                return Ok(());
            }
            // What an escape stands for does not matter, only that a quote in it does not end the string.
            self.at = (self.at + 1).min(self.bytes.len());
        }
    }

    /// Goes over text up to the first byte outside of brackets, strings and comments that `ends` says.
    fn until(&mut self, ends: impl Fn(u8) -> bool) -> Result<(), Fault> {
        let mut open: SmallVec<[(u8, u32); 16]> = SmallVec::new();
        while let Some(&byte) = self.bytes.get(self.at) {
            if !SPECIAL[byte as usize] {
                self.at += 1;
                continue;
            }
            if open.is_empty() && ends(byte) {
                return Ok(());
            }
            match byte {
                b'"' | b'\'' => self.string()?,
                b'(' | b'[' | b'{' => {
                    if open.len() == MAX_NESTING {
                        let problem = format!("more than {MAX_NESTING} brackets stand inside one another");
                        return Err(Fault::new(self.at, problem, "fewer levels"));
                    }
                    let close = if byte == b'(' { b')' } else { byte + 2 };
                    open.push((close, self.at as u32));
                    self.at += 1;
                }
                b')' | b']' | b'}' => match open.pop() {
                    Some((close, _)) if close == byte => self.at += 1,
                    Some((close, _)) => return Err(self.expected(format!("`{}`", close as char))),
                    None => return Err(self.expected("no closing bracket, for none is open")),
                },
                b'/' => {
                    if !self.comment()? {
                        self.at += 1;
                    }
                }
                _ => self.at += 1,
            }
        }
        match open.last() {
            Some(&(close, at)) => {
                Err(Fault::new(at as usize, "the bracket is not closed", format!("`{}` behind it", close as char)))
            }
            None => Ok(()),
        }
    }

    /// The value of an attribute: up to a comma, a line end or a closing brace that is not its own.
    pub(super) fn value(&mut self) -> Result<Span, Fault> {
        let start = self.at;
        self.until(|byte| matches!(byte, b',' | b'\n' | b'}'))?;
        let length = self.text[start..self.at].trim_ascii_end().len();
        if length == 0 {
            return Err(self.expected("a value"));
        }
        Ok(Span::new(start, start + length))
    }

    /// Goes over a value inside of braces: up to a blank, a comma or a closing brace that is not its own.
    pub(super) fn entry(&mut self) -> Result<(), Fault> {
        while self.peek().is_some_and(|byte| !matches!(byte, b' ' | b'\n' | b',' | b'}')) {
            match self.peek() {
                Some(b'"' | b'\'') => self.string()?,
                Some(b'(' | b'[' | b'{') => drop(self.brackets()?),
                _ => self.at += 1,
            }
        }
        Ok(())
    }

    /// What stands between here and the closing parenthesis, which is not taken.
    pub(super) fn inside(&mut self) -> Result<Span, Fault> {
        let start = self.at;
        self.until(|byte| byte == b')')?;
        Ok(Span::new(start, self.at))
    }

    /// Goes over a bracket that begins here, and all in it.
    pub(super) fn brackets(&mut self) -> Result<Span, Fault> {
        let start = self.at;
        // The first bracket is inside: what follows its end, whatever it is, is not.
        let close = match self.peek() {
            Some(b'(') => b')',
            Some(byte @ (b'[' | b'{')) => byte + 2,
            _ => return Err(self.expected("a bracket")),
        };
        self.at += 1;
        self.until(|byte| byte == close)?;
        if self.peek() != Some(close) {
            return Err(Fault::new(start, "the bracket is not closed", format!("`{}` behind it", close as char)));
        }
        self.at += 1;
        Ok(Span::new(start, self.at))
    }

    /// A shape: `f32[8,128]{1,0}`, `(f32[], s32[])`. Its layout stands right behind it.
    pub(super) fn shape(&mut self) -> Result<Span, Fault> {
        let start = self.at;
        if self.peek() == Some(b'(') {
            return self.brackets();
        }
        while self.peek().is_some_and(|byte| byte.is_ascii_alphanumeric()) {
            self.at += 1;
        }
        if self.at == start || self.peek() != Some(b'[') {
            self.at = start;
            return Err(self.expected("a shape, such as f32[8,128]{1,0} or (f32[], s32[])"));
        }
        self.brackets()?;
        let layout = matches!(self.rest(), [b'{', b'0'..=b'9' | b'}' | b':', ..]);
        if layout {
            self.brackets()?;
        }
        Ok(Span::new(start, self.at))
    }
}
