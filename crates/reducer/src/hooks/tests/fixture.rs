//! Recorded numbers of PyTorch's hooks: what a case is, and its fields.

use crate::hooks::PowerSgdOptions;
use bucketeer_types::DType;
use serde_json::Value;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// The variable that names another folder of recordings.
const FOLDER: &str = "BUCKETEER_REDUCER_FIXTURES";

/// What a case is about, by what is in it.
pub enum Kind {
    /// PyTorch cannot run it at all.
    Unable,
    Cast(DType),
    /// With the 16-bit dtype that it runs in, if any.
    LowRank(PowerSgdOptions, Option<DType>),
    /// With the elements that share a scale; none for all.
    Quantise(Option<NonZeroUsize>),
}

/// All cases of `hooks_numeric.json`.
pub fn cases() -> Vec<Value> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/reducer");
    let folder = std::env::var_os(FOLDER).map_or_else(|| PathBuf::from(own), PathBuf::from);
    let path = folder.join("hooks_numeric.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(!cases.is_empty(), "{} has no cases", path.display());
    cases
}

/// A case's name.
pub fn name(case: &Value) -> &str {
    case["name"].as_str().expect("a case has a name")
}

/// All numbers of a list, those that are not finite by name.
pub fn floats(list: &Value) -> Vec<f64> {
    let float = |value: &Value| match value.as_str() {
        Some("nan") => f64::NAN,
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        // What is written reads back as the same f32, which is not the nearest f64 of the text.
        _ => f64::from(value.as_f64().unwrap_or_else(|| panic!("{value} is not a number")) as f32),
    };
    items(list).iter().map(float).collect()
}

/// The items of a list.
pub fn items(list: &Value) -> &[Value] {
    list.as_array().unwrap_or_else(|| panic!("{list} is not a list"))
}

/// Whole numbers of a list.
pub fn whole<T: TryFrom<u64>>(list: &Value) -> Vec<T> {
    let number = |value: &Value| value.as_u64().and_then(|value| T::try_from(value).ok());
    items(list).iter().map(|value| number(value).unwrap_or_else(|| panic!("{value} is not a size"))).collect()
}

/// What a step launched, without what is empty.
pub fn collectives(step: &Value) -> Vec<&str> {
    let words = items(&step["collectives"]).iter().map(|word| word.as_str().expect("a collective is text"));
    words.filter(|word| !word.ends_with(":0")).collect()
}

/// Number of ranks.
pub fn world(case: &Value) -> u32 {
    case["world"].as_u64().and_then(|world| u32::try_from(world).ok()).expect("a case has ranks")
}

/// What a case is about.
///
/// # Errors
/// Says what is not known.
pub fn kind(case: &Value) -> Result<Kind, String> {
    if let Some(reason) = case.get("fails") {
        return if name(case) == "powersgd_batched" { Ok(Kind::Unable) } else { Err(format!("fails: {reason}")) };
    }
    if let Some(options) = case.get("options").filter(|options| options.get("matrix_approximation_rank").is_some()) {
        return Ok(Kind::LowRank(options_of(options)?, sixteen(case)?));
    }
    let Some(steps) = case.get("steps") else { return by_name(case) };
    let words: Vec<&str> = items(steps).iter().flat_map(collectives).collect();
    if words.iter().all(|word| word.starts_with("all_reduce:")) {
        return sixteen(case)?.map(Kind::Cast).ok_or_else(|| format!("a sum in 32 bits, not a known hook: {words:?}"));
    }
    block(&words).map(Kind::Quantise).ok_or_else(|| format!("no known hook launches {words:?}"))
}

/// Cases without steps say only by their names what they are.
fn by_name(case: &Value) -> Result<Kind, String> {
    let dtypes = [("fp16", DType::F16), ("bf16", DType::Bf16)];
    let found = dtypes.into_iter().find(|(prefix, _)| name(case).starts_with(prefix));
    found.map(|(_, dtype)| Kind::Cast(dtype)).ok_or_else(|| "neither steps nor a name that is known".to_owned())
}

/// The 16-bit dtype of all sums, if there is one.
fn sixteen(case: &Value) -> Result<Option<DType>, String> {
    let mut dtypes: Vec<&str> = items(&case["steps"]).iter().flat_map(collectives).collect();
    dtypes.iter_mut().for_each(|word| *word = word.split(':').nth(1).unwrap_or_default());
    dtypes.sort_unstable();
    dtypes.dedup();
    match dtypes[..] {
        ["f16"] => Ok(Some(DType::F16)),
        ["bf16"] => Ok(Some(DType::Bf16)),
        ["f32"] => Ok(None),
        _ => Err(format!("sums of {dtypes:?}")),
    }
}

/// Elements that share a scale, by what is gathered for each bucket: pairs of scale and zero point, then bytes, the
/// last block filled up.
fn block(words: &[&str]) -> Option<Option<NonZeroUsize>> {
    let (buckets, []) = words.as_chunks() else { return None };
    let sizes = buckets.iter().map(|[scales, bytes]| {
        let scales: usize = scales.strip_prefix("all_gather:f32:")?.parse().ok()?;
        let bytes: usize = bytes.strip_prefix("all_gather:u8:")?.parse().ok()?;
        Some((scales / 2, bytes))
    });
    let sizes: Vec<(usize, usize)> = sizes.collect::<Option<_>>()?;
    if sizes.iter().all(|(scales, _)| *scales == 1) {
        return Some(None);
    }
    let mut blocks = sizes.iter().map(|(scales, bytes)| bytes / scales);
    let block = blocks.next()?;
    blocks.all(|other| other == block).then(|| NonZeroUsize::new(block).map(Some))?
}

/// PyTorch's names and defaults.
fn options_of(options: &Value) -> Result<PowerSgdOptions, String> {
    let mut ours = PowerSgdOptions::default();
    for (key, value) in options.as_object().ok_or("options are not an object")? {
        let wrong = || format!("option {key} is {value}");
        let number = || value.as_f64().ok_or_else(wrong);
        let size = || value.as_u64().ok_or_else(wrong);
        let is = || value.as_bool().ok_or_else(wrong);
        match &**key {
            "matrix_approximation_rank" => ours.rank = size()? as usize,
            "start_powerSGD_iter" => ours.start_step = size()?,
            "min_compression_rate" => ours.min_rate = number()?,
            "use_error_feedback" => ours.error_feedback = is()?,
            "warm_start" => ours.warm_start = is()?,
            "orthogonalization_epsilon" => ours.epsilon = number()?,
            "random_seed" => ours.seed = size()?,
            // How PyTorch groups its products, which changes no number.
            "batch_tensors_with_same_shape" => _ = is()?,
            _ => return Err(format!("option {key} is not known")),
        }
    }
    Ok(ours)
}
