//! Values of symbolic sizes.

use super::EvalOptions;
use bucketeer::ir::symvalue;
use bucketeer::ir::{Dim, Graph, SymExpr, Type};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

/// Values of symbols: as given, else as hinted, else a multiple of every group's size.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    given: HashMap<Box<str>, i64, FxBuildHasher>,
    /// Those that whoever runs the graph gave a value, not the graph.
    told: HashSet<Box<str>, FxBuildHasher>,
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
        let told = options.symbols.keys().map(|name| name.as_str().into()).collect();
        Self { given, told, default }
    }

    fn atom(&self, text: &str) -> Option<i64> {
        if let Some(&value) = self.given.get(text) {
            return Some(value);
        }
        if is_symbol(text) { Some(self.default) } else { symvalue::evaluate(text, &|symbol| self.atom(symbol)) }
    }

    /// The value that a number has to have that is stated to be this, if that is known. A size that comes out of data,
    /// as PyTorch's `u0` does, is known only if it was told.
    #[must_use]
    pub fn expected(&self, expr: &SymExpr) -> Option<i64> {
        expr.evaluate(&|atom| self.expected_atom(atom))
    }

    fn expected_atom(&self, text: &str) -> Option<i64> {
        let is_told = !is_from_data(text) || self.told.contains(text);
        if is_symbol(text) || self.given.contains_key(text) {
            return is_told.then(|| self.atom(text)).flatten();
        }
        symvalue::evaluate(text, &|symbol| self.expected_atom(symbol))
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

fn is_symbol(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Whether PyTorch calls a size so that comes out of data.
fn is_from_data(symbol: &str) -> bool {
    symbol
        .strip_prefix('u')
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub use symvalue::{floor_div, modulo};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_are_no_polynomials_have_values() {
        let given = [("s0".into(), 9), ("u1".into(), -7)].into_iter().collect();
        let symbols = Symbols { given, default: 4, ..Symbols::default() };
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
