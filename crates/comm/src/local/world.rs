//! What the ranks of a process share: who is there, and which groups there are.

use super::LocalOptions;
use super::hook::{Action, Hook, Point};
use super::meeting::Meeting;
use super::pin;
use super::pool::Pool;
use super::round::{Round, Sign};
use crate::error::{CommError, Fate, Site};
use crate::group::{Group, numbers};
use crate::lock;
use bucketeer_types::GlobalRank;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// A transfer that reads and writes no more bytes than this is done at once, by the last rank to come: waking another
/// thread takes as long.
const AT_ONCE_BYTES: usize = 512 << 10;

/// See the module docs.
pub struct World {
    pub size: u32,
    pub options: LocalOptions,
    /// How often a rank looks before it sleeps; never where there are more ranks than processors.
    pub spins: u32,
    pool: Pool,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    groups: Vec<Arc<Meeting>>,
    by_name: HashMap<Arc<str>, Vec<usize>>,
    fates: HashMap<GlobalRank, Fate>,
}

/// What rounds ask for faults.
#[derive(Clone)]
pub struct Probe {
    hook: Hook,
    world: Weak<World>,
}

impl Probe {
    pub fn ask(&self, point: &Point<'_>) -> Action {
        (self.hook)(point)
    }

    pub fn kill(&self, rank: GlobalRank) {
        if let Some(world) = self.world.upgrade() {
            world.leave(rank, Fate::Killed);
        }
    }
}

impl World {
    pub fn new(size: u32, options: LocalOptions) -> Self {
        let processors = pin::processors();
        let spins = if size as usize <= processors { 500 } else { 0 };
        let pool = Pool::new(options.movers.unwrap_or(processors));
        Self { size, options, spins, pool, registry: Mutex::default() }
    }

    pub fn probe(self: &Arc<Self>) -> Option<Probe> {
        let hook = self.options.hook.clone()?;
        Some(Probe { hook, world: Arc::downgrade(self) })
    }

    /// The meeting of a group that a member joins; made by the first who does, unless a member is gone already.
    pub fn join(self: &Arc<Self>, group: &Group, op: &'static str) -> Result<Arc<Meeting>, CommError> {
        let site = || Site { group: group.shared_name(), op, seq: None };
        let invalid = |reason| CommError::Invalid { site: site(), reason };
        let mut registry = lock(&self.registry);
        let own = group.members()[group.place()];
        let Registry { groups, by_name, fates } = &mut *registry;
        let named = by_name.entry(group.shared_name()).or_default();
        for theirs in named.iter().filter_map(|index| groups.get(*index)).map(|meeting| &meeting.members) {
            let Some(shared) = group.members().iter().find(|rank| theirs.contains(rank)) else { continue };
            if **theirs != *group.members() {
                let (ours, theirs) = (numbers(group.members()), numbers(theirs));
                let reason = format!(
                    "rank {} says the members are {ours}, but a group of that name with rank {} has the members {theirs}",
                    own.0, shared.0
                );
                return Err(invalid(reason));
            }
        }
        if let Some(index) = named.iter().find(|index| groups[**index].members.contains(&own)) {
            return Ok(groups[*index].clone());
        }
        if let Some((rank, fate)) = group.members().iter().find_map(|rank| Some((*rank, *fates.get(rank)?))) {
            return Err(CommError::Remote { site: site(), rank, fate });
        }
        let (level, link) = (self.options.debug, self.options.link);
        let meeting = Meeting::new(group.shared_name(), group.shared_members(), level, link, self.probe());
        let meeting = Arc::new(meeting);
        named.push(groups.len());
        groups.push(meeting.clone());
        Ok(meeting)
    }

    /// A rank is gone: its groups break.
    pub fn leave(&self, rank: GlobalRank, fate: Fate) {
        let mut registry = lock(&self.registry);
        registry.fates.entry(rank).or_insert(fate);
        let groups = registry.groups.iter();
        let lost: Vec<Arc<Meeting>> = groups.filter(|meeting| meeting.members.contains(&rank)).cloned().collect();
        drop(registry);
        for meeting in lost {
            meeting.lose(rank, fate);
        }
    }

    /// Has the tiles of an open round moved.
    pub fn start(&self, round: &Arc<Round>, at_once: bool) {
        if at_once { round.move_tiles(None) } else { self.pool.push(round) }
    }

    /// How many bytes are moved at once; `None` where there are faults on request, which may stall a transfer.
    pub fn at_once_bytes(&self) -> Option<usize> {
        self.options.hook.is_none().then_some(AT_ONCE_BYTES)
    }

    /// What a rank does while it waits for a round, before it sleeps. Where there are faults on request it only sleeps:
    /// a stalled transfer must not hold up a rank.
    pub fn help(&self, round: &Round, deadline: Option<Instant>) {
        if self.options.hook.is_some() {
            return;
        }
        round.spin(Sign::AtOnce, self.spins);
        if round.is_at(Sign::Shared) && !round.is_claimed() {
            self.pool.help(round, deadline);
        }
        if round.is_at(Sign::AtOnce) {
            round.spin(Sign::Ended, self.spins);
        }
    }
}
