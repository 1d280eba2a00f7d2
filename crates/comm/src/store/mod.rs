//! Where the ranks of a world meet before they can talk to one another: small values by key.
//!
//! A store holds what a world needs to come up, and to find out what went wrong: names of communicators, digests of
//! what ranks are going to launch, who arrived where. It is not for data.
//!
//! | part | is |
//! |---|---|
//! | [`Store`] | one rank's handle |
//! | [`MemoryStore`] | for ranks that are threads of one process |
//! | [`TcpStore`], [`StoreServer`] | for ranks that are processes, on any number of machines |

mod error;
mod kv_table;
mod limits;
mod memory;
#[cfg(feature = "tcp")]
mod tcp;

pub use error::StoreError;
pub use memory::MemoryStore;
#[doc(hidden)]
#[cfg(feature = "tcp")]
pub use tcp::fuzz;
#[cfg(feature = "tcp")]
pub use tcp::{JoinOptions, LINGER, PROTOCOL_VERSION, SECRET_VARIABLE, Secret, ServerOptions, StoreServer, TcpStore};

use super::error::Fate;
use bucketeer_types::GlobalRank;
use std::time::Duration;

/// Most ranks of a world.
pub const MAX_WORLD_SIZE: u32 = 1 << 16;

/// Most bytes of a key.
pub const MAX_KEY_BYTES: usize = 512;

/// Most bytes of a value.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// Most keys of one request.
pub const MAX_KEYS: usize = 1 << 16;

/// Most bytes of a request, all of its keys or its value together.
pub const MAX_REQUEST_BYTES: usize = 8 << 20;

/// Most bytes of the values that one request asks for.
pub const MAX_REPLY_BYTES: usize = 16 << 20;

/// Most bytes that a store holds, with 128 for each key beside what is in it.
pub const MAX_STORE_BYTES: usize = 256 << 20;

/// Missing keys that an error names.
const KEYS_NAMED: usize = 16;

/// The first of the keys, as an error names them.
fn first_keys(mut keys: Vec<String>) -> Vec<String> {
    keys.truncate(KEYS_NAMED);
    keys
}

/// One rank's handle on the world's store. Any thread may use it; a request that waits does not hold up others.
///
/// All of its requests fail with [`StoreError::Lost`] once the store cannot be reached, and with
/// [`StoreError::TooLarge`] for what is above the limits of this module; nothing is sent then.
pub trait Store: Send + Sync {
    /// This rank.
    fn rank(&self) -> GlobalRank;

    /// Number of ranks.
    fn world_size(&self) -> u32;

    /// Sets a value, whether or not there is one.
    ///
    /// # Errors
    /// See the trait; so for all below.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Sets a value unless there is one, and returns the one that is there then.
    ///
    /// # Errors
    /// See the trait.
    fn set_once(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError>;

    /// The values that are there now, in the order of the keys, in one request.
    ///
    /// # Errors
    /// See the trait.
    fn get(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// Waits until all keys have a value, in one request; the values are in the order of the keys.
    ///
    /// # Errors
    /// [`StoreError::Timeout`], naming the keys that are missing.
    fn wait(&self, keys: &[String], timeout: Duration) -> Result<Vec<Vec<u8>>, StoreError>;

    /// Adds to a number, which is 0 at first, and returns the sum. Its value is the number in decimal digits.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the value is not a number, or the sum is none of 64 bits.
    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError>;

    /// Removes a value; whether there was one.
    ///
    /// # Errors
    /// See the trait.
    fn remove(&self, key: &str) -> Result<bool, StoreError>;

    /// The ranks whose handles are gone, in order, and how. [`Fate::Left`] is a handle that was dropped, [`Fate::Lost`]
    /// one that went without a word: its process was killed, or its machine cannot be reached. A store that cannot be
    /// reached itself answers with the rank that held it, if a rank did.
    fn gone(&self) -> Vec<(GlobalRank, Fate)>;

    /// Who was not let in so far, in words: a rank that comes twice, another world size, a wrong secret.
    fn refused(&self) -> Vec<String>;
}
