//! What a call does by the schema of its operator.

use super::schema::{ANYWHERE, Return, Schema, may_hold_tensors};
use super::{Alias, Effects, Fence, Indices, Placement, table, undeclared};
use crate::ir::{Arg, Args};

/// The operands that each parameter is given.
struct Bound {
    of: Vec<Indices>,
}

/// Python's names for parameters that schemas call otherwise.
const OTHER_NAMES: &[(&str, &str)] = &[("input", "self"), ("self", "a"), ("axis", "dim"), ("keepdims", "keepdim")];

/// `None` if the schema has no place for an argument.
fn bind(schema: &Schema<'_>, args: &Args) -> Option<Bound> {
    let count = schema.params.len();
    let mut bound = Bound { of: vec![Indices::new(); count] };
    let by_place: Vec<usize> = (0..count).filter(|&place| !schema.params[place].named).collect();
    for (index, arg) in args.positional.iter().enumerate() {
        let place = match by_place.get(index) {
            Some(&place) => place,
            // Sizes may be given one by one.
            None => *by_place.last().filter(|&&last| {
                let ty = schema.params[last].ty;
                ty.starts_with("int[") || ty.starts_with("SymInt[")
            })?,
        };
        bound.take(place, arg);
    }
    for (name, arg) in &args.keyword {
        let place = schema.place(name).or_else(|| {
            let other = OTHER_NAMES.iter().filter(|(python, _)| *python == &**name);
            other.filter_map(|(_, other)| schema.place(other)).next()
        })?;
        bound.take(place, arg);
    }
    Some(bound)
}

impl Bound {
    fn take(&mut self, place: usize, arg: &Arg) {
        arg.for_each_operand(&mut |index| self.of[place].push(index));
    }
}

/// An operator with all that does not depend on the call.
pub(super) struct Operator<'a> {
    schema: Schema<'a>,
    pub namespace: &'a str,
    pub name: &'a str,
    /// Whether it draws random numbers.
    draws: bool,
    /// Whether it changes a list or a table in place, and not what these hold: `t[](a!) self`.
    pub writes_container: bool,
}

impl<'a> Operator<'a> {
    /// One that a user declared: nothing else is known of it.
    pub fn declared(schema: Schema<'a>) -> Self {
        let draws = schema.has_tag("nondeterministic_seeded") || takes_generator(&schema);
        Self::new(schema, "", "", draws)
    }

    /// One of PyTorch's.
    pub fn of_pytorch(schema: Schema<'a>) -> Option<Self> {
        let (namespace, name) = schema.name.split_once("::")?;
        let name = name.split('.').next()?;
        let tagged = |line: &str| Schema::read(line).is_some_and(|other| other.has_tag("nondeterministic_seeded"));
        let draws = schema.has_tag("nondeterministic_seeded")
            || takes_generator(&schema)
            || undeclared::draws(namespace, name)
            // Overloads with names of dimensions lack the tag.
            || schema.name.contains("names") && table::overloads(namespace, name).into_iter().any(tagged);
        Some(Self::new(schema, namespace, name, draws))
    }

    fn new(schema: Schema<'a>, namespace: &'a str, name: &'a str, draws: bool) -> Self {
        let is_container = |ty: &str| ty.contains("](") || ty.starts_with("Dict(");
        let writes_container = schema.params.iter().any(|param| param.memory.written && is_container(param.ty));
        Self { schema, namespace, name, draws, writes_container }
    }

    /// What a call does; `None` if the schema is not that of such a call.
    pub fn read(&self, args: &Args) -> Option<Effects> {
        let schema = &self.schema;
        let bound = bind(schema, args)?;
        if schema.open {
            return Some(Effects::may(args));
        }
        let mut effects = Effects { fence: self.fence(args), ..Effects::pure() };
        for (param, operands) in schema.params.iter().zip(&bound.of) {
            if param.memory.written && may_hold_tensors(param.ty) {
                effects.writes.extend_from_slice(operands);
            }
        }
        effects.alias = alias(schema, &bound, &effects.writes);
        effects.reshapes = schema.has_tag("inplace_view");
        undeclared::add(schema, self.namespace, self.name, args, &bound.of, &mut effects);
        effects.placement = placement(self.namespace, self.name);
        // Numbers are dealt in the order of memory.
        if effects.fence == Fence::Random {
            effects.placement = effects.placement.max(Placement::Strides);
        }
        effects.shape_only = effects.writes.is_empty() && reads_shapes(self.name);
        Some(effects)
    }

    /// Attention draws for its dropout alone.
    fn fence(&self, args: &Args) -> Fence {
        let probability = self.schema.place("dropout_p").map(|place| {
            let param = &self.schema.params[place];
            args.at(place, param.name).map_or_else(
                || param.default.is_some_and(|text| text.parse() == Ok(0.0f64)),
                |arg| match arg {
                    Arg::Int(value) => *value == 0,
                    Arg::Float(text) => text.parse() == Ok(0.0f64),
                    _ => false,
                },
            )
        });
        if self.draws && probability != Some(true) { Fence::Random } else { Fence::Free }
    }
}

fn takes_generator(schema: &Schema<'_>) -> bool {
    schema.params.iter().any(|param| param.ty.contains("Generator"))
}

/// Whose memory the results are in.
fn alias(schema: &Schema<'_>, bound: &Bound, writes: &[u32]) -> Alias {
    let operands_of = |sets: u32| -> Indices {
        let shared = schema.params.iter().zip(&bound.of).filter(|(param, _)| {
            param.memory.sets & sets & !ANYWHERE != 0 || sets & ANYWHERE != 0 && may_hold_tensors(param.ty)
        });
        shared.flat_map(|(_, operands)| operands.iter().copied()).collect()
    };
    let of_result = |result: &Return<'_>| match may_hold_tensors(result.ty) {
        true => operands_of(result.memory.sets),
        false => Indices::new(),
    };
    let shared: Vec<Indices> = schema.returns.iter().map(of_result).collect();
    match shared.as_slice() {
        list if list.iter().all(Indices::is_empty) => Alias::Fresh,
        [only] if only.len() == 1 => Alias::Of(only[0]),
        [list] if !list.is_empty() && list.as_slice() == writes => Alias::Written,
        list if list.iter().all(|of| of.len() == 1) && list.iter().flatten().eq(writes) => Alias::Written,
        _ => Alias::Any,
    }
}

/// What is read of where an operand lies.
pub(super) fn placement(namespace: &str, name: &str) -> Placement {
    let of_tensors = matches!(namespace, "aten" | "prims" | "inductor" | "method" | "torch" | "");
    match name {
        _ if !of_tensors => Placement::Unseen,
        "stride"
        | "sym_stride"
        | "is_contiguous"
        | "sym_is_contiguous"
        | "is_non_overlapping_and_dense"
        | "_debug_has_internal_overlap"
        | "_fused_adagrad"
        | "_fused_adagrad_"
        | "_fused_adam"
        | "_fused_adam_"
        | "_fused_adamw"
        | "_fused_adamw_"
        | "_fused_sgd"
        | "_fused_sgd_" => Placement::Strides,
        "as_strided"
        | "as_strided_"
        | "as_strided_copy"
        | "as_strided_scatter"
        | "slice_inverse"
        | "storage_offset"
        | "sym_storage_offset"
        | "_reshape_alias"
        | "_reshape_alias_copy"
        | "set_"
        | "resize_"
        | "resize_as_"
        | "resize"
        | "_compute_linear_combination"
        | "_has_same_storage_numel"
        | "_version"
        | "is_set_to"
        | "data_ptr"
        | "storage"
        | "untyped_storage"
        | "_reinterpret_tensor"
        | "_alloc_from_pool" => Placement::Place,
        _ => Placement::Unseen,
    }
}

/// Whether an operator reads no elements.
pub(super) fn reads_shapes(name: &str) -> bool {
    matches!(
        name,
        "sym_size"
            | "sym_numel"
            | "sym_stride"
            | "sym_storage_offset"
            | "size"
            | "numel"
            | "dim"
            | "ndimension"
            | "stride"
            | "storage_offset"
            | "empty_like"
            | "zeros_like"
            | "ones_like"
            | "full_like"
            | "new_empty"
            | "new_zeros"
            | "new_ones"
            | "new_full"
            | "new_empty_strided"
            | "_assert_tensor_metadata"
            | "is_contiguous"
            | "sym_is_contiguous"
            | "is_non_overlapping_and_dense"
    )
}
