//! What a program says of the values of its nodes: dtypes, sizes and strides.

use super::codes;
use super::edits::Edits;
use super::emit::{Style, list, quoted};
use super::symbolic;
use super::text::{NONE, Table};
use super::write::Printer;
use bucketeer::ir::{Arg, Dim, NodeId, Op, TensorType, Type};
use indexmap::IndexMap;
use std::borrow::Cow;

/// The type of a value, and the node that it is, if it is one.
type Value<'a> = (&'a Type, Option<NodeId>);

/// Values by name.
type Values<'a> = IndexMap<String, Value<'a>>;

/// Writes the tables, if values came, went or changed.
pub(super) fn write(printer: &Printer<'_>, edits: &mut Edits) {
    let values = values(printer);
    let tensor = |(ty, id): &Value<'_>| match ty {
        Type::Tensor(tensor) => Some(tensor_text(printer, tensor, id.map_or(0, |id| storage_offset(printer, id)))),
        _ => None,
    };
    let integer = |(ty, _): &Value<'_>| match ty {
        Type::SymInt(expr) => Dim::from_expr(expr.clone()).map(|dim| size_text(printer, &dim)),
        _ => None,
    };
    table(printer, &printer.then.tensors, &values, &tensor, edits);
    table(printer, &printer.then.integers, &values, &integer, edits);
}

/// The values that the JSON names.
fn values<'a>(printer: &Printer<'a>) -> Values<'a> {
    let graph = printer.graph;
    let mut values = Values::default();
    for &id in graph.order() {
        if printer.slot(id).is_some() || graph.node(id).op == Op::Output {
            continue;
        }
        values.insert(graph.name_of(id).to_owned(), (graph.type_of(id), Some(id)));
        elements(printer, id, &mut values);
    }
    values
}

fn elements<'a>(printer: &Printer<'a>, id: NodeId, values: &mut Values<'a>) {
    let Type::Tuple(parts) = printer.graph.type_of(id) else { return };
    for (index, ty) in parts.iter().enumerate() {
        match printer.owner((id, index as i64)) {
            Some(owner) => {
                values.insert(printer.graph.name_of(owner).to_owned(), (ty, Some(owner)));
                elements(printer, owner, values);
            }
            None if *ty != Type::Unknown => {
                values.insert(printer.unused(id, index), (ty, None));
            }
            None => {}
        }
    }
}

fn table(
    printer: &Printer<'_>,
    then: &Table,
    values: &Values<'_>,
    text_of: &dyn Fn(&Value<'_>) -> Option<String>,
    edits: &mut Edits,
) {
    let mut entries: Vec<(&str, Cow<'_, str>)> = Vec::with_capacity(then.entries.len());
    let mut changed = false;
    let mut known: hashbrown::HashSet<&str, rustc_hash::FxBuildHasher> = hashbrown::HashSet::default();
    for (name, range) in &then.entries {
        known.insert(name);
        let was = Cow::Borrowed(&printer.text[range.clone()]);
        match values.get(&**name) {
            Some(value) if is_changed(printer, name, value) => {
                changed = true;
                entries.extend(text_of(value).map(|text| (&**name, Cow::Owned(text))));
            }
            None if printer.were.contains(&**name) => changed = true,
            _ => entries.push((name, was)),
        }
    }
    for (name, value) in values.iter().filter(|(name, _)| !known.contains(name.as_str())) {
        if let Some(text) = text_of(value) {
            changed = true;
            entries.push((name, Cow::Owned(text)));
        }
    }
    if !changed {
        return;
    }
    if printer.style == Style::Sorted {
        entries.sort_by_key(|(name, _)| *name);
    }
    let entries = entries.iter().map(|(name, text)| format!("{}: {text}", quoted(name)));
    edits.replace(then.object.clone(), format!("{{{}}}", entries.collect::<Vec<_>>().join(", ")));
}

/// Whether a value that was read has another type now.
fn is_changed(printer: &Printer<'_>, name: &str, (ty, id): &Value<'_>) -> bool {
    let then = id.and_then(|id| printer.graph.original(id));
    match then.filter(|then| printer.graph.text(then.node.name) == name) {
        Some(then) => printer.graph.ty(then.node.ty) != *ty,
        // A name that was something else's.
        None => true,
    }
}

fn tensor_text(printer: &Printer<'_>, tensor: &TensorType, offset: u64) -> String {
    let dims = |dims: &[Dim]| list(dims.iter().map(|dim| size_text(printer, dim)));
    let strides = tensor.strides.clone().or_else(|| tensor.dense_strides()).unwrap_or_default();
    let device = tensor.device.as_deref().unwrap_or("cpu");
    let (kind, index) = device.split_once(':').unwrap_or((device, "null"));
    printer.style.object(vec![
        ("dtype", codes::dtype_code(tensor.dtype).to_string()),
        ("sizes", dims(&tensor.shape)),
        ("requires_grad", "false".into()),
        ("device", printer.style.object(vec![("type", quoted(kind)), ("index", index.into())])),
        ("strides", dims(&strides)),
        ("storage_offset", format!("{{\"as_int\": {offset}}}")),
        ("layout", codes::STRIDED.to_string()),
    ])
}

fn size_text(printer: &Printer<'_>, dim: &Dim) -> String {
    if let Dim::Const(value) = dim {
        return format!("{{\"as_int\": {value}}}");
    }
    if let Some(known) = printer.then.dims.get(dim) {
        return known.to_string();
    }
    let symbol = |name: &str| match printer.then.symbols.get(name) {
        Some(text) => text.to_string(),
        None => format!("Symbol('{name}', integer=True)"),
    };
    let plain = dim.to_string();
    let text = symbolic::srepr(&plain, &symbol).unwrap_or(plain);
    let hint = match printer.graph.likely_value(dim) {
        Some(value) => format!("{{\"as_int\": {value}}}"),
        None => "null".into(),
    };
    let expr = printer.style.object(vec![("expr_str", quoted(&text)), ("hint", hint)]);
    format!("{{\"as_expr\": {expr}}}")
}

/// Where a value starts in its memory, in elements, as far as views tell it.
fn storage_offset(printer: &Printer<'_>, id: NodeId) -> u64 {
    let graph = printer.graph;
    let (mut at, mut offset) = (id, 0u64);
    loop {
        if let Some(read) = offset_read(printer, at) {
            return offset.saturating_add(read);
        }
        let (Op::Call(_), Some(&of)) = (graph.node(at).op, graph.operands(at).first()) else { return offset };
        match graph.target_of(at) {
            "aten.view.default" | "aten.permute.default" | "aten.alias.default" => at = of,
            "operator.getitem" if graph.target_of(of) == "aten.split_with_sizes.default" => {
                let (Some(before), Some(&split)) = (elements_before(printer, at, of), graph.operands(of).first())
                else {
                    return offset;
                };
                offset = offset.saturating_add(before);
                at = split;
            }
            _ => return offset,
        }
    }
}

/// The offset that the JSON states of a value that is what it was.
fn offset_read(printer: &Printer<'_>, id: NodeId) -> Option<u64> {
    let read = printer.graph.original(id)?.node;
    let now = printer.graph.node(id);
    if read.op != now.op || read.args != now.args || printer.then.origin[id.index()] == NONE {
        return None;
    }
    let range = *printer.described.get(printer.graph.name_of(id))?;
    let record: serde_json::Value = serde_json::from_str(&printer.text[range.clone()]).ok()?;
    record.get("storage_offset")?.get("as_int")?.as_u64()
}

/// Elements before a part of a tensor that is split.
fn elements_before(printer: &Printer<'_>, item: NodeId, split: NodeId) -> Option<u64> {
    let graph = printer.graph;
    let index = graph.args_of(item).positional.get(1)?.as_int()?;
    let args = graph.args_of(split);
    let Some(Arg::List(sizes)) = args.at(1, "split_sizes") else { return None };
    let sum: i64 = sizes.iter().take(usize::try_from(index).ok()?).map(|size| size.as_int().unwrap_or(0)).sum();
    let tensor = graph.tensor(*graph.operands(split).first()?)?;
    let dim = args.at(2, "dim").and_then(Arg::as_int).unwrap_or(0);
    let dim = usize::try_from(if dim < 0 { dim + tensor.shape.len() as i64 } else { dim }).ok()?;
    let strides = tensor.strides.clone().or_else(|| tensor.dense_strides())?;
    strides.get(dim)?.as_const()?.checked_mul(u64::try_from(sum).ok()?)
}
