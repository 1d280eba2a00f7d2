//! Writes to a storage that are not in its content yet.
//!
//! Ranges that are known are kept apart and in order, so that a write and a read of a part of a large storage cost what the
//! part costs, however many others were written. What is not known goes behind them, in order of the writes.

use super::ranges::overlay;
use crate::check::flat::Flat;
use crate::check::int::Int;
use crate::check::terms::Context;
use std::collections::BTreeMap;

/// Pieces of a range from which on it is put into the content rather than cut.
const MANY_PIECES: usize = 64;

/// See the module docs.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// By first byte: the end, and one row of bytes.
    known: BTreeMap<i64, (i64, Flat)>,
    /// Later writes, some of them to places that are not known.
    other: Vec<(Int, Flat)>,
}

/// What became of a write.
pub(super) enum Written {
    Done,
    /// It covers part of a range of many pieces: put what there is into the content first.
    SettleFirst,
}

impl Recent {
    pub fn is_empty(&self) -> bool {
        self.known.is_empty() && self.other.is_empty()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds a row of bytes at a place.
    pub fn write(&mut self, at: &Int, flat: &Flat) -> Option<Written> {
        let end = at.add(&flat.total()?)?;
        let (Some(start), Some(end), true) = (at.known(), end.known(), self.other.is_empty()) else {
            self.other.push((at.clone(), flat.clone()));
            return Some(Written::Done);
        };
        if start >= end {
            return Some(Written::Done);
        }
        let over = self.over(start, end);
        if over.iter().any(|&(_, _, pieces)| pieces > MANY_PIECES) {
            return Some(Written::SettleFirst);
        }
        for (first, last, _) in over {
            let (_, old) = self.known.remove(&first)?;
            let columns = |from: i64, to: i64| old.columns(&Int::Known(from - first), &Int::Known(to - first));
            if first < start {
                self.known.insert(first, (start, columns(first, start)?));
            }
            if last > end {
                self.known.insert(end, (last, columns(end, last)?));
            }
        }
        self.known.insert(start, (end, flat.clone()));
        Some(Written::Done)
    }

    /// Known ranges that share bytes with this one: first byte, end, pieces.
    fn over(&self, start: i64, end: i64) -> Vec<(i64, i64, usize)> {
        let before = self.known.range(..start).next_back().filter(|(_, (last, _))| *last > start);
        let within = self.known.range(start..end);
        before.into_iter().chain(within).map(|(&first, (last, flat))| (first, *last, flat.pieces.len())).collect()
    }

    /// The bytes from `start` to before `end` of a content of one row with these writes; `None` where that is not known.
    pub fn read(&self, row: &Flat, start: i64, end: i64) -> Option<Flat> {
        if !self.other.is_empty() {
            return None;
        }
        let mut parts = Vec::new();
        let mut at = start;
        for (first, last, _) in self.over(start, end) {
            let (from, to) = (first.max(start), last.min(end));
            if at < from {
                parts.push(row.columns(&Int::Known(at), &Int::Known(from))?);
            }
            let (_, flat) = self.known.get(&first)?;
            parts.push(flat.columns(&Int::Known(from - first), &Int::Known(to - first))?);
            at = to;
        }
        if at < end {
            parts.push(row.columns(&Int::Known(at), &Int::Known(end))?);
        }
        Flat::beside(parts)?.normalize()
    }

    /// A content of one row with all these writes, which are then no longer here.
    pub fn settle(&mut self, context: &mut Context<'_>, row: Flat) -> Option<Flat> {
        let Self { known, other } = std::mem::take(self);
        let known: Vec<(Int, Flat)> = known.into_iter().map(|(start, (_, flat))| (Int::Known(start), flat)).collect();
        let mut flat = if known.is_empty() { row } else { overlay(context, row, known)? };
        for write in other {
            flat = overlay(context, flat, vec![write])?;
        }
        Some(flat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::flat::Leaf;
    use crate::check::int::ZERO;
    use crate::check::pattern;

    const BYTES: i64 = 48;

    fn run(leaf: u32, bytes: i64) -> Flat {
        Flat::run(Leaf(leaf), ZERO, pattern::dense(Int::Known(bytes))).unwrap()
    }

    /// For each byte of a row the leaf and the place in it.
    fn bytes(flat: &Flat) -> Vec<(u32, i64)> {
        let mut all = Vec::new();
        for piece in flat.pieces.iter() {
            assert_eq!(piece.inner, pattern::dense(piece.bytes.clone()));
            let (offset, count) = (piece.offset.known().unwrap(), piece.bytes.known().unwrap());
            all.extend((offset..offset + count).map(|at| (piece.leaf.0, at)));
        }
        all
    }

    #[test]
    fn reads_of_parts_see_the_last_writes() {
        let mut seed = 7u64;
        let mut random = |below: i64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) as i64) % below
        };
        for _ in 0..200 {
            let (content, mut recent) = (run(0, BYTES), Recent::default());
            let mut expected = bytes(&content);
            for leaf in 1..12 {
                let start = random(BYTES);
                let length = 1 + random(BYTES - start);
                assert!(matches!(recent.write(&Int::Known(start), &run(leaf, length)), Some(Written::Done)));
                for at in 0..length {
                    expected[(start + at) as usize] = (leaf, at);
                }
                let from = random(BYTES);
                let to = from + 1 + random(BYTES - from);
                let read = recent.read(&content, from, to).unwrap();
                assert_eq!(bytes(&read), expected[from as usize..to as usize]);
            }
            let settled = recent.settle(&mut Context::new(), content).unwrap();
            assert_eq!(bytes(&settled), expected);
            assert!(recent.is_empty());
        }
    }
}
