//! What PyTorch's operators do though their schemas do not say it.
//!
//! Nearly all was seen by running them on the CPU: the memory of the results held against that of the arguments, and the
//! arguments against copies of before. What needs a GPU, or arguments that are rarely given, is from PyTorch's sources.

use super::schema::Schema;
use super::{Alias, Effects, Indices};
use crate::ir::{Arg, Args};

enum Undeclared {
    /// These parameters are written, unless a parameter that says so is false.
    Writes(&'static [&'static str], &'static str),
    /// The same, and results may be memory of the arguments.
    WritesAndHands(&'static [&'static str]),
    /// Results may be memory of the arguments.
    Hands,
    /// The result is a view of the first argument.
    View,
    /// A view, though the schema marks it as written.
    OnlyView,
    /// What it does is in no argument: gradients, storages of other tensors.
    Elsewhere,
    /// Runs functions that the graph does not show, and leaves gradients in tensors that are not arguments.
    Anything,
}
use Undeclared::{Anything, Elsewhere, Hands, OnlyView, View, Writes, WritesAndHands};

const STATISTICS: &[&str] = &["running_mean", "running_var"];

const TABLE: &[(&str, Undeclared)] = &[
    ("aten::_backward", Anything),
    ("aten::_batch_norm_impl_index", Writes(STATISTICS, "training")),
    // Of the same dtype, the tensor itself.
    ("aten::_cast_Byte", Hands),
    ("aten::_cast_Char", Hands),
    ("aten::_cast_Double", Hands),
    ("aten::_cast_Float", Hands),
    ("aten::_cast_Half", Hands),
    ("aten::_cast_Int", Hands),
    ("aten::_cast_Long", Hands),
    ("aten::_cast_Short", Hands),
    // Moves the weights into one storage and makes them views of it.
    ("aten::_cudnn_rnn_flatten_weight", Elsewhere),
    ("aten::_nested_view_from_buffer", View),
    ("aten::_nested_view_from_jagged", View),
    ("aten::_add_batch_dim", Hands),
    ("aten::_pack_sequence", Hands),
    ("aten::_remove_batch_dim", Hands),
    // Weights that a half cannot hold are clamped where they lie, before they are packed.
    ("aten::_saturate_weight_to_fp16", WritesAndHands(&["weight"])),
    ("aten::fbgemm_pack_gemm_matrix_fp16", Writes(&["input"], "")),
    ("quantized::linear_prepack_fp16", Writes(&["W"], "")),
    ("quantized::linear_prepack_fp16_legacy", Writes(&["W"], "")),
    ("quantized::linear_dynamic_fp16_unpacked_weight", Writes(&["weight"], "")),
    ("_quantized::linear_prepack_fp16", Writes(&["W"], "")),
    ("_quantized::linear_prepack_fp16_legacy", Writes(&["W"], "")),
    ("_quantized::wrapped_fbgemm_pack_gemm_matrix_fp16", Writes(&["W"], "")),
    ("aten::_to_cpu", Hands),
    // "Unsafe" as autograd is not told that it is a view.
    ("aten::_unsafe_view", View),
    // Not training, or of no probability, the input itself.
    ("aten::alpha_dropout", Hands),
    // Of a tensor that has the dimensions, itself.
    ("aten::atleast_1d", Hands),
    ("aten::atleast_2d", Hands),
    ("aten::atleast_3d", Hands),
    ("aten::backward", Anything),
    ("aten::batch_norm", Writes(STATISTICS, "training")),
    ("aten::batch_norm_gather_stats", Writes(STATISTICS, "")),
    ("aten::batch_norm_gather_stats_with_counts", Writes(STATISTICS, "")),
    ("aten::batch_norm_update_stats", Writes(STATISTICS, "")),
    ("aten::broadcast_tensors", Hands),
    ("aten::cartesian_prod", Hands),
    // Into one group, or by a factor of one, a view.
    ("aten::channel_shuffle", Hands),
    ("aten::native_channel_shuffle", Hands),
    ("aten::pixel_shuffle", Hands),
    ("aten::pixel_unshuffle", Hands),
    ("aten::conj_physical", Hands),
    ("aten::cudnn_batch_norm", Writes(STATISTICS, "training")),
    ("aten::data", View),
    ("aten::dequantize", Hands),
    ("aten::dropout", Hands),
    ("aten::einsum", Hands),
    ("aten::feature_alpha_dropout", Hands),
    ("aten::feature_dropout", Hands),
    ("aten::flatten_dense_tensors", Hands),
    // Of a sequence of no steps, the state itself.
    ("aten::gru", Hands),
    ("aten::histogramdd", Hands),
    ("aten::instance_norm", Writes(STATISTICS, "use_input_stats")),
    ("aten::lift", View),
    ("aten::lstm", Hands),
    ("aten::meshgrid", Hands),
    ("aten::miopen_batch_norm", Writes(STATISTICS, "training")),
    ("aten::native_batch_norm", Writes(STATISTICS, "training")),
    ("aten::rnn_relu", Hands),
    ("aten::rnn_tanh", Hands),
    ("aten::set", Hands),
    ("aten::set_data", Elsewhere),
    ("aten::shallow_copy_data_", Elsewhere),
    ("aten::sorted", Hands),
    ("aten::sum_to_size", Hands),
    ("aten::to_dense", Hands),
    ("aten::to_dense_backward", Hands),
    ("aten::type_as", Hands),
    ("aten::unflatten_dense_tensors", View),
    ("aten::unsafe_chunk", View),
    ("aten::unsafe_split", View),
    ("aten::unsafe_split_with_sizes", View),
    // Packs the inputs into the part of the buffer that it hands back.
    ("fsdp::all_gather_copy_in", WritesAndHands(&["all_gather_output"])),
    ("inductor::_alloc_from_pool", View),
    ("inductor::_reinterpret_tensor", View),
    ("inductor::accumulate_grad_", Writes(&["variable", "variable_grad"], "")),
    ("inductor::resize_storage_bytes_", Writes(&["variable"], "")),
    ("export::access_subclass_inner_tensor", Hands),
    ("onnx::Reshape", Hands),
    ("prims::as_strided", OnlyView),
    ("prims::device_put", Hands),
    ("prims::inductor_force_stride_order", Hands),
    ("prims::reshape", Hands),
    ("quantized::dropout", Hands),
    ("_inductor_test::realize", Hands),
];

/// Adds to what the schema says.
pub(super) fn add(
    schema: &Schema<'_>,
    namespace: &str,
    name: &str,
    args: &Args,
    bound: &[Indices],
    effects: &mut Effects,
) {
    effects.reshapes |= matches!((namespace, name), ("prims", "resize") | ("aten", "addbmm_" | "_resize_output_"));
    let writes_out = schema.name.split_once('.').is_some_and(|(_, overload)| overload.ends_with("out"));
    // PyTorch's own mark of what is in this table, and of more.
    if schema.has_tag("maybe_aliasing_or_mutating") && effects.alias == Alias::Fresh && !writes_out {
        effects.alias = Alias::Any;
    }
    let full = format!("{namespace}::{name}");
    let Some((_, found)) = TABLE.iter().find(|(known, _)| *known == full) else { return };
    let first = || bound.iter().flatten().next().copied();
    match found {
        Writes(names, unless) => {
            let off = schema.place(unless).is_some_and(|place| args.at(place, unless) == Some(&Arg::Bool(false)));
            let written = names.iter().filter(|_| !off).filter_map(|name| schema.place(name));
            effects.writes.extend(written.flat_map(|place| bound[place].iter().copied()));
        }
        WritesAndHands(names) => {
            let written = names.iter().filter_map(|name| schema.place(name));
            effects.writes.extend(written.flat_map(|place| bound[place].iter().copied()));
            effects.alias = Alias::Any;
        }
        Hands if effects.alias == Alias::Fresh && !writes_out => effects.alias = Alias::Any,
        View if !writes_out => effects.alias = first().map_or(Alias::Fresh, Alias::Of),
        OnlyView => {
            effects.writes.clear();
            effects.alias = first().map_or(Alias::Fresh, Alias::Of);
        }
        Elsewhere => *effects = Effects { may: false, ..Effects::may(args) },
        Anything => *effects = Effects::fence(args),
        Hands | View => {}
    }
}

/// Operators that draw random numbers and have no tag for it.
pub(super) fn draws(namespace: &str, name: &str) -> bool {
    matches!(
        (namespace, name),
        (
            "aten",
            "manual_seed"
                | "seed"
                | "initial_seed"
                | "_fill_mem_eff_dropout_mask_"
                | "_no_grad_normal_"
                | "_no_grad_uniform_"
        ) | (
            "prims",
            "normal"
                | "inductor_seed"
                | "inductor_seeds"
                | "inductor_rand_eager_offset"
                | "inductor_rand_eager_offsets"
                | "inductor_random"
                | "inductor_randint"
                | "uniform"
        ) | ("inductor_prims", "inductor_reserve_rng_state")
    )
}
