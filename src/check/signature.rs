//! Which operators are followed, and what their arguments are called.
//!
//! An operator is what its namespace, name and overload say together: `mylib.cat` is not `aten.cat`, and
//! `aten.narrow.Tensor` is not `aten.narrow`. Every argument of a call must be one of its parameters. One that has
//! several meanings, and is not looked at, must have its default. A call for which that does not hold is a value of its
//! own: no argument is left out of account.

use crate::ir::{Arg, Args, DType};
use smallvec::SmallVec;

/// What a followed operator does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    Item,
    SymSize,
    SymNumel,
    Arithmetic(Arithmetic),
    Split,
    Chunk,
    Unbind,
    Cat,
    Stack,
    ChunkCat,
    PackedGather,
    PackedScatter,
    Filled(Fill, Shaped),
    Same,
    View,
    Reshape,
    Unsqueeze,
    Squeeze,
    Permute,
    Transpose,
    Turn,
    MoveDim,
    Expand,
    LikeOther(Other),
    Flatten,
    Ravel,
    Unflatten,
    Slice,
    Narrow,
    Select,
    Pad,
    Cast,
}

/// Of sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arithmetic {
    Mul,
    Add,
    Sub,
    FloorDiv,
    Neg,
}

/// What a new tensor holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fill {
    /// Memory as it was.
    Nothing,
    Zeros,
    Ones,
    /// The argument `fill_value`.
    Value,
}

/// Where the sizes of a new tensor come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shaped {
    /// The argument `size`.
    Sizes,
    /// The same, and its dtype from a tensor: `new_zeros`.
    New,
    /// A tensor: `zeros_like`.
    Like,
}

/// What is done to have the shape of another tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Other {
    Reshape,
    Expand,
}

/// An operator that is followed.
#[derive(Debug)]
pub(super) struct Operator {
    namespaces: &'static [&'static str],
    names: &'static [&'static str],
    overloads: &'static [&'static str],
    pub meaning: Meaning,
    /// In order, each with its other names; those behind `*` are given by name alone. A last one that ends in `..` takes
    /// all that is left.
    params: &'static [&'static str],
}

const ATEN: &[&str] = &["aten"];
/// Where an operator has the same arguments: ATen, and the text of the project.
const PLAIN: &[&str] = &["aten", ""];
/// And methods of tensors and functions of `torch`.
const EVERYWHERE: &[&str] = &["aten", "", "torch", "method"];
/// Methods, whose sizes may be arguments of their own.
const METHOD: &[&str] = &["method"];
/// And functions of `torch`.
const FUNCTION: &[&str] = &["aten", "", "torch"];
/// And methods of tensors.
const OF_TENSOR: &[&str] = &["aten", "", "method"];
const NATIVE: &[&str] = &[""];
const PYTHON: &[&str] = &["operator", "builtins", ""];

const NONE: &[&str] = &[];
const SELF: &[&str] = &["self|input|a"];
const CREATES: &[&str] = &["size", "*", "dtype", "layout", "device", "pin_memory", "memory_format", "requires_grad"];
const CREATES_IN: &[&str] = &["size", "stride|physical_layout", "*", "dtype", "layout", "device", "pin_memory"];
const FILLS: &[&str] = &["size", "fill_value", "*", "dtype", "layout", "device", "pin_memory", "requires_grad"];
const LIKE: &[&str] = &["self|input", "*", "dtype", "layout", "device", "pin_memory", "memory_format", "requires_grad"];
const FILLS_LIKE: &[&str] =
    &["self|input", "fill_value", "*", "dtype", "layout", "device", "pin_memory", "memory_format", "requires_grad"];
const NEW: &[&str] = &["self", "size", "*", "dtype", "layout", "device", "pin_memory", "requires_grad"];
const NEW_IN: &[&str] = &["self", "size", "stride", "*", "dtype", "layout", "device", "pin_memory"];
const FILLS_NEW: &[&str] = &["self", "size", "fill_value", "*", "dtype", "layout", "device", "pin_memory"];
const PARTS: &[&str] = &["self|input|tensor", "split_size|split_sizes|split_size_or_sections", "dim"];
const TENSORS: &[&str] = &["tensors", "dim"];

const fn operator(
    namespaces: &'static [&'static str],
    names: &'static [&'static str],
    overloads: &'static [&'static str],
    meaning: Meaning,
    params: &'static [&'static str],
) -> Operator {
    Operator { namespaces, names, overloads, meaning, params }
}

use Meaning::{
    Arithmetic as Of, Cast, Cat, Chunk, ChunkCat, Expand, Filled, Flatten, Item, LikeOther, MoveDim, Narrow,
    PackedGather, PackedScatter, Pad, Permute, Ravel, Reshape, Same, Select, Slice, Split, Squeeze, Stack, SymNumel,
    SymSize, Transpose, Turn, Unbind, Unflatten, Unsqueeze, View,
};

/// All of them. An overload that is not written is the default one, or left for PyTorch to choose.
const OPERATORS: &[Operator] = &[
    operator(PYTHON, &["getitem", "item", "get_tuple_element"], NONE, Item, &["a", "b|index"]),
    operator(PLAIN, &["sym_size", "size"], &["int"], SymSize, &["self", "dim"]),
    operator(METHOD, &["size"], NONE, SymSize, &["self", "dim"]),
    operator(EVERYWHERE, &["sym_numel", "numel"], NONE, SymNumel, &["self|input"]),
    operator(PYTHON, &["mul"], NONE, Of(Arithmetic::Mul), &["a", "b"]),
    operator(PYTHON, &["add"], NONE, Of(Arithmetic::Add), &["a", "b"]),
    operator(PYTHON, &["sub"], NONE, Of(Arithmetic::Sub), &["a", "b"]),
    operator(PYTHON, &["floordiv"], NONE, Of(Arithmetic::FloorDiv), &["a", "b"]),
    operator(PYTHON, &["neg"], NONE, Of(Arithmetic::Neg), &["a"]),
    operator(EVERYWHERE, &["split", "unsafe_split"], &["Tensor", "sizes"], Split, PARTS),
    operator(EVERYWHERE, &["split_with_sizes", "unsafe_split_with_sizes"], NONE, Split, PARTS),
    operator(ATEN, &["split_with_sizes_copy"], NONE, Split, PARTS),
    operator(ATEN, &["split_copy"], &["Tensor"], Split, PARTS),
    operator(EVERYWHERE, &["chunk", "unsafe_chunk"], NONE, Chunk, &["self|input", "chunks", "dim"]),
    operator(EVERYWHERE, &["unbind", "unbind_copy"], &["int"], Unbind, &["self|input", "dim"]),
    operator(FUNCTION, &["cat", "concat", "concatenate"], NONE, Cat, TENSORS),
    operator(FUNCTION, &["stack"], NONE, Stack, TENSORS),
    operator(ATEN, &["_chunk_cat"], NONE, ChunkCat, &["tensors", "dim", "num_chunks"]),
    operator(
        &["bucketing"],
        &["_pre_bucket_reduce_scatter"],
        NONE,
        PackedScatter,
        &["rs_ins", "group_size", "unpadded_input_indices"],
    ),
    operator(
        &["bucketing"],
        &["_pre_bucket_all_gather"],
        NONE,
        PackedGather,
        &["ag_ins", "group_size", "dtype", "out_dtype_ints", "rank", "foreach_group_indices"],
    ),
    operator(FUNCTION, &["empty"], &["memory_format"], Filled(Fill::Nothing, Shaped::Sizes), CREATES),
    operator(PLAIN, &["empty_strided", "empty_permuted"], NONE, Filled(Fill::Nothing, Shaped::Sizes), CREATES_IN),
    operator(EVERYWHERE, &["empty_like"], NONE, Filled(Fill::Nothing, Shaped::Like), LIKE),
    operator(OF_TENSOR, &["new_empty"], NONE, Filled(Fill::Nothing, Shaped::New), NEW),
    operator(OF_TENSOR, &["new_empty_strided"], NONE, Filled(Fill::Nothing, Shaped::New), NEW_IN),
    operator(FUNCTION, &["zeros"], NONE, Filled(Fill::Zeros, Shaped::Sizes), CREATES),
    operator(EVERYWHERE, &["zeros_like"], NONE, Filled(Fill::Zeros, Shaped::Like), LIKE),
    operator(OF_TENSOR, &["new_zeros"], NONE, Filled(Fill::Zeros, Shaped::New), NEW),
    operator(FUNCTION, &["ones"], NONE, Filled(Fill::Ones, Shaped::Sizes), CREATES),
    operator(EVERYWHERE, &["ones_like"], NONE, Filled(Fill::Ones, Shaped::Like), LIKE),
    operator(OF_TENSOR, &["new_ones"], NONE, Filled(Fill::Ones, Shaped::New), NEW),
    operator(FUNCTION, &["full"], NONE, Filled(Fill::Value, Shaped::Sizes), FILLS),
    operator(FUNCTION, &["full_like"], NONE, Filled(Fill::Value, Shaped::Like), FILLS_LIKE),
    operator(OF_TENSOR, &["new_full"], NONE, Filled(Fill::Value, Shaped::New), FILLS_NEW),
    operator(EVERYWHERE, &["clone"], NONE, Same, &["self|input", "*", "memory_format"]),
    operator(OF_TENSOR, &["contiguous"], NONE, Same, &["self", "*", "memory_format"]),
    operator(EVERYWHERE, &["alias", "alias_copy", "detach", "detach_copy"], NONE, Same, SELF),
    operator(ATEN, &["lift_fresh", "lift_fresh_copy"], NONE, Same, SELF),
    operator(ATEN, &["positive", "resolve_conj", "resolve_neg"], NONE, Same, SELF),
    operator(PLAIN, &["view", "view_copy"], NONE, View, &["self", "size"]),
    operator(PLAIN, &["view", "view_copy"], &["dtype"], View, &["self", "dtype"]),
    operator(METHOD, &["view"], NONE, View, &["self", "size.."]),
    operator(ATEN, &["_unsafe_view"], NONE, Reshape, &["self", "size"]),
    operator(FUNCTION, &["reshape"], NONE, Reshape, &["self|input", "shape|size"]),
    operator(METHOD, &["reshape"], NONE, Reshape, &["self", "size.."]),
    operator(NATIVE, &["bitcast"], NONE, View, &["self", "size"]),
    operator(EVERYWHERE, &["unsqueeze", "unsqueeze_copy"], NONE, Unsqueeze, &["self|input", "dim"]),
    operator(EVERYWHERE, &["squeeze", "squeeze_copy"], &["dim", "dims"], Squeeze, &["self|input", "dim"]),
    operator(FUNCTION, &["permute", "permute_copy"], NONE, Permute, &["self|input", "dims"]),
    operator(METHOD, &["permute"], NONE, Permute, &["self", "dims.."]),
    operator(EVERYWHERE, &["t", "t_copy"], NONE, Turn, SELF),
    operator(
        EVERYWHERE,
        &["transpose", "transpose_copy", "swapaxes", "swapdims"],
        &["int"],
        Transpose,
        &["self|input", "dim0|axis0", "dim1|axis1"],
    ),
    operator(
        EVERYWHERE,
        &["movedim", "moveaxis"],
        &["int", "intlist"],
        MoveDim,
        &["self|input", "source", "destination"],
    ),
    operator(PLAIN, &["expand", "expand_copy"], NONE, Expand, &["self", "size", "*", "implicit"]),
    operator(FUNCTION, &["broadcast_to"], NONE, Expand, &["self|input", "size"]),
    operator(METHOD, &["expand", "broadcast_to"], NONE, Expand, &["self", "size.."]),
    operator(OF_TENSOR, &["expand_as"], NONE, LikeOther(Other::Expand), &["self", "other"]),
    operator(OF_TENSOR, &["view_as", "reshape_as"], NONE, LikeOther(Other::Reshape), &["self", "other"]),
    operator(EVERYWHERE, &["flatten"], &["using_ints"], Flatten, &["self|input", "start_dim", "end_dim"]),
    operator(EVERYWHERE, &["ravel"], NONE, Ravel, SELF),
    operator(EVERYWHERE, &["unflatten"], &["int"], Unflatten, &["self|input", "dim", "sizes"]),
    operator(NATIVE, &["slice"], NONE, Slice, &["self", "start", "end", "dim"]),
    operator(ATEN, &["slice", "slice_copy"], &["Tensor"], Slice, &["self", "dim", "start", "end", "step"]),
    operator(EVERYWHERE, &["narrow", "narrow_copy"], NONE, Narrow, &["self|input", "dim", "start", "length"]),
    operator(EVERYWHERE, &["select", "select_copy"], &["int"], Select, &["self|input", "dim", "index"]),
    operator(PLAIN, &["constant_pad_nd"], NONE, Pad, &["self", "pad", "value"]),
    operator(&["prims"], &["convert_element_type"], NONE, Cast, &["self|a", "dtype"]),
    operator(NATIVE, &["cast"], NONE, Cast, &["self", "dtype"]),
    operator(PLAIN, &["to"], &["dtype"], Cast, &["self", "dtype", "non_blocking", "copy", "memory_format"]),
    operator(METHOD, &["to"], NONE, Cast, &["self", "dtype", "non_blocking", "copy", "*", "memory_format"]),
    operator(
        ATEN,
        &["_to_copy"],
        NONE,
        Cast,
        &["self", "*", "dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format"],
    ),
];

/// The operator of a target, if it is followed.
pub(super) fn of(target: &str) -> Option<&'static Operator> {
    let mut parts = target.split('.');
    let (namespace, name, overload) = match (parts.next()?, parts.next(), parts.next(), parts.next()) {
        (name, None, ..) => ("", name, ""),
        (namespace, Some(name), overload, None) => (namespace, name, overload.unwrap_or("")),
        _ => return None,
    };
    let plain = matches!(overload, "" | "default");
    OPERATORS.iter().find(|operator| {
        operator.names.contains(&name)
            && operator.namespaces.contains(&namespace)
            && (operator.overloads.contains(&overload)
                || plain && (namespace != "aten" || operator.has_plain(overload)))
    })
}

impl Operator {
    /// Whether a target without an overload, or with the default one, may be this operator. Of `view` by sizes and by
    /// dtype the first is the plain one.
    fn has_plain(&self, overload: &str) -> bool {
        overload.is_empty() || self.overloads != ["dtype"]
    }

    /// The arguments of a call by parameter; `None` where one is not a parameter, is given twice, or is not looked at and
    /// is not the default.
    pub fn bind<'a>(&'static self, args: &'a Args) -> Option<Bound<'a>> {
        let behind = self.params.iter().position(|&param| param == "*");
        let by_place = &self.params[..behind.unwrap_or(self.params.len())];
        let mut bound = Bound { given: SmallVec::new() };
        let (mut params, mut left) = (by_place.iter(), args.positional.as_slice());
        while let [first, rest @ ..] = left {
            let param = params.next()?;
            match param.strip_suffix("..") {
                Some(name) => {
                    bound.given.push((name, Given::Rest(left)));
                    left = &[];
                }
                None => {
                    bound.given.push((first_name(param), Given::One(first)));
                    left = rest;
                }
            }
        }
        for (key, arg) in &args.keyword {
            let is_named = |param: &&&str| param.trim_end_matches("..").split('|').any(|name| name == &**key);
            let name = first_name(self.params.iter().find(is_named)?.trim_end_matches(".."));
            if bound.given.iter().any(|(known, _)| *known == name) {
                return None;
            }
            bound.given.push((name, Given::One(arg)));
        }
        let defaults = bound.given.iter().all(|(name, given)| match given {
            Given::One(arg) => self.may_be(name, arg),
            Given::Rest(_) => true,
        });
        defaults.then_some(bound)
    }

    /// Whether an argument that is not looked at says nothing.
    fn may_be(&self, name: &str, arg: &Arg) -> bool {
        let off = matches!(arg, Arg::None | Arg::Bool(false));
        match name {
            "layout" => off || matches!(arg, Arg::Word(word) if &**word == "torch.strided"),
            // Where elements lie is not a part of a value, but a format may have to be copied to.
            "memory_format" => {
                let preserves = self.names != ["contiguous"];
                off || matches!(arg, Arg::Word(word)
                    if &**word == "torch.contiguous_format" || preserves && &**word == "torch.preserve_format")
            }
            "pin_memory" | "non_blocking" | "copy" | "implicit" | "requires_grad" => off,
            // Those that are in no group are not copied.
            "foreach_group_indices" => matches!(arg, Arg::None),
            _ => true,
        }
    }
}

fn first_name(param: &'static str) -> &'static str {
    param.split('|').next().unwrap_or(param)
}

/// Arguments by parameter.
pub(super) struct Bound<'a> {
    given: SmallVec<[(&'static str, Given<'a>); 6]>,
}

#[derive(Clone, Copy)]
enum Given<'a> {
    One(&'a Arg),
    Rest(&'a [Arg]),
}

impl<'a> Bound<'a> {
    fn given(&self, name: &str) -> Option<Given<'a>> {
        self.given.iter().find(|(known, _)| *known == name).map(|(_, given)| *given)
    }

    /// The argument of a parameter, by its first name; `None` where it is not given.
    pub fn get(&self, name: &str) -> Option<&'a Arg> {
        match self.given(name)? {
            Given::One(arg) => Some(arg),
            Given::Rest([arg]) => Some(arg),
            Given::Rest(_) => None,
        }
    }

    /// As [`Self::get`], but `None` that is given is not given.
    pub fn some(&self, name: &str) -> Option<&'a Arg> {
        self.get(name).filter(|arg| !matches!(arg, Arg::None))
    }

    /// The items of a list, or of arguments that stand for one.
    pub fn list(&self, name: &str) -> Option<&'a [Arg]> {
        match self.given(name)? {
            Given::One(Arg::List(items) | Arg::Tuple(items)) | Given::Rest([Arg::List(items) | Arg::Tuple(items)]) => {
                Some(items)
            }
            Given::Rest(items) => Some(items),
            Given::One(_) => None,
        }
    }
}

/// The dtype of tensors joined: as PyTorch promotes tensors that have dimensions. `None` where it refuses to.
pub(super) fn promoted(a: DType, b: DType) -> Option<DType> {
    use DType::{Bf16, Bool, C32, C64, C128, F16, F32, F64, I8, I16, I32, I64, U8};
    if a == b {
        return Some(a);
    }
    let unsigned = |dtype| matches!(dtype, DType::U16 | DType::U32 | DType::U64);
    let float = |dtype| matches!(dtype, F64 | F32 | F16 | Bf16);
    if unsigned(a) || unsigned(b) {
        return [a, b].into_iter().find(|&dtype| float(dtype));
    }
    // From the least to the greatest of each kind; a float and a complex number meet in the complex one as wide.
    let rank = |dtype| match dtype {
        Bool => Some((0, 0)),
        U8 | I8 => Some((1, 0)),
        I16 => Some((1, 1)),
        I32 => Some((1, 2)),
        I64 => Some((1, 3)),
        F16 | Bf16 => Some((2, 0)),
        F32 => Some((2, 1)),
        F64 => Some((2, 2)),
        C32 => Some((3, 0)),
        C64 => Some((3, 1)),
        C128 => Some((3, 2)),
        _ => None,
    };
    let ((low, x), (high, y)) =
        if rank(a)? <= rank(b)? { ((a, rank(a)?), (b, rank(b)?)) } else { ((b, rank(b)?), (a, rank(a)?)) };
    Some(match (x, y) {
        ((1, 0), (1, 0)) => I16,
        ((2, 0), (2, 0)) => F32,
        ((2, _), (3, _)) if low == Bf16 && high == C32 => C64,
        ((2, float), (3, complex)) => [C32, C64, C128][float.max(complex) as usize],
        _ => high,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `torch.cat` of two tensors of these dtypes gives in PyTorch 2.15; `-` where it refuses.
    const DTYPES: &str = "f64 f32 f16 bf16 f8e4m3fn f8e5m2 c32 c64 c128 i64 i32 i16 i8 u64 u32 u16 u8 b8";
    const CAT: &[&str] = &[
        "f64 f64 f64 f64 - - c128 c128 c128 f64 f64 f64 f64 f64 f64 f64 f64 f64",
        "f64 f32 f32 f32 - - c64 c64 c128 f32 f32 f32 f32 f32 f32 f32 f32 f32",
        "f64 f32 f16 f32 - - c32 c64 c128 f16 f16 f16 f16 f16 f16 f16 f16 f16",
        "f64 f32 f32 bf16 - - c64 c64 c128 bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16",
        "- - - - f8e4m3fn - - - - - - - - - - - - -",
        "- - - - - f8e5m2 - - - - - - - - - - - -",
        "c128 c64 c32 c64 - - c32 c64 c128 c32 c32 c32 c32 - - - c32 c32",
        "c128 c64 c64 c64 - - c64 c64 c128 c64 c64 c64 c64 - - - c64 c64",
        "c128 c128 c128 c128 - - c128 c128 c128 c128 c128 c128 c128 - - - c128 c128",
        "f64 f32 f16 bf16 - - c32 c64 c128 i64 i64 i64 i64 - - - i64 i64",
        "f64 f32 f16 bf16 - - c32 c64 c128 i64 i32 i32 i32 - - - i32 i32",
        "f64 f32 f16 bf16 - - c32 c64 c128 i64 i32 i16 i16 - - - i16 i16",
        "f64 f32 f16 bf16 - - c32 c64 c128 i64 i32 i16 i8 - - - i16 i8",
        "f64 f32 f16 bf16 - - - - - - - - - u64 - - - -",
        "f64 f32 f16 bf16 - - - - - - - - - - u32 - - -",
        "f64 f32 f16 bf16 - - - - - - - - - - - u16 - -",
        "f64 f32 f16 bf16 - - c32 c64 c128 i64 i32 i16 i16 - - - u8 u8",
        "f64 f32 f16 bf16 - - c32 c64 c128 i64 i32 i16 i8 - - - u8 b8",
    ];

    #[test]
    fn tensors_are_promoted_as_pytorch_does() {
        let dtypes: Vec<DType> = DTYPES.split(' ').map(|name| DType::from_name(name).unwrap()).collect();
        assert_eq!(CAT.len(), dtypes.len());
        for (&a, row) in dtypes.iter().zip(CAT) {
            for (&b, wanted) in dtypes.iter().zip(row.split(' ')) {
                let found = promoted(a, b).map_or("-", DType::short_name);
                assert_eq!(found, wanted, "{} and {}", a.short_name(), b.short_name());
            }
        }
    }

    /// Parameters of a schema: their names, and which are given by name alone.
    fn parameters(schema: &str) -> Vec<(&str, bool)> {
        let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
        for (at, letter) in schema.char_indices() {
            depth += i32::from(matches!(letter, '(' | '[')) - i32::from(matches!(letter, ')' | ']'));
            if letter == ',' && depth == 0 {
                parts.push(&schema[from..at]);
                from = at + 1;
            }
        }
        parts.push(&schema[from..]);
        let mut by_name = false;
        let mut found = Vec::new();
        for part in parts.into_iter().map(str::trim).filter(|part| !part.is_empty()) {
            if part == "*" {
                by_name = true;
            } else {
                let name = part.split('=').next().unwrap_or(part).rsplit(' ').next().unwrap_or(part);
                found.push((name, by_name));
            }
        }
        found
    }

    #[test]
    fn operators_that_are_followed_have_the_parameters_of_their_schemas() {
        let mut seen = 0;
        for line in include_str!("schemas/torch.txt").lines() {
            let schema = line.split('\t').next().unwrap_or(line);
            let Some((open, close)) = schema.find('(').zip(schema.find(") -> ")) else { continue };
            let target = schema[..open].replace("::", ".");
            let Some(operator) = of(&target) else { continue };
            seen += 1;
            let behind = operator.params.iter().position(|&param| param == "*").unwrap_or(operator.params.len());
            let named = |param: &str, name: &str| param.split('|').any(|known| known == name);
            for (place, (name, by_name)) in parameters(&schema[open + 1..close]).into_iter().enumerate() {
                let ours = operator.params.iter().position(|param| named(param, name));
                match (ours, by_name) {
                    (Some(ours), false) => assert_eq!(ours, place, "{schema}: `{name}`"),
                    (Some(ours), true) => assert!(ours > behind, "{schema}: `{name}`"),
                    (None, _) => panic!("{schema}: `{name}` is not a parameter"),
                }
            }
        }
        assert!(seen > 80, "{seen}");
    }

    #[test]
    fn every_operator_that_is_followed_is_found_by_each_of_its_names() {
        for operator in OPERATORS {
            for (namespace, name) in
                operator.namespaces.iter().flat_map(|n| operator.names.iter().map(move |name| (n, name)))
            {
                let target = if namespace.is_empty() { (*name).to_owned() } else { format!("{namespace}.{name}") };
                let overloads = operator.overloads.iter().map(|overload| format!("{target}.{overload}"));
                let targets: Vec<String> = if *namespace == "aten" { overloads.collect() } else { Vec::new() };
                for target in targets.iter().chain([&target]) {
                    assert!(of(target).is_some(), "{target}");
                }
                assert!(of(&format!("mylib.{name}.default")).is_none());
            }
        }
        for other in [
            "aten.narrow.Tensor",
            "aten.select.t",
            "aten.slice.str",
            "aten.cat.names",
            "aten.cat.out",
            "aten.to.other",
            "a.b.c.d",
            "",
        ] {
            assert!(of(other).is_none(), "{other}");
        }
    }
}
