//! Values of sizes that are not polynomials: what [`SymExpr`](super::SymExpr) keeps as text.

use super::symexpr::Cursor;

/// The value of a size given as text, where `value_of` knows its symbols.
#[must_use]
pub fn evaluate(text: &str, value_of: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    Reader { cursor: Cursor { text, at: 0 }, value_of }.whole()
}

/// Reads divisions and calls.
struct Reader<'a> {
    cursor: Cursor<'a>,
    value_of: &'a dyn Fn(&str) -> Option<i64>,
}

impl Reader<'_> {
    fn whole(mut self) -> Option<i64> {
        let value = self.sum()?;
        self.cursor.space();
        (self.cursor.at == self.cursor.text.len()).then_some(value)
    }

    fn eat(&mut self, token: &str) -> bool {
        self.cursor.eat(token)
    }

    fn sum(&mut self) -> Option<i64> {
        let mut value = self.product()?;
        loop {
            if self.eat("+") {
                value = value.checked_add(self.product()?)?;
            } else if self.eat("-") {
                value = value.checked_sub(self.product()?)?;
            } else {
                return Some(value);
            }
        }
    }

    fn product(&mut self) -> Option<i64> {
        let mut value = self.power()?;
        loop {
            if self.eat("//") {
                value = floor_div(value, self.power()?)?;
            } else if self.eat("*") {
                value = value.checked_mul(self.power()?)?;
            } else if self.eat("%") {
                value = modulo(value, self.power()?)?;
            } else {
                return Some(value);
            }
        }
    }

    fn power(&mut self) -> Option<i64> {
        let base = self.unary()?;
        if self.eat("**") { base.checked_pow(u32::try_from(self.unary()?).ok()?) } else { Some(base) }
    }

    fn unary(&mut self) -> Option<i64> {
        let mut negative = false;
        while self.eat("-") {
            negative = !negative;
        }
        let value = self.primary()?;
        if negative { value.checked_neg() } else { Some(value) }
    }

    fn primary(&mut self) -> Option<i64> {
        if self.eat("(") {
            let value = self.sum()?;
            return self.eat(")").then_some(value);
        }
        let Cursor { text, at: start } = self.cursor;
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
        let length = text.as_bytes()[start..].iter().take_while(|byte| word(byte)).count();
        self.cursor.at += length;
        let word = &text[start..self.cursor.at];
        if self.eat("(") {
            return self.call(word);
        }
        match word.parse() {
            Ok(value) => Some(value),
            Err(_) if word.is_empty() || word.starts_with(|first: char| first.is_ascii_digit()) => None,
            Err(_) => (self.value_of)(word),
        }
    }

    fn call(&mut self, name: &str) -> Option<i64> {
        let mut args = Vec::new();
        while !self.eat(")") {
            args.push(self.sum()?);
            if !self.eat(",") && !self.cursor.peek(")") {
                return None;
            }
        }
        match (name, args.as_slice()) {
            ("Max", [_, ..]) => args.into_iter().max(),
            ("Min", [_, ..]) => args.into_iter().min(),
            ("FloorDiv" | "CleanDiv" | "IntTrueDiv", &[a, b]) => floor_div(a, b),
            ("CeilDiv" | "CeilToInt", &[a, b]) => floor_div(a.checked_add(b)?.checked_sub(1)?, b),
            ("Mod" | "PythonMod", &[a, b]) => modulo(a, b),
            ("Abs", &[a]) => a.checked_abs(),
            _ => None,
        }
    }
}

/// Python's `//`.
#[must_use]
pub fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

/// Python's `%`.
#[must_use]
pub fn modulo(a: i64, b: i64) -> Option<i64> {
    a.checked_sub(floor_div(a, b)?.checked_mul(b)?)
}
