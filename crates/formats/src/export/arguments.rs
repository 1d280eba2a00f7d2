//! Arguments of nodes, from JSON: `{"as_tensor": {"name": "x"}}`.

use super::codes;
use super::error::{Fault, offset};
use super::records::{DeviceRecord, Entries, GraphRecord, Named, SubgraphRecord, parse, union};
use bucketeer::ir::{Arg, Args, NodeId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use serde_json::value::RawValue;

/// Deepest nesting of dictionaries that is followed.
const MAX_DEPTH: u32 = 16;

/// Values of a graph by name.
pub(super) type Values = HashMap<String, NodeId, FxBuildHasher>;

/// A graph inside of an argument.
pub(super) struct Subgraph<'a> {
    pub name: String,
    pub graph: GraphRecord<'a>,
    pub at: usize,
}

/// Reads the arguments of one node.
pub(super) struct ArgumentReader<'a, 'v> {
    pub text: &'a str,
    pub values: &'v Values,
    /// The operands met, in order.
    pub operands: Vec<NodeId>,
    /// The graphs met, in order.
    pub subgraphs: Vec<Subgraph<'a>>,
}

impl<'a, 'v> ArgumentReader<'a, 'v> {
    pub fn new(text: &'a str, values: &'v Values) -> Self {
        Self { text, values, operands: Vec::new(), subgraphs: Vec::new() }
    }

    pub fn read(&mut self, part: &'a RawValue) -> Result<Arg, Fault> {
        self.argument(part, 0)
    }

    fn argument(&mut self, part: &'a RawValue, depth: u32) -> Result<Arg, Fault> {
        let (kind, value) = union(self.text, part)?;
        if depth > MAX_DEPTH {
            return Err(Fault::new(offset(self.text, part), "arguments nest too deeply", "at most 16 levels"));
        }
        if let Some(item) = kind.strip_suffix("_lists") {
            return self.list(value, |reader, part| reader.list(part, |reader, part| reader.scalar(item, part)));
        }
        match &*kind {
            "as_nested_tensors" => self.list(value, |reader, part| reader.list(part, Self::tensor)),
            "as_tensors" => self.list(value, Self::tensor),
            "as_optional_tensors" => self.list(value, |reader, part| reader.argument(part, depth + 1)),
            "as_optional_tensor" => self.argument(value, depth + 1),
            "as_sym_int" | "as_sym_float" | "as_sym_bool" => self.symbolic(value),
            "as_sym_ints" | "as_sym_floats" | "as_sym_bools" => self.list(value, Self::symbolic),
            "as_ints" | "as_floats" | "as_bools" | "as_strings" => {
                self.list(value, |reader, part| reader.scalar(&kind[..kind.len() - 1], part))
            }
            "as_graph" => {
                let SubgraphRecord { name, graph } = parse(self.text, value)?;
                self.subgraphs.push(Subgraph { name: name.clone(), graph, at: offset(self.text, value) });
                Ok(Arg::Word(name.into()))
            }
            "as_string_to_argument" => {
                let entries = parse::<Entries<'a>>(self.text, value)?.0;
                let mut keyword = Vec::with_capacity(entries.len());
                for (key, part) in entries {
                    keyword.push((key.into(), self.argument(part, depth + 1)?));
                }
                Ok(Arg::Apply("dict".into(), Args { positional: Vec::new(), keyword }))
            }
            kind => self.scalar(kind, value),
        }
    }

    fn list(
        &mut self,
        part: &'a RawValue,
        item: impl Fn(&mut Self, &'a RawValue) -> Result<Arg, Fault>,
    ) -> Result<Arg, Fault> {
        let parts: Vec<&'a RawValue> = parse(self.text, part)?;
        let items = parts.into_iter().map(|part| item(self, part)).collect::<Result<_, _>>()?;
        Ok(Arg::List(items))
    }

    fn scalar(&mut self, kind: &str, part: &'a RawValue) -> Result<Arg, Fault> {
        let text = self.text;
        let word = |found: Option<&'static str>| {
            found.map(|word| Arg::Word(word.into())).ok_or_else(|| {
                Fault::new(
                    offset(text, part),
                    format!("`{}` is not a code of this kind", part.get()),
                    "one of schema 8",
                )
            })
        };
        Ok(match kind {
            "as_none" => Arg::None,
            "as_tensor" => return self.tensor(part),
            "as_custom_obj" => {
                let name = parse::<Named>(text, part)?.name;
                match self.values.get(&name) {
                    Some(&id) => self.push(id),
                    None => Arg::Word(name.into()),
                }
            }
            "as_int" => Arg::Int(parse(text, part)?),
            "as_float" => self.float(part)?,
            "as_bool" => Arg::Bool(parse(text, part)?),
            "as_string" => Arg::Str(escape(&parse::<String>(text, part)?).into()),
            "as_operator" => Arg::Word(parse::<String>(text, part)?.into()),
            "as_scalar_type" => match codes::dtype(parse(text, part)?) {
                Some(dtype) => Arg::DType(dtype),
                None => return word(None),
            },
            "as_layout" => word(codes::layout(parse(text, part)?))?,
            "as_memory_format" => word(codes::memory_format(parse(text, part)?))?,
            "as_device" => device(&parse(text, part)?),
            "as_complex" => {
                let entries = parse::<Entries<'a>>(text, part)?.0;
                let mut keyword = Vec::new();
                for (key, part) in entries {
                    keyword.push((key.into(), self.float(part)?));
                }
                Arg::Apply("complex".into(), Args { positional: Vec::new(), keyword })
            }
            kind => {
                let problem = format!("`{kind}` is not a kind of argument that schema 8 has");
                return Err(Fault::new(offset(text, part), problem, "as_tensor, as_int, as_string and the like"));
            }
        })
    }

    fn push(&mut self, id: NodeId) -> Arg {
        self.operands.push(id);
        Arg::Operand(self.operands.len() as u32 - 1)
    }

    fn named(&mut self, name: &str, at: usize) -> Result<Arg, Fault> {
        match self.values.get(name) {
            Some(&id) => Ok(self.push(id)),
            None => {
                let problem = format!("use of `{name}`, which is not defined before this node");
                Err(Fault::new(at, problem, "an input of the graph or an output of an earlier node"))
            }
        }
    }

    fn tensor(&mut self, part: &'a RawValue) -> Result<Arg, Fault> {
        let name = parse::<Named>(self.text, part)?.name;
        self.named(&name, offset(self.text, part))
    }

    fn symbolic(&mut self, part: &'a RawValue) -> Result<Arg, Fault> {
        let (kind, value) = union(self.text, part)?;
        if kind == "as_name" {
            let name: String = parse(self.text, value)?;
            return self.named(&name, offset(self.text, value));
        }
        self.scalar(&kind, value)
    }

    /// Python writes a float as JSON does, but for those that are not numbers.
    fn float(&self, part: &RawValue) -> Result<Arg, Fault> {
        let text = part.get();
        Ok(match text {
            "\"Infinity\"" => Arg::Word("inf".into()),
            "\"-Infinity\"" => Arg::Float("-inf".into()),
            "\"NaN\"" => Arg::Word("nan".into()),
            _ => {
                parse::<f64>(self.text, part)?;
                let point = if text.contains(['.', 'e', 'E']) { "" } else { ".0" };
                Arg::Float(format!("{text}{point}").into())
            }
        })
    }
}

fn device(record: &DeviceRecord) -> Arg {
    let mut keyword: Vec<(Box<str>, Arg)> = vec![("type".into(), Arg::Str(escape(&record.kind).into()))];
    if let Some(index) = record.index {
        keyword.push(("index".into(), Arg::Int(index)));
    }
    Arg::Apply("device".into(), Args { positional: Vec::new(), keyword })
}

/// A string as Python writes it between single quotes.
fn escape(text: &str) -> String {
    if !text.contains(['\\', '\'', '\n', '\r', '\t']) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out
}

/// What [`escape`] was given.
pub(super) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some(c @ ('\\' | '\'' | '"')) => out.push(c),
            other => {
                out.push('\\');
                out.extend(other);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_through_pythons_escapes() {
        for text in ["avg", "it's", "a\\b\n\t\r", "\\'", "\"x\""] {
            assert_eq!(unescape(&escape(text)), text);
        }
    }
}
