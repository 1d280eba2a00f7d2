//! Words, strings and marks of the text form, and what is asked of them.

use super::{Parser, Result};
use crate::program::ProgramError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A word or a number, with its text.
    Word(String),
    Str(String),
    Mark(char),
    Arrow,
    End,
}

impl Parser<'_> {
    pub(super) fn expected<T>(&self, found: &str, expected: &str) -> Result<T> {
        let before = &self.text[..self.start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        Err(ProgramError::Text { line, column, found: found.to_owned(), expected: expected.to_owned() })
    }

    pub(super) fn unexpected<T>(&self, token: &Token, expected: &str) -> Result<T> {
        let found = match token {
            Token::Word(word) => format!("`{word}`"),
            Token::Str(text) => format!("the string {}", crate::program::args::quote(text)),
            Token::Mark(mark) => format!("`{mark}`"),
            Token::Arrow => "`->`".to_owned(),
            Token::End => "the end".to_owned(),
        };
        self.expected(&found, expected)
    }

    pub(super) fn token(&mut self) -> Result<Token> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.start = self.at;
        let rest = &self.text[self.at..];
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        if rest.starts_with("->") {
            self.at += 2;
            return Ok(Token::Arrow);
        }
        if first == '"' {
            return self.string();
        }
        let negative = first == '-' && rest[1..].starts_with(|next: char| next.is_ascii_digit());
        if first.is_ascii_alphanumeric() || matches!(first, '_' | '.') || negative {
            let number = first.is_ascii_digit() || negative;
            let bytes = rest.as_bytes();
            let mut end = 1;
            while let Some(&byte) = bytes.get(end) {
                let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
                let sign = number && matches!(byte, b'-' | b'+') && matches!(bytes[end - 1], b'e' | b'E');
                if !plain && !sign {
                    break;
                }
                end += 1;
            }
            self.at += end;
            return Ok(Token::Word(rest[..end].to_owned()));
        }
        self.at += first.len_utf8();
        Ok(Token::Mark(first))
    }

    fn string(&mut self) -> Result<Token> {
        let rest = &self.text[self.at..];
        let bytes = rest.as_bytes();
        let mut end = 1;
        while let Some(&byte) = bytes.get(end) {
            match byte {
                b'\\' => end += 2,
                b'"' => {
                    return match crate::program::quoted::unquote(&rest[..=end]) {
                        Some(text) => {
                            self.at += end + 1;
                            Ok(Token::Str(text))
                        }
                        None => self.expected("a string with a wrong escape", "escapes as in JSON"),
                    };
                }
                _ => end += 1,
            }
        }
        self.expected("a string without an end", "`\"`")
    }

    pub(super) fn peek(&mut self) -> Result<Token> {
        let (at, start) = (self.at, self.start);
        let token = self.token();
        (self.at, self.start) = (at, start);
        token
    }

    pub(super) fn eat(&mut self, wanted: &Token) -> Result<bool> {
        let found = self.peek()? == *wanted;
        if found {
            self.token()?;
        }
        Ok(found)
    }

    pub(super) fn eat_word(&mut self, wanted: &str) -> Result<bool> {
        self.eat(&Token::Word(wanted.to_owned()))
    }

    pub(super) fn mark(&mut self, mark: char) -> Result {
        match self.token()? {
            Token::Mark(found) if found == mark => Ok(()),
            token => self.unexpected(&token, &format!("`{mark}`")),
        }
    }

    pub(super) fn word(&mut self, expected: &str) -> Result<String> {
        match self.token()? {
            Token::Word(word) => Ok(word),
            token => self.unexpected(&token, expected),
        }
    }

    pub(super) fn keyword(&mut self, wanted: &str) -> Result {
        match self.token()? {
            Token::Word(word) if word == wanted => Ok(()),
            token => self.unexpected(&token, &format!("`{wanted}`")),
        }
    }

    pub(super) fn name(&mut self) -> Result<Box<str>> {
        match self.token()? {
            Token::Word(word) => Ok(word.into()),
            Token::Mark('@') => match self.token()? {
                Token::Str(text) => Ok(text.into()),
                token => self.unexpected(&token, "a name in quotes"),
            },
            token => self.unexpected(&token, "a name"),
        }
    }

    pub(super) fn number<T: std::str::FromStr>(&mut self) -> Result<T> {
        let word = self.word("a number")?;
        word.parse().or_else(|_| self.expected(&format!("`{word}`"), "a whole number that fits"))
    }

    /// Items between brackets.
    pub(super) fn list<T>(&mut self, item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.between('[', ']', item)
    }

    /// Items between parentheses.
    pub(super) fn sequence<T>(&mut self, item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.between('(', ')', item)
    }

    fn between<T>(&mut self, open: char, close: char, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.mark(open)?;
        let mut items = Vec::new();
        while !self.eat(&Token::Mark(close))? {
            if !items.is_empty() {
                self.mark(',')?;
            }
            items.push(item(self)?);
        }
        Ok(items)
    }
}
