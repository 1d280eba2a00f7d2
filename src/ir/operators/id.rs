//! What operators mean to those who look at more than their effects: one id for each meaning, however many names it has.
//!
//! A name has one id, and what an id does not say (which sizes, which dtype) is in the arguments. Consumers match on ids
//! without a catch-all wherever they give each of a family a meaning, so that a new id points at what is missing.

use super::views::ViewKind;
use crate::ir::types::DType;

/// What an operator means; `rows.rs` has the names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OperatorId {
    /// Shows its first operand, or a part of it.
    View(ViewKind),
    /// Memory of its own with what such a view shows: `slice_copy(x, dim, start, end)`.
    ViewCopy(ViewKind),
    /// Its operand once more: `clone(x)`.
    Clone,
    /// Its operand with another dtype or elsewhere.
    Cast(CastKind),
    /// Writes the second operand into the first: `copy_(x, y)`.
    CopyInto,
    /// The same for lists: `_foreach_copy_(xs, ys)`.
    ForeachCopy,
    /// One number in every place: `fill(x, value)`, `zero(x)`.
    Fill,
    /// Tensors end to end: `cat(xs, dim)`.
    Cat,
    /// Tensors along a new dimension: `stack(xs, dim)`.
    Stack,
    /// Rows of padded tensors side by side: `_chunk_cat(xs, dim, chunks)`.
    ChunkCat,
    /// What PyTorch's bucketing packs before a gather: `_pre_bucket_all_gather(xs, ..)`.
    PackForGather,
    /// What PyTorch's bucketing packs before a scatter: `_pre_bucket_reduce_scatter(xs, group_size)`.
    PackForScatter,
    /// With more rows at its ends: `pad(x, pad, mode, value)`.
    Pad,
    /// The same without a mode: `constant_pad_nd(x, pad, value)`.
    ConstantPad,
    /// A copy with a slice replaced: `slice_scatter(x, src, dim, start, end, step)`.
    SliceScatter,
    /// A copy with a row replaced: `select_scatter(x, src, dim, index)`.
    SelectScatter,
    /// The rows that a tensor lists: `index_select(x, dim, index)`.
    IndexSelect,
    /// A new tensor of one number, or of whatever was there.
    Create(CreateKind, Model),
    /// A tensor without dimensions: `scalar_tensor(s)`.
    ScalarTensor,
    /// Numbers in order: `arange(start, end, step)`.
    Arange,
    /// Each element made of the one in the same place.
    Unary(UnaryKind),
    /// Each element made of those in the same places of two operands.
    Binary(BinaryKind),
    /// Each element made of those in the same places of three operands.
    Ternary(TernaryKind),
    /// Elements within bounds.
    Clamp(ClampKind),
    /// Each element from one operand or the other: `where(condition, x, y)`.
    Where,
    /// What `threshold` hands back: `threshold_backward(grad, x, threshold)`.
    ThresholdBackward,
    /// A product of matrices, perhaps of many: `matmul(a, b)`.
    MatMul,
    /// Elements along dimensions made one.
    Reduce(ReduceKind),
    /// Reads how large a tensor is or how it lies, as ATen names it: `sym_size(x, dim)`. Passes ask for sizes so.
    SymSize(SizeKind),
    /// The same as methods and functions name it: `size(x, dim)`.
    Size(SizeKind),
    /// Computes with sizes and other numbers alone.
    Number(NumberKind),
    /// Communicates, as a call.
    Communicate(CommunicateKind),
    /// `tuple` of HLO: its operands as they are.
    HloTuple,
    /// `rng` of HLO, and what gives its state.
    HloRandom,
    /// Anything else, and any name in a namespace where names may mean anything.
    Other,
}

/// What a conversion changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CastKind {
    /// The dtype: `convert_element_type(x, dtype)`, `cast(x, dtype)`.
    Elements,
    /// Dtype, place and layout, always into a copy: `_to_copy(x, *, dtype, ..)`.
    ToCopy,
    /// The same, into a copy if anything changes: `_to(x, ..)`; `to` is a view.
    To,
    /// The second operand in the shape and dtype of the first: `copy(x, y)`.
    Copy,
    /// The dtype of the second operand: `type_as(x, y)`.
    TypeAs,
    /// A dtype that is named by a string: `type(x, dtype)`.
    Type,
    /// To the dtype in its name: `float(x)`.
    Dtype(DType),
    /// To the device in its name: `cuda(x)`.
    Device,
}

/// What fills a new tensor, and how it lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CreateKind {
    /// A number that is given: `full(size, fill_value)`.
    Full,
    /// Zeros: `zeros(size)`.
    Zeros,
    /// Ones: `ones(size)`.
    Ones,
    /// Nothing: `empty(size)`.
    Empty,
    /// Nothing, with strides: `empty_strided(size, stride)`.
    EmptyStrided,
    /// Nothing, with dimensions in another order: `empty_permuted(size, physical_layout)`.
    EmptyPermuted,
}

/// What says how large a new tensor is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Model {
    /// Its first argument: `zeros(size)`.
    Asked,
    /// An operand, of which it is the like: `zeros_like(x)`.
    Like,
    /// Its second argument; dtype and place are an operand's: `new_zeros(x, size)`.
    New,
}

/// A function of one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnaryKind {
    /// `abs`.
    Abs,
    /// `ceil`.
    Ceil,
    /// `cos`.
    Cos,
    /// `exp`.
    Exp,
    /// `expm1`.
    Expm1,
    /// `floor`.
    Floor,
    /// `log`.
    Log,
    /// `log1p`.
    Log1p,
    /// `log2`.
    Log2,
    /// `logical_not`.
    LogicalNot,
    /// `neg`.
    Neg,
    /// `reciprocal`.
    Reciprocal,
    /// `relu`.
    Relu,
    /// `round`.
    Round,
    /// `rsqrt`.
    Rsqrt,
    /// `sigmoid`.
    Sigmoid,
    /// `sign`.
    Sign,
    /// `silu`.
    Silu,
    /// `sin`.
    Sin,
    /// `sqrt`.
    Sqrt,
    /// `square`.
    Square,
    /// `tan`.
    Tan,
    /// `tanh`.
    Tanh,
    /// `trunc`.
    Trunc,
}

/// A function of two elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BinaryKind {
    /// `add(x, y, alpha)`.
    Add,
    /// `sub(x, y, alpha)`.
    Sub,
    /// `rsub(x, y, alpha)`: y - x.
    Rsub,
    /// `mul`.
    Mul,
    /// `div(x, y, rounding_mode)`.
    Div,
    /// `floor_divide`.
    FloorDivide,
    /// `remainder`, with the sign of the divisor.
    Remainder,
    /// `fmod`, with the sign of the dividend.
    Fmod,
    /// `pow`.
    Pow,
    /// `maximum`.
    Maximum,
    /// `minimum`.
    Minimum,
    /// `bitwise_and`.
    BitAnd,
    /// `bitwise_or`.
    BitOr,
    /// `bitwise_xor`.
    BitXor,
    /// `eq`.
    Eq,
    /// `ne`.
    Ne,
    /// `lt`.
    Lt,
    /// `le`.
    Le,
    /// `gt`.
    Gt,
    /// `ge`.
    Ge,
    /// `logical_and`.
    LogicalAnd,
    /// `logical_or`.
    LogicalOr,
    /// `logical_xor`.
    LogicalXor,
}

/// A function of three elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TernaryKind {
    /// `fma(a, b, c)`: a * b + c.
    Fma,
    /// `addcmul(c, a, b, value)`: c + value * a * b.
    Addcmul,
    /// `addcdiv(c, a, b, value)`: c + value * a / b.
    Addcdiv,
}

/// Which bounds a clamp has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClampKind {
    /// `clamp(x, min, max)`.
    Both,
    /// `clamp_min(x, min)`.
    Min,
    /// `clamp_max(x, max)`.
    Max,
}

/// How elements are made one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceKind {
    /// `sum(x, dim, keepdim)`.
    Sum,
    /// `mean(x, dim, keepdim)`.
    Mean,
    /// `amax(x, dim, keepdim)`.
    Amax,
    /// `amin(x, dim, keepdim)`.
    Amin,
    /// `max(x)`: the largest of all, or of two numbers. Other overloads are other operators.
    Max,
    /// `min(x)`.
    Min,
}

/// What is read of a tensor beside its elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SizeKind {
    /// Its sizes, or one: `size(x, dim)`.
    Sizes,
    /// How many elements it has: `numel(x)`.
    Elements,
    /// Its strides, or one: `stride(x, dim)`.
    Strides,
    /// Where it begins in its storage: `storage_offset(x)`.
    Offset,
    /// How many dimensions it has: `dim(x)`.
    Rank,
}

/// A function of numbers that no operator on tensors has the name of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NumberKind {
    /// As an integer: `sym_int`, `pos`.
    Int,
    /// As a float: `sym_float`.
    Float,
    /// Whether it is zero: `sym_not`, `not_`.
    Not,
    /// `_sym_sqrt`.
    Sqrt,
    /// `truediv`.
    TrueDiv,
    /// `floordiv`.
    FloorDiv,
    /// `mod`.
    Mod,
    /// `sym_max`.
    Max,
    /// `sym_min`.
    Min,
    /// `and_`.
    And,
    /// `or_`.
    Or,
}

/// Communication that is a call in graphs, not a collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CommunicateKind {
    /// All ranks meet: `barrier(..)`.
    Barrier,
    /// To one rank: `send(x, rank, ..)`.
    Send,
    /// From one rank: `recv(x, rank, ..)`.
    Recv,
    /// To one rank, waited for later: `isend(x, rank, ..)`.
    Isend,
    /// From one rank, waited for later: `irecv(x, rank, ..)`.
    Irecv,
    /// Along another dimension: `shard_dim_alltoall(x, gather_dim, shard_dim, ..)`.
    ShardDimAllToAll,
}

impl OperatorId {
    /// Whether numbers alone may be its operands.
    #[must_use]
    pub const fn takes_numbers(self) -> bool {
        use BinaryKind::{Add, Eq, Ge, Gt, Le, Lt, Mul, Ne, Pow, Sub};
        use UnaryKind::{Ceil, Floor, Neg, Sqrt};
        matches!(
            self,
            Self::Number(_)
                | Self::Unary(Ceil | Floor | Neg | Sqrt)
                | Self::Binary(Add | Sub | Mul | Pow | Eq | Ne | Lt | Le | Gt | Ge)
                | Self::Reduce(ReduceKind::Max | ReduceKind::Min)
                | Self::Cast(CastKind::Dtype(DType::F32 | DType::I32))
        )
    }

    /// Whether each element of its result is made of those in the same place.
    #[must_use]
    pub const fn is_pointwise(self) -> bool {
        matches!(
            self,
            Self::Unary(_)
                | Self::Binary(_)
                | Self::Ternary(_)
                | Self::Clamp(_)
                | Self::Where
                | Self::ThresholdBackward
        )
    }
}
