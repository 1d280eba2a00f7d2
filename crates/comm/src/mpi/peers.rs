//! What a rank knows of the others: their groups, and whether they are still there.

use super::note::{Arrival, Break};
use crate::error::Fate;
use crate::group::Group;
use bucketeer_types::GlobalRank;
use std::collections::HashMap;
use std::sync::Arc;

/// What a member says of a group.
pub enum Known {
    Arrival(Arrival),
    Break(Break),
}

struct Theirs {
    name: Arc<str>,
    members: Arc<[GlobalRank]>,
    /// This rank's number for the group.
    own: Option<usize>,
    /// Until this rank joins.
    waiting: Vec<Known>,
}

#[derive(Default)]
struct Peer {
    /// By the rank's own number.
    groups: HashMap<u32, Theirs>,
    by_name: HashMap<Arc<str>, u32>,
    gone: Option<Fate>,
    finished: bool,
}

pub struct Peers(Vec<Peer>);

impl Peers {
    pub fn new(size: u32) -> Self {
        Self((0..size).map(|_| Peer::default()).collect())
    }

    /// Number of ranks of the world.
    pub fn size(&self) -> u32 {
        // Made from as many.
        self.0.len() as u32
    }

    fn get(&self, rank: GlobalRank) -> Option<&Peer> {
        self.0.get(rank.0 as usize)
    }

    fn get_mut(&mut self, rank: GlobalRank) -> Option<&mut Peer> {
        self.0.get_mut(rank.0 as usize)
    }

    /// How a rank went away, if it has.
    pub fn gone(&self, rank: GlobalRank) -> Option<Fate> {
        self.get(rank).and_then(|peer| peer.gone)
    }

    /// Notes that a rank has gone; whether that is news.
    pub fn lose(&mut self, rank: GlobalRank, fate: Fate) -> bool {
        self.get_mut(rank).is_some_and(|peer| peer.gone.replace(peer.gone.unwrap_or(fate)).is_none())
    }

    pub fn finish(&mut self, rank: GlobalRank) {
        if let Some(peer) = self.get_mut(rank) {
            peer.finished = true;
        }
    }

    pub fn is_finished(&self, rank: GlobalRank) -> bool {
        self.get(rank).is_some_and(|peer| peer.finished)
    }

    /// Ranks other than `own` that are not gone, or have not finished.
    pub fn staying(&self, own: GlobalRank, finished: bool) -> Vec<GlobalRank> {
        let stays = |peer: &Peer| if finished { !peer.finished } else { peer.gone.is_none() };
        let others = self.0.iter().zip(0..).map(|(peer, rank)| (peer, GlobalRank(rank)));
        others.filter(|(peer, rank)| *rank != own && stays(peer)).map(|(_, rank)| rank).collect()
    }

    /// A rank that has made a group of that name with other members.
    pub fn other_members(&self, group: &Group) -> Option<(GlobalRank, Arc<[GlobalRank]>)> {
        self.0.iter().zip(0..).find_map(|(peer, rank)| {
            let theirs = peer.groups.get(peer.by_name.get(group.name())?)?;
            (*theirs.members != *group.members()).then(|| (GlobalRank(rank), theirs.members.clone()))
        })
    }

    /// A rank has made a group; `false` if it says so twice.
    pub fn add(
        &mut self,
        rank: GlobalRank,
        group: u32,
        name: Arc<str>,
        members: Arc<[GlobalRank]>,
        own: Option<usize>,
    ) -> bool {
        let Some(peer) = self.get_mut(rank) else { return false };
        let twice = peer.by_name.insert(name.clone(), group).is_some();
        peer.groups.insert(group, Theirs { name, members, own, waiting: Vec::new() }).is_none() && !twice
    }

    /// This rank joins a group: what its members have said of it so far.
    pub fn link(&mut self, group: &Group) -> Vec<(GlobalRank, Vec<Known>)> {
        let mut heard = Vec::new();
        for rank in group.members() {
            let Some(peer) = self.get_mut(*rank) else { continue };
            let found = peer.by_name.get(group.name()).copied();
            if let Some(theirs) = found.and_then(|number| peer.groups.get_mut(&number)) {
                debug_assert_eq!(&*theirs.name, group.name());
                theirs.own = Some(group.index());
                heard.push((*rank, std::mem::take(&mut theirs.waiting)));
            }
        }
        heard
    }

    /// Whose group it is that a rank speaks of, if this rank has joined it; else it is kept. `Err` for a group that the
    /// rank has not made.
    pub fn find(&mut self, rank: GlobalRank, group: u32, known: Known) -> Result<Option<(usize, Known)>, ()> {
        let theirs = self.get_mut(rank).and_then(|peer| peer.groups.get_mut(&group)).ok_or(())?;
        match theirs.own {
            Some(index) => Ok(Some((index, known))),
            None => {
                theirs.waiting.push(known);
                Ok(None)
            }
        }
    }
}
