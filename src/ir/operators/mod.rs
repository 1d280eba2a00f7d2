//! What is known of operators: what PyTorch's schemas say, what they leave out, what Python's names for them do, what users
//! declare, and what those names mean that somebody looks at more closely.
//!
//! *Meaning.* `rows.rs` is the table of names: what an operator means ([`OperatorId`]), and what type its value has where
//! text states none. Each target is looked up once ([`Graph::operator`](super::Graph::operator)); verifier, passes, lowering
//! and evaluator match on the id. The checker has a reading of its own (`check/signature.rs`), so that a proof does not rest
//! on this table.
//!
//! *Effects.* The first of these that knows an operator counts: a declaration, then the table of PyTorch's operators with what
//! `exceptions.rs` adds to it, then `python.rs`. What none of them knows **may** do anything that an operator can: it may write
//! and alias the tensors that it is given and may draw random numbers ([`Effects::assumed`]). That it does not communicate is
//! an assumption that verdicts name.

mod declared;
mod effects;
mod exceptions;
mod id;
mod python;
mod reading;
mod rows;
mod schema;
mod strides;
mod table;
mod target;
mod types;
mod views;

pub use declared::{DeclareError, Operators};
pub use effects::{Alias, Effects, Fence, Placement, call_effects, effects, element_index, pure_cast};
pub(super) use effects::{converts, effects_with};
pub use id::{
    BinaryKind, CastKind, ClampKind, CommunicateKind, CreateKind, Model, NumberKind, OperatorId, ReduceKind, SizeKind,
    TernaryKind, UnaryKind,
};
pub use strides::{must_copy, view_strides};
pub(super) use target::Resolved;
pub use target::{NUMBER_NAMESPACES, Operator, TORCH_NAMESPACES, split_target};
pub use types::{collective_result, infer_type};
pub use views::ViewKind;

use super::args::{Arg, Args};
use hashbrown::HashMap;
use reading::{Bound, Form, either};
use rustc_hash::FxBuildHasher;
use std::cell::RefCell;
use std::rc::Rc;

/// What a call of an operator does that none of our tables knows.
pub(super) fn unknown(args: &Args) -> Effects {
    let writes = reading::all_operands(args);
    let alias = if writes.is_empty() { Alias::Fresh } else { Alias::Any };
    Effects { alias, writes, fence: Fence::Random, assumed: true, ..Effects::pure() }
}

/// An overload, ready to be held against calls.
#[derive(Debug)]
struct Entry {
    signature: schema::Signature,
    extra: exceptions::Extra,
    /// Whether it writes into a tensor given as `out`.
    is_out: bool,
}

impl Entry {
    fn of(row: &table::Row<'_>) -> Self {
        let mut parts = row.name.split('.');
        let mut part = || parts.next().unwrap_or("");
        let mut extra = exceptions::Extra::of(part(), part());
        let is_out = part().ends_with("out");
        if is_out {
            // The result is what was written to, whatever it would be otherwise.
            extra.is_out();
        }
        Self { signature: row.signature(), extra, is_out }
    }

    /// What a call of it does; `None` if the arguments are not for it.
    fn effects(&self, args: &Args, form: Form) -> Option<Effects> {
        let bound = Bound::of(&self.signature, args, form)?;
        Some(self.extra.amend(&bound, bound.effects()))
    }

    /// Of an overload that writes and draws nothing, whatever its arguments: whether its result is memory of its own or may
    /// be its first argument's.
    fn alias_of_first(&self) -> Option<Alias> {
        let mut signature = self.signature.clone();
        signature.parameters.iter_mut().for_each(|parameter| parameter.keyword_only = false);
        let args = Args::positional((0..signature.parameters.len() as u32).map(Arg::Operand).collect());
        let bound = Bound::of(&signature, &args, Form::Schema)?;
        let effects = self.extra.amend(&bound, bound.effects());
        let quiet = effects.writes.is_empty() && effects.fence == Fence::Free;
        Some(effects.alias).filter(|alias| quiet && matches!(alias, Alias::Fresh | Alias::Of(0)))
    }
}

/// What a call does by one line of the table of PyTorch's operators, or by a line that was changed: what the table is held
/// against another reading by.
#[must_use]
pub fn read_row(line: &str, args: &Args) -> Option<Effects> {
    Entry::of(&table::Row::of(line)).effects(args, Form::Schema)
}

/// The lines of the table.
pub fn table_rows() -> impl Iterator<Item = &'static str> {
    table::lines()
}

/// Looks operators up and remembers what it found: a graph calls few operators, with many argument lists.
#[derive(Debug)]
pub(super) struct Lookup<'o> {
    operators: &'o Operators,
    /// Overloads by `ns.base.overload`, or by `ns.base` for all of them.
    entries: RefCell<HashMap<Box<str>, Rc<[Entry]>, FxBuildHasher>>,
    declared: RefCell<HashMap<Box<str>, Option<Rc<schema::Signature>>, FxBuildHasher>>,
}

impl<'o> Lookup<'o> {
    pub fn new(operators: &'o Operators) -> Self {
        Self { operators, entries: RefCell::default(), declared: RefCell::default() }
    }

    fn entries(&self, name: &str, rows: impl FnOnce() -> Vec<table::Row<'static>>) -> Rc<[Entry]> {
        if let Some(known) = self.entries.borrow().get(name) {
            return Rc::clone(known);
        }
        let found: Rc<[Entry]> = rows().iter().map(Entry::of).collect();
        self.entries.borrow_mut().insert(name.into(), Rc::clone(&found));
        found
    }

    fn overloads(&self, namespace: &str, base: &str) -> Rc<[Entry]> {
        self.entries(&format!("{namespace}.{base}"), || table::overloads(namespace, base))
    }

    /// What any overload of an operator may do that takes these arguments; `None` if none does.
    fn operator(&self, namespace: &str, base: &str, args: &Args, form: Form) -> Option<Effects> {
        let entries = self.overloads(namespace, base);
        entries.iter().filter_map(|entry| entry.effects(args, form)).reduce(|a, b| either(a, &b))
    }

    /// What a declared call does; `None` if the operator is not declared, or is called with other arguments.
    pub fn declared(&self, target: &str, args: &Args) -> Option<Effects> {
        let schema = self.operators.schema(target)?;
        let known = self.declared.borrow().get(target).cloned();
        let signature = known.unwrap_or_else(|| {
            let signature = schema::parse(schema).ok().map(|(_, signature)| Rc::new(signature));
            self.declared.borrow_mut().insert(target.into(), signature.clone());
            signature
        })?;
        // Our own text spreads lists, as Python does.
        let form = if target.contains('.') { Form::Schema } else { Form::Python };
        Bound::of(&signature, args, form).map(|bound| bound.effects())
    }

    /// What a call of an operator does that is not declared, by target and arguments. Nothing is known here of the types
    /// of its operands.
    pub fn effects(&self, target: &str, args: &Args) -> Effects {
        let Some((namespace, rest)) = target.split_once('.') else {
            return python::bare(self, target, args).unwrap_or_else(|| unknown(args));
        };
        let known = if rest.contains('.') {
            let entries = self.entries(target, || table::overload(target).into_iter().collect());
            entries.first().and_then(|entry| entry.effects(args, Form::Schema))
        } else {
            self.operator(namespace, rest, args, Form::Schema)
        };
        known.or_else(|| python::effects(self, namespace, rest, args)).unwrap_or_else(|| unknown(args))
    }
}
