//! The groups that a rank has joined.

use super::error::{CommError, Site};
use super::group::Group;
use super::lock;
use bucketeer_types::GlobalRank;
use std::sync::{Arc, Mutex};

/// One rank's groups, each with what the backend keeps of it. A group's place in the table is the index in its handles.
pub struct GroupTable<S> {
    rank: GlobalRank,
    world_size: u32,
    joined: Mutex<Vec<(Group, Arc<S>)>>,
}

impl<S> GroupTable<S> {
    /// Of a rank that has joined no group yet.
    pub fn new(rank: GlobalRank, world_size: u32) -> Self {
        Self { rank, world_size, joined: Mutex::default() }
    }

    /// Whose groups these are.
    pub const fn rank(&self) -> GlobalRank {
        self.rank
    }

    /// Number of ranks of the world.
    pub const fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Adds a group, with the state that the backend makes for it. Nothing is added when that fails.
    ///
    /// # Errors
    /// [`CommError::Invalid`]: the members are no such list or do not hold this rank, or the rank has joined a group of
    /// that name before; and those of `make`.
    pub fn join(
        &self,
        name: &str,
        members: &[GlobalRank],
        op: &'static str,
        make: impl FnOnce(&Group) -> Result<S, CommError>,
    ) -> Result<Group, CommError> {
        let invalid = |reason| CommError::Invalid { site: Site { group: name.into(), op, seq: None }, reason };
        let mut joined = lock(&self.joined);
        let group = Group::new(name, members, self.rank, self.world_size, joined.len()).map_err(invalid)?;
        if joined.iter().any(|(other, _)| other.name() == name) {
            return Err(invalid(format!("rank {} has joined before", self.rank.0)));
        }
        let state = make(&group)?;
        joined.push((group.clone(), Arc::new(state)));
        Ok(group)
    }

    /// The group of that name and these members, if the rank has joined it.
    pub fn joined(&self, name: &str, members: &[GlobalRank]) -> Option<Group> {
        lock(&self.joined).iter().map(|(group, _)| group).find(|group| group.is_of(name, members)).cloned()
    }

    /// What the backend keeps of a group.
    ///
    /// # Errors
    /// [`CommError::Invalid`] for a handle that another rank has made.
    pub fn find(&self, group: &Group, op: &'static str) -> Result<Arc<S>, CommError> {
        let joined = lock(&self.joined);
        let found = joined.get(group.index()).filter(|(own, _)| own.is(group));
        found.map(|(_, state)| state.clone()).ok_or_else(|| group.not_made_by(self.rank, op))
    }
}
