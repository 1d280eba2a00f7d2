//! Instructions that a rewrite made, as HLO text.

use super::lex::Span;
use super::module::{Instruction, Module};
use super::notes;
use super::shape;
use super::write::Printer;
use bucketeer::ir::{Arg, CollectiveKind, DType, Dim, Graph, NodeId, Op, TensorType, Type};

/// Attributes of a member that a merged collective does not have.
const DROPPED: &[&str] = &["origin", "statistics", "control-predecessors"];

/// The tuple that a node takes an element of.
pub(super) fn element_of(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let takes =
        matches!(graph.node(id).op, Op::Call(_)) && bucketeer::ir::operators::element_index(graph, id).is_some();
    if takes { graph.operands(id).first().copied() } else { None }
}

/// Whether a node cuts a tensor into parts, which print as a slice each.
pub(super) fn is_split(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.node(id).op, Op::Call(_)) && graph.target_of(id) == "aten.split_with_sizes.default"
}

/// Writes what stands behind the `=` of a node that was made or changed, but for its order.
pub(super) fn instruction(printer: &Printer<'_>, id: NodeId, percent: &str, out: &mut String) {
    let graph = printer.graph;
    let shape = match printer.instruction(id) {
        // A wait that became something else has the shape it had.
        Some(old) => old.shape.of(printer.text).to_owned(),
        None => shape_of(printer, graph.type_of(id)),
    };
    if let Op::Collective(_) = graph.node(id).op {
        return collective(printer, id, percent, out);
    }
    let operands = graph.operands(id);
    let name = |id: NodeId| format!("{percent}{}", printer.name(id));
    let list = || operands.iter().map(|&operand| name(operand)).collect::<Vec<_>>().join(", ");
    let args = graph.args_of(id);
    let text = match graph.target_of(id) {
        _ if element_of(graph, id).is_some() => element(printer, id, &name, &shape),
        "aten.view.dtype" => bits(printer, id, &name, &shape, percent, out),
        "aten.view.default" | "aten.reshape.default" => format!("{shape} reshape({})", list()),
        "aten.permute.default" => {
            format!("{shape} transpose({}), dimensions={{{}}}", list(), ints(args.positional.get(1)))
        }
        "aten.cat.default" => {
            let dim = args.positional.get(1).and_then(Arg::as_int).unwrap_or(0);
            format!("{shape} concatenate({}), dimensions={{{dim}}}", list())
        }
        "aten.full.default" => {
            // Only tensors without elements are made this way; their value does not matter.
            format!("{shape} iota(), iota_dimension=0")
        }
        // A root that only hands on what it is given.
        _ => format!("{shape} copy({})", operands.first().map_or_else(String::new, |&of| name(of))),
    };
    out.push_str(&text);
}

/// The same bytes as another dtype. HLO keeps the parts of an element in a dimension of their own, so that a reshape stands
/// behind or before, in a line of its own. Bools are 0 or 1 in either.
fn bits(
    printer: &Printer<'_>,
    id: NodeId,
    name: &dyn Fn(NodeId) -> String,
    shape: &str,
    percent: &str,
    out: &mut String,
) -> String {
    let graph = printer.graph;
    let from = graph.operands(id)[0];
    let (Some(then), Some(now)) = (graph.tensor(from), graph.tensor(id)) else { return String::new() };
    if then.dtype == DType::Bool || now.dtype == DType::Bool {
        return format!("{shape} convert({})", name(from));
    }
    let (wide, narrow) = (then.dtype.bytes().max(now.dtype.bytes()), then.dtype.bytes().min(now.dtype.bytes()));
    if wide == narrow {
        return format!("{shape} bitcast-convert({})", name(from));
    }
    // The line that was begun is another's.
    let begun = out.rfind('\n').map_or(0, |newline| newline + 1);
    let line = out.split_off(begun);
    let indent = &line[..line.len() - line.trim_start().len()];
    let mut helper = format!("{}.bits", graph.name_of(id));
    while graph.names().find(&helper).is_some() {
        helper.push('_');
    }
    let outer = if then.dtype.bytes() == wide { then } else { now };
    let mut parts =
        TensorType { dtype: if then.dtype.bytes() == wide { now.dtype } else { then.dtype }, ..outer.clone() };
    parts.shape.push(Dim::Const(wide / narrow));
    let (first, second) =
        if then.dtype.bytes() == wide { ("bitcast-convert", "reshape") } else { ("reshape", "bitcast-convert") };
    out.push_str(&format!("{indent}{percent}{helper} = {} {first}({})\n{line}", array(printer, &parts), name(from)));
    format!("{shape} {second}({percent}{helper})")
}

/// `get-tuple-element` of a collective, or a slice of a tensor that was split.
fn element(printer: &Printer<'_>, id: NodeId, name: &dyn Fn(NodeId) -> String, shape: &str) -> String {
    let graph = printer.graph;
    let tuple = graph.operands(id)[0];
    let index = bucketeer::ir::operators::element_index(graph, id).unwrap_or(0) as usize;
    if !is_split(graph, tuple) {
        let notes = printer.instruction(id).map_or("", |old| value(printer, old, "metadata"));
        let metadata = if notes.is_empty() { String::new() } else { format!(", metadata={notes}") };
        return format!("{shape} get-tuple-element({}), index={index}{metadata}", name(tuple));
    }
    let args = graph.args_of(tuple);
    let whole = graph.operands(tuple)[0];
    let dim = args.positional.get(2).and_then(Arg::as_int).unwrap_or(0) as usize;
    let sizes: Vec<i64> = match args.positional.get(1) {
        Some(Arg::List(sizes)) => sizes.iter().filter_map(Arg::as_int).collect(),
        _ => Vec::new(),
    };
    let start: i64 = sizes.iter().take(index).sum();
    let end = start + sizes.get(index).copied().unwrap_or(0);
    let dims = graph.tensor(whole).map_or(&[][..], |tensor| &tensor.shape);
    let range = |at: usize| match at == dim {
        true => format!("[{start}:{end}]"),
        false => format!("[0:{}]", dims[at]),
    };
    let ranges: Vec<String> = (0..dims.len()).map(range).collect();
    format!("{shape} slice({}), slice={{{}}}", name(whole), ranges.join(", "))
}

/// A merged collective: the operands of all members, and what the first says of the rest.
fn collective(printer: &Printer<'_>, id: NodeId, percent: &str, out: &mut String) {
    let Printer { text, module, graph, .. } = *printer;
    let members = printer.members(id);
    let is_tuple = matches!(graph.type_of(id), Type::Tuple(_));
    let (Some(&first), Some(now)) = (members.first(), graph.collective(id)) else {
        // Passes make none that say of no instruction that it is in them.
        out.push_str("// bucketeer: this collective cannot be said in HLO text");
        return;
    };
    let shape = match graph.type_of(id) {
        Type::Tuple(parts) => {
            tuple(members.iter().zip(parts).map(|(member, part)| member_shape(printer, member, part)))
        }
        ty => shape_of(printer, ty),
    };
    let operands =
        indexed(graph.collective_inputs(id).iter().map(|&input| format!("{percent}{}", printer.name(input))));
    out.push_str(&format!("{shape} {}({operands})", first.opcode.of(text)));
    let values = |key: &str| members.iter().map(|member| value(printer, member, key)).collect::<Vec<&str>>();
    let mut say = |key: &str, value: &str| out.push_str(&format!(", {key}={value}"));
    let (mut metadata, mut frontend) =
        (notes::metadata(&values("metadata")), notes::frontend_attributes(&values("frontend_attributes")));
    for attribute in module.attributes(first) {
        let (key, value) = (attribute.key.of(text), attribute.value.of(text));
        match (key, now.kind) {
            _ if DROPPED.contains(&key) => {}
            ("metadata", _) => metadata.take().iter().for_each(|merged| say(key, merged)),
            ("frontend_attributes", _) => frontend.take().iter().for_each(|merged| say(key, merged)),
            ("sharding", CollectiveKind::ReduceScatter { .. }) if is_tuple => say(key, value),
            ("sharding", _) if is_tuple => notes::sharding(&values(key)).iter().for_each(|merged| say(key, merged)),
            ("sharding" | "constrain_layout", _) if !is_tuple => {}
            ("dimensions", CollectiveKind::AllGather { dim } | CollectiveKind::ReduceScatter { dim, .. }) => {
                say(key, &format!("{{{dim}}}"));
            }
            _ => say(key, value),
        }
    }
    frontend.iter().for_each(|merged| say("frontend_attributes", merged));
    metadata.iter().for_each(|merged| say("metadata", merged));
}

/// The shape of a member's result, with its layout; one that travels with two dimensions swapped has another.
fn member_shape(printer: &Printer<'_>, member: &Instruction, ty: &Type) -> String {
    let written = member.shape.of(printer.text);
    let same = shape::parse(written).is_ok_and(|then| then == *ty);
    if same { written.to_owned() } else { shape_of(printer, ty) }
}

/// The value of an attribute; empty if the instruction does not have it.
fn value<'a>(printer: &Printer<'a>, instruction: &Instruction, key: &str) -> &'a str {
    let (text, module): (&'a str, &'a Module) = (printer.text, printer.module);
    module.attribute(text, instruction, key).map_or("", |value: Span| value.of(text))
}

fn ints(arg: Option<&Arg>) -> String {
    let Some(Arg::List(items)) = arg else { return String::new() };
    items.iter().filter_map(Arg::as_int).map(|item| item.to_string()).collect::<Vec<_>>().join(",")
}

/// A list as XLA prints it: with the index before every fifth item.
fn indexed(items: impl Iterator<Item = String>) -> String {
    let mark = |(at, item): (usize, String)| {
        if at > 0 && at.is_multiple_of(5) { format!("/*index={at}*/{item}") } else { item }
    };
    items.enumerate().map(mark).collect::<Vec<_>>().join(", ")
}

fn tuple(parts: impl Iterator<Item = String>) -> String {
    format!("({})", indexed(parts))
}

fn shape_of(printer: &Printer<'_>, ty: &Type) -> String {
    match ty {
        Type::Tensor(tensor) => array(printer, tensor),
        Type::Tuple(parts) => tuple(parts.iter().map(|part| shape_of(printer, part))),
        Type::Token => "token[]".to_owned(),
        Type::Unknown | Type::SymInt(_) | Type::SymOther(_) => "opaque[]".to_owned(),
    }
}

/// A tensor's shape, in logical order where shapes have layouts.
fn array(printer: &Printer<'_>, tensor: &TensorType) -> String {
    let sizes: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
    let order: Vec<String> = (0..sizes.len()).rev().map(|dim| dim.to_string()).collect();
    let layout = if printer.layouts && !order.is_empty() { format!("{{{}}}", order.join(",")) } else { String::new() };
    // Dtypes without a word are never read, and passes convert to none.
    format!("{}[{}]{layout}", shape::word(tensor.dtype).unwrap_or("opaque"), sizes.join(","))
}
