//! What is too large for a store.

use super::{MAX_KEY_BYTES, MAX_KEYS, MAX_REQUEST_BYTES, MAX_VALUE_BYTES, StoreError};

/// What a key takes of a request beside its bytes, at most.
const KEY_BYTES: usize = 4;

pub(super) fn check_key(key: &str) -> Result<(), StoreError> {
    check("bytes for a key", key.len(), MAX_KEY_BYTES)
}

pub(super) fn check_value(value: &[u8]) -> Result<(), StoreError> {
    check("bytes for a value", value.len(), MAX_VALUE_BYTES)
}

/// Checks the keys of one request, alone and together.
pub(super) fn check_keys(keys: &[String]) -> Result<(), StoreError> {
    check("keys in a request", keys.len(), MAX_KEYS)?;
    let mut total = 0;
    for key in keys {
        check_key(key)?;
        total += key.len() + KEY_BYTES;
    }
    check("bytes for the keys of a request", total, MAX_REQUEST_BYTES)
}

pub(super) fn check(what: &str, found: usize, most: usize) -> Result<(), StoreError> {
    if found > most {
        return Err(StoreError::TooLarge { what: what.to_owned(), found, most });
    }
    Ok(())
}
