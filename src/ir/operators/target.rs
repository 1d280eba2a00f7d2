//! From a target to its operator: the names in it, and the row of the table that they lead to.
//!
//! A target is `namespace.name.overload` (`aten.view.default`), a bare name in native text (`view`), an opcode of HLO
//! (`hlo-add`), or a method, attribute, function or module as the reader of FX text names it (`method.relu`, `getattr.T`,
//! `torch.relu`, `self.layer.__call__`).

use super::id::OperatorId;
use super::rows::{OPERATORS, find};
use super::types::TypeRule;
use super::views::ViewKind;
use std::sync::atomic::{AtomicU32, Ordering};

/// Namespaces whose names mean what PyTorch means by them: `mylib.cat` is called, whatever it is.
pub const TORCH_NAMESPACES: &[&str] = &["", "aten", "prims", "torch", "operator", "_operator", "method"];

/// Namespaces in which numbers alone are operands: of tensors, `builtins.float` is something else than PyTorch's.
pub const NUMBER_NAMESPACES: &[&str] = &["math", "builtins"];

/// Namespaces of communication.
const COMMUNICATION: &[&str] = &["c10d", "_dtensor", "opaque_comm", "c10d_functional", "_c10d_functional"];

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

/// What a target calls.
#[derive(Clone, Copy, Debug)]
pub struct Operator<'t> {
    target: &'t str,
    rows: Rows,
}

impl<'t> Operator<'t> {
    /// Looks a target up. A graph remembers what it found: [`Graph::operator`](crate::ir::Graph::operator).
    #[must_use]
    pub fn of(target: &'t str) -> Self {
        Self { target, rows: Rows::of(target) }
    }

    /// What no target says: the word of an op that calls nothing.
    pub(in crate::ir) const fn none(target: &'t str) -> Self {
        Self { target, rows: Rows { own: None, function: None } }
    }

    /// The target as written.
    #[must_use]
    pub const fn target(&self) -> &'t str {
        self.target
    }

    /// The namespace; empty in native text.
    #[must_use]
    pub fn namespace(&self) -> &'t str {
        split_target(self.target).0
    }

    /// The name, without namespace and overload.
    #[must_use]
    pub fn name(&self) -> &'t str {
        split_target(self.target).1
    }

    /// The overload.
    #[must_use]
    pub fn overload(&self) -> &'t str {
        split_target(self.target).2
    }

    /// What it means. In-place forms mean something else than their functions: `unsqueeze_` is not a view.
    #[must_use]
    pub fn id(&self) -> OperatorId {
        self.rows.own.map_or(OperatorId::Other, |place| OPERATORS[place as usize].id)
    }

    /// What it shows of its operand, if it is a view.
    #[must_use]
    pub fn view(&self) -> Option<ViewKind> {
        match self.id() {
            OperatorId::View(kind) => Some(kind),
            _ => None,
        }
    }

    /// Whether it is named as one that writes its first operand: `add_`.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        function_of(self.name()).is_some()
    }

    /// Of an in-place form, what its function means: that of `add_` is `add`.
    #[must_use]
    pub fn function(&self) -> OperatorId {
        self.rows.function.map_or(OperatorId::Other, |place| OPERATORS[place as usize].id)
    }

    /// What type its value has where native text states none.
    pub(super) fn type_rule(&self) -> Option<TypeRule> {
        self.rows.own.and_then(|place| OPERATORS[place as usize].rule)
    }
}

/// The name of the function that an in-place form writes the result of.
fn function_of(name: &str) -> Option<&str> {
    name.strip_suffix('_').filter(|function| !function.ends_with('_'))
}

/// Whether a name means in a namespace what the table says.
fn has_meaning(namespace: &str, id: OperatorId) -> bool {
    TORCH_NAMESPACES.contains(&namespace)
        || match id {
            OperatorId::PackForGather | OperatorId::PackForScatter => namespace == "bucketing",
            OperatorId::ViewCopy(ViewKind::Split) => namespace == "fsdp",
            OperatorId::Communicate(_) => COMMUNICATION.contains(&namespace),
            id => id.takes_numbers() && NUMBER_NAMESPACES.contains(&namespace),
        }
}

/// Rows of the table, by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rows {
    own: Option<u16>,
    function: Option<u16>,
}

impl Rows {
    fn of(target: &str) -> Self {
        let (namespace, name, _) = split_target(target);
        let place = |name: &str| {
            let place = find(name).filter(|&place| has_meaning(namespace, OPERATORS[place].id))?;
            u16::try_from(place).ok()
        };
        Self { own: place(name), function: function_of(name).and_then(place) }
    }

    /// As one number that is not zero.
    fn packed(self) -> u32 {
        let half = |place: Option<u16>| place.map_or(1, |place| u32::from(place) + 2);
        half(self.own) | half(self.function) << 16
    }

    fn unpacked(packed: u32) -> Self {
        let half = |half: u32| u16::try_from(half).ok()?.checked_sub(2);
        Self { own: half(packed & 0xffff), function: half(packed >> 16) }
    }
}

/// The rows that interned targets lead to, by name. They are looked up when they are first asked for: most names are
/// those of values.
#[derive(Debug, Default)]
pub(in crate::ir) struct Resolved(Vec<AtomicU32>);

impl Resolved {
    /// Makes room for so many more names.
    pub fn reserve(&mut self, more: usize) {
        self.0.reserve(more);
    }

    /// A place for the next name.
    pub fn push(&mut self) {
        self.0.push(AtomicU32::new(0));
    }

    /// The operator of the name at a place, whose text this is. What is found depends on the text alone, so that it does
    /// not matter who finds it.
    pub fn operator<'t>(&self, place: usize, target: &'t str) -> Operator<'t> {
        let known = self.0[place].load(Ordering::Relaxed);
        if known != 0 {
            return Operator { target, rows: Rows::unpacked(known) };
        }
        let operator = Operator::of(target);
        self.0[place].store(operator.rows.packed(), Ordering::Relaxed);
        operator
    }
}

impl Clone for Resolved {
    fn clone(&self) -> Self {
        Self(self.0.iter().map(|place| AtomicU32::new(place.load(Ordering::Relaxed))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::id::{BinaryKind, CastKind, NumberKind};
    use super::*;
    use crate::ir::{DType, Graph};

    #[test]
    fn names_mean_what_pytorch_means_where_a_namespace_says_so() {
        let view = OperatorId::View(ViewKind::View);
        for target in ["view", "aten.view.default", "method.view", "prims.view"] {
            assert_eq!(Operator::of(target).id(), view, "{target}");
        }
        for target in ["mylib.view.default", "self.view", "getattr.view", "builtins.view", "torch.nn.view"] {
            assert_eq!(Operator::of(target).id(), OperatorId::Other, "{target}");
        }
        assert_eq!(Operator::of("math.floor").id(), Operator::of("aten.floor.default").id());
        assert_eq!(Operator::of("builtins.float").id(), OperatorId::Cast(CastKind::Dtype(DType::F32)));
        assert_eq!(Operator::of("fsdp.split_with_sizes_copy.default").id(), OperatorId::ViewCopy(ViewKind::Split));
        assert_eq!(Operator::of("c10d.view.default").id(), OperatorId::Other);
    }

    #[test]
    fn in_place_forms_are_told_from_their_functions() {
        let of = |target| (Operator::of(target).id(), Operator::of(target).function());
        assert_eq!(of("aten.add_.Tensor"), (OperatorId::Other, OperatorId::Binary(BinaryKind::Add)));
        assert_eq!(of("aten.unsqueeze_.default"), (OperatorId::Other, OperatorId::View(ViewKind::Unsqueeze)));
        assert_eq!(of("copy_"), (OperatorId::CopyInto, OperatorId::Cast(CastKind::Copy)));
        assert_eq!(of("operator.and_"), (OperatorId::Number(NumberKind::And), OperatorId::Other));
        assert_eq!(of("aten.__and__.Tensor").1, OperatorId::Other);
        assert!(!Operator::of("aten.__and__.Tensor").is_in_place());
        assert!(Operator::of("mylib.twice_.default").is_in_place());
    }

    #[test]
    fn a_graph_gives_what_a_target_says_however_often_it_is_asked() {
        let mut graph = Graph::new("g");
        let targets = ["aten.add.Tensor", "copy_", "mylib.two", "hlo-tuple", ""];
        let names = targets.map(|target| graph.intern(target));
        let copy = graph.clone();
        for _ in 0..2 {
            for (target, name) in targets.into_iter().zip(names) {
                let plain = Operator::of(target);
                for graph in [&graph, &copy, &graph.clone()] {
                    let found = graph.operator(name);
                    assert_eq!((found.id(), found.function()), (plain.id(), plain.function()), "{target}");
                }
            }
        }
        let shared = |_: &(dyn Send + Sync)| {};
        shared(&graph);
    }
}
