//! PyTorch's functional collectives: what their arguments mean, in both directions.
//!
//! The graph holds the reduce op, the root and the group in [`Op::Collective`]; the node's arguments keep what is
//! left: the input or list of inputs, the splits of `all_to_all_single`, the pairs of `permute_tensor`, and `out`. A
//! group that is a value of the graph stays an argument, `group_name`, beside giving the group its name (`%pg`; see
//! `group_values`).
//!
//! The older `c10d_functional` operators name a group by a tag and its ranks: its name is `tag:[0, 1]`.

use bucketeer::ir::communication;
use bucketeer::ir::ops::{CollectiveForm, torch_collective};
use bucketeer::ir::{Arg, Args, Collective, CollectiveKind, GlobalRank, Graph, GroupId, Op, ReduceOp, Variant};

/// A parameter of a collective operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parameter {
    Input,
    ReduceOp,
    Root,
    GroupSize,
    Group,
    OutputSplits,
    InputSplits,
    Pairs,
    Tag,
    Ranks,
}

use Parameter::{Group, GroupSize, Input, InputSplits, OutputSplits, Pairs, Ranks, Root, Tag};

impl Parameter {
    /// What PyTorch's schemas call it.
    const fn keywords(self) -> &'static [&'static str] {
        match self {
            Self::Input => &["input", "self", "inputs", "tensor", "tensors", "shard"],
            Self::ReduceOp => &["reduce_op", "op", "reduceOp"],
            Self::Root => &["src", "root", "dst"],
            Self::GroupSize => &["group_size"],
            Self::Group => &["group_name", "group"],
            Self::OutputSplits => &["output_split_sizes"],
            Self::InputSplits => &["input_split_sizes"],
            Self::Pairs => &["src_dst"],
            Self::Tag => &["tag"],
            Self::Ranks => &["ranks"],
        }
    }
}

impl Parameter {
    /// The first of its names that PyTorch's own schemas use.
    pub(crate) const fn schema_name(self, coalesced: bool) -> &'static str {
        match self {
            Self::Input if coalesced => "inputs",
            parameter => parameter.keywords()[0],
        }
    }
}

/// The parameters of a kind's operator, in order, before those that name the group.
const fn own_parameters(kind: &str) -> &'static [Parameter] {
    match kind.as_bytes() {
        b"reduce_scatter" | b"all_reduce" => &[Input, Parameter::ReduceOp],
        b"broadcast" => &[Input, Root],
        b"reduce" => &[Input, Parameter::ReduceOp, Root],
        b"all_to_all" => &[Input, OutputSplits, InputSplits],
        b"permute" => &[Input, Pairs],
        _ => &[Input],
    }
}

/// The parameters that name the group.
pub(super) fn group_parameters(kind: &str, legacy: bool) -> &'static [Parameter] {
    match (legacy, kind) {
        (true, _) => &[Tag, Ranks, GroupSize],
        (false, "all_gather" | "reduce_scatter") => &[GroupSize, Group],
        (false, _) => &[Group],
    }
}

/// All parameters of a kind's operator, in order.
pub(crate) fn parameters(kind: &str, legacy: bool) -> impl Iterator<Item = Parameter> {
    own_parameters(kind).iter().chain(group_parameters(kind, legacy)).copied()
}

/// What a call means.
pub(crate) struct Meaning {
    pub op: Op,
    pub args: Args,
    /// The group is this operand, so the same text with other operands means another group.
    pub opaque_group: Option<u32>,
}

/// The meaning of a call: a collective or wait if it is one that PyTorch has, with arguments that fit; else the call
/// itself. `group` names the group that an operand is.
pub(crate) fn meaning(
    graph: &mut Graph,
    target: &str,
    args: Args,
    group: &mut dyn FnMut(&Graph, u32) -> String,
) -> Meaning {
    if let Some((namespace, base)) = functional_operator(target) {
        if base == "wait_tensor"
            && let Some(args) = wait_arguments(&args)
        {
            return Meaning { op: Op::Wait, args, opaque_group: None };
        }
        if base == "wait_tensors"
            && let Some(args) = list_wait_arguments(&args)
        {
            return Meaning { op: Op::Wait, args, opaque_group: None };
        }
        if let Some(form) = torch_collective(base) {
            let legacy = namespace == "c10d_functional";
            let found = legacy.then(|| collective(graph, form, true, &args, group)).flatten();
            if let Some(mut meaning) = found.or_else(|| collective(graph, form, false, &args, group)) {
                if namespace == AUTOGRAD {
                    meaning.args.keyword.push((HAS_GRADIENT.into(), Arg::Bool(true)));
                }
                return meaning;
            }
        }
    }
    // A group of what has no word is a group like others: its members can be given.
    if let Some(name) = communication::of_call(target, &args).and_then(|found| found.group) {
        graph.intern_group(name, None);
    }
    Meaning { op: Op::Call(graph.intern(target)), args, opaque_group: None }
}

/// The namespace of functional collectives that have gradients. They mean what the others do.
const AUTOGRAD: &str = "_c10d_functional_autograd";

/// The argument that says so.
const HAS_GRADIENT: &str = "autograd";

/// The namespace of a collective's operator.
pub(crate) fn namespace(args: &Args, legacy: bool) -> &'static str {
    match (legacy, args.get(HAS_GRADIENT).is_some()) {
        (true, _) => "c10d_functional",
        (false, true) => AUTOGRAD,
        (false, false) => "_c10d_functional",
    }
}

/// Namespace and name of an operator that may be a functional collective.
fn functional_operator(target: &str) -> Option<(&str, &str)> {
    let (namespace, rest) = target.split_once('.')?;
    let base = rest.strip_suffix(".default").unwrap_or(rest);
    let known = matches!(namespace, "_c10d_functional" | "c10d_functional" | AUTOGRAD);
    (known && !base.contains('.')).then_some((namespace, base))
}

fn wait_arguments(args: &Args) -> Option<Args> {
    let value = args.positional.first().or_else(|| args.keyword.first().map(|(_, value)| value))?;
    let only = args.positional.len() + args.keyword.len() == 1 && matches!(value, Arg::Operand(_));
    only.then(|| Args::positional(vec![value.clone()]))
}

/// A list of values, or a value that is one.
fn list_wait_arguments(args: &Args) -> Option<Args> {
    let list = args.positional.first().or_else(|| args.keyword.first().map(|(_, value)| value))?;
    let some = !matches!(list, Arg::List(items) | Arg::Tuple(items) if items.is_empty());
    let only = args.positional.len() + args.keyword.len() == 1 && some && is_operands(list);
    only.then(|| Args::positional(vec![list.clone()]))
}

/// Arguments by parameter.
struct Bound<'a> {
    values: Vec<(Parameter, &'a Arg)>,
    out: Option<&'a Arg>,
}

impl<'a> Bound<'a> {
    fn new(kind: &str, legacy: bool, args: &'a Args) -> Option<Self> {
        let all: Vec<Parameter> = parameters(kind, legacy).collect();
        if args.positional.len() > all.len() {
            return None;
        }
        let mut bound =
            Self { values: all.iter().copied().zip(&args.positional).collect::<Vec<_>>(), out: args.get("out") };
        let named = &all[args.positional.len()..];
        for (key, value) in args.keyword.iter().filter(|(key, _)| &**key != "out") {
            let parameter = *named.iter().find(|parameter| parameter.keywords().contains(&&**key))?;
            if bound.get(parameter).is_some() {
                return None;
            }
            bound.values.push((parameter, value));
        }
        (bound.values.len() == all.len()).then_some(bound)
    }

    fn get(&self, parameter: Parameter) -> Option<&'a Arg> {
        self.values.iter().find(|(found, _)| *found == parameter).map(|(_, value)| *value)
    }

    fn number(&self, parameter: Parameter) -> Option<u32> {
        self.get(parameter)?.as_int().and_then(|value| u32::try_from(value).ok())
    }
}

fn collective(
    graph: &mut Graph,
    form: CollectiveForm,
    legacy: bool,
    args: &Args,
    group: &mut dyn FnMut(&Graph, u32) -> String,
) -> Option<Meaning> {
    let bound = Bound::new(form.kind, legacy, args)?;
    let kind = collective_kind(form.kind, &bound)?;
    let input = bound.get(Input)?;
    if matches!(input, Arg::List(_) | Arg::Tuple(_)) != form.coalesced || !is_operands(input) {
        return None;
    }
    if (form.variant == Variant::Out) != bound.out.is_some_and(is_operands)
        || bound.out.is_some_and(|o| !is_operands(o))
    {
        return None;
    }
    let mut kept = Args::positional(vec![input.clone()]);
    for parameter in [OutputSplits, InputSplits, Pairs] {
        kept.positional.extend(bound.get(parameter).cloned());
    }
    let opaque_group = match bound.get(Group) {
        Some(Arg::Operand(index)) => Some(*index),
        _ => None,
    };
    if let Some(index) = opaque_group {
        kept.keyword.push(("group_name".into(), Arg::Operand(index)));
    }
    if let Some(out) = bound.out {
        kept.keyword.push(("out".into(), out.clone()));
    }
    if !same_operands(args, &kept) {
        return None;
    }
    let group = intern_group(graph, &bound, legacy, group)?;
    let op = Op::Collective(Collective { kind, group, variant: form.variant, coalesced: form.coalesced });
    Some(Meaning { op, args: kept, opaque_group })
}

fn is_operands(arg: &Arg) -> bool {
    match arg {
        Arg::Operand(_) => true,
        Arg::List(items) | Arg::Tuple(items) => items.iter().all(|item| matches!(item, Arg::Operand(_))),
        _ => false,
    }
}

/// Whether `kept` has all operands of `args`, in the order of appearance.
fn same_operands(args: &Args, kept: &Args) -> bool {
    let mut count = 0;
    args.for_each_operand(&mut |_| count += 1);
    let (mut next, mut in_order) = (0, true);
    kept.for_each_operand(&mut |index| {
        in_order &= index == next;
        next += 1;
    });
    in_order && next == count
}

fn collective_kind(kind: &str, bound: &Bound<'_>) -> Option<CollectiveKind> {
    let op = || bound.get(Parameter::ReduceOp)?.as_str().and_then(ReduceOp::from_name);
    Some(match kind {
        "all_gather" => CollectiveKind::AllGather { dim: 0 },
        "reduce_scatter" => CollectiveKind::ReduceScatter { op: op()?, dim: 0 },
        "all_reduce" => CollectiveKind::AllReduce { op: op()? },
        "broadcast" => CollectiveKind::Broadcast { root: bound.number(Root)? },
        "reduce" => CollectiveKind::Reduce { op: op()?, root: bound.number(Root)? },
        "all_to_all" => CollectiveKind::AllToAll,
        "permute" => CollectiveKind::Permute,
        _ => return None,
    })
}

fn intern_group(
    graph: &mut Graph,
    bound: &Bound<'_>,
    legacy: bool,
    group: &mut dyn FnMut(&Graph, u32) -> String,
) -> Option<GroupId> {
    let size = match bound.get(GroupSize) {
        Some(_) => Some(bound.number(GroupSize).filter(|&size| size > 0)?),
        // An all-to-all states how much goes to each rank, and so how many there are; no list is an equal part for each.
        None => match bound.get(InputSplits) {
            Some(Arg::List(splits)) if !splits.is_empty() => u32::try_from(splits.len()).ok(),
            _ => None,
        },
    };
    if !legacy {
        return match bound.get(Group)? {
            Arg::Str(name) => Some(graph.intern_group(name, size)),
            Arg::Operand(index) => {
                let name = group(graph, *index);
                Some(graph.intern_group(&name, size))
            }
            _ => None,
        };
    }
    let Arg::List(ranks) = bound.get(Ranks)? else { return None };
    let rank = |arg: &Arg| arg.as_int().and_then(|rank| u32::try_from(rank).ok()).map(GlobalRank);
    let members: Vec<GlobalRank> = ranks.iter().map(rank).collect::<Option<_>>()?;
    let listed: Vec<String> = members.iter().map(|rank| rank.0.to_string()).collect();
    let name = format!("{}:[{}]", bound.get(Tag)?.as_str()?, listed.join(", "));
    let id = graph.intern_group(&name, size);
    graph.group_mut(id).members = vec![members];
    Some(id)
}

/// Tag and ranks, if the group was named by the older operators.
pub(crate) fn legacy_group(graph: &Graph, id: GroupId) -> Option<(&str, &str)> {
    let group = graph.group(id);
    let (tag, ranks) = group.name.split_once(":[").filter(|_| group.name.ends_with(']'))?;
    (group.members.len() == 1).then(|| (tag, &group.name[group.name.len() - ranks.len() - 1..]))
}
