//! Sizes and offsets: numbers, or polynomials over symbols. Arithmetic is checked; `None` is "cannot say".

use crate::ir::{Dim, SymExpr};
use std::cmp::Ordering;
use std::fmt;
use std::rc::Rc;

/// A size, stride or offset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Int {
    /// Known.
    Known(i64),
    /// Known at run time; never an expression without atoms.
    Sym(Rc<SymExpr>),
}

pub(super) const ZERO: Int = Int::Known(0);
pub(super) const ONE: Int = Int::Known(1);

impl Int {
    pub fn from_expr(expr: SymExpr) -> Self {
        expr.as_constant().map_or_else(|| Self::Sym(Rc::new(expr)), Self::Known)
    }

    pub fn from_dim(dim: &Dim) -> Option<Self> {
        match dim {
            Dim::Const(value) => i64::try_from(*value).ok().map(Self::Known),
            Dim::Sym(expr) => Some(Self::from_expr((**expr).clone())),
        }
    }

    pub fn expr(&self) -> SymExpr {
        match self {
            Self::Known(value) => SymExpr::constant(*value),
            Self::Sym(expr) => (**expr).clone(),
        }
    }

    pub fn known(&self) -> Option<i64> {
        match self {
            Self::Known(value) => Some(*value),
            Self::Sym(_) => None,
        }
    }

    pub fn is(&self, value: i64) -> bool {
        *self == Self::Known(value)
    }

    pub fn add(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Known(a), Self::Known(b)) => a.checked_add(*b).map(Self::Known),
            (Self::Known(0), x) | (x, Self::Known(0)) => Some(x.clone()),
            _ => self.expr().checked_add(&other.expr()).map(Self::from_expr),
        }
    }

    pub fn sub(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Known(a), Self::Known(b)) => a.checked_sub(*b).map(Self::Known),
            (x, Self::Known(0)) => Some(x.clone()),
            _ if self == other => Some(ZERO),
            _ => self.add(&other.mul(&Self::Known(-1))?),
        }
    }

    pub fn mul(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Known(a), Self::Known(b)) => a.checked_mul(*b).map(Self::Known),
            (Self::Known(1), x) | (x, Self::Known(1)) => Some(x.clone()),
            _ => self.expr().checked_mul(&other.expr()).map(Self::from_expr),
        }
    }

    /// The quotient where it is exact.
    pub fn div(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Known(a), Self::Known(b)) => (a.checked_rem(*b)? == 0).then(|| Self::Known(a / b)),
            (x, Self::Known(1)) => Some(x.clone()),
            _ if self == other => Some(ONE),
            _ => self.expr().divide_by_term(&other.expr()).map(Self::from_expr),
        }
    }

    /// Which is larger, whatever the symbols are; no symbol is negative.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        if let (Self::Known(a), Self::Known(b)) = (self, other) {
            return Some(a.cmp(b));
        }
        if self == other {
            return Some(Ordering::Equal);
        }
        // A difference without a minus may still be zero where a symbol is; both orders then say the same.
        if self.sub(other)?.expr().has_no_minus() {
            Some(Ordering::Greater)
        } else if other.sub(self)?.expr().has_no_minus() {
            Some(Ordering::Less)
        } else {
            None
        }
    }

    pub fn at_most(&self, other: &Self) -> Option<bool> {
        self.compare(other).map(Ordering::is_le)
    }
}

impl fmt::Display for Int {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(value) => write!(f, "{value}"),
            Self::Sym(expr) => write!(f, "{expr}"),
        }
    }
}

/// The product of sizes.
pub(super) fn product(sizes: &[Int]) -> Option<Int> {
    sizes.iter().try_fold(ONE, |product, size| product.mul(size))
}
