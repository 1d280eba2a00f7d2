//! The values of a store, and who waits for them. No threads and no sockets.

use super::limits::{check, check_key, check_keys, check_value};
use super::{MAX_REPLY_BYTES, MAX_STORE_BYTES, StoreError};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What a key and its value take beside their bytes, about.
const ENTRY_BYTES: usize = 128;

/// What a key that is waited for takes beside its bytes, about, for each wait.
const WAIT_KEY_BYTES: usize = 48;

pub(super) type Value = Arc<[u8]>;

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct WaitId(u64);

/// What became of a request to wait.
pub(super) enum Waiting {
    /// All values are there.
    Done(Vec<Value>),
    /// They are not; a change that sets the last of them returns it.
    Until(WaitId),
}

/// A wait that a change ended.
pub(super) struct Done<T> {
    pub id: WaitId,
    pub ticket: T,
    pub values: Result<Vec<Value>, StoreError>,
}

struct Waiter<T> {
    ticket: T,
    keys: Vec<String>,
    /// Keys that had no value when they were last looked at and were not set since.
    missing: usize,
}

/// Values by key, and the requests that wait for keys.
pub(super) struct KvTable<T> {
    place: String,
    values: HashMap<String, Value>,
    /// Of values and of waits.
    bytes: usize,
    /// By a key without a value: who waits for it.
    wanted: HashMap<String, BTreeSet<WaitId>>,
    waiters: HashMap<WaitId, Waiter<T>>,
    next: u64,
}

impl<T> KvTable<T> {
    /// `place` is what errors call the store.
    pub fn new(place: String) -> Self {
        Self { place, values: HashMap::new(), bytes: 0, wanted: HashMap::new(), waiters: HashMap::new(), next: 0 }
    }

    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<Vec<Done<T>>, StoreError> {
        check_key(key)?;
        check_value(value)?;
        let old = self.values.get(key).map_or(0, |old| entry_bytes(key, old));
        let bytes = self.bytes - old + entry_bytes(key, value);
        self.hold(bytes)?;
        match self.values.get_mut(key) {
            Some(place) => {
                *place = value.into();
                Ok(Vec::new())
            }
            None => {
                self.values.insert(key.to_owned(), value.into());
                Ok(self.wake(key))
            }
        }
    }

    pub fn set_once(&mut self, key: &str, value: &[u8]) -> Result<(Value, Vec<Done<T>>), StoreError> {
        check_key(key)?;
        check_value(value)?;
        if let Some(there) = self.values.get(key) {
            return Ok((there.clone(), Vec::new()));
        }
        let done = self.set(key, value)?;
        Ok((value.into(), done))
    }

    pub fn get(&self, keys: &[String]) -> Result<Vec<Option<Value>>, StoreError> {
        check_keys(keys)?;
        let values: Vec<_> = keys.iter().map(|key| self.values.get(key).cloned()).collect();
        check_reply(values.iter().flatten())?;
        Ok(values)
    }

    pub fn wait(&mut self, keys: Vec<String>, ticket: T) -> Result<Waiting, StoreError> {
        check_keys(&keys)?;
        if let Some(values) = self.all(&keys) {
            return values.map(Waiting::Done);
        }
        self.hold(self.bytes.saturating_add(wait_bytes(&keys)))?;
        let id = WaitId(self.next);
        self.next += 1;
        let missing = self.want(id, &keys);
        self.waiters.insert(id, Waiter { ticket, keys, missing });
        Ok(Waiting::Until(id))
    }

    /// Ends a wait. `None` if it has ended already.
    pub fn cancel(&mut self, id: WaitId) -> Option<Vec<String>> {
        let waiter = self.waiters.remove(&id)?;
        self.bytes -= wait_bytes(&waiter.keys);
        let mut missing = Vec::new();
        for key in waiter.keys {
            if let Some(ids) = self.wanted.get_mut(&key) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.wanted.remove(&key);
                }
            }
            if !self.values.contains_key(&key) {
                missing.push(key);
            }
        }
        Some(missing)
    }

    pub fn add(&mut self, key: &str, delta: i64) -> Result<(i64, Vec<Done<T>>), StoreError> {
        check_key(key)?;
        let old = match self.values.get(key) {
            None => 0,
            Some(value) => {
                let number = str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
                number.ok_or_else(|| self.refuse(format!("the value of `{key}` is not a number to add to")))?
            }
        };
        let sum = old.checked_add(delta);
        let sum = sum.ok_or_else(|| self.refuse(format!("`{key}` is {old}; adding {delta} leaves 64 bits")))?;
        let done = self.set(key, sum.to_string().as_bytes())?;
        Ok((sum, done))
    }

    pub fn remove(&mut self, key: &str) -> Result<bool, StoreError> {
        check_key(key)?;
        let Some(value) = self.values.remove(key) else { return Ok(false) };
        self.bytes -= entry_bytes(key, &value);
        Ok(true)
    }

    /// Takes so many bytes in all, if they are allowed.
    fn hold(&mut self, bytes: usize) -> Result<(), StoreError> {
        if bytes > MAX_STORE_BYTES {
            return Err(self.refuse(format!("it would hold {bytes} bytes, and {MAX_STORE_BYTES} are allowed")));
        }
        self.bytes = bytes;
        Ok(())
    }

    fn refuse(&self, reason: String) -> StoreError {
        StoreError::Refused { address: self.place.clone(), reason }
    }

    /// The values of all keys; `None` when one is missing.
    fn all(&self, keys: &[String]) -> Option<Result<Vec<Value>, StoreError>> {
        let values: Vec<Value> = keys.iter().map(|key| self.values.get(key).cloned()).collect::<Option<_>>()?;
        Some(check_reply(values.iter()).map(|()| values))
    }

    /// Notes who wants the keys that have no value, and counts these.
    fn want(&mut self, id: WaitId, keys: &[String]) -> usize {
        let mut missing = 0;
        for key in keys.iter().filter(|key| !self.values.contains_key(*key)) {
            missing += usize::from(self.wanted.entry(key.clone()).or_default().insert(id));
        }
        missing
    }

    /// Ends the waits for which the key was the last. A key that went again while others were waited for is wanted
    /// anew.
    fn wake(&mut self, key: &str) -> Vec<Done<T>> {
        let mut done = Vec::new();
        for id in self.wanted.remove(key).unwrap_or_default() {
            let Some(mut waiter) = self.waiters.remove(&id) else { continue };
            waiter.missing -= 1;
            if waiter.missing == 0 {
                if let Some(values) = self.all(&waiter.keys) {
                    self.bytes -= wait_bytes(&waiter.keys);
                    done.push(Done { id, ticket: waiter.ticket, values });
                    continue;
                }
                waiter.missing = self.want(id, &waiter.keys);
            }
            self.waiters.insert(id, waiter);
        }
        done
    }
}

fn entry_bytes(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_BYTES
}

fn wait_bytes(keys: &[String]) -> usize {
    keys.iter().map(|key| key.len() + WAIT_KEY_BYTES).sum()
}

fn check_reply<'a>(values: impl Iterator<Item = &'a Value>) -> Result<(), StoreError> {
    check("bytes for the values of a reply", values.map(|value| value.len()).sum(), MAX_REPLY_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many long keys of one wait.
    fn keys(of: usize) -> Vec<String> {
        (0..10_000).map(|nth| format!("{of}/{nth}/{}", "k".repeat(400))).collect()
    }

    #[test]
    fn waits_count_against_the_limit_of_the_store_until_they_end() {
        let mut table: KvTable<()> = KvTable::new("here".to_owned());
        let mut waits = Vec::new();
        let refused = loop {
            match table.wait(keys(waits.len()), ()) {
                Ok(Waiting::Until(id)) => waits.push(id),
                Ok(Waiting::Done(_)) => panic!("nothing is set"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(refused.contains("it would hold") && waits.len() < 100, "{refused}, {}", waits.len());
        assert!(table.bytes <= MAX_STORE_BYTES);
        waits.into_iter().for_each(|id| drop(table.cancel(id)));
        assert_eq!(table.bytes, 0);
        // One that a value ends gives its bytes back, too.
        assert!(matches!(table.wait(vec!["a".to_owned()], ()), Ok(Waiting::Until(_))));
        assert_eq!(table.set("a", b"1").unwrap().len(), 1);
        assert!(table.remove("a").unwrap());
        assert_eq!(table.bytes, 0);
    }
}
