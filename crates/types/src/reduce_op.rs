//! Reductions.

use std::fmt;

/// How values of several ranks become one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(missing_docs, reason = "each variant is the c10d reduce op of that name")]
pub enum ReduceOp {
    Sum,
    Avg,
    Product,
    Min,
    Max,
    BitAnd,
    BitOr,
    BitXor,
}

impl ReduceOp {
    const NAMES: [(Self, &'static str); 8] = [
        (Self::Sum, "sum"),
        (Self::Avg, "avg"),
        (Self::Product, "product"),
        (Self::Min, "min"),
        (Self::Max, "max"),
        (Self::BitAnd, "band"),
        (Self::BitOr, "bor"),
        (Self::BitXor, "bxor"),
    ];

    /// The op that PyTorch's functional collectives call `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(op, _)| *op)
    }

    /// The name in PyTorch's functional collectives.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(op, _)| *op == self).map_or("sum", |(_, name)| name)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
