//! Values of symbolic sizes.

use super::EvalOptions;
use crate::ir::{Dim, Graph, SymExpr, Type};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Values of symbols: as given, else as hinted, else a multiple of every group's size.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    given: HashMap<Box<str>, i64, FxBuildHasher>,
    default: i64,
}

impl Symbols {
    /// The values for a graph.
    #[must_use]
    pub fn of(graph: &Graph, options: &EvalOptions) -> Self {
        let mut given: HashMap<Box<str>, i64, FxBuildHasher> = HashMap::default();
        given.extend(graph.hints.iter().filter_map(|(name, &hint)| Some((name.clone(), i64::try_from(hint).ok()?))));
        given.extend(options.symbols.iter().map(|(name, &value)| (name.as_str().into(), value)));
        let sizes = graph.groups().iter().filter_map(|group| group.size).map(i64::from);
        let common = |a: i64, b: i64| if a % b == 0 { a } else { (a / gcd(a, b)).saturating_mul(b) };
        let default = sizes.filter(|&size| size > 0).fold(4, common).clamp(4, 4096);
        Self { given, default }
    }

    fn atom(&self, text: &str) -> Option<i64> {
        if let Some(&value) = self.given.get(text) {
            return Some(value);
        }
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if plain { Some(self.default) } else { Reader { text, at: 0, symbols: self }.whole() }
    }

    /// The value of an expression, if it has one.
    #[must_use]
    pub fn evaluate(&self, expr: &SymExpr) -> Option<i64> {
        expr.evaluate(&|atom| self.atom(atom))
    }

    /// Sizes or strides as numbers.
    #[must_use]
    pub fn sizes(&self, dims: &[Dim]) -> Option<Vec<usize>> {
        let size = |dim: &Dim| match dim {
            Dim::Const(size) => usize::try_from(*size).ok(),
            Dim::Sym(expr) => self.evaluate(expr).and_then(|size| usize::try_from(size).ok()),
        };
        dims.iter().map(size).collect()
    }

    /// Bytes of a type, tuples included; saturates.
    #[must_use]
    pub fn bytes(&self, ty: &Type) -> u64 {
        match ty {
            Type::Tensor(tensor) => {
                let sizes = self.sizes(&tensor.shape).unwrap_or_default();
                (super::tensor::count(&sizes) as u64).saturating_mul(tensor.dtype.bytes())
            }
            Type::Tuple(parts) => parts.iter().map(|part| self.bytes(part)).fold(0, u64::saturating_add),
            _ => 0,
        }
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Reads what [`SymExpr`] keeps as text: divisions and calls.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    symbols: &'a Symbols,
}

impl Reader<'_> {
    fn whole(mut self) -> Option<i64> {
        let value = self.sum()?;
        self.space();
        (self.at == self.text.len()).then_some(value)
    }

    fn space(&mut self) {
        while self.text.as_bytes().get(self.at) == Some(&b' ') {
            self.at += 1;
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        self.space();
        let found = self.text[self.at..].starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
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
        let start = self.at;
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
        let length = self.text.as_bytes()[start..].iter().take_while(|byte| word(byte)).count();
        self.at += length;
        let word = &self.text[start..self.at];
        if self.eat("(") {
            return self.call(word);
        }
        match word.parse() {
            Ok(value) => Some(value),
            Err(_) if word.is_empty() || word.starts_with(|first: char| first.is_ascii_digit()) => None,
            Err(_) => self.symbols.atom(word),
        }
    }

    fn call(&mut self, name: &str) -> Option<i64> {
        let mut args = Vec::new();
        while !self.eat(")") {
            args.push(self.sum()?);
            if !self.eat(",") && !self.text[self.at..].starts_with(')') {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_are_no_polynomials_have_values() {
        let symbols = Symbols { given: [("s0".into(), 9), ("u1".into(), -7)].into_iter().collect(), default: 4 };
        for (text, value) in [
            ("(s0 + 7)//8", 2),
            ("2*((s0 + 7)//8) + Max(1, s0)", 13),
            ("Min(s0, 3) - Mod(u1, 4)", 2),
            ("u1//2", -4),
            ("s0**2", 81),
            ("other", 4),
        ] {
            let expr = SymExpr::parse(text).unwrap();
            assert_eq!(symbols.evaluate(&expr), Some(value), "{text}");
        }
        assert_eq!(symbols.evaluate(&SymExpr::parse("Strange(s0)").unwrap()), None);
    }
}
