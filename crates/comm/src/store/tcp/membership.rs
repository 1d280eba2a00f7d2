//! Which ranks are there, which are gone, and who was not let in.

use super::message::{Absent, RANKS_NAMED};
use crate::error::Fate;
use bucketeer_types::GlobalRank;
use indexmap::IndexMap;

/// Refusals that are told apart.
const REFUSALS: usize = 64;

/// Most bytes of a refusal's text.
const REFUSAL_BYTES: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RankState {
    Empty,
    Here,
    Gone(Fate),
}

/// The ranks of a world.
pub(super) struct Membership {
    ranks: Vec<RankState>,
    /// Ranks that came, whether or not they went again.
    arrived: usize,
    gone: usize,
    /// How often, by what was said.
    refused: IndexMap<String, usize>,
    /// Refusals that are not in the list, which is full.
    more: usize,
}

impl Membership {
    pub fn new(world_size: u32) -> Self {
        let ranks = vec![RankState::Empty; world_size as usize];
        Self { ranks, arrived: 0, gone: 0, refused: IndexMap::new(), more: 0 }
    }

    pub fn world_size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// `None` for a rank outside.
    pub fn state_of(&self, rank: u32) -> Option<RankState> {
        self.ranks.get(rank as usize).copied()
    }

    /// Notes that a rank came, if it did not before.
    pub fn arrive(&mut self, rank: u32) {
        if self.state_of(rank) == Some(RankState::Empty) {
            self.ranks[rank as usize] = RankState::Here;
            self.arrived += 1;
        }
    }

    /// Notes how a rank went, whether or not it came.
    pub fn leave(&mut self, rank: u32, fate: Fate) {
        if matches!(self.state_of(rank), Some(RankState::Empty | RankState::Here)) {
            self.ranks[rank as usize] = RankState::Gone(fate);
            self.gone += 1;
        }
    }

    pub fn all_arrived(&self) -> bool {
        self.arrived == self.ranks.len()
    }

    /// A rank is gone, so that the world is never whole.
    pub fn cannot_be_whole(&self) -> bool {
        !self.all_arrived() && self.gone > 0
    }

    pub fn gone(&self) -> Vec<(GlobalRank, Fate)> {
        if self.gone == 0 {
            return Vec::new();
        }
        let gone = |(rank, state): (usize, &RankState)| match state {
            RankState::Gone(fate) => Some((GlobalRank(rank as u32), *fate)),
            RankState::Empty | RankState::Here => None,
        };
        self.ranks.iter().enumerate().filter_map(gone).collect()
    }

    /// Ranks that are there now.
    pub fn here(&self) -> Vec<GlobalRank> {
        self.with(RankState::Here).collect()
    }

    pub fn absent(&self) -> Absent {
        Absent {
            missing: self.with(RankState::Empty).take(RANKS_NAMED).collect(),
            missing_count: self.with(RankState::Empty).count() as u32,
            gone: self.gone().into_iter().take(RANKS_NAMED).collect(),
            refused: self.refused(),
        }
    }

    pub fn refuse(&mut self, mut text: String) {
        if text.len() > REFUSAL_BYTES {
            let end = (0..=REFUSAL_BYTES).rev().find(|&end| text.is_char_boundary(end));
            text.truncate(end.unwrap_or(0));
        }
        if let Some(count) = self.refused.get_mut(&text) {
            *count += 1;
        } else if self.refused.len() < REFUSALS {
            self.refused.insert(text, 1);
        } else {
            self.more += 1;
        }
    }

    pub fn refused(&self) -> Vec<String> {
        let entry = |(text, &count): (&String, &usize)| match count {
            1 => text.clone(),
            _ => format!("{text} ({count} times)"),
        };
        let more = (self.more > 0).then(|| format!("and {} more", self.more));
        self.refused.iter().map(entry).chain(more).collect()
    }

    fn with(&self, state: RankState) -> impl Iterator<Item = GlobalRank> {
        let ranks = self.ranks.iter().enumerate().filter(move |(_, found)| **found == state);
        ranks.map(|(rank, _)| GlobalRank(rank as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_is_gone_stays_gone_and_keeps_its_fate() {
        let mut membership = Membership::new(3);
        membership.arrive(1);
        membership.arrive(1);
        assert!(!membership.all_arrived() && !membership.cannot_be_whole());
        membership.leave(1, Fate::Lost);
        membership.leave(1, Fate::Left);
        membership.arrive(1);
        membership.leave(9, Fate::Left);
        assert_eq!(membership.gone(), [(GlobalRank(1), Fate::Lost)]);
        assert!(membership.cannot_be_whole());
        assert_eq!(membership.absent().missing, [GlobalRank(0), GlobalRank(2)]);
        membership.arrive(0);
        membership.arrive(2);
        assert!(membership.all_arrived() && !membership.cannot_be_whole());
        assert_eq!(membership.here(), [GlobalRank(0), GlobalRank(2)]);
    }

    #[test]
    fn refusals_are_counted_and_their_number_is_bounded() {
        let mut membership = Membership::new(1);
        (0..3).for_each(|_| membership.refuse("again".to_owned()));
        (0..100).for_each(|i| membership.refuse(format!("other {i}")));
        membership.refuse("é".repeat(REFUSAL_BYTES));
        let refused = membership.refused();
        assert_eq!(refused.len(), REFUSALS + 1);
        assert_eq!((refused[0].as_str(), refused[1].as_str()), ("again (3 times)", "other 0"));
        assert_eq!(refused[REFUSALS], "and 38 more");
    }
}
