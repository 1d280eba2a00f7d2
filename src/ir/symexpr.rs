//! Symbolic sizes: polynomials with integer coefficients over atoms.
//!
//! An atom is a symbol (`s77`) or a whole function call or division that is not a polynomial (`Max(1, s0)`,
//! `(s0 + 7)//8`), kept as text. Equal polynomials are equal values, whatever order they were written in, so
//! `2*s0 + s0` and `3*s0` are one size. All arithmetic is checked.

use std::fmt;

/// A sum of terms; the empty sum is zero. Kept sorted and without zero coefficients.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SymExpr {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Term {
    /// Atoms with their powers, sorted by atom; empty for the constant.
    factors: Vec<(Box<str>, u32)>,
    coefficient: i64,
}

/// Deepest nesting of parentheses and calls that [`SymExpr::parse`] follows.
const MAX_DEPTH: u32 = 64;
/// Most terms a size may have; products of longer sums are refused.
const MAX_TERMS: usize = 4096;

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SymError {
    /// The text breaks the grammar at a byte offset.
    #[error("expected {expected} at byte {at} of size `{text}`")]
    Syntax {
        /// The whole text.
        text: String,
        /// Byte offset in it.
        at: usize,
        /// What would have been right.
        expected: &'static str,
    },
    /// A number or a result does not fit in 64 bits, or the sum has too many terms.
    #[error("size `{0}` overflows 64 bits")]
    Overflow(String),
}

impl SymExpr {
    /// The size that is always `value`.
    #[must_use]
    pub fn constant(value: i64) -> Self {
        let mut expr = Self::default();
        if value != 0 {
            expr.terms.push(Term { factors: Vec::new(), coefficient: value });
        }
        expr
    }

    /// The size named `atom`.
    #[must_use]
    pub fn atom(atom: &str) -> Self {
        Self { terms: vec![Term { factors: vec![(atom.into(), 1)], coefficient: 1 }] }
    }

    /// The value, if there is no atom in it.
    #[must_use]
    pub fn as_constant(&self) -> Option<i64> {
        match self.terms.as_slice() {
            [] => Some(0),
            [term] if term.factors.is_empty() => Some(term.coefficient),
            _ => None,
        }
    }

    fn normalize(mut terms: Vec<Term>) -> Option<Self> {
        terms.sort();
        let mut out: Vec<Term> = Vec::with_capacity(terms.len());
        for term in terms {
            match out.last_mut() {
                Some(last) if last.factors == term.factors => {
                    last.coefficient = last.coefficient.checked_add(term.coefficient)?;
                }
                _ => out.push(term),
            }
        }
        out.retain(|term| term.coefficient != 0);
        (out.len() <= MAX_TERMS).then_some(Self { terms: out })
    }

    /// The sum, or `None` when it does not fit.
    #[must_use]
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        Self::normalize(self.terms.iter().chain(&other.terms).cloned().collect())
    }

    /// The product, or `None` when it does not fit.
    #[must_use]
    pub fn checked_mul(&self, other: &Self) -> Option<Self> {
        if self.terms.len().checked_mul(other.terms.len())? > MAX_TERMS {
            return None;
        }
        let mut terms = Vec::with_capacity(self.terms.len() * other.terms.len());
        for a in &self.terms {
            for b in &other.terms {
                let mut factors = a.factors.clone();
                for (atom, power) in &b.factors {
                    match factors.binary_search_by(|(have, _)| have.cmp(atom)) {
                        Ok(at) => factors[at].1 = factors[at].1.checked_add(*power)?,
                        Err(at) => factors.insert(at, (atom.clone(), *power)),
                    }
                }
                terms.push(Term { factors, coefficient: a.coefficient.checked_mul(b.coefficient)? });
            }
        }
        Self::normalize(terms)
    }

    /// The quotient, when `divisor` divides every coefficient.
    #[must_use]
    pub fn divide_exactly(&self, divisor: i64) -> Option<Self> {
        let mut terms = self.terms.clone();
        for term in &mut terms {
            if term.coefficient.checked_rem(divisor)? != 0 {
                return None;
            }
            term.coefficient = term.coefficient.checked_div(divisor)?;
        }
        Some(Self { terms })
    }

    /// The quotient by an expression of one term, when it is exact for every value of the symbols.
    #[must_use]
    pub fn divide_by_term(&self, divisor: &Self) -> Option<Self> {
        let [by] = divisor.terms.as_slice() else { return None };
        let mut terms = self.terms.clone();
        for term in &mut terms {
            if term.coefficient.checked_rem(by.coefficient)? != 0 {
                return None;
            }
            term.coefficient = term.coefficient.checked_div(by.coefficient)?;
            for (atom, power) in &by.factors {
                let at = term.factors.binary_search_by(|(have, _)| have.cmp(atom)).ok()?;
                term.factors[at].1 = term.factors[at].1.checked_sub(*power)?;
                if term.factors[at].1 == 0 {
                    term.factors.remove(at);
                }
            }
        }
        Self::normalize(terms)
    }

    /// Whether no coefficient is negative: then the value is not, as long as no symbol is.
    #[must_use]
    pub fn has_no_minus(&self) -> bool {
        self.terms.iter().all(|term| term.coefficient > 0)
    }

    /// The value with every atom replaced by what `value_of` says of it, or `None` if it knows one not or the
    /// result does not fit.
    #[must_use]
    pub fn evaluate(&self, value_of: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
        let mut sum = 0i64;
        for term in &self.terms {
            let mut product = term.coefficient;
            for (atom, power) in &term.factors {
                product = product.checked_mul(value_of(atom)?.checked_pow(*power)?)?;
            }
            sum = sum.checked_add(product)?;
        }
        Some(sum)
    }

    /// Reads a size as PyTorch prints it: integers, symbols, `+ - * // **`, parentheses and calls.
    ///
    /// # Errors
    /// [`SymError`] with the byte offset of the first mistake.
    pub fn parse(text: &str) -> Result<Self, SymError> {
        let mut parser = Cursor { text, at: 0 };
        let expr = parser.sum(0)?;
        parser.space();
        if parser.at < text.len() {
            return Err(parser.expected("an operator or the end"));
        }
        Ok(expr)
    }
}

/// A place in the text of a size.
pub(super) struct Cursor<'a> {
    pub text: &'a str,
    pub at: usize,
}

impl Cursor<'_> {
    pub fn space(&mut self) {
        while self.text.as_bytes().get(self.at) == Some(&b' ') {
            self.at += 1;
        }
    }

    pub fn peek(&mut self, token: &str) -> bool {
        self.space();
        self.text[self.at..].starts_with(token)
    }

    pub fn eat(&mut self, token: &str) -> bool {
        let found = self.peek(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expected(&self, expected: &'static str) -> SymError {
        SymError::Syntax { text: self.text.to_owned(), at: self.at, expected }
    }

    fn overflow(&self) -> SymError {
        SymError::Overflow(self.text.to_owned())
    }

    fn sum(&mut self, depth: u32) -> Result<SymExpr, SymError> {
        if depth > MAX_DEPTH {
            return Err(self.expected("fewer nested parentheses"));
        }
        let mut value = self.product(depth)?;
        loop {
            let sign = if self.eat("+") {
                1
            } else if self.eat("-") {
                -1
            } else {
                return Ok(value);
            };
            let right = self.product(depth)?.checked_mul(&SymExpr::constant(sign)).ok_or_else(|| self.overflow())?;
            value = value.checked_add(&right).ok_or_else(|| self.overflow())?;
        }
    }

    fn product(&mut self, depth: u32) -> Result<SymExpr, SymError> {
        self.space();
        let start = self.at;
        let mut value = self.power(depth)?;
        loop {
            if self.peek("**") {
                return Err(self.expected("a smaller power"));
            } else if self.eat("//") {
                let right = self.power(depth)?;
                value = match (value.as_constant(), right.as_constant()) {
                    (_, Some(0)) => return Err(self.expected("a divisor other than zero")),
                    (Some(a), Some(b)) => SymExpr::constant(a.checked_div_euclid(b).ok_or_else(|| self.overflow())?),
                    (_, Some(b)) if value.divide_exactly(b).is_some() => {
                        value.divide_exactly(b).ok_or_else(|| self.overflow())?
                    }
                    _ => SymExpr::atom(self.text[start..self.at].trim()),
                };
            } else if self.eat("*") {
                let right = self.power(depth)?;
                value = value.checked_mul(&right).ok_or_else(|| self.overflow())?;
            } else {
                return Ok(value);
            }
        }
    }

    fn power(&mut self, depth: u32) -> Result<SymExpr, SymError> {
        let base = self.unary(depth)?;
        if !self.eat("**") {
            return Ok(base);
        }
        let exponent = self.unary(depth)?.as_constant().filter(|e| (0..=16).contains(e));
        let Some(exponent) = exponent else {
            return Err(self.expected("a power from 0 to 16"));
        };
        let mut value = SymExpr::constant(1);
        for _ in 0..exponent {
            value = value.checked_mul(&base).ok_or_else(|| self.overflow())?;
        }
        Ok(value)
    }

    fn unary(&mut self, depth: u32) -> Result<SymExpr, SymError> {
        let mut sign = 1;
        while self.eat("-") {
            sign = -sign;
        }
        self.space();
        let start = self.at;
        let bytes = self.text.as_bytes();
        let value = match bytes.get(self.at) {
            Some(b'(') => {
                self.at += 1;
                let inner = self.sum(depth + 1)?;
                if !self.eat(")") {
                    return Err(self.expected("`)`"));
                }
                inner
            }
            Some(b'0'..=b'9') => {
                while matches!(bytes.get(self.at), Some(b'0'..=b'9')) {
                    self.at += 1;
                }
                let value = self.text[start..self.at].parse().map_err(|_| self.overflow())?;
                SymExpr::constant(value)
            }
            Some(b'a'..=b'z' | b'A'..=b'Z' | b'_') => {
                while matches!(bytes.get(self.at), Some(b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'.')) {
                    self.at += 1;
                }
                if bytes.get(self.at) == Some(&b'(') {
                    self.at += 1;
                    while !self.eat(")") {
                        self.sum(depth + 1)?;
                        if !self.eat(",") && !self.peek(")") {
                            return Err(self.expected("`,` or `)`"));
                        }
                    }
                }
                SymExpr::atom(&self.text[start..self.at])
            }
            _ => return Err(self.expected("a number, a symbol or `(`")),
        };
        if sign == 1 {
            return Ok(value);
        }
        value.checked_mul(&SymExpr::constant(sign)).ok_or_else(|| self.overflow())
    }
}

impl fmt::Display for SymExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str("0");
        }
        // The constant sorts first; it reads better last, as PyTorch prints it.
        let (constant, symbolic): (Vec<_>, Vec<_>) = self.terms.iter().partition(|term| term.factors.is_empty());
        for (index, term) in symbolic.into_iter().chain(constant).enumerate() {
            let magnitude = term.coefficient.unsigned_abs();
            match (index, term.coefficient < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            if magnitude != 1 || term.factors.is_empty() {
                write!(f, "{magnitude}")?;
            }
            for (nth, (atom, power)) in term.factors.iter().enumerate() {
                if nth > 0 || magnitude != 1 {
                    f.write_str("*")?;
                }
                // A division is an atom of its own and needs parentheses beside other factors.
                let wrapped = atom.contains("//") && (term.factors.len() > 1 || magnitude != 1 || *power != 1);
                if wrapped {
                    write!(f, "({atom})")?;
                } else {
                    f.write_str(atom)?;
                }
                if *power != 1 {
                    write!(f, "**{power}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_pytorch_prints_are_read_and_printed_back() {
        for text in [
            "8*s26 + 7",
            "2*s77**2",
            "s26",
            "4*s77",
            "Max(1, s0)",
            "u0",
            "0",
            "12",
            "s48*s77",
            "(s0 + 7)//8",
            "s0 - 1",
            "-s0 + 1",
            "2*((s0 + 7)//8)",
        ] {
            assert_eq!(SymExpr::parse(text).map(|e| e.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn one_size_written_in_two_ways_is_one_value() {
        for (a, b) in [("2*s0 + s0", "3*s0"), ("8*s0//8", "s0"), ("(s0 + 1)*2", "2*s0 + 2"), ("s0 - s0", "0")] {
            assert_eq!(SymExpr::parse(a), SymExpr::parse(b), "{a} and {b}");
        }
    }

    #[test]
    fn faulty_sizes_are_errors() {
        for text in ["", "8*", "s0 s1", "(s0", "99999999999999999999", "4611686018427387904*s0*4", "s0//0", "Max(1"] {
            assert!(SymExpr::parse(text).is_err(), "{text}");
        }
        let deep = format!("{}s0{}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(SymExpr::parse(&deep).is_err());
    }
}
