//! From a signature and the arguments of a call to its effects.

use super::schema::{AliasSet, Parameter, Return, Signature};
use crate::ir::Short;
use crate::ir::args::{Arg, Args};
use crate::ir::operators::{Alias, Effects, Fence};

/// Operands, by index.
pub(super) type Operands = Short<u32, 1>;

/// How a call's arguments are written down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// As the schema has them.
    Schema,
    /// As Python's functions and methods take them: sizes may be spread out (`x.view(2, 3)`), and `self` may be called
    /// `input`.
    Python,
}

/// A call's arguments, each with the parameter that it is for.
pub(super) struct Bound<'s, 'a> {
    signature: &'s Signature,
    /// (parameter, argument), in the order of the arguments.
    pub pairs: Vec<(usize, &'a Arg)>,
}

impl<'s, 'a> Bound<'s, 'a> {
    /// `None` if the arguments are not for this signature.
    pub fn of(signature: &'s Signature, args: &'a Args, form: Form) -> Option<Self> {
        let parameters = &signature.parameters;
        let places: Vec<usize> = (0..parameters.len()).filter(|&at| !parameters[at].keyword_only).collect();
        let mut pairs = Vec::with_capacity(args.positional.len() + args.keyword.len());
        for (nth, arg) in args.positional.iter().enumerate() {
            let spread = places.last().filter(|_| form == Form::Python).copied();
            pairs.push((places.get(nth).copied().or(spread)?, arg));
        }
        for (key, arg) in &args.keyword {
            let wanted = match &**key {
                "input" if form == Form::Python && !parameters.iter().any(|p| &*p.name == "input") => "self",
                key => key,
            };
            let at = parameters.iter().position(|parameter| &*parameter.name == wanted)?;
            if pairs.iter().any(|&(bound, _)| bound == at) {
                return None;
            }
            pairs.push((at, arg));
        }
        // What is written and has to be named is there: else it is another overload.
        let is_given = |at: usize| pairs.iter().any(|&(bound, _)| bound == at);
        let needs = |p: &Parameter| p.keyword_only && p.alias.as_ref().is_some_and(|alias| alias.written);
        let complete = parameters.iter().enumerate().all(|(at, parameter)| !needs(parameter) || is_given(at));
        complete.then_some(Self { signature, pairs })
    }

    /// The argument for a parameter of one of these names.
    pub fn get(&self, names: &[&str]) -> Option<&'a Arg> {
        let is_named = |at: usize| names.contains(&&*self.signature.parameters[at].name);
        self.pairs.iter().find(|&&(at, _)| is_named(at)).map(|&(_, arg)| arg)
    }

    /// Whether there is a parameter of that name, given or not.
    pub fn takes(&self, name: &str) -> bool {
        self.signature.parameters.iter().any(|parameter| &*parameter.name == name)
    }

    /// The operands in the arguments of some parameters, in order.
    pub fn operands(&self, wanted: impl Fn(&Parameter) -> bool) -> Operands {
        let mut found = Operands::new();
        for &(at, arg) in &self.pairs {
            if wanted(&self.signature.parameters[at]) {
                arg.for_each_operand(&mut |index| found.push(index));
            }
        }
        found
    }

    /// What the schema says.
    pub fn effects(&self) -> Effects {
        let signature = self.signature;
        let writes = self.operands(|p| p.alias.as_ref().is_some_and(|alias| alias.written));
        let sets = signature.returns.iter().filter_map(|result| match result {
            Return::In(set) => Some(set),
            Return::Fresh | Return::Other => None,
        });
        let sets: Short<&AliasSet, 2> = sets.collect();
        let shared = self.operands(|p| p.tensors && sets.iter().any(|set| may_share(p, set)));
        let fence = if signature.flags.communicates {
            Fence::Full
        } else if signature.flags.random {
            Fence::Random
        } else {
            Fence::Free
        };
        let alias = if signature.flags.maybe { Alias::Any } else { alias_of(&shared, &writes) };
        Effects { alias, writes, fence, restates: signature.flags.inplace_view, ..Effects::pure() }
    }
}

/// Whether a result in an alias set may be in the memory of an argument for a parameter.
fn may_share(parameter: &Parameter, set: &AliasSet) -> bool {
    // Inside of lists sets have no names, and `*` is any memory.
    let any = |name: &str| name.is_empty() || name.split('|').any(|name| name.trim() == "*");
    let Some(alias) = &parameter.alias else { return any(&set.name) && !set.name.is_empty() };
    any(&set.name)
        || any(&alias.name)
        || set.name.split('|').any(|name| alias.name.split('|').any(|other| other.trim() == name.trim()))
}

/// The alias of a result that may share the memory of these operands.
pub(super) fn alias_of(shared: &[u32], writes: &[u32]) -> Alias {
    match shared {
        [] => Alias::Fresh,
        &[only] => Alias::Of(only),
        several if several == writes => Alias::Written,
        _ => Alias::Any,
    }
}

/// Adds operands that are written to others, in order and each once.
pub(super) fn add_writes(writes: &mut Operands, more: &[u32]) {
    for &index in more {
        if !writes.contains(&index) {
            writes.push(index);
        }
    }
    writes.sort_unstable();
}

/// What either of two may do.
pub(super) fn either(a: Effects, b: &Effects) -> Effects {
    let mut writes = a.writes;
    add_writes(&mut writes, &b.writes);
    let alias = match (a.alias, b.alias) {
        (x, y) if x == y => x,
        (x, Alias::Fresh) | (Alias::Fresh, x) => x,
        _ => Alias::Any,
    };
    Effects {
        alias,
        writes,
        fence: a.fence.max(b.fence),
        launches: a.launches || b.launches,
        shape_only: a.shape_only && b.shape_only,
        sees: a.sees.max(b.sees),
        restates: a.restates || b.restates,
        sets_mode: a.sets_mode || b.sets_mode,
        assumed: a.assumed || b.assumed,
    }
}

/// All operands of a call, in order.
pub(super) fn all_operands(args: &Args) -> Operands {
    let mut found = Operands::new();
    args.for_each_operand(&mut |index| found.push(index));
    found
}
