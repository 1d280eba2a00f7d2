//! The one table of operators: a row for each name that somebody gives a meaning beside its effects.
//!
//! A new operator is a row. Where its meaning is one that is there already, nothing else is to do; a new id is a variant,
//! and the compiler then names who has to say something of it. What operators write, alias and draw is in PyTorch's
//! schemas, for all of them (`torch.tsv`).

use super::id::OperatorId::{
    self, Arange, Binary, Cast, Cat, ChunkCat, Clamp, Clone, Communicate, ConstantPad, CopyInto, Create, Fill,
    ForeachCopy, HloRandom, HloTuple, IndexSelect, MatMul, Number, Other, PackForGather, PackForScatter, Pad, Reduce,
    ScalarTensor, SelectScatter, Size, SliceScatter, Stack, SymSize, Ternary, ThresholdBackward, Unary, View, ViewCopy,
    Where,
};
use super::id::{
    BinaryKind, CastKind, ClampKind, CommunicateKind, CreateKind, Model, NumberKind, ReduceKind, SizeKind, TernaryKind,
    UnaryKind,
};
use super::types::TypeRule;
use super::views::ViewKind;
use crate::ir::types::DType;

/// A name and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// The operator's name, without namespace and overload.
    pub name: &'static str,
    /// What it means.
    pub id: OperatorId,
    /// What type its value has where native text states none.
    pub rule: Option<TypeRule>,
}

const fn row(name: &'static str, id: OperatorId) -> Row {
    Row { name, id, rule: None }
}

impl Row {
    const fn typed(self, rule: TypeRule) -> Self {
        Self { rule: Some(rule), ..self }
    }
}

/// By name, in order. Names of PyTorch; opcodes of HLO begin with `hlo-`.
pub(super) const OPERATORS: &[Row] = &[
    row("__and__", Binary(BinaryKind::BitAnd)),
    row("__or__", Binary(BinaryKind::BitOr)),
    row("__xor__", Binary(BinaryKind::BitXor)),
    row("_chunk_cat", ChunkCat),
    row("_foreach_copy_", ForeachCopy),
    row("_pre_bucket_all_gather", PackForGather),
    row("_pre_bucket_reduce_scatter", PackForScatter),
    row("_reshape_alias", View(ViewKind::View)),
    row("_reshape_alias_copy", ViewCopy(ViewKind::View)),
    row("_sym_sqrt", Number(NumberKind::Sqrt)),
    row("_to", Cast(CastKind::To)),
    row("_to_copy", Cast(CastKind::ToCopy)),
    row("_unsafe_view", View(ViewKind::View)),
    row("abs", Unary(UnaryKind::Abs)).typed(TypeRule::Alike),
    row("add", Binary(BinaryKind::Add)).typed(TypeRule::Alike),
    row("addcdiv", Ternary(TernaryKind::Addcdiv)),
    row("addcmul", Ternary(TernaryKind::Addcmul)),
    row("alias", View(ViewKind::Same)).typed(TypeRule::Alike),
    row("alias_copy", ViewCopy(ViewKind::Same)),
    row("alloc", Create(CreateKind::Empty, Model::Asked)),
    row("amax", Reduce(ReduceKind::Amax)),
    row("amin", Reduce(ReduceKind::Amin)),
    row("and_", Number(NumberKind::And)),
    row("arange", Arange),
    row("as_strided", View(ViewKind::Strided)),
    row("as_strided_copy", ViewCopy(ViewKind::Strided)),
    row("barrier", Communicate(CommunicateKind::Barrier)),
    row("bfloat16", Cast(CastKind::Dtype(DType::Bf16))),
    row("bitcast", View(ViewKind::Bits)),
    row("bitwise_and", Binary(BinaryKind::BitAnd)),
    row("bitwise_or", Binary(BinaryKind::BitOr)),
    row("bitwise_xor", Binary(BinaryKind::BitXor)),
    row("bmm", MatMul),
    row("bool", Cast(CastKind::Dtype(DType::Bool))),
    row("broadcast_in_dim", View(ViewKind::BroadcastInDim)),
    row("broadcast_to", View(ViewKind::Expand)),
    row("byte", Cast(CastKind::Dtype(DType::U8))),
    row("cast", Cast(CastKind::Elements)).typed(TypeRule::Cast),
    row("cat", Cat),
    row("cdouble", Cast(CastKind::Dtype(DType::C128))),
    row("ceil", Unary(UnaryKind::Ceil)),
    row("cfloat", Cast(CastKind::Dtype(DType::C64))),
    row("chalf", Cast(CastKind::Dtype(DType::C32))),
    row("char", Cast(CastKind::Dtype(DType::I8))),
    row("chunk", View(ViewKind::Chunk)).typed(TypeRule::Chunk),
    row("clamp", Clamp(ClampKind::Both)),
    row("clamp_max", Clamp(ClampKind::Max)),
    row("clamp_min", Clamp(ClampKind::Min)),
    row("clone", Clone).typed(TypeRule::Alike),
    row("concat", Cat),
    row("concatenate", Cat),
    row("constant_pad_nd", ConstantPad),
    row("contiguous", View(ViewKind::Contiguous)),
    row("convert_element_type", Cast(CastKind::Elements)),
    row("copy", Cast(CastKind::Copy)).typed(TypeRule::Alike),
    row("copy_", CopyInto),
    row("cos", Unary(UnaryKind::Cos)).typed(TypeRule::Alike),
    row("cpu", Cast(CastKind::Device)),
    row("cuda", Cast(CastKind::Device)),
    row("detach", View(ViewKind::Same)).typed(TypeRule::Alike),
    row("detach_copy", ViewCopy(ViewKind::Same)),
    row("dim", Size(SizeKind::Rank)),
    row("div", Binary(BinaryKind::Div)).typed(TypeRule::Alike),
    row("divide", Binary(BinaryKind::Div)),
    row("double", Cast(CastKind::Dtype(DType::F64))),
    row("empty", Create(CreateKind::Empty, Model::Asked)),
    row("empty_like", Create(CreateKind::Empty, Model::Like)).typed(TypeRule::Alike),
    row("empty_permuted", Create(CreateKind::EmptyPermuted, Model::Asked)),
    row("empty_strided", Create(CreateKind::EmptyStrided, Model::Asked)),
    row("eq", Binary(BinaryKind::Eq)),
    row("exp", Unary(UnaryKind::Exp)).typed(TypeRule::Alike),
    row("expand", View(ViewKind::Expand)),
    row("expand_as", View(ViewKind::Expand)),
    row("expand_copy", ViewCopy(ViewKind::Expand)),
    row("expm1", Unary(UnaryKind::Expm1)),
    row("fill", Fill),
    row("flatten", View(ViewKind::Flatten)),
    row("flatten_copy", ViewCopy(ViewKind::Flatten)),
    row("float", Cast(CastKind::Dtype(DType::F32))),
    row("floor", Unary(UnaryKind::Floor)),
    row("floor_divide", Binary(BinaryKind::FloorDivide)),
    row("floordiv", Number(NumberKind::FloorDiv)),
    row("fma", Ternary(TernaryKind::Fma)),
    row("fmod", Binary(BinaryKind::Fmod)),
    row("full", Create(CreateKind::Full, Model::Asked)),
    row("full_like", Create(CreateKind::Full, Model::Like)),
    row("ge", Binary(BinaryKind::Ge)),
    row("gelu", Other).typed(TypeRule::Alike),
    row("get_tuple_element", View(ViewKind::TupleElement)),
    row("getitem", View(ViewKind::Element)).typed(TypeRule::Element),
    row("gt", Binary(BinaryKind::Gt)),
    row("half", Cast(CastKind::Dtype(DType::F16))),
    row("hlo-rng", HloRandom),
    row("hlo-rng-get-and-update-state", HloRandom),
    row("hlo-tuple", HloTuple),
    row("index_select", IndexSelect),
    row("int", Cast(CastKind::Dtype(DType::I32))),
    row("irecv", Communicate(CommunicateKind::Irecv)),
    row("isend", Communicate(CommunicateKind::Isend)),
    row("item", View(ViewKind::TupleElement)).typed(TypeRule::Element),
    row("le", Binary(BinaryKind::Le)),
    row("lift_fresh", View(ViewKind::Same)),
    row("lift_fresh_copy", ViewCopy(ViewKind::Same)),
    row("log", Unary(UnaryKind::Log)).typed(TypeRule::Alike),
    row("log1p", Unary(UnaryKind::Log1p)),
    row("log2", Unary(UnaryKind::Log2)),
    row("logical_and", Binary(BinaryKind::LogicalAnd)),
    row("logical_not", Unary(UnaryKind::LogicalNot)),
    row("logical_or", Binary(BinaryKind::LogicalOr)),
    row("logical_xor", Binary(BinaryKind::LogicalXor)),
    row("long", Cast(CastKind::Dtype(DType::I64))),
    row("lt", Binary(BinaryKind::Lt)),
    row("matmul", MatMul).typed(TypeRule::MatMul),
    row("max", Reduce(ReduceKind::Max)),
    row("maximum", Binary(BinaryKind::Maximum)).typed(TypeRule::Alike),
    row("mean", Reduce(ReduceKind::Mean)),
    row("min", Reduce(ReduceKind::Min)),
    row("minimum", Binary(BinaryKind::Minimum)).typed(TypeRule::Alike),
    row("mm", MatMul),
    row("mod", Number(NumberKind::Mod)),
    row("mul", Binary(BinaryKind::Mul)).typed(TypeRule::Alike),
    row("narrow", View(ViewKind::Narrow)),
    row("narrow_copy", ViewCopy(ViewKind::Narrow)),
    row("ne", Binary(BinaryKind::Ne)),
    row("neg", Unary(UnaryKind::Neg)).typed(TypeRule::Alike),
    row("new_empty", Create(CreateKind::Empty, Model::New)),
    row("new_empty_strided", Create(CreateKind::EmptyStrided, Model::New)),
    row("new_full", Create(CreateKind::Full, Model::New)),
    row("new_ones", Create(CreateKind::Ones, Model::New)),
    row("new_zeros", Create(CreateKind::Zeros, Model::New)),
    row("not_", Number(NumberKind::Not)),
    row("numel", Size(SizeKind::Elements)),
    row("ones", Create(CreateKind::Ones, Model::Asked)),
    row("ones_like", Create(CreateKind::Ones, Model::Like)).typed(TypeRule::Alike),
    row("or_", Number(NumberKind::Or)),
    row("pad", Pad),
    row("permute", View(ViewKind::Permute)),
    row("permute_copy", ViewCopy(ViewKind::Permute)),
    row("pos", Number(NumberKind::Int)),
    row("positive", View(ViewKind::Same)),
    row("pow", Binary(BinaryKind::Pow)),
    row("ravel", View(ViewKind::Flatten)),
    row("reciprocal", Unary(UnaryKind::Reciprocal)),
    row("recv", Communicate(CommunicateKind::Recv)),
    row("relu", Unary(UnaryKind::Relu)).typed(TypeRule::Alike),
    row("remainder", Binary(BinaryKind::Remainder)),
    row("reshape", View(ViewKind::Reshape)).typed(TypeRule::Reshape),
    row("reshape_as", View(ViewKind::Reshape)),
    row("reshape_copy", ViewCopy(ViewKind::Reshape)),
    row("resolve_conj", View(ViewKind::Same)),
    row("resolve_neg", View(ViewKind::Same)),
    row("round", Unary(UnaryKind::Round)),
    row("rsqrt", Unary(UnaryKind::Rsqrt)).typed(TypeRule::Alike),
    row("rsub", Binary(BinaryKind::Rsub)),
    row("scalar_tensor", ScalarTensor),
    row("select", View(ViewKind::Select)),
    row("select_copy", ViewCopy(ViewKind::Select)),
    row("select_scatter", SelectScatter),
    row("send", Communicate(CommunicateKind::Send)),
    row("shard_dim_alltoall", Communicate(CommunicateKind::ShardDimAllToAll)),
    row("short", Cast(CastKind::Dtype(DType::I16))),
    row("sigmoid", Unary(UnaryKind::Sigmoid)).typed(TypeRule::Alike),
    row("sign", Unary(UnaryKind::Sign)),
    row("silu", Unary(UnaryKind::Silu)).typed(TypeRule::Alike),
    row("sin", Unary(UnaryKind::Sin)).typed(TypeRule::Alike),
    row("size", Size(SizeKind::Sizes)),
    row("slice", View(ViewKind::Slice)).typed(TypeRule::Slice),
    row("slice_copy", ViewCopy(ViewKind::Slice)),
    row("slice_scatter", SliceScatter),
    row("split", View(ViewKind::Split)),
    row("split_copy", ViewCopy(ViewKind::Split)),
    row("split_with_sizes", View(ViewKind::SplitWithSizes)),
    row("split_with_sizes_copy", ViewCopy(ViewKind::Split)),
    row("sqrt", Unary(UnaryKind::Sqrt)).typed(TypeRule::Alike),
    row("square", Unary(UnaryKind::Square)),
    row("squeeze", View(ViewKind::Squeeze)),
    row("squeeze_copy", ViewCopy(ViewKind::Squeeze)),
    row("squeeze_dims", View(ViewKind::Squeeze)),
    row("stack", Stack),
    row("storage_offset", Size(SizeKind::Offset)),
    row("stride", Size(SizeKind::Strides)),
    row("sub", Binary(BinaryKind::Sub)).typed(TypeRule::Alike),
    row("sum", Reduce(ReduceKind::Sum)),
    row("swapaxes", View(ViewKind::Transpose)),
    row("swapdims", View(ViewKind::Transpose)),
    row("sym_float", Number(NumberKind::Float)),
    row("sym_int", Number(NumberKind::Int)),
    row("sym_max", Number(NumberKind::Max)),
    row("sym_min", Number(NumberKind::Min)),
    row("sym_not", Number(NumberKind::Not)),
    row("sym_numel", SymSize(SizeKind::Elements)),
    row("sym_size", SymSize(SizeKind::Sizes)),
    row("sym_storage_offset", SymSize(SizeKind::Offset)),
    row("sym_stride", SymSize(SizeKind::Strides)),
    row("t", View(ViewKind::Transpose)),
    row("t_copy", ViewCopy(ViewKind::Transpose)),
    row("tan", Unary(UnaryKind::Tan)).typed(TypeRule::Alike),
    row("tanh", Unary(UnaryKind::Tanh)).typed(TypeRule::Alike),
    row("threshold_backward", ThresholdBackward),
    row("to", View(ViewKind::Convert)),
    row("transpose", View(ViewKind::Transpose)).typed(TypeRule::Transpose),
    row("transpose_copy", ViewCopy(ViewKind::Transpose)),
    row("true_divide", Binary(BinaryKind::Div)),
    row("truediv", Number(NumberKind::TrueDiv)),
    row("trunc", Unary(UnaryKind::Trunc)),
    row("type", Cast(CastKind::Type)),
    row("type_as", Cast(CastKind::TypeAs)),
    row("unbind", View(ViewKind::Unbind)),
    row("unbind_copy", ViewCopy(ViewKind::Unbind)),
    row("unflatten", View(ViewKind::Unflatten)),
    row("unsafe_chunk", View(ViewKind::Chunk)),
    row("unsafe_split", View(ViewKind::Split)),
    row("unsafe_split_with_sizes", View(ViewKind::Split)),
    row("unsqueeze", View(ViewKind::Unsqueeze)),
    row("unsqueeze_copy", ViewCopy(ViewKind::Unsqueeze)),
    row("view", View(ViewKind::View)).typed(TypeRule::Reshape),
    row("view_as", View(ViewKind::View)),
    row("view_copy", ViewCopy(ViewKind::View)),
    row("view_of", View(ViewKind::Same)),
    row("where", Where),
    row("zero", Fill),
    row("zeros", Create(CreateKind::Zeros, Model::Asked)),
    row("zeros_like", Create(CreateKind::Zeros, Model::Like)).typed(TypeRule::Alike),
];

/// What the operator of a name shows of its operand; `None` for what is not a view.
#[must_use]
pub fn view_kind(name: &str) -> Option<ViewKind> {
    match OPERATORS[find(name)?].id {
        View(kind) => Some(kind),
        _ => None,
    }
}

/// The row of a name, by place.
pub(super) fn find(name: &str) -> Option<usize> {
    OPERATORS.binary_search_by_key(&name, |row| row.name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found() {
        assert!(OPERATORS.is_sorted_by(|a, b| a.name < b.name));
        for (place, row) in OPERATORS.iter().enumerate() {
            assert_eq!(find(row.name), Some(place));
        }
        assert_eq!(find("no_such_operator"), None);
    }
}
