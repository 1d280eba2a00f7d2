//! What nodes do beside data flow: which are views, which write, which have effects. One place for every pass.

use super::{CastKind, Lookup, Operator, OperatorId, Operators, ViewKind, unknown};
use crate::ir::Short;
use crate::ir::args::{Arg, Args};
use crate::ir::communication;
use crate::ir::entities::NodeId;
use crate::ir::graph::Graph;
use crate::ir::ops::{Op, Variant};
use crate::ir::types::{DType, Type};

/// How a node's value relates to the memory of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alias {
    /// Memory of its own.
    Fresh,
    /// The memory of one operand, by index.
    Of(u32),
    /// The memory of the operands that it writes, one for each element.
    Written,
    /// Perhaps the memory of any operand.
    Any,
}

/// What an operator sees of how a tensor lies in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Placement {
    /// Nothing: it sees sizes and elements alone.
    Nothing,
    /// In which order elements lie: strides.
    Strides,
    /// Strides, and where in which storage the elements begin.
    Storage,
}

/// What keeps a node in its place beside data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
    pub writes: Short<u32, 1>,
    /// What keeps it in place.
    pub fence: Fence,
    /// Whether it always launches the same known collectives, in a graph that it calls, and waits for them there. Like a
    /// launch it may change places with other launches.
    pub launches: bool,
    /// Whether it reads only the shapes of its operands, never their elements.
    pub shape_only: bool,
    /// What it sees of how its operands lie in memory.
    pub sees: Placement,
    /// Whether it changes the sizes or strides of what it writes, so that the type of that value holds no longer.
    pub restates: bool,
    /// Whether it changes how what comes after it computes, as entering autocast does: nothing moves past it.
    pub sets_mode: bool,
    /// Whether nothing describes the operator, so that it is taken to do whatever it can: what it is given may be
    /// written, and its result may be memory of any of it.
    pub assumed: bool,
}

impl Effects {
    pub(in crate::ir) fn pure() -> Self {
        Self {
            alias: Alias::Fresh,
            writes: Short::new(),
            fence: Fence::Free,
            launches: false,
            shape_only: false,
            sees: Placement::Nothing,
            restates: false,
            sets_mode: false,
            assumed: false,
        }
    }

    pub(in crate::ir) fn aliasing(alias: Alias) -> Self {
        Self { alias, ..Self::pure() }
    }

    pub(in crate::ir) fn fence() -> Self {
        Self { alias: Alias::Any, fence: Fence::Full, ..Self::pure() }
    }

    /// Whether the node may do anything to its operands' memory: a fence over tensors. Values of HLO have no memory.
    #[must_use]
    pub fn may_write_operands(&self) -> bool {
        self.fence == Fence::Full && self.alias == Alias::Any
    }

    /// Whether the node is a plain view: it hands its first operand's memory on and does nothing else.
    #[must_use]
    pub fn is_view(&self) -> bool {
        matches!(self.alias, Alias::Of(_)) && self.writes.is_empty() && self.fence == Fence::Free && !self.launches
    }
}

/// Higher-order operators that are functional: what they call has no effects on its surroundings.
const FUNCTIONAL_HIGHER_ORDER: &[&str] = &[
    "auto_functionalized",
    "auto_functionalized_v2",
    "triton_kernel_wrapper_functional",
    "flex_attention",
    "flex_attention_backward",
    "associative_scan",
];

/// The effects of a node. For waits and collectives these describe memory; that their reads and writes last until the
/// wait is known to the passes.
#[must_use]
pub fn effects(graph: &Graph, id: NodeId) -> Effects {
    effects_with(&Lookup::new(&graph.operators), graph, id)
}

/// As [`effects`], by a look-up that serves many nodes.
pub(in crate::ir) fn effects_with(lookup: &Lookup<'_>, graph: &Graph, id: NodeId) -> Effects {
    let node = graph.node(id);
    match node.op {
        Op::Input => Effects::pure(),
        Op::Output => Effects::aliasing(Alias::Fresh),
        // The tensors of the list are those that are waited for.
        Op::Wait if graph.waits_for_list(id) => Effects::aliasing(Alias::Any),
        Op::Wait => Effects::aliasing(Alias::Of(0)),
        Op::Collective(collective) => collective_effects(graph, id, collective.variant),
        Op::Call(target) => {
            if let Some(effects) = crate::ir::bodies::effects_of_call(graph, id) {
                return effects;
            }
            let mut effects = call_effects_with(lookup, graph.text(target), graph.args_of(id));
            if effects.assumed {
                keep_tensors(graph, id, &mut effects);
            }
            if hands_on_its_dtype(graph.operator(target).id()) && converts(graph, id) {
                effects.alias = Alias::Fresh;
            }
            effects
        }
    }
}

/// Whether an operator hands its operand on only where it has the dtype that is asked for.
fn hands_on_its_dtype(id: OperatorId) -> bool {
    match id {
        OperatorId::View(kind) => kind == ViewKind::Convert,
        OperatorId::Cast(CastKind::Type | CastKind::TypeAs | CastKind::Dtype(_)) => true,
        _ => false,
    }
}

/// Whether a node's tensor has another dtype than its first operand's.
pub(in crate::ir) fn converts(graph: &Graph, id: NodeId) -> bool {
    let from = graph.operands(id).first().and_then(|&operand| graph.tensor(operand));
    from.zip(graph.tensor(id)).is_some_and(|(from, to)| from.dtype != to.dtype)
}

/// Numbers cannot be written or shared.
fn keep_tensors(graph: &Graph, id: NodeId, effects: &mut Effects) {
    let operands = graph.operands(id);
    let may_hold = |index: u32| {
        let ty = operands.get(index as usize).map(|&operand| graph.type_of(operand));
        !matches!(ty, Some(Type::SymInt(_) | Type::SymOther(_) | Type::Token))
    };
    effects.writes.retain(|index| may_hold(*index));
    if effects.writes.is_empty() {
        effects.alias = Alias::Fresh;
    }
}

fn collective_effects(graph: &Graph, id: NodeId, variant: Variant) -> Effects {
    let inputs = graph.collective_inputs(id).len() as u32;
    match variant {
        Variant::Functional => Effects::pure(),
        Variant::InPlace => Effects {
            alias: if inputs == 1 { Alias::Of(0) } else { Alias::Written },
            writes: (0..inputs).collect(),
            ..Effects::pure()
        },
        Variant::Out => {
            let mut writes = Short::new();
            if let Some(out) = graph.args_of(id).get("out") {
                out.for_each_operand(&mut |index| writes.push(index));
            }
            let alias = if let [out] = writes[..] { Alias::Of(out) } else { Alias::Written };
            Effects { alias, writes, ..Effects::pure() }
        }
    }
}

/// The effects of a call, by target and arguments, where operators are declared as in `operators`.
#[must_use]
pub fn call_effects(operators: &Operators, target: &str, args: &Args) -> Effects {
    call_effects_with(&Lookup::new(operators), target, args)
}

fn call_effects_with(lookup: &Lookup<'_>, target: &str, args: &Args) -> Effects {
    if let Some(effects) = lookup.declared(target, args) {
        return effects;
    }
    let operator = Operator::of(target);
    let namespace = operator.namespace();
    if let Some(communication) = communication::of_call(target, args) {
        return match (communication.by_data, communication.keeps_order()) {
            // Schemas of c10d leave out what is received; those of DTensor are functional.
            (false, _) if namespace == "_dtensor" => {
                let known = lookup.effects(target, args);
                if known.assumed { Effects::fence() } else { Effects { fence: Fence::Full, ..known } }
            }
            (false, _) => Effects::fence(),
            (true, true) => Effects { fence: Fence::Full, ..Effects::pure() },
            (true, false) => Effects::pure(),
        };
    }
    if namespace == "self" {
        // `self.attr` without a call is a constant of the module.
        let constant = args == &Args::default() && !target.ends_with(".__call__");
        return if constant { Effects::pure() } else { Effects::fence() };
    }
    if namespace == "higher_order" {
        // A kernel computes, and writes what it is given; other bodies may do anything.
        return match operator.name() {
            "triton_kernel_wrapper_mutation" => unknown(args),
            name if FUNCTIONAL_HIGHER_ORDER.contains(&name) => Effects::pure(),
            _ => Effects::fence(),
        };
    }
    if target.starts_with("hlo-") {
        return hlo_effects(operator.id(), args);
    }
    lookup.effects(target, args)
}

/// Values of HLO are immutable: an instruction writes and shares nothing.
fn hlo_effects(opcode: OperatorId, args: &Args) -> Effects {
    let fence = match opcode {
        OperatorId::HloRandom => Fence::Random,
        // It runs a body in which something acts on the world outside.
        _ if args.get("effects").is_some() => Fence::Full,
        _ => Fence::Free,
    };
    Effects { fence, ..Effects::pure() }
}

/// Which element of a tuple a node takes, counted from the front; `None` where it is no such node, or no number says.
#[must_use]
pub fn element_index(graph: &Graph, id: NodeId) -> Option<u32> {
    let Op::Call(target) = graph.node(id).op else { return None };
    if !matches!(graph.operator(target).view(), Some(ViewKind::Element | ViewKind::TupleElement)) {
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
    let operator = graph.operator(target);
    let dtype = match operator.id() {
        OperatorId::Cast(CastKind::Elements) => args.at(1, "dtype"),
        OperatorId::View(ViewKind::Convert) if operator.overload() == "dtype" => args.at(1, "dtype"),
        OperatorId::Cast(CastKind::ToCopy) => args.get("dtype"),
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
        call_effects(&Operators::default(), target, &args)
    }

    fn one() -> Args {
        Args::positional(vec![Arg::Operand(0)])
    }

    fn many(count: u32) -> Args {
        Args::positional((0..count).map(Arg::Operand).collect())
    }

    #[test]
    fn views_hand_their_operand_on() {
        for target in [
            "aten.view.default",
            "aten.permute.default",
            "operator.getitem",
            "reshape",
            "aten.to.dtype",
            "method.view_as",
            "method.type",
            "getattr.data",
            "getattr.T",
            "torch.atleast_2d",
            "aten.unsafe_split.Tensor",
        ] {
            let effects = of(target, one());
            assert!(matches!(effects.alias, Alias::Of(0) | Alias::Any), "{target}: {effects:?}");
            assert!(effects.writes.is_empty(), "{target}");
        }
        for target in [
            "aten.mm.default",
            "aten.clone.default",
            "aten.view_copy.default",
            "prims.convert_element_type.default",
            "torch.relu",
        ] {
            let args = if target == "aten.mm.default" { many(2) } else { one() };
            assert_eq!(of(target, args).alias, Alias::Fresh, "{target}");
        }
        assert!(of("aten.view.default", one()).is_view());
    }

    #[test]
    fn schemas_say_what_is_written() {
        let effects = of("aten.add_.Tensor", many(2));
        assert_eq!((effects.writes.as_slice(), effects.alias), (&[0][..], Alias::Of(0)));
        assert!(of("aten.__and__.Scalar", one()).writes.is_empty());
        let list = Args::positional(vec![Arg::List(vec![Arg::Operand(0), Arg::Operand(1)]), Arg::Operand(2)]);
        assert_eq!(of("aten._foreach_add_.List", list).writes.as_slice(), &[0, 1]);
        // Outputs have names of their own, and in-place operators write more than their first argument.
        let mut args = one();
        args.keyword.push(("values".into(), Arg::Operand(1)));
        args.keyword.push(("indices".into(), Arg::Operand(2)));
        let effects = of("aten.sort.values", args);
        assert_eq!((effects.writes.as_slice(), effects.alias), (&[1, 2][..], Alias::Written));
        assert_eq!(of("aten._amp_foreach_non_finite_check_and_unscale_.default", many(3)).writes.as_slice(), &[0, 1]);
        assert_eq!(of("prims.copy_to.default", many(2)).writes.as_slice(), &[0]);
    }

    #[test]
    fn what_schemas_leave_out_is_known_by_hand() {
        let norm = |training| {
            let mut args = many(5);
            args.positional.push(Arg::Bool(training));
            of("aten.native_batch_norm.default", args).writes.to_vec()
        };
        assert_eq!(norm(true), [3, 4]);
        assert!(norm(false).is_empty());
        assert_eq!(of("aten.set_.source_Tensor", many(2)).alias, Alias::Any);
        assert!(of("aten.unsqueeze_.default", one()).restates);
        assert_eq!(of("aten.as_strided.default", one()).sees, Placement::Storage);
        assert_eq!(of("aten.rand_like.default", one()).sees, Placement::Strides);
        assert_eq!(of("prims.as_strided.default", one()).alias, Alias::Of(0));
    }

    #[test]
    fn what_is_in_no_table_may_write_alias_and_draw() {
        for target in [
            "mylib.kernel.default",
            "aten.brand_new.default",
            "torch.nn.functional.brand_new",
            "brand_new",
            "torch.nn.init.normal_",
        ] {
            let effects = of(target, many(2));
            assert!(effects.assumed, "{target}");
            assert_eq!((effects.writes.as_slice(), effects.alias), (&[0, 1][..], Alias::Any), "{target}");
            assert_eq!(effects.fence, Fence::Random, "{target}");
        }
    }

    #[test]
    fn declared_operators_do_what_is_declared() {
        let schema = "mylib::scale_by(Tensor(a!) g, Tensor x) -> Tensor\nmylib::noise(Tensor x) -> Tensor tags: nondeterministic_seeded";
        let operators = Operators::parse(schema).unwrap();
        let effects = call_effects(&operators, "mylib.scale_by.default", &many(2));
        assert_eq!((effects.writes.as_slice(), effects.alias, effects.assumed), (&[0][..], Alias::Fresh, false));
        assert_eq!(call_effects(&operators, "mylib.noise", &one()).fence, Fence::Random);
        assert!(call_effects(&operators, "mylib.noise.out", &one()).assumed);
    }

    #[test]
    fn statements_and_functions_of_python_write_in_place() {
        assert_eq!(of("operator.iadd", many(2)).writes.as_slice(), &[0]);
        assert_eq!(of("operator.setitem", many(3)).writes.as_slice(), &[0]);
        assert_eq!(of("method.mul_", many(1)).writes.as_slice(), &[0]);
        let mut args = one();
        args.keyword.push(("inplace".into(), Arg::Bool(true)));
        assert_eq!(of("torch.nn.functional.relu", args.clone()).writes.as_slice(), &[0]);
        assert_eq!(of("torch.nn.functional.hardtanh", args).writes.as_slice(), &[0]);
        assert!(of("torch.nn.functional.relu", one()).writes.is_empty());
        assert_ne!(of("torch.nn.functional.dropout", one()).fence, Fence::Free);
    }

    #[test]
    fn communication_and_modules_are_fences() {
        for target in [
            "c10d.allreduce_.default",
            "mylib.send.default",
            "higher_order.cond",
            "opaque_comm.barrier",
            "self.layer.__call__",
        ] {
            assert_eq!(of(target, one()).fence, Fence::Full, "{target}");
        }
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
        assert!(of("getattr.shape", one()).shape_only);
    }
}
