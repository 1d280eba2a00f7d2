//! Runs of PyTorch's DDP, recorded: this reducer has to launch the same, at the same marks, and make the same gradients.
//!
//! A case is read by what it holds, not by its name, but where the recording shows a fault of PyTorch's: those are listed in
//! [`DIFFERENT`], with what is done instead. `fixtures/reducer/README.md` says how recordings are written.

mod hooks;
mod join;
mod run;

use crate::values::{pick, real};
use crate::{Case, Rank, folder};
use bucketeer_reducer::{Caps, Divide, Param, ReducerOptions, SmallBucket, Unused, Wire};
use bucketeer_types::DType;
use serde_json::Value;
use std::sync::Arc;

/// The files of whole runs.
const FILES: [&str; 4] = ["ddp_models.json", "ddp_traces.json", "ddp_hooks.json", "ddp_errors.json"];

/// Recordings in which PyTorch is wrong: the case that says so, and what this reducer does.
pub const DIFFERENT: &[(&str, &str)] = &[
    ("two_forwards_two_backwards", "RED-9: a second backward has no step, so it cannot mark; the types stop it"),
    ("one_forward_two_backwards", "RED-9: a mark after `finish` is refused"),
    ("no_sync_static", "RED-11: local steps come before the first reduced one of a static graph"),
    ("sparse_unused", "RED-7: an unused sparse parameter gives no rows"),
    ("hook_raises", "RED-19: the step fails, and later ones say that the reducer is broken"),
    ("hook_static_index", "RED-21: buckets are numbered in the first step, too"),
    ("join_stale_map", "RED-29: nothing is written where no rank used it"),
    ("join_live_hook", "RED-28: the hook's divisor is the number of ranks with data"),
    ("join_zero_inputs", "RED-31: the first rank that had a step gives the order"),
    ("ctor_dtype", "RED-33: every rank is told both dtypes"),
];

/// A recorded case, read.
pub struct Recording {
    name: String,
    ranks: usize,
    value: Value,
}

impl Recording {
    fn params(&self, rank: usize) -> Vec<Param> {
        self.list("params", rank).iter().map(param).collect()
    }

    fn list(&self, key: &str, rank: usize) -> Vec<Value> {
        self.value.get(key).map(|list| pick(list, rank)).and_then(Value::as_array).cloned().unwrap_or_default()
    }

    fn is_different(&self) -> bool {
        DIFFERENT.iter().any(|(name, _)| *name == self.name)
    }

    fn option(&self, key: &str, rank: usize) -> bool {
        pick(&self.value["options"], rank).get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// What DDP was given, in this reducer's words.
    fn options(&self, rank: usize) -> ReducerOptions {
        let mut options = ReducerOptions::default();
        let empty = serde_json::Map::new();
        let given = pick(&self.value["options"], rank).as_object().unwrap_or(&empty);
        let number = |value: &Value| value.as_u64().expect("bytes");
        let (mut first, mut rest) = (1 << 20, 25 << 20);
        for (key, value) in given {
            match &**key {
                key if key.starts_with("bucket_cap") && key.ends_with("bytes") => {
                    options.caps = match value.as_array() {
                        Some(list) => Caps::List(list.iter().map(number).collect()),
                        None => Caps::bytes(number(value)),
                    }
                }
                "default_first_bucket_bytes" => first = number(value),
                "default_bucket_bytes" => rest = number(value),
                "env" => {
                    assert_eq!(value["DDP_SET_LAST_BUCKET_CAP"], "1", "{}: {value}", self.name);
                    options.small_bucket = SmallBucket::Last;
                }
                "find_unused_parameters" if value.as_bool() == Some(true) => options.unused = Unused::Average,
                "skip_all_reduce_unused_params" if value.as_bool() == Some(true) => options.unused = Unused::Skip,
                "static_graph" => options.static_graph = value.as_bool() == Some(true),
                "mixed_precision" => options.wire = Some(Wire { dtype: DType::Bf16, divide: Divide::OnWire }),
                // Where gradients lie, and what is sent beside them, is the case's own to play.
                "gradient_as_bucket_view"
                | "batched_grad_copy"
                | "lazy_bucket_allocation"
                | "init_sync"
                | "forward_sync_buffers"
                | "broadcast_buffers"
                | "find_unused_parameters" => {}
                other => panic!("{}: option {other} is not known", self.name),
            }
        }
        if given.contains_key("default_first_bucket_bytes") {
            options.caps = Caps::Bytes { first, rest };
        }
        options
    }
}

fn param(value: &Value) -> Param {
    let words = |key: &str| value[key].as_array().expect("numbers").iter().map(|one| one.as_u64().expect("a number"));
    let dtype = value["dtype"].as_str().and_then(DType::from_name).expect("a dtype");
    let shape: Vec<u64> = words("shape").collect();
    let mut param = Param::new(value["name"].as_str().expect("a name"), &shape, dtype);
    if value.get("stride").is_some() {
        param = param.with_strides(&words("stride").collect::<Vec<_>>());
    }
    if value.get("sparse").and_then(Value::as_bool) == Some(true) { param.sparse() } else { param }
}

/// Bytes of an element's reals.
fn real_bytes(dtype: DType) -> usize {
    real(dtype).0.bytes() as usize
}

/// All recordings of whole runs.
///
/// # Panics
/// Where one cannot be read.
#[must_use]
pub fn all() -> Vec<Recording> {
    let mut all = Vec::new();
    for file in FILES {
        let path = folder().join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let cases: Vec<Value> =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        all.extend(cases.into_iter().map(|value| Recording {
            name: value["name"].as_str().expect("a name").to_owned(),
            ranks: value["world"].as_u64().expect("a number of ranks") as usize,
            value,
        }));
    }
    all
}

/// The recordings as cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |recording: Recording| {
        let recording = Arc::new(recording);
        let name = format!("recorded {}", recording.name);
        Case { name, ranks: recording.ranks, run: Box::new(move |rank| play(&recording, rank)) }
    };
    all().into_iter().map(case).collect()
}

fn play(recording: &Recording, rank: &Rank) {
    let is = |key: &str| recording.value.get(key).is_some();
    if is("ctor_error") || is("ends") {
        run::construction(recording, rank);
    } else if is("shadow_and_end") || recording.name.starts_with("join") {
        join::play(recording, rank);
    } else {
        run::play(recording, rank);
    }
}
