//! The collectives of a StableHLO module.

use crate::fault::InputFault;
use crate::output;
use crate::table::{Align, Table};
use crate::units::{count, human, human_or_unknown};
use anyhow::Result;
use bucketeer_formats::stablehlo::{StableCollective, collectives};

/// Finds them.
pub fn find(label: &str, bytes: &[u8]) -> Result<Vec<StableCollective>> {
    let text = std::str::from_utf8(bytes).map_err(|error| InputFault::of_file(label, error))?;
    collectives(text).map_err(|error| InputFault::of_file(label, error).into())
}

/// As JSON text.
pub fn json(found: &[StableCollective]) -> Result<String> {
    let list: Vec<serde_json::Value> = found.iter().map(as_json).collect();
    output::json(&serde_json::json!({
        "format": "bucketeer-inspect",
        "version": 1,
        "input_format": "stablehlo",
        "collectives": list,
    }))
}

/// For people, line by line.
pub fn listing(found: &[StableCollective]) -> Vec<String> {
    let mut lines = vec![format!("StableHLO: {}", count(found.len(), "collective"))];
    if !found.is_empty() {
        lines.extend(table(found));
        let known: u64 = found.iter().filter_map(|one| one.bytes).fold(0, u64::saturating_add);
        let unknown = found.iter().filter(|one| one.bytes.is_none()).count();
        let rest = if unknown > 0 { format!(", without {unknown} of unknown size") } else { String::new() };
        lines.push(format!("bytes: {}{rest}", human(known)));
    }
    lines
}

/// What else there is to say of it.
pub const ONLY_LOOKED_AT: &str =
    "StableHLO is only looked at; rewriting happens on HLO text: `lowered.compile().as_text()`";

fn as_json(one: &StableCollective) -> serde_json::Value {
    serde_json::json!({
        "name": one.name,
        "kind": one.kind,
        "reduction": one.reduction,
        "function": one.function,
        "line": one.line,
        "groups": one.groups,
        "group_size": one.group_size,
        "dtype": one.dtype.map(bucketeer::ir::DType::torch_name),
        "bytes": one.bytes,
    })
}

/// Groups of many ranks are cut in the middle.
fn short(groups: &str) -> String {
    const MOST: usize = 40;
    let letters: Vec<char> = groups.chars().collect();
    if letters.len() <= MOST {
        return groups.to_owned();
    }
    let end: String = letters[letters.len() - MOST / 4..].iter().collect();
    format!("{}...{end}", letters[..MOST * 3 / 4].iter().collect::<String>())
}

fn table(found: &[StableCollective]) -> Vec<String> {
    let mut table = Table::new(&[
        ("collective", Align::Left),
        ("kind", Align::Left),
        ("op", Align::Left),
        ("function", Align::Left),
        ("line", Align::Right),
        ("groups", Align::Left),
        ("ranks", Align::Right),
        ("dtype", Align::Left),
        ("bytes", Align::Right),
    ]);
    let dash = || "-".to_owned();
    for one in found {
        table.row([
            one.name.clone(),
            one.kind.to_owned(),
            one.reduction.clone().unwrap_or_else(dash),
            one.function.clone(),
            one.line.to_string(),
            short(&one.groups),
            one.group_size.map_or_else(|| "?".to_owned(), |size| size.to_string()),
            one.dtype.map_or_else(dash, |dtype| dtype.torch_name().to_owned()),
            human_or_unknown(one.bytes),
        ]);
    }
    table.lines(usize::MAX)
}
