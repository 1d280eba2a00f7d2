//! A process group, as one of its members sees it.

use super::error::{CommError, Site};
use bucketeer_types::{GlobalRank, GroupRank};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// One rank's handle on a group: its name, its members in order, and the rank's own place among them. Made by
/// [`Backend::new_group`](super::Backend::new_group); copies are handles to the same group.
#[derive(Clone, PartialEq, Eq)]
pub struct Group {
    name: Arc<str>,
    members: Arc<[GlobalRank]>,
    place: GroupRank,
    /// The backend's number for it.
    index: usize,
}

impl Group {
    /// The group of `members`, for the member `rank` in a world of `world` ranks; `index` is the backend's own.
    ///
    /// # Errors
    /// A text: a member is named twice or is not in the world, or `rank` is not a member.
    pub(super) fn new(
        name: &str,
        members: &[GlobalRank],
        rank: GlobalRank,
        world: u32,
        index: usize,
    ) -> Result<Self, String> {
        let mut seen = HashSet::new();
        for member in members {
            if member.0 >= world {
                return Err(format!("rank {} is a member, but there are only {world} ranks, from 0", member.0));
            }
            if !seen.insert(member) {
                return Err(format!("rank {} is a member twice", member.0));
            }
        }
        match members.iter().position(|member| *member == rank) {
            // There are at most `world` members, as none comes twice.
            Some(place) => {
                Ok(Self { name: name.into(), members: members.into(), place: GroupRank(place as u32), index })
            }
            None => Err(format!("rank {} is not a member: the members are {}", rank.0, numbers(members))),
        }
    }

    /// Whether this is the group of that name and these members, in that order.
    pub(super) fn is_of(&self, name: &str, members: &[GlobalRank]) -> bool {
        *self.name == *name && *self.members == *members
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Global ranks of the members; the position is the rank in the group.
    #[must_use]
    pub fn members(&self) -> &[GlobalRank] {
        &self.members
    }

    /// Number of members.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// This rank's place among the members.
    #[must_use]
    pub const fn rank(&self) -> GroupRank {
        self.place
    }

    /// The global rank of a member.
    #[must_use]
    pub fn global(&self, rank: GroupRank) -> Option<GlobalRank> {
        self.members.get(rank.0 as usize).copied()
    }

    /// Name and members of the group that is left without `failed`: `G`, then `G~1`, then `G~2`.
    ///
    /// # Errors
    /// A text: a rank to leave out is not a member, or is this one.
    pub(super) fn without(&self, failed: &[GlobalRank]) -> Result<(String, Vec<GlobalRank>), String> {
        let members: HashSet<&GlobalRank> = self.members.iter().collect();
        if let Some(stranger) = failed.iter().find(|rank| !members.contains(rank)) {
            return Err(format!("rank {} is to be left out, but is not a member", stranger.0));
        }
        let failed: HashSet<&GlobalRank> = failed.iter().collect();
        let own = self.members[self.place()];
        if failed.contains(&own) {
            return Err(format!("rank {} is to be left out, but asks for the group", own.0));
        }
        let (base, times) = match self.name.rsplit_once('~') {
            Some((base, times)) => times.parse::<u32>().map_or((&*self.name, 0), |times| (base, times)),
            None => (&*self.name, 0),
        };
        let left = self.members.iter().filter(|rank| !failed.contains(rank)).copied().collect();
        Ok((format!("{base}~{}", u64::from(times) + 1), left))
    }

    /// What an error about a call that has no number yet says it is.
    pub(super) fn site(&self, op: &'static str) -> Site {
        Site { group: self.shared_name(), op, seq: None }
    }

    /// The arguments of a call are wrong.
    pub(super) fn invalid(&self, op: &'static str, reason: impl Into<String>) -> CommError {
        CommError::Invalid { site: self.site(op), reason: reason.into() }
    }

    /// A rank uses a handle that is not one of its own.
    pub(super) fn not_made_by(&self, rank: GlobalRank, op: &'static str) -> CommError {
        self.invalid(op, format!("rank {} has not made this group", rank.0))
    }

    /// Whether both are the same handle.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.members, &other.members) && self.place == other.place && self.index == other.index
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        self.name.clone()
    }

    pub(super) fn shared_members(&self) -> Arc<[GlobalRank]> {
        self.members.clone()
    }

    pub(super) fn place(&self) -> usize {
        self.place.0 as usize
    }

    pub(super) const fn index(&self) -> usize {
        self.index
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({} {}, rank {})", self.name, numbers(&self.members), self.place.0)
    }
}

/// `[0, 2]`.
pub(super) fn numbers(ranks: &[GlobalRank]) -> String {
    let list: Vec<String> = ranks.iter().map(|rank| rank.0.to_string()).collect();
    format!("[{}]", list.join(", "))
}
