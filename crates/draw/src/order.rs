//! The order of a graph's collectives, with few lines.
//!
//! A collective depends on another if a path leads there, over all order, not only data. Each place in the graph carries
//! the collectives it depends on last: those that none of the others depends on. In an FSDP step these are all
//! gathers so far, so that lines between all pairs would be thousands. Where a place depends on more than
//! [`MOST_SOURCES`], a *joint* takes their part: an item that depends on all of them and is nothing itself.
//!
//! So a line leads from one collective to another, through joints or not, exactly if one depends on the other.
//!
//! Cost: each place has a few sources, so lines and time are linear in the edges of the graph, apart from the bit matrix
//! that leaves out lines that others stand for. That has at most [`MOST_ROWS`] rows; behind these a line is left out
//! only if two lines stand for it.

use bucketeer::ir::{Dependencies, Graph, NodeId};
use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

/// Most items that a collective, or a place between, depends on without a joint.
pub const MOST_SOURCES: usize = 6;

/// Most items of which all that they depend on is kept: 8 MiB of bits.
pub const MOST_ROWS: usize = 8192;

/// Something that lines lead from and to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// The collective; `None` for a joint.
    pub node: Option<NodeId>,
    /// What it depends on, by index; all are smaller than its own.
    pub sources: Vec<u32>,
}

/// The collectives of a graph in issue order, with the joints between them.
#[must_use]
pub fn items(graph: &Graph, dependencies: &Dependencies) -> Vec<Item> {
    let mut sweep = Sweep::default();
    sweep.sets.insert(Box::default());
    // By slot: the set of items that what comes after it depends on.
    let mut after: Vec<u32> = Vec::with_capacity(dependencies.slots().len());
    for slot in 0..dependencies.slots().len() {
        let set = sweep.union(dependencies.before(slot).iter().map(|&before| after[before as usize]));
        let collective = dependencies.node(slot).filter(|&id| graph.collective(id).is_some());
        after.push(match collective {
            None => set,
            Some(id) => {
                let sources = sweep.sets[set as usize].to_vec();
                let item = sweep.push(Some(id), sources);
                sweep.intern(vec![item])
            }
        });
    }
    sweep.finish()
}

#[derive(Default)]
struct Sweep {
    items: Vec<Item>,
    /// By item, up to [`MOST_ROWS`]: the items it depends on, over all paths.
    rows: Vec<Box<[u64]>>,
    /// Sorted lists of items, at most [`MOST_SOURCES`] each; the first is empty.
    sets: IndexSet<Box<[u32]>, FxBuildHasher>,
    /// Joints by what they depend on.
    joints: hashbrown::HashMap<Box<[u32]>, u32, FxBuildHasher>,
    /// Scratch.
    merged: Vec<u32>,
}

impl Sweep {
    /// The set of what these sets hold, without what others of them depend on.
    fn union(&mut self, sets: impl Iterator<Item = u32>) -> u32 {
        let mut distinct: Vec<u32> = sets.filter(|&set| set != 0).collect();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < 2 {
            return distinct.first().copied().unwrap_or(0);
        }
        let mut merged = std::mem::take(&mut self.merged);
        merged.clear();
        merged.extend(distinct.iter().flat_map(|&set| self.sets[set as usize].iter().copied()));
        merged.sort_unstable();
        merged.dedup();
        self.reduce(&mut merged);
        let set = if merged.len() <= MOST_SOURCES {
            self.intern(merged.clone())
        } else {
            let joint = self.joint(&merged);
            self.intern(vec![joint])
        };
        self.merged = merged;
        set
    }

    fn intern(&mut self, set: Vec<u32>) -> u32 {
        self.sets.insert_full(set.into_boxed_slice()).0 as u32
    }

    fn joint(&mut self, sources: &[u32]) -> u32 {
        if let Some(&known) = self.joints.get(sources) {
            return known;
        }
        let joint = self.push(None, sources.to_vec());
        self.joints.insert(sources.into(), joint);
        joint
    }

    fn push(&mut self, node: Option<NodeId>, sources: Vec<u32>) -> u32 {
        let item = self.items.len() as u32;
        if self.rows.len() == self.items.len() && self.rows.len() < MOST_ROWS {
            let row = self.above(&sources, self.items.len());
            self.rows.push(row);
        }
        self.items.push(Item { node, sources });
        item
    }

    /// The items that these depend on, and these, as bits.
    fn above(&self, sources: &[u32], end: usize) -> Box<[u64]> {
        let mut row = vec![0u64; end.div_ceil(64)].into_boxed_slice();
        for &source in sources {
            row[source as usize / 64] |= 1 << (source % 64);
            row.iter_mut().zip(&*self.rows[source as usize]).for_each(|(bits, above)| *bits |= above);
        }
        row
    }

    /// Leaves out what others of a sorted list depend on.
    fn reduce(&self, list: &mut Vec<u32>) {
        let (Some(&last), true) = (list.last(), list.len() > 1) else { return };
        let mut above = vec![0u64; last as usize / 64 + 1];
        for &item in &*list {
            if let Some(row) = self.rows.get(item as usize) {
                above.iter_mut().zip(&**row).for_each(|(bits, row)| *bits |= row);
            } else {
                let sources = self.items[item as usize].sources.iter().take(8 * MOST_SOURCES);
                sources.for_each(|&source| above[source as usize / 64] |= 1 << (source % 64));
            }
        }
        list.retain(|&item| above[item as usize / 64] >> (item % 64) & 1 == 0);
    }

    /// The items, without joints that lead to no collective, or to only one item.
    fn finish(self) -> Vec<Item> {
        let mut uses = vec![0u32; self.items.len()];
        for (at, item) in self.items.iter().enumerate().rev() {
            if item.node.is_some() || uses[at] > 0 {
                item.sources.iter().for_each(|&source| uses[source as usize] += 1);
            }
        }
        let goes = |(item, &uses): (&Item, &u32)| item.node.is_none() && uses < 2;
        let goes: Vec<bool> = self.items.iter().zip(&uses).map(goes).collect();
        let mut number = vec![u32::MAX; self.items.len()];
        let mut kept: Vec<Item> = Vec::new();
        for (at, item) in self.items.iter().enumerate().filter(|(at, _)| !goes[*at]) {
            let mut sources = self.lasting_sources(at, &goes);
            sources.iter_mut().for_each(|source| *source = number[*source as usize]);
            number[at] = kept.len() as u32;
            kept.push(Item { node: item.node, sources });
        }
        kept
    }

    /// What an item depends on; in place of joints that go, what those depend on.
    fn lasting_sources(&self, at: usize, goes: &[bool]) -> Vec<u32> {
        let mut stack = self.items[at].sources.clone();
        if !stack.iter().any(|&source| goes[source as usize]) {
            return stack;
        }
        let mut lasting = Vec::new();
        while let Some(source) = stack.pop() {
            if goes[source as usize] {
                stack.extend(&self.items[source as usize].sources);
            } else {
                lasting.push(source);
            }
        }
        lasting.sort_unstable();
        lasting.dedup();
        self.reduce(&mut lasting);
        lasting
    }
}
