//! A store for ranks that are threads of one process.

use super::kv_table::{Done, KvTable, Value, WaitId, Waiting};
use super::{Store, StoreError, first_keys};
use crate::error::Fate;
use crate::lock;
use bucketeer_types::GlobalRank;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What errors call such a store.
const PLACE: &str = "memory";

/// One rank's handle. The values are there until the last handle of the world is dropped.
///
/// ```
/// use bucketeer_comm::store::{MemoryStore, Store};
/// use std::time::Duration;
///
/// let ranks = MemoryStore::world(2);
/// ranks[1].set("name", b"value")?;
/// let values = ranks[0].wait(&["name".to_owned()], Duration::from_secs(1))?;
/// assert_eq!(values, [b"value"]);
/// # Ok::<(), bucketeer_comm::store::StoreError>(())
/// ```
pub struct MemoryStore {
    rank: GlobalRank,
    world_size: u32,
    world: Arc<Mutex<World>>,
}

struct World {
    table: KvTable<Arc<Condvar>>,
    /// What waits that have ended found, until their threads take it.
    found: HashMap<WaitId, Result<Vec<Value>, StoreError>>,
    gone: BTreeMap<GlobalRank, Fate>,
}

impl World {
    fn tell(&mut self, done: Vec<Done<Arc<Condvar>>>) {
        for Done { id, ticket, values } in done {
            self.found.insert(id, values);
            ticket.notify_one();
        }
    }
}

impl MemoryStore {
    /// The handles of all ranks of a world, in order.
    #[must_use]
    pub fn world(world_size: u32) -> Vec<Self> {
        let world = World { table: KvTable::new(PLACE.to_owned()), found: HashMap::new(), gone: BTreeMap::new() };
        let world = Arc::new(Mutex::new(world));
        (0..world_size).map(|rank| Self { rank: GlobalRank(rank), world_size, world: world.clone() }).collect()
    }

    /// Lets the rank go as one whose process was killed ([`Fate::Lost`]): for tests. Requests of this handle fail from
    /// now on; those that wait already do not.
    pub fn lose(&self) {
        lock(&self.world).gone.entry(self.rank).or_insert(Fate::Lost);
    }

    fn with<T>(&self, request: impl FnOnce(&mut World) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut world = lock(&self.world);
        if world.gone.contains_key(&self.rank) {
            return Err(self.lost());
        }
        request(&mut world)
    }

    fn lost(&self) -> StoreError {
        StoreError::Lost { address: PLACE.to_owned(), reason: format!("rank {} was let go", self.rank.0) }
    }
}

impl Store for MemoryStore {
    fn rank(&self) -> GlobalRank {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world_size
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.with(|world| {
            let done = world.table.set(key, value)?;
            world.tell(done);
            Ok(())
        })
    }

    fn set_once(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.with(|world| {
            let (there, done) = world.table.set_once(key, value)?;
            world.tell(done);
            Ok(there.to_vec())
        })
    }

    fn get(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let values = self.with(|world| world.table.get(keys))?;
        Ok(values.into_iter().map(|value| value.map(|value| value.to_vec())).collect())
    }

    fn wait(&self, keys: &[String], timeout: Duration) -> Result<Vec<Vec<u8>>, StoreError> {
        let start = Instant::now();
        let woken = Arc::new(Condvar::new());
        let vecs = |values: Vec<Value>| values.iter().map(|value| value.to_vec()).collect();
        let id = match self.with(|world| world.table.wait(keys.to_vec(), woken.clone()))? {
            Waiting::Done(values) => return Ok(vecs(values)),
            Waiting::Until(id) => id,
        };
        let mut world = lock(&self.world);
        loop {
            if let Some(values) = world.found.remove(&id) {
                return values.map(vecs);
            }
            let waited = start.elapsed();
            if waited >= timeout {
                let missing = world.table.cancel(id).unwrap_or_default();
                return Err(StoreError::Timeout { keys: first_keys(missing), waited });
            }
            world = woken.wait_timeout(world, timeout - waited).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.with(|world| {
            let (sum, done) = world.table.add(key, delta)?;
            world.tell(done);
            Ok(sum)
        })
    }

    fn remove(&self, key: &str) -> Result<bool, StoreError> {
        self.with(|world| world.table.remove(key))
    }

    fn gone(&self) -> Vec<(GlobalRank, Fate)> {
        lock(&self.world).gone.iter().map(|(&rank, &fate)| (rank, fate)).collect()
    }

    fn refused(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        let fate = if std::thread::panicking() { Fate::Panicked } else { Fate::Left };
        lock(&self.world).gone.entry(self.rank).or_insert(fate);
    }
}
