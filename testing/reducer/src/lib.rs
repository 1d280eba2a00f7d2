//! What a reducer has to do, on ranks of any backend: each case is what one rank does, and asserts on its own results, so that
//! ranks may be threads or processes.

pub mod recorded;
pub mod recorder;
pub mod red;
pub mod values;

use bucketeer_comm::{Backend, CallOptions, Group};
use bucketeer_types::GlobalRank;
use std::sync::Arc;

/// One rank of a case.
#[derive(Clone)]
pub struct Rank {
    /// Its backend.
    pub backend: Arc<dyn Backend>,
    /// All ranks of the case.
    pub group: Group,
}

impl Rank {
    /// Waits until all ranks have seen all that was done so far: a rank that fails afterwards may break what is seen by no
    /// one yet, but nothing before.
    ///
    /// # Panics
    /// Where the group is broken already.
    pub fn settle(&self) {
        let barrier = || self.backend.barrier(&self.group, &CallOptions::blocking());
        barrier().expect("the group is whole");
        // Whoever is past this one knows that all others are past the first. Its own end may be broken.
        let _ = barrier();
    }

    /// The same ranks as another group.
    ///
    /// # Panics
    /// Where there is one of that name.
    #[must_use]
    pub fn again(&self, name: &str) -> Group {
        let name = format!("{} {name}", self.group.name());
        self.backend.new_group(&name, self.group.members()).expect("a group of its own")
    }
}

/// What ranks do.
pub struct Case {
    /// Says what is shown.
    pub name: String,
    /// How many ranks.
    pub ranks: usize,
    /// One rank's part. Panics where something is not as it should be.
    pub run: Box<dyn Fn(&Rank) + Send + Sync>,
}

/// The folder of the recordings: `fixtures/reducer`, or what `BUCKETEER_REDUCER_FIXTURES` names.
#[must_use]
pub fn folder() -> std::path::PathBuf {
    let own = || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/reducer");
    std::env::var_os("BUCKETEER_REDUCER_FIXTURES").map_or_else(own, Into::into)
}

/// All cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    red::cases().into_iter().chain(recorded::cases()).collect()
}

/// This rank's part in all cases, one after the other, where ranks are processes of a world that stays. Each case has a group of
/// the first ranks; a rank that is not in it goes on to the next one. Returns how many it took part in.
pub fn run_all(backend: &Arc<dyn Backend>) -> usize {
    let mut ran = 0;
    for (number, case) in cases().iter().enumerate() {
        let fits = case.ranks <= backend.world_size() as usize && (backend.rank().0 as usize) < case.ranks;
        if !fits {
            continue;
        }
        let members: Vec<GlobalRank> = (0..case.ranks as u32).map(GlobalRank).collect();
        let group = backend.new_group(&format!("{number} {}", case.name), &members);
        let group = group.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        (case.run)(&Rank { backend: backend.clone(), group });
        ran += 1;
    }
    ran
}
