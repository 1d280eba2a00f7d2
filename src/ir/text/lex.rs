//! Words, numbers, strings and marks of the native text, one at a time.

use super::TextError;

/// One piece of text. Slices keep their spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// `relu`, `aten.mm.default`, `-inf`.
    Word(&'a str),
    /// `8`, `-1`.
    Int(&'a str),
    /// `0.5`, `1e-05`.
    Float(&'a str),
    /// The text between the quotes, escapes as written.
    Str(&'a str),
    /// Any other mark.
    Mark(char),
    /// The end of a line, or `;`.
    Separator,
    /// The end of the text.
    End,
}

impl Token<'_> {
    /// How messages show it.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Word(text) | Self::Int(text) | Self::Float(text) => format!("`{text}`"),
            Self::Str(text) => format!("string '{text}'"),
            Self::Mark(mark) => format!("`{mark}`"),
            Self::Separator => "the end of the statement".to_owned(),
            Self::End => "the end of the text".to_owned(),
        }
    }
}

/// A place in the text. Copying it is looking ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    /// Open brackets and parentheses: inside, line ends are blanks.
    pub(super) nested: u32,
}

const fn starts_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

const fn continues_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl<'a> Lexer<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0, nested: 0 }
    }

    /// Byte offset of the next token, once blanks are skipped.
    pub(super) fn position(&mut self) -> usize {
        self.skip_blank();
        self.at
    }

    /// Byte offset right after the last token.
    pub(super) const fn end(&self) -> usize {
        self.at
    }

    /// Goes on from a byte offset that was a token's start or end.
    pub(super) const fn jump(&mut self, at: usize) {
        self.at = at;
    }

    /// All of the text.
    pub(super) const fn text(&self) -> &'a str {
        self.text
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    fn skip_blank(&mut self) {
        while let Some(byte) = self.byte(self.at) {
            match byte {
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'\n' if self.nested > 0 => self.at += 1,
                b'#' => self.at = self.text[self.at..].find('\n').map_or(self.text.len(), |n| self.at + n),
                _ => break,
            }
        }
    }

    fn run(&self, mut at: usize, part: impl Fn(u8) -> bool) -> usize {
        while self.byte(at).is_some_and(&part) {
            at += 1;
        }
        at
    }

    /// The next token.
    pub(super) fn next(&mut self) -> Result<Token<'a>, TextError> {
        self.skip_blank();
        let start = self.at;
        let Some(byte) = self.byte(start) else { return Ok(Token::End) };
        let signed = byte == b'-';
        let first = if signed { self.byte(start + 1) } else { Some(byte) };
        match first {
            _ if byte == b'\n' || byte == b';' => {
                self.at += 1;
                Ok(Token::Separator)
            }
            _ if byte == b'"' || byte == b'\'' => self.string(byte),
            Some(first) if starts_word(first) => Ok(self.word(start, start + usize::from(signed))),
            Some(first) if first.is_ascii_digit() || first == b'.' => self.number(start, start + usize::from(signed)),
            _ => {
                let mark = self.text[start..].chars().next().unwrap_or(' ');
                self.at += mark.len_utf8();
                Ok(Token::Mark(mark))
            }
        }
    }

    /// The token after this place, which does not move.
    pub(super) fn peek(&self) -> Result<Token<'a>, TextError> {
        let mut ahead = *self;
        ahead.next()
    }

    fn word(&mut self, start: usize, letters: usize) -> Token<'a> {
        let mut at = self.run(letters, continues_word);
        while self.byte(at) == Some(b'.') && self.byte(at + 1).is_some_and(continues_word) {
            at = self.run(at + 1, continues_word);
        }
        self.at = at;
        Token::Word(&self.text[start..at])
    }

    fn number(&mut self, start: usize, digits: usize) -> Result<Token<'a>, TextError> {
        let is_digit = |byte: u8| byte.is_ascii_digit();
        let mut at = self.run(digits, is_digit);
        let mut float = false;
        if self.byte(at) == Some(b'.') {
            float = true;
            at = self.run(at + 1, is_digit);
        }
        if matches!(self.byte(at), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(self.byte(at + 1), Some(b'+' | b'-')));
            if self.byte(at + 1 + sign).is_some_and(is_digit) {
                float = true;
                at = self.run(at + 1 + sign, is_digit);
            }
        }
        let whole = self.run(at, |byte| continues_word(byte) || byte == b'.');
        let text = &self.text[start..whole];
        if whole != at || !text.bytes().any(is_digit) {
            return Err(TextError::new(self.text, start, format!("`{text}`"), "a number"));
        }
        self.at = at;
        Ok(if float { Token::Float(text) } else { Token::Int(text) })
    }

    fn string(&mut self, quote: u8) -> Result<Token<'a>, TextError> {
        let start = self.at + 1;
        let mut at = start;
        loop {
            match self.byte(at) {
                Some(byte) if byte == quote => break,
                Some(b'\\') if self.byte(at + 1).is_some_and(|b| b != b'\n') => at += 2,
                None | Some(b'\n') => {
                    let found = "a string without an end".to_owned();
                    return Err(TextError::new(self.text, self.at, found, "a closing quote on the same line"));
                }
                Some(_) => at += 1,
            }
        }
        // A backslash may stand before a character of several bytes; the quote that was found is one byte of its own.
        self.at = at + 1;
        Ok(Token::Str(&self.text[start..at]))
    }

    /// The raw text of a type that starts here: `f32[8, 4][4, 1]cuda:0`, `(f32[2], i64[])`, `Sym(s0)`, `?`.
    pub(super) fn type_text(&mut self) -> &'a str {
        self.skip_blank();
        let start = self.at;
        let at = match self.byte(start) {
            Some(b'?') => start + 1,
            Some(b'(') => self.balanced(start),
            _ => {
                let mut at = self.run(start, continues_word);
                if self.byte(at) == Some(b'(') {
                    at = self.balanced(at);
                }
                let sizes = at;
                while self.byte(at) == Some(b'[') {
                    at = self.balanced(at);
                }
                if at > sizes { self.run(at, |b| continues_word(b) || b == b':') } else { at }
            }
        };
        self.at = at;
        &self.text[start..at]
    }

    /// The raw text of a device: `cuda:0`.
    pub(super) fn device_text(&mut self) -> &'a str {
        self.skip_blank();
        let start = self.at;
        self.at = self.run(start, |b| continues_word(b) || b == b':');
        &self.text[start..self.at]
    }

    /// The raw text up to `{`, the end of the line or a comment.
    pub(super) fn label_text(&mut self) -> &'a str {
        self.skip_blank();
        let start = self.at;
        self.at = self.run(start, |b| !matches!(b, b'{' | b'}' | b'\n' | b'#' | b';'));
        self.text[start..self.at].trim()
    }

    /// Where the bracket that opens at `at` is closed, or the end of the line or text.
    fn balanced(&self, mut at: usize) -> usize {
        let mut depth = 0u32;
        while let Some(byte) = self.byte(at) {
            match byte {
                b'(' | b'[' => depth += 1,
                b')' | b']' => depth = depth.saturating_sub(1),
                b'\n' => break,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
        at
    }
}

/// Whether `text` is one word, as the lexer has it.
pub(super) fn is_word(text: &str) -> bool {
    let mut lexer = Lexer::new(text);
    !text.starts_with(' ') && lexer.next() == Ok(Token::Word(text))
}

/// Whether `text` can be a node's name: a word without `.` or `-` that stands for nothing else.
pub(in crate::ir) fn is_name(text: &str) -> bool {
    is_word(text) && !text.contains(['.', '-']) && !matches!(text, "True" | "False" | "None")
}

/// Whether `text` is one number with a point or exponent.
pub(super) fn is_float(text: &str) -> bool {
    let mut lexer = Lexer::new(text);
    !text.starts_with(' ') && lexer.next() == Ok(Token::Float(text))
}

/// `text` between double quotes, with escapes for what cannot stand there.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Undoes [`quote`].
pub(super) fn unquote(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('n')) => out.push('\n'),
            ('\\', Some('t')) => out.push('\t'),
            ('\\', Some('r')) => out.push('\r'),
            ('\\', Some(other)) => out.push(other),
            (c, _) => out.push(c),
        }
    }
    out
}
