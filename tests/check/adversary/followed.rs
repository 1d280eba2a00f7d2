//! Pairs of calls of operators whose meaning the checker follows, of which one argument differs.

use super::schema::{Parameter, Schema, schemas, values};

/// Their names in ATen and prims.
const NAMES: &[&str] = &[
    "split",
    "split_with_sizes",
    "chunk",
    "unbind",
    "cat",
    "concat",
    "concatenate",
    "_chunk_cat",
    "stack",
    "empty",
    "zeros",
    "ones",
    "full",
    "clone",
    "contiguous",
    "alias",
    "detach",
    "view",
    "reshape",
    "_unsafe_view",
    "unsqueeze",
    "squeeze",
    "permute",
    "t",
    "transpose",
    "swapaxes",
    "movedim",
    "expand",
    "broadcast_to",
    "flatten",
    "unflatten",
    "slice",
    "narrow",
    "select",
    "constant_pad_nd",
    "to",
    "_to_copy",
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "sym_size",
    "sym_numel",
    "convert_element_type",
];

/// Arguments by operator and name that fit tensors of four times four, each with others, which say something else. Of
/// other arguments the values of any operator do.
const FITTING: &[(&str, &str, &[&str])] = &[
    ("*", "dim", &["0", "1"]),
    ("*", "size", &["[4, 4]", "[2, 8]", "[16]", "[4, -1, 2]"]),
    ("*", "shape", &["[4, 4]", "[2, 8]", "[16]"]),
    ("*", "split_size", &["2", "1", "3"]),
    ("*", "split_sizes", &["[1, 3]", "[3, 1]", "[2, 2]"]),
    ("*", "chunks", &["2", "4", "1"]),
    ("*", "dims", &["[1, 0]", "[0, 1]"]),
    ("*", "start", &["1", "0", "2", "-1"]),
    ("*", "end", &["3", "4", "-2"]),
    ("*", "step", &["1", "2"]),
    ("*", "length", &["1", "2"]),
    ("*", "index", &["0", "1", "-1"]),
    ("*", "pad", &["[0, 1]", "[1, 0]", "[0, 0, 1, 0]", "[-1, 0]"]),
    ("*", "value", &["0", "1", "0.5"]),
    ("*", "fill_value", &["0", "1", "0.5"]),
    ("*", "num_chunks", &["2", "4"]),
    ("*", "dtype", &["f32", "bf16", "i32"]),
    ("*", "tensors", &["[x, y]", "[y, x]", "[x]", "[x, y, x]"]),
    ("*", "self", &["x", "y"]),
    ("*", "a", &["x", "y"]),
    ("*", "sizes", &["[2, 2]", "[4, 1]", "[1, 4]"]),
    ("*", "start_dim", &["0", "1"]),
    ("*", "memory_format", &["torch.contiguous_format", "torch.channels_last"]),
    ("transpose", "dim0", &["0", "1"]),
    ("transpose", "dim1", &["1", "0"]),
    ("movedim", "source", &["0", "1"]),
    ("movedim", "destination", &["1", "0"]),
];

/// All pairs, with these inputs.
pub fn pairs(inputs: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for schema in schemas().iter().filter(|schema| is_followed(schema)) {
        for (index, parameter) in schema.parameters.iter().enumerate() {
            if says_nothing(base(schema), &parameter.name) {
                continue;
            }
            let values = choices(schema, parameter);
            for (at, one) in values.iter().enumerate() {
                for other in &values[at + 1..] {
                    // A slice of all is the same along each dimension.
                    let of_all = base(schema) == "slice" && parameter.name == "dim";
                    for full in [false, true].into_iter().filter(|&full| full || !of_all) {
                        let write = |value: &str| {
                            Some(format!("{inputs}\nr = {}\noutput(r)", call(schema, index, value, full)?))
                        };
                        pairs.extend(write(one).zip(write(other)));
                    }
                }
            }
        }
    }
    pairs
}

/// Calls that give views of `base`, with arguments that fit it.
pub fn views(base: &str) -> Vec<String> {
    let schemas = schemas();
    let views = schemas.iter().filter(|schema| is_followed(schema) && schema.makes_view && schema.viewed() == Some(0));
    let tensors = views.filter(|schema| schema.parameters[0].ty == "Tensor");
    let calls = tensors.flat_map(|schema| [false, true].map(|full| call(schema, 0, base, full)));
    let mut calls: Vec<String> = calls.flatten().collect();
    calls.dedup();
    calls
}

fn base(schema: &Schema) -> &str {
    schema.target.split('.').nth(1).unwrap_or("")
}

fn is_followed(schema: &Schema) -> bool {
    let namespace = schema.target.split('.').next().unwrap_or("");
    NAMES.contains(&base(schema)) && matches!(namespace, "aten" | "prims") && !schema.writes()
}

/// Arguments of which another says the same of these tensors: those of which only the shape is read, and dimensions of
/// squares, or of none of size one.
fn says_nothing(base: &str, name: &str) -> bool {
    let reads_shape = base.ends_with("_like") || base.starts_with("new_") || base.starts_with("sym_");
    reads_shape && name == "self" || matches!((base, name), ("sym_size" | "squeeze", "dim"))
}

fn choices(schema: &Schema, parameter: &Parameter) -> Vec<String> {
    let base = base(schema);
    let known = FITTING.iter().find(|(of, name, _)| (*of == base || *of == "*") && *name == parameter.name);
    match known {
        Some((_, _, values)) => values.iter().map(|&value| value.to_owned()).collect(),
        None => values(parameter, "x", "y").map_or_else(Vec::new, |(a, b)| vec![a, b]),
    }
}

/// A call with a value for one argument. The others take their first, or are left out where they may be, unless it is
/// to be `full`.
fn call(schema: &Schema, index: usize, value: &str, full: bool) -> Option<String> {
    let mut written = Vec::new();
    for (at, parameter) in schema.parameters.iter().enumerate() {
        let needed = parameter.default.is_none() || full && !parameter.by_name;
        let value = match at == index {
            true => value.to_owned(),
            false if needed => choices(schema, parameter).first()?.clone(),
            false => continue,
        };
        let by_place = !parameter.by_name && written.len() == at;
        written.push(if by_place { value } else { format!("{}={value}", parameter.name) });
    }
    Some(format!("{}({})", schema.target, written.join(", ")))
}
