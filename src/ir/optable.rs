//! What is known of operators: which are views, which write, which have effects. One table for every pass.
//!
//! Sources: ATen's native_functions.yaml for views and `(a!)` annotations; PyTorch's naming rule, by which an
//! operator that ends in `_` writes its first argument and an `out` argument is written; `torch/_inductor` for the
//! random operators. A target is `namespace.name.overload` (`aten.view.default`), a bare name in native text
//! (`view`), or a method or module call as FX prints it (`x.relu`).

use super::args::{Arg, Args};
use super::entities::NodeId;
use super::graph::Graph;
use super::ops::{Op, Variant};
use super::types::{DType, Type};
use smallvec::SmallVec;

/// How a node's value relates to the memory of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alias {
    /// Memory of its own.
    Fresh,
    /// The memory of one operand, by index.
    Of(u32),
    /// Perhaps the memory of any operand.
    Any,
}

/// What keeps a node in its place beside data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fence {
    /// Nothing.
    Free,
    /// It draws random numbers: keeps its order with others that do.
    Random,
    /// It may talk to other ranks or the world: keeps its order with every collective and every other fence.
    Full,
}

/// Everything about a node that is not data flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effects {
    /// Whose memory the value is.
    pub alias: Alias,
    /// Operands whose memory is overwritten, by index.
    pub writes: SmallVec<[u32; 1]>,
    /// What keeps it in place.
    pub fence: Fence,
    /// Whether it reads only the shapes of its operands, never their elements.
    pub shape_only: bool,
}

impl Effects {
    fn pure() -> Self {
        Self { alias: Alias::Fresh, writes: SmallVec::new(), fence: Fence::Free, shape_only: false }
    }

    fn alias(alias: Alias) -> Self {
        Self { alias, ..Self::pure() }
    }

    fn fence() -> Self {
        Self { alias: Alias::Any, fence: Fence::Full, ..Self::pure() }
    }

    /// Whether the node is a plain view: it hands its first operand's memory on and does nothing else.
    #[must_use]
    pub fn is_view(&self) -> bool {
        matches!(self.alias, Alias::Of(_)) && self.writes.is_empty() && self.fence == Fence::Free
    }
}

/// Operators whose result is, or may be, their first operand's memory.
const VIEWS: &[&str] = &[
    "view",
    "reshape",
    "_unsafe_view",
    "_reshape_alias",
    "permute",
    "transpose",
    "t",
    "expand",
    "slice",
    "select",
    "squeeze",
    "unsqueeze",
    "alias",
    "detach",
    "split",
    "split_with_sizes",
    "chunk",
    "unbind",
    "as_strided",
    "narrow",
    "view_as_real",
    "view_as_complex",
    "diagonal",
    "unfold",
    "flatten",
    "unflatten",
    "contiguous",
    "to",
    "lift_fresh",
    "real",
    "imag",
    "movedim",
    "moveaxis",
    "swapaxes",
    "swapdims",
    "expand_as",
    "view_as",
    "reshape_as",
    "tensor_split",
    "hsplit",
    "vsplit",
    "dsplit",
    "numpy_T",
    "mT",
    "mH",
    "broadcast_to",
    "getitem",
    "item",
    "values",
    "indices",
    "type_as",
    "cpu",
    "cuda",
    "float",
    "half",
    "bfloat16",
    "ravel",
    "squeeze_dims",
    "broadcast_in_dim",
    "split_dim",
    "collapse_view",
    "view_of",
    "positive",
    "resolve_conj",
    "resolve_neg",
    "get_tuple_element",
    "bitcast",
];

/// Operators that read shapes, not elements.
const SHAPE_ONLY: &[&str] = &[
    "sym_size",
    "sym_numel",
    "sym_stride",
    "sym_storage_offset",
    "size",
    "numel",
    "dim",
    "stride",
    "storage_offset",
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
    "is_contiguous",
    "sym_is_contiguous",
];

/// Operators that draw from the random state. Any name with `dropout` in it does too.
const RANDOM: &[&str] = &[
    "rand",
    "randn",
    "randint",
    "randperm",
    "rand_like",
    "randn_like",
    "randint_like",
    "bernoulli",
    "normal",
    "multinomial",
    "poisson",
    "binomial",
    "inductor_random",
    "inductor_randint",
    "inductor_seed",
    "inductor_seeds",
    "philox_rand",
    "rrelu_with_noise",
    "rrelu_with_noise_functional",
    "bernoulli_",
    "normal_",
    "uniform_",
    "uniform",
    "exponential_",
    "exponential",
    "cauchy_",
    "geometric_",
    "log_normal_",
    "random_",
    "_sample_dirichlet",
];

/// Names that mean communication in any namespace.
const COMMUNICATION: &[&str] =
    &["send", "recv", "isend", "irecv", "barrier", "monitored_barrier", "batch_p2p_ops", "opaque_comm"];

/// Namespaces whose operators do only what their schema says.
const KNOWN: &[&str] = &[
    "aten",
    "prims",
    "operator",
    "torch",
    "math",
    "inductor",
    "bucketing",
    "quantized_decomposed",
    "_quantized",
    "rngprims",
    "c10d_functional",
    "_c10d_functional",
    "fsdp",
    "mkldnn",
    "mkl",
    "quantized",
    "onednn",
    "builtins",
    "onnx",
    "method",
    "getattr",
    "",
];

/// Higher-order operators that are functional: what they call has no effects on its surroundings.
const FUNCTIONAL_HIGHER_ORDER: &[&str] = &[
    "auto_functionalized",
    "auto_functionalized_v2",
    "triton_kernel_wrapper_functional",
    "flex_attention",
    "flex_attention_backward",
    "associative_scan",
];

/// A target taken apart: namespace (empty in native text), operator name, overload.
#[must_use]
pub fn split_target(target: &str) -> (&str, &str, &str) {
    let mut parts = target.split('.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(base), None, _) => ("", base, ""),
        (Some(namespace), Some(base), overload) => (namespace, base, overload.unwrap_or("")),
        (None, ..) => ("", target, ""),
    }
}

/// The effects of a node. For waits and collectives these describe memory; that their reads and writes last until the
/// wait is known to the passes.
#[must_use]
pub fn effects(graph: &Graph, id: NodeId) -> Effects {
    let node = graph.node(id);
    match node.op {
        Op::Input => Effects::pure(),
        Op::Output => Effects::alias(Alias::Fresh),
        // The tensors of the list are those that are waited for.
        Op::Wait if graph.waits_for_list(id) => Effects::alias(Alias::Any),
        Op::Wait => Effects::alias(Alias::Of(0)),
        Op::Collective(collective) => collective_effects(graph, id, collective.variant),
        Op::Call(target) => {
            let result_known = !matches!(graph.type_of(id), Type::Unknown);
            call_effects(graph.text(target), graph.args_of(id), result_known)
        }
    }
}

fn collective_effects(graph: &Graph, id: NodeId, variant: Variant) -> Effects {
    let inputs = graph.collective_inputs(id).len() as u32;
    match variant {
        Variant::Functional => Effects::pure(),
        Variant::InPlace => Effects {
            alias: if inputs == 1 { Alias::Of(0) } else { Alias::Any },
            writes: (0..inputs).collect(),
            ..Effects::pure()
        },
        Variant::Out => {
            let mut writes = SmallVec::new();
            if let Some(out) = graph.args_of(id).get("out") {
                out.for_each_operand(&mut |index| writes.push(index));
            }
            let alias = if let [out] = writes[..] { Alias::Of(out) } else { Alias::Any };
            Effects { alias, writes, ..Effects::pure() }
        }
    }
}

/// The effects of a call, by target and arguments. `result_known` says that the result has a type: a call into an
/// unknown namespace that makes nothing we know of is there for its side effects.
#[must_use]
pub fn call_effects(target: &str, args: &Args, result_known: bool) -> Effects {
    let (namespace, base, _) = split_target(target);
    if COMMUNICATION.contains(&base) || matches!(namespace, "c10d" | "opaque_comm" | "symm_mem" | "self") {
        // `self.attr` without a call is a constant of the module.
        let constant = namespace == "self" && args == &Args::default() && !target.ends_with(".__call__");
        return if constant { Effects::pure() } else { Effects::fence() };
    }
    if namespace == "higher_order" {
        let functional = FUNCTIONAL_HIGHER_ORDER.contains(&base);
        return if functional { Effects::pure() } else { Effects::fence() };
    }
    let writes = written_operands(base, args);
    if base.contains("dropout") || RANDOM.contains(&base) || draws_for_attention(base, args) {
        let alias = if writes.is_empty() { Alias::Fresh } else { Alias::Of(0) };
        return Effects { alias, writes, fence: Fence::Random, shape_only: false };
    }
    if !writes.is_empty() {
        let alias = if let [only] = writes[..] { Alias::Of(only) } else { Alias::Any };
        return Effects { alias, writes, ..Effects::pure() };
    }
    if !KNOWN.contains(&namespace) {
        // Somebody's own operator. With a result it is taken to do what functional operators do; without, it can
        // only be there for a side effect.
        return if result_known { Effects::pure() } else { Effects::fence() };
    }
    if SHAPE_ONLY.contains(&base) {
        return Effects { shape_only: true, ..Effects::pure() };
    }
    let mut first = None;
    args.for_each_operand(&mut |index| first = first.or(Some(index)));
    match first {
        Some(index) if VIEWS.contains(&base) => Effects::alias(Alias::Of(index)),
        _ => Effects::pure(),
    }
}

fn written_operands(base: &str, args: &Args) -> SmallVec<[u32; 1]> {
    let mut writes = SmallVec::new();
    if base.ends_with('_') && !base.ends_with("__") {
        let first = args.positional.first().or_else(|| args.get("self")).or_else(|| args.get("input"));
        if let Some(first) = first {
            first.for_each_operand(&mut |index| writes.push(index));
        }
    }
    for (key, arg) in &args.keyword {
        if &**key == "out" || key.strip_prefix("out").is_some_and(|n| n.parse::<u32>().is_ok()) {
            arg.for_each_operand(&mut |index| writes.push(index));
        }
    }
    writes
}

/// Attention with a dropout other than zero draws random numbers. The probability is the fourth argument of the
/// flash forms and the sixth of the efficient one.
fn draws_for_attention(base: &str, args: &Args) -> bool {
    if !base.starts_with("_scaled_dot_product") && base != "scaled_dot_product_attention" || base.ends_with("backward")
    {
        return false;
    }
    let dropout = if base.contains("efficient") || base == "scaled_dot_product_attention" { 4..6 } else { 3..4 };
    let nonzero = |arg: &Arg| matches!(arg, Arg::Float(text) if text.parse() != Ok(0.0f64));
    args.positional.iter().skip(dropout.start).take(dropout.len()).any(nonzero)
        || args.get("dropout_p").is_some_and(nonzero)
}

/// Which element of a tuple a node takes, counted from the front; `None` where it is no such node, or no number says.
#[must_use]
pub fn element_index(graph: &Graph, id: NodeId) -> Option<u32> {
    let Op::Call(target) = graph.node(id).op else { return None };
    let (_, base, _) = split_target(graph.text(target));
    if !matches!(base, "getitem" | "item" | "get_tuple_element") {
        return None;
    }
    let index = graph.args_of(id).at(1, "index").and_then(Arg::as_int)?;
    let tuple = *graph.operands(id).first()?;
    let index = match graph.type_of(tuple) {
        Type::Tuple(parts) if index < 0 => index.checked_add(i64::try_from(parts.len()).ok()?)?,
        _ => index,
    };
    u32::try_from(index).ok()
}

/// If the node only changes the dtype of its operand, to which. A conversion that also moves devices, changes the
/// layout or forces a copy is not one.
#[must_use]
pub fn pure_cast(graph: &Graph, id: NodeId) -> Option<DType> {
    let Op::Call(target) = graph.node(id).op else { return None };
    let args = graph.args_of(id);
    let (_, base, overload) = split_target(graph.text(target));
    let dtype = match (base, overload) {
        ("convert_element_type" | "cast", _) | ("to", "dtype") => args.at(1, "dtype"),
        ("_to_copy", _) => args.get("dtype"),
        _ => None,
    };
    let only_dtype =
        args.keyword.iter().all(|(key, _)| matches!(&**key, "dtype" | "a" | "self")) && args.positional.len() <= 2;
    let operands = graph.operands(id);
    let moves = |from: NodeId| {
        let device = |id| graph.tensor(id).and_then(|t| t.device.clone());
        device(from).zip(device(id)).is_some_and(|(a, b)| a != b)
    };
    match (dtype, operands) {
        (Some(Arg::DType(dtype)), &[from]) if only_dtype && !moves(from) => Some(*dtype),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(target: &str, args: Args) -> Effects {
        call_effects(target, &args, true)
    }

    fn one() -> Args {
        Args::positional(vec![Arg::Operand(0)])
    }

    #[test]
    fn views_hand_their_operand_on() {
        for target in ["aten.view.default", "aten.permute.default", "operator.getitem", "reshape", "aten.to.dtype"] {
            assert_eq!(of(target, one()).alias, Alias::Of(0), "{target}");
            assert!(of(target, one()).is_view(), "{target}");
        }
        for target in
            ["aten.mm.default", "aten.clone.default", "aten.view_copy.default", "prims.convert_element_type.default"]
        {
            assert_eq!(of(target, one()).alias, Alias::Fresh, "{target}");
        }
    }

    #[test]
    fn an_unknown_aten_op_that_ends_in_an_underscore_or_takes_out_writes() {
        let effects = of("aten.brand_new_.default", one());
        assert_eq!((effects.writes.as_slice(), effects.alias), (&[0][..], Alias::Of(0)));
        let mut args = one();
        args.keyword.push(("out".into(), Arg::List(vec![Arg::Operand(1), Arg::Operand(2)])));
        let effects = of("aten.brand_new.out", args);
        assert_eq!((effects.writes.as_slice(), effects.alias), (&[1, 2][..], Alias::Any));
        assert!(of("aten.__and__.Scalar", one()).writes.is_empty());
        let list = Args::positional(vec![Arg::List(vec![Arg::Operand(0), Arg::Operand(1)]), Arg::Operand(2)]);
        assert_eq!(of("aten._foreach_add_.List", list).writes.as_slice(), &[0, 1]);
    }

    #[test]
    fn communication_and_unknown_side_effects_are_fences() {
        for target in ["c10d.allreduce_.default", "mylib.send.default", "higher_order.cond", "opaque_comm.barrier"] {
            assert_eq!(of(target, one()).fence, Fence::Full, "{target}");
        }
        assert_eq!(call_effects("mylib.log.default", &one(), false).fence, Fence::Full);
        assert_eq!(call_effects("mylib.kernel.default", &one(), true).fence, Fence::Free);
    }

    #[test]
    fn random_operators_keep_their_order() {
        assert_eq!(of("aten.rand.default", Args::default()).fence, Fence::Random);
        assert_eq!(of("aten.native_dropout.default", one()).fence, Fence::Random);
        let attention = |p: &str| {
            let arg = |i| Arg::Operand(i);
            of(
                "aten._scaled_dot_product_flash_attention.default",
                Args::positional(vec![arg(0), arg(1), arg(2), Arg::Float(p.into()), Arg::Bool(true)]),
            )
        };
        assert_eq!(attention("0.0").fence, Fence::Free);
        assert_eq!(attention("0.1").fence, Fence::Random);
    }

    #[test]
    fn shape_readers_do_not_read_elements() {
        assert!(of("aten.sym_size.int", one()).shape_only);
        assert!(!of("aten.view.default", one()).shape_only);
    }
}
