//! What schemas do not say, each with its reason. Found by running operators under PyTorch and by reading their kernels.

use super::reading::{Bound, add_writes, alias_of};
use crate::ir::args::Arg;
use crate::ir::operators::{Alias, Effects, Fence, Placement};

/// Operators with statistics that they update while training: their schemas leave the arguments unmarked, since autograd
/// treats the statistics as buffers. The parameter that says whether they train.
const STATISTICS: &[(&str, &str)] = &[
    ("batch_norm", "training"),
    ("_batch_norm_impl_index", "training"),
    ("native_batch_norm", "training"),
    ("cudnn_batch_norm", "training"),
    ("miopen_batch_norm", "training"),
    ("instance_norm", "use_input_stats"),
    ("batch_norm_gather_stats", ""),
    ("batch_norm_gather_stats_with_counts", ""),
    ("batch_norm_update_stats", ""),
    ("_batch_norm_with_update", ""),
    ("_batch_norm_with_update_functional", ""),
];

/// Operators that write an argument which their schema does not mark: operator, parameters, why.
const WRITES: &[(&str, &str, &[&str], &str)] = &[
    ("fsdp", "all_gather_copy_in", &["all_gather_output"], "copies its inputs into the output's slot of this rank"),
    ("inductor", "resize_storage_bytes_", &["variable"], "frees or grows the storage"),
    ("inductor", "accumulate_grad_", &["variable", "variable_grad"], "sets or adds to `variable.grad`"),
    ("aten", "_cudnn_rnn_flatten_weight", &["weight_arr"], "makes the weights views of one new buffer"),
    ("aten", "_saturate_weight_to_fp16", &["weight"], SATURATES),
    ("aten", "fbgemm_pack_gemm_matrix_fp16", &["input"], SATURATES),
    ("quantized", "linear_prepack_fp16", &["W"], SATURATES),
    ("quantized", "linear_prepack_fp16_legacy", &["W"], SATURATES),
    ("quantized", "linear_dynamic_fp16_unpacked_weight", &["weight"], SATURATES),
    ("_quantized", "linear_prepack_fp16", &["W"], SATURATES),
    ("_quantized", "linear_prepack_fp16_legacy", &["W"], SATURATES),
    ("_quantized", "wrapped_fbgemm_pack_gemm_matrix_fp16", &["W"], SATURATES),
];

/// Seen only with numbers above 65504: what random graphs under PyTorch found, and probes with small numbers did not.
const SATURATES: &str = "clamps weights to what a half can hold, in place";

/// Operators that may do anything, for they run what the graph does not show: functions that others registered, on tensors
/// that are not arguments. Their results are in `.grad` of leaves.
const ANYTHING: &[(&str, &str)] = &[("aten", "backward"), ("aten", "_backward")];

/// Operators whose result may be an argument's memory, though the schema gives it memory of its own: operator, parameters,
/// why.
const ALIASES: &[(&str, &str, &[&str], &str)] = &[
    ("aten", "_unsafe_view", &["self"], "a view that autograd does not track"),
    ("aten", "unsafe_split", &["self"], "views that autograd does not track"),
    ("aten", "unsafe_split_with_sizes", &["self"], "views that autograd does not track"),
    ("aten", "unsafe_chunk", &["self"], "views that autograd does not track"),
    ("aten", "lift", &["self"], "the argument itself outside of functionalisation"),
    ("aten", "type_as", &["self"], "the argument itself where the types are equal"),
    ("aten", "_cast_", &["self"], "the argument itself where the dtype is the wanted one"),
    ("aten", "sum_to_size", &["self"], "the argument itself where the size is the wanted one"),
    ("aten", "_grad_sum_to_size", &["self"], "the argument itself where the size is the wanted one"),
    ("aten", "cpu", &["self"], "the argument itself where it is there already"),
    ("aten", "cuda", &["self"], "the argument itself where it is there already"),
    ("aten", "flatten_dense_tensors", &["tensors"], "of one tensor, a view"),
    ("aten", "unflatten_dense_tensors", &["flat"], "views"),
    ("aten", "broadcast_tensors", &["tensors"], "expanded views"),
    ("aten", "meshgrid", &["tensors"], "expanded views"),
    ("aten", "einsum", &["tensors"], "a permuted view where nothing is summed"),
    ("aten", "pixel_shuffle", &["self"], "a view where the factor is one"),
    ("aten", "pixel_unshuffle", &["self"], "a view where the factor is one"),
    ("aten", "channel_shuffle", &["self"], "a view where there is one group"),
    ("aten", "native_channel_shuffle", &["self"], "a view where there is one group"),
    (
        "aten",
        "dequantize",
        &["self", "tensors", "qtensor", "qtensors"],
        "the argument itself where it is not quantised",
    ),
    ("aten", "atleast_1d", &["self", "tensors"], "a view, or the argument itself"),
    ("aten", "atleast_2d", &["self", "tensors"], "a view, or the argument itself"),
    ("aten", "atleast_3d", &["self", "tensors"], "a view, or the argument itself"),
    ("aten", "data", &["self"], "the same memory without its history"),
    ("aten", "to_dense_backward", &["grad"], "the gradient itself where it is dense"),
    ("aten", "histogramdd", &["bins"], "hands the bins on"),
    ("aten", "sorted", &["input", "self"], "the rows in another order"),
    ("aten", "_pack_sequence", &["output", "batch_sizes", "sorted_indices", "unsorted_indices"], "hands them on"),
    ("aten", "_saturate_weight_to_fp16", &["weight"], "the argument itself where nothing is saturated"),
    ("aten", "_remove_batch_dim", &["self"], "the tensor inside of a batched one"),
    ("aten", "_add_batch_dim", &["self"], "the tensor inside of a batched one"),
    ("aten", "set", &["self", "source"], "the storage of the source"),
    ("aten", "to_dense", &["self"], "the argument itself where it is dense"),
    ("aten", "_to_cpu", &["tensors"], "the arguments themselves where they are there already"),
    ("aten", "rnn_relu", &["hx"], "the state itself for a sequence of no steps"),
    ("aten", "rnn_tanh", &["hx"], "the state itself for a sequence of no steps"),
    ("aten", "gru", &["hx"], "the state itself for a sequence of no steps"),
    ("aten", "lstm", &["hx"], "the state itself for a sequence of no steps"),
    ("fsdp", "all_gather_copy_in", &["all_gather_output"], "the output, and its slot of this rank"),
    ("quantized", "dropout", &["self"], "the argument itself: it drops nothing"),
    ("inductor", "_alloc_from_pool", &["self"], "a part of the pool"),
    ("inductor", "_reinterpret_tensor", &["self"], "the same storage under other strides"),
    ("export", "access_subclass_inner_tensor", &["src_subclass_tensor"], "a tensor that the argument holds"),
    ("prims", "as_strided", &["a"], "a view; the schema marks it as written"),
    ("prims", "device_put", &["a"], "the argument itself where it is there already"),
    ("prims", "reshape", &["a"], "a view where strides allow it"),
    ("prims", "inductor_force_stride_order", &["input"], "the argument itself where its strides are the wanted ones"),
    ("_inductor_test", "realize", &["self"], "the argument itself in eager mode"),
    ("_c10d_functional", "_wrap_tensor_autograd", &["input"], "the argument in a wrapper"),
    ("onnx", "Reshape", &["input"], "a view where strides allow it"),
];

/// Operators that draw random numbers without the tag that says so.
const DRAWS: &[(&str, &str)] = &[
    ("prims", "inductor_seed"),
    ("prims", "inductor_seeds"),
    ("prims", "inductor_rand_eager_offset"),
    ("prims", "inductor_rand_eager_offsets"),
    ("prims", "normal"),
    ("prims", "uniform"),
    ("inductor_prims", "inductor_reserve_rng_state"),
    ("aten", "manual_seed"),
    ("aten", "seed"),
    ("aten", "initial_seed"),
    ("aten", "_fill_mem_eff_dropout_mask_"),
    ("aten", "_no_grad_normal_"),
    ("aten", "_no_grad_uniform_"),
    // On the CPU they set the default generator to their seed and use it.
    ("prims", "inductor_random"),
    ("prims", "inductor_randint"),
];

/// Namespaces of operators that act on the machine and not on values: streams, profilers, memory pools.
const MACHINE: &[&str] = &["cuda", "streams", "profiler", "mempool", "debug_mode_ops"];

/// Operators that see where a tensor lies: its storage, or where in it the tensor begins.
const STORAGE: &[&str] = &[
    "as_strided",
    "as_strided_",
    "as_strided_copy",
    "as_strided_scatter",
    "slice_inverse",
    "_reshape_alias",
    "_reshape_alias_copy",
    "storage_offset",
    "sym_storage_offset",
    "set_",
    "set_data",
    "resize_",
    "_reinterpret_tensor",
    "_alloc_from_pool",
    "data_ptr",
    "storage",
    "untyped_storage",
    "_typed_storage",
    "is_set_to",
    "resize_storage_bytes_",
    "numpy",
    "__dlpack__",
    "_has_same_storage_numel",
    "_version",
    "is_alias_of",
    "_is_alias_of",
    // They refuse offsets that other elements would start at, or memory that is part of more.
    "view_as_complex",
    "view_as_complex_copy",
    "view_of_dtype",
    "detach_",
    // What it makes was seen to depend on where its operands begin.
    "_compute_linear_combination",
];

/// Operators that see in which order the elements of a tensor lie: its strides.
const STRIDES: &[&str] = &[
    "stride",
    "sym_stride",
    "is_contiguous",
    "sym_is_contiguous",
    "is_non_overlapping_and_dense",
    "is_strides_like_format",
    "resize_as_",
    "_resize_output_",
    "resize",
    "resize_as",
    "copy_strided",
    "_debug_has_internal_overlap",
    // They read raw memory, whatever its strides.
    "_fused_adagrad",
    "_fused_adam",
    "_fused_adamw",
    "_fused_sgd",
    "_fused_adagrad_",
    "_fused_adam_",
    "_fused_adamw_",
    "_fused_sgd_",
    // Their `out` was seen to be filled as if it were dense.
    "_log_softmax",
    "_log_softmax_backward_data",
    "_softmax",
    "adaptive_avg_pool3d",
    "adaptive_avg_pool3d_backward",
    "adaptive_max_pool3d",
    "avg_pool3d",
    "avg_pool3d_backward",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "narrow_copy",
    "upsample_bicubic2d_backward",
    // They were seen to refuse what is not dense, or to round otherwise then.
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_batch_norm_impl_index_backward",
    "_embedding_bag",
    "_embedding_bag_backward",
    "_embedding_bag_forward_only",
    "_embedding_bag_per_sample_weights_backward",
    "_linalg_det",
    "_linalg_slogdet",
    "_native_batch_norm_legit",
    "_pdist_backward",
    "_pdist_forward",
    "_weight_norm_differentiable_backward",
    "_weight_norm_interface",
    "choose_qparams_optimized",
    "embedding_bag",
    "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward",
    "max_unpool3d",
    "native_layer_norm_backward",
    "nll_loss2d_backward",
    "take_along_dim",
];

/// Operators that read what a tensor is and not what it holds: sizes, strides, dtype, device.
const SHAPE_ONLY: &[&str] = &[
    "sym_size",
    "sym_numel",
    "sym_stride",
    "sym_storage_offset",
    "sym_is_contiguous",
    "size",
    "numel",
    "dim",
    "ndimension",
    "stride",
    "storage_offset",
    "element_size",
    "is_contiguous",
    "is_non_overlapping_and_dense",
    "is_strides_like_format",
    "is_floating_point",
    "is_complex",
    "is_signed",
    "is_same_size",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "new_empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty_strided",
    "_assert_tensor_metadata",
];

/// Whether an operator only reads what its operands are, not what they hold.
pub(super) fn is_shape_only(base: &str) -> bool {
    SHAPE_ONLY.contains(&base)
}

/// What an operator sees of how its operands lie.
pub(super) fn sees(base: &str) -> Placement {
    match base {
        base if STORAGE.contains(&base) => Placement::Storage,
        base if STRIDES.contains(&base) => Placement::Strides,
        _ => Placement::Nothing,
    }
}

/// What this page says of an operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extra {
    /// The parameter that says whether running statistics are updated; empty if they always are.
    trains: Option<&'static str>,
    writes: Option<&'static [&'static str]>,
    aliases: Option<&'static [&'static str]>,
    /// Its argument is marked as written, and is not.
    writes_nothing: bool,
    /// Two arguments become one storage.
    joins: bool,
    /// It gives its argument another size.
    restates: bool,
    draws: bool,
    acts_on_machine: bool,
    does_anything: bool,
    shape_only: bool,
    sees: Placement,
    /// Another dtype over the same bytes asks for an offset and strides that it divides.
    sees_for_dtype: bool,
}

impl Extra {
    pub fn of(namespace: &str, base: &str) -> Self {
        let entry = |table: &[(&str, &str, &'static [&'static str], &str)]| {
            let found = table.iter().find(|(of, name, ..)| {
                *of == namespace && (*name == base || *name == "_cast_" && base.starts_with("_cast_"))
            });
            found.map(|&(_, _, parameters, _)| parameters)
        };
        let aten = namespace == "aten";
        let joins = aten && matches!(base, "set_" | "set_data" | "shallow_copy_data_");
        Self {
            trains: STATISTICS.iter().find(|(name, _)| aten && *name == base).map(|&(_, trains)| trains),
            writes: entry(WRITES),
            aliases: entry(ALIASES),
            writes_nothing: (namespace, base) == ("prims", "as_strided"),
            joins,
            restates: joins || base == "addbmm_",
            draws: DRAWS.contains(&(namespace, base)),
            acts_on_machine: MACHINE.contains(&namespace),
            does_anything: ANYTHING.contains(&(namespace, base)),
            shape_only: is_shape_only(base),
            sees: sees(base),
            sees_for_dtype: base == "view",
        }
    }

    /// For a form that writes its result into a given tensor.
    pub fn is_out(&mut self) {
        self.aliases = None;
    }

    /// Adds to what the schema says.
    pub fn amend(&self, bound: &Bound<'_, '_>, mut effects: Effects) -> Effects {
        if self.does_anything {
            return Effects { alias: Alias::Any, fence: Fence::Full, ..effects };
        }
        // What is given as `out` is the result, whatever memory the same operator hands on without it.
        let gives_written = matches!(effects.alias, Alias::Of(index) if effects.writes.contains(&index));
        if let Some(trains) = self.trains
            && bound.get(&[trains]) != Some(&Arg::Bool(false))
        {
            add_writes(&mut effects.writes, &bound.operands(|p| matches!(&*p.name, "running_mean" | "running_var")));
        }
        if let Some(parameters) = self.writes {
            add_writes(&mut effects.writes, &bound.operands(|p| parameters.contains(&&*p.name)));
        }
        if self.writes_nothing {
            effects.writes.clear();
        }
        if let Some(parameters) = self.aliases
            && !gives_written
        {
            effects.alias = alias_of(&bound.operands(|p| parameters.contains(&&*p.name)), &effects.writes);
        }
        if self.joins {
            effects.alias = Alias::Any;
        }
        if self.draws {
            effects.fence = effects.fence.max(Fence::Random);
        }
        if effects.fence == Fence::Random && draws_nothing(bound) {
            effects.fence = Fence::Free;
        }
        if self.acts_on_machine {
            effects.fence = Fence::Full;
        }
        effects.restates |= self.restates;
        effects.shape_only = self.shape_only && effects.writes.is_empty();
        effects.sees = self.sees;
        if effects.fence == Fence::Random && !bound.operands(|parameter| parameter.tensors).is_empty() {
            // Numbers are dealt in the order of memory.
            effects.sees = effects.sees.max(Placement::Strides);
        }
        if self.sees_for_dtype && bound.takes("dtype") {
            effects.sees = Placement::Storage;
        }
        effects
    }
}

/// Attention without dropout draws nothing, whatever the tag says. The probability is zero unless it is given.
fn draws_nothing(bound: &Bound<'_, '_>) -> bool {
    let zero = |arg: &Arg| match arg {
        Arg::Float(text) => text.parse() == Ok(0.0f64),
        Arg::Int(value) => *value == 0,
        _ => false,
    };
    bound.takes("dropout_p") && bound.get(&["dropout_p"]).is_none_or(zero)
}
