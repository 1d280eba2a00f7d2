//! Profiles and measured times as JSON: `docs/costs.md` names every field.

use super::costs::{CopyCost, CostError, Map, MessageCost, Piece};
use super::nccl::Architecture;
use super::profile::{Class, ClassCosts, KINDS, Profile, Rates};
use serde::{Deserialize, Serialize};

const PROFILE: &str = "bucketeer-profile-1";
const TIMES: &str = "bucketeer-times-1";

/// Why a text is not a profile, or not times.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field holds")]
#[non_exhaustive]
pub enum ProfileJsonError {
    #[error("the JSON does not hold a document of schema `{schema}`: {error}")]
    Shape { schema: &'static str, error: serde_json::Error },
    #[error("found schema `{found}`, expected `{schema}`")]
    Schema { schema: &'static str, found: String },
    #[error("`{field}`: found {found}, expected {expected}")]
    Number { field: &'static str, found: u64, expected: &'static str },
    #[error("class of {class}: expected ranks on at most as many nodes, and no more than `gpus_per_node` on each")]
    Class { class: Class },
    #[error("class of {class}: found twice")]
    Twice { class: Class },
    #[error("class of {class}: found costs for `{kind}`, expected one of {}", KINDS.map(|kind| kind.name()).join(", "))]
    Kind { class: Class, kind: String },
    #[error("class of {class}, {kind}: {error}")]
    Cost { class: Class, kind: String, error: Box<CostError> },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileDocument<Row> {
    schema: String,
    name: Box<str>,
    #[serde(default)]
    label: Box<str>,
    #[serde(default)]
    source: Box<str>,
    gpus_per_node: u32,
    copy: CopyCost,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rates: Option<Rates>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nccl: Option<Architecture>,
    classes: Vec<Row>,
}

/// A row as it is read: what is wrong with a cost is said with its kind and class.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadRow {
    class: Class,
    costs: Map<Vec<Piece>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TimesDocument {
    schema: String,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    source: Box<str>,
    ns: Map<u64>,
}

fn positive(fields: &[(&'static str, u64)]) -> Result<(), ProfileJsonError> {
    match fields.iter().find(|(_, found)| *found == 0) {
        Some(&(field, found)) => Err(ProfileJsonError::Number { field, found, expected: "at least 1" }),
        None => Ok(()),
    }
}

fn of_schema(schema: &'static str, found: String) -> Result<(), ProfileJsonError> {
    if found == schema { Ok(()) } else { Err(ProfileJsonError::Schema { schema, found }) }
}

fn check_rates(rates: &Rates) -> Result<(), ProfileJsonError> {
    positive(&[
        ("rates.f64_flops_per_s", rates.f64_flops_per_s),
        ("rates.f32_flops_per_s", rates.f32_flops_per_s),
        ("rates.f16_flops_per_s", rates.f16_flops_per_s),
        ("rates.f8_flops_per_s", rates.f8_flops_per_s),
        ("rates.int_flops_per_s", rates.int_flops_per_s),
        ("rates.memory_bytes_per_s", rates.memory_bytes_per_s),
    ])?;
    match rates.achieved_permille {
        1..=1000 => Ok(()),
        found => Err(ProfileJsonError::Number {
            field: "rates.achieved_permille",
            found: found.into(),
            expected: "1 to 1000",
        }),
    }
}

/// A row with its costs checked.
fn checked(row: ReadRow, gpus_per_node: u32) -> Result<ClassCosts, ProfileJsonError> {
    let class = row.class;
    let room = u64::from(class.nodes) * u64::from(gpus_per_node);
    if class.nodes == 0 || class.nodes > class.ranks || u64::from(class.ranks) > room {
        return Err(ProfileJsonError::Class { class });
    }
    let costs = row.costs.into_iter().map(|(kind, pieces)| {
        if !KINDS.iter().any(|known| known.name() == &*kind) {
            return Err(ProfileJsonError::Kind { class, kind: kind.into() });
        }
        match MessageCost::new(pieces) {
            Ok(cost) => Ok((kind, cost)),
            Err(error) => Err(ProfileJsonError::Cost { class, kind: kind.into(), error: Box::new(error.into()) }),
        }
    });
    Ok(ClassCosts { class, costs: costs.collect::<Result<_, _>>()? })
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// [`ProfileJsonError`], naming the field, or the class and kind.
    pub fn from_json(text: &str) -> Result<Self, ProfileJsonError> {
        let shape = |error| ProfileJsonError::Shape { schema: PROFILE, error };
        let document: ProfileDocument<ReadRow> = serde_json::from_str(text).map_err(shape)?;
        of_schema(PROFILE, document.schema)?;
        let ProfileDocument { name, label, source, gpus_per_node, copy, rates, nccl, .. } = document;
        positive(&[("gpus_per_node", gpus_per_node.into()), ("copy.ns_per_byte_den", copy.ns_per_byte_den)])?;
        rates.as_ref().map_or(Ok(()), check_rates)?;
        let mut classes: Vec<ClassCosts> = Vec::with_capacity(document.classes.len());
        for row in document.classes {
            let row = checked(row, gpus_per_node)?;
            if classes.iter().any(|known| known.class == row.class) {
                return Err(ProfileJsonError::Twice { class: row.class });
            }
            classes.push(row);
        }
        Ok(Self { name, label, source, gpus_per_node, copy, rates, nccl, classes })
    }

    /// Writes a profile.
    #[must_use]
    pub fn to_json(&self) -> String {
        let Self { name, label, source, gpus_per_node, copy, rates, nccl, classes } = self.clone();
        let schema = PROFILE.to_owned();
        written(&ProfileDocument { schema, name, label, source, gpus_per_node, copy, rates, nccl, classes })
    }
}

/// Reads measured times: nanoseconds by node.
///
/// # Errors
/// [`ProfileJsonError`], naming what the text has instead.
pub fn times_from_json(text: &str) -> Result<Map<u64>, ProfileJsonError> {
    let shape = |error| ProfileJsonError::Shape { schema: TIMES, error };
    let document: TimesDocument = serde_json::from_str(text).map_err(shape)?;
    of_schema(TIMES, document.schema)?;
    Ok(document.ns)
}

/// Writes times, and where they come from.
#[must_use]
pub fn times_to_json(ns: &Map<u64>, source: &str) -> String {
    written(&TimesDocument { schema: TIMES.to_owned(), source: source.into(), ns: ns.clone() })
}

fn written(document: &impl Serialize) -> String {
    // The documents hold numbers and strings alone, which JSON can always write.
    serde_json::to_string_pretty(document).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
        "schema": "bucketeer-profile-1", "name": "two", "gpus_per_node": 2,
        "copy": {"fixed_ns": 5, "ns_per_byte_num": 2, "ns_per_byte_den": 3352},
        "rates": {"f64_flops_per_s": 1, "f32_flops_per_s": 2, "f16_flops_per_s": 3, "f8_flops_per_s": 4,
            "int_flops_per_s": 5, "achieved_permille": 750, "memory_bytes_per_s": 6},
        "classes": [{"class": {"ranks": 2, "nodes": 1}, "costs": {"all_gather": [
            {"alpha_ns": 7, "ns_per_byte_num": 8, "ns_per_byte_den": 9}]}}]
    }"#;

    #[test]
    fn every_profile_that_is_built_in_reads_as_it_was_written() {
        for name in Profile::names() {
            let profile = Profile::named(name).unwrap();
            let text = profile.to_json();
            assert_eq!(Profile::from_json(&text).unwrap(), profile, "{name}");
        }
        let profile = Profile::from_json(TEXT).unwrap();
        let int_rate = profile.rates.map(|rates| rates.int_flops_per_s);
        assert_eq!((int_rate, profile.copy.fixed_ns, profile.nccl), (Some(5), 5, None));
        let named = TEXT.replace("\"gpus_per_node\"", "\"nccl\": \"hopper\", \"gpus_per_node\"");
        assert_eq!(Profile::from_json(&named).unwrap().nccl, Some(Architecture::Hopper));
    }

    #[test]
    fn rates_may_be_left_out_or_null() {
        let (start, end) = (TEXT.find("\"rates\"").unwrap(), TEXT.find("\"classes\"").unwrap());
        for rates in ["", "\"rates\": null, "] {
            let text = format!("{}{rates}{}", &TEXT[..start], &TEXT[end..]);
            let profile = Profile::from_json(&text).unwrap();
            assert_eq!(profile.rates, None);
            let written = profile.to_json();
            assert!(!written.contains("rates"), "{written}");
            assert_eq!(Profile::from_json(&written).unwrap(), profile);
        }
    }

    #[test]
    fn what_is_no_profile_is_refused_by_field_class_and_kind() {
        for (from, to, expected) in [
            ("profile-1", "profile-2", "found schema `bucketeer-profile-2`, expected `bucketeer-profile-1`"),
            ("\"name\"", "\"nane\"", "unknown field `nane`"),
            ("\"alpha_ns\"", "\"alpha\"", "unknown field `alpha`"),
            ("\"f8_flops_per_s\": 4,", "", "missing field `f8_flops_per_s`"),
            ("\"gpus_per_node\": 2", "\"gpus_per_node\": 0", "`gpus_per_node`: found 0, expected at least 1"),
            ("3352", "0", "`copy.ns_per_byte_den`: found 0, expected at least 1"),
            ("750", "1001", "`rates.achieved_permille`: found 1001, expected 1 to 1000"),
            ("_per_s\": 6", "_per_s\": 0", "`rates.memory_bytes_per_s`: found 0, expected at least 1"),
            ("\"ranks\": 2", "\"ranks\": 3", "class of 3 ranks on 1 node: expected ranks on at most as many nodes"),
            ("\"nodes\": 1", "\"nodes\": 0", "class of 2 ranks on 0 nodes: expected"),
            ("all_gather", "all_gathers", "class of 2 ranks on 1 node: found costs for `all_gathers`, expected one of"),
            ("_den\": 9", "_den\": 0", "class of 2 ranks on 1 node, all_gather: a message cost has 1 pieces, or one"),
            ("\"alpha_ns\": 7", "\"alpha_ns\": -7", "invalid value: integer `-7`"),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let error = Profile::from_json(&TEXT.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
        let (start, end) = (TEXT.find("{\"class\"").unwrap(), TEXT.rfind(']').unwrap());
        let twice = format!("{}, {}", &TEXT[..end], &TEXT[start..]);
        assert_eq!(Profile::from_json(&twice).unwrap_err().to_string(), "class of 2 ranks on 1 node: found twice");
        let pieces = format!("[{}]", [r#"{"alpha_ns": 1, "ns_per_byte_num": 1, "ns_per_byte_den": 1}"#; 9].join(","));
        let (start, end) = (
            TEXT.find("[\n            {\"alpha").unwrap_or_else(|| TEXT.find("[\n").unwrap()),
            TEXT.find("}]}}").unwrap(),
        );
        let many = format!("{}{pieces}{}", &TEXT[..start], &TEXT[end + 2..]);
        assert!(Profile::from_json(&many).unwrap_err().to_string().contains("has 9 pieces"), "{many}");
    }

    #[test]
    fn times_read_as_they_were_written() {
        let ns: Map<u64> = [("mm".into(), 12), ("add".into(), 0)].into_iter().collect();
        assert_eq!(times_from_json(&times_to_json(&ns, "a test")).unwrap(), ns);
        let error = times_from_json(r#"{"schema": "bucketeer-times-2", "ns": {}}"#).unwrap_err().to_string();
        assert_eq!(error, "found schema `bucketeer-times-2`, expected `bucketeer-times-1`");
        let error = times_from_json(r#"{"schema": "bucketeer-times-1", "ns": {"mm": 1.5}}"#).unwrap_err().to_string();
        assert!(error.contains("floating point `1.5`"), "{error}");
        let error = times_from_json(r#"{"schema": "bucketeer-times-1", "us": {}}"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `us`"), "{error}");
    }
}
