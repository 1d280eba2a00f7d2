//! The parts of torch.export's JSON that are understood (`torch/_export/serde/schema.py`, version 8); all else is kept
//! as text.

use super::error::{Fault, offset};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::marker::PhantomData;

/// The major version of the schema that is read. Minor versions add fields only.
pub(super) const MAJOR: u64 = 8;

#[derive(serde::Deserialize)]
pub(super) struct Head<'a> {
    #[serde(borrow)]
    pub schema_version: Option<&'a RawValue>,
}

#[derive(serde::Deserialize)]
pub(super) struct Version {
    pub major: u64,
    pub minor: u64,
}

#[derive(serde::Deserialize)]
pub(super) struct Program<'a> {
    #[serde(borrow)]
    pub graph_module: Module<'a>,
}

#[derive(serde::Deserialize)]
pub(super) struct Module<'a> {
    #[serde(borrow)]
    pub graph: GraphRecord<'a>,
    #[serde(borrow)]
    pub signature: Signature<'a>,
    #[serde(borrow, default)]
    pub module_call_graph: Option<&'a RawValue>,
}

#[derive(serde::Deserialize)]
pub(super) struct Signature<'a> {
    #[serde(borrow)]
    pub input_specs: Vec<&'a RawValue>,
    #[serde(borrow)]
    pub output_specs: Vec<&'a RawValue>,
}

#[derive(serde::Deserialize)]
pub(super) struct GraphRecord<'a> {
    #[serde(borrow)]
    pub inputs: Vec<&'a RawValue>,
    #[serde(borrow)]
    pub outputs: Vec<&'a RawValue>,
    #[serde(borrow)]
    pub nodes: &'a RawValue,
    #[serde(borrow)]
    pub tensor_values: &'a RawValue,
    #[serde(borrow)]
    pub sym_int_values: &'a RawValue,
    #[serde(borrow, default)]
    pub sym_float_values: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub sym_bool_values: Option<&'a RawValue>,
}

#[derive(serde::Deserialize)]
pub(super) struct NodeRecord<'a> {
    pub target: String,
    #[serde(borrow)]
    pub inputs: Vec<InputRecord<'a>>,
    #[serde(borrow)]
    pub outputs: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    pub metadata: Option<&'a RawValue>,
    #[serde(default)]
    pub is_hop_single_tensor_return: Option<bool>,
    #[serde(default)]
    pub name: Option<String>,
}

#[derive(serde::Deserialize)]
pub(super) struct InputRecord<'a> {
    pub name: String,
    #[serde(borrow)]
    pub arg: &'a RawValue,
    #[serde(default)]
    pub kind: Option<u32>,
}

/// How an argument is handed over: `kind` of an input.
pub(super) const POSITIONAL: u32 = 1;
pub(super) const KEYWORD: u32 = 2;

#[derive(serde::Deserialize)]
pub(super) struct Named {
    pub name: String,
}

#[derive(serde::Deserialize)]
pub(super) struct DeviceRecord {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub index: Option<i64>,
}

#[derive(serde::Deserialize)]
pub(super) struct TensorRecord<'a> {
    pub dtype: u32,
    #[serde(borrow)]
    pub sizes: Vec<&'a RawValue>,
    pub device: DeviceRecord,
    #[serde(borrow)]
    pub strides: Vec<&'a RawValue>,
    #[serde(borrow)]
    pub storage_offset: &'a RawValue,
    pub layout: u32,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SymInt {
    AsInt(i64),
    AsExpr(ExprRecord),
}

#[derive(serde::Deserialize)]
pub(super) struct ExprRecord {
    pub expr_str: String,
    #[serde(default)]
    pub hint: Option<serde_json::Value>,
}

#[derive(serde::Deserialize)]
pub(super) struct SubgraphRecord<'a> {
    pub name: String,
    #[serde(borrow)]
    pub graph: GraphRecord<'a>,
}

#[derive(serde::Deserialize)]
pub(super) struct ConstantInput {
    pub constant_input: Named,
}

/// An object as a list, in the order of the text, with doublets.
pub(super) struct Entries<'a>(pub Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<'a>(PhantomData<&'a ()>);
        impl<'de> Visitor<'de> for List<'de> {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(List(PhantomData))
    }
}

/// Reads a part of a text.
pub(super) fn parse<'a, T: Deserialize<'a>>(text: &str, part: &'a RawValue) -> Result<T, Fault> {
    serde_json::from_str(part.get()).map_err(|error| Fault::of_json(part.get(), offset(text, part), &error))
}

/// Reads an object with one field: the name of the field, and what it holds.
pub(super) fn union<'a>(text: &str, part: &'a RawValue) -> Result<(String, &'a RawValue), Fault> {
    let mut entries = parse::<Entries<'a>>(text, part)?.0;
    match (entries.pop(), entries.is_empty()) {
        (Some(entry), true) => Ok(entry),
        _ => Err(Fault::new(offset(text, part), "an argument has one field, its kind", "such as {\"as_int\": 4}")),
    }
}
