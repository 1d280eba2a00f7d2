//! From nodes to statements, for those that were never text or are no longer what their text says.

use super::collective::{Parameter, legacy_group, namespace, parameters};
use super::error::FxPrintError;
use super::expr::{ALIAS, BINARY, MODULE_CALL, PYTHON, UNARY, is_identifier};
use super::tails::{LastUses, Seen, can_delete, write_tail};
use bucketeer::ir::ops::torch_name;
use bucketeer::ir::{Arg, Args, Collective, CollectiveKind, Graph, Meta, NodeId, Op, RegionId, Spacing, Type};
use std::fmt::Write;

/// How many source lines a merged node shows.
const MOST_SOURCES: usize = 8;

/// How annotations are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Annotations {
    /// As the type has it.
    AsGiven,
    /// With sizes only.
    Sizes,
    /// With strides, and the device if it is known.
    Strides,
}

/// FX text for a graph that was made from something else.
///
/// # Errors
/// [`FxPrintError`] for a node that FX text cannot say.
pub fn print_fresh(graph: &Graph) -> Result<String, FxPrintError> {
    if graph.name.is_empty() || graph.name.contains(|c: char| c.is_whitespace() || "():#".contains(c)) {
        return Err(FxPrintError::Name(graph.name.clone()));
    }
    let mut text = format!("class {}(torch.nn.Module):\n    def forward(self", graph.name);
    for &id in graph.order().iter().filter(|&&id| graph.node(id).op == Op::Input) {
        check_name(graph, id)?;
        text.push_str(", ");
        text.push_str(graph.name_of(id));
        write_annotation(&mut text, graph, id, Annotations::AsGiven);
    }
    text.push_str("):\n");
    let last_uses = LastUses::of(graph);
    let mut seen = Seen::new(graph.arena_len());
    let (mut deleted, mut sources, mut has_output) = (Vec::new(), Vec::new(), false);
    for &id in graph.order() {
        let node = graph.node(id);
        if node.region != RegionId::ROOT {
            return Err(FxPrintError::Region(graph.name_of(id).to_owned()));
        }
        if node.op == Op::Input {
            continue;
        }
        // Opcodes of HLO and the like; a target of FX text is a dotted name.
        if let Op::Call(target) = node.op
            && graph.text(target).contains('-')
        {
            let (node, target) = (graph.name_of(id).to_owned(), graph.text(target).to_owned());
            return Err(FxPrintError::Target { node, target });
        }
        for comment in comments(graph.meta_of(id), node.op, &mut sources) {
            let _ = writeln!(text, "        # {comment}");
        }
        text.push_str("        ");
        if node.op == Op::Output {
            text.push_str("return ");
            write_return(&mut text, graph, id, ReturnForm::Tuple)?;
            has_output = true;
        } else {
            check_name(graph, id)?;
            text.push_str(graph.name_of(id));
            // FX prints none for another name of an input.
            let is_name = graph.target_of(id) == ALIAS
                && graph.operands(id).first().is_some_and(|&of| graph.node(of).ty == graph.node(id).ty);
            if !is_name {
                write_annotation(&mut text, graph, id, Annotations::AsGiven);
            }
            text.push_str(" = ");
            write_right_side(&mut text, graph, id)?;
        }
        if can_delete(node.op) {
            last_uses.deleted_by(id, graph.operands(id), &mut seen, &mut deleted);
            write_tail(&mut text, graph, &deleted);
        }
        text.push('\n');
    }
    if !has_output {
        text.push_str("        return ()\n");
    }
    Ok(text)
}

/// The comment lines of a new node. `in_force` holds the sources of the collective before.
fn comments(meta: &Meta, op: Op, in_force: &mut Vec<Box<str>>) -> Vec<String> {
    let mut lines = Vec::new();
    if matches!(op, Op::Collective(_)) && meta.sources != *in_force {
        lines = source_comments(meta);
        if meta.sources.is_empty() {
            lines.push("No stacktrace found for following nodes".into());
        }
        in_force.clone_from(&meta.sources);
    }
    lines.extend(members_comment(meta));
    lines
}

/// `bucketeer: merges a, b`.
pub(super) fn members_comment(meta: &Meta) -> Option<String> {
    (!meta.members.is_empty()).then(|| format!("bucketeer: merges {}", meta.members.join(", ")))
}

/// One `File: ` comment for each distinct source, and how many are left out.
pub(super) fn source_comments(meta: &Meta) -> Vec<String> {
    let mut distinct: Vec<&str> = Vec::new();
    let mut more = 0;
    for source in &meta.sources {
        if distinct.contains(&&**source) {
            continue;
        }
        if distinct.len() < MOST_SOURCES { distinct.push(source) } else { more += 1 }
    }
    let mut lines: Vec<String> = distinct.into_iter().map(|source| format!("File: {source}")).collect();
    if more > 0 {
        lines.push(format!("... and {more} more"));
    }
    lines
}

/// Whether a node's name is one in Python.
pub(super) fn check_name(graph: &Graph, id: NodeId) -> Result<(), FxPrintError> {
    let name = graph.name_of(id);
    if is_identifier(name) { Ok(()) } else { Err(FxPrintError::Name(name.to_owned())) }
}

/// Appends `: "f32[4]"`, or nothing when the type has no annotation.
pub(super) fn write_annotation(out: &mut String, graph: &Graph, id: NodeId, annotations: Annotations) {
    let ty = graph.type_of(id);
    let _ = match ty {
        Type::Unknown | Type::Tuple(_) | Type::Token => Ok(()),
        Type::Tensor(tensor) if annotations != Annotations::AsGiven => {
            let mut shown = tensor.clone();
            if annotations == Annotations::Sizes {
                shown.strides = None;
                shown.device = None;
            } else if shown.strides.is_none() {
                shown.strides = shown.dense_strides();
            }
            write!(out, ": \"{shown}\"")
        }
        Type::Tensor(_) | Type::SymInt(_) | Type::SymOther(_) => write!(out, ": \"{ty}\""),
    };
}

/// What `return` gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReturnForm {
    /// `(a, b)`.
    Tuple,
    /// `a`, if it is only one.
    Plain,
    /// `pytree.tree_unflatten([a, b], self._out_spec)`.
    Unflatten,
}

/// Appends what a `return` gives back.
pub(super) fn write_return(out: &mut String, graph: &Graph, id: NodeId, form: ReturnForm) -> Result<(), FxPrintError> {
    let args = graph.args_of(id);
    let count = args.positional.len();
    let (open, close) = match form {
        ReturnForm::Unflatten => ("pytree.tree_unflatten([", "], self._out_spec)"),
        ReturnForm::Plain if count == 1 => ("", ""),
        _ if count == 1 => ("(", ",)"),
        _ => ("(", ")"),
    };
    out.push_str(open);
    write_args(out, graph, id, args)?;
    out.push_str(close);
    Ok(())
}

/// Appends the right side of a node's statement.
pub(super) fn write_right_side(out: &mut String, graph: &Graph, id: NodeId) -> Result<(), FxPrintError> {
    match graph.node(id).op {
        Op::Input | Op::Output => Ok(()),
        Op::Wait | Op::Collective(_) => {
            let (target, args) = functional_call(graph, id)?;
            let _ = write!(out, "torch.ops.{target}(");
            write_args(out, graph, id, &args)?;
            out.push(')');
            Ok(())
        }
        Op::Call(target) => write_call(out, graph, id, graph.text(target)),
    }
}

fn operand_name(graph: &Graph, id: NodeId, index: u32) -> Result<&str, FxPrintError> {
    let operand = graph.operands(id).get(index as usize);
    operand.map(|&operand| graph.name_of(operand)).ok_or_else(|| FxPrintError::Arguments(graph.name_of(id).to_owned()))
}

pub(super) fn write_args(out: &mut String, graph: &Graph, id: NodeId, args: &Args) -> Result<(), FxPrintError> {
    let count = graph.operands(id).len();
    let mut missing = false;
    args.for_each_operand(&mut |index| missing |= index as usize >= count);
    let name = |index: u32| operand_name(graph, id, index).unwrap_or("None").to_owned();
    let _ = args.write(out, Spacing::Wide, &name);
    if missing { Err(FxPrintError::Arguments(graph.name_of(id).to_owned())) } else { Ok(()) }
}

fn write_arg(out: &mut String, graph: &Graph, id: NodeId, arg: &Arg) -> Result<(), FxPrintError> {
    write_args(out, graph, id, &Args::positional(vec![arg.clone()]))
}

/// The call of PyTorch's functional collectives that a wait or a collective is: its target below `torch.ops`, and all of
/// its arguments.
pub(super) fn functional_call(graph: &Graph, id: NodeId) -> Result<(String, Args), FxPrintError> {
    match graph.node(id).op {
        Op::Collective(collective) => collective_call(graph, id, collective),
        _ => {
            let started = graph.operands(id).first();
            let of_legacy = started.and_then(|&started| graph.collective(started));
            let legacy = of_legacy.is_some_and(|collective| legacy_group(graph, collective.group).is_some());
            let of_list = started.is_some_and(|&of| matches!(graph.type_of(of), Type::Tuple(_)));
            let plural = if of_list || graph.waits_for_list(id) { "s" } else { "" };
            let args = graph.args_of(id);
            Ok((format!("{}.wait_tensor{plural}.default", namespace(args, legacy)), args.clone()))
        }
    }
}

fn collective_call(graph: &Graph, id: NodeId, collective: Collective) -> Result<(String, Args), FxPrintError> {
    if let CollectiveKind::AllGather { dim } | CollectiveKind::ReduceScatter { dim, .. } = collective.kind
        && dim != 0
    {
        return Err(FxPrintError::Dimension { node: graph.name_of(id).to_owned(), dim });
    }
    if gathers_several_dtypes(graph, id, collective) {
        return Err(FxPrintError::MixedGather(graph.name_of(id).to_owned()));
    }
    let legacy = legacy_group(graph, collective.group).is_some();
    let known = graph.args_of(id);
    let mut kept = known.positional.iter().cloned();
    let mut args = Args::default();
    for parameter in parameters(collective.kind.name(), legacy) {
        args.positional.push(match parameter {
            Parameter::Input | Parameter::OutputSplits | Parameter::InputSplits | Parameter::Pairs => {
                kept.next().ok_or_else(|| FxPrintError::Arguments(graph.name_of(id).to_owned()))?
            }
            parameter => group_or_op(graph, id, collective, parameter)?,
        });
    }
    args.keyword.extend(known.get("out").map(|value| ("out".into(), value.clone())));
    Ok((format!("{}.{}.default", namespace(known, legacy), torch_name(collective)), args))
}

/// Whether a node is a coalesced gather of tensors that do not all have the same dtype.
fn gathers_several_dtypes(graph: &Graph, id: NodeId, collective: Collective) -> bool {
    let dtype = |&input: &NodeId| graph.tensor(input).map(|tensor| tensor.dtype);
    let mut dtypes = graph.collective_inputs(id).iter().map(dtype);
    let first = dtypes.next();
    collective.coalesced
        && matches!(collective.kind, CollectiveKind::AllGather { .. })
        && dtypes.any(|dtype| Some(dtype) != first)
}

/// An argument that the graph keeps in the collective itself.
fn group_or_op(graph: &Graph, id: NodeId, collective: Collective, parameter: Parameter) -> Result<Arg, FxPrintError> {
    let group = graph.group(collective.group);
    let legacy = legacy_group(graph, collective.group);
    let found = match (parameter, collective.kind) {
        (Parameter::GroupSize, _) => {
            let unknown =
                || FxPrintError::GroupSize { node: graph.name_of(id).to_owned(), group: group.name.to_string() };
            Some(Arg::Int(group.size.ok_or_else(unknown)?.into()))
        }
        (Parameter::Root, CollectiveKind::Broadcast { root } | CollectiveKind::Reduce { root, .. }) => {
            Some(Arg::Int(root.into()))
        }
        (Parameter::ReduceOp, kind) => kind.reduce_op().map(|op| Arg::Str(op.to_string().into())),
        (Parameter::Tag, _) => legacy.map(|(tag, _)| Arg::Str(tag.into())),
        (Parameter::Ranks, _) => legacy.map(|_| {
            let ranks = group.members.iter().flatten();
            Arg::List(ranks.map(|rank| Arg::Int(rank.0.into())).collect())
        }),
        (Parameter::Group, _) => Some(match (graph.args_of(id).get("group_name"), group.name.strip_prefix('%')) {
            (Some(value), _) => value.clone(),
            // The value that is the group, should a pass have lost the argument.
            (None, Some(value)) => Arg::Word(value.into()),
            (None, None) => Arg::Str(group.name.clone()),
        }),
        _ => None,
    };
    found.ok_or_else(|| FxPrintError::Arguments(graph.name_of(id).to_owned()))
}

fn write_call(out: &mut String, graph: &Graph, id: NodeId, target: &str) -> Result<(), FxPrintError> {
    let args = graph.args_of(id);
    let (head, rest) = target.split_once('.').unwrap_or(("", target));
    let is_plain = args.keyword.is_empty();
    match (head, rest, &args.positional[..]) {
        ("operator", "getitem", [value, index]) if is_plain && matches!(value, Arg::Operand(_)) => {
            write_arg(out, graph, id, value)?;
            out.push('[');
            write_arg(out, graph, id, index)?;
            out.push(']');
            return Ok(());
        }
        ("operator", name, [left, right]) if is_plain => {
            if let Some((sign, _)) = BINARY.iter().find(|(_, known)| *known == name) {
                write_arg(out, graph, id, left)?;
                let _ = write!(out, " {sign} ");
                return write_arg(out, graph, id, right);
            }
        }
        ("operator", name, [value @ Arg::Operand(_)]) if is_plain => {
            if let Some((sign, _)) = UNARY.iter().find(|(_, known)| *known == name) {
                out.push_str(sign);
                return write_arg(out, graph, id, value);
            }
        }
        ("", ALIAS, [value @ Arg::Operand(_)]) if is_plain => return write_arg(out, graph, id, value),
        ("getattr", name, [value @ Arg::Operand(_)]) if is_plain => {
            write_arg(out, graph, id, value)?;
            let _ = write!(out, ".{name}");
            return Ok(());
        }
        ("method", name, [value @ Arg::Operand(_), others @ ..]) => {
            write_arg(out, graph, id, value)?;
            let _ = write!(out, ".{name}(");
            let others = Args { positional: others.to_vec(), keyword: args.keyword.clone() };
            write_args(out, graph, id, &others)?;
            out.push(')');
            return Ok(());
        }
        ("self", path, _) => {
            write_attribute(out, path.strip_suffix(MODULE_CALL).unwrap_or(path));
            if *args == Args::default() && !path.ends_with(MODULE_CALL) {
                return Ok(());
            }
            return write_in_brackets(out, graph, id);
        }
        _ => {}
    }
    if !(head.is_empty() || PYTHON.contains(&head)) {
        out.push_str("torch.ops.");
    }
    out.push_str(target);
    write_in_brackets(out, graph, id)
}

fn write_in_brackets(out: &mut String, graph: &Graph, id: NodeId) -> Result<(), FxPrintError> {
    out.push('(');
    write_args(out, graph, id, graph.args_of(id))?;
    out.push(')');
    Ok(())
}

/// Appends `self.a.b`, with `getattr` around parts that are not identifiers.
fn write_attribute(out: &mut String, path: &str) {
    let mut text = "self".to_owned();
    for part in path.split('.') {
        text = if is_identifier(part) { format!("{text}.{part}") } else { format!("getattr({text}, \"{part}\")") };
    }
    out.push_str(&text);
}
