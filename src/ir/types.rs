//! Types of values: tensors with shape, strides and device; tuples; symbolic integers.
//!
//! The text form is PyTorch's annotation, `f32[8, 4][4, 1]cuda:0`: dtype, sizes, and then, if known, strides and
//! device. Sizes count elements, strides count elements, bytes are always called bytes.

use super::entities::TypeId;
use super::short::Short;
use super::symexpr::{SymError, SymExpr};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::fmt;
use std::sync::Arc;

pub use bucketeer_types::DType;

/// One size or stride.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dim {
    /// Known.
    Const(u64),
    /// Known only at run time.
    Sym(Box<SymExpr>),
}

impl Dim {
    /// The dim of an expression: `Const` when it has a value.
    ///
    /// Returns `None` when the value is negative.
    #[must_use]
    pub fn from_expr(expr: SymExpr) -> Option<Self> {
        match expr.as_constant() {
            Some(value) => u64::try_from(value).ok().map(Self::Const),
            None => Some(Self::Sym(Box::new(expr))),
        }
    }

    /// The size as an expression, or `None` if a constant passes `i64`.
    #[must_use]
    pub fn to_expr(&self) -> Option<SymExpr> {
        match self {
            Self::Const(value) => i64::try_from(*value).ok().map(SymExpr::constant),
            Self::Sym(expr) => Some((**expr).clone()),
        }
    }

    /// The value, if known.
    #[must_use]
    pub const fn as_const(&self) -> Option<u64> {
        match self {
            Self::Const(value) => Some(*value),
            Self::Sym(_) => None,
        }
    }

    /// The product, or `None` when it does not fit in 64 bits.
    #[must_use]
    pub fn checked_mul(&self, other: &Self) -> Option<Self> {
        if let (Self::Const(a), Self::Const(b)) = (self, other) {
            return a.checked_mul(*b).map(Self::Const);
        }
        Self::from_expr(self.to_expr()?.checked_mul(&other.to_expr()?)?)
    }

    /// The sum, or `None` when it does not fit in 64 bits.
    #[must_use]
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        if let (Self::Const(a), Self::Const(b)) = (self, other) {
            return a.checked_add(*b).map(Self::Const);
        }
        Self::from_expr(self.to_expr()?.checked_add(&other.to_expr()?)?)
    }

    /// The quotient where it is exact, or `None`.
    #[must_use]
    pub fn divide_exactly(&self, divisor: u64) -> Option<Self> {
        match self {
            Self::Const(a) => (a.checked_rem(divisor)? == 0).then(|| Self::Const(a / divisor)),
            Self::Sym(expr) => Self::from_expr(expr.divide_exactly(i64::try_from(divisor).ok()?)?),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Const(value) => write!(f, "{value}"),
            Self::Sym(expr) => write!(f, "{expr}"),
        }
    }
}

/// Sizes or strides, outermost first.
pub type Dims = Short<Dim, 4>;

/// A tensor: dtype, sizes, and strides and device where they are known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Sizes in elements, outermost first; empty for a single element.
    pub shape: Dims,
    /// Strides in elements, as many as sizes; `None` when they were not given (then dense is assumed).
    pub strides: Option<Dims>,
    /// `cuda:0`, `cpu`; `None` when not given.
    pub device: Option<Arc<str>>,
}

impl TensorType {
    /// A tensor with known sizes and nothing said of strides and device.
    #[must_use]
    pub fn dense(dtype: DType, shape: &[u64]) -> Self {
        Self { dtype, shape: shape.iter().map(|&d| Dim::Const(d)).collect(), strides: None, device: None }
    }

    /// Number of elements, or `None` when it does not fit in 64 bits.
    #[must_use]
    pub fn elements(&self) -> Option<Dim> {
        self.shape.iter().try_fold(Dim::Const(1), |product, dim| product.checked_mul(dim))
    }

    /// Payload in bytes (elements times element size; strides play no part), or `None` when it does not fit.
    #[must_use]
    pub fn bytes(&self) -> Option<Dim> {
        self.elements()?.checked_mul(&Dim::Const(self.dtype.bytes()))
    }

    /// The strides of a dense tensor of this shape, outermost first, or `None` when they do not fit.
    #[must_use]
    pub fn dense_strides(&self) -> Option<Dims> {
        let mut strides: Dims = Short::with_capacity(self.shape.len());
        let mut step = Dim::Const(1);
        for dim in self.shape.iter().rev() {
            strides.push(step.clone());
            // PyTorch strides treat a size of zero as one.
            if *dim != Dim::Const(0) {
                step = step.checked_mul(dim)?;
            }
        }
        strides.reverse();
        Some(strides)
    }

    /// Whether elements lie end to end in logical order. Strides of dimensions of size one do not matter;
    /// not-given strides are taken as dense.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        let Some(strides) = &self.strides else { return true };
        if self.elements() == Some(Dim::Const(0)) {
            return true;
        }
        let Some(dense) = self.dense_strides() else { return false };
        strides.len() == dense.len()
            && strides.iter().zip(&dense).zip(&self.shape).all(|((a, b), dim)| a == b || *dim == Dim::Const(1))
    }

    /// The same dtype and device with another shape, dense; strides are stated if this type states its own.
    #[must_use]
    pub fn with_shape(&self, shape: Dims) -> Self {
        let mut new = Self { dtype: self.dtype, shape, strides: None, device: self.device.clone() };
        if self.strides.is_some() {
            new.strides = new.dense_strides();
        }
        new
    }
}

/// What a node makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Type {
    /// Nothing is known: an opaque object, or a result without annotation.
    Unknown,
    /// A tensor.
    Tensor(TensorType),
    /// Several values in one; elements are read with `getitem`.
    Tuple(Vec<Type>),
    /// A symbolic integer.
    SymInt(SymExpr),
    /// A symbolic float or bool, kept as text.
    SymOther(Box<str>),
    /// Orders effects; holds no data.
    Token,
}

impl Type {
    /// The tensor, if it is one.
    #[must_use]
    pub const fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Reads the text form; see the module docs.
    ///
    /// # Errors
    /// [`TypeError`], naming the text and what was expected.
    pub fn parse(text: &str) -> Result<Self, TypeError> {
        parse_type(text.trim(), 0)
    }
}

/// Why a text is not a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// No dtype of that name.
    #[error("unknown dtype `{0}`; expected a short name such as f32, bf16, i64 or b8")]
    DType(String),
    /// The form is wrong.
    #[error("`{text}` is not a type: expected {expected}")]
    Form {
        /// The whole text.
        text: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// A size or stride is wrong.
    #[error(transparent)]
    Size(#[from] SymError),
    /// A size is negative.
    #[error("`{0}` has a negative size")]
    Negative(String),
    /// The tensor is larger than 2^63 bytes.
    #[error("a tensor of type `{0}` has more than 2^63 bytes")]
    Overflow(String),
}

fn parse_dims(text: &str, whole: &str) -> Result<Dims, TypeError> {
    let mut dims = Dims::new();
    if text.trim().is_empty() {
        return Ok(dims);
    }
    let (mut depth, mut start) = (0u32, 0);
    for (at, byte) in text.bytes().chain([b',']).enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 || at == text.len() => {
                let part = text[start..at].trim();
                let dim = match part.parse::<u64>() {
                    Ok(value) => Dim::Const(value),
                    Err(_) => {
                        Dim::from_expr(SymExpr::parse(part)?).ok_or_else(|| TypeError::Negative(whole.to_owned()))?
                    }
                };
                dims.push(dim);
                start = at + 1;
            }
            _ => {}
        }
    }
    Ok(dims)
}

fn parse_type(text: &str, depth: u32) -> Result<Type, TypeError> {
    let form = |expected| TypeError::Form { text: text.to_owned(), expected };
    match text {
        "?" => return Ok(Type::Unknown),
        "token" => return Ok(Type::Token),
        _ => {}
    }
    if let Some(inner) = text.strip_prefix("Sym(") {
        let inner = inner.strip_suffix(')').ok_or_else(|| form("`)` at the end"))?;
        return Ok(match SymExpr::parse(inner) {
            Ok(expr) => Type::SymInt(expr),
            Err(error @ SymError::Overflow(_)) => return Err(error.into()),
            // Symbolic floats and bools print operators that sizes do not have.
            Err(_) => Type::SymOther(inner.into()),
        });
    }
    if let Some(inner) = text.strip_prefix('(') {
        let inner = inner.strip_suffix(')').ok_or_else(|| form("`)` at the end"))?;
        if depth > 16 {
            return Err(form("fewer nested tuples"));
        }
        let mut parts = Vec::new();
        let (mut level, mut start) = (0i32, 0);
        for (at, byte) in inner.bytes().enumerate() {
            match byte {
                b'(' | b'[' => level += 1,
                b')' | b']' => level -= 1,
                b',' if level == 0 => {
                    parts.push(&inner[start..at]);
                    start = at + 1;
                }
                _ => {}
            }
        }
        if !inner[start..].trim().is_empty() {
            parts.push(&inner[start..]);
        }
        let parts: Result<_, _> = parts.into_iter().map(|part| parse_type(part.trim(), depth + 1)).collect();
        return Ok(Type::Tuple(parts?));
    }
    let open = text.find('[').ok_or_else(|| form("dtype[sizes], as in f32[8, 4]"))?;
    let dtype = text[..open].trim();
    let dtype = DType::from_name(dtype).ok_or_else(|| TypeError::DType(dtype.to_owned()))?;
    let close = text[open..].find(']').map(|at| open + at).ok_or_else(|| form("`]` after the sizes"))?;
    let shape = parse_dims(&text[open + 1..close], text)?;
    let mut rest = &text[close + 1..];
    let mut strides = None;
    if let Some(after) = rest.strip_prefix('[') {
        let close = after.find(']').ok_or_else(|| form("`]` after the strides"))?;
        let dims = parse_dims(&after[..close], text)?;
        if dims.len() != shape.len() {
            return Err(form("as many strides as sizes"));
        }
        strides = Some(dims);
        rest = &after[close + 1..];
    }
    let device = rest.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == ':' || c == '_';
    if !device.chars().all(plain) {
        return Err(form("a device such as cpu or cuda:0 after the sizes"));
    }
    let tensor = TensorType { dtype, shape, strides, device: (!device.is_empty()).then(|| device.into()) };
    let fits = tensor.bytes().is_some_and(|bytes| bytes.as_const().is_none_or(|b| i64::try_from(b).is_ok()));
    if !fits {
        return Err(TypeError::Overflow(text.to_owned()));
    }
    Ok(Type::Tensor(tensor))
}

struct DimList<'a>(&'a [Dim]);

impl fmt::Display for DimList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, dim) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{dim}")?;
        }
        Ok(())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.dtype.short_name(), DimList(&self.shape))?;
        if let Some(strides) = &self.strides {
            write!(f, "[{}]", DimList(strides))?;
        }
        f.write_str(self.device.as_deref().unwrap_or(""))
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("?"),
            Self::Tensor(tensor) => write!(f, "{tensor}"),
            Self::Tuple(parts) => {
                f.write_str("(")?;
                for (index, part) in parts.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{part}")?;
                }
                f.write_str(")")
            }
            Self::SymInt(expr) => write!(f, "Sym({expr})"),
            Self::SymOther(text) => write!(f, "Sym({text})"),
            Self::Token => f.write_str("token"),
        }
    }
}

/// Interned types: equal types have equal ids.
#[derive(Clone, Debug)]
pub struct Types {
    types: Vec<Type>,
    ids: HashMap<Type, TypeId, FxBuildHasher>,
}

impl Default for Types {
    fn default() -> Self {
        let mut types = Self { types: Vec::new(), ids: HashMap::default() };
        let unknown = types.intern(Type::Unknown);
        debug_assert_eq!(unknown, TypeId::UNKNOWN);
        types
    }
}

impl Types {
    /// The id of a type, new if it was not seen before.
    pub fn intern(&mut self, ty: Type) -> TypeId {
        if let Some(&id) = self.ids.get(&ty) {
            return id;
        }
        let id = TypeId::from_index(self.types.len());
        self.types.push(ty.clone());
        self.ids.insert(ty, id);
        id
    }

    /// The type of an id.
    #[must_use]
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_read_and_printed_back() {
        for text in [
            "f32[8, 4][4, 1]cuda:0",
            "f32[][]cuda:0",
            "f32[]",
            "bf16[s77, 64][64, 1]cpu",
            "Sym(8*s26 + 7)",
            "u64[2][1]cuda:0",
            "(f32[2], b8[3])",
            "?",
            "token",
            "bf16[8*s26, 256, 4096][1048576, 4096, 1]cuda:0",
            "f32[Max(1, s0), 3]",
        ] {
            assert_eq!(Type::parse(text).map(|t| t.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn faulty_annotations_are_errors() {
        for text in [
            "",
            "f32",
            "q32[4]",
            "f32[4",
            "f32[4][1, 2]cpu",
            "f32[-4]",
            "f32[4]cpu!",
            "f32[9223372036854775807]",
            "f32[99999999999999999999]",
            "f32[4,,5]",
        ] {
            assert!(Type::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn density_ignores_strides_of_dimensions_of_one() {
        let dense = |text: &str| Type::parse(text).unwrap().as_tensor().unwrap().is_dense();
        assert!(dense("f32[2, 1, 3][3, 99, 1]cpu"));
        assert!(!dense("f32[2, 3][1, 2]cpu"));
        assert!(dense("f32[0, 3][1, 7]cpu"));
        assert!(dense("f32[2, 3]"));
    }
}
