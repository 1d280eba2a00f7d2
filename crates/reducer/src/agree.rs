//! What ranks compare before they reduce anything together.

use crate::error::ReducerError;
use crate::param::Param;
use crate::shared::Shared;
use bucketeer_types::GlobalRank;
use sha2::{Digest, Sha256};

/// Bytes of what is compared first.
const HEADER_BYTES: usize = 8 + 32 + 32;

/// Most bytes of a description in an error.
const TEXT_BYTES: usize = 2048;

/// What is compared of a parameter: name, dtype, shape, strides, and whether it is sparse.
fn describe(param: &Param) -> String {
    format!("{} {param}", param.name())
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Compares parameters and options, and asks why where that fails on another rank. Whether all ranks have the same assignment to buckets, too.
///
/// # Errors
/// [`ReducerError::Disagree`] on every rank, with both sides.
pub fn agree(shared: &Shared, assignment: &str) -> Result<bool, ReducerError> {
    compare(shared, assignment).map_err(|error| match error {
        ReducerError::Comm { .. } => shared.fail(error, 0),
        // All ranks know, and nothing is in flight.
        error => error,
    })
}

fn compare(shared: &Shared, assignment: &str) -> Result<bool, ReducerError> {
    let hook = shared.hook.as_ref().map_or("none", |hooked| &hooked.name);
    let options = format!("{}, hook {hook}", shared.options.common());
    let texts: Vec<String> = shared.params.iter().map(describe).collect();
    let mut whole = Sha256::new();
    for text in texts.iter().chain([&options]) {
        whole.update(digest(text));
    }
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend((texts.len() as u64).to_le_bytes());
    header.extend(<[u8; 32]>::from(whole.finalize()));
    header.extend(digest(assignment));
    let headers = shared.gather(&header, "the number of parameters", 0)?;
    if headers.iter().all(|other| other[..40] == header[..40]) {
        return Ok(headers.iter().all(|other| *other == headers[0]));
    }
    if let Some(error) = differs(
        shared,
        "the number of parameters",
        &headers,
        |header| u64::from_le_bytes(header[..8].try_into().unwrap_or_default()).to_string(),
        8,
    ) {
        return Err(error);
    }
    // The first parameter whose digest differs anywhere, and what each rank has there. All ranks find the same one.
    let digests: Vec<u8> = texts.iter().flat_map(|text| digest(text)).collect();
    let all = shared.gather(&digests, "the parameters", 0)?;
    let first = (0..texts.len()).find(|at| {
        let one = |rank: &Vec<u8>| rank[at * 32..(at + 1) * 32].to_vec();
        all.iter().any(|rank| one(rank) != one(&all[0]))
    });
    let (what, text) = match first {
        Some(at) => (format!("parameter {at}"), &texts[at]),
        None => ("the options".to_owned(), &options),
    };
    let mut record = vec![0; TEXT_BYTES];
    let text = text.as_bytes();
    let len = text.len().min(TEXT_BYTES);
    record[..len].copy_from_slice(&text[..len]);
    let records = shared.gather(&record, &what, 0)?;
    let say = |record: &[u8]| String::from_utf8_lossy(record).trim_end_matches('\0').to_owned();
    Err(differs(shared, &what, &records, say, TEXT_BYTES).unwrap_or_else(|| {
        shared.invalid(format!("ranks disagree on {what}, behind the first {TEXT_BYTES} bytes of its description"))
    }))
}

/// The error for the first two ranks whose first `len` bytes differ.
fn differs(
    shared: &Shared,
    what: &str,
    records: &[Vec<u8>],
    say: impl Fn(&[u8]) -> String,
    len: usize,
) -> Option<ReducerError> {
    let other = records.iter().position(|record| record[..len] != records[0][..len])?;
    let rank = |place: usize| shared.group.members().get(place).copied().unwrap_or(GlobalRank(0));
    let values = Box::new((say(&records[0][..len]), say(&records[other][..len])));
    Some(ReducerError::Disagree { what: what.to_owned(), ranks: (rank(0), rank(other)), values })
}
