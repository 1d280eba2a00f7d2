//! What is known of operators: what PyTorch's schemas say, what they leave out, what Python's names for them do, and what
//! users declare.
//!
//! The first of these that knows an operator counts: a declaration, then the table of PyTorch's operators with what
//! [`exceptions`] adds to it, then [`python`]. What none of them knows **may** do anything that an operator can: it may write
//! and alias the tensors that it is given and may draw random numbers ([`Effects::assumed`]). That it does not communicate is
//! an assumption that verdicts name.

mod declared;
mod exceptions;
mod python;
mod reading;
mod schema;
mod table;

pub use declared::{DeclareError, Operators};

use super::args::{Arg, Args};
use super::optable::{Alias, Effects, Fence};
use reading::{Bound, Form, either};

/// What a call of an operator does that none of our tables knows.
pub(super) fn unknown(args: &Args) -> Effects {
    let writes = python::given(args);
    let alias = if writes.is_empty() { Alias::Fresh } else { Alias::Any };
    Effects { alias, writes, fence: Fence::Random, assumed: true, ..Effects::pure() }
}

/// What a declared call does; `None` if the operator is not declared, or is called with other arguments.
fn of_declared(operators: &Operators, target: &str, args: &Args) -> Option<Effects> {
    let (_, signature) = schema::parse(operators.schema(target)?).ok()?;
    // Our own text spreads lists, as Python does.
    let form = if target.contains('.') { Form::Schema } else { Form::Python };
    Bound::of(&signature, args, form).map(|bound| bound.effects())
}

/// What one overload does.
fn of_row(namespace: &str, base: &str, row: &table::Row<'_>, args: &Args, form: Form) -> Option<Effects> {
    let signature = row.signature();
    let bound = Bound::of(&signature, args, form)?;
    Some(exceptions::amend(namespace, base, &bound, bound.effects()))
}

/// What any overload of an operator may do that takes these arguments; `None` if none does.
fn of_operator(namespace: &str, base: &str, args: &Args, form: Form) -> Option<Effects> {
    let rows = table::overloads(namespace, base);
    let found = rows.iter().filter_map(|row| of_row(namespace, base, row, args, form));
    found.reduce(|a, b| either(a, &b))
}

/// Of an overload that writes and draws nothing, whatever its arguments: whether its result is memory of its own or may be
/// its first argument's.
fn alias_of_first(namespace: &str, base: &str, row: &table::Row<'_>) -> Option<Alias> {
    let mut signature = row.signature();
    signature.parameters.iter_mut().for_each(|parameter| parameter.keyword_only = false);
    let args = Args::positional((0..signature.parameters.len() as u32).map(Arg::Operand).collect());
    let bound = Bound::of(&signature, &args, Form::Schema)?;
    let effects = exceptions::amend(namespace, base, &bound, bound.effects());
    let quiet = effects.writes.is_empty() && effects.fence == Fence::Free;
    Some(effects.alias).filter(|alias| quiet && matches!(alias, Alias::Fresh | Alias::Of(0)))
}

/// What a call does, by target and arguments. Nothing is known here of the types of its operands.
pub(super) fn effects_of_call(operators: &Operators, target: &str, args: &Args) -> Effects {
    if let Some(effects) = of_declared(operators, target, args) {
        return effects;
    }
    let Some((namespace, rest)) = target.split_once('.') else {
        return python::bare(target, args).unwrap_or_else(|| unknown(args));
    };
    let (base, overload) = rest.split_once('.').unwrap_or((rest, ""));
    let known = match table::overload(target) {
        Some(row) => of_row(namespace, base, &row, args, Form::Schema),
        None if overload.is_empty() => of_operator(namespace, base, args, Form::Schema),
        None => None,
    };
    known.or_else(|| python::effects(namespace, rest, args)).unwrap_or_else(|| unknown(args))
}
