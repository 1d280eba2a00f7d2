//! From nodes of the graph to nodes of the JSON, for those that were never JSON or are no longer what their JSON says.

use super::codes;
use super::schemas;
use crate::fx::{Parameter, legacy_group, namespace, parameters};
use bucketeer::ir::ops::torch_name;
use bucketeer::ir::{Arg, Args, Collective, CollectiveKind, Graph, NodeId, Op, Type};
use std::fmt::Write;

/// How the JSON is written: as PyTorch does, or with the keys of each object in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Style {
    /// In the order of the schema's fields.
    Fields,
    /// Sorted.
    Sorted,
}

impl Style {
    /// An object with these fields, which stand in the schema's order.
    pub fn object(self, mut fields: Vec<(&str, String)>) -> String {
        if self == Self::Sorted {
            fields.sort_unstable_by_key(|(key, _)| *key);
        }
        let mut out = String::from("{");
        for (index, (key, value)) in fields.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            let _ = write!(out, "{comma}\"{key}\": {value}");
        }
        out.push('}');
        out
    }
}

/// A string of JSON.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A list of JSON.
pub(super) fn list(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(", "))
}

/// What a node calls, and with what: the arguments of collectives are put together from what the graph knows.
pub(super) fn call(graph: &Graph, id: NodeId) -> (String, Args, Vec<String>) {
    let args = graph.args_of(id);
    let names = |target: &str, count: usize| -> Vec<String> {
        let known = schemas::parameters(target).unwrap_or_default();
        (0..count).map(|at| known.get(at).map_or_else(|| format!("arg{at}"), |&name| name.to_owned())).collect()
    };
    match graph.node(id).op {
        Op::Collective(collective) => collective_call(graph, id, collective),
        Op::Wait => {
            let of_list = graph.operands(id).first().is_some_and(|&of| matches!(graph.type_of(of), Type::Tuple(_)));
            let plural = if of_list || graph.waits_for_list(id) { "s" } else { "" };
            let target = format!("_c10d_functional.wait_tensor{plural}.default");
            let names = names(&target, args.positional.len());
            (target, args.clone(), names)
        }
        _ => {
            let target = graph.target_of(id);
            (target.to_owned(), args.clone(), names(target, args.positional.len()))
        }
    }
}

fn collective_call(graph: &Graph, id: NodeId, collective: Collective) -> (String, Args, Vec<String>) {
    let group = graph.group(collective.group);
    let legacy = legacy_group(graph, collective.group);
    let args = graph.args_of(id);
    let mut kept = args.positional.iter().cloned();
    let (mut full, mut names) = (Args::default(), Vec::new());
    let number = |number: u32| Arg::Int(i64::from(number));
    for parameter in parameters(collective.kind.name(), legacy.is_some()) {
        let value = match (parameter, collective.kind) {
            (Parameter::ReduceOp, kind) => kind.reduce_op().map(|op| Arg::Str(op.to_string().into())),
            (Parameter::GroupSize, _) => group.size.map(number),
            (Parameter::Root, CollectiveKind::Broadcast { root } | CollectiveKind::Reduce { root, .. }) => {
                Some(number(root))
            }
            (Parameter::Group, _) => {
                Some(args.get("group_name").cloned().unwrap_or_else(|| Arg::Str(group.name.clone())))
            }
            (Parameter::Tag, _) => legacy.map(|(tag, _)| Arg::Str(tag.into())),
            (Parameter::Ranks, _) => {
                let ranks = group.members.first().into_iter().flatten();
                Some(Arg::List(ranks.map(|rank| number(rank.0)).collect()))
            }
            _ => kept.next(),
        };
        full.positional.push(value.unwrap_or(Arg::None));
        names.push(parameter.schema_name(collective.coalesced).to_owned());
    }
    if let Some(out) = args.get("out") {
        full.keyword.push(("out".into(), out.clone()));
    }
    let namespace = namespace(args, legacy.is_some());
    (format!("{namespace}.{}.default", torch_name(collective)), full, names)
}

/// The target as the JSON has it.
pub(super) fn full_target(target: &str) -> String {
    let head = target.split('.').next().unwrap_or_default();
    match head {
        "operator" => format!("_{target}"),
        "torch" | "math" | "builtins" => target.to_owned(),
        _ => format!("torch.ops.{target}"),
    }
}

/// An argument as the JSON has it: a field of a union.
pub(super) fn argument(graph: &Graph, id: NodeId, arg: &Arg, name: &dyn Fn(NodeId) -> String, style: Style) -> String {
    let writer = Writer { graph, id, name, style };
    let (kind, value) = writer.argument(arg);
    format!("{{\"{kind}\": {value}}}")
}

struct Writer<'a> {
    graph: &'a Graph,
    id: NodeId,
    name: &'a dyn Fn(NodeId) -> String,
    style: Style,
}

impl Writer<'_> {
    fn argument(&self, arg: &Arg) -> (&'static str, String) {
        match arg {
            Arg::Operand(index) => self.operand(*index),
            Arg::Int(value) => ("as_int", value.to_string()),
            Arg::Float(text) => ("as_float", float(text)),
            Arg::Str(text) => ("as_string", quoted(&super::arguments::unescape(text))),
            Arg::Bool(value) => ("as_bool", value.to_string()),
            Arg::None => ("as_none", "true".into()),
            Arg::DType(dtype) => ("as_scalar_type", codes::dtype_code(*dtype).to_string()),
            Arg::Word(word) => self.word(word),
            Arg::List(items) | Arg::Tuple(items) => self.items(items),
            Arg::Apply(name, args) if &**name == "device" => ("as_device", self.device(args)),
            Arg::Apply(name, args) if &**name == "complex" => {
                let part = |key: &str| match args.get(key) {
                    Some(Arg::Float(text) | Arg::Word(text)) => float(text),
                    _ => "0.0".into(),
                };
                ("as_complex", self.style.object(vec![("real", part("real")), ("imag", part("imag"))]))
            }
            Arg::Apply(_, args) => {
                let fields = args.keyword.iter().map(|(key, arg)| {
                    let (kind, value) = self.argument(arg);
                    format!("{}: {{\"{kind}\": {value}}}", quoted(key))
                });
                ("as_string_to_argument", format!("{{{}}}", fields.collect::<Vec<_>>().join(", ")))
            }
        }
    }

    fn node(&self, index: u32) -> Option<NodeId> {
        self.graph.operands(self.id).get(index as usize).copied()
    }

    fn operand(&self, index: u32) -> (&'static str, String) {
        let Some(id) = self.node(index) else { return ("as_none", "true".into()) };
        let name = quoted(&(self.name)(id));
        match self.graph.type_of(id) {
            Type::SymInt(_) => ("as_sym_int", format!("{{\"as_name\": {name}}}")),
            Type::SymOther(_) => ("as_sym_float", format!("{{\"as_name\": {name}}}")),
            _ => ("as_tensor", format!("{{\"name\": {name}}}")),
        }
    }

    fn word(&self, word: &str) -> (&'static str, String) {
        if let Some(code) = codes::layout_code(word) {
            return ("as_layout", code.to_string());
        }
        if let Some(code) = codes::memory_format_code(word) {
            return ("as_memory_format", code.to_string());
        }
        match word {
            "inf" | "nan" => ("as_float", float(word)),
            _ => ("as_operator", quoted(word)),
        }
    }

    fn device(&self, args: &Args) -> String {
        let kind = args.at(0, "type").and_then(Arg::as_str).unwrap_or("cpu");
        let index = args.at(1, "index").and_then(Arg::as_int).map_or("null".into(), |index| index.to_string());
        self.style.object(vec![("type", quoted(kind)), ("index", index)])
    }

    /// A list, of the kind that fits all items.
    fn items(&self, items: &[Arg]) -> (&'static str, String) {
        let written: Vec<(&'static str, String)> = items.iter().map(|item| self.argument(item)).collect();
        let are = |kinds: &[&str]| written.iter().all(|(kind, _)| kinds.contains(kind));
        let values = || list(written.iter().map(|(_, value)| value.clone()));
        let unions = || list(written.iter().map(|(kind, value)| format!("{{\"{kind}\": {value}}}")));
        for (kind, of_list) in [
            ("as_int", "as_ints"),
            ("as_tensor", "as_tensors"),
            ("as_float", "as_floats"),
            ("as_bool", "as_bools"),
            ("as_string", "as_strings"),
            ("as_ints", "as_int_lists"),
            ("as_floats", "as_float_lists"),
            ("as_tensors", "as_nested_tensors"),
        ] {
            if are(&[kind]) {
                return (of_list, values());
            }
        }
        if are(&["as_tensor", "as_none"]) {
            return ("as_optional_tensors", unions());
        }
        // A symbolic item is a union itself, a constant one becomes one.
        let symbolic = written.iter().map(|(kind, value)| match *kind {
            "as_sym_int" | "as_sym_float" => value.clone(),
            kind => format!("{{\"{kind}\": {value}}}"),
        });
        let of_floats = are(&["as_sym_float", "as_float"]);
        (if of_floats { "as_sym_floats" } else { "as_sym_ints" }, list(symbolic))
    }
}

fn float(text: &str) -> String {
    match text {
        "inf" => "\"Infinity\"".into(),
        "-inf" => "\"-Infinity\"".into(),
        "nan" => "\"NaN\"".into(),
        text if serde_json::from_str::<f64>(text).is_ok() => text.into(),
        text => text.parse().map_or("\"NaN\"".into(), |value: f64| format!("{value:?}")),
    }
}
